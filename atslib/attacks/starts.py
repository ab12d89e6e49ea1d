"""Where an attack begins: one function for each distribution, and the table that names them."""

from collections.abc import Callable

import torch
from torch import Tensor

from atslib.models import Normalize


def normal(shape: tuple[int, ...], rng: torch.Generator, normalize: Normalize) -> Tensor:
    """N(0, 1) in normalized units, as in Inverting Gradients."""
    return torch.randn(shape, generator=rng, device=rng.device)


def uniform(shape: tuple[int, ...], rng: torch.Generator, normalize: Normalize) -> Tensor:
    """Pixels drawn evenly from [0, 1]."""
    return normalize(torch.rand(shape, generator=rng, device=rng.device).to(normalize.mean))


def zeros(shape: tuple[int, ...], rng: torch.Generator, normalize: Normalize) -> Tensor:
    """The mean colour. Untrained ResNets have an image gradient of exactly 0 here: the attack never leaves it."""
    return torch.zeros(shape)


# (shape of the images, the stream, the network's first layer) → a start in normalized units.
STARTS: dict[str, Callable[[tuple[int, ...], torch.Generator, Normalize], Tensor]] = {
    "normal": normal,
    "uniform": uniform,
    "zeros": zeros,
}
