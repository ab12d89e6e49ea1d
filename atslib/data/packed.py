"""Packed files: their names, reading, the cache of decoded pixels, writing."""

import hashlib
import io
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from atslib.data.images import KINDS, Images, Kind, describe, explain, label_fault
from atslib.errors import AtsError
from atslib.files import write_atomically

Folder = str | os.PathLike[str]


def file_names(name: str, split: str) -> tuple[str, ...]:
    """Names of the packed file, the preferred one first."""
    if name != "tinyimagenet":
        return (f"{name}_{split}.npz",)
    whole = "tinyimagenet_train.npz"
    tenth = "tinyimagenet_train_10pct.npz"
    return (whole, tenth) if split == "train" else ("tinyimagenet_val.npz",)


def _broken(path: Path, fault: str) -> AtsError:
    return AtsError(
        f"{path}: {fault}; the file is left as it is, put an intact copy in its place or move it away"
    )


def _arrays(path: Path, keys: Sequence[str], optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as packed:
            return {key: packed[key] for key in [*keys, *(set(optional) & set(packed.files))]}
    except KeyError as error:
        raise _broken(path, f"an array is missing ({explain(error)})") from error
    except (OSError, ValueError, TypeError, EOFError, BadZipFile, zlib.error) as error:
        raise _broken(path, f"not a whole packed file ({explain(error)})") from error


def read(path: Path, name: str, split: str) -> Images:
    """The images in a packed file; AtsError if anything in it contradicts the data set or itself."""
    kind = KINDS[name]
    arrays = _arrays(path, ("labels", "class_names", "offsets"), ("exact",))
    labels = arrays["labels"]
    offsets = arrays["offsets"]
    if arrays["class_names"].shape != (kind.classes,):
        raise _broken(
            path,
            f"class_names has shape {arrays['class_names'].shape}, {name} has {kind.classes} classes",
        )
    if (
        offsets.dtype.kind not in "iu"
        or offsets.ndim != 1
        or len(offsets) == 0
        or (np.diff(offsets) < 0).any()
    ):
        raise _broken(path, "offsets are not a rising row of integers")
    if fault := label_fault(labels, len(offsets) - 1, kind.classes):
        raise _broken(path, fault)
    pixels = torch.from_numpy(_cached(path, kind, offsets))
    labels = torch.from_numpy(labels.astype(np.int64))
    note = f"10 % of the training set (n={len(labels):,})" if path.stem.endswith("_10pct") else ""
    if "exact" in arrays:
        exact = torch.from_numpy(arrays["exact"])
        if exact.dtype != torch.bool or exact.shape != labels.shape:
            raise _broken(path, f"exact is {describe(exact)}; it must be one bool per image")
        if not exact.all():
            note = f"{(~exact).sum():,} of {len(exact):,} images, not lossless here, are left out"
            pixels = pixels[exact]
            labels = labels[exact]
    return Images(pixels, labels, tuple(map(str, arrays["class_names"])), name, split, note)


def _cached(path: Path, kind: Kind, offsets: np.ndarray) -> np.ndarray:
    """The pixels (N, C, H, W), from the cache if it has those of this very file."""
    shape = (len(offsets) - 1, len(kind.mode), kind.size, kind.size)
    stat = path.stat()
    key = hashlib.sha256(
        repr((str(path.resolve()), stat.st_size, stat.st_mtime_ns, shape)).encode()
    )
    folder = Path(os.environ.get("ATS_CACHE") or "~/.cache/atslib/decoded").expanduser()
    cache = folder / f"{path.stem}-{key.hexdigest()[:16]}.npy"
    with suppress(OSError, ValueError, EOFError):  # no such file, or a damaged one: decode again
        with cache.open("rb") as file:
            pixels = np.load(file, allow_pickle=False)
        if isinstance(pixels, np.ndarray) and pixels.shape == shape and pixels.dtype == np.uint8:
            return pixels
    pixels = _decode(path, kind, offsets)
    with suppress(AtsError):  # a folder that cannot be written costs time, nothing else
        write_atomically(cache, lambda partial: _save(partial, np.save, pixels))
    return pixels


def _decode(path: Path, kind: Kind, offsets: np.ndarray, chunk: int = 500) -> np.ndarray:
    data = _arrays(path, ("data",))["data"]
    if data.dtype != np.uint8 or data.ndim != 1 or offsets[0] != 0 or offsets[-1] != len(data):
        raise _broken(
            path, f"offsets run {offsets[0]}..{offsets[-1]}, but data is {describe(data)}"
        )
    count = len(offsets) - 1
    size = kind.size
    channels = len(kind.mode)
    out = np.empty((count, channels, size, size), dtype=np.uint8)

    def decode(first: int) -> None:
        # One tall canvas for a chunk: Pillow copies in C, several times faster than one array per
        # image.
        last = min(first + chunk, count)
        canvas = Image.new(kind.mode, (size, size * (last - first)))
        for i in range(first, last):
            if fault := _paste(canvas, size * (i - first), data[offsets[i] : offsets[i + 1]]):
                raise _broken(path, f"image {i} {fault}")
        strip = np.asarray(canvas).reshape(last - first, size, size, channels)
        out[first:last] = strip.transpose(0, 3, 1, 2)

    with ThreadPoolExecutor(
        min(8, os.cpu_count() or 1)
    ) as pool:  # helps JPEG; WebP decodes under the GIL
        list(pool.map(decode, range(0, count, chunk)))
    return out


def _paste(canvas: Image.Image, top: int, encoded: np.ndarray) -> str:
    """Decode one image, as wide as the canvas, onto it from row `top` on; what is wrong with it, or
    "".
    """
    try:
        image = Image.open(io.BytesIO(encoded), formats=("WEBP", "JPEG", "PNG"))
        if image.size != (canvas.width, canvas.width):
            return f"is {image.width}×{image.height}, not {canvas.width}×{canvas.width} pixels"
        canvas.paste(image, (0, top))
    except Exception as error:  # a decoder of damaged bytes may raise anything
        return f"cannot be decoded ({explain(error)})"
    return ""


def pack(
    pixels: Tensor | np.ndarray | Sequence[bytes],
    labels: Tensor | np.ndarray | Sequence[int],
    class_names: Sequence[str],
    path: Folder,
    *,
    extra: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write a packed file, whole or not at all; its path.

    Args:
        pixels: (N, C, H, W) uint8, stored as lossless WebP; or N encoded images (WebP, JPEG, PNG)
            as bytes.
        labels: (N,) integers, an index into `class_names`.
        path: a new `.npz` file; `load` looks for `<name>_<split>.npz`.
        extra: more arrays for the file, such as `exact` (N,) bool.
    Raises:
        AtsError: the file exists or cannot be written, or the arguments contradict each other.
    """
    path = Path(path)
    labels = np.asarray(labels)
    if path.suffix != ".npz" or path.exists():
        raise AtsError(f"pack to {path}: give a name that ends in .npz and does not exist yet")
    encoded = _encode(pixels)
    if fault := label_fault(labels, len(encoded), len(class_names)):
        raise AtsError(f"pack: {fault}")
    arrays = {
        "data": np.frombuffer(b"".join(encoded), dtype=np.uint8),
        "offsets": np.cumsum([0, *map(len, encoded)], dtype=np.int64),
        "labels": labels.astype(np.int64),
        "class_names": np.array(class_names, dtype=np.str_),
    }
    write_atomically(path, lambda partial: _save(partial, np.savez, **arrays, **(extra or {})))
    return path


def _save(path: Path, save: Callable[..., None], *arrays: np.ndarray, **named: np.ndarray) -> None:
    with path.open("xb") as file:  # given a path, numpy would add its own suffix
        save(file, *arrays, **named)


def _encode(pixels: Tensor | np.ndarray | Sequence[bytes]) -> list[bytes]:
    if isinstance(pixels, (Tensor, np.ndarray)):
        array = np.asarray(pixels)
        if array.dtype != np.uint8 or array.ndim != 4 or array.shape[1] not in (1, 3):
            raise AtsError(
                f"pack: pixels are {describe(array)}; they must be (N, 1 or 3, H, W) uint8"
            )
        with ThreadPoolExecutor() as pool:
            return list(pool.map(_webp, array))
    if not all(isinstance(image, bytes) for image in pixels):
        raise AtsError(
            "pack: images in a list must be the bytes of encoded files; stack arrays into one"
        )
    return list(pixels)


def _webp(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    picture = Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
    picture.save(buffer, "WEBP", lossless=True)
    return buffer.getvalue()
