"""What an attacker believes about images: penalties, (B, C, H, W) → (B,), lower is more natural.

The last one is about all images of a problem: what the client's batch normalizations saw of them.
"""

import torch
from torch import Tensor


def total_variation(images: Tensor) -> Tensor:
    """Mean |dx| + mean |dy| of each image. Source: the authors' inversefed/metrics.py."""
    dx = (images[..., :, 1:] - images[..., :, :-1]).abs()
    dy = (images[..., 1:, :] - images[..., :-1, :]).abs()
    return dx.flatten(1).mean(1) + dy.flatten(1).mean(1)


def total_variation_isotropic(images: Tensor) -> Tensor:
    """Mean length of the colour gradient, sqrt(dx² + dy²): unlike the plain form it favours no axis."""
    dx = images[..., :-1, 1:] - images[..., :-1, :-1]
    dy = images[..., 1:, :-1] - images[..., :-1, :-1]
    return (dx.square() + dy.square() + 1e-12).sqrt().flatten(1).mean(1)


def clip_distance(pixels: Tensor) -> Tensor:
    """‖x - clip(x)‖₂ of each image, x in [0, 1] units. General Deep Leakage, Eq. 17."""
    return _norm(pixels - pixels.clamp(0, 1))


def scale_distance(pixels: Tensor) -> Tensor:
    """‖x - scale(x)‖₂, where scale stretches an image to [0, 1]. General Deep Leakage, Eq. 18."""
    low, high = (edge.view(-1, 1, 1, 1) for edge in pixels.flatten(1).aminmax(dim=1))
    return _norm(pixels - (pixels - low) / (high - low).clamp_min(1e-12))


def statistics_distance(found: dict[str, Tensor], known: dict[str, Tensor]) -> Tensor:
    """Sum over layers of ‖mean - known mean‖₂ + ‖variance - known variance‖₂, (N, width) each → (N,).

    Source: R_BN of GradInversion (Yin et al. 2021, arXiv:2104.07586).
    """
    return torch.stack([_norm(found[name] - known[name]) for name in found]).sum(0)


def _norm(difference: Tensor) -> Tensor:
    # The tiny offset keeps the derivative at 0 finite; it vanishes in float32 for any visible difference.
    return (difference.square().flatten(1).sum(1) + 1e-24).sqrt()
