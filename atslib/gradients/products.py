"""The products of one convolution that `per_example` is made of.

Each has several equivalent forms; the one that is fastest on the device is taken.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from atslib.models import fast_layout

_backward = torch.ops.aten.convolution_backward

# On a CPU matrix products of patches are faster than grouped convolutions where maps are small or
# channels many.
FEW_PIXELS = 256
MANY_CHANNELS = 256


class Products:
    """The products of one convolution.

    A weight is shared, (O, I, h, w), or one direction per problem, (N, O, I, h, w).

    Products with directions are grouped convolutions, one group per problem, or matrix products of
    patches. The latter expect and return weights that lie in memory as (N, h, w, I, O), and maps in
    channels-last layout.
    """

    def __init__(
        self, problems: int, maps: Tensor, weight: Tensor, geometry: Sequence[Sequence[int]]
    ):
        self.problems = problems
        self.images = len(maps) // problems
        outputs = weight.shape[0]
        self.kernel = list(weight.shape[-2:])
        self.stride, self.padding, self.dilation = (list(part) for part in geometry)
        self.inputs = list(maps.shape[2:])
        self.rest = []
        self.size = []
        for side, kernel, stride, padding, dilation in zip(
            self.inputs, self.kernel, self.stride, self.padding, self.dilation, strict=True
        ):
            steps, rest = divmod(side + 2 * padding - dilation * (kernel - 1) - 1, stride)
            self.size.append(steps + 1)
            self.rest.append(rest)
        pixels = self.size[0] * self.size[1]
        self.by_patches = not maps.is_cuda and (pixels <= FEW_PIXELS or outputs >= MANY_CHANNELS)
        # Patches of the input's gradient are h·w times larger than the maps and must be added up:
        # only for small maps.
        self.back_by_patches = not maps.is_cuda and pixels <= min(FEW_PIXELS, 4 * outputs - 1)

    def fold(self, x: Tensor) -> Tensor:
        """(N·k, C, H, W) → (k, N·C, H, W): problems become groups."""
        x = x.unflatten(0, (self.problems, -1))
        if x.is_cuda:
            return x.transpose(0, 1).flatten(1, 2)
        return (
            x.permute(1, 3, 4, 0, 2).flatten(3).permute(0, 3, 1, 2)
        )  # channels last, as `fast_layout`

    def unfold(self, x: Tensor) -> Tensor:
        """The inverse of `fold`."""
        x = x.unflatten(1, (self.problems, -1))
        if x.is_cuda:
            return x.transpose(0, 1).flatten(0, 1)
        return x.permute(1, 0, 3, 4, 2).flatten(0, 1).permute(0, 3, 1, 2)

    def rows(self, maps: Tensor) -> Tensor:
        """(N·k, C, H, W) → (N, k·H·W, C)."""
        return maps.permute(0, 2, 3, 1).reshape(self.problems, -1, maps.shape[1])

    def patches(self, x: Tensor) -> Tensor | None:
        """The inputs of each output pixel, (N, k·pixels, h·w·I); None where grouped convolutions
        serve better.
        """
        if not self.by_patches:
            return None
        (tall, broad) = self.padding
        (down, right) = self.stride
        (dy, dx) = self.dilation
        maps = x.permute(0, 2, 3, 1)
        maps = (
            F.pad(maps, (0, 0, broad, broad, tall, tall)) if tall or broad else maps
        ).contiguous()
        image, row, pixel, _ = maps.stride()
        strides = (image, down * row, right * pixel, dy * row, dx * pixel, 1)
        windows = maps.as_strided((len(x), *self.size, *self.kernel, x.shape[1]), strides)
        return windows.reshape(self.problems, -1, windows.shape[3:].numel())

    def scatter(self, seen: Tensor) -> Tensor:
        """The transpose of `patches`: each pixel's sum over the patches that hold it."""
        seen = seen.flatten(0, 1).unflatten(1, (*self.kernel, -1)).unflatten(0, (-1, *self.size))
        rows = self.overlapped(seen.unbind(3), 0)
        return self.overlapped(rows.unbind(3), 1).permute(0, 3, 1, 2)

    def overlapped(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Add up one part per row (axis 0) or column (1) of the kernel, each at the input pixels
        that it covers.
        """
        places = [self.covered(tap, axis) for tap in range(len(parts))]
        side = self.inputs[axis]
        before = (slice(None),) * (axis + 1)
        if (everywhere := (slice(0, side, 1), slice(0, side))) in places:
            first = places.index(everywhere)
            total = parts[first][(*before, slice(0, side))].contiguous()
        else:
            first = None
            shape = list(parts[0].shape)
            shape[axis + 1] = side
            total = parts[0].new_zeros(shape)
        for tap, (part, (to, of)) in enumerate(zip(parts, places, strict=True)):
            if tap != first:
                total[(*before, to)] += part[(*before, of)]
        return total

    def covered(self, tap: int, axis: int) -> tuple[slice, slice]:
        """The input pixels that a row or column of the kernel covers, and the output pixels at
        which it does.
        """
        stride = self.stride[axis]
        offset = tap * self.dilation[axis] - self.padding[axis]
        first = max(0, -(offset // stride))
        last = max(first, min(self.size[axis], (self.inputs[axis] - 1 - offset) // stride + 1))
        start = first * stride + offset
        return slice(start, start + (last - first) * stride, stride), slice(first, last)

    def conv(
        self, x: Tensor, weight: Tensor, patches: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Convolve; `patches` of `x` if already computed; `bias` is (O,), or (N, O) with one weight
        per problem.
        """
        if weight.ndim == 4:
            return F.conv2d(fast_layout(x), weight, bias, self.stride, self.padding, self.dilation)
        if not self.by_patches:
            args = (
                None if bias is None else bias.flatten(),
                self.stride,
                self.padding,
                self.dilation,
                self.problems,
            )
            return self.unfold(F.conv2d(self.fold(x), weight.flatten(0, 1), *args))
        product = (self.patches(x) if patches is None else patches, self.matrix(weight))
        rows = torch.bmm(*product) if bias is None else torch.baddbmm(bias.unsqueeze(1), *product)
        return rows.view(-1, *self.size, rows.shape[2]).permute(0, 3, 1, 2)

    def matrix(self, weight: Tensor) -> Tensor:
        """(N, O, I, h, w) → (N, h·w·I, O)."""
        return weight.permute(0, 3, 4, 2, 1).flatten(1, 3)

    def transposed(self, out: Tensor, weight: Tensor) -> Tensor:
        """The gradient of `conv` with respect to its input."""
        if weight.ndim == 4:
            args = (self.stride, self.padding, self.rest, 1, self.dilation)
            return F.conv_transpose2d(fast_layout(out), weight, None, *args)
        if self.back_by_patches:
            return self.scatter(torch.bmm(self.rows(out), self.matrix(weight).transpose(1, 2)))
        args = (None, self.stride, self.padding, self.rest, self.problems, self.dilation)
        return self.unfold(
            F.conv_transpose2d(self.fold(out), weight.contiguous().flatten(0, 1), *args)
        )

    def weight_gradient(self, x: Tensor, out: Tensor, patches: Tensor | None) -> Tensor:
        """The gradient of `conv` with respect to each problem's weights, (N, O, I, h, w)."""
        if patches is not None:
            by_patch = torch.bmm(patches.transpose(1, 2), self.rows(out))
            return by_patch.unflatten(1, (*self.kernel, -1)).permute(0, 4, 3, 1, 2)
        groups = self.problems * out.shape[1]
        like = x.new_empty(1).expand(groups, x.shape[1], *self.kernel)
        args = (
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0, 0],
            self.problems,
            [False, True, False],
        )
        by_weight = _backward(self.fold(out), self.fold(x), like, *args)[1]
        return by_weight.unflatten(0, (self.problems, -1))
