"""Losses, weights and images that are named in the shell."""

import argparse
import json
import operator
from collections.abc import Callable, Iterable
from pathlib import Path
from textwrap import shorten
from zipfile import BadZipFile

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from atslib.data.folder import (
    FITS,
    GREY,
    brightest_byte,
    class_files,
    few_bits,
    of_depth,
    opened,
    square_pixels,
    upper_bytes,
    upright,
    white_of,
)
from atslib.data.images import Images, describe, explain, is_tensor
from atslib.data.load import DATASETS, load
from atslib.errors import AtsError, choose
from atslib.gradients.inputs import UNSIGNED, as_tensor
from atslib.models import MOST_CLASSES
from atslib.named import named

MOST = 5_000  # images of a data set of one's own that are taken
LARGEST_GUESSED = (
    256  # pixels: larger images are not attacked at their own size unless that is asked for
)
# Where checkpoints keep the weights, and where an average of them beside.
NESTED = (
    "state_dict",
    "model_state_dict",
    "module_state_dict",
    "model",
    "module",
    "net",
    "weights",
)
AVERAGES = ("state_dict_ema", "model_ema", "ema_state_dict", "ema")
INDEX = ".index.json"  # how the names of files end that say which tensors are in which part


def named_loss(text: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss that a text names: a function of scores and labels, a module, or a class of one."""
    found = named(text, "--loss")
    if isinstance(found, type) and issubclass(found, nn.Module):
        found = found()
    if not callable(found):
        raise AtsError(
            f"--loss {text!r} is a {type(found).__name__}; it must be a function of scores and labels"
        )
    return found


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of `weights_in`."""
    return weights_in(path)[0]


def weights_in(path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors in a file by the names that it has for them, and a sentence where it holds
    several networks and one was taken, else "".

    Read are safetensors, npz, state dicts that torch saved, as they are or within a checkpoint
    (Lightning, timm, Opacus, NVFlare), and the index of a file in parts or the folder it is in.

    Raises:
        AtsError: no such file, or one that holds more than tensors where these have to be.
    """
    if path.is_dir():
        indices = sorted(path.glob(f"*{INDEX}"))
        alone = sorted(path.glob("*.safetensors"))
        if len(indices) != 1 and len(alone) != 1:
            kept = (path / ".metadata").is_file()  # of torch.distributed.checkpoint
            raise AtsError(
                f"{path} is a folder{' of parts of processes' if kept else ''}; give a file"
                + (
                    ", which torch.distributed.checkpoint.format_utils.dcp_to_torch_save makes of it"
                    if kept
                    else f", or a folder with one {INDEX.removeprefix('.')}"
                )
            )
        path = (indices or alone)[0]
    if not path.is_file():
        raise AtsError(
            f"{path} is no file; give weights as safetensors, npz, or a state dict that torch saved"
        )
    if path.name.endswith(INDEX):
        return _parts(path), ""
    try:
        if path.suffix == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return {name: _of_numpy(arrays[name], name) for name in arrays.files}, ""
        if path.suffix == ".safetensors":
            return load_file(path), ""
        # timm keeps its options beside the weights, in argparse's plain holder of values.
        with torch.serialization.safe_globals([argparse.Namespace]):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, ValueError, EOFError, BadZipFile) as error:
        raise AtsError(f"{path} cannot be read as weights: {explain(error)}") from None
    except (
        Exception
    ):  # torch raises its own unpickling error, and others for what is no file of torch's
        raise AtsError(
            f"{path} cannot be read: it is no state dict, or it holds more than tensors; save model.state_dict()"
        ) from None
    weights, note = _state_dict(found, path)
    if weights is None:
        raise AtsError(f"{path} holds no state dict; save model.state_dict()")
    return weights, note


def _parts(index: Path) -> dict[str, Tensor]:
    """The tensors of all files that an index names, as Hugging Face writes large networks."""
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted(set(places.values()))
        inside = all(Path(file).name == file for file in files)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise AtsError(
            f"{index} is no index of weights (a JSON object with weight_map): {explain(error)}"
        ) from None
    if not inside:
        raise AtsError(f"{index} names files outside its own folder")
    found = {}
    for file in files:
        found |= read_weights(index.parent / file)
    if missing := sorted(places.keys() - found.keys()):
        raise AtsError(f"{index}: {missing[0]!r} is in none of its {len(files)} files")
    return {name: found[name] for name in places}


def _of_numpy(array: np.ndarray, name: str) -> Tensor:
    """An array of an npz file as a tensor; ValueError for kinds that are no numbers of torch's."""
    found = as_tensor(array.copy())
    if not isinstance(found, Tensor):
        raise ValueError(
            f"{name!r} is of kind {array.dtype}, which are no numbers that torch knows; store float32"
        )
    return found.reshape(array.shape)  # a number alone has come back as a list of one


def _state_dict(found: object, path: Path) -> tuple[dict[str, Tensor] | None, str]:
    """The state dict within what a file holds, and a sentence where others are beside it."""
    if _is_state_dict(found):
        return found, ""
    if not isinstance(found, dict):
        return None, ""
    taken = next((name for name in NESTED if _is_state_dict(found.get(name))), None)
    if taken is None:
        return None, ""
    lightning = "averaging_state" in found or "current_model_state" in found
    others = [name for name in AVERAGES if _is_state_dict(found.get(name))]
    if lightning and taken == "state_dict":
        return found[taken], (
            f"The weights are those of {path.name} under 'state_dict', which with Lightning's weight averaging are the "
            "average; those in training are under 'current_model_state'."
        )
    if others:
        return found[taken], (
            f"The weights are those of {path.name} under {taken!r}, which were trained; the average of them under "
            f"{others[0]!r} was not taken, though timm, for one, would load it."
        )
    return found[taken], ""


def _is_state_dict(found: object) -> bool:
    return (
        isinstance(found, dict)
        and bool(found)
        and all(isinstance(value, Tensor) for value in found.values())
    )


def images_of(text: str, size: int | None, fit: str) -> tuple[Images, tuple[str, ...]]:
    """The images that a text names, and the names of their files where they have any.

    Args:
        text: a folder with a subfolder per class, "file.py:name" of a Dataset, a DataLoader or a
            function that gives one, or a known data set, of which the test images are taken.
        size: side in pixels of a folder's images; None: their own, where they are square and all
            alike.
        fit: how a folder's images become square, see `load_folder`.
    """
    choose("--fit", fit, FITS)
    if text in DATASETS:
        return load(text, "test"), ()
    if Path(text).is_dir():
        return folder_images(Path(text), size, fit)
    if ":" in text:
        return dataset_images(named(text, "--data"), text), ()
    raise AtsError(
        f"--data {text!r} is no folder and no data set; give a folder with a subfolder per class, file.py:name, or one "
        f"of {', '.join(DATASETS)}"
    )


def folder_images(folder: Path, size: int | None, fit: str) -> tuple[Images, tuple[str, ...]]:
    """All images of a folder with a subfolder per class, in the order of their names, and these
    names.
    """
    classes = class_files(folder)
    files = [file for members in classes.values() for file in members]
    if size is None:
        width, height = opened(files[0], lambda image: upright(image).size)
        if width != height or width > LARGEST_GUESSED:
            raise AtsError(
                f"{files[0]} has {width}×{height} pixels; say with --image-size at what side the network takes images"
            )
        size = width
    pixels = square_pixels(files, size, fit)
    labels = torch.tensor(
        [label for label, members in enumerate(classes.values()) for _ in members]
    )
    names = tuple(file.relative_to(folder).as_posix() for file in files)
    return Images(pixels, labels, tuple(classes), folder.resolve().name, "all"), names


def dataset_images(found: object, text: str) -> Images:
    """The images of a Dataset or DataLoader, or of a function that gives one.

    Raises:
        AtsError: it gives no pairs of image and label, or images outside [0, 1].
    """
    if callable(found) and not hasattr(found, "__getitem__") and not hasattr(found, "__iter__"):
        try:
            found = found()
        except Exception as error:
            raise AtsError(
                f"--data {text!r} failed when it was called: {type(error).__name__}: {explain(error)}"
            ) from None
    pictures = []
    labels = []
    tops = []
    for pair in _pairs(found, text):
        if len(pictures) >= MOST:
            break
        pictures.append(_pixels_of(pair[0], text, tops))
        labels.append(_label(pair[1], text))
    # Images of 16 bits are of one device: the range of all is that of the brightest.
    deep = [int(each.max()) for each in pictures if each.dtype == DEEP]
    white = white_of(max([*deep, *tops], default=0))
    if tops and white < 2**16 - 1:
        raise AtsError(f"--data {text!r}: the brightest image {few_bits(max([*deep, *tops]))}")
    pictures = [
        torch.from_numpy(of_depth(each.numpy(), white)) if each.dtype == DEEP else each
        for each in pictures
    ]
    if not pictures or len({tuple(picture.shape) for picture in pictures}) > 1:
        shapes = sorted({tuple(picture.shape) for picture in pictures})
        raise AtsError(
            f"--data {text!r} gives {len(pictures)} images of shapes {shapes}; they must be of one shape"
        )
    classes = getattr(getattr(found, "dataset", found), "classes", ())
    classes = tuple(map(str, classes if isinstance(classes, list | tuple) else ()))
    count = max(labels) + 1
    names = classes if len(classes) >= count else tuple(map(str, range(count)))
    return Images(torch.stack(pictures), torch.tensor(labels), names, text, "all")


def _label(label: object, text: str) -> int:
    try:
        number = operator.index(label)
    except (TypeError, RuntimeError):
        number = -1
    if not 0 <= number < MOST_CLASSES:
        shown = shorten(repr(label), 80, placeholder=" …")
        raise AtsError(
            f"--data {text!r}: label {shown} must be a whole number from 0 on, the number of the image's class"
        )
    return number


def _pairs(found: object, text: str) -> Iterable[tuple]:
    """Pairs of one image and one label; a DataLoader's batches are taken apart."""
    if isinstance(found, torch.utils.data.DataLoader):
        for number, batch in enumerate(_batches(found, text)):
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise AtsError(f"--data {text!r}: batches must be pairs of images and labels")
            try:
                pairs = list(zip(*batch, strict=True))
            except (TypeError, ValueError) as error:
                raise AtsError(f"--data {text!r}: batch {number}: {explain(error)}") from None
            yield from pairs
        return
    try:
        count = len(found)
    except Exception:
        raise AtsError(
            f"--data {text!r} is a {type(found).__name__}; give a Dataset or a DataLoader"
        ) from None
    for index in range(count):
        try:
            pair = found[index]
        except Exception as error:
            raise AtsError(
                f"--data {text!r}: item {index} failed: {type(error).__name__}: {explain(error)}"
            ) from None
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise AtsError(f"--data {text!r}: item {index} is no pair of an image and a label")
        yield tuple(pair)


def _batches(loader: torch.utils.data.DataLoader, text: str) -> Iterable[object]:
    """What a DataLoader gives; where it fails, the user's own error in one sentence."""
    try:
        yield from loader
    except Exception as error:
        raise AtsError(
            f"--data {text!r}: the DataLoader failed: {type(error).__name__}: {explain(error)}; give its Dataset"
        ) from None


DEEP = torch.int32  # kind of pixels of more than 8 bits, until their range is known


def _pixels_of(picture: object, text: str, tops: list[int]) -> Tensor:
    """(C, H, W) of a PIL image or a tensor: uint8, or `DEEP` of 16 bits.

    The brightest value of one with 16 bits per colour, of which Pillow keeps 8, goes into `tops`.
    """
    if isinstance(picture, Image.Image):
        if picture.mode in ("I", "F"):
            raise AtsError(
                f"--data {text!r}: a PIL image of mode {picture.mode} has 32 bits per pixel and no common range; give 8 "
                "or 16 bits, or a tensor in [0, 1]"
            )
        raw = upper_bytes(picture)
        try:
            if raw:
                tops.append(256 * brightest_byte(picture))
            if picture.mode.startswith("I;16"):
                return torch.from_numpy(np.asarray(picture).astype(np.int32))[None]
            picture = picture.convert("L" if picture.mode in GREY or raw.startswith("L") else "RGB")
        except Exception as error:  # files are read late, and Pillow raises many kinds
            raise AtsError(f"--data {text!r}: an image cannot be read: {explain(error)}") from None
        array = np.array(picture)
        return (
            torch.from_numpy(array if array.ndim == 3 else array[:, :, None])
            .permute(2, 0, 1)
            .contiguous()
        )
    picture = as_tensor(picture)
    if not is_tensor(picture) or picture.ndim != 3 or not picture.numel():
        raise AtsError(
            f"--data {text!r}: an image is {describe(picture)}; it must be a PIL image or a tensor (C, H, W)"
        )
    if picture.dtype == torch.uint8:
        return picture
    if picture.dtype == torch.uint16:
        return torch.from_numpy(picture.cpu().numpy().astype(np.int32))
    if picture.dtype in UNSIGNED or picture.is_complex():
        raise AtsError(f"--data {text!r}: an image is {describe(picture)}; give floats or uint8")
    picture = picture if picture.is_floating_point() else picture.double()
    low, high = (float(edge) for edge in picture.detach().aminmax())
    if not (low >= -0.01 and high <= 1.01):
        raise AtsError(
            f"--data {text!r}: an image goes from {low:.3g} to {high:.3g}; give images in [0, 1], and their "
            "normalization with --mean and --std"
        )
    return (255 * picture.clamp(0, 1)).round().byte()
