"""`Images`, what every data set is loaded as, and the table of the data sets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from atslib.errors import AtsError
from atslib.rng import as_stream

EXACT = 2**24 // 255  # bytes of which a sum in float32 has no rounding


class Kind(NamedTuple):
    """What all images of a data set have in common."""

    mode: str  # Pillow's "RGB" or "L": one letter per channel
    size: int  # images are square, in pixels
    classes: int
    official: str = ""  # where a download comes from: a class of torchvision.datasets, or a URL


KINDS = {
    "cifar100": Kind("RGB", 32, 100, "CIFAR100"),
    "fmnist": Kind("L", 28, 10, "FashionMNIST"),
    "tinyimagenet": Kind("RGB", 64, 200, "http://cs231n.stanford.edu/tiny-imagenet-200.zip"),
    "cifar10": Kind("RGB", 32, 10, "CIFAR10"),
    "shapes": Kind("RGB", 32, 10),
    "shapes-grey": Kind("L", 28, 10),
}


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Images with labels; whatever selects from them returns `Images` again.

    Args:
        pixels: (N, C, H, W) uint8 in 0..255; C is 1 (grey) or 3 (RGB).
        labels: (N,) int64, an index into `class_names`.
        class_names: in index order.
        name, split: where the images come from, e.g. "cifar100", "test".
        note: what differs from the whole official split, for captions; "" where nothing does.
    Raises:
        AtsError: a shape, dtype or label contradicts the above.
    """

    pixels: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    name: str
    split: str
    note: str = ""

    def __post_init__(self) -> None:
        what = f"Images {self.name!r}"
        pixels = self.pixels
        if not (is_tensor(pixels) and pixels.dtype == torch.uint8 and pixels.ndim == 4):
            raise AtsError(
                f"{what}: pixels are {describe(pixels)}; they must be a (N, C, H, W) uint8 tensor"
            )
        if pixels.shape[1] not in (1, 3):
            raise AtsError(f"{what}: {pixels.shape[1]} channels; choose 1 (grey) or 3 (RGB)")
        if not (is_tensor(self.labels) and self.labels.dtype == torch.int64):
            raise AtsError(
                f"{what}: labels are {describe(self.labels)}; they must be a (N,) int64 tensor"
            )
        if not isinstance(self.class_names, tuple | list):
            raise AtsError(
                f"{what}: class_names are a {type(self.class_names).__name__}; they must be a tuple of text"
            )
        if fault := label_fault(self.labels, len(pixels), len(self.class_names)):
            raise AtsError(f"{what}: {fault}")

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.pixels.shape[1:]))
        note = f"; {self.note}" if self.note else ""
        return f"Images({self.name} {self.split}: {len(self):,} of {shape}, {self.num_classes} classes{note})"

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, indices: int | slice | Sequence[int] | Tensor) -> "Images":
        """`images[3]` (one image), `images[:10]`, `images[[4, 2]]` or `images[mask]`, as `Images`.

        Raises:
            AtsError: an index is outside -N..N-1, or not an integer.
        """
        indices = range(len(self))[indices] if isinstance(indices, slice) else indices
        try:
            index = torch.as_tensor(indices, device=self.pixels.device)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise AtsError(
                f"indices {indices!r}: give (M,) integers or a mask of shape ({len(self)},)"
            ) from None
        if not is_tensor(index):
            raise AtsError(f"indices {describe(index)}: give (M,) integers or a mask")
        index = index[None] if index.ndim == 0 else index
        if index.dtype == torch.bool and index.shape == self.labels.shape:
            index = index.nonzero().flatten()
        if index.ndim != 1 or (
            len(index)
            and (index.is_floating_point() or index.is_complex() or index.dtype == torch.bool)
        ):
            raise AtsError(
                f"indices {describe(index)}: give (M,) integers or a mask of shape ({len(self)},)"
            )
        index = index.long()
        if len(bad := index[(index < -len(self)) | (index >= len(self))]):
            raise AtsError(
                f"index {int(bad[0])} is outside the {len(self)} images of {self.name} {self.split}"
            )
        return replace(self, pixels=self.pixels[index], labels=self.labels[index])

    def __iter__(self) -> Iterator["Images"]:
        return (self[i] for i in range(len(self)))

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def subset(self, fraction: float, *, rng: torch.Generator | int) -> "Images":
        """The same share of every class, drawn without replacement and kept in the order of the
        whole.

        Args:
            fraction: in (0, 1]; of n images of a class `round(fraction * n)`, at least 1. (Halves
                go to the even.)
            rng: where the choice is drawn from, or a seed for it.
        Raises:
            AtsError: `fraction` is not a number in (0, 1].
        """
        return self.split_off(fraction, rng=rng)[0]

    def split_off(
        self, fraction: float, *, rng: torch.Generator | int
    ) -> tuple["Images", "Images"]:
        """What `subset` draws, and the images that it leaves; both in the order of the whole."""
        if not (isinstance(fraction, Real) and 0 < fraction <= 1):
            raise AtsError(
                f"subset fraction {fraction!r}: it must be a number above 0 and at most 1"
            )
        rng = as_stream(rng)
        drawn = torch.zeros(len(self), dtype=torch.bool)
        for label in self.labels.unique():
            members = torch.nonzero(self.labels == label).flatten().cpu()
            order = torch.randperm(len(members), generator=rng, device=rng.device).cpu()
            drawn[members[order[: max(1, round(fraction * len(members)))]]] = True
        part = self[drawn]
        rest = self[~drawn]
        how = f"stratified {100 * fraction:g} % (n={len(part):,})"
        named = replace(part, note="; ".join(filter(None, (self.note, how))))
        return (named if len(rest) else part), rest

    def to(self, device: str | torch.device) -> "Images":
        """The same images in the memory of `device`; AtsError if torch cannot put them there."""
        try:
            return replace(self, pixels=self.pixels.to(device), labels=self.labels.to(device))
        except (
            RuntimeError,
            AssertionError,
        ) as error:  # torch raises either for a device that is not there
            raise AtsError(f"device {device!r} cannot hold {self!r}: {explain(error)}") from error


def check_data(images: object) -> None:
    """Raise `AtsError` unless these are `Images`, and some."""
    if not isinstance(images, Images):
        kind = type(images).__name__
        raise AtsError(
            f"images are a {kind}; give atslib.Images with pixels and labels, as atslib.load returns them"
        )
    if not len(images):
        raise AtsError(f"Images {images.name!r} hold no image")


def to_images(pixels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 pixels in 0..255 → float images in [0, 1], of the same shape."""
    return pixels.to(dtype) / 255


def scaled(images: Images, size: int, name: str) -> Images:
    """The images at `size` × `size` pixels under another name; bilinear, as Pillow does it."""
    pixels = functional.interpolate(images.pixels, (size, size), mode="bilinear", antialias=True)
    note = "; ".join(filter(None, (images.note, f"scaled to {size}×{size} from {images.name}")))
    return replace(images, pixels=pixels, name=name, note=note)


def is_tensor(array: object) -> bool:
    """Whether it is a tensor whose values are all there: not sparse, nested or on the device meta."""
    return (
        isinstance(array, Tensor)
        and array.layout == torch.strided
        and not array.is_nested
        and not array.is_meta
    )


def describe(array: object) -> str:
    """What an argument is, for an error: dtype and shape of an array, the type of anything else."""
    if not isinstance(array, (Tensor, np.ndarray)):
        return type(array).__name__
    kind = str(array.dtype).removeprefix("torch.")
    if not isinstance(array, Tensor) or is_tensor(array):
        return f"{kind} of shape {tuple(array.shape)}"
    if array.is_nested:
        return f"nested {kind}"
    return f"{kind} on the device meta" if array.is_meta else f"sparse {kind}"


def explain(error: Exception) -> str:
    """The words of an error as one short line without its full stop, for a sentence of ours."""
    return " ".join(str(error).split())[:200].rstrip(":. ") or type(error).__name__


def label_fault(labels: Tensor | np.ndarray, count: int, classes: int) -> str:
    """What is wrong with the labels of `count` images, or ""."""
    if tuple(labels.shape) != (count,):
        return f"labels of shape {tuple(labels.shape)} for {count} images; there must be one label per image"
    if isinstance(labels, np.ndarray) and count and labels.dtype.kind not in "iu":
        return f"labels are {labels.dtype}; they must be integers"
    outside = labels[(labels < 0) | (labels >= classes)]
    return f"label {int(outside[0])} is outside 0..{classes - 1}" if len(outside) else ""


def sum_of(pixels: Tensor) -> Tensor:
    """The sum of images, (B, C, H, W) uint8 -> (C, H, W) int64.

    It is exact: in float32 so is the sum of `EXACT` whole bytes, in any order, and it takes a quarter
    of the time.
    """
    total = torch.zeros(pixels.shape[1:], dtype=torch.int64, device=pixels.device)
    for part in pixels.split(EXACT):
        total += part.float().sum(0).long()
    return total
