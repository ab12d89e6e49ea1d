"""What a linear layer's gradient says in closed form: its input.

The weight gradient of a linear layer is the outer product of its bias gradient and its input,
summed over the images that share the gradient. Of one image the input can be read off exactly;
Geiping et al. 2020, Proposition 3.1.
"""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor, nn

from atslib.attacks.attack import Reconstruction
from atslib.attacks.composed import Around
from atslib.attacks.run import run_attack
from atslib.clients.view import Observed, Update
from atslib.errors import AtsError, check_kind
from atslib.gradients.problems import unflatten
from atslib.models import last_linear, shared_parameters


def invert_linear(weight_gradient: Tensor, bias_gradient: Tensor) -> Tensor:
    """The input of a linear layer, from its gradient of one image: exact up to rounding.

    Each output whose bias gradient is not 0 tells the input; they are averaged by the squares of
    their bias gradients, which is least squares. Of a gradient that several images share it is a
    mixture of their inputs.

    Args:
        weight_gradient: (N, O, I) floats, of N images.
        bias_gradient: (N, O), of the same.
    Returns:
        (N, I), the inputs.
    Raises:
        AtsError: a layer without a bias, shapes that do not fit each other, or an image whose bias
            gradients are all 0, such as one of which the network is certain: it says nothing of its
            input.
    """
    check_kind(
        "invert_linear: weight_gradient", weight_gradient, Tensor, "a torch.Tensor (N, O, I)"
    )
    if bias_gradient is None:
        raise AtsError(
            "invert_linear: bias_gradient is None; a layer without a bias gives its input up to a factor"
        )
    check_kind("invert_linear: bias_gradient", bias_gradient, Tensor, "a torch.Tensor (N, O)")
    if weight_gradient.ndim != 3 or bias_gradient.shape != weight_gradient.shape[:2]:
        shapes = f"{tuple(weight_gradient.shape)} and {tuple(bias_gradient.shape)}"
        raise AtsError(
            f"invert_linear: gradients of weight and bias are {shapes}; they must be (N, O, I) and (N, O)"
        )
    if silent := (bias_gradient == 0).all(1).nonzero().flatten().tolist():
        raise AtsError(
            f"invert_linear: the bias gradients of images {silent} are all 0, so they say nothing of an input"
        )
    # By their largest first: squares of small gradients would underflow.
    largest = bias_gradient.abs().amax(1, keepdim=True)
    share = bias_gradient / largest
    return torch.einsum(
        "no,noi->ni",
        share / share.square().sum(1, keepdim=True),
        weight_gradient / largest[..., None],
    )


def last_features(update: Update) -> Tensor:
    """What the network's last layer got of the one image behind each gradient, (N, D); see
    `invert_linear`.

    Raises:
        AtsError: the network has no linear layer with a bias at its end, or as `invert_linear`.
    """
    gradients = unflatten(update.mean_gradients, update.model)
    own = [g for g, own in zip(gradients, of_last_layer(update.model), strict=True) if own]
    if len(own) < 2:
        raise AtsError(
            "the last layer is frozen, so its gradient is not shared, and nothing can be read off it"
        )
    return invert_linear(*own)


def of_last_layer(model: nn.Module) -> list[bool]:
    """Which of a network's parameters are those of its last linear layer: weight and bias."""
    layer = last_linear(model)
    return [any(p is q for q in layer.parameters()) for p in shared_parameters(model).values()]


def entries(update: Update, parameters: list[bool]) -> Tensor:
    """(N, P) bool: the entries of the gradient that belong to these parameters."""
    pairs = zip(unflatten(update.gradients, update.model), parameters, strict=True)
    return torch.cat([torch.full_like(g.flatten(1), own, dtype=torch.bool) for g, own in pairs], 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LastLayerAlone(Around):
    """Compares the last layer's gradient alone: the image is sought whose features and outputs are
    those seen.

    That is how much of an image the inputs of the last layer give away, which `last_features` reads
    off.
    """

    words: ClassVar[str] = " on the last layer alone"

    def run(self, seen: Observed, **options: object) -> Reconstruction:
        """Run it on every gradient of `seen`; `options` are those of `reconstruct`.

        Raises:
            AtsError: the network has no linear layer with a bias at its end.
        """
        updates = [
            dataclasses.replace(u, kept=entries(u, of_last_layer(u.model))) for u in seen.updates
        ]
        last_layer = dataclasses.replace(seen, updates=tuple(updates))
        return run_attack(last_layer, self.inner, **options)
