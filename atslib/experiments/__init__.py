"""One function per experiment: settings in, tidy tables and image sheets out, everything through the store.

`settings` resolves a profile, `units` are the shared pieces (trained models, attacks), `tables` reads them,
and each page of the book has one module. A page's module has `run(settings, store)`.
"""

from atslib.experiments import generality, privacy, shared_gradient
from atslib.experiments.settings import PROFILES, Settings, settings

# notebook name → the module that computes it
PAGES = {"claim1_privacy": privacy, "claim1_defenses": shared_gradient, "claim2_generality": generality}

__all__ = ["PAGES", "PROFILES", "Settings", "generality", "privacy", "settings", "shared_gradient"]
