"""What somebody would answer who sees no gradient: the guess that an attack has to beat before
anything has leaked.

The guess here knows as much as can be known without a gradient: the label, the policy and what it
drew. One that does not know the draw is worth some 3 dB less where a shift has blackened a third of
the image, and an attack "gains" them by seeing which third it is; that says nothing of the
photograph.
"""

import torch
from torch import Tensor

from atslib.data.images import sum_of
from atslib.errors import AtsError
from atslib.measures.metrics import check_images, psnr
from atslib.policies.draws import Draw
from atslib.policies.operations import check_pixels

CHUNK = 500  # images in memory at once; more leave the caches, which takes twice as long


@torch.no_grad()
def guess_knowing_draw(
    draw: Draw,
    own: Tensor,
    classes: Tensor | None = None,
    *,
    labels: Tensor | None = None,
    most: int = 500,
) -> Tensor:
    """The mean of the attacker's own images after the very crop, flip, member and signs that were
    drawn for each image.

    As `most` grows it has the least expected squared error of all guesses that depend on draw and
    label alone. Sums are of whole bytes, so the result is exact.

    Args:
        draw: of B images.
        own: (N, C, H, W) uint8, images of the same kind, such as the training set.
        classes: (N,) the label of each own image.
        labels: (B,) that of each image guessed. Either both or, if the label is not known, neither.
        most: images that are averaged, the first of the class, or the first of all.
    Returns:
        (B, C, H, W) in [0, 1].
    Raises:
        AtsError: one sort of labels without the other, other shapes, or a class of which there is
            no image.
    """
    check_pixels(own)
    if (classes is None) != (labels is None):
        raise AtsError(
            "guess_knowing_draw: give classes (of the own images) and labels (of the others), or neither"
        )
    if most < 1 or len(own) == 0:
        raise AtsError(
            f"guess_knowing_draw: the mean of {min(most, len(own))} images cannot be taken"
        )
    if labels is None:
        classes = torch.zeros(len(own), dtype=torch.int64, device=own.device)
        labels = torch.zeros(len(draw), dtype=torch.int64, device=own.device)
    if classes.shape != (len(own),) or labels.shape != (len(draw),):
        shapes = f"classes {tuple(classes.shape)} and labels {tuple(labels.shape)}"
        raise AtsError(
            f"guess_knowing_draw: {shapes} must be one for each of {len(own)} images and {len(draw)} draws"
        )
    wanted, which = labels.to(own.device).unique(return_inverse=True)
    of_class = [(classes == c).nonzero().squeeze(1)[:most] for c in wanted]
    if empty := [int(c) for c, rows in zip(wanted, of_class, strict=True) if len(rows) == 0]:
        raise AtsError(f"guess_knowing_draw: there is no image of class {empty[0]}")
    # One long list of pairs: an image guessed, and one of its class.
    order = draw.alike_together().tolist()
    images = torch.cat([of_class[which[number]] for number in order])
    guessed = torch.tensor(order).repeat_interleave(
        torch.tensor([len(of_class[which[number]]) for number in order])
    )
    total = torch.zeros(len(draw), *own.shape[1:], dtype=torch.int64, device=own.device)
    for rows, into in zip(images.split(CHUNK), guessed.split(CHUNK), strict=True):
        made = draw[into.to(draw.member.device)].apply(own[rows])
        numbers, counts = into.unique_consecutive(return_counts=True)
        for number, part in zip(numbers.tolist(), made.split(counts.tolist()), strict=True):
            total[number] += sum_of(part)
    counts = guessed.bincount().view(-1, 1, 1, 1).to(own.device)
    return (total.double() / (255 * counts)).float()


def gain(reconstructions: Tensor, truth: Tensor, guess: Tensor) -> Tensor:
    """What a gradient added, in dB: PSNR of the reconstruction minus that of a guess without it,
    for the same truth.

    Args:
        reconstructions, truth, guess: (B, C, H, W) in [0, 1]; the truth is what the client made of
            its photograph.
    Returns:
        (B,); above 0: the attack beats the guess. nan where a reconstruction is not finite.
    Raises:
        AtsError: shapes that differ, or images that are no floats.
    """
    check_images("gain", guess)
    own = psnr(reconstructions, truth)
    return own - psnr(guess, truth).to(own.device)


def psnr_of_guess(guess: Tensor, truth: Tensor) -> Tensor:
    """PSNR in dB of one guess (1, C, H, W) against each of the images (B, C, H, W), all in [0, 1]:
    (B,).
    """
    return psnr(guess.expand_as(truth).contiguous(), truth)
