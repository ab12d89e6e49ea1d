"""What an attack optimizes, and the presets of the papers as differences from one default."""

import dataclasses
from dataclasses import replace

from atslib.errors import AtsError, choose
from atslib.gradients.problems import DISTANCES

STARTS = ("normal", "uniform", "zeros")
OPTIMIZERS = ("adam", "sgd", "lbfgs")
LAYER_WEIGHTS = ("equal", "linear", "exponential")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attack:
    """One gradient-inversion attack. Step size, box and start are in the model's *normalized* units.

    Attributes:
        distance: between gradients, a key of `DISTANCES`.
        layer_weights: of the parameter tensors in the distance, first to last: equal, 1…L, or 2^(l/L·4).
        optimizer: "adam", "sgd" (Nesterov momentum 0.9) or "lbfgs".
        lr, steps: step size and number of steps (for L-BFGS: of outer steps, `inner` iterations each).
        decay: step size × 0.1 after 3/8, 5/8 and 7/8 of the steps.
        signed: step along the sign of the image gradient.
        boxed: after each step clamp to pixels in [0, 1].
        tv, tv_isotropic: weights of the total variation, mean |dx| + mean |dy| an image, and of its
            rotation-invariant form.
        clip, scale: weights of the distance to the image clipped to [0, 1] and to the image stretched to
            [0, 1] (General Deep Leakage, Eq. 17 and 18).
        l2: weight of the mean squared pixel, in normalized units.
        bn_prior: weight of the distance between the images' batch-norm statistics and the client's, in every
            layer (GradInversion, Yin et al. 2021). Only where the threat model makes those known.
            It costs one more forward and backward pass, about a third of a step.
        start: "normal" N(0, 1) in normalized units, "uniform" pixels in [0, 1], or "zeros" (the mean colour).
        restarts: independent starts; the one with the least distance is kept, never the one nearest the truth.
        inner, history, line_search: of L-BFGS; the line search is backtracking (Armijo).
    """

    distance: str = "cosine"
    layer_weights: str = "equal"
    optimizer: str = "adam"
    lr: float = 0.1
    steps: int = 4800
    decay: bool = True
    signed: bool = True
    boxed: bool = True
    tv: float = 1e-4
    tv_isotropic: float = 0.0
    clip: float = 0.0
    scale: float = 0.0
    l2: float = 0.0
    bn_prior: float = 0.0
    start: str = "normal"
    restarts: int = 1
    inner: int = 20
    history: int = 100
    line_search: bool = False

    def __post_init__(self) -> None:
        choose("Attack.distance", self.distance, DISTANCES)
        choose("Attack.layer_weights", self.layer_weights, LAYER_WEIGHTS)
        choose("Attack.optimizer", self.optimizer, OPTIMIZERS)
        choose("Attack.start", self.start, STARTS)
        for field in ("steps", "restarts", "inner", "history", "lr"):
            if getattr(self, field) <= 0:
                raise AtsError(f"Attack.{field}={getattr(self, field)} must be above 0")
        for field in ("tv", "tv_isotropic", "clip", "scale", "l2", "bn_prior"):
            if getattr(self, field) < 0:
                raise AtsError(f"Attack.{field}={getattr(self, field)} is a weight and must not be negative")

    def structure(self) -> tuple:
        """What two attacks must share to run in one batch; all else may differ by member."""
        return (self.distance, self.layer_weights, self.optimizer, self.inner, self.history, self.line_search)


# Inverting Gradients (Geiping et al. 2020) as ATS ran it; the authors' benchmark/comm.py, "inversed".
_ADAM_COSINE = Attack()
_LBFGS = replace(_ADAM_COSINE, optimizer="lbfgs", lr=1e-4, decay=False)
# Deep Leakage from Gradients as ATS ran it ("zhu"): its step of 1e-4 hardly leaves the start.
_LBFGS_L2 = replace(_LBFGS, distance="l2", steps=50, restarts=2, tv=1e-3, signed=False, boxed=False)
_LBFGS_COSINE = replace(_LBFGS, steps=300, restarts=16)
_SGD_COSINE = replace(_ADAM_COSINE, optimizer="sgd", lr=0.01)  # the code ignores its configured 0.1

# Plain names are the code's settings. A `-fixed` twin exists where those cannot work as meant.
ATTACKS: dict[str, Attack] = {
    "adam-cosine": _ADAM_COSINE,
    "lbfgs-l2": _LBFGS_L2,
    "lbfgs-l2-fixed": replace(_LBFGS_L2, lr=1.0, line_search=True),
    "lbfgs-cosine": _LBFGS_COSINE,
    "lbfgs-cosine-fixed": replace(_LBFGS_COSINE, lr=1.0, line_search=True, signed=False, restarts=4),
    "adam-l1": replace(_ADAM_COSINE, distance="l1"),
    "adam-l2": replace(_ADAM_COSINE, distance="l2"),
    "sgd-cosine": _SGD_COSINE,
    "sgd-cosine-fixed": replace(_SGD_COSINE, lr=0.1),
    # The replication's Table 3: Inverting Gradients' own default, unsigned and smoother.
    "adam-cosine-tv": replace(_ADAM_COSINE, signed=False, tv=0.1),
    # Balunovic et al. 2022 against ATS early in training.
    "adam-cosine-weak-tv": replace(_ADAM_COSINE, tv=1e-5, steps=2000),
}
