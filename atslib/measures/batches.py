"""Which reconstruction of a batch is whose, and how many of its labels were told.

A gradient of several images does not tell their order. `align` finds it with the truth, which no
attacker has: it decides what is compared with what, and nothing of an attack.
"""

import torch
from torch import Tensor

from atslib.data.images import describe, is_tensor
from atslib.errors import AtsError
from atslib.measures.identification import WHOLE
from atslib.measures.metrics import check_images, psnr

MOST_CLASSES = 1 << 20  # beyond, counting the classes of a batch takes gigabytes
MOST = 200.0  # dB: an equal image counts as this close, so that sums stay finite


def align(
    reconstructed: Tensor, truth: Tensor, labels: Tensor, restored: Tensor | None = None
) -> Tensor:
    """The reconstruction that belongs to each true image of a batch: the pairing of greatest total
    PSNR.

    Images of one label are paired among themselves; where labels were restored wrongly, what is
    left over is paired freely. Source: Geng et al. 2021, Eq. 25.

    Args:
        reconstructed, truth: (k, C, H, W), floats in [0, 1] units.
        labels: (k,) of the true images.
        restored: (k,) those by which each reconstruction was made; `labels` by default.
    Returns:
        (k,) int64, a permutation: `reconstructed[align(...)]` stands beside `truth`.
    Raises:
        AtsError: shapes that differ, or labels that are not one per image.
    """
    check_images("align", reconstructed)
    check_images("align", truth)
    restored = labels if restored is None else restored
    for name, given in (("labels", labels), ("restored", restored)):
        if not is_tensor(given) or given.shape != (len(truth),):
            raise AtsError(
                f"align: {name} {describe(given)} must be one for each of {len(truth)} images"
            )
    if reconstructed.shape != truth.shape:
        shapes = f"{tuple(reconstructed.shape)} and {tuple(truth.shape)}"
        raise AtsError(f"align: shapes {shapes} must be equal: one reconstruction for each image")
    if not len(truth):
        raise AtsError("align: there is no image")
    from scipy.optimize import linear_sum_assignment  # half a second, in every process that attacks

    close = [psnr(reconstructed, one.expand_as(reconstructed)) for one in truth]
    close = torch.stack(close).nan_to_num(-MOST, MOST, -MOST).clamp(-MOST, MOST).cpu()
    same = labels.cpu()[:, None] == restored.cpu()[None]
    _, pairs = linear_sum_assignment(close + 4 * MOST * len(truth) * same, maximize=True)
    return torch.as_tensor(pairs, dtype=torch.int64, device=truth.device)


def label_share(restored: Tensor, labels: Tensor) -> Tensor:
    """The share of each batch's labels that were restored, as multisets: (N, k), (N, k) → (N,) in
    [0, 1].

    Raises:
        AtsError: the shapes differ.
    """
    for name, given in (("restored", restored), ("labels", labels)):
        if not is_tensor(given):
            raise AtsError(
                f"label_share: {name} {describe(given)} must be class numbers, from 0 on"
            )
    if restored.shape != labels.shape or labels.ndim != 2 or not labels.numel():
        shapes = f"{tuple(restored.shape)} and {tuple(labels.shape)}"
        raise AtsError(f"label_share: shapes {shapes} must be equal, (batches, images)")
    for name, given in (("restored", restored), ("labels", labels)):
        if given.dtype not in WHOLE:
            raise AtsError(
                f"label_share: {name} {describe(given)} must be class numbers, from 0 on"
            )
    restored = restored.long()
    labels = labels.long()
    least = min(int(restored.min()), int(labels.min()))
    most = max(int(restored.max()), int(labels.max()))
    if least < 0 or most >= MOST_CLASSES:
        raise AtsError(
            f"label_share: labels go from {least} to {most}; they must be in 0..{MOST_CLASSES - 1}"
        )
    classes = int(max(restored.max(), labels.max())) + 1
    counts = [torch.nn.functional.one_hot(each, classes).sum(1) for each in (restored, labels)]
    return torch.minimum(*counts).sum(1) / labels.shape[1]
