"""All that makes the book; nothing outside this package imports it.

`units/` are pieces of work and their settings, `pages/` one file per page, `book/` what is written into the book's
texts, `run/` the runner, `widgets/` what a reader touches; `result`, `verdicts` and `plots` serve them all. To add a
page, see `pages`.
"""
