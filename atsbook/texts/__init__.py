"""What the book's texts say of stored results: answers, measured effects, speed, beside published
numbers.

`answers` holds the claims and their table, `speed` and `deviations` put measured numbers into the
texts; `reported.csv` holds the published ones, `twins` finds what was measured of each, and
`coverage` makes a page of that. `advice` is the page for who asks whether to use a policy, and
`audits` the example of a fine-tuned network on *Audit your own*; `one_cell` is the table of all attacks on one cell on
*Method*, and `marks` puts such tables between their marks. To add an effect: its
numbers in the `effects` that its page exports, and a `measured` sentence in
`templates/deviations.md.jinja`. To add a twin: one in `twins.RULES`.
"""
