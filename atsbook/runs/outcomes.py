"""What an attack's images tell of the photographs: found, bits, the gain over a guess that knows the draw, and the
PSNR in the frame.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from atsbook.runs.attacks import AttackUnit, attacked
from atsbook.runs.networks import ModelUnit, Unit, dataset
from atsbook.runs.packing import PICTURES, as_kept
from atsbook.runs.store import Artifact, Store
from atsbook.runs.tables import label
from atslib.attacks.through_policy import ByForms
from atslib.clients.prepare import streams, to_images
from atslib.measures.found import bits, match, own_class, rank
from atslib.measures.frame import frame_psnr
from atslib.measures.guesses import guess_knowing_draw
from atslib.measures.metrics import psnr
from atslib.policies.draws import Draw, draw


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutcomeUnit:
    """The outcomes of one attack, a row for each of its photographs."""

    kind: ClassVar[str] = "outcomes"

    attack: AttackUnit

    @property
    def model(self) -> ModelUnit:
        """The attacked network."""
        return self.attack.model

    @property
    def needs(self) -> tuple[Unit, ...]:
        """The attack whose images are looked at."""
        return (self.attack,)

    @property
    def title(self) -> str:
        """That of the attack, and what is looked for."""
        return f"photographs found, {self.attack.title}"

    @property
    def passes(self) -> float:
        """No network is needed."""
        return 0.0

    def make(self, store: Store, device: torch.device) -> Artifact:
        """Look for them, if that is not in the store."""
        return outcomes(self, store, device)


def searched(unit: AttackUnit) -> Draw:
    """What was drawn for the images that the attack searches.

    An attack through the policy searches the image before it, after crop and flip.
    """
    # Crops and flips are the same for every policy of a seed.
    policy = "" if isinstance(unit.attack, ByForms) else unit.policy
    drawn = draw(unit.last, policy, rng=streams(unit.seed, policy), crop_flip=unit.crop_flip)
    return drawn[unit.first : unit.last]


@functools.lru_cache(maxsize=256)
def guessed(
    name: str, policy: str, first: int, last: int, seed: int, crop_flip: bool, most: int = 100
) -> Tensor:
    """PSNR in dB of the guess of somebody who knows label, policy and draw, for test images `first`
    … `last` - 1 as the client used them, (B,).

    Args:
        most: training images of the class that the guess is the mean of.
    """
    test = dataset(name, "test")
    train = dataset(name, "train")
    rows = slice(first, last)
    drawn = draw(last, policy, rng=streams(seed, policy), crop_flip=crop_flip)[rows]
    guess = guess_knowing_draw(
        drawn, train.pixels, train.labels, labels=test.labels[rows], most=most
    )
    return psnr(guess, to_images(drawn.apply(test.pixels[rows])))


def guess_of(unit: AttackUnit) -> Tensor:
    """`guessed` for the images that an attack is compared with, of its first round."""
    name = unit.model.dataset
    return guessed(name, unit.policy, unit.first, unit.last, unit.seed, unit.crop_flip)


def outcomes(unit: OutcomeUnit, store: Store, device: torch.device) -> Artifact:
    """Tensors (B,), one entry for each photograph.

    - `rank`: place of the photograph among 100 test images of its class by similarity, 1: found. The server knows the
      policy.
    - `bits`: what the reconstruction tells of the photograph, up to 6.6; see `atslib.measures.found.bits`.
    - `psnr`: dB, against what the client used (or what it used before the policy, where the attack searches that).
    - `gain`: dB above the guess of somebody who knows label, policy and draw and sees no gradient.
    - `frame`: PSNR in dB of the photograph on the part that is in the frame.
    """

    def compute(state: object) -> dict[str, Tensor]:
        images = attacked(unit.attack, store, device)["reconstruction"].cpu()
        return outcomes_of(unit.attack, images)

    return store.get(unit.kind, unit, compute, label=unit.title)


def outcomes_of(attack: AttackUnit, images: Tensor) -> dict[str, Tensor]:
    """`outcomes` of what an attack recovered of the first of its photographs.

    Args:
        images: floats in [0, 1], (B, C, H, W), at most as many as the attack has photographs.
    """
    test = dataset(attack.model.dataset, "test")
    train = dataset(attack.model.dataset, "train")
    rows = slice(attack.first, attack.first + len(images))
    drawn = searched(attack)[: len(images)]
    candidates, truth = own_class(test.labels, range(rows.start, rows.stop))
    alike = match(images, test.pixels, candidates, drawn.policy, crop_flip=attack.crop_flip)
    used = to_images(drawn.apply(test.pixels[rows]))
    guess = guess_knowing_draw(drawn, train.pixels, train.labels, labels=test.labels[rows])
    reached = psnr(images, used)
    return {
        "rank": rank(alike, truth),
        "bits": bits(alike, truth),
        "psnr": reached,
        "gain": reached - psnr(guess, used),
        "frame": frame_psnr(images, test.pixels[rows], drawn),
    }


def outcome_rows(artifact: Artifact, unit: AttackUnit) -> pd.DataFrame:
    """A row for each photograph: policy, image, and all of `outcomes`; `found` is whether its rank is 1."""
    return _rows(artifact.tensors, unit)


def picture_rows(artifact: Artifact, unit: AttackUnit) -> pd.DataFrame:
    """`outcome_rows` of the photographs whose pictures the archive keeps of every attack, the first
    sixteen, from the pictures as it keeps them.

    Args:
        artifact: of the attack.
    """
    images = to_images(as_kept(artifact["reconstruction"][:PICTURES]))
    return _rows(outcomes_of(unit, images), unit)


def _rows(values: Mapping[str, Tensor], unit: AttackUnit) -> pd.DataFrame:
    table = pd.DataFrame({name: value.numpy() for name, value in values.items()})
    table.insert(0, "found", table["rank"] == 1)
    table.insert(0, "image", range(unit.first, unit.first + len(table)))
    table.insert(0, "policy", label(unit.policy))
    return table
