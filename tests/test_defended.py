"""The page that compares defenses, each at its worst: who attacks what, the rule, and a toy run."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from atsbook.figures import plots
from atsbook.pages import ext6_defenses
from atsbook.pages.ext6_defenses import PANELS, TUNED, best, compared, defenses_verdict, worst
from atsbook.runs import defended
from atsbook.runs.archive import Archive, unit_of
from atsbook.runs.attackers import Undone
from atsbook.runs.defended import (
    BARE,
    DEFENSES,
    PLAIN,
    REGIMES,
    SMOOTHER,
    TV,
    attackers,
    attacks,
    kinds,
    parts,
    place,
    tuned,
)
from atsbook.runs.networks import ModelUnit
from atsbook.runs.settings import settings
from atsbook.runs.store import Store
from atsbook.runs.table1 import HYBRID
from atslib.attacks import (
    BothImages,
    GradientMatching,
    KeptEntries,
    KnownFeatures,
    ThroughPolicy,
)
from atslib.clients.defenses.accountant import epsilon

pytestmark = pytest.mark.usefixtures("one_thread", "few_images")


def classes_of(text):
    found = attackers(text, place(settings(profile="laptop")))
    return [type(attack) for attack in found.values()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", []),
        ("prune:0.9", [KeptEntries]),
        ("soteria:0.3", [KeptEntries]),
        ("gaussian:0.01", [GradientMatching]),
        ("dp:0.1", [GradientMatching]),
        ("precode:1", [KnownFeatures]),
        ("mixup:0.3", [BothImages]),
        (HYBRID, [ThroughPolicy, Undone]),
        (f"{HYBRID} | prune:0.9", [KeptEntries, KeptEntries]),
        (f"{HYBRID} | gaussian:0.001", [GradientMatching, ThroughPolicy]),
    ],
)
def test_each_defense_meets_the_plain_attack_and_those_that_know_it(text, expected):
    assert classes_of(text) == [GradientMatching, *expected]
    own = attackers(text, place(settings(profile="laptop")))
    if "gaussian" in text or "dp" in text:
        assert own["stronger prior"].tv == SMOOTHER * TV == SMOOTHER * own[PLAIN].tv
    if "prune" in text and "+" in text:
        assert isinstance(own["through the policy"].inner, ThroughPolicy)


def test_all_attacks_differ_in_defense_and_attacker_only_and_trainings_in_defense_and_seed():
    chosen = settings(profile="laptop", dataset="shapes")
    first, *others = attacks(chosen, kinds(chosen)).items()
    trained = [unit for unit in ext6_defenses.units(chosen).values() if isinstance(unit, ModelUnit)]
    for (regime, text, _), unit in others:
        policy, rest = parts(text)
        assert (unit.policy, unit.defense, unit.crop_flip) == (policy, rest, text != BARE)
        own = {
            name: getattr(first[1], name)
            for name in ("policy", "defense", "attack", "threat", "crop_flip")
        }
        assert dataclasses.replace(unit, **own, model=first[1].model) == first[1]
        if regime == "initial":
            assert unit.model == first[1].model
        else:
            assert unit.model in trained
            train = unit.model.train
            assert (train.policy, train.defense, train.crop_flip, unit.model.seed) == (
                policy,
                rest,
                text != BARE,
                0,
            )
    assert {unit.seed for unit in trained} == {0, 1, 2}
    assert len(trained) == len(set(trained)) == 3 * len(kinds(chosen))
    assert all(
        unit.train.epochs == trained[0].train.epochs and unit.model == "relunet" for unit in trained
    )
    assert {kind for kind, texts in DEFENSES.items() if len(texts) < 3} == {"none"}
    assert {kind for group in PANELS.values() for kind in group} == {*DEFENSES, TUNED} - {"none"}


def test_the_tuned_policy_is_the_one_that_hides_most_and_then_leaks_least():
    table = pd.DataFrame(
        {"found": [0.5, 0.25, 0.25], "gain": [0.0, 3.0, 2.0]}, index=["1", "2", "3"]
    )
    assert tuned(table) == "3"


def rows(found, *, images=40, regime="initial"):
    """Attacks under which this share of photographs is found, by (defense, kind, attacker)."""
    parts = []
    for (name, kind, attacker), share in found.items():
        hit = np.arange(images) < share * images
        who = {"defense": name, "kind": kind, "attacker": attacker}
        parts.append(pd.DataFrame(who | {"image": range(images), "found": hit.astype(float)}))
    gain = np.resize([2.0, 3.0], images * len(parts))
    table = pd.concat(parts, ignore_index=True).assign(
        gain_before=gain, gain=gain, floor_policy=9.0
    )
    return table.assign(psnr=9 + table["gain_before"], policy=table["defense"], regime=regime)


def trained(levels):
    each = [(name, seed) for name in levels for seed in range(3)]
    return pd.DataFrame(
        [{"defense": n, "seed": s, "accuracy": levels[n] + s - 1, "train": 5} for n, s in each]
    )


NONE, ATS = ("none", "none", PLAIN), ("3-1-7", "ATS", PLAIN)
PRUNED, NOISY = ("prune:0.9", "pruning", PLAIN), ("gaussian:1", "Gaussian noise", PLAIN)
LEVELS = {"none": 20.0, "3-1-7": 18.0, "prune:0.9": 17.0, "gaussian:1": 19.0}


@pytest.mark.parametrize(
    ("ats", "pruned", "noisy", "levels", "options", "status"),
    [
        (0.2, 0.8, 0.9, {}, {}, "reproduced"),
        (0.2, 0.2, 0.9, {}, {}, "not reproduced"),  # of one of two, no more than half
        (0.8, 0.8, 0.9, {}, {}, "not reproduced"),
        (0.2, 0.2, 0.9, {"prune:0.9": 10.0}, {}, "reproduced"),  # no rival at that cost
        (0.2, 0.8, 0.9, {"3-1-7": 10.0}, {}, "not reproduced"),  # nor is it one
        (0.2, 0.8, 0.9, {"none": 1.5}, {}, "cannot tell"),
        (0.2, 0.8, 0.9, {}, {"images": 29}, "cannot tell"),
    ],
)
def test_the_rule(ats, pruned, noisy, levels, options, status):
    found = {NONE: 1.0, ATS: ats, PRUNED: pruned, NOISY: noisy}
    table = pd.concat([rows(found, **options, regime=name) for name in REGIMES])
    verdict = defenses_verdict(table, trained(LEVELS | levels), 100)
    assert verdict.status == status
    assert verdict.reason.count(f"({status}): ") == 2


@pytest.mark.parametrize(
    ("before", "after", "bare", "status"),
    [
        (0.2, 0.8, 1.0, "partly"),
        (0.8, 0.2, 1.0, "partly"),
        (0.2, 0.2, 0.4, "reproduced"),  # the regime that can tell nothing does not count
        (0.8, 0.2, 0.4, "not reproduced"),
    ],
)
def test_the_rule_asks_every_regime(before, after, bare, status):
    first = rows({NONE: 1.0, ATS: before, PRUNED: 0.8, NOISY: 0.9})
    second = rows({NONE: bare, ATS: after, PRUNED: 0.8, NOISY: 0.9}, regime="trained")
    verdict = defenses_verdict(pd.concat([first, second]), trained(LEVELS), 100)
    assert verdict.status == status
    assert ("after a short training (cannot tell)" in verdict.reason) == (bare < 0.5)


def test_partly_where_more_than_half_of_the_kinds_are_beaten():
    found = {NONE: 1.0, ATS: 0.2, PRUNED: 0.8, NOISY: 0.9, ("mixup:0.3", "MixUp", PLAIN): 0.2}
    table = pd.concat([rows(found, regime=name) for name in REGIMES])
    assert defenses_verdict(table, trained(LEVELS | {"mixup:0.3": 19.0}), 100).status == "partly"


def test_undefended_attacks_must_find_half():
    found = {NONE: 0.4, ATS: 0.0, PRUNED: 0.4, NOISY: 0.4}
    table = pd.concat([rows(found, regime=name) for name in REGIMES])
    verdict = defenses_verdict(table, trained(LEVELS), 100)
    assert verdict.status == "cannot tell"
    assert "less than half" in verdict.reason


def test_a_defense_is_judged_by_the_attacker_who_finds_most():
    table = rows({NONE: 1.0, PRUNED: 0.3, ("prune:0.9", "pruning", "kept entries only"): 0.7})
    assert set(worst(table)["attacker"]) == {PLAIN, "kept entries only"}
    whole = compared(table, trained({"none": 20.0, "prune:0.9": 17.0}), 100).set_index("defense")
    assert whole.loc["prune:0.9", "found"] == 70
    assert whole["pareto"].all()
    assert list(best(whole.reset_index())["defense"]) == ["prune:0.9", "none"]


def test_a_toy_run_is_the_same_from_the_archive(kept, tmp_path, monkeypatch):
    few = {
        kind: DEFENSES[kind] for kind in ("none", "ATS", "pruning", "DP-SGD", "bottleneck", "MixUp")
    }
    monkeypatch.setattr(defended, "DEFENSES", few)
    chosen = settings(images=2, steps=3, fraction=0.004)
    result = ext6_defenses.run(chosen, kept)
    table = result.tables["attacks"]
    assert set(table["kind"]) == {*few, TUNED}
    assert result.verdict.status == "cannot tell"
    archive, again = Archive(tmp_path / "units"), Store(tmp_path / "again")
    archive.write(kept, embedded=True)
    archive.restore(again)
    lines = archive.entries().values()
    made = {type(unit_of(line).attack) for line in lines if line["kind"].startswith("attack")}
    assert made == {BothImages, GradientMatching, KeptEntries, KnownFeatures, ThroughPolicy, Undone}
    assert ext6_defenses.run(chosen, again).digest == result.digest
    assert set(table["regime"]) == set(REGIMES)
    for regime in REGIMES:
        assert len(ext6_defenses.summary(result, regime)) <= 8
        whole = ext6_defenses.summary(result, regime, every=True)
        assert set(whole.index.get_level_values("defense")) == set(table["defense"])
        shown = ext6_defenses.figure(result, regime)
        assert set(shown["defense"]) == set(table["defense"])
        plots.exchange(shown, "accuracy", "defense", "kind", "outcome", xlabel="accuracy")
        assert "Without a defense the strongest attack finds" in ext6_defenses.advice(
            result, regime
        )
    spent = epsilon(0.001, rate=1, steps=1)  # fewer images than a batch holds, one epoch
    assert float(ext6_defenses.guarantees(result)["ε"].iloc[0]) == pytest.approx(spent, rel=0.01)
    assert len(ext6_defenses.sheet(result)) >= 3
