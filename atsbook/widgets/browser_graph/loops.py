"""Fewer and simpler loops: dimensions that can be one become one, and a loop that feeds one other
is part of it.

A loop is [expression, how it reduces ("" or "sum" or "max"), sizes of the dimensions that stay, of
those that go, operands]; an operand is [buffer, offset, strides], the first of them written, the
others read. An expression is a number, which operand, or [operation, expressions …].
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence


def joined(
    sizes: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """The same places with fewer dimensions: none of size 1, and neighbours as one where every
    operand allows it.
    """
    kept = []
    steps = [[] for _ in strides]
    for at, size in enumerate(sizes):
        here = [s[at] for s in strides]
        if size == 1:
            continue
        if kept and all(done[-1] == step * size for done, step in zip(steps, here, strict=True)):
            kept[-1] *= size
            for done, step in zip(steps, here, strict=True):
                done[-1] = step
            continue
        kept.append(size)
        for done, step in zip(steps, here, strict=True):
            done.append(step)
    return kept, steps


def fused(steps: Sequence[list], outputs: Collection[int]) -> list[list]:
    """The loops with those inlined whose result one other loop reads, each element once; `outputs`
    are kept.
    """
    steps = list(steps)
    read = Counter(o[0] for step in steps for o in step[4][1:])
    wrote = Counter(step[4][0][0] for step in steps)
    made: dict[int, int] = {}
    for now, step in enumerate(steps):
        for k in range(len(step[4]) - 1, 0, -1):
            buffer = step[4][k][0]
            at = made.get(buffer)
            if at is None or read[buffer] > 1 or wrote[buffer] > 1 or buffer in outputs:
                continue
            sources = {o[0] for o in steps[at][4][1:]}
            if any(later and later[4][0][0] in sources for later in steps[at:now]):
                continue  # what it reads is overwritten in between
            if (found := _inlined(steps[at], step, k)) is not None:
                steps[at] = None
                step = found
        steps[now] = step
        if not step[1]:
            made[step[4][0][0]] = now
    return [step for step in steps if step]


def _inlined(inner: list, outer: list, k: int) -> list | None:
    """`outer` with `inner` in place of its operand k; None where they go through the buffer in
    different orders.
    """
    expression, _, sizes, _, (target, *sources) = inner
    if (
        len(sizes) > 1
        and target[2] == _packed(sizes)
        and [*outer[2], *outer[3]] == [math.prod(sizes)]
    ):
        outer = _split(outer, sizes)
    whole = [*outer[2], *outer[3]]
    _, offset, strides = outer[4][k]
    if sizes == whole and strides == target[2] and offset == target[1] and 0 not in strides:
        moved = [source[2] for source in sources]
    elif (
        len(sizes) <= 1
        and offset == target[1] == 0
        and target[2] in ([1], [])
        and strides == _packed(whole)
    ):
        moved = [[each * (source[2] or [0])[0] for each in strides] for source in sources]
    else:
        return None
    first = len(outer[4])
    operands = [*outer[4], *([s[0], s[1], m] for s, m in zip(sources, moved, strict=True))]
    shifted = _renamed(expression, {i: first + i - 1 for i in range(1, len(sources) + 1)})
    whole_expression = _renamed(outer[0], {i: i for i in range(1, first)} | {k: shifted})
    used = sorted(_used(whole_expression))
    names = {old: new for new, old in enumerate(used, 1)}
    return [
        _renamed(whole_expression, names),
        *outer[1:4],
        [operands[0], *(operands[i] for i in used)],
    ]


def _split(step: list, sizes: Sequence[int]) -> list:
    """A loop over one dimension as one over several, in the same order."""
    name, reduce, stays, _, operands = step
    operands = [[b, o, [s[0] * each for each in _packed(sizes)]] for b, o, s in operands]
    return [name, reduce, *([list(sizes), []] if stays else [[], list(sizes)]), operands]


def _packed(sizes: Sequence[int]) -> list[int]:
    strides = [1] * len(sizes)
    for i in range(len(sizes) - 2, -1, -1):
        strides[i] = strides[i + 1] * sizes[i + 1]
    return strides


def _renamed(expression: list | int, names: dict) -> list | int:
    if isinstance(expression, int):
        return names[expression]
    return [expression[0], *(_renamed(part, names) for part in expression[1:])]


def _used(expression: list | int) -> set[int]:
    return {expression} if isinstance(expression, int) else set().union(*map(_used, expression[1:]))
