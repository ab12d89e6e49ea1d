"""What the book's texts say of stored results: measured effects, costs, answers, beside published numbers.

`effects` writes the last column of the Deviations page, `costs` the tables of times; `reported.csv` holds the published
numbers. To add an effect: one entry in `effects.EFFECTS` and its mark in `book/deviations.md`.
"""
