"""What numbers say.

`statistics` (intervals, paired differences, agreement), `photographs` (what a policy changes of
what is found), `compare` (tables of policies), `verdicts` (guards), `defenses` (each at its worst),
`transformations` (the 50 as functions), `space` (all policies at once), `switches` (points where
paper and codes differ), `federations`, `result` (tables, facts and verdict of a page), `newest`
(which of its results counts, and the numbers that it exports), `reported`
(published numbers, in reported.csv), `rules` (when a page's rule was written and its evidence made).
To add one: a function here, once two pages need it.
"""
