"""A page's prose: its Markdown cells are written by people, with numbers of the page's code in them, and
what they claim is checked.

A Markdown cell of a notebook may hold `{{ name }}` for each number that the page exports
(`page.write_results`), with a filter for how it is written: `{{ found.hybrid | percent }} %`. When the
page is executed, numbers take these places, and each claim must be true of them.
"""

import math
from collections.abc import Callable, Mapping

import jinja2

from atslib.errors import AtsError

EXPORTED = "application/atsbook+json"  # of the output that holds a page's numbers and claims
SHIPS = {"profile": "laptop"}  # parameters of the book's own runs
MISSING = "–"  # a number that a smaller run does not have
WORDS = [
    *("none", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
]


def percent(share: float, digits: int = 0) -> str:
    """0.831 as 83; the sentence has its %."""
    return fixed(100 * share, digits)


def fixed(number: float, digits: int = 1) -> str:
    """With so many digits after the point, thousands parted, and a rounded 0 without a sign: 12,345.7."""
    return _written(number, f"z,.{digits}f")


def signed(number: float, digits: int = 1) -> str:
    """A change: +0.3 or −0.3."""
    return _written(number, f"+,.{digits}f")


def significant(number: float, digits: int = 2) -> str:
    """With so many digits that count: 0.00024, 2e-07."""
    return _written(number, f".{digits}g")


def level(value: Mapping[str, float], digits: int = 1) -> str:
    """A value with its 95 % interval: 1.9 [1.3, 2.5]."""
    middle, low, high = (fixed(value[end], digits) for end in ("mean", "low", "high"))
    return f"{middle} [{low}, {high}]"


def interval(change: Mapping[str, float], digits: int = 1) -> str:
    """A change with its 95 % interval, as of `page.as_change`: −1.9 [−2.4, −1.3]."""
    low, high = (fixed(change[end], digits) for end in ("low", "high"))
    return f"{signed(change['mean'], digits)} [{low}, {high}]"


def pair(ends: Mapping[str, float], digits: int = 0) -> str:
    """Two shares in percent, without a policy and with the paper's, as of `page.as_pair`: 97 → 83 %."""
    return f"{percent(ends['none'], digits)} → {percent(ends['hybrid'], digits)} %"


def in_words(number: int) -> str:
    """A small count: three."""
    return WORDS[number] if 0 <= number < len(WORDS) else fixed(number, 0)


def _written(number: float, form: str) -> str:
    if not math.isfinite(number):  # None is a TypeError by itself
        raise TypeError(f"{number} is not finite")
    text = format(number, form)
    return f"−{text[1:]}" if text.startswith("-") else text


class _Absent(jinja2.ChainableUndefined):
    """A number that this run does not have."""

    def __str__(self) -> str:
        return MISSING


def _or_missing(write: Callable[..., str]) -> Callable[..., str]:
    """A filter that writes a dash for a number which is not there or not finite."""

    def written(value: object, *how: int) -> str:
        try:
            return write(value, *how)
        except (TypeError, KeyError, jinja2.UndefinedError):
            return MISSING

    return written


FILTERS = {
    "percent": percent,
    "fixed": fixed,
    "signed": signed,
    "significant": significant,
    "level": level,
    "interval": interval,
    "pair": pair,
    "words": in_words,
}


def filled(text: str, numbers: Mapping[str, object], *, ships: bool) -> str:
    """Markdown with numbers in the places that it names.

    Args:
        ships: whether a number that is named and not there, or not finite, is an error; else a dash
            stands for it.
    Raises:
        AtsError: such a number, or no filter of that name.
    """
    kind = jinja2.StrictUndefined if ships else _Absent
    texts = jinja2.Environment(undefined=kind, keep_trailing_newline=True)
    texts.filters = FILTERS if ships else {name: _or_missing(f) for name, f in FILTERS.items()}
    try:
        return texts.from_string(text).render(numbers)
    except (jinja2.TemplateError, TypeError, KeyError) as error:
        start = " ".join(text.split())[:60]
        raise AtsError(
            f"the text {start!r}…: {error}; its page exports {', '.join(numbers)}"
        ) from None


def answer(top: str) -> str:
    """Of a page's first cell the text between its title and what is pasted: the answer."""
    return top.partition("\n")[2].partition("<!-- glue:")[0].strip()


def exported(notebook: Mapping) -> dict | None:
    """The numbers and claims of an executed notebook; None where it has none."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            if EXPORTED in output.get("data", {}):
                return output["data"][EXPORTED]
    return None


def fill(notebook: dict) -> list[str]:
    """Put the numbers of an executed notebook into its Markdown.

    A run that is not the book's own says below its title what is not true of it. So does one of the book's
    own where something is wrong.

    Returns:
        What is wrong with a page of the book: claims that are false, or that its text does not make, and
        numbers that its text names and that are not there. None of another run.
    """
    found = exported(notebook)
    if found is None:
        return []
    numbers, claims = found["numbers"], found["claims"]
    ships = notebook["metadata"].get("papermill", {}).get("parameters") == SHIPS
    markdown = [cell for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    texts = ["".join(cell["source"]) for cell in markdown]
    prose = _plain("\n".join(texts))
    faults = [
        f"a claim is not in the text: {sentence!r}"
        for sentence in claims
        if _plain(sentence) not in prose
    ]
    for cell, text in zip(markdown, texts, strict=True):
        try:
            cell["source"] = filled(text, numbers, ships=True)
        except AtsError as error:
            faults.append(str(error))
            cell["source"] = filled(text, numbers, ships=False)
    false = [
        filled(sentence, numbers, ships=False) for sentence, holds in claims.items() if not holds
    ]
    if false or (found["toy"] and not ships):
        markdown[0]["source"] = _with_note(markdown[0]["source"], found["toy"], false)
    return [*faults, *(f"not true of its results: {each!r}" for each in false)] if ships else []


def _plain(text: str) -> str:
    """Without what Markdown adds to the words, and in one line."""
    return " ".join(text.replace("*", "").split())


def _with_note(text: str, toy: bool, false: list[str]) -> str:
    """The first cell with what is to be known of another run than the book's, below its title."""
    note = []
    if toy:
        note.append(
            "**A toy run on drawn images: it shows that the page works, and proves nothing.**"
        )
    note.append("Sentences are those of the book's own run, with the numbers of this one.")
    if false:
        note.append(f"Not true here: “{'”; “'.join(map(_plain, false))}”.")
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{' '.join(note)}\n{rest}"
