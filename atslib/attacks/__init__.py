"""Gradient inversion: from what a server observed back to images.

`config` says what an attack optimizes, `priors` what it believes about images, `engine` runs many
independent first-order attacks as one batch, `lbfgs` the quasi-Newton ones, `labels` restores labels.
"""

from atslib.attacks.config import ATTACKS, Attack
from atslib.attacks.engine import Reconstruction, reconstruct

__all__ = ["ATTACKS", "Attack", "Reconstruction", "reconstruct"]
