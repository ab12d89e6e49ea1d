"""Artifacts at an address that fsspec knows, such as `s3://bucket/prefix`: pulled when missing,
pushed when made.

An artifact is `kind/<key>.json` and the `kind/<key>.<first of its hash>.safetensors` that this
names. Tensors go first, and are named by their own hash: whoever sees the facts sees all of them,
and two runs that push the same artifact at once leave that of one of them, never halves of both.
"""

import contextlib
import hashlib
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from atslib.errors import AtsError
from atslib.files import Found, digest, fault, wait_for, write_atomically

BEAT, LOST = (
    5.0,
    60.0,
)  # seconds after which a claim is written anew, and after which one that was not is lost
SETTLED = 0.5  # seconds within which others see that a claim was taken over
FRESH = 1.0  # seconds for which the names at the address are believed
_CLAIMS: dict[
    str, tuple[str, float]
] = {}  # what others' claims said and since when, as this process saw them
# These do not pass with time; anything else does.
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, ImportError, ValueError, TypeError)


class Remote:
    """What is kept at `address`.

    Args:
        patience: seconds that it may be away.
        say: receives one line each time that it is away.
    Raises:
        AtsError: nothing is known of such addresses, or the package for them is not installed.
    """

    def __init__(self, address: str, patience: float, say: Callable[[str], None]):
        self.address = address.rstrip("/")
        self.patience = patience
        self.say = say
        self._seen = set()
        self._listed = {}
        self._writable = False
        try:
            import fsspec  # an extra

            self.fs, self.base = fsspec.core.url_to_fs(address, use_listings_cache=False)
        except ImportError as error:
            raise AtsError(
                f"the store {address} needs packages: pip install 'atslib[cluster]' ({error})"
            ) from None
        except ValueError as error:
            raise AtsError(
                f"the store {address} has no address that fsspec knows: {error}"
            ) from None
        self.base = self.base.rstrip("/")

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
        return sorted(self._names("*"))

    def _names(self, kind: str) -> list[str]:
        found = self._do(lambda: self.fs.glob(f"{self.base}/{kind}/*.json"))
        return ["/".join(path.split("/")[-2:]).removesuffix(".json") for path in found]

    def fetch(self, name: str) -> tuple[bytes, bytes, str | None]:
        """The facts and the tensors of an artifact, and what is wrong with them, if anything."""
        facts, tensors = b"", b""
        try:
            facts = self._do(lambda: self.fs.cat_file(f"{self.base}/{name}.json"))
            sha256 = json.loads(facts)["sha256"]
            tensors = self._do(lambda: self.fs.cat_file(self._tensors(name, sha256)))
        except FileNotFoundError:
            return facts, tensors, "the tensors are missing"
        except (ValueError, KeyError, TypeError):
            return facts, tensors, "its facts cannot be read"
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
        self._do(lambda: self.fs.makedirs(f"{self.base}/{path.parent.name}", exist_ok=True))
        self._do(lambda: self.fs.put_file(str(path), self._tensors(name, digest(path))))
        self._do(lambda: self.fs.pipe_file(f"{self.base}/{name}.json", facts))
        unsent(path).unlink(missing_ok=True)
        self._seen.add(name)

    def check(self) -> None:
        """Raise `AtsError` if nothing can be written there, which is better known before the work
        than after it.
        """
        if not self._writable:
            try:
                self._do(lambda: self.fs.pipe_file(f"{self.base}/.atslib", b"A store of atslib.\n"))
            except (OSError, ValueError) as error:
                raise AtsError(f"the store {self.address} cannot be written: {error}") from None
            self._writable = True

    @contextlib.contextmanager
    def claim(self, path: Path) -> Iterator[bool]:
        """Whether no other machine is making the artifact; as long as this lasts, the others are
        told that one is.

        For one process of a machine at a time. A claim is a file there, written anew every few
        seconds. One that does not change any more is of a machine that was lost, and is taken over.
        Two that take it over in the same moment, or a service without conditional writes, may have
        an artifact made twice; that of one of them is kept.
        """
        file = f"{self.base}/{name_of(path)}.claim"
        mine = f"{uuid.getnode()}:{path} {uuid.uuid4().hex}"
        if not self._take(file, mine):
            yield False
            return
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT):
                with contextlib.suppress(Exception):  # away; or lost, and the next beat may do
                    self.fs.pipe_file(file, f"{mine} {uuid.uuid4().hex}".encode())

        (beating := threading.Thread(target=beat, daemon=True)).start()
        try:
            yield True
        finally:
            over.set()
            beating.join()
            with contextlib.suppress(Exception):  # then it looks like a lost machine's
                self.fs.rm_file(file)

    def _take(self, file: str, mine: str) -> bool:
        def look() -> str:
            with contextlib.suppress(FileNotFoundError):  # it ended just now
                return self._do(lambda: self.fs.cat_file(file)).decode()
            return ""

        try:
            self._do(lambda: self.fs.pipe_file(file, mine.encode(), mode="create"))
            return True
        except FileExistsError:
            there = look()
        if (
            there.split(" ")[0] != mine.split(" ")[0]
        ):  # else of a process that is gone: this one has the machine's lock
            first, since = _CLAIMS.get(file, ("", 0.0))
            if there != first:
                _CLAIMS[file] = there, time.monotonic()
                return False
            if time.monotonic() < since + LOST:
                return False
            time.sleep(2 * BEAT)  # this address may have been away itself
            if look() != there:
                return False
        self._do(lambda: self.fs.pipe_file(file, mine.encode()))
        time.sleep(SETTLED)
        return look() == mine

    def _tensors(self, name: str, sha256: str) -> str:
        return f"{self.base}/{name}.{sha256[:16]}.safetensors"

    def _do(self, act: Callable[[], Found]) -> Found:
        """What `act` answers, asked again as long as it fails with what may pass."""
        answers: list[Found] = []

        def asked() -> bool:
            try:
                answers.append(act())
            except _FINAL:
                raise
            except Exception as error:
                what.error = error
                return False
            return True

        what = _Away(self.address)
        wait_for(what, asked, self.patience, self.say)
        return answers[0]


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


class _Away:
    """An address and why it did not answer the last time, as text."""

    def __init__(self, address: str):
        self.address = address
        self.error = None

    def __str__(self) -> str:
        return f"{self.address} ({self.error})"
