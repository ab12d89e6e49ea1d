"""Where the audit was: it is the package `atsaudit`, and this goes with the next release."""

import importlib
import warnings


def audit(*args: object, **settings: object) -> object:
    """`atsaudit.audit`, with one line that says so; arguments, result and errors are its own."""
    warnings.warn(
        "atslib.audit is atsaudit.audit now, with the same arguments; this name goes with the next release",
        FutureWarning,  # other than a DeprecationWarning it is shown to who calls from a module
        stacklevel=2,
    )
    return importlib.import_module("atsaudit").audit(*args, **settings)  # a package above this one
