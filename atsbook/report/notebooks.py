"""Pages: each is a notebook, and executing it computes what it needs and writes its tables.

To add a page: its notebook in `notebooks/`, which holds the whole experiment, and a line in
`book/_toc.yml`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import atslib
from atsbook.evidence.differences import folder_differences
from atsbook.page import WRITTEN
from atsbook.report.making import ONE_THREAD, failure_of, publish
from atsbook.runs.study import LOG_PREFIX
from atsbook.store import Store
from atslib.errors import AtsError, NotKept


def names(root: Path) -> list[str]:
    """The pages of a project, by the names of their notebooks."""
    return sorted(path.stem for path in (root / "notebooks").glob("*.ipynb"))


def execute(
    name: str,
    parameters: dict[str, object],
    *,
    root: Path,
    store: Store,
    keep: bool = True,
    dry_run: bool = False,
    jobs: int | None = None,
    scheduler: str | None = None,
    ends: float | None = None,
    kernels: Mapping[str, str] | None = None,
    renew: bool = True,
) -> None:
    """Execute a page's notebook; what its study says while it computes is said.

    Args:
        parameters: of the notebook.
        root: the folder with notebooks/, book/results/ and results/.
        keep: whether the executed page is kept in book/results/, which that of a dry run never is;
            a failed one keeps the one that was there.
        dry_run: say what would be computed, and end there.
        jobs, scheduler: as of `schedule.compute`.
        ends: a time of `time.monotonic` after which nothing is begun.
        kernels: the environment in which the kernel starts, such as that of `warm_kernels.warm`.
        renew: whether the page is replaced even where its cells and numbers are what they were.
    Raises:
        NotKept: something is missing, and this is a dry run or the time is over.
        AtsError: a cell failed.
    """
    keep = keep and not dry_run
    more = {
        "ATS_STORE": store.address,
        WRITTEN: "" if dry_run else str((root / "results").absolute()),
    }
    more |= {
        "ATS_DRY_RUN": "1" if dry_run else "",
        "ATS_JOBS": str(jobs or ""),
        "ATS_SCHEDULER": scheduler or "",
    }
    more |= {"ATS_BUDGET": "" if ends is None else str(max(0.0, ends - time.monotonic()))}
    library = (str(Path(atslib.__file__).parents[1]), os.environ.get("PYTHONPATH"))
    more |= {"PYTHONPATH": os.pathsep.join(filter(None, library))}
    results = root / "results" / name
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        if results.exists() and not renew:
            shutil.copytree(results, before)
        page = root / "book" / "results" / f"{name}.ipynb"
        made = page.with_suffix(".failed.ipynb") if keep else Path(folder) / page.name
        made.parent.mkdir(parents=True, exist_ok=True)
        # Relative paths: the executed page records them.
        target = made.relative_to(root).as_posix() if keep else str(made)
        options = [
            "--cwd",
            "notebooks",
            *(
                "--kernel",
                "python3",
                "--language",
                "python",
            ),  # a page made by hand may not name them
            "--no-progress-bar",
            "--log-output",
            "--parameters_yaml",
            json.dumps(parameters),
        ]
        command = [
            sys.executable,
            "-m",
            "atsbook.report.start_papermill",
            f"notebooks/{name}.ipynb",
            target,
            *options,
        ]
        environment = ONE_THREAD | os.environ | more | (kernels or {})
        with subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            last = ""
            for line in running.stderr:
                last = line.strip() or last
                _, found, words = line.partition(LOG_PREFIX)
                if found:
                    store.say(words.rstrip())
        if running.returncode:
            failure = failure_of(made)
            if failure is None:
                made.unlink(missing_ok=True)  # interrupted or killed, no failure of the page's
                # Of a killed one the last words are the kernel's.
                words = last if running.returncode > 0 else ""
                failure = words or f"papermill ended with status {running.returncode}"
            kind = NotKept if f"failed with {NotKept.__name__}" in failure else AtsError
            if kind is NotKept:  # nothing is wrong with the page
                made.unlink(missing_ok=True)
            raise kind(f"{name}: {failure}")
        if keep:
            made_now = [place for place in results.glob("*-*") if place.is_dir()]
            as_it_was = bool(made_now) and not any(
                folder_differences(before / place.name, place) for place in made_now
            )
            publish(made, page, name, store, as_it_was=as_it_was)
