"""What numbers say.

`statistics` (intervals, paired differences, agreement), `compare` (tables of policies), `verdicts`
(guards), `lines` (the rules of a page that judges many claims), `space` (all policies at once),
`result` (tables, facts and verdict of a page), `reported` (published numbers, in
reported.csv), `rules` (when a page's rule was written and its evidence made).
To add one: a function here, once two pages need it.
"""
