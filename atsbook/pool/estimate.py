"""How long work takes: what a network computes, times rates that were measured once.

Work is counted in four ways: FLOP of convolutions and linear layers; numbers that layers put out
(activations, on which narrow networks spend most of their time); numbers of gradients, one for each
weight and gradient that is compared; and calls of layers. A training step is three forward passes,
a step of an attack seven, because it takes the gradient of a gradient.
"""

import dataclasses

import numpy as np
import torch
from torch import Tensor, nn

PASSES = 7  # of a step of an attack


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


# As measured on one core of this project's machines.
USUAL = Rates(1.1e-11, 1.4e-9, 8.3e-9, 8.9e-5)


def forward_flop(model: nn.Module, images: Tensor) -> int:
    """FLOP of one image's forward pass through the convolutions and linear layers."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images[:1])
    return counter.get_total_flops()
