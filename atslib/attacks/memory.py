"""How many attacks fit in memory at once."""

import os
from collections.abc import Callable

import torch
from torch import Tensor, nn

from atslib.models import to_try

# Beyond some members a CPU gains nothing more, and its caches lose.
MOST_ON_CPU = 32
# Bytes that an attack may take on a CPU, however much is free: others who compute on the machine begin later, and
# look at the same free memory.
MOST_MEMORY = 4 << 30


def members_on_gpu(one: Callable[[], object], device: torch.device) -> int:
    """How many fit in the free memory of a GPU, from what a call with `one` member takes."""
    free = torch.cuda.mem_get_info(device)[0]
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    one()
    return max(1, int(0.8 * free / (torch.cuda.max_memory_allocated(device) - before)))


def members_on_cpu(model: nn.Module, images: Tensor, gradients: int) -> int:
    """How many fit in half of the free memory, in 4 GiB at most, by an estimate: a CPU has no
    allocator to ask.

    A member takes about ten times its activations (forward, backward, both again) and six times its
    gradient, of `gradients` bytes.
    """
    kept = [0]
    model = to_try(model)
    handles = [
        layer.register_forward_hook(lambda _, __, out: kept.append(_bytes(out)))
        for layer in model.modules()
        if not list(layer.children())
        and not isinstance(layer, torch.jit.ScriptModule)  # which takes no hook
    ]
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    room = min(0.5 * free_memory(torch.device("cpu")), MOST_MEMORY)
    return max(1, min(MOST_ON_CPU, int(room / (10 * sum(kept) + 6 * gradients))))


def free_memory(device: torch.device) -> int:
    """Bytes that are free where tensors of a device lie; 4 GiB where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return (
        os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if hasattr(os, "sysconf")
        else 4 << 30
    )


def _bytes(out: object) -> int:
    """What a layer's output takes; recurrent layers give tuples."""
    if isinstance(out, Tensor):
        return out.nbytes
    return sum(map(_bytes, out)) if isinstance(out, list | tuple) else 0
