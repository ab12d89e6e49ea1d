"""What a client does against reconstruction: to its images, inside its network, to the gradient it
shares.

`Defense` says where a defense may act. Those with a name and a strength are in `perturbations` and
`published`; any other is a subclass of `Defense`, or a plain function.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from atslib.errors import AtsError, choose
from atslib.named import is_own, named
from atslib.policies.policy import Hybrid, Policy, parse_policy

Gradients = dict[str, Tensor]  # parameter name → (N, *shape), the gradients of N clients
Stream = torch.Generator | None


class Defense:
    """Five places where a defense may act; each does nothing unless a subclass overrides it.

    A subclass names the options that it wants; those that it does not name are not given.

    Defenses compose: `Defense.parse("3-1-7+43-18-18 | clip:1 | gaussian:0.01")`, or `Defense.of`
    for parts of any kind. In each place the parts act from left to right.
    """

    def before(self, pixels: Tensor, *, rng: Stream = None) -> Tensor:
        """Act on the images: (B, C, H, W) uint8 → the same shape and type."""
        return pixels

    def examples(
        self, images: Tensor, targets: Tensor, *, rng: Stream = None
    ) -> tuple[Tensor, Tensor]:
        """Act on images and labels at once: (B, C, H, W) in [0, 1] and class probabilities (B, K) →
        the same.
        """
        return images, targets

    def inside(self, model: nn.Module, *, rng: Stream = None) -> nn.Module:
        """Act within the network: a wrapper around `model`, which keeps its very parameters, in
        their order.
        """
        return model

    def each(self, gradients: Gradients) -> Gradients:
        """Act on each image's gradient before those of a batch are added up: parameter name → (B,
        *shape).
        """
        return gradients

    def after(
        self,
        gradients: Gradients,
        *,
        model: nn.Module | None = None,
        rng: Stream = None,
        images: Tensor | None = None,
    ) -> Gradients:
        """Act on what is shared: parameter name → (N, *shape), each row on its own; new tensors of
        those shapes.

        `images` (N, k, C, H, W) are those that gave each gradient. Of a defense with `each`, a
        gradient is a sum.
        """
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

        A part is a policy or hybrid, or a name of `perturbations.DEFENSES` or
        `published.PUBLISHED`, a colon and its strength.

        Raises:
            AtsError: a part that is neither, a strength that is not allowed, or two policies.
        """
        if not isinstance(text, str):
            raise AtsError(
                f"defense {text!r} must be text, such as 'prune:0.7'; Defense.of takes anything else"
            )
        parts = text.split("|") if text.strip() else []
        return _chain([_part(part.strip()) for part in parts])

    @staticmethod
    def of(defense: "AnyDefense") -> "Defense":
        """The defense that is meant by text, a policy, a `Defense`, a function, a list of these, or
        None.

        A function is called as `function(gradients)` and acts on what is shared: a dict of
        parameter name → tensor (N, *shape), for N clients, in; the same out. Where its signature
        takes `rng`, `images` or `model` (the network as the client runs it), it gets those too.
        """
        if defense is None or isinstance(defense, str):
            return Defense.parse(defense or "")
        if isinstance(defense, Defense):
            return defense
        if isinstance(defense, Policy | Hybrid):
            return Transformation(defense)
        if isinstance(defense, list | tuple):
            return _chain([Defense.of(part) for part in defense])
        if callable(defense) and not isinstance(defense, nn.Module):  # a network is none
            return Function(defense)
        raise AtsError(
            f"defense {defense!r} is none; give text, a policy, a Defense, a function or a list of these"
        )


@dataclasses.dataclass(frozen=True)
class Names:
    """Defenses that text can name, written `name:strength`.

    Attributes:
        table: whose keys are the names.
        meaning: of a name, in words: what its strength is.
        make: the defense of a name and a strength.
    """

    table: dict[str, object]
    meaning: Callable[[str], str]
    make: Callable[[str, float], Defense]


# `perturbations` and `published` add theirs. The package imports both, so that whoever has
# `Defense` has all names.
NAMED: list[Names] = []

AnyDefense = str | Policy | Hybrid | Defense | Callable[..., Gradients] | Sequence | None


@dataclasses.dataclass(frozen=True)
class Chain(Defense):
    """Several defenses, or none; written with ` | ` between them."""

    parts: tuple[Defense, ...] = ()

    def __post_init__(self) -> None:
        if sum(isinstance(part, Transformation) for part in self.parts) > 1:
            raise AtsError(
                f"defense {str(self)!r} has two policies; join them: '+' draws one per image, '-' takes all"
            )

    def __str__(self) -> str:
        return " | ".join(map(str, self.parts))

    def before(self, pixels: Tensor, *, rng: Stream = None) -> Tensor:
        """All parts, in order."""
        for part in self.parts:
            pixels = part.before(pixels, rng=rng)
        return pixels

    def examples(
        self, images: Tensor, targets: Tensor, *, rng: Stream = None
    ) -> tuple[Tensor, Tensor]:
        """All parts, in order."""
        for part in self.parts:
            images, targets = part.examples(images, targets, rng=rng)
        return images, targets

    def inside(self, model: nn.Module, *, rng: Stream = None) -> nn.Module:
        """All parts, the first innermost."""
        for part in self.parts:
            model = part.inside(model, **_taken(part.inside, rng=rng))
        return model

    def each(self, gradients: Gradients) -> Gradients:
        """All parts, in order."""
        for part in self.parts:
            gradients = part.each(gradients)
        return gradients

    def after(self, gradients: Gradients, **options: object) -> Gradients:
        """All parts, in order."""
        for part in self.parts:
            gradients = part.after(gradients, **_taken(part.after, **options))
        return gradients


def _chain(defenses: Sequence[Defense]) -> Defense:
    parts = tuple(part for defense in defenses for part in defense.parts)
    return parts[0] if len(parts) == 1 else Chain(parts)


def _part(text: str) -> Defense:
    """One part of a text: a policy, or a name and its strength."""
    if re.fullmatch(r"[\d+_-]+", text):
        return Transformation(parse_policy(text))
    name, _, strength = text.partition(":")
    known = [name for names in NAMED for name in names.table]
    choose("defense", name, (*known, "a policy such as 3-1-7"))
    names = next(names for names in NAMED if name in names.table)
    try:
        number = float(strength)
    except ValueError:
        raise AtsError(
            f"defense {text!r}: after the colon comes a number, the {names.meaning(name)}"
        ) from None
    return names.make(name, number)


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
        draw = self.policy.draw(len(pixels), rng=needed(rng, self))
        return self.policy.apply_draw(pixels, *draw), draw


@dataclasses.dataclass(frozen=True)
class Function(Defense):
    """A user's own function as a defense; see `Defense.of`.

    Its text is its name, which cannot be parsed back.
    """

    function: Callable[..., Gradients]

    def __str__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def after(self, gradients: Gradients, **options: object) -> Gradients:
        """The function, with `model`, `rng` and `images` where it takes them."""
        if not inspect.signature(self.function).parameters:
            raise AtsError(f"defense {self} takes no argument; it must take the gradients, a dict")
        return self.function(gradients, **_taken(self.function, **options))


def _taken(function: Callable, **options: object) -> dict[str, object]:
    """Those of the options that a function takes by name."""
    wanted = inspect.signature(function).parameters.values()
    everything = any(p.kind == p.VAR_KEYWORD for p in wanted)
    return {
        name: value
        for name, value in options.items()
        if everything or name in {p.name for p in wanted}
    }


def acts(defense: Defense, place: str) -> bool:
    """Whether a part of it does anything in a place, such as "examples"."""
    return any(getattr(type(part), place) is not getattr(Defense, place) for part in defense.parts)


def share(
    defense: Defense,
    gradients: Gradients,
    *,
    model: nn.Module,
    rng: Stream,
    images: Tensor | None = None,
) -> Gradients:
    """What leaves the client: `defense.after`, checked.

    Raises:
        AtsError: the defense gave back other names or shapes.
    """
    shared = defense.after(gradients, **_taken(defense.after, model=model, rng=rng, images=images))
    for name, gradient in gradients.items():
        value = (
            shared.get(name) if isinstance(shared, dict) and len(shared) == len(gradients) else None
        )
        if not isinstance(value, Tensor) or value.shape != gradient.shape:
            raise AtsError(
                f"defense {defense} must give back a dict of the {len(gradients)} gradients that it got, each of its "
                f"own shape; {name!r} of shape {tuple(gradient.shape)} is not there"
            )
    return {name: shared[name] for name in gradients}


def wrapped(defense: Defense, model: nn.Module, rng: Stream) -> nn.Module:
    """`defense.inside`, checked: the wrapper must train the parameters of `model`."""
    inside = defense.inside(model, **_taken(defense.inside, rng=rng))
    if [id(p) for p in inside.parameters()] != [id(p) for p in model.parameters()]:
        raise AtsError(
            f"defense {defense}: inside() must wrap the network and keep its parameters, all in their order"
        )
    return inside


def needed(rng: Stream, defense: Defense) -> torch.Generator:
    """The stream, or `AtsError` where a defense that draws has none."""
    if rng is None:
        raise AtsError(f"defense {defense} draws at random: give it rng=atslib.rng(seed)")
    return rng


def own_defense(text: str) -> Defense:
    """The defense of a text in which parts may be file.py:name of a function, a policy or a
    `Defense`.
    """
    parts = [part.strip() for part in text.split("|")]
    if not any(map(is_own, parts)):
        return Defense.parse(text)
    return Defense.of([named(part, "--defense") if is_own(part) else part for part in parts])
