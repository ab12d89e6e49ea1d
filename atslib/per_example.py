"""A network evaluated with one copy of its weights a problem, at the cost of one shared copy.

Under `PerExample` an ordinary model's convolutions, linear layers and batch normalizations read *handles*:
parameters expanded to (N, *shape), which occupy no more memory than one. The gradient with respect to a
handle is every problem's own. The arithmetic stays that of the shared layer where it can: only the three
products that truly differ by problem (the weight gradient and its two derivatives) run as grouped ones.
`torch.func.vmap` gives the same numbers more slowly; tests hold the two together.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from atslib.models import affine_norm, fast_layout

_backward = torch.ops.aten.convolution_backward


class Unsupported(Exception):
    """A parameter is used by something that is no convolution, linear layer or batch normalization."""


class _Shape:
    """Stride, padding and dilation of a convolution, and how many problems share the batch."""

    def __init__(self, problems: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]):
        self.problems, self.stride = problems, list(stride)
        self.padding, self.dilation = list(padding), list(dilation)

    def fold(self, x: Tensor) -> Tensor:
        """(N·k, C, H, W) → (k, N·C, H, W): problems become groups."""
        return x.unflatten(0, (self.problems, -1)).transpose(0, 1).flatten(1, 2)

    def unfold(self, x: Tensor) -> Tensor:
        """The inverse of `fold`."""
        return x.unflatten(1, (self.problems, -1)).transpose(0, 1).flatten(0, 1)

    def conv(self, x: Tensor, weight: Tensor) -> Tensor:
        """Convolve with shared weights (O, I, h, w), or with each problem's own, (N, O, I, h, w)."""
        if weight.ndim == 4:
            return F.conv2d(fast_layout(x), weight, None, self.stride, self.padding, self.dilation)
        grouped = weight.flatten(0, 1)
        args = (None, self.stride, self.padding, self.dilation, self.problems)
        return self.unfold(F.conv2d(self.fold(x), grouped, *args))

    def transposed(self, out: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """The gradient of `conv` with respect to its input, which has the shape of `like`."""
        rest = []
        for i in range(2):
            reach = self.dilation[i] * (weight.shape[-2 + i] - 1) + 1
            full = (out.shape[2 + i] - 1) * self.stride[i] - 2 * self.padding[i] + reach
            rest.append(like.shape[2 + i] - full)
        if weight.ndim == 4:
            out = fast_layout(out)
            return F.conv_transpose2d(out, weight, None, self.stride, self.padding, rest, 1, self.dilation)
        args = (None, self.stride, self.padding, rest, self.problems, self.dilation)
        return self.unfold(F.conv_transpose2d(self.fold(out), weight.flatten(0, 1), *args))

    def weight_gradient(self, x: Tensor, out: Tensor, kernel: Sequence[int]) -> Tensor:
        """The gradient of `conv` with respect to each problem's weights, (N, O, I, h, w)."""
        n, inputs, outputs = self.problems, x.shape[1], out.shape[1]
        if inputs * outputs > 1 << 14 and out.shape[2] * out.shape[3] <= 64:
            # Many channels on few pixels: a matrix product of patches, three times faster on a CPU.
            patches = F.unfold(x, kernel, self.dilation, self.padding, self.stride)
            patches, out = (t.unflatten(0, (n, -1)).transpose(1, 2).flatten(2) for t in (patches, out.flatten(2)))
            return torch.bmm(out, patches.transpose(1, 2)).unflatten(2, (inputs, *kernel))
        like = x.new_empty(1).expand(n * outputs, inputs, *kernel)
        args = (None, self.stride, self.padding, self.dilation, False, [0, 0], n, [False, True, False])
        found = _backward(self.fold(out), self.fold(x), like, *args)[1]
        return found.unflatten(0, (n, outputs))


class _WeightGradient(Function):
    """`_Shape.weight_gradient`, differentiable once in both arguments."""

    @staticmethod
    def forward(ctx: object, x: Tensor, out: Tensor, kernel: Sequence[int], shape: _Shape) -> Tensor:
        ctx.save_for_backward(x, out)
        ctx.shape = shape
        return shape.weight_gradient(x, out, kernel)

    @staticmethod
    def backward(ctx: object, direction: Tensor) -> tuple:
        x, out = ctx.saved_tensors
        for_x = ctx.shape.transposed(out, direction, x) if ctx.needs_input_grad[0] else None
        for_out = ctx.shape.conv(x, direction) if ctx.needs_input_grad[1] else None
        return for_x, for_out, None, None


class _Convolution(Function):
    """A convolution whose weight gradient goes to the handle (N, O, I, h, w); `weight` itself is a constant."""

    @staticmethod
    def forward(ctx: object, x: Tensor, handle: Tensor, weight: Tensor, shape: _Shape) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.shape = shape
        return shape.conv(x, weight)

    @staticmethod
    def backward(ctx: object, out: Tensor) -> tuple:
        x, weight = ctx.saved_tensors
        for_x = ctx.shape.transposed(out, weight, x) if ctx.needs_input_grad[0] else None
        for_handle = _WeightGradient.apply(x, out, weight.shape[-2:], ctx.shape)
        return for_x, for_handle, None, None


class PerExample(TorchFunctionMode):
    """While it is active, layers read their problem's own parameters and statistics.

    Args:
        problems: N; the leading dimension of every activation is N · k.
        parameters: id of a model's parameter → (handle (N, *shape), shared constant or None).
        buffers: id of a model's buffer → (N, *shape).
    """

    def __init__(self, problems: int, parameters: dict[int, tuple], buffers: dict[int, Tensor]):
        super().__init__()
        self.problems, self.parameters, self.buffers = problems, parameters, buffers
        self.layers: dict[Callable, Callable] = {
            torch.conv2d: self._conv2d,
            F.linear: self._linear,
            F.batch_norm: self._batch_norm,
            affine_norm: self._affine_norm,
        }

    def __torch_function__(self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None):
        kwargs = kwargs or {}
        if function in self.layers:
            return self.layers[function](*args, **kwargs)
        found = function(*args, **kwargs)
        used = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        if isinstance(found, Tensor) and any(id(a) in self.parameters for a in used):
            raise Unsupported(getattr(function, "__name__", str(function)))
        return found

    def _handle(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self.parameters:
            raise Unsupported("a parameter that is not the model's own")
        return self.parameters[id(tensor)][0]

    def _by_problem(self, x: Tensor) -> Tensor:
        return x.unflatten(0, (self.problems, -1))

    def _conv2d(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, stride: object, padding: object, dilation: object,
        groups: int,
    ) -> Tensor:  # fmt: skip
        if groups != 1 or isinstance(padding, str):
            raise Unsupported("a grouped or string-padded convolution")
        handle = self._handle(weight)
        shared = self.parameters[id(weight)][1]
        shape = _Shape(self.problems, stride, padding, dilation)
        out = _Convolution.apply(x, handle, handle.detach() if shared is None else shared, shape)
        if bias is None:
            return out
        return (self._by_problem(out) + self._handle(bias)[:, None, :, None, None]).flatten(0, 1)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if x.ndim != 2:
            raise Unsupported("a linear layer on more than vectors")
        out = self._by_problem(x) @ self._handle(weight).transpose(1, 2)
        return (out if bias is None else out + self._handle(bias)[:, None]).flatten(0, 1)

    def _affine_norm(
        self, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        mean, variance = (self.buffers.get(id(b), b) for b in (mean, variance))
        return self._normalized(x, mean, variance, weight, bias, eps)

    def _batch_norm(
        self, x: Tensor, mean: Tensor | None, variance: Tensor | None, weight: Tensor | None, bias: Tensor | None,
        training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        if weight is None or (training and mean is not None):
            raise Unsupported("a batch normalization without scale, or one that updates its running statistics")
        if not training:
            return self._affine_norm(x, mean, variance, weight, bias, eps)
        variance, mean = torch.var_mean(self._by_problem(x), (1, 3, 4), correction=0)
        return self._normalized(x, mean, variance, weight, bias, eps)

    def _normalized(
        self, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        scale = self._handle(weight) * torch.rsqrt(variance + eps)
        shift = self._handle(bias) - mean * scale
        scale, shift = (t[:, None, :, None, None] for t in (scale, shift))
        return torch.addcmul(shift, self._by_problem(x), scale).flatten(0, 1)
