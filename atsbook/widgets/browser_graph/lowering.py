"""From a traced step to loops over flat buffers: every operation becomes one kind of loop, for a
small runner.

What a loop is stands in `loops`. Views cost nothing; a convolution is a loop over a padded copy.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, fx

from atsbook.widgets.browser_graph.loops import fused, joined
from atsbook.widgets.browser_graph.wide import RULES
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
        first, second = (joined(sizes, [o[2][at] for o in operands]) for sizes, at in (
            (stays, slice(0, len(stays))), (goes, slice(len(stays), None))))  # fmt: skip
        strides = [a + b for a, b in zip(first[1], second[1], strict=True)]
        operands = [[o[0], o[1], s] for o, s in zip(operands, strides, strict=True)]
        self.steps.append([[name, *range(1, len(operands))], reduce, first[0], second[0], operands])


def whole(view: Tensor, size: int) -> bool:
    """Whether a view is all of its buffer in reading order."""
    return view.is_contiguous() and view.storage_offset() == 0 and view.numel() == size
