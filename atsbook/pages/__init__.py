"""One file per page of the book, with the notebook's own name.

A page's file holds its units of work, its tables, the rule of its verdict and the verdict. To add a
page: this file, the notebook of the same name, and a line in `book/_toc.yml`. Pages are found by
their file name.
"""

import importlib
import pkgutil
from types import ModuleType

PAGES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load_page(name: str) -> ModuleType:
    """The module of a page; it is imported only now, so that one page does not load all others."""
    return importlib.import_module(f"{__name__}.{name}")
