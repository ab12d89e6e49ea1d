"""Requests of the score pages: privacy and accuracy scores of given policies, and whole searches."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from atsbook.experiment import drawn
from atsbook.kept import Kept
from atsbook.networks import ModelRequest, dataset, network, trained
from atsbook.store import Store
from atslib.checkpoints import fingerprint, load_state, save_state
from atslib.clients.prepare import to_images
from atslib.data.load import Images
from atslib.errors import AtsError
from atslib.policies.policy import parse_policy
from atslib.rng import rng
from atslib.scores.scores import accuracy_score, area, gradsim_curve
from atslib.scores.search import SearchConfig, SearchResult, search

TOGETHER = 512  # images scored between two looks at the clock, at least under one policy
# The search looks at test images from here on, as the authors do: none of those that pages attack
UNSEEN = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreRequest(Kept):
    """Privacy scores of the first `images` test images under each policy.

    Crops, flips and the policies' draws are those of the attacks of the same seed, so that score
    and PSNR are of the same pixels; an image's noise start is the same for every policy and model.

    Its tensors: `scores` (P, B), lower is more private, and the `curves` (P, B, points) behind them.
    """

    kind: ClassVar[str] = "privacy"

    model: ModelRequest
    policies: tuple[str, ...]
    images: int
    points: int = 21
    variant: str = "fixed"
    seed: int = 0

    @property
    def title(self) -> str:
        """How many policies, and on what."""
        return f"privacy scores of {len(self.policies)} policies on {self.model.dataset}"

    @property
    def passes(self) -> float:
        """Forward and backward, every point of every curve."""
        return 3 * self.points * self.images * len(self.policies)

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Follow the curves, some policies at a time; a killed call is resumed.

        Raises:
            AtsError: more images than there are.
        """
        if self.images > (there := len(dataset(self.model.dataset, "test"))):
            raise AtsError(
                f"{self.images} images to score: {self.model.dataset} has {there} test images"
            )
        model, _ = trained(self.model, store, device)
        run = fingerprint(self, model.state_dict())
        kept = load_state(state, run)
        curves = kept[0]["curves"] if kept else torch.empty(0, self.images, self.points)
        while len(curves) < len(self.policies):
            these = self.policies[len(curves) :][: max(1, TOGETHER // self.images)]
            curves = torch.cat([curves, _curves(self, model.eval(), these, device).cpu()])
            save_state(state, run, {"curves": curves})
            store.check_time()
        return {
            "scores": area(curves.flatten(0, 1), self.variant).view(len(curves), -1),
            "curves": curves,
        }


def _curves(
    request: ScoreRequest, model: nn.Module, policies: Sequence[str], device: torch.device
) -> Tensor:
    """The curves (P, B, points) behind the request's scores of `policies`."""
    images = dataset(request.model.dataset, "test")[: request.images]
    pixels = torch.cat(
        [drawn(range(request.images), p, seed=request.seed).apply(images.pixels) for p in policies]
    )
    streams = rng(request.seed, "score start")
    noise = torch.stack(
        [torch.rand(images.pixels.shape[1:], generator=streams) for _ in range(request.images)]
    )
    curves = gradsim_curve(
        model,
        to_images(pixels.to(device)),
        images.labels.repeat(len(policies)).to(device),
        start=noise.repeat(len(policies), 1, 1, 1).to(device),
        points=request.points,
        variant=request.variant,
    )
    return curves.view(len(policies), -1, request.points)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccuracyRequest(Kept):
    """Accuracy scores (P,) of policies on an untrained network and on test images that no page
    attacks.
    """

    kind: ClassVar[str] = "accuracy"

    model: ModelRequest
    policies: tuple[str, ...]
    images: int
    variant: str
    seed: int = 0

    @property
    def title(self) -> str:
        """How many policies, and which variant."""
        return f"accuracy scores, variant {self.variant}, of {len(self.policies)} policies on {self.model.dataset}"

    @property
    def passes(self) -> float:
        """Forward and backward for each image."""
        return 3 * self.images * len(self.policies)

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Score each policy, all with the same stream."""
        model = network(self.model).to(device).eval()
        images = unseen(self.model.dataset)[: self.images]
        policies = [parse_policy(policy) for policy in self.policies]
        streams = [rng(self.seed, "accuracy scores") for _ in policies]
        scores = [
            accuracy_score(model, images, policy, variant=self.variant, rng=stream)
            for policy, stream in zip(policies, streams, strict=True)
        ]
        return {"scores": torch.tensor(scores, dtype=torch.float64)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchRequest(Kept):
    """A search: scores of all its candidates, on test images that no page attacks.

    They are kept shard by shard, see `searched`; its own tensor is the time it took, `seconds` ().
    """

    kind: ClassVar[str] = "search"

    model: ModelRequest
    config: SearchConfig
    seed: int = 0

    @property
    def title(self) -> str:
        """How many candidates."""
        return f"search of {self.config.candidates} candidates on {self.model.dataset}"

    @property
    def passes(self) -> float:
        """Forward and backward, for the curves and for the Jacobian."""
        config = self.config
        images = 0.0
        share = 1.0
        seen = 0
        for rung, kept in (*config.rungs, (config.images, 0.0)):
            images = images + share * (rung - seen)
            share = kept
            seen = rung
        return 3 * config.candidates * (config.points * images * config.draws + config.acc_images)

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Score all candidates."""
        # Before the clock: the search takes the network as given.
        trained(self.model, store, device)
        started = time.monotonic()
        searched(self, store, device)
        return {"seconds": torch.tensor(time.monotonic() - started)}


def searched(request: SearchRequest, store: Store, device: torch.device) -> SearchResult:
    """What the search found, from the stored scores."""
    semi, _ = trained(request.model, store, device)
    untrained = network(dataclasses.replace(request.model, train=None)).to(device).eval()
    images = unseen(request.model.dataset)
    return search(
        request.config, semi.eval(), untrained, images, seed=request.seed, keep=store.keep
    )


def unseen(name: str) -> Images:
    """Test images that no page attacks; of a small set the second half."""
    images = dataset(name, "test")
    return images[min(UNSEEN, len(images) // 2) :]
