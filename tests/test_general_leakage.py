"""The page on general deep leakage: its cells beside published numbers, its rule on made-up ones, a
toy run.
"""

import itertools

import numpy as np
import pandas as pd
import pytest

from atsbook.findings.reported import reported
from atsbook.findings.result import Result
from atsbook.pages import ext7_general_leakage as page
from atsbook.pages.ext7_general_leakage import leakage_verdict
from atsbook.runs import leakage
from atsbook.runs.settings import settings

pytestmark = pytest.mark.usefixtures("one_thread")
LAPTOP = settings(profile="laptop")


def test_every_published_number_that_can_be_has_a_cell():
    there = page.units(LAPTOP)
    rows, missing = reported(source="leakage"), []
    for _, row in rows.iterrows():
        keys = page.twin(
            row["table_or_figure"], row["dataset"], row["policy_or_defense"], row["attack"]
        )
        wanted = (row["table_or_figure"], keys["setting"][0], keys["dataset"][0], keys["batch"][0])
        if wanted not in there:
            missing.append(wanted)
    impossible = {
        ("Table 4", f"each label {n} times", "cifar10", k)
        for n in (2, 4)
        for k in (32, 64, 128, 256)
    }
    assert set(missing) == impossible - {("Table 4", "each label 4 times", "cifar10", 32)}
    assert len(rows) == 129


def test_settings_of_one_table_differ_in_what_they_say():
    units = leakage.attack_units(LAPTOP)
    for size in (1, 4):
        attacks = [units["Table 2", name, "cifar10", size].attack for name in leakage.SETTINGS]
        assert len(set(attacks)) == 6
        assert (
            len({unit.batches for key, unit in units.items() if key[2:] == ("cifar10", size)}) == 1
        )
    assert [units["Table 1", f"{n} updates", "cifar100", 16].rounds for n in (2, 3, 4)] == [2, 3, 4]
    five = {key[1]: unit for key, unit in units.items() if key[0] == "Figure 5"}
    assert {unit.attack.unroll for name, unit in five.items() if name.endswith("unrolled")} == {
        True
    }
    assert [unit.local.epochs for name, unit in five.items() if name.endswith("unrolled")] == list(
        leakage.LOCAL
    )
    assert "1 epoch, unrolled" in five


def made_up(*, labels=True, terms=True, updates=True, repeated=True):
    """Tables in which each claim holds or not."""
    printed = page.published("Table 4", "cifar10") / 100
    cells = [("each label 2 times", 4), ("each label 2 times", 8), ("each label 2 times", 16)]
    cells += [("each label 4 times", size) for size in (4, 8, 16, 32)]
    high = [
        printed[f"{setting} batch {size}"] + (0 if labels else -1e-3) for setting, size in cells
    ]
    told = pd.DataFrame(cells, columns=["setting", "batch"]).assign(
        table="Table 4", dataset="cifar10", rule="published", high=high
    )
    parts, noise = [], 0.3 * np.sin(np.arange(32))

    def add(table, dataset, batch, low, high, holds):
        for setting, mean in ((low, 15.0), (high, 17.0 if holds else 15.0)):
            rows = {
                "table": table,
                "dataset": dataset,
                "batch": batch,
                "setting": setting,
                "psnr": mean + noise,
            }
            parts.append(pd.DataFrame(rows | {"group": range(32)}))
            noise[:] = np.roll(noise, 3)

    add("Table 2", "cifar10", 1, "tv", "tv+clip+scale", terms)
    add("Table 1", "cifar100", 16, "1 update", "4 updates", updates)
    kinds = [f"repetition {n}" for n in (1, 2, 3)] + [f"each label {n} times" for n in (2, 4)]
    for i, kind in enumerate(kinds):
        holds = repeated or i < 4
        add(
            "Table 5",
            "cifar100",
            16,
            f"{kind}, GradInversion's labels",
            f"{kind}, our labels",
            holds,
        )
    return told, pd.concat(parts)


@pytest.mark.parametrize("held", list(itertools.product([True, False], repeat=4)))
def test_the_rule(held):
    names = ("labels", "terms", "updates", "repeated")
    verdict = leakage_verdict(*made_up(**dict(zip(names, held, strict=True))))
    status = {4: "reproduced", 0: "not reproduced"}.get(sum(held), "partly")
    assert verdict.status == status
    assert verdict.here == f"{sum(held)} of 4 claims hold"


def test_a_claim_that_was_not_run_cannot_be_told():
    told, attacks = made_up()
    assert leakage_verdict(told, attacks[attacks["table"] != "Table 1"]).status == "cannot tell"
    assert leakage_verdict(told[:0], attacks).status == "cannot tell"
    without = attacks[attacks["setting"] != "repetition 2, our labels"]
    assert leakage_verdict(told, without).reason == "not run: repeated labels"


def test_what_repeating_local_steps_gains_stands_beside_its_cost():
    ways, rows = {"mean gradient": (15.0, 7), "unrolled": (17.0, 28)}, []
    for (how, (mean, passes)), g, i in itertools.product(ways.items(), range(10), range(2)):
        rank = 1 if i or how == "unrolled" else 2
        rows.append(
            {
                "setting": f"4 epochs, {how}",
                "group": g,
                "psnr": mean + g + i,
                "passes": passes,
                "rank": rank,
            }
        )
    rows = pd.DataFrame(rows).assign(table="Figure 5")
    row = page.local_steps(Result("x", {"attacks": rows}, {}, None)).loc["4 epochs"]
    assert row["unrolled minus mean: PSNR"] == "+2.0 dB [2.0, 2.0]"
    assert row["unrolled minus mean: found"] == "+50.0 points [50.0, 50.0]"
    assert row[["mean gradient: found", "unrolled: found"]].tolist() == ["50 %", "100 %"]
    assert row[["mean gradient: passes", "unrolled: passes"]].tolist() == ["7", "28"]


def test_the_sentence_has_the_tables_numbers():
    told = pd.DataFrame({"rule": ["features", "features", "published"], "share": [0.9, 1.0, 0.8]})
    ranks = {("Table 1", "cifar100", "1 update"): 4, ("Table 1", "cifar100", "4 updates"): 8}
    ranks |= {
        ("Figure 5", "cifar10", "16 epochs, mean gradient"): 5,
        ("Figure 5", "cifar10", "16 epochs, unrolled"): 9,
    }
    rows = [
        {"table": table, "dataset": data, "setting": setting, "rank": 1 + (i >= hits)}
        for (table, data, setting), hits in ranks.items()
        for i in range(10)
    ]
    tables = {
        "labels": told.assign(table="Table 4", dataset="cifar10"),
        "attacks": pd.DataFrame(rows),
    }
    words = page.sentence(Result("x", tables, {}, None))
    for part in (
        "90% to 100% of the labels",
        "(80% to 80% by",
        "40% after one update and 80% after four",
        "90%, if",
        "50% by",
    ):
        assert part in words


def test_a_setting_that_mostly_diverged_has_no_mean():
    same = {
        "table": "Table 2",
        "dataset": "cifar10",
        "batch": 1,
        "floor": 12.0,
        "ssim": 0.5,
        "rank": 1,
        "share": 1.0,
    }
    rows = pd.DataFrame(
        [same | {"group": g, "image": g, "psnr": 10.0 + g, "mse": 0.1} for g in range(10)]
    )
    rows = rows.assign(within=True, setting="tv")
    few, most = rows.copy(), rows.assign(setting="tv+clip")
    few.loc[:1, ["psnr", "mse"]] = -300.0, 1e30
    most.loc[:4, ["psnr", "mse", "ssim"]] = np.nan
    shown = page.compared(
        Result("x", {"attacks": pd.concat([few, most])}, {}, None), "Figure 3", "Table 2"
    )
    assert shown["diverged"].tolist() == ["2", "5"]
    assert shown["PSNR, dB"].iloc[0].startswith("15.5 [")
    assert shown["PSNR, dB"].iloc[1] == shown["MSE"].iloc[1] == "–"
    assert shown["found"].tolist() == ["100%", "100%"]


def test_a_data_set_of_ones_own_is_one_more_in_table_1():
    more = set(page.units(settings(profile="laptop", dataset="fmnist"))) - set(page.units(LAPTOP))
    assert {key[0] for key in more} == {"Table 1"}
    assert {key[2] for key in more} == {"fmnist"}
    assert len(more) == 5


def test_a_toy_run(kept):
    result = page.run(settings(steps=2), kept)
    assert result.verdict.status == "cannot tell"
    attacks, labels = result.tables["attacks"], result.tables["labels"]
    assert set(attacks["setting"]) == {"1 update", "2 updates"}
    assert len(attacks) == 2 * 4
    assert labels["n"].tolist() == [3] * 3
    told = page.told(result, "Table 4")
    assert told.shape == (1, 3)
    assert (
        told.columns.name == "Table 4, shapes, each label 2 times, batches of 4, %, n = 3 batches"
    )
    assert len(page.compared(result, "Table 1")) == 2
    hits = 100 * (attacks["rank"] == 1).groupby(attacks["setting"], sort=False).mean()
    assert page.steps_apart(result, "Table 1")["mean"].tolist() == pytest.approx(hits.tolist())
    assert (attacks["floor"] > 5).all()
    assert page.told(result, "Table 3").empty
    assert page.sentence(result) == ""
    assert page.compared(result, "Figure 5").empty
    assert page.local_steps(result).empty
    shown = page.pictures(result, "Table 1", "shapes", 2)
    assert list(shown) == ["true images", "1 update", "2 updates"]
