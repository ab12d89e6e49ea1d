"""Regimes, and the page that asks whether a policy protects where attacks work."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from atslib.clients.prepare import to_images
from atslib.errors import AtsError
from atslib.measures.metrics import psnr
from atslib.report.pages import regimes
from atslib.report.result import NO_POLICY
from atslib.report.units.regimes import Cell, evidence_rows
from atslib.report.units.settings import settings
from atslib.report.units.table1 import HYBRID, POLICIES
from atslib.report.units.tables import policy_image
from atslib.report.units.units import attacked, ranks, transformed


def attacks(lead, change, *, images=40, spread=1.0, seed=0):
    """One cell's rows: undefended gains around `lead`, the hybrid's around `lead + change`, on the same images."""
    draw = np.random.default_rng(seed)
    first, second = (spread * (noise - noise.mean()) for noise in draw.standard_normal((2, images)))
    bare, hybrid = lead + first, lead + first + change + second
    rows = [
        pd.DataFrame({"image": range(images), "draw": 0, "policy": name, "gain": gain, "psnr": 10 + gain})
        for name, gain in ((NO_POLICY, bare), (HYBRID, hybrid))
    ]
    return pd.concat(rows, ignore_index=True).assign(regime="initial", model="lenet", floor_policy=10.0)


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
    assert regimes.verdict_of(table).status == "partly"


def test_the_published_change_is_the_smaller_of_both():
    assert regimes.published_change() == pytest.approx(8.25 - 12.15)


@pytest.mark.parametrize(("field", "value"), [("regime", "late"), ("attack", "adam")])
def test_a_cell_refuses_what_it_does_not_know(field, value):
    whole = {"regime": "initial", "model": "lenet", "attack": "adam-cosine", "steps": 2, "images": 2}
    with pytest.raises(AtsError, match=f"Cell.{field} '{value}' is unknown"):
        Cell(**whole | {field: value})


def test_networks_by_regime():
    cell = Cell(regime="initial", model="lenet", attack="adam-cosine", steps=2, images=2)
    assert cell.network("3-1-7").train is None
    semi = dataclasses.replace(cell, regime="semi").network("3-1-7")
    assert (semi.fraction, semi.train.policy, semi.train.epochs) == (0.1, "", 50)
    trained = dataclasses.replace(cell, regime="trained").network("3-1-7")
    assert (trained.fraction, trained.train.policy, trained.train.epochs) == (1.0, "3-1-7", 20)


def test_the_evidence_has_every_network_policy_and_draw():
    units = regimes.units(settings(profile="laptop"))
    assert {key[1] for key in units} == {"lenet", "convnet-16", "resnet20-1"}
    assert len(units) == len(POLICIES) * (2 + 2 + 2)
    assert all(unit.last >= 30 and unit.model.train is None for unit in units.values())
    assert {unit.seed for key, unit in units.items() if key[1] == "lenet"} == {0, 1}


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
    unit = next(unit for key, unit in regimes.units(chosen).items() if key[2] == HYBRID)
    rows = evidence_rows(attacked(unit, store, torch.device("cpu")), unit)
    target = to_images(transformed(chosen.dataset, HYBRID, chosen.images, seed=0))
    guess = policy_image(chosen.dataset, HYBRID, True).expand_as(target)
    np.testing.assert_allclose(rows["floor_policy"], psnr(guess, target), rtol=1e-5)
    assert (policy_image(chosen.dataset, "3", True) - policy_image(chosen.dataset, "", True)).abs().max() > 0.05


def test_a_perfect_reconstruction_is_first_among_a_hundred_and_another_image_is_not(page):
    unit = dataclasses.replace(next(iter(regimes.units(page[1]).values())), first=98, last=103)
    target = to_images(transformed(unit.model.dataset, unit.policy, 103, seed=unit.seed))[98:]
    assert ranks(unit, target)["rank_target"].tolist() == [1] * 5
    assert ranks(unit, target.flip(0))["rank_target"].tolist() != [1] * 5
