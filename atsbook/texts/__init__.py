"""What the book's texts say of stored results: answers, measured effects, speed, beside published
numbers.

`answers` holds the claims and their table, `effects` and `speed` write measured numbers into the
texts; `reported.csv` holds the published ones, `twins` finds what was measured of each, and
`coverage` makes a page of that. `advice` is the page for who asks whether to use a policy, and
`audits` the example of a fine-tuned network on *Audit your own*; `one_cell` is the table of all attacks on one cell on
*Method*, and `marks` puts such tables between their marks. To add an effect: one entry in
`effects.EFFECTS` and its mark in `book/deviations.md`. To add a twin: one in `twins.RULES`.
"""
