"""What a client does against reconstruction: to its images, inside its network, to the gradient it shares.

`Defense` says where a defense may act. The gradient perturbations are those of the paper's Table 3. Both published
codebases perturb gradients in training only; here the gradient that is attacked is perturbed as well. To add a defense
with a name and a strength: a function and its entry in `DEFENSES`; any other is a subclass of `Defense`, or a plain
function.
"""

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from atslib.errors import AtsError, choose
from atslib.policies.policy import Hybrid, Policy, parse_policy

Gradients = dict[str, Tensor]  # parameter name → (N, *shape), the gradients of N clients
Stream = torch.Generator | None


class Defense:
    """Three places where a defense may act; each does nothing unless a subclass writes it.

    Defenses compose: `Defense.parse("3-1-7+43-18-18 | clip:1 | gaussian:0.01")`, or `Defense.of` for parts of any
    kind. In each place the parts act from left to right.
    """

    def before(self, pixels: Tensor, *, rng: Stream = None) -> Tensor:
        """Act on the images: (B, C, H, W) uint8 → the same shape and type."""
        return pixels

    def inside(self, model: nn.Module) -> nn.Module:
        """Act within the network: a wrapper around `model`, which keeps its very parameters, in their order."""
        return model

    def after(self, gradients: Gradients, *, model: nn.Module | None = None, rng: Stream = None) -> Gradients:
        """Act on what is shared: parameter name → (N, *shape), each row on its own; new tensors of those shapes."""
        return gradients

    def __str__(self) -> str:
        return type(self).__name__

    @property
    def parts(self) -> tuple["Defense", ...]:
        """The defenses that it is made of, in order."""
        return (self,)

    @staticmethod
    def parse(text: str) -> "Defense":
        """`"3-1-7 | clip:1"` → a policy, then clipping; `""` → no defense. The inverse of `str`.

        A part is a policy or hybrid, or a name of `DEFENSES`, a colon and its strength.

        Raises:
            AtsError: a part that is neither, a strength that is not allowed, or two policies.
        """
        if not isinstance(text, str):
            raise AtsError(f"defense {text!r} must be text, such as 'prune:0.7'; Defense.of takes anything else")
        parts = text.split("|") if text.strip() else []
        return _chain([_part(part.strip()) for part in parts])

    @staticmethod
    def of(defense: "AnyDefense") -> "Defense":
        """The defense that is meant by text, a policy, a `Defense`, a function, a list of these, or None.

        A function is called as `function(gradients)` and acts on what is shared: a dict of parameter name →
        tensor (N, *shape), for N clients, in; the same out. Where its signature takes `rng` or `model` (the
        network as the client runs it), it gets those too.
        """
        if defense is None or isinstance(defense, str):
            return Defense.parse(defense or "")
        if isinstance(defense, Defense):
            return defense
        if isinstance(defense, Policy | Hybrid):
            return Transformation(defense)
        if isinstance(defense, list | tuple):
            return _chain([Defense.of(part) for part in defense])
        if callable(defense):
            return Function(defense)
        raise AtsError(f"defense {defense!r} is none; give text, a policy, a Defense, a function or a list of these")


AnyDefense = str | Policy | Hybrid | Defense | Callable[..., Gradients] | Sequence | None


@dataclasses.dataclass(frozen=True)
class Chain(Defense):
    """Several defenses, or none; written with ` | ` between them."""

    parts: tuple[Defense, ...] = ()

    def __post_init__(self) -> None:
        if sum(isinstance(part, Transformation) for part in self.parts) > 1:
            raise AtsError(f"defense {str(self)!r} has two policies; join them: '+' draws one per image, '-' takes all")

    def __str__(self) -> str:
        return " | ".join(map(str, self.parts))

    def before(self, pixels: Tensor, *, rng: Stream = None) -> Tensor:
        """All parts, in order."""
        for part in self.parts:
            pixels = part.before(pixels, rng=rng)
        return pixels

    def inside(self, model: nn.Module) -> nn.Module:
        """All parts, the first innermost."""
        for part in self.parts:
            model = part.inside(model)
        return model

    def after(self, gradients: Gradients, *, model: nn.Module | None = None, rng: Stream = None) -> Gradients:
        """All parts, in order."""
        for part in self.parts:
            gradients = part.after(gradients, model=model, rng=rng)
        return gradients


def _chain(defenses: Sequence[Defense]) -> Defense:
    parts = tuple(part for defense in defenses for part in defense.parts)
    return parts[0] if len(parts) == 1 else Chain(parts)


def _part(text: str) -> Defense:
    if re.fullmatch(r"[\d+_-]+", text):
        return Transformation(parse_policy(text))
    return Perturbation.parse(text)


@dataclasses.dataclass(frozen=True)
class Transformation(Defense):
    """A policy or hybrid, applied to each image with draws of its own."""

    policy: Policy | Hybrid

    def __str__(self) -> str:
        return str(self.policy)

    def before(self, pixels: Tensor, *, rng: Stream = None) -> Tensor:
        """Apply the policy to each image."""
        return self.drawn(pixels, rng=rng)[0]

    def drawn(self, pixels: Tensor, *, rng: Stream) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """`before`, and what was drawn for it: member (B,) and signs (B, k), see `Policy.draw`."""
        draw = self.policy.draw(len(pixels), rng=_needed(rng, self))
        return self.policy.apply_draw(pixels, *draw), draw


@dataclasses.dataclass(frozen=True)
class Function(Defense):
    """A user's own function as a defense; see `Defense.of`. Its text is its name, which cannot be parsed back."""

    function: Callable[..., Gradients]

    def __str__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def after(self, gradients: Gradients, *, model: nn.Module | None = None, rng: Stream = None) -> Gradients:
        """The function, with `model` and `rng` where it takes them."""
        wanted = inspect.signature(self.function).parameters.values()
        if not wanted:
            raise AtsError(f"defense {self} takes no argument; it must take the gradients, a dict")
        named = {p.name for p in wanted} | ({"rng", "model"} if any(p.kind == p.VAR_KEYWORD for p in wanted) else set())
        return self.function(gradients, **{k: v for k, v in (("rng", rng), ("model", model)) if k in named})


def share(defense: Defense, gradients: Gradients, *, model: nn.Module, rng: Stream) -> Gradients:
    """What leaves the client: `defense.after`, checked.

    Raises:
        AtsError: the defense gave back other names or shapes.
    """
    shared = defense.after(gradients, model=model, rng=rng)
    for name, gradient in gradients.items():
        value = shared.get(name) if isinstance(shared, dict) and len(shared) == len(gradients) else None
        if not isinstance(value, Tensor) or value.shape != gradient.shape:
            raise AtsError(
                f"defense {defense} must give back a dict of the {len(gradients)} gradients that it got, each of its "
                f"own shape; {name!r} of shape {tuple(gradient.shape)} is not there"
            )
    return {name: shared[name] for name in gradients}


def wrapped(defense: Defense, model: nn.Module) -> nn.Module:
    """`defense.inside`, checked: the wrapper must train the parameters of `model`."""
    inside = defense.inside(model)
    if [id(p) for p in inside.parameters()] != [id(p) for p in model.parameters()]:
        raise AtsError(f"defense {defense}: inside() must wrap the network and keep its parameters, all in their order")
    return inside


def _needed(rng: Stream, defense: Defense) -> torch.Generator:
    if rng is None:
        raise AtsError(f"defense {defense} draws at random: give it rng=atslib.rng(seed)")
    return rng


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
    return {name: piece.view_as(g) for piece, (name, g) in zip(pieces, gradients.items(), strict=True)}


def _gaussian(gradients: Gradients, scale: float, rng: torch.Generator) -> Gradients:
    def noise(g: Tensor) -> Tensor:
        return torch.randn(g.shape, generator=rng, device=rng.device, dtype=g.dtype).to(g.device)

    return {name: g + scale * noise(g) for name, g in gradients.items()}


def _laplace(gradients: Gradients, scale: float, rng: torch.Generator) -> Gradients:
    def noise(g: Tensor) -> Tensor:
        u = torch.rand(g.shape, generator=rng, device=rng.device, dtype=g.dtype).to(g.device) - 0.5
        return -u.sign() * torch.log1p(-2 * u.abs().clamp_max(0.5 - 2**-25))

    return {name: g + scale * noise(g) for name, g in gradients.items()}


def _clip(gradients: Gradients, bound: float, rng: Stream) -> Gradients:
    square = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0)
    factor = (bound / square.sqrt().clamp_min(1e-12)).clamp_max(1)
    return {name: g * factor.view(-1, *[1] * (g.ndim - 1)) for name, g in gradients.items()}


def _scale(gradients: Gradients, factor: float, rng: Stream) -> Gradients:
    return {name: factor * g for name, g in gradients.items()}


# name → (function of gradients, strength and rng, what its strength means, whether a strength is allowed)
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
class Perturbation(Defense):
    """A change of the shared gradients; written `name:strength`, for instance `prune:0.7` or `gaussian:1e-3`.

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

    @staticmethod
    def parse(text: str) -> "Perturbation":
        """`"prune:0.7"` → `Perturbation("prune", 0.7)`; the inverse of `str`."""
        name, _, strength = text.partition(":")
        choose("defense", name, (*DEFENSES, "a policy such as 3-1-7"))
        try:
            number = float(strength)
        except ValueError:
            meaning = DEFENSES[name][1]
            raise AtsError(f"defense {text!r}: after the colon comes a number, the {meaning}") from None
        return Perturbation(name, number)

    def __str__(self) -> str:
        return f"{self.name}:{self.strength!r}".removesuffix(".0")

    def after(self, gradients: Gradients, *, model: nn.Module | None = None, rng: Stream = None) -> Gradients:
        """Perturb the gradients of N clients, each on its own. Noise needs `rng`."""
        if self.name in ("gaussian", "laplace"):
            _needed(rng, self)
        return DEFENSES[self.name][0](gradients, self.strength, rng)
