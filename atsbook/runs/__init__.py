"""What a notebook asks for, and what it gets.

`study` takes the requests of a notebook, reads what ships with the repository and computes the rest; `settings` has the
profiles, `tables` makes rows of results, `before_policy` says what an attack tells of images before a policy.

What is asked for are the classes of `atsbook.experiment` and `atsbook.requests`; they are computed in `atsbook.pool`
and kept as `atsbook.evidence`.
"""
