"""What a score is made of, and claim 2 (the search): tables with known answers, toy runs."""

import dataclasses
import time

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from checks import TINY as TWO_IMAGES
from checks import search_request, semi_trained
from safetensors.torch import save_file

from atsbook import experiment
from atsbook.figures import plots
from atsbook.findings.table1 import HYBRID
from atsbook.networks import trained
from atsbook.requests import scoring
from atsbook.requests.scoring import ScoreRequest, searched, unseen
from atsbook.store import Store
from atslib.data.load import load
from atslib.errors import AtsError, OutOfTime
from atslib.rng import rng
from atslib.scores.scores import area, gradsim_curve
from atslib.scores.search import pareto

pytestmark = pytest.mark.usefixtures("one_thread", "few_images")
# A LeNet: the scores of narrow untrained ConvNets are all near 1
TINY = dataclasses.replace(TWO_IMAGES, candidates=4, score_images=2, score_points=3)
CPU = torch.device("cpu")


@pytest.fixture
def drawn():
    """Closes a test's figures."""
    yield
    plt.close("all")


# --- scores of given policies -------------------------------------------------------------------------------


def score_request(*policies, **changes):
    fields = {"model": semi_trained(TINY), "policies": policies, "images": 3, "points": 5}
    return ScoreRequest(**(fields | changes))


@pytest.fixture(scope="module")
def together(kept):
    """Five policies in one request, of which three are one function."""
    return score_request("", "3-1-7", "28", "39", HYBRID).make(kept, CPU)


def test_a_score_is_the_area_under_the_curve_of_the_moved_image(together, kept):
    model, _ = trained(semi_trained(TINY), kept, CPU)
    stream = rng(0, "score start")
    noise = torch.stack([torch.rand((3, 32, 32), generator=stream) for _ in range(3)])
    images = load("shapes", "test")
    labels = images.labels[:3]
    for row, policy in ((1, "3-1-7"), (4, HYBRID)):
        made = experiment.drawn(range(3), policy, seed=0)
        pixels = made.apply(images.pixels[:3]).float() / 255
        curve = gradsim_curve(model, pixels, labels, start=noise, points=5)
        torch.testing.assert_close(together["curves"][row], curve, atol=1e-5, rtol=0)
        torch.testing.assert_close(together["scores"][row], area(curve), atol=1e-5, rtol=0)
    assert together["curves"].shape == (5, 3, 5)


def test_a_score_does_not_depend_on_the_policies_beside_it(together, kept):
    alone, beside = (
        score_request(HYBRID).make(kept, CPU),
        score_request("7", HYBRID).make(kept, CPU),
    )
    for found in (alone["scores"][0], beside["scores"][1]):
        torch.testing.assert_close(found, together["scores"][4], atol=1e-5, rtol=0)


def test_a_scoring_that_outlasts_the_budget_goes_on_where_it_was(
    together, kept, store, monkeypatch
):
    request = score_request("", "3-1-7", "28", "39", HYBRID)
    trained(request.model, store, CPU)
    monkeypatch.setattr(scoring, "TOGETHER", 7)  # two policies of three images at a time
    for _ in range(3):
        with pytest.raises(OutOfTime):
            request.make(Store(store.root, ends=time.monotonic()), CPU)
        assert not store.has(request.kind, request)
    monkeypatch.setattr(scoring, "gradsim_curve", None)  # all is computed
    found = request.make(store, CPU)
    torch.testing.assert_close(found["curves"], together["curves"], atol=1e-5, rtol=0)
    assert not list(store.root.glob("*/*.state"))


def test_a_scoring_does_not_go_on_with_what_was_damaged(together, kept, store):
    request = score_request("", "3-1-7", "28", "39", HYBRID)
    trained(request.model, store, CPU)
    state = store.path(request.kind, request).with_suffix(".state")
    state.parent.mkdir(exist_ok=True)
    save_file({"curves": torch.zeros(5, 3, 5)}, state)
    with pytest.warns(UserWarning, match="is not resumed"):
        found = request.make(store, CPU)
    torch.testing.assert_close(found["curves"], together["curves"], atol=1e-5, rtol=0)


def test_a_score_depends_on_the_network_the_seed_and_the_variant(together, kept):
    untrained = dataclasses.replace(semi_trained(TINY), model="convnet-4", train=None)
    for change in ({"model": untrained}, {"seed": 1}, {"variant": "code"}):
        other = score_request("3-1-7", **change).make(kept, CPU)["scores"][0]
        assert ((other - together["scores"][1]).abs() > 1e-4).all()  # equal ones agree to 1e-5


def test_ids_28_and_39_score_as_no_policy(together):
    torch.testing.assert_close(
        together["scores"][2:4], together["scores"][:1].expand(2, 3), atol=1e-5, rtol=0
    )
    assert (
        (together["scores"][1] - together["scores"][0]).abs() > 1e-4
    ).all()  # equal ones agree to 1e-5


def test_more_images_than_there_are_is_refused_before_anything_is_computed(store, said):
    with pytest.raises(AtsError, match="41 images to score: shapes has 40 test images"):
        score_request("3", images=41).make(store, CPU)
    assert said == []


def test_every_field_of_a_request_changes_its_key(store):
    for request, other in (
        (
            score_request("3"),
            {"policies": ("4",), "images": 2, "points": 6, "variant": "code", "seed": 1},
        ),
        (
            search_request(TINY),
            {"config": dataclasses.replace(search_request(TINY).config, keep=1), "seed": 1},
        ),
    ):
        other |= {"model": dataclasses.replace(request.model, seed=1)}
        assert set(other) == {field.name for field in dataclasses.fields(request)}
        keys = {
            store.path(request.kind, dataclasses.replace(request, **{name: value}))
            for name, value in other.items()
        }
        assert len(keys | {store.path(request.kind, request)}) == 1 + len(other)


def test_what_a_request_costs_and_needs():
    request = score_request("3", "4")
    assert request.passes == 3 * 2 * 3 * 5  # forward and backward, policies, images, points
    assert request.needs == search_request(TINY).needs == (semi_trained(TINY),)
    assert score_request("3", model=dataclasses.replace(request.model, train=None)).needs == ()
    assert search_request(TINY).passes == 3 * 4 * (3 * 2 * 1 + 8)


# --- the search ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("there", "first"), [(1_000, 200), (40, 20)])
def test_the_search_sees_no_image_that_a_page_attacks(there, first, monkeypatch):
    images = load("shapes", "test")[:there]
    monkeypatch.setattr(scoring, "dataset", lambda name, split: images)
    assert torch.equal(unseen("shapes").pixels, images.pixels[first:])


@pytest.fixture(scope="module")
def found(kept):
    """The candidates of a search that is in the store."""
    request = search_request(TINY)
    request.make(kept, CPU)
    table = pd.DataFrame(searched(request, kept, CPU).table)
    return table.assign(pareto=pareto(table["s_pri"], table["s_acc"]))


def test_a_second_search_is_the_same_table_and_computes_nothing(found, kept):
    made = []
    again = searched(search_request(TINY), Store(kept.root, say=made.append), CPU)
    pd.testing.assert_frame_equal(pd.DataFrame(again.table), found.drop(columns="pareto"))
    assert made == []


def test_a_search_from_nothing_is_the_same_table_and_its_artifact_is_the_time_it_took(
    found, store, said
):
    request = search_request(TINY)
    request.make(store, CPU)
    again = searched(request, store, CPU)
    pd.testing.assert_frame_equal(pd.DataFrame(again.table), found.drop(columns="pareto"))
    assert [line.split()[1] for line in said] == ["model", "score", "score", "search"]
    shards = [facts["seconds"] for path, facts in store.entries() if path.parent.name == "score"]
    assert float(request.make(store, CPU)["seconds"]) >= sum(shards) - 0.05  # facts are rounded


# --- figures ------------------------------------------------------------------------------------------------


def texts(axis):
    return {text.get_text() for text in axis.get_legend().get_texts()}


@pytest.mark.usefixtures("drawn")
def test_the_front_names_the_chosen_alone(found):
    table = found.assign(chosen=lambda rows: rows.index < 2)
    (axis,) = plots.front(table, labels=1).axes
    assert [text.get_text() for text in axis.texts] == ["1"]
    assert texts(axis) == {"candidates", "Pareto front", "chosen, by rank"}
    assert axis.get_xlabel() == "privacy score, lower is more private"
    assert axis.get_ylabel() == "accuracy score, higher is better"


@pytest.mark.usefixtures("drawn")
def test_a_scatter_has_the_line_of_least_squares():
    x, y = pd.Series([0.0, 1, 2, 3]), pd.Series([1.0, 3, 5, 7.0])
    figure = plots.scatter(x, y, xlabel="score", ylabel="PSNR (dB)", title="r = 1")
    (axis,) = figure.axes
    assert (axis.get_xlabel(), axis.get_ylabel(), axis.get_title()) == (
        "score",
        "PSNR (dB)",
        "r = 1",
    )
    assert axis.lines[0].get_xydata().ravel().tolist() == pytest.approx([0, 1, 3, 7])
    assert plots.scatter(x, y, xlabel="", ylabel="", axis=axis) is figure


def spread(**columns):
    """Rows with a mean of each combination of the columns' values, and an interval of 1 below and 2
    above it.
    """
    rows = pd.MultiIndex.from_product(columns.values(), names=columns).to_frame(index=False)
    means = np.arange(len(rows), dtype=float)
    return rows.assign(mean=means, low=means - 1, high=means + 2)


@pytest.mark.usefixtures("drawn")
def test_trends_have_a_panel_each_and_in_it_a_line_with_its_band_for_each_group():
    table = spread(outcome=["gain", "found"], policy=["none", "h"], step=[0, 1, 300])
    figure = plots.trends(table, "step", "policy", "outcome", xlabel="steps of training")
    assert [axis.get_title() for axis in figure.axes] == ["gain", "found"]
    for axis, (_, rows) in zip(figure.axes, table.groupby("outcome", sort=False), strict=True):
        lines = {
            line.get_label(): line for line in axis.lines if not line.get_label().startswith("_")
        }
        assert list(lines) == ["no policy", "h"]
        for (name, group), band in zip(
            rows.groupby("policy", sort=False), axis.collections, strict=True
        ):
            assert (
                lines[plots.in_words(name)].get_xydata().tolist()
                == group[["step", "mean"]].to_numpy().tolist()
            )
            edges = {tuple(point) for point in band.get_paths()[0].vertices}
            assert edges >= {*group[["step", "low"]].itertuples(index=False, name=None)}
            assert edges >= {*group[["step", "high"]].itertuples(index=False, name=None)}
        assert (axis.get_xlabel(), axis.get_xscale()) == ("steps of training", "symlog")
    (legend,) = figure.legends  # of all panels
    assert {text.get_text() for text in legend.get_texts()} == {"no policy", "h"}


@pytest.mark.usefixtures("drawn")
def test_means_have_a_place_for_each_name_and_a_colour_for_each_group():
    table = spread(attack=["adam-cosine", "lbfgs-l2", "sgd"], policy=["none", "h"])
    (axis,) = plots.means(table, "attack", "policy", ylabel="gain (dB)").axes
    assert [label.get_text() for label in axis.get_xticklabels()] == [
        "adam-cosine",
        "lbfgs-l2",
        "sgd",
    ]
    assert axis.get_ylabel() == "gain (dB)"
    assert texts(axis) == {"no policy", "h"}
    for drawn_group, (name, rows) in zip(
        axis.containers, table.groupby("policy", sort=False), strict=True
    ):
        dots, _, (bars,) = drawn_group.lines
        assert drawn_group.get_label() == plots.in_words(name)
        assert dots.get_ydata().tolist() == rows["mean"].tolist()
        assert [round(x) for x in dots.get_xdata()] == [0, 1, 2]
        heights = [segment[:, 1].tolist() for segment in bars.get_segments()]
        assert heights == rows[["low", "high"]].to_numpy().tolist()
    first, second = (group.lines[0] for group in axis.containers)
    assert first.get_color() != second.get_color()
    (beside,) = plots.means(
        table, "attack", "policy", ylabel="", groups=["other", "none", "h"]
    ).axes
    none, other = (group.lines[0].get_color() for group in beside.containers)
    assert none == first.get_color()  # a policy has its own, whatever stands beside it
    assert other != second.get_color()  # the figure beside this one has given that to `other`
    assert not {*first.get_xdata()} & {*second.get_xdata()}  # beside each other
