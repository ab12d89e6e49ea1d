"""The page "Your own attack, defense, network, data, federation": its snippets run as they are
printed.
"""

import re
import subprocess
import sys

import pytest

from atsbook.store import Store
from atslib.files import project_root

SECTIONS = re.split(r"^## ", (project_root() / "book" / "your_own.md").read_text(), flags=re.M)[1:]
CODE = {
    section.partition("\n")[0]: re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)
    for section in SECTIONS
}
(CELL,) = CODE["A page of this book"]

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_page_has_a_snippet_for_each_part():
    snippets = {heading: len(found) for heading, found in CODE.items()}
    assert snippets.pop("An attack in a web page") == 0  # a file that an example writes
    assert list(snippets.values()) == [1] * 6


@pytest.fixture
def printed(monkeypatch, tmp_path, capfd):
    """Runs a section's snippet in an empty folder, without data sets; the numbers at the ends of
    its lines.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATS_DATA", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run(heading):
        (code,) = CODE[heading]
        exec(code, {"__name__": "snippet"})
        lines = capfd.readouterr().out.splitlines()
        rows = [re.match(r"(.+?) +(-?\d+\.\d+)\b", line) for line in lines]
        assert all(rows), "\n".join(lines)
        return {row[1]: float(row[2]) for row in rows}

    return run


def test_an_attack(printed):
    table = printed("An attack")
    assert list(table) == ["mean_of_class", "annealed-lenet"]
    assert (
        table["annealed-lenet"] > table["mean_of_class"] + 3
    )  # one uses the gradient, the other does not


def test_a_defense(printed):
    table = printed("A defense")
    assert list(table) == ["none", "prune:0.9", "signs", "3-1-7 | signs"]
    assert table["none"] > max(table["prune:0.9"], table["signs"]) + 3


def test_a_network(printed):
    table = printed("A network")
    assert list(table) == ["batch norm in eval   mode", "batch norm in train  mode"]
    assert table["batch norm in eval   mode"] != table["batch norm in train  mode"]


@pytest.mark.federated
def test_a_federation(printed):
    pytest.importorskip("flwr", reason="needs the extra atslib[federated]")
    found = printed("A federation")
    assert [row.partition(",")[0] for row in found] == ["client 0", "client 1", "client 2"]
    assert max(found.values()) < 0.5


def test_data(printed):
    table = printed("Data")
    assert list(table) == ["none", "3-1-7", "43-18-18"]
    assert all(-1 <= score <= 1 for score in table.values())


def test_a_page_is_a_notebook(monkeypatch, tmp_path):
    monkeypatch.setenv("ATS_STORE", str(tmp_path))
    monkeypatch.setenv("ATS_JOBS", "1")
    cell = {"profile": "smoke", "__annotations__": {"profile": str}}
    exec(CELL, cell)
    assert cell["attacks"].groupby("defense")["image"].nunique().to_dict() == {
        "none": 2,
        "clip:0.1": 2,
    }
    assert len([path for path, _ in Store().entries() if path.parent.name == "attack"]) == 2


@pytest.mark.process
@pytest.mark.parametrize("statement", ["import torchvision", "from torchvision import transforms"])
def test_torchvision_can_be_imported_after_this_library_whatever_its_build(statement):
    code = f"import atslib; {statement}; import torchvision; print(torchvision.models.resnet18(num_classes=3).fc)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("Linear(in_features=512"), done.stderr
