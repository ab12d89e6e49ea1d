"""The archive of evidence: what the repository keeps of every finished unit of work, and reading it back.

One line of `index.jsonl` per unit, sorted: the facts of its making in plain text, its files with their SHA-256, and
what was left out. Beside it, under the unit's hash: `.csv`, one row per image; `.webp`, the first 16 reconstructions;
`.safetensors`, networks, curves and other tensors. Numbers come back exactly, pictures rounded to 8 bits.
"""

import csv
import dataclasses
import functools
import hashlib
import io
import json
import types
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor

from atslib.clients.prepare import to_images
from atslib.errors import AtsError
from atslib.report.units.batches import BatchUnit, LabelUnit, chosen
from atslib.report.units.gradients import FeatureUnit, StagesUnit
from atslib.report.units.networks import ModelUnit, Unit
from atslib.report.units.scoring import ScoreUnit, SearchUnit
from atslib.report.units.sweep import SweepScores, SweepUnit
from atslib.report.units.units import AttackUnit, targets
from atslib.store import Artifact, Store, Tensors, write_atomically

LIMIT = 60_000_000  # bytes, all files together
FILE_LIMIT = 1_200_000  # bytes of one unit's tensors; the largest beyond it are left out
FIRST_STEPS = 100  # of a training: networks on their way before it are kept without their weights
PICTURES, ACROSS, TRIALS = 16, 4, 200  # on a sheet, in a row of it; attacks on images from 200 on are trials, with none
REMADE = ("target", "original")  # come again from the data and the unit
NEVER_KEPT = (*REMADE, "reconstruction", "frames")  # the reconstructions as a sheet
_SMALL = (LabelUnit, BatchUnit, StagesUnit, FeatureUnit, SweepUnit, SweepScores)
_text = functools.partial(json.dumps, sort_keys=True)
UNITS = {unit.kind: unit for unit in (ModelUnit, AttackUnit, ScoreUnit, SearchUnit, *_SMALL)}


class Archive:
    """The folder `results/units`. Its entries, by the store's hash, are lines of the index as dicts."""

    def __init__(self, root: Path):
        self.root, self.index = Path(root), Path(root) / "index.jsonl"

    def entries(self) -> dict[str, dict]:
        """Every unit's line of the index by its hash; none where there is no archive yet.

        Raises:
            AtsError: the index is damaged.
        """
        if not self.index.exists():
            return {}
        try:
            return {_key(line): line for line in map(json.loads, self.index.read_text().splitlines())}
        except (ValueError, KeyError, TypeError):
            raise AtsError(f"{self.index} is damaged: `git checkout {self.root}` brings it back") from None

    def write(self, store: Store, *, embedded: bool = False) -> int:
        """Take in every whole artifact of the store that is not here yet; how many.

        Weights are left out of a network that no other unit uses, such as one trained for its accuracy alone, and of
        one in the first steps of its training, which anyone makes again in minutes.

        Args:
            embedded: also what was computed on the embedded `shapes`, which anyone makes again in seconds.
        Raises:
            AtsError: a damaged artifact, or more than `LIMIT` bytes; nothing has been written then.
        """
        entries, files = self.entries(), {}
        if faults := store.verify():
            raise AtsError(f"the store is damaged, nothing was archived: {'; '.join(faults)}")
        new, there = 0, dict(store.entries())
        used = {part for facts in (*entries.values(), *there.values()) for part in _networks(facts)}
        for path, facts in there.items():
            line = entries.get(path.stem, {})
            known = line.get("sha256") == facts["sha256"] or facts.get("archived")
            lean = facts["kind"] == "model" and (
                _text(facts["config"]) not in used or 0 < facts["config"].get("step", 0) < FIRST_STEPS
            )
            if known and not (lean and line and "model" not in line["left_out"]):
                continue
            if '"dataset": "shapes' in _text(facts["config"]) and not embedded:
                continue
            tensors = safetensors.torch.load_file(path)
            line, parts = _packed(Artifact(tensors, line if known else facts), without=("model",) if lean else ())
            entries[path.stem] = line | {"files": {name: _sha256(data) for name, data in parts.items()}}
            files |= {self._file(path.parent.name, path.stem, name): data for name, data in parts.items()}
            new += 1
        old = sum(file.stat().st_size for file in self._files(entries.values()) if file.exists() and file not in files)
        if (total := old + sum(map(len, files.values()))) > LIMIT:
            raise AtsError(f"the archive would have {total / 1e6:.1f} MB; at most {LIMIT / 1e6:.0f} MB are allowed")
        for file, data in files.items():
            write_atomically(file, lambda partial, data=data: partial.write_bytes(data))
        lines = sorted(json.dumps(line, sort_keys=True) for line in entries.values())
        write_atomically(self.index, lambda partial: partial.write_text("".join(f"{line}\n" for line in lines)))
        return new

    def verify(self) -> list[str]:
        """One line for each damaged, missing or unknown file; empty if the archive is whole."""
        entries = self.entries()
        faults = [f for key, line in entries.items() for name in line["files"] if (f := self._fault(line, key, name))]
        known = {*self._files(entries.values()), self.index}
        strange = sorted(file for file in self.root.rglob("*") if file.is_file() and file not in known)
        return faults + [f"{file.relative_to(self.root)}: not in the index" for file in strange]

    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.stat().st_size for file in self.root.rglob("*") if file.is_file())

    def read(self, key: str) -> Artifact:
        """What is kept of a unit, under the names that its artifact has in a store.

        An attack's `target` and `original` are made again from the data; its `reconstruction` has the first 16 images.

        Raises:
            AtsError: a damaged or missing file.
        """
        return self._read(key, self.entries()[key])

    def _read(self, key: str, line: dict) -> Artifact:
        parts = {}
        for name in line["files"]:
            if fault := self._fault(line, key, name):
                raise AtsError(f"the archive is damaged: {fault}; `git checkout {self.root}` brings it back")
            parts[name] = self._file(line["kind"], key, name).read_bytes()
        tensors = safetensors.torch.load(parts["safetensors"]) if "safetensors" in parts else {}
        tensors |= _from_table(parts["csv"], line["columns"]) if "csv" in parts else {}
        if "webp" in parts:
            tensors["reconstruction"] = _from_sheet(parts["webp"], line["pictures"])
        if _is_attack(line["kind"]) and (unit := unit_of(line)) is not None:
            tensors["original"], tensors["target"], _ = targets(unit)
        if line["kind"] == BatchUnit.kind and (unit := unit_of(line)) is not None:
            tensors["target"] = chosen(unit.model.dataset, unit.batches)[0]
        return Artifact(tensors, line)

    def restore(self, store: Store, *, kinds: Iterable[str] | None = None) -> int:
        """Put what is kept of every unit, of these kinds or all, into a store that lacks it; how many."""
        new = 0
        for key, line in self.entries().items():
            path = store.root / line["kind"] / f"{key}.safetensors"
            if path.with_suffix(".json").exists() or (kinds is not None and line["kind"] not in kinds):
                continue
            tensors = self._read(key, line).tensors
            data = safetensors.torch.save({name: value.clone().contiguous() for name, value in tensors.items()})
            write_atomically(path, lambda partial, data=data: partial.write_bytes(data))
            facts = json.dumps(line | {"sha256": _sha256(data), "archived": True}, indent=1, sort_keys=True)
            write_atomically(path.with_suffix(".json"), lambda partial, facts=facts: partial.write_text(facts))
            new += 1
        return new

    def _file(self, kind: str, key: str, name: str) -> Path:
        return self.root / kind / f"{key}.{name}"

    def _files(self, lines: Iterable[dict]) -> list[Path]:
        return [self._file(line["kind"], _key(line), name) for line in lines for name in line["files"]]

    def _fault(self, line: dict, key: str, name: str) -> str | None:
        file = self._file(line["kind"], key, name)
        if not file.exists():
            return f"{file.relative_to(self.root)} is missing"
        whole = _sha256(file.read_bytes()) == line["files"][name]
        return None if whole else f"{file.relative_to(self.root)}: its bytes do not match their hash"


def unit_of(line: dict) -> Unit | None:
    """The unit of work that made an entry, from its facts.

    None where its kind is no unit, or was written by a version of this library that knew other fields.
    """
    kind = "attack" if _is_attack(line["kind"]) else line["kind"]
    if kind not in UNITS:
        return None
    try:
        unit = _rebuilt(UNITS[kind], line["config"], line["kind"].partition("-")[2])
    except (TypeError, AtsError):
        return None
    return unit if Store("").path(unit.kind, unit, version=line["version"]).stem == _key(line) else None


def _rebuilt(kind: type, value: dict, named: str = "") -> object:
    """A frozen dataclass from its form as JSON: of several types that `named`, else the first that has the fields."""
    hints = typing.get_type_hints(kind)

    def field(hint: object, value: object) -> object:
        if isinstance(value, dict):
            options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
            fields = {kind: kind.__dataclass_fields__.keys() for kind in options if dataclasses.is_dataclass(kind)}
            fitting = [kind for kind, names in fields.items() if kind.__name__ == named or value.keys() <= names]
            return _rebuilt(min(fitting or options, key=lambda kind: kind.__name__ != named), value)
        each = (*typing.get_args(hint), None)[0]  # of tuple[Rung, ...] the Rung
        return tuple(field(each, item) for item in value) if isinstance(value, list) else value

    return kind(**{name: field(hints.get(name), item) for name, item in value.items()})


def _is_attack(kind: str) -> bool:
    """Attacks of other classes than gradient matching have kinds of their own, `attack-…`."""
    return kind.partition("-")[0] == "attack"


def _key(line: dict) -> str:
    """The hash under which a store keeps the artifact of these facts; it is made of them, so it cannot be another's."""
    text = json.dumps({name: line[name] for name in ("kind", "version", "config")}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _networks(facts: object) -> set[str]:
    """The configs, as text, of all networks that a unit uses, from its facts."""
    if isinstance(facts, dict):
        own = {_text(facts["model"])} if isinstance(facts.get("model"), dict) else set()
        return own.union(*map(_networks, facts.values()))
    return set().union(*map(_networks, facts)) if isinstance(facts, list) else set()


def _packed(artifact: Artifact, without: Sequence[str] = ()) -> tuple[dict, dict[str, bytes]]:
    """An artifact's line of the index but for the hashes, and its files by their ending.

    Args:
        without: first parts of names; these tensors are left out.
    """
    tensors, parts, line = artifact.tensors, {}, dict(artifact.facts)
    columns = _columns(tensors, line["config"])
    if columns:
        parts["csv"] = _table(tensors, columns, line["config"].get("first", 0))
        line["columns"] = {name: [str(tensors[name].numpy().dtype), titles] for name, titles in columns.items()}
    if len(few := tensors.get("reconstruction", ())[: PICTURES * (line["config"].get("first", 0) < TRIALS)]):
        parts["webp"], line["pictures"] = _sheet(few), list(few.shape)
    never = {*columns, *NEVER_KEPT, *without}
    rest = {name: value for name, value in tensors.items() if name.split(".")[0] not in never}
    while sum(value.nbytes for value in rest.values()) > FILE_LIMIT:
        sizes: dict[str, int] = {}
        for name, value in rest.items():  # a network's tensors share the first part of their names, and go together
            sizes[name.split(".")[0]] = sizes.get(name.split(".")[0], 0) + value.nbytes
        largest = max(sizes, key=sizes.get)
        rest = {name: value for name, value in rest.items() if name.split(".")[0] != largest}
    if rest:
        parts["safetensors"] = safetensors.torch.save(rest)
    kept = {*columns, *rest, *(REMADE if _is_attack(line["kind"]) else ())}
    if 0 < len(tensors.get("reconstruction", ())) == len(few):
        kept.add("reconstruction")
    line["left_out"] = sorted({name.split(".")[0] for name in tensors.keys() - kept})
    return line, parts


def _columns(tensors: Tensors, config: object) -> dict[str, list[str]]:
    """Which tensors have one number per image, or per policy and image, and the titles of their columns."""
    images = next((tensors[name].shape for name in ("psnr", "cost") if name in tensors), None)
    columns = {n: [n] for n, v in tensors.items() if v.shape == images and not n.startswith("trace")}
    if "policies" in config and "scores" in tensors and tensors["scores"].ndim == 2:
        columns["scores"] = [f"score {policy or 'none'}" for policy in config["policies"]]
    return columns


def _table(tensors: Tensors, columns: dict[str, list[str]], first: int) -> bytes:
    """CSV with one row per image; each number as short as it can be and still come back exactly."""
    titles = ["image", *(title for group in columns.values() for title in group)]
    values = [row.numpy().astype(str) for name in columns for row in tensors[name].view(len(columns[name]), -1)]
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


def _sheet(images: Tensor) -> bytes:
    """(B, C, H, W) in [0, 1] → a lossless WebP, four in a row."""
    blank = images.new_zeros(-len(images) % ACROSS, *images.shape[1:])
    pixels = torch.cat([images, blank]).nan_to_num().clamp(0, 1).mul(255).round().byte()
    rows = pixels.unflatten(0, (-1, ACROSS)).permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)  # (rows H, 4 W, C)
    buffer = io.BytesIO()
    Image.fromarray(rows.expand(-1, -1, 3).numpy()).save(buffer, "webp", lossless=True, quality=100, method=6)
    return buffer.getvalue()


def _from_sheet(data: bytes, shape: list[int]) -> Tensor:
    count, channels, height, width = shape
    pixels = torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert("RGB")))[..., :channels]
    grid = pixels.view(-1, height, ACROSS, width, channels).permute(0, 2, 4, 1, 3)
    return to_images(grid.reshape(-1, channels, height, width)[:count])


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
