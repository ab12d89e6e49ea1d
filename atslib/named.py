"""What a user names by its place: `file.py:name` or `package.module:name`."""

import importlib
import importlib.util
import re
import sys
from pathlib import Path

from atslib.errors import AtsError


def named(text: str, what: str) -> object:
    """What `file.py:name` or `package.module:name` stands for.

    Raises:
        AtsError: no colon, no such file, module or name, or one that fails when it is imported.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise AtsError(f"{what} {text!r}: write file.py:name or package.module:name")
    try:
        module = (
            _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        )
    except AtsError:
        raise
    except Exception as error:
        raise AtsError(
            f"{what} {text!r}: importing {place} failed: {type(error).__name__}: {error}"
        ) from None
    if not hasattr(module, name):
        raise AtsError(f"{what} {text!r}: there is no {name!r} in {place}")
    return getattr(module, name)


def _from_file(path: Path) -> object:
    if not path.is_file():
        raise AtsError(
            f"{path} is no file; give the file that the network or the data are written in"
        )
    name = f"atslib_user_{path.stem}_{abs(hash(path.resolve())) % 10**8}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # so that it finds what lies beside it
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.pop(0)
    return module


def is_own(text: str) -> bool:
    """Whether a text is file.py:name or package.module:name, and not such as prune:0.7."""
    return re.fullmatch(r"(.+\.py|\w+(\.\w+)+):[^\W\d]\w*", text.strip()) is not None
