"""Regimes, and the page that asks whether a policy protects where attacks work."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from checks import needs

from atsbook.findings import compare
from atsbook.findings.result import NO_POLICY, Result
from atsbook.pages import regimes
from atsbook.runs.attacks import attack_unit, attacked, ranks, transformed
from atsbook.runs.networks import STAGES, dataset, trained
from atsbook.runs.regimes import Cell, accuracies
from atsbook.runs.settings import settings
from atsbook.runs.table1 import HYBRID, POLICIES, SEARCHED
from atsbook.runs.tables import image_rows, policy_image
from atslib.attacks import ATTACKS
from atslib.clients.prepare import to_images
from atslib.clients.training import evaluate
from atslib.errors import AtsError
from atslib.measures.metrics import psnr


def attacks(lead, change, *, images=40, spread=1.0, seed=0):
    """One cell's rows: undefended gains around `lead`, the hybrid's around `lead + change`, on the
    same images.
    """
    draw = np.random.default_rng(seed)
    first, second = (spread * (noise - noise.mean()) for noise in draw.standard_normal((2, images)))
    bare, hybrid = lead + first, lead + first + change + second
    rows = [
        pd.DataFrame(
            {"image": range(images), "draw": 0, "policy": name, "gain": gain, "psnr": 10 + gain}
        )
        for name, gain in ((NO_POLICY, bare), (HYBRID, hybrid))
    ]
    return pd.concat(rows, ignore_index=True).assign(
        regime="initial", step=0, model="lenet", floor_policy=10.0
    )


@pytest.mark.parametrize(
    ("lead", "change", "images", "status"),
    [
        (5, -4, 40, "reproduced"),
        (5, 2, 40, "not reproduced"),
        (-1, -4, 40, "cannot tell"),  # nothing to protect
        (5, -4, 20, "cannot tell"),  # too few images
    ],
)
def test_the_verdict_follows_the_rule(lead, change, images, status):
    table = regimes.judged(attacks(lead, change, images=images))
    assert regimes.verdict_of(table).status == status


def test_an_imprecise_cell_cannot_tell():
    table = regimes.judged(attacks(9, -1.5, spread=10.0))
    assert table["low"].item() < regimes.published_change()
    assert table["high"].item() > 0
    assert "holds both 0 and the published" in table["why"].item()
    assert regimes.verdict_of(table).status == "cannot tell"


def test_one_protected_cell_of_two_is_partly():
    other = attacks(5, 2, seed=1).assign(model="convnet-16")
    table = regimes.judged(pd.concat([attacks(5, -4), other], ignore_index=True))
    assert table["protects"].tolist() == [True, False]
    verdict = regimes.verdict_of(table)
    assert verdict.status == "partly"
    assert "in 1 of 2 cells that can tell (lenet, initial: -4.0 dB [" in verdict.reason
    assert verdict.reason.endswith("; it changes that of the others by +2.0 dB")


def test_the_published_change_is_the_smaller_of_both():
    assert regimes.published_change() == pytest.approx(8.25 - 12.15)


@pytest.mark.parametrize(("field", "value"), [("regime", "late"), ("attack", "adam")])
def test_a_cell_refuses_what_it_does_not_know(field, value):
    whole = {
        "regime": "initial",
        "model": "lenet",
        "attack": "adam-cosine",
        "steps": 2,
        "images": 2,
    }
    with pytest.raises(AtsError, match=f"Cell.{field} '{value}' is unknown"):
        Cell(**whole | {field: value})


@needs("cifar100")
def test_networks_by_regime():
    cell = Cell(regime="initial", model="lenet", attack="adam-cosine", steps=2, images=2)
    assert cell.network("3-1-7").train is None
    semi = dataclasses.replace(cell, regime="semi").network("3-1-7")
    assert (semi.fraction, semi.train.policy, semi.train.epochs) == (0.1, "", 50)
    early = dataclasses.replace(cell, regime="early", step=30).network("3-1-7")
    assert (early.step, early.train.policy) == (30, "3-1-7")
    with pytest.raises(AtsError, match=r"Cell\.step=30 in regime semi"):
        dataclasses.replace(cell, regime="semi", step=30)
    trained = dataclasses.replace(cell, regime="trained").network("3-1-7")
    assert (trained.fraction, trained.train.policy, trained.train.epochs) == (1.0, "3-1-7", 20)


@needs("cifar100")
def test_the_evidence_has_every_network_policy_and_draw():
    units = regimes.units(settings(profile="laptop"))
    untrained = {key: unit for key, unit in units.items() if key[0] == "initial"}
    assert {key[2] for key in untrained} == {"lenet", "convnet-16", "resnet20-1", "resnet20-4"}
    assert len(untrained) == len(POLICIES) * (3 + 2 + 2) + 2
    assert all(
        unit.last == (16 if key[2] == "resnet20-4" else 100) for key, unit in untrained.items()
    )
    assert all(unit.last >= 30 for unit in units.values() if unit.model.model != "resnet20-4")
    assert all(unit.model.train is None for unit in untrained.values())
    assert {unit.seed for key, unit in untrained.items() if key[2] == "lenet"} == {0, 1, 2}


FOLLOWED = {
    "resnet20-1": 100,
    "convnet-16": 100,
    "lenet": 300,
}  # and the steps of an attack, as before the training


@needs("cifar100")
def test_networks_are_followed_to_the_end_of_their_training_with_every_searched_policy():
    units = {
        key: unit
        for key, unit in regimes.units(settings(profile="laptop")).items()
        if key[0] == "early"
    }
    steps = {model: {key[1] for key in units if key[2] == model} for model in FOLLOWED}
    assert steps == {model: {*STAGES, 7820} for model in FOLLOWED}
    assert all(unit.model.step == (0 if key[1] == 7820 else key[1]) for key, unit in units.items())
    lengths = {(key[2], unit.attack.steps) for key, unit in units.items()}
    assert lengths == FOLLOWED.items(), "one figure, one length of attack"
    policies = {model: {u.policy for k, u in units.items() if k[2] == model} for model in steps}
    assert policies == {model: {"", *SEARCHED, HYBRID} for model in FOLLOWED}
    assert all(unit.model.train.policy == unit.policy for unit in units.values())


@needs("cifar100")
def test_every_policy_of_claim_1_has_a_network_trained_to_its_end():
    units = {
        key: unit
        for key, unit in regimes.units(settings(profile="laptop")).items()
        if key[0] == "trained"
    }
    attacked = {(key[2], unit.policy) for key, unit in units.items()}
    every = {(model, policy) for model in ("lenet", "resnet20-1") for policy in POLICIES}
    assert attacked == every | {("convnet-16", policy) for policy in ("", HYBRID)}
    for unit in units.values():
        assert (unit.model.train.policy, unit.model.step, unit.last) == (unit.policy, 0, 100)


@needs("cifar100")
def test_the_papers_attack_stands_beside_the_strongest_on_the_same_images_and_starts():
    laptop = settings(profile="laptop")
    units = regimes.units(laptop)
    theirs = regimes.by_the_paper(laptop)
    assert {key[0] for key in theirs} == {"initial", "early", "semi", "trained"}
    for key, unit in theirs.items():
        strongest = units[(*key, 0)]
        assert unit.attack == dataclasses.replace(
            ATTACKS["adam-cosine"], steps=strongest.attack.steps
        )
        same = dataclasses.replace(
            strongest, attack=unit.attack, last=100 if key[0] == "initial" else 32
        )
        assert units["paper", *key] == same


def test_each_trained_network_has_its_accuracy_once(store):
    small = settings()
    bare = attack_unit(small)
    units = {
        ("trained", 9, small.model, NO_POLICY, draw): dataclasses.replace(bare, seed=draw)
        for draw in range(2)
    }
    before = dataclasses.replace(bare, model=dataclasses.replace(bare.model, train=None))
    found = accuracies(units | {("initial", 0, small.model, NO_POLICY, 0): before}, store, "cpu")
    assert found[["regime", "step", "model", "policy"]].to_numpy().tolist() == [
        ["trained", 9, small.model, NO_POLICY]
    ]
    model, _ = trained(bare.model, store, torch.device("cpu"))
    assert found["accuracy"].tolist() == [evaluate(model, dataset(small.dataset, "test"))]
    assert list(accuracies({}, store, "cpu")) == list(found)


def test_both_attacks_are_compared_cell_by_cell():
    one = attacks(5, -1).assign(rank_target=1)
    theirs = one.assign(gain=one["gain"] - 4, rank_target=2)
    other = one.assign(regime="trained", step=9, gain=0.0)
    more = one.assign(image=one["image"] + 1_000, gain=99.0)  # which the paper's attack did not get
    tables = {
        "attacks": pd.concat([one, one.assign(draw=1, gain=99.0), other, more]),
        "paper": theirs,
    }
    row = regimes.two_attacks(Result("regimes", tables, {}, None)).loc[
        "initial", "lenet", NO_POLICY
    ]
    assert row["strongest: gain, dB"].startswith("+5.0 [")
    assert row["the paper's: gain, dB"].startswith("+1.0 [")
    assert (row["strongest: used image found"], row["the paper's: used image found"]) == (
        "100%",
        "0%",
    )


def test_the_figure_follows_one_training_and_leaves_out_the_semi_trained_network():
    parts = [
        attacks(5, -1).assign(regime=r, step=s)
        for r, s in (("initial", 0), ("early", 3), ("early", 9))
    ]
    parts += [attacks(5, -1).assign(regime=r, step=s) for r, s in (("semi", 7), ("trained", 9))]
    table = pd.concat(parts, ignore_index=True).assign(**dict.fromkeys(regimes.OUTCOMES, 1))
    result = Result("regimes", {"attacks": table}, {}, None)
    assert regimes.followed(result) == ["lenet"]
    found = regimes.stages(result, "lenet")
    assert sorted(set(found["step"])) == [0, 3, 9]
    assert found["outcome"].nunique() == 4
    table.loc[table["step"] == 3, "rank_knowing"] = np.nan  # nobody looked
    found = regimes.stages(Result("regimes", {"attacks": table}, {}, None), "lenet")
    assert found.groupby("step")["outcome"].nunique().to_dict() == {0: 4, 3: 3, 9: 4}


@needs("cifar100")
def test_network_and_target_are_crossed():
    pairs = regimes.crossed(settings(profile="laptop"))
    places = {(model, step) for model, step, _, _ in pairs}
    assert places == {(model, step) for model in FOLLOWED for step in (30, 300, 7820)}
    assert len(pairs) == 4 * len(places)
    assert not regimes.crossed(settings())
    for (model, step, network, target), unit in pairs.items():
        assert (unit.model.model, unit.model.step) == (model, step % 7820)
        assert (network, target) == (unit.model.train.policy or "none", unit.policy or "none")


def crossed(network, target):
    """Attacks to which training with the hybrid adds `network` dB and transforming the images
    `target` dB.
    """
    rows = [
        {
            "model": "lenet",
            "step": 9,
            "network": n,
            "target": t,
            "image": i,
            "psnr": i + network * (n != NO_POLICY) + target * (t != NO_POLICY),
            "rank_target": 1 + (i > 1),
        }
        for n in (NO_POLICY, HYBRID)
        for t in (NO_POLICY, HYBRID)
        for i in range(6)
    ]
    return pd.DataFrame(rows).assign(
        floor_policy=3.0, gain=lambda table: table["psnr"] - table["floor_policy"]
    )


def test_what_lowers_the_psnr_is_told_apart():
    attacks = crossed(network=-0.5, target=-2.0)
    table = compare.what_lowers(attacks, HYBRID)["change, dB"]
    np.testing.assert_allclose(table.xs("network", level="the policy on"), -0.5)
    np.testing.assert_allclose(table.xs("target", level="the policy on"), -2.0)
    means = compare.targets_crossed(attacks)
    assert means.loc[("lenet", 9, NO_POLICY, HYBRID), ["PSNR, dB", "gain, dB"]].tolist() == [
        0.5,
        -2.5,
    ]
    np.testing.assert_allclose(means["used image found, %"], 100 / 3)


@pytest.fixture(scope="module")
def page(kept):
    chosen = settings(profile="smoke", model="lenet", steps=4)
    return regimes.run(chosen, kept), chosen, kept


def test_the_page_has_a_row_per_policy_draw_and_image(page):
    result, chosen, _ = page
    rows = result.tables["attacks"]
    assert len(rows) == 2 * chosen.images
    assert set(rows["policy"]) == {NO_POLICY, HYBRID}
    np.testing.assert_allclose(rows["gain"], rows["psnr"] - rows["floor_policy"])
    assert rows["rank_target"].between(1, 100).all()
    assert rows["rank_original"].between(1, 100).all()
    assert result.verdict.status == "cannot tell"
    assert len(regimes.summary(result)) == 2
    assert regimes.per_image(result).shape == (chosen.images, 2)
    assert set(regimes.identified(result)["outcome"]) == set(regimes.OUTCOMES.values())
    assert list(regimes.changes(result).columns.levels[0]) == ["gain", "psnr"]


def test_the_floor_is_the_mean_of_transformed_training_images(page):
    _, chosen, store = page
    unit = next(unit for key, unit in regimes.units(chosen).items() if key[3] == HYBRID)
    rows = image_rows(attacked(unit, store, torch.device("cpu")), unit)
    target = to_images(transformed(chosen.dataset, HYBRID, chosen.images, seed=0))
    guess = policy_image(chosen.dataset, HYBRID, True).expand_as(target)
    np.testing.assert_allclose(rows["floor_policy"], psnr(guess, target), rtol=1e-5)
    assert (
        policy_image(chosen.dataset, "3", True) - policy_image(chosen.dataset, "", True)
    ).abs().max() > 0.05


def test_a_perfect_reconstruction_is_first_among_a_hundred_and_another_image_is_not(page):
    unit = dataclasses.replace(next(iter(regimes.units(page[1]).values())), first=98, last=103)
    target = to_images(transformed(unit.model.dataset, unit.policy, 103, seed=unit.seed))[98:]
    assert ranks(unit, target)["rank_target"].tolist() == [1] * 5
    assert ranks(unit, target.flip(0))["rank_target"].tolist() != [1] * 5


def test_the_round_is_chosen_on_some_images_and_counted_on_the_others():
    rows = [
        {"step": step, "policy": policy, "image": image, "gain": gain(image) + 0.01 * image}
        for policy, gains in {
            "none": {
                0: lambda i: 1.0,
                3: lambda i: 5.0 - 6.0 * (i % 2),
                9: lambda i: 2.0 + 9.0 * (i % 2),
            },
            "3-1-7": {0: lambda i: 1.0, 3: lambda i: -1.0, 9: lambda i: -2.0},
        }.items()
        for step, gain in gains.items()
        for image in range(20 if step == 0 else 10)
    ]
    table = compare.chosen_round(pd.DataFrame(rows))
    assert table["chosen step"].to_dict() == {
        "none": 3,
        "3-1-7": 0,
    }  # step 9 is best on the other half alone
    assert table["images"].tolist() == [5, 5]  # those of odd number that every step has
    assert table.loc["none", "at step 0"].startswith("+1.1 [")
    assert table.loc["none", "at the chosen one"].startswith("-0.9 [")
    assert table.loc["none", "change"].startswith("-2.0")
    assert table.loc["3-1-7", "change"] == "–"


def test_stages_are_compared_on_the_images_that_all_have():
    parts = [
        attacks(5, -1).assign(regime="initial", step=0),
        attacks(5, -1, images=32).assign(regime="early", step=3),
    ]
    parts += [attacks(5, -1).assign(regime="semi", step=7)]
    table = pd.concat(parts, ignore_index=True).assign(**dict.fromkeys(regimes.OUTCOMES, 1))
    rows = regimes.along(Result("regimes", {"attacks": table}, {}, None), "lenet")
    assert rows.groupby("step")["image"].nunique().to_dict() == {0: 32, 3: 32}
