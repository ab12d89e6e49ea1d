"""Artifacts at an address that fsspec knows, such as `s3://bucket/prefix`: pulled when missing,
pushed when made.

An artifact is `kind/<key>.json` and the `kind/<key>.<first of its hash>.safetensors` that this
names. Tensors go first, and are named by their own hash: whoever sees the facts sees all of them.
Of two runs that push the same artifact at once, one write wins; files never mix.
"""

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from atsbook.runs.faults import fault
from atslib.errors import AtsError
from atslib.files import digest, write_atomically

FRESH = 1.0  # seconds for which the names at the address are believed
FIRST = 10.0  # seconds within which an address that nobody has reached yet must answer
# By itself s3fs waits for minutes for an address that takes connections and says nothing. These are
# seconds without a single byte: what is large may take as long as it takes.
QUICK = {
    "config_kwargs": {
        "connect_timeout": 4,
        "read_timeout": 8,
        "retries": {"total_max_attempts": 1},
    }
}
# s3fs waits for ever to be told to go on with a write, or to be rid of its bytes: so long in all, and
# longer by what a slow line takes for them.
WRITTEN = 10.0  # seconds
SLOWEST = 50_000  # bytes a second
SOON = 2.0  # seconds: what failed within them, such as a line that broke, is tried once more
# Errors of an address that answers; anything else means that it does not.
_ANSWERS = (FileNotFoundError, FileExistsError, PermissionError, ImportError, ValueError, TypeError)

Found = TypeVar("Found")


class Remote:
    """What is kept at `address`.

    Raises:
        AtsError: nothing is known of such addresses, or the package for them is not installed.
    """

    def __init__(self, address: str):
        self.address = address.rstrip("/")
        self._seen = set()
        self._listed = {}
        self._writable = False
        try:
            import fsspec  # an extra

            how = QUICK if address.startswith(("s3://", "s3a://")) else {}
            self.fs, self.base = fsspec.core.url_to_fs(address, use_listings_cache=False, **how)
        except ImportError as error:
            raise AtsError(
                f"the store {address} needs packages: pip install 'atslib[cluster]' ({error})"
            ) from None
        except ValueError as error:
            raise AtsError(
                f"the store {address} has no address that fsspec knows: {error}"
            ) from None
        self.base = self.base.rstrip("/")
        if how:
            self.fs.retries = 1  # of s3fs itself, which would wait as long for each

    def reach(self) -> None:
        """Ask the address for its names once, before any work.

        In a thread, since a client may itself wait for minutes.

        Raises:
            AtsError: it does not answer within ten seconds, or says no.
        """
        failed: list[Exception] = []

        def ask() -> None:
            try:
                self.fs.ls(self.base, detail=False, refresh=True)
            except FileNotFoundError:
                pass  # nothing was written yet; that it cannot be is what `check` says
            except Exception as error:
                failed.append(error)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(FIRST)
        if failed or asking.is_alive():
            reason = (
                " ".join(str(failed[0]).split()) if failed else f"no answer within {FIRST:.0f} s"
            )
            raise AtsError(f"the store {self.address} cannot be reached: {reason}")

    def has(self, path: Path) -> bool:
        """Whether the artifact is there whose tensors have the local `path`, as it was at most a
        second ago.
        """
        kind = path.parent.name
        name = name_of(path)
        if name not in self._seen and time.monotonic() > self._listed.get(kind, -FRESH) + FRESH:
            self._seen |= set(self._names(kind))
            self._listed[kind] = time.monotonic()
        return name in self._seen

    def names(self) -> list[str]:
        """Every artifact, as `kind/key`."""
        kinds = [path for path, what in self._ls(self.base) if what == "directory"]
        return sorted(name for path in kinds for name in self._names(path.rsplit("/", 1)[-1]))

    def _names(self, kind: str) -> list[str]:
        files = [path.rsplit("/", 1)[-1] for path, _ in self._ls(f"{self.base}/{kind}")]
        names = [file.removesuffix(".json") for file in files if file.endswith(".json")]
        return [f"{kind}/{name}" for name in names]

    def _ls(self, folder: str) -> list[tuple[str, str]]:
        """Path and type of all that is in a folder; nothing where it is not there.

        Not by `glob`, which takes an address that does not answer, or says no, for an empty one.
        """
        try:
            inside = self._do(lambda: self.fs.ls(folder, detail=True))
        except FileNotFoundError:
            return []
        except PermissionError as error:
            raise AtsError(f"the store {self.address} cannot be read: {error}") from None
        return [(entry["name"].rstrip("/"), entry["type"]) for entry in inside]

    def fetch(self, name: str) -> tuple[bytes, bytes, str | None]:
        """The facts and the tensors of an artifact, and what is wrong with them, if anything."""
        facts = b""
        tensors = b""
        try:
            facts = self._do(lambda: self.fs.cat_file(f"{self.base}/{name}.json"))
            try:
                sha256 = json.loads(facts)["sha256"]
            except (ValueError, KeyError, TypeError):
                return facts, tensors, "its facts cannot be read"
            tensors = self._do(lambda: self.fs.cat_file(self._tensors(name, sha256)))
        except FileNotFoundError:
            return facts, tensors, "the tensors are missing"
        return facts, tensors, fault(hashlib.sha256(tensors).hexdigest(), facts)

    def pull(self, path: Path) -> str | None:
        """Bring an artifact to the local `path` of its tensors; what is wrong with it, if anything:
        it stays there.
        """
        facts, tensors, wrong = self.fetch(name_of(path))
        if not wrong:
            write_atomically(path, lambda partial: partial.write_bytes(tensors))
            write_atomically(path.with_suffix(".json"), lambda partial: partial.write_bytes(facts))
        return wrong

    def push(self, path: Path) -> None:
        """Send an artifact from the local `path` of its tensors."""
        name = name_of(path)
        facts = path.with_suffix(".json").read_bytes()
        folder = f"{self.base}/{path.parent.name}"
        limit = self._within(0)
        self._do(lambda: self.fs.makedirs(folder, exist_ok=True, **limit))
        tensors = self._tensors(name, digest(path))
        limit = self._within(path.stat().st_size)
        self._do(lambda: self.fs.put_file(str(path), tensors, **limit))
        self._write(f"{self.base}/{name}.json", facts)
        unsent(path).unlink(missing_ok=True)
        self._seen.add(name)

    def check(self) -> None:
        """Raise `AtsError` if nothing can be written there, which is better known before the work
        than after it.
        """
        if not self._writable:
            try:
                self._write(f"{self.base}/.atslib", b"A store of atslib.\n")
            except AtsError:
                raise
            except (OSError, ValueError) as error:
                raise AtsError(f"the store {self.address} cannot be written: {error}") from None
            self._writable = True

    def _tensors(self, name: str, sha256: str) -> str:
        return f"{self.base}/{name}.{sha256[:16]}.safetensors"

    def _write(self, place: str, content: bytes) -> None:
        limit = self._within(len(content))
        self._do(lambda: self.fs.pipe_file(place, content, **limit))

    def _within(self, size: int) -> dict[str, float]:
        """The seconds in which so many bytes must be written, as fsspec takes them where it can."""
        asynchronous = getattr(self.fs, "async_impl", False)
        return {"timeout": WRITTEN + size / SLOWEST} if asynchronous else {}

    def _do(self, act: Callable[[], Found]) -> Found:
        """What `act` answers.

        Raises:
            AtsError: the address does not answer. That something is not there or not allowed is no
                such error.
        """
        begun = time.monotonic()
        for last in (False, True):
            try:
                return act()
            except _ANSWERS:
                raise
            except Exception as error:
                if last or time.monotonic() - begun > SOON:
                    why = str(error) or "it says nothing"
                    raise AtsError(
                        f"the store {self.address} does not answer ({why}); what is finished is kept, run again to go on"
                    ) from error
            time.sleep(0.2)
        raise AssertionError("the last attempt returns or raises")


def cache_folder(address: str) -> Path:
    """Where copies of what is at an address lie on this machine: in $ATS_CACHE, else in
    `.cache/atslib` at home.
    """
    folder = Path(os.environ.get("ATS_CACHE") or Path.home() / ".cache" / "atslib")
    words = re.sub(r"[^a-zA-Z0-9.-]+", "-", address)[:60]
    return folder / f"{words}-{hashlib.sha256(address.encode()).hexdigest()[:8]}"


def name_of(path: Path) -> str:
    """`kind/key` of the local path of an artifact's tensors."""
    return f"{path.parent.name}/{path.stem}"


def unsent(path: Path) -> Path:
    """The file that lies beside an artifact from when it is made until it has been pushed."""
    return path.with_suffix(".unsent")
