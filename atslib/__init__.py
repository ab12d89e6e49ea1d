"""Learned privacy transformations for collaborative learning: transform, train, attack, score, search.

Ground floor first: `errors`, `rng`, `data`, `transforms`, `policies`, `models`, `metrics`, `gradients`,
`defenses`, `threat`, `store`, `training`, `attacks`, `report`, `verdicts`, `experiments`, `plots`. Imports point down.
"""

from atslib.attacks import ATTACKS, Attack, Reconstruction, reconstruct
from atslib.data import Images, load
from atslib.defenses import Defense
from atslib.errors import AtsError
from atslib.gradients import example_gradients
from atslib.metrics import feature_mse, mse, psnr, ssim
from atslib.models import build_model
from atslib.policies import OPS, Hybrid, Policy, parse_policy
from atslib.rng import rng
from atslib.store import Store
from atslib.threat import Observed, ThreatModel, observe
from atslib.training import TrainConfig, evaluate, fit, load_checkpoint, save_checkpoint

__version__ = "0.1.0"
__all__ = [
    "ATTACKS",
    "OPS",
    "AtsError",
    "Attack",
    "Defense",
    "Hybrid",
    "Images",
    "Observed",
    "Policy",
    "Reconstruction",
    "Store",
    "ThreatModel",
    "TrainConfig",
    "build_model",
    "evaluate",
    "example_gradients",
    "feature_mse",
    "fit",
    "load",
    "load_checkpoint",
    "mse",
    "observe",
    "parse_policy",
    "psnr",
    "reconstruct",
    "rng",
    "save_checkpoint",
    "ssim",
]
