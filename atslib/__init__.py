"""Learned privacy transformations for collaborative learning.

From the ground up: `errors`, `rng`, `files`, `checkpoints` and `named`; `data`, `policies`,
`measures`; `models` and `gradients`; `clients` (what they do and what a server sees of it);
`attacks`; `scores`; and the shell, `python -m atslib`. Imports point down. A name is imported when
it is first used, so that `import atslib` does not wait for torch. To add a public name: one entry
in `_HOMES`.
"""

import importlib

from atslib import _torchvision
from atslib._version import __version__ as __version__

# At once, so that a later `import atslib.rng` does not put the module in its place; likewise `audit`.
from atslib.audit import audit as audit
from atslib.rng import rng

_torchvision.serve()

_HOMES = {
    "attacks": (
        "ATTACKS",
        "GradientMatching",
        "reconstruct",
    ),
    "attacks.line_up": ("line_up",),
    "clients.defenses.defense": ("Defense",),
    "clients.observe": (
        "Observed",
        "ThreatModel",
        "observe",
    ),
    "clients.training": (
        "TrainConfig",
        "evaluate",
        "fit",
    ),
    "clients.updates": ("LocalTraining",),
    "data.folder": ("load_folder",),
    "data.load": (
        "Images",
        "load",
    ),
    "errors": ("AtsError",),
    "measures.found": (
        "found",
        "match",
        "own_class",
    ),
    "measures.metrics": ("psnr",),
    "models": (
        "Normalize",
        "build_model",
    ),
    "policies.draws": ("draw",),
    "policies.policy": (
        "Policy",
        "parse_policy",
    ),
    "scores.scores": ("privacy_score",),
    "scores.search": (
        "SearchConfig",
        "search",
    ),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}
_ROOMS = (
    "attacks",
    "clients",
    "data",
    "errors",
    "gradients",
    "measures",
    "models",
    "policies",
    "scores",
)
_MODULES = {room: room for room in _ROOMS} | {"transforms": "policies.operations"}

__all__ = ["rng"]
__all__ += _MODULE_OF


def __getattr__(name: str) -> object:
    """A public name or a room, imported now and kept."""
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f"atslib.{_MODULE_OF[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"atslib.{_MODULES[name]}")
    else:
        raise AttributeError(
            f"module 'atslib' has no attribute {name!r}; it has {', '.join(sorted(__all__))}, and all else by module, "
            "such as atslib.measures.metrics"
        )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
