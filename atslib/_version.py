"""The version of this package, which all its modules may ask for."""

__version__ = "0.1.0"
