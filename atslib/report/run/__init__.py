"""From settings to the book: `schedule` computes units in processes, `runner` makes tables, pages and the book."""
