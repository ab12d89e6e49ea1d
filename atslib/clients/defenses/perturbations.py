"""Defenses with a name and one number, such as `prune:0.7`: changes of what is shared, and the
table of all names.

The gradient perturbations are those of the paper's Table 3. Both published codebases perturb
gradients in training only; here the gradient that is attacked is perturbed as well.
"""

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from atslib.clients.defenses.defense import NAMED, Defense, Gradients, Names, Stream, needed
from atslib.errors import AtsError, choose


def _kept(flat: Tensor, fraction: float) -> Tensor:
    """`flat` (N, P) with the floor(P · fraction) smallest magnitudes of each row set to zero."""
    count = int(round(flat.shape[1] * fraction, 6))  # 90 · 0.7 is 62.99999999999999 in floats
    smallest = flat.abs().topk(count, dim=1, largest=False).indices
    return flat.scatter(1, smallest, 0.0)


def _prune(gradients: Gradients, fraction: float, rng: Stream) -> Gradients:
    return {name: _kept(g.flatten(1), fraction).view_as(g) for name, g in gradients.items()}


def _prune_global(gradients: Gradients, fraction: float, rng: Stream) -> Gradients:
    kept = _kept(torch.cat([g.flatten(1) for g in gradients.values()], 1), fraction)
    pieces = kept.split([g[0].numel() for g in gradients.values()], 1)
    return {
        name: piece.view_as(g) for piece, (name, g) in zip(pieces, gradients.items(), strict=True)
    }


def gaussian(gradients: Gradients, scale: float, rng: torch.Generator) -> Gradients:
    """Independent N(0, `scale`²) on every entry."""

    def noise(g: Tensor) -> Tensor:
        return torch.randn(g.shape, generator=rng, device=rng.device, dtype=g.dtype).to(g.device)

    return {name: g + scale * noise(g) for name, g in gradients.items()}


def _laplace(gradients: Gradients, scale: float, rng: torch.Generator) -> Gradients:
    def noise(g: Tensor) -> Tensor:
        u = torch.rand(g.shape, generator=rng, device=rng.device, dtype=g.dtype).to(g.device) - 0.5
        return -u.sign() * torch.log1p(-2 * u.abs().clamp_max(0.5 - 2**-25))

    return {name: g + scale * noise(g) for name, g in gradients.items()}


def clip(gradients: Gradients, bound: float, rng: Stream) -> Gradients:
    """Each row scaled down to the norm `bound`, where it is longer."""
    square = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0)
    factor = (bound / square.sqrt().clamp_min(1e-12)).clamp_max(1)
    return {name: g * factor.view(-1, *[1] * (g.ndim - 1)) for name, g in gradients.items()}


def _scale(gradients: Gradients, factor: float, rng: Stream) -> Gradients:
    return {name: factor * g for name, g in gradients.items()}


# name → (function of gradients, strength and rng, what its strength means, whether a strength is
# allowed)
DEFENSES: dict[str, tuple[Callable[..., Gradients], str, Callable[[float], bool]]] = {
    "prune": (_prune, "fraction of each tensor set to zero, in [0, 1)", lambda s: 0 <= s < 1),
    "prune-global": (
        _prune_global,
        "fraction of the whole gradient set to zero, in [0, 1)",
        lambda s: 0 <= s < 1,
    ),
    "gaussian": (gaussian, "standard deviation of the noise, above 0", lambda s: 0 < s < math.inf),
    "laplace": (_laplace, "scale of the noise, above 0", lambda s: 0 < s < math.inf),
    # No defense, but what a client does that multiplies its loss: both published codebases do, by
    # 0.5.
    "scale": (_scale, "factor on the whole gradient, above 0", lambda s: 0 < s < math.inf),
    "clip": (clip, "largest l2 norm of a gradient, above 0", lambda s: 0 < s < math.inf),
}


@dataclasses.dataclass(frozen=True)
class Perturbation(Defense):
    """A change of the shared gradients; written `name:strength`, for instance `prune:0.7` or
    `gaussian:1e-3`.

    Strength is a fraction for the prunings, in units of the gradient for noise and clipping. The
    paper writes noise as N(0, 1e-3); its code multiplies a standard normal by 1e-3, and so does
    ours.
    """

    name: str
    strength: float

    def __post_init__(self) -> None:
        choose("defense", self.name, DEFENSES)
        _, meaning, allowed = DEFENSES[self.name]
        if not allowed(self.strength):
            raise AtsError(f"defense {self.name}: strength {self.strength} must be the {meaning}")

    def __str__(self) -> str:
        return f"{self.name}:{self.strength!r}".removesuffix(".0")

    def after(
        self, gradients: Gradients, *, model: nn.Module | None = None, rng: Stream = None
    ) -> Gradients:
        """Perturb the gradients of N clients, each on its own. Noise needs `rng`."""
        if self.name in ("gaussian", "laplace"):
            needed(rng, self)
        return DEFENSES[self.name][0](gradients, self.strength, rng)


NAMED.append(Names(DEFENSES, lambda name: DEFENSES[name][1], Perturbation))
