"""What gradients say in closed form: the input of a linear layer, and the patches of a vision
transformer.

The weight gradient of a linear layer is the outer product of its bias gradient and its input,
summed over the images that share the gradient. Of one image the input can be read off exactly;
Geiping et al. 2020, Proposition 3.1. A vision transformer embeds patches by one linear map and adds
a learned position to each: the gradient of the positions is that of the embedded patches, so that
the map's gradient is linear in the patches; Lu et al. 2022 (APRIL).
"""

import dataclasses
import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atslib.attacks.attack import Reconstruction
from atslib.attacks.composed import Around
from atslib.attacks.run import run_attack
from atslib.clients.view import Observed, Update
from atslib.errors import AtsError, check_kind
from atslib.gradients.problems import unflatten
from atslib.models import last_linear, normalization_layer, shared_parameters


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatchEmbedding:
    """Solves for the patches of the one image behind a vision transformer's gradient.

    Exact but for rounding where the embedding is at least as wide as there are patches; else the
    solution of least norm. Source: Lu et al. 2022 (APRIL), arXiv:2112.14087, of learned positions.

    Attributes:
        rtol: singular values below this share of the largest count as zero.
    """

    rtol: float = 1e-4

    title: ClassVar[str] = "the patches from the gradients of embedding and positions"

    def run(self, seen: Observed, *, rng: torch.Generator) -> Tensor:
        """All images of `seen`, (B, C, H, W) in [0, 1].

        Raises:
            AtsError: a gradient is of several images, or the network has no such layers, or does
                not share them.
        """
        update = seen.updates[0]
        found = patches_of(update.model, seen.shape)
        if found is None or seen.threat.batch > 1:
            raise AtsError(
                "PatchEmbedding needs one image per gradient and a network that starts with an embedding of patches "
                "and has learned positions, both trained"
            )
        weight, positions, side = found
        gradients = dict(
            zip(
                shared_parameters(update.model),
                unflatten(update.mean_gradients.double(), update.model),
                strict=True,
            )
        )
        by_weight = gradients[weight].flatten(2)  # (N, D, C·side·side)
        count = seen.shape[1] * seen.shape[2] // side**2
        slopes = gradients[positions].flatten(1, -2)[:, -count:]  # a class token is the first
        patches = torch.linalg.pinv(slopes.transpose(1, 2), rtol=self.rtol) @ by_weight
        whole = F.fold(patches.transpose(1, 2), seen.shape[1:], side, stride=side)
        inverse = normalization_layer(update.model).inverse
        return inverse(whole.to(update.gradients)).clamp(0, 1)


def patches_of(model: nn.Module, shape: tuple[int, int, int]) -> tuple[str, str, int] | None:
    """The names of the parameters that embed patches of images (C, H, W) and hold their positions,
    and a patch's side; None where the first layer is none of that kind.
    """
    layers = [layer for layer in model.modules() if list(layer.parameters(recurse=False))]
    shared = shared_parameters(model)
    channels, height, width = shape
    for layer in layers:
        weight = getattr(layer, "weight", None)
        name = next((name for name, value in shared.items() if value is weight), None)
        side = _patch_side(layer, channels)
        if name is None or not side or height % side or width % side:
            continue
        count = height * width // side**2
        fitting = [
            own
            for own, value in shared.items()
            if value.ndim > 1
            and value.shape[-1] == len(weight)
            and count <= value.numel() // len(weight) <= count + 2
        ]
        if fitting:
            return name, sorted(fitting, key=lambda own: "pos" not in own.lower())[0], side
    return None


def _patch_side(layer: nn.Module, channels: int) -> int:
    """The side of the square patches that a layer may embed, 0 for none."""
    if isinstance(layer, nn.Conv2d):
        (side, *others) = {*layer.kernel_size, *layer.stride}
        plain = layer.groups == 1 and layer.in_channels == channels and not any(layer.padding)
        return side if plain and not others and side > 1 else 0
    if isinstance(layer, nn.Linear):  # of patches as `F.unfold` takes them
        side = math.isqrt(layer.in_features // channels)
        return side if channels * side**2 == layer.in_features and side > 1 else 0
    return 0
