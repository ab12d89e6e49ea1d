"""Tidy tables from artifacts: one row per image, one row per step, and where it all was made."""

import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from atsbook.experiment import AttackRequest, outcomes_of_all
from atsbook.findings.result import NO_POLICY
from atsbook.networks import dataset
from atsbook.packing import PICTURES, as_kept
from atsbook.store import Artifact
from atslib.clients.prepare import mean_prepared, to_images
from atslib.measures.guesses import psnr_of_guess
from atslib.measures.metrics import psnr
from atslib.rng import rng

NOISES = 16  # pure-noise images behind `noise_floor`


def label(policy: str) -> str:
    """How tables name a policy."""
    return policy or NO_POLICY


@functools.lru_cache(maxsize=2)
def mean_image(name: str) -> Tensor:
    """Mean training image of a data set, (1, C, H, W) in [0, 1]: the best guess without a gradient."""
    return dataset(name, "train").pixels.float().mean(0, keepdim=True) / 255


@functools.lru_cache(maxsize=256)
def policy_image(name: str, policy: str, crop_flip: bool) -> Tensor:
    """Mean training image after crop, flip and policy, (1, C, H, W): the best guess of one who
    knows the policy.
    """
    pixels = dataset(name, "train").pixels
    return mean_prepared(pixels, policy, rng=rng(0, "floor", name, policy), crop_flip=crop_flip)


def floors(target: Tensor, request: AttackRequest) -> dict[str, Tensor]:
    """PSNR in dB of three guesses that need no gradient: mid-grey, the mean training image, and
    `policy_image`.

    Args:
        target: (B, C, H, W) uint8, what the client used.
    """
    images = to_images(target)
    name = request.model.dataset
    known = policy_image(name, request.policy, request.crop_flip)
    guesses = {"grey": torch.full_like(images, 0.5), "mean": mean_image(name), "policy": known}
    return {f"floor_{word}": psnr_of_guess(guess, images) for word, guess in guesses.items()}


def image_rows(artifact: Artifact, request: AttackRequest, *, blind: bool = True) -> pd.DataFrame:
    """One row per image: policy, image, the metrics, three floors, `gain`, both ranks, `stuck`, and
    `regime`.

    `floor_policy` is the PSNR in dB of the mean training image after crop, flip and policy. `gain`
    is the attack's PSNR above it: what the gradient told an attacker who knows the policy; 0 is
    nothing. `rank_target` and `rank_original` are 1 where the reconstruction singles out its own
    image among 100. An attack that is `stuck` never left its start, so its PSNR is that of a start,
    not of an attack.

    Args:
        blind: whether the floors and `gain` are wanted, of guesses that do not know what was drawn.
    """
    names = ("psnr", "psnr_original", "mse", "ssim", "cost")
    table = pd.DataFrame({name: artifact[name].double().numpy() for name in names})
    if blind:
        for name, guess in floors(artifact["target"], request).items():
            table[name] = guess.double().numpy()
        table["gain"] = table["psnr"] - table["floor_policy"]
    for name in ("rank_target", "rank_original", "stuck", "psnr_before"):
        if name in artifact.tensors:  # the last of them is younger than most of the archive
            table[name] = artifact[name].numpy()
    table.insert(0, "image", range(request.first, request.last))
    table.insert(0, "policy", label(request.policy))
    return table.assign(regime="trained" if request.model.train else "initial")


def noise_floor(target: Tensor, seed: int) -> np.ndarray:
    """Mean PSNR in dB of `NOISES` images of uniform noise against each target (B, C, H, W) uint8:
    (B,).
    """
    images = to_images(target)
    noise = _noise(tuple(images.shape), seed)
    return torch.stack([psnr(guess, images) for guess in noise]).mean(0).double().numpy()


@functools.lru_cache(maxsize=2)
def _noise(shape: tuple[int, ...], seed: int) -> Tensor:
    """`NOISES` images of uniform noise, (NOISES, *shape): the same for every policy."""
    return torch.rand((NOISES, *shape), generator=rng(seed, "floor noise"))


def outcome_rows(artifact: Artifact, request: AttackRequest) -> pd.DataFrame:
    """A row for each photograph: policy, image, and all of `OutcomeRequest`; `found` is whether its
    rank is 1.
    """
    return _rows(artifact.tensors, request)


def picture_rows(
    artifacts: Iterable[Artifact], requests: Sequence[AttackRequest]
) -> list[pd.DataFrame]:
    """`outcome_rows` of the photographs whose pictures the archive keeps of every attack, the first
    sixteen, from the pictures as it keeps them; a table for each attack.

    Args:
        artifacts: of the attacks; each is read when it is its turn, and its pictures alone are kept.
    """
    images = [to_images(as_kept(one["reconstruction"][:PICTURES])) for one in artifacts]
    outcomes = outcomes_of_all(requests, images)
    return [_rows(values, request) for values, request in zip(outcomes, requests, strict=True)]


def _rows(values: Mapping[str, Tensor], request: AttackRequest) -> pd.DataFrame:
    table = pd.DataFrame({name: value.numpy() for name, value in values.items()})
    table.insert(0, "found", table["rank"] == 1)
    table.insert(0, "image", range(request.first, request.first + len(table)))
    table.insert(0, "policy", label(request.policy))
    return table
