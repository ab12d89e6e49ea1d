"""What a published book says of where it lies, and lets its readers do there.

The workflow that publishes the book tells it where it will lie, `$BOOK_URL`, and where its sources are,
`$BOOK_REPOSITORY`. A page then has buttons for its source, for an issue, and for running it on a GPU of Google Colab, and
its head has an address for who shares or cites it. A book that is built without the two names no host.

Colab opens a notebook, and nothing else of its repository. So the button leads to a copy of the page that begins with a
cell that fetches the rest. The copies are written when the book is built; the workflow puts them on a branch of their
own, `colab`, so that no notebook of the project holds what only Colab needs.
"""

import json
import os
import posixpath
import re
from html import escape, unescape
from pathlib import Path

from reading import beginning

COLAB = "https://colab.research.google.com"
COPIES = "colab"  # the folder of the copies beside that of the book, and their branch
SOURCES = "book"  # the folder of the book in its repository
PICTURE = re.compile(r'<img\b[^>]*\bsrc="([^"]*_images/[^"]+)"')
TAG = re.compile(r"<[^>]+>")


def branch() -> str:
    """The branch that the book is built from."""
    return os.environ.get("BOOK_BRANCH", "main")


def published(app: object, config: object) -> None:
    """The address of the book, and its buttons for source, issues and Colab."""
    if address := os.environ.get("BOOK_URL"):
        config.html_baseurl = address.rstrip("/") + "/"
    if repository := os.environ.get("BOOK_REPOSITORY"):
        options = dict(config.html_theme_options)
        options |= {
            "repository_url": repository.rstrip("/"),
            "repository_branch": branch(),
            "path_to_docs": SOURCES,
            "use_source_button": True,
            "use_repository_button": True,
            "use_issues_button": True,
        }
        if on_github(repository):  # Colab opens notebooks of no other host
            options["launch_buttons"] = options.get("launch_buttons", {}) | {"colab_url": COLAB}
        config.html_theme_options = options


def on_github(repository: str) -> bool:
    """Whether a repository lies on GitHub."""
    return repository.startswith("https://github.com/")


# --- a page on Colab -----------------------------------------------------------------------------------------

FIRST_CELL = """# @title Run this first: it fetches the project with its evidence, and installs what is missing here
def set_up():
    import os
    import subprocess
    import sys
    import tomllib
    from pathlib import Path

    project = Path.home() / "{folder}"
    if not project.exists():
        clone = ["git", "clone", "--quiet", "--depth", "1", "--branch", "{branch}"]
        subprocess.run([*clone, "{repository}", str(project)], check=True)
    about = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    optional = about["optional-dependencies"]
    needed = [*about["dependencies"], *optional["evidence"]]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *needed], check=True)
    sys.path.insert(0, str(project))
    os.chdir(project / "notebooks")


set_up()
"""
LINK = re.compile(r"\]\((?:(\w+)\.ipynb|\.\./book/(\w+)\.md|\.\./book/references\.bib#[\w,]+)\)")


def first_cell(repository: str) -> dict:
    """The cell that makes a notebook that is alone on its machine one of this project's.

    Its names are a function's own: a plain value would count as a parameter of the page, which refuses those that it does
    not know.

    Args:
        repository: address of a git repository, which is cloned without its history.
    """
    folder = repository.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")
    text = FIRST_CELL.format(repository=repository, branch=branch(), folder=folder)
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": "set-up",
        "metadata": {"cellView": "form", "jupyter": {"source_hidden": True}},
        "outputs": [],
        "source": text.rstrip("\n").splitlines(keepends=True),
    }


def linked(text: str, address: str) -> str:
    """A notebook's Markdown, whose links to other pages lead to the book at this address."""

    def there(link: re.Match) -> str:
        notebook, page = link.groups()
        if notebook:
            return f"]({address}results/{notebook}.html)"
        if page:
            return f"]({address}{page}.html)"
        return f"]({address}references/bibliography.html)"

    return LINK.sub(there, text)


def for_colab(notebook: dict, repository: str, address: str) -> dict:
    """An executed page as Colab is to open it: with a first cell that sets up, on a GPU."""
    cells = [first_cell(repository)]
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown" and address:
            cell = cell | {"source": linked("".join(cell["source"]), address)}
        cells.append(cell)
    return notebook | {
        "cells": cells,
        "metadata": notebook["metadata"] | {"accelerator": "GPU"},
    }


def write_copies(app: object, fault: Exception | None) -> None:
    """Write each notebook of the book as Colab is to open it, where its button leads."""
    repository = os.environ.get("BOOK_REPOSITORY", "").rstrip("/")
    if fault or app.builder.format != "html" or not on_github(repository):
        return
    copies = Path(app.outdir).parent / COPIES / SOURCES
    for page in sorted(app.env.found_docs):
        source = Path(app.env.doc2path(page))
        if source.suffix != ".ipynb":
            continue
        copy = copies / f"{page}.ipynb"
        notebook = json.loads(source.read_text(encoding="utf-8"))
        text = json.dumps(
            for_colab(notebook, repository, app.config.html_baseurl or ""),
            indent=1,
            ensure_ascii=False,
        )
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text + "\n", encoding="utf-8")


def lead(app: object, page: str, template: str, context: dict, document: object) -> None:
    """Where a page's buttons lead: the theme knows only the page, as it was executed, on the branch of the book.

    On Colab its copy is opened, and its source is the notebook.
    """
    executed = f"/blob/{branch()}/{SOURCES}/{page}.ipynb"
    notebook = f"/blob/{branch()}/notebooks/{posixpath.basename(page)}.ipynb"
    copy = f"/blob/{COPIES}/{SOURCES}/{page}.ipynb"
    for group in context.get("header_buttons", ()):
        for button in group.get("buttons", ()):
            if button.get("text") == "Colab":
                button["url"] = button["url"].replace(executed, copy)
                button["text"] = "Open on a GPU (Colab)"
                button["tooltip"] = "Run this page on a machine of Google's"
            elif "url" in button:
                button["url"] = button["url"].replace(f"{executed}?plain=1", notebook)


# --- what a page says of itself ------------------------------------------------------------------------------


def describe(app: object, page: str, template: str, context: dict, document: object) -> None:
    """Tags in a page's head for who shares it (OpenGraph) and who cites it (Google Scholar's names)."""
    if document is None:
        return
    title = unescape(TAG.sub("", context.get("title", "")))
    body = f"<article>{context['body']}</article>"
    address = app.config.html_baseurl
    book = app.config.html_title
    tags = {
        "description": beginning(body),
        "og:title": title,
        "og:description": beginning(body),
        "og:type": "website" if page == app.config.root_doc else "article",
        "og:site_name": book,
        "citation_title": title if title == book else f"{title} ({book})",
        "citation_author": app.config.author,
        "citation_publication_date": re.sub(r"\D", "", app.config.copyright),
    }
    if address:
        here = f"{address}{app.builder.get_target_uri(page)}"
        tags |= {"og:url": here, "citation_public_url": here, "citation_fulltext_html_url": here}
        if picture := PICTURE.search(body):
            folder = posixpath.dirname(app.builder.get_target_uri(page))
            tags["og:image"] = address + posixpath.normpath(posixpath.join(folder, picture[1]))
    kinds = {name: "property" if name.startswith("og:") else "name" for name in tags}
    context["metatags"] = context.get("metatags", "") + "".join(
        f'\n    <meta {kinds[name]}="{name}" content="{escape(text)}" />'
        for name, text in tags.items()
        if text
    )


def setup(app: object) -> dict[str, object]:
    """Sphinx calls this."""
    app.connect("config-inited", published)
    app.connect("html-page-context", describe)
    app.connect("html-page-context", lead, priority=900)  # after the theme's buttons
    app.connect("build-finished", write_copies)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
