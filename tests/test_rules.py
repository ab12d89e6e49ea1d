"""The rules in the pages' notebooks, on made-up numbers."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import sem, t
from test_pilots import cell

from atsbook.findings.statistics import paired
from atsbook.runs.table1 import HYBRID


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
