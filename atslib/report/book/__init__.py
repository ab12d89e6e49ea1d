"""What the book's texts say of stored results: answers, measured effects, costs, beside published numbers.

`reported` reads what was published, `answers` holds the claims and their table, `effects` and `costs` write measured
numbers into the texts. To add an effect: one entry in `effects.EFFECTS` and its mark in `book/deviations.md`.
"""
