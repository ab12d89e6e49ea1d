"""README and the book's first page: one template, `templates/start.md.jinja`, with numbers of stored results."""

from collections.abc import Sequence
from pathlib import Path

import jinja2

from atsbook.prose import FILTERS
from atsbook.texts.first_screen import (
    MISSING,
    WIDE,
    Numbers,
    in_cases,
    numbers,
    printed_ends,
    printed_score,
)
from atslib.errors import AtsError

TEMPLATES = Path(__file__).with_name("templates")


def rendered(template: str, **values: object) -> str:
    """A template of this folder with these values, and the filters of a page's text (`prose`); a value
    that it names and is not there is an error.
    """
    place = jinja2.FileSystemLoader(TEMPLATES, encoding="utf-8")
    options = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    # Markdown, not HTML: nothing is escaped
    texts = jinja2.Environment(loader=place, undefined=jinja2.StrictUndefined, **options)
    texts.filters |= FILTERS
    return texts.get_template(template).render(values, claim=claim)


def claim(sentence: str, holds: bool) -> str:
    """A sentence of a template that must be true of the results.

    Raises:
        AtsError: it is not.
    """
    if not holds:
        raise AtsError(
            f"a text says {sentence!r}, and the results no longer do: reword it in {TEMPLATES.name}/"
        )
    return sentence


def start(results: Path, *, book: bool) -> str:
    """README, or with `book` the book's first page, in Markdown."""
    known = numbers(results)
    values = {
        "answer": answer(known),
        "cells": cells(known),
        "gradients": known.gradients,
        "hinders": _hinders(known),
        "chance": known.chance,
        "printed": {source: _printed(source) for source in ("ats", "replication")},
    }
    return rendered("start.md.jinja", book=book, **values)


def shares(ends: Sequence[float] | None, form: str = "{:.0f} → {:.0f} %") -> str:
    """Two shares as percent; `MISSING` where there are none."""
    return form.format(*(100 * share for share in ends[:2])) if ends else MISSING


def cells(known: Numbers) -> dict[str, str]:
    """What was measured here, a cell of the first table each."""
    decibels = accuracy = score = MISSING
    if known.as_published:
        decibels = "{:.1f} → {:.1f} dB (n = {})".format(*known.as_published)
    if wide := known.wide:
        accuracy = f"{wide.none:.1f} → {wide.hybrid:.1f} %"
    if "psnr" in known.score:
        score = "{:.2f} [{:.2f}, {:.2f}]".format(*known.score["psnr"]).replace("-", "−")
    return {
        "untrained_lenet": shares(known.found.get("untrained LeNet")),
        "best": in_cases(known.best),
        "tried": tried(known),
        "summed": shares(known.summed),
        "untrained_wide": shares(known.found.get(f"untrained {WIDE}")),
        "trained_wide": shares(known.found.get(f"trained {WIDE}")),
        "trained_lenet": in_cases(known.best_late)
        if known.best_late
        else shares(known.found.get("trained LeNet")),
        "late": bool(known.best_late),
        "best_narrow": shares(known.best_narrow) if known.best_narrow else "",
        "by_rule": in_cases(known.by_rule),
        "gradients": shares(known.gradients),
        "compared_on": known.gradients[2] if known.gradients else "LeNet",
        "psnr": decibels,
        "accuracy": accuracy,
        "score": score,
    }


def tried(known: Numbers) -> str:
    """How many attacks the strongest is of."""
    return "several" if known.tried is None else f"{known.tried}"


def what_it_costs(known: Numbers) -> str:
    """The accuracy without a policy and with the paper's, and that after longer trainings, in words."""
    words, before = [], None
    for each in known.learned:
        where = f" on a {each.network}" if each.network != before else ""
        after = f" after {each.epochs}{'' if words else ' epochs'}"
        words.append(f"{each.none:.1f} → {each.hybrid:.1f} %{where}{after}")
        before = each.network
    return ", ".join(words)


def points_lost(known: Numbers) -> str:
    """Points of accuracy that the paper's policy takes, from the least to the most of the networks."""
    points = [each.none - each.hybrid for each in known.learned]
    return f"{min(points):.1f} to {max(points):.1f}".replace("-", "−")


def answer(known: Numbers) -> dict[str, str] | None:
    """The numbers of README's answer; None until all of them are there."""
    needed = {"untrained LeNet", f"untrained {WIDE}"}
    if not (needed <= set(known.found) and known.best and known.learned):
        return None
    best_bare, best_hidden, attacks = known.best
    before, after = printed_ends("ats", "Table 1a", "val_accuracy_pct")
    return {
        "best_bare": f"{best_bare}",
        "best_hidden": f"{best_hidden}",
        "attacks": f"{attacks}",
        "tried": tried(known),
        "almost_all": best_hidden > 0.9 * attacks,
        "points_lost": points_lost(known),
        "paper_gains": f"{after - before:+.1f}".replace("-", "−"),
    }


def _hinders(known: Numbers) -> bool:
    """Whether fewer are found behind the policy on every untrained network but the LeNet."""
    others = known.found.keys() - {"untrained LeNet"}
    pairs = [known.found[name] for name in others if name.startswith("untrained ")]
    pairs += [known.best_narrow] if known.best_narrow else []
    return all(hidden < bare for bare, hidden in pairs)


def _printed(source: str) -> dict[str, str]:
    """What a publication printed of the last three rows."""
    return {
        "psnr": "{:.2f} → {:.2f} dB".format(*printed_ends(source, "Table 1a", "PSNR_dB")),
        "accuracy": "{:.1f} → {:.1f} %".format(
            *printed_ends(source, "Table 1a", "val_accuracy_pct")
        ),
        "score": f"{printed_score(source):.3f}",
    }
