"""The page on general deep leakage: what its notebook asks for beside published numbers, and its rule
on made-up ones.
"""

import contextlib
import dataclasses
import functools
import io
import itertools

import numpy as np
import pandas as pd
import pytest
from test_pilots import cell

from atsbook.figures import plots
from atsbook.findings import compare
from atsbook.findings.reported import reported
from atsbook.findings.statistics import interval, paired
from atsbook.requests.batches import Batches, BatchRequest, LabelRequest
from atsbook.runs.study import Study
from atsbook.texts.twins import leakage_twin
from atslib import ATTACKS, TrainConfig
from atslib.clients.updates import LocalTraining

pytestmark = pytest.mark.usefixtures("one_thread")
PAGE = "ext7_general_leakage"
ASKS = ("label_runs = {}", "elsewhere = {}", "attack_runs = {}", "yin = ", "draws = {")


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A function that gives what the notebook's cells ask for, by name; nothing is computed."""
    store = tmp_path_factory.mktemp("asked")

    @functools.cache
    def space(dataset=None):
        space = {"profile": "laptop", "dataset": dataset, "seed": None, "Study": Study}
        space |= {"replace": dataclasses.replace, "ATTACKS": ATTACKS, "TrainConfig": TrainConfig}
        space |= {"Batches": Batches, "BatchRequest": BatchRequest, "LabelRequest": LabelRequest}
        space |= {"LocalTraining": LocalTraining}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ATS_STORE", str(store))
            for words in ASKS:
                exec(cell(PAGE, words), space)
        return space

    return space


@pytest.fixture(scope="module")
def requests(asked):
    """Every request by table, setting, data set and size of the batches."""
    space = asked()
    return {key: run.request for key, run in (space["label_runs"] | space["attack_runs"]).items()}


def defined(words, labels=None, attacks=None):
    """What a cell with these words makes of made-up tables."""
    space = {"pd": pd, "compare": compare, "interval": interval, "paired": paired}
    space |= {"reported": reported, "labels": labels, "attacks": attacks}
    space |= {"OURS": "features", "THEIRS": "published", "COLUMNS": "minima"}
    space |= {"toy": False, "plots": plots, "show_figure": lambda *shown: None}
    space["KEYS"] = ["table", "setting", "dataset", "batch"]
    with contextlib.redirect_stdout(io.StringIO()):
        exec(cell(PAGE, words), space)
    return space


def test_every_published_number_that_can_be_has_a_cell(requests):
    rows, missing = reported(source="leakage"), []
    for _, row in rows.iterrows():
        keys = leakage_twin(
            row["table_or_figure"], row["dataset"], row["policy_or_defense"], row["attack"]
        )
        wanted = (row["table_or_figure"], keys["setting"][0], keys["dataset"][0], keys["batch"][0])
        if wanted not in requests:
            missing.append(wanted)
    impossible = {
        ("Table 4", f"each label {n} times", "cifar10", k)
        for n in (2, 4)
        for k in (32, 64, 128, 256)
    }
    assert set(missing) == impossible - {("Table 4", "each label 4 times", "cifar10", 32)}
    assert len(rows) == 129


def test_settings_of_one_table_differ_in_what_they_say(requests):
    for size in (1, 4):
        attacks = [
            request.attack
            for key, request in requests.items()
            if key[::2] + key[3:] == ("Table 2", "cifar10", size)
        ]
        assert len(set(attacks)) == 6
        assert (
            len(
                {
                    request.batches
                    for key, request in requests.items()
                    if key[2:] == ("cifar10", size) and isinstance(request, BatchRequest)
                }
            )
            == 1
        )
    assert [requests["Table 1", f"{n} updates", "cifar100", 16].rounds for n in (2, 3, 4)] == [
        2,
        3,
        4,
    ]
    five = {key[1]: request for key, request in requests.items() if key[0] == "Figure 5"}
    assert {
        request.attack.unroll for name, request in five.items() if name.endswith("unrolled")
    } == {True}
    assert [
        request.local.epochs for name, request in five.items() if name.endswith("unrolled")
    ] == [
        1,
        2,
        4,
        8,
        16,
    ]
    assert "1 epoch, unrolled" in five


def told_of(tables):
    """What the rule's cell makes of labels and attacks: status, reason and how many claims hold."""
    space = defined("def judge(", *tables)
    return space["status"], space["reason"], space["here"]


EMPTY = (
    pd.DataFrame(columns=["table", "dataset", "setting", "batch", "rule", "high"]),
    pd.DataFrame(columns=["table", "dataset", "setting", "batch", "group", "psnr"]),
)
PUBLISHED = defined("def judge(", *EMPTY)["published"]


def made_up(*, labels=True, terms=True, updates=True, repeated=True):
    """Tables in which each claim holds or not."""
    printed = PUBLISHED("Table 4", "cifar10") / 100
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
    found, _, here = told_of(made_up(**dict(zip(names, held, strict=True))))
    assert found == {4: "reproduced", 0: "not reproduced"}.get(sum(held), "partly")
    assert here == f"{sum(held)} of 4 claims hold"


def test_a_claim_that_was_not_run_cannot_be_told():
    told, attacks = made_up()
    assert told_of((told, attacks[attacks["table"] != "Table 1"]))[0] == "cannot tell"
    assert told_of((told[:0], attacks))[0] == "cannot tell"
    without = attacks[attacks["setting"] != "repetition 2, our labels"]
    assert told_of((told, without))[1] == "not run: repeated labels"


def test_what_repeating_local_steps_gains_stands_beside_its_cost():
    ways, rows = {"mean gradient": (15.0, 7), "unrolled": (17.0, 28)}, []
    for (how, (mean, passes)), g, i in itertools.product(ways.items(), range(10), range(2)):
        found = 1.0 if i or how == "unrolled" else 0.0
        rows.append(
            {
                "setting": f"4 epochs, {how}",
                "group": g,
                "psnr": mean + g + i,
                "passes": passes,
                "found": found,
                "bits": 2 + found,
            }
        )
    rows = pd.DataFrame(rows).assign(table="Figure 5", batch=8)
    row = defined("def local_steps(", attacks=rows)["local_steps"](rows).loc["4 epochs"]
    assert row["unrolled minus mean: PSNR"] == "+2.0 dB [2.0, 2.0]"
    assert row["unrolled minus mean: found"] == "+50.0 points [50.0, 50.0]"
    assert row[["mean gradient: found", "unrolled: found"]].tolist() == ["50 %", "100 %"]
    assert row["unrolled minus mean: bits"] == "+0.5 [0.5, 0.5]"
    assert row[["mean gradient: passes", "unrolled: passes"]].tolist() == ["7", "28"]


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
    both = pd.concat([few, most])
    shown = defined("def compared(", attacks=both)["compared"](both, "Figure 3", "Table 2")
    assert shown["diverged"].tolist() == ["2", "5"]
    assert shown["PSNR, dB"].iloc[0].startswith("15.5 [")
    assert shown["PSNR, dB"].iloc[1] == shown["MSE"].iloc[1] == "–"
    assert shown["found of any class"].tolist() == ["100%", "100%"]


def test_a_data_set_of_ones_own_is_one_more_in_table_1(asked):
    more = set(asked("fmnist")["attack_runs"]) - set(asked()["attack_runs"])
    assert {key[0] for key in more} == {"Table 1"}
    assert {key[2] for key in more} == {"fmnist"}
    assert len(more) == 5


def test_a_table_of_labels_names_what_all_of_its_rows_share():
    rows = [
        {"rule": rule, "share": 0.5, "low": 0.4, "high": 0.6, "n": 3}
        for rule in ("features", "published")
    ]
    where = {"table": "Table 4", "dataset": "shapes", "setting": "each label 2 times", "batch": 4}
    labels = pd.DataFrame(rows).assign(**where)
    shown = defined("def told(", labels=labels)["told"](labels, "Table 4")
    assert shown.shape == (1, 2)
    assert set(shown.columns) == {"ours", "published rule"}
    assert shown.columns.name == (
        "Table 4, shapes, each label 2 times, batches of 4, %, n = 3 batches"
    )
    assert shown.iloc[0, 0] == "50.0 [40.0, 60.0]"
