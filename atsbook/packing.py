"""What is kept of one request: numbers of each image, pictures, weights and other tensors; a table
of such rows.

A row of the table is a request. Its columns are the request's description (`kind`, `version`,
`config` as JSON), where and when it was made, one list of numbers per measure with an entry for
each image (`MEASURES`), `tensors`, a safetensors file of what has another shape, and `pictures`, a
lossless WebP of the reconstructions side by side.
"""

import dataclasses
import functools
import io
import json
import math
from collections.abc import Iterable, Sequence
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor

from atsbook.store import Artifact
from atslib.checkpoints import Tensors
from atslib.clients.prepare import to_images
from atslib.errors import AtsError

if TYPE_CHECKING:
    import pyarrow as pa

TENSOR_LIMIT = 1_200_000  # bytes of one request's tensors; the largest beyond it are left out
NETWORK_LIMIT = 9_000_000  # of a network's; the paper's, rounded to 16 bits, has 8.7 million
PICTURES = 16  # kept of a first draw, where a page does not judge by looking for every image
TRIALS = range(200, 300)  # attacks on images from one of these on are trials, see `few`
REMADE = ("target", "original")  # come again from the data and the request
NEVER_KEPT = (*REMADE, "reconstruction", "frames")  # the reconstructions as pictures
WEIGHTS = "model"  # first part of the names of a network's tensors

# Measures with one number per image, and their types. A tensor of another type, shape or name is
# kept as it is, in `tensors`.
MEASURES = {
    "psnr": "float32",
    "psnr_original": "float32",
    "psnr_before": "float32",
    "mse": "float32",
    "ssim": "float32",
    "cost": "float32",
    "floor": "float32",
    "rank": "int64",
    "rank_target": "int64",
    "rank_original": "int64",
    "rank_knowing": "int64",
    "labels": "int64",
    "stuck": "bool",
    "within": "bool",
}


def arrow() -> ModuleType:
    """pyarrow, which only who reads or writes evidence needs.

    Raises:
        AtsError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        needs = "the evidence in results/ needs pyarrow"
        raise AtsError(f"{needs}: python -m pip install 'atslib[evidence]'") from None
    return pyarrow


@functools.cache
def _columns() -> SimpleNamespace:
    """The columns of a table: `facts`, `measures` and, in their order, all of them as `schema`."""
    pa = arrow()
    facts = {
        "kind": pa.string(),
        "version": pa.int32(),
        "made": pa.string(),
        "seconds": pa.float64(),
        "device": pa.string(),
        "python": pa.string(),
        "torch": pa.string(),
        "sha256": pa.string(),  # of the whole artifact, before anything was left out
        "left_out": pa.list_(pa.string()),
        "pages": pa.list_(pa.string()),  # all that read it
        "network": pa.string(),  # the file that its weights are in, of a trained network
        "pictures_shape": pa.list_(pa.int32()),  # (B, C, H, W)
        "across": pa.int32(),  # pictures in a row of the sheet
        # Grey levels of 255 between two that the pictures tell apart: 1, or 3 in older ones.
        "level": pa.int32(),
    }
    measures = {name: pa.type_for_alias(kind) for name, kind in MEASURES.items()}
    schema = [
        ("key", pa.string()),
        ("config", pa.string()),
        *facts.items(),
        ("image", pa.list_(pa.int32())),  # number in the test set of each image that is measured
        *((name, pa.list_(kind)) for name, kind in measures.items()),
        ("tensors", pa.binary()),
        ("pictures", pa.binary()),
    ]
    return SimpleNamespace(facts=facts, measures=measures, schema=pa.schema(schema))


@dataclasses.dataclass(frozen=True)
class Row:
    """What is kept of a request, but for a network's weights.

    Attributes:
        key: the store's hash of the request.
        facts: `kind`, `version`, `config` and the facts of its making, with `left_out` and `pages`.
        measures: by name, one number per image.
        tensors: a safetensors file of all others; empty where there are none.
        pictures: a lossless WebP; empty where there is none.
    """

    key: str
    facts: dict
    measures: dict[str, np.ndarray]
    tensors: bytes = b""
    pictures: bytes = b""


def is_attack(kind: str) -> bool:
    """Attacks of other classes than gradient matching have kinds of their own, `attack-…`."""
    return kind.partition("-")[0] == "attack"


def packed(
    key: str, artifact: Artifact, *, pictures: int | None = PICTURES, without: Sequence[str] = ()
) -> tuple[Row, Tensors]:
    """What is kept of an artifact, and the weights of a network, which have a file of their own.

    Args:
        pictures: how many reconstructions are kept at most; None: all.
        without: first parts of names; these tensors are left out.
    """
    tensors = artifact.tensors
    facts = dict(artifact.facts)
    measures = measures_of(tensors)
    few = tensors.get("reconstruction", ())[:pictures]
    sheet = b""
    if len(few):
        across = math.ceil(math.sqrt(len(few)))
        sheet = picture(few, across)
        facts |= {"pictures_shape": list(few.shape), "across": across, "level": 1}
    never = {*measures, *NEVER_KEPT, *without}
    rest = {name: value for name, value in tensors.items() if name.split(".")[0] not in never}
    limit = NETWORK_LIMIT if facts["kind"] == "model" else TENSOR_LIMIT
    while sum(value.nbytes for value in rest.values()) > limit:
        sizes: dict[str, int] = {}
        for (
            name,
            value,
        ) in (
            rest.items()
        ):  # a network's tensors share the first part of their names, and go together
            first = name.split(".")[0]
            sizes[first] = sizes.get(first, 0) + value.nbytes
        largest = max(sizes, key=sizes.get)
        rest = {name: value for name, value in rest.items() if name.split(".")[0] != largest}
    kept = {*measures, *rest}
    if is_attack(facts["kind"]):
        kept.update(REMADE)
    if 0 < len(few) == len(tensors["reconstruction"]):
        kept.add("reconstruction")
    facts["left_out"] = sorted({name.split(".")[0] for name in tensors.keys() - kept})
    weights = {name: rest.pop(name) for name in list(rest) if name.split(".")[0] == WEIGHTS}
    return Row(key, facts, measures, serialized(rest), sheet), weights


def few(config: dict) -> int:
    """How many reconstructions are kept where all are not: none of a trial, and none of a further
    draw.
    """
    return PICTURES if config.get("first", 0) not in TRIALS and not config.get("seed", 0) else 0


def serialized(tensors: Tensors) -> bytes:
    """A safetensors file of these tensors; empty where there are none."""
    whole = {name: value.clone().contiguous() for name, value in tensors.items()}
    return safetensors.torch.save(whole) if whole else b""


def unpacked(kept: Row) -> Tensors:
    """The tensors of a request, without weights; of reconstructions those in the pictures, as
    rounded there.
    """
    tensors = safetensors.torch.load(kept.tensors) if kept.tensors else {}
    for name, values in kept.measures.items():
        tensors[name] = torch.from_numpy(values.copy())
    if kept.pictures:
        tensors["reconstruction"] = from_picture(
            kept.pictures, kept.facts["pictures_shape"], kept.facts["across"]
        )
    return tensors


def measures_of(tensors: Tensors) -> dict[str, np.ndarray]:
    """Which tensors have one number per image, and are of the type of their column; all have the
    same length.
    """
    count = next(
        (len(tensors[name]) for name in MEASURES if name in tensors and tensors[name].ndim == 1),
        None,
    )
    found = {}
    for name, kind in MEASURES.items():
        value = tensors.get(name)
        if value is not None and value.shape == (count,):
            array = value.numpy()
            if array.dtype == kind:
                found[name] = array
    return found


def to_table(rows: Iterable[Row]) -> "pa.Table":
    """The table of these requests, ordered by their description, which is what compresses best."""
    pa = arrow()
    own = _columns()
    rows = sorted(rows, key=lambda row: (row.facts["kind"], _text(row.facts["config"]), row.key))
    columns: dict[str, object] = {
        "key": pa.array([row.key for row in rows], pa.string()),
        "config": pa.array([_text(row.facts["config"]) for row in rows], pa.string()),
        "tensors": pa.array([row.tensors or None for row in rows], pa.binary()),
        "pictures": pa.array([row.pictures or None for row in rows], pa.binary()),
        "image": _lists([_numbers(row) for row in rows], pa.int32()),
    }
    for name, kind in own.facts.items():
        columns[name] = pa.array([row.facts.get(name) for row in rows], kind)
    for name, kind in own.measures.items():
        columns[name] = _lists([row.measures.get(name) for row in rows], kind)
    return pa.table([columns[name] for name in own.schema.names], schema=own.schema)


def from_table(table: "pa.Table") -> list[Row]:
    """The requests of a table that `to_table` made."""
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    plain = {name: columns[name].to_pylist() for name in _columns().facts}
    keys = columns["key"].to_pylist()
    configs = columns["config"].to_pylist()
    tensors = columns["tensors"].to_pylist()
    pictures = columns["pictures"].to_pylist()
    rows = []
    for i, key in enumerate(keys):
        facts = {name: values[i] for name, values in plain.items() if values[i] is not None}
        facts["config"] = json.loads(configs[i])
        measures = {}
        for name in MEASURES:
            if (values := columns[name][i].values) is not None:
                measures[name] = values.to_numpy(zero_copy_only=False)
        rows.append(Row(key, facts, measures, tensors[i] or b"", pictures[i] or b""))
    return rows


def _numbers(row: Row) -> np.ndarray | None:
    """The numbers of the images that a row's measures are of, in the test set."""
    if not row.measures:
        return None
    count = len(next(iter(row.measures.values())))
    config = row.facts["config"]
    first = config.get("first", 0) if isinstance(config, dict) else 0
    return np.arange(first, first + count, dtype=np.int32)


def _lists(rows: Sequence[np.ndarray | None], kind: "pa.DataType") -> "pa.Array":
    """A column of lists; NaN stays a number, and a row without values is null."""
    pa = arrow()
    lengths = [0 if row is None else len(row) for row in rows]
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    parts = [row for row in rows if row is not None]
    values = np.concatenate(parts) if parts else np.empty(0, kind.to_pandas_dtype())
    missing = pa.array([row is None for row in rows], pa.bool_())
    return pa.ListArray.from_arrays(
        offsets, pa.array(values, kind, from_pandas=False), mask=missing
    )


def _text(config: object) -> str:
    return json.dumps(config, sort_keys=True)


def as_kept(images: Tensor) -> Tensor:
    """Images in [0, 1] as they come back from the pictures, uint8."""
    return images.nan_to_num().clamp(0, 1).mul(255).round().byte()


def picture(images: Tensor, across: int) -> bytes:
    """(B, C, H, W) in [0, 1] → a lossless WebP of 8 bits, `across` of them in a row."""
    blank = images.new_zeros(-len(images) % across, *images.shape[1:])
    pixels = as_kept(torch.cat([images, blank]))
    rows = pixels.unflatten(0, (-1, across)).permute(0, 3, 1, 4, 2)  # (rows, H, across, W, C)
    whole = rows.flatten(2, 3).flatten(0, 1)
    buffer = io.BytesIO()
    Image.fromarray(whole.expand(-1, -1, 3).numpy()).save(
        buffer, "webp", lossless=True, quality=100, method=6
    )
    return buffer.getvalue()


def from_picture(data: bytes, shape: Sequence[int], across: int) -> Tensor:
    """The images (B, C, H, W) in [0, 1] of a `picture`."""
    count, channels, height, width = shape
    pixels = torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert("RGB")))[..., :channels]
    grid = pixels.view(-1, height, across, width, channels).permute(0, 2, 4, 1, 3)
    return to_images(grid.reshape(-1, channels, height, width)[:count])
