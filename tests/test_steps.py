"""The page on the length of attacks: its units, its rule on made-up numbers, and a toy run."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from atsbook.pages import steps
from atsbook.pages.steps import ANNEALED, LONG, PAPERS, steps_verdict
from atsbook.runs.settings import settings
from atslib.attacks import ATTACKS

pytestmark = pytest.mark.usefixtures("one_thread", "few_images")


def test_both_attacks_differ_in_nothing_but_their_preset_at_every_length():
    units = steps.units(settings(profile="laptop", dataset="shapes", images=40))
    assert {model for model, _, _ in units} == {"lenet", "convnet-16", "resnet20-1"}
    assert {length for model, _, length in units if model == "lenet"} == set(steps.LENGTHS)
    for (model, name, length), unit in units.items():
        assert (unit.model.model, unit.model.train, unit.policy, unit.last) == (model, None, "", 32)
        assert unit.attack.steps == length
        other = units[model, PAPERS if name == ANNEALED else ANNEALED, length]
        assert dataclasses.replace(unit, attack=other.attack) == other
    assert units["lenet", PAPERS, LONG].attack == ATTACKS["adam-cosine"]


def rows(long, short, *, images=40, at=300, floor=10.0, spread=1):
    """Attacks of the paper's full length and of `at` annealed steps, with these means in dB."""
    noise = spread * np.resize([-0.2, 0.2, 0.1, -0.1], images)
    parts = {(PAPERS, LONG): long + noise, (ANNEALED, at): short - noise, (ANNEALED, 25): 0 * noise}
    table = [
        pd.DataFrame({"schedule": name, "steps": length, "image": range(images), "psnr": values})
        for (name, length), values in parts.items()
    ]
    return pd.concat(table).assign(
        model="lenet", floor_policy=floor, gain=lambda table: table["psnr"] - floor
    )


@pytest.mark.parametrize(
    ("long", "short", "options", "status"),
    [
        (15.0, 18.0, {}, "reproduced"),
        (15.0, 14.8, {}, "reproduced"),  # lower by less than the margin
        (15.0, 14.0, {}, "not reproduced"),
        (15.0, 14.5, {}, "not reproduced"),  # lower, by about the margin
        (15.0, 15.1, {"spread": 30}, "cannot tell"),
        (15.0, 18.0, {"images": 29}, "cannot tell"),
        (15.0, 18.0, {"floor": 19.0}, "cannot tell"),
        (15.0, 18.0, {"at": 600}, "not reproduced"),  # only the 25 steps are a tenth or fewer
    ],
)
def test_the_rule(long, short, options, status):
    table = rows(long, short, **options)
    if options.get("at"):
        table.loc[table["steps"] == 25, "psnr"] = 11.0
    assert steps_verdict(table).status == status


def test_without_the_lengths_of_the_rule_it_cannot_tell():
    assert steps_verdict(rows(15.0, 18.0).query("steps != @LONG")).status == "cannot tell"


def test_a_toy_run(kept):
    chosen = settings(images=3, steps=2)
    result = steps.run(chosen, kept)
    table = result.tables["attacks"]
    assert len(table) == 2 * 2 * 3
    assert result.verdict.status == "cannot tell"
    means = table.groupby(["model", "schedule", "steps"], sort=False)["gain"].mean()
    curve = steps.curve(result).set_index(["model", "schedule", "steps"])
    pd.testing.assert_series_equal(curve["mean"], means, check_names=False, check_index_type=False)
    assert steps.wide(result).shape == (4, 2)
    assert (
        steps.wide(result)
        .loc["used image found"]
        .map(lambda text: text.endswith("%"))
        .all(axis=None)
    )
