"""All that makes the book; nothing outside this package but the shell imports it.

From the ground: `bench`, `estimate` (how long work takes), `reported`, `result`, `verdicts`, `compare`, `plots`,
`sheets` (pictures in few bytes) and `space` (what can be said of all policies at once) serve all others; `units/` are
pieces of work and their settings, `lines` the rules of a page that judges many claims, `pages/` one file per page,
`book/` what is written into the book's texts, `widgets/` what a reader touches, `run/` the runner. To add a page, see
`pages`.
"""
