"""The rules in the pages' notebooks, on made-up numbers."""

import datetime
import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from scipy.stats import sem, t
from test_pilots import cell

from atsbook.evidence.archive import Archive
from atsbook.findings import compare, photographs
from atsbook.findings.reported import DEFENSES
from atsbook.findings.rules import FILE, digest, recorded, rules_in, told
from atsbook.findings.statistics import interval, paired
from atsbook.findings.table1 import HYBRID
from atsbook.findings.verdicts import guards, kept
from atsbook.report.runner import readers
from atslib.files import project_root


def functions(page, words, **known):
    """The names that a notebook's cell defines as functions and constants, without what it computes
    from the page's own tables.
    """
    source = cell(page, words)
    head = source[: source.rindex("\n\n\n")]  # what stands after the last function is computed
    space = {"pd": pd, "np": np, "HYBRID": HYBRID} | known
    exec(head, space)
    return space


# --- claim 4 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hybrid", "share", "epochs", "accuracy", "status"),
    [
        ([3, 5, 9], 0.01, 20, 70, "reproduced"),
        ([3, 5, 10], 0.01, 20, 70, "reproduced"),  # two epochs late of twenty
        ([3, 5, 11], 0.01, 20, 70, "partly"),
        ([3, 5, 9], 0.06, 20, 70, "partly"),
        ([3, 5, math.nan], 0.06, 20, 70, "not reproduced"),
        ([3, 5, 9], 0.01, 4, 70, "not measured"),
        ([3, 5, 9], 0.01, 20, 4, "not measured"),  # the network hardly learned
    ],
)
def test_the_rule_of_claim_4(hybrid, share, epochs, accuracy, status):
    space = functions("claim4_efficiency", "def epochs_to(")
    reached = pd.DataFrame([[3.0, 5.0, 8.0], hybrid], index=["none", HYBRID])
    assert space["judge"](reached, share, epochs, accuracy, 1)[0] == status


def test_a_curve_without_accuracies_is_not_measured():
    space = functions("claim4_efficiency", "def epochs_to(")
    reached = pd.DataFrame([[math.nan] * 3, [1.0] * 3], index=["none", HYBRID])
    assert space["judge"](reached, 0.01, 20, 70, 1)[0] == "not measured"


def test_the_first_epoch_at_a_level_counts_and_never_is_nan():
    space = functions("claim4_efficiency", "def epochs_to(")
    curve = pd.DataFrame(
        {
            "policy": ["none"] * 4 + ["x"] * 4,
            "epoch": [1, 2, 3, 4] * 2,
            "accuracy": [10, 50, 45, 60, 5, 10, 30, 40],
        }
    )
    found = space["epochs_to"](curve, {"half": 30.0, "most": 50.0})
    assert found.loc["none"].tolist() == [2, 2]
    assert found.loc["x", "half"] == 3
    assert np.isnan(found.loc["x", "most"])


@pytest.mark.parametrize(
    ("changes", "chance", "words"),
    [
        ((1, 0.9, 1.1), 1, "no worse"),
        ((-5, -5.1, -4.9), 1, "worse"),
        ((-3, 0, 1), 1, "cannot tell"),
        ((-2, -2.1, -1.9), 1, "cannot tell"),
        ((1, 0.9, 1.1), 10, "not judged: the network has learned too little"),
    ],
)
def test_a_policy_is_no_worse_if_its_change_over_seeds_is(changes, chance, words):
    rows = [("none", seed, 20.0 + seed) for seed in range(3)]
    rows += [(HYBRID, seed, 20.0 + seed + change) for seed, change in enumerate(changes)]
    table = pd.DataFrame(rows, columns=["policy", "seed", "accuracy"])
    space = {"repeated": table, "paired": paired, "HYBRID": HYBRID, "chance": chance}
    exec(cell("claim4_efficiency", "MARGIN = "), space)
    assert (space["worse"], space["seeds"]) == (words, 3)
    change = space["change"]
    assert change["mean"] == pytest.approx(sum(changes) / 3)
    assert (change["low"], change["high"]) == pytest.approx(
        t.interval(0.95, 2, np.mean(changes), sem(changes))
    )


# --- claim 1, defenses ------------------------------------------------------------------------------------------------


def defended(hybrid=1.0, none=6.0, images=40, **rivals):
    """Rows with mean bits: of the hybrid, of nothing, and of `prune` (3 bits) and `noise` (0 bits)
    or as given.
    """
    stream = np.random.default_rng(0)
    means = {"none": none, HYBRID: hybrid, "prune:0.7": 3.0, "gaussian:0.01": 0.0} | rivals
    parts = []
    for name, mean in means.items():
        bits = stream.normal(mean, 0.3, images) if mean else np.zeros(images)
        part = {"defense": name, "image": range(images), "bits": bits, "found": bits > 2}
        parts.append(pd.DataFrame(part | {"gain_told": bits, "psnr": 9 + bits, "frame": 9.0}))
    return pd.concat(parts, ignore_index=True)


ACCURACY = {"none": 77.0, HYBRID: 75.5, "prune:0.7": 75.0, "gaussian:0.01": 40.0}  # no rival


@pytest.mark.parametrize(
    ("bits", "accuracy", "status", "beaten"),
    [
        ({}, {}, "reproduced", ["prune:0.7"]),
        ({}, {HYBRID: 60.0}, "partly", ["prune:0.7"]),  # it keeps less than four fifths
        (
            {},
            {"gaussian:0.01": 72.0},
            "not reproduced",
            ["prune:0.7"],
        ),  # half is not more than half
        (
            {"prune:0.95": 4.0},
            {"gaussian:0.01": 72.0, "prune:0.95": 76.0},
            "partly",
            ["prune:0.7", "prune:0.95"],
        ),
        ({"prune:0.9": 4.0}, {"prune:0.9": 76.0}, "reproduced", ["prune:0.7"]),  # not the paper's
        ({"hybrid": 3.0}, {}, "not reproduced", []),
        ({"hybrid": 4.0}, {}, "not reproduced", []),
        ({"none": 0.0}, {}, "cannot tell", ["prune:0.7"]),
        ({"images": 29}, {}, "cannot tell", ["prune:0.7"]),
        ({}, {"none": 20.0, HYBRID: 19.0, "prune:0.7": 19.0}, "cannot tell", ["prune:0.7"]),
    ],
)
def test_the_rule_of_the_defenses(bits, accuracy, status, beaten):
    space = functions(
        "claim1_defenses",
        "def judge(",
        kept=kept,
        guards=guards,
        interval=interval,
        photographs=photographs,
        published=list(DEFENSES),
    )
    percent = pd.Series(ACCURACY | accuracy)
    found, _, fewer, why = space["judge"](defended(**bits), percent, classes=10)
    assert (found, sorted(fewer)) == (status, beaten)
    assert bool(why) == (status == "cannot tell")


# --- steps ------------------------------------------------------------------------------------------------------------


def length_rule(table):
    """The status that the notebook's rule gives."""
    known = {"paired": paired, "guards": guards, "compare": compare, "LONG": 4800}
    known |= {"PAPERS": "the paper's", "ANNEALED": "annealed"}
    return functions("steps", "def judge(attacks)", **known)["judge"](table)[0]


def rows(long, short, *, images=40, at=300, floor=10.0, spread=1):
    """Attacks of the paper's full length and of `at` annealed steps, with these means in dB."""
    noise = spread * np.resize([-0.2, 0.2, 0.1, -0.1], images)
    parts = {
        ("the paper's", 4800): long + noise,
        ("annealed", at): short - noise,
        ("annealed", 25): 0 * noise,
    }
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
def test_the_rule_of_the_steps(long, short, options, status):
    table = rows(long, short, **options)
    if options.get("at"):
        table.loc[table["steps"] == 25, "psnr"] = 11.0
    assert length_rule(table) == status


def test_without_the_lengths_of_the_rule_it_cannot_tell():
    assert length_rule(rows(15.0, 18.0).query("steps != 4800")) == "cannot tell"


# --- when the second half was attacked --------------------------------------------------------------------------------


def test_pages_say_how_many_judged_attacks_were_there_when_their_choice_was_committed():
    evidence = Archive(project_root() / "results").entries().values()
    attacks = [
        line
        for line in evidence
        if line["kind"] == "attack" and line["config"].get("first") == 9_488
    ]
    # Later ones are of other rules: the paper's own network, longer attacks, more photographs.
    of_rule = [line for line in attacks if line["made"] < "2026-11-27T12:00:00+00:00"]
    moment = "2026-11-26T10:32:13+00:00"  # of commit f69e141
    earlier = sum(line["made"] < moment for line in of_rule)
    told = re.compile(r"f69e141\), when (\w+) of the (\d+) judged attacks")
    texts = [path.read_text() for path in (project_root() / "notebooks").glob("*.ipynb")]
    said = {match for text in texts for match in told.findall(text)}
    words = ["none", "one", "two", "three", "four", "five", "six", "seven"]
    assert said == {(words[earlier], str(len(of_rule)))}
    assert min(line["made"] for line in attacks) > "2026-11-26T08:49:52+00:00"  # of the rule


# --- what belongs to a rule -------------------------------------------------------------------------------------------


def stated(code):
    """The digest of the rule of a notebook with this one cell."""
    cells = [{"cell_type": "code", "metadata": {"tags": ["rule"]}, "source": [code]}]
    return digest(rules_in(json.dumps({"cells": cells})))


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("if low < 0:\n    print(f'lower: {low}')\n", True),
        ("if low < 0:\n    print('in other words')  # and a comment\n", True),
        ("if low < 1:\n    print('lower')\n", False),
        ("if low < 0:\n    display('lower')\n", False),
    ],
)
def test_what_a_rules_cell_prints_is_no_part_of_the_rule(other, same):
    assert (stated(other) == stated("if low < 0:\n    print('lower')\n")) == same


# --- dates ------------------------------------------------------------------------------------------------------------


def test_a_page_says_since_when_its_rule_has_its_present_form(tmp_path):
    first = {"date": "2026-01-01T08:00:00+00:00", "commit": "1" * 12, "what": "A rule"}
    last = {"date": "2026-01-03T08:00:00+00:00", "commit": "2" * 12, "what": "Another <rule>"}
    evidence = ["2026-01-02T08:00:00+00:00", "2026-01-04T08:00:00+00:00"]
    record = {"page": {"changes": [first, last], "evidence": evidence}}
    (tmp_path / FILE).write_text(json.dumps(record))
    assert told("page", tmp_path) == (
        "Rule of 1 January 2026, commit 1111111, in its present form of 3 January 2026, commit 2222222; evidence of "
        "2 January 2026 to 4 January 2026. <details><summary>Its text was changed once since the first evidence."
        "</summary><ul><li>3 January 2026 (2222222): Another &lt;rule&gt;</li></ul></details>"
    )
    record["page"]["changes"].pop()
    (tmp_path / FILE).write_text(json.dumps(record))
    assert told("page", tmp_path).endswith("to 4 January 2026; unchanged since.")
    assert told("elsewhere", tmp_path) == ""


PAGES = sorted(path.stem for path in (project_root() / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("page", PAGES)
def test_the_last_change_that_is_written_down_is_of_the_rule_as_it_stands(page):
    rules = rules_in((project_root() / "notebooks" / f"{page}.ipynb").read_text())
    changes = recorded(project_root() / "results")[page]["changes"]
    last = changes[-1]["rules"] if changes else digest({})
    assert digest(rules) == last, f"write the change of {page}'s rule into results/{FILE}"


def test_the_dates_of_the_evidence_are_those_of_the_archive():
    root = project_root()
    read_by = readers(root)
    made = {}
    for key, line in Archive(root / "results").entries().items():
        for page in read_by.get(key, ()):
            made.setdefault(page, []).append(line["made"])
    for page, record in recorded(root / "results").items():
        days = sorted(made.get(page, ()), key=datetime.datetime.fromisoformat)
        assert record["evidence"] == [*days[:1], *days[-1:]], page
