"""From settings to the book: `schedule` computes units, `audit` repeats a part of the archive, `runner` does the rest.

To add a step of a run: one function, called in `runner.run`.
"""
