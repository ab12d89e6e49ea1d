"""What gradient matching optimizes: the plain description of one attack, which `engine` runs."""

import dataclasses
import math

from atslib.attacks.optimizers import OPTIMIZERS, SCHEDULES
from atslib.attacks.priors import PENALTIES
from atslib.attacks.starts import STARTS
from atslib.errors import AtsError, check_most, check_types, choose
from atslib.gradients.problems import DISTANCES


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientMatching:
    """An attack that searches the images whose gradient is the one that was seen;
    `atslib.reconstruct` runs it.

    Step size and start are in the model's *normalized* units, (pixel - mean) / std. The presets in
    `ATTACKS` are of this class; `dataclasses.replace(ATTACKS["adam-cosine"], steps=300)` is a
    shorter one.

    Attributes:
        distance: between gradients, a key of `DISTANCES`.
        optimizer: "adam", "sgd" (Nesterov momentum 0.9), "lbfgs", or "lbfgs-once", which evaluates
            once a step and is for smooth networks, unsigned; a key of `OPTIMIZERS`.
        lr, steps: step size and number of steps (for L-BFGS: of outer steps, `inner` iterations
            each).
        schedule: how the step size changes, a key of `SCHEDULES`: "steps" is the paper's (times 0.1
            after 3/8, 5/8 and 7/8 of the steps), "cosine" and "linear" fall to 0, "constant" stays.
        signed: step along the sign of the image gradient.
        boxed: after each step clamp to pixels in [0, 1].
        tv: weight of the total variation, mean |dx| + mean |dy| of an image in normalized units.
        penalties: pairs of a key of `PENALTIES` and a weight, such as (("tv-isotropic", 0.1),);
            "tv-isotropic" is of normalized images, the others are of images in [0, 1].
        start: "normal" N(0, 1) in normalized units, "uniform" pixels in [0, 1], "zeros" (the mean
            colour), or another key of `STARTS`. Zeros are a dead point of untrained ResNets: the
            image gradient is exactly 0 there, and the attack never leaves it
            (`Reconstruction.stuck` says so).
        restarts: independent starts; the one with the least distance is kept, never the one nearest
            the truth.
        keep_best: return the iterate of least cost instead of the last one. The cost is the
            distance plus the penalties, which is what the attack descends; the distance alone would
            prefer noisier iterates.
        inner, history, line_search: of L-BFGS ("lbfgs-once" has only a history, and its own rule for
            the step); the line search is backtracking (Armijo). Without it
            the rules for stopping are torch's; with it they are relative to the gradient and the
            cost.
        unroll: of weights that clients trained locally: match what the same local steps change,
            instead of taking their mean for the gradient at their start. Where a step has a part of
            the images the order is a guess.
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
    unroll: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        choose("GradientMatching.distance", self.distance, DISTANCES)
        choose("GradientMatching.optimizer", self.optimizer, OPTIMIZERS)
        choose("GradientMatching.schedule", self.schedule, SCHEDULES)
        choose("GradientMatching.start", self.start, STARTS)
        for pair in (
            self.penalties if isinstance(self.penalties, list | tuple) else (self.penalties,)
        ):
            if not (
                isinstance(pair, list | tuple)
                and len(pair) == 2
                and isinstance(pair[1], int | float)
            ):
                raise AtsError(
                    f"GradientMatching.penalties={self.penalties!r} must be pairs of a name and a weight"
                )
            choose("GradientMatching.penalties", pair[0], PENALTIES)
        if len(self.weights) <= len(self.penalties):
            raise AtsError(
                f"GradientMatching.penalties={self.penalties} name one twice; 'tv' is the field tv"
            )
        for field in ("steps", "restarts", "inner", "history", "lr"):
            if getattr(self, field) <= 0:
                raise AtsError(f"GradientMatching.{field}={getattr(self, field)} must be above 0")
        check_most(self, steps=10_000_000, inner=10_000)
        if self.signed and self.optimizer == "lbfgs-once":
            raise AtsError(
                "GradientMatching.signed=True: optimizer 'lbfgs-once' learns from the gradient's size; give signed=False"
            )
        for name, weight in self.weights.items():
            if not 0 <= weight < math.inf:
                shown = f"the weight {weight} of the penalty {name!r}"
                raise AtsError(f"GradientMatching: {shown} must not be negative, nan or infinite")

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each penalty by name."""
        return {"tv": self.tv} | dict(self.penalties)

    @property
    def evaluations(self) -> int:
        """How often the gradient of the cost is computed for each image."""
        return self.steps * self.restarts * (self.inner if self.optimizer == "lbfgs" else 1)

    @property
    def title(self) -> str:
        """Steps, optimizer and distance in words."""
        return f"{self.steps} steps of {self.optimizer} on {self.distance}"

    def structure(self) -> tuple:
        """What two attacks must share to run in one batch; all else may differ by member."""
        return (
            self.distance,
            self.optimizer,
            self.inner,
            self.history,
            self.line_search,
            self.unroll,
        )
