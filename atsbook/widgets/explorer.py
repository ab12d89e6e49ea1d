"""The explorer as HTML: one ES module, its style, its data and a still picture, all within the
page.
"""

import base64
import dataclasses
import importlib.util
import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from atsbook.figures import plots
from atsbook.runs.settings import Settings
from atsbook.store import Store
from atsbook.widgets import html

STILL_IMAGES = 6  # columns of the still picture


def pictures(payload: dict, name: str) -> Tensor:
    """The pictures of one image sheet, (R, N, C, H, W) uint8; the inverse of `figures.sheets.sheet`."""
    channels, height, width = payload["size"]
    data = base64.b64decode(payload["files"][name].split(",", 1)[1])
    grey = torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert("L")))
    rows = grey.shape[0] // (channels * height)
    columns = grey.shape[1] // width
    return grey.reshape(channels, rows, height, columns, width).permute(1, 3, 0, 2, 4).contiguous()


def still(payload: dict) -> bytes:
    """A PNG of the explorer's first attack without a policy and with the last one: for paper, and
    without scripts.
    """
    clients = pictures(payload, "images.webp")[:, :STILL_IMAGES]
    rows = {"original": clients[0]}
    for p in (0, len(payload["policies"]) - 1):
        name = payload["policies"][p]["id"]
        rows[f"{name},\nused"] = clients[1 + p]
        rows[f"{name},\nfound"] = pictures(payload, f"0-{p}.webp")[:STILL_IMAGES, -1]
    return html.png(plots.sheet(rows), dpi=150)


def to_html(payload: dict) -> str:
    """The explorer as a piece of HTML that needs no kernel, no network and no other file.

    Where no script runs, and on paper, it is the still picture with its description.
    """
    first, last = (payload["policies"][p]["id"] for p in (0, -1))
    alt = (
        f"Test images, what the client used and what the attacker found, with policy {first} and with policy {last}; "
        f"attack {payload['attacks'][0]['id']}, last step"
    )
    look = {"scripts": html.EXPLORER, "styles": html.EXPLORER_STYLES, "kinds": ("mount",)}
    return html.element(payload, "mount", still=still(payload), alt=alt, **look)


@dataclasses.dataclass(frozen=True, repr=False)
class Page:
    """What a notebook shows of a payload: HTML, with a representation that is the same in each run."""

    payload: dict

    def __repr__(self) -> str:
        images = len(self.payload["images"])
        policies = len(self.payload["policies"])
        return f"Explorer of {images} images under {policies} policies"

    def _repr_html_(self) -> str:
        return to_html(self.payload)


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


def show(payload: dict, settings: Settings, store: Store) -> object:
    """The explorer of a payload: with a reader at a kernel and anywidget installed the live one,
    else the page.
    """
    if not person_is_there() or importlib.util.find_spec("anywidget") is None:
        return Page(payload)
    from atsbook.widgets.jupyter import ExplorerWidget

    return ExplorerWidget(payload, settings, store)
