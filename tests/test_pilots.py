"""Claims 1 and 7: which images the correlation is of, and a researcher who edits a notebook."""

import ast
import builtins
import json
import linecache
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from scipy.linalg import hadamard

from atsbook.findings import statistics
from atsbook.findings.compare import matrices
from atsbook.findings.table1 import HYBRID
from atslib.errors import AtsError

pytestmark = pytest.mark.notebook

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


def defined(name, *constants, **known):
    """What a notebook defines, its functions and these constants, without what it computes."""
    space = dict(known)
    for each in cells(name):
        for node in ast.parse(each.source).body if each.cell_type == "code" else ():
            names = set()
            if isinstance(node, ast.Assign):
                parts = (part for target in node.targets for part in ast.walk(target))
                names = {part.id for part in parts if isinstance(part, ast.Name)}
            if isinstance(node, ast.FunctionDef) or (names and names <= set(constants)):
                exec(ast.unparse(node), space)
    return space


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
        "<!-- glue:figure picture",
        "<!-- glue:any data -->",
        "<!-- glue:any numbers -->",
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
CASE = 'cases = [(convnet, "initial", by_convnet, 10, pair, [])]'  # of the profile smoke


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
    """Executes the cells of a changed notebook in this process, as a kernel would.

    Returns what was made, the places of the runs, and how many attacks there are by network.
    """

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATS_STORE", str(tmp_path / "store"))

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
    assert counts == {"convnet-4": 8}
    assert made == ["attack", "attack", "model", "model", "outcomes", "outcomes"]

    further = ('pair = ["", HYBRID]', 'pair = ["", HYBRID, "7-4-15"]')
    made, places, _ = edited(name, further, **small)
    assert ("convnet-4", "7-4-15") in places
    assert made == ["attack", "model", "outcomes"]  # the model is for the accuracy

    preset = (CASE, 'cases = [(convnet, "initial", "lbfgs-l2", 4, pair, [])]')
    made, _, counts = edited(name, preset, images=3, **small)
    assert counts == {"convnet-4": 6}
    assert made == ["attack", "attack", "outcomes", "outcomes"]

    own = (CASE, 'cases = [(Wide, "initial", grey, None, pair, [])]')
    made, places, counts = edited(name, own, extra="import torch\n" + OWN, **small)
    assert places == [("Wide", ""), ("Wide", HYBRID)]
    assert counts == {"Wide": 8}
    assert made == [*["attack-WrittenAttack"] * 2, *["outcomes"] * 2]
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
        (CASE, 'cases = [(Wide, "initial", grey, None, pair, [])]'),
        ('accuracy = study.accuracies(trainings, ["policy"])', ""),
    ]
    notebook = changed("claim1_privacy", changes, "import torch\n" + OWN)
    nbformat.write(notebook, tmp_path / "changed.ipynb")
    papermill.execute_notebook(
        "changed.ipynb", "out.ipynb", {"profile": "smoke"}, progress_bar=False
    )
    made = sorted(kept(tmp_path).values())
    assert made == [*["attack-WrittenAttack"] * 2, *["outcomes"] * 2]


def test_a_misspelt_parameter_ends_the_notebook_at_once(edited):
    with pytest.raises(AtsError, match=r"unknown parameter pictures; the parameters are profile"):
        edited("claim7_correlation", profile="smoke", pictures=3)
