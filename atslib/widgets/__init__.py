"""The explorer: pick an image and a policy and watch the reconstruction, in a published page or with a kernel.

`explorer` makes the page from a payload of `experiments.explorer`; `live` runs attacks of the reader's own.
Nothing here needs Jupyter to be imported.
"""

from atslib.widgets.explorer import Page, show, to_html

__all__ = ["Page", "show", "to_html"]
