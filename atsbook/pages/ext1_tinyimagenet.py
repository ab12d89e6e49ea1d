"""Extension 1: the hybrid on Tiny ImageNet (replication, Table 5): images of 64×64, 200 classes."""

import dataclasses

import pandas as pd

from atsbook.findings import compare
from atsbook.findings.result import Result
from atsbook.pages import claim3_transfer
from atsbook.runs.attacks import AttackUnit, attack_unit
from atsbook.runs.networks import ModelUnit, Unit, dataset, model_unit, victim
from atsbook.runs.settings import Settings
from atsbook.runs.store import Store
from atsbook.runs.table1 import HYBRID, SEARCHED, published_rows, relocated
from atsbook.runs.tables import attacked_facts, label, provenance
from atslib.attacks import GradientMatching

NAME = "tinyimagenet"
POINTS, PUBLISHED = 5.0, 4.1  # the replication's hybrid loses 61.44 - 57.38 points
LAPTOP = {
    "epochs": 3,
    "semi_epochs": 3,
    "images": 64,
    "steps": 600,
}  # an image costs four of CIFAR-100
TENTH = 10_000  # images
# Of the attack on an untrained network, for 64×64 pixels; fitted on other images, without a policy
TV = 0.2
DRAWS = 2  # of crop, flip, policy and start, on untrained networks


def own(settings: Settings) -> Settings:
    """The settings on Tiny ImageNet; at laptop one short training on a tenth of it serves attacks
    and scores alike.
    """
    if settings.profile != "laptop":
        return relocated(settings, NAME, "shapes")
    place = relocated(settings, NAME, "shapes", **LAPTOP)
    if place.dataset != NAME:
        return place
    share = min(1.0, TENTH / len(dataset(NAME, "train")))
    return relocated(place, NAME, "shapes", fraction=share, semi_fraction=share)


def units(settings: Settings) -> dict[tuple, Unit]:
    """All that the page needs."""
    return attacks(settings) | {("trained", *key): unit for key, unit in networks(settings).items()}


def attacks(settings: Settings) -> dict[tuple[str, str, int], AttackUnit]:
    """The page's attacks by (network, policy, draw): none and the hybrid, and its members on
    untrained networks.
    """
    settings = own(settings)
    changes = {}
    untrained = settings.regime == "initial"
    attack = attack_unit(settings).attack
    if untrained and settings.dataset == NAME and isinstance(attack, GradientMatching):
        changes["attack"] = dataclasses.replace(attack, tv=TV)
    return {
        (victim(settings).model, label(policy), n): attack_unit(
            settings, policy, seed=settings.seed + n, **changes
        )
        for policy in (("", *SEARCHED, HYBRID) if untrained else ("", HYBRID))
        for n in range(DRAWS if untrained else 1)
    }


def networks(settings: Settings) -> dict[tuple[str, str], ModelUnit]:
    """The trained networks whose accuracy is judged, by (network, policy)."""
    settings = own(settings)
    return {
        (settings.model, label(policy)): model_unit(settings, policy) for policy in ("", HYBRID)
    }


def run(settings: Settings, store: Store) -> Result:
    """Train with and without the hybrid, and attack. Tables: `attacks` and `accuracy`."""
    settings = own(settings)
    by_policy = attacks(settings)
    tables, sheets = claim3_transfer.measure(by_policy, networks(settings), settings, store)
    verdict = claim3_transfer.judged(tables, settings.dataset, HYBRID, POINTS, PUBLISHED)
    first = next(iter(by_policy))
    facts = provenance(settings, sheets[first]) | attacked_facts(by_policy[first])
    return Result("ext1_tinyimagenet", tables, facts, verdict, sheets)


def comparison(result: Result) -> pd.DataFrame:
    """One row per policy: our summary beside the replication's Table 5; the paper has no such
    experiment.

    The accuracy is the trained network's, also where the attacked one is another, untrained.
    """
    accuracy = result.tables["accuracy"].drop(columns="model")
    return compare.comparison(
        result, "policy", lambda policy: published_rows("Table 5", policy), accuracy=accuracy
    )


def differences(result: Result) -> pd.DataFrame:
    """The hybrid minus none on the same images: PSNR and gain; below 0: harder to attack."""
    return claim3_transfer.differences(result).droplevel("model")
