"""The one place where images become what a network sees: crop, flip, policy, then floats in [0, 1].

uint8 images (B, C, H, W) in 0..255 are called `pixels`, float images in [0, 1] `images`.
"""

import torch
from torch import Tensor

from atslib.data.images import sum_of, to_images
from atslib.policies.draws import Draw, Streams, draw
from atslib.policies.operations import check_pixels
from atslib.policies.policy import Hybrid, Policy
from atslib.rng import rng as stream

AT_ONCE = 500  # images that `mean_prepared` draws for, and transforms, at a time


def streams(seed: int, policy: str | Policy | Hybrid, *path: int) -> Streams:
    """One stream for crops and flips, the same for every policy of a seed, and one for the policy's
    own draws.

    So comparisons between policies are paired. `path` tells several draws of one seed apart.
    """
    return stream(seed, "crop and flip", *path), stream(seed, "policy", str(policy), *path)


def transform(
    pixels: Tensor,
    policy: str | Policy | Hybrid = "",
    *,
    rng: torch.Generator | Streams,
    crop_flip: bool = True,
) -> Tensor:
    """What a client makes of its images, still as uint8 (B, C, H, W): random crop and flip, then
    the policy.

    Args:
        pixels: (B, C, H, W) uint8.
        rng: one stream for all draws, as in training, or the two of `streams`.
        crop_flip: whether to crop (4 black pixels of padding) and flip before the policy.
    """
    check_pixels(pixels)
    return draw(len(pixels), policy, rng=rng, crop_flip=crop_flip).apply(pixels)


def prepare(
    pixels: Tensor,
    policy: str | Policy | Hybrid = "",
    *,
    rng: torch.Generator | Streams,
    crop_flip: bool = True,
) -> Tensor:
    """`transform`, then `to_images`: uint8 (B, C, H, W) → float (B, C, H, W) in [0, 1]."""
    return to_images(transform(pixels, policy, rng=rng, crop_flip=crop_flip))


def mean_prepared(
    pixels: Tensor,
    policy: str | Policy | Hybrid = "",
    *,
    rng: torch.Generator,
    crop_flip: bool = True,
    most: int = 2_000,
    draws: int = 4,
) -> Tensor:
    """Mean of images after crop, flip and policy: the best single image to guess for somebody who
    knows the policy, but neither the label nor what was drawn.

    Of all constant guesses it has the least expected squared error. The mean is exact over the
    draws taken: 8-bit values are summed as integers.

    Args:
        pixels: (N, C, H, W) uint8, the attacker's own images of the same kind, such as the training
            set.
        rng: decides which images are taken and their draws; the result does not depend on the
            memory at hand.
        most: how many images are taken at most, at random.
        draws: how often each is cropped, flipped and transformed anew.
    Returns:
        (1, C, H, W) float in [0, 1].
    """
    taken = torch.randperm(len(pixels), generator=rng, device=rng.device)[:most].to(pixels.device)
    seed = int(torch.randint(1 << 62, (1,), generator=rng, device=rng.device))
    images: list[Tensor] = []
    drawn: list[Draw] = []
    for number in range(draws):
        pair = streams(seed, policy, number)
        for rows in taken.split(AT_ONCE):
            images.append(rows)
            drawn.append(draw(len(rows), policy, rng=pair, crop_flip=crop_flip))
    every = Draw.join(drawn)
    sources = torch.cat(images)
    order = every.alike_together()
    total = torch.zeros(1, *pixels.shape[1:], dtype=torch.int64, device=pixels.device)
    for rows in order.split(AT_ONCE):
        own = sources[rows.to(pixels.device)]
        total += sum_of(every[rows].apply(pixels[own]))
    return (total.double() / (255 * len(order))).float()
