"""Work in pieces that fit in memory."""

import math
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def in_chunks(call: Callable[[slice], Result], count: int, size: int) -> list[Result]:
    """Results of `call` for consecutive slices of at most `size` of `count` things.

    Where memory does not suffice the size is halved and the work goes on; a single thing that does
    not fit is the error that torch raised.
    """
    low = 0
    results = []
    while low < count:
        part = slice(low, min(low + size, count))
        try:
            results.append(call(part))
            low = part.stop
            continue
        except RuntimeError as error:
            if size == 1 or not _out_of_memory(error):
                raise
        size = math.ceil(size / 2)  # outside of `except`, which would keep the failed piece alive
    return results


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
