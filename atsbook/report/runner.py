"""From nothing to the book: compute what is missing, execute the pages, build."""

import copy
import functools
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from atsbook.evidence.archive import Archive
from atsbook.evidence.audit import audit, summaries, write_audit
from atsbook.evidence.differences import folder_differences, source_differences, text_differences
from atsbook.findings.result import stored_result
from atsbook.pool.schedule import say
from atsbook.prose import SHIPS
from atsbook.report import notebooks
from atsbook.report.making import build_book, executing, publish_answers
from atsbook.report.warm_kernels import warm
from atsbook.runs.settings import Settings, settings
from atsbook.store import Store
from atslib.data.load import available, is_drawn, load
from atslib.errors import AtsError, NotKept, choose

__all__ = ["report", "run", "say"]

BOOK_PROFILE = SHIPS["profile"]  # of the archive, and of the pages made from it


def usable(dataset: str, say: Callable[[str], None]) -> str:
    """`dataset` if it is here or can be downloaded, else the embedded `shapes`, and a line that
    says so. A relative path in $ATS_DATA becomes the whole one.

    Raises:
        AtsError: $ATS_DATA is no folder, or a file of the data set is damaged.
    """
    place = os.environ.get("ATS_DATA")
    if place and not is_drawn(dataset) and not Path(place).expanduser().is_dir():
        raise AtsError(
            f"ATS_DATA={place} is not a folder; name one that is there, or unset it to download {dataset}"
        )
    if place:  # in full, since a notebook runs in the folder of notebooks
        os.environ["ATS_DATA"] = str(Path(place).expanduser().absolute())
    if not is_drawn(dataset):
        say(f"reading {dataset}")
    for split in ("train", "test"):
        here = available(dataset, split)
        try:
            load(dataset, split)
        except AtsError as error:
            if here:  # a damaged file is for its owner to see, not to be passed over
                raise
            say(
                f"{error}\n→ going on with the embedded `shapes` images at profile smoke, into "
                "book/_build/profiles/smoke; the pages say so."
            )
            return "shapes"
    return dataset


def run(
    names: Sequence[str],
    *,
    profile: str,
    dataset: str | None = None,
    compute_only: bool = False,
    dry_run: bool = False,
    budget: float | None = None,
    root: Path,
    store: Store,
    jobs: int | None = None,
    scheduler: str | None = None,
) -> None:
    """Compute the named pages (by default those of the book), write their tables, execute their
    notebooks, build.

    Args:
        dry_run: only say what would be computed, and how long that may take.
        budget: seconds; no request is begun that would end beyond them, and pages that wait for requests
            are left out.
        jobs: requests computed at once, each in a process with one thread; by default one request a core
            without a GPU and one in this process with it.
        scheduler: the address of a Dask scheduler, as in `schedule.compute`.
        root: the project's top folder, with notebooks/, book/ and results/.
    Raises:
        AtsError: an unknown page, or a page or book that failed; pages made before it stay.
    """
    experiment, pages = _chosen(names, profile, dataset, root, store)
    ends = None if budget is None else time.monotonic() + budget
    place = root if dry_run else _place(root, experiment.profile)
    how = {"keep": not compute_only, "jobs": jobs, "scheduler": scheduler, "ends": ends}
    unfinished = _executed(pages, experiment, place, store, dry_run=dry_run, **how)
    if not dry_run:
        _finish(unfinished, compute_only, place, store)


def _executed(
    names: Sequence[str],
    experiment: Settings,
    place: Path,
    store: Store,
    *,
    dry_run: bool,
    jobs: int | None,
    **how: object,
) -> list[str]:
    """Execute pages; those that need more than is kept, and why.

    Pages are planned side by side, and said in their order; they are computed one after the other.
    """
    parameters = {"profile": experiment.profile}
    # Some pages are about another data set than the profile's: they know better.
    if experiment.dataset != settings(profile=experiment.profile).dataset:
        parameters["dataset"] = experiment.dataset
    unfinished = []
    how |= {"root": place, "dry_run": dry_run, "jobs": jobs}
    if dry_run:
        plans = functools.partial(_planned, parameters=parameters, store=store, how=how)
        with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
            for lines in pool.map(plans, names):
                for line in lines:
                    store.say(line)
        return unfinished
    for name in names:
        try:
            notebooks.execute(name, parameters, store=store, **how)
        except NotKept as error:
            unfinished.append(str(error))
    return unfinished


def _planned(
    name: str, *, parameters: dict[str, object], store: Store, how: dict[str, object]
) -> list[str]:
    """What there is to compute for a page, line by line."""
    lines: list[str] = []
    apart = copy.copy(store)
    apart.say = lines.append
    try:
        notebooks.execute(name, parameters, store=apart, **how)
    except NotKept:
        first, *rest = lines
        return [f"{name}, {first}", *rest]
    return [f"{name}: nothing is missing"]


def _finish(waiting: Sequence[str], compute_only: bool, place: Path, store: Store) -> None:
    """The last step of a run: the book, or what the budget left out."""
    publish_answers(place)
    if waiting:
        store.say(f"the budget is spent; run again to go on with {', '.join(waiting)}")
    elif not compute_only:
        build_book(place, store)


def report(
    *,
    seed: int | None = None,
    minutes: float = 1.0,
    jobs: int | None = None,
    write: bool = False,
    record: bool = False,
    root: Path,
    store: Store,
) -> list[str]:
    """The book from the archived evidence: check it, compute a random sample of it again, make the
    pages, build.

    It is made in book/_build/report, beside what is committed, and compared with that. A page that
    needs more than the archive holds is as it is committed, and is named.

    Args:
        seed: of the sample; by default another one at every run.
        minutes: that the sample may take, about.
        write: whether it takes the place of what is committed instead.
        record: whether the audit's outcome does so, too.
        store: what it says and shows; its artifacts are neither read nor changed.
    Returns:
        One line for each text, table or fact that is another now, see `check`; none where it took
        the place.
    Raises:
        AtsError: a damaged archive, or a page or book that failed.
    """
    experiment, pages = _chosen((), BOOK_PROFILE, None, root, store)
    archive = Archive(root / "results")
    if faults := archive.verify():
        raise AtsError(
            f"the archive is damaged: {'; '.join(faults)}; `git checkout {archive.root}` brings it back"
        )
    if not archive.entries():
        store.say(
            f"{archive.root} holds no evidence yet; `make evidence FRESH=1` computes all of it"
        )
        build_book(root, store)
        return []
    store.say(
        f"archive: {len(archive.entries())} results, {archive.size() / 1e6:.1f} MB, all whole"
    )
    if experiment.dataset != settings(profile=BOOK_PROFILE).dataset:
        store.say(
            "without the images of the evidence nothing can be computed again: the pages stay as they are"
        )
        build_book(root, store)
        return []
    seed = secrets.randbelow(10**6) if seed is None else seed
    outcome = audit(archive, seed=seed, minutes=minutes, device="auto", jobs=jobs, store=store)
    for line in summaries(outcome):
        store.say(f"audit: {line}")
    write_audit(outcome, root / "book" / "_build")
    if record:
        write_audit(outcome, root / "results")
    place = root if write else _beside(root, "report")
    kept = _pages_of(archive, pages, experiment, jobs, place, store)
    if kept:
        store.say(f"as they are committed, for want of evidence in the archive: {'; '.join(kept)}")
    found = []
    if not write:
        found = _differences(pages, root, place)
        _complete(root, place)
        write_audit(outcome, place / "results")
    publish_answers(place, archive.root)
    if not write:
        found += _text_differences(root, place)
    build_book(place, store)
    return found


def check(*, jobs: int | None = None, root: Path, store: Store) -> list[str]:
    """Every page that the evidence is enough for, made again in book/_build/check, beside what is
    committed.

    Returns:
        One line for each cell, table or fact that is another now: its page, its cell or file, and
        both. What a page shows of them is not compared.
    Raises:
        AtsError: a damaged archive, or a page that failed.
    """
    experiment, pages = _chosen((), BOOK_PROFILE, None, root, store)
    archive = Archive(root / "results")
    if not archive.entries() or experiment.dataset != settings(profile=BOOK_PROFILE).dataset:
        store.say("without the evidence and its images no page can be made again: none is checked")
        return []
    place = _beside(root, "check")
    kept = _pages_of(archive, pages, experiment, jobs, place, store)
    if kept:
        store.say(f"not checked, for want of evidence in the archive: {'; '.join(kept)}")
    return _differences(pages, root, place)


def _beside(root: Path, name: str) -> Path:
    """A folder in book/_build, which git ignores, with the notebooks and nothing that they make."""
    place = root / "book" / "_build" / name
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(root / "notebooks", place / "notebooks")
    return place


def _complete(root: Path, place: Path) -> None:
    """Put what is committed and was not made again beside what was: a whole book but for the
    evidence.
    """
    for folder in ("book", "results"):
        for path in (root / folder).rglob("*"):
            new = place / path.relative_to(root)
            evidence = path.name == "evidence.parquet" or path.parent.name == "networks"
            built = (root / "book" / "_build") in path.parents
            if path.is_file() and not (new.exists() or evidence or built):
                new.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, new)
    shutil.copy(root / "README.md", place)


def _differences(pages: Sequence[str], root: Path, place: Path) -> list[str]:
    """One line for each text, table or fact of the pages made in `place` that is another than what
    is committed.
    """
    faults = []
    for name in (page for page in pages if (place / "results" / page).exists()):
        committed, made = (
            folder / "book" / "results" / f"{name}.ipynb" for folder in (root, place)
        )
        if not committed.exists():
            faults.append(f"{name}: it is in the book's contents, and no page of it is committed")
            continue
        found = source_differences(committed, made)
        for folder in (place / "results" / name).iterdir():
            found += folder_differences(root / folder.relative_to(place), folder)
        faults += [f"{name}, {line}" for line in found]
    return faults


def _text_differences(root: Path, place: Path) -> list[str]:
    """One line for each text from data, but for the audit's page, that is another now."""
    found = []
    for made in sorted([place / "README.md", *(place / "book").glob("*.md")]):
        committed = root / made.relative_to(place)
        if made.name == "audit.md" or not committed.exists():
            continue
        found += [
            f"{made.relative_to(place).as_posix()}: {line}"
            for line in text_differences(committed.read_text(), made.read_text())
        ]
    return found


def _pages_of(
    archive: Archive,
    pages: Sequence[str],
    experiment: Settings,
    jobs: int | None,
    root: Path,
    store: Store,
) -> list[str]:
    """Make the pages from what the archive holds; those that need more, and what each of them
    misses.
    """
    kept = []
    with tempfile.TemporaryDirectory() as folder, warm() as kernels:
        evidence = Store(folder, say=store.say)
        nothing_new = {"keep": True, "dry_run": False, "ends": time.monotonic(), "jobs": jobs}
        nothing_new["renew"] = False

        def make(name: str) -> None:
            how = {**nothing_new, "kernels": kernels}
            kept.extend(_executed([name], experiment, root, evidence, **how))

        # Those that read most first: one that is long and comes last is waited for alone
        most_first = sorted(pages, key=lambda name: -len(_keys_of(name, archive.root.parent)))
        with executing(jobs) as begin:
            for name in most_first:
                begin(functools.partial(make, name))
    return kept


def _chosen(
    names: Sequence[str], profile: str, dataset: str | None, root: Path, store: Store
) -> tuple[Settings, list[str]]:
    """The settings and the pages of a run, which it says in one line."""
    if missing := [
        name
        for name in ("README.md", "book/_toc.yml", "book/deviations.md", "notebooks")
        if not (root / name).exists()
    ]:
        raise AtsError(
            f"{root} is not the project's top folder: it has no {' and no '.join(missing)}"
        )
    for name in names:
        choose("page", name, notebooks.names(root))
    if store.root.exists() and not store.root.is_dir():
        raise AtsError(
            f"the store {store.root} is a file; name a folder with --store or $ATS_STORE"
        )
    wanted = settings(profile=profile, dataset=dataset).dataset
    if is_drawn(wanted) and profile != "smoke":
        raise AtsError(
            f"dataset={wanted} at profile {profile}: pages judge test images up to 9,687 there, and drawn data has "
            "fewer; take --profile smoke with it, or real data"
        )
    chosen = usable(wanted, store.say)
    if is_drawn(chosen):
        profile = "smoke"
    experiment = settings(profile=profile, dataset=chosen)
    pages = list(names) or published(root)
    store.say(
        f"{', '.join(pages)}: profile {profile}, {experiment.model} on {chosen}, seed {experiment.seed}"
    )
    return experiment, pages


def _place(root: Path, profile: str) -> Path:
    """Where a profile's tables and pages go: the project, or a copy of its book, so that the
    committed pages stay.

    The copy is `book/_build/profiles/<profile>/`, which git ignores; pages not made at that profile
    are in it too.
    """
    if profile == BOOK_PROFILE:
        return root
    place = root / "book" / "_build" / "profiles" / profile
    old = {path.name for path in (place / "book" / "results").glob("*.ipynb")}
    for folder in ("book", "notebooks"):
        shutil.copytree(
            root / folder,
            place / folder,
            ignore=lambda folder, names: (
                {"_build", *(old if folder.endswith("results") else ())} & set(names)
            ),
            dirs_exist_ok=True,
        )
    shutil.copy(root / "README.md", place)
    return place


def readers(root: Path) -> dict[str, list[str]]:
    """The pages of the book that read each artifact of the evidence, by the store's hash, in the
    book's order.
    """
    found: dict[str, list[str]] = {}
    for name in published(root):
        for key in _keys_of(name, root):
            found.setdefault(key, []).append(name)
    return found


def _keys_of(name: str, root: Path) -> list[str]:
    """The keys of the evidence behind a page, from its last run."""
    # A page may be about another data set than the book's.
    folders = sorted((root / "results" / name).glob(f"*-{BOOK_PROFILE}"))
    return [key for folder in folders for key in stored_result(folder).get("evidence", [])]


def published(root: Path) -> list[str]:
    """The pages that the book's table of contents holds, in its order."""
    contents = (root / "book" / "_toc.yml").read_text()
    there = notebooks.names(root)
    return [name for name in re.findall(r"results/(\w+)$", contents, re.MULTILINE) if name in there]
