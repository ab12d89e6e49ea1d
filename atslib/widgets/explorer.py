"""The explorer as HTML: one ES module, its style, its data and a still picture, all within the page."""

import base64
import dataclasses
import hashlib
import html
import importlib.util
import io
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from atslib import plots
from atslib.experiments.explorer import Explorer
from atslib.experiments.settings import Settings
from atslib.store import Store

HERE = Path(__file__).parent
STILL_IMAGES = 6  # columns of the still picture


def script() -> str:
    """The ES module that draws the explorer: `mount` for pages, `render` for anywidget."""
    return (HERE / "explorer.js").read_text(encoding="utf-8")


def style() -> str:
    """Its style sheet."""
    return (HERE / "explorer.css").read_text(encoding="utf-8")


def pictures(payload: dict, name: str) -> Tensor:
    """The pictures of one image sheet, (R, N, C, H, W) uint8; the inverse of `experiments.explorer.sheet`."""
    channels, height, width = payload["size"]
    data = base64.b64decode(payload["files"][name].split(",", 1)[1])
    grey = torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert("L")))
    rows, columns = grey.shape[0] // (channels * height), grey.shape[1] // width
    return grey.reshape(channels, rows, height, columns, width).permute(1, 3, 0, 2, 4).contiguous()


def still(payload: dict) -> bytes:
    """A PNG of the explorer's first attack without a policy and with the last one: for paper, and without scripts."""
    clients = pictures(payload, "images.webp")[:, :STILL_IMAGES]
    rows = {"original": clients[0]}
    for p in (0, len(payload["policies"]) - 1):
        name = payload["policies"][p]["id"]
        rows[f"{name},\nused"] = clients[1 + p]
        rows[f"{name},\nfound"] = pictures(payload, f"0-{p}.webp")[:STILL_IMAGES, -1]
    figure, buffer = plots.sheet(rows), io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    plt.close(figure)
    small = io.BytesIO()
    Image.open(buffer).convert("RGB").quantize(128, method=Image.Quantize.MEDIANCUT).save(small, "PNG", optimize=True)
    return small.getvalue()


def to_html(payload: dict) -> str:
    """The explorer as a piece of HTML that needs no kernel, no network and no other file.

    Where no script runs, and on paper, it is the still picture with its description.
    """
    key = f"ats-{hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()[:10]}"
    data = json.dumps(payload, separators=(",", ":")).replace("<", "\\u003c")  # nothing may end the script element
    first, last = (payload["policies"][p]["id"] for p in (0, -1))
    alt = (
        f"Test images, what the client used and what the attacker found, with policy {first} and with policy {last}; "
        f"attack {payload['attacks'][0]['id']}, last step"
    )
    picture = base64.b64encode(still(payload)).decode()
    return (
        f'<div id="{key}"><style>{style()}</style>'
        f'<figure class="ats-static"><img alt="{html.escape(alt)}" src="data:image/png;base64,{picture}">'
        f"<figcaption>{html.escape(alt)}. {html.escape(payload['where'])}.</figcaption></figure>"
        f'<script type="application/json">{data}</script><script type="module">{script()}\n'
        f'const host = document.getElementById("{key}");\n'
        'mount(host, JSON.parse(host.querySelector("script").textContent));</script></div>'
    )


@dataclasses.dataclass(frozen=True, repr=False)
class Page:
    """What a notebook shows of a payload: HTML, with a representation that is the same in each run."""

    payload: dict

    def __repr__(self) -> str:
        images, policies = len(self.payload["images"]), len(self.payload["policies"])
        return f"Explorer of {images} images under {policies} policies"

    def _repr_html_(self) -> str:
        return to_html(self.payload)


def person_is_there() -> bool:
    """Whether this code runs in a notebook that can ask its reader something: not papermill, not a test."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    # What the front end said with its last request; machines that execute notebooks say no.
    return bool(getattr(getattr(get_ipython(), "kernel", None), "_allow_stdin", False))


def show(result: Explorer, settings: Settings, store: Store) -> object:
    """The explorer of a result: with a reader at a kernel and anywidget installed the live one, else the page."""
    if not person_is_there() or importlib.util.find_spec("anywidget") is None:
        return Page(result.payload)
    from atslib.widgets.jupyter import ExplorerWidget

    return ExplorerWidget(result.payload, settings, store)
