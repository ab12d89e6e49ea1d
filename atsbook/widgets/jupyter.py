"""The live explorer in a notebook: traits for what is known at the start, messages for an attack as
it runs.
"""

import anywidget
import traitlets

from atsbook.runs.settings import Settings
from atsbook.store import Store
from atsbook.widgets import html
from atsbook.widgets.live import Session


class ExplorerWidget(anywidget.AnyWidget):
    """The explorer of a payload, and attacks of the reader's own on this kernel."""

    _esm = html.source(*html.EXPLORER)
    _css = html.source(*html.EXPLORER_STYLES)
    payload = traitlets.Dict().tag(sync=True)
    options = traitlets.Dict().tag(sync=True)

    def __init__(self, payload: dict, settings: Settings, store: Store):
        self.session = Session(
            settings, store, lambda content, buffers: self.send(content, buffers)
        )
        super().__init__(payload=payload, options=self.session.options())
        self.on_msg(self._heard)

    def __repr__(self) -> str:
        return "Explorer with a kernel"

    def _heard(self, _: object, content: dict, buffers: list) -> None:
        """One message of the form: `run` with the fields of a request, or `stop`."""
        request = {name: value for name, value in content.items() if name != "kind"}
        if content.get("kind") == "stop":
            self.session.stop()
        else:
            self.session.run(**request, upload=bytes(buffers[0]) if buffers else b"")
