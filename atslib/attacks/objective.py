"""The cost that an attack descends, for N members at once; every member has its own row."""

import copy
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atslib.attacks.labels import infer_labels
from atslib.attacks.priors import PENALTIES
from atslib.clients.threat import Observed
from atslib.gradients.cpu import by_rows, pieces
from atslib.gradients.problems import DISTANCES, Fixed, problem_gradients, unflatten
from atslib.models import normalization_layer

if TYPE_CHECKING:
    from atslib.attacks.config import Attack


class Objective:
    """Members' iterates `z` (N, D) → distance and penalty. `z` is the images in normalized units, then,
    where labels are optimized, their logits."""

    def __init__(self, seen: Observed, attacks: Sequence["Attack"], *, split: bool = True):
        self.seen = seen
        self.normalize = normalization_layer(seen.model)
        self.shape = (seen.threat.batch, *seen.shape)
        self.pixels = seen.threat.batch * seen.shape[0] * seen.shape[1] * seen.shape[2]
        self.target = Fixed(unflatten(seen.gradients, seen.model))
        self.distance = DISTANCES[attacks[0].distance]
        self.layers = [1.0] * len(self.target)
        device = seen.gradients.device
        self.weights = {
            name: torch.tensor([a.weights.get(name, 0.0) for a in attacks], device=device, dtype=seen.gradients.dtype)
            for name in PENALTIES
            if any(a.weights.get(name) for a in attacks)
        }
        self.labels = infer_labels(seen) if seen.threat.labels == "inferred" else seen.labels
        self.rows = pieces(len(seen), device) if split else [slice(None)]
        self.parts = [self] if len(self.rows) == 1 else [_part(seen, attacks, rows) for rows in self.rows]

    def images(self, z: Tensor) -> Tensor:
        """The iterate as images in normalized units, (N, k, C, H, W)."""
        return z[:, : self.pixels].unflatten(1, self.shape)

    def targets(self, z: Tensor) -> Tensor:
        """Class indices (N, k), or optimized probabilities (N, k, K)."""
        if self.labels is not None:
            return self.labels
        return z[:, self.pixels :].unflatten(1, (self.seen.threat.batch, -1)).softmax(-1)

    def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Distance (N,) between gradients, and the weighted penalty (N,) of the images; on a CPU a thread a part."""
        return by_rows([part.costs for part in self.parts], self.rows, z)

    def costs(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The same in one piece."""
        normalized = self.images(z)
        pixels = self.normalize.inverse(normalized)
        own = {"buffers": self.seen.statistics, "parameters": self.seen.parameters}
        found = problem_gradients(self.seen.model, pixels, self.targets(z), **own)
        self.target = self.target.laid_out(found)
        distance = self.distance(found, self.target, self.layers)
        penalty = torch.zeros_like(distance)
        for name, weight in self.weights.items():
            penalty = penalty + weight * PENALTIES[name](normalized, pixels, self.seen).mean(1)
        return distance, penalty


def _part(seen: Observed, attacks: Sequence["Attack"], rows: slice) -> Objective:
    """Some of the members, with a copy of the model: hooks and modes of one are seen by all its threads."""
    own = dataclasses.replace(seen.take(rows), model=copy.deepcopy(seen.model))
    return Objective(own, attacks[rows], split=False)
