"""What a gradient may be asked of: images, labels and a network that fit each other, else one
sentence.
"""

import numpy as np
import torch
from torch import Tensor, nn

from atslib.data.images import Images, check_data, describe, explain, label_fault, to_images
from atslib.errors import AtsError
from atslib.gradients.per_example import SameRules
from atslib.models import Normalize, normalization_layer


def checked(
    model: nn.Module, images: Tensor | np.ndarray, labels: Tensor | np.ndarray
) -> tuple[Tensor, Tensor]:
    """Images (B, C, H, W) and labels (B,) as the network takes them, in its precision and on its
    device.

    Raises:
        AtsError: one of the three is wrong, as `check_images`, `check_labels` and `classes_of` say.
    """
    images = check_images(images, any_parameter(model))
    labels = check_labels(labels, len(images), classes_of(model, images[:1]))
    return images, labels.to(images.device)


def check_fit(model: nn.Module, images: Images) -> None:
    """Raise `AtsError` unless these are `Images`, which the network takes and whose classes it
    tells apart.
    """
    check_data(images)
    like = any_parameter(model)
    one = to_images(images.pixels[:1].to(like.device), like.dtype)
    check_labels(images.labels, len(images), classes_of(model, one))


def classes_of(model: nn.Module, images: Tensor) -> int:
    """How many classes the network tells apart: `check_network`, and where it has no `Normalize`
    layer, `scores_of`.
    """
    normalized = isinstance(next(model.children(), None), Normalize)
    return check_network(model, images) if normalized else scores_of(model, images).shape[1]


def check_images(images: Tensor | np.ndarray, like: Tensor) -> Tensor:
    """Float images (B, C, H, W) in [0, 1], in the precision and on the device of `like`.

    Raises:
        AtsError: another type or shape, no image at all, or values more than 0.01 outside [0, 1].
    """
    images = torch.as_tensor(images) if isinstance(images, np.ndarray) else images
    if not isinstance(images, Tensor) or images.ndim != 4 or not images.is_floating_point():
        raise AtsError(f"images are {describe(images)}; they must be floats (B, C, H, W) in [0, 1]")
    if not images.numel():
        raise AtsError(f"images of shape {tuple(images.shape)} are none; give at least one")
    low, high = (float(edge) for edge in images.aminmax())
    if not (low >= -0.01 and high <= 1.01):
        raise AtsError(
            f"images go from {low:.4g} to {high:.4g}; they must be in [0, 1] (8-bit pixels divided by 255)"
        )
    return images.to(like)


def check_labels(labels: Tensor | np.ndarray, count: int, classes: int) -> Tensor:
    """Class numbers (B,) as int64.

    Raises:
        AtsError: no whole numbers, not one for each of `count` images, or one outside 0..`classes`
            - 1.
    """
    labels = torch.as_tensor(labels) if isinstance(labels, np.ndarray) else labels
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise AtsError(
            f"labels are {describe(labels)}; they must be whole numbers (B,), one class per image"
        )
    if fault := label_fault(labels, count, classes):
        raise AtsError(fault)
    return labels.long()


def first_parameter(model: nn.Module) -> Tensor:
    """`any_parameter` of a network to train or to attack, which must start with a `Normalize`
    layer.
    """
    first = any_parameter(model)
    normalization_layer(model)
    return first


def any_parameter(model: nn.Module) -> Tensor:
    """A network's first parameter, for its precision and device.

    Raises:
        AtsError: it is no network, or has no parameters.
    """
    if not isinstance(model, nn.Module):
        raise AtsError(f"model {model!r} must be a torch.nn.Module")
    if (first := next(model.parameters(), None)) is None:
        raise AtsError(
            f"{type(model).__name__} has no parameters, so there is no gradient to share"
        )
    return first


def scores_of(model: nn.Module, images: Tensor) -> Tensor:
    """The network's class scores of images (B, C, H, W): (B, classes).

    Raises:
        AtsError: it does not take images of this shape, or gives something else.
    """
    name = type(model).__name__
    shape = tuple(images.shape[1:])
    try:
        with SameRules():  # a plain BatchNorm2d says in torch's words what it cannot do
            scores = model(images)
    except RuntimeError as error:
        raise AtsError(f"{name} does not take images of shape {shape}: {explain(error)}") from None
    if not isinstance(scores, Tensor) or scores.ndim != 2:
        raise AtsError(
            f"{name} gives {describe(scores)}; it must give one row of class scores per image"
        )
    return scores


def check_network(model: nn.Module, images: Tensor) -> int:
    """How many classes the network tells apart, seen by running it on `images`, floats (B, C, H,
    W).

    Raises:
        AtsError: it does not start with a `Normalize` layer that gets these very images, as attacks
            need it to, or `scores_of` refuses it.
    """
    name = type(model).__name__
    calls = []
    normalize = normalization_layer(model)
    handle = normalize.register_forward_hook(lambda layer, inputs, output: calls.append(inputs[0]))
    try:
        logits = scores_of(model, images)
    finally:
        handle.remove()
    if not calls or not torch.equal(calls[0], images):
        raise AtsError(
            f"{name} has a Normalize layer and does not use it on its input; call it first in forward()"
        )
    return logits.shape[1]
