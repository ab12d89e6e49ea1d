"""The gradient of each of N problems in one backward pass of an ordinary network.

Under `PerExample` convolutions, linear layers and batch normalizations read *handles*: parameters
expanded to (N, *shape), which occupy no more memory than one. The gradient with respect to a handle
has one row per problem. Layers compute with the shared weights; only the weight gradient and its
two derivatives are computed for each problem. `problems.vmapped` gives the same numbers more
slowly; the tests compare the two.
"""

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from atslib.gradients.layers import DRAWN, LAYERS, OPENED
from atslib.gradients.products import Products
from atslib.models import batch_norm, check_train_mode, fast_layout, max_pool


class Unsupported(Exception):
    """A parameter is used by something that is no convolution, linear layer or batch normalization,
    or the network's way depends on values, which are those of all problems at once.
    """


# How Python gets at the values of tensors, to go one way or another by them.
READ = {
    torch.Tensor.__bool__,
    torch.Tensor.__float__,
    torch.Tensor.__int__,
    torch.Tensor.__index__,
    torch.Tensor.__contains__,
    torch.Tensor.item,
    torch.Tensor.tolist,
    torch.Tensor.numpy,
    torch.Tensor.equal,
    torch.Tensor.is_nonzero,
    torch.equal,
    torch.allclose,
    torch.is_nonzero,
}


class _Layer:
    """A convolution at one place of the network, and the normalization that was folded into it, if
    any.

    With given statistics a normalization is `scale * maps + shift`, and its gradients follow from
    the convolution's: that of `scale` is an inner product of weight and weight gradient. So the
    maps need be neither kept nor scaled in the backward pass. Where they are smaller than the
    weights, keeping and scaling them is cheaper, and is done.
    """

    def __init__(self, mode: "PerExample", products: Products, weight: Tensor, bias: Tensor | None):
        self.mode = mode
        self.products = products
        self.first = mode.first
        self.weight = self.effective = weight
        self.bias = bias
        self.scale = None
        self.raw = None
        self.postponed = None

    def conv(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """The convolution with the shared weight and the scale folded into it."""
        return self.products.conv(x, self.effective, None, bias)

    def transposed(self, out: Tensor) -> Tensor:
        """The gradient of `conv` with respect to its input, plus what `directed` postponed."""
        if self.postponed is None:
            return self.products.transposed(out, self.effective)
        if self.scale is not None:
            out = out * self.scale.view(-1, 1, 1)
        return self.products.transposed(out.add_(self.postponed), self.weight)

    def normalized(self, raw: Tensor, mean: Tensor, inverse: Tensor, scale: Tensor) -> "_Layer":
        """The same layer with its maps `raw` normalized."""
        layer = copy.copy(self)
        layer.mean = mean
        layer.inverse = inverse
        layer.scale = scale
        layer.effective = fast_layout(
            self.weight * scale.view(-1, 1, 1, 1)
        )  # once for three convolutions
        layer.centre = -mean if self.bias is None else self.bias - mean
        if self.weight.numel() * self.products.problems > 4 * raw.numel():
            layer.raw = raw
        elif self.products.by_patches:  # in the memory layout of the directions
            layer.weight = self.weight.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1)
        return layer

    def gradients(self, x: Tensor, out: Tensor, patches: Tensor | None) -> tuple:
        """Gradients of weight, bias, gamma and beta (None where absent) from `out`, that of the
        layer's maps.
        """
        weight_gradient = self.products.weight_gradient
        if self.scale is None:
            return (
                weight_gradient(x, out, patches),
                None if self.bias is None else self.total(out),
                None,
                None,
            )
        total = self.total(out)
        scale = self.scale.view(-1, 1, 1, 1)
        bias = None if self.bias is None else total * self.scale
        if self.raw is None:
            by_weight = weight_gradient(x, out, patches)
            along = (by_weight * self.weight).sum((2, 3, 4)) + self.centre * total
            return by_weight.mul_(scale), bias, along * self.inverse, total
        along = self.total(out * self.raw) - self.mean * total
        return weight_gradient(x, out * scale[:, 0], patches), bias, along * self.inverse, total

    def directed(
        self, x: Tensor, out: Tensor, patches: Tensor | None, handles: tuple, wanted: Sequence[bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        """The transpose of `gradients`: directions of the handles → those of `out` and of `x`,
        where wanted.
        """
        weight, bias, gamma, beta = handles
        conv = self.products.conv
        transposed = self.products.transposed
        if self.scale is not None:
            gamma = gamma * self.inverse
            beta = torch.addcmul(beta, gamma, self.centre if self.raw is None else -self.mean)
            bias = beta if bias is None else torch.addcmul(beta, bias, self.scale)
        if self.raw is None:
            if self.scale is not None:
                weight = weight * self.scale.view(-1, 1, 1, 1)
                weight = weight.addcmul_(gamma[..., None, None, None], self.weight)
            return conv(x, weight, patches, bias) if wanted[0] else None, transposed(
                out, weight
            ) if wanted[1] else None
        # Maps are smaller than weights here, so they are scaled. What gamma does to `x` is one more
        # shared product, which the next call of `transposed` does together with its own.
        gamma = self.rows(gamma)
        bias = self.rows(bias)
        scale = self.scale.view(-1, 1, 1)
        self.postponed = out * gamma
        to_out = (
            torch.addcmul(bias, self.raw, gamma).addcmul_(conv(x, weight, patches), scale)
            if wanted[0]
            else None
        )
        return to_out, transposed(out * scale, weight) if wanted[1] else None

    def rows(self, channels: Tensor) -> Tensor:
        """(N, O) → (N·k, O, 1, 1), to be multiplied with maps."""
        return channels.repeat_interleave(self.products.images, 0)[..., None, None]

    def total(self, maps: Tensor) -> Tensor:
        """The sum over a problem's images and pixels, (N, O)."""
        return maps.unflatten(0, (self.products.problems, -1)).sum((1, 3, 4))


class _Convolution(Function):
    """A layer's maps as a function of its input and its handles; `value` holds them, computed with
    shared weights.
    """

    @staticmethod
    def forward(
        ctx: object, x: Tensor, value: list[Tensor], layer: _Layer, *handles: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        return value[
            0
        ]  # in a list: autograd would take a tensor for an input, and the result for a view of it

    @staticmethod
    def backward(ctx: object, out: Tensor) -> tuple:
        (x,) = ctx.saved_tensors
        layer = ctx.layer
        further = ctx.needs_input_grad[0]
        if layer.mode.handles_wanted:
            for_x, *for_handles = _ConvolutionGradient.apply(
                out, x, layer, further and not layer.first
            )
            return for_x, None, None, *for_handles
        return layer.transposed(out) if further else None, *[None] * 6


class _ConvolutionGradient(Function):
    """The gradients of `_Convolution`, differentiable once in both arguments."""

    @staticmethod
    def forward(ctx: object, out: Tensor, x: Tensor, layer: _Layer, further: bool) -> tuple:
        patches = layer.products.patches(x)
        ctx.save_for_backward(out, x, patches)
        ctx.layer = layer
        ctx.further = further
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
    """`x` where `gate`, by default `x`, is positive, else 0: a ReLU whose second derivative adds no
    maps of zeros.
    """

    @staticmethod
    def forward(ctx: object, x: Tensor, gate: Tensor | None) -> Tensor:
        result = x.relu() if gate is None else torch.ops.aten.threshold_backward(x, gate, 0)
        ctx.save_for_backward(result if gate is None else gate)
        return result

    @staticmethod
    def backward(ctx: object, out: Tensor) -> tuple:
        return _Gate.apply(out, *ctx.saved_tensors), None


class _Affine(Function):
    """x · scale + shift, with scale and shift (N, 1, C, 1, 1) of each problem, x (N, k, C, H, W)."""

    @staticmethod
    def forward(
        ctx: object, x: Tensor, scale: Tensor, shift: Tensor, mode: "PerExample | None"
    ) -> Tensor:
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
    def forward(
        ctx: object, out: Tensor, x: Tensor, scale: Tensor, mode: "PerExample | None"
    ) -> tuple:
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
    """While it is active, any network's max-pooling and batch normalization are `max_pool` and
    `batch_norm`.

    So are the layers that torch differentiates once only those of `layers.LAYERS`.
    """

    def __init__(self):
        super().__init__()
        self.layers: dict[Callable, Callable] = {
            **LAYERS,
            F.max_pool2d: max_pool,
            F.batch_norm: batch_norm,
        }

    def __torch_function__(
        self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ):
        if function in OPENED:
            with self:
                return OPENED[function](*args, **(kwargs or {}))
        return self.layers.get(function, function)(*args, **(kwargs or {}))


class WithoutDraws(SameRules):
    """`SameRules`, and dropout hands on what it gets: two runs of a network can be compared."""

    def __init__(self):
        super().__init__()
        self.layers |= dict.fromkeys(DRAWN, lambda x, *args, **kwargs: x)


def _held(values: Iterable[object]) -> Iterator[object]:
    """The values, and what lists, tuples and dicts among them hold."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _held(value)
        elif isinstance(value, dict):
            yield from _held(value.values())
        else:
            yield value


class PerExample(SameRules):
    """While it is active, layers read their problem's own parameters and statistics.

    Args:
        problems: N; the leading dimension of every activation is N · k.
        handles: id of a model's parameter → its handle, (N, *shape).
        buffers: id of a model's buffer → (N, *shape).
    """

    def __init__(self, problems: int, handles: dict[int, Tensor], buffers: dict[int, Tensor]):
        super().__init__()
        self.problems = problems
        self.handles = handles
        self.buffers = buffers
        self.handles_wanted = (
            True  # False once their gradients are there: later passes skip those products
        )
        self.first = True  # until the first layer: its input depends on no handle
        self.convolved: dict[
            int, tuple
        ] = {}  # id of a convolution's result → that result, and what it came from
        self.known = {
            torch.conv2d: self._conv2d,
            F.linear: self._linear,
        }  # these follow a parameter to its handle
        self.known |= {F.relu: self._relu, F.batch_norm: self._batch_norm}
        self.layers |= self.known

    def __torch_function__(
        self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ):
        if function in READ and not self._uses(args):  # of the images, or what was made of them
            raise Unsupported(function.__name__)
        if function in self.known or function in OPENED:
            return super().__torch_function__(function, types, args, kwargs)
        uses = self._uses(args) or (kwargs is not None and self._uses(kwargs.values()))
        result = super().__torch_function__(function, types, args, kwargs)
        if uses and any(value is None or isinstance(value, Tensor) for value in _held((result,))):
            raise Unsupported(getattr(function, "__name__", str(function)))
        return result

    def _uses(self, values: Iterable[object]) -> bool:
        """Whether a parameter is among the values, or in what they hold."""
        for value in values:
            if isinstance(value, Tensor):
                if id(value) in self.handles:
                    return True
            elif isinstance(value, list | tuple | dict) and any(
                id(part) in self.handles for part in _held((value,))
            ):
                return True
        return False

    def _handle(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self.handles:
            raise Unsupported("a parameter that is not the model's own")
        return self.handles[id(tensor)]

    def __exit__(self, *exception: object) -> None:
        self.convolved.clear()
        super().__exit__(*exception)

    def _by_problem(self, x: Tensor) -> Tensor:
        return x.unflatten(0, (self.problems, -1))

    def _conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: object,
        padding: object,
        dilation: object,
        groups: int,
    ) -> Tensor:
        if groups != 1 or isinstance(padding, str):
            raise Unsupported("a grouped or string-padded convolution")
        handles = [None if t is None else self._handle(t) for t in (weight, bias)]
        values = [None if t is None else t.detach() for t in (weight, bias)]
        layer = _Layer(
            self, Products(self.problems, x, weight, (stride, padding, dilation)), *values
        )
        self.first = False
        out = _Convolution.apply(
            x, [layer.conv(x.detach(), values[1])], layer, *handles, None, None
        )
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
        self,
        x: Tensor,
        mean: Tensor | None,
        variance: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if weight is None or x.ndim != 4:
            raise Unsupported("a batch normalization without scale, or of vectors")
        if training:
            maps = self._by_problem(x)
            check_train_mode(maps[0, :, 0].numel(), mean)
            variance, mean = torch.var_mean(maps, (1, 3, 4), correction=0)
        else:
            mean, variance = (self.buffers.get(id(b), b) for b in (mean, variance))
        return self._normalized(x, mean, variance, weight, bias, eps)

    def _normalized(
        self, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        inverse = torch.rsqrt(variance + eps)
        own = [self._handle(t) for t in (weight, bias)]
        out, version, source, layer, handles = self.convolved.pop(
            id(x), (lambda: None, *[None] * 4)
        )
        if out() is x and x._version == version and mean.ndim == 1:
            scale = weight.detach() * inverse
            shift = bias.detach() - mean * scale
            value = torch.addcmul(shift.view(-1, 1, 1), x.detach(), scale.view(-1, 1, 1))
            layer = layer.normalized(x.detach(), mean, inverse, scale)
            return _Convolution.apply(source, [value], layer, *handles, *own)
        self.first = False
        scale = own[0] * inverse
        shift = own[1] - mean * scale
        scale, shift = (t[:, None, :, None, None] for t in (scale, shift))
        return _Affine.apply(
            self._by_problem(x), scale, shift, None if mean.requires_grad else self
        ).flatten(0, 1)
