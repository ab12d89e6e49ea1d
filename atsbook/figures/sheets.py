"""What a page holds of an experiment, small: pictures in image sheets, operations in words, numbers
in few digits.
"""

import base64
import io
import re
from collections.abc import Sequence

import numpy as np
from PIL import Image
from torch import Tensor

from atslib.policies.differentiable import SIGNED
from atslib.policies.policy import OPS

QUALITIES = (75, 60, 50, 40, 30, 20, 15, 10, 9, 8, 7, 6, 5)


def payload(index: dict, files: dict[str, bytes]) -> dict:
    """`index` with its image sheets inside, as data URIs."""
    uris = {
        name: f"data:image/webp;base64,{base64.b64encode(data).decode()}"
        for name, data in files.items()
    }
    return index | {"files": uris}


def brief(value: float, digits: int = 4) -> float | None:
    """Significant digits only; JSON has no nan and no infinity."""
    return float(f"{value:.{digits}g}") if np.isfinite(value) else None


def spoken(names: str) -> str:
    """`translateX 9` → `translate X 9`."""
    return re.sub(r"([a-z])([XY]) ", r"\1 \2 ", names)


def signed(ids: Sequence[int], signs: Sequence[int]) -> str:
    """Operations in words, with + or − where there is a sign: `translate X −9 → contrast +6`."""
    words = []
    for index, sign in zip(ids, signs, strict=False):
        op = OPS[index]
        mark = "+" if sign > 0 else "−"
        words.append(f"{op.name} {mark if op.name in SIGNED else ''}{op.level}")
    return spoken(" → ".join(words)) or "no operation"


def fitting(pictures: dict[str, Tensor], budget: int) -> dict[str, bytes]:
    """Sheets by file name at the best quality at which all together have at most `budget` bytes,
    else the least.
    """
    for quality in QUALITIES:
        files = {name: sheet(rows, quality) for name, rows in pictures.items()}
        if sum(map(len, files.values())) <= budget:
            break
    return files


def sheet(pictures: Tensor, quality: int) -> bytes:
    """A WebP of (R, N, C, H, W) pictures in [0, 1]: R rows of N, the channels below each other as
    grey images.

    WebP halves the resolution of colours, which at 32 pixels spoils them (measured on frames of
    attacks: 14 to 21 dB). Channels as grey planes keep it: over 31 dB in the same bytes.
    """
    planes = (pictures.detach().cpu().clamp(0, 1) * 255).round().byte().permute(2, 0, 3, 1, 4)
    channels, rows, height, columns, width = planes.shape
    grey = planes.reshape(channels * rows * height, columns * width).numpy()
    buffer = io.BytesIO()
    Image.fromarray(grey).convert("RGB").save(buffer, "WEBP", quality=quality, method=4)
    return buffer.getvalue()
