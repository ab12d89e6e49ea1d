"""What an attack finds layer by layer and frequency by frequency: gradients at its iterates, its error's spectrum."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from atslib.attacks.engine import frame_steps
from atslib.clients.prepare import to_images
from atslib.gradients.problems import problem_gradients
from atslib.report.units.networks import network, trained
from atslib.report.units.units import CHUNK, AttackUnit, attacked
from atslib.store import Artifact, Store

GROUPS = {"whole": "whole gradient", "first": "first layer", "shallow": "shallow third", "deep": "deep third"}


def convolutions(model: nn.Module) -> list[str]:
    """Names of the convolutions' weights, from the input on."""
    return [name for name, p in model.named_parameters() if p.ndim == 4]


@torch.no_grad()
def layer_similarity(model: nn.Module, frames: Tensor, target: Tensor, labels: Tensor) -> Tensor:
    """Cosine of each convolution's gradient at each iterate to its gradient at the target.

    Args:
        model: in eval mode, as victim and attacker run it.
        frames: (F, B, C, H, W) floats in [0, 1]; `target` is (B, C, H, W), `labels` (B,).
    Returns:
        (L, F, B) in [-1, 1], the layers of `convolutions`; 1 is the same direction. 0 where a gradient vanishes.
    """
    names = [name for name, _ in model.named_parameters()]
    kept = [names.index(name) for name in convolutions(model)]

    def directions(images: Tensor, classes: Tensor) -> list[Tensor]:
        gradients = problem_gradients(model, images[:, None], classes[:, None])
        return [nn.functional.normalize(gradients[i].flatten(1), dim=1) for i in kept]

    rows = []
    for images, truth, classes in zip(frames.split(CHUNK, 1), target.split(CHUNK), labels.split(CHUNK), strict=True):
        aim = directions(truth, classes)
        steps = [[(a * b).sum(1) for a, b in zip(directions(x, classes), aim, strict=True)] for x in images]
        rows.append(torch.stack([torch.stack(step) for step in steps], 1))
    return torch.cat(rows, 2)


def similarities(unit: AttackUnit, store: Store, device: torch.device) -> Artifact:
    """`gradsim` (L, F, B) of the unit's attack, see `layer_similarity`."""

    def compute(state: object) -> dict[str, Tensor]:
        attack, (model, _) = attacked(unit, store, device), trained(unit.model, store, device)
        frames, target, labels = (attack[n].to(device) for n in ("frames", "target", "labels"))
        return {"gradsim": layer_similarity(model, frames, to_images(target), labels)}

    return store.get("layers", unit, compute, label=f"similarity by layer, {unit.policy or 'none'}")


def third(position: int, layers: int) -> str:
    """Which third of the layers, counted from the input."""
    return ("shallow", "middle", "deep")[3 * position // layers]


def layer_rows(unit: AttackUnit, store: Store, device: torch.device) -> pd.DataFrame:
    """One row per layer and image at the last iterate."""
    last = similarities(unit, store, device)["gradsim"][:, -1].double().numpy()
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
    """One row per iterate, image and group of layers, see `GROUPS`.

    That of the whole gradient is what the attack itself descends; where the distance of an iterate was not kept, it is
    read off a straight line between those that were.
    """
    artifact, gradsim = attacked(unit, store, device), similarities(unit, store, device)["gradsim"].double()
    layers, _, images = gradsim.shape
    steps, known = frame_steps(unit.frames, unit.attack.steps), artifact["trace_steps"].numpy()
    whole = [np.interp(steps, known, 1 - cost) for cost in artifact["trace"].double().T.numpy()]
    values = {"whole": np.stack(whole, 1), "first": gradsim[0].numpy()}
    for name in ("shallow", "deep"):
        values[name] = gradsim[[i for i in range(layers) if third(i, layers) == name]].mean(0).numpy()
    keys = {"iteration": np.repeat(steps, images), "image": np.tile(range(images), len(steps))}
    return pd.concat([pd.DataFrame({"layers": n, **keys, "gradsim": v.ravel()}) for n, v in values.items()])


def radial_power(images: Tensor) -> Tensor:
    """Power of each image's spectrum averaged over rings of equal frequency and over channels.

    Args:
        images: (B, C, H, W).
    Returns:
        (B, min(H, W) // 2 + 1), mean squared amplitude at 0, 1, … cycles an image. Entry 0 is the squared mean
        of the pixels; the corners beyond the highest frequency of a row are left out.
    """
    height, width = images.shape[-2:]
    power = (torch.fft.fft2(images.double()) / (height * width)).abs().square().mean(1)
    y, x = (torch.fft.fftfreq(n, 1 / n) for n in (height, width))
    ring = torch.hypot(y[:, None], x[None]).round().long().flatten()
    rings = min(height, width) // 2 + 1
    inside = ring < rings
    sums = power.new_zeros(len(power), rings).index_add_(1, ring[inside], power.flatten(1)[:, inside])
    return sums / torch.bincount(ring[inside], minlength=rings)


def spectra(unit: AttackUnit, store: Store, device: torch.device) -> Artifact:
    """`error_power`, of reconstruction minus target, and `target_power`, its own, (B, frequencies) of an attack."""

    def compute(state: object) -> dict[str, Tensor]:
        attack = attacked(unit, store, device)
        target = to_images(attack["target"], torch.float64)
        error = attack["reconstruction"].double() - target
        return {"error_power": radial_power(error), "target_power": radial_power(target)}

    return store.get("spectrum", unit, compute, label=f"spectrum of the error, {unit.policy or 'none'}")


def spectrum_rows(unit: AttackUnit, store: Store, device: torch.device) -> pd.DataFrame:
    """One row per image and frequency: `error` and `target` of `spectra`, and their ratio in dB."""
    error, own = (spectra(unit, store, device)[name] for name in ("error_power", "target_power"))
    images, rings = error.shape
    keys = {"image": np.repeat(range(images), rings), "frequency": np.tile(range(rings), images)}
    table = pd.DataFrame(keys | {"error": error.flatten().numpy(), "target": own.flatten().numpy()})
    return table.assign(ratio_db=10 * np.log10(table["error"].clip(lower=1e-20) / table["target"].clip(lower=1e-20)))
