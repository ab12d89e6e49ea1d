"""A network evaluated with one copy of its weights a problem, at the cost of one shared copy.

Under `PerExample` an ordinary model's convolutions, linear layers and batch normalizations read *handles*:
parameters expanded to (N, *shape), which occupy no more memory than one. The gradient with respect to a
handle is every problem's own. The arithmetic stays that of the shared layer where it can: only the three
products that truly differ by problem (the weight gradient and its two derivatives) run one a problem.
`torch.func.vmap` gives the same numbers more slowly; tests hold the two together.
"""

import copy
import weakref
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from atslib.gradients.products import Products
from atslib.models import batch_norm, check_train_mode, fast_layout, max_pool


class Unsupported(Exception):
    """A parameter is used by something that is no convolution, linear layer or batch normalization."""


class _Layer:
    """A convolution where it stands in the network, and the normalization that was folded into it, if any.

    With given statistics a normalization is `scale * maps + shift`, so that its gradients follow from the
    convolution's: that of `scale` is an inner product of weight and weight gradient. Maps are then neither scaled
    on the way back nor kept, but where they are smaller than the weights.
    """

    def __init__(self, mode: "PerExample", products: Products, weight: Tensor, bias: Tensor | None):
        self.mode, self.products, self.first = mode, products, mode.first
        self.weight = self.effective = weight
        self.bias, self.scale, self.raw, self.left = bias, None, None, None

    def conv(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """The convolution with the shared weight, or with each problem's own, and the scale folded into it."""
        return self.products.conv(x, self.effective, None, bias)

    def transposed(self, out: Tensor) -> Tensor:
        """The gradient of `conv` with respect to its input, and what the second pass left for it."""
        if self.left is None:
            return self.products.transposed(out, self.effective)
        if self.scale is not None:
            out = out * self.scale.view(-1, 1, 1)
        return self.products.transposed(out.add_(self.left), self.weight)

    def normalized(self, raw: Tensor, mean: Tensor, inverse: Tensor, scale: Tensor) -> "_Layer":
        """The same layer with its maps `raw` normalized."""
        found = copy.copy(self)
        found.mean, found.inverse, found.scale = mean, inverse, scale
        found.effective = fast_layout(self.weight * scale.view(-1, 1, 1, 1))  # once for three convolutions
        found.centre = -mean if self.bias is None else self.bias - mean
        if self.weight.numel() * self.products.problems > 4 * raw.numel():
            found.raw = raw
        elif self.products.by_patches:  # as the directions lie
            found.weight = self.weight.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1)
        return found

    def gradients(self, x: Tensor, out: Tensor, patches: Tensor | None) -> tuple:
        """Of weight, bias, gamma and beta, from that of the layer's maps; None for those it has not."""
        weight_gradient = self.products.weight_gradient
        if self.scale is None:
            return weight_gradient(x, out, patches), None if self.bias is None else self.total(out), None, None
        total, scale = self.total(out), self.scale.view(-1, 1, 1, 1)
        bias = None if self.bias is None else total * self.scale
        if self.raw is None:
            found = weight_gradient(x, out, patches)
            along = (found * self.weight).sum((2, 3, 4)) + self.centre * total
            return found.mul_(scale), bias, along * self.inverse, total
        along = self.total(out * self.raw) - self.mean * total
        return weight_gradient(x, out * scale[:, 0], patches), bias, along * self.inverse, total

    def directed(
        self, x: Tensor, out: Tensor, patches: Tensor | None, handles: tuple, wanted: Sequence[bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        """The transpose of `gradients`: directions of the handles → those of `out` and of `x`, where wanted."""
        weight, bias, gamma, beta = handles
        conv, transposed = self.products.conv, self.products.transposed
        if self.scale is not None:
            gamma = gamma * self.inverse
            beta = torch.addcmul(beta, gamma, self.centre if self.raw is None else -self.mean)
            bias = beta if bias is None else torch.addcmul(beta, bias, self.scale)
        if self.raw is None:
            if self.scale is not None:
                weight = weight * self.scale.view(-1, 1, 1, 1)
                weight = weight.addcmul_(gamma[..., None, None, None], self.weight)
            return conv(x, weight, patches, bias) if wanted[0] else None, transposed(out, weight) if wanted[1] else None
        # Maps are smaller than weights: they are scaled. What gamma does to `x` goes with the next shared product.
        gamma, bias, scale = self.rows(gamma), self.rows(bias), self.scale.view(-1, 1, 1)
        self.left = out * gamma
        to_out = torch.addcmul(bias, self.raw, gamma).addcmul_(conv(x, weight, patches), scale) if wanted[0] else None
        return to_out, transposed(out * scale, weight) if wanted[1] else None

    def rows(self, channels: Tensor) -> Tensor:
        """(N, O) → (N·k, O, 1, 1), to be multiplied with maps."""
        return channels.repeat_interleave(self.products.images, 0)[..., None, None]

    def total(self, maps: Tensor) -> Tensor:
        """The sum over a problem's images and pixels, (N, O)."""
        return maps.unflatten(0, (self.products.problems, -1)).sum((1, 3, 4))


class _Convolution(Function):
    """A layer's maps `value`, a function of its input and of its parameters' handles, whose values the layer has."""

    @staticmethod
    def forward(ctx: object, x: Tensor, value: list[Tensor], layer: _Layer, *handles: Tensor | None) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        return value[0]  # in a list, so that it is no input of this function, of which a result would be a view

    @staticmethod
    def backward(ctx: object, out: Tensor) -> tuple:
        (x,), layer, further = ctx.saved_tensors, ctx.layer, ctx.needs_input_grad[0]
        if layer.mode.handles_wanted:
            for_x, *for_handles = _ConvolutionGradient.apply(out, x, layer, further and not layer.first)
            return for_x, None, None, *for_handles
        return layer.transposed(out) if further else None, *[None] * 6


class _ConvolutionGradient(Function):
    """The gradients of `_Convolution`, differentiable once in both arguments."""

    @staticmethod
    def forward(ctx: object, out: Tensor, x: Tensor, layer: _Layer, further: bool) -> tuple:
        patches = layer.products.patches(x)
        ctx.save_for_backward(out, x, patches)
        ctx.layer, ctx.further = layer, further
        for_x = layer.transposed(out) if further else None
        return for_x, *layer.gradients(x, out, patches)

    @staticmethod
    def backward(ctx: object, for_x: Tensor | None, *for_handles: Tensor | None) -> tuple:
        out, x, patches = ctx.saved_tensors
        to_out, to_x = ctx.layer.directed(x, out, patches, for_handles, ctx.needs_input_grad)
        if to_out is not None and ctx.further:
            to_out = ctx.layer.conv(for_x).add_(to_out)
        return to_out, None if to_x is None else fast_layout(to_x), None, None


class _Gate(Function):
    """`x` where `gate`, by default itself, is positive, else 0: a ReLU whose second pass adds no maps of zeros."""

    @staticmethod
    def forward(ctx: object, x: Tensor, gate: Tensor | None) -> Tensor:
        found = x.relu() if gate is None else torch.ops.aten.threshold_backward(x, gate, 0)
        ctx.save_for_backward(found if gate is None else gate)
        return found

    @staticmethod
    def backward(ctx: object, out: Tensor) -> tuple:
        return _Gate.apply(out, *ctx.saved_tensors), None


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


class SameRules(TorchFunctionMode):
    """While it is active, any network's max-pooling and batch normalization are `max_pool` and `batch_norm`."""

    def __init__(self):
        super().__init__()
        self.layers: dict[Callable, Callable] = {F.max_pool2d: max_pool, F.batch_norm: batch_norm}

    def __torch_function__(self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None):
        return self.layers.get(function, function)(*args, **(kwargs or {}))


class PerExample(SameRules):
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
        self.first = True  # no layer was met yet: what comes in depends on no handle
        self.convolved: dict[int, tuple] = {}  # id of a convolution's result → that result, and what it came from
        self.layers |= {
            torch.conv2d: self._conv2d,
            F.linear: self._linear,
            F.relu: self._relu,
            F.batch_norm: self._batch_norm,
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

    def _value(self, tensor: Tensor) -> Tensor:
        """The constant that all problems share, or each problem's own."""
        handle, shared = self.parameters[id(tensor)]
        return handle.detach() if shared is None else shared

    def __exit__(self, *exception: object) -> None:
        self.convolved.clear()
        super().__exit__(*exception)

    def _by_problem(self, x: Tensor) -> Tensor:
        return x.unflatten(0, (self.problems, -1))

    def _conv2d(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, stride: object, padding: object, dilation: object,
        groups: int,
    ) -> Tensor:  # fmt: skip
        if groups != 1 or isinstance(padding, str):
            raise Unsupported("a grouped or string-padded convolution")
        handles = [None if t is None else self._handle(t) for t in (weight, bias)]
        values = [None if t is None else self._value(t) for t in (weight, bias)]
        products = Products(self.problems, x, weight, (stride, padding, dilation))
        layer = _Layer(self, products, *values)
        self.first = False
        out = _Convolution.apply(x, [layer.conv(x.detach(), values[1])], layer, *handles, None, None)
        if values[0].ndim == 4:
            self.convolved[id(out)] = weakref.ref(out), out._version, x, layer, handles
        return out

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if x.ndim != 2:
            raise Unsupported("a linear layer on more than vectors")
        self.first = False
        out = self._by_problem(x) @ self._handle(weight).transpose(1, 2)
        return (out if bias is None else out + self._handle(bias)[:, None]).flatten(0, 1)

    def _relu(self, x: Tensor, inplace: bool = False) -> Tensor:
        return F.relu(x, inplace=True) if inplace else _Gate.apply(x, None)

    def _batch_norm(
        self, x: Tensor, mean: Tensor | None, variance: Tensor | None, weight: Tensor | None, bias: Tensor | None,
        training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        if weight is None or x.ndim != 4:
            raise Unsupported("a batch normalization without scale, or of vectors")
        if not training:
            mean, variance = (self.buffers.get(id(b), b) for b in (mean, variance))
            return self._normalized(x, mean, variance, weight, bias, eps)
        maps = self._by_problem(x)
        check_train_mode(maps[0, :, 0].numel(), mean)
        variance, mean = torch.var_mean(maps, (1, 3, 4), correction=0)
        return self._normalized(x, mean, variance, weight, bias, eps)

    def _normalized(
        self, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        inverse, own = torch.rsqrt(variance + eps), [self._handle(t) for t in (weight, bias)]
        out, version, source, layer, handles = self.convolved.pop(id(x), (lambda: None, *[None] * 4))
        if out() is x and x._version == version and mean.ndim == 1:
            scale = self._value(weight) * inverse
            shift = self._value(bias) - mean * scale
            value = torch.addcmul(shift.view(-1, 1, 1), x.detach(), scale.view(-1, 1, 1))
            layer = layer.normalized(x.detach(), mean, inverse, scale)
            return _Convolution.apply(source, [value], layer, *handles, *own)
        self.first = False
        scale = own[0] * inverse
        shift = own[1] - mean * scale
        scale, shift = (t[:, None, :, None, None] for t in (scale, shift))
        return _Affine.apply(self._by_problem(x), scale, shift, None if mean.requires_grad else self).flatten(0, 1)
