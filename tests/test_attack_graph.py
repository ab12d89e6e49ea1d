"""A traced attack as loops: what a browser computes is what the library computes in double
precision.
"""

import json

import pytest
import torch
from browser import needs_chromium, written
from checks import refused
from torch.fx.experimental.proxy_tensor import make_fx

import atslib
from atsbook.evidence.reading import WithEvidence
from atsbook.networks import ModelRequest, network
from atsbook.widgets import html
from atsbook.widgets.browser_graph.graph import attack_graph, rounded
from atsbook.widgets.browser_graph.loops import fused, joined
from atsbook.widgets.browser_graph.lowering import Lowering
from atslib.attacks import GradientMatching
from atslib.attacks.objective import Objective
from atslib.clients.training import TrainConfig
from atslib.files import project_root
from atslib.models import build_model

SHAPE, POINTS = (3, 32, 32), 20
RUN = """
const graph = %s, points = %s, weights = weightsOf(graph.weights);
const victim = runner(graph.victim, weights), step = runner(graph.step, weights);
window.found = points.map(({image, label, z, tv}) => {
  const labels = new Float64Array(graph.classes);
  labels[label] = 1;
  for (const one of [victim, step]) one.put("labels", labels);
  victim.put("images", image);
  victim.run();
  step.put("gradient", victim.get("gradient"));
  step.put("z", z);
  step.put("tv", [tv]);
  step.run();
  const sent = victim.get("gradient"), found = {scores: [...victim.get("scores")]};
  found.sent = [...sent.slice(0, 500), ...sent.slice(-500)];
  for (const name of ["distance", "penalty", "slope"]) found[name] = [...step.get(name)];
  return found;
});
"""


@pytest.fixture(scope="module")
def graph(one_thread, exported):
    """An untrained LeNet of the published width in double precision, and its graph."""
    request = ModelRequest(dataset="shapes", model="lenet", fraction=1.0, train=None, seed=0)
    return rounded(network(request), "f16").double(), exported


@pytest.fixture(scope="module")
def trained_graph(one_thread, tmp_path_factory):
    """The trained network that the explorer's page hands to its reader, from the evidence, and its
    graph.
    """
    request = ModelRequest(
        dataset="cifar100",
        model="relunet",
        fraction=0.1,
        train=TrainConfig(epochs=6, batch=32, lr=0.02),
        seed=0,
    )
    store = WithEvidence(tmp_path_factory.mktemp("store"), project_root() / "results")
    kept = store.get(request.kind, request, lambda state: pytest.fail("it is not in the evidence"))
    weights = {n.removeprefix("model."): v for n, v in kept.tensors.items() if "model." in n}
    model = build_model(request.model, 100, norm="cifar100")
    model.load_state_dict(weights)
    return rounded(model, "f16").double(), attack_graph(model, SHAPE, 100, weights="f16")


def close(found, expected):
    found, expected = torch.tensor(found, dtype=torch.float64), expected.detach().flatten()
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


@needs_chromium
@pytest.mark.parametrize("which", ["graph", "trained_graph"])
def test_a_browser_finds_cost_slope_and_gradient_of_the_library_in_double_precision(
    which, request, browser, tmp_path
):
    double, traced = request.getfixturevalue(which)
    draws = atslib.rng(1)
    points = [
        {
            "image": torch.rand(3072, generator=draws).tolist(),
            "label": i % 10,
            "z": (4 * torch.rand(3072, generator=draws) - 2).tolist(),
            "tv": 0.02 * i,
        }
        for i in range(POINTS)
    ]
    text = html.source("runner.js") + RUN % (json.dumps(traced), json.dumps(points))
    browser.open(written(tmp_path / "graph.html", f"<script>{text}</script>"), ready="window.found")
    found = json.loads(browser.js("JSON.stringify(window.found)"))
    assert browser.faults() == []
    for point, got in zip(points, found, strict=True):
        image = torch.tensor(point["image"], dtype=torch.float64).view(1, *SHAPE)
        seen = atslib.observe(double, image, torch.tensor([point["label"]]))
        z = torch.tensor(point["z"], dtype=torch.float64)[None].requires_grad_()
        distance, penalty = Objective(seen, [GradientMatching(tv=point["tv"])], split=False).costs(
            z
        )
        (slope,) = torch.autograd.grad((distance + penalty).sum(), z)
        close(got["sent"], torch.cat([seen.gradients[0, :500], seen.gradients[0, -500:]]))
        close(got["scores"], double(image))
        for name, value in (("distance", distance), ("penalty", penalty), ("slope", slope)):
            close(got[name], value)


def test_the_graph_of_a_step_is_a_small_download(graph):
    _, traced = graph
    assert (traced["format"], traced["classes"], traced["shape"]) == (
        "atslib-attack-1",
        10,
        list(SHAPE),
    )
    assert len(json.dumps([traced["step"], traced["victim"]], separators=(",", ":"))) < 40_000


def test_neighbouring_dimensions_become_one_where_all_operands_allow_it():
    assert joined([2, 1, 3, 4], [[12, 12, 4, 1], [0, 7, 4, 1]]) == ([2, 12], [[12, 1], [0, 1]])
    assert joined([1, 1], [[5, 1]]) == ([], [[]])


def loop(name, out, *sources):
    return [
        [name, *range(1, len(sources) + 1)],
        "",
        [6],
        [],
        [[out, 0, [1]], *([s, 0, [1]] for s in sources)],
    ]


def test_a_loop_that_one_other_reads_becomes_part_of_it():
    found = fused([loop("exp", 1, 0), loop("add", 2, 1, 0)], {2})
    assert found == [[["add", ["exp", 2], 1], "", [6], [], [[2, 0, [1]], [0, 0, [1]], [0, 0, [1]]]]]


def test_a_packed_loop_becomes_part_of_one_that_reads_it_as_a_row():
    copy = [["copy", 1], "", [2, 3], [], [[1, 0, [3, 1]], [0, 4, [1, 2]]]]
    total = [["mul", 1, 2], "sum", [], [6], [[2, 0, [0]], [1, 0, [1]], [3, 0, [1]]]]
    merged = [
        ["mul", ["copy", 2], 1],
        "sum",
        [],
        [2, 3],
        [[2, 0, [0, 0]], [3, 0, [3, 1]], [0, 4, [1, 2]]],
    ]
    assert fused([copy, total], {2}) == [merged]


@pytest.mark.parametrize(
    ("steps", "outputs"),
    [
        ([loop("exp", 1, 0), loop("add", 2, 1, 0), loop("neg", 3, 1)], {2, 3}),  # read twice
        ([loop("exp", 1, 0), loop("neg", 2, 1)], {1, 2}),  # asked for
        (
            [loop("exp", 1, 0), loop("neg", 0, 3), loop("add", 2, 1, 0)],
            {0, 2},
        ),  # its source is written in between
        (
            [loop("exp", 1, 0), [["copy", 1], "", [3, 2], [], [[2, 0, [2, 1]], [1, 0, [1, 3]]]]],
            {2},
        ),  # in other order
    ],
)
def test_other_loops_stay(steps, outputs):
    assert fused(steps, outputs) == steps


def test_a_network_that_no_page_should_load_is_refused_at_once():
    large = build_model("resnet18-64", 10, rng=0)
    with refused("weights is too large for a page, which loads at most 10,000,000"):
        attack_graph(large, (3, 64, 64), 10)


def test_what_the_runner_does_not_know_is_refused_in_a_sentence():
    with refused("aten.sort.default", "the browser's runner does not know"):
        Lowering(make_fx(torch.sort)(torch.zeros(3)))
