"""What a page shows: a change that a reader sees is found, and what another machine adds is none."""

import base64
import gzip
import io
import json
import shutil
import zipfile

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
from made_pages import asked_by, write_page
from PIL import Image

from atsbook.__main__ import main
from atsbook.report import making, notebooks, runner
from atsbook.runs.archive import Archive
from atsbook.runs.shown import (
    folder_differences,
    page_differences,
    same_picture,
    same_text,
    table_difference,
)
from atsbook.runs.store import Store


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("gain 12.1 dB", "gain 12.2 dB"),
        ("r = −0.28 [−0.04, 0.52]", "r = −0.29 [−0.04, 0.51]"),
        ("1.0e-05", "1.1e-05"),
        ("12,345.67", "12,345.66"),
        ("tables faa5d30cf95e.", "tables 0123456789ab."),
        ('<img src="data:image/png;base64,iVBORw0K">', '<img src="data:image/png;base64,AAAA/+=">'),
        ("<function at 0x7f00>", "<function at 0x7fff>"),
        ('<td id="T_975e9_row0_col1">3</td>', '<td id="T_62a18_row0_col1">3</td>'),
    ],
)
def test_the_last_digit_of_a_fraction_and_what_no_reader_sees_are_no_change(one, other):
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


def link(table: str) -> str:
    return f'<a href="data:text/csv;base64,{base64.b64encode(table.encode()).decode()}">Data</a>'


def test_a_table_that_a_link_holds_is_compared_by_its_numbers():
    table = "policy,image,bits\nnone,63,0.732555\n3-1-7,63,0.534811\n"
    assert same_text(link(table), link(table.replace("0.732555", "0.732553")))
    for changed in (
        table.replace("0.732555", "0.752555"),
        table.replace("none,63", "none,64"),
        table.replace("bits", "gain"),
        table + "3-1-7,64,0.5\n",
    ):
        assert not same_text(link(table), link(changed))
    assert not same_text(link(table), "Data")


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


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return base64.b64encode(buffer.getvalue()).decode()


def test_pictures_are_compared_by_their_pixels():
    pixels = np.full((50, 60, 3), 200, np.uint8)
    edge, bar, lower = pixels.copy(), pixels.copy(), pixels[:-1]
    edge[0, :3] = 90  # as where a letter is drawn a little otherwise
    bar[10:20, 10:20] = 90
    assert same_picture(png(pixels), png(pixels - 5))
    assert same_picture(png(pixels), png(edge))
    assert not same_picture(png(pixels), png(bar))
    assert not same_picture(png(pixels), png(lower))


def page(path, *, source="show()", text="gain 12.1 dB", picture=None, tags=(), time="1"):
    """An executed notebook of one cell, with papermill's times."""
    outputs = [
        nbformat.v4.new_output(
            "display_data", {"text/html": text, "image/png": picture or png(BLANK)}
        )
    ]
    metadata = {
        "tags": list(tags),
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


BLANK = np.full((40, 40, 3), 255, np.uint8)


def test_a_page_is_the_same_but_for_times_and_a_difference_quotes_both_texts(tmp_path):
    old = page(tmp_path / "old.ipynb")
    new = tmp_path / "new.ipynb"
    assert page_differences(old, page(new, time="2", text="gain 12.2 dB"), figures=True) == []
    (fault,) = page_differences(old, page(new, text="gain 13.1 dB"), figures=True)
    assert fault == "cell 1: committed “gain 12.1 dB”, made now “gain 13.1 dB”"
    (fault,) = page_differences(old, page(new, source="show(1)"), figures=True)
    assert fault.startswith("cell 1, its source: committed “show()”")
    (fault,) = page_differences(old, page(new, tags=["hide-input"]), figures=True)
    assert fault.startswith("cell 1, its layout: ")
    dark = page(new, picture=png(BLANK // 2))
    assert page_differences(old, dark, figures=True) == ["cell 1: its figure has changed"]
    assert page_differences(old, dark, figures=False) == []


def test_what_is_printed_may_come_in_pieces(tmp_path):
    whole, pieces = (page(tmp_path / f"{name}.ipynb") for name in ("whole", "pieces"))
    for path, printed in ((whole, ["one\ntwo\n"]), (pieces, ["one\n", "two", "\n"])):
        notebook = nbformat.read(path, as_version=4)
        streams = [nbformat.v4.new_output("stream", text=text) for text in printed]
        notebook.cells[1].outputs = [*streams, *notebook.cells[1].outputs]
        nbformat.write(notebook, path)
    assert page_differences(whole, pieces, figures=True) == []
    notebook.cells[1].outputs.insert(1, nbformat.v4.new_output("stream", name="stderr", text="x"))
    nbformat.write(notebook, pieces)
    assert page_differences(whole, pieces, figures=True)


def test_what_is_another_at_each_run_is_taken_out_of_a_page(tmp_path):
    pages = [page(tmp_path / f"{time}.ipynb", time=time) for time in ("1", "2")]
    for made in pages:
        making._strip(made)
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
    for unit in asked_by():
        unit.make(few, torch.device("cpu"))
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


@pytest.mark.jupyter
def test_a_page_that_its_code_still_makes_passes_and_nothing_is_written(published, store):
    before = {file: file.read_bytes() for file in published.rglob("*") if file.is_file()}
    assert runner.check(jobs=1, root=published, store=store) == []
    assert (published / "book/_build/check/book/results/steps.ipynb").exists()
    for file, data in before.items():
        assert file.read_bytes() == data, file


@pytest.mark.jupyter
def test_a_rule_or_a_table_that_has_changed_since_a_page_was_made_fails_and_names_both(
    published, store, capsys
):
    write_page(published, "steps", rule="Another rule.")
    (file,) = published.glob("results/steps/*/attacks.csv.gz")
    table = pd.read_csv(file)
    table.loc[1, "psnr"] += 1
    table.to_csv(file, index=False)
    assert main(["report", "--check", "--jobs", "1"]) == 1
    faults = capsys.readouterr().out.splitlines()
    assert len(faults) == 3
    page, *results = sorted(faults, key=lambda fault: "cell" not in fault)
    assert page.startswith("steps, cell 2, its source: committed “")
    assert "Another rule." in page.split("made now")[1]
    table, verdict = sorted(results)
    assert table.startswith("steps, attacks.csv.gz: row 2, psnr: ")
    assert verdict.startswith("steps, result.json: committed “")


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
