"""Differentiable twins of the 50 operations, for an attacker who models the policy: floats in,
floats out.

`twin` applies a policy with given signs as the exact kernels do, but without their truncation to
bytes, so that a gradient flows through it. Where an operation has steps (posterize, solarize,
equalize) the gradient is that of a continuous stand-in, named beside each.
"""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from atslib.errors import AtsError
from atslib.policies.operations import KERNELS, OPS, magnitude, rotate_table, shear_table
from atslib.policies.policy import Hybrid, Policy, parse_policy

Form = tuple[tuple[int, ...], tuple[int, ...]]  # operations, and the sign that was drawn for each
SIGNED = (
    "shearY",
    "translateX",
    "translateY",
    "color",
    "contrast",
    "brightness",
    "sharpness",
)  # turn with their sign
MOVES = ("shearY", "translateX", "translateY", "rotate")  # the others change colours where they are
LUMA = (19595 / 65536, 38470 / 65536, 7471 / 65536)  # of red, green and blue, as Pillow weighs them


def twin(ids: Sequence[int], images: Tensor, signs: Tensor) -> Tensor:
    """The operations one after the other, differentiable in the images.

    Args:
        ids: positions in `OPS`.
        images: (B, C, H, W) floats in [0, 1], C = 3 or 1, of any floating type.
        signs: (B, len(ids)) integers +1 and -1, as `Policy.apply_signs` takes them.
    Returns:
        (B, C, H, W) in [0, 1]. On images of whole bytes, n / 255, shifts, rotate, invert,
        posterize, solarize and equalize are equal to the exact operation; one of the others is
        within 1/255 of it.
    Raises:
        AtsError: an unknown id, or images or signs of the wrong kind.
    """
    if not images.is_floating_point() or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise AtsError(
            f"images are {images.dtype} {tuple(images.shape)}; expected floats (B, C, H, W) with C = 1 or 3"
        )
    if tuple(signs.shape) != (len(images), len(ids)) or signs.is_floating_point():
        raise AtsError(
            f"signs are {signs.dtype} {tuple(signs.shape)}; expected integers ({len(images)}, {len(ids)})"
        )
    for column, index in enumerate(ids):
        if not 0 <= index < len(OPS):
            raise AtsError(f"operation {index!r} is unknown; ids run 0..{len(OPS) - 1}")
        sign = signs[:, column].to(images.device).view(-1, 1, 1, 1)
        images = TWINS[OPS[index].name](images, magnitude(OPS[index]), sign)
    return images


def twins(forms: Sequence[Form], images: Tensor) -> Tensor:
    """`twin` with a form of its own for each image, (B, C, H, W) in [0, 1] → the same; B forms."""
    members: dict[tuple[int, ...], list[int]] = {}
    for row, (ids, _) in enumerate(forms):
        members.setdefault(ids, []).append(row)
    if len(members) == 1:
        (ids,) = members
        return twin(ids, images, _signs(forms, ids))
    made = [
        twin(ids, images[rows], _signs([forms[i] for i in rows], ids))
        for ids, rows in members.items()
    ]
    order = torch.tensor([row for rows in members.values() for row in rows], device=images.device)
    return torch.cat(made)[order.argsort()]


def members(policy: str | Policy | Hybrid) -> list[tuple[int, ...]]:
    """The operations of each member of a hybrid, or those of a policy alone."""
    parsed = parse_policy(policy)
    return [member.ids for member in (parsed.members if isinstance(parsed, Hybrid) else (parsed,))]


def turns(ids: Sequence[int]) -> list[bool]:
    """Whether the sign of each operation matters."""
    return [OPS[i].name in SIGNED and bool(magnitude(OPS[i])) for i in ids]


def forms(policy: str | Policy | Hybrid) -> list[Form]:
    """All that a policy can draw, one entry per member and combination of the signs that matter."""
    found = []
    for ids in members(policy):
        choices = [(1, -1) if signed else (1,) for signed in turns(ids)]
        found += [(ids, signs) for signs in itertools.product(*choices)]
    return list(dict.fromkeys(found))


def moves_of(form: Form) -> Form:
    """The operations of a form that move pixels, with their signs; the others change colours where
    they are.
    """
    ids, signs = form
    kept = [(i, sign) for i, sign in zip(ids, signs, strict=True) if OPS[i].name in MOVES]
    return tuple(i for i, _ in kept), tuple(sign for _, sign in kept)


def in_frame(forms: Sequence[Form], images: Tensor) -> Tensor:
    """Which pixels of images a policy leaves in the frame, (B, H, W) bool; B forms, and images as
    `twin` takes them.

    A pixel is in the frame if what the operations that move pixels make of it depends on it.
    """
    moves = [moves_of(form) for form in forms]
    with torch.enable_grad():
        grey = torch.full_like(images, 0.5).requires_grad_()
        (share,) = torch.autograd.grad(twins(moves, grey).sum(), grey)
    return share.abs().amax(1) > 1e-3


def _signs(forms: Sequence[Form], ids: tuple[int, ...]) -> Tensor:
    return torch.tensor([signs for _, signs in forms], dtype=torch.int64).view(len(forms), len(ids))


def _mirrored(move: Callable[[Tensor, float], Tensor]) -> Callable[[Tensor, float, Tensor], Tensor]:
    return lambda images, size, sign: torch.where(sign > 0, move(images, size), move(images, -size))


def _translate(axis: int) -> Callable[[Tensor, float], Tensor]:
    # A shift moves whole pixels: the exact kernel takes any kind of number.
    name = "translateX" if axis == 3 else "translateY"
    return lambda images, size: KERNELS[name](images, abs(size), 1 if size >= 0 else -1)


def _shear_y(images: Tensor, slope: float) -> Tensor:
    rows, inside, offset = shear_table(*images.shape[2:], slope, images.device)
    flat = images.flatten(2)
    d = offset.to(images).view(-1)
    v1, v2, v3, v4 = (flat[:, :, row] for row in rows)
    value = v2 + d * (v3 - v1 + d * (2 * (v1 - v2) + v3 - v4 + d * (v2 - v1 + v4 - v3)))
    return (value.clamp(0, 1) * inside.view(-1)).view(images.shape)


def _rotate(images: Tensor, degrees: float, _: Tensor) -> Tensor:
    index, outside = rotate_table(*images.shape[2:], degrees, images.device)
    return images.flatten(2)[:, :, index].masked_fill(outside, 128 / 255).view(images.shape)


def _luma(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    return (images * images.new_tensor(LUMA).view(3, 1, 1)).sum(1, keepdim=True)


def _blend(degenerate: Tensor, images: Tensor, size: float, sign: Tensor) -> Tensor:
    """As Pillow blends; half a grey level lower, the middle of what its truncation takes away."""
    blended = degenerate + (1 + size * sign) * (images - degenerate)
    return (blended - 0.5 / 255).clamp(0, 1) if size else images


def _sharpness(images: Tensor, size: float, sign: Tensor) -> Tensor:
    if min(images.shape[2:]) < 3:
        return images
    # Sums of shifted images, not a convolution: those of a network's parameters are counted by
    # example.
    columns = images[..., :-2] + images[..., 1:-1] + images[..., 2:]
    inner = images[:, :, 1:-1, 1:-1]
    smooth = (columns[:, :, :-2] + columns[:, :, 1:-1] + columns[:, :, 2:] + 4 * inner) / 13
    whole = images.clone()  # the border is not filtered
    whole[:, :, 1:-1, 1:-1] = _blend(smooth, inner, size, sign)
    return whole


def _posterize(images: Tensor, bits: float, _: Tensor) -> Tensor:
    """Forward the steps, backward the identity."""
    step = 2 ** (8 - int(bits))
    return images + (torch.floor((images * 255).round() / step) * step / 255 - images).detach()


def _solarize(images: Tensor, threshold: float, _: Tensor) -> Tensor:
    """Slope +1 below the threshold and -1 from it on; the jump between has no gradient."""
    return torch.where((images * 255).round() >= threshold, 1 - images, images)


def _autocontrast(images: Tensor, _: None, __: Tensor) -> Tensor:
    low = images.amin((2, 3), keepdim=True)
    high = images.amax((2, 3), keepdim=True)
    span = high - low
    stretched = ((images - low) / span.clamp(min=1 / 255) - 0.5 / 255).clamp(0, 1)
    return torch.where(span > 0, stretched, images)


def _equalize(images: Tensor, _: None, __: Tensor) -> Tensor:
    """Through the image's own table of grey levels, joined by straight lines; the table itself is
    held constant.
    """
    levels = images.detach().mul(255).round().clamp(0, 255)
    pixels = levels.to(torch.uint8)
    planes = pixels.flatten(0, 1).unsqueeze(1)
    # What becomes of a level is what becomes of its pixels; levels that no pixel has lie between
    # their neighbours.
    value = KERNELS["equalize"](planes, None, 1).flatten(1).to(images) / 255
    flat = images.flatten(0, 1).flatten(1)
    source = planes.flatten(1).to(images) / 255
    order = source.argsort(dim=1, stable=True)
    x = source.gather(1, order)
    y = value.gather(1, order)
    right = torch.searchsorted(x, flat.detach().contiguous(), right=False).clamp(1, x.shape[1] - 1)
    slope = _slope(x, y, right)
    return (value + slope * (flat - source)).clamp(0, 1).view(images.shape)


def _slope(x: Tensor, y: Tensor, right: Tensor) -> Tensor:
    """Rise over run of the sorted points next below and above each place; 1 where there is one grey
    level alone.
    """
    first = torch.searchsorted(x, x.gather(1, right), right=False)  # the first pixel of the level
    below = (first - 1).clamp(min=0)
    run = x.gather(1, right) - x.gather(1, below)
    rise = y.gather(1, right) - y.gather(1, below)
    return torch.where(run > 0, rise / run.clamp(min=1e-9), torch.ones_like(run))


TWINS: dict[str, Callable[[Tensor, float | None, Tensor], Tensor]] = {
    "shearY": _mirrored(_shear_y),
    "translateX": _mirrored(_translate(3)),
    "translateY": _mirrored(_translate(2)),
    "rotate": _rotate,
    "color": lambda images, size, sign: (
        images if images.shape[1] == 1 else _blend(_luma(images), images, size, sign)
    ),
    "contrast": lambda images, size, sign: _blend(
        _luma(images).mean((1, 2, 3), keepdim=True), images, size, sign
    ),
    "brightness": lambda images, size, sign: _blend(torch.zeros_like(images), images, size, sign),
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "invert": lambda images, _, __: 1 - images,
}
