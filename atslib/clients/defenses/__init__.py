"""Defenses: `defense` says what one is, composes them and reads them from text.

`perturbations` act on the gradient, `published` are of other papers, `accountant` says what DP-SGD
guarantees. To add one: a function and its entry in `perturbations.DEFENSES`, or a subclass of
`published.Strength` and its entry in `published.PUBLISHED`; without a name in text, any subclass of
`Defense`.
"""

# All that have names: Python imports this package before any file in it, so that no name can be
# missing.
from atslib.clients.defenses import perturbations, published
from atslib.clients.defenses.defense import Defense

__all__ = ["Defense", "perturbations", "published"]
