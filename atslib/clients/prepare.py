"""The one place where images become what a network sees: crop, flip, policy, then floats in [0, 1].

uint8 images (B, C, H, W) in 0..255 are called `pixels`, float images in [0, 1] `images`.
"""

import numpy as np
import torch
from torch import Tensor, nn

from atslib.data.images import describe, explain, label_fault, to_images
from atslib.errors import AtsError
from atslib.gradients.per_example import SameRules
from atslib.models import normalization_layer
from atslib.policies.operations import crop_and_flip
from atslib.policies.policy import Hybrid, Policy, parse_policy
from atslib.rng import rng as stream

Streams = tuple[torch.Generator, torch.Generator]


def streams(seed: int, policy: str | Policy | Hybrid, *path: int) -> Streams:
    """One stream for crops and flips, the same for every policy of a seed, and one for the policy's own draws.

    So comparisons between policies are paired. `path` tells several draws of one seed apart.
    """
    return stream(seed, "crop and flip", *path), stream(seed, "policy", str(policy), *path)


def transform(
    pixels: Tensor, policy: str | Policy | Hybrid = "", *, rng: torch.Generator | Streams, crop_flip: bool = True
) -> Tensor:
    """What a client makes of its images, still as uint8 (B, C, H, W): random crop and flip, then the policy.

    Args:
        pixels: (B, C, H, W) uint8.
        rng: one stream for all draws, as in training, or the two of `streams`.
        crop_flip: whether to crop (4 black pixels of padding) and flip before the policy.
    """
    for_crop, for_policy = rng if isinstance(rng, tuple) else (rng, rng)
    if crop_flip:
        pixels = crop_and_flip(pixels, rng=for_crop)
    policy = parse_policy(policy) if isinstance(policy, str) else policy
    return policy(pixels, rng=for_policy)


def prepare(
    pixels: Tensor, policy: str | Policy | Hybrid = "", *, rng: torch.Generator | Streams, crop_flip: bool = True
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
    """Mean of images after crop, flip and policy: the best guess of an attacker who knows the policy and no gradient.

    Of all constant guesses it has the least expected squared error, so its PSNR is the floor that an attack must
    pass. The mean is exact over the draws taken: 8-bit values are summed as integers.

    Args:
        pixels: (N, C, H, W) uint8, the attacker's own images of the same kind, such as the training set.
        rng: decides which images are taken and their draws; the result does not depend on the memory at hand.
        most: how many images are taken at most, at random.
        draws: how often each is cropped, flipped and transformed anew.
    Returns:
        (1, C, H, W) float in [0, 1].
    """
    taken = torch.randperm(len(pixels), generator=rng, device=rng.device)[:most].to(pixels.device)
    seed = int(torch.randint(1 << 62, (1,), generator=rng, device=rng.device))
    total = torch.zeros(1, *pixels.shape[1:], dtype=torch.int64, device=pixels.device)
    for draw in range(draws):
        pair = streams(seed, policy, draw)
        for rows in taken.split(500):
            prepared = transform(pixels[rows], policy, rng=pair, crop_flip=crop_flip)
            total += prepared.sum(0, keepdim=True, dtype=torch.int64)
    return (total.double() / (255 * len(taken) * draws)).float()


def check_images(images: Tensor | np.ndarray, like: Tensor) -> Tensor:
    """Float images (B, C, H, W) in [0, 1], in the precision and on the device of `like`.

    Raises:
        AtsError: another type or shape, no image at all, or values more than 0.01 outside [0, 1].
    """
    images = torch.as_tensor(images) if isinstance(images, np.ndarray) else images
    if not isinstance(images, Tensor) or images.ndim != 4 or not images.is_floating_point():
        raise AtsError(f"images are {describe(images)}; they must be floats (B, C, H, W) in [0, 1]")
    if not images.numel():
        raise AtsError(f"images of shape {tuple(images.shape)} are none; give at least one")
    low, high = (float(edge) for edge in images.aminmax())
    if not (low >= -0.01 and high <= 1.01):
        raise AtsError(f"images go from {low:.4g} to {high:.4g}; they must be in [0, 1] (8-bit pixels divided by 255)")
    return images.to(like)


def check_labels(labels: Tensor | np.ndarray, count: int, classes: int) -> Tensor:
    """Class numbers (B,) as int64.

    Raises:
        AtsError: no whole numbers, not one for each of `count` images, or one outside 0..`classes` - 1.
    """
    labels = torch.as_tensor(labels) if isinstance(labels, np.ndarray) else labels
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise AtsError(f"labels are {describe(labels)}; they must be whole numbers (B,), one class per image")
    if fault := label_fault(labels, count, classes):
        raise AtsError(fault)
    return labels.long()


def first_parameter(model: nn.Module) -> Tensor:
    """The first parameter of a network to train or to attack, which tells its precision and device.

    Raises:
        AtsError: it is no network, does not start with a `Normalize` layer, or has no parameters.
    """
    if not isinstance(model, nn.Module):
        raise AtsError(f"model {model!r} must be a torch.nn.Module")
    normalization_layer(model)
    if (first := next(model.parameters(), None)) is None:
        raise AtsError(f"{type(model).__name__} has no parameters, so there is no gradient to share")
    return first


def scores_of(model: nn.Module, images: Tensor) -> Tensor:
    """The network's class scores of images (B, C, H, W): (B, classes).

    Raises:
        AtsError: it does not take images of this shape, or gives something else.
    """
    name, shape = type(model).__name__, tuple(images.shape[1:])
    try:
        with SameRules():  # a plain BatchNorm2d says in torch's words what it cannot do
            scores = model(images)
    except RuntimeError as error:
        raise AtsError(f"{name} does not take images of shape {shape}: {explain(error)}") from None
    if not isinstance(scores, Tensor) or scores.ndim != 2:
        raise AtsError(f"{name} gives {describe(scores)}; it must give one row of class scores per image")
    return scores


def check_network(model: nn.Module, images: Tensor) -> int:
    """How many classes the network tells apart, seen by running it on `images`, floats (B, C, H, W).

    Raises:
        AtsError: it does not start with a `Normalize` layer that gets these very images, as attacks need it to, or
            `scores_of` refuses it.
    """
    name, calls, normalize = type(model).__name__, [], normalization_layer(model)
    handle = normalize.register_forward_hook(lambda layer, inputs, output: calls.append((inputs[0], output)))
    try:
        logits = scores_of(model, images)
    finally:
        handle.remove()
    if not calls or not torch.equal(calls[0][0], images):
        raise AtsError(f"{name} has a Normalize layer and does not use it on its input; call it first in forward()")
    if calls[0][1].shape != images.shape:
        channels = calls[0][1].shape[1]
        raise AtsError(f"{name} takes {channels} channels and the images have {images.shape[1]}; convert the images")
    return logits.shape[1]
