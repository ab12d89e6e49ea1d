"""The archive of evidence: what the repository keeps of every finished request, and reading it
back.

Each page of the book has one table, `results/<page>/evidence.parquet`, with a row per request, see
`packing`; what several pages read lies with the first of them. The weights of trained networks lie
in `results/networks`, a safetensors file for each data set and model, in which the names of a
network's tensors begin with its key. `results/evidence.sha256` has the hash of every file, as
`sha256sum -c` reads them. Numbers come back exactly, pictures in 8 bits.
"""

import dataclasses
import functools
import hashlib
import json
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import safetensors.torch

from atsbook.experiment import AttackRequest, OutcomeRequest
from atsbook.integrity import sealed
from atsbook.kept import Kept
from atsbook.networks import ModelRequest
from atsbook.packing import (
    TRIALS,
    Row,
    arrow,
    few,
    from_table,
    is_attack,
    packed,
    serialized,
    to_table,
    unpacked,
)
from atsbook.requests.batches import BatchOutcomes, BatchRequest, LabelRequest, chosen
from atsbook.requests.collaborative import FederationOutcomes, FederationRequest
from atsbook.requests.gradients import FeatureRequest, StagesRequest
from atsbook.requests.outcomes import RecognizedRequest
from atsbook.requests.scoring import ScoreRequest, SearchRequest
from atsbook.requests.sweep import SweepOutcomes, SweepRequest, SweepScores
from atsbook.store import Artifact, Store
from atslib.checkpoints import Tensors
from atslib.errors import AtsError
from atslib.files import write_atomically

LIMIT = 150_000_000  # bytes, all files together: with them a shallow clone has less than 200 MB
QUICK = 60  # seconds; see `_brief`
HEAVY = 250_000  # bytes
OTHER = "other"  # the folder of what no page reads
# Pages that judge an attack by whether it singles out an image: they look at each reconstruction.
IDENTIFYING = (
    "regimes",
    "claim1_privacy",
    "claim1_network",
    "claim1_defenses",
    "claim2_generality",
    "claim2_search",
    "claim3_transfer",
    "claim5_semantics",
    "claim6_transformations",
    "ext1_tinyimagenet",
    "ext3_which_images_leak",
    "ext5_adaptive",
    "ext9_collaborative",
    "ext10_all_policies",
)
# Pages that show the curves behind scores, those of the variant `fixed`.
SHOWING_CURVES = ("claim7_correlation",)
# Pages that hand a network to their reader, and so need its weights.
HANDING_OUT = ("explorer",)
COSTLY = 7_200  # seconds of a training whose weights are kept before anything has attacked them
_ON_BATCHES = (LabelRequest, BatchRequest, BatchOutcomes)
_ON_GRADIENTS = (StagesRequest, FeatureRequest)
_ON_ALL = (SweepRequest, SweepOutcomes, SweepScores)
_ALL = (
    ModelRequest,
    AttackRequest,
    ScoreRequest,
    SearchRequest,
    *_ON_BATCHES,
    *_ON_GRADIENTS,
    *_ON_ALL,
    FederationRequest,
    FederationOutcomes,
    OutcomeRequest,
    RecognizedRequest,
)
REQUESTS = {request.kind: request for request in _ALL}


class Archive:
    """The evidence in the folder `results`: one table per page, one file per network's data set and
    model, and a manifest of hashes.
    """

    def __init__(self, root: Path):
        self.root = Path(root)
        self.manifest = self.root / "evidence.sha256"
        self._read_tables: dict[Path, tuple[tuple[int, int], dict[str, Row]]] = {}

    def entries(self) -> dict[str, dict]:
        """The facts of every request by the store's hash; none where there is no archive yet.

        Beside `kind`, `version`, `config` and the facts of its making: `left_out`, what was not
        kept of it, and `pages`, which read it: it lies in the table of the first.

        Raises:
            AtsError: a table or the manifest is damaged.
        """
        return {key: row.facts for rows in self._pages().values() for key, row in rows.items()}

    def write(
        self,
        store: Store,
        *,
        embedded: bool = False,
        pages: Mapping[str, Sequence[str]] | None = None,
    ) -> int:
        """Take in every whole artifact of the store that is not here yet; how many.

        Weights are left out of a network that no other request uses, such as one trained for its
        accuracy alone; of one on the way of its training; and of a large one that is made again
        within a minute, unless a page hands it to its reader. The curves behind scores are kept
        where a page shows them.

        Args:
            embedded: also what was computed on the embedded `shapes`, which anyone makes again in
                seconds.
            pages: the pages that read a request, by its key, in the order of the book. What is
                derived from a request, and so has its description, goes where that goes; what no
                page reads to the folder `other`.
        Raises:
            AtsError: a damaged artifact, or more than `LIMIT` bytes; nothing has been written then.
        """
        if faults := store.verify():
            raise AtsError(f"the store is damaged, nothing was archived: {'; '.join(faults)}")
        tables = {page: dict(rows) for page, rows in self._pages().items()}
        place = {key: page for page, rows in tables.items() for key in rows}
        there = dict(store.entries())
        known_facts = [row.facts for rows in tables.values() for row in rows.values()]
        readers = _readers(pages or {}, [*known_facts, *there.values()])
        used = {part for facts in (*known_facts, *there.values()) for part in _networks(facts)}
        changed = set()
        weights = {}
        new = 0
        for path, facts in there.items():
            key = path.stem
            page = place.get(key)
            before = tables[page][key].facts if page else {}
            reading = list(dict.fromkeys([*before.get("pages", ()), *readers.get(key, ())]))
            all_pictures = (
                any(reader in IDENTIFYING for reader in reading)
                and facts["config"].get("first", 0) not in TRIALS
            )
            unchanged = before.get("sha256") == facts["sha256"]
            handed_out = any(reader in HANDING_OUT for reader in reading)
            without_weights = facts["kind"] == "model" and (
                (_text(facts["config"]) not in used and facts["seconds"] < COSTLY)
                or _on_its_way(facts)
                or (_brief(facts, path.stat().st_size) and not handed_out)
            )
            incomplete = all_pictures and "reconstruction" in before.get("left_out", ())
            incomplete |= (
                handed_out and not without_weights and "model" in before.get("left_out", ())
            )
            archived = facts.get("archived") or (unchanged and not incomplete)
            if archived and not (without_weights and before and "model" not in before["left_out"]):
                continue
            if '"dataset": "shapes' in _text(facts["config"]) and not embedded:
                continue
            page = page or (reading or [OTHER])[0]
            count = None if all_pictures else few(facts["config"])
            artifact = Artifact(safetensors.torch.load_file(path), before if archived else facts)
            without = ["model"] * without_weights + ["curves"] * _unseen(facts, reading)
            row, own = packed(key, artifact, pictures=count, without=without)
            row.facts["pages"] = reading
            row.facts.pop("network", None)
            if own:
                row.facts["network"] = network_file(row.facts)
                weights[key] = own
            tables.setdefault(page, {})[key] = row
            changed.add(page)
            new += 1
        if new:
            self.replace({page: tables[page] for page in changed}, weights)
        return new

    def replace(
        self, tables: Mapping[str, Mapping[str, Row]], weights: Mapping[str, Tensors]
    ) -> None:
        """Write the tables of these pages anew, these networks' weights, and the manifest.

        What is not used any more goes.

        Args:
            tables: by page, its rows by key.
            weights: by key.
        Raises:
            AtsError: it would be more than `LIMIT` bytes; nothing has been written then.
        """
        parquet = arrow().parquet
        after = {**self._pages(), **tables}
        networks = self._networks_anew(after, weights)
        hashes = self._hashes()
        partials: dict[str, Path] = {}
        self.root.mkdir(parents=True, exist_ok=True)
        try:
            for page, rows in tables.items():
                name = f"{page}/evidence.parquet"
                partials[name] = self.root / f"{page}.parquet.partial"
                # Hardly a value comes twice, so dictionaries would only add to the size.
                parquet.write_table(
                    to_table(rows.values()),
                    partials[name],
                    compression="zstd",
                    compression_level=19,
                    use_dictionary=False,
                )
            for name, tensors in networks.items():
                if tensors is not None:
                    partials[name] = self.root / f"{Path(name).name}.partial"
                    partials[name].write_bytes(serialized(tensors))
            kept = {f"{page}/evidence.parquet" for page in after} | networks.keys()
            old = sum((self.root / name).stat().st_size for name in kept - partials.keys())
            total = old + sum(partial.stat().st_size for partial in partials.values())
            if total > LIMIT:
                allowed = f"at most {LIMIT / 1e6:.0f} MB are allowed"
                raise AtsError(f"the archive would have {total / 1e6:.1f} MB; {allowed}")
            hashes |= {name: _sha256(partial.read_bytes()) for name, partial in partials.items()}
            for name, partial in partials.items():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                partial.replace(self.root / name)
        finally:
            for partial in partials.values():
                partial.unlink(missing_ok=True)
        lines = "".join(f"{hashes[name]}  {name}\n" for name in sorted(kept))
        write_atomically(self.manifest, lambda partial: partial.write_text(lines))
        for name in hashes.keys() - kept:
            (self.root / name).unlink(missing_ok=True)

    def _networks_anew(
        self, tables: Mapping[str, Mapping[str, Row]], weights: Mapping[str, Tensors]
    ) -> dict[str, Tensors | None]:
        """The file of every network in these tables, by its name with its folder: what is in it
        now, or None where it stays as it is.
        """
        members: dict[str, list[str]] = {}
        for rows in tables.values():
            for key, row in rows.items():
                if "network" in row.facts:
                    members.setdefault(f"networks/{row.facts['network']}", []).append(key)
        anew: dict[str, Tensors | None] = {}
        for name, keys in members.items():
            before = self._weights(name) if name in self._hashes() else {}
            if before.keys() == set(keys) and not weights.keys() & set(keys):
                anew[name] = None
                continue
            whole = before | {key: weights[key] for key in keys if key in weights}
            anew[name] = {
                f"{key}.{part}": value for key in keys for part, value in whole[key].items()
            }
        return anew

    def _weights(self, name: str) -> dict[str, Tensors]:
        """The tensors of each network in a file, by its key."""
        self._check(name)
        found: dict[str, Tensors] = {}
        for whole, value in safetensors.torch.load_file(self.root / name).items():
            key, _, part = whole.partition(".")
            found.setdefault(key, {})[part] = value
        return found

    def verify(self) -> list[str]:
        """One line for each damaged, missing or unknown file; empty if the archive is whole.

        Raises:
            AtsError: the manifest is damaged.
        """
        hashes = self._hashes()
        faults = [fault for name in hashes if (fault := self._fault(name))]
        there = [*self.root.glob("*/evidence.parquet"), *self.root.glob("networks/*")]
        strange = {file.relative_to(self.root).as_posix() for file in there} - hashes.keys()
        return faults + [f"{name}: not in {self.manifest.name}" for name in sorted(strange)]

    def size(self) -> int:
        """Bytes of all files, the manifest's among them."""
        files = [self.root / name for name in self._hashes()]
        return sum(file.stat().st_size for file in (*files, self.manifest) if file.exists())

    def read(self, key: str) -> Artifact:
        """What is kept of a request, under the names that its artifact has in a store.

        An attack's `target` and `original` are made again from the data; its `reconstruction`, if
        kept, may have the first images only.

        Raises:
            AtsError: a damaged or missing file.
            KeyError: the archive does not have it.
        """
        for rows in self._pages().values():
            if key in rows:
                return self._artifact(rows[key])
        raise KeyError(key)

    def _artifact(self, row: Row) -> Artifact:
        facts = row.facts
        tensors = unpacked(row)
        if "network" in facts:
            tensors |= self._weights(f"networks/{facts['network']}")[row.key]
        if is_attack(facts["kind"]) and (request := request_of(facts)) is not None:
            clients = request.clients()
            tensors |= {"original": clients.photographs, "target": clients.used()}
        if facts["kind"] == BatchRequest.kind and (request := request_of(facts)) is not None:
            tensors["target"] = chosen(request.model.dataset, request.batches)[0]
        return Artifact(tensors, facts)

    def restore(
        self,
        store: Store,
        *,
        kinds: Iterable[str] | None = None,
        pages: Iterable[str] | None = None,
    ) -> int:
        """Put what is kept of every request into a store that lacks it; how many.

        Args:
            kinds: requests of these kinds alone.
            pages: what these pages read, and no more.
        """
        new = 0
        for rows in self._pages().values():
            for key, row in rows.items():
                if kinds is not None and row.facts["kind"] not in kinds:
                    continue
                if pages is not None and not set(pages) & set(row.facts["pages"]):
                    continue
                new += self._put(key, row, store)
        return new

    def forget(self, store: Store, *, pages: Iterable[str] | None = None) -> int:
        """Take out of a store what was restored and is not whole, so that it is computed whole; how
        many.

        Args:
            pages: what these pages read, and no more.
        """
        entries = self.entries()
        gone = 0
        for path, facts in list(store.entries()):
            line = entries.get(path.stem)
            if line is None or not facts.get("archived") or not line["left_out"]:
                continue
            if pages is not None and not set(pages) & set(line["pages"]):
                continue
            path.with_suffix(".json").unlink()
            path.unlink()
            gone += 1
        return gone

    def _put(self, key: str, row: Row, store: Store) -> bool:
        path = store.root / row.facts["kind"] / f"{key}.safetensors"
        if path.with_suffix(".json").exists():
            return False
        tensors = self._artifact(row).tensors
        data = serialized(tensors)
        write_atomically(path, lambda partial: partial.write_bytes(data))
        facts = json.dumps(
            sealed(row.facts | {"sha256": _sha256(data), "archived": True}),
            indent=1,
            sort_keys=True,
        )
        write_atomically(path.with_suffix(".json"), lambda partial: partial.write_text(facts))
        return True

    def _hashes(self) -> dict[str, str]:
        """The hash of every file by its name, from the manifest."""
        if not self.manifest.exists():
            return {}
        lines = self.manifest.read_bytes().decode(errors="replace").splitlines(keepends=True)
        found = [
            re.fullmatch(r"([0-9a-f]{64})  ([\w.+-]+/[\w.+-]+)\n", line, re.ASCII) for line in lines
        ]
        if not all(found):
            raise AtsError(f"{self.manifest} is damaged: {self._cure()}")
        return {match[2]: match[1] for match in found}

    def _pages(self) -> dict[str, dict[str, Row]]:
        """The rows of every page by key; each table is read once, and again when its file has
        changed.
        """
        found = {}
        for name in self._hashes():
            page, _, file = name.partition("/")
            if file == "evidence.parquet":
                found[page] = self._rows(name)
        return found

    def _rows(self, name: str) -> dict[str, Row]:
        file = self.root / name
        if not file.exists():
            self._check(name)
        about = file.stat()
        stamp = (about.st_mtime_ns, about.st_size)
        if file not in self._read_tables or self._read_tables[file][0] != stamp:
            self._check(name)
            rows = {row.key: row for row in from_table(arrow().parquet.read_table(file))}
            self._read_tables[file] = (stamp, rows)
        return self._read_tables[file][1]

    def _check(self, name: str) -> None:
        if fault := self._fault(name):
            raise AtsError(f"the archive is damaged: {fault}; {self._cure()}")

    def _cure(self) -> str:
        return f"`git checkout {self.root}` brings it back"

    def _fault(self, name: str) -> str | None:
        file = self.root / name
        if not file.exists():
            return f"{name} is missing"
        whole = _sha256(file.read_bytes()) == self._hashes().get(name)
        return None if whole else f"{name}: its bytes do not match their hash"


def _unseen(facts: dict, reading: Sequence[str]) -> bool:
    """Whether no page shows the curves behind these scores, if they are scores."""
    if facts["kind"] != ScoreRequest.kind:
        return False
    return facts["config"]["variant"] != "fixed" or not set(reading) & set(SHOWING_CURVES)


def network_file(facts: dict) -> str:
    """The file of a network's weights: its data set and model in plain letters."""
    config = facts["config"]
    words = (config.get("dataset"), config.get("model"))
    plain = "-".join(re.sub(r"[^\w.+-]", "_", str(word), flags=re.ASCII) for word in words)
    return f"{plain}.safetensors"


def _readers(pages: Mapping[str, Sequence[str]], lines: Sequence[dict]) -> dict[str, list[str]]:
    """The pages that read each request: by its key, and where that is in no page's plan by its
    description.
    """
    by_config: dict[str, list[str]] = {}
    for line in lines:
        if reading := pages.get(key_of(line)):
            by_config.setdefault(_text(line["config"]), []).extend(reading)
    return {
        key_of(line): list(pages.get(key_of(line)) or by_config.get(_text(line["config"]), ()))
        for line in lines
    }


def request_of(line: dict) -> Kept | None:
    """The request that made an entry, from its facts.

    None where its kind is no request, or was written by a version of this library that knew other
    fields.
    """
    kind = "attack" if is_attack(line["kind"]) else line["kind"]
    if kind not in REQUESTS:
        return None
    try:
        request = _rebuilt(REQUESTS[kind], line["config"], line["kind"].partition("-")[2])
    except (TypeError, AtsError):
        return None
    return (
        request
        if Store("").path(request.kind, request, version=line["version"]).stem == key_of(line)
        else None
    )


def _rebuilt(kind: type, value: dict, named: str = "") -> object:
    """A frozen dataclass from its form as JSON: of several types that `named`, else the first that
    has the fields.
    """
    hints = _hints(kind)

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


@functools.cache
def _hints(kind: type) -> dict[str, object]:
    """The types of a class's fields; thousands of results are of a dozen classes."""
    return typing.get_type_hints(kind)


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


def key_of(line: dict) -> str:
    """The hash under which a store keeps the artifact of these facts; it is made of them, so it
    cannot be another's.
    """
    text = json.dumps({name: line[name] for name in ("kind", "version", "config")}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _text(config: object) -> str:
    return json.dumps(config, sort_keys=True)


def _networks(facts: object) -> set[str]:
    """The configs, as text, of all networks that a request uses, from its facts."""
    if isinstance(facts, dict):
        own = {_text(facts["model"])} if isinstance(facts.get("model"), dict) else set()
        return own.union(*map(_networks, facts.values()))
    return set().union(*map(_networks, facts)) if isinstance(facts, list) else set()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
