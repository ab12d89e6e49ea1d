"""What is kept of one unit: its numbers as a table, its pictures as a sheet, the rest as tensors,
and back again.
"""

import csv
import io
import lzma
from collections.abc import Sequence

import numpy as np
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor

from atsbook.runs.store import Artifact
from atslib.checkpoints import Tensors
from atslib.clients.prepare import to_images

FILE_LIMIT = 1_200_000  # bytes of one unit's tensors; the largest beyond it are left out
SMALLER = 0.9  # tensors are compressed where less than this share is left
PICTURES, ACROSS = 16, 4  # on a sheet, in a row of it
LEVEL = 3  # grey levels of 255 between two that a sheet tells apart: a quarter less to keep
TRIALS = 200  # attacks on images from there on are trials, see `_few`
REMADE = ("target", "original")  # come again from the data and the unit
NEVER_KEPT = (*REMADE, "reconstruction", "frames")  # the reconstructions as a sheet
TENSORS, COMPRESSED, TABLE, SHEET = (
    "safetensors",
    "safetensors.xz",
    "csv",
    "webp",
)  # endings of files


def is_attack(kind: str) -> bool:
    """Attacks of other classes than gradient matching have kinds of their own, `attack-…`."""
    return kind.partition("-")[0] == "attack"


def packed(artifact: Artifact, without: Sequence[str] = ()) -> tuple[dict, dict[str, bytes]]:
    """An artifact's line of the index but for the hashes, and its files by their ending.

    Args:
        without: first parts of names; these tensors are left out, and with `reconstruction` the
            sheet.
    """
    tensors = artifact.tensors
    parts = {}
    line = dict(artifact.facts)
    columns = _columns(tensors, line["config"])
    if columns:
        parts[TABLE] = _table(tensors, columns, line["config"].get("first", 0))
        line["columns"] = {
            name: [str(tensors[name].numpy().dtype), titles] for name, titles in columns.items()
        }
    count = 0 if "reconstruction" in without else _few(line["config"])
    if len(few := tensors.get("reconstruction", ())[:count]):
        parts[SHEET] = _sheet(few)
        line["pictures"] = list(few.shape)
    never = {*columns, *NEVER_KEPT, *without}
    rest = {name: value for name, value in tensors.items() if name.split(".")[0] not in never}
    while sum(value.nbytes for value in rest.values()) > FILE_LIMIT:
        sizes: dict[str, int] = {}
        for (
            name,
            value,
        ) in (
            rest.items()
        ):  # a network's tensors share the first part of their names, and go together
            sizes[name.split(".")[0]] = sizes.get(name.split(".")[0], 0) + value.nbytes
        largest = max(sizes, key=sizes.get)
        rest = {name: value for name, value in rest.items() if name.split(".")[0] != largest}
    if rest:
        data = safetensors.torch.save(rest)
        small = lzma.compress(_planes(data))
        parts |= {COMPRESSED: small} if len(small) < SMALLER * len(data) else {TENSORS: data}
    kept = {*columns, *rest, *(REMADE if is_attack(line["kind"]) else ())}
    if 0 < len(tensors.get("reconstruction", ())) == len(few):
        kept.add("reconstruction")
    line["left_out"] = sorted({name.split(".")[0] for name in tensors.keys() - kept})
    return line, parts


def _few(config: dict) -> int:
    """How many reconstructions are kept: none of a trial, and none of a further draw, which no page
    shows.
    """
    return PICTURES * (config.get("first", 0) < TRIALS and not config.get("seed", 0))


def unpacked(parts: dict[str, bytes], line: dict) -> Tensors:
    """The tensors in a unit's files by their ending; of reconstructions those on the sheet, as
    rounded there.
    """
    data = (
        _from_planes(lzma.decompress(parts[COMPRESSED]))
        if COMPRESSED in parts
        else parts.get(TENSORS)
    )
    tensors = safetensors.torch.load(data) if data else {}
    tensors |= _from_table(parts[TABLE], line["columns"]) if TABLE in parts else {}
    if SHEET in parts:
        tensors["reconstruction"] = _from_sheet(parts[SHEET], line["pictures"])
    return tensors


def _planes(data: bytes) -> bytes:
    """The first bytes of all groups of four, then all second ones, and so on: exponents of float32
    come together.
    """
    whole = len(data) // 4 * 4
    return np.frombuffer(data[:whole], np.uint8).reshape(-1, 4).T.tobytes() + data[whole:]


def _from_planes(data: bytes) -> bytes:
    whole = len(data) // 4 * 4
    return np.frombuffer(data[:whole], np.uint8).reshape(4, -1).T.tobytes() + data[whole:]


def _columns(tensors: Tensors, config: object) -> dict[str, list[str]]:
    """Which tensors have one number per image, or per policy and image, and the titles of their
    columns.
    """
    images = next((tensors[name].shape for name in ("psnr", "cost") if name in tensors), None)
    one_each = (
        images is not None and len(images) == 1
    )  # of attacks in several rounds there are more
    columns = {
        n: [n]
        for n, v in tensors.items()
        if one_each and v.shape == images and not n.startswith("trace")
    }
    if "policies" in config and "scores" in tensors and tensors["scores"].ndim == 2:
        columns["scores"] = [f"score {policy or 'none'}" for policy in config["policies"]]
    return columns


def _table(tensors: Tensors, columns: dict[str, list[str]], first: int) -> bytes:
    """CSV with one row per image; each number as short as it can be and still come back exactly."""
    titles = ["image", *(title for group in columns.values() for title in group)]
    values = [
        row.numpy().astype(str)
        for name in columns
        for row in tensors[name].view(len(columns[name]), -1)
    ]
    text = io.StringIO()
    rows = [(first + i, *row) for i, row in enumerate(zip(*values, strict=True))]
    csv.writer(text, lineterminator="\n").writerows([titles, *rows])
    return text.getvalue().encode()


def _from_table(data: bytes, columns: dict[str, list]) -> Tensors:
    rows = list(csv.reader(io.StringIO(data.decode())))
    by_title = dict(zip(rows[0], zip(*rows[1:], strict=True), strict=True))
    tensors = {}
    for name, (kind, titles) in columns.items():
        values = np.array([by_title[title] for title in titles])
        values = values == "True" if kind == "bool" else values.astype(kind)
        tensors[name] = torch.from_numpy(values[0] if titles == [name] else values)
    return tensors


def as_kept(images: Tensor) -> Tensor:
    """Images in [0, 1] as they come back from a sheet, uint8: every third grey level from black to
    white.
    """
    return images.nan_to_num().clamp(0, 1).mul(255 / LEVEL).round().mul(LEVEL).byte()


def _sheet(images: Tensor) -> bytes:
    """(B, C, H, W) in [0, 1] → a lossless WebP, four in a row, of every third grey level from black
    to white.
    """
    blank = images.new_zeros(-len(images) % ACROSS, *images.shape[1:])
    pixels = as_kept(torch.cat([images, blank]))
    rows = (
        pixels.unflatten(0, (-1, ACROSS)).permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
    )  # (rows H, 4 W, C)
    buffer = io.BytesIO()
    Image.fromarray(rows.expand(-1, -1, 3).numpy()).save(
        buffer, "webp", lossless=True, quality=100, method=6
    )
    return buffer.getvalue()


def _from_sheet(data: bytes, shape: list[int]) -> Tensor:
    count, channels, height, width = shape
    pixels = torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert("RGB")))[..., :channels]
    grid = pixels.view(-1, height, ACROSS, width, channels).permute(0, 2, 4, 1, 3)
    return to_images(grid.reshape(-1, channels, height, width)[:count])
