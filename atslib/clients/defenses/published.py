"""Defenses of other publications that act elsewhere than on the shared gradient alone.

To add one: a subclass of `Strength` and its entry in `PUBLISHED`.
"""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor, nn

from atslib.clients.defenses.defense import NAMED, Defense, Gradients, Names, Stream, needed
from atslib.clients.defenses.perturbations import clip, gaussian
from atslib.errors import AtsError
from atslib.models import before_last, in_mode, last_linear, shared_parameters

CLIP = 1.0  # largest l2 norm of an image's gradient under DP-SGD
DIRECTIONS = (
    128  # random ones, of all images of a gradient together, in which Soteria estimates slopes
)


@dataclasses.dataclass(frozen=True)
class Strength(Defense):
    """A defense written `name:strength`; `meaning` says what its strength is, `most` how large it
    may be.
    """

    name: ClassVar[str]
    meaning: ClassVar[str]
    most: ClassVar[float] = float("inf")

    strength: float

    def __post_init__(self) -> None:
        if not 0 < self.strength < float("inf") or self.strength > self.most:
            raise AtsError(
                f"defense {self.name}: strength {self.strength} must be the {self.meaning}"
            )

    def __str__(self) -> str:
        return f"{self.name}:{self.strength!r}".removesuffix(".0")


class Soteria(Strength):
    """Leaves features out of the gradient of the last layer's weights (Sun et al. 2021,
    arXiv:2012.06043).

    Those go whose value is largest for the slope of the image behind it, |r| / ‖∂r/∂x‖: small
    changes of the image cannot make up for them. The share is of the features that are not 0. As in
    the authors' code it holds for all images of a gradient together, and the network is computed as
    it was. For a single image the slopes are exact; for a batch they are estimated in random
    directions, since an exact one takes a backward pass for each feature.
    """

    name: ClassVar[str] = "soteria"
    meaning: ClassVar[str] = "share of the last layer's inputs left out, above 0 and below 1"
    most: ClassVar[float] = 1 - 1e-9

    def after(
        self, gradients: Gradients, *, model: nn.Module, rng: Stream, images: Tensor
    ) -> Gradients:
        """Zero the columns of the last layer's weight gradient that belong to the features left
        out.
        """
        network = in_mode(model, "eval")
        kept = []
        name = _weight_of_last(network, gradients)
        if images.shape[1] == 1:
            each = zip(*(part[:, None] for part in sensitivity(network, images[:, 0])), strict=True)
        else:
            each = (sensitivity(network, problem, needed(rng, self)) for problem in images)
        for features, slopes in each:
            alive = (features != 0).any(
                0
            )  # a feature that is 0 tells nothing, and its column is 0 already
            ratio = torch.where(features == 0, 0, slopes / features.abs()).sum(0)
            count = int(round(self.strength * int(alive.sum()), 6))
            dropped = ratio.where(alive, torch.inf).topk(count, largest=False).indices
            kept.append(torch.ones_like(ratio).index_fill(0, dropped, 0))
        return gradients | {name: gradients[name] * torch.stack(kept)[:, None]}


def sensitivity(model: nn.Module, images: Tensor, rng: Stream = None) -> tuple[Tensor, Tensor]:
    """The inputs of the last layer and the norm of their slopes by the image, ‖∂r/∂x‖, each (B,
    features).

    Exact without `rng`; with it an unbiased estimate of each norm, by the slopes in random
    directions.
    """

    def features(x: Tensor) -> Tensor:
        seen = []
        with before_last(model, seen.append):
            model(x)
        return seen[0]

    x = images.detach().clone().requires_grad_()
    with torch.enable_grad():
        r = features(x)
        if rng is None:
            rows = [
                torch.autograd.grad(column.sum(), x, retain_graph=True)[0] for column in r.unbind(1)
            ]
            return r.detach(), torch.stack([row.flatten(1).norm(dim=1) for row in rows], 1)
        count = -(-DIRECTIONS // len(images))
        total = 0
        back = torch.zeros_like(r, requires_grad=True)
        (pulled,) = torch.autograd.grad(
            r, x, back, create_graph=True
        )  # linear in `back`: its slope is ∂r/∂x
        for _ in range(count):
            direction = torch.randn(images.shape, generator=rng, device=rng.device).to(images)
            total = total + torch.autograd.grad(pulled, back, direction, retain_graph=True)[0].abs()
    return r.detach(), total / count * (torch.pi / 2) ** 0.5  # E|N(0, s²)| is s · √(2/π)


class Bottleneck(Strength):
    """A variational bottleneck before the last layer, in the manner of PRECODE (Scheliga et al.
    2022).

    Unlike PRECODE's it has no parameters of its own: the latent's mean is the vector of features,
    standardized, its deviation is the strength, and decoding undoes the standardization. So the
    divergence from the prior, which PRECODE adds to the loss, is a constant. Clients sample anew
    for each gradient; the trained network is used without.
    """

    name: ClassVar[str] = "precode"
    meaning: ClassVar[str] = "deviation of the latent, above 0"

    def inside(self, model: nn.Module, *, rng: Stream = None) -> nn.Module:
        """The network, sampling."""
        last_linear(model)
        return _Sampling(model, self.strength, needed(rng, self))


class _Sampling(nn.Module):
    def __init__(self, model: nn.Module, deviation: float, rng: torch.Generator):
        super().__init__()
        self.model = model
        self.deviation = deviation
        self.rng = rng

    def forward(self, images: Tensor) -> Tensor:
        def sample(features: Tensor) -> Tensor:
            spread = features.detach().std(1, keepdim=True, correction=0)
            noise = torch.randn(features.shape, generator=self.rng, device=self.rng.device).to(
                features
            )
            return features + self.deviation * spread * noise

        with before_last(self.model, sample):
            return self.model(images)


class MixUp(Strength):
    """Each image and its label are mixed with those of its neighbour in the batch (Zhang et al.
    2018).

    The strength is the other's share; MixUp draws it from a Beta distribution, here it is fixed, so
    that strengths can be compared.
    """

    name: ClassVar[str] = "mixup"
    meaning: ClassVar[str] = "share of the other image, above 0 and at most 0.5"
    most: ClassVar[float] = 0.5

    def examples(
        self, images: Tensor, targets: Tensor, *, rng: Stream = None
    ) -> tuple[Tensor, Tensor]:
        """Mixed images, and class probabilities."""
        if len(images) < 2:
            raise AtsError(f"defense {self} mixes images, and there is one; give at least two")
        mixed = [
            (1 - self.strength) * part + self.strength * part.roll(1, 0)
            for part in (images, targets)
        ]
        return mixed[0], mixed[1]


class PrivateSGD(Strength):
    """DP-SGD (Abadi et al. 2016): each image's gradient is clipped to norm 1, and their sum gets
    Gaussian noise.

    The strength is the noise's standard deviation over the bound. What it guarantees says
    `accountant.epsilon`.
    """

    name: ClassVar[str] = "dp"
    meaning: ClassVar[str] = "noise multiplier, above 0"

    def each(self, gradients: Gradients) -> Gradients:
        """Clip each image's gradient."""
        return clip(gradients, CLIP, None)

    def after(self, gradients: Gradients, *, rng: Stream = None) -> Gradients:
        """Noise on the sum."""
        return gaussian(gradients, self.strength * CLIP, needed(rng, self))


PUBLISHED: dict[str, type[Strength]] = {
    cls.name: cls for cls in (Soteria, Bottleneck, MixUp, PrivateSGD)
}
NAMED.append(
    Names(
        PUBLISHED,
        lambda name: PUBLISHED[name].meaning,
        lambda name, strength: PUBLISHED[name](strength),
    )
)


def _weight_of_last(model: nn.Module, gradients: Gradients) -> str:
    """What the weight of the last layer is called among the gradients, which stand in the
    parameters' order.
    """
    weight = last_linear(model).weight
    named = zip(gradients, shared_parameters(model).values(), strict=True)
    found = next((name for name, parameter in named if parameter is weight), None)
    if found is None:
        raise AtsError(
            "the last layer is frozen: its gradient is not shared, and there is nothing to defend"
        )
    return found
