"""What of a photograph is in the frame after crop, flip and policy, and how well that part is
known.

A policy moves part of a photograph out of the frame; what is not there cannot leak. Of the rest it
is asked how close the reconstruction comes to it, once all that was drawn is undone.
"""

import torch
from torch import Tensor

from atslib.data.images import to_images
from atslib.errors import AtsError
from atslib.measures.metrics import check_images
from atslib.policies.differentiable import MOVES, TWINS, members
from atslib.policies.draws import Draw
from atslib.policies.operations import OPS, check_pixels, magnitude, rotate_table, shift_flip
from atslib.policies.policy import Policy

SHARPENING = 10  # steps in which sharpness is undone; each leaves at most 0.54 of the error


def shown(draw: Draw, like: Tensor) -> Tensor:
    """Which pixels of what became of a photograph show something of it, and not what fills the
    space.

    Args:
        draw: of B images.
        like: any images (N, C, H, W), for their size and device.
    Returns:
        (B, H, W) bool.
    """
    black = torch.zeros(len(draw), 1, *like.shape[2:], dtype=torch.uint8, device=like.device)
    dark = _moved(black, draw)
    bright = _moved(black + 255, draw)
    return (dark != bright).squeeze(1)


def _moved(pixels: Tensor, draw: Draw) -> Tensor:
    """The draws' crop, flip and operations that move pixels, on uint8 (B, 1, H, W)."""
    pixels = draw.cropped(pixels).clone()
    for number, ids in enumerate(members(draw.policy)):
        rows = _of_member(draw, number)
        columns = [column for column, index in enumerate(ids) if OPS[index].name in MOVES]
        moves = Policy(tuple(ids[column] for column in columns))
        here = rows.to(pixels.device)
        pixels[here] = moves.apply_signs(pixels[here], draw.signs[rows][:, columns])
    return pixels


def _of_member(draw: Draw, number: int) -> Tensor:
    """The images that got this member of a hybrid."""
    return (draw.member == number).nonzero().squeeze(1)


@torch.no_grad()
def undone(images: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
    """Images with all that was drawn undone as far as it can be: the last operation first, crop and
    flip at the end.

    Shifts, flip, invert, brightness, color and contrast are undone but for what was cut off or
    clipped; shear and rotation up to interpolation; sharpness by inverse filtering. Nothing undoes
    posterize, solarize, autocontrast and equalize, which stay.

    Args:
        images: (B, C, H, W) in [0, 1], reconstructions of what the clients made of their
            photographs.
        draw: of these B images.
    Returns:
        (B, C, H, W) in [0, 1], and which pixels were in the frame, (B, H, W) bool; the others mean
        nothing.
    Raises:
        AtsError: other shapes or dtypes.
    """
    check_images("undone", images)
    if len(draw) != len(images):
        raise AtsError(f"undone: {len(draw)} draws for {len(images)} images")
    images = images.nan_to_num().clamp(0, 1)
    inside = torch.ones_like(images[:, :1])
    for number, ids in enumerate(members(draw.policy)):
        rows = _of_member(draw, number)
        here = rows.to(images.device)
        part = images[here]
        mask = inside[here]
        for column in reversed(range(len(ids))):
            sign = draw.signs[rows, column].to(images.device).view(-1, 1, 1, 1)
            part, mask = _undo(ids[column], part, mask, sign)
        images = images.index_copy(0, here, part)
        inside = inside.index_copy(0, here, mask)
    if draw.offsets is not None:
        offsets = draw.offsets.to(images.device)
        flips = draw.flips.to(images.device)
        back = 8 - offsets  # the crop's padding is 4 on each side
        never = torch.zeros_like(flips)
        mirrored = flips.view(-1, 1, 1, 1)
        images, inside = (
            shift_flip(torch.where(mirrored, x.flip(3), x), back, never) for x in (images, inside)
        )
    return images.clamp(0, 1), inside.squeeze(1) > 0.999


def _undo(index: int, images: Tensor, inside: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
    """One operation undone; `inside` (B, 1, H, W) is 1 where a pixel was in the frame so far, and
    goes the same way.
    """
    name = OPS[index].name
    size = magnitude(OPS[index])
    if name in ("shearY", "translateX", "translateY"):
        return TWINS[name](images, size, -sign), TWINS[name](inside, size, -sign)
    if name == "rotate":
        source, outside = rotate_table(*images.shape[2:], -size, images.device)
        back = (
            x.flatten(2)[:, :, source].masked_fill(outside, 0).view_as(x) for x in (images, inside)
        )
        return tuple(back)
    if name == "invert":
        return 1 - images, inside
    if name in ("brightness", "color", "contrast"):
        grey = _grey(name, images)
        return (grey + (images - grey) / (1 + size * sign)).clamp(0, 1), inside
    if name == "sharpness" and size:
        made = images
        for _ in range(SHARPENING):
            images = images + made - TWINS[name](images, size, sign)
        return images.clamp(0, 1), inside
    return images, inside


def _grey(name: str, images: Tensor) -> Tensor:
    """What an operation blends images with: it leaves this as it was, so it can be read off the
    result.
    """
    if name == "brightness":
        return torch.zeros_like(images)
    colors = (
        images.new_tensor([19595, 38470, 7471]) / 65536
        if images.shape[1] == 3
        else images.new_ones(1)
    )
    luma = (images * colors.view(1, -1, 1, 1)).sum(1, keepdim=True)
    return luma if name == "color" else luma.mean((2, 3), keepdim=True)


@torch.no_grad()
def frame_psnr(images: Tensor, photographs: Tensor, draw: Draw) -> Tensor:
    """PSNR of photographs on the part that is in the frame, after all that was drawn is `undone`.

    Args:
        images: (B, C, H, W) in [0, 1], reconstructions of what the clients made of their
            photographs; or guesses.
        photographs: (B, C, H, W) uint8, before crop, flip and policy.
        draw: of these B images.
    Returns:
        (B,) in dB, higher is closer; nan where nothing is in the frame or a reconstruction is not
        finite. The exact image that was made does not give `inf` where an operation cannot be
        undone.
    Raises:
        AtsError: other shapes or dtypes.
    """
    check_pixels(photographs)
    if images.shape != photographs.shape:
        shapes = f"{tuple(images.shape)} and {tuple(photographs.shape)}"
        raise AtsError(f"frame_psnr: shapes {shapes} must be equal; nothing is broadcast")
    restored, inside = undone(images, draw)
    error = (restored - to_images(photographs).to(restored)).square().mean(1)
    mean = (error * inside).flatten(1).sum(1) / inside.flatten(1).sum(1)
    finite = images.isfinite().flatten(1).all(1)
    return -10 * torch.log10(torch.where(finite, mean, torch.nan))
