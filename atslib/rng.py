"""Random streams as arguments: nothing in atslib draws from a global generator."""

import contextlib
import hashlib
from collections.abc import Iterator
from numbers import Integral, Number
from typing import TYPE_CHECKING

from atslib.errors import AtsError, check_kind

if TYPE_CHECKING:
    import torch


def rng(seed: int, *path: str | int, device: "str | torch.device" = "cpu") -> "torch.Generator":
    """A generator whose stream depends only on `(seed, *path)`, e.g. `rng(0, "attack", "7-4-15",
    3)`.

    Adding, removing or reordering other experiments never shifts it, so one cell can be rerun
    alone. A CPU and a CUDA generator of one seed draw different numbers.
    """
    import torch  # here, so that `import atslib` does not wait for it

    if not isinstance(seed, Integral):
        raise AtsError(f"rng: seed {seed!r} must be a whole number")
    for part in path:  # the text of anything else may be another one in the next process
        check_kind("rng: path", part, str | Number | tuple | None, "text or whole numbers")
    digest = hashlib.sha256(repr((seed, *path)).encode()).digest()
    try:
        stream = torch.Generator(device)
    except (RuntimeError, TypeError):
        raise AtsError(
            f"rng: device {device!r} cannot be had; give 'cpu', or 'cuda' where torch sees one"
        ) from None
    return stream.manual_seed(int.from_bytes(digest[:8], "big") >> 1)


@contextlib.contextmanager
def torch_draws(seed: int, device: "torch.device") -> Iterator[None]:
    """While it is open, what torch draws by itself on a device, such as dropout, is drawn from
    `seed`.

    Afterwards torch's own generators are where they were.
    """
    import torch

    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            number = torch.cuda.current_device() if device.index is None else device.index
            torch.cuda.default_generators[number].manual_seed(seed)
        yield


def as_stream(
    given: "torch.Generator | int | None", *, optional: bool = False
) -> "torch.Generator | None":
    """The stream that `given` stands for: a generator itself, or `rng(given)` of a whole number.

    None stays None where a stream is `optional`.

    Raises:
        AtsError: anything else.
    """
    import torch

    if given is None and optional:
        return None
    if not isinstance(given, torch.Generator | Integral):
        raise AtsError(
            f"rng {given!r} must be a stream, atslib.rng(seed), or the seed itself, a whole number"
        )
    return rng(int(given)) if isinstance(given, Integral) else given
