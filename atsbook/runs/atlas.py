"""The units of the page on all policies: their attacks and scores, and the attacks behind its
verdict.
"""

import dataclasses

import numpy as np
import pandas as pd
import torch

from atsbook.findings import space
from atsbook.runs.attacks import AttackUnit
from atsbook.runs.networks import ModelUnit, device_of, semi_trained, victim
from atsbook.runs.settings import Settings
from atsbook.runs.store import Store
from atsbook.runs.sweep import Halving, Rung, SweepScores, all_policies, spaced, swept_scores
from atsbook.runs.table1 import BLOCKS, POLICIES
from atsbook.runs.tables import label
from atslib.attacks import ATTACKS
from atslib.rng import rng
from atslib.scores.search import T_ACC

CANDIDATES = 1_500  # of the paper's search
# Policies: of so many candidates, Algorithm 1 chooses one of these with a chance of 99.99 %
TOP = 128
# As short as an attack can be and still rank policies as the preset does: of sixteen lengths and
# strengths, tried on 48 random policies and test images 0 to 15, the mean gains of this one agree
# well with those of 300 steps (Spearman 0.89), at a third of the cost; that of 150 steps agrees a
# little better (0.93).
SHORT = dataclasses.replace(ATTACKS["annealed-lenet"], steps=100, lr=2.0, tv=0.1)
BLOCK = 1024  # policies in one unit of scores


def halving(settings: Settings) -> Halving:
    """All policies, then the best thousand on other images, then the best hundred with the whole
    attack.
    """
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
            Rung(
                attack=ATTACKS["annealed-lenet"], policies=96, first=400, last=448, each=48, size=16
            ),
        )
    return Halving(model=victim(settings), rungs=rungs, seed=settings.seed)


def scores(settings: Settings) -> dict[str, tuple[SweepScores, ...]]:
    """By name: privacy scores on the attacked network and on the one of Algorithm 1, and its
    accuracy scores.
    """
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
            SweepScores(
                **fields, count=count, low=low, high=min(low + BLOCK, count), seed=settings.seed
            )
            for low in range(0, count, BLOCK)
        )
        for name, fields in kinds.items()
    }


def _untrained(unit: ModelUnit) -> ModelUnit:
    return dataclasses.replace(unit, train=None)


def published(settings: Settings) -> dict[tuple[int, str], AttackUnit]:
    """Each rung's attack on all its images, by (rung, policy): no policy, and those of the paper's
    Table 1.
    """
    policies = dict.fromkeys((*POLICIES, *(name for _, pair in BLOCKS.values() for name in pair)))
    plan = halving(settings)
    few = list(policies)[: 2 if settings.profile == "smoke" else None]
    return {
        (number, label(policy)): AttackUnit(
            model=plan.model, policy=policy, attack=rung.attack, first=rung.first, last=rung.last, frames=0,
            seed=plan.seed,
        )
        for number, rung in enumerate(plan.rungs)
        for policy in few
    }  # fmt: skip


def preferred(settings: Settings, store: Store) -> pd.Series:
    """Chance of each policy, by its number, to be what Algorithm 1 as released chooses of
    `CANDIDATES` at random.
    """
    device = device_of(settings.device)
    group = scores(settings)
    score, accuracy = (
        np.concatenate(
            [
                swept_scores(unit, store, device)["scores"][0].double().mean(1)
                for unit in group[name]
            ]
        )
        for name in ("semi-trained", "accuracy")
    )
    chances = space.first_of(
        np.where(accuracy >= T_ACC, score, np.inf), min(CANDIDATES, len(score))
    )
    return pd.Series(chances, index=spaced(len(score)))


def judged(settings: Settings, store: Store) -> Halving:
    """Attacks on what Algorithm 1 prefers, nearly all that it ever chooses, and then on as many
    others at random.

    All on images that the map does not know, so many for each that the rule can tell.
    """
    chances = preferred(settings, store)
    plan = halving(settings)
    count = min(TOP, len(chances) // 2)
    best = chances.sort_values(ascending=False, kind="stable").index[:count].tolist()
    drawn = torch.randperm(len(chances), generator=rng(settings.seed, "random policies")).tolist()
    rest = [number for number in chances.index[drawn].tolist() if number not in best][:count]
    new = {} if settings.profile == "smoke" else {"first": 500, "last": 596, "each": 24}
    rung = dataclasses.replace(
        plan.rungs[0], numbers=(*best, *rest), policies=2 * count, size=TOP // 4, **new
    )
    return dataclasses.replace(plan, rungs=(rung,))
