"""The Deviations page: where paper, codes and replication differ, and what that changes here, in numbers
that the pages export (`effects`).
"""

import functools
from collections.abc import Callable
from pathlib import Path

from atsbook.findings.newest import exported
from atsbook.texts.first_screen import MISSING
from atsbook.texts.start import rendered
from atslib.errors import choose


def deviations(results: Path) -> str:
    """The page as MyST Markdown."""
    return rendered("deviations.md.jinja", measured=functools.partial(_measured, results))


def _measured(results: Path, page: str, *names: str, caller: Callable[..., str]) -> str:
    """A sentence of the template, with a page's effects of these names and where they were measured;
    `MISSING` where the page's run does not have all of them.

    Args:
        caller: makes the sentence of the effects.
    Raises:
        AtsError: the page exports its effects, and none of such a name.
    """
    known = exported(page, results).get("effects")
    if known is None:
        return MISSING
    for name in names:
        choose(f"effect of {page}", name, known)
    effects = [known[name] for name in names]
    if None in effects:
        return MISSING
    run = known["where"]
    where = f"{run['dataset']}, {run['model']}, n = {run['photographs']}, {run['profile']}"
    return f"{caller(*effects)} ([{where}](results/{page}.ipynb))"
