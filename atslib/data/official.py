"""Official downloads and copies: both splits of a data set, packed once for all later loads."""

import gzip
import hashlib
import socket
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path, PureWindowsPath
from urllib.request import urlopen
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from tqdm import tqdm

from atslib.data.images import KINDS, explain
from atslib.data.packed import file_names, pack
from atslib.errors import AtsError, choose

TINYIMAGENET_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
# What the whole official splits have, for copies: archives that were packed anew have another md5.
TINYIMAGENET_COUNTS = {"train": 100_000, "test": 10_000}
# The four files of Fashion-MNIST as they are unpacked, of which torchvision checks the names alone.
FASHION_MD5 = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
# The folder that torchvision makes of the other sets, and the files in it.
FOLDERS = {
    "cifar100": ("cifar-100-python", ("train", "test", "meta")),
    "cifar10": (
        "cifar-10-batches-py",
        (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"),
    ),
}
DOWNLOAD_TIMEOUT = 20  # seconds a silent server may take

_FAILURES = (
    OSError,
    RuntimeError,
    ImportError,
    EOFError,
    LookupError,
    ValueError,
    HTTPException,
    BadZipFile,
    zlib.error,
)


def download(name: str, path: Path, *, allowed: bool) -> None:
    """Make `path`, and the other split's file if that is missing too, from the official archive."""
    reason = "download=False"
    cause = None
    folder = path.parent
    new = not folder.exists()
    try:
        if allowed:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as kept, _impatient():
                fetch = _fetch_tinyimagenet if name == "tinyimagenet" else _fetch_torchvision
                _pack_splits(name, fetch(name, Path(kept)), folder)
            return
    except _FAILURES as error:
        reason = explain(error)
        cause = error
        if new and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()  # nothing came: a mistyped place is not left behind
    official = KINDS[name].official
    where = official if "/" in official else f"torchvision's {official}"
    raise AtsError(
        f"{name}: there is no file {path} and the official download ({where}) was not made "
        f"({reason}); point root= or $ATS_DATA at a folder that has the file, make it from a copy with "
        '`atslib.data.load.pack_official`, or use load("shapes", ...), which needs no file'
    ) from cause


def pack_copy(name: str, source: Path, root: Path) -> list[Path]:
    """Pack an official copy on disk into `root`, without the network; the files made.

    Args:
        name: a data set with an official source.
        source: Stanford's zip of Tiny ImageNet, or the folder in it; of the others the folder that
            torchvision made, or the one in it that has the files. Those of Fashion-MNIST may be
            compressed (.gz).
    Raises:
        AtsError: no such copy, or one that is damaged or not whole.
    """
    choose("data set", name, tuple(n for n, kind in KINDS.items() if kind.official))
    try:
        if not source.exists():
            raise FileNotFoundError(f"{source} does not exist")
        if name == "tinyimagenet":
            splits = _copied_tinyimagenet(source)
        elif not source.is_dir():
            raise AtsError("give the folder that torchvision made, or the one in it with the files")
        else:
            splits = _copied_fashion(source) if name == "fmnist" else _copied_cifar(name, source)
        return _pack_splits(name, splits, root)
    except _FAILURES as error:
        raise AtsError(f"{name}: {source} cannot be packed: {explain(error)}") from error


def _copied_fashion(source: Path) -> dict[str, dict]:
    """Arguments of `pack` for each split, from the four files, compressed or not, with their md5."""
    contents = {}
    for name, md5 in FASHION_MD5.items():
        places = [
            folder / (name + end)
            for folder in (source / "FashionMNIST" / "raw", source / "raw", source)
            for end in ("", ".gz")
        ]
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            raise AtsError(
                f"there is no {name} (or {name}.gz) in it, in raw or in FashionMNIST/raw, where torchvision puts it"
            )
        content = file.read_bytes()
        content = gzip.decompress(content) if file.suffix == ".gz" else content
        _check_md5(file.name, content, md5)
        contents[name] = content
    return {
        split: {
            "pixels": torch.frombuffer(
                bytearray(contents[f"{part}-images-idx3-ubyte"]), dtype=torch.uint8, offset=16
            ).view(-1, 1, 28, 28),
            "labels": torch.frombuffer(
                bytearray(contents[f"{part}-labels-idx1-ubyte"]), dtype=torch.uint8, offset=8
            ).long(),
            "class_names": list(FASHION_CLASSES),
        }
        for split, part in (("train", "train"), ("test", "t10k"))
    }


def _copied_cifar(name: str, source: Path) -> dict[str, dict]:
    """Arguments of `pack` for each split; torchvision checks the md5 of each file."""
    folder, files = FOLDERS[name]
    inner = next(
        (place for place in (source / folder, source) if (place / files[0]).is_file()), None
    )
    if inner is None:
        raise AtsError(f"there is no {folder} in it with {', '.join(files)}, as torchvision has it")
    if missing := [file for file in files if not (inner / file).is_file()]:
        raise AtsError(f"{inner.name} has no {missing[0]}; it must hold {', '.join(files)}")
    with tempfile.TemporaryDirectory() as kept:  # torchvision knows the files by the folder's name
        (Path(kept) / folder).symlink_to(inner.resolve(), target_is_directory=True)
        try:
            return _fetch_torchvision(name, Path(kept), download=False)
        except RuntimeError as error:  # which says neither what is wrong nor in which file
            _check_cifar(name, inner)
            raise AtsError(str(error)) from None


def _check_cifar(name: str, folder: Path) -> None:
    """Raise `AtsError` for the first file whose md5 is not the one that torchvision knows."""
    import torchvision

    known = getattr(torchvision.datasets, KINDS[name].official)
    files = dict([*known.train_list, *known.test_list])
    for file, md5 in (files | {known.meta["filename"]: known.meta["md5"]}).items():
        _check_md5(file, (folder / file).read_bytes(), md5)


def _check_md5(file: str, content: bytes, md5: str) -> None:
    """Raise `AtsError`, which names the file, where its content is not the official one."""
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != md5:
        raise AtsError(f"{file} is damaged: its md5 is {found}, that of the official file {md5}")


def _copied_tinyimagenet(source: Path) -> dict[str, dict]:
    """Arguments of `pack` for each split, of a zip or a folder that holds the whole set."""
    if source.is_dir():
        top = source if (source / "wnids.txt").is_file() else source / "tiny-imagenet-200"
        if not (top / "wnids.txt").is_file():
            raise AtsError(
                "there is no tiny-imagenet-200 in it with wnids.txt, words.txt, train and val; give that folder, or the "
                "zip from Stanford"
            )
        names = [
            f"tiny-imagenet-200/{file.relative_to(top).as_posix()}"
            for part in ("train", "val")
            for file in (top / part).rglob("*")
        ]
        splits = _tinyimagenet(
            names, lambda name: (top / name.removeprefix("tiny-imagenet-200/")).read_bytes()
        )
    else:
        splits = _read_tinyimagenet(source)
    for split, count in TINYIMAGENET_COUNTS.items():
        if len(splits[split]["pixels"]) != count:
            raise AtsError(
                f"it has {len(splits[split]['pixels']):,} images in {'val' if split == 'test' else split}, and the "
                f"official set {count:,}: it is not whole"
            )
    return splits


def _pack_splits(name: str, splits: dict[str, dict], root: Path) -> list[Path]:
    """Pack the splits that are not there yet."""
    targets = {split: root / file_names(name, split)[0] for split in splits}
    return [
        pack(**splits[split], path=path) for split, path in targets.items() if not path.exists()
    ]


@contextmanager
def _impatient() -> Iterator[None]:
    """Give up on a silent server: torchvision's downloads take no timeout of their own."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _fetch_torchvision(name: str, folder: Path, *, download: bool = True) -> dict[str, dict]:
    """Arguments of `pack` for each split; torchvision checks the archive's md5."""
    import torchvision

    source = getattr(torchvision.datasets, KINDS[name].official)
    splits = {}
    for split in ("train", "test"):
        images = source(folder, train=split == "train", download=download)
        pixels = torch.as_tensor(images.data)
        pixels = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
        labels = torch.as_tensor(images.targets)
        splits[split] = {"pixels": pixels, "labels": labels, "class_names": list(images.classes)}
    return splits


def _fetch_tinyimagenet(name: str, folder: Path) -> dict[str, dict]:
    """Arguments of `pack` for each split: Stanford's archive with its md5, JPEG files as they are."""
    archive = folder / "archive.zip"
    md5 = hashlib.md5(usedforsecurity=False)
    with (
        urlopen(KINDS[name].official, timeout=DOWNLOAD_TIMEOUT) as answer,
        archive.open("wb") as file,
    ):
        total = int(answer.headers.get("Content-Length") or 0) or None
        with tqdm(total=total, unit="B", unit_scale=True, desc=name) as bar:
            while block := answer.read(1 << 20):
                md5.update(block)
                bar.update(file.write(block))
    if md5.hexdigest() != TINYIMAGENET_MD5:
        raise AtsError(f"the archive has md5 {md5.hexdigest()}, not {TINYIMAGENET_MD5}")
    return _read_tinyimagenet(archive)


def _read_tinyimagenet(archive: Path) -> dict[str, dict]:
    """Read the archive without extracting it."""
    with ZipFile(archive) as members:
        for member in members.namelist():
            place = PureWindowsPath(member)  # which knows drives, and both slashes
            if place.anchor or ".." in place.parts:
                raise AtsError(f"the archive is refused: its member {member!r} points outside it")
        return _tinyimagenet(members.namelist(), members.read)


def _tinyimagenet(names: list[str], read: Callable[[str], bytes]) -> dict[str, dict]:
    """Arguments of `pack` for each split; labels index the sorted WordNet ids.

    Args:
        names: of the files, from "tiny-imagenet-200/" on.
        read: what is in one.
    """
    top = "tiny-imagenet-200/"
    splits = {}

    def table(file: str) -> list[list[str]]:
        return [line.split("\t") for line in read(top + file).decode().splitlines()]

    wnids = sorted(row[0] for row in table("wnids.txt"))
    words = dict(table("words.txt"))
    train = [name for name in names if name.startswith(top + "train/") and name.endswith(".JPEG")]
    val = {f"{top}val/images/{row[0]}": row[1] for row in table("val/val_annotations.txt")}
    for split, wnid_of in (("train", {m: m.split("/")[2] for m in train}), ("test", val)):
        files = sorted(wnid_of, key=lambda m: int(m[:-5].rpartition("_")[2]))  # ..._7.JPEG
        if split == "train":
            files.sort(key=wnid_of.get)  # stable: by class, then by number
        splits[split] = {
            "pixels": [read(file) for file in files],
            "labels": [wnids.index(wnid_of[file]) for file in files],
            "class_names": [words[wnid] for wnid in wnids],
            "extra": {
                "wnids": np.array(wnids),
                "names": np.array([m.rpartition("/")[2] for m in files]),
            },
        }
    return splits
