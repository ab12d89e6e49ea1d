"""Claims 1 and 7: the rules in their notebooks on made-up numbers, and a researcher who edits a
notebook.
"""

import builtins
import contextlib
import json
import linecache
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest
from scipy.linalg import hadamard

from atsbook.findings import statistics
from atsbook.findings.compare import matrices
from atsbook.findings.statistics import holm, interval, paired
from atsbook.findings.verdicts import guards
from atsbook.runs import schedule
from atsbook.runs.table1 import HYBRID
from atsbook.runs.workers import Here
from atslib.errors import AtsError

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
PILOTS = ("claim1_privacy", "claim7_correlation")


def cells(name):
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells


def cell(name, words):
    """The source of the one code cell that holds these words."""
    (found,) = [
        each.source for each in cells(name) if each.cell_type == "code" and words in each.source
    ]
    return found


# --- the rule of claim 1 ----------------------------------------------------------------------------------------------

PLACES = [("initial", "lenet"), ("initial", "convnet-16"), ("trained", "resnet20-1")]


def privacy(*changes, bare=3.0, hybrid=68.0, none=70.0, classes=100, images=40):
    """What the rule's cell makes of cases in which the hybrid changes the gain by so much; None: no
    attack works.
    """
    parts, noise = [], np.random.default_rng(0)
    for (state, model), change in zip(PLACES, changes, strict=False):
        gain = noise.normal(bare if change is not None else -3.0, 0.3, images)
        for policy, values in (
            ("none", gain),
            (HYBRID, gain + (change or 0.0) + noise.normal(0, 0.2, images)),
        ):
            part = pd.DataFrame(
                {"image": range(images), "gain": values, "psnr": values + 8, "floor_policy": 8.0}
            )
            parts.append(part.assign(regime=state, model=model, policy=policy, draw=0))
    space = {
        "HYBRID": HYBRID,
        "pd": pd,
        "guards": guards,
        "holm": holm,
        "interval": interval,
        "paired": paired,
    }
    space |= {"attacks": pd.concat(parts, ignore_index=True), "study": SimpleNamespace(dataset="")}
    space |= {"accuracy": pd.DataFrame({"policy": ["none", HYBRID], "accuracy": [none, hybrid]})}
    space |= {"table1": SimpleNamespace(classes=lambda name: classes)}
    exec(cell("claim1_privacy", "def judge("), space)
    return space


@pytest.mark.parametrize(
    ("changes", "more", "status"),
    [
        ((-4.0, -2.0, None), {}, "reproduced"),  # two points of accuracy are allowed
        ((-4.0, 2.0, None), {}, "partly"),
        ((-4.0, -2.0), {"hybrid": 67.9}, "partly"),
        ((-4.0, -2.0), {"hybrid": float("nan")}, "partly"),
        (
            (-4.0, -2.0),
            {"hybrid": 1.9, "none": 2.1},
            "partly",
        ),  # within twice chance nothing can be lost
        ((-4.0, -2.0), {"classes": 2}, "partly"),
        ((2.0, 0.0), {}, "not reproduced"),
        ((2.0, None), {}, "not reproduced"),
        ((None, None), {}, "cannot tell"),
        ((-4.0, -2.0), {"images": 20}, "cannot tell"),
    ],
)
def test_the_rule_of_claim_1(changes, more, status, capsys):
    found = privacy(*changes, **more)
    assert found["status"] == status
    told = [change for change in changes if change is not None] if more.get("images") != 20 else []
    assert len(found["telling"]) == len(told)
    assert found["protected"]["change"].lt(0).sum() == sum(change < 0 for change in told)
    assert capsys.readouterr().out.startswith(f"{status}: ")


def test_a_change_between_nothing_and_what_was_published_leaves_a_case_open():
    frame = privacy(-2.0)["attacks"]
    hybrid = frame["policy"] == HYBRID
    frame.loc[hybrid, "gain"] = frame.loc[hybrid, "gain"] + np.resize([-14.0, 14.0], hybrid.sum())
    space = privacy(-2.0)
    judged = space["judge"](frame)
    assert judged["low"] < space["PUBLISHED"] < 0 < judged["high"]
    assert "holds both 0 and the published -3.90" in judged["why"]


# --- the rule of claim 7 ----------------------------------------------------------------------------------------------

WALSH = hadamard(64).T.astype(float)[1:]  # orthogonal, mean 0, mean square 1
SCORE, SUCCESS, DARK, SHARED = WALSH[:4]


def correlated(score, success, policies=64, images=6):
    """What the rule's cell makes of policies' means, the same on every image."""
    measured = {"s_pri net": score, "psnr": success, "floor_noise": DARK, "gain": success}
    table = pd.DataFrame(
        {name: np.repeat(values[:policies], images) for name, values in measured.items()}
        | {
            "policy": np.repeat(np.arange(policies), images),
            "image": np.tile(np.arange(images), policies),
        }
    )
    space = {"table": table, "attacked": "net", "policies": range(policies), "np": np}
    space |= {"matrices": matrices, "statistics": statistics, "bits": (0.5, 0.3, 0.6)}
    exec(cell("claim7_correlation", "PAPER, REPLICATION = "), space)
    return space


def test_images_are_drawn_too():
    """A correlation that only one of six images has is none: without that image there is nothing."""
    found = correlated(SCORE, SUCCESS)
    table = found["table"]
    table.loc[table["image"] == 0, "psnr"] += 3 * SCORE
    r, low, _ = found["correlation"](statistics.pearson, "s_pri net", "psnr", rows=table)
    assert r > 0.4
    assert low < 0.1 < r


def test_columns_are_paired_by_policy_and_image_in_whatever_order_the_rows_are():
    table = correlated(SCORE + SHARED, SUCCESS + SHARED)["table"]
    shuffled = table.sample(frac=1, random_state=0)
    for one, other in zip(
        matrices(table, "psnr", "gain"), matrices(shuffled, "psnr", "gain"), strict=True
    ):
        np.testing.assert_array_equal(one, other)


# --- how the pages are built ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PILOTS)
def test_a_page_opens_with_the_answer_and_shows_its_experiment_and_its_rule(name):
    first, *rest = cells(name)
    assert first.source.startswith("# ")
    assert first.source.splitlines()[0].endswith("?")
    for pasted in (
        "{glue:md} answer",
        "{glue:figure} picture",
        "{glue:any} data",
        "{glue:any} numbers",
    ):
        assert pasted in first.source
    code = [each for each in rest if each.cell_type == "code"]
    seen = [
        each
        for each in code
        if not {"hide-input", "hide-cell"} & set(each.metadata.get("tags", ()))
    ]
    text = "\n".join(each.source for each in seen)
    for call in ("study.network(", "study.attack(", "study.table(", "status ="):
        assert call in text
    assert max(len(line) for each in seen for line in each.source.splitlines()) <= 72
    assert "fixed before the run" not in json.dumps([each.source for each in rest])


# --- a researcher edits the notebook, and nothing else ----------------------------------------------------------------

OWN = """
from torch import nn


class Wide(nn.Module):
    def __init__(self, num_classes, channels, side):
        super().__init__()
        self.first = nn.Conv2d(channels, 4, 5, stride=2)
        self.last = nn.Linear(4 * ((side - 5) // 2 + 1) ** 2, num_classes)

    def forward(self, images):
        return self.last(torch.sigmoid(self.first(images)).flatten(1))


LEVEL = 0.5


def grey(seen, *, rng):
    return torch.full((len(seen), *seen.shape), LEVEL)
"""
CASE = '(convnet, "initial", by_convnet, 10, 2, 1, pair)]'  # of the profile smoke


def changed(name, changes, extra=""):
    """A notebook as far as the tables of its experiment, with some texts replaced and a cell put in.

    Whole notebooks are run by nbval.
    """
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    for before, after in changes:
        (found,) = [c for c in notebook.cells if before in c.source and c.cell_type == "code"]
        found.source = found.source.replace(before, after)
    end = next(i for i, each in enumerate(notebook.cells) if "## The rule" in each.source)
    del notebook.cells[end:]
    if extra:
        at = next(i for i, each in enumerate(notebook.cells) if "study = Study(" in each.source)
        notebook.cells.insert(at, nbformat.v4.new_code_cell(extra))
    return notebook


def kept(folder):
    """The kind of each result in a store, by its key."""
    return {path.stem: path.parent.name for path in folder.glob("store/*/*.json")}


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """Executes the cells of a changed notebook in this process, as a kernel would, and computes
    what they ask for here too, which is faster than processes for so few images.

    Returns what was made, the places of the runs, and how many attacks there are by network.
    """

    @contextlib.contextmanager
    def here(device, jobs, scheduler, say):
        yield Here(), lambda: 1

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATS_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(schedule, "workers", here)

    def execute(name, *changes, extra="", **parameters):
        # In a kernel too `__main__` is the module of what is written, and linecache has its cells.
        variables = {"__name__": "__main__", "__builtins__": builtins}
        notebook = changed(name, changes, extra)
        before = kept(tmp_path)
        for number, each in enumerate(c for c in notebook.cells if c.cell_type == "code"):
            source = f"{each.source}\n"
            file = f"<{name}, cell {number} of {len(before)}>"
            linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
            exec(compile(source, file, "exec"), variables)
            if "parameters" in each.metadata.get("tags", ()):
                variables.update(parameters)  # as papermill does
        made = sorted(kind for key, kind in kept(tmp_path).items() if key not in before)
        places = sorted({key[1:3] for key in variables["runs"]})
        counts = variables["attacks"].groupby("model")["psnr"].count().to_dict()
        return made, places, counts

    return execute


def test_only_what_is_new_is_computed_when_a_notebook_is_changed(edited):
    name, small = "claim1_privacy", {"profile": "smoke"}
    made, places, counts = edited(name, **small)
    assert places == [("convnet-4", ""), ("convnet-4", HYBRID)]
    assert counts == {"convnet-4": 4}
    assert made == ["attack", "attack", "model", "model", "ranks"]

    further = ('pair = ["", HYBRID]', 'pair = ["", HYBRID, "7-4-15"]')
    made, places, _ = edited(name, further, **small)
    assert ("convnet-4", "7-4-15") in places
    assert made == ["attack", "model", "ranks"]  # the model is for the accuracy

    preset = (CASE, '(convnet, "initial", "lbfgs-l2", 4, 2, 1, pair)]')
    made, _, counts = edited(name, preset, images=3, **small)
    assert counts == {"convnet-4": 6}
    assert made == ["attack", "attack", "ranks"]

    own = (CASE, '(Wide, "initial", grey, None, 2, 1, pair)]')
    made, places, counts = edited(name, own, extra="import torch\n" + OWN, **small)
    assert places == [("Wide", ""), ("Wide", HYBRID)]
    assert counts == {"Wide": 4}
    assert made == ["attack-WrittenAttack", "attack-WrittenAttack", "ranks"]
    darker = OWN.replace("LEVEL = 0.5", "LEVEL = 0.4")
    assert edited(name, own, extra="import torch\n" + darker, **small)[0] == made


@pytest.mark.jupyter
def test_what_a_notebook_defines_reaches_the_workers_of_a_kernel(tmp_path, monkeypatch):
    import papermill

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("ATS_JOBS", "1")
    # An own attack on an own network, and no training for the accuracy, which others test.
    changes = [
        (CASE, '(Wide, "initial", grey, None, 2, 1, pair)]'),
        ('accuracy = study.accuracies(trainings, ["policy"])', ""),
    ]
    notebook = changed("claim1_privacy", changes, "import torch\n" + OWN)
    nbformat.write(notebook, tmp_path / "changed.ipynb")
    papermill.execute_notebook(
        "changed.ipynb", "out.ipynb", {"profile": "smoke"}, progress_bar=False
    )
    made = sorted(kept(tmp_path).values())
    assert made == ["attack-WrittenAttack", "attack-WrittenAttack", "ranks"]


def test_a_misspelt_parameter_ends_the_notebook_at_once(edited):
    with pytest.raises(AtsError, match=r"unknown parameter pictures; the parameters are profile"):
        edited("claim7_correlation", profile="smoke", pictures=3)
