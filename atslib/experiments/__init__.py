"""One function per experiment: settings in, tidy tables and image sheets out, everything through the store.

`settings` resolves a profile, `units` are the shared pieces (trained models, attacks), and each page of the
book has one module. A page's module has `run(settings, store)`.
"""

from atslib.experiments import privacy
from atslib.experiments.settings import PROFILES, Settings, settings

# notebook name → the module that computes it
PAGES = {"claim1_privacy": privacy}

__all__ = ["PAGES", "PROFILES", "Settings", "privacy", "settings"]
