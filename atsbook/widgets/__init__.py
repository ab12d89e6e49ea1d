"""What a reader touches in a published page: an attack, and small figures on the claim pages.

`browser` makes the attack's page from a network and test images, and its small form; `figures` makes
the small figures from payloads of `data`; `html` wraps all of them. `graph` traces an attack, `lowering`
and `loops` make of it what `runner.js` runs in a page, `worker.js` is the server and `attack.js` what is
seen; `undo.js` is there what `attacks.undo_policy` is here. Nothing here needs Jupyter to be imported.
To add a figure: its payload in `data`, its script in `figures.js` and its entry in `figures.KINDS`.
"""

from atsbook.widgets.figures import Figure, interactive

__all__ = ["Figure", "interactive"]
