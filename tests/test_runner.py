"""The command line and the runner: one-line errors, fallbacks, tables and answers, pages that fail."""

import os
import re
import signal
import threading
from pathlib import Path

import nbformat
import pytest
from checks import Sizes, attack_request
from papermill.translators import PythonTranslator

from atsbook.__main__ import main
from atsbook.findings.result import stored_digest, stored_result
from atsbook.pool.schedule import compute
from atsbook.report import runner
from atsbook.report.making import build_book, executing
from atsbook.report.notebooks import execute, names
from atsbook.report.runner import published, run, usable
from atsbook.store import Store
from atsbook.texts.start import start
from atslib.data.load import load
from atslib.errors import AtsError
from atslib.files import shown

pytestmark = pytest.mark.notebook

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
MAKER = "int(os.environ['JPY_PARENT_PID'])"  # to a page: the process that executes it


@pytest.fixture
def root(root, monkeypatch):
    """The project's top folder, while the shell is somewhere in it."""
    (root / "elsewhere").mkdir()
    monkeypatch.chdir(root / "elsewhere")
    return root


@pytest.fixture
def damaged(root):
    """The project's store, with one artifact whose bytes changed and one that is whole."""
    import torch

    store = Store()
    for kind in ("attack", "model"):
        store.get(kind, {"a": 1}, lambda state: {"x": torch.ones(3)})
    store.path("model", {"a": 1}).write_bytes(b"x")
    return store


def test_the_default_pages_are_those_of_the_book(root):
    assert published(root) == ["explorer"]
    (root / "book/_toc.yml").write_text(
        "parts:\n  - file: intro\n  - file: results/claim3_transfer\n"
    )
    assert published(root) == []  # it has no notebook
    (root / "notebooks/claim3_transfer.ipynb").touch()
    assert published(root) == ["claim3_transfer"]


# --- the command line ---------------------------------------------------------------------------------------


def test_a_profile_or_a_data_set_that_is_none_is_one_line(root, refusal):
    for option, value, choices in (
        ("profile", "huge", "smoke, laptop, full"),
        ("dataset", "cifr10", "cifar100, "),
    ):
        said = refusal(f"run --{option} {value}")
        assert said.startswith(f"error: {option} '{value}' is unknown; choose one of {choices}")


@pytest.mark.parametrize("profile", ["laptop", "full"])
def test_drawn_data_has_too_few_images_for_a_large_profile(root, refusal, profile):
    said = refusal(f"run explorer --profile {profile} --dataset shapes")
    assert said.startswith(f"error: dataset=shapes at profile {profile}: pages judge test images")
    assert said.endswith("take --profile smoke with it, or real data")


def test_a_run_without_its_data_is_a_small_one_beside_the_committed_pages(root, monkeypatch):
    monkeypatch.setattr(runner, "usable", lambda name, say: "shapes")
    experiment, pages = runner._chosen([], "laptop", None, root, Store(root / "store"))
    assert (experiment.profile, experiment.dataset, pages) == ("smoke", "shapes", ["explorer"])


def test_a_file_in_the_place_of_the_store_is_named_before_any_work(root, refusal):
    (root / "file").write_text("kept")
    said = refusal(f"run --profile smoke explorer --store {root / 'file'}")
    assert (
        said
        == f"error: the store {root / 'file'} is a file; name a folder with --store or $ATS_STORE"
    )


def test_outside_a_project_the_missing_folders_are_named_before_any_work(tmp_path):
    with pytest.raises(
        AtsError, match=r"top folder: it has no README\.md and no book/_toc\.yml and no"
    ):
        run([], profile="smoke", root=tmp_path, store=Store(tmp_path / "store"))
    assert not list(tmp_path.iterdir())


def test_store_verify_names_the_damaged_and_is_status_1_and_of_a_whole_store_0(damaged, capsys):
    assert main(["store", "verify"]) == 1
    name = damaged.path("model", {"a": 1}).name
    assert capsys.readouterr().out == f"model/{name}: its bytes do not match their hash\n"
    damaged.path("model", {"a": 1}).with_suffix(".json").unlink()  # then it is no artifact
    assert main(["store", "verify"]) == 0
    assert capsys.readouterr().out == "1 artifacts, all whole\n"


def test_store_list_has_a_line_for_every_artifact_even_the_damaged(damaged, capsys):
    damaged.path("model", {"a": 1}).unlink()
    damaged.path("attack", {"a": 1}).with_suffix(".json").write_text("[]")
    assert main(["store", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split("/")[0] for line in lines) == ["attack", "model"]


def test_an_interrupt_is_one_line_and_status_130(root, refusal, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", interrupted)
    assert refusal("run", status=130).startswith("interrupted; what was finished is kept")


# --- data ---------------------------------------------------------------------------------------------------


def test_data_that_is_not_there_falls_back_to_shapes_with_a_line(tmp_path, monkeypatch):
    monkeypatch.setenv("ATS_DATA", str(tmp_path))
    monkeypatch.setattr(runner, "load", lambda name, split: load(name, split, download=False))
    lines = []
    assert usable("cifar100", lines.append) == "shapes"
    reading, line = lines
    assert reading == "reading cifar100"
    assert "cifar100" in line
    assert "going on with the embedded `shapes` images at profile smoke" in line
    assert usable("shapes-grey", lines.append) == "shapes-grey"  # which are there
    assert lines == [reading, line]


def test_a_relative_folder_of_data_holds_in_notebooks_too(tmp_path, monkeypatch):
    """They run in a folder of their own."""
    (tmp_path / "data").mkdir()
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATS_DATA", "data")
    monkeypatch.setattr(runner, "load", lambda name, split: load(name, split, download=False))
    usable("cifar100", print)
    monkeypatch.chdir(tmp_path / "notebooks")
    assert Path(os.environ["ATS_DATA"]).samefile(tmp_path / "data")


def test_papermill_knows_every_parameter_that_a_run_passes():
    """Else it would warn of an unknown one; and it must read every name of the cell, annotated as
    they are.
    """
    for name in names(NOTEBOOKS.parent):
        notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
        (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
        known = {parameter.name for parameter in PythonTranslator.inspect(cell)}
        assert (
            known == set(re.findall(r"^\w+", cell.source, re.MULTILINE)) >= {"profile", "dataset"}
        ), name


def test_a_folder_of_data_that_is_not_there_is_an_error(root, tmp_path, refusal, monkeypatch):
    monkeypatch.setenv("ATS_DATA", str(tmp_path / "nope"))
    assert refusal("run explorer").startswith(
        f"error: ATS_DATA={tmp_path / 'nope'} is not a folder"
    )
    assert usable("shapes", print) == "shapes"


# --- runs ---------------------------------------------------------------------------------------------------


@pytest.mark.jupyter
def test_a_run_writes_tables_and_answers_and_computes_only_what_is_missing(root, page, smoke_store):
    page("toy")
    lines, readme = [], (root / "README.md").read_text()
    for _ in range(2):
        lines.clear()
        store = Store(smoke_store, say=lines.append)
        run(["toy"], profile="smoke", compute_only=True, root=root, store=store)
    assert lines == ["toy: profile smoke, convnet-4 on shapes, seed 0"]
    place = root / "book/_build/profiles/smoke"
    folder = place / "results/toy/shapes-smoke"
    assert {path.name for path in folder.iterdir()} == {"result.json", "attacks.csv.gz"}
    assert stored_result(folder)["facts"]["images"] == 2
    assert stored_result(folder)["cost"]["requests"] > 0
    assert len(stored_digest(folder)) == 12
    assert (place / "README.md").read_text() == start(place / "results", book=False)
    assert (place / "book" / "intro.md").read_text() == start(place / "results", book=True)
    assert "Not measured yet." in (place / "README.md").read_text()
    assert (place / "book" / "audit.md").read_text().endswith("No audit has been run yet.\n")
    assert (place / "book" / "coverage.md").read_text().startswith("# Coverage")
    assert (root / "README.md").read_text() == readme  # the profile is not the book's
    assert not (root / "results").exists()
    assert not list((root / "book" / "results").iterdir())


def test_a_path_is_said_as_the_shell_finds_it(root):
    """From anywhere: what is below the working folder without that."""
    folder = root / "book" / "_build" / "profiles" / "smoke"
    assert shown(folder) == str(folder)
    assert shown(root / "elsewhere" / "tables") == "tables"
    assert shown(Path("tables")) == "tables"


def notebook(path, *sources):
    cells = [nbformat.v4.new_code_cell('profile = "smoke"', metadata={"tags": ["parameters"]})]
    cells += [nbformat.v4.new_code_cell(source) for source in sources]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), path)


@pytest.mark.jupyter
def test_a_page_runs_from_any_folder_and_a_failed_one_keeps_the_old_page(root, store, said):
    page, source = root / "book" / "results" / "page.ipynb", root / "notebooks" / "page.ipynb"
    notebook(source, "import os\nos.path.basename(os.getcwd()), os.environ['ATS_STORE'], profile")
    execute("page", {"profile": "laptop"}, root=root, store=store)
    assert said == [f"page: page in {page}"]  # whole, since the shell is elsewhere
    old = page.read_text()
    (output,) = nbformat.read(page, as_version=4).cells[-1].outputs
    shown = " ".join(output.data["text/plain"].split())
    assert shown == f"('notebooks', '{store.root}', 'laptop')"
    assert str(root) not in old.replace(str(store.root), "")

    notebook(source, "raise ValueError('no luck')")
    with pytest.raises(
        AtsError, match=r"page: a cell failed with ValueError: no luck; see /.*/page\.failed\.ipynb"
    ):
        execute("page", {}, root=root, store=store)
    assert page.read_text() == old
    assert (root / "book" / "results" / "page.failed.ipynb").exists()


@pytest.mark.jupyter
def test_a_page_whose_maker_was_killed_without_a_word_is_an_error_too(root, store):
    notebook(
        root / "notebooks" / "page.ipynb",
        f"import os, signal\nos.kill({MAKER}, signal.SIGKILL)",
    )
    with pytest.raises(AtsError, match="page: papermill ended with status -9"):
        execute("page", {}, root=root, store=store)
    assert not list((root / "book/results").iterdir())


@pytest.mark.jupyter
def test_an_interrupted_page_leaves_no_failed_one(root, store):
    code = f"import os, signal, time\nos.kill({MAKER}, signal.SIGINT)\ntime.sleep(60)"
    notebook(root / "notebooks" / "page.ipynb", "1 + 1", code)
    # What runs in the background ignores an interruption, and so do its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(AtsError, match="page: "):
            execute("page", {}, root=root, store=store)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not list((root / "book/results").iterdir())


def test_pages_are_executed_side_by_side_and_one_that_fails_ends_the_run():
    meeting = threading.Barrier(2, timeout=60)  # each waits for the other

    def first():
        meeting.wait()
        raise AtsError("first: no luck")

    def both():
        with executing(2) as begin:
            begin(first)
            begin(meeting.wait)

    with pytest.raises(AtsError, match="first: no luck"):
        both()


def test_a_book_is_built_and_one_with_a_warning_is_an_error(root, store, said):
    (root / "book/_config.yml").write_text("title: Small\nonly_build_toc_files: true\n")
    (root / "book/_toc.yml").write_text("format: jb-book\nroot: intro\n")
    (root / "book/intro.md").write_text("# Title\n\nText.\n")
    build_book(root, store)
    assert said == [f"the book: {root / 'book/_build/html/index.html'}"]
    assert "Text." in (root / "book/_build/html/intro.html").read_text()
    (root / "book/intro.md").write_text("# Title\n\n{doc}`nowhere`\n")
    with pytest.raises(AtsError, match="the book did not build"):
        build_book(root, store)


def test_workers_make_what_one_thread_makes_here(tmp_path, said):
    """Two processes and one: the same artifacts bit for bit, models before the attacks that need
    them.
    """
    import torch

    tiny = Sizes(steps=2, fraction=0.002)
    requests = [attack_request(tiny, policy) for policy in ("", "28")]
    away, here = Store(tmp_path / "away", say=said.append), Store(tmp_path / "here")
    compute(requests, away, "cpu", jobs=2)
    assert said[0] == "requests to compute: 2 model, 2 attack; 2 at once"
    assert said[-1].startswith("4 of 4 done: attack ")
    torch.set_num_threads(1)
    for request in requests:
        mine, theirs = (
            request.make(here, torch.device("cpu")),
            request.make(away, torch.device("cpu")),
        )
        assert all(torch.equal(mine[name], theirs[name]) for name in mine.tensors)
    said.clear()
    compute(requests, away, "cpu", jobs=2)
    assert said == []
