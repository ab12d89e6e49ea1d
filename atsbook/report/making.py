"""Pages from their notebooks, and the book from its pages."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from atsbook.evidence.audit import audit_page
from atsbook.evidence.differences import source_differences
from atsbook.figures.picks import on_paper
from atsbook.prose import fill
from atsbook.store import Store
from atsbook.texts.advice import advice
from atsbook.texts.answers import claims
from atsbook.texts.audits import insert_audits
from atsbook.texts.coverage import coverage_page
from atsbook.texts.deviations import deviations
from atsbook.texts.history import history
from atsbook.texts.one_cell import insert_one_cell
from atsbook.texts.speed import cost_line, speed_table, steps_table
from atsbook.texts.start import start
from atsbook.texts.twins import coverage
from atslib.errors import AtsError
from atslib.files import shown, write_atomically

# Of each page, made beside others: more threads than cores wait for each other, and all take many
# times as long.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
PAGES_AT_ONCE = 4  # at most, where no number of jobs is given: a kernel is about half a gigabyte


@contextlib.contextmanager
def executing(jobs: int | None) -> Iterator[Callable[[Callable[[], None]], None]]:
    """A function that begins a call, which executes a page, beside others; the end waits for all
    of them.

    A page that failed ends the run when the next one is begun, or at the end; none is begun after
    it. Until then this process works with one thread, as each page does.
    """
    begun = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # one more than there are cores: a page often waits for its kernel, or for a file
    with ThreadPoolExecutor(jobs or min(PAGES_AT_ONCE, 1 + (os.cpu_count() or 1))) as pool:

        def begin(call: Callable[[], None]) -> None:
            begun.append(pool.submit(call))
            for page in begun:
                if page.done():
                    page.result()

        try:
            yield begin
            for page in begun:
                page.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        finally:
            torch.set_num_threads(threads)


def publish(made: Path, page: Path, name: str, store: Store, *, as_it_was: bool = False) -> None:
    """Put an executed notebook in the place of a page.

    Args:
        as_it_was: whether its tables and facts are what they were: then a page of the same cells
            stays.
    """
    faults = _finish(made)
    if as_it_was and page.exists() and not source_differences(page, made):
        made.unlink()
        store.say(f"{name}: page as it was in {shown(page)}")
        return
    made.replace(page)
    store.say(f"{name}: page in {shown(page)}")
    if faults:
        raise AtsError(
            f"{name}: the page is made, but its text does not fit its results: {'; '.join(faults)}. Change the text, "
            f"or what the last cell exports and claims, in notebooks/{name}.ipynb"
        )


def _finish(page: Path) -> list[str]:
    """Put its numbers into the text of an executed notebook (`prose.fill`), and take out of it what is
    another at each run: times, and the name of the parameters' cell.

    Returns:
        What is wrong with the text, see `fill`.
    """
    notebook = json.loads(page.read_text())
    run = notebook["metadata"].get("papermill", {})
    faults = fill(notebook)
    notebook["metadata"]["papermill"] = {
        name: run.get(name) for name in ("exception", "parameters")
    }
    for cell in notebook["cells"]:
        cell["metadata"].pop("execution", None)
        cell["metadata"].pop("papermill", None)
        if "injected-parameters" in cell["metadata"].get("tags", []):
            cell["id"] = "injected-parameters"
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    write_atomically(page, lambda partial: partial.write_text(text))
    return faults


def failure_of(partial: Path) -> str | None:
    """What ended a notebook, from its outputs; None where no cell failed."""
    if not partial.exists():
        return None
    outputs = [
        output
        for cell in json.loads(partial.read_text())["cells"]
        for output in cell.get("outputs", ())
    ]
    errors = [
        o for o in outputs if o["output_type"] == "error" and o["ename"] != "KeyboardInterrupt"
    ]
    return (
        f"a cell failed with {errors[0]['ename']}: {errors[0]['evalue']}; see {shown(partial)}"
        if errors
        else None
    )


def publish_answers(root: Path, evidence: Path | None = None) -> None:
    """Rewrite what is made from results/: README and the book's first page, speed, coverage,
    deviations with what was measured of them.

    Args:
        evidence: where the archive is; by default in results/.
    """
    results = root / "results"
    book = root / "book"
    if picture := picture_of(book / "results" / "claim1_privacy.ipynb"):
        (book / "assets").mkdir(exist_ok=True)
        (book / "assets" / "picture.svg").write_text(picture, encoding="utf-8")
    made = {
        root / "README.md": start(results, book=False),
        book / "intro.md": start(results, book=True),
        book / "claims.md": claims(results),
        book / "speed.md": "\n".join(
            [
                speed_table(results / "speed.jsonl"),
                cost_line(evidence or results),
                steps_table(results),
            ]
        ),
        book / "should_i.md": advice(results),
        book / "honest.md": history(results, evidence),
        book / "coverage.md": coverage_page(coverage(results)),
        book / "audit.md": audit_page(results),
        book / "deviations.md": deviations(results),
    }
    for file, text in made.items():
        file.write_text(text, encoding="utf-8")
    insert_audits(book / "audit_your_own.md", results)
    insert_one_cell(book / "method.md", evidence or results)


def picture_of(page: Path) -> str:
    """The picture on top of claim 1's executed page, as a file of its own; empty where there is none."""
    if not page.exists():
        return ""
    for cell in json.loads(page.read_text())["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            named = output.get("metadata", {}).get("scrapbook", {}).get("name")
            text = "".join(data.get("application/papermill.record/text/html", ""))
            if named == "picture" and text.startswith("<svg "):
                return on_paper(text)
    return ""


def build_book(root: Path, store: Store) -> None:
    """`jupyter-book build book` with warnings as errors; says where the book is."""
    # The package has no `python -m` of its own
    start = "from jupyter_book.cli.main import main; main()"
    command = [sys.executable, "-c", start, "build", "book", "-W", "--keep-going", "--quiet"]
    if subprocess.run(command, cwd=root, check=False).returncode:
        raise AtsError("the book did not build; the lines above say why")
    store.say(f"the book: {root / 'book/_build/html/index.html'}")
