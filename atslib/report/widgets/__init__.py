"""What a reader touches in a published page or with a kernel: the explorer, and small figures on the claim pages.

`explorer` makes the page from a payload of `experiments.explorer`; `live` runs attacks of the reader's own;
`figures` makes the small ones from payloads of `experiments.figures`. Nothing here needs Jupyter to be imported.
"""

from atslib.report.widgets.explorer import Page, show, to_html
from atslib.report.widgets.figures import Figure, touchable

__all__ = ["Figure", "Page", "show", "to_html", "touchable"]
