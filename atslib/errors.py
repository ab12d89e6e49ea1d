"""`AtsError`, the one error that a user meets: it names the value, the rule and what is allowed."""

import dataclasses
import errno
import math
import os
from pathlib import Path
from textwrap import shorten

LONGEST = 1000  # characters of a sentence


class AtsError(ValueError):
    """A wrong input, said in one sentence.

    In a notebook only the sentence shows, not our call stack.

    Values that are shown in it, such as arrays, may have several lines: they are joined, and what
    is long is cut.
    """

    def __init__(self, said: object = ""):
        text = str(said)
        text = " ".join(text.split()) if len(text.splitlines()) > 1 else text
        super().__init__(
            text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"
        )

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class NotKept(AtsError):
    """The archive of evidence does not hold this: it is large, and only the rest of its unit of
    work was kept.
    """


class OutOfTime(Exception):
    """The time given to a long computation is over; its state is kept, and another call goes on
    with it.
    """


def choose(what: str, value: object, allowed: object) -> None:
    """Raise `AtsError` unless `value` is one of `allowed` (any container that can be listed)."""
    if not any(
        isinstance(value, type(one)) and value == one for one in allowed
    ):  # an array is equal to many things
        raise AtsError(f"{what} {value!r} is unknown; choose one of {', '.join(map(str, allowed))}")


_TYPES = {
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
    bool: (bool, "True or False"),
    str: (str, "text"),
}


def check_types(config: object) -> None:
    """Raise `AtsError` unless each field of a dataclass is of its default's kind: number, text or
    truth value.
    """
    for field in dataclasses.fields(config):
        if type(field.default) in _TYPES:
            (allowed, words) = _TYPES[type(field.default)]
            value = getattr(config, field.name)
            if not isinstance(value, allowed) or (isinstance(value, bool) and allowed is not bool):
                raise AtsError(f"{type(config).__name__}.{field.name}={value!r} must be {words}")
            if isinstance(value, float) and not math.isfinite(value):
                raise AtsError(f"{type(config).__name__}.{field.name}={value!r} must be finite")


def check_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raise `AtsError` unless `value` is a whole number from `least` to `most`, if there is one."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise AtsError(f"{name}={value!r} must be a whole number, at least {least}")
    if most is not None and value > most:
        raise AtsError(f"{name}={value} must be at most {most}")


def check_most(config: object, **most: int) -> None:
    """Raise `AtsError` where one of these fields of a dataclass is above its number.

    Such a run would only end when the memory, or the patience, of whoever began it does.
    """
    for field, limit in most.items():
        value = getattr(config, field)
        if value > limit:
            raise AtsError(f"{type(config).__name__}.{field}={value} must be at most {limit}")


def check_kind(name: str, value: object, kind: object, words: str) -> None:
    """Raise `AtsError` unless `value` is of a class, or of one of several; `words` say which: "an
    atslib.Policy".
    """
    if not isinstance(value, kind):
        raise AtsError(f"{name} {shorten(repr(value), 80, placeholder=' …')} must be {words}")


def as_path(name: str, value: object, *, optional: bool = False) -> Path | None:
    """The path that text or a path stands for; `AtsError` for anything else.

    None stays None where it is `optional`.
    """
    if value is None and optional:
        return None
    check_kind(name, value, str | os.PathLike, "a path, as text or a pathlib.Path")
    why = "empty" if value == "" else ""
    try:
        os.lstat(value)
    except OSError as error:
        why = "too long" if error.errno == errno.ENAMETOOLONG else why
    except ValueError as error:  # a zero byte
        why = str(error)
    if why:
        shown = shorten(repr(value), 80, placeholder=" …")
        raise AtsError(f"{name} {shown} cannot be a path: {why}")
    return Path(value)
