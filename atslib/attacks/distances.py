"""A distance that attacks alone use, put into the table of the others: `gradients.problems.DISTANCES`.

`cosine` adds up all entries of a gradient. In a deep network whose layers pass on little, such as
an untrained MobileNet or EfficientNet with the batch statistics 0 and 1 that it begins with, nearly
all of a gradient's length is in its last layers, and these hardly depend on the image: two
photographs of one label differ in it by 1e-15, which single precision does not hold.
"""

import torch
from torch import Tensor

from atslib.gradients.problems import DISTANCES, Fixed, Gradients, _inner

NONE = 1e-37  # largest entry of a tensor that is taken for 0
FLOOR = 1e-6  # part of the target's largest entry, below which an own tensor counts less and less


def cosine_layers(gradients: Gradients, target: Gradients) -> Tensor:
    """1 - the mean of the cosine similarities of the parameter tensors, (N,) in [0, 2].

    It differs from `cosine_tensors` in that no tensor is too short to count, and that those of which
    the target is 0 are left out.
    """
    own = []
    sent = []
    told = []
    for part, aim in zip(gradients, target, strict=True):
        # By their largest entries first, since the squares of small ones would underflow: a cosine
        # is of directions, so that its slope is the same.
        most = _largest(aim)
        own.append(part / torch.maximum(_largest(part), FLOOR * most).clamp_min(NONE))
        sent.append(aim / most.clamp_min(NONE))
        told.append(most.flatten() > NONE)
    dot, square, norm = _inner(tuple(own), Fixed(sent))
    alike = dot / (square.clamp_min(0.5).sqrt() * norm.clamp_min(0.5).sqrt())
    counted = torch.stack(told)
    return 1 - (alike * counted).sum(0) / counted.sum(0).clamp_min(1)


def _largest(part: Tensor) -> Tensor:
    """The largest size of an entry in each row, (N, 1, ...), a constant for autograd."""
    return part.detach().flatten(1).abs().amax(1).view(-1, *[1] * (part.ndim - 1))


DISTANCES["cosine-layers"] = cosine_layers
