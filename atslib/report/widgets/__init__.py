"""What a reader touches in a published page or with a kernel: the explorer, and small figures on the claim pages.

`explorer` makes the page from a payload of `pages.explorer`; `live` runs attacks of the reader's own;
`figures` makes the small ones from payloads of `data`. Nothing here needs Jupyter to be imported.
"""

from atslib.report.widgets.explorer import Page, show, to_html
from atslib.report.widgets.figures import Figure, interactive

__all__ = ["Figure", "Page", "interactive", "show", "to_html"]
