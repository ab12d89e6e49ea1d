"""From settings to the book: `schedule` computes units where `workers` are, `audit` repeats a part of the archive,
`making` executes pages and builds the book, `runner` calls them in order. `written` writes the files of an attack
made by a command, `costing` says what whole profiles take.

To add a step of a run: one function, called in `runner.run`.
"""
