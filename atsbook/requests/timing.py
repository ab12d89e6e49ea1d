"""How long something takes: calls in turn, and the work of a client of a federation."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from atsbook.requests.collaborative import OnFederation
from atsbook.store import Store
from atsfed.federation import Federation, answer, taken
from atslib.policies.policy import parse_policy
from atslib.rng import rng


def seconds(
    *calls: Callable[[], object],
    device: torch.device,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Median time of each call after one warm-up, by default on the wall's clock, the device waited
    for.

    The calls take turns, so that a machine that becomes slower meanwhile is slower for all of them.
    """

    def once(call: Callable[[], object]) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = clock()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return clock() - started

    for call in calls:
        once(call)
    times = [[once(call) for call in calls] for _ in range(repeats)]
    return [statistics.median(column) for column in zip(*times, strict=True)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimingRequest(OnFederation):
    """Seconds of a client's work on one answer, and of each policy alone.

    Medians of runs in turn, in one process: their ratios do not depend on what else ran meanwhile.

    Attributes:
        federation: whose first client is timed, in its first round.
        policies: as text.
        repeats: of each.

    Its tensors: `answer` (), seconds of all without a policy, `policy` (P,), of each policy alone,
    and `weights` (), how many numbers an answer has.
    """

    kind: ClassVar[str] = "timing"

    federation: Federation
    policies: tuple[str, ...]
    repeats: int

    @property
    def title(self) -> str:
        """What is timed, of which network."""
        return f"time of the transformations, {self.federation.model}"

    @property
    def passes(self) -> float:
        """Forward and backward of every repeat."""
        return 3 * self.federation.batch * self.repeats

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Time it."""
        f = self.federation
        model = f.network()
        pixels = taken(f, 0, 1)[0]
        policies = [parse_policy(text) for text in self.policies]
        calls = [lambda p=policy: p(pixels, rng=rng(0, "timing")) for policy in policies]
        whole, *each = seconds(
            lambda: answer(f, model, 0, 1),
            *calls,
            device=torch.device("cpu"),
            repeats=self.repeats,
        )
        weights = sum(parameter.numel() for parameter in model.parameters())
        return {
            "answer": torch.tensor(whole),
            "policy": torch.tensor(each),
            "weights": torch.tensor(weights),
        }
