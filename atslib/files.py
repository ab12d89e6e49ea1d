"""Files that are whole or not there, and their hash."""

import contextlib
import contextvars
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from safetensors import SafetensorError

from atslib.errors import AtsError

_KEPT: contextvars.ContextVar[list[Path] | None] = contextvars.ContextVar(
    "states kept", default=None
)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it: a killed run leaves no half
    file.

    Args:
        path: of the file, whose folder is made where it is missing.
        write: gets the path of the temporary file.
    Raises:
        AtsError: the folder, or the whole file, cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise AtsError(f"{path} cannot be written: {why}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


@contextlib.contextmanager
def states_kept() -> Iterator[None]:
    """While it is open, `discard` keeps the states of finished work; they go once it closes without
    an error.

    So a state outlives what is made of it until that is on disk.
    """
    kept: list[Path] = []
    token = _KEPT.set(kept)
    try:
        yield
    finally:
        _KEPT.reset(token)
    for state in kept:
        state.unlink(missing_ok=True)


def discard(state: Path) -> None:
    """Remove the state of work that is done; within `states_kept` only when that closes."""
    kept = _KEPT.get()
    if kept is None:
        state.unlink(missing_ok=True)
    else:
        kept.append(state)


def project_root() -> Path:
    """The nearest folder at or above the working one that holds a `pyproject.toml`, else the
    working one.
    """
    here = Path.cwd()
    return next(
        (folder for folder in (here, *here.parents) if (folder / "pyproject.toml").exists()), here
    )


def shown(path: Path) -> str:
    """A path as somebody in the working folder finds it: relative where it is below that, else
    whole.
    """
    whole = path.absolute()
    here = Path.cwd()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else whole)


def digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
