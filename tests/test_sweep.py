"""Attacks and scores of every policy: the numbers of single units, rungs that keep the least, a
page made of them.
"""

import base64
import dataclasses
import random

import numpy as np
import pandas as pd
import pytest
import torch

from atsbook.findings.result import NO_POLICY
from atsbook.pages import ext10_all_policies as page
from atsbook.runs import atlas
from atsbook.runs.archive import Archive
from atsbook.runs.attacks import AttackUnit, attacked
from atsbook.runs.audit import PART, differences, part_of
from atsbook.runs.networks import network
from atsbook.runs.scoring import ScoreUnit, scored, unseen
from atsbook.runs.settings import settings
from atsbook.runs.store import Store
from atsbook.runs.sweep import adjusted, all_policies, spaced, swept, swept_scores
from atsbook.runs.tables import image_rows
from atsbook.widgets import data
from atslib.policies.policy import CANONICAL
from atslib.scores.scores import accuracy_score

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
# Untrained, so that nothing has to be trained first.
SMALL = dataclasses.replace(settings(profile="smoke"), regime="initial", model="lenet")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("sweep") / "store")


@pytest.fixture(scope="module")
def result(smoke_store):
    return page.run(settings(profile="smoke"), Store(smoke_store))


def rungs(store):
    plan = atlas.halving(SMALL)
    return plan, [
        [swept(unit, store, CPU) for unit in plan.units(k)] for k in range(len(plan.rungs))
    ]


def test_numbers_are_places_among_all_distinct_functions():
    assert len(all_policies()) == 20_439
    assert spaced(20_439) == list(range(20_439))
    few = spaced(12)
    assert (few[0], few[-1], len(set(few))) == (0, 20_438, 12)


def test_a_gain_is_that_of_the_policys_own_attack(kept):
    plan, (first, _) = rungs(kept)
    for unit, made in zip(plan.units(0), first, strict=True):
        assert (
            made["gain"].shape == made["image"].shape == (unit.high - unit.low, plan.rungs[0].each)
        )
        number, image = int(made["number"][1]), int(made["image"][1, 1])
        own = AttackUnit(
            model=plan.model, policy=str(all_policies()[number]), attack=plan.rungs[0].attack, first=image,
            last=image + 1, frames=0, seed=plan.seed,
        )  # fmt: skip
        alone = attacked(own, kept, CPU)
        both = float(made["gain"][1, 1] + made["floor"][1, 1])
        assert both == pytest.approx(float(alone["psnr"]), abs=0.05)
        assert bool(made["found"][1, 1]) == (int(alone["rank_original"]) == 1)


def test_the_floor_is_near_that_of_many_images(kept):
    _, (first, _) = rungs(kept)
    number, image = int(first[0]["number"][0]), int(first[0]["image"][0, 0])
    unit = atlas.published(SMALL)[0, NO_POLICY]
    own = dataclasses.replace(unit, policy=str(all_policies()[number]), first=image, last=image + 1)
    row = image_rows(attacked(own, kept, CPU), own).iloc[0]
    assert float(first[0]["floor"][0, 0]) == pytest.approx(row["floor_policy"], abs=0.5)


def test_each_rung_goes_on_with_those_of_least_gain(kept):
    _, (first, second) = rungs(kept)
    gain, image, number = (
        torch.cat([made[name] for made in first]) for name in ("gain", "image", "number")
    )
    order = adjusted(gain, image).mean(1).sort().indices
    assert (
        torch.cat([made["number"] for made in second]).tolist()
        == number[order][: sum(len(m["number"]) for m in second)].tolist()
    )


def test_scores_are_those_of_the_score_pages(kept):
    group = atlas.scores(SMALL)["attacked"]
    made = torch.cat([swept_scores(unit, kept, CPU)["scores"] for unit in group], 1)
    policies = tuple(str(all_policies()[n]) for n in spaced(group[0].count))
    for place, variant in enumerate(group[0].variants):
        unit = ScoreUnit(
            model=group[0].model,
            policies=policies,
            images=group[0].images,
            points=group[0].points,
            variant=variant,
        )
        torch.testing.assert_close(
            made[place], scored(unit, kept, CPU)["scores"].to(made), rtol=1e-4, atol=1e-5
        )
    (accuracy,) = atlas.scores(SMALL)["accuracy"]
    found = swept_scores(accuracy, kept, CPU)["scores"][0, 3, 0]
    model = network(accuracy.model).eval()
    own = accuracy_score(
        model, unseen(SMALL.dataset)[: accuracy.images], policies[3], variant="code", rng=0
    )
    assert float(found) == pytest.approx(own, rel=1e-5)


def test_units_come_back_from_the_archive_and_are_audited_in_parts(kept, tmp_path):
    plan, (first, second) = rungs(kept)
    archive = Archive(tmp_path / "units")
    archive.write(kept, embedded=True)
    again = Store(tmp_path / "again")
    archive.restore(again)
    unit = plan.units(0)[0]
    assert again.has(unit.kind, unit)
    assert torch.equal(swept(unit, again, CPU)["gain"], first[0]["gain"])
    assert torch.equal(swept(plan.units(1)[0], again, CPU)["number"], second[0]["number"])
    for whole in (unit, atlas.scores(SMALL)["attacked"][0]):
        part = part_of(whole, random.Random(0))
        assert part.high - part.low == PART
        now = part.make(Store(tmp_path / "part"), CPU)
        off = differences(whole, part, whole.make(again, CPU).tensors, now.tensors)
        assert np.abs(off).max() < 0.05
    assert (
        part_of(plan.units(1)[0], random.Random(0)) is None
    )  # what it attacks depends on all of the rung before


def test_the_map_is_the_table(result):
    payload, table = data.atlas(settings(profile="smoke"), result), result.tables["policies"]
    ids = payload["ids"]
    assert [ids.index(i) if i is not None else None for i in CANONICAL] == payload["canonical"]
    assert [str(all_policies()[n]) for n in payload["numbers"]] == table["policy"].tolist()
    for axis, name in zip(payload["x"], (*page.SCORES, "accuracy, code"), strict=True):
        whole = np.frombuffer(base64.b64decode(axis["bits"]), "<u2")
        values = axis["low"] + (axis["high"] - axis["low"]) * whole / 65_535
        np.testing.assert_allclose(values, table[name], atol=2e-3 * max(1, np.ptp(values)))


# --- the rule -----------------------------------------------------------------------------------------------

BARE = pd.DataFrame({"policy": NO_POLICY, "image": range(40), "psnr": 20.0, "floor_policy": 12.0})


@pytest.mark.parametrize(
    ("low", "high", "status"),
    [
        (-2.0, -0.6, "reproduced"),
        (-2.0, -0.1, "partly"),
        (-0.4, -0.1, "not reproduced"),
        (-0.4, 0.3, "not reproduced"),
        (0.1, 0.9, "not reproduced"),
        (-0.8, 0.2, "cannot tell"),
    ],
)
def test_the_rule_judges_by_the_interval(low, high, status):
    change = {"mean": (low + high) / 2, "low": low, "high": high}
    assert page.all_verdict(change, BARE).status == status


def test_the_rule_cannot_tell_where_attacks_fail_or_images_are_few():
    change = {"mean": -1.0, "low": -2.0, "high": -0.6}
    assert page.all_verdict(change, BARE.assign(psnr=11.0)).status == "cannot tell"
    assert page.all_verdict(change, BARE.head(20)).status == "cannot tell"


def test_the_best_are_compared_with_no_policy_on_their_own_images(result):
    best = page.finalists(result)
    last = result.tables["rungs"].query("rung == rung.max()")
    bare = (
        result.tables["published"]
        .query("policy == @NO_POLICY and rung == rung.max()")
        .set_index("image")["gain"]
    )
    own = last[
        last["number"]
        == all_policies().index(next(p for p in all_policies() if str(p) == best.index[0]))
    ]
    expected = (own.set_index("image")["gain"] - bare).mean()
    assert best.iloc[0]["mean"] == pytest.approx(expected, abs=1e-3)
    assert best["gain"].is_monotonic_increasing
    assert page.climbed(result)["policies"].tolist() == [12, 3]


def test_the_verdict_compares_what_is_preferred_with_others_at_random_on_new_images(
    result, smoke_store
):
    chosen = settings(profile="smoke")
    chances, trial = (
        atlas.preferred(chosen, Store(smoke_store)),
        atlas.judged(chosen, Store(smoke_store)),
    )
    numbers = trial.rungs[0].numbers
    assert len(set(numbers)) == len(numbers) == 12
    best, rest = numbers[:6], numbers[6:]
    assert chances[list(best)].min() >= chances[list(rest)].max()
    assert set(result.tables["judged"]["number"]) == set(numbers)


def test_the_lead_weighs_by_the_chance_to_be_chosen():
    gains, numbers = {7: 1.0, 3: 2.0, 9: 5.0, 1: 3.0}, (7, 3, 9, 1)
    rows = pd.DataFrame(
        [
            {"number": number, "place": place, "image": place, "gain": gain + place}
            for number, gain in gains.items()
            for place in range(3)
        ]
    )
    chances = pd.Series({1: 0.0, 3: 0.2, 5: 0.0, 7: 0.6, 9: 0.2})
    change = page.lead(rows, numbers, chances)
    expected = (0.6 * 1 + 0.2 * 2) / 0.8 - (5 + 3) / 2
    assert (change["mean"], change["low"], change["high"]) == pytest.approx(
        (expected, expected, expected)
    )
