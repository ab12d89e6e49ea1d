"""From settings to the book.

`runner` calls the steps in order: compute what is missing, execute pages, publish texts, build.
`notebooks` executes a page, `making` publishes it, writes the texts that are made from results, and
builds the book.

To add a step: one function, called in `runner.run`.
"""
