"""Images with labels: packed files, official downloads, own folders, and `shapes`, which needs no
file at all.
"""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from atslib.data.images import KINDS, Images, scaled, to_images
from atslib.data.official import download as download_official
from atslib.data.official import pack_copy
from atslib.data.packed import Folder, file_names, read
from atslib.data.shapes import draw_shapes
from atslib.errors import as_path, choose

Channels = tuple[float, ...]
# Sets that are others scaled: name → which, and the side in pixels. The authors' code does it to
# Fashion-MNIST.
SCALED = {"fmnist-32": ("fmnist", 32), "shapes-grey-32": ("shapes-grey", 32)}
# All names. One of your own is an entry with a function from "train" or "test" to its `Images`;
# processes started by `python -m atsbook run` know it only where the module that adds it is
# imported there too.
DATASETS: dict[str, Callable[[str], Images] | None] = dict.fromkeys((*KINDS, *SCALED))

# (mean, standard deviation) of each channel, for pixels in [0, 1].
NORMALIZATION: dict[str, tuple[Channels, Channels]] = {
    # The authors' inversefed/consts.py.
    "cifar10": ((0.4914672, 0.4822617, 0.4467701), (0.2470322, 0.2434851, 0.2615879)),
    # The authors' inversefed/consts.py. Its mean differs from the images' own in the fourth digit.
    "cifar100": ((0.5071598, 0.4866936, 0.4412019), (0.2673343, 0.2564385, 0.2761505)),
    # MNIST's constants, which the authors use for Fashion-MNIST too (its own are 0.2860 and
    # 0.3530).
    "fmnist": ((0.1307,), (0.3081,)),
    # ImageNet's constants, as in the replication.
    "tinyimagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    # Measured on their 5,000 training images.
    "shapes": ((0.467, 0.464, 0.465), (0.273, 0.273, 0.271)),
    "shapes-grey": ((0.464,), (0.271,)),
}
NORMALIZATION |= {name: NORMALIZATION[whole] for name, (whole, _) in SCALED.items()}


def load(name: str, split: str, root: Folder | None = None, *, download: bool = True) -> Images:
    """The images of one split, from a packed file, or else downloaded and packed for the next time.

    Decoded pixels are kept in `$ATS_CACHE`, else `~/.cache/atslib/decoded`, if that can be written.

    Args:
        name: one of `DATASETS`. "shapes" (32×32 RGB) and "shapes-grey" (28×28) are drawn, not read;
            "fmnist-32" is Fashion-MNIST scaled to 32×32, bilinearly.
        split: "train" or "test"; "test" of Tiny ImageNet is the official "val", a name accepted
            too.
        root: folder of the packed files; else `$ATS_DATA`, else `~/.cache/atslib`.
        download: whether the network may be used where the packed file is missing.
    Returns:
        Images. Of Tiny ImageNet's training set it is the packed tenth if only that is there; of
        CIFAR-10 the images that the file marks as not `exact` are left out. `note` says so in both
        cases.
    Raises:
        AtsError: an unknown name or split, a damaged file (which is left as it is), or no data.
    """
    split = _split(name, split)
    folder = _root(root)
    if own := DATASETS[name]:
        return own(split)
    if name in SCALED:
        whole, size = SCALED[name]
        return scaled(load(whole, split, root, download=download), size, name)
    if is_drawn(name):
        return draw_shapes(name, split)
    path = _find(name, split, folder)
    if path is None:
        path = folder / file_names(name, split)[0]
        download_official(name, path, allowed=download)
    return read(path, name, split)


def pack_official(name: str, source: Folder, root: Folder | None = None) -> list[Path]:
    """Pack an official copy that is already on disk; see `official.pack_copy`."""
    return pack_copy(name, as_path("source", source), _root(root))


def available(name: str, split: str, root: Folder | None = None) -> bool:
    """Whether `load(name, split, root)` needs no network; arguments and errors as in `load`."""
    split = _split(name, split)
    own = DATASETS[name]
    name = SCALED.get(name, (name, 0))[0]
    return own is not None or is_drawn(name) or _find(name, split, _root(root)) is not None


def is_drawn(name: str) -> bool:
    """Whether the data set is drawn: it needs no file, and stands in for one that cannot be had."""
    name = SCALED.get(name, (name, 0))[0]
    return name in KINDS and not KINDS[name].official


def normalization(name: str) -> tuple[Channels, Channels]:
    """The (mean, standard deviation) of each channel that models of this data set normalise with.

    Those of a data set of your own are measured on its training images unless `NORMALIZATION` has
    them.
    """
    if DATASETS.get(name) and name not in NORMALIZATION:
        return measured_normalization(load(name, "train"))
    choose("normalization of data set", name, tuple(NORMALIZATION))
    return NORMALIZATION[name]


def measured_normalization(images: Images) -> tuple[Channels, Channels]:
    """(mean, standard deviation) of each channel of these very images, in [0, 1]; no deviation is
    below 1/255.
    """
    rows = images.pixels.transpose(0, 1).flatten(1)
    deviation, mean = zip(
        *(torch.std_mean(to_images(row, torch.float64), correction=0) for row in rows), strict=True
    )
    return tuple(map(float, mean)), tuple(max(1 / 255, float(d)) for d in deviation)


def _split(name: str, split: str) -> str:
    choose("data set", name, DATASETS)
    choose(
        f"{name} split",
        split,
        ("train", "test", "val") if name == "tinyimagenet" else ("train", "test"),
    )
    return "test" if split == "val" else split


def _root(root: Folder | None) -> Path:
    default = os.environ.get("ATS_DATA") or "~/.cache/atslib"
    return as_path("root", default if root in (None, "") else root).expanduser()


def _find(name: str, split: str, folder: Path) -> Path | None:
    return next(
        (folder / file for file in file_names(name, split) if os.path.exists(folder / file)), None
    )
