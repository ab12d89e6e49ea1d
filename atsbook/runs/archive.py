"""The archive of evidence: what the repository keeps of every finished unit of work, and reading it
back.

One line of `index.jsonl` per unit, sorted: the facts of its making in plain text, its files with
their SHA-256, and what was left out. Beside it, under the unit's hash: `.csv`, one row per image;
`.webp`, the first 16 reconstructions of a first draw; `.safetensors`, networks, curves and other
tensors, or `.safetensors.xz`, the same compressed. Numbers come back exactly, pictures in 8 bits of
which every third grey level is used.
"""

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Iterable
from pathlib import Path

import safetensors.torch

from atsbook.runs.attacks import AttackUnit, targets
from atsbook.runs.batches import BatchUnit, LabelUnit, chosen
from atsbook.runs.collaborative import FederationUnit
from atsbook.runs.gradients import FeatureUnit, StagesUnit
from atsbook.runs.networks import ModelUnit, Unit
from atsbook.runs.packing import is_attack, packed, unpacked
from atsbook.runs.scoring import ScoreUnit, SearchUnit
from atsbook.runs.store import Artifact, Store
from atsbook.runs.sweep import SweepScores, SweepUnit
from atslib.errors import AtsError
from atslib.files import write_atomically

LIMIT = 60_000_000  # bytes, all files together
QUICK, HEAVY = 60, 250_000  # seconds, bytes; see `_brief`
_ON_BATCHES = (LabelUnit, BatchUnit)
_ON_GRADIENTS = (StagesUnit, FeatureUnit)
_ON_ALL = (SweepUnit, SweepScores)
_ALL = (
    ModelUnit,
    AttackUnit,
    ScoreUnit,
    SearchUnit,
    *_ON_BATCHES,
    *_ON_GRADIENTS,
    *_ON_ALL,
    FederationUnit,
)
UNITS = {unit.kind: unit for unit in _ALL}


class Archive:
    """The folder `results/units`.

    Its entries, by the store's hash, are lines of the index as dicts.
    """

    def __init__(self, root: Path):
        self.root = Path(root)
        self.index = Path(root) / "index.jsonl"

    def entries(self) -> dict[str, dict]:
        """Every unit's line of the index by its hash; none where there is no archive yet.

        Raises:
            AtsError: the index is damaged.
        """
        if not self.index.exists():
            return {}
        try:
            return {
                _key(line): line for line in map(json.loads, self.index.read_text().splitlines())
            }
        except (ValueError, KeyError, TypeError):
            raise AtsError(
                f"{self.index} is damaged: `git checkout {self.root}` brings it back"
            ) from None

    def write(self, store: Store, *, embedded: bool = False) -> int:
        """Take in every whole artifact of the store that is not here yet; how many.

        Weights are left out of a network that no other unit uses, such as one trained for its
        accuracy alone; of one on the way of its training; and of a large one that is made again
        within a minute, whose attacks keep no pictures either.

        Args:
            embedded: also what was computed on the embedded `shapes`, which anyone makes again in
                seconds.
        Raises:
            AtsError: a damaged artifact, or more than `LIMIT` bytes; nothing has been written then.
        """
        entries = self.entries()
        files = {}
        if faults := store.verify():
            raise AtsError(f"the store is damaged, nothing was archived: {'; '.join(faults)}")
        new = 0
        there = dict(store.entries())
        used = {part for facts in (*entries.values(), *there.values()) for part in _networks(facts)}
        brief = {
            _text(facts["config"])
            for path, facts in there.items()
            if _brief(facts, path.stat().st_size)
        }
        for path, facts in there.items():
            line = entries.get(path.stem, {})
            known = line.get("sha256") == facts["sha256"] or facts.get("archived")
            lean = facts["kind"] == "model" and (
                _text(facts["config"]) not in used
                or _on_its_way(facts)
                or _brief(facts, path.stat().st_size)
            )
            if known and not (lean and line and "model" not in line["left_out"]):
                continue
            if '"dataset": "shapes' in _text(facts["config"]) and not embedded:
                continue
            tensors = safetensors.torch.load_file(path)
            without = ["model"] * lean + ["reconstruction"] * bool(brief & _networks(facts))
            line, parts = packed(Artifact(tensors, line if known else facts), without=without)
            entries[path.stem] = line | {
                "files": {name: _sha256(data) for name, data in parts.items()}
            }
            files |= {
                self._file(path.parent.name, path.stem, name): data for name, data in parts.items()
            }
            new += 1
        self._replace(entries, files)
        return new

    def _replace(self, entries: dict[str, dict], files: dict[Path, bytes]) -> None:
        """Write these files and the index of these entries; what no entry has any more goes."""
        kept, before = (set(self._files(lines.values())) for lines in (entries, self.entries()))
        old = sum(file.stat().st_size for file in kept - files.keys() if file.exists())
        lines = "".join(
            f"{line}\n"
            for line in sorted(json.dumps(line, sort_keys=True) for line in entries.values())
        )
        if (total := old + sum(map(len, files.values())) + len(lines.encode())) > LIMIT:
            raise AtsError(
                f"the archive would have {total / 1e6:.1f} MB; at most {LIMIT / 1e6:.0f} MB are allowed"
            )
        for file, data in files.items():
            write_atomically(file, lambda partial, data=data: partial.write_bytes(data))
        write_atomically(self.index, lambda partial: partial.write_text(lines))
        for file in before - kept:  # of a unit that has less now, or is compressed
            file.unlink(missing_ok=True)

    def verify(self) -> list[str]:
        """One line for each damaged, missing or unknown file; empty if the archive is whole."""
        entries = self.entries()
        faults = [
            f
            for key, line in entries.items()
            for name in line["files"]
            if (f := self._fault(line, key, name))
        ]
        known = {*self._files(entries.values()), self.index}
        strange = sorted(
            file for file in self.root.rglob("*") if file.is_file() and file not in known
        )
        return faults + [f"{file.relative_to(self.root)}: not in the index" for file in strange]

    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.stat().st_size for file in self.root.rglob("*") if file.is_file())

    def read(self, key: str) -> Artifact:
        """What is kept of a unit, under the names that its artifact has in a store.

        An attack's `target` and `original` are made again from the data; its `reconstruction`, if
        kept, has the first 16 images.

        Raises:
            AtsError: a damaged or missing file.
        """
        return self._read(key, self.entries()[key])

    def _read(self, key: str, line: dict) -> Artifact:
        parts = {}
        for name in line["files"]:
            if fault := self._fault(line, key, name):
                raise AtsError(
                    f"the archive is damaged: {fault}; `git checkout {self.root}` brings it back"
                )
            parts[name] = self._file(line["kind"], key, name).read_bytes()
        tensors = unpacked(parts, line)
        if is_attack(line["kind"]) and (unit := unit_of(line)) is not None:
            tensors["original"], tensors["target"], _ = targets(unit)
        if line["kind"] == BatchUnit.kind and (unit := unit_of(line)) is not None:
            tensors["target"] = chosen(unit.model.dataset, unit.batches)[0]
        return Artifact(tensors, line)

    def restore(self, store: Store, *, kinds: Iterable[str] | None = None) -> int:
        """Put what is kept of every unit, of these kinds or all, into a store that lacks it; how
        many.
        """
        new = 0
        for key, line in self.entries().items():
            path = store.root / line["kind"] / f"{key}.safetensors"
            if path.with_suffix(".json").exists() or (
                kinds is not None and line["kind"] not in kinds
            ):
                continue
            tensors = self._read(key, line).tensors
            data = safetensors.torch.save(
                {name: value.clone().contiguous() for name, value in tensors.items()}
            )
            write_atomically(path, lambda partial, data=data: partial.write_bytes(data))
            facts = json.dumps(
                line | {"sha256": _sha256(data), "archived": True}, indent=1, sort_keys=True
            )
            write_atomically(
                path.with_suffix(".json"), lambda partial, facts=facts: partial.write_text(facts)
            )
            new += 1
        return new

    def _file(self, kind: str, key: str, name: str) -> Path:
        return self.root / kind / f"{key}.{name}"

    def _files(self, lines: Iterable[dict]) -> list[Path]:
        return [
            self._file(line["kind"], _key(line), name) for line in lines for name in line["files"]
        ]

    def _fault(self, line: dict, key: str, name: str) -> str | None:
        file = self._file(line["kind"], key, name)
        if not file.exists():
            return f"{file.relative_to(self.root)} is missing"
        whole = _sha256(file.read_bytes()) == line["files"][name]
        return (
            None if whole else f"{file.relative_to(self.root)}: its bytes do not match their hash"
        )


def unit_of(line: dict) -> Unit | None:
    """The unit of work that made an entry, from its facts.

    None where its kind is no unit, or was written by a version of this library that knew other
    fields.
    """
    kind = "attack" if is_attack(line["kind"]) else line["kind"]
    if kind not in UNITS:
        return None
    try:
        unit = _rebuilt(UNITS[kind], line["config"], line["kind"].partition("-")[2])
    except (TypeError, AtsError):
        return None
    return (
        unit
        if Store("").path(unit.kind, unit, version=line["version"]).stem == _key(line)
        else None
    )


def _rebuilt(kind: type, value: dict, named: str = "") -> object:
    """A frozen dataclass from its form as JSON: of several types that `named`, else the first that
    has the fields.
    """
    hints = typing.get_type_hints(kind)

    def field(hint: object, value: object) -> object:
        if isinstance(value, dict):
            options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
            fields = {
                kind: kind.__dataclass_fields__.keys()
                for kind in options
                if dataclasses.is_dataclass(kind)
            }
            fitting = [
                kind
                for kind, names in fields.items()
                if kind.__name__ == named or value.keys() <= names
            ]
            return _rebuilt(min(fitting or options, key=lambda kind: kind.__name__ != named), value)
        each = (*typing.get_args(hint), None)[0]  # of tuple[Rung, ...] the Rung
        return tuple(field(each, item) for item in value) if isinstance(value, list) else value

    return kind(**{name: field(hints.get(name), item) for name, item in value.items()})


def _on_its_way(network: dict) -> bool:
    """Whether these facts are of a network before the end of its training."""
    return network["config"].get("step", 0) > 0


def _brief(facts: dict, size: int) -> bool:
    """Whether these facts are of a large network that is trained to its end within a minute."""
    return (
        facts["kind"] == "model"
        and not _on_its_way(facts)
        and facts["seconds"] <= QUICK
        and size > HEAVY
    )


def _key(line: dict) -> str:
    """The hash under which a store keeps the artifact of these facts; it is made of them, so it
    cannot be another's.
    """
    text = json.dumps({name: line[name] for name in ("kind", "version", "config")}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _text(config: object) -> str:
    return json.dumps(config, sort_keys=True)


def _networks(facts: object) -> set[str]:
    """The configs, as text, of all networks that a unit uses, from its facts."""
    if isinstance(facts, dict):
        own = {_text(facts["model"])} if isinstance(facts.get("model"), dict) else set()
        return own.union(*map(_networks, facts.values()))
    return set().union(*map(_networks, facts)) if isinstance(facts, list) else set()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
