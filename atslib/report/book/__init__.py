"""What the book's texts say of stored results: measured effects, costs, answers, beside published numbers.

To add an effect: one entry in `effects.EFFECTS` and its mark in `book/deviations.md`.
"""
