"""The book's sources: nothing missing, nothing run or fetched, and the answers that the results give."""

import re

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


def test_the_readme_shows_the_answers_that_the_results_give():
    text = (ROOT / "README.md").read_text()
    if text.count(MARK) != 2:
        pytest.skip("README.md has no marks for the answers yet")
    assert text.split(MARK)[1] == "\n" + answers(ROOT / "results"), "python -m atslib run --compute-only"


def test_the_book_shows_the_answers_that_the_results_give():
    path = BOOK / "answers.md"
    if not path.exists():
        pytest.skip("book/answers.md is not made yet: python -m atslib run")
    assert path.read_text() == answers(ROOT / "results", link="results/{}.ipynb")
