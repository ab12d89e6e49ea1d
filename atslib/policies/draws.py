"""What was drawn for images: `Draw` holds crop, flip, member and signs, and makes the same of any
other images.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from atslib.errors import AtsError
from atslib.policies.operations import crop_flip as crop_and_mirror
from atslib.policies.operations import draw_crop
from atslib.policies.policy import Hybrid, Policy, parse_policy
from atslib.rng import as_stream

Streams = tuple[
    torch.Generator, torch.Generator
]  # for crops and flips, and for the policy's own draws


@dataclasses.dataclass(frozen=True)
class Draw:
    """What was drawn for each of B images: crop, flip, and of a policy the member and the signs.

    Attributes:
        policy: its notation, or the policy itself.
        offsets, flips: (B, 2) and (B,), as `operations.crop_flip` takes them; None where nothing is
            cropped or flipped.
        member, signs: (B,) and (B, k), as `Policy.apply_draw` takes them.
    """

    policy: str | Policy | Hybrid
    offsets: Tensor | None
    flips: Tensor | None
    member: Tensor
    signs: Tensor

    def __len__(self) -> int:
        return len(self.member)

    def __getitem__(self, rows: slice | Tensor) -> "Draw":
        """The draws of some of the images; an image may be asked for several times."""
        crop = {"offsets": None, "flips": None}
        if self.offsets is not None:
            crop = {"offsets": self.offsets[rows], "flips": self.flips[rows]}
        return dataclasses.replace(self, member=self.member[rows], signs=self.signs[rows], **crop)

    @staticmethod
    def join(draws: Sequence["Draw"]) -> "Draw":
        """The draws of several sets of images for one policy, one set after the other."""
        first = draws[0]
        parts = {
            name: torch.cat([getattr(each, name) for each in draws])
            for name in ("offsets", "flips", "member", "signs")
            if getattr(first, name) is not None
        }
        return dataclasses.replace(first, **parts)

    def alike_together(self) -> Tensor:
        """An order of the images, (B,), in which those with the same member and signs come one after
        the other: an operation with one sign for a whole batch takes less time.
        """
        both = torch.cat([self.member.unsqueeze(1), self.signs], 1)
        return both.unique(dim=0, return_inverse=True)[1].argsort(stable=True)

    def cropped(self, pixels: Tensor) -> Tensor:
        """Images after crop and flip, before the policy: uint8 (B, C, H, W) -> the same."""
        if len(pixels) != len(self):
            raise AtsError(
                f"a draw for {len(self)} images cannot be applied to {len(pixels)}; index it first"
            )
        return pixels if self.offsets is None else crop_and_mirror(pixels, self.offsets, self.flips)

    def apply(self, pixels: Tensor) -> Tensor:
        """What these draws make of images: uint8 (B, C, H, W) -> the same.

        Raises:
            AtsError: there are not as many images as draws.
        """
        return parse_policy(self.policy).apply_draw(self.cropped(pixels), self.member, self.signs)


def draw(
    n: int,
    policy: str | Policy | Hybrid = "",
    *,
    rng: torch.Generator | int | Streams,
    crop_flip: bool = True,
) -> Draw:
    """What a client draws for n images: crop and flip first, then the policy's own draws.

    Args:
        n: how many images.
        policy: "" for crop and flip alone.
        rng: one stream, or a seed for one, for all draws, as in training; or one stream for crops
            and flips and one for the policy's own draws.
        crop_flip: whether there is a crop (4 pixels of padding) and a flip.
    Raises:
        AtsError: text that names no policy, or no stream.
    """
    rng = rng if isinstance(rng, tuple) else as_stream(rng)
    for_crop, for_policy = rng if isinstance(rng, tuple) else (rng, rng)
    offsets, flips = draw_crop(n, rng=for_crop) if crop_flip else (None, None)
    member, signs = parse_policy(policy).draw(n, rng=for_policy)
    return Draw(policy, offsets, flips, member, signs)
