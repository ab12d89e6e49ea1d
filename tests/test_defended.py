"""The page that compares defenses, each at its worst: who attacks what, and the rule in its notebook."""

import contextlib
import dataclasses
import io
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from test_pilots import cell

from atsbook.attackers import Undone
from atsbook.findings import compare
from atsbook.findings.defenses import (
    LEAST_KIND,
    OWN,
    REGIMES,
    TUNED,
    best,
    called,
    strength,
)
from atsbook.findings.statistics import paired, share_interval
from atsbook.findings.table1 import HYBRID, SEARCHED
from atsbook.findings.verdicts import KEEPS, guards, kept
from atsbook.runs.study import Study
from atslib import ATTACKS, ThreatModel, TrainConfig
from atslib.attacks import (
    BothImages,
    GradientMatching,
    KeptEntries,
    KnownFeatures,
    ThroughPolicy,
)
from atslib.scores.search import pareto

pytestmark = pytest.mark.usefixtures("one_thread", "few_images")
PAGE = "ext6_defenses"
PLAIN = "plain"
BARE = "no crop, no flip"


@pytest.fixture(scope="module")
def asked(few_images, tmp_path_factory):
    """What the notebook's cells ask for at laptop, without the tuned policy; nothing is computed."""
    space = {"profile": "laptop", "dataset": "shapes", "images": 9, "steps": None, "seed": None}
    space |= {"Study": Study, "replace": dataclasses.replace, "ATTACKS": ATTACKS}
    space |= {"ThreatModel": ThreatModel, "TrainConfig": TrainConfig, "Undone": Undone}
    space |= {"BothImages": BothImages, "KeptEntries": KeptEntries}
    space |= {"KnownFeatures": KnownFeatures, "ThroughPolicy": ThroughPolicy}
    space |= {"LEAST_KIND": LEAST_KIND, "REGIMES": REGIMES}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATS_STORE", str(tmp_path_factory.mktemp("asked")))
        exec(cell(PAGE, "DEFENSES = {"), space)
        exec(cell(PAGE, "def attackers("), space)
        space["untrained"] = space["study"].network("relunet")
        exec(cell(PAGE, "networks = {}"), space)
    return space


def rule(attacks, accuracy, classes=100):
    """What the rule's cell makes of made-up tables."""
    space = {"pd": pd, "compare": compare, "paired": paired, "share_interval": share_interval}
    space |= {"KEEPS": KEEPS, "guards": guards, "kept": kept, "pareto": pareto, "best": best}
    space |= {"OWN": OWN, "LEAST_KIND": LEAST_KIND, "REGIMES": REGIMES}
    space |= {"attacks": attacks, "accuracy": accuracy, "classes": lambda name: classes}
    space["study"] = SimpleNamespace(dataset="")
    with contextlib.redirect_stdout(io.StringIO()):
        exec(cell(PAGE, "def judge("), space)
    return space


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
def test_each_defense_meets_the_plain_attack_and_those_that_know_it(text, expected, asked):
    own = asked["attackers"](text)
    assert [type(attack) for attack in own.values()] == [GradientMatching, *expected]
    assert own[PLAIN].tv == 0.02
    if "gaussian" in text or "dp" in text:
        assert own["stronger prior"].tv == pytest.approx(0.1)
    if "prune" in text and "+" in text:
        assert isinstance(own["through the policy"].inner, ThroughPolicy)


def test_all_attacks_differ_in_defense_and_attacker_only_and_trainings_in_defense_and_seed(asked):
    requests = {key: run.request for key, run in asked["runs"].items()}
    trained = [net.request for net in asked["networks"].values()]
    first, *others = requests.items()
    for (regime, text, who), request in others:
        policy, rest = asked["split"](text)
        assert (request.policy, request.defense, request.crop_flip) == (policy, rest, text != BARE)
        assert request.threat.defense == ("policy" if who in asked["KNOW"] else "unknown")
        own = {
            name: getattr(first[1], name)
            for name in ("policy", "defense", "attack", "threat", "crop_flip")
        }
        assert dataclasses.replace(request, **own, model=first[1].model) == first[1]
        if regime == "initial":
            assert request.model == first[1].model
        else:
            assert request.model in trained
            train = request.model.train
            assert (train.policy, train.defense, train.crop_flip, request.model.seed) == (
                policy,
                rest,
                text != BARE,
                0,
            )
    assert {request.seed for request in trained} == {0, 1, 2}
    assert len(trained) == len(set(trained)) == 3 * len(asked["kinds"])
    assert all(
        request.train.epochs == trained[0].train.epochs and request.model == "relunet"
        for request in trained
    )
    assert {kind for kind, texts in asked["DEFENSES"].items() if len(texts) < 3} == {"none"}


def test_who_does_not_go_through_a_policy_compares_with_its_forms(asked):
    there = {key[1:] for key in asked["forms"]}
    assert (HYBRID, PLAIN) in there
    assert (f"{HYBRID} | gaussian:0.001", "stronger prior") in there
    assert not {who for _, who in there} & set(asked["KNOW"])
    assert all(request.request.policy for request in asked["forms"].values())


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
    found = rule(table, trained(LEVELS | levels))
    assert found["status"] == status
    assert found["reason"].count(f"({status}): ") == 2


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
    found = rule(pd.concat([first, second]), trained(LEVELS))
    assert found["status"] == status
    assert ("after a short training (cannot tell)" in found["reason"]) == (bare < 0.5)


def test_partly_where_more_than_half_of_the_kinds_are_beaten():
    found = {NONE: 1.0, ATS: 0.2, PRUNED: 0.8, NOISY: 0.9, ("mixup:0.3", "MixUp", PLAIN): 0.2}
    table = pd.concat([rows(found, regime=name) for name in REGIMES])
    assert rule(table, trained(LEVELS | {"mixup:0.3": 19.0}))["status"] == "partly"


def test_undefended_attacks_must_find_half():
    found = {NONE: 0.4, ATS: 0.0, PRUNED: 0.4, NOISY: 0.4}
    table = pd.concat([rows(found, regime=name) for name in REGIMES])
    found = rule(table, trained(LEVELS))
    assert found["status"] == "cannot tell"
    assert "less than half" in found["reason"]


def test_a_defense_is_judged_by_the_attacker_who_finds_most():
    found = {NONE: 1.0, ATS: 0.9, PRUNED: 0.3, ("prune:0.9", "pruning", "kept entries only"): 0.7}
    table = rows(found)
    both = pd.concat([table, table.assign(regime="trained")])
    levels = trained({"none": 20.0, "3-1-7": 5.0, "prune:0.9": 17.0})
    space = rule(both, levels)
    assert set(space["worst"](table)["attacker"]) == {PLAIN, "kept entries only"}
    whole = space["at_its_worst"](table, levels, 100).set_index("defense")
    assert whole.loc["prune:0.9", "found"] == 70
    assert whole["pareto"].to_dict() == {"none": True, "3-1-7": False, "prune:0.9": True}
    assert list(best(whole.reset_index())["defense"]) == ["prune:0.9", "none"]


def test_the_tuned_policy_is_a_policy_of_the_claim():
    assert TUNED in OWN


@pytest.mark.parametrize(
    ("setting", "words", "alone"),
    [
        ("none", "no defense", "no defense"),
        (HYBRID, "the paper's policy", "the paper's policy"),
        (SEARCHED[0], "member 3-1-7 alone", "member 3-1-7 alone"),
        ("3-3-3", "policy 3-3-3", "policy 3-3-3"),
        ("prune:0.7", "pruning of 70 %", "70 %"),
        ("dp:0.001", "DP-SGD, noise of 0.001", "0.001"),
        (f"{HYBRID} | gaussian:0.01", "the paper's policy and Gaussian noise of 0.01", "0.01"),
        ("MixUp", "MixUp", "MixUp"),  # a kind, and no setting
    ],
)
def test_a_setting_has_words_and_one_of_a_kind_its_strength(setting, words, alone):
    assert (called(setting), strength(setting)) == (words, alone)
