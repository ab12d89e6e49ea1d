"""What numbers say.

`statistics` (intervals, paired differences, agreement), `compare` (tables of policies), `verdicts`
(guards), `lines` (the rules of a page that judges many claims), `space` (all policies at once),
`result` (tables, facts and verdict of a page), `reported` (published numbers, in reported.csv).
To add one: a function here, once two pages need it.
"""
