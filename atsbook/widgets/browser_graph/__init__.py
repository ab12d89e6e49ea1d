"""A traced attack as a graph that a page can run.

`graph` traces it; `lowering` and `loops` make loops of its operations. To add an operation: an
entry in `lowering.BY_ELEMENT`, or a function and its entry in `lowering.RULES`.
"""
