"""`python -m atslib`: search policies, and audit a network, from the shell."""

import importlib
import math
import sys
from pathlib import Path
from types import ModuleType

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
    "audit": (
        "how much your own network gives away: attack it with your own photographs, and write a report",
        "finished cases are kept in --out, run the same command to go on",
        option(
            "--model",
            required=True,
            help="file.py:name or package.module:name of a network or a function that "
            "gives one, or a name such as resnet20-4",
        ),
        option(
            "--weights",
            type=Path,
            help="safetensors, npz, an index of parts, or a state dict or checkpoint that torch saved; untrained without "
            "them",
        ),
        option(
            "--shared",
            help="layers that clients send, such as features,neck.1, where they keep others, such as their head, to "
            "themselves; default: all, or those that were sent",
        ),
        option(
            "--mean",
            help="of each channel, such as 0.485,0.456,0.406, where the network has no Normalize layer",
        ),
        option(
            "--std",
            help="of each channel, such as 0.229,0.224,0.225; 1 where it takes pixels in [0, 1]",
        ),
        option(
            "--loss",
            help="file.py:name of a function of scores and labels; default: the cross-entropy",
        ),
        option(
            "--data",
            required=True,
            help="folder with a subfolder per class, file.py:name of a Dataset, or a data set's name",
        ),
        option(
            "--image-size",
            type=at_least(8),
            help="side of a folder's images, in pixels; default: their own",
        ),
        option(
            "--fit",
            choices=("resize", "crop"),
            default="resize",
            help="how a folder's images become square",
        ),
        option("--batch", default="1,8", help="images behind one gradient or update; default 1,8"),
        option(
            "--local-steps",
            type=at_least(1),
            help="clients train so many steps and share the change of weights; default: one gradient",
        ),
        option(
            "--lr",
            type=number_between(0, math.inf, "a number above 0"),
            help="step size of that training",
        ),
        option(
            "--optimizer",
            choices=("sgd", "momentum", "adam"),
            default="sgd",
            help="of that training",
        ),
        option("--policy", default="", help="of the clients, such as 3-1-7+43-18-18"),
        option(
            "--defense",
            default="",
            help="of the clients beside it, such as prune:0.7 or 'clip:1 | gaussian:0.01'",
        ),
        option(
            "--labels",
            choices=("known", "restored"),
            default="known",
            help="whether the server knows them",
        ),
        option(
            "--victim",
            choices=("eval", "train"),
            help="how clients run batch normalization; default: as recorded updates tell, else eval",
        ),
        option(
            "--batch-norm",
            choices=("known", "unknown"),
            default="known",
            help="whether its statistics are shared",
        ),
        option(
            "--clients",
            type=at_least(1),
            default=1,
            help="secure sums: the server sees that of so many clients",
        ),
        option("--rounds", type=at_least(1), default=1, help="in which the same images are shared"),
        option(
            "--pretrained",
            action="store_true",
            help="training starts from --weights: untrained is the control only",
        ),
        option(
            "--update",
            type=Path,
            help="recorded updates: a folder of `Watched`, or one with sent and received weights and update.json",
        ),
        option("--round", type=at_least(1), help="of a folder of `Watched`; default: the first"),
        option(
            "--kind",
            choices=("weights", "difference", "gradient"),
            help="of recorded updates; default: told from them",
        ),
        option(
            "--limit",
            help="such as 'found<=5%%'; exit status 0 within it, 3 above it, 4 cannot tell",
        ),
        option(
            "--budget",
            type=duration,
            default=600.0,
            help="time for all of it, such as 90s, 10m or 2h; default 10m",
        ),
        option(
            "--images",
            type=at_least(2),
            help="attacked in each case; default: as many as the budget allows",
        ),
        option(
            "--steps",
            type=at_least(1),
            help="of each attack; default: as many as the budget allows",
        ),
        option("--no-pictures", action="store_true", help="write no picture; they are private"),
        *PLACE,
        option("--out", **OUT, help="folder for report.html, report.json, table.csv and pictures"),
    ),
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
MOVED = dict.fromkeys(("run", "report", "bench", "archive", "store"), BOOK)


def _functions(command: str) -> ModuleType:
    """The module whose function does a command."""
    return importlib.import_module("atsaudit.command" if command == "audit" else "atslib.commands")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    return run_command(
        arguments,
        prog="python -m atslib",
        description=__doc__,
        commands=COMMANDS,
        moved=MOVED,
        functions=_functions,
    )


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
