"""A figure as SVG: in the page's font and text colour, in a width at which a phone's letters can be read."""

import io
import re
from html import escape

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text

# A page's column is 346 pixels wide on a phone of 400, so 10 of these points are there 9 pixels high.
WIDTH = 5.3  # inches
LEAST = 10  # points


def as_svg(figure: Figure) -> str:
    """`figure` as an element of a page, the same text for figures drawn alike; it is made narrower.

    Letters are text in the page's font. What is black takes the page's colour, so that it is seen
    on dark paper, too.
    """
    wide, high = figure.get_size_inches()
    if wide > WIDTH:
        figure.set_size_inches(WIDTH, high)
    for text in figure.findobj(Text):
        text.set_fontsize(max(text.get_fontsize(), LEAST))
    for legend in list(figure.legends):
        _fit(figure, legend)
    file = io.StringIO()
    exact = {"svg.fonttype": "none", "svg.hashsalt": "figure"}
    with plt.rc_context(exact):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg ") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
    text = re.sub(r"(fill|stroke): (?:#000000|black)", r"\1: currentColor", text)
    text = re.sub(r"<text ", '<text fill="currentColor" ', text)
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', text)[1])
    head = (
        f'<svg class="plot" role="img" aria-label="{escape(_said(figure))}" '
        f'style="width: 100%; max-width: {1.75 * width:.0f}px; height: auto" '
    )
    return text.replace("<svg ", head, 1)


def _fit(figure: Figure, legend: Legend) -> None:
    """Set a legend above the panels in as many columns as the figure has room for."""
    handles = legend.legend_handles
    names = [text.get_text() for text in legend.get_texts()]
    columns = len(names)
    while legend.get_window_extent().width > figure.bbox.width and columns > 1:
        columns -= 1
        legend.remove()
        above = {"loc": "outside upper left", "ncols": columns, "frameon": False}
        legend = figure.legend(handles, names, fontsize=LEAST, **above)


def _said(figure: Figure) -> str:
    """What its axes and panels are called."""
    words = [axis.get_ylabel() for axis in figure.axes] + [
        axis.get_xlabel() for axis in figure.axes
    ]
    words += [axis.get_title() for axis in figure.axes]
    return "; ".join(dict.fromkeys(" ".join(each.split()) for each in words if each.strip()))
