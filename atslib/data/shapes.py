"""`shapes` and `shapes-grey`: small data sets that are drawn, alike on every machine."""

from collections.abc import Callable

import numpy as np
import torch

from atslib.data.images import KINDS, Images


def _band(x: np.ndarray, r: np.ndarray, count: int) -> np.ndarray:
    """Which of `count` bands of equal width across -r..r holds x, modulo 2."""
    return (x + r) * count // (2 * r + 1) % 2


def _within(u: np.ndarray, v: np.ndarray, r: np.ndarray) -> np.ndarray:
    return np.maximum(abs(u), abs(v)) <= r


# Whether the point (u, v) from the centre, v downwards, is part of a shape of size r. All are
# integers.
_SHAPES: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "disc": lambda u, v, r: u * u + v * v <= r * r,
    "ring": lambda u, v, r: (u * u + v * v <= r * r) & (25 * (u * u + v * v) >= 9 * r * r),
    "square": lambda u, v, r: _within(5 * u, 5 * v, 4 * r),
    "frame": lambda u, v, r: _within(5 * u, 5 * v, 4 * r) & ~_within(5 * u, 5 * v, 2 * r),
    "triangle": lambda u, v, r: (2 * abs(u) <= v + r) & (5 * v <= 3 * r),
    "cross": lambda u, v, r: _within(u, v, r) & (4 * np.minimum(abs(u), abs(v)) <= r),
    "horizontal stripes": lambda u, v, r: _within(u, v, r) & (_band(v, r, 5) == 0),
    "vertical stripes": lambda u, v, r: _within(u, v, r) & (_band(u, r, 5) == 0),
    "checker": lambda u, v, r: _within(u, v, r) & (_band(u, r, 4) == _band(v, r, 4)),
    "diamond": lambda u, v, r: abs(u) + abs(v) <= r,
}


def _bits(count: int, stream: int) -> np.ndarray:
    """(count,) uint64 from splitmix64 (Steele et al. 2014): integers only, alike on every machine."""
    z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(stream << 40)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def draw_shapes(name: str, split: str) -> Images:
    """One light shape on a dark gradient, or the reverse, with noise; classes take turns."""
    size = KINDS[name].size
    channels = len(KINDS[name].mode)
    count = {"train": 5000, "test": 1000}[split]
    stream = 2 * (2 * (name == "shapes-grey") + (split == "test"))
    draws = (
        (_bits(16 * count, stream) >> np.uint64(33)).astype(np.int32).reshape(count, 16, 1, 1, 1)
    )

    def draw(
        low: int, high: int, first: int, columns: int = 1
    ) -> np.ndarray:  # (count, columns, 1, 1)
        return low + draws[:, first : first + columns, 0] % (high - low + 1)

    # Half pixels from the centre of the image, so that the middle of a pixel is an integer.
    axis = 2 * np.arange(size, dtype=np.int32) + 1 - size
    across = axis[None, None, None, :]
    down = axis[None, None, :, None]
    reach = 3 * size // 8
    r = draw(3 * size // 8, 5 * size // 8, 2)
    u = across - draw(-reach, reach, 0)
    v = down - draw(-reach, reach, 1)
    labels = np.arange(count, dtype=np.int64) % len(_SHAPES)
    mask = np.empty((count, 1, size, size), dtype=bool)
    for label, inside in enumerate(_SHAPES.values()):
        mask[labels == label] = inside(u[labels == label], v[labels == label], r[labels == label])

    light_shape = draw(0, 1, 3)
    dark = draw(16, 95, 6, channels)
    light = draw(144, 223, 9, channels)
    slope = (draw(-24, 24, 4) * across + draw(-24, 24, 5) * down) // size
    shape = np.where(light_shape, light, dark)
    ground = np.where(light_shape, dark, light) + slope
    noise = _bits(count * channels * size * size // 8, stream + 1).astype("<u8").view(np.uint8) % 25
    pixels = np.where(mask, shape, ground) + noise.reshape(ground.shape).astype(np.int32) - 12
    pixels = pixels.clip(0, 255).astype(np.uint8)
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels), tuple(_SHAPES), name, split)
