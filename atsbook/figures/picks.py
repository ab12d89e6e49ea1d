"""The measure in one picture, as SVG: a photograph, what the client used of it, what the server
rebuilt, which of the candidates that points to, and how many of all photographs are picked out.
"""

import base64
import dataclasses
import io
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from PIL import Image

TILE = 116
STEP = 138  # from one column of pictures to the next
SQUARES = 10  # in a row
WIDTH, FIRST, ROW = 756, 84, 150
# Letters of 20 are 9.5 pixels on a phone that shows the picture 360 wide
LETTERS = 20
HEADS = (
    ("the", "photograph"),
    ("what the", "client used"),
    ("what the", "server rebuilt"),
    ("its pick", "among {count}"),
)
PICKED, MISSED = "#2f7d4f", "#c8553d"
# Where the page gives no colours: a picture file on a page that may be light or dark
PAPER = '<rect width="100%" height="100%" rx="8" fill="#ffffff"/>'
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"


@dataclasses.dataclass(frozen=True)
class Side:
    """What is shown of one side, such as *without a policy*.

    Attributes:
        photograph, used, rebuilt, pick: (C, H, W), uint8 or numbers in [0, 1].
        right: whether the pick is the photograph.
        found: whether each of all photographs was picked out, in their order; the first is the one
            that is shown.
    """

    photograph: np.ndarray
    used: np.ndarray
    rebuilt: np.ndarray
    pick: np.ndarray
    right: bool
    found: Sequence[bool]


def picked(sides: Mapping[str, Side], candidates: int) -> str:
    """The picture, for a page whose font and text colour it takes.

    Args:
        sides: by what to call them, from above.
        candidates: of each pick.
    """
    height = FIRST + ROW * len(sides)
    said = "; ".join(
        f"{name}: {sum(side.found)} of {len(side.found)} picked out" for name, side in sides.items()
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picked" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(said)}" style="width: 100%; max-width: {WIDTH}px; height: auto" '
        f'fill="currentColor" font-size="{LETTERS}">'
    ]
    columns = [(TILE / 2 + STEP * column, lines) for column, lines in enumerate(HEADS)]
    columns.append((4 * STEP + WIDTH / 2 - 2 * STEP, ("picked out,", "of {count} photographs")))
    for x, lines in columns:
        for line, text in enumerate(lines):
            count = len(next(iter(sides.values())).found) if x > 4 * STEP else candidates
            parts.append(_text(x, LETTERS * (1 + 1.1 * line), text.format(count=count)))
    for row, (name, side) in enumerate(sides.items()):
        top = FIRST + ROW * row
        parts.append(_text(0, top - 9, name, anchor="start", weight=600))
        pictures = (side.photograph, side.used, side.rebuilt, side.pick)
        parts += [_tile(picture, STEP * column, top) for column, picture in enumerate(pictures)]
        parts.append(_frame(side.right, 3 * STEP, top))
        parts += _squares(side.found, 4 * STEP, top)
        parts.append(
            _text(WIDTH, top + TILE / 2 + 15, sum(side.found), anchor="end", weight=600, size=44)
        )
    return "".join([*parts, "</svg>"])


def on_paper(picture: str) -> str:
    """`picked` as a file of its own, with a light ground that goes with any page."""
    head, _, rest = picture.partition(">")
    head = head.replace("currentColor", "#24292f")
    view = head.partition('viewBox="0 0 ')[2].partition('"')[0]
    width, height = map(float, view.split())
    margin = 12
    framed = f"{-margin} {-margin} {width + 2 * margin:g} {height + 2 * margin:g}"
    head = head.replace(f'viewBox="0 0 {view}"', f'viewBox="{framed}" font-family="{FONT}"')
    ground = PAPER.replace("<rect ", f'<rect x="{-margin}" y="{-margin}" ')
    return f"{head}>{ground}{rest}\n"


def _text(
    x: float,
    y: float,
    text: object,
    *,
    anchor: str = "middle",
    weight: int = 400,
    size: int = LETTERS,
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}" font-size="{size}">'
        f"{escape(str(text))}</text>"
    )


def _tile(picture: np.ndarray, x: float, y: float) -> str:
    """Every pixel as a square, however large it is shown."""
    pixels = np.asarray(picture).transpose(1, 2, 0)
    if pixels.dtype != np.uint8:
        pixels = np.rint(255 * pixels.astype(np.float64).clip(0, 1)).astype(np.uint8)
    file = io.BytesIO()
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    image.save(file, format="png", optimize=True)
    data = base64.b64encode(file.getvalue()).decode()
    return (
        f'<image x="{x:g}" y="{y:g}" width="{TILE}" height="{TILE}" style="image-rendering: pixelated" '
        f'href="data:image/png;base64,{data}"/>'
    )


def _frame(right: bool, x: float, y: float) -> str:
    """Around the pick: whether it is right, by a mark and a colour."""
    color = PICKED if right else MISSED
    middle = x + TILE - 6, y + TILE - 6
    across, down = middle
    # drawn, since letters would have to be told from the ground of the page
    mark = "l5 6l10 -12" if right else "m1 -6l12 12m0 -12l-12 12"
    return (
        f'<rect x="{x - 3:g}" y="{y - 3:g}" width="{TILE + 6}" height="{TILE + 6}" fill="none" stroke="{color}" '
        f'stroke-width="5"/><circle cx="{across:g}" cy="{down:g}" r="15" fill="{color}"/>'
        f'<path d="M{across - 7:g} {down:g}{mark}" fill="none" stroke="#ffffff" stroke-width="3"/>'
    )


def _squares(found: Sequence[bool], x: float, y: float) -> list[str]:
    """A square for each photograph, full where it was picked out."""
    side = TILE / SQUARES
    drawn = []
    for place, each in enumerate(found):
        row, column = divmod(place, SQUARES)
        look = f'fill="{PICKED}"' if each else f'fill="none" stroke="{MISSED}" stroke-width="1.5"'
        inset = 0.6 if each else 1.2
        size = side - 1.2 - inset
        drawn.append(
            f'<rect x="{x + side * column + inset:g}" y="{y + side * row + inset:g}" width="{size:.2f}" '
            f'height="{size:.2f}" {look}/>'
        )
    return drawn
