"""What an attack finds layer by layer and frequency by frequency: gradients at its iterates, its
error's spectrum.
"""

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from atsbook.runs.attacks import CHUNK, AttackUnit, attacked
from atsbook.runs.networks import network, trained
from atsbook.runs.store import Artifact, Store
from atslib.attacks.engine import frame_steps
from atslib.clients.prepare import to_images
from atslib.gradients.problems import problem_gradients

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


def similarities(unit: AttackUnit, store: Store, device: torch.device) -> Artifact:
    """Of the unit's attack, see `layer_similarity`: `last` (L, B), of its last iterate, and
    `groups` (4, F, B).

    The groups are those of `GROUPS`: the whole gradient, the first layer, and the means of the
    thirds.
    """

    def compute(state: object) -> dict[str, Tensor]:
        attack = attacked(unit, store, device)
        (model, _) = trained(unit.model, store, device)
        frames, target, labels = (attack[n].to(device) for n in ("frames", "target", "labels"))
        layers, whole = layer_similarity(model, frames, to_images(target), labels)
        thirds = [third(i, len(layers)) for i in range(len(layers))]
        means = [
            layers[[i for i, own in enumerate(thirds) if own == name]].mean(0)
            for name in ("shallow", "deep")
        ]
        return {"last": layers[:, -1], "groups": torch.stack([whole, layers[0], *means])}

    return store.get("layers", unit, compute, label=f"similarity by layer, {unit.policy or 'none'}")


def layer_rows(unit: AttackUnit, store: Store, device: torch.device) -> pd.DataFrame:
    """One row per layer and image at the last iterate."""
    last = similarities(unit, store, device)["last"].double().numpy()
    names = convolutions(network(unit.model))
    layers, images = last.shape
    return pd.DataFrame(
        {
            "layer": np.repeat(names, images),
            "position": np.repeat(range(layers), images),
            "third": np.repeat([third(i, layers) for i in range(layers)], images),
            "image": np.tile(range(images), layers),
            "gradsim": last.ravel(),
        }
    )


def group_rows(unit: AttackUnit, store: Store, device: torch.device) -> pd.DataFrame:
    """One row per iterate, image and group of layers, see `GROUPS`."""
    groups = similarities(unit, store, device)["groups"].double().numpy()
    steps = frame_steps(unit.frames, unit.attack.steps)
    images = groups.shape[2]
    keys = {"iteration": np.repeat(steps, images), "image": np.tile(range(images), len(steps))}
    parts = zip(GROUPS, groups, strict=True)
    return pd.concat(
        [pd.DataFrame({"layers": name, **keys, "gradsim": own.ravel()}) for name, own in parts]
    )


def radial_power(images: Tensor) -> Tensor:
    """Power of each image's spectrum averaged over rings of equal frequency and over channels.

    Args:
        images: (B, C, H, W).
    Returns:
        (B, min(H, W) // 2 + 1), mean squared amplitude at 0, 1, … cycles an image. Entry 0 is the
        squared mean of the pixels; the corners beyond the highest frequency of a row are left out.
    """
    height, width = images.shape[-2:]
    power = (torch.fft.fft2(images.double()) / (height * width)).abs().square().mean(1)
    y, x = (torch.fft.fftfreq(n, 1 / n) for n in (height, width))
    ring = torch.hypot(y[:, None], x[None]).round().long().flatten()
    rings = min(height, width) // 2 + 1
    inside = ring < rings
    sums = power.new_zeros(len(power), rings).index_add_(
        1, ring[inside], power.flatten(1)[:, inside]
    )
    return sums / torch.bincount(ring[inside], minlength=rings)


def spectra(unit: AttackUnit, store: Store, device: torch.device) -> Artifact:
    """`error_power`, of reconstruction minus target, and `target_power`, its own, (B, frequencies)
    of an attack.
    """

    def compute(state: object) -> dict[str, Tensor]:
        attack = attacked(unit, store, device)
        target = to_images(attack["target"], torch.float64)
        error = attack["reconstruction"].double() - target
        return {"error_power": radial_power(error), "target_power": radial_power(target)}

    return store.get(
        "spectrum", unit, compute, label=f"spectrum of the error, {unit.policy or 'none'}"
    )


def spectrum_rows(unit: AttackUnit, store: Store, device: torch.device) -> pd.DataFrame:
    """One row per image and frequency: `error` and `target` of `spectra`, and their ratio in dB."""
    error, own = (spectra(unit, store, device)[name] for name in ("error_power", "target_power"))
    images, rings = error.shape
    keys = {"image": np.repeat(range(images), rings), "frequency": np.tile(range(rings), images)}
    table = pd.DataFrame(keys | {"error": error.flatten().numpy(), "target": own.flatten().numpy()})
    return table.assign(
        ratio_db=10 * np.log10(table["error"].clip(lower=1e-20) / table["target"].clip(lower=1e-20))
    )
