"""The networks of the paper and of its replication; each normalizes its own input.

Pixels go in as floats in [0, 1]; logits come out. Batch normalization in eval mode is written as the
affine map it is, so that per-example gradients need no special case and no slow fallback.
"""

import copy
import re
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from atslib.data.load import normalization
from atslib.errors import AtsError


class Normalize(nn.Module):
    """`(pixels - mean) / std` per channel; `inverse` goes back. The statistics are not learned."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels - self.mean) / self.std

    def inverse(self, normalized: Tensor) -> Tensor:
        return normalized * self.std + self.mean


def affine_norm(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Batch normalization with given statistics, as the map `x * scale + shift` that it is."""
    if has_torch_function((x, mean, variance, weight, bias)):
        args = (x, mean, variance, weight, bias)
        return handle_torch_function(affine_norm, args, *args, eps)
    scale = weight * torch.rsqrt(variance + eps)
    shift = bias - mean * scale
    return x * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)


class BatchNorm(nn.BatchNorm2d):
    """Batch normalization whose eval mode is `affine_norm`: `torch.func.vmap` runs it without a fallback."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return super().forward(x)
        return affine_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.eps)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, projected by a 1×1 convolution where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = BatchNorm(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = BatchNorm(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != width:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), BatchNorm(width))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


def resnet20(width: int, num_classes: int, in_channels: int, image_size: int) -> nn.Sequential:
    """ResNet20 for small images: three stages of three basic blocks, `width`, 2 and 4 times `width` wide.

    Width 64 is the paper's ResNet20-4. Source: the authors' inversefed/nn/models.py.
    """
    stages, inputs = [], width
    for stage in range(3):
        for block in range(3):
            stride = 2 if stage and not block else 1
            stages.append((f"stage{stage + 1}_{block}", BasicBlock(inputs, width << stage, stride)))
            inputs = width << stage
    model = nn.Sequential()
    model.add_module("conv", nn.Conv2d(in_channels, width, 3, 1, 1, bias=False))
    model.add_module("bn", BatchNorm(width))
    model.add_module("relu", nn.ReLU())
    for name, block in stages:
        model.add_module(name, block)
    model.add_module("pool", nn.AdaptiveAvgPool2d(1))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc", nn.Linear(inputs, num_classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def convnet(width: int, num_classes: int, in_channels: int, image_size: int, *, after_pool: int = 2) -> nn.Sequential:
    """The ConvNet of Inverting Gradients: 8 convolutions with batch normalization and two max-pools by 3.

    `after_pool=3` is the replication's network of 9 convolutions: there the authors' duplicated
    dictionary key, which silently drops one layer, became a list, which keeps it.
    """
    if image_size < 9:
        raise AtsError(f"a ConvNet pools twice by 3, so its images must be at least 9 pixels wide, not {image_size}")
    widths = [width, 2 * width, 2 * width, 4 * width, 4 * width, 4 * width, "pool"]
    widths += [4 * width] * after_pool + ["pool"]
    layers, inputs = [], in_channels
    for out in widths:
        if out == "pool":
            layers.append(nn.MaxPool2d(3))
        else:
            layers += [nn.Conv2d(inputs, out, 3, padding=1), BatchNorm(out), nn.ReLU()]
            inputs = out
    side = image_size // 3 // 3
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs * side * side, num_classes))


def lenet(width: int, num_classes: int, in_channels: int, image_size: int) -> nn.Sequential:
    """The sigmoid LeNet of Deep Leakage from Gradients (Zhu et al. 2019); `width` channels (theirs: 12)."""
    side = -(-image_size // 4)
    layers = []
    for inputs, stride in ((in_channels, 2), (width, 2), (width, 1)):
        layers += [nn.Conv2d(inputs, width, 5, stride, 2), nn.Sigmoid()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * side * side, num_classes))
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def _torchvision(depth: int, num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """torchvision's ImageNet ResNet of that depth, with our batch normalization."""
    from atslib._torchvision import import_torchvision

    model = getattr(import_torchvision().models, f"resnet{depth}")(num_classes=num_classes, norm_layer=BatchNorm)
    if in_channels != 3:
        model.conv1 = nn.Conv2d(in_channels, 64, 7, 2, 3, bias=False)
    return model


# Notation: name[-k]. ResNet20-k is 16k wide, as in the paper; a ConvNet-w is w wide; LeNet-w is w wide.
FAMILIES: dict[str, tuple[Callable[..., nn.Module], int, int]] = {  # builder, default k, width of one k
    "resnet20": (resnet20, 4, 16),
    "convnet": (convnet, 64, 1),
    "convnet9": (lambda *args: convnet(*args, after_pool=3), 64, 1),
    "lenet": (lenet, 12, 1),
    "resnet18": (lambda _, *args: _torchvision(18, *args), 1, 1),
    "resnet152": (lambda _, *args: _torchvision(152, *args), 1, 1),
}


def build_model(
    name: str,
    num_classes: int,
    in_channels: int = 3,
    *,
    norm: str | tuple[Sequence[float], Sequence[float]] | None = None,
    image_size: int = 32,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """An untrained network in eval mode: float pixels in [0, 1] (B, C, H, W) → logits (B, `num_classes`).

    Args:
        name: a key of `FAMILIES`, optionally with its width: "resnet20-4" (64 wide), "resnet20-1",
            "convnet-16", "lenet".
        norm: the data set whose constants the first layer uses, or (mean, std) itself; None: (0.5, 0.25).
        image_size: side of the square input; the heads of ConvNet and LeNet depend on it.
        rng: the stream of the initial weights; None draws them from torch's own generator.
    Raises:
        AtsError: an unknown name or a width that is not a positive number.
    """
    match = re.fullmatch(r"(\w+?)(?:-(\d+))?", name)
    family, size = match.groups() if match else (name, None)
    if family not in FAMILIES or (size is not None and int(size) < 1):
        raise AtsError(f"model {name!r} is unknown; choose {', '.join(FAMILIES)}, with a width as in resnet20-4")
    builder, default, unit = FAMILIES[family]
    mean, std = norm if isinstance(norm, tuple) else normalization(norm) if norm else ((0.5,), (0.25,))
    if len(mean) not in (1, in_channels):
        raise AtsError(f"norm {norm!r} has {len(mean)} channels and the model takes {in_channels}")
    with torch.random.fork_rng(devices=[], enabled=rng is not None):
        if rng is not None:
            # Not torch.manual_seed, which would also reseed the accelerators' global generators.
            seed = torch.randint(1 << 62, (1,), generator=rng, device=rng.device)
            torch.default_generator.manual_seed(int(seed))
        width = int(size or default) * unit
        network = builder(width, num_classes, in_channels, image_size)
    return nn.Sequential(Normalize(mean, std), network).eval()


def fast_layout(images: Tensor) -> Tensor:
    """The memory layout in which a CPU convolves fastest, channels last; on a GPU the images as they are."""
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


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """The running mean and variance of each batch normalization, (width,), by buffer name."""
    return {
        f"{name}.{buffer}": getattr(layer, buffer)
        for name, layer in batch_norms(model).items()
        for buffer in ("running_mean", "running_var")
    }


def batch_norms(model: nn.Module) -> dict[str, BatchNorm]:
    """The batch normalizations of a model, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, BatchNorm)}


def in_mode(model: nn.Module, mode: str) -> nn.Module:
    """A copy in eval mode whose batch normalization uses running statistics ("eval") or the batch's ("train").

    Running statistics are never updated.
    """
    view = copy.deepcopy(model).eval()
    for layer in batch_norms(view).values():
        if mode == "train":
            layer.train()
            layer.track_running_stats = False
    return view
