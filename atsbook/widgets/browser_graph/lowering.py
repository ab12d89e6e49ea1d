"""From a traced step to loops over flat buffers: every operation becomes one kind of loop, for a
small runner.

What a loop is stands in `loops`. Views cost nothing; operations by element are in `BY_ELEMENT`, and
wider ones (sums, products, convolutions, copies into a part) have a function each in `RULES`. A
convolution is a loop over a padded copy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx

from atsbook.widgets.browser_graph.loops import fused, joined
from atslib.errors import AtsError

aten = torch.ops.aten
Value = tuple[
    int, Tensor
]  # a buffer, and which part of it in which order: a view on the device "meta"

VIEWS = {
    aten.view.default, aten.permute.default, aten.expand.default, aten.slice.Tensor, aten.select.int,
    aten.alias.default, aten.squeeze.dims, aten.squeeze.dim, aten.unsqueeze.default, aten.as_strided.default,
    aten.detach.default,    aten.split_with_sizes.default, aten.t.default, aten.transpose.int, aten.expand_copy.default,
}  # fmt: skip
BY_ELEMENT = {
    aten.add.Tensor: "add", aten.add.Scalar: "add", aten.sub.Tensor: "sub", aten.sub.Scalar: "sub",
    aten.mul.Tensor: "mul", aten.mul.Scalar: "mul", aten.div.Tensor: "div", aten.div.Scalar: "div",
    aten.neg.default: "neg", aten.exp.default: "exp", aten.log.default: "log", aten.sqrt.default: "sqrt",
    aten.rsqrt.default: "rsqrt", aten.abs.default: "abs", aten.sign.default: "sign", aten.relu.default: "relu",
    aten.sigmoid.default: "sigmoid", aten.tanh.default: "tanh", aten.clone.default: "copy",
    aten.copy.default: "second", aten.where.self: "where", aten.ge.Scalar: "ge", aten.ge.Tensor: "ge",
    aten.le.Scalar: "le", aten.gt.Scalar: "gt", aten.clamp.default: "clamp", aten.clamp_min.default: "maximum",
    aten.maximum.default: "maximum", aten.pow.Tensor_Scalar: "pow", aten._to_copy.default: "copy",
}  # fmt: skip


class Lowering:
    """The loops of one traced function, in `steps`, with the sizes of the `buffers` and the values
    of `constants`.
    """

    def __init__(self, graph: fx.GraphModule):
        self.graph = graph
        self.buffers = []
        self.constants = {}
        self.steps = []
        self.values: dict[fx.Node, Value | tuple[Value, ...]] = {}
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        for node in graph.graph.nodes:
            getattr(self, node.op)(node)
        self.steps = fused(self.steps, set(self.outputs))

    # --- kinds of nodes -----------------------------------------------------------------------------------------

    def placeholder(self, node: fx.Node) -> None:
        self.values[node] = value = self.new(node.meta["tensor_meta"].shape)
        self.inputs.append(value[0])

    def get_attr(self, node: fx.Node) -> None:
        self.values[node] = self.constant(getattr(self.graph, node.target))

    def output(self, node: fx.Node) -> None:
        for each in node.args[0]:
            value = self.values[each]
            self.outputs.append(
                (value if whole(value[1], self.buffers[value[0]]) else self.packed(value))[0]
            )

    def call_function(self, node: fx.Node) -> None:
        target = node.target
        if target.__name__ == "getitem":
            self.values[node] = self.values[node.args[0]][node.args[1]]
        elif target in VIEWS:
            self.values[node] = self.viewed(node)
        elif target in BY_ELEMENT:
            self.values[node] = self.by_element(node)
        elif rule := RULES.get(target):
            given = [self.values[a] if isinstance(a, fx.Node) else a for a in node.args]
            self.values[node] = rule(self, *given, **node.kwargs)
        else:
            raise AtsError(
                f"this network's step needs {target}, which the browser's runner does not know"
            )

    def viewed(self, node: fx.Node) -> Value | tuple[Value, ...]:
        source, *arguments = node.args
        buffer, view = self.values[source]
        before = source.meta["tensor_meta"]
        if node.target is aten.as_strided.default and view.stride() != before.stride:
            buffer, view = self.packed((buffer, view))  # what the trace strides over is packed too
        try:
            made = node.target(view, *arguments, **node.kwargs)
        except RuntimeError:  # of a layout that this view does not have
            buffer, view = self.packed((buffer, view))
            made = node.target(view, *arguments, **node.kwargs)
        return (buffer, made) if isinstance(made, Tensor) else [(buffer, part) for part in made]

    def by_element(self, node: fx.Node) -> Value:
        operands = [
            self.values[a] if isinstance(a, fx.Node) else self.constant(a) for a in node.args
        ]
        name = BY_ELEMENT[node.target]
        if name in ("copy", "second"):  # nothing is written twice
            buffer, view = operands[-1]
            return buffer, view.expand(node.meta["tensor_meta"].shape)
        if name == "pow" and node.args[1] == 2:
            name = "mul"
            operands = [operands[0]] * 2
        if name == "clamp" and len(operands) == 2:
            name = "maximum"
        if name == "mul" and self.constants.get(operands[1][0]) == [1]:
            return operands[0]
        if (factor := node.kwargs.get("alpha", 1)) != 1:
            scaled = self.new(operands[1][1].shape)
            self.loop("mul", scaled, [operands[1], self.constant(factor)])
            operands[1] = scaled
        out = self.new(node.meta["tensor_meta"].shape)
        self.loop(name, out, operands)
        return out

    # --- buffers and loops --------------------------------------------------------------------------------------

    def new(self, shape: Sequence[int]) -> Value:
        """A buffer of zeros; what no loop writes stays zero."""
        self.buffers.append(math.prod(shape))
        return len(self.buffers) - 1, torch.empty(tuple(shape), device="meta")

    def constant(self, value: Tensor | float) -> Value:
        """A buffer that holds this from the start; of one that was given before, that one."""
        value = torch.as_tensor(value).detach()
        numbers = value.flatten().tolist()
        for buffer, known in self.constants.items():
            if known == numbers:
                return buffer, torch.empty(value.shape, device="meta")
        made = self.new(value.shape)
        self.constants[made[0]] = numbers
        return made

    def packed(self, value: Value) -> Value:
        """The same in reading order."""
        out = self.new(value[1].shape)
        self.loop("copy", out, [value])
        return out

    def loop(self, name: str, out: Value, operands: Sequence[Value]) -> None:
        """One operation by element, its operands broadcast; dimensions that can be one become one."""
        shape = list(out[1].shape)
        views = [(buffer, view.expand(shape)) for buffer, view in (out, *operands)]
        strides = [list(view.stride()) for _, view in views]
        offsets = [view.storage_offset() for _, view in views]
        self.emit(
            name,
            "",
            shape,
            [],
            [[b, o, s] for (b, _), o, s in zip(views, offsets, strides, strict=True)],
        )

    def emit(
        self, name: str, reduce: str, stays: list[int], goes: list[int], operands: list[list]
    ) -> None:
        """A step, without dimensions of size 1 and with neighbours joined where each operand allows
        it.
        """
        kept = slice(0, len(stays))
        first = joined(stays, [operand[2][kept] for operand in operands])
        summed = slice(len(stays), None)
        second = joined(goes, [operand[2][summed] for operand in operands])
        strides = [a + b for a, b in zip(first[1], second[1], strict=True)]
        operands = [[o[0], o[1], s] for o, s in zip(operands, strides, strict=True)]
        self.steps.append([[name, *range(1, len(operands))], reduce, first[0], second[0], operands])


def whole(view: Tensor, size: int) -> bool:
    """Whether a view is all of its buffer in reading order."""
    return view.is_contiguous() and view.storage_offset() == 0 and view.numel() == size


# --- operations that are more than one element wide ---------------------------------------------------------------


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


def concatenated(self: Lowering, parts: Sequence[fx.Node], dim: int = 0) -> Value:
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
    aten.cat.default: concatenated,
}
