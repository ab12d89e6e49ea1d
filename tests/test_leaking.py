"""Extension 3: what its notebook measures of photographs and how it predicts, in closed form, and its
rule on made-up numbers.
"""

import math
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from test_pilots import defined

from atsbook.findings import statistics
from atsbook.findings.statistics import bootstrap, pearson, upper_bound
from atsbook.findings.verdicts import guards
from atsbook.networks import ModelRequest, network
from atslib.gradients.problems import example_gradients

pytestmark = pytest.mark.usefixtures("one_thread")
NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "ext3_which_images_leak.ipynb"
CELLS = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]


def of_page():
    """The functions and constants of the notebook's cells, without what they compute."""
    names = {
        "F": F,
        "bootstrap": bootstrap,
        "example_gradients": example_gradients,
        "math": math,
        "np": np,
        "pd": pd,
        "pearson": pearson,
        "statistics": statistics,
        "torch": torch,
        "upper_bound": upper_bound,
    }
    return defined(NOTEBOOK.stem, "PROPERTIES", "RIDGE", "EPSILON", **names)


PAGE = of_page()


def gains(values, policies=("none", "a")):
    """A table of one property that is the gain plus noise, and others that are noise."""
    values, draws = np.asarray(values, float), np.random.default_rng(0)
    rows = [
        {"policy": p, "image": i, "gain": v, "contrast": v + 0.1 * draws.normal()}
        | {name: draws.normal() for name in PAGE["PROPERTIES"] if name != "contrast"}
        for i, row in enumerate(values)
        for p, v in zip(policies, row, strict=True)
    ]
    return pd.DataFrame(rows)


def test_an_image_with_a_gap_is_left_out():
    table = gains([[1, 2], [np.nan, 2], [3, 5]])
    assert PAGE["grid"](table, "gain")[..., 0].tolist() == [[1, 2], [3, 5]]


def test_rank_correlation_is_spearmans_within_a_policy():
    table = gains(np.random.default_rng(1).normal(size=(9, 2)) * [1, 3])
    found = PAGE["correlations"](table).set_index("property")
    for name in PAGE["PROPERTIES"]:
        each = [
            spearmanr(rows[name], rows["gain"]).statistic for _, rows in table.groupby("policy")
        ]
        assert found.loc[name, "spearman"] == pytest.approx(np.mean(each))
    assert found.loc["contrast", "low"] > 0.5


def test_skill_is_that_of_images_left_out():
    told = gains(3 * np.random.default_rng(2).normal(size=(30, 2)))
    mean, low, high = PAGE["skill"](told)
    assert 0.8 < low < mean < high <= 1
    untold = told.assign(gain=np.random.default_rng(3).normal(size=60))
    assert PAGE["skill"](untold)[1] < 0
    assert all(math.isnan(v) for v in PAGE["skill"](gains([[1, 2], [2, 3]])))


def test_an_image_left_out_has_no_say_in_its_own_prediction():
    table = gains(np.random.default_rng(4).normal(size=(6, 2)))
    before = PAGE["left_out"](table)
    moved = table.assign(gain=table["gain"] + 100 * (table["image"] == 2))
    values = PAGE["grid"](table, "gain")[..., 0]
    rest = np.delete(values, 2, 0).mean(0)
    assert before[2, 1] == pytest.approx(np.square(values[2] - rest).sum())
    expected = np.square(values[2] + 100 - rest).sum()
    assert PAGE["left_out"](moved)[2, 1] == pytest.approx(expected)


def test_properties_in_closed_form():
    request = ModelRequest(dataset="shapes", model="convnet-4", fraction=1.0, train=None, seed=0)
    model = network(request)
    images = torch.zeros(2, 3, 32, 32)
    images[1, :, :, 16:] = 1
    labels = torch.tensor([0, 1])
    found = PAGE["properties"](model, images, labels)
    assert found["brightness"].tolist() == [0, 0.5]
    assert found["contrast"].tolist() == pytest.approx([0, 0.5], rel=1e-3)
    assert found["edges"].tolist() == pytest.approx([0, 1 / 31])
    assert found["loss"].tolist() == pytest.approx(
        F.cross_entropy(model(images), labels, reduction="none").tolist()
    )
    loss = F.cross_entropy(model(images[1:]), labels[1:])
    square = sum(
        float(g.square().sum()) for g in torch.autograd.grad(loss, list(model.parameters()))
    )
    assert found["gradient"][1] == pytest.approx(math.sqrt(square), rel=1e-4)


def test_a_guarantee_counts_what_reaches_the_threshold_and_a_diverged_attack_as_none():
    table = pd.DataFrame(
        {"policy": "a", "psnr": [15.0, 14.9, float("nan"), 30.0], "gain": [1.0, 2.0, 0.0, 9.0]}
    )
    (row,) = PAGE["guarantees"](table).to_dict("records")
    assert (row["images"], row["successes"], row["worst PSNR"], row["worst gain"]) == (4, 2, 30, 9)
    assert row["rate at most"] == pytest.approx(upper_bound(2, 4))


@pytest.mark.parametrize(
    ("gain", "skill", "images", "status"),
    [
        ([0, 1], (0.5, 0.2, 0.8), 30, "reproduced"),
        ([0, 1], (0.1, -0.2, 0.4), 30, "partly"),  # nothing tells which
        ([1, 2], (0.5, 0.2, 0.8), 30, "partly"),  # all leak
        ([0, 1], (math.nan,) * 3, 30, "partly"),
        ([0, 0.9], (0.5, 0.2, 0.8), 30, "not reproduced"),
        ([0, 1], (0.5, 0.2, 0.8), 29, "cannot tell"),
        ([0, 0.9], (0.5, 0.2, 0.8), 5, "cannot tell"),
        ([0, 1], (0.5, 0.2, 0.8), 4, "not measured"),
    ],
)
def test_the_rule_of_extension_3(gain, skill, images, status, capsys):
    (rule,) = [cell.source for cell in CELLS if "rule" in cell.metadata.get("tags", ())]
    names = {"defended": pd.Series(gain), "count": images, "guards": guards}
    names |= dict(zip(("r2", "low", "high"), skill, strict=True))
    exec(rule, names)
    assert names["status"] == status
    assert capsys.readouterr().out.startswith(f"{status}: ")
