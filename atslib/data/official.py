"""Official downloads: both splits of a data set, packed once for all later loads."""

import hashlib
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
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
        source: Stanford's zip of Tiny ImageNet; else a folder as torchvision lays it out
            (`cifar-100-python` and the like inside), whose files torchvision checks.
    Raises:
        AtsError: no such copy, or a damaged one.
    """
    choose("data set", name, tuple(n for n, kind in KINDS.items() if kind.official))
    try:
        if not source.exists():
            raise FileNotFoundError(f"{source} does not exist")
        if source.is_dir() == (name == "tinyimagenet"):
            raise AtsError(
                f"give {'the zip from Stanford' if source.is_dir() else 'the folder that torchvision made'}"
            )
        read = (
            _read_tinyimagenet
            if name == "tinyimagenet"
            else partial(_fetch_torchvision, name, download=False)
        )
        return _pack_splits(name, read(source), root)
    except _FAILURES as error:
        raise AtsError(f"{name}: {source} cannot be packed: {explain(error)}") from error


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
    """Read the archive without extracting it; labels index the sorted WordNet ids."""
    top = "tiny-imagenet-200/"
    splits = {}
    with ZipFile(archive) as members:
        for member in members.namelist():
            place = PureWindowsPath(member)  # which knows drives, and both slashes
            if place.anchor or ".." in place.parts:
                raise AtsError(f"the archive is refused: its member {member!r} points outside it")

        def table(file: str) -> list[list[str]]:
            return [line.split("\t") for line in members.read(top + file).decode().splitlines()]

        wnids = sorted(row[0] for row in table("wnids.txt"))
        words = dict(table("words.txt"))
        train = [
            m for m in members.namelist() if m.startswith(top + "train/") and m.endswith(".JPEG")
        ]
        val = {f"{top}val/images/{row[0]}": row[1] for row in table("val/val_annotations.txt")}
        for split, wnid_of in (("train", {m: m.split("/")[2] for m in train}), ("test", val)):
            files = sorted(wnid_of, key=lambda m: int(m[:-5].rpartition("_")[2]))  # ..._7.JPEG
            if split == "train":
                files.sort(key=wnid_of.get)  # stable: by class, then by number
            splits[split] = {
                "pixels": [members.read(file) for file in files],
                "labels": [wnids.index(wnid_of[file]) for file in files],
                "class_names": [words[wnid] for wnid in wnids],
                "extra": {
                    "wnids": np.array(wnids),
                    "names": np.array([m.rpartition("/")[2] for m in files]),
                },
            }
    return splits
