"""Scores of policies that need no attack, and the search that ranks policies by them.

`scores` has the privacy score and the accuracy score; `shards` computes them for many policies, and
can keep them; `search` is the paper's Algorithm 1. To add a score: one function in `scores`, and
its entry in `shards.SCORES`.
"""
