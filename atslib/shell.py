"""What the command lines of this project share: options, errors in one sentence, exit codes."""

import argparse
import math
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from atslib.errors import AtsError

# Of each command: what it does, what an interrupt leaves, and its options.
Commands = Mapping[str, tuple]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        """One sentence instead of the usage."""
        raise AtsError(f"{message}; `{self.prog} --help` says more")


class _Command(_Parser):
    """Takes its options before, between and after its names, as in `export --store S FILE`, in
    every Python.
    """

    mixed = False

    def parse_known_args(
        self, args: list[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple:
        if self.mixed:  # the method below calls this one
            return super().parse_known_args(args, namespace)
        self.mixed = True
        return self.parse_known_intermixed_args(args, namespace)


def duration(text: str) -> float:
    """`90s`, `8m`, `2h` or plain seconds → seconds."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]+)?)([smh]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 8m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option that is a whole number from `least` on."""

    def count(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,15}", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least {least}")
        return int(text)

    return count


def number_between(low: float, high: float, words: str) -> Callable[[str], float]:
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


SHARE = number_between(0, 1, "a number above 0 and at most 1")


def option(*names: str, **how: object) -> tuple[tuple[str, ...], dict[str, object]]:
    """An option of a command: its names, and what `argparse.add_argument` takes by name."""
    return names, how


OUT = {"type": Path, "required": True}
MODEL = option("--model", default="resnet20-4")
PLACE = (
    option("--seed", type=at_least(0), default=0),
    option("--device", default="auto", help="auto, cpu, cuda or cuda:1"),
)


def say(line: str) -> None:
    """One line for a person, on stderr: stdout is for results."""
    print(line, file=sys.stderr, flush=True)


def check_out(path: Path, *, folder: bool = False, name: str = "--out") -> None:
    """Raise `AtsError` if `path` cannot be written; commands ask before they compute.

    Nothing is left there.
    """
    if path.exists() and path.is_dir() != folder:
        raise AtsError(
            f"{name} {path} is a {'file, give a folder' if folder else 'folder, give a file in it'}"
        )
    place = next(place for place in (*[path][:folder], *path.absolute().parents) if place.exists())
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise AtsError(f"{name} {path} cannot be written in {place}: {error.strerror}") from None


def parser(prog: str, description: str, commands: Commands) -> argparse.ArgumentParser:
    """The command line of a program with these commands."""
    top = _Parser(prog=prog, description=description)
    below = top.add_subparsers(
        required=True, metavar="command", dest="command", parser_class=_Command
    )
    for name, (purpose, _, *options) in commands.items():
        command = below.add_parser(name, help=purpose, description=purpose)
        for names, how in options:
            command.add_argument(*names, **how)
    return top


def run_command(
    arguments: list[str] | None,
    *,
    prog: str,
    description: str,
    commands: Commands,
    moved: Mapping[str, str],
    functions: Callable[[str], ModuleType],
) -> int:
    """Run one of a program's commands; the exit status.

    Args:
        arguments: those of the process where it is None.
        moved: names of commands that are elsewhere now, and what to type there.
        functions: gives the module whose function of a command's name (with _ for -) does it;
            called once the options were read, because torch takes seconds to import.
    """
    words = sys.argv[1:] if arguments is None else arguments

    def read() -> argparse.Namespace:
        if words and words[0] in moved:
            raise AtsError(f"{words[0]} is `{moved[words[0]]}` now")
        return parser(prog, description, commands).parse_args(words)

    def run(args: argparse.Namespace) -> int | None:
        return getattr(functions(args.command), args.command.replace("-", "_"))(args)

    return _run(
        words, arguments is None, read, run, interrupted=lambda args: commands[args.command][1]
    )


def run_program(
    arguments: list[str] | None,
    *,
    prog: str,
    command: tuple,
    function: Callable[[argparse.Namespace], int | None],
) -> int:
    """Run a program that does one thing; the exit status.

    Args:
        arguments: those of the process where it is None.
        command: what it does, what an interrupt leaves, and its options.
        function: does it.
    """
    words = sys.argv[1:] if arguments is None else arguments
    purpose, left, *options = command

    def read() -> argparse.Namespace:
        own = _Command(prog=prog, description=purpose)
        for names, how in options:
            own.add_argument(*names, **how)
        return own.parse_args(words)

    return _run(words, arguments is None, read, function, interrupted=lambda args: left)


def _run(
    words: list[str],
    alone: bool,
    read: Callable[[], argparse.Namespace],
    run: Callable[[argparse.Namespace], int | None],
    *,
    interrupted: Callable[[argparse.Namespace], str],
) -> int:
    """The exit status; a wrong input is one line on stderr, never a traceback.

    Args:
        words: what was typed.
        alone: whether the process is there for this; not where tests and notebooks call it.
        interrupted: what an interrupt leaves, in words.
    """
    args = None
    try:
        args = read()
        args.typed = words
        if alone:
            from atslib.gradients.cpu import keep_memory

            keep_memory()
        return run(args) or 0
    except AtsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; {interrupted(args)}" if args else "interrupted", file=sys.stderr)
        return 130


def start(main: Callable[[], int]) -> None:
    """End the process with what `main` returns; warnings are one line, and no terminal stops it."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(
            errors="replace"
        )  # a terminal without our arrows shows ?, not a traceback
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    sys.exit(main())
