"""What the notebooks share: kept runs, statistics, figures, widgets, texts that are made from data.

From the ground: `figures`, `findings` (statistics, published numbers, verdicts), `runs` (pieces of
work, the store, the archive of evidence), `bench`, `pages` (one file per page), `texts` (what is
written into the book), `widgets` (what a reader touches). To add a page, see `pages`.
"""
