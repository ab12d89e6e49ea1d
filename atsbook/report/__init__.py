"""From settings to the book.

`runner` calls the steps in order: compute what is missing, execute pages, publish texts, build.
`notebooks` executes a page that is a notebook and nothing else, `making` the others, publishes a
page and builds the book, `costing` says what whole profiles take.

To add a step: one function, called in `runner.run`.
"""
