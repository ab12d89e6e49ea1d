"""Attackers who know the client's defense, where it is no policy: pruning, Soteria, a bottleneck,
MixUp.

Clipping needs none, since the cosine of two gradients does not depend on their lengths, and noise
no other than a stronger prior: `GradientMatching.tv`.
"""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from atslib.attacks.analytic import entries, last_features, of_last_layer
from atslib.attacks.attack import Reconstruction
from atslib.attacks.composed import Around
from atslib.attacks.matching import GradientMatching
from atslib.attacks.run import run_attack
from atslib.attacks.through_policy import ThroughPolicy
from atslib.clients.view import Observed, Update
from atslib.errors import AtsError


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptEntries(Around):
    """Leaves out of the distance what was not shared: the entries that are exactly 0, as pruning
    and Soteria leave.

    Attributes:
        inner: the attack on the others; it may be one through a policy.
    """

    words: ClassVar[str] = " on the entries that were kept"
    kinds: ClassVar[object] = GradientMatching | ThroughPolicy

    inner: GradientMatching | ThroughPolicy

    def run(self, seen: Observed, **options: object) -> Reconstruction:
        """Run it on every gradient of `seen`; `options` are those of `reconstruct`."""
        updates = tuple(dataclasses.replace(u, kept=u.gradients != 0) for u in seen.updates)
        return run_attack(dataclasses.replace(seen, updates=updates), self.inner, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownFeatures(Around):
    """Reads what the last layer got off its gradient, noise and all, and compares the layers before
    it.

    What the layer got, a sampled latent for instance, is known for a single image
    (`last_features`). With it the layer's outputs are known too, and how the gradient flows back
    from them; the noise is no part of the attack any more. Optimizing the latent beside the image
    would have to find the same values.
    """

    words: ClassVar[str] = " with the last layer's inputs read off"

    def run(self, seen: Observed, **options: object) -> Reconstruction:
        """Run it on every gradient of `seen`; `options` are those of `reconstruct`.

        Raises:
            AtsError: a gradient is of several images, or as `last_features`.
        """
        if seen.threat.batch > 1:
            raise AtsError(
                f"KnownFeatures needs one image per gradient; ThreatModel.batch={seen.threat.batch}"
            )
        read_off = dataclasses.replace(seen, updates=tuple(map(_read_off, seen.updates)))
        return run_attack(read_off, self.inner, **options)


def _read_off(update: Update) -> Update:
    """The update with the inputs of its last layer, and without that layer in the distance."""
    return dataclasses.replace(
        update, features=last_features(update), kept=~entries(update, of_last_layer(update.model))
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BothImages(Around):
    """Searches both images of a mixture whose form it knows, and returns the one of which there is
    more.

    Any two images of the right sum explain the gradient; the prior of `inner` chooses among them,
    at its full weight for each.

    Attributes:
        inner: the attack.
        share: of the other image.
    """

    words: ClassVar[str] = " on both images of the mixture"

    share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share < 1:
            raise AtsError(f"BothImages.share={self.share} must be above 0 and below 1")

    def run(
        self,
        seen: Observed,
        *,
        rng: torch.Generator,
        start: Tensor | None = None,
        **options: object,
    ) -> Reconstruction:
        """Run it on every gradient of `seen`, of one mixture each.

        Args:
            start: of the first images, (N, C, H, W) or (restarts, N, C, H, W); the second begin at
                another's.
        Raises:
            AtsError: a gradient is of several mixtures, or the labels are not known.
        """
        if seen.threat.batch > 1 or seen.labels is None:
            raise AtsError(
                "BothImages needs known labels and ThreatModel.batch=1, one mixture per gradient"
            )
        updates = tuple(dataclasses.replace(u, share=self.share) for u in seen.updates)
        pairs = dataclasses.replace(
            seen, updates=updates, threat=dataclasses.replace(seen.threat, batch=2)
        )
        if start is not None:
            start = torch.stack([start, start.roll(1, -4)], -4).flatten(-5, -4)
        weights = {
            name: 2 * weight for name, weight in self.inner.weights.items()
        }  # of the mean over both
        inner = dataclasses.replace(
            self.inner, tv=weights.pop("tv"), penalties=tuple(weights.items())
        )
        made = run_attack(pairs, inner, rng=rng, start=start, **options)
        first = {name: getattr(made, name)[:, ::2] for name in ("frames", "restarts")}
        return dataclasses.replace(made, images=made.images[::2], **first)
