"""Gradient inversion: from what a server observed back to images.

`attack` holds the protocol and the result, `presets` the table of attacks by name and the door
`reconstruct`. `matching` describes gradient matching; its parts are `optimizers` (with the step
sizes' schedules), `priors` (penalties) and `starts`. `engine` runs many of those as one batch:
`objective` is its cost, `memory` says how many attacks fit, `labels` restores labels. `run` runs
any attack. `analytic` reads the last layer's input off its gradient, and the patches of a vision
transformer. `composed` is what attacks with another one inside share: `through_policy` searches
through a policy that the server knows; `undo_policy` attacks what the network got, and uses the
policy before or after; `learned_correction` has trained on images of its own to undo the policy;
`through_defense` knows the defense, where that is no policy. To add a part, write a function or
class and its entry in the table of that file; to add an attack, write a class with `run` and its
entry in `presets.ATTACKS`.
"""

from atslib.attacks.analytic import LastLayerAlone, PatchEmbedding, invert_linear
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
    "PatchEmbedding",
    "by_knowledge",
    "invert_linear",
]
__all__ += ["reconstruct", "restore_labels"]
