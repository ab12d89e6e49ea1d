"""A piece of a page that needs no kernel, no network and no other file: script, style, data and a
still picture.
"""

import base64
import html
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

HERE = Path(__file__).parent


def source(*files: str) -> str:
    """The text of files beside this one, one after the other: one ES module, or one style sheet."""
    return "\n".join((HERE / file).read_text(encoding="utf-8") for file in files)


def data_uri(content: bytes, kind: str) -> str:
    """A file of that media type within an address."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def png(figure: Figure, *, dpi: int = 100) -> bytes:
    """The figure as a PNG of 128 colours; it is closed, so that a notebook does not show it again."""
    buffer = io.BytesIO()
    small = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    plt.close(figure)
    Image.open(buffer).convert("RGB").quantize(128, method=Image.Quantize.MEDIANCUT).save(
        small, "PNG", optimize=True
    )
    return small.getvalue()


def element(
    payload: dict,
    kind: str,
    *,
    still: bytes,
    alt: str,
    scripts: Sequence[str],
    styles: Sequence[str],
    kinds: Iterable[str],
) -> str:
    """HTML in which `kind(host, payload)`, a function of the scripts, draws; else the still picture
    is seen.

    Its style and its script are the same for all `kinds`, and the script draws all that it finds: a
    page needs either once, and the book leaves out the others.

    Args:
        payload: what JSON can hold; its `where` follows `alt` below the still picture.
        kind: the function, one of `kinds`.
        still: a PNG for paper, and where no script runs.
        alt: what the picture shows.
        scripts, styles: files of this folder.
    """
    data = json.dumps(payload, separators=(",", ":"), allow_nan=False).replace(
        "<", "\\u003c"
    )  # cannot end the script
    picture = base64.b64encode(still).decode()
    return (
        f'<div data-ats="{kind}"><style>{source(*styles)}</style>'
        f'<figure class="ats-static"><img alt="{html.escape(alt)}" src="data:image/png;base64,{picture}">'
        f"<figcaption>{html.escape(alt)}. {html.escape(payload['where'])}.</figcaption></figure>"
        f'<script type="application/json">{data}</script><script type="module">{source(*scripts)}\n'
        f'for (const host of document.querySelectorAll("[data-ats]")) {{\n'
        f"  const draw = {{ {', '.join(kinds)} }}[host.dataset.ats];\n"
        "  if (!draw) continue; // of another script\n"
        "  delete host.dataset.ats;\n"
        '  draw(host, JSON.parse(host.querySelector("script").textContent));\n}</script></div>'
    )
