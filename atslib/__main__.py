"""`python -m atslib`: make the report, attack and search from the shell, measure speed, look after data and store."""

import argparse
import math
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from atslib.errors import AtsError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        """One sentence instead of the usage."""
        raise AtsError(f"{message}; `{self.prog} --help` says more")


class _Command(_Parser):
    """Takes its options before, between and after its names, as in `export --store S FILE`, in every Python."""

    mixed = False

    def parse_known_args(
        self, args: list[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple:
        if self.mixed:  # the method below calls this one
            return super().parse_known_args(args, namespace)
        self.mixed = True
        return self.parse_known_intermixed_args(args, namespace)


def _duration(text: str) -> float:
    """`90s`, `8m`, `2h` or plain seconds → seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 8m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _at_least(least: int) -> Callable[[str], int]:
    """The type of an option that is a whole number from `least` on."""

    def count(text: str) -> int:
        if not re.fullmatch(r"\d+", text, re.ASCII) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least {least}")
        return int(text)

    return count


def _number(low: float, high: float, words: str) -> Callable[[str], float]:
    """The type of an option that is a number above `low` and at most `high`, finite."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low < value <= high or math.isinf(value):
            raise argparse.ArgumentTypeError(f"{text!r} must be {words}")
        return value

    return number


_SHARE = _number(0, 1, "a number above 0 and at most 1")


def _option(*names: str, **how: object) -> tuple[tuple[str, ...], dict[str, object]]:
    return names, how


_OUT = {"type": Path, "required": True}
_STORE = _option(
    "--store",
    help="folder of artifacts, or an address such as s3://bucket/prefix; default $ATS_STORE or .store",
)
_MODEL = _option("--model", default="resnet20-4")
_PLACE = (
    _option("--seed", type=_at_least(0), default=0),
    _option("--device", default="auto", help="auto, cpu, cuda or cuda:1"),
)

# Of each command: what it does, what an interrupt leaves, and its options. The function of the same name in
# `atslib.commands` does it.
COMMANDS = {
    "run": (
        "compute pages, execute their notebooks, build the book",
        "what was finished is kept, run the same command to go on",
        _option(
            "names", nargs="*", help="pages, such as claim1_privacy; by default those of the book"
        ),
        _option("--profile", default="laptop", help="smoke, laptop (default) or full"),
        _option("--dataset", help="instead of the profile's; `shapes` needs no file"),
        _option(
            "--compute-only", action="store_true", help="write tables, execute and build nothing"
        ),
        _option(
            "--dry-run",
            action="store_true",
            help="only show what would be computed, with estimated times",
        ),
        _option(
            "--budget", type=_duration, help="stop cleanly within 90s, 8m or 2h; run again to go on"
        ),
        _option(
            "--jobs",
            type=_at_least(1),
            help="units and pages at once, one thread each; default: one per core",
        ),
        _option(
            "--scheduler",
            help="of Dask, whose workers compute: local, or an address such as tcp://10.0.0.5:8786",
        ),
        _STORE,
    ),
    "report": (
        "check the archived evidence, compute a random sample of it again, make the book from it",
        "nothing is kept but pages that were made",
        _option(
            "--seed", type=_at_least(0), help="of the sample; default: another one at every run"
        ),
        _option(
            "--minutes",
            type=_number(0, math.inf, "a number above 0"),
            default=3.0,
            help="that the sample may take; default 3",
        ),
        _option(
            "--jobs",
            type=_at_least(1),
            help="units and pages at once, one thread each; default: one per core",
        ),
    ),
    "train": (
        "train a network, with a policy or a defense, for `attack`",
        "finished epochs are kept, run the same command to go on",
        _option("--dataset", default="cifar100"),
        _MODEL,
        _option("--policy", default="", help="such as 3-1-7+43-18-18; none by default"),
        _option("--defense", default="", help="on every batch's gradient, such as prune:0.7"),
        _option(
            "--fraction", type=_SHARE, default=1.0, help="share of the training set, stratified"
        ),
        _option("--epochs", type=_at_least(1), default=60),
        *_PLACE,
        _option("--out", **_OUT, help="checkpoint, such as model.safetensors"),
    ),
    "attack": (
        "reconstruct images from their gradients",
        "its state is saved twice a minute; the last one, if there is one, is kept: run the same command to go on",
        _option("--dataset", default="cifar100"),
        _option("--split", default="test"),
        _option("--index", default="0-7", help="images: 5, 0-15 or 3,8,20-22"),
        _option("--policy", default="", help="such as 3-1-7 or 3-1-7+43-18-18; none by default"),
        _option(
            "--defense",
            default="",
            help="on the shared gradient, such as prune:0.7 or gaussian:1e-3",
        ),
        _option("--attack", default="adam-cosine", help="a preset's name"),
        _option("--steps", type=_at_least(1), help="instead of the preset's"),
        _option("--model", help="such as resnet20-1; default: the checkpoint's, else resnet20-4"),
        _option("--checkpoint", type=Path, help="safetensors weights; untrained without it"),
        _option("--crop-flip", action="store_true", help="random crop and flip before the policy"),
        _option(
            "--adaptive",
            action="store_true",
            help="also by servers that know the policy, and what it drew",
        ),
        *_PLACE,
        _option("--out", **_OUT, help="folder for table.csv, sheet.png, arrays.safetensors"),
    ),
    "export-attack": (
        "write an attack that runs in a reader's browser: one step as a graph, with an untrained or a trained network",
        "no graph is left",
        _option("--model", default="lenet"),
        _option(
            "--dataset",
            default="cifar100",
            help="whose images: their shape, classes and normalization",
        ),
        _option("--checkpoint", type=Path, help="safetensors weights; untrained without it"),
        _option(
            "--weights",
            choices=("f32", "f16"),
            default="f32",
            help="f16: half the size, weights rounded",
        ),
        *_PLACE,
        _option("--out", **_OUT, help="such as attack.json"),
    ),
    "search": (
        "search policies for a data set, or for an own folder of images",
        "finished scores are kept, run the same command to go on",
        _option(
            "--dataset", default="cifar100", help="a name, or a folder with a subfolder per class"
        ),
        _MODEL,
        _option("--policies", type=_at_least(1), default=1500, help="candidates drawn"),
        _option(
            "--images", type=_at_least(1), default=100, help="test images for the privacy score"
        ),
        _option(
            "--acc-images",
            type=_at_least(2),
            default=100,
            help="for the accuracy score; the paper: 1,000",
        ),
        _option("--sampler", default="uniform", choices=("uniform", "authors", "exhaustive")),
        _option(
            "--rungs",
            default="",
            help="halving, such as 10:0.25: after 10 images a quarter goes on",
        ),
        _option(
            "--attack-steps",
            type=_at_least(1),
            help="last rung: attack the best 2n candidates, so many steps",
        ),
        _option("--points", type=_at_least(2), default=21, help="of the similarity curve"),
        _option("--keep", type=_at_least(1), default=10, help="policies chosen"),
        _option(
            "--t-acc",
            type=_number(-math.inf, math.inf, "a number"),
            help="reject policies below this accuracy score; none by default",
        ),
        _option(
            "--fraction",
            type=_SHARE,
            help="training share; default 0.1 of a named data set, 1 of a folder",
        ),
        _option("--epochs", type=_at_least(1), default=50, help="of the semi-trained network"),
        _option(
            "--image-size",
            type=_at_least(1),
            help="side of a folder's images, in pixels; default 32",
        ),
        _option(
            "--fit",
            choices=("resize", "crop"),
            help="how a folder's images become square; default resize",
        ),
        *_PLACE,
        _STORE,
        _option("--out", **_OUT, help="such as policies.json; a .csv of all goes beside it"),
    ),
    "federated": (
        "train together on this machine, and keep what the server sees; needs `pip install 'atslib[federated]'`",
        "finished rounds are kept, run the same command to go on",
        _option("--dataset", default="cifar10"),
        _option("--model", default="convnet-16"),
        _option("--clients", type=_at_least(1), default=10),
        _option(
            "--alpha",
            type=_number(-1e-9, math.inf, "a number, at least 0"),
            default=0.0,
            help="0: equal shards",
        ),
        _option("--rounds", type=_at_least(1), default=1),
        _option(
            "--batch",
            type=_at_least(0),
            default=0,
            help="images of an answer; 0 (default): all of a client's",
        ),
        _option(
            "--lr",
            type=_number(0, math.inf, "a number above 0"),
            default=0.1,
            help="the server's, or the clients'",
        ),
        _option(
            "--defense", default="", help="of every client: a policy such as 3-1-7, or prune:0.7"
        ),
        _option(
            "--local-epochs",
            type=_at_least(0),
            default=0,
            help="FedAvg; 0 (default): one gradient, FedSGD",
        ),
        _option(
            "--fraction",
            type=_SHARE,
            default=1.0,
            help="share of the training set that is dealt out",
        ),
        _option(
            "--secure",
            action="store_true",
            help="secure aggregation: the server sees the sum of all answers",
        ),
        _option("--jobs", type=_at_least(1), default=2, help="clients at once; default 2"),
        _option("--seed", type=_at_least(0), default=0),
        _option("--out", **_OUT, help="folder of what the server sees"),
    ),
    "bench": (
        "speed, mostly against a plain loop; one JSON line each",
        "lines that were printed are kept in --out",
        _option(
            "what", choices=("attack", "scores", "adaptive", "labels", "weights", "forms", "costs")
        ),
        _option("--model", help="such as resnet20-4; default: the reference sizes"),
        _option("--members", type=_at_least(1), help="attacks in the batch, or images scored"),
        _option("--device", default="cpu"),
        _option(
            "--out", type=Path, help="append the lines to this file, such as results/speed.jsonl"
        ),
    ),
    "archive": (
        "the evidence in results/units: take in a store's units, or check it",
        "units that were taken in are kept",
        _option("action", choices=("write", "verify")),
        _STORE,
    ),
    "pack": (
        "pack an official copy of a data set that is already on disk",
        "a split that was packed is kept",
        _option("dataset", help="cifar100, cifar10, fmnist or tinyimagenet"),
        _option(
            "source", type=Path, help="torchvision's folder, or Stanford's zip of Tiny ImageNet"
        ),
        _option("--root", type=Path, help="where to; default $ATS_DATA or ~/.cache/atslib"),
    ),
    "store": (
        "list, check and move artifacts",
        "artifacts that were taken in are kept, no archive is left",
        _option("action", choices=("list", "verify", "export", "import")),
        _option("file", nargs="?", type=Path, help="archive of export and import"),
        _STORE,
    ),
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = _Parser(prog="python -m atslib", description=__doc__)
    commands = top.add_subparsers(
        required=True, metavar="command", dest="command", parser_class=_Command
    )
    for name, (purpose, _, *options) in COMMANDS.items():
        command = commands.add_parser(name, help=purpose, description=purpose)
        for names, how in options:
            command.add_argument(*names, **how)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status. A wrong input is one line on stderr, never a traceback."""
    args = None
    try:
        args = parser().parse_args(arguments)
        from atslib import commands  # after parsing: torch takes seconds to import

        if arguments is None:  # not where tests and notebooks call this function
            commands.keep_memory()
        return getattr(commands, args.command.replace("-", "_"))(args) or 0
    except AtsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            f"interrupted; {COMMANDS[args.command][1]}" if args else "interrupted", file=sys.stderr
        )
        return 130


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(
            errors="replace"
        )  # a terminal without our arrows shows ?, not a traceback
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    sys.exit(main())
