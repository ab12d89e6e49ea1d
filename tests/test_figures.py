"""The small figures of the claim pages without a browser: what is in their payloads, and the HTML
around them.
"""

import ast
import base64
import io
import itertools
import json
import re
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
from checks import assert_asks_for_nothing, pictures, refused
from matplotlib.transforms import Bbox
from PIL import Image

from atsbook.figures import plots
from atsbook.findings.compare import matrices
from atsbook.findings.result import NO_POLICY
from atsbook.findings.statistics import pearson
from atsbook.findings.table1 import HYBRID, POLICIES
from atsbook.networks import dataset
from atsbook.widgets import Figure, data, interactive
from atslib.measures.metrics import psnr
from atslib.policies.operations import apply, magnitude
from atslib.policies.policy import OPS, Policy
from atslib.rng import rng

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = ("ranking", "scatter")


# --- payloads -----------------------------------------------------------------------------------------------


def test_the_script_gets_every_operation_with_its_own_magnitude_and_words():
    found = data.operations()
    assert [(op["name"], op["magnitude"]) for op in found] == [
        (op.name, magnitude(op)) for op in OPS
    ]
    assert json.loads(json.dumps(found)) == found  # a float survives JSON
    noise = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8, generator=rng(0))
    for index, op in enumerate(found):
        assert op["signed"] == (not torch.equal(apply(index, noise, 1), apply(index, noise, -1))), (
            op
        )
        if op["signed"]:
            assert [re.search(r"[+−]\d", words)[0][0] for words in op["drawn"]] == ["+", "−"]
    assert found[3]["words"] == "translate X 9"
    assert found[3]["drawn"] == ["translate X +9", "translate X −9"]


def test_the_ranking_is_the_tables(drawn_figures):
    payload, table = drawn_figures.ranking.payload, drawn_figures.table
    assert [row["id"] for row in payload["rows"]] == table.index.tolist()
    for name in ("s_pri", "low", "high", "in top five"):
        np.testing.assert_allclose([row[name] for row in payload["rows"]], table[name], rtol=1e-3)
    for name in ("rank", "rank low", "rank high", "same as", "n"):
        assert [row[name] for row in payload["rows"]] == table[name].tolist()
    assert payload["reference"] == 0.5
    assert (
        base64.b64decode(payload["pixels"]) == dataset("shapes", "test").pixels[5].numpy().tobytes()
    )


def test_of_each_policy_in_a_row_its_beginnings_are_scored_too():
    """Of those in the notebook of claim 6, where single operations are scored anyway."""
    page = Path(__file__).parents[1] / "notebooks" / "claim6_transformations.ipynb"
    cells = nbformat.read(page, as_version=4).cells
    (source,) = [cell.source for cell in cells if "BUILT = {" in cell.source]
    built = ast.literal_eval(source.partition("BUILT = ")[2].partition("}")[0] + "}")
    for policy in map(Policy.parse, built):
        for length in range(len(policy.ids)):
            assert str(Policy(policy.ids[:length])) in {*built, *map(str, range(50))}


def test_the_scatter_has_a_policys_means_and_images_at_its_place(drawn_figures):
    payload, table = drawn_figures.scatter.payload, drawn_figures.attacks
    artifacts = drawn_figures.artifacts
    assert [point["id"] for point in payload["points"]] == list(artifacts)
    assert [each["name"] for each in payload["networks"]] == [
        "untrained",
        "semi-trained",
        "trained",
    ]
    assert payload["networks"][payload["main"]]["name"] == "semi-trained"
    means = table.groupby("policy").mean(numeric_only=True)
    sheets = {name: pictures(payload, f"{name}.webp") for name in ("images", "client", "found")}
    for place, (policy, artifact) in enumerate(artifacts.items()):
        point, own = payload["points"][place], means.loc[policy]
        numbers = [*point["score"], point["psnr"], point["noise"]]
        names = [*(f"s_pri {each['name']}" for each in payload["networks"]), "psnr", "floor_noise"]
        np.testing.assert_allclose(numbers, own[names], rtol=1e-3)
        original, target = artifact["original"], artifact["target"]
        assert psnr(sheets["client"][:, place] / 255, target / 255).min() > 30
        assert psnr(sheets["images"][0] / 255, original / 255).min() > 30
        found = sheets["found"][:, place] / 255  # what is shown leaks as much as what is said
        np.testing.assert_allclose(psnr(found, target / 255), point["each"], atol=0.5)


def test_the_correlation_that_is_said_is_the_pages(drawn_figures):
    both = matrices(drawn_figures.attacks, "s_pri trained", "psnr")
    (r,) = pearson(*(matrix.mean(1)[None] for matrix in both))
    said = {each["name"]: each["r"] for each in drawn_figures.scatter.payload["networks"]}
    assert said["trained"].startswith(f"{r:+.2f} [".replace("-", "−"))


def test_the_reconstructions_keep_to_the_budget(drawn_figures, monkeypatch):
    whole = drawn_figures.scatter.payload["files"]["found.webp"]
    monkeypatch.setattr(data, "BUDGET", len(whole) // 2)
    scatter = data.scatter(drawn_figures.attacks, drawn_figures.artifacts, "shapes", "", "trained")
    smaller = scatter["files"]["found.webp"]
    assert len(base64.b64decode(smaller.split(",")[1])) <= len(whole) // 2


# --- HTML ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_html_is_whole_small_and_asks_for_nothing(drawn_figures, kind):
    figure = getattr(drawn_figures, kind)
    text = figure._repr_html_()
    assert_asks_for_nothing(text)
    assert (
        json.loads(re.search(r'<script type="application/json">(.*?)</script>', text, re.S)[1])
        == figure.payload
    )
    assert len(text) < 200_000
    alt, picture = re.search(
        r'<img alt="([^"]*)" src="data:image/png;base64,([^"]*)"', text
    ).groups()
    assert alt == f"The still &lt;{kind}&gt;"
    assert Image.open(io.BytesIO(base64.b64decode(picture))).size == (200, 100)
    assert f"{alt}. shapes, profile smoke.</figcaption>" in text


def test_a_representation_is_the_same_in_each_run(drawn_figures):
    words = [
        "Ranking of 28 transformations",
        "Scatter of 6 policies",
    ]
    assert [repr(getattr(drawn_figures, kind)) for kind in KINDS] == words
    again = drawn_figures.ranking
    assert (
        Figure("ranking", again.payload, again.still, again.alt)._repr_html_()
        == again._repr_html_()
    )


def test_the_still_is_closed_so_that_it_is_not_shown_twice(drawn_figures):
    still = plots.ranking(drawn_figures.table, reference=0.5)
    interactive("ranking", drawn_figures.ranking.payload, still, alt="")
    assert still.number not in plt.get_fignums()


def test_an_unknown_kind_is_named(drawn_figures):
    with refused("kind 'bars' is unknown; choose one of ranking, scatter, attack"):
        Figure("bars", {}, b"", "")


def test_a_grey_data_set_has_the_same_figures():
    images = data.pictures("shapes-grey", range(3))
    assert images["size"][0] == 1
    assert len(base64.b64decode(images["pixels"])) == 3 * np.prod(images["size"])


def test_a_line_has_one_colour_in_every_panel_also_where_another_begins_later():
    parts = [
        ("left", "a", 0),
        ("left", "b", 0),
        ("right", "b", 0),
        ("right", "a", 1),
        ("right", "b", 1),
    ]
    table = pd.DataFrame(parts, columns=["panel", "who", "step"]).assign(
        mean=1.0, low=0.5, high=1.5
    )
    figure = plots.trends(table, "step", "who", "panel", xlabel="step")
    left, right = (
        {line.get_label(): line.get_color() for line in axis.lines[:2]} for axis in figure.axes[:2]
    )
    assert left == right
    assert left["a"] != left["b"]


def test_a_group_keeps_its_colour_in_a_figure_that_has_others_too():
    table = pd.DataFrame({"panel": "one", "who": ["a", "b", "c"], "step": 0}).assign(
        mean=1.0, low=0.5, high=1.5
    )
    every, some = (
        plots.trends(rows, "step", "who", "panel", xlabel="step", groups=["a", "b", "c"])
        for rows in (table, table[table["who"] != "b"])
    )
    colours = [
        {line.get_label(): line.get_color() for line in figure.axes[0].lines[:-1]}
        for figure in (every, some)
    ]
    assert colours[1] == {who: colours[0][who] for who in ("a", "c")}
    assert len(set(colours[0].values())) == 3


def test_a_policy_has_its_colour_whatever_stands_beside_it():
    shown = {NO_POLICY, *filter(None, POLICIES)}
    assert len({plots.colors_of([name])[name] for name in shown}) == len(shown)
    alone = plots.colors_of([HYBRID])[HYBRID]
    beside = plots.colors_of(["prune:0.9", NO_POLICY, "7-4-15", HYBRID])
    assert beside[HYBRID] == alone
    assert len(set(beside.values())) == 4


def test_a_policy_has_its_colour_in_an_exchange_whatever_its_kind_and_place():
    rows = {"name": ["the hybrid", NO_POLICY, "prune:0.9"], "kind": ["policy", "policy", "pruning"]}
    table = pd.DataFrame(rows | {"x": [1, 2, 3], "mean": 1.0, "low": 0.5, "high": 1.5})
    table = table.assign(strength=0, outcome="bits")
    shown = {}
    for order in ([0, 1, 2], [2, 1, 0]):
        figure = plots.exchange(table.iloc[order], "x", "name", "kind", "outcome", xlabel="")
        for text in figure.axes[0].texts:
            shown.setdefault(text.get_text(), set()).add(text.get_color())
    assert shown["the hybrid"] == {plots.OF_POLICY[HYBRID]}
    assert shown["no defense"] == {plots.OF_POLICY[NO_POLICY]}
    assert not shown["pruning of 90 %"] & set(plots.OF_POLICY.values())


def test_names_in_an_exchange_cover_neither_each_other_nor_a_point():
    close = np.linspace(0, 1, 6)
    table = pd.DataFrame({"x": 50 + close, "mean": 3 + close / 10, "low": 2.9, "high": 3.2})
    table = table.assign(name=[f"prune:0.{n}" for n in range(6)], kind="pruning", strength=close)
    figure = plots.exchange(table.assign(outcome="bits"), "x", "name", "kind", "outcome", xlabel="")
    (axis,) = figure.axes
    figure.draw_without_rendering()
    boxes = [text.get_tightbbox() for text in axis.texts]
    # They are joined, and the legend has their kind: each has its strength alone.
    strengths = [f"{10 * n} %" for n in range(6)]
    assert [text.get_text() for text in axis.texts] == strengths
    (kind,) = axis.get_legend().get_texts()
    assert kind.get_text() == "pruning"
    assert not [a for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]
    dots = axis.transData.transform(table[["x", "mean"]].to_numpy())
    assert not [box for box in boxes for dot in dots if box.contains(*dot)]


def test_places_within_a_box_are_counted_as_matplotlib_does():
    box = Bbox.from_bounds(1, 2, 3, 4)
    around = itertools.product((0.9, 1, 2, 4, 4.1), (1, 2, 5, 6, 7))
    places = np.array([*around, (np.nan, 3)])
    assert plots._within(box, places) == sum(box.contains(*each) for each in places) == 9
    assert plots._within(box, np.empty((0, 2))) == 0
