"""The networks of the paper and of its replication; each normalizes its own input.

Images go in as floats in [0, 1]; logits come out. Gradients are computed with `batch_norm` and
`max_pool` in place of torch's own, in any network.
"""

import contextlib
import dataclasses
import functools
import inspect
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import handle_torch_function, has_torch_function

from atslib.copying import apart, deep_copy
from atslib.data.load import Images, normalization
from atslib.errors import AtsError, check_whole
from atslib.named import named
from atslib.rng import as_stream

P = ParamSpec("P")
R = TypeVar("R")

LARGEST_CONSTANT = (
    3.0  # of a mean or deviation in units of [0, 1]; in units of 0..255 both are far above
)


class Normalize(nn.Module):
    """First layer of a network that takes images in [0, 1]: `(images - mean) / std` per channel,
    (..., C, H, W) → the same; `inverse` goes back. The statistics are not learned.

    Args:
        mean, std: one number per channel in units of [0, 1], std above 0.
    Raises:
        AtsError: other lengths or values, such as those of pixels in 0..255.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]):
        super().__init__()
        try:
            mean, std = (
                torch.tensor(
                    values.tolist() if isinstance(values, np.ndarray | Tensor) else values,
                    dtype=torch.get_default_dtype(),
                ).reshape(-1, 1, 1)
                for values in (mean, std)
            )
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise AtsError(
                f"Normalize({mean!r}, {std!r}): give the mean and deviation of each channel"
            ) from None
        given = f"Normalize({mean.flatten().tolist()}, {std.flatten().tolist()})"
        if (
            len(mean) != len(std)
            or not len(std)
            or not ((std > 0) & std.isfinite() & mean.isfinite()).all()
        ):
            raise AtsError(
                f"{given}: one mean and one deviation above 0 for each channel, both finite"
            )
        if (mean.abs() > LARGEST_CONSTANT).any() or (std > LARGEST_CONSTANT).any():
            raise AtsError(
                f"{given}: images are in [0, 1], and these constants are not; divide those of 0..255 by 255"
            )
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, images: Tensor) -> Tensor:
        channels = len(self.mean)
        if (
            channels > 1 and images.ndim > 2 and images.shape[-3] != channels
        ):  # grey would be taken for each
            said = f"{tuple(images.shape[-3:])}: it takes {channels} channels and the images have {images.shape[-3]}"
            raise AtsError(f"the network does not take images of shape {said}; convert the images")
        return (images - self.mean) / self.std

    def inverse(self, normalized: Tensor) -> Tensor:
        return normalized * self.std + self.mean


def batch_norm(
    x: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`F.batch_norm` written out as `x * scale + shift`, for `torch.func.vmap`; running statistics
    are not updated.

    Under `vmap` torch's own falls back to a slow form, and its second derivative in train mode is
    off by 0.8 %.
    """
    tensors = (x, mean, variance, weight, bias)
    if has_torch_function(tensors):
        return handle_torch_function(F.batch_norm, tensors, *tensors, training, momentum, eps)
    if training:
        check_train_mode(x.numel() // x.shape[1], mean)
        variance, mean = torch.var_mean(x, [0, *range(2, x.ndim)], correction=0)
    scale = torch.rsqrt(variance + eps)
    scale = scale if weight is None else weight * scale
    shift = -mean * scale if bias is None else bias - mean * scale
    return x * scale.view(-1, *[1] * (x.ndim - 2)) + shift.view(-1, *[1] * (x.ndim - 2))


def check_train_mode(values: int, running_mean: Tensor | None) -> None:
    """Refuse batch statistics of a single value, whose variance is 0, and a layer that updates its
    running ones.
    """
    if running_mean is not None:
        raise AtsError(
            "batch normalization in train mode updates its running statistics, which gradients must not; "
            "call model.eval(), or take in_mode(model, 'train')"
        )
    if values < 2:
        raise AtsError(
            "batch normalization in train mode got 1 value per channel, and a variance needs 2; "
            "let several images share a gradient (ThreatModel.batch) or give larger images"
        )


class BatchNorm(nn.BatchNorm2d):
    """`nn.BatchNorm2d`, computed by `batch_norm` unless it updates its running statistics."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.track_running_stats:
            return super().forward(x)
        mean, variance = (None, None) if self.training else (self.running_mean, self.running_var)
        return batch_norm(x, mean, variance, self.weight, self.bias, self.training, eps=self.eps)


def max_pool(
    x: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """`F.max_pool2d` with one rule for ties: the first pixel of a window, row by row, that is as
    large as its largest.

    Flat areas of an image make ties, and rounding, which depends on memory layout and processor,
    would choose among them. So a pixel counts as large as the largest if it lacks no more than a
    small share of the largest value in the image's pooled maps: 7e-5 in single precision, 4e-10 in
    double. That is far more than rounding makes. Value and gradient are those of the chosen pixel:
    where pixels of a photograph differ by less, the gradient of the layers before is not torch's
    own, in single precision by up to some percent of its length.
    """
    options = (kernel_size, kernel_size if stride is None else stride, padding, dilation)
    kernel, steps, pads, holes = ((o, o) if isinstance(o, int) else tuple(o) for o in options)
    maps = x.detach()
    (height, width) = x.shape[-2:]
    largest, index = F.max_pool2d_with_indices(maps, kernel, steps, pads, holes, ceil_mode)
    least = largest - torch.finfo(x.dtype).eps ** 0.6 * largest.abs().amax(
        (-3, -2, -1), keepdim=True
    )
    ends = [(n - 1) * step + 1 for n, step in zip(largest.shape[-2:], steps, strict=True)]
    below, right = (
        max(0, end + hole * (size - 1) - pad - side)
        for end, hole, size, pad, side in zip(
            ends, holes, kernel, pads, (height, width), strict=True
        )
    )
    maps = F.pad(maps, (pads[1], right, pads[0], below), value=-torch.inf)
    rows, columns = (
        torch.arange(0, end, step, device=x.device) for end, step in zip(ends, steps, strict=True)
    )
    for tap in reversed(
        range(kernel[0] * kernel[1])
    ):  # the last to be written is the first of the window
        y = tap // kernel[1] * holes[0]
        z = tap % kernel[1] * holes[1]
        seen = maps[..., y : y + ends[0] : steps[0], z : z + ends[1] : steps[1]]
        place = (rows + y - pads[0])[:, None] * width + columns + z - pads[1]
        index = torch.where(seen >= least, place, index)
    return x.flatten(-2).gather(-1, index.flatten(-2)).unflatten(-1, largest.shape[-2:])


class MaxPool(nn.MaxPool2d):
    """`nn.MaxPool2d` with the rule of `max_pool` for ties."""

    def forward(self, x: Tensor) -> Tensor:
        return max_pool(
            x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, projected by a 1×1 convolution where the shape changes."""

    expansion = 1  # output channels for each of `width`

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = BatchNorm(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = BatchNorm(width)
        self.shortcut = projection(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 3×3 convolution between two of 1×1, the second four times as wide, and a shortcut as in
    `BasicBlock`.
    """

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = BatchNorm(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = BatchNorm(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = BatchNorm(4 * width)
        self.shortcut = projection(inputs, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


def projection(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """A block's shortcut: nothing where the shape stays, else a 1×1 convolution and its
    normalization.
    """
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), BatchNorm(outputs))


def resnet(
    width: int,
    num_classes: int,
    in_channels: int,
    image_size: int,
    *,
    blocks: Sequence[int] = (3, 3, 3),
    block: type[BasicBlock | Bottleneck] = BasicBlock,
) -> nn.Sequential:
    """A ResNet for small images: stages of so many `blocks`, the first `width` wide and each twice
    the one before.

    By default ResNet20, of which width 64 is the paper's ResNet20-4. Source: the authors'
    inversefed/nn/models.py. With torchvision's blocks it is torchvision's network behind the first
    layer of that file: a convolution by 3×3 and no pooling, where torchvision, for images of 224
    pixels, has 7×7 and one.
    """
    layers = {}
    inputs = width
    for stage, count in enumerate(blocks):
        for i in range(count):
            layers[f"stage{stage + 1}_{i}"] = block(
                inputs, width << stage, 2 if stage and not i else 1
            )
            inputs = block.expansion * (width << stage)
    first = {
        "conv": nn.Conv2d(in_channels, width, 3, 1, 1, bias=False),
        "bn": BatchNorm(width),
        "relu": nn.ReLU(),
    }
    head = {
        "pool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "fc": nn.Linear(inputs, num_classes),
    }
    model = nn.Sequential(OrderedDict(first | layers | head))
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and not module.weight.is_meta:  # those are only counted
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def convnet(
    width: int, num_classes: int, in_channels: int, image_size: int, *, after_pool: int = 2
) -> nn.Sequential:
    """The ConvNet of Inverting Gradients: 8 convolutions with batch normalization and two max-pools
    by 3.

    `after_pool=3` is the replication's network of 9 convolutions: there the authors' duplicated
    dictionary key, which silently drops one layer, became a list, which keeps it.
    """
    if image_size < 9:
        raise AtsError(
            f"a ConvNet pools twice by 3, so its images must be at least 9 pixels wide, not {image_size}"
        )
    widths = [width, 2 * width, 2 * width, 4 * width, 4 * width, 4 * width, "pool"]
    widths += [4 * width] * after_pool + ["pool"]
    layers = []
    inputs = in_channels
    for out in widths:
        if out == "pool":
            layers.append(MaxPool(3))
        else:
            layers += [nn.Conv2d(inputs, out, 3, padding=1), BatchNorm(out), nn.ReLU()]
            inputs = out
    side = image_size // 3 // 3
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs * side * side, num_classes))


def lenet(
    width: int,
    num_classes: int,
    in_channels: int,
    image_size: int,
    *,
    activation: type[nn.Module] = nn.Sigmoid,
    padding: int = 2,
) -> nn.Sequential:
    """The sigmoid LeNet of Deep Leakage from Gradients (Zhu et al. 2019); `width` channels (theirs:
    12).

    Its weights are drawn evenly from ±0.5, with which SGD stays at chance on 100 classes. With
    another `activation` they are torch's own, and the network can be trained.
    """
    side = image_size
    layers = []
    for inputs, stride in ((in_channels, 2), (width, 2), (width, 1)):
        side = (side + 2 * padding - 5) // stride + 1
        layers += [nn.Conv2d(inputs, width, 5, stride, padding), activation()]
    if side < 1:
        raise AtsError(
            f"a LeNet without padding needs images at least 29 pixels wide, not {image_size}"
        )
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * side * side, num_classes))
    for parameter in model.parameters() if activation is nn.Sigmoid else ():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


# Notation: name[-k][-padding]. ResNet20-k is 16k wide, as in the paper; all others are k wide.
FAMILIES: dict[
    str, tuple[Callable[..., nn.Module], int, int]
] = {  # builder, default k, width of one k
    "resnet20": (resnet, 4, 16),
    "resnet18": (functools.partial(resnet, blocks=(2, 2, 2, 2)), 64, 1),
    "resnet34": (functools.partial(resnet, blocks=(3, 4, 6, 3)), 64, 1),
    "resnet152": (functools.partial(resnet, blocks=(3, 8, 36, 3), block=Bottleneck), 64, 1),
    "convnet": (convnet, 64, 1),
    "convnet9": (lambda *args: convnet(*args, after_pool=3), 64, 1),
    "lenet": (lenet, 12, 1),
    "relunet": (functools.partial(lenet, activation=nn.ReLU), 12, 1),
}

# What convolutions take for the pixels beyond an image's edge; without one of these names zeros, as
# everywhere.
PADDINGS = ("circular", "reflect", "unpadded")
MOST_CLASSES = 100_000
LARGEST = 1024  # the widest network, as in resnet20-1024, and image
MOST_WEIGHTS = (
    1_000_000_000  # 4 GB; without a limit memory ends, which kills a process without a word
)


def build_model(
    name: str,
    num_classes: int,
    in_channels: int = 3,
    *,
    image_size: int = 32,
    norm: str | tuple[Sequence[float], Sequence[float]] | None = None,
    rng: torch.Generator | int | None = None,
) -> nn.Sequential:
    """An untrained network in eval mode: float images in [0, 1] (B, C, H, W) → logits (B,
    `num_classes`).

    Args:
        name: a key of `FAMILIES`, optionally with its width: "resnet20-4" (64 wide), "resnet20-1",
            "convnet-16", "lenet"; and with one of `PADDINGS`: "lenet-12-circular". Unpadded is for
            LeNets only.
        norm: the data set whose constants the first layer uses, or (mean, std) itself; None: (0.5,
            0.25).
        image_size: side of the square input; the heads of ConvNet and LeNet depend on it.
        rng: the stream of the initial weights, or a seed for one; None draws them from torch's own
            generator.
    Raises:
        AtsError: an unknown name, a number that is not whole or too small, or more than
            `MOST_WEIGHTS` weights.
    """
    make, padding = _builder(name, num_classes, in_channels, image_size)
    if isinstance(norm, tuple) and len(norm) != 2:
        raise AtsError(f"norm {norm!r} must be the name of a data set, or a pair (mean, std)")
    front = Normalize(
        *(norm if isinstance(norm, tuple) else normalization(norm) if norm else ((0.5,), (0.25,)))
    )
    if len(front.mean) not in (1, in_channels):
        raise AtsError(
            f"norm {norm!r} has {len(front.mean)} channels and the model takes {in_channels}"
        )
    rng = as_stream(rng, optional=True)
    with torch.random.fork_rng(devices=[], enabled=rng is not None):
        if rng is not None:
            # Not torch.manual_seed, which would also reseed the accelerators' global generators.
            seed = torch.randint(1 << 62, (1,), generator=rng, device=rng.device)
            torch.default_generator.manual_seed(int(seed))
        network = make()
    for layer in network.modules() if padding in ("circular", "reflect") else ():
        if isinstance(layer, nn.Conv2d) and any(layer.padding):
            layer.padding_mode = padding  # as its constructor would have set it
    return nn.Sequential(front, network).eval()


def named_model(text: str, images: Images, seed: int, norm: tuple | None = None) -> nn.Module:
    """The network that a text names: a factory, a module, or one of `build_model`'s.

    Args:
        text: "file.py:name", "package.module:name", or a name such as "resnet20-4".
        images: those that it is for; a factory gets its arguments
            `num_classes`, `in_channels` and `image_size` where it has them.
        seed: of its weights.
        norm: mean and deviation of each channel, for a name.
    """
    _, channels, size, _ = images.pixels.shape
    if ":" not in text:
        return build_model(text, images.num_classes, channels, norm=norm, image_size=size, rng=seed)
    found = named(text, "--model")
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise AtsError(
            f"--model {text!r} is a {type(found).__name__}; it must be a network, or a function that gives one"
        )
    known = {"num_classes": images.num_classes, "in_channels": channels, "image_size": size}
    try:
        taken = {
            name: value
            for name, value in known.items()
            if name in inspect.signature(found).parameters
        }
    except (TypeError, ValueError):
        taken = {}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            made = found(**taken)
        except Exception as error:
            raise AtsError(
                f"--model {text!r} failed when it was called: {type(error).__name__}: {error}"
            ) from None
    if not isinstance(made, nn.Module):
        raise AtsError(
            f"--model {text!r} gives a {type(made).__name__}; it must give a torch.nn.Module"
        )
    return made


@functools.lru_cache(maxsize=256)  # it is asked each time a network is built, and takes as long
def _count(builder: Callable[..., nn.Module], *sizes: int, **own: int) -> int:
    """The weights of the network that `builder` makes of these arguments."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in builder(*sizes, **own).parameters())


def _builder(
    name: str, num_classes: int, in_channels: int, image_size: int
) -> tuple[Callable[[], nn.Module], str | None]:
    """What makes the network of that name, without its `Normalize` layer, and one of `PADDINGS`."""
    if not isinstance(name, str):
        raise AtsError(f"model {name!r} is unknown; choose {', '.join(FAMILIES)}")
    match = re.fullmatch(rf"(\w+?)(?:-([0-9]{{1,9}}))?(?:-({'|'.join(PADDINGS)}))?", name)
    family, size, padding = match.groups() if match else (name, None, None)
    if family not in FAMILIES or (size is not None and int(size) < 1):
        shown = f"with a width as in resnet20-4, or a padding ({', '.join(PADDINGS)}) as in lenet-12-circular"
        raise AtsError(f"model {name!r} is unknown; choose {', '.join(FAMILIES)}, {shown}")
    if padding == "unpadded" and family not in ("lenet", "relunet"):
        raise AtsError(
            f"model {name!r}: a {family} adds or pools maps of equal size; only LeNets can be unpadded"
        )
    check_whole("num_classes", num_classes, 2)
    check_whole("in_channels", in_channels, 1)
    if num_classes > MOST_CLASSES or in_channels > LARGEST:
        raise AtsError(
            f"{num_classes} classes, {in_channels} channels: at most {MOST_CLASSES} and {LARGEST} are built"
        )
    check_whole("image_size", image_size, 1)
    if (
        max(int(size or 1), image_size) > LARGEST
    ):  # else memory ends, or it takes minutes without a word
        raise AtsError(
            f"model {name!r} for images {image_size} wide: neither number may be above {LARGEST}"
        )
    builder, default, unit = FAMILIES[family]
    own = {"padding": 0} if padding == "unpadded" else {}
    sizes = (int(size or default) * unit, num_classes, in_channels, image_size)
    if (weights := _count(builder, *sizes, **own)) > MOST_WEIGHTS:
        raise AtsError(
            f"model {name!r} for images {image_size} wide and {num_classes} classes would have {weights:,} weights; "
            f"at most {MOST_WEIGHTS:,} are built"
        )
    return functools.partial(builder, *sizes, **own), padding


def fast_layout(images: Tensor) -> Tensor:
    """The memory layout in which a CPU convolves fastest, channels last; on a GPU the images as
    they are.
    """
    return images if images.is_cuda else images.contiguous(memory_format=torch.channels_last)


def normalization_layer(model: nn.Module) -> Normalize:
    """The model's first layer: attacks move between [0, 1] and the model's units with it."""
    first = next(iter(model.children()), None)
    if not isinstance(first, Normalize):
        raise AtsError(
            f"{type(model).__name__} does not start with a Normalize layer; wrap it: "
            "torch.nn.Sequential(Normalize(mean, std), model)"
        )
    return first


def starting_with(model: nn.Module, norm: tuple[Sequence[float], Sequence[float]]) -> nn.Module:
    """The network, behind a `Normalize` layer of these constants where it does not start with one."""
    if isinstance(next(model.children(), None), Normalize):
        return model
    return nn.Sequential(Normalize(*norm), model)


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """The running mean and variance of each batch normalization, (width,), by buffer name."""
    return {
        f"{name}.{buffer}": getattr(layer, buffer)
        for name, layer in batch_norms(model).items()
        for buffer in ("running_mean", "running_var")
    }


def batch_norms(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that normalize with running statistics in eval mode and with the batch's in train
    mode, by name.

    Group, layer and instance normalization treat both modes alike and are not among them.

    Raises:
        AtsError: a layer whose running statistics follow other rules: `SyncBatchNorm`, or
            `InstanceNorm` with `track_running_stats`.
    """
    norms = torch.nn.modules.batchnorm
    layers = {
        n: m
        for n, m in model.named_modules()
        if isinstance(m, norms._NormBase) and m.running_mean is not None
    }
    for name, layer in layers.items():
        if not isinstance(layer, norms._BatchNorm) or isinstance(layer, nn.SyncBatchNorm):
            raise AtsError(
                f"layer {name!r} is a {type(layer).__name__} with running statistics, which cannot be attacked; "
                "use BatchNorm2d, or a normalization without running statistics"
            )
    return layers


def copied(model: nn.Module) -> nn.Module:
    """A deep copy that trains the same parameters and has a state of its own; see `copying`.

    Raises:
        AtsError: something in it cannot be copied; the sentence names the attribute.
    """
    return deep_copy(model)


# Layers that keep nothing between passes, and whose gradients are not compared with plain ones: the
# fast form was made for them, and tests compare it with others.
_STEADY = (
    Normalize, BatchNorm, MaxPool, BasicBlock, Bottleneck, nn.Sequential, nn.Conv2d, nn.Linear, nn.ReLU, nn.Sigmoid,
    nn.Flatten, nn.AdaptiveAvgPool2d, nn.BatchNorm2d, nn.MaxPool2d,
)  # fmt: skip


def keeps_nothing(model: nn.Module) -> bool:
    """Whether a network is of layers alone of which it is known that a pass changes nothing."""
    return all(
        type(layer) in _STEADY
        and not (layer._forward_hooks or layer._forward_pre_hooks)
        and not (layer.training and getattr(layer, "track_running_stats", False))
        for layer in model.modules()
    )


def to_try(model: nn.Module) -> nn.Module:
    """What to run where a network is only looked at: a copy with the same parameters, or itself
    where a pass changes nothing.
    """
    return model if keeps_nothing(model) else apart(model)


def eagerly(function: Callable[P, R]) -> Callable[P, R]:
    """A function that runs networks as they are written where `torch.compile` has wrapped a part of
    them, since of compiled code there are no second derivatives.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:  # nothing is compiled, and it takes long to import
            return function(*args, **kwargs)
        with torch.compiler.set_stance("force_eager"):
            return function(*args, **kwargs)

    return wrapped


def scores_in(output: object) -> object:
    """The class scores in what a network gives: its attribute or entry `logits`, else the first
    tensor of a tuple or list; `output` itself where there is no such thing.
    """
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if logits is None and isinstance(output, tuple | list):
        logits = next((part for part in output if isinstance(part, Tensor)), None)
    return logits if isinstance(logits, Tensor) and logits.ndim <= 2 else output


def class_scores(
    model: nn.Module, images: Tensor, state: dict[str, Tensor] | None = None
) -> Tensor:
    """The class scores (B, K) of images (B, C, H, W), also where a network gives more than these,
    see `scores_in`.

    Args:
        state: parameters and buffers by name, to be used in place of the network's own.
    """
    return scores_in(functional_call(model, state, (images,)) if state else model(images))


def in_mode(model: nn.Module, mode: str) -> nn.Module:
    """A copy in eval mode whose batch normalization uses running statistics ("eval") or the batch's
    ("train").

    Running statistics are never updated. Raises as `batch_norms` does.
    """
    view = copied(model).eval()
    for layer in batch_norms(view).values():
        if mode == "train":
            layer.train()
            layer.track_running_stats = False
    return view


def shared_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters whose gradients a client shares, by name and in their order: those that are
    trained.

    A frozen parameter, `requires_grad=False`, is not among them.
    """
    return {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }


def as_client(model: nn.Module, mode: str) -> nn.Module:
    """A copy as a client runs it: `in_mode`, and in train mode all other layers, such as dropout,
    are too.
    """
    view = in_mode(model, mode)
    if mode == "train":
        view.train()
    return view


@dataclasses.dataclass(frozen=True)
class Ends:
    """How a network ends, as seen when it ran.

    Attributes:
        head: the name of the layer with parameters that ran last; "" where no layer has parameters
            of its own.
        linear: the name of the linear layer that ran last; "" where none did.
        classes: how many scores it gives for an image.
    """

    head: str
    linear: str
    classes: int


# An attribute of networks that were seen running; copies of a network inherit it
_ENDS = "_atslib_ends"


@contextlib.contextmanager
def watched_ends(model: nn.Module) -> Iterator[Callable[[Tensor], None]]:
    """While it is open, the network is seen running; what is given, called with its scores, notes
    its `Ends`.

    The order in which layers were registered says nothing of the order in which they run.
    """
    called: list[tuple[str, nn.Module]] = []

    def noted(scores: Tensor) -> None:
        linear = [name for name, layer in called if isinstance(layer, nn.Linear)]
        model.__dict__[_ENDS] = Ends(
            called[-1][0] if called else "", linear[-1] if linear else "", scores.shape[1]
        )

    scripted = any(
        isinstance(layer, torch.jit.ScriptModule) for layer in model.modules()
    )  # they take no hooks
    with contextlib.ExitStack() as hooks:
        for name, layer in model.named_modules() if not scripted else ():
            parts = {key for key, _ in layer.named_children()}
            if name and parts <= {"parametrizations"} and list(layer.parameters()):
                hook = layer.register_forward_hook(
                    lambda layer, _, __, name=name: called.append((name, layer))
                )
                hooks.callback(hook.remove)
        yield noted


def ends_of(model: nn.Module) -> Ends | None:
    """How the network ends, where it, or what it was copied from, was seen running."""
    return model.__dict__.get(_ENDS)


def keep_ends(model: nn.Module, seen: nn.Module) -> nn.Module:
    """`model`, of which is noted what was seen of another copy of the same network."""
    if (ends := ends_of(seen)) is not None:
        model.__dict__[_ENDS] = ends
    return model


# An attribute of networks that are trained with a loss of their own; copies of a network inherit it
_LOSS = "_atslib_loss"
# An attribute of networks whose gradients were computed, see `gradients.routes`
ROUTES = "_atslib_routes"

Loss = Callable[[Tensor, Tensor], Tensor]


def with_loss(model: nn.Module, loss: Loss) -> nn.Module:
    """A copy of a network that clients train with this loss in place of the cross-entropy.

    Gradients, local training and attacks are of that loss then, also where another module holds the
    copy.

    Args:
        model: any network.
        loss: (scores (k, K), labels (k,)) → the mean over the images that share a gradient, or one
            number for each, (k,); a function or a module.
    """
    twin = copied(model)
    twin.__dict__.pop(ROUTES, None)  # they were found for another loss
    twin.__dict__[_LOSS] = loss
    return twin


def loss_of(model: nn.Module) -> Loss:
    """What clients train a network with, as a mean: the loss of `with_loss`, else the
    cross-entropy.
    """
    for part in model.modules():  # a wrapper has none, but what it wraps
        if (own := part.__dict__.get(_LOSS)) is not None:
            return lambda scores, labels: own(scores, labels).mean()
    return F.cross_entropy


def last_linear(model: nn.Module) -> nn.Linear:
    """The network's last linear layer: the one that ran last, or where it was not seen running the
    last registered.

    Raises:
        AtsError: there is none with a bias, or its weight is computed from other parameters, as by
            `weight_norm` and pruning.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    for part in model.modules():  # a wrapper was not seen, but what it wraps
        if (ends := ends_of(part)) and ends.linear:
            layers = [part.get_submodule(ends.linear)]
            break
    if not layers or layers[-1].bias is None:
        raise AtsError(
            f"{type(model).__name__} has no linear layer with a bias at its end, which this needs"
        )
    if "weight" not in layers[-1]._parameters:
        raise AtsError(
            f"the weight of {type(model).__name__}'s last linear layer is computed from other parameters, and this needs "
            "one that is trained itself"
        )
    return layers[-1]


@contextlib.contextmanager
def before_last(model: nn.Module, change: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """While it is open, `last_linear` gets what `change` makes of its input; None leaves that as it
    is.
    """
    hook = last_linear(model).register_forward_pre_hook(lambda layer, inputs: change(*inputs))
    try:
        yield
    finally:
        hook.remove()


def device_of(name: str) -> torch.device:
    """The torch device of that name; "auto" is a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        probe = torch.empty(0, device=name)
        probe.cpu()  # "meta" refuses here: it holds no numbers
        return probe.device
    except (RuntimeError, AssertionError):
        here = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        shown = f"torch has {', '.join(here)} on this machine"
        raise AtsError(
            f"device {name!r} cannot be used; {shown}, and 'auto' takes a GPU where there is one"
        ) from None
