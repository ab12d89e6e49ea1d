"""Artifacts out of one store into another, as one .tar; each is checked by its hash on the way."""

import hashlib
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

from atsbook.runs.faults import fault, fault_of
from atsbook.runs.store import Store
from atslib.errors import AtsError
from atslib.files import write_atomically


def export_artifacts(store: Store, archive: Path) -> int:
    """Write all artifacts of `store` into one .tar; how many.

    Raises:
        AtsError: some are damaged. The archive then holds the others, and the message names the
            damaged ones.
    """
    faults = {path: fault_of(path) for path, _ in store.entries()}
    whole = [path for path in faults if not faults[path]]

    def write(partial: Path) -> None:
        with tarfile.open(partial, "w") as tar:
            for path in whole:
                for file in (path, path.with_suffix(".json")):
                    tar.add(file, file.relative_to(store.root).as_posix())

    write_atomically(archive, write)
    damaged = [f"{path.parent.name}/{path.stem}: {faults[path]}" for path in faults if faults[path]]
    _complain(damaged, len(whole), f"are in {archive}")
    return len(whole)


def import_artifacts(store: Store, archive: Path) -> int:
    """Take in the artifacts of an archive that `store` does not have yet; how many.

    Raises:
        AtsError: it is not an archive of a store, or a member would leave the store's folder:
            nothing is taken in. Or some artifacts are damaged: the others are taken in, and the
            message names the damaged ones.
    """
    taken = 0
    damaged = []
    try:
        with tarfile.open(archive, "r:") as tar:
            members = {member.name: member for member in tar.getmembers() if member.isfile()}
            for name in members:
                if not re.fullmatch(r"[\w-]+/[\w-]+\.(safetensors|json)", name):
                    raise AtsError(f"{archive}: {name!r} is not kind/name.safetensors or .json")
            for stem in dict.fromkeys(name.rpartition(".")[0] for name in members):
                names = (
                    f"{stem}.safetensors",
                    f"{stem}.json",
                )  # the facts last: they make an artifact look whole
                if all((store.root / name).exists() for name in names):
                    continue
                tensors, facts = (
                    tar.extractfile(members[name]).read() if name in members else None
                    for name in names
                )
                if wrong := fault(tensors and hashlib.sha256(tensors).hexdigest(), facts):
                    damaged.append(f"{stem}: {wrong}")
                    continue
                for name, data in zip(names, (tensors, facts), strict=True):
                    write_atomically(
                        store.root / name, lambda partial, data=data: partial.write_bytes(data)
                    )
                taken += 1
    except (tarfile.TarError, OSError) as error:
        why = getattr(error, "strerror", None) or error
        raise AtsError(
            f"{archive} cannot be read as an archive of `atsbook store export`: {why}"
        ) from None
    _complain(damaged, taken, "were taken in")
    return taken


def _complain(damaged: Sequence[str], whole: int, where: str) -> None:
    if damaged:
        names = "; ".join(damaged)
        raise AtsError(
            f"{len(damaged)} artifacts are damaged and left out, {names}; {whole} others {where}"
        )
