"""What an attack finds layer by layer: gradients at its iterates."""

import dataclasses
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from atsbook.networks import trained
from atsbook.requests.outcomes import OfAttack
from atsbook.store import Store
from atslib.clients.prepare import to_images
from atslib.gradients.problems import problem_gradients

CHUNK = 16  # gradients of single images in memory at once
GROUPS = {
    "whole": "whole gradient",
    "first": "first layer",
    "shallow": "shallow third",
    "deep": "deep third",
}


def convolutions(model: nn.Module) -> list[str]:
    """Names of the convolutions' weights, from the input on."""
    return [name for name, p in model.named_parameters() if p.ndim == 4]


@torch.no_grad()
def layer_similarity(
    model: nn.Module, frames: Tensor, target: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Cosine of each convolution's gradient, and of the whole one, at each iterate to that at the
    target.

    Args:
        model: in eval mode, as victim and attacker run it.
        frames: (F, B, C, H, W) floats in [0, 1]; `target` is (B, C, H, W), `labels` (B,).
    Returns:
        (L, F, B), the layers of `convolutions`, and (F, B), the whole gradient, in [-1, 1]; 1 is
        the same direction. 0 where a gradient vanishes.
    """
    names = [name for name, _ in model.named_parameters()]
    kept = [names.index(name) for name in convolutions(model)]

    def directions(images: Tensor, classes: Tensor) -> list[Tensor]:
        gradients = [
            g.flatten(1) for g in problem_gradients(model, images[:, None], classes[:, None])
        ]
        return [
            nn.functional.normalize(g, dim=1)
            for g in (*(gradients[i] for i in kept), torch.cat(gradients, 1))
        ]

    rows = []
    for images, truth, classes in zip(
        frames.split(CHUNK, 1), target.split(CHUNK), labels.split(CHUNK), strict=True
    ):
        aim = directions(truth, classes)
        steps = [
            [(a * b).sum(1) for a, b in zip(directions(x, classes), aim, strict=True)]
            for x in images
        ]
        rows.append(torch.stack([torch.stack(step) for step in steps], 1))
    every = torch.cat(rows, 2)
    return every[:-1], every[-1]


def third(position: int, layers: int) -> str:
    """Which third of the layers, counted from the input."""
    return ("shallow", "middle", "deep")[3 * position // layers]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayersRequest(OfAttack):
    """How similar the gradients of an attack's iterates are to the client's, layer by layer.

    Its tensors: `last` (L, B), of the last iterate, and `groups` (4, F, B), those of `GROUPS`: the
    whole gradient, the first layer, and the means of the shallow and the deep third.
    """

    kind: ClassVar[str] = "layers"

    @property
    def title(self) -> str:
        """Those of the attack, and what is looked at."""
        return f"similarity by layer, {super().title}"

    @property
    def passes(self) -> float:
        """A gradient at each iterate of each image."""
        return 3 * self.frames * (self.last - self.first)

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Compare the gradients at each iterate that was kept."""
        attack = self.attack_request.make(store, device)
        model, _ = trained(self.model, store, device)
        frames = attack["frames"].to(device)
        target = to_images(attack["target"].to(device))
        labels = attack["labels"].to(device)
        layers, whole = layer_similarity(model, frames, target, labels)
        thirds = [third(i, len(layers)) for i in range(len(layers))]
        means = [
            layers[[i for i, own in enumerate(thirds) if own == name]].mean(0)
            for name in ("shallow", "deep")
        ]
        return {"last": layers[:, -1], "groups": torch.stack([whole, layers[0], *means])}
