"""Gradient inversion: from what a server observed back to images.

`attack` holds the protocol and the result, `presets` the table of attacks by name and the door
`reconstruct`. `matching` says what gradient matching optimizes and `engine` runs many of those as
one batch: `objective` is its cost, `optimizers` (with the step sizes' schedules), `priors`
(penalties) and `starts` are its parts, `labels` restores labels, `analytic` reads the last layer's
input off its gradient, and `memory` says how many attacks fit. `around` is what attacks with
another one inside share: `adaptive` searches through a policy that the server knows; `informed`
attacks what the network got, and uses the policy before or after; `learned` has trained on images
of its own to undo the policy; `knowing` knows the defense, where that is no policy. To add a part,
write a function or class and its entry in the table of that file; to add an attack, write a class
with `run` and its entry in `presets.ATTACKS`.
"""

from atslib.attacks.analytic import LastLayerAlone, invert_linear
from atslib.attacks.attack import Attack, Reconstruction
from atslib.attacks.labels import restore_labels
from atslib.attacks.learned_correction import Learned
from atslib.attacks.matching import GradientMatching
from atslib.attacks.presets import ATTACKS, by_knowledge, reconstruct
from atslib.attacks.through_defense import BothImages, KeptEntries, KnownFeatures
from atslib.attacks.through_policy import ThroughPolicy
from atslib.attacks.undo_policy import FromMean, Undone

__all__ = [
    "ATTACKS",
    "Attack",
    "FromMean",
    "GradientMatching",
    "Learned",
    "Reconstruction",
    "ThroughPolicy",
    "Undone",
]
__all__ += [
    "BothImages",
    "KeptEntries",
    "KnownFeatures",
    "LastLayerAlone",
    "by_knowledge",
    "invert_linear",
]
__all__ += ["reconstruct", "restore_labels"]
