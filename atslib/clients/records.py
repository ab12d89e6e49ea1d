"""One round as a server has kept it: what it sent, what each client sent back, and what these tell
of how clients trained.

`record_files` says how it lies on disk. `observed` makes of it what every attack takes.
"""

import dataclasses
import math
from pathlib import Path

import torch
from torch import Tensor, nn

from atslib.clients.observe import attackers_view
from atslib.clients.view import Observed, ThreatModel, Update
from atslib.errors import AtsError
from atslib.models import copied, shared_parameters
from atslib.weights import fill, fitted

KINDS = ("weights", "difference", "gradient")
# Buffers of batch normalization by the end of their names; they move in train mode alone.
COUNTER = "num_batches_tracked"
STATISTICS = ("running_mean", "running_var")
ROUNDED = 1e-2  # of a running statistic: what rounding to half precision or bfloat16 may move it by


@dataclasses.dataclass(frozen=True)
class Record:
    """What one client sent.

    Attributes:
        name: whose it is, for messages.
        arrays: by name, as they were sent.
        images: which images were behind it: names of files or row numbers; empty where nothing says
            so.
        count: how many images were behind it; None where nothing says so.
    """

    name: str
    arrays: dict[str, Tensor]
    images: tuple[str | int, ...]
    count: int | None


@dataclasses.dataclass(frozen=True)
class Recorded:
    """One round.

    Attributes:
        sent: the weights that clients got, by name.
        kind: what clients sent: "weights", the "difference" of weights (after minus before) or a
            "gradient".
        lr, steps: of their training.
        records: one per client.
        where: the folder, for messages.
        contradiction: a sentence where the number of steps that was said is not that of the buffers
            that clients sent; "" where they agree, or tell nothing.
        counted: whether the number of steps is that of the counters of batch normalization.
    """

    sent: dict[str, Tensor]
    kind: str
    lr: float
    steps: int
    records: tuple[Record, ...]
    where: Path
    contradiction: str = ""
    counted: bool = False


def bare(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """Arrays by their names without the prefix of `DataParallel`."""
    return {name.removeprefix("module."): value for name, value in arrays.items()}


def counted_steps(sent: dict[str, Tensor], record: Record, kind: str) -> int | None:
    """How many forward passes in train mode a client has made, by the counters of batch
    normalization that it sent; None where there are none, or in a gradient.

    A server's mean over counters is no whole number; a client's counter goes on from the whole part.
    Where layers were used several times in a pass, the one that was used least tells.
    """
    if kind == "gradient":
        return None
    before = bare(sent)
    counts = []
    for name, value in bare(record.arrays).items():
        own = before.get(name)
        if not name.endswith(COUNTER) or value.numel() != 1:
            continue
        if kind == "difference":
            counts.append(math.ceil(float(value) - 1e-3))
        elif own is not None and own.numel() == 1:
            counts.append(round(float(value) - math.floor(float(own) + 1e-3)))
    return min((count for count in counts if count > 0), default=0) if counts else None


def client_mode(recorded: Recorded) -> str | None:
    """In which mode the clients ran batch normalization, by the buffers that they sent: "train" if
    counters or running statistics of any moved, "eval" if those of none did; None where there are
    none, or in gradients.
    """
    if recorded.kind == "gradient":
        return None
    before = bare(recorded.sent)
    told = False
    for record in recorded.records:
        if counted_steps(recorded.sent, record, recorded.kind):
            return "train"
        for name, value in bare(record.arrays).items():
            own = before.get(name)
            if not name.endswith((COUNTER, *STATISTICS)):
                continue
            if recorded.kind == "difference":
                own = torch.zeros_like(value)
            if own is None or own.shape != value.shape:
                continue
            told = True
            moved = (value.double() - own.double()).abs()
            # A server's mean over counters is no whole number, and clients make it one.
            least = 1 if name.endswith(COUNTER) else ROUNDED * own.double().abs()
            if bool((moved > least).any()):
                return "train"
    return "eval" if told else None


def steps_contradiction(recorded: Recorded) -> str:
    """A sentence where the number of local steps that is said is not that of the counters; "" where
    they agree, or tell nothing.
    """
    for record in recorded.records:
        count = counted_steps(recorded.sent, record, recorded.kind)
        if count and count != recorded.steps:
            each, rest = divmod(count, recorded.steps)
            accumulated = (
                f" If it accumulates the gradients of {each} batches for a step, its batch normalization saw a part of "
                "the photographs at a time, and all at once here."
            )
            return (
                f"{record.name} is said to have made {recorded.steps} local steps (--local-steps), and its counters of "
                f"batch normalization (num_batches_tracked) went up by {count}; with another number of steps little is "
                f"found, whatever leaks.{'' if rest else accumulated}"
            )
    return ""


def mode_contradiction(recorded: Recorded, said: str) -> str:
    """A sentence where the mode in which clients are said to have run batch normalization is not
    that of the buffers that they sent; "" where they agree.
    """
    told = client_mode(recorded)
    if told is None or told == said:
        return ""
    moved = "have moved" if told == "train" else "have not moved"
    return (
        f"Clients are said to run batch normalization in {said} mode, and its running statistics and counters {moved}, "
        f"as in {told} mode; in another mode little is found, whatever leaks (victim: {told})."
    )


def observed(
    recorded: Recorded,
    model: nn.Module,
    rows: list[Tensor],
    labels: Tensor,
    threat: ThreatModel,
    shape: tuple[int, int, int],
) -> Observed:
    """What the server saw of clients with equally many images, as one view.

    Args:
        recorded: the round; its records are those of `rows`.
        model: the network with the weights that were sent, as `prepared` gives it.
        rows: of each client which images were behind its update.
        labels: (N,) of all images.
        threat: what the server knows, and the mode in which clients ran the network; `batch` is the
            number of images of each.
        shape: (C, H, W) of an image.
    """
    flat = []
    for record in recorded.records:
        part = _parameters(recorded, record, model)
        flat.append(torch.cat([value.flatten() for value in part]))
    gradients = torch.stack(flat).to(next(model.parameters()))
    if not gradients.isfinite().all():
        raise AtsError(f"--update {recorded.where}: what was received is not finite")
    attacker = attackers_view(model, threat, shape)
    if recorded.kind == "gradient":
        update = Update(attacker, gradients)
    else:
        facts = {
            "epochs": recorded.steps,
            "batch": 0,
            "lr": recorded.lr,
            "momentum": 0.0,
            "steps": recorded.steps,
        }
        update = Update(attacker, gradients, kind="difference", local=facts)
    known = None
    if threat.labels == "known":
        known = torch.stack([labels[each] for each in rows]).to(gradients.device)
    return Observed((update,), known, shape, threat)


def _parameters(recorded: Recorded, record: Record, model: nn.Module) -> list[Tensor]:
    """A client's change of each parameter of the network, or its gradient, in the network's order."""
    sent = bare(recorded.sent)
    got = bare(record.arrays)
    found = []
    for name, parameter in shared_parameters(model).items():
        fitting = [each for each in got if name == each or name.endswith(f".{each}")]
        own = max(
            fitting, key=len, default=None
        )  # the network stands behind its normalization, so names grow
        if own is None:
            raise AtsError(
                f"--update {recorded.where}: {record.name} sent no array for {name!r}; it sent {', '.join(got)[:120]}"
            )
        arrays = [got[own]]
        if recorded.kind == "weights":
            arrays.append(sent.get(own))
        if any(array is None or array.shape != parameter.shape for array in arrays):
            raise AtsError(
                f"--update {recorded.where}: {own!r} must have been sent, and received from {record.name}, in the shape "
                f"that the network has, {tuple(parameter.shape)}"
            )
        value = got[own].double()
        if recorded.kind == "weights":
            value = value - sent[own].double()
        found.append(value)
    return found


def network_of(recorded: Recorded, fresh: nn.Module) -> nn.Module:
    """The network with the weights that were sent; buffers and frozen parameters that were not sent
    stay as they are made.
    """
    model = copied(fresh)
    whose = f"--update {recorded.where}"
    sent = fitted(recorded.sent, model, whose, partial=True)
    trained = shared_parameters(model)
    missing = {name: value for name, value in model.state_dict().items() if name not in trained}
    return fill(model, missing | sent, whose)
