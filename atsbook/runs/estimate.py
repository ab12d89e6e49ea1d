"""How long work takes: what a network computes, times rates measured on the machine at hand.

Work is counted in four ways: FLOP of convolutions and linear layers; numbers that layers put out
(activations, on which narrow networks spend most of their time); numbers of gradients, one for each
weight and gradient that is compared; and calls of layers. A training step is three forward passes,
a step of an attack seven, because it takes the gradient of a gradient.
"""

import dataclasses
import functools
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from atslib.attacks import GradientMatching, reconstruct
from atslib.clients.observe import ThreatModel, observe
from atslib.files import write_atomically
from atslib.gradients.cpu import keep_to_one_core
from atslib.models import build_model
from atslib.rng import rng

PASSES = 7  # of a step of an attack
# The variable with the folder in which the processes of one run keep the machine's rates
RATES = "ATS_RATES"


@dataclasses.dataclass(frozen=True)
class Work:
    """What a network costs: FLOP and numbers put out, of one image on its way forward; weights; and
    calls of layers.
    """

    flop: float
    numbers: float
    weights: float
    calls: float

    @classmethod
    def of(cls, model: nn.Module, image: Tensor) -> "Work":
        """Count it for an image (1, C, H, W); `forward_flop` would import half of torch's compiler,
        which takes longer than many a run.
        """
        outputs: list[int] = []
        flop: list[int] = []

        def count(module: nn.Module, _: object, out: Tensor) -> None:
            outputs.append(out.numel())
            if isinstance(module, nn.Conv2d | nn.Linear):
                flop.append(2 * out.numel() * module.weight[0].numel())

        leaves = [module for module in model.modules() if not list(module.children())]
        hooks = [leaf.register_forward_hook(count) for leaf in leaves]
        with torch.no_grad():
            model(image)
        for hook in hooks:
            hook.remove()
        weights = sum(parameter.numel() for parameter in model.parameters())
        return cls(
            float(sum(flop)),
            float(sum(outputs)),
            float(weights),
            float(len(outputs)),
        )

    def total(self, passes: float, gradients: float = 0.0, batches: float = 0.0) -> np.ndarray:
        """So many passes of single images, gradients and batches: FLOP, numbers, numbers of
        gradients, calls, (4,).
        """
        parts = (
            passes * self.flop,
            passes * self.numbers,
            gradients * self.weights,
            batches * self.calls,
        )
        return np.array(parts)


@dataclasses.dataclass(frozen=True)
class Rates:
    """Seconds for each of what `Work` counts, on one core or one GPU."""

    flop: float
    number: float
    weight: float
    call: float

    def seconds(
        self, work: Work, passes: float, gradients: float = 0.0, batches: float = 0.0
    ) -> float:
        """How long so many passes of single images, gradients and batches take."""
        return float(
            work.total(passes, gradients, batches)
            @ [self.flop, self.number, self.weight, self.call]
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """An attack to time: so many gradients of `batch` images each, that is `policies` times
    `images` images.
    """

    model: str
    images: int = 8
    policies: int = 1
    batch: int = 1
    steps: int = 4
    side: int = 32

    @property
    def counts(self) -> tuple[float, float, float]:
        """Passes of single images, gradients and batches: those of the client, and of all steps."""
        images = self.images * self.policies
        each = 3 + PASSES * self.steps
        return images * each, images / self.batch * (1 + self.steps), each

    def prepared(self) -> nn.Module:
        """The network, untrained."""
        return build_model(self.model, 100, image_size=self.side, rng=rng(0)).eval()

    def work(self) -> Work:
        """Of its network."""
        return Work.of(self.prepared(), torch.zeros(1, 3, self.side, self.side))

    def measured(self, device: torch.device, *, repeats: int = 3) -> float:
        """The seconds that it takes, the least of several runs: on a CPU of this process, whatever
        else is running.
        """
        model = self.prepared().to(device)
        count = self.images * self.policies
        images = torch.rand(count, 3, self.side, self.side, generator=rng(0, "images")).to(device)
        labels = torch.randint(100, (count,), generator=rng(0, "labels")).to(device)
        attack = GradientMatching(steps=self.steps)
        threat = ThreatModel(batch=self.batch)
        clock = time.process_time if device.type == "cpu" else time.perf_counter

        def once() -> float:
            started = clock()
            reconstruct(observe(model, images, labels, threat=threat), attack, rng=0).images.cpu()
            return clock() - started

        keep_to_one_core()
        once()
        return min(once() for _ in range(repeats))


# What rates are fitted to: a tiny, a narrow and a wide network of each kind, and one image alone.
# Some seconds in all.
FITTED = (
    Case(model="lenet", images=16, steps=16),
    Case(model="resnet20-1"),
    Case(model="resnet20-1", images=1, steps=8),
    Case(model="resnet20-4", images=1),
    Case(model="convnet-16", images=4),
    Case(model="convnet-4", images=4),
)
# What errors are stated on: none of these is fitted.
JUDGED = (
    Case(model="lenet", images=64),
    Case(model="lenet", images=16, steps=40),
    Case(model="lenet", images=4, policies=16),
    Case(model="lenet", images=16, side=64),
    Case(model="lenet", images=32, batch=8),
    Case(model="convnet-8"),
    Case(model="convnet-32", images=4),
    Case(model="convnet-16", images=2, side=64),
    Case(model="resnet20-1", images=32),
    Case(model="resnet20-1", steps=12),
    Case(model="resnet20-1", images=16, batch=8),
    Case(model="resnet20-1", images=4, policies=4),
    Case(model="resnet20-1", images=2, side=64),
    Case(model="resnet20-2", images=4),
    Case(model="resnet20-4", images=2),
    Case(model="resnet18-16", images=4),
)
# As measured on one core of this project's machines (results/costs.jsonl), for what needs no more
# than proportions.
USUAL = Rates(1.1e-11, 1.4e-9, 8.3e-9, 8.9e-5)


def fitted(cases: Sequence[Case], times: Sequence[float]) -> Rates:
    """Rates of least squared relative error over cases and the seconds that they took; none is
    below 0.
    """
    from scipy.optimize import nnls  # half a second, in every process that computes

    rows = np.array([case.work().total(*case.counts) for case in cases]) / np.array(times)[:, None]
    scale = rows.max(0)
    return Rates(*map(float, nnls(rows / scale, np.ones(len(rows)))[0] / scale))


@functools.cache
def measured(device: torch.device) -> Rates:
    """This machine's rates, from `FITTED`: some seconds, once a process; where $ATS_RATES names a
    folder, once for all processes that share it.
    """
    folder = os.environ.get(RATES)
    kept = Path(folder, f"{device.type}.json") if folder else None
    if kept and kept.exists():
        return Rates(**json.loads(kept.read_text()))
    rates = fitted(FITTED, [case.measured(device, repeats=1) for case in FITTED])
    if kept:
        text = json.dumps(dataclasses.asdict(rates))
        write_atomically(kept, lambda partial: partial.write_text(text))
    return rates


def points(device: torch.device) -> Iterator[dict]:
    """One row per case, those that the rates are fitted to first: seconds measured and predicted,
    and the error.
    """
    times = [case.measured(device) for case in FITTED]
    rates = fitted(FITTED, times)
    yield {"benchmark": "rates", **dataclasses.asdict(rates)}
    for place, case in enumerate((*FITTED, *JUDGED)):
        took = times[place] if place < len(FITTED) else case.measured(device)
        said = rates.seconds(case.work(), *case.counts)
        row = {"benchmark": "costs", "fitted": place < len(FITTED), **dataclasses.asdict(case)}
        yield row | {
            "seconds": round(took, 3),
            "predicted": round(said, 3),
            "error": round(said / took - 1, 3),
        }


def forward_flop(model: nn.Module, images: Tensor) -> int:
    """FLOP of one image's forward pass through the convolutions and linear layers."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images[:1])
    return counter.get_total_flops()
