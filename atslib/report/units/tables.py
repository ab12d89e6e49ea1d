"""Tidy tables from artifacts: one row per image, one row per step, and where it all was made."""

import dataclasses
import datetime
import functools
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from atslib.clients.prepare import mean_prepared
from atslib.measures.metrics import psnr
from atslib.report.result import NO_POLICY
from atslib.report.units.settings import Settings
from atslib.report.units.units import AttackUnit, ModelUnit, attacked, dataset, device_of, trained
from atslib.rng import rng
from atslib.store import Artifact, Store


def label(policy: str) -> str:
    """How tables name a policy."""
    return policy or NO_POLICY


@functools.lru_cache(maxsize=2)
def mean_image(name: str) -> Tensor:
    """Mean training image of a data set, (1, C, H, W) in [0, 1]: the best guess without a gradient."""
    return dataset(name, "train").pixels.float().mean(0, keepdim=True) / 255


@functools.lru_cache(maxsize=64)
def policy_image(name: str, policy: str, crop_flip: bool) -> Tensor:
    """Mean training image after crop, flip and policy, (1, C, H, W): the best guess of one who knows the policy."""
    pixels = dataset(name, "train").pixels
    return mean_prepared(pixels, policy, rng=rng(0, "floor", name, policy), crop_flip=crop_flip)


def floors(target: Tensor, name: str) -> dict[str, Tensor]:
    """PSNR in dB of what can be guessed without any gradient: flat mid-grey, and the mean training image.

    Args:
        target: (B, C, H, W) uint8, what the client used.
        name: of the data set.
    """
    images = target.float() / 255
    guesses = {"floor_grey": torch.full_like(images, 0.5), "floor_mean": mean_image(name).expand_as(images)}
    return {column: psnr(guess.contiguous(), images) for column, guess in guesses.items()}


def image_rows(artifact: Artifact, unit: AttackUnit) -> pd.DataFrame:
    """One row per image: policy, image, the metrics, the floors, `gain`, PSNR minus the mean image's, and `stuck`.

    An attack that is `stuck` never left its start, so its PSNR is that of a start, not of an attack.
    """
    columns = {key: artifact[key] for key in ("psnr", "psnr_original", "mse", "ssim", "cost")}
    columns |= floors(artifact["target"], unit.model.dataset)
    table = pd.DataFrame({key: value.double().numpy() for key, value in columns.items()})
    table["gain"] = table["psnr"] - table["floor_mean"]
    table["stuck"] = artifact["stuck"].numpy()
    table.insert(0, "image", range(unit.first, unit.last))
    table.insert(0, "policy", label(unit.policy))
    return table


def attack_rows(
    units: Mapping[object, AttackUnit], names: Sequence[str], settings: Settings, store: Store
) -> tuple[pd.DataFrame, dict[object, Artifact]]:
    """Attack all units: one row per unit and image, and the artifacts.

    Args:
        units: by a key, whose parts become the columns `names`.
    """
    artifacts = {key: attacked(unit, store, device_of(settings.device)) for key, unit in units.items()}
    rows = [image_rows(artifacts[key], unit).assign(**_named(names, key)) for key, unit in units.items()]
    return pd.concat(rows, ignore_index=True), artifacts


def accuracy_rows(
    networks: Mapping[object, ModelUnit], names: Sequence[str], settings: Settings, store: Store
) -> pd.DataFrame:
    """Train all networks: one row each with `accuracy` in percent and `train`, its number of training images.

    Args:
        networks: by a key, whose parts become the columns `names`.
    """
    made = {key: trained(unit, store, device_of(settings.device))[1] for key, unit in networks.items()}
    return pd.DataFrame(
        _named(names, key) | {"accuracy": float(model["accuracy"]), "train": int(model["images"])}
        for key, model in made.items()
    )


def _named(names: Sequence[str], key: object) -> dict[str, object]:
    return dict(zip(names, key if isinstance(key, tuple) else (key,), strict=True))


def curve_rows(artifact: Artifact, policy: str) -> pd.DataFrame:
    """Cosine similarity of the gradients before each step that was kept; one row per step and image."""
    steps, images = artifact["trace"].shape
    return pd.DataFrame(
        {
            "policy": policy,
            "iteration": artifact["trace_steps"].repeat_interleave(images).numpy(),
            "image": list(range(images)) * steps,
            "gradsim": 1 - artifact["trace"].flatten().double().numpy(),
        }
    )


def provenance(settings: Settings, artifact: Artifact) -> dict[str, object]:
    """Provenance for the banner; `made` is the day of the computation, not of the page."""
    keys = ("device", "made", "torch", "python")
    facts = dataclasses.asdict(settings) | {key: artifact.facts[key] for key in keys}
    facts["made"] = datetime.datetime.fromisoformat(facts["made"]).date().isoformat()
    images = dataset(settings.dataset, "train")
    return facts | {"train": len(images), "note": images.note}
