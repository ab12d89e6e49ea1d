"""The regimes in which a client can be attacked.

`initial` is round 0 of any federation: an untrained network. `early` is after some steps of its
client's training, on all of the data and with its policy, and `trained` is at the end of that.
`semi` is trained without a policy on 10 % of the data, the network on which the paper scores
policies. A defense can be judged only where undefended attacks work.
"""

import dataclasses
import math

from atsbook.runs.attacks import AttackUnit, check_images_there
from atsbook.runs.networks import ModelUnit, dataset
from atslib.attacks import ATTACKS
from atslib.clients.training import TrainConfig
from atslib.errors import AtsError, choose

REGIMES = ("initial", "early", "semi", "trained")
TRAINED_EPOCHS, SEMI_EPOCHS, SEMI_FRACTION = 20, 50, 0.1


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
        step: of the training, in the regime `early`, whose last one is its end.
        seed: of the network and of all draws.
    """

    regime: str
    model: str
    attack: str
    steps: int
    images: int
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

    def unit(self, policy: str) -> AttackUnit:
        """The attack on images under `policy`, against the network trained with it."""
        check_images_there(self.dataset, self.images)
        return AttackUnit(
            model=self.network(policy),
            policy=policy,
            attack=dataclasses.replace(ATTACKS[self.attack], steps=self.steps),
            first=0,
            last=self.images,
            frames=0,
            seed=self.seed,
        )
