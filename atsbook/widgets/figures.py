"""Figures that a reader touches: a ranking, a scatter, and an attack in the reader's browser.

Each is a payload of `data` with a still twin, the page's ordinary figure, for paper and for
where no script runs; its description is what a screen reader says of it there.
"""

import dataclasses

from matplotlib.figure import Figure as Drawing

from atsbook.widgets import html
from atslib.errors import choose

KINDS = {
    "ranking": "Ranking of {rows} transformations",
    "scatter": "Scatter of {points} policies",
    "attack": "Attack in the browser on {images} images",
    "trial": "Attack in the browser to try",
}
# All, so that a page needs them once.
SCRIPTS = ("common.js", "operations.js", "figures.js", "attack.js")
STYLES = ("explorer.css", "figures.css")


@dataclasses.dataclass(frozen=True, repr=False)
class Figure:
    """What a notebook shows: HTML, with a representation that is the same in each run.

    Attributes:
        kind: one of `KINDS`.
        payload: from the function of that name in `data`.
        still: a PNG.
        alt: what the still picture shows, a sentence without its full stop.
    """

    kind: str
    payload: dict
    still: bytes
    alt: str

    def __post_init__(self) -> None:
        choose("kind", self.kind, KINDS)

    def __repr__(self) -> str:
        counts = {
            name: len(value) for name, value in self.payload.items() if isinstance(value, list)
        }
        return KINDS[self.kind].format(**counts)

    def _repr_html_(self) -> str:
        look = {"scripts": SCRIPTS, "styles": STYLES, "kinds": KINDS}
        return html.element(self.payload, self.kind, still=self.still, alt=self.alt, **look)


def interactive(kind: str, payload: dict, drawing: Drawing, *, alt: str) -> Figure:
    """The figure of `kind` with `drawing` as its still twin, which is closed.

    Raises:
        AtsError: an unknown kind.
    """
    return Figure(kind, payload, html.png(drawing), alt)


def person_is_there() -> bool:
    """Whether this code runs in a notebook that can ask its reader something: not papermill, not a
    test.
    """
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    # What the front end said with its last request; machines that execute notebooks say no.
    return bool(getattr(getattr(get_ipython(), "kernel", None), "_allow_stdin", False))
