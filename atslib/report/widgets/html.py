"""A piece of a page that needs no kernel, no network and no other file: script, style, data and a still picture."""

import base64
import hashlib
import html
import io
import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

HERE = Path(__file__).parent
EXPLORER, EXPLORER_STYLES = ("common.js", "explorer.js"), ("explorer.css",)  # `mount` for pages, `render` for anywidget


def source(*files: str) -> str:
    """The text of files beside this one, one after the other: one ES module, or one style sheet."""
    return "\n".join((HERE / file).read_text(encoding="utf-8") for file in files)


def data_uri(content: bytes, kind: str) -> str:
    """A file of that media type within an address."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def png(figure: Figure, *, dpi: int = 100) -> bytes:
    """The figure as a PNG of 128 colours; it is closed, so that a notebook does not show it again."""
    buffer, small = io.BytesIO(), io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    plt.close(figure)
    Image.open(buffer).convert("RGB").quantize(128, method=Image.Quantize.MEDIANCUT).save(small, "PNG", optimize=True)
    return small.getvalue()


def element(
    payload: dict, *, still: bytes, alt: str, scripts: Sequence[str], styles: Sequence[str], mount: str = "mount"
) -> str:
    """HTML in which `mount(host, payload)`, a function of the scripts, draws; else the still picture is seen.

    Args:
        payload: what JSON can hold; its `where` follows `alt` below the still picture.
        still: a PNG for paper, and where no script runs.
        alt: what the picture shows.
        scripts, styles: files of this folder.
    """
    key = f"ats-{hashlib.sha256(json.dumps([mount, payload], sort_keys=True).encode()).hexdigest()[:10]}"
    data = json.dumps(payload, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")  # cannot end the script
    picture = base64.b64encode(still).decode()
    return (
        f'<div id="{key}"><style>{source(*styles)}</style>'
        f'<figure class="ats-static"><img alt="{html.escape(alt)}" src="data:image/png;base64,{picture}">'
        f"<figcaption>{html.escape(alt)}. {html.escape(payload['where'])}.</figcaption></figure>"
        f'<script type="application/json">{data}</script><script type="module">{source(*scripts)}\n'
        f'const host = document.getElementById("{key}");\n'
        f'{mount}(host, JSON.parse(host.querySelector("script").textContent));</script></div>'
    )
