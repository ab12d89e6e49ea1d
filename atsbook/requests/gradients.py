"""Requests that look at gradients without an attack: how they change in training, and what the last
layer gives away.
"""

import dataclasses
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atsbook.experiment import drawn
from atsbook.kept import Kept
from atsbook.networks import ModelRequest, dataset, trained
from atsbook.requests.batches import APART, Batches, chosen
from atsbook.requests.outcomes import OfAttack
from atsbook.store import Store
from atslib.attacks.analytic import invert_linear, of_last_layer
from atslib.clients.observe import ThreatModel, observe
from atslib.clients.prepare import to_images
from atslib.gradients.problems import example_gradients, unflatten
from atslib.measures.identification import TIE, identification, rolled
from atslib.measures.metrics import psnr
from atslib.models import before_last

CANDIDATES = 100  # among whose features those of an image are singled out


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagesRequest(Kept):
    """Gradients of the test images 0 … `images` - 1 before a training, after some of its `steps`,
    and at its end: what stage and image have to do with length and direction of a gradient.

    Its tensors: `norm` (S, N). Of directions, gradients of length 1, in sums of squares:
    `direction_all` (N,) around the mean of all, `direction_image` (N,) what the mean over the
    stages tells of the image, `direction_stage` () what the mean over the images tells of the
    stage. `same_stage` (S,) mean cosine of two images at one stage, `same_image` (S, S) of one
    image at two stages.
    """

    kind: ClassVar[str] = "stages"

    model: ModelRequest
    steps: tuple[int, ...]
    images: int

    @property
    def models(self) -> tuple[ModelRequest, ...]:
        """The network untrained, after each of the steps, and at the end."""
        on_the_way = (dataclasses.replace(self.model, step=step) for step in self.steps)
        return dataclasses.replace(self.model, train=None), *on_the_way, self.model

    @property
    def needs(self) -> tuple[Kept, ...]:
        """The networks, but for the untrained one."""
        return tuple(model for model in self.models if model.is_kept)

    @property
    def title(self) -> str:
        """Network, steps and images."""
        return f"gradients of {self.images} images at {len(self.models)} stages, {self.model.title}"

    @property
    def passes(self) -> float:
        """Forward and backward at every step."""
        return 3 * self.images * len(self.models)

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Compute the gradients of all images at every stage."""
        images = dataset(self.model.dataset, "test")[: self.images]
        pixels = to_images(images.pixels).to(device)
        labels = images.labels.to(device)
        rows = [
            example_gradients(trained(model, store, device)[0], pixels, labels).cpu()
            for model in self.models
        ]
        directions = torch.stack([F.normalize(row, dim=1) for row in rows])  # (S, N, P)
        mean = directions.mean((0, 1))
        by_image = directions.mean(0)
        by_stage = directions.mean(1)
        stages, count = directions.shape[:2]
        whole = count * by_stage.square().sum(1)
        return {
            "norm": torch.stack([row.norm(dim=1) for row in rows]),
            "direction_all": (directions - mean).square().sum((0, 2)),
            "direction_image": stages * (by_image - mean).square().sum(1),
            "direction_stage": count * (by_stage - mean).square().sum(),
            "same_stage": (whole - 1) / (count - 1),
            "same_image": torch.einsum("snp,tnp->st", directions, directions) / count,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureRequest(Kept):
    """What the last layer got of images that share gradients, read off the row of each one's label.

    Its tensors (B,): `error` of an image's features in shares of their length; `error_mean` (of the
    mean features of other clients, a guess that needs no gradient); `rank_target` of the image
    among 100 that the policy transformed, `rank_original` among 100 untouched ones. Ranks are by
    correlation, the mean features taken off. nan and 100 where a gradient says nothing.
    """

    kind: ClassVar[str] = "features"

    model: ModelRequest
    batches: Batches
    policy: str = ""

    @property
    def title(self) -> str:
        """Network, policy and batches."""
        where = f"{self.batches.count} batches of {self.batches.size}"
        return f"features of {where}, {self.policy or 'no policy'}, {self.model.title}"

    @property
    def passes(self) -> float:
        """Forward and backward for each image, forward for the candidates."""
        return 4 * self.batches.images + 2 * APART

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Read the features off each gradient, and compare them with those of the candidates."""
        model = trained(self.model, store, device)[0]
        size = self.batches.size
        pixels, labels = chosen(self.model.dataset, self.batches)
        both = torch.cat([pixels, dataset(self.model.dataset, "test").pixels[-APART:]])
        own_draws = drawn(range(len(both)), self.policy, seed=self.batches.seed, crop_flip=False)
        used = own_draws.apply(both)
        original, target = (_features(model, to_images(x).to(device)) for x in (both, used))
        count = len(pixels)
        parts = []
        for part in torch.arange(count).split(size * max(1, 64 // size)):
            images = to_images(used[part]).to(device)
            seen = observe(model, images, labels[part], threat=ThreatModel(batch=size))
            parts.append(_rows(seen.model, seen.gradients, labels[part].view(-1, size)).cpu())
        found = torch.cat(parts)
        own = target[:count]
        return {
            "error": (found - own).norm(dim=1) / own.norm(dim=1),
            "error_mean": (target[count:].mean(0) - own).norm(dim=1) / own.norm(dim=1),
            "rank_target": _among(found, target, count),
            "rank_original": _among(found, original, count),
        }


@torch.no_grad()
def _features(model: nn.Module, images: Tensor) -> Tensor:
    """What the last layer gets of each image, (B, D)."""
    found: list[Tensor] = []
    with before_last(model, found.append):
        for part in images.split(128):
            model(part)
    return torch.cat(found).cpu()


def _rows(model: nn.Module, gradients: Tensor, labels: Tensor) -> Tensor:
    """Features from the row of each image's label, (N · k, D); nan where its bias gradient is 0."""
    pairs = zip(unflatten(gradients, model), of_last_layer(model), strict=True)
    each = torch.arange(len(labels), device=gradients.device)[:, None], labels.to(gradients.device)
    weight, bias = (
        g[each].flatten(0, 1)[:, None] for g, own in pairs if own
    )  # a layer of one output for each image
    silent = bias == 0
    return torch.where(silent, torch.nan, invert_linear(weight, torch.where(silent, 1, bias)))


def _among(found: Tensor, features: Tensor, count: int) -> Tensor:
    """Rank of each of the first `count` features among 100 of them and others, by correlation
    without their mean.
    """
    found, features = (
        F.normalize(x - features[count:].mean(0), dim=1).nan_to_num() for x in (found, features)
    )
    scores = found @ features.T
    rows = torch.arange(count)
    block = (
        rows - rows % CANDIDATES
    )  # each is among the hundred that it is in, filled up by other clients' images
    index = block[:, None] + torch.arange(CANDIDATES)
    inside = index < count
    index = torch.where(inside, index, count + (index - count) % APART)
    return (scores.gather(1, index) >= scores[rows, rows][:, None] - TIE).sum(1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShiftsRequest(OfAttack):
    """An attack's images among candidates at all their circular shifts.

    Its tensors (B,): `rank_rolled`, as `rank_target`, with all circular shifts tolerated;
    `psnr_rolled`, at the best one. For networks that do not see where something is: their
    reconstructions are right up to a shift.
    """

    kind: ClassVar[str] = "rolled"

    @property
    def title(self) -> str:
        """Those of the attack, and what is looked for."""
        return f"shifts of {super().title}"

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Compare them."""
        made = self.attack_request.make(store, device)["reconstruction"].cpu()
        target = to_images(self.clients().used())
        names = dataset(self.model.dataset, "test").pixels[self.last : self.first + CANDIDATES]
        candidates = torch.cat([target, to_images(names)])
        own = torch.arange(len(made))
        _, down, right = rolled(made, target)
        moved = torch.stack(
            [x.roll((int(down[i, i]), int(right[i, i])), (1, 2)) for i, x in enumerate(target)]
        )
        return {
            "rank_rolled": identification(made, candidates, own, shift=None),
            "psnr_rolled": psnr(made, moved),
        }
