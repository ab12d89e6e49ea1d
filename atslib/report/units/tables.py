"""Tidy tables from artifacts: a row an image, a row a step, and where it all was made."""

import dataclasses
import datetime
import functools

import pandas as pd
import torch
from torch import Tensor

from atslib.measures.metrics import psnr
from atslib.report.result import NO_POLICY
from atslib.report.units.settings import Settings
from atslib.report.units.units import AttackUnit, dataset
from atslib.store import Artifact


def label(policy: str) -> str:
    """How tables name a policy."""
    return policy or NO_POLICY


@functools.lru_cache(maxsize=2)
def mean_image(name: str) -> Tensor:
    """Mean training image of a data set, (1, C, H, W) in [0, 1]: the best guess without a gradient."""
    return dataset(name, "train").pixels.float().mean(0, keepdim=True) / 255


def floors(target: Tensor, name: str) -> dict[str, Tensor]:
    """PSNR of what can be guessed without any gradient: flat mid-grey, and the mean training image."""
    pixels = target.float() / 255
    guesses = {"floor_grey": torch.full_like(pixels, 0.5), "floor_mean": mean_image(name).expand_as(pixels)}
    return {column: psnr(guess.contiguous(), pixels) for column, guess in guesses.items()}


def image_rows(artifact: Artifact, unit: AttackUnit) -> pd.DataFrame:
    """A row an image: policy, image, the metrics, the floors, and `gain`, PSNR minus the mean image's."""
    columns = {key: artifact[key] for key in ("psnr", "psnr_original", "mse", "ssim", "cost")}
    columns |= floors(artifact["target"], unit.model.dataset)
    table = pd.DataFrame({key: value.double().numpy() for key, value in columns.items()})
    table["gain"] = table["psnr"] - table["floor_mean"]
    table.insert(0, "image", range(unit.first, unit.last))
    table.insert(0, "policy", label(unit.policy))
    return table


def curve_rows(found: Artifact, policy: str) -> pd.DataFrame:
    """1 - cosine distance before each kept step; one value an image."""
    steps, images = found["trace"].shape
    return pd.DataFrame(
        {
            "policy": policy,
            "iteration": found["trace_steps"].repeat_interleave(images).numpy(),
            "image": list(range(images)) * steps,
            "gradsim": 1 - found["trace"].flatten().double().numpy(),
        }
    )


def provenance(settings: Settings, artifact: Artifact) -> dict[str, object]:
    """Provenance for the banner; `made` is the day of the computation, not of the page."""
    keys = ("device", "made", "torch", "python")
    facts = dataclasses.asdict(settings) | {key: artifact.facts[key] for key in keys}
    facts["made"] = datetime.datetime.fromisoformat(facts["made"]).date().isoformat()
    images = dataset(settings.dataset, "train")
    return facts | {"train": len(images), "note": images.note}
