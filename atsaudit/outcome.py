"""What an attack has told of each image: whether it is found among others, how many bits, how many
decibels.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from atsaudit.config import Case
from atsaudit.views import Seen
from atslib.clients.defenses.defense import Defense, Transformation
from atslib.clients.prepare import to_images
from atslib.data.copies import copies, looking_alike, near_copies
from atslib.measures.batches import align
from atslib.measures.found import FLOOR, fit_temperature, match, of_own_class, rank
from atslib.measures.found import bits as told_bits
from atslib.measures.guesses import gain
from atslib.measures.identification import SHIFT
from atslib.measures.metrics import psnr
from atslib.policies.policy import parse_policy

MOST = 100  # candidates of an image, itself among them
LEAST = 20  # images of a class, below which candidates are taken from all classes
SIDE = 32  # pixels: larger images are compared at this size
OTHERS = 50  # images that a guess without a gradient is the mean of, at most
HELD = 3e8  # bytes of shifted images that a comparison may hold at once


@dataclasses.dataclass(frozen=True)
class Pool:
    """All images of the audit, and among which of them each is to be found.

    Attributes:
        pixels: (N, C, H, W) uint8.
        labels: (N,).
        own_class: whether candidates are of the image's own class, or of all.
        first: (N,) of which image each is a copy, its own number for none. Copies are one
            candidate.
    """

    pixels: Tensor
    labels: Tensor
    own_class: bool
    first: Tensor

    @classmethod
    def of(
        cls, pixels: Tensor, labels: Tensor, attacked: Tensor, first: Tensor | None = None
    ) -> "Pool":
        """Candidates are of the own class where each class with an attacked image has enough
        images. `first` is what `one_photograph` says of them, where that is known.
        """
        first = one_photograph(pixels) if first is None else first
        kinds = torch.stack([labels, first], 1).unique(dim=0)[:, 0]
        sizes = torch.bincount(kinds, minlength=int(labels.max()) + 1)
        return cls(pixels, labels, bool((sizes[labels[attacked]] >= LEAST).all()), first)

    def candidates(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Among which images each of these is to be found, (B, K), itself among them, and at which
        place, (B,).
        """
        if self.own_class:
            return of_own_class(self.labels, rows, self.first, MOST)
        different = self.first == torch.arange(len(self.first))
        count = min(MOST, int(different.sum()))
        each = []
        for row in rows.tolist():
            stream = torch.Generator().manual_seed(row)  # the same for every case
            order = torch.randperm(len(self.labels), generator=stream)
            others = order[(self.first[order] != self.first[row]) & different[order]]
            each.append(torch.cat([torch.tensor([row]), others[: count - 1]]).sort().values)
        candidates = torch.stack(each)
        return candidates, (candidates == rows[:, None]).int().argmax(1)

    def chance(self, rows: Tensor) -> Tensor:
        """How often somebody finds each of these images who knows its label and nothing else, (B,)."""
        candidates, _ = self.candidates(rows)
        return 1 / (self.labels[candidates] == self.labels[rows][:, None]).sum(1).double()


def one_photograph(pixels: Tensor) -> Tensor:
    """Of each image (N, C, H, W) the first one that is the same photograph in a form that the
    comparison tries, (N,): images larger than `SIDE` are shifted by more of their own pixels, and
    those that only brightness, contrast or details tell apart, which it does not see, are one.
    """
    first = copies(pixels, shift=SHIFT * max(SIDE, *pixels.shape[2:]) // SIDE)
    return looking_alike(pixels, first, SIDE, FLOOR)


def said_of_copies(pixels: Tensor) -> str:
    """A sentence on images that are one photograph, and on those that nearly are; "" for none."""
    first = one_photograph(pixels)
    counts = torch.bincount(first, minlength=len(first))
    again = int(counts[counts > 1].sum())
    words = []
    if again:
        shared = int((counts > 1).sum())
        words.append(
            f"{again} of {len(first)} photographs are there more than once, as equal, mirrored, shifted or brighter copies "
            f"of {shared}; each of these counts as one candidate."
        )
    if near := int(near_copies(pixels, first).sum()):
        words.append(
            f"{near} photographs are nearly equal to another one, as a picture saved again with loss is; they count as "
            "different ones, and are found less often for that."
        )
    return " ".join(words)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Of B attacked images, in the order of `images`.

    Attributes:
        images: (B,) which of the pool they are.
        found: (B,) bool, whether the reconstruction singles out the image.
        rank: (B,) of the true image among the candidates; 1 is found.
        bits: (B,) log2 of the candidates minus the log loss of the server's calibrated guess.
        gain: (B,) dB over the best guess of somebody who knows label, policy and draw, and sees no
            gradient.
        psnr: (B,) dB to what was sought.
        pictures: (B, C, H, W) the reconstructions, uint8.
        candidates: (B,) how many there were.
        chance: (B,) of finding the image by its label alone.
    """

    images: Tensor
    found: Tensor
    rank: Tensor
    bits: Tensor
    gain: Tensor
    psnr: Tensor
    pictures: Tensor
    candidates: Tensor
    chance: Tensor


def judge(
    reconstructed: Tensor,
    restored: Tensor,
    seen: Seen,
    rows: Tensor,
    pool: Pool,
    case: Case,
    *,
    before: bool,
) -> Outcome:
    """What the attack of a case has told.

    Args:
        reconstructed: (B, C, H, W) floats, in the order of the gradients.
        restored: (N, k) the labels by which they were made.
        seen: the case.
        rows: (B,) which images of the pool were attacked.
        before: whether the attack sought the images before the policy.
    """
    pixels = pool.pixels[rows]
    labels = pool.labels[rows]
    truth = to_images(pixels) if before else seen.got.cpu().float()
    made = reconstructed.detach().cpu().float()
    broken = ~made.flatten(1).isfinite().all(1)
    aligned = _aligned(made.nan_to_num().clamp(0, 1), truth, labels, restored.cpu(), case.images)
    policy = "" if before else policy_of(case)
    candidates, place = pool.candidates(rows)
    # One that diverged is grey, which is found nowhere. In a batch nobody could say whose it is.
    made = torch.where(broken.view(-1, 1, 1, 1), 0.5, aligned) if case.images == 1 else aligned
    alike = similarities(made, candidates, pool, policy)
    order = rank(alike, place)
    return Outcome(
        images=rows,
        found=order == 1,
        rank=order,
        bits=bits(alike, place, torch.arange(len(rows)) // case.images),
        gain=gain(made, truth, _guesses(seen, rows, pool, policy)),
        psnr=psnr(made, truth),
        pictures=(255 * made).round().byte(),
        candidates=torch.full((len(rows),), candidates.shape[1]),
        chance=pool.chance(rows),
    )


def ranks(made: Tensor, rows: Tensor, pool: Pool, policy: str) -> tuple[Tensor, Tensor]:
    """The rank of each attacked image among its candidates, 1 for found, and how many candidates
    there are, (B,) each.

    Args:
        made: (B, C, H, W) floats, the reconstructions.
        rows: (B,) which images of the pool they are of.
        pool: among what they are to be found.
        policy: what the client applied, which the comparison knows; "" for none.
    """
    candidates, place = pool.candidates(rows)
    order = rank(similarities(made.detach().cpu().float(), candidates, pool, policy), place)
    return order, torch.full_like(order, candidates.shape[1])


def policy_of(case: Case) -> str:
    """The policy of a case's defense as text; "" for none."""
    return next(
        (str(p) for p in Defense.parse(case.defense).parts if isinstance(p, Transformation)), ""
    )


def _aligned(made: Tensor, truth: Tensor, labels: Tensor, restored: Tensor, batch: int) -> Tensor:
    """Each batch in the order of its true images, since a gradient does not tell the order."""
    if batch == 1:
        return made
    parts = (part.unflatten(0, (-1, batch)) for part in (made, truth, labels, restored.flatten()))
    return torch.cat(
        [
            each[align(each, true, known, told)]
            for each, true, known, told in zip(*parts, strict=True)
        ]
    )


def _small(images: Tensor) -> Tensor:
    """Images for the comparison, no larger than `SIDE` pixels; bytes stay bytes."""
    height, width = images.shape[-2:]
    if max(height, width) <= SIDE:
        return images
    scale = SIDE / max(height, width)
    size = (max(8, round(scale * height)), max(8, round(scale * width)))
    return F.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)


def similarities(made: Tensor, candidates: Tensor, pool: Pool, policy: str) -> Tensor:
    """How alike each reconstruction (B, C, H, W) is to each of its candidates by their most similar
    form, (B, K, 1).
    """
    photographs = pool.pixels
    if (
        not policy
    ):  # a policy moves images by whole pixels, so that it has to see them at their own size
        made = _small(made)
        photographs = _small(photographs)
    shifts = (2 * SHIFT + 1) ** 2
    at_once = max(1, int(HELD / (4 * shifts * made[0].numel())))
    parts = zip(made.split(at_once), candidates.split(at_once), strict=True)
    return torch.cat([match(part, photographs, among, policy) for part, among in parts])


def bits(alike: Tensor, place: Tensor, problems: Tensor) -> Tensor:
    """`measures.found.bits`, where images that share a gradient are in one half, (B,); nan where
    there is no other.

    Args:
        alike: (B, K, 1) similarities.
        place: (B,) of the true one among the candidates.
        problems: (B,) which images share a gradient.
    """
    even = problems % 2 == 0
    known = torch.full((len(place),), torch.nan, dtype=torch.float64)
    for mine, other in ((even, ~even), (~even, even)):
        if mine.any() and other.any():
            temperature = fit_temperature(alike[other], place[other])
            known[mine] = told_bits(alike[mine], place[mine], temperature=temperature).double()
    return known


def _guesses(seen: Seen, rows: Tensor, pool: Pool, policy: str) -> Tensor:
    """For each image the mean of others of its label after the same policy with the same draw, (B,
    C, H, W).
    """
    guesses = []
    chosen = parse_policy(policy)
    for i, row in enumerate(rows.tolist()):
        others = pool.first != pool.first[row]
        same = others & (pool.labels == pool.labels[row])
        if int(same.sum()) < 4:
            same = others
        others = pool.pixels[same.nonzero().flatten()[:OTHERS]]
        if policy and seen.draw is not None:  # of a recorded update nobody knows the draw
            member, signs = (part[i : i + 1].cpu() for part in seen.draw)
            others = chosen.apply_draw(
                others, member.expand(len(others)), signs.expand(len(others), -1)
            )
        guesses.append(to_images(others).mean(0))
    return torch.stack(guesses)
