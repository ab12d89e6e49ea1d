"""Operations that are more than one element wide as loops: sums, products, convolutions, and copies
into a part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx

from atslib.errors import AtsError

if TYPE_CHECKING:
    from atsbook.widgets.browser_graph.lowering import Lowering, Value

aten = torch.ops.aten


def reduced(how: str) -> Callable[..., Value]:
    """A sum or a maximum over dimensions; over all of them where none is named."""

    def rule(
        self: Lowering,
        source: Value,
        dims: Sequence[int] | int = (),
        keepdim: bool = False,
        **_: object,
    ) -> Value:
        buffer, view = source
        dims = [dims] if isinstance(dims, int) else dims
        gone = sorted(d % view.ndim for d in dims) or list(range(view.ndim))
        stay = [d for d in range(view.ndim) if d not in gone]
        shape = [1 if d in gone else view.shape[d] for d in range(view.ndim)]
        out = self.new(shape if keepdim else [view.shape[d] for d in stay])
        flat = torch.empty([view.shape[d] for d in stay], device="meta").stride()
        order = stay + gone
        strides = view.stride()
        operands = [
            [out[0], 0, [*flat, *[0] * len(gone)]],
            [buffer, view.storage_offset(), [strides[d] for d in order]],
        ]
        self.emit(
            "copy", how, [view.shape[d] for d in stay], [view.shape[d] for d in gone], operands
        )
        return out

    return rule


def norm(
    self: Lowering, source: Value, order: float = 2, dims: Sequence[int] = (), keepdim: bool = False
) -> Value:
    """The Euclidean length over dimensions."""
    if order != 2:
        raise AtsError(
            f"this network's step needs a norm of order {order}; the browser's runner knows 2"
        )
    square = self.new(source[1].shape)
    self.loop("mul", square, [source, source])
    total = reduced("sum")(self, square, dims or (), keepdim)
    self.loop("sqrt", total, [total])
    return total


def mean(self: Lowering, source: Value, dims: Sequence[int] = (), keepdim: bool = False) -> Value:
    """The mean over dimensions."""
    total = reduced("sum")(self, source, dims, keepdim)
    self.loop("div", total, [total, self.constant(source[1].numel() / total[1].numel())])
    return total


def log_softmax(self: Lowering, source: Value, dim: int, _: bool) -> Value:
    """`torch.log_softmax`."""
    top = reduced("max")(self, source, dim, True)
    shape = source[1].shape
    shifted = self.new(shape)
    power = self.new(shape)
    out = self.new(shape)
    self.loop("sub", shifted, [source, top])
    self.loop("exp", power, [shifted])
    total = reduced("sum")(self, power, dim, True)
    self.loop("log", total, [total])
    self.loop("sub", out, [shifted, total])
    return out


def padded(self: Lowering, source: Value, pads: Sequence[int], value: float = 0.0) -> Value:
    """Zeros around; `pads` as in torch, last dimension first."""
    if value != 0:
        raise AtsError(f"this network's step pads with {value}; the browser's runner pads with 0")
    ends = [(0, 0)] * (source[1].ndim - len(pads) // 2) + list(
        zip(pads[::2], pads[1::2], strict=True)
    )[::-1]
    out = self.new([n + a + b for n, (a, b) in zip(source[1].shape, ends, strict=True)])
    inner = out[1]
    for d, (a, _) in enumerate(ends):
        inner = inner.narrow(d, a, source[1].shape[d])
    self.loop("copy", (out[0], inner), [source])
    return out


def product(self: Lowering, a: Value, b: Value) -> Value:
    """Matrix products (B, n, k) × (B, k, m)."""
    (count, rows, inner) = a[1].shape
    columns = b[1].shape[2]
    out = self.new((count, rows, columns))
    (s, i, k) = a[1].stride()
    (t, n, j) = b[1].stride()
    operands = [
        [out[0], 0, [rows * columns, columns, 1, 0]],
        [a[0], a[1].storage_offset(), [s, i, 0, k]],
    ]
    self.emit(
        "mul",
        "sum",
        [count, rows, columns],
        [inner],
        [*operands, [b[0], b[1].storage_offset(), [t, 0, j, n]]],
    )
    return out


def affine(self: Lowering, bias: Value, a: Value, b: Value) -> Value:
    """A matrix product with a row added."""
    buffer, out = product(self, (a[0], a[1][None]), (b[0], b[1][None]))
    self.loop("add", (buffer, out[0]), [(buffer, out[0]), bias])
    return buffer, out[0]


def convolution(self: Lowering, x: Value, w: Value, bias: Value | None, *how: object) -> Value:
    """A convolution of one image, or its transpose."""
    stride, pad, dilation, transposed, extra, groups = how
    if groups != 1 or x[1].shape[0] != 1 or max(dilation) != 1:
        raise AtsError(
            "the browser's runner knows convolutions of one image, one group and no dilation"
        )
    size = x[1].shape[2:]
    kernel = w[1].shape[2:]
    if transposed:
        shape = [
            (n - 1) * s - 2 * p + k + e
            for n, s, p, k, e in zip(size, stride, pad, kernel, extra, strict=True)
        ]
        out = self.new((1, w[1].shape[1], *shape))
        _transposed(self, x, w, out, stride, pad)
    else:
        shape = [
            (n + 2 * p - k) // s + 1 for n, s, p, k in zip(size, stride, pad, kernel, strict=True)
        ]
        out = self.new((1, w[1].shape[0], *shape))
        wide = padded(self, x, [pad[1], pad[1], pad[0], pad[0]])
        (_, c, y, z) = wide[1].stride()
        (o, i, r, q) = w[1].stride()
        operands = [
            [out[0], 0, [shape[1], 1, math.prod(shape), 0, 0, 0]],
            [wide[0], 0, [y * stride[0], z * stride[1], 0, c, y, z]],
            [w[0], w[1].storage_offset(), [0, 0, o, i, r, q]],
        ]
        self.emit("mul", "sum", [*shape, w[1].shape[0]], [w[1].shape[1], *kernel], operands)
    if bias is not None:
        self.loop("add", out, [out, (bias[0], bias[1].view(-1, 1, 1))])
    return out


def _transposed(
    self: Lowering, x: Value, w: Value, out: Value, stride: list[int], pad: list[int]
) -> None:
    """One loop for each place of an output pixel between two input pixels, over the weights that
    meet there.
    """
    size = x[1].shape[2:]
    kernel = w[1].shape[2:]
    shape = out[1].shape[2:]
    edge = [
        max(k, n // s + 1 - m + k) for k, n, s, m in zip(kernel, shape, stride, size, strict=True)
    ]
    wide = padded(self, x, [edge[1], edge[1], edge[0], edge[0]])
    (_, c, y, z) = wide[1].stride()
    (i, o, r, q) = w[1].stride()
    (_, d, u, v) = out[1].stride()
    for phase in itertools.product(*map(range, stride)):
        first = [(f + p) % s for f, p, s in zip(phase, pad, stride, strict=True)]
        taps = [len(range(k, n, s)) for k, n, s in zip(first, kernel, stride, strict=True)]
        count = [len(range(f, n, s)) for f, n, s in zip(phase, shape, stride, strict=True)]
        if not all(taps) or not all(count):
            continue  # no weight meets these pixels: they stay zero
        begin = [
            e + (f + p - k) // s
            for e, f, p, k, s in zip(edge, phase, pad, first, stride, strict=True)
        ]
        operands = [
            [out[0], phase[0] * u + phase[1] * v, [u * stride[0], v * stride[1], d, 0, 0, 0]],
            [wide[0], begin[0] * y + begin[1] * z, [y, z, 0, c, -y, -z]],
            [
                w[0],
                w[1].storage_offset() + first[0] * r + first[1] * q,
                [0, 0, o, i, r * stride[0], q * stride[1]],
            ],
        ]
        self.emit("mul", "sum", [*count, w[1].shape[1]], [w[1].shape[0], *taps], operands)


def filled(self: Lowering, source: Value | Sequence[int], value: float, **_: object) -> Value:
    """A constant of that shape, or of another value's."""
    buffer, one = self.constant(value)
    return buffer, one.expand(source[1].shape if isinstance(source, tuple) else source)


def empty(self: Lowering, shape: Sequence[int], *_: object, **__: object) -> Value:
    """What something is copied into."""
    return filled(self, shape, 0)


def written(view: Callable[..., Tensor]) -> Callable[..., Value]:
    """A copy in which a part, as `view` takes it, is replaced."""

    def rule(self: Lowering, source: Value, part: Value, *where: object) -> Value:
        buffer, flat = self.packed(source)
        self.loop("copy", (buffer, view(flat, *where)), [part])
        return buffer, flat

    return rule


def joined(self: Lowering, parts: Sequence[fx.Node], dim: int = 0) -> Value:
    """Values one after the other."""
    values = [self.values[part] for part in parts]
    shape = list(values[0][1].shape)
    at = 0
    shape[dim] = sum(view.shape[dim] for _, view in values)
    out = self.new(shape)
    for buffer, view in values:
        self.loop("copy", (out[0], out[1].narrow(dim, at, view.shape[dim])), [(buffer, view)])
        at += view.shape[dim]
    return out


RULES: dict[object, Callable] = {
    aten.sum.dim_IntList: reduced("sum"),
    aten.amax.default: reduced("max"),
    aten.mean.dim: mean,
    aten.linalg_vector_norm.default: norm,
    aten._log_softmax.default: log_softmax,
    aten.constant_pad_nd.default: padded,
    aten.bmm.default: product,
    aten.addmm.default: affine,
    aten.convolution.default: convolution,
    aten.slice_scatter.default: written(aten.slice.Tensor),
    aten.select_scatter.default: written(aten.select.int),
    aten.as_strided_scatter.default: written(aten.as_strided.default),
    aten.full_like.default: filled,
    aten.scalar_tensor.default: lambda self, value, **_: self.constant(value),
    aten.new_empty_strided.default: lambda self, source, shape, *_, **__: filled(self, shape, 0),
    aten.full.default: filled,
    aten.empty_permuted.default: empty,
    aten.empty.memory_format: empty,
    aten.cat.default: joined,
}
