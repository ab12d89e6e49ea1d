"""What a gradient may be asked of: images, labels and a network that fit each other, else one
sentence.
"""

import contextlib
import warnings
from textwrap import shorten

import numpy as np
import torch
from torch import Tensor, nn

from atslib.copying import check_outside
from atslib.data.images import (
    Images,
    check_data,
    describe,
    explain,
    is_tensor,
    label_fault,
    to_images,
)
from atslib.errors import AtsError
from atslib.gradients.per_example import SameRules
from atslib.models import (
    Normalize,
    ends_of,
    keep_ends,
    keeps_nothing,
    normalization_layer,
    scores_in,
    shared_parameters,
    to_try,
    watched_ends,
)
from atslib.rng import torch_draws

# What a network may raise that does not fit its input.
FAULTS = (
    RuntimeError,
    NotImplementedError,
    TypeError,
    ValueError,
    IndexError,
    KeyError,
    AttributeError,
    AssertionError,
    ArithmeticError,
)


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
    images = as_tensor(images)
    if not is_tensor(images) or images.ndim != 4 or not images.is_floating_point():
        raise AtsError(f"images are {describe(images)}; they must be floats (B, C, H, W) in [0, 1]")
    if not images.numel():
        raise AtsError(f"images of shape {tuple(images.shape)} are none; give at least one")
    low, high = (float(edge) for edge in images.detach().aminmax())
    if not (low >= -0.01 and high <= 1.01):
        raise AtsError(
            f"images go from {low:.4g} to {high:.4g}; they must be in [0, 1] (8-bit pixels divided by 255)"
        )
    return images.to(like)


UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *UNSIGNED)


def as_tensor(values: object) -> object:
    """A numpy array as a tensor, whatever its strides and byte order; anything else, and what torch
    has not, as it is.

    A float array of more than 64 bits is none of torch's kinds.
    """
    if not isinstance(values, np.ndarray):
        return values
    try:
        return torch.as_tensor(np.ascontiguousarray(values, values.dtype.newbyteorder("=")))
    except (TypeError, ValueError, RuntimeError):
        return values


def check_labels(labels: Tensor | np.ndarray, count: int, classes: int) -> Tensor:
    """Class numbers (B,) as int64.

    Raises:
        AtsError: no whole numbers, not one for each of `count` images, or one outside 0..`classes`
            - 1.
    """
    labels = as_tensor(labels)
    if not is_tensor(labels) or labels.dtype not in WHOLE:
        raise AtsError(
            f"labels are {describe(labels)}; they must be whole numbers (B,), one class per image"
        )
    if labels.dtype in UNSIGNED:  # torch compares them with nothing
        labels = torch.from_numpy(labels.cpu().numpy().astype(np.float64)).long().to(labels.device)
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
        raise AtsError(
            f"model {shorten(repr(model), 80, placeholder=' …')} must be a torch.nn.Module"
        )
    first = next(model.parameters(), None)
    if first is None:
        raise AtsError(
            f"{type(model).__name__} has no parameters, so there is no gradient to share"
        )
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise AtsError(
                f"{type(model).__name__}: {name} has no shape yet; let the network score one image first"
            )
        if parameter.is_meta:
            raise AtsError(
                f"{type(model).__name__}: {name} is on the device meta, which holds no values"
            )
    if not first.is_floating_point():
        raise AtsError(
            f"{type(model).__name__} has parameters of {first.dtype}; they must be floats"
        )
    return first


def trained_parameter(model: nn.Module) -> Tensor:
    """`first_parameter` of a network of which at least one parameter is trained.

    Raises:
        AtsError: all of them are frozen, so that there is no gradient to share.
    """
    first = first_parameter(model)
    if not shared_parameters(model):
        raise AtsError(
            f"{type(model).__name__} has frozen parameters only, so there is no gradient to share"
        )
    return first


def check_state(model: nn.Module, images: Tensor) -> None:
    """Raise `AtsError` where a network keeps state that no copy of it has for itself, see
    `copying.outside`.
    """

    def run(twin: nn.Module) -> object:
        draws = torch_draws(0, images.device)
        # What is wrong with it is said by who runs it next.
        with draws, torch.enable_grad(), SameRules(), contextlib.suppress(Exception):
            return scores_in(twin(images))
        return None

    if not keeps_nothing(model):
        check_outside(model, run)


def scores_of(model: nn.Module, images: Tensor) -> Tensor:
    """The network's class scores of images (B, C, H, W): (B, classes). Of a network that gives more,
    they are its `logits`, or else the first tensor of what it gives, which a warning says once.

    How it ends is noted, see `models.ends_of`; nothing else of it is changed, since a copy runs.

    Raises:
        AtsError: it does not take images of this shape, or gives something else, such as a single
            score or nan.
    """
    name = type(model).__name__
    shape = tuple(images.shape[1:])
    twin = to_try(model)
    try:
        with (
            SameRules(),
            watched_ends(twin) as noted,
        ):  # a plain BatchNorm2d says in torch's words what it cannot do
            output = twin(images)
    except AtsError:
        raise
    except Exception as error:  # of somebody else's code, which may raise anything
        raise AtsError(f"{name} does not take images of shape {shape}: {explain(error)}") from None
    scores = scores_in(output)
    if not is_tensor(scores) or scores.ndim != 2 or len(scores) != len(images):
        raise AtsError(
            f"{name} gives {describe(scores)}; it must give one row of class scores per image"
        )
    if not scores.is_floating_point():
        raise AtsError(
            f"{name} gives scores of {scores.dtype}; they must be floats, before any choice of a class"
        )
    if scores.shape[1] < 2:
        raise AtsError(
            f"{name} gives {scores.shape[1]} score per image, of which the cross-entropy is always 0; "
            "let its last layer give one for each of at least two classes"
        )
    if not scores.isfinite().all():
        raise AtsError(
            f"{name} gives scores that are nan or infinite; check its weights and its input's normalization"
        )
    chosen = isinstance(output, tuple | list) and not hasattr(output, "logits")
    if chosen and ends_of(model) is None:
        warnings.warn(
            f"{name} gives a {type(output).__name__} of {len(output)}; its first tensor, {describe(scores)}, is taken "
            "as the class scores",
            stacklevel=2,
        )
    noted(scores)
    keep_ends(model, twin)
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
        scores = scores_of(model, images)
    finally:
        handle.remove()
    if not calls or not torch.equal(calls[0], images):
        raise AtsError(
            f"{name} has a Normalize layer and does not use it on its input; call it first in forward()"
        )
    return scores.shape[1]
