"""From nothing to the book: compute what is missing, execute the pages, build."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch

from atslib.data import available, load
from atslib.errors import AtsError, choose
from atslib.experiments import PAGES, settings
from atslib.experiments.units import AttackUnit, ModelUnit, device_of, make
from atslib.report import answers, insert_answers, speed_table
from atslib.store import Store


def usable(dataset: str, say: Callable[[str], None]) -> str:
    """`dataset` if it is here or can be downloaded, else the embedded `shapes`, and a line that says so."""
    for split in ("train", "test"):
        here = available(dataset, split)
        try:
            load(dataset, split)
        except AtsError as error:
            if here:  # a damaged file is for its owner to see, not to be passed over
                raise
            say(f"{error}\n→ going on with the embedded `shapes` images; the pages say so.")
            return "shapes"
    return dataset


def run(
    names: Sequence[str],
    *,
    profile: str,
    dataset: str | None = None,
    compute_only: bool = False,
    jobs: int | None = None,
    root: Path,
    store: Store,
) -> None:
    """Compute the named pages (by default those of the book), write their tables, execute their notebooks, build.

    Args:
        jobs: units computed at once, each in a process with one thread; by default one a core without a GPU,
            and one in this process with it.
        root: the project's top folder, with notebooks/, book/ and results/.
    Raises:
        AtsError: an unknown page, or a page or book that failed; pages made before it stay.
    """
    for name in names:
        choose("page", name, PAGES)
    if missing := [name for name in ("README.md", "book/_toc.yml", "notebooks") if not (root / name).exists()]:
        raise AtsError(f"{root} is not the project's top folder: it has no {' and no '.join(missing)}")
    chosen = usable(settings(profile=profile, dataset=dataset).dataset, store.say)
    for name in names or published(root):
        experiment = settings(profile=profile, dataset=chosen)
        store.say(f"{name}: {experiment}")
        compute(list(PAGES[name].units(experiment).values()), store, experiment.device, jobs)
        result = PAGES[name].run(experiment, store)
        folder = result.write(root / "results")
        store.say(
            f"{name}: {result.verdict.status}; {result.verdict.reason}\n{name}: tables in {folder.relative_to(root)}"
        )
        if not compute_only:
            execute(name, {"profile": profile, "dataset": chosen}, root=root, store=store)
    publish_answers(root)
    if not compute_only:
        build_book(root)


def published(root: Path) -> list[str]:
    """The pages that the book's table of contents holds."""
    contents = (root / "book" / "_toc.yml").read_text()
    return [name for name in PAGES if f"results/{name}\n" in contents]


def compute(units: Sequence[AttackUnit], store: Store, device: str, jobs: int | None = None) -> None:
    """Fill the store with what these attacks need, `jobs` units at once; an attack starts when its model is there.

    Two processes of one thread do more than one of two, and a unit's numbers then do not depend on the
    number of cores.
    """
    models = [m for m in dict.fromkeys(unit.model for unit in units) if m.train and not store.has("model", m)]
    attacks = [unit for unit in dict.fromkeys(units) if not store.has("attack", unit)]
    if not models and not attacks:
        return
    gpu = device_of(device).type == "cuda"
    jobs = jobs or (1 if gpu else os.cpu_count() or 1)
    store.say(f"to make: {len(models)} models and {len(attacks)} batches of attacks, {jobs} at once")
    if gpu:
        for unit in (*models, *attacks):
            make(unit, store, device)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            _in_order(pool, models, attacks, store, device)
        except BrokenProcessPool:
            raise AtsError(
                "a worker was killed, perhaps for want of memory: what is finished is kept; try --jobs 1"
            ) from None


def _in_order(
    pool: Executor, models: Sequence[ModelUnit], attacks: Sequence[AttackUnit], store: Store, device: str
) -> None:
    """Submit models, then attacks whose model is there, then each other attack as its model comes."""

    def submit(units: Iterable[ModelUnit | AttackUnit]) -> dict[Future, ModelUnit | AttackUnit]:
        return {pool.submit(_work, unit, store.root, device): unit for unit in units}

    running = submit(models) | submit(unit for unit in attacks if unit.model not in models)
    total, done = len(models) + len(attacks), 0
    while running:
        finished, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in finished:
            future.result()
            unit, done = running.pop(future), done + 1
            running |= submit(attack for attack in attacks if attack.model == unit)
            store.say(f"{done} of {total} done")


def _work(unit: ModelUnit | AttackUnit, root: Path, device: str) -> None:
    torch.set_num_threads(1)
    make(unit, Store(root, say=say), device)


def say(line: str) -> None:
    """One line for a person, on stderr: stdout is for results."""
    print(line, file=sys.stderr, flush=True)


def execute(name: str, parameters: dict[str, object], *, root: Path, store: Store) -> None:
    """Run one notebook by papermill into book/results/; a failed page keeps the one that was there."""
    import papermill  # not needed, and not there, where pages are only computed

    os.environ["ATS_STORE"] = str(store.root)
    page = root / "book" / "results" / f"{name}.ipynb"
    page.parent.mkdir(parents=True, exist_ok=True)
    partial = page.with_suffix(".failed.ipynb")
    try:
        # Relative paths: the executed page records them.
        source, target = (path.relative_to(root).as_posix() for path in (root / "notebooks" / page.name, partial))
        with contextlib.chdir(root):
            papermill.execute_notebook(source, target, parameters, cwd="notebooks", progress_bar=False)
    except papermill.PapermillExecutionError as error:
        raise AtsError(f"{name}: a cell failed with {error.ename}: {error.evalue}; see {partial.name}") from None
    partial.replace(page)
    store.say(f"{name}: page in {page.relative_to(root)}")


def publish_answers(root: Path) -> None:
    """Rewrite what is made from results/: the answer tables of the README and the book, and the speed table."""
    insert_answers(root / "README.md", answers(root / "results"))
    table = answers(root / "results", link="results/{}.ipynb")
    (root / "book" / "answers.md").write_text(table)
    (root / "book" / "speed.md").write_text(speed_table(root / "results" / "speed.jsonl"))


def build_book(root: Path) -> None:
    """`jupyter-book build book` with warnings as errors."""
    start = "from jupyter_book.cli.main import main; main()"  # the package has no `python -m` of its own
    command = [sys.executable, "-c", start, "build", "book", "-W", "--keep-going", "--quiet"]
    if subprocess.run(command, cwd=root, check=False).returncode:
        raise AtsError("the book did not build; the lines above say why")
