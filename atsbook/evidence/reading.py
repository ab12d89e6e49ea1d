"""A store above the evidence that ships with the repository."""

import json
from pathlib import Path

from atsbook.evidence.archive import Archive
from atsbook.kept import Kept
from atsbook.store import Artifact, Store

# Tensors of results that further results are made from
SOURCES_OF_OTHERS = {"model", "reconstruction"}


class _Shipped(Archive):
    """The shipped evidence, whose index is read once."""

    def __init__(self, root: Path):
        super().__init__(root)
        self._lines = super().entries()

    def entries(self) -> dict[str, dict]:
        return self._lines


class WithEvidence(Store):
    """A store that reads what it lacks from the evidence that ships with the repository.

    Args:
        root: as of `Store`.
        evidence: the folder of the evidence; it may be missing.
        options: as of `Store`.
    """

    def __init__(self, root: Path | str | None, evidence: Path, **options: object):
        super().__init__(root, **options)
        self.archive = _Shipped(evidence)

    def shipped(self, kind: str, config: object, *, version: int = 1) -> dict | None:
        """The facts of a result that is in the evidence, perhaps without its weights or pictures."""
        return self.archive.entries().get(self.path(kind, config, version=version).stem)

    def has(self, kind: str, config: object, *, version: int = 1) -> bool:
        """Whether the artifact is in the store, or in the evidence with all that something new may
        be made from.
        """
        line = self.shipped(kind, config, version=version)
        whole = line is not None and not SOURCES_OF_OTHERS & set(line["left_out"])
        return whole or super().has(kind, config, version=version)

    def _read(self, path: Path) -> Artifact | None:
        kept = super()._read(path)
        if kept is None and path.stem in self.archive.entries():
            return self.archive.read(path.stem)
        return kept

    def facts(self, request: Kept) -> dict:
        """Where and when a kept result was made, without reading it."""
        path = self.path(request.kind, request).with_suffix(".json")
        return json.loads(path.read_text()) if path.exists() else self.archive.entries()[path.stem]

    def copy_into_store(self, request: Kept) -> None:
        """Copy a result from the evidence into the store, if it is whole there and the store lacks
        it.
        """
        path = self.path(request.kind, request)
        if super().has(request.kind, request) or not self.has(request.kind, request):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = self.archive.read(path.stem)
        tensors = {name: value.clone().contiguous() for name, value in kept.tensors.items()}
        self._write(path, tensors, dict(kept.facts) | {"archived": True})
