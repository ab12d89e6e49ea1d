"""Defenses: `defense` says what one is and composes them.

`perturbations` act on the gradient, `published` are of other papers, `accountant` says what DP-SGD
guarantees. To add one: a function and its entry in `perturbations.DEFENSES`, or a subclass of
`Defense`.
"""
