"""The regimes in which a client can be attacked, and evidence by regime, network and policy.

`initial` is round 0 of any federation: an untrained network. `semi` is trained without a policy on 10 % of the data,
the network on which the paper scores policies. `trained` is trained on all of it, with the policy of its client. A
defense can be judged only where the undefended attack works.
"""

import dataclasses
from collections.abc import Mapping

import pandas as pd

from atslib.attacks import ATTACKS
from atslib.clients.prepare import to_images
from atslib.clients.training import TrainConfig
from atslib.errors import choose
from atslib.measures.metrics import psnr
from atslib.report.units.tables import image_rows, label, policy_image
from atslib.report.units.units import AttackUnit, ModelUnit, attacked, device_of
from atslib.store import Artifact, Store

REGIMES = ("initial", "semi", "trained")
TRAINED_EPOCHS, SEMI_EPOCHS, SEMI_FRACTION = 20, 50, 0.1
KEYS = ("regime", "model", "policy", "draw")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """Which network is attacked, when, how, and on how many images: one place where a defense can be judged.

    Attributes:
        regime: one of `REGIMES`.
        model, dataset: names for `build_model` and `load`.
        attack: a key of `ATTACKS`; `steps` replaces its length.
        images: the first so many test images.
        draws: of crop, flip, policy and start, each with a seed of its own.
    """

    regime: str
    model: str
    attack: str
    steps: int
    images: int
    draws: int = 1
    dataset: str = "cifar100"

    def __post_init__(self) -> None:
        choose("Cell.regime", self.regime, REGIMES)
        choose("Cell.attack", self.attack, ATTACKS)

    def network(self, policy: str) -> ModelUnit:
        """The network that a client with this policy trains, and the server attacks."""
        unit = ModelUnit(dataset=self.dataset, model=self.model, fraction=1.0, train=None, seed=0)
        if self.regime == "semi":
            return dataclasses.replace(unit, fraction=SEMI_FRACTION, train=TrainConfig(epochs=SEMI_EPOCHS))
        if self.regime == "trained":
            return dataclasses.replace(unit, train=TrainConfig(policy=policy, epochs=TRAINED_EPOCHS))
        return unit

    def units(self, policies: tuple[str, ...]) -> dict[tuple, AttackUnit]:
        """The attacks by the values of `KEYS`."""
        attack = dataclasses.replace(ATTACKS[self.attack], steps=self.steps)
        return {
            (self.regime, self.model, label(policy), draw): AttackUnit(
                model=self.network(policy), policy=policy, attack=attack, first=0, last=self.images, frames=0, seed=draw
            )
            for policy in policies
            for draw in range(self.draws)
        }


def evidence_rows(artifact: Artifact, unit: AttackUnit) -> pd.DataFrame:
    """One row per image: `image_rows` with the floor that knows the policy, the gain over it, and both ranks.

    `floor_policy` is the PSNR in dB of the mean training image after crop, flip and policy. `gain` is the attack's
    PSNR above it: what the gradient told an attacker who knows the policy; 0 is nothing. `rank_target` and
    `rank_original` are 1 where the reconstruction singles out its own image among 100.
    """
    target = to_images(artifact["target"])
    guess = policy_image(unit.model.dataset, unit.policy, unit.crop_flip).expand_as(target).contiguous()
    table = image_rows(artifact, unit)
    table["floor_policy"] = psnr(guess, target).double().numpy()
    table["gain"] = table["psnr"] - table["floor_policy"]
    return table.assign(**{name: artifact[name].numpy() for name in ("rank_target", "rank_original")})


def measure(units: Mapping[tuple, AttackUnit], store: Store, device: str) -> tuple[pd.DataFrame, dict]:
    """Attack all: one row per regime, network, policy, draw and image, and the artifacts by the same keys."""
    artifacts = {key: attacked(unit, store, device_of(device)) for key, unit in units.items()}
    rows = [
        evidence_rows(artifacts[key], unit).assign(**dict(zip(KEYS, key, strict=True))) for key, unit in units.items()
    ]
    return pd.concat(rows, ignore_index=True), artifacts
