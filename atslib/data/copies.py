"""Which images are one photograph: equal pixels, or a mirror image or a shift that comparisons try.

Candidates that are one photograph are equally like any reconstruction of it: nobody can tell them
apart, and nobody has to.
"""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from atslib.errors import AtsError, check_whole

SHIFT = 4  # pixels: as far as a random crop from a padding of 4 moves an image
# Odd factors, which have inverses modulo 2**64, of the hashes over rows, columns and channels
FACTORS = (6364136223846793005, 3202034522624059733, 2862933555777941757)
WHOLE = 1 << 64
# An image is a near copy of another where less than this share of its variance at `COARSE` pixels is
# its own. Of photographs of 32 pixels saved as JPEG at quality 90, 96 % have less, of those of 64
# pixels all; of different photographs none, but 0.3 % of Fashion-MNIST's garments.
NEAR = 0.01
COARSE = 16
AT_ONCE = 256


def copies(images: Tensor, *, shift: int = SHIFT, mirrored: bool = True) -> Tensor:
    """Of each image the first one that is the same photograph.

    Two are if all pixels in which they overlap are equal, after a shift of up to `shift` pixels and
    possibly a mirror image; so are two that are the same as a third.

    Args:
        images: (N, C, H, W), of any type; equal means equal to the last bit.
        shift: pixels, in each direction; at most an eighth of the shorter side counts.
        mirrored: whether mirror images are the same.
    Returns:
        (N,) int64, at most the image's own number.
    Raises:
        AtsError: another shape.
    """
    check_whole("copies: shift", shift, 0)
    if images.ndim != 4:
        raise AtsError(f"copies: images {tuple(images.shape)} must be (N, C, H, W)")
    images = images.detach().cpu().contiguous()
    first = np.arange(len(images))
    if not images.numel():
        return torch.from_numpy(first)
    # Shifted copies of a flat middle would be all that have such a middle: of these only whole ones.
    reach = min(shift, min(images.shape[2:]) // 8)
    _unite(first, images, 0, mirrored)
    if reach:
        middle = images[..., reach:-reach, reach:-reach].flatten(1)
        lively = (middle != middle[:, :1]).any(1).numpy()
        _unite(first, images, reach, mirrored, lively & (first == np.arange(len(first))))
    return torch.from_numpy(np.array([_root(first, row) for row in range(len(first))]))


def _root(first: np.ndarray, row: int) -> int:
    while first[row] != row:
        row = int(first[row])
    return row


def _unite(
    first: np.ndarray,
    images: Tensor,
    reach: int,
    mirrored: bool,
    among: np.ndarray | None = None,
) -> None:
    """Enter which of the images are equal within a reach, in place."""
    rows = np.arange(len(images)) if among is None else among.nonzero()[0]
    if len(rows) < 2:
        return
    parts = torch.from_numpy(rows).split(AT_ONCE)
    plain = np.concatenate([_hashes(images[part], reach) for part in parts])
    kinds = [(plain, False)]
    if mirrored:
        kinds.append(
            (np.concatenate([_hashes(images[part].flip(-1), reach) for part in parts]), True)
        )
    middles = plain[:, reach, reach]
    known: dict[int, list[int]] = {}
    for row, middle in zip(rows.tolist(), middles.tolist(), strict=True):
        known.setdefault(middle, []).append(row)
    for windows, flipped in kinds:
        for place, down, right in zip(*np.isin(windows, middles).nonzero(), strict=True):
            one = int(rows[place])
            for other in known[int(windows[place, down, right])]:
                a, b = _root(first, one), _root(first, other)
                if a != b and _equal(
                    images[one].flip(-1) if flipped else images[one],
                    images[other],
                    int(down) - reach,
                    int(right) - reach,
                ):
                    first[max(a, b)] = min(a, b)


def _equal(image: Tensor, other: Tensor, down: int, right: int) -> bool:
    """Whether pixel (y, x) of the other is pixel (y + down, x + right) of the image, wherever both
    are.
    """
    height, width = image.shape[1:]
    ours = image[:, max(down, 0) : height + min(down, 0), max(right, 0) : width + min(right, 0)]
    theirs = other[
        :, max(-down, 0) : height + min(-down, 0), max(-right, 0) : width + min(-right, 0)
    ]
    return torch.equal(ours, theirs)


def _hashes(images: Tensor, reach: int) -> np.ndarray:
    """Hashes of all parts that are `reach` pixels smaller on each side, (N, 2 reach + 1, 2 reach +
    1).
    """
    if images.is_floating_point():
        images = images.view(
            {2: torch.int16, 4: torch.int32, 8: torch.int64}[images.element_size()]
        )
    numbers = images.numpy().astype(np.int64).view(np.uint64)
    for axis, factor, margin in zip((3, 2, 1), FACTORS, (reach, reach, 0), strict=True):
        numbers = _over(numbers, axis, factor, margin)
    return numbers[:, 0]


def _over(numbers: np.ndarray, axis: int, factor: int, margin: int) -> np.ndarray:
    """Polynomial hashes along an axis of all runs that leave out 2 `margin` numbers."""
    numbers = np.moveaxis(numbers, axis, -1)
    count = numbers.shape[-1]
    up = np.array([pow(factor, k, WHOLE) for k in range(count)], dtype=np.uint64)
    down = np.array([pow(factor, -k, WHOLE) for k in range(2 * margin + 1)], dtype=np.uint64)
    sums = np.cumsum(numbers * up, -1, dtype=np.uint64)
    sums = np.concatenate([np.zeros_like(sums[..., :1]), sums], -1)
    ends = sums[..., count - 2 * margin :]
    return np.moveaxis((ends - sums[..., : 2 * margin + 1]) * down, -1, axis)


def near_copies(images: Tensor, first: Tensor) -> Tensor:
    """Which images are all but the same as another photograph, such as a picture saved with loss:
    (N,) bool.

    They are no copies: a reconstruction may be closer to one than to the other.

    Args:
        images: (N, C, H, W) uint8.
        first: (N,) of `copies` or of `looking_alike`.
    """
    near = torch.zeros(len(images), dtype=torch.bool)
    for part, alike in _alike(images, COARSE, NEAR):
        near[part] = (alike & (first[part, None] != first[None].cpu())).any(1)
    return near


def looking_alike(images: Tensor, first: Tensor, side: int, share: float) -> Tensor:
    """`first` of `copies`, where images are one photograph too that no comparison at a size tells
    apart: brightness and contrast aside, all but a share of the variance is the same.

    Args:
        images: (N, C, H, W) uint8.
        first: (N,) of `copies`.
        side: pixels, at which they are compared; smaller images are not enlarged.
        share: of the variance that may be an image's own.
    Returns:
        (N,) int64, at most the image's own number.
    """
    pairs = [torch.stack([torch.arange(len(first)), first])]
    some = torch.zeros(len(first), dtype=torch.bool)  # those that are like any other
    for part, alike in _alike(images, COARSE, NEAR):
        some[part] = alike.sum(1) > 1
    few = some.nonzero().flatten()
    for part, alike in _alike(images[few], side, share):
        ones, others = alike.nonzero(as_tuple=True)
        pairs.append(torch.stack([few[part[ones]], few[others]]))
    rows, columns = torch.cat(pairs, 1).numpy()
    links = coo_array((np.ones(len(rows)), (rows, columns)), shape=(len(first), len(first)))
    groups = torch.from_numpy(connected_components(links, directed=False)[1]).long()
    numbers = torch.arange(len(first))
    return numbers.scatter_reduce(0, groups, numbers, "amin", include_self=False)[groups]


def _alike(images: Tensor, side: int, share: float) -> Iterator[tuple[Tensor, Tensor]]:
    """For some rows (k,) at a time, which of all images are alike, as they are or mirrored: (k, N).

    They are where less than a share of the variance at `side` pixels is an image's own.
    """
    rows, mirrored = (_rows(each, side) for each in (images, images.flip(-1)))
    for part in torch.arange(len(images)).split(AT_ONCE):
        yield part, torch.maximum(rows[part] @ rows.T, mirrored[part] @ rows.T) > (1 - share) ** 0.5


def _rows(images: Tensor, side: int) -> Tensor:
    """Images of at most `side` pixels as rows of mean 0 and length 1."""
    size = (min(side, images.shape[2]), min(side, images.shape[3]))
    small = F.interpolate(images.cpu().float(), size, mode="bilinear", antialias=True)
    return _lengths(small.flatten(1))


def _lengths(rows: Tensor) -> Tensor:
    """Rows of mean 0 and length 1; a flat one is 0."""
    return F.normalize(rows - rows.mean(1, keepdim=True), dim=1, eps=1e-3)
