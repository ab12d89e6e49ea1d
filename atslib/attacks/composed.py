"""Base classes of attacks that wrap gradient matching."""

import dataclasses
from typing import ClassVar

from atslib.attacks.matching import GradientMatching
from atslib.data.images import Images
from atslib.errors import AtsError, check_kind, check_types


@dataclasses.dataclass(frozen=True, kw_only=True)
class Around:
    """An attack with another one inside; `words` say in its title what it adds, `lowest` what
    numbers may be.

    Attributes:
        inner: the attack by gradient matching that it is made of.
    """

    words: ClassVar[str] = ""
    kinds: ClassVar[object] = GradientMatching
    lowest: ClassVar[dict[str, int]] = {}

    inner: GradientMatching

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_types(self)
        check_kind(f"{name}.inner", self.inner, self.kinds, "an atslib.GradientMatching")
        for field, least in self.lowest.items():
            if getattr(self, field) < least:
                raise AtsError(f"{name}.{field}={getattr(self, field)} must be at least {least}")

    @property
    def title(self) -> str:
        """The inner attack's, and what is added."""
        return f"{self.inner.title}{self.words}"

    @property
    def evaluations(self) -> int:
        """How often the gradient of the cost is computed for each image: the inner attack's."""
        return self.inner.evaluations


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithImages:
    """An attacker who has images of its own.

    Attributes:
        images: such as `atslib.load("cifar100", "train")`, before crop, flip and policy.
    """

    images: Images = dataclasses.field(repr=False)

    def own(self) -> Images:
        """The attacker's images.

        Raises:
            AtsError: `images` is something else.
        """
        name = f"{type(self).__name__}.images"
        check_kind(name, self.images, Images, "an atslib.Images, such as atslib.load returns")
        return self.images
