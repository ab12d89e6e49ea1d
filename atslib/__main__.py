"""`python -m atslib`: train, attack and search from the shell, and look after data."""

import importlib
import math
import sys
from pathlib import Path
from types import ModuleType

from atslib.errors import AtsError
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
    "train": (
        "train a network, with a policy or a defense, for `attack`",
        "finished epochs are kept, run the same command to go on",
        DATA,
        SIZE,
        option("--model", default="resnet20-4", help="a name, or file.py:name"),
        option("--policy", default="", help="such as 3-1-7+43-18-18; none by default"),
        option(
            "--defense",
            default="",
            help="on every batch's gradient, such as prune:0.7, or file.py:name",
        ),
        option("--fraction", type=SHARE, default=1.0, help="share of the training set, stratified"),
        option("--epochs", type=at_least(1), default=60),
        *PLACE,
        option("--out", **OUT, help="checkpoint, such as model.safetensors"),
    ),
    "attack": (
        "reconstruct images from their gradients",
        "its state is saved twice a minute; the last one, if there is one, is kept: run the same command to go on",
        DATA,
        option("--split", default="test"),
        SIZE,
        option("--index", default="0-7", help="images: 5, 0-15 or 3,8,20-22"),
        option("--policy", default="", help="such as 3-1-7 or 3-1-7+43-18-18; none by default"),
        option(
            "--defense",
            default="",
            help="on the shared gradient, such as prune:0.7 or gaussian:1e-3, or file.py:name",
        ),
        option("--attack", default="adam-cosine", help="a preset's name, or file.py:name"),
        option("--steps", type=at_least(1), help="instead of the preset's"),
        option(
            "--model",
            help="such as resnet20-1, or file.py:name; default: the checkpoint's, else resnet20-4",
        ),
        option("--checkpoint", type=Path, help="safetensors weights; untrained without it"),
        option("--crop-flip", action="store_true", help="random crop and flip before the policy"),
        option(
            "--adaptive",
            action="store_true",
            help="also by servers that know the policy, and what it drew",
        ),
        *PLACE,
        option("--out", **OUT, help="folder for table.csv, sheet.png, arrays.safetensors"),
    ),
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
            help="safetensors, or a state dict that torch saved; untrained without them",
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
    "export-attack": (
        "write an attack that runs in a reader's browser: one step as a graph, with an untrained or a trained network",
        "no graph is left",
        option("--model", default="lenet"),
        option(
            "--dataset",
            default="cifar100",
            help="whose images: their shape, classes and normalization",
        ),
        option("--checkpoint", type=Path, help="safetensors weights; untrained without it"),
        option(
            "--weights",
            choices=("f32", "f16"),
            default="f32",
            help="f16: half the size, weights rounded",
        ),
        *PLACE,
        option("--out", **OUT, help="such as attack.json"),
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
    "federated": (
        "train together on this machine, and keep what the server sees; needs `pip install 'atslib[federated]'`",
        "finished rounds are kept, run the same command to go on",
        option(
            "--dataset", default="cifar10", help="a name, or a folder with a subfolder per class"
        ),
        SIZE,
        option("--model", default="convnet-16", help="a name, or file.py:name"),
        option("--clients", type=at_least(1), default=10),
        option(
            "--alpha",
            type=number_between(-1e-9, math.inf, "a number, at least 0"),
            default=0.0,
            help="0: equal shards",
        ),
        option("--rounds", type=at_least(1), default=1),
        option(
            "--batch",
            type=at_least(0),
            default=0,
            help="images of an answer; 0 (default): all of a client's",
        ),
        option(
            "--lr",
            type=number_between(0, math.inf, "a number above 0"),
            default=0.1,
            help="the server's, or the clients'",
        ),
        option(
            "--defense",
            default="",
            help="of every client: a policy such as 3-1-7, or prune:0.7, or file.py:name",
        ),
        option(
            "--local-epochs",
            type=at_least(0),
            default=0,
            help="FedAvg; 0 (default): one gradient, FedSGD",
        ),
        option(
            "--fraction",
            type=SHARE,
            default=1.0,
            help="share of the training set that is dealt out",
        ),
        option(
            "--secure",
            action="store_true",
            help="secure aggregation: the server sees the sum of all answers",
        ),
        option("--jobs", type=at_least(1), default=2, help="clients at once; default 2"),
        option("--seed", type=at_least(0), default=0),
        option("--out", **OUT, help="folder of what the server sees"),
    ),
    "pack": (
        "pack an official copy of a data set that is already on disk",
        "a split that was packed is kept",
        option("dataset", help="cifar100, cifar10, fmnist or tinyimagenet"),
        option(
            "source", type=Path, help="torchvision's folder, or Stanford's zip of Tiny ImageNet"
        ),
        option("--root", type=Path, help="where to; default $ATS_DATA or ~/.cache/atslib"),
    ),
}

BOOK = "python -m atsbook"
MOVED = dict.fromkeys(("run", "report", "bench", "archive", "store"), BOOK)
# Commands whose function is in another module: that one, and what it needs.
ELSEWHERE = {
    "audit": ("atslib.audit.command", ""),
    "federated": ("atsfed.command", "the package atsfed: pip install 'atslib[federated]'"),
    "export-attack": ("atsbook.commands", "the project's checkout, in whose folder it is called"),
}


def _functions(command: str) -> ModuleType:
    """The module whose function does a command."""
    home, needs = ELSEWHERE.get(command, ("atslib.commands", ""))
    try:
        return importlib.import_module(home)
    except ModuleNotFoundError as error:
        if not needs or str(error.name).split(".")[0] != home.split(".")[0]:
            raise
        raise AtsError(f"{command} needs {needs}") from None


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
