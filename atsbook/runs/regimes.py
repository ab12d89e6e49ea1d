"""The regimes in which a client can be attacked, and evidence by regime, network and policy.

`initial` is round 0 of any federation: an untrained network. `early` is after some steps of its
client's training, on all of the data and with its policy, and `trained` is at the end of that.
`semi` is trained without a policy on 10 % of the data, the network on which the paper scores
policies. A defense can be judged only where undefended attacks work.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import pandas as pd

from atsbook.runs.attacks import AttackUnit, attacked, check_images_there, known_ranks
from atsbook.runs.networks import ModelUnit, dataset, trained
from atsbook.runs.store import Store
from atsbook.runs.tables import image_rows, label
from atslib.attacks import ATTACKS
from atslib.clients.training import TrainConfig
from atslib.errors import AtsError, choose
from atslib.models import device_of

REGIMES = ("initial", "early", "semi", "trained")
TRAINED_EPOCHS, SEMI_EPOCHS, SEMI_FRACTION = 20, 50, 0.1
KEYS = ("regime", "step", "model", "policy", "draw")


def training_steps(name: str, train: TrainConfig, fraction: float = 1.0) -> int:
    """Steps of a whole training on this share of a data set."""
    return train.epochs * math.ceil(fraction * len(dataset(name, "train")) / train.batch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """Which network is attacked, when, how, and on how many images: one place where a defense can
    be judged.

    Attributes:
        regime: one of `REGIMES`.
        model, dataset: names for `build_model` and `load`.
        attack: a key of `ATTACKS`; `steps` replaces its length.
        images: the first so many test images.
        draws: of crop, flip, policy and start, each with a seed of its own.
        step: of the training, in the regime `early`, whose last one is its end.
        seed: of the network; draws take this seed and the following ones.
    """

    regime: str
    model: str
    attack: str
    steps: int
    images: int
    draws: int = 1
    dataset: str = "cifar100"
    step: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        choose("Cell.regime", self.regime, REGIMES)
        choose("Cell.attack", self.attack, ATTACKS)
        if (self.step > 0) != (self.regime == "early"):
            raise AtsError(
                f"Cell.step={self.step} in regime {self.regime}: early has a step above 0, the others none"
            )

    def network(self, policy: str) -> ModelUnit:
        """The network that a client with this policy trains, and the server attacks."""
        unit = ModelUnit(
            dataset=self.dataset, model=self.model, fraction=1.0, train=None, seed=self.seed
        )
        if self.regime == "semi":
            return dataclasses.replace(
                unit, fraction=SEMI_FRACTION, train=TrainConfig(epochs=SEMI_EPOCHS)
            )
        if self.regime in ("early", "trained"):
            train = TrainConfig(policy=policy, epochs=TRAINED_EPOCHS)
            at_end = self.step == training_steps(self.dataset, train)
            return dataclasses.replace(unit, train=train, step=0 if at_end else self.step)
        return unit

    @property
    def steps_trained(self) -> int:
        """Steps of training behind the attacked network."""
        train = self.network("").train
        if train is None or self.step:
            return self.step
        return training_steps(self.dataset, train, self.network("").fraction)

    def unit(self, policy: str, draw: int = 0, *, trained_with: str | None = None) -> AttackUnit:
        """The attack on images under `policy`, against the network trained with it, or with another
        one.
        """
        check_images_there(self.dataset, self.images)
        attack = dataclasses.replace(ATTACKS[self.attack], steps=self.steps)
        model = self.network(policy if trained_with is None else trained_with)
        seed = self.seed + draw
        return AttackUnit(
            model=model,
            policy=policy,
            attack=attack,
            first=0,
            last=self.images,
            frames=0,
            seed=seed,
        )

    def units(self, policies: tuple[str, ...]) -> dict[tuple, AttackUnit]:
        """The attacks by the values of `KEYS`."""
        where = (self.regime, self.steps_trained, self.model)
        return {
            (*where, label(p), draw): self.unit(p, draw)
            for p in policies
            for draw in range(self.draws)
        }


def measure(
    units: Mapping[tuple, AttackUnit], store: Store, device: str, known: Collection[str]
) -> tuple[pd.DataFrame, dict]:
    """Attack all: one row per regime, step, network, policy, draw and image, and the artifacts by
    the same keys.

    Beside the columns of `image_rows` stands `rank_knowing`, see `known_ranks`; measured for the
    policies `known`, and early in a training for all.
    """
    place = device_of(device)
    rows = []
    artifacts = {key: attacked(unit, store, place) for key, unit in units.items()}
    for key, unit in units.items():
        table = image_rows(artifacts[key], unit).assign(**dict(zip(KEYS, key, strict=True)))
        if not unit.policy:
            table["rank_knowing"] = table["rank_original"]  # there is one form of each image
        elif unit.policy in known or key[0] == "early":
            table["rank_knowing"] = known_ranks(unit, store, place)["rank_knowing"].numpy()
        rows.append(table)
    return pd.concat(rows, ignore_index=True), artifacts


def accuracies(units: Mapping[tuple, AttackUnit], store: Store, device: str) -> pd.DataFrame:
    """Test accuracy in percent of every trained network that is attacked: one row per regime, step,
    network, policy.

    Args:
        units: attacks by the values of `KEYS`.
    """
    rows = {}
    place = device_of(device)
    for key, unit in units.items():
        if unit.model.train and key[:-1] not in rows:
            rows[key[:-1]] = float(trained(unit.model, store, place)[1]["accuracy"])
    return pd.DataFrame(
        [(*key, value) for key, value in rows.items()], columns=[*KEYS[:-1], "accuracy"]
    )


def sizes(asked: Sequence[Cell]) -> dict[str, object]:
    """Networks, images and steps of all untrained cells in words, for the banner."""
    asked = [cell for cell in asked if cell.regime == "initial"]
    words = {
        "model": [cell.model for cell in asked],
        "images": [f"{cell.images} × {cell.draws} draws" for cell in asked],
        "steps": [str(cell.steps) for cell in asked],
    }
    return {name: ", ".join(each) for name, each in words.items()} | {"epochs": 0}
