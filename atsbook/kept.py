"""Requests: descriptions of results that are computed once, kept, and read from then on."""

import dataclasses
from pathlib import Path
from typing import ClassVar

import torch

from atsbook.store import Artifact, Store
from atslib.checkpoints import Tensors


class Kept:
    """A request for one result, which is computed once.

    A subclass is a frozen dataclass. Its fields are the key under which the result is kept, so they
    hold all that decides it. Fields that are requests themselves are made first; `compute` finds
    their results in the store.

    Attributes:
        kind: names the sort of result: a folder of the store, and a part of the key.
    """

    kind: ClassVar[str]

    @property
    def needs(self) -> tuple["Kept", ...]:
        """The requests among the fields, and in fields that are tuples, whose results come first."""
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        rows = [value if isinstance(value, tuple) else (value,) for value in values]
        return tuple(one for row in rows for one in row if isinstance(one, Kept) and one.is_kept)

    @property
    def is_kept(self) -> bool:
        """Whether there is a result to keep: of an untrained network there is none."""
        return True

    @property
    def title(self) -> str:
        """The request in words, for a person."""
        return self.kind

    @property
    def passes(self) -> float:
        """Its cost in forward passes of one image through the network `model`; a backward pass
        counts two. 0 where no network is needed, or the cost is not known.
        """
        return 0.0

    def compute(self, store: Store, device: torch.device, state: Path) -> Tensors:
        """The tensors of the result, by name.

        Args:
            store: where the results of `needs` are.
            device: where to compute.
            state: a file that may hold what a long computation has so far.
        """
        raise NotImplementedError

    def make(self, store: Store, device: torch.device) -> Artifact:
        """The result: read, or computed if it is not in the store or damaged there."""
        return store.get(
            self.kind,
            self,
            lambda state: self.compute(store, device, state),
            label=self.title,
        )
