"""What the notebooks share: kept runs, statistics, figures, widgets, texts that are made from data.

From the ground: `figures`, `findings` (statistics, published numbers, verdicts), `runs` (pieces of
work, the store, the archive of evidence), `bench`, `page` (how a notebook shows its answer),
`texts` (what is written into the book), `widgets` (what a reader touches), `report` (computes,
executes and publishes pages). A page is a notebook in `notebooks/`; the book's are those of
`book/_toc.yml`.
"""
