"""torchvision, also where its compiled operators do not fit the installed torch."""

import sys
from types import ModuleType

import torch

_schemas: torch.library.Library | None = None  # the declarations last only as long as this object


def import_torchvision() -> ModuleType:
    """`import torchvision`, returned; nothing special happens where the two builds match.

    PyPI's x86-64 Linux wheel is built for CUDA. Beside a CPU-only torch its operators cannot be loaded
    and the import stops at the first schema it misses. Data sets and transforms need no operator, so the
    two schemas are declared, without an implementation, and the import is tried once more.
    """
    global _schemas
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        for module in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[module]  # half imported
        _schemas = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            _schemas.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision
