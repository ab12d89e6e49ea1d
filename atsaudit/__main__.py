"""`python -m atsaudit`: how much your own network gives away."""

import argparse
import importlib
import math
from pathlib import Path

from atslib.shell import (
    OUT,
    PLACE,
    at_least,
    duration,
    number_between,
    option,
    run_program,
    start,
)

# What it does, what an interrupt leaves, and its options.
COMMAND = (
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
        help="such as 'found<=5%%', or 'named<=5%%' for a server that holds the photographs; exit status 0 within it, 3 "
        "above it, 4 cannot tell",
    ),
    option(
        "--budget",
        type=duration,
        default=600.0,
        help="time for all of it, such as 90s, 10m or 2h; default 10m",
    ),
    option(
        "--thorough",
        action="store_true",
        help="take the time also where a few photographs show beyond doubt that the limit is exceeded",
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
)


def main(arguments: list[str] | None = None) -> int:
    """Run the audit; the exit status: 0 within the limit or none set, 3 above it, 4 cannot tell, 2 a
    wrong input.
    """
    return run_program(arguments, prog="python -m atsaudit", command=COMMAND, function=_audit)


def _audit(args: argparse.Namespace) -> int:
    # Once the options were read, because torch takes seconds to import.
    return importlib.import_module("atsaudit.command").audit(args)


def script() -> None:
    """What the command `atsaudit` runs: `main` in a process of its own."""
    start(main)


if __name__ == "__main__":
    script()
