"""From settings to the book: `schedule` computes units in processes, `runner` makes tables, pages and the book.

To add a step of a run: one function, called in `runner.run`.
"""
