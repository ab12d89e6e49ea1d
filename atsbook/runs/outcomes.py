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
from atslib.attacks import Undone
from atslib.attacks.composed import Around
from atslib.attacks.through_policy import ByForms
from atslib.clients.prepare import streams, to_images
from atslib.data.images import Images
from atslib.errors import AtsError
from atslib.measures.found import CANDIDATES, bits, match, own_class, rank
from atslib.measures.frame import frame_psnr
from atslib.measures.guesses import guess_knowing_draw
from atslib.measures.metrics import psnr
from atslib.measures.perceptual import recognize
from atslib.policies.draws import Draw, draw

MOST = 500  # training images of the class that the guess without a gradient is the mean of


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


class OfAttacks:
    """A unit that makes attacks of another unit, its field `attacks`, and looks for their photographs."""

    attacks: Unit

    @property
    def model(self) -> ModelUnit:
        """The attacked network."""
        return self.attacks.model

    @property
    def needs(self) -> tuple[Unit, ...]:
        """What the attacks need."""
        return self.attacks.needs

    @property
    def title(self) -> str:
        """That of the attacks, and what is looked for."""
        return f"photographs found, {self.attacks.title}"

    @property
    def passes(self) -> float:
        """Those of the attacks."""
        return self.attacks.passes


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecognizedUnit:
    """Where a network that knows pictures ranks the photographs behind several attacks.

    Attributes:
        attacks: on the same photographs, whose candidates are looked at once.
        most: candidates of each photograph's own class.
    """

    kind: ClassVar[str] = "recognized"

    attacks: tuple[AttackUnit, ...]
    most: int = CANDIDATES

    def __post_init__(self) -> None:
        same = {(a.model.dataset, a.first, a.last) for a in self.attacks}
        if len(same) != 1:
            raise AtsError(
                f"recognized: {len(same)} sets of photographs; the attacks must share one"
            )

    @property
    def model(self) -> ModelUnit:
        """The network of the first attack."""
        return self.attacks[0].model

    @property
    def needs(self) -> tuple[Unit, ...]:
        """The attacks whose images are looked at."""
        return self.attacks

    @property
    def title(self) -> str:
        """How many attacks, and of which photographs."""
        first = self.attacks[0]
        rows = f"{first.first}-{first.last - 1}"
        return f"photographs {rows} recognized by a network, {len(self.attacks)} attacks"

    @property
    def passes(self) -> float:
        """None of the attacked network."""
        return 0.0

    def make(self, store: Store, device: torch.device) -> Artifact:
        """Look at them, if that is not in the store."""
        return recognized(self, store, device)


def recognized(unit: RecognizedUnit, store: Store, device: torch.device) -> Artifact:
    """Tensors (A, B), one row for each attack.

    - `seen_rank`: place of the photograph among those of its class by features of an ImageNet network, 1: recognized.
    - `seen_bits`: what that tells of it.
    - `used_rank`, `used_bits`: the same of the images that the client used, which a perfect attack would bring back.
    """
    first = unit.attacks[0]

    def compute(state: object) -> dict[str, Tensor]:
        test = dataset(first.model.dataset, "test")
        candidates, truth = own_class(test.labels, range(first.first, first.last), most=unit.most)
        kept = [attacked(attack, store, device) for attack in unit.attacks]
        made = [as_kept(one["reconstruction"].cpu()) for one in kept]
        # What the client used is the same for all attacks on one policy, draw, and crop or none.
        draws = [(attack.policy, attack.seed, attack.crop_flip) for attack in unit.attacks]
        used = dict(zip(draws, (one["target"].cpu() for one in kept), strict=True))
        images = to_images(torch.cat([*made, *used.values()]))
        times = len(images) // len(truth)
        alike = recognize(images, test.pixels, candidates.repeat(times, 1)).split(len(truth))
        of_used = dict(zip(used, alike[len(made) :], strict=True))
        found = {}
        for name, each in {
            "seen": alike[: len(made)],
            "used": [of_used[key] for key in draws],
        }.items():
            found[f"{name}_rank"] = torch.stack([rank(one, truth) for one in each])
            found[f"{name}_bits"] = torch.stack([bits(one, truth) for one in each])
        return found

    return store.get(unit.kind, unit, compute, label=unit.title)


def _policy_searched(unit: AttackUnit) -> str:
    """The policy of what the attack searches: none where that is the image before it, after crop
    and flip, as with an attack that goes through the policy or undoes it, alone or inside another.
    """
    attack, before = unit.attack, False
    while attack is not None:
        before |= isinstance(attack, (ByForms, Undone))
        attack = attack.inner if isinstance(attack, Around) else None
    return "" if before else unit.policy


def searched(unit: AttackUnit) -> Draw:
    """What was drawn for the images that the attack searches."""
    policy = _policy_searched(unit)
    # Crops and flips are the same for every policy of a seed.
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
    name = attack.model.dataset
    last = attack.first + len(images)
    rows = torch.arange(attack.first, last)
    drawn = searched(attack)[: len(images)]
    # All attacks on these photographs have one guess, which takes as long as the comparison
    where = (_policy_searched(attack), attack.first, last, attack.seed, attack.crop_flip)
    guess = guessed(name, *where, most=MOST)
    return told_of(name, rows, drawn, images, crop_flip=attack.crop_flip, guess=guess)


def told_of(
    name: str,
    rows: Tensor,
    drawn: Draw,
    images: Tensor,
    *,
    crop_flip: bool = True,
    others: Images | None = None,
    guess: Tensor | None = None,
) -> dict[str, Tensor]:
    """`outcomes` of what an attack recovered of these test images.

    Args:
        name: of the data set.
        rows: (B,) which of its test images.
        drawn: what was drawn for each.
        images: floats in [0, 1], (B, C, H, W).
        others: of which the guess without a gradient is made; None: the training images.
        guess: (B,) that guess's PSNR in dB where it is known.
    """
    test = dataset(name, "test")
    others = others or dataset(name, "train")
    candidates, truth = own_class(test.labels, rows)
    alike = match(images, test.pixels, candidates, drawn.policy, crop_flip=crop_flip)
    used = to_images(drawn.apply(test.pixels[rows]))
    if guess is None:
        mean = guess_knowing_draw(
            drawn, others.pixels, others.labels, labels=test.labels[rows], most=MOST
        )
        guess = psnr(mean, used)
    reached = psnr(images, used)
    return {
        "rank": rank(alike, truth),
        "bits": bits(alike, truth),
        "psnr": reached,
        "gain": reached - guess,
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
