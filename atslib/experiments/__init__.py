"""One function per experiment: settings in, tidy tables and image sheets out, everything through the store.

`settings` resolves a profile, `units` are the shared pieces (trained models, attacks), `tables` reads them,
and each page of the book has one module. A page's module has `run(settings, store)`.
"""

from atslib.experiments import (
    correlation,
    details,
    efficiency,
    explorer,
    generality,
    leakage,
    policy_search,
    privacy,
    semantics,
    shared_gradient,
    switches,
    tinyimagenet,
    transfer,
    transformations,
    transformations_tinyimagenet,
)
from atslib.experiments.settings import PROFILES, Settings, settings

# notebook name → the module that computes it
PAGES = {
    "claim1_privacy": privacy,
    "claim1_defenses": shared_gradient,
    "claim2_generality": generality,
    "claim2_search": policy_search,
    "claim3_transfer": transfer,
    "claim4_efficiency": efficiency,
    "claim5_semantics": semantics,
    "claim6_transformations": transformations,
    "claim7_correlation": correlation,
    "ext1_tinyimagenet": tinyimagenet,
    "ext2_transformations_tinyimagenet": transformations_tinyimagenet,
    "ext3_which_images_leak": leakage,
    "ext4_hidden_details": details,
    "switches": switches,
    "explorer": explorer,
}

__all__ = [
    "PAGES",
    "PROFILES",
    "Settings",
    "correlation",
    "details",
    "efficiency",
    "explorer",
    "generality",
    "leakage",
    "policy_search",
    "privacy",
    "semantics",
    "settings",
    "shared_gradient",
    "switches",
    "tinyimagenet",
    "transfer",
    "transformations",
    "transformations_tinyimagenet",
]
