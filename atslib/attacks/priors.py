"""What an attacker believes about images: penalties, lower is more natural, and the table that
names them.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from atslib.clients.observe import Observed
from atslib.errors import AtsError
from atslib.gradients.problems import batch_statistics
from atslib.models import running_statistics


def total_variation(images: Tensor) -> Tensor:
    """Mean |dx| + mean |dy| of each image, (..., C, H, W) → (...).

    Source: the authors' inversefed/metrics.py.
    """
    dx = (images[..., :, 1:] - images[..., :, :-1]).abs()
    dy = (images[..., 1:, :] - images[..., :-1, :]).abs()
    return dx.flatten(-3).mean(-1) + dy.flatten(-3).mean(-1)


def total_variation_isotropic(images: Tensor) -> Tensor:
    """Mean length of the colour gradient, sqrt(dx² + dy²): unlike the plain form it favours no
    axis.
    """
    dx = images[..., :-1, 1:] - images[..., :-1, :-1]
    dy = images[..., 1:, :-1] - images[..., :-1, :-1]
    return (dx.square() + dy.square() + 1e-12).sqrt().flatten(-3).mean(-1)


def batch_norm_distance(images: Tensor, seen: Observed) -> Tensor:
    """How far the images' batch-norm statistics are from the client's, (N, k, C, H, W) → (N, 1).

    The sum over layers of ‖mean - known mean‖₂ + ‖variance - known variance‖₂: R_BN of
    GradInversion (Yin et al. 2021, arXiv:2104.07586); of several updates their mean. It costs one
    more forward and backward pass, about a third of a step.

    Raises:
        AtsError: the threat model hides those statistics, or the network has no batch
            normalization.
    """
    if (said := seen.threat.batch_norm) != "known":
        raise AtsError(
            f"the penalty 'batch-norm' needs ThreatModel.batch_norm='known'; here it is {said!r}"
        )
    total = torch.zeros((), device=images.device)
    for update in seen.updates:
        if not (known := running_statistics(update.model) | update.statistics):
            raise AtsError(
                "the penalty 'batch-norm' needs a network with batch normalization; the attacked one has none"
            )
        own = batch_statistics(update.model, update.transformed(images), buffers=update.statistics)
        total = total + torch.stack([_norm(own[name] - known[name]) for name in own]).sum(0)
    return (total / len(seen.updates)).unsqueeze(1)


def length(images: Tensor) -> Tensor:
    """The norm of each image's pixels, (..., C, H, W) → (...)."""
    return _norm(images.flatten(-3))


def beyond(images: Tensor) -> Tensor:
    """How far each image in [0, 1] units is from its pixels clamped to [0, 1].

    Source: Geng et al. 2021, Eq. 17.
    """
    return length(images - images.clamp(0, 1))


def unscaled(images: Tensor) -> Tensor:
    """How far each image is from its pixels scaled to fill [0, 1]; a flat one from black.

    Source: the same, Eq. 18.
    """
    low, high = images.flatten(-3).aminmax(dim=-1)
    low = low[..., None, None, None]
    high = high[..., None, None, None]
    return length(images - (images - low) / (high - low).clamp_min(torch.finfo(images.dtype).eps))


def _norm(difference: Tensor) -> Tensor:
    # The tiny offset keeps the derivative at 0 finite; it vanishes in float32 for any visible
    # difference.
    return (difference.square().sum(-1) + 1e-24).sqrt()


# (images in normalized units, the same in [0, 1], what the server saw) → (N, k), or (N, 1) for all
# images of a gradient together. Images are (N, k, C, H, W).
PENALTIES: dict[str, Callable[[Tensor, Tensor, Observed], Tensor]] = {
    "tv": lambda normalized, images, seen: total_variation(normalized),
    "tv-isotropic": lambda normalized, images, seen: total_variation_isotropic(normalized),
    "batch-norm": lambda normalized, images, seen: batch_norm_distance(images, seen),
    "l2": lambda normalized, images, seen: length(images),
    "clip": lambda normalized, images, seen: beyond(images),
    "scale": lambda normalized, images, seen: unscaled(images),
}
