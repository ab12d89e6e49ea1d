"""Extension 10: every policy there is, by its scores and by what an attack finds."""

import dataclasses

from atslib.attacks import ATTACKS
from atslib.report.units.networks import ModelUnit, Unit, semi_trained, victim
from atslib.report.units.settings import Settings
from atslib.report.units.sweep import Halving, Rung, SweepScores, all_policies

# As short as an attack can be and still rank policies as the preset does: of sixteen lengths and strengths, tried on
# 48 random policies and test images 0 to 15, the mean gains of this one agree well with those of 300 steps (Spearman
# 0.89), at a third of the cost; that of 150 steps agrees a little better (0.93).
SHORT = dataclasses.replace(ATTACKS["annealed-lenet"], steps=100, lr=2.0, tv=0.1)
BLOCK = 1024  # policies in one unit of scores


def halving(settings: Settings) -> Halving:
    """All policies, then the best thousand on other images, then the best hundred with the whole attack."""
    if settings.profile == "smoke":
        attack = dataclasses.replace(SHORT, steps=settings.steps)
        rungs = (
            Rung(attack=attack, policies=12, first=0, last=3, each=2, size=6),
            Rung(attack=attack, policies=3, first=0, last=3, each=3, size=2),
        )
    else:
        rungs = (
            Rung(attack=SHORT, policies=len(all_policies()), first=100, last=196, each=2, size=512),
            Rung(attack=SHORT, policies=1_024, first=300, last=396, each=12, size=128),
            Rung(attack=ATTACKS["annealed-lenet"], policies=96, first=400, last=448, each=48, size=16),
        )
    return Halving(model=victim(settings), rungs=rungs, seed=settings.seed)


def scores(settings: Settings) -> dict[str, tuple[SweepScores, ...]]:
    """By name: privacy scores on the attacked network and on the one of Algorithm 1, and its accuracy scores."""
    small = settings.profile == "smoke"
    count = halving(settings).rungs[0].policies
    semi = semi_trained(settings)
    both = {"score": "privacy", "variants": ("code", "fixed"), "points": 3 if small else 6}
    kinds: dict[str, dict] = {
        "attacked": {"model": victim(settings), "images": 2 if small else 8, **both},
        "semi-trained": {"model": semi, "images": 2 if small else 4, **both},
        "accuracy": {"model": _untrained(semi), "images": 8 if small else 63, "score": "accuracy"},
    }
    kinds["accuracy"]["variants"] = ("code",)
    return {
        name: tuple(
            SweepScores(**fields, count=count, low=low, high=min(low + BLOCK, count), seed=settings.seed)
            for low in range(0, count, BLOCK)
        )
        for name, fields in kinds.items()
    }


def _untrained(unit: ModelUnit) -> ModelUnit:
    return dataclasses.replace(unit, train=None)


def units(settings: Settings) -> dict[object, Unit]:
    """All that the page needs."""
    plan, found = halving(settings), {}
    for rung in range(len(plan.rungs)):
        found |= {("rung", rung, unit.low): unit for unit in plan.units(rung)}
    return found | {(name, unit.low): unit for name, group in scores(settings).items() for unit in group}
