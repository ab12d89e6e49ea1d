"""Perturbations of the gradient a client shares: pruning, noise, clipping.

Neither published codebase perturbs the gradient that is attacked (only the training); here a defense acts
on both. Source of the set: the paper's Table 3.
"""

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from atslib.errors import AtsError, choose

Gradients = tuple[Tensor, ...]


def _kept(flat: Tensor, fraction: float) -> Tensor:
    """`flat` (N, P) with the floor(P · fraction) smallest magnitudes of each row set to zero."""
    count = int(round(flat.shape[1] * fraction, 6))  # 90 · 0.7 is 62.99999999999999 in floats
    smallest = flat.abs().topk(count, dim=1, largest=False).indices
    return flat.scatter(1, smallest, 0.0)


def _prune(gradients: Gradients, fraction: float, rng: torch.Generator | None) -> Gradients:
    return tuple(_kept(g.flatten(1), fraction).view_as(g) for g in gradients)


def _prune_global(gradients: Gradients, fraction: float, rng: torch.Generator | None) -> Gradients:
    kept = _kept(torch.cat([g.flatten(1) for g in gradients], 1), fraction)
    pieces = kept.split([g[0].numel() for g in gradients], 1)
    return tuple(piece.view_as(g) for piece, g in zip(pieces, gradients, strict=True))


def _gaussian(gradients: Gradients, scale: float, rng: torch.Generator | None) -> Gradients:
    def noise(g: Tensor) -> Tensor:
        return torch.randn(g.shape, generator=rng, device=rng.device, dtype=g.dtype).to(g.device)

    return tuple(g + scale * noise(g) for g in gradients)


def _laplace(gradients: Gradients, scale: float, rng: torch.Generator | None) -> Gradients:
    def noise(g: Tensor) -> Tensor:
        u = torch.rand(g.shape, generator=rng, device=rng.device, dtype=g.dtype).to(g.device) - 0.5
        return -u.sign() * torch.log1p(-2 * u.abs().clamp_max(0.5 - 2**-25))

    return tuple(g + scale * noise(g) for g in gradients)


def _clip(gradients: Gradients, bound: float, rng: torch.Generator | None) -> Gradients:
    square = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0)
    factor = (bound / square.sqrt().clamp_min(1e-12)).clamp_max(1)
    return tuple(g * factor.view(-1, *[1] * (g.ndim - 1)) for g in gradients)


def _scale(gradients: Gradients, factor: float, rng: torch.Generator | None) -> Gradients:
    return tuple(factor * g for g in gradients)


# name → (function, what its strength means, whether a strength is allowed)
DEFENSES: dict[str, tuple[Callable[..., Gradients], str, Callable[[float], bool]]] = {
    "prune": (_prune, "fraction of each tensor set to zero, in [0, 1)", lambda s: 0 <= s < 1),
    "prune-global": (_prune_global, "fraction of the whole gradient set to zero, in [0, 1)", lambda s: 0 <= s < 1),
    "gaussian": (_gaussian, "standard deviation of the noise, above 0", lambda s: 0 < s < math.inf),
    "laplace": (_laplace, "scale of the noise, above 0", lambda s: 0 < s < math.inf),
    # No defense, but what a client does that multiplies its loss: both published codebases do, by 0.5.
    "scale": (_scale, "factor on the whole gradient, above 0", lambda s: 0 < s < math.inf),
    "clip": (_clip, "largest l2 norm of a gradient, above 0", lambda s: 0 < s < math.inf),
}


@dataclasses.dataclass(frozen=True)
class Defense:
    """One defense and its strength; written `name:strength`, for instance `prune:0.7` or `gaussian:1e-3`.

    Strength is a fraction for the prunings, in units of the gradient for noise and clipping. The paper
    writes noise as N(0, 1e-3); its code multiplies a standard normal by 1e-3, and so does ours.
    """

    name: str
    strength: float

    def __post_init__(self) -> None:
        choose("defense", self.name, DEFENSES)
        _, meaning, allowed = DEFENSES[self.name]
        if not allowed(self.strength):
            raise AtsError(f"defense {self.name}: strength {self.strength} must be the {meaning}")

    @classmethod
    def parse(cls, text: str) -> "Defense":
        """`"prune:0.7"` → `Defense("prune", 0.7)`; the inverse of `str`."""
        name, _, strength = text.partition(":")
        choose("defense", name, DEFENSES)
        try:
            return cls(name, float(strength))
        except ValueError as error:
            if isinstance(error, AtsError):
                raise
            meaning = DEFENSES[name][1]
            raise AtsError(f"defense {text!r}: after the colon comes a number, the {meaning}") from None

    def __str__(self) -> str:
        return f"{self.name}:{self.strength!r}".removesuffix(".0")

    def __call__(self, gradients: Gradients, *, rng: torch.Generator | None = None) -> Gradients:
        """Perturb N gradients, tensors (N, ...); each row on its own. Noise needs `rng`."""
        if rng is None and self.name in ("gaussian", "laplace"):
            raise AtsError(f"defense {self} draws noise: give it rng=atslib.rng(seed)")
        return DEFENSES[self.name][0](gradients, self.strength, rng)
