"""The book's sources: nothing missing, nothing run or fetched, and the answers that the results give."""

import re
import shlex

import pytest
import yaml

from atslib.report.book.answers import answers
from atslib.store import project_root

ROOT = project_root()
BOOK = ROOT / "book"
MARK = "<!-- answers -->"
TOC = yaml.safe_load((BOOK / "_toc.yml").read_text())
CONFIG = yaml.safe_load((BOOK / "_config.yml").read_text())


def listed(node):
    """Every file that the table of contents names."""
    if isinstance(node, list):
        return [file for each in node for file in listed(each)]
    if isinstance(node, dict):
        own = [value for key, value in node.items() if key in ("root", "file")]
        return own + [file for value in node.values() if isinstance(value, list) for file in listed(value)]
    return []


@pytest.mark.parametrize("name", listed(TOC))
def test_every_page_of_the_contents_is_there(name):
    if name.startswith("results/"):
        assert (ROOT / "notebooks" / f"{name.removeprefix('results/')}.ipynb").exists()
        if not (BOOK / f"{name}.ipynb").exists():
            pytest.skip(f"{name} is not executed yet: python -m atslib run {name.removeprefix('results/')}")
        return
    assert [path for path in BOOK.glob(f"{name}.*") if path.suffix in (".md", ".ipynb")]


def test_every_executed_page_is_in_the_contents():
    pages = {path.stem for path in (BOOK / "results").glob("*.ipynb") if ".failed" not in path.name}
    assert {f"results/{page}" for page in pages} <= set(listed(TOC))


def test_building_the_book_runs_nothing():
    assert CONFIG["execute"]["execute_notebooks"] == "off"
    assert CONFIG["only_build_toc_files"] is True


def test_no_folder_is_named_static():
    """Sphinx book theme would load every script of a `_static` folder on every page."""
    assert not [path for path in BOOK.rglob("_static") if "_build" not in path.relative_to(BOOK).parts]


FETCHES = re.compile(r"""@import\b|url\(\s*["']?(https?:)?//|<(script|link|img|iframe)\b[^>]*(https?:)?//""", re.I)


def test_the_books_own_styles_and_pictures_fetch_nothing():
    files = [path for path in (BOOK / "assets").rglob("*") if path.suffix in (".css", ".svg", ".html")]
    assert files
    for path in files:
        assert not FETCHES.search(path.read_text()), path.name


@pytest.mark.parametrize(
    "text",
    [
        "@import 'a.css';",
        "a { background: url( 'https://x.org/a.png') }",
        "a { src: url(//x.org/a) }",
        '<script defer src="https://x.org/a.js">',
    ],
)
def test_a_fetch_is_found(text):
    assert FETCHES.search(text)


def test_scripts_and_styles_that_sphinx_adds_are_files_of_the_book():
    sphinx = CONFIG["sphinx"]["config"]
    added = [*sphinx.get("html_css_files", []), *sphinx.get("html_js_files", []), sphinx["mathjax_path"]]
    folders = [BOOK / folder for folder in sphinx["html_static_path"]]
    for name in added:
        assert any((folder / name).is_file() for folder in folders), name


README = (ROOT / "README.md").read_text()


def test_the_readmes_example_runs_as_printed_without_any_file(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATS_DATA", str(tmp_path / "empty"))
    (code,) = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
    exec(code, {"__name__": "snippet"})
    said = capfd.readouterr()
    assert re.fullmatch(r"none tensor\(\[.+\]\)\n3-1-7\+43-18-18 tensor\(\[.+\]\)\n", said.out)
    assert "step/s" in said.err  # a bar


def test_commands_of_the_readme_need_no_activated_environment_and_name_what_is_there():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    blocks = re.findall(r"^```sh\n(.*?)^```$", README, re.M | re.S)
    commands = [line for block in blocks for line in block.splitlines()] + re.findall(r"`(\.venv/bin/.+?)`", README)
    assert len(commands) > 10
    for words in (shlex.split(command, comments=True) for command in commands):
        if words[0] == "make":
            assert words[1] in targets
        else:
            assert words[:3] == ["python", "-m", "venv"] or words[0].startswith(".venv/bin/")
        for file in (word for word in words if word.startswith("notebooks/") or word == "requirements.txt"):
            assert (ROOT / file).exists()


@pytest.mark.parametrize("name", ["README.md", *(f"book/{path.name}" for path in sorted(BOOK.glob("*.md")))])
def test_files_of_this_project_that_a_text_names_are_there(name):
    text = (ROOT / name).read_text()
    named = re.findall(r"`((?:atslib|tests|notebooks|benchmarks|results)/[\w./]+)`", text)
    made = ("atslib/report/pages/ext9_clipping.py", "notebooks/ext9_clipping.ipynb", "results/units/")  # here or later
    assert not [path for path in named if path not in made and not (ROOT / path).exists()]
    folder = (ROOT / name).parent
    linked = re.findall(r"\]\((?!https?:|#)([^)#]+)\)", text)
    assert not [path for path in linked if not (folder / path).exists()]


def test_the_readme_shows_the_answers_that_the_results_give():
    if README.count(MARK) != 2:
        pytest.skip("README.md has no marks for the answers yet")
    assert README.split(MARK)[1] == "\n" + answers(ROOT / "results"), "python -m atslib run --compute-only"


def test_the_book_shows_the_answers_that_the_results_give():
    path = BOOK / "answers.md"
    if not path.exists():
        pytest.skip("book/answers.md is not made yet: python -m atslib run")
    assert path.read_text() == answers(ROOT / "results", link="results/{}.ipynb")
