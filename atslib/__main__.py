"""`python -m atslib`: search policies from the shell. Auditing a network is `python -m atsaudit`."""

import importlib
import math
import sys

from atslib.shell import (
    MODEL,
    OUT,
    PLACE,
    SHARE,
    at_least,
    duration,
    number_between,
    option,
    run_command,
    say,
    start,
)

DATA = option(
    "--dataset", default="cifar100", help="a name, or a folder with a subfolder per class"
)
SIZE = option(
    "--image-size", type=at_least(1), help="side of a folder's images, in pixels; default 32"
)

# The function of the same name in `atslib.commands` does it.
COMMANDS = {
    "search": (
        "search policies for a data set, or for an own folder of images",
        "what is finished is kept in a folder beside --out, run the same command to go on",
        DATA,
        MODEL,
        option("--policies", type=at_least(1), default=1500, help="candidates drawn"),
        option("--images", type=at_least(1), default=100, help="test images for the privacy score"),
        option(
            "--acc-images",
            type=at_least(2),
            default=100,
            help="for the accuracy score; the paper: 1,000",
        ),
        option("--sampler", default="uniform", choices=("uniform", "authors", "exhaustive")),
        option(
            "--rungs",
            default="",
            help="halving, such as 10:0.25: after 10 images a quarter goes on",
        ),
        option(
            "--attack-steps",
            type=at_least(1),
            help="last rung: attack the best 2n candidates, so many steps",
        ),
        option(
            "--attack-winner",
            type=duration,
            default=120.0,
            metavar="TIME",
            help="attack the best policy at the end for so long, such as 2m (default); 0 for not at all",
        ),
        option("--points", type=at_least(2), default=21, help="of the similarity curve"),
        option("--keep", type=at_least(1), default=10, help="policies chosen"),
        option(
            "--t-acc",
            type=number_between(-math.inf, math.inf, "a number"),
            help="reject policies below this accuracy score; none by default",
        ),
        option(
            "--fraction",
            type=SHARE,
            help="training share; default 0.1 of a named data set, 1 of a folder",
        ),
        option("--epochs", type=at_least(1), default=50, help="of the semi-trained network"),
        SIZE,
        option(
            "--fit",
            choices=("resize", "crop"),
            help="how a folder's images become square; default resize",
        ),
        *PLACE,
        option("--out", **OUT, help="such as policies.json; a .csv of all goes beside it"),
    ),
}

BOOK = "python -m atsbook"
MOVED = {name: f"{BOOK} {name}" for name in ("run", "report", "bench", "archive", "store")}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["audit"]:
        return _audit(words[1:], arguments is None)
    return run_command(
        arguments,
        prog="python -m atslib",
        description=__doc__,
        commands=COMMANDS,
        moved=MOVED,
        functions=lambda command: importlib.import_module("atslib.commands"),
    )


def _audit(options: list[str], alone: bool) -> int:
    """For this release `atslib audit` goes on working, and says where it went."""
    say("atslib audit is atsaudit now, with the same options; this name goes with the next release")
    program = importlib.import_module("atsaudit.__main__")  # by its name: it is above the library
    if not alone:
        return program.main(options)
    sys.argv[1:] = options
    return program.main()


def script() -> None:
    """What the command `atslib` runs: `main` in a process of its own."""
    start(main)


def book() -> None:
    """What the command `atsbook` runs, where the project's checkout is on the path."""
    try:
        program = importlib.import_module("atsbook.__main__")
    except ModuleNotFoundError as error:
        if error.name != "atsbook":
            raise
        sys.exit("error: atsbook runs from the project's checkout: pip install -e . in its folder")
    start(program.main)


if __name__ == "__main__":
    script()
