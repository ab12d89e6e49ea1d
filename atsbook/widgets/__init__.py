"""What a reader touches in a published page or with a kernel: the explorer, and small figures on
the claim pages.

`explorer` makes the page from a payload of `frames`, `figures` the small ones from payloads
of `data`; `html` wraps both; `live` runs attacks of the reader's own, in Jupyter through `jupyter`.
`graph` traces an attack, `lowering` and `loops` make of it what `runner.js` runs in a page, and
`browser` shows it, whole and in a small form; `undo.js` is there what `attacks.undo_policy` is
here. Nothing here needs Jupyter to be imported. To add a figure: its payload in `data`, its script
in `figures.js` and its entry in `figures.KINDS`.
"""

from atsbook.widgets.explorer import Page, show, to_html
from atsbook.widgets.figures import Figure, interactive

__all__ = ["Figure", "Page", "interactive", "show", "to_html"]
