"""Cells, tables and facts of a page: a change is found, and what another machine adds is none."""

import gzip
import json
import shutil
import zipfile
from types import SimpleNamespace

import nbformat
import pandas as pd
import pytest
import torch
from made_pages import asked_by, write_page

from atsbook.__main__ import main
from atsbook.evidence.archive import Archive
from atsbook.evidence.differences import (
    folder_differences,
    same_text,
    source_differences,
    table_difference,
    write_changed,
)
from atsbook.findings.result import Result, Verdict
from atsbook.page import WRITTEN
from atsbook.page import made as made_how
from atsbook.report import making, notebooks, runner
from atsbook.store import Store
from atslib.files import project_root


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("gain 12.1 dB", "gain 12.2 dB"),
        ("r = −0.28 [−0.04, 0.52]", "r = −0.29 [−0.04, 0.51]"),
        ("1.0e-05", "1.1e-05"),
        ("12,345.67", "12,345.66"),
    ],
)
def test_the_last_digit_of_a_fraction_is_no_change(one, other):
    assert same_text(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("gain 12.1 dB", "gain 12.3 dB"),
        ("gain 12.1 dB", "gain -12.1 dB"),
        ("3 of 16 cells", "4 of 16 cells"),
        ("57 %", "58 %"),
        ("1,234 images", "1,235 images"),
        ("policy 3-1-7", "policy 3-1-8"),
        ("reproduced", "not reproduced"),
        ("lower 1.0", "higher 1.0"),
        ("", "1"),
    ],
)
def test_a_count_a_word_or_another_number_is_a_change(one, other):
    assert not same_text(one, other)


def test_tables_are_compared_by_six_digits_and_a_difference_names_row_and_column(tmp_path):
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_text("policy,psnr,n\nnone,12.3456,3\n3-1-7,nan,4\n")
    new.write_text("policy,psnr,n\nnone,12.3457,3\n3-1-7,nan,4\n")
    assert table_difference(old, new) is None
    one = "; 1 of 2 rows differ"
    for text, fault in {
        "policy,psnr,n\nnone,12.4456,3\n3-1-7,nan,4\n": "row 1, psnr: 12.3456 is committed, 12.4456 is made now"
        + one
        + ", at most by 0.1",
        "policy,psnr,n\nnone,12.3456,3\n3-1-7,1,4\n": "row 2, psnr: nan is committed, 1.0 is made now"
        + one,
        "policy,psnr,n\nnone,12.3456,3\n3-1-7,nan,5\n": "row 2, n: 4 is committed, 5 is made now"
        + one,
        "policy,psnr,n\nnone,12.3456,3\nhybrid,nan,4\n": "row 2, policy: 3-1-7 is committed, hybrid is made now"
        + one,
        "policy,psnr,n\nnone,12.3456,3\n": "it had 2 rows and has 1",
        "policy,psnr\nnone,12.3456\n3-1-7,nan\n": "its columns were policy, psnr, n and are policy, psnr",
    }.items():
        new.write_text(text)
        assert table_difference(old, new) == fault


def test_files_that_are_new_gone_or_changed_are_named(tmp_path):
    for name in ("old", "new"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(b"a\n1\n"))
        (folder / "sheet.webp").write_text(name)
        # The cost is in seconds, of which no page speaks.
        whole = {"verdict": {"status": name}, "cost": name}
        (folder / "result.json").write_text(json.dumps(whole))
    faults = folder_differences(tmp_path / "old", tmp_path / "new")
    assert [fault.split(":")[0] for fault in faults] == [
        "new.csv.gz is made now and not committed",
        "old.csv.gz is no longer made",
        "result.json",
        "sheet.webp has changed",
    ]
    assert '"status": "old"' in faults[-2].split("made now")[0]
    assert '"status": "new"' in faults[-2].split("made now")[1]
    assert "cost" not in faults[-2]


def test_exported_numbers_may_differ_in_last_digits_of_another_processor(tmp_path):
    folders = [tmp_path / name for name in ("old", "new")]

    def differences(*values):
        for folder, value in zip(folders, values, strict=True):
            folder.mkdir(exist_ok=True)
            (folder / "numbers.json").write_text(json.dumps({"found": [{"none": value}]}))
        return folder_differences(*folders)

    assert differences(0.123456789012, 0.123456912345) == []
    assert differences(0.5, 0.5004) == [
        "numbers.json, found: none: 0.5 is committed, 0.5004 is made now"
    ]
    assert differences(100, 101) == ["numbers.json, found: none: 100 is committed, 101 is made now"]
    assert differences(0.5, None) == [
        "numbers.json, found: none: 0.5 is committed, None is made now"
    ]
    assert differences(float("nan"), float("nan")) == []


def page(path, *, source="show()", time="1"):
    """An executed notebook of one cell, with papermill's times."""
    outputs = [nbformat.v4.new_output("display_data", {"text/html": f"gain {time} dB"})]
    metadata = {
        "tags": [],
        "papermill": {"duration": time},
        "execution": {"iopub.status.busy": time},
    }
    injected = nbformat.v4.new_code_cell(
        f"time = {time}", metadata={"tags": ["injected-parameters"]}
    )
    cell = nbformat.v4.new_code_cell(source, outputs=outputs, metadata=metadata)
    nbformat.write(
        nbformat.v4.new_notebook(
            cells=[injected, cell], metadata={"papermill": {"end_time": time}}
        ),
        path,
    )
    return path


def test_pages_are_compared_by_their_cells_and_a_difference_quotes_both(tmp_path):
    old = page(tmp_path / "old.ipynb")
    new = tmp_path / "new.ipynb"
    assert source_differences(old, page(new, time="2")) == []
    (fault,) = source_differences(old, page(new, source="show(1)"))
    assert fault == "cell 1: committed “show()”, made now “show(1)”"
    nbformat.write(nbformat.v4.new_notebook(), new)
    assert source_differences(old, new) == ["1 cells are committed, 0 are made now"]


def test_a_page_that_is_as_it_was_stays_unless_its_cells_changed(tmp_path, store, said):
    committed = page(tmp_path / "committed.ipynb")
    before = committed.read_text()
    for source, as_it_was, stays in [
        ("show()", True, True),
        ("show(1)", True, False),
        ("show()", False, False),
    ]:
        committed.write_text(before)
        made = page(tmp_path / "made.ipynb", source=source, time="2")
        making.publish(made, committed, "page", store, as_it_was=as_it_was)
        assert (committed.read_text() == before) == stays
        assert not made.exists()
        assert said[-1].startswith("page: page as it was in " if stays else "page: page in ")


def test_what_is_another_at_each_run_is_taken_out_of_a_page(tmp_path):
    pages = [page(tmp_path / f"{time}.ipynb", time=time) for time in ("1", "2")]
    for made in pages:
        making._finish(made)
    first, second = (nbformat.read(made, as_version=4) for made in pages)
    assert (
        first.metadata == second.metadata == {"papermill": {"exception": None, "parameters": None}}
    )
    assert first.cells[1].metadata == second.cells[1].metadata == {"tags": []}
    assert first.cells[0].id == second.cells[0].id


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """An executed page with its evidence and its tables."""
    place = tmp_path_factory.mktemp("executed")
    (place / "notebooks").mkdir()
    (place / "pyproject.toml").touch()
    write_page(place, "steps")
    few = Store(tmp_path_factory.mktemp("few"))
    for request in asked_by():
        request.make(few, torch.device("cpu"))
    Archive(place / "results").write(few, embedded=True)
    notebooks.execute("steps", {"profile": "smoke"}, root=place, store=few)
    return place


@pytest.fixture
def published(root, executed, monkeypatch):
    """A project with that page."""
    shutil.copytree(executed, root, dirs_exist_ok=True)
    (root / "book/_toc.yml").write_text("- file: results/steps\n")
    monkeypatch.setattr(runner, "BOOK_PROFILE", "smoke")
    monkeypatch.setattr(runner, "build_book", lambda root, store: None)
    making.publish_answers(root)
    return root


@pytest.mark.notebook
@pytest.mark.jupyter
def test_a_page_that_its_code_still_makes_passes_and_nothing_is_written(published, store):
    before = {file: file.read_bytes() for file in published.rglob("*") if file.is_file()}
    assert runner.check(jobs=1, root=published, store=store) == []
    assert (published / "book/_build/check/book/results/steps.ipynb").exists()
    for file, data in before.items():
        assert file.read_bytes() == data, file


@pytest.mark.notebook
@pytest.mark.jupyter
def test_a_verdict_or_a_table_that_has_changed_since_a_page_was_made_fails_and_names_both(
    published, store, capsys
):
    write_page(published, "steps", here="many")
    (file,) = published.glob("results/steps/*/attacks.csv.gz")
    table = pd.read_csv(file)
    table.loc[1, "psnr"] += 1
    table.to_csv(file, index=False)
    assert main(["report", "--check", "--jobs", "1"]) == 1
    faults = capsys.readouterr().out.splitlines()
    assert len(faults) == 3
    page, *results = sorted(faults, key=lambda fault: "cell" not in fault)
    assert page.startswith("steps, cell 2: committed “")
    assert "many" in page.split("made now")[1]
    table, verdict = sorted(results)
    assert table.startswith("steps, attacks.csv.gz: row 2, psnr: ")
    assert verdict.startswith("steps, result.json: committed “")


@pytest.mark.notebook
@pytest.mark.jupyter
def test_tables_are_left_as_they_are_where_only_last_digits_differ(published, store):
    (file,) = published.glob("results/steps/*/attacks.csv.gz")
    table = pd.read_csv(file)
    whole = gzip.decompress(file.read_bytes())
    table["psnr"] *= 1 + 1e-5
    table.to_csv(file, index=False)
    older = file.read_bytes()
    how = {"seed": 3, "minutes": 0.01, "jobs": 1, "write": True, "root": published}
    assert runner.report(**how, store=store) == []
    assert file.read_bytes() == older
    table["psnr"] += 1
    table.to_csv(file, index=False)
    runner.report(**how, store=store)
    assert gzip.decompress(file.read_bytes()) == whole


def test_a_page_names_the_tables_that_are_kept(tmp_path, monkeypatch):
    facts = {"dataset": "shapes", "profile": "smoke"}
    here = dict.fromkeys(("made", "made_first", "seed", "device", "torch", "python"), "") | facts
    study = SimpleNamespace(origin=lambda requests: here)

    def result(psnr):
        tables = {"attacks": pd.DataFrame({"psnr": [psnr]})}
        return Result("steps", tables, facts, Verdict("partly", ""), {})

    kept, again = result(12.5), result(12.5 * (1 + 1e-5))
    kept.write(tmp_path)
    assert write_changed(again, tmp_path)[1] is False
    assert made_how(study, {}, again).endswith(f"tables {again.digest}.")  # of a run for oneself
    monkeypatch.setenv(WRITTEN, str(tmp_path))
    assert made_how(study, {}, again).endswith(f"tables {kept.digest}.")
    assert kept.digest != again.digest


@pytest.mark.notebook
@pytest.mark.jupyter
def test_a_report_writes_beside_what_is_committed_and_says_what_differs_and_by_how_much(
    published, store
):
    how = {"seed": 3, "minutes": 0.01, "jobs": 1, "root": published, "store": store}
    (file,) = published.glob("results/steps/*/attacks.csv.gz")
    table = pd.read_csv(file)
    table["psnr"] += 4e-5 * table["psnr"]  # as another processor rounds
    table.to_csv(file, index=False)

    def files():
        built = published / "book/_build"
        there = (path for path in published.rglob("*") if built not in path.parents)
        return {path: path.read_bytes() for path in there if path.is_file()}

    before = files()
    assert runner.report(**how) == []
    table.loc[1, "psnr"] += 0.25
    table.to_csv(file, index=False)
    readme = published / "README.md"
    readme.write_text(readme.read_text().replace("not measured", "measured", 1))
    before = files()
    page, text = runner.report(**how)
    assert page.startswith("steps, attacks.csv.gz: row 2, psnr: ")
    assert page.endswith(f"; 1 of {len(table)} rows differ, at most by 0.25")
    assert text.startswith("README.md: committed “")
    assert files() == before


def test_texts_are_made_beside_the_committed_ones_from_the_evidence_where_it_lies(tmp_path):
    root = project_root()
    shutil.copytree(root / "notebooks", tmp_path / "notebooks")
    runner._complete(root, tmp_path)  # without the tables of the evidence
    making.publish_answers(tmp_path, root / "results")
    assert runner._text_differences(root, tmp_path) == []


def test_zips_differ_by_what_is_in_them(tmp_path):
    folders = [tmp_path / name for name in ("old", "new")]

    def differences(**files):
        for folder, number in zip(folders, files.pop("numbers"), strict=True):
            folder.mkdir(exist_ok=True)
            with zipfile.ZipFile(folder / "a.zip", "w") as whole:
                whole.writestr("index.json", f'{{"psnr": {number}}}')
                whole.writestr("a.webp", files.get(folder.name, b"same"))
        return folder_differences(*folders)

    assert differences(numbers=(1.234, 1.235)) == []  # the last digit of another machine
    assert differences(numbers=(1.234, 1.244)) == ["a.zip, index.json has changed"]
    assert differences(numbers=(1, 1), new=b"other") == ["a.zip, a.webp has changed"]
