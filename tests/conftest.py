"""Fixtures that several files share: stores in temporary folders, and a single thread."""

import gc
import json
import os
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from browser import CHROMIUM, Browser
from checks import main
from made_pages import write_page

from atsbook import networks
from atsbook.findings import transformations
from atsbook.runs.study import Study
from atsbook.runs.tables import noise_floor
from atsbook.store import Store
from atsbook.widgets import data, interactive
from atsbook.widgets.browser_graph import graph
from atslib.clients.training import TrainConfig
from atslib.data.load import load
from atslib.errors import AtsError
from atslib.models import build_model
from atslib.policies.policy import sample_functions
from atslib.rng import rng


@pytest.fixture
def said():
    """The lines that `store` says."""
    return []


@pytest.fixture
def flower_task(monkeypatch):
    """Flower's messages carry the numbers of a run, a task and a node, which a running app has from it."""
    pytest.importorskip("flwr", reason="the extra atslib[federated] is not installed")
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def store(tmp_path, said):
    return Store(tmp_path / "store", say=said.append)


@pytest.fixture
def refusal(capsys):
    """Runs a command that ends before any work: the one line that it says, on stderr."""

    def run(command, status=2):
        assert main(command.split() if isinstance(command, str) else command) == status
        captured = capsys.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1), captured
        return captured.err.strip()

    return run


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A project's top folder with nothing in it but what the runner needs; it is the working one."""
    top = tmp_path / "project"
    for folder in ("book/results", "notebooks"):
        (top / folder).mkdir(parents=True)
    (top / "book/deviations.md").write_text(
        (Path(__file__).parents[1] / "book/deviations.md").read_text()
    )
    (top / "README.md").write_text("# Title\n")
    (top / "book/_toc.yml").write_text("- file: results/explorer\n")
    (top / "notebooks/explorer.ipynb").touch()
    (top / "pyproject.toml").touch()
    monkeypatch.chdir(top)
    monkeypatch.setenv("ATS_STORE", str(tmp_path / "store"))
    return top


@pytest.fixture
def page(root):
    """A function that writes a page, a notebook of one attack for each policy, and returns its file."""
    return partial(write_page, root)


@pytest.fixture(scope="session")
def smoke_store(tmp_path_factory):
    """A folder for the artifacts of profile smoke: the first test that needs them computes them."""
    return tmp_path_factory.mktemp("smoke")


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """The graph of an untrained LeNet of the published width; to trace it takes seconds."""
    file = tmp_path_factory.mktemp("graph") / "attack.json"
    model = build_model("lenet", 10, norm="shapes", rng=rng(0, "weights", "lenet"))
    graph.export(file, model, "shapes", None, "f16")
    return json.loads(file.read_text())


def scored_and_attacked(kept):
    """A table with scores of three networks and attacks on one under six random policies, and those
    attacks.
    """
    study, cpu = Study("smoke", store=kept.root), torch.device("cpu")
    few = {"untrained": None, "semi-trained": 0.002, "trained": 0.004}
    networks = {
        name: study.network("lenet", train=TrainConfig(epochs=1), fraction=share)
        if share
        else study.network("lenet")
        for name, share in few.items()
    }
    policies = list(map(str, sample_functions(6, rng=rng(0, "figures"))))
    options = {"attack": "adam-cosine", "steps": 4, "images": 2}
    runs = {
        policy: study.attack(networks["semi-trained"], policy=policy, **options)
        for policy in policies
    }
    scores = {name: study.scores(network, policies, images=2) for name, network in networks.items()}
    for request in (*runs.values(), *scores.values()):
        request.request.make(kept, cpu)  # in this process, which is faster for so few
    table = study.table(runs, ["policy"])
    artifacts = {policy: study[run] for policy, run in runs.items()}
    table["floor_noise"] = np.concatenate([noise_floor(a["target"], 0) for a in artifacts.values()])
    for name, request in scores.items():
        table[f"s_pri {name}"] = request.value["scores"].flatten().double().numpy()
    return table, artifacts


@pytest.fixture(scope="session")
def drawn_figures(tmp_path_factory):
    """The small figures of the claim pages by kind, of a network trained in no time, and what they
    are made from.
    """
    kept = Store(tmp_path_factory.mktemp("figures"))
    study, cpu = Study("smoke", store=kept.root), torch.device("cpu")
    semi = study.network("lenet", train=TrainConfig(epochs=1), fraction=0.002)
    singles = study.scores(semi, list(map(str, transformations.FUNCTIONS)), images=3)
    singles.request.make(kept, cpu)  # in this process, which is faster for so few
    table, artifacts = scored_and_attacked(kept)
    rows = study.table({"fixed": singles}, ["variant"])
    scores = transformations.wide(transformations.by_function(rows), "fixed")
    ranked = transformations.ranking(scores, resamples=100)
    payloads = {
        "ranking": data.ranking(study, ranked, 0.5),
        "scatter": data.scatter(
            table, artifacts, "shapes", "shapes, profile smoke", "semi-trained"
        ),
    }
    made = {
        kind: interactive(kind, payload, plt.figure(figsize=(2, 1)), alt=f"The still <{kind}>")
        for kind, payload in payloads.items()
    }
    return SimpleNamespace(
        table=ranked,
        attacks=table,
        artifacts=artifacts,
        **made,
    )


@pytest.fixture(scope="module", autouse=True)
def nothing_from_before():
    """Kernels of the notebooks that this process ran leave event loops to the garbage collector, of
    whatever test.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def one_thread():
    """Small images gain nothing from more threads, and lose much when the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported and collected stays until the end: the garbage collector, which goes through
    all that it knows for each file of tests, need not look at it again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# Files of tests that are of the book alone
BOOK = {
    f"test_{name}.py"
    for name in (
        "advice", "answers", "archive", "attack_graph", "audit", "audited", "batch_requests", "bench", "claims", "coverage",
        "defended", "details", "effects", "figures", "general_leakage", "history", "inverting", "leaking", "learned",
        "one_cell", "outcomes", "pages", "picked", "regimes", "rekey", "report", "rules", "score_pages", "shown",
        "svg", "sweep", "switches", "transformations", "widgets", "your_own",
    )
}  # fmt: skip


def pytest_collection_modifyitems(items):
    """A cell that nbval runs is of a notebook. Jupyter's own libraries warn, at import and at exit,
    of what they will change.
    """
    ignored = ("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker("notebook")
        if item.path.name in BOOK:
            item.add_marker("book")
        if item.get_closest_marker("jupyter"):
            item.add_marker(pytest.mark.filterwarnings(*ignored))


def pytest_runtest_setup(item):
    """Without a browser its tests are skipped, and fail where $ATS_CI promises one."""
    if CHROMIUM is None and item.get_closest_marker("browser"):
        missing = "no chromium here: apt-get install chromium"
        (pytest.fail if os.environ.get("ATS_CI") else pytest.skip)(missing)


def pytest_terminal_summary(terminalreporter):
    """One line with what was not run, and why."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if reasons:
        told = "; ".join(f"{count} ({reason})" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"not run: {told}")


@pytest.fixture(autouse=True)
def no_leftovers(request):
    """A test leaves torch's threads as they were, and no event loop of Jupyter's clients to the
    garbage collector.
    """
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    if request.node.get_closest_marker("jupyter"):
        gc.collect()


@pytest.fixture(scope="module")
def few_images():
    """Forty test images: accuracies are computed for each policy. "fmnist" and "tinyimagenet"
    cannot be had.
    """
    missing = ("fmnist", "tinyimagenet")

    def small(name, split):
        if name in missing:
            raise AtsError(f"{name} is not here")
        return load(name, split)[: 40 if split == "test" else None]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "load", small)
        networks.dataset.cache_clear()
        yield
    networks.dataset.cache_clear()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """One store for a module's pages: they share networks and attacks."""
    return Store(tmp_path_factory.mktemp("kept"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One tab of a headless Chromium; tests that use it are marked `needs_chromium`."""
    running = Browser(tmp_path_factory.mktemp("chromium"))
    yield running
    running.close()
