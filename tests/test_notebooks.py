"""Notebooks: clean as committed, whole at toy size, and published from their current
source.
"""

import ast
import gzip
import json
import re
import shutil
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from checks import refused

from atsbook.findings.result import stored_digest
from atsbook.prose import answer
from atsbook.report.runner import published as in_book
from atsbook.runs.study import annotated, check_parameters
from atslib.files import project_root

ROOT = project_root()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EXECUTED = [
    p for p in sorted((ROOT / "book" / "results").glob("*.ipynb")) if ".failed" not in p.name
]
EXECUTED = EXECUTED or [
    pytest.param(None, marks=pytest.mark.skip(reason="no page is executed yet"))
]
MACHINE = re.compile(r"""(?<![\w.:/])(/(work|home|root|tmp|Users)/|[A-Z]:\\\\Users)""")
MEGABYTES = 2.5


def read(path):
    return nbformat.read(path, as_version=4)


def code(path, *, injected=False):
    """The code cells, without those that papermill put in."""
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    return [c for c in cells if injected or "injected-parameters" not in c.metadata.get("tags", [])]


def name(path):
    return path.stem if path else "none"


def test_every_executed_page_is_in_the_book_and_has_a_notebook():
    assert {path.stem for path in EXECUTED if isinstance(path, Path)} == set(in_book(ROOT))


# --- as committed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_a_notebook_is_clean(path):
    cells = code(path)
    assert "parameters" in cells[0].metadata.get("tags")
    for number, cell in enumerate(cells, 1):
        assert not cell.outputs, f"cell {number}: strip outputs"
        assert cell.execution_count is None, f"cell {number}: strip execution counts"
        assert "parameters" not in cell.metadata.get("tags", []) or number == 1
    assert read(path).cells[0].source.startswith("# ")


DIRECTIVE = re.compile(r"^(?:```|:::)\{|\{(?:doc|ref|cite:[pt]|term)\}`", re.MULTILINE)
LINK = re.compile(r"\[([^]]*)\]\(((?:\.\./book/)?[\w-]+\.(?:ipynb|md))\)")


def title_of(file):
    """The first heading of a page, whether a notebook or Markdown."""
    text = read(file).cells[0].source if file.suffix == ".ipynb" else file.read_text()
    return re.search(r"^# (.*)$", text, re.MULTILINE)[1]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_in_jupyterlab_nothing_reads_as_raw_markup_and_links_name_their_pages(path):
    """JupyterLab shows directives of the book as they are written."""
    for cell in read(path).cells:
        assert not DIRECTIVE.search(cell.source), cell.source
        for words, target in LINK.findall(cell.source):
            file = path.parent / target
            assert file.exists(), target
            assert words == title_of(file), f"{target} is called {title_of(file)!r}"


def test_pages_that_attack_show_every_outcome():
    ways = ("compare.outcomes(", "outcomes=True")
    shown = {path.stem for path in NOTEBOOKS if any(way in path.read_text() for way in ways)}
    tables = {
        path.parent.parent.name: set(pd.read_csv(path, nrows=1))
        for path in (ROOT / "results").glob("*/*/attacks.csv.gz")
    }
    attacking = {
        page
        for page, columns in tables.items()
        if {"ssim", "psnr_original", "rank_original"} <= columns
    }
    # `regimes` has them of photographs whose pictures are kept and where network and image are told
    # apart; its other attacks are on claim 1's page.
    assert attacking <= shown


# The explorer is a picture itself.
OPENED = [path for path in EXECUTED if isinstance(path, Path) and path.stem != "explorer"]


def pasted(path):
    """What an executed page pastes by name, as text or HTML."""
    found = {}
    for cell in code(path):
        for output in cell.outputs:
            named = output.get("metadata", {}).get("scrapbook", {}).get("name")
            if named:
                kinds = {key.rpartition("/")[2]: value for key, value in output["data"].items()}
                found[named] = kinds
    return found


@pytest.mark.parametrize("path", OPENED, ids=name)
def test_a_page_opens_with_an_answer_a_picture_its_data_and_a_table(path):
    head = read(path).cells[0].source
    assert head.splitlines()[0].endswith("?"), "a page's title is a question"
    for wanted in ("<!-- glue:figure picture", "<!-- glue:any data -->"):
        assert wanted in head
    there = pasted(path)
    assert answer(head)
    assert "nan" not in answer(head).split()
    assert "png" in there["picture"] or there["picture"]["html"].startswith("<svg ")
    assert 'download="' in there["data"]["html"]
    if "<!-- glue:any numbers -->" in head:
        assert "<tr" in there["numbers"]["html"].split("<tbody>")[1]
    else:
        assert "\n|---|" in head  # written by people, with numbers in it


@pytest.mark.parametrize("path", OPENED, ids=name)
def test_under_every_figure_is_its_data(path):
    for number, cell in enumerate(code(path)):
        if "on_top(" in cell.source:
            continue  # the first screen, see above
        shown = ""
        for output in cell.outputs:
            data = output.get("data", {})
            shown += "F" if "image/png" in data else ""
            shown += "D" if 'class="data-link"' in str(data.get("text/html")) else ""
        assert "FF" not in f"{shown}F", f"cell {number}: a figure without its data"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_a_notebook_names_no_machine(path):
    assert not MACHINE.search(path.read_text())
    assert path.read_text().endswith("}\n")


def plain(variables):
    """Without what Python itself puts in a namespace, as it does with annotations."""
    return {name: value for name, value in variables.items() if not name.startswith("__")}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_a_notebooks_parameters_are_plain_values_and_the_first_is_the_profile(path):
    variables = {}
    exec(code(path)[0].source, {}, variables)
    variables = plain(variables)
    assert next(iter(variables)) == "profile"
    assert variables.pop("profile") == "smoke"
    assert set(variables.values()) == {None}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_a_notebook_uses_each_of_its_parameters(path):
    first, *rest = code(path)
    variables = {}
    exec(first.source, {}, variables)
    read_in_it = {
        node.id
        for cell in rest
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    assert set(plain(variables)) <= read_in_it


def parameters(path):
    """A notebook's parameters with their kinds, as its first cell has them."""
    variables = {}
    exec(code(path)[0].source, variables)
    return annotated(variables), variables


def check(path, variables):
    """What a notebook does first with its parameters."""
    calls = [
        node
        for node in ast.walk(ast.parse(code(path)[1].source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "check_parameters"
    ]
    assert len(calls) == 1
    exec(ast.unparse(calls[0]), {"check_parameters": check_parameters} | variables)


OTHER = {int: 2, float: 0.5, str: "shapes-grey"}
BEYOND = {int: 10**9, float: 1.5}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_a_number_beyond_what_a_page_has_is_one_sentence_before_any_work(path):
    kinds, variables = parameters(path)
    for parameter, kind in kinds.items():
        if parameter in ("profile", "model"):
            continue
        check(path, variables | {parameter: OTHER[kind]})
        if parameter != "seed" and kind in BEYOND:
            with refused(f"parameter {parameter}={BEYOND[kind]} must be at most "):
                check(path, variables | {parameter: BEYOND[kind]})


@pytest.mark.parametrize(
    ("page", "most"),
    [
        ("claim1_privacy", {"smoke": 4, "laptop": 100, "full": 100}),
        ("claim2_generality", {"smoke": 4, "laptop": 100, "full": 100}),
        ("claim2_search", {"smoke": 4, "laptop": 100, "full": 100}),
        ("claim3_transfer", {"smoke": 4, "laptop": 100, "full": 100}),
        ("claim5_semantics", {"smoke": 4, "laptop": 48, "full": 48}),
        ("claim7_correlation", {"smoke": 4, "laptop": 100, "full": 100}),
        ("ext5_adaptive", {"smoke": 2, "laptop": 100, "full": 100}),
    ],
)
def test_a_page_that_judges_certain_photographs_takes_no_more_than_these(page, most):
    path = ROOT / "notebooks" / f"{page}.ipynb"
    _, variables = parameters(path)
    for profile, number in most.items():
        check(path, variables | {"profile": profile, "images": number})
        with refused(
            f"parameter images={number + 1} must be at most {number}", f"profile {profile}"
        ):
            check(path, variables | {"profile": profile, "images": number + 1})


# --- at toy size --------------------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Executes a copy of a notebook in an empty folder, with relative paths: papermill records
    them.
    """

    def execute(path, **parameters):
        import papermill

        (tmp_path / "notebooks").mkdir()
        shutil.copy(path, tmp_path / "notebooks")
        source = f"notebooks/{path.name}"
        papermill.execute_notebook(
            source, "out.ipynb", parameters, cwd="notebooks", progress_bar=False
        )

    monkeypatch.chdir(tmp_path)
    return execute


# Three that are quick at this size; `pytest --nbval` runs the others.
SMOKE = [
    ROOT / "notebooks" / f"{page}.ipynb" for page in ("steps", "regimes", "ext4_hidden_details")
]


@pytest.mark.jupyter
@pytest.mark.parametrize("path", SMOKE, ids=name)
def test_a_notebook_runs_alone_at_smoke(path, alone, smoke_store, tmp_path, monkeypatch):
    monkeypatch.setenv("ATS_STORE", str(smoke_store))
    alone(path, profile="smoke")
    outputs = [
        output for cell in code(tmp_path / "out.ipynb", injected=True) for output in cell.outputs
    ]
    assert not [o for o in outputs if o.output_type == "error"]
    said = "".join(o.text for o in outputs if o.get("name") == "stderr")
    others = [line for line in said.splitlines() if not line.startswith("study: ")]
    assert len(others) == 1, others  # it says what is computed, and no more,
    assert "toy run" in others[0]  # but what this is
    text = json.dumps(outputs)
    assert "Profile <b>smoke</b>: shapes" in text
    assert "A toy run on drawn images" in text
    assert "image/png" in text
    assert list(smoke_store.glob("*/*.safetensors"))
    assert faults(tmp_path / "out.ipynb", path, results=None) == []


RUNS = [
    pytest.param(path, parameter, OTHER[kind], id=f"{path.stem}-{parameter}")
    for path in NOTEBOOKS
    for parameter, kind in parameters(path)[0].items()
    if parameter not in ("profile", "model")
]


@pytest.mark.jupyter
@pytest.mark.hours
@pytest.mark.parametrize(("path", "parameter", "value"), RUNS)
def test_a_page_runs_at_smoke_with_each_parameter_at_another_value(
    path, parameter, value, alone, smoke_store, tmp_path, monkeypatch
):
    monkeypatch.setenv("ATS_STORE", str(smoke_store))
    alone(path, profile="smoke", **{parameter: value})
    outputs = [o for cell in code(tmp_path / "out.ipynb", injected=True) for o in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error"]


@pytest.mark.jupyter
@pytest.mark.parametrize("path", NOTEBOOKS[:1], ids=name)
def test_a_misspelt_parameter_stops_with_the_valid_ones(path, alone, tmp_path, monkeypatch):
    import papermill

    monkeypatch.setenv("ATS_STORE", str(tmp_path / "store"))
    with pytest.raises(papermill.PapermillExecutionError) as error:
        alone(path, profle="smoke")
    assert error.value.ename == "AtsError"
    assert re.match(
        r"unknown parameter profle; the parameters .*are profile, dataset, ",
        error.value.evalue,
    )
    assert not (tmp_path / "store").exists()
    shown = json.dumps([cell.outputs for cell in code(tmp_path / "out.ipynb", injected=True)])
    assert "settings.py" not in shown  # the sentence, not our call stack


# --- as published -------------------------------------------------------------------------------------------


def faults(page, source, results):
    """What is wrong with an executed page: each fault in words."""
    text, wrong = page.read_text(), []
    if [cell.source for cell in code(page)] != [cell.source for cell in code(source)]:
        wrong.append("it ran another source")
    if read(page).metadata.get("papermill", {}).get("exception") is not None:
        wrong.append("its run failed")
    if machine := MACHINE.search(text):
        wrong.append(f"it names a machine: {text[machine.start() : machine.start() + 40]}")
    if len(text.encode()) > MEGABYTES * 1e6:
        wrong.append(f"it is larger than {MEGABYTES} MB")
    outputs = json.dumps([cell.outputs for cell in code(page, injected=True)])
    banner = re.search(r"Profile <b>(\w+)</b>: ([\w-]+),.*? tables ([0-9a-f]{12})\.", outputs)
    if not banner:
        wrong.append("it has no banner")
    elif results is not None:
        profile, dataset, digest = banner.groups()
        if stored_digest(results / source.stem / f"{dataset}-{profile}") != digest:
            wrong.append(f"its tables are not those of results/{source.stem}/{dataset}-{profile}")
    return wrong


@pytest.mark.parametrize("page", EXECUTED, ids=name)
def test_a_published_page_ran_the_current_source_on_the_stored_tables(page):
    wrong = faults(page, ROOT / "notebooks" / page.name, ROOT / "results")
    assert not wrong, "run it again: python -m atsbook run " + page.stem


def published(folder, *, source="1 + 1", text="", digest=None, exception=None):
    """A made-up notebook, its executed page and its results."""
    results = folder / "results"
    tables = results / "page" / "shapes-smoke"
    tables.mkdir(parents=True)
    (tables / "attacks.csv.gz").write_bytes(gzip.compress(b"policy,psnr\nnone,12\n"))
    banner = f"<div>Profile <b>smoke</b>: shapes, convnet-4; tables {digest or stored_digest(tables)}. {text}</div>"
    output = nbformat.v4.new_output("display_data", {"text/html": banner})
    injected = nbformat.v4.new_code_cell(
        "profile = 'smoke'", metadata={"tags": ["injected-parameters"]}
    )
    cell = nbformat.v4.new_code_cell(source, outputs=[output])
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")])
    page = nbformat.v4.new_notebook(
        cells=[injected, cell], metadata={"papermill": {"exception": exception}}
    )
    paths = folder / "executed.ipynb", folder / "page.ipynb"
    for made, path in zip((page, notebook), paths, strict=True):
        nbformat.write(made, path)
    return *paths, results


def test_a_sound_page_has_no_fault(tmp_path):
    assert faults(*published(tmp_path)) == []


@pytest.mark.parametrize(
    ("how", "fault"),
    [
        ({"source": "1 + 2"}, "it ran another source"),
        ({"exception": True}, "its run failed"),
        ({"text": "see /home/me/x"}, "it names a machine: /home/me/x"),
        ({"text": 'File "/tmp/x.py"'}, "it names a machine: /tmp/x.py"),
        ({"text": "x" * 3_000_000}, "it is larger than 2.5 MB"),
        ({"digest": "0" * 12}, "its tables are not those of results/page/shapes-smoke"),
        ({"digest": "none"}, "it has no banner"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_fault_of_a_page_is_found(tmp_path, how, fault):
    (wrong,) = faults(*published(tmp_path, **how))
    assert wrong.startswith(fault)


def test_a_link_is_no_machine_path():
    assert not MACHINE.search("https://example.org/home/x ../work/x book/tmp/x")
    assert MACHINE.search('"/root/.cache"')
