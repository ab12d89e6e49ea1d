"""The book's extensions of Sphinx, which are no part of the library."""

import importlib.util
from types import ModuleType

import pytest

from atslib.files import project_root

EXTENSIONS = project_root() / "book" / "extensions"


def load_extension(name: str = "reading") -> ModuleType:
    """`book/extensions/reading.py` or another one."""
    spec = importlib.util.spec_from_file_location(name, EXTENSIONS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXTENSIONS))  # as Jupyter Book does
        spec.loader.exec_module(module)
    return module
