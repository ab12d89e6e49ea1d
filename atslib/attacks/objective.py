"""The cost that an attack descends, for N members at once; every member has its own row."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from atslib.attacks.labels import infer_labels
from atslib.attacks.matching import GradientMatching
from atslib.attacks.priors import PENALTIES
from atslib.clients.updates import guessed_orders, trained_weights
from atslib.clients.view import Observed, Update
from atslib.errors import AtsError
from atslib.gradients.cpu import by_rows, pieces
from atslib.gradients.problems import DISTANCES, Fixed, prepare, problem_gradients, unflatten
from atslib.models import before_last, copied, normalization_layer


class Objective:
    """Members' iterates `z` (N, D) → distance and penalty; of several updates, the mean distance
    over them.

    `z` is the images in normalized units, then, where labels are optimized, their logits.
    """

    def __init__(self, seen: Observed, attacks: Sequence[GradientMatching], *, split: bool = True):
        self.unroll = attacks[0].unroll
        if self.unroll and any(update.kind == "gradient" for update in seen.updates):
            raise AtsError(
                "GradientMatching.unroll: an update is a gradient, and has no local steps to repeat"
            )
        self.seen = seen
        first = seen.updates[0]
        self.normalize = normalization_layer(first.model)
        self.shape = (seen.threat.batch, *seen.shape)
        self.pixels = math.prod(self.shape)
        self.sent = [Fixed(_kept(u, unflatten(u.mean_gradients, u.model))) for u in seen.updates]
        self.distance = DISTANCES[attacks[0].distance]
        device = first.gradients.device
        dtype = first.gradients.dtype
        self.weights = {
            name: torch.tensor(
                [a.weights.get(name, 0.0) for a in attacks], device=device, dtype=dtype
            )
            for name in PENALTIES
            if any(a.weights.get(name) for a in attacks)
        }
        self.labels = infer_labels(seen) if seen.threat.labels == "inferred" else seen.labels
        self.routes = []
        for update in (
            () if self.unroll else seen.updates
        ):  # before copies are made, which inherit it
            images = self.shape[0] // (2 if update.share else 1)
            self.routes.append(prepare(update.model, (images, *seen.shape)))
        self.rows = pieces(len(seen), device) if split else [slice(None)]
        self.parts = (
            [self] if len(self.rows) == 1 else [_part(seen, attacks, rows) for rows in self.rows]
        )

    def images(self, z: Tensor) -> Tensor:
        """The iterate as images in normalized units, (N, k, C, H, W)."""
        return z[:, : self.pixels].unflatten(1, self.shape)

    def targets(self, z: Tensor) -> Tensor:
        """Class indices (N, k), or optimized probabilities (N, k, K)."""
        if self.labels is not None:
            return self.labels
        return z[:, self.pixels :].unflatten(1, (self.seen.threat.batch, -1)).softmax(-1)

    def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Distance (N,) between gradients, weighted penalty (N,) of the images; on a CPU one thread
        per part.
        """
        return by_rows([part.costs for part in self.parts], self.rows, z)

    def costs(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The same in one piece."""
        normalized = self.images(z)
        images = self.normalize.inverse(normalized)
        targets = self.targets(z)
        distance = sum(self._distance(i, images, targets) for i in range(len(self.sent))) / len(
            self.sent
        )
        penalty = torch.zeros_like(distance)
        for name, weight in self.weights.items():
            penalty = penalty + weight * PENALTIES[name](normalized, images, self.seen).mean(1)
        return distance, penalty

    def _distance(self, i: int, images: Tensor, targets: Tensor) -> Tensor:
        """Between the gradients that the images would give and those sent in update `i`, (N,)."""
        update = self.seen.updates[i]
        inputs = update.transformed(images)
        with (
            before_last(update.model, update.told)
            if update.features is not None
            else contextlib.nullcontext()
        ):
            if self.unroll:
                gradients = trained_weights(
                    update.model, inputs, targets, *guessed_orders(update, *inputs.shape[:2])
                )
            else:
                how = {"buffers": update.statistics, "route": self.routes[i]}
                gradients = problem_gradients(update.model, inputs, targets, **how)
        gradients = _kept(update, gradients)
        self.sent[i] = self.sent[i].laid_out(gradients)
        return self.distance(gradients, self.sent[i])


def _kept(update: Update, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The gradients (N, *shape) as far as the attacker can compare them: cut off at the limit, 0
    where not at all.
    """
    if update.limit is not None:
        limits = unflatten(update.limit, update.model)
        gradients = tuple(
            g.clamp(-limit, limit) for g, limit in zip(gradients, limits, strict=True)
        )
    if update.kept is None:
        return gradients
    return tuple(
        g * kept for g, kept in zip(gradients, unflatten(update.kept, update.model), strict=True)
    )


def _part(seen: Observed, attacks: Sequence[GradientMatching], rows: slice) -> Objective:
    """Some of the members, with copies of the models: hooks and modes of one are seen by all its
    threads.
    """
    own = seen.take(rows)
    updates = tuple(
        dataclasses.replace(update, model=copied(update.model)) for update in own.updates
    )
    return Objective(dataclasses.replace(own, updates=updates), attacks[rows], split=False)
