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


def in_pixels(draw: Callable[..., Tensor], shift: float) -> Callable[..., Tensor]:
    """Pixels in [0, 1] units from `torch.rand` or `torch.randn`, moved by a constant."""

    def start(shape: tuple[int, ...], rng: torch.Generator, normalize: Normalize) -> Tensor:
        return normalize((draw(shape, generator=rng, device=rng.device) + shift).to(normalize.mean))

    return start


def zeros(shape: tuple[int, ...], rng: torch.Generator, normalize: Normalize) -> Tensor:
    """The mean colour.

    Untrained ResNets have an image gradient of exactly 0 here: the attack never leaves it.
    """
    return torch.zeros(shape)


# (shape of the images, the stream, the network's first layer) → a start in normalized units.
STARTS: dict[str, Callable[[tuple[int, ...], torch.Generator, Normalize], Tensor]] = {
    "normal": normal,
    "uniform": uniform,
    "zeros": zeros,
    # Geng et al. 2021, Figure 3, beside "uniform".
    "pixels-normal": in_pixels(torch.randn, 0.5),
    "pixels-normal-zero": in_pixels(torch.randn, 0.0),
    "pixels-uniform-zero": in_pixels(torch.rand, -0.5),
}
