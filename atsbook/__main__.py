"""`python -m atsbook`: make the report, measure speed, look after evidence and store."""

import importlib
import math
from pathlib import Path

from atslib.shell import (
    at_least,
    duration,
    number_between,
    option,
    run_command,
    start,
)

STORE = option(
    "--store",
    help="folder of artifacts; default $ATS_STORE or .store",
)

# The function of the same name in `atsbook.commands` does it.
COMMANDS = {
    "run": (
        "compute pages, execute their notebooks, build the book",
        "what was finished is kept, run the same command to go on",
        option(
            "names", nargs="*", help="pages, such as claim1_privacy; by default those of the book"
        ),
        option("--profile", default="laptop", help="smoke, laptop (default) or full"),
        option("--dataset", help="instead of the profile's; `shapes` needs no file"),
        option(
            "--compute-only", action="store_true", help="write tables, execute and build nothing"
        ),
        option(
            "--dry-run",
            action="store_true",
            help="only show what would be computed, and how long that may take",
        ),
        option(
            "--budget", type=duration, help="stop cleanly within 90s, 8m or 2h; run again to go on"
        ),
        option(
            "--jobs",
            type=at_least(1),
            help="requests and pages at once, one thread each; default: one per core",
        ),
        option(
            "--scheduler",
            help="of Dask, whose workers compute: an address such as tcp://10.0.0.5:8786",
        ),
        STORE,
    ),
    "report": (
        "check the archived evidence, compute a random sample of it again, make the book from it",
        "nothing that is committed was changed, but with --write by pages that were made",
        option(
            "--check",
            action="store_true",
            help="only make every page again, in a scratch folder, and compare",
        ),
        option(
            "--write",
            action="store_true",
            help="make pages, tables and texts in the place of those that are committed",
        ),
        option(
            "--record",
            action="store_true",
            help="keep the audit's outcome in results/, for the book's page",
        ),
        option("--seed", type=at_least(0), help="of the sample; default: another one at every run"),
        option(
            "--minutes",
            type=number_between(0, math.inf, "a number above 0"),
            default=1.0,
            help="that the sample may take; default 1",
        ),
        option(
            "--jobs",
            type=at_least(1),
            help="requests and pages at once, one thread each; default: one per core",
        ),
    ),
    "bench": (
        "speed, mostly against a plain loop; one JSON line each",
        "lines that were printed are kept in --out",
        option("what", choices=("attack", "scores", "adaptive", "labels", "weights", "forms")),
        option("--model", help="such as resnet20-4; default: the reference sizes"),
        option("--members", type=at_least(1), help="attacks in the batch, or images scored"),
        option("--device", default="cpu"),
        option(
            "--out", type=Path, help="append the lines to this file, such as results/speed.jsonl"
        ),
    ),
    "archive": (
        "the evidence in results/: check it, take in a store's results, put them into a store, or out of it again",
        "results that were taken in or restored are kept",
        option("action", choices=("verify", "write", "restore", "forget")),
        option(
            "page", nargs="?", help="restore, forget: what this page reads; default: everything"
        ),
        STORE,
    ),
    "store": (
        "list and check artifacts",
        "nothing was changed",
        option("action", choices=("list", "verify")),
        STORE,
    ),
}

MOVED = {"search": "python -m atslib search", "audit": "python -m atsaudit"}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    return run_command(
        arguments,
        prog="python -m atsbook",
        description=__doc__,
        commands=COMMANDS,
        moved=MOVED,
        functions=lambda command: importlib.import_module("atsbook.commands"),
    )


if __name__ == "__main__":
    start(main)
