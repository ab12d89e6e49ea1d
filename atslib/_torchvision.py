"""torchvision, also where its compiled operators do not fit the installed torch."""

import functools
import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType

_schemas: list = []  # torch's declarations last only as long as these objects


class _Finder:
    """Finds torchvision where Python does, with a loader that tries twice."""

    @staticmethod
    def find_spec(
        name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name) if name == "torchvision" else None
        if spec and spec.loader:
            spec.loader.exec_module = functools.partial(_execute, spec.loader.exec_module)
        return spec


def _execute(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        run(module)
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        import torch

        for half_imported in [name for name in sys.modules if name.startswith("torchvision.")]:
            del sys.modules[half_imported]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _schemas.append(library)
        run(module)


def serve() -> None:
    """Let `import torchvision` work after `import atslib`, in a user's own file too.

    PyPI's x86-64 Linux wheel is built for CUDA. Beside a CPU-only torch its operators cannot be
    loaded and the import stops at the first schema it misses. Data sets, networks and transforms
    need no operator, so the two schemas are declared, without an implementation, and the import is
    tried once more. Where the builds match, nothing happens.
    """
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
