"""Learned privacy transformations for collaborative learning: transform, train, attack, score, search.

Ground floor first: `errors`, `rng`, `data`, `transforms`, `policies`, `models`, `metrics`, `gradients`,
`defenses`, `threat`, `store`, `training`, `attacks`, `scores`, `search`, `report`, `verdicts`, `experiments`,
`plots`. Imports point down.
"""

from atslib.attacks import ATTACKS, Attack, Reconstruction, reconstruct
from atslib.clients.defenses import Defense
from atslib.clients.threat import Observed, ThreatModel, observe
from atslib.clients.training import TrainConfig, evaluate, fit, load_checkpoint, save_checkpoint
from atslib.data.load import Images, load, load_folder
from atslib.errors import AtsError
from atslib.gradients.problems import example_gradients
from atslib.measures.metrics import feature_mse, lpips, mse, psnr, ssim
from atslib.models import build_model
from atslib.policies.policy import OPS, Hybrid, Policy, load_policies, parse_policy
from atslib.rng import rng
from atslib.scores.scores import accuracy_score, gradsim_curve, privacy_score, privacy_scores
from atslib.scores.search import SearchConfig, pareto, search
from atslib.store import Store

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
    "SearchConfig",
    "Store",
    "ThreatModel",
    "TrainConfig",
    "accuracy_score",
    "build_model",
    "evaluate",
    "example_gradients",
    "feature_mse",
    "fit",
    "gradsim_curve",
    "load",
    "load_checkpoint",
    "load_folder",
    "load_policies",
    "lpips",
    "mse",
    "observe",
    "pareto",
    "parse_policy",
    "privacy_score",
    "privacy_scores",
    "psnr",
    "reconstruct",
    "rng",
    "save_checkpoint",
    "search",
    "ssim",
]
