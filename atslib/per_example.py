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


# Maps of at most so many pixels are multiplied as patches: a grouped convolution is up to ten times slower there.
FEW_PIXELS = 128


class _Products:
    """The products of one convolution; a weight is shared, (O, I, h, w), or each problem's own, (N, O, I, h, w).

    Per-problem products run as grouped convolutions, problems as groups, or on small maps as matrix
    products of patches.
    """

    def __init__(self, mode: "PerExample", kernel: Sequence[int], geometry: Sequence[Sequence[int]]):
        self.mode, self.problems, self.kernel = mode, mode.problems, list(kernel)
        self.stride, self.padding, self.dilation = (list(part) for part in geometry)
        self.reach = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True)]

    def fold(self, x: Tensor) -> Tensor:
        """(N·k, C, H, W) → (k, N·C, H, W): problems become groups."""
        x = x.unflatten(0, (self.problems, -1))
        if x.is_cuda:
            return x.transpose(0, 1).flatten(1, 2)
        return x.permute(1, 3, 4, 0, 2).flatten(3).permute(0, 3, 1, 2)  # channels last, as `fast_layout`

    def unfold(self, x: Tensor) -> Tensor:
        """The inverse of `fold`."""
        x = x.unflatten(1, (self.problems, -1))
        if x.is_cuda:
            return x.transpose(0, 1).flatten(0, 1)
        return x.permute(1, 0, 3, 4, 2).flatten(0, 1).permute(0, 3, 1, 2)

    def columns(self, maps: Tensor) -> Tensor:
        """(N·k, C, pixels) → (N, C, k·pixels)."""
        return maps.unflatten(0, (self.problems, -1)).transpose(1, 2).flatten(2)

    def maps(self, columns: Tensor, pixels: int) -> Tensor:
        """The inverse of `columns`."""
        return columns.unflatten(2, (-1, pixels)).transpose(1, 2).flatten(0, 1)

    def patches(self, x: Tensor) -> Tensor:
        """What each output pixel sees, (N, I·h·w, k·pixels)."""
        return self.columns(F.unfold(x, self.kernel, self.dilation, self.padding, self.stride))

    def conv(self, x: Tensor, weight: Tensor, patches: Tensor | None = None) -> Tensor:
        """Convolve; `patches` of `x` where they are at hand."""
        if weight.ndim == 4:
            return F.conv2d(fast_layout(x), weight, None, self.stride, self.padding, self.dilation)
        high, wide = ((x.shape[2 + i] + 2 * self.padding[i] - self.reach[i]) // self.stride[i] + 1 for i in range(2))
        if high * wide <= FEW_PIXELS:
            patches = self.patches(x) if patches is None else patches
            return self.maps(torch.bmm(weight.flatten(2), patches), high * wide).unflatten(2, (high, wide))
        args = (None, self.stride, self.padding, self.dilation, self.problems)
        return self.unfold(F.conv2d(self.fold(x), weight.flatten(0, 1), *args))

    def transposed(self, out: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """The gradient of `conv` with respect to its input, which has the shape of `like`."""
        pixels = out.shape[2] * out.shape[3]
        if weight.ndim == 5 and pixels <= FEW_PIXELS:
            seen = torch.bmm(weight.flatten(2).transpose(1, 2), self.columns(out.flatten(2)))
            size = like.shape[2:]
            return F.fold(self.maps(seen, pixels), size, self.kernel, self.dilation, self.padding, self.stride)
        full = [(out.shape[2 + i] - 1) * self.stride[i] - 2 * self.padding[i] + self.reach[i] for i in range(2)]
        rest = [like.shape[2 + i] - full[i] for i in range(2)]
        if weight.ndim == 4:
            out = fast_layout(out)
            return F.conv_transpose2d(out, weight, None, self.stride, self.padding, rest, 1, self.dilation)
        args = (None, self.stride, self.padding, rest, self.problems, self.dilation)
        return self.unfold(F.conv_transpose2d(self.fold(out), weight.flatten(0, 1), *args))

    def weight_gradient(self, x: Tensor, out: Tensor, patches: Tensor | None) -> Tensor:
        """The gradient of `conv` with respect to each problem's weights, (N, O, I, h, w)."""
        n, inputs, outputs = self.problems, x.shape[1], out.shape[1]
        if patches is not None:
            found = torch.bmm(self.columns(out.flatten(2)), patches.transpose(1, 2))
            return found.unflatten(2, (inputs, *self.kernel))
        like = x.new_empty(1).expand(n * outputs, inputs, *self.kernel)
        args = (None, self.stride, self.padding, self.dilation, False, [0, 0], n, [False, True, False])
        found = _backward(self.fold(out), self.fold(x), like, *args)[1]
        return found.unflatten(0, (n, outputs))


class _WeightGradient(Function):
    """`_Products.weight_gradient`, differentiable once in both arguments."""

    @staticmethod
    def forward(ctx: object, x: Tensor, out: Tensor, products: _Products) -> Tensor:
        patches = products.patches(x) if out.shape[2] * out.shape[3] <= FEW_PIXELS else None
        ctx.save_for_backward(x, out, patches)
        ctx.products = products
        return products.weight_gradient(x, out, patches)

    @staticmethod
    def backward(ctx: object, direction: Tensor) -> tuple:
        x, out, patches = ctx.saved_tensors
        for_x = ctx.products.transposed(out, direction, x) if ctx.needs_input_grad[0] else None
        for_out = ctx.products.conv(x, direction, patches) if ctx.needs_input_grad[1] else None
        return for_x, for_out, None


class _Transposed(Function):
    """`_Products.transposed`, differentiable once in `out`."""

    @staticmethod
    def forward(ctx: object, out: Tensor, weight: Tensor, like: Tensor, products: _Products) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.products = products
        return products.transposed(out, weight, like)

    @staticmethod
    def backward(ctx: object, direction: Tensor) -> tuple:
        return ctx.products.conv(direction, *ctx.saved_tensors), None, None, None


class _Convolution(Function):
    """A convolution whose weight gradient goes to the handle (N, O, I, h, w); `weight` itself is a constant."""

    @staticmethod
    def forward(ctx: object, x: Tensor, handle: Tensor, weight: Tensor, products: _Products) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.products = products
        return products.conv(x, weight)

    @staticmethod
    def backward(ctx: object, out: Tensor) -> tuple:
        x, weight = ctx.saved_tensors
        for_x = _Transposed.apply(out, weight, x, ctx.products) if ctx.needs_input_grad[0] else None
        wanted = ctx.products.mode.handles_wanted
        return for_x, _WeightGradient.apply(x, out, ctx.products) if wanted else None, None, None


class _Affine(Function):
    """x · scale + shift, with scale and shift (N, 1, C, 1, 1) of each problem, x (N, k, C, H, W)."""

    @staticmethod
    def forward(ctx: object, x: Tensor, scale: Tensor, shift: Tensor, mode: "PerExample | None") -> Tensor:
        ctx.save_for_backward(x, scale)
        ctx.mode = mode
        return torch.addcmul(shift, x, scale)

    @staticmethod
    def backward(ctx: object, out: Tensor) -> tuple:
        x, scale = ctx.saved_tensors
        if ctx.mode is None or ctx.mode.handles_wanted:
            return *_AffineGradient.apply(out, x, scale, ctx.mode), None
        return out * scale, None, None, None


class _AffineGradient(Function):
    """The three gradients of `_Affine`, differentiable once.

    With a `mode`, scale and shift depend on handles alone, which no second derivative reaches.
    """

    @staticmethod
    def forward(ctx: object, out: Tensor, x: Tensor, scale: Tensor, mode: "PerExample | None") -> tuple:
        ctx.save_for_backward(out, x, scale)
        ctx.mode = mode
        return out * scale, (out * x).sum((1, 3, 4), keepdim=True), out.sum((1, 3, 4), keepdim=True)

    @staticmethod
    def backward(ctx: object, for_x: Tensor, for_scale: Tensor, for_shift: Tensor) -> tuple:
        out, x, scale = ctx.saved_tensors
        to_out = torch.addcmul(for_shift, x, for_scale).addcmul_(for_x, scale)
        to_scale = (for_x * out).sum((1, 3, 4), keepdim=True) if ctx.mode is None else None
        return to_out, out * for_scale, to_scale, None


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
        self.handles_wanted = True  # False once their gradients are there: later passes skip those products
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
        products = _Products(self, weight.shape[-2:], (stride, padding, dilation))
        out = _Convolution.apply(x, handle, handle.detach() if shared is None else shared, products)
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
        return _Affine.apply(self._by_problem(x), scale, shift, None if mean.requires_grad else self).flatten(0, 1)
