"""A traced attack as a graph that a page can run.

`graph` traces it; `lowering`, `wide` and `loops` make loops of its operations.
To add an operation: a rule in `wide` or `loops`.
"""
