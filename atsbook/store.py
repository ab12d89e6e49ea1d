"""Artifacts keyed by everything that made them; atomic, checked, resumable.

An artifact is a dict of tensors in one safetensors file. Its name is a hash of (kind, version,
config); beside it lies a JSON file with that config in plain text, the file's own hash and where it
was made.
"""

import dataclasses
import datetime
import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from atsbook.integrity import fault_of, sealed
from atslib.checkpoints import Tensors, fingerprint, is_plain, plain
from atslib.errors import AtsError, NotKept, OutOfTime, as_path, check_kind
from atslib.files import digest, project_root, states_kept, write_atomically


def whole_again() -> str:
    """What to do about a result of which the evidence keeps a part."""
    forget = "`python -m atsbook archive forget` takes it out of the store"
    return f"{forget}, and `python -m atsbook run` computes it whole"


@dataclasses.dataclass(frozen=True)
class Artifact:
    """Tensors and the facts of their making: `config`, `seconds`, `device`, `made`, `torch`."""

    tensors: Tensors
    facts: dict

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors and name in self.facts.get("left_out", ()):
            kind = self.facts["kind"]
            made = whole_again()
            raise NotKept(f"of this {kind} the archive keeps no {name!r}; {made}")
        return self.tensors[name]


class Store:
    """A folder of artifacts: `root/kind/<hash>.safetensors` and `.json`.

    Args:
        root: the folder; $ATS_STORE, else `.store` in the project's top folder.
        say: receives one line for each thing a person should know (an artifact made or set aside).
        progress: whether the makers of artifacts should show bars.
        ends: a time of `time.monotonic` after which makers that keep their state pause, see
            `check_time`.
    """

    def __init__(
        self,
        root: Path | str | None = None,
        *,
        say: Callable[[str], None] | None = None,
        progress: bool = False,
        ends: float | None = None,
    ):
        root = (
            (os.environ.get("ATS_STORE") or project_root() / ".store")
            if root in (None, "")
            else root
        )
        self.say = say or (lambda line: None)
        self.progress = progress
        self.ends = ends
        if isinstance(root, str) and "://" in root:
            raise AtsError(f"Store: root={root!r} must be a folder of this machine, not an address")
        self.root = as_path("Store: root", root).resolve()
        self.address = str(self.root)

    def check_time(self) -> None:
        """The maker of an artifact calls this each time that it has saved its state and is not
        done.

        Raises:
            OutOfTime: it is later than `ends`; the next `get` of the same artifact goes on from
                that state.
        """
        if self.ends is not None and time.monotonic() > self.ends:
            raise OutOfTime

    def path(self, kind: str, config: object, *, version: int = 1) -> Path:
        """Where the artifact of this config lies, whether or not it is there."""
        if not isinstance(kind, str) or not re.fullmatch(r"[\w-]+", kind):
            raise AtsError(
                f"Store: kind {kind!r} must be the name of one folder: letters, digits, - and _"
            )
        text = json.dumps(
            {"kind": kind, "version": version, "config": plain(config)}, sort_keys=True
        )
        if not is_plain(config):  # its text does not tell all that it holds
            text += fingerprint(config)
        return self.root / kind / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.safetensors"

    def has(self, kind: str, config: object, *, version: int = 1) -> bool:
        """Whether the artifact is there (its hash is checked only when it is read)."""
        path = self.path(kind, config, version=version)
        return path.exists() and path.with_suffix(".json").exists()

    def get(
        self,
        kind: str,
        config: object,
        compute: Callable[[Path], Tensors],
        *,
        version: int = 1,
        label: str = "",
    ) -> Artifact:
        """The artifact of `config`, computed if it is not there or damaged.

        Args:
            kind: a folder name, such as "attack".
            config: a frozen dataclass, dict or tuple: all that decides the result.
            compute: gets a path where it may keep resumable state, returns tensors.
            version: raise it when the meaning of `config` changes.
            label: what to call it in the line that is said when it is made.
        Raises:
            AtsError: the store cannot be written.
        """
        path = self.path(kind, config, version=version)
        kept = self._read(path)
        if kept is not None:
            return kept
        started = time.monotonic()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AtsError(f"{path.parent} cannot be written: {error.strerror}") from None
        with states_kept():
            tensors = compute(path.with_suffix(".state"))
            check_kind(f"Store: {kind} is computed as", tensors, dict, "a dict of tensors")
            # Copies, because two names may share memory, which safetensors refuses.
            copies = {
                name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()
            }
            seconds = time.monotonic() - started
            facts = {
                "kind": kind,
                "version": version,
                "config": plain(config),
                "seconds": round(seconds, 2),
            }
            facts = self._write(path, copies, facts | _made(tensors))
        self.say(f"made {kind} {label or path.stem} in {seconds:.0f} s")
        return Artifact(copies, facts)

    def keep(self, kind: str, description: dict, compute: Callable[[], Tensors]) -> Tensors:
        """Keep what `compute` returns as an artifact: what `atslib.search` takes as `keep`.

        Raises:
            OutOfTime: the artifact is kept, and it is later than `ends`.
        """
        made = self.get(kind, description, lambda state: compute())
        self.check_time()
        return made.tensors

    def _write(self, path: Path, tensors: Tensors, facts: dict) -> dict:
        """Write the tensors, then the facts, which make an artifact look whole; those facts."""
        write_atomically(path, lambda partial: save_file(tensors, partial))
        facts = sealed(facts | {"sha256": digest(path)})
        text = json.dumps(facts, indent=1, sort_keys=True)
        write_atomically(path.with_suffix(".json"), lambda partial: partial.write_text(text))
        path.with_suffix(".state").unlink(missing_ok=True)
        return facts

    def _read(self, path: Path) -> Artifact | None:
        facts_path = path.with_suffix(".json")
        if not facts_path.exists():  # never made, or killed before it was whole
            return None
        if fault := fault_of(path):
            for file in filter(Path.exists, (path, facts_path)):
                file.replace(file.with_name(f"{file.name}.corrupt"))
            self.say(f"{path.name}: {fault}; set aside as {path.stem}.*.corrupt and made again")
            return None
        return Artifact(load_file(path), json.loads(facts_path.read_text()))

    def files(self, kind: str, config: object) -> dict[str, bytes]:
        """What is kept of an artifact, by its place in the folder: the artifact, or the state of one
        that is not done; it goes to a worker that needs it.
        """
        path = self.path(kind, config)
        return read_files(self.root, path.parent.glob(f"{path.stem}.*"))

    def take_in(self, files: Mapping[str, bytes]) -> None:
        """Keep files that `files` or a worker gave; an artifact that is there already stays.

        The tensors come first: with its facts an artifact looks whole.
        """
        for name in sorted(files, key=lambda name: name.endswith(".json")):
            path = self.root / name
            stored = path.with_suffix(".safetensors")
            if stored.exists() and stored.with_suffix(".json").exists():
                continue
            write_atomically(path, lambda partial, name=name: partial.write_bytes(files[name]))

    def entries(self) -> Iterator[tuple[Path, dict]]:
        """Every artifact with its facts, newest last; unreadable facts are empty."""
        for facts_path in sorted(self.root.glob("*/*.json"), key=lambda p: p.stat().st_mtime):
            try:
                facts = json.loads(facts_path.read_text())
            except ValueError:
                facts = {}
            yield facts_path.with_suffix(".safetensors"), facts if isinstance(facts, dict) else {}

    def verify(self) -> list[str]:
        """One line for each damaged artifact; empty if all hashes hold."""
        faults = {
            path.relative_to(self.root).as_posix(): fault_of(path) for path, _ in self.entries()
        }
        return [f"{name}: {fault}" for name, fault in faults.items() if fault]


def read_files(root: Path, paths: Iterable[Path]) -> dict[str, bytes]:
    """The bytes of files below a folder, by their place in it; what was set aside, or is half
    written, is left out.
    """
    whole = [path for path in paths if path.is_file()]
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in whole
        if path.suffix not in (".corrupt", ".aside", ".partial")
    }


def _made(tensors: Tensors) -> dict:
    """Where and when an artifact was made."""
    device = next(
        (value.device for value in tensors.values() if value.is_cuda), torch.device("cpu")
    )
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"CPU, {os.cpu_count()} cores"
    )
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {
        "device": name,
        "python": platform.python_version(),
        "made": now,
        "torch": torch.__version__,
    }
