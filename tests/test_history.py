"""The page of every verdict: what it lists is what the results say, and its sentences are held against them."""

import json
from pathlib import Path

import pytest
from checks import exports

from atsbook.findings.newest import newest
from atsbook.findings.result import stored_result
from atsbook.texts.history import FILE, history
from atslib.errors import AtsError

ROOT = Path(__file__).parents[1]
VERDICTS = json.loads((ROOT / "results" / FILE).read_text(encoding="utf-8"))


def test_every_judged_page_is_listed_with_the_verdict_that_it_prints_today():
    for page in sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb")):
        found = newest(page, ROOT / "results")
        status = found and stored_result(found[0])["verdict"]["status"]
        if status not in (None, "not measured"):
            # Claim 7's rule says one thing and its answer, in the paper's measure, another: both are listed
            last = VERDICTS[page][-2 if page == "claim7_correlation" else -1]
            assert last["verdict"] == status, page


def test_verdicts_are_in_the_order_of_their_dates():
    for page, steps in VERDICTS.items():
        dates = [step["date"] for step in steps]
        assert dates == sorted(dates), page
        assert all(steps[i]["why"] != steps[i - 1]["why"] for i in range(1, len(steps))), page


def test_a_sentence_that_the_verdicts_deny_ends_the_build(tmp_path):
    (tmp_path / "results").mkdir()
    assert "No verdict is recorded here." in history(tmp_path / "results")
    (tmp_path / "notebooks").mkdir()
    notebook = {"cells": [{"source": ["# A question?\n", "more"]}]}
    (tmp_path / "notebooks" / "one.ipynb").write_text(json.dumps(notebook))
    step = {"commit": "0" * 12, "date": "2026-11-20", "outcome": "PSNR of attacks", "result": "1"}
    steps = [{**step, "verdict": "partly", "why": "a"}]
    file = tmp_path / "results" / FILE
    file.write_text(json.dumps({"one": steps}))
    with pytest.raises(AtsError, match="0 of 1 verdicts"):
        history(tmp_path / "results")
    later = {**step, "verdict": "reproduced", "outcome": "bits and photographs found"}
    file.write_text(json.dumps({"one": [*steps, {**later, "why": "b"}]}))
    text = history(tmp_path / "results")
    assert "1 of 1 verdicts have changed" in text
    assert "| {doc}`results/one` | partly: 1 | – | – | reproduced: 1 |" in text
    assert "A question?: partly → reproduced" in text
    assert "first two columns" in text


def test_psnr_of_today_stands_beside_that_of_the_first_runs(tmp_path):
    (tmp_path / "notebooks").mkdir()
    notebook = {"cells": [{"source": ["# A question?\n", "more"]}]}
    (tmp_path / "notebooks" / "one.ipynb").write_text(json.dumps(notebook))
    step = {"commit": "0" * 12, "date": "2026-11-20", "result": "1", "why": "a"}
    steps = [
        {**step, "verdict": "partly", "outcome": "PSNR of attacks"},
        {**step, "verdict": "reproduced", "outcome": "bits and photographs found"},
    ]

    def row(psnr):
        exports(tmp_path / "results", "one", {"psnr": psnr})
        (tmp_path / "results" / FILE).write_text(json.dumps({"one": steps}))
        return history(tmp_path / "results")

    falls, rises = (
        {"mean": -2.04, "low": -3.0, "high": -1.0},
        {"mean": 0.9, "low": 0.1, "high": 2.0},
    )
    said = "| partly: 1 | LeNet −2.0 dB [−3.0, −1.0]; ConvNet-16 +0.9 dB [0.1, 2.0] | – |"
    assert said in row({"LeNet": falls, "ConvNet-16": rises})
    many = {str(number): falls if number < 5 else rises for number in range(8)}
    assert "| of 8 comparisons lower in 5, higher in 3 (95 % interval) |" in row(many)
