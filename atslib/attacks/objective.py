"""The cost that an attack descends, for N members at once; every member has its own row."""

import copy
import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from atslib.attacks import priors
from atslib.attacks.config import Attack
from atslib.attacks.labels import infer_labels
from atslib.clients.threat import Observed, batch_statistics, running_statistics
from atslib.errors import AtsError
from atslib.gradients.cpu import by_rows, pieces
from atslib.gradients.problems import DISTANCES, Fixed, problem_gradients, unflatten
from atslib.models import normalization_layer

# penalty name → function of (normalized images, pixels in [0, 1])
PENALTIES = {
    "tv": lambda normalized, pixels: priors.total_variation(normalized),
    "tv_isotropic": lambda normalized, pixels: priors.total_variation_isotropic(normalized),
    "clip": lambda normalized, pixels: priors.clip_distance(pixels),
    "scale": lambda normalized, pixels: priors.scale_distance(pixels),
    "l2": lambda normalized, pixels: normalized.square().flatten(1).mean(1),
}


def layer_weights(kind: str, tensors: int) -> list[float]:
    """Weight of each parameter tensor in the distance, first to last; they average to 1."""
    raw = {
        "equal": [1.0] * tensors,
        "linear": [i + 1.0 for i in range(tensors)],
        "exponential": [2.0 ** (4 * (i + 1) / tensors) for i in range(tensors)],
    }[kind]
    return [w * tensors / sum(raw) for w in raw]


def known_statistics(seen: Observed) -> dict[str, Tensor]:
    """What the attacker knows of the client's batch normalizations: (N, width) each, or (width,) for all alike.

    Raises:
        AtsError: the threat model hides them, or the model has none.
    """
    if (said := seen.threat.batch_norm) != "known":
        raise AtsError(f"Attack.bn_prior needs ThreatModel.batch_norm='known'; here it is {said!r}")
    found = running_statistics(seen.model) | seen.statistics
    if not found:
        raise AtsError("Attack.bn_prior needs a model with batch normalization, and the attacked one has none")
    return found


class Objective:
    """Members' iterates `z` (N, D) → distance and penalty. `z` is the images in normalized units, then,
    where labels are optimized, their logits."""

    def __init__(self, seen: Observed, attacks: Sequence[Attack], *, split: bool = True):
        self.seen = seen
        self.normalize = normalization_layer(seen.model)
        self.shape = (seen.threat.batch, *seen.shape)
        self.pixels = seen.threat.batch * seen.shape[0] * seen.shape[1] * seen.shape[2]
        self.target = Fixed(unflatten(seen.gradients, seen.model))
        self.distance = DISTANCES[attacks[0].distance]
        self.layers = layer_weights(attacks[0].layer_weights, len(self.target))
        device = seen.gradients.device
        self.weights = {
            name: torch.tensor([getattr(a, name) for a in attacks], device=device, dtype=seen.gradients.dtype)
            for name in (*PENALTIES, "bn_prior")
            if any(getattr(a, name) for a in attacks)
        }
        self.bn_prior = self.weights.pop("bn_prior", None)
        self.known = {} if self.bn_prior is None else known_statistics(seen)
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
            value = PENALTIES[name](normalized.flatten(0, 1), pixels.flatten(0, 1))
            penalty = penalty + weight * value.unflatten(0, (len(z), -1)).mean(1)
        if self.bn_prior is not None:
            statistics = batch_statistics(self.seen.model, pixels, **own)
            penalty = penalty + self.bn_prior * priors.statistics_distance(statistics, self.known)
        return distance, penalty


def _part(seen: Observed, attacks: Sequence[Attack], rows: slice) -> Objective:
    """Some of the members, with a copy of the model: hooks and modes of one are seen by all its threads."""
    own = dataclasses.replace(seen.take(rows), model=copy.deepcopy(seen.model))
    return Objective(own, attacks[rows], split=False)
