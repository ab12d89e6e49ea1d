"""How long work takes: counts made by hand, fits to made-up machines, schedules that can be
followed on paper.
"""

import dataclasses
import json
import os
import re

import numpy as np
import pytest
import torch
from checks import attack_unit

from atsbook.__main__ import main
from atsbook.report import costing
from atsbook.report.costing import Nothing, handing_out, makespan, profile_rows, recorded
from atsbook.runs.archive import Archive
from atsbook.runs.estimate import (
    FITTED,
    JUDGED,
    PASSES,
    RATES,
    Case,
    Rates,
    Work,
    fitted,
    forward_flop,
    measured,
    points,
)
from atsbook.runs.settings import settings
from atsbook.runs.store import Store
from atsbook.texts.costs import costs_page
from atslib.files import project_root
from atslib.models import build_model
from atslib.rng import rng

CPU = torch.device("cpu")
MADE = Rates(2e-11, 1e-9, 5e-9, 1e-4)
STORED = project_root() / "results" / "costs.jsonl"


def test_the_work_of_a_convolution_is_what_one_counts_by_hand():
    layer = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU())
    work = Work.of(layer, torch.zeros(1, 3, 10, 12))
    assert work.flop == 2 * 3 * 8 * 9 * 10 * 12
    assert work.numbers == 2 * 8 * 10 * 12  # of both layers
    assert work.weights == 3 * 8 * 9 + 8
    assert work.calls == 2


@pytest.mark.parametrize("name", ["lenet", "convnet-4", "resnet20-1"])
def test_work_has_as_many_flop_as_torchs_counter(name):
    model, image = build_model(name, 10, rng=rng(0)).eval(), torch.zeros(1, 3, 32, 32)
    assert Work.of(model, image).flop == forward_flop(model, image)


def test_work_grows_with_width_and_area():
    def of(name, side):
        return Work.of(
            build_model(name, 10, image_size=side, rng=rng(0)).eval(), torch.zeros(1, 3, side, side)
        )

    narrow, wide, large = of("resnet20-1", 32), of("resnet20-2", 32), of("resnet20-1", 64)
    assert 3.5 < wide.flop / narrow.flop < 4.1
    assert wide.calls == narrow.calls
    assert large.numbers / narrow.numbers == pytest.approx(4, rel=0.01)
    assert large.weights == narrow.weights


def test_time_is_linear_in_images_steps_and_policies():
    base = Case(model="lenet", images=8, steps=10)
    flop = Rates(1.0, 0.0, 0.0, 0.0)

    def seconds(**changes):
        case = dataclasses.replace(base, **changes)
        return flop.seconds(case.work(), *case.counts)

    assert seconds(images=16) == seconds(policies=2) == 2 * seconds()
    assert seconds(steps=30) - seconds(steps=20) == pytest.approx(seconds(steps=20) - seconds())
    assert seconds(batch=4) == seconds()  # as many images, fewer gradients
    weights = Rates(0.0, 0.0, 1.0, 0.0)
    assert weights.seconds(
        base.work(), *dataclasses.replace(base, batch=4).counts
    ) == pytest.approx(weights.seconds(base.work(), *base.counts) / 4)


def test_rates_come_back_from_the_times_of_a_machine_that_has_them():
    times = [MADE.seconds(case.work(), *case.counts) for case in FITTED]
    found = fitted(FITTED, times)
    np.testing.assert_allclose(dataclasses.astuple(found), dataclasses.astuple(MADE), rtol=1e-3)


def test_no_case_is_fitted_and_judged():
    assert len(JUDGED) >= 12
    assert not set(FITTED) & set(JUDGED)


def test_points_are_measured_and_predicted(monkeypatch):
    few = (Case(model="lenet", images=2, steps=1), Case(model="lenet", images=4, steps=1))
    monkeypatch.setattr("atsbook.runs.estimate.FITTED", few)
    monkeypatch.setattr(
        "atsbook.runs.estimate.JUDGED", (Case(model="convnet-4", images=1, steps=1),)
    )
    rates, *rows = points(CPU)
    assert rates["benchmark"] == "rates"
    assert [row["fitted"] for row in rows] == [True, True, False]
    for row in rows:
        assert row["seconds"] > 0
        assert row["error"] == pytest.approx(row["predicted"] / row["seconds"] - 1, abs=0.1)


def test_the_rates_of_a_machine_are_measured_once_for_the_processes_that_share_a_folder(
    monkeypatch, tmp_path
):
    few = (Case(model="lenet", images=2, steps=1), Case(model="lenet", images=4, steps=1))
    monkeypatch.setattr("atsbook.runs.estimate.FITTED", few)
    alone = measured.__wrapped__  # as a process that has measured nothing calls it
    assert os.environ.get(RATES) is None
    alone(CPU)
    monkeypatch.setenv(RATES, str(tmp_path))
    first = alone(CPU)
    monkeypatch.setattr("atsbook.runs.estimate.FITTED", ())  # nothing could be measured
    assert alone(CPU) == first


# --- schedules ----------------------------------------------------------------------------------------------


def test_schedules_that_can_be_followed_on_paper():
    times, free = [3.0, 2.0, 2.0, 1.0], [[], [], [], []]
    assert makespan(times, free, 1) == 8
    assert makespan(times, free, 2) == 4  # 3 and 1, 2 and 2
    assert makespan(times, free, 9) == 3
    chain = [[], [0], [1], [2]]
    assert makespan(times, chain, 9) == 8
    assert makespan(times, [[], [], [0], []], 2) == 5  # 3 then 2, and 2 then 1
    assert makespan([], [], 3) == 0


def test_handing_out_keeps_the_others_waiting():
    assert makespan([1.0, 1.0], [[], []], 2, overhead=0.5) == 2  # begun at 0.5 and 1
    assert makespan([1.0, 1.0], [[], []], 1, overhead=0.5) == 3


def test_no_schedule_beats_its_bounds():
    draw = np.random.default_rng(0)
    times = draw.uniform(0.1, 3, 60)
    needs = [
        sorted({int(draw.integers(0, i)) for _ in range(int(draw.integers(0, 3)))}) if i else []
        for i in range(60)
    ]
    chain = np.zeros(60)
    for i in range(60):
        chain[i] = times[i] + max((chain[j] for j in needs[i]), default=0)
    for workers in (1, 2, 5, 60):
        found = makespan(times, needs, workers)
        assert max(chain.max(), times.sum() / workers) - 1e-9 <= found <= times.sum() + 1e-9
        assert found <= chain.max() + times.sum() / workers  # Graham 1966


def test_units_that_do_nothing_are_handed_out(monkeypatch, capsys):
    monkeypatch.setattr(costing, "TRIVIAL", 8)
    assert 0 <= handing_out(None) < 10
    with pytest.MonkeyPatch.context():
        store = Store()
    assert Nothing(1).passes == 0
    assert store.path(Nothing.kind, Nothing(1)) != store.path(Nothing.kind, Nothing(2))


def test_a_profile_is_priced_as_recorded_and_as_predicted(monkeypatch, tmp_path):
    units = [attack_unit(settings(profile="smoke"), policy) for policy in ("", "3-1-7", "28")]
    monkeypatch.setattr(costing, "whole", lambda archive: costing.needed(units))
    store, archive = Store(tmp_path / "store"), Archive(tmp_path / "units")
    store.get(units[0].kind, units[0], lambda state: {"cost": torch.ones(1), "psnr": torch.ones(1)})
    archive.write(store, embedded=True)
    known = recorded(costing.needed(units), archive)
    assert sum(took is not None for took in known) == 1
    rows = list(profile_rows(MADE, 0.0, archive))
    assert {row["workers"] for row in rows} == set(costing.WORKERS)
    whole = [row for row in rows if row["times"] == "all, predicted"]
    assert whole[0]["low"] >= whole[1]["low"] >= whole[2]["low"] >= 0
    cards = [row for row in rows if row["times"].endswith("H100")]
    assert all(row["low"] <= row["high"] for row in cards)


# --- the page -----------------------------------------------------------------------------------------------


def test_the_page_says_what_is_stored():
    rows = [json.loads(line) for line in STORED.read_text().splitlines()]
    page, cases = costs_page(STORED.parent), [row for row in rows if row["benchmark"] == "costs"]
    off = np.abs([row["error"] for row in cases if not row["fitted"]])
    assert len(off) >= 12
    assert f"median {np.median(off):.0%}, largest {off.max():.0%}, n = {len(off)}" in page.replace(
        "\n", " "
    )
    assert page.count("fitted |") == len(FITTED)
    (full,) = [row for row in rows if row["benchmark"] == "profile" and row["profile"] == "full"
               and row["times"] == "all, predicted" and row["workers"] == 1]  # fmt: skip
    assert re.search(
        rf"\| full \| all, predicted \| {full['units']} \| {full['low']:,.0f} \|", page
    )
    assert (project_root() / "book" / "costs.md").read_text() == page


def test_without_measurements_the_page_has_the_pages_own_costs(tmp_path):
    assert costs_page(tmp_path) == "# What it costs\n\nNot measured yet.\n"


def test_the_command_prints_and_keeps_every_row(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(
        costing, "measure", lambda device, archive: iter([{"benchmark": "machine"}, {"a": PASSES}])
    )
    assert main(["bench", "costs", "--out", str(tmp_path / "costs.jsonl")]) == 0
    printed = capsys.readouterr().out
    assert (
        printed == (tmp_path / "costs.jsonl").read_text() == '{"benchmark": "machine"}\n{"a": 7}\n'
    )
