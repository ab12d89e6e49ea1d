"""What the notebooks share: the experiment, kept results, statistics, figures, widgets, texts that are
made from data.

From the ground: `integrity` and `store` (results on disk), `packing` (files of many results), `kept`
(what every request has), `networks`, `functions` (what a notebook defines itself), `attackers`,
`experiment` (all that is done to a photograph), `prose` (a text with numbers in it, and what it
claims), `findings` (statistics, published numbers, verdicts),
`figures`, `pool` (computing many requests side by side), `requests` (further kinds of them), `evidence`
(what the repository keeps), `runs` (a notebook's `Study`), `page` (how a notebook shows its answer),
`bench`, `widgets` (what a reader touches), `texts` (what is written into the book), `report` (computes,
executes and publishes pages). A page is a notebook in `notebooks/`; the book's are those of
`book/_toc.yml`.
"""
