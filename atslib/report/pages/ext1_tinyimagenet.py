"""Extension 1: the hybrid on Tiny ImageNet (replication, Table 5): images of 64×64, 200 classes."""

import pandas as pd

from atslib.report.pages import claim3_transfer
from atslib.report.result import Result
from atslib.report.units.networks import ModelUnit, Unit, dataset, model_unit, victim
from atslib.report.units.settings import Settings
from atslib.report.units.table1 import HYBRID, relocated
from atslib.report.units.tables import attacked_facts, label, provenance
from atslib.report.units.units import AttackUnit, attack_unit
from atslib.store import Store

NAME = "tinyimagenet"
POINTS, PUBLISHED = 5.0, 4.1  # the replication's hybrid loses 61.44 - 57.38 points
QUICK_TRAIN = 2_000  # an image costs four of CIFAR-100
QUICK = {"epochs": 4, "images": 4}


def own(settings: Settings) -> Settings:
    """The settings on Tiny ImageNet: at quick fewer images, be a tenth of the training set here or all of it."""
    place = relocated(settings, NAME, "shapes", **(QUICK if settings.profile == "quick" else {}))
    if place.dataset != NAME or place.profile != "quick":
        return place
    share = min(1.0, QUICK_TRAIN / len(dataset(NAME, "train")))
    return relocated(place, NAME, "shapes", fraction=share)


def units(settings: Settings) -> dict[tuple, Unit]:
    """All that the page needs."""
    return attacks(settings) | {("trained", *key): unit for key, unit in networks(settings).items()}


def attacks(settings: Settings) -> dict[tuple[str, str], AttackUnit]:
    """The page's attacks by (network, policy): none and the hybrid."""
    settings = own(settings)
    return {(victim(settings).model, label(policy)): attack_unit(settings, policy) for policy in ("", HYBRID)}


def networks(settings: Settings) -> dict[tuple[str, str], ModelUnit]:
    """The trained networks whose accuracy is judged, by (network, policy)."""
    settings = own(settings)
    return {(settings.model, label(policy)): model_unit(settings, policy) for policy in ("", HYBRID)}


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
    """One row per policy: our summary beside the replication's Table 5; the paper has no such experiment."""
    return claim3_transfer.compared(result, lambda model, policy: "Table 5").droplevel("model")


def differences(result: Result) -> pd.DataFrame:
    """The hybrid minus none on the same images: PSNR and gain; below 0: harder to attack."""
    return claim3_transfer.differences(result).droplevel("model")
