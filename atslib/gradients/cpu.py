"""How a CPU is kept busy: a batch is split into pieces, one per thread, and freed memory is kept
for reuse.

No result depends on another row of the batch, so the pieces are independent. Two threads with one
piece each do 1.2 times the work of two threads that share each operation, in scores, and about 1.05
times in attacks (benchmarks/NOTES.md). On a GPU, or with one thread, there is one piece.
"""

import ctypes
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

# malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_memory() -> None:
    """Let this process keep the memory it frees, where the C library is glibc.

    By default large blocks go back to the system at once, and the next step gets them again page by
    page, zeroed, which takes 5 to 8 % of an attack's or a score's time. With this call the process
    stays as large as it once was. Whether that is wanted is for its owner to say: commands and
    workers call this, the library's functions do not.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def pieces(rows: int, device: torch.device) -> list[slice]:
    """The rows 0 to `rows` as at most `torch.get_num_threads()` slices whose lengths differ by at
    most one.
    """
    count = 1 if device.type == "cuda" else max(1, min(rows, torch.get_num_threads()))
    ends = [rows * i // count for i in range(count + 1)]
    return [slice(low, high) for low, high in itertools.pairwise(ends)]


def keep_to_one_core() -> None:
    """Let operations called in this thread use one core; threads that start later inherit that."""
    # A thread's first call adopts the process's number, which would undo the next line
    torch.get_num_threads()
    torch.set_num_threads(1)


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(threads, "atslib")
    together = threading.Barrier(threads)

    def begin(_: int) -> None:
        keep_to_one_core()
        together.wait()

    list(pool.map(begin, range(threads)))
    torch.set_num_threads(
        threads
    )  # a thread that sets its own number also sets the one later threads begin with
    return pool


def each(call: Callable, *arguments: Iterable) -> list:
    """`list(map(call, *arguments))`, in parallel.

    Calls must not share a model: its hooks are not thread-safe.
    """
    calls = list(zip(*arguments, strict=True))
    if len(calls) == 1:
        return [call(*calls[0])]
    enabled = torch.is_grad_enabled()  # each thread has a mode of its own

    def one(given: tuple) -> object:
        with torch.set_grad_enabled(enabled):
            return call(*given)

    return list(_pool(torch.get_num_threads()).map(one, calls))


def by_rows(
    calls: Sequence[Callable[[Tensor], tuple[Tensor, ...]]], rows: Sequence[slice], x: Tensor
) -> tuple:
    """The results of each call for its rows of `x`, concatenated; differentiable once in `x`."""
    return calls[0](x) if len(calls) == 1 else _ByRows.apply(x, tuple(calls), tuple(rows))


class _ByRows(Function):
    @staticmethod
    def forward(ctx: object, x: Tensor, calls: tuple, rows: tuple) -> tuple[Tensor, ...]:
        further = ctx.needs_input_grad[0]

        def piece(call: Callable, these: slice) -> tuple[Tensor, tuple[Tensor, ...]]:
            own = x[these].detach().requires_grad_(further)
            with torch.set_grad_enabled(further):
                return own, call(own)

        results = each(piece, calls, rows)
        ctx.rows = rows
        ctx.results = results if further else None
        outputs = zip(*(outputs for _, outputs in results), strict=True)
        return tuple(torch.cat([part.detach() for part in parts]) for parts in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: object, *wanted: Tensor) -> tuple:
        def piece(result: tuple, these: slice) -> Tensor:
            own, outputs = result
            return torch.autograd.grad(outputs, own, [w[these] for w in wanted])[0]

        return torch.cat(each(piece, ctx.results, ctx.rows)), None, None
