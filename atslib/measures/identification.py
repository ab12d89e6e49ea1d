"""Does a reconstruction single out its own image among others? Brightness and contrast have no say
in it.
"""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from atslib.data.copies import SHIFT, copies
from atslib.data.images import describe, is_tensor
from atslib.errors import AtsError, check_whole
from atslib.measures.metrics import check_images

WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
TIE = 1e-5  # similarities closer than this are equal, so that rounding identifies nothing


def _centred(images: Tensor) -> Tensor:
    """Images as rows of mean 0 and length 1; a flat one is all but zero."""
    rows = images.flatten(1)
    return F.normalize(rows - rows.mean(1, keepdim=True), dim=1, eps=1e-6)


def similarity(images: Tensor, candidates: Tensor, *, shift: int = SHIFT) -> Tensor:
    """How alike images are, wherever crop and flip have put their content: (B, C, H, W), (K, C, H,
    W) → (B, K).

    Pearson's correlation of colors over the part in which both overlap, times that part's share of
    the image; the best over shifts of up to `shift` pixels and both mirror images. At most 1,
    higher is more alike; brightness and contrast do not change it.

    Chosen on CIFAR-100's test images 0 to 99 before any reconstruction. Share identified: by it, by
    it without shifts and mirror images, and with both sides blurred first (Gaussian, 1.5 pixels;
    most of an image is smooth already):

        moved by 4 pixels                       1.00   .09   .73
        cropped and flipped as in training      1.00   .28   .96
        noise at -5 dB of PSNR                   .97   .98   .92
        smooth noise at 6 dB                     .91   .98   .74
        a third of the contrast, with noise      .95   .98   .89
        blurred by 5 pixels                      .82   .87   .99
    """
    height, width = images.shape[-2:]
    both = torch.cat([images, images.flip(-1)]).double()
    theirs = candidates.double()
    # Less their own means, so that sums over a part lose no digits
    both = both - both.mean((1, 2, 3), keepdim=True)
    theirs = theirs - theirs.mean((1, 2, 3), keepdim=True)
    our_sums, their_sums = _Sums(both), _Sums(theirs)
    best = both.new_full((len(both), len(theirs)), -1.0)
    for dy, dx in itertools.product(range(-shift, shift + 1), repeat=2):
        size = (height - abs(dy), width - abs(dx))
        ours_at, theirs_at = (max(dy, 0), max(dx, 0)), (max(-dy, 0), max(-dx, 0))
        # Of ours the part that overlaps, where theirs has it, and zeros around it: so the
        # candidates, which may be many, are not cut out anew for each shift.
        placed = torch.zeros_like(both)
        _part(placed, theirs_at, size)[:] = _part(both, ours_at, size)
        products = placed.flatten(1) @ theirs.flatten(1).T
        our_sum, our_length = our_sums.over(ours_at, size)
        their_sum, their_length = their_sums.over(theirs_at, size)
        count = both.shape[1] * size[0] * size[1]
        covariances = products - our_sum[:, None] * their_sum / count
        share = size[0] * size[1] / (height * width)
        best = torch.maximum(best, share * covariances / (our_length[:, None] * their_length))
    return torch.maximum(*best.chunk(2)).to(images.dtype)


def _part(images: Tensor, corner: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """A rectangle of each image, as a view."""
    (top, left), (rows, columns) = corner, size
    return images[..., top : top + rows, left : left + columns]


class _Sums:
    """Sums over rectangles of images (B, C, H, W), all channels together, from sums over all that
    lies above and to the left.
    """

    def __init__(self, images: Tensor):
        powers = torch.stack([images.sum(1), images.square().sum(1)])
        self.above = F.pad(powers.cumsum(-1).cumsum(-2), (1, 0, 1, 0))
        self.channels = images.shape[1]

    def over(self, corner: tuple[int, int], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The sum of each image's values over a rectangle, and the length of these values less
        their mean; of a flat one all but zero. Both (B,).
        """
        (top, left), (rows, columns) = corner, size
        below, right = top + rows, left + columns
        above = self.above
        total, squares = (
            above[..., below, right]
            - above[..., top, right]
            - above[..., below, left]
            + above[..., top, left]
        )
        spread = squares - total.square() / (self.channels * rows * columns)
        return total, spread.clamp(min=0).sqrt().clamp(min=1e-6)


def rolled(images: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How alike images are over all circular shifts: (B, C, H, W), (K, C, H, W) → three tensors (B,
    K).

    For networks that do not see where in an image something is. The first is Pearson's correlation
    of colors, the best over all shifts, at most 1; then come the rows and columns by which a
    candidate is rolled for it.
    """
    ours, theirs = (torch.fft.rfft2(_centred(x).view_as(x)) for x in (images, candidates))
    height, width = images.shape[-2:]
    products = torch.einsum("bchw,kchw->bkhw", ours, theirs.conj())
    best, place = torch.fft.irfft2(products, s=(height, width)).flatten(2).max(-1)
    return best, place // width, place % width


@torch.no_grad()
def identification(
    reconstructions: Tensor, candidates: Tensor, truth: Tensor, *, shift: int | None = SHIFT
) -> Tensor:
    """Rank of the true image among the candidates by `similarity` to its reconstruction; 1: it is
    identified.

    Args:
        reconstructions: (B, C, H, W), floats; not clamped.
        candidates: (K, C, H, W), floats, the same for all: the true images and others, all treated
            alike (as the client transformed them, or all untouched). Or (V, K, C, H, W): each in V
            forms, of which the most similar counts, for a server that knows the policy and tries
            all that it can have made of each.
        truth: (B,), integers: which candidate each reconstruction is of.
        shift: of `similarity`, in pixels; None: by `rolled`, over all circular shifts and without
            mirror images.
    Returns:
        (B,) integers from 1 (worst for privacy) to K; a guess has rank 1 with probability 1 / K. A
        candidate that is as similar as the true one ranks before it, so a flat or diverged
        reconstruction has rank K. Candidates that are one photograph (equal, or its mirror image)
        count as one, so that K is the number of different ones.
    Raises:
        AtsError: other shapes or dtypes, fewer than two candidates, images no larger than the
            shift, or an index that names no candidate.
    """
    if shift is not None:
        check_whole("identification: shift", shift, 0)
    if not is_tensor(candidates) or candidates.ndim != 5:
        check_images("identification", candidates)
    if not is_tensor(truth) or truth.dtype not in WHOLE:
        raise AtsError(
            f"identification: truth {describe(truth)} must be whole numbers, one for each reconstruction"
        )
    truth = truth.long()
    several = candidates if candidates.ndim == 5 and len(candidates) else candidates[None]
    for images in (reconstructions, *several):
        check_images("identification", images)
    count = several.shape[1]
    size = tuple(several.shape[2:])
    if reconstructions.shape[1:] != size or count < 2 or min(size[1:]) <= (shift or 0):
        raise AtsError(
            f"identification: reconstructions {tuple(reconstructions.shape)} and candidates {tuple(candidates.shape)} "
            f"must agree in (C, H, W), with at least two candidates and sides above the shift of {shift}"
        )
    if truth.shape != (len(reconstructions),) or not ((truth >= 0) & (truth < count)).all():
        raise AtsError(
            f"identification: truth {truth.tolist()} must name one of {count} candidates per reconstruction"
        )
    flat = several.flatten(0, 1)
    scores = (
        rolled(reconstructions, flat)[0]
        if shift is None
        else similarity(reconstructions, flat, shift=shift)
    )
    scores = scores.nan_to_num(nan=-torch.inf)
    scores = scores.unflatten(1, several.shape[:2]).amax(1)
    # Copies of one candidate are as alike to everything, and count as one.
    first = copies(
        several.transpose(0, 1).flatten(1, 2), shift=shift or 0, mirrored=shift is not None
    ).to(scores.device)
    scores = torch.full_like(scores, -torch.inf).scatter_reduce(
        1, first.expand_as(scores), scores, "amax"
    )
    counted = first == torch.arange(count, device=first.device)
    own = scores.gather(1, first[truth].unsqueeze(1))
    return ((scores >= own - TIE) & counted).sum(1)
