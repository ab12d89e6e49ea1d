"""The paper's 50 operations as batched kernels: uint8 (B, C, H, W) in and out, equal to Pillow bit
for bit.

`apply(index, pixels, sign)` runs one operation; `crop_and_flip` is the augmentation in front of
every policy. Each kernel keeps the arithmetic of Pillow's C code (float32 where it blends, float64
where it interpolates, 16.16 fixed point where it rotates), because truncation to a byte makes a
last-bit difference a grey level.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from atslib.data.images import describe, is_tensor
from atslib.errors import AtsError

Sign = int | Tensor  # +1 or -1 for the batch, or an integer tensor (B,) of them


class Op(NamedTuple):
    """One of the 50: which kernel, and which of the ten levels of its magnitude table."""

    name: str
    level: int  # 0..9, an index into MAGNITUDES[name]


# Position = the id in the paper's tables. Source: the authors' policy.py, the 25 AutoAugment
# sub-policies for CIFAR-10 written one operation after the other. Their third value, a probability,
# is stored and never used (autoaugment.py always applies the operation), so it is left out.
# fmt: off
OPS: tuple[Op, ...] = tuple(Op(name, level) for name, level in (
    ("invert", 7), ("contrast", 6), ("rotate", 2), ("translateX", 9), ("sharpness", 1), ("sharpness", 3),
    ("shearY", 2), ("translateY", 2), ("autocontrast", 5), ("equalize", 2), ("shearY", 5), ("posterize", 5),
    ("color", 3), ("brightness", 5), ("sharpness", 9), ("brightness", 9), ("equalize", 5), ("equalize", 1),
    ("contrast", 7), ("sharpness", 5), ("color", 5), ("translateX", 5), ("equalize", 7), ("autocontrast", 8),
    ("translateY", 3), ("sharpness", 6), ("brightness", 6), ("color", 8), ("solarize", 0), ("invert", 0),
    ("equalize", 0), ("autocontrast", 0), ("equalize", 8), ("equalize", 4), ("color", 5), ("equalize", 5),
    ("autocontrast", 4), ("solarize", 4), ("brightness", 3), ("color", 0), ("solarize", 1),
    ("autocontrast", 0), ("translateY", 3), ("translateY", 3), ("autocontrast", 1), ("solarize", 1),
    ("equalize", 5), ("invert", 0), ("translateY", 3), ("autocontrast", 1),
))
# fmt: on


def _levels(start: float, stop: float) -> tuple[float, ...]:
    return tuple(np.linspace(start, stop, 10).tolist())


# Level 0..9 -> the number the kernel gets. Source: the authors' autoaugment.py (enhancements reach
# 0.5, not AutoAugment's 0.9). An operation without a table ignores its level.
MAGNITUDES: dict[str, tuple[float, ...]] = {
    "shearY": _levels(0, 0.3),  # rows per column
    "translateX": _levels(0, 150 / 331),  # fraction of the width
    "translateY": _levels(0, 150 / 331),  # fraction of the height
    "rotate": _levels(0, 30),  # degrees, counter-clockwise
    # The factor of an enhancement is 1 + sign * this.
    **dict.fromkeys(("color", "contrast", "brightness", "sharpness"), _levels(0, 0.5)),
    "posterize": tuple(map(round, _levels(8, 4))),  # bits kept
    "solarize": _levels(256, 0),  # grey level from which pixels are inverted
}


def magnitude(op: Op) -> float | None:
    """The number `op` is applied with (its unit: see `MAGNITUDES`), None where the level is
    ignored.
    """
    return MAGNITUDES[op.name][op.level] if op.name in MAGNITUDES else None


def apply(index: int, pixels: Tensor, sign: Sign = 1) -> Tensor:
    """Operation `index` on every image.

    Args:
        index: 0..49, a position in `OPS`.
        pixels: (B, C, H, W) uint8, C = 3 (Pillow's RGB) or 1 (Pillow's L).
        sign: +1 or -1 for all images, or an integer tensor (B,) of +1 and -1, each image its own.
            Shear and translate mirror; color, contrast, brightness and sharpness use the factor 1 +
            sign * magnitude; the rest have no sign and ignore it.
    Returns:
        (B, C, H, W) uint8 on the same device; `pixels` itself where nothing changes.
    Raises:
        AtsError: unknown index, wrong pixels, wrong sign. A tensor's values are not read (no host
            sync).
    Source: Pillow 13, reproduced exactly (tests/test_operations.py compares every operation).
    """
    if not (isinstance(index, int) and 0 <= index < len(OPS)):
        raise AtsError(f"operation {index!r} is unknown; ids run 0..{len(OPS) - 1}")
    check_pixels(pixels)
    if isinstance(sign, Tensor):
        if sign.shape != pixels.shape[:1] or sign.is_floating_point():
            raise AtsError(
                f"sign is {sign.dtype} {tuple(sign.shape)}; expected integers ({len(pixels)},)"
            )
        sign = sign.to(pixels.device).view(-1, 1, 1, 1)
    elif not isinstance(sign, int) or sign not in (1, -1):
        raise AtsError(f"sign {sign!r} is neither +1 nor -1")
    return KERNELS[OPS[index].name](pixels, magnitude(OPS[index]), sign)


def check_pixels(pixels: Tensor) -> None:
    """Raise `AtsError` unless `pixels` is (B, C, H, W) uint8 with one or three channels."""
    if not is_tensor(pixels) or pixels.dtype != torch.uint8:
        given = describe(pixels)
        if isinstance(pixels, np.ndarray):
            given = f"a NumPy array, {given}"
        raise AtsError(f"pixels are {given}; expected a uint8 tensor, values 0..255")
    if pixels.ndim != 4 or pixels.shape[1] not in (1, 3):
        raise AtsError(
            f"pixels have shape {tuple(pixels.shape)}; expected (B, C, H, W) with C = 1 or 3"
        )


def _translate(pixels: Tensor, shift: float, axis: int) -> Tensor:
    # Pillow reads column int(x + 0.5 + shift), a running sum. Rounding cannot matter: a shift of 50
    # k W / 993 pixels is at least 1/1986 away from half a pixel.
    step = math.floor(shift * pixels.shape[axis] + 0.5)
    return F.pad(pixels, (-step, step) if axis == 3 else (0, 0, -step, step))


def _shear_y(pixels: Tensor, slope: float) -> Tensor:
    b, c, h, w = pixels.shape
    rows, inside, d = shear_table(h, w, slope, pixels.device)
    # Pixel-major, (HW, BC): a tap is then a copy of whole rows, ten times faster than a gather per
    # image.
    flat = pixels.reshape(b * c, h * w).t().to(torch.int16, memory_format=torch.contiguous_format)
    v1, v2, v3, v4 = (flat.index_select(0, row) for row in rows)
    cubic = v2 - v1 + v4 - v3
    square = (v1 - v2) * 2 + v3 - v4
    out = cubic.double().mul_(d).add_(square).mul_(d).add_(v3 - v1).mul_(d).add_(v2)
    return out.clamp_(0, 255).to(torch.uint8).mul_(inside).t().reshape(b, c, h, w)


@lru_cache(maxsize=64)
def shear_table(
    h: int, w: int, slope: float, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """A pixel's four sources (4, HW), if it lies inside and how far between the middle two, (HW, 1)
    each.

    float64, because Pillow's cubic (a = -1) meets exact integers and then truncates. The offset in
    x is exactly zero, so only rows are interpolated; beyond the edge the edge row repeats.
    """
    x = torch.arange(w, dtype=torch.float64) + 0.5
    y = torch.arange(h, dtype=torch.float64)[:, None] + 0.5
    source = x * slope + y
    below = (source - 0.5).floor()
    rows = torch.stack(
        [(below + k).clamp(0, h - 1).long() * w + torch.arange(w) for k in (-1, 0, 1, 2)]
    )
    inside = ((source >= 0) & (source < h)).to(torch.uint8)
    d = source - 0.5 - below
    return rows.view(4, -1).to(device), inside.view(-1, 1).to(device), d.view(-1, 1).to(device)


def _rotate(pixels: Tensor, degrees: float, _: Sign) -> Tensor:
    index, outside = rotate_table(*pixels.shape[2:], degrees, pixels.device)
    # Grey beyond the edge here, black in the other geometry: so the authors' code has it.
    return pixels.flatten(2)[:, :, index].masked_fill_(outside, 128).view(pixels.shape)


@lru_cache(maxsize=64)
def rotate_table(h: int, w: int, degrees: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each pixel, the flat index of its source and whether that lies outside, (HW,) each.

    Pillow walks the source in 16.16 fixed point, with a matrix rounded to 15 digits.
    """
    cos = round(math.cos(math.radians(degrees)), 15)
    sin = round(math.sin(math.radians(degrees)), 15)
    x0 = cos * (-w / 2) - sin * (-h / 2) + w / 2
    y0 = sin * (-w / 2) + cos * (-h / 2) + h / 2
    fixed = [math.floor(v * 65536 + 0.5) for v in (cos, -sin, x0 + cos * 0.5 - sin * 0.5)]
    fixed += [math.floor(v * 65536 + 0.5) for v in (sin, cos, y0 + sin * 0.5 + cos * 0.5)]
    x = torch.arange(w)
    y = torch.arange(h)[:, None]
    column = (fixed[0] * x + fixed[1] * y + fixed[2]) >> 16
    row = (fixed[3] * x + fixed[4] * y + fixed[5]) >> 16
    outside = (column < 0) | (column >= w) | (row < 0) | (row >= h)
    index = (row * w + column).masked_fill(outside, 0)
    return index.view(-1).to(device), outside.view(-1).to(device)


def _mirrored(kernel: Callable[[Tensor, float], Tensor]) -> Callable[[Tensor, float, Sign], Tensor]:
    """Give a geometry kernel its sign: one call where all images share it, else one for each sign."""

    def signed(pixels: Tensor, size: float, sign: Sign) -> Tensor:
        if isinstance(sign, int):
            return kernel(pixels, size * sign)
        if (
            pixels.device.type != "cpu"
        ):  # all images twice: to sort them the host would have to wait
            return torch.where(sign > 0, kernel(pixels, size), kernel(pixels, -size))
        by_value = {value: (sign.flatten() == value).nonzero().squeeze(1) for value in (1, -1)}
        for value, rows in by_value.items():
            if len(rows) == len(pixels):  # one sign for all, as in each form of a policy
                return kernel(pixels, size * value)
        made = torch.empty_like(pixels)
        for value, rows in by_value.items():
            made.index_copy_(0, rows, kernel(pixels.index_select(0, rows), size * value))
        return made

    return signed


def _factor(size: float, sign: Sign) -> float | Tensor:
    if isinstance(sign, int):
        return 1.0 + size * sign
    return torch.where(sign > 0, 1.0 + size, 1.0 - size).to(torch.float32)


def _blend(degenerate: Tensor, image: Tensor, factor: float | Tensor) -> Tensor:
    """`degenerate + factor * (image - degenerate)` in float32, clipped, truncated; overwrites
    `image`.
    """
    # Two roundings, as in C: a fused multiply-add would differ from Pillow in the last bit.
    return image.sub_(degenerate).mul_(factor).add_(degenerate).clamp_(0, 255).to(torch.uint8)


def _luma(image: Tensor) -> Tensor:
    """Pillow's L of float (B, 3, H, W), as (B, 1, H, W): integers below 2**24, so float32 is exact."""
    red, green, blue = image.split(1, dim=1)
    grey = (red * 19595).add_(green, alpha=38470).add_(blue, alpha=7471)
    return grey.add_(0x8000).mul_(2**-16).floor_()


def _color(pixels: Tensor, size: float, sign: Sign) -> Tensor:
    if size == 0 or pixels.shape[1] == 1:  # a grey image has no colour to change
        return pixels
    image = pixels.float()
    return _blend(_luma(image), image, _factor(size, sign))


def _contrast(pixels: Tensor, size: float, sign: Sign) -> Tensor:
    image = pixels.float()
    grey = _luma(image) if pixels.shape[1] == 3 else image
    total = grey.flatten(1).sum(1, dtype=torch.float64)  # exact; a float32 sum may not be
    mean = (total / (grey.shape[2] * grey.shape[3]) + 0.5).floor_().float().view(-1, 1, 1, 1)
    return _blend(mean, image, _factor(size, sign))


def _brightness(pixels: Tensor, size: float, sign: Sign) -> Tensor:
    return pixels.float().mul_(_factor(size, sign)).clamp_(0, 255).to(torch.uint8)


def _sharpness(pixels: Tensor, size: float, sign: Sign) -> Tensor:
    if min(pixels.shape[2:]) < 3:  # Pillow filters no image smaller than its kernel
        return pixels
    wide = pixels.to(torch.int16)
    columns = wide[..., :-2] + wide[..., 1:-1] + wide[..., 2:]
    inner = wide[:, :, 1:-1, 1:-1]
    smooth = columns[:, :, :-2] + columns[:, :, 1:-1] + columns[:, :, 2:] + inner * 4
    # The integer nearest to smooth / 13. No ties (13 is odd), so this division's rounding is
    # harmless.
    blurred = smooth.float().add_(6.5).div_(13).floor_()
    out = pixels.clone()  # the one-pixel border is not filtered
    out[:, :, 1:-1, 1:-1] = _blend(blurred, inner.float(), _factor(size, sign))
    return out


def _solarize(pixels: Tensor, threshold: float, _: Sign) -> Tensor:
    if threshold > 255:
        return pixels
    mask = (
        (pixels >= math.ceil(threshold)).view(torch.uint8).neg_()
    )  # 0 or 255; `x ^ 255` is `255 - x`
    return mask.bitwise_xor_(pixels)


def _autocontrast(pixels: Tensor, _: None, __: Sign) -> Tensor:
    rows = pixels.reshape(-1, pixels.shape[2] * pixels.shape[3])
    low = rows.amin(1, keepdim=True).double()
    high = rows.amax(1, keepdim=True).double()
    span = (high - low).clamp_(min=1)
    scale = torch.full_like(span, 255) / span  # not `255 / span`: that multiplies by a reciprocal
    grey = torch.arange(256, dtype=torch.float64, device=pixels.device)
    table = (grey * scale).sub_(low * scale).clamp_(0, 255)
    table = torch.where(high > low, table, grey).to(torch.uint8)
    return table.gather(1, rows.long()).view(pixels.shape)


def _equalize(pixels: Tensor, _: None, __: Sign) -> Tensor:
    rows = pixels.reshape(-1, pixels.shape[2] * pixels.shape[3]).long()
    one = torch.ones(1, 1, dtype=torch.int32, device=pixels.device).expand(rows.shape)
    counts = torch.zeros(len(rows), 256, dtype=torch.int32, device=pixels.device).scatter_add_(
        1, rows, one
    )
    brightest = counts.gather(1, rows.amax(1, keepdim=True))
    step = (rows.shape[1] - brightest) // 255
    darker = counts.cumsum(1, dtype=torch.int32) - counts
    table = darker.add_(step // 2).div_(step.clamp(min=1), rounding_mode="floor").clamp_(0, 255)
    grey = torch.arange(256, dtype=torch.int32, device=pixels.device)
    table = torch.where(step > 0, table, grey).to(
        torch.uint8
    )  # too few distinct pixels: Pillow leaves them
    return table.gather(1, rows).view(pixels.shape)


KERNELS: dict[str, Callable[[Tensor, float | None, Sign], Tensor]] = {
    "shearY": _mirrored(_shear_y),
    "translateX": _mirrored(lambda pixels, size: _translate(pixels, size, axis=3)),
    "translateY": _mirrored(lambda pixels, size: _translate(pixels, size, axis=2)),
    "rotate": _rotate,
    "color": _color,
    "contrast": _contrast,
    "brightness": _brightness,
    "sharpness": _sharpness,
    "posterize": lambda pixels, bits, _: pixels & (0xFF << (8 - bits) & 0xFF),
    "solarize": _solarize,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "invert": lambda pixels, _, __: ~pixels,
}


def crop_flip(pixels: Tensor, offsets: Tensor, flips: Tensor, *, padding: int = 4) -> Tensor:
    """Crop each black-padded image to its own size, then mirror left to right where `flips`.

    `pixels`: (B, C, H, W) uint8 -> same. `offsets`: (B, 2) integers 0..2*padding, the window's row
    and column (`padding` is the middle: no change). `flips`: (B,) bool.
    """
    check_pixels(pixels)
    return shift_flip(pixels, offsets, flips, padding=padding)


def shift_flip(pixels: Tensor, offsets: Tensor, flips: Tensor, *, padding: int = 4) -> Tensor:
    """`crop_flip` of images of any dtype, (B, C, H, W) -> same."""
    b, _, h, w = pixels.shape
    if pixels.device.type == "cpu" and pixels.dtype == torch.uint8:
        return _shift_flip_bytes(pixels, offsets, flips, padding)
    windows = (
        F.pad(pixels, (padding,) * 4).unfold(2, h, 1).unfold(3, w, 1)
    )  # a view, (B, C, P, P, H, W)
    row, column = offsets.to(pixels.device).unbind(1)
    cropped = windows[torch.arange(b, device=pixels.device), :, row, column]
    return torch.where(flips.to(pixels.device).view(-1, 1, 1, 1), cropped.flip(3), cropped)


def _shift_flip_bytes(pixels: Tensor, offsets: Tensor, flips: Tensor, padding: int) -> Tensor:
    """`shift_flip` of bytes on a CPU: a copy of whole rows for each image takes a third of the time of
    an index for each byte.
    """
    b, c, h, w = pixels.shape
    padded = np.zeros((b, c, h + 2 * padding, w + 2 * padding), dtype=np.uint8)
    padded[:, :, padding : padding + h, padding : padding + w] = pixels.numpy()
    made = np.empty((b, c, h, w), dtype=np.uint8)
    windows = zip(offsets.tolist(), flips.tolist(), strict=True)
    for number, ((row, column), flipped) in enumerate(windows):
        window = padded[number, :, row : row + h, column : column + w]
        made[number] = window[..., ::-1] if flipped else window
    return torch.from_numpy(made)


def draw_crop(n: int, *, rng: torch.Generator, padding: int = 4) -> tuple[Tensor, Tensor]:
    """Draws of crop and flip for n images, as `crop_flip` takes them: offsets (n, 2), flips (n,).

    Each image takes three uniform numbers, for row, column and flip (probability 0.5); from a CPU
    generator image i's draw does not depend on n.
    """
    draws = torch.rand((n, 3), generator=rng, device=rng.device)
    offsets = (draws[:, :2] * (2 * padding + 1)).long()
    return offsets, draws[:, 2] < 0.5


def crop_and_flip(pixels: Tensor, *, rng: torch.Generator, padding: int = 4) -> Tensor:
    """Random crop (black padding, in pixels) and flip, drawn for each image on its own, see
    `draw_crop`.

    `pixels`: (B, C, H, W) uint8 -> same.
    """
    offsets, flips = draw_crop(len(pixels), rng=rng, padding=padding)
    return crop_flip(pixels, offsets, flips, padding=padding)
