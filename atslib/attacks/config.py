"""What an attack optimizes, and the presets of the papers as differences from one default."""

import dataclasses
from dataclasses import replace

from atslib.attacks.optimizers import OPTIMIZERS, SCHEDULES
from atslib.attacks.priors import PENALTIES
from atslib.attacks.starts import STARTS
from atslib.errors import AtsError, choose
from atslib.gradients.problems import DISTANCES


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attack:
    """One gradient-inversion attack. Step size, box and start are in the model's *normalized* units.

    Attributes:
        distance: between gradients, a key of `DISTANCES`.
        optimizer: "adam", "sgd" (Nesterov momentum 0.9) or "lbfgs", a key of `OPTIMIZERS`.
        lr, steps: step size and number of steps (for L-BFGS: of outer steps, `inner` iterations each).
        schedule: how the step size changes, a key of `SCHEDULES`: "steps" is the paper's (times 0.1 after
            3/8, 5/8 and 7/8 of the steps), "cosine" and "linear" fall to 0, "constant" stays.
        signed: step along the sign of the image gradient.
        boxed: after each step clamp to pixels in [0, 1].
        tv: weight of the total variation, mean |dx| + mean |dy| of an image.
        penalties: pairs of a key of `PENALTIES` and a weight, such as (("tv-isotropic", 0.1),).
        start: "normal" N(0, 1) in normalized units, "uniform" pixels in [0, 1], or "zeros" (the mean colour).
            Zeros are a dead point of untrained ResNets: the image gradient is exactly 0 there, and the
            attack never leaves it (`Reconstruction.stuck` says so).
        restarts: independent starts; the one with the least distance is kept, never the one nearest the truth.
        keep_best: return the iterate of least cost instead of the last one. The cost is the distance plus
            the penalties, which is what the attack descends; the distance alone would prefer noisier iterates.
        inner, history, line_search: of L-BFGS; the line search is backtracking (Armijo). Without it the rules
            for stopping are torch's; with it they are relative to the gradient and the cost.
    """

    distance: str = "cosine"
    optimizer: str = "adam"
    lr: float = 0.1
    steps: int = 4800
    schedule: str = "steps"
    signed: bool = True
    boxed: bool = True
    tv: float = 1e-4
    penalties: tuple[tuple[str, float], ...] = ()
    start: str = "normal"
    restarts: int = 1
    keep_best: bool = False
    inner: int = 20
    history: int = 100
    line_search: bool = False

    def __post_init__(self) -> None:
        choose("Attack.distance", self.distance, DISTANCES)
        choose("Attack.optimizer", self.optimizer, OPTIMIZERS)
        choose("Attack.schedule", self.schedule, SCHEDULES)
        choose("Attack.start", self.start, STARTS)
        for name, _ in self.penalties:
            choose("Attack.penalties", name, PENALTIES)
        if len(self.weights) <= len(self.penalties):
            raise AtsError(f"Attack.penalties={self.penalties} name one twice; the weight of 'tv' is Attack.tv")
        for field in ("steps", "restarts", "inner", "history", "lr"):
            if getattr(self, field) <= 0:
                raise AtsError(f"Attack.{field}={getattr(self, field)} must be above 0")
        for name, weight in self.weights.items():
            if weight < 0:
                raise AtsError(f"Attack: the weight {weight} of the penalty {name!r} must not be negative")

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each penalty by name."""
        return {"tv": self.tv} | dict(self.penalties)

    def structure(self) -> tuple:
        """What two attacks must share to run in one batch; all else may differ by member."""
        return (self.distance, self.optimizer, self.inner, self.history, self.line_search)


# Inverting Gradients (Geiping et al. 2020) as ATS ran it; the authors' benchmark/comm.py, "inversed".
_ADAM_COSINE = Attack()
_LBFGS = replace(_ADAM_COSINE, optimizer="lbfgs", lr=1e-4, schedule="constant")
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
