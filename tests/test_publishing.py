"""The published book: what it says of where it lies, its buttons, and its pages as Colab opens them."""

import json
import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml
from docutils import nodes
from extensions import load_extension

from atslib.files import project_root

pytestmark = pytest.mark.notebook

ROOT = project_root()
BOOK = ROOT / "book"


def head(address):
    """What a page says of itself in its head, in a book at this address."""
    config = SimpleNamespace(
        html_baseurl=address, html_title="Book", author="A & B", copyright="2026", root_doc="intro"
    )
    builder = SimpleNamespace(get_target_uri=lambda page: f"{page}.html")
    picture = '<p>An "answer".</p><img alt="" src="../_images/a.png" />'
    context = {"title": "Is <em>it</em>?", "body": f"<h1>T</h1>{picture}"}
    app = SimpleNamespace(config=config, builder=builder)
    load_extension("publishing").describe(
        app, "results/x", "page.html", context, nodes.document(None, None)
    )
    return dict(
        re.findall(r'<meta (?:name|property)="([\w:]+)" content="(.*?)" />', context["metatags"])
    )


def test_a_page_can_be_cited_and_shared_and_knows_an_address_only_if_it_is_told_one():
    own = head("")
    assert own["citation_title"] == "Is it? (Book)"
    assert own["citation_author"] == "A &amp; B"
    assert own["og:description"] == "An &quot;answer&quot;."
    assert not [text for text in own.values() if "//" in text]
    online = head("https://x.org/book/")
    assert online["og:url"] == "https://x.org/book/results/x.html"
    assert online["og:image"] == "https://x.org/book/_images/a.png"
    assert own.items() <= online.items()


WORKFLOW = (ROOT / ".github/workflows/book.yml").read_text()


def test_the_workflow_tells_the_book_where_it_will_lie_and_puts_the_copies_on_their_branch():
    (step,) = re.findall(r"run: make book\n(.*?)\n      -", WORKFLOW, re.S)
    assert "BOOK_URL" in step
    assert "BOOK_REPOSITORY" in step
    copies = load_extension("publishing").COPIES
    assert f"path: book/_build/{copies}\n" in WORKFLOW
    (commands,) = re.findall(r"run: \|\n(.*?)\n\n", WORKFLOW, re.S)
    assert f"git init --quiet --initial-branch {copies}\n" in commands
    assert commands.endswith(f" {copies}")
    assert yaml.safe_load(WORKFLOW)["jobs"]["deploy"]["needs"] == ["build", copies]


LINKS = "[a](regimes.ipynb) [b](../book/method.md) [c](../book/references.bib#gao2021ats) [d](https://y.org/a.md)"


@pytest.fixture(scope="module")
def small_book(tmp_path_factory):
    """Builds a book of one page and one notebook, with the environment's own variables and those that are given."""
    folder = tmp_path_factory.mktemp("small")
    book = folder / "book"
    for name in ("extensions", "assets"):
        shutil.copytree(
            BOOK / name, book / name, ignore=shutil.ignore_patterns("__pycache__", "mathjax")
        )
    for name in ("_config.yml", "glossary.yml", "references.bib"):
        shutil.copy(BOOK / name, book)
    (book / "assets/mathjax").mkdir()
    shutil.copy(BOOK / "assets/mathjax/tex-chtml.js", book / "assets/mathjax")
    (book / "_toc.yml").write_text(
        "format: jb-book\nroot: intro\nchapters:\n- file: method\n- file: results/regimes\n- file: references/all\n"
    )
    (book / "intro.md").write_text("# Intro\n\nText.\n")
    (book / "method.md").write_text("# Method\n\nText.\n")
    (book / "references").mkdir()
    (book / "references/all.md").write_text("# All\n\n```{bibliography}\n```\n")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    cells = [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": f"# Title\n\n{LINKS}"},
        {
            "cell_type": "code",
            "id": "b",
            "metadata": {},
            "source": "1",
            "outputs": [],
            "execution_count": 1,
        },
    ]
    page = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    (book / "results").mkdir()
    (book / "results/regimes.ipynb").write_text(json.dumps(page))

    def build(**variables):
        start = "from jupyter_book.cli.main import main; main()"
        command = [sys.executable, "-c", start, "build", str(book), "-W", "--all", "--quiet"]
        own = {name: text for name, text in os.environ.items() if not name.startswith("BOOK_")}
        shutil.rmtree(book / "_build", ignore_errors=True)
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, env=own | variables
        )
        assert ended.returncode == 0, ended.stderr
        return book / "_build"

    return build


def addresses(built, page):
    """Where the buttons of a page lead."""
    return re.findall(r'<a href="(https?://[^"?]+)', (built / "html" / page).read_text())


def test_a_published_page_leads_to_its_notebook_and_to_a_copy_that_sets_itself_up(small_book):
    built = small_book(BOOK_URL="https://x.github.io/y", BOOK_REPOSITORY="https://github.com/x/y")
    sources = "https://github.com/x/y"
    copied = "book/results/regimes.ipynb"
    assert addresses(built, "results/regimes.html")[:4] == [
        f"https://colab.research.google.com/github/x/y/blob/colab/{copied}",
        sources,
        f"{sources}/blob/main/notebooks/regimes.ipynb",
        f"{sources}/issues/new",
    ]
    assert addresses(built, "method.html")[:2] == [sources, f"{sources}/blob/main/book/method.md"]
    assert "Open on a GPU (Colab)" in (built / "html/results/regimes.html").read_text()
    copy = json.loads((built / "colab" / copied).read_text())
    first, text, last = copy["cells"]
    assert "--branch" in "".join(first["source"])
    assert '"https://github.com/x/y"' in "".join(first["source"])
    assert text["source"] == (
        "# Title\n\n[a](https://x.github.io/y/results/regimes.html) [b](https://x.github.io/y/method.html) "
        "[c](https://x.github.io/y/references/bibliography.html) [d](https://y.org/a.md)"
    )
    assert last["source"] == "1"
    assert copy["metadata"]["accelerator"] == "GPU"


def test_a_book_that_is_built_without_them_leads_to_no_repository(small_book):
    built = small_book()
    assert not addresses(built, "method.html")
    assert not (built / "colab").exists()
    assert "colab" not in (built / "html/results/regimes.html").read_text().lower()


def test_a_repository_that_colab_cannot_open_has_the_other_buttons(monkeypatch):
    config = SimpleNamespace(html_baseurl="", html_theme_options={"launch_buttons": {"a": 1}})
    monkeypatch.setenv("BOOK_REPOSITORY", "https://gitlab.com/x/y")
    load_extension("publishing").published(None, config)
    assert config.html_theme_options["launch_buttons"] == {"a": 1}
    assert config.html_theme_options["use_issues_button"]


def test_the_first_cell_of_a_copy_makes_its_machine_one_with_the_project(tmp_path, monkeypatch):
    """In an empty home, from a repository on this disk; what the project needs is installed here already."""
    origin = tmp_path / "origin"
    (origin / "notebooks").mkdir(parents=True)
    (origin / "notebooks/a.ipynb").write_text("{}")
    (origin / "only_there.py").write_text("ANSWER = 42\n")
    shutil.copy(ROOT / "pyproject.toml", origin)
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (
        ["init", "-q", "-b", "main"],
        ["add", "."],
        [*who, "commit", "-q", "-m", "first"],
    ):
        subprocess.run(["git", *command], cwd=origin, check=True)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.delenv("BOOK_BRANCH", raising=False)
    cell = "".join(load_extension("publishing").first_cell(origin.as_uri())["source"])
    ask = """
print([name for name in vars() if name[0] != "_"])  # a value would be taken for a parameter of the page
import only_there, os
print(only_there.ANSWER, os.getcwd())
"""
    environment = dict(os.environ, HOME=str(home))
    ended = subprocess.run(
        [sys.executable, "-c", f"{cell}\n{ask}"],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"['set_up']\n42 {home / 'origin' / 'notebooks'}\n"
