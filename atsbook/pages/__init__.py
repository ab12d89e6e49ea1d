"""The pages of the book, by the name of their notebook.

To add a page: its notebook in `notebooks/`, which holds the whole experiment, and a line in
`book/_toc.yml`. Some pages have a file of their name here too, with their units of work, tables,
rule and verdict; it is found by its name.
"""

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

MODULES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
_NOTEBOOKS = [path.stem for path in (Path(__file__).parents[2] / "notebooks").glob("*.ipynb")]
PAGES = tuple(sorted({*MODULES, *_NOTEBOOKS}))


def load_page(name: str) -> ModuleType:
    """The module of a page that has one; it is imported only now, so that one page does not load
    all others.
    """
    return importlib.import_module(f"{__name__}.{name}")
