"""Files that are whole or not there, checked by their hash; and waiting for what is away for a
while.
"""

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError

from atslib.errors import AtsError

PATIENCE = 120.0  # seconds that a store may be away
LONGEST_PAUSE = 5.0  # seconds between two looks at what is away

Found = TypeVar("Found")
_EXPECTED: list[tuple[Path, float, Callable[[str], None]]] = []


def wait_for(
    what: object, there: Callable[[], bool], patience: float, say: Callable[[str], None]
) -> None:
    """Return once `there()` holds, looked at with a growing pause; one line is said where that is
    not at once.

    Raises:
        AtsError: it does not hold within `patience` seconds.
    """
    if there():
        return
    say(f"{what} is away: waiting for it, {patience:.0f} s at most")
    ends = time.monotonic() + patience
    pause = 0.05
    while not there():
        if time.monotonic() > ends:
            raise AtsError(
                f"{what} has been away for {patience:.0f} s; what is finished is kept, run again to go on"
            )
        time.sleep(min(pause, LONGEST_PAUSE))
        pause *= 1.5


@contextlib.contextmanager
def expected(root: Path, patience: float, say: Callable[[str], None]) -> Iterator[None]:
    """As long as this lasts, `patiently` and `write_atomically` wait for the folder `root` where it
    has gone away.

    An empty folder is away too: it is what is left where a share is no longer mounted.
    """
    _EXPECTED.append(place := (root, patience, say))
    try:
        yield
    finally:
        _EXPECTED.remove(place)


def _is_there(root: Path) -> bool:
    try:
        return any(root.iterdir())
    except OSError:
        return False


def _place(path: Path) -> tuple[Path, float, Callable[[str], None]] | None:
    return next((place for place in reversed(_EXPECTED) if place[0] in path.parents), None)


def patiently(path: Path, act: Callable[[], Found]) -> Found:
    """What `act` finds at `path`, after its folder is back: what it found while that was away does
    not count.
    """
    while True:
        if (place := _place(path)) is None:
            return act()
        root, patience, say = place
        wait_for(root, lambda root=root: _is_there(root), patience, say)
        try:
            result = act()
        except (OSError, SafetensorError):
            if _is_there(root):
                raise
            continue
        if _is_there(root):
            return result


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it: a killed run leaves no half
    file.

    Raises:
        AtsError: the folder, or the whole file, cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial")

    def whole() -> None:
        try:
            # In a store that may go away its folder is not made: it would lie where the store comes
            # back.
            path.parent.mkdir(parents=_place(path) is None, exist_ok=True)
            write(partial)
            partial.replace(path)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()

    try:
        patiently(path, whole)
    except (OSError, SafetensorError) as error:
        raise AtsError(
            f"{path} cannot be written: {getattr(error, 'strerror', None) or error}"
        ) from error


def project_root() -> Path:
    """The nearest folder at or above the working one that holds a `pyproject.toml`, else the
    working one.
    """
    here = Path.cwd()
    return next(
        (folder for folder in (here, *here.parents) if (folder / "pyproject.toml").exists()), here
    )


def digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fault_of(path: Path) -> str | None:
    """What is wrong with an artifact on disk, if anything: `path` is that of its tensors."""
    return fault(digest(path) if path.exists() else None, path.with_suffix(".json").read_bytes())


def fault(sha256: str | None, facts: bytes | None) -> str | None:
    """What is wrong with an artifact, if anything, by the hash of its tensors and the bytes of its
    JSON.
    """
    if sha256 is None:
        return "the tensors are missing"
    try:
        stated = json.loads(facts)["sha256"]
    except (ValueError, KeyError, TypeError):
        return "its facts cannot be read"
    return None if sha256 == stated else "its bytes do not match their hash"
