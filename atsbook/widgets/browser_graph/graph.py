"""A gradient-matching attack as a graph that a browser runs: traced from the library's own
objective.

`runner.js` runs it; what a file holds is described in the book, under "An attack in a web page".
"""

import base64
import copy
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from atsbook.widgets.browser_graph.lowering import Lowering
from atslib.attacks import GradientMatching
from atslib.attacks.objective import Objective
from atslib.clients.observe import observe
from atslib.clients.training import load_checkpoint
from atslib.data.load import load
from atslib.errors import AtsError, choose
from atslib.files import write_atomically
from atslib.gradients.problems import flatten, prepare, problem_gradients, unflatten
from atslib.models import normalization_layer

FORMAT = "atslib-attack-1"
WEIGHTS = {"f32": torch.float32, "f16": torch.float16}
STEP = ("distance", "penalty", "slope")
VICTIM = ("gradient", "scores")
MOST_WEIGHTS = 10_000_000  # of a network that a page can be asked to load


def attack_graph(
    model: nn.Module, shape: Sequence[int], classes: int, *, weights: str = "f32"
) -> dict:
    """A step of the attack and the client's gradient as loops, with the network's weights; JSON can
    hold it.

    The attack matches gradients by their cosine and smooths by the total variation, as
    `GradientMatching` does; the weight of the variation is an input, and the optimizer is the
    page's.

    Args:
        model: takes images (B, C, H, W) in [0, 1], gives `classes` scores; it runs in eval mode.
        shape: (C, H, W) of an image.
        weights: how they are stored, "f32" or "f16". Rounded ones make a network of their own, see
            `rounded`.
    Raises:
        AtsError: an unknown kind of weights, a network that is too large, or one whose step needs an operation that the
            runner lacks.
    """
    choose("weights", weights, WEIGHTS)
    check_size(sum(p.numel() for p in model.parameters()))
    model = rounded(model, weights)
    flat = flatten(tuple(p.detach()[None] for p in model.parameters()))[0]
    image = torch.full((1, *shape), 0.5)
    label = torch.zeros(1, dtype=torch.int64)
    normalize = normalization_layer(model)
    prepare(model, image.shape)  # before its operations are traced
    known = {"weights": flat, "labels": F.one_hot(label, classes).to(flat)[:, None]}
    begun = {
        "z": normalize(image).flatten(1),
        "gradient": torch.linspace(-1, 1, len(flat))[None],
        "tv": torch.ones(1),
    }
    stored = base64.b64encode(flat.to(WEIGHTS[weights]).numpy().tobytes()).decode()
    return {
        "format": FORMAT,
        "shape": list(shape),
        "classes": classes,
        "mean": normalize.mean.flatten().tolist(),
        "std": normalize.std.flatten().tolist(),
        "step": _loops(_Step(model, image, label), known | begun, STEP),
        "victim": _loops(_Victim(model), known | {"images": image[None]}, VICTIM),
        "weights": {"kind": weights, "data": stored},
    }


def check_size(size: int) -> None:
    """Raise `AtsError` unless a page can be asked to load a network of so many weights."""
    if size > MOST_WEIGHTS:
        raise AtsError(
            f"a network of {size:,} weights is too large for a page, which loads at most {MOST_WEIGHTS:,}"
        )


def rounded(model: nn.Module, weights: str) -> nn.Module:
    """The network in eval mode and float32 whose weights are those that a graph of that kind
    stores; a copy.
    """
    view = copy.deepcopy(model).float().eval()
    with torch.no_grad():
        for parameter in view.parameters():
            parameter.copy_(parameter.to(WEIGHTS[weights]))
    return view


def export(
    file: Path, model: nn.Module, dataset: str, checkpoint: Path | None, weights: str
) -> str:
    """Write the graph for a network on that data set's images where a page can read it; a line on
    what was written.
    """
    if checkpoint:
        load_checkpoint(checkpoint, model)
    images = load(dataset, "test")
    made = attack_graph(model.cpu(), images.pixels.shape[1:], images.num_classes, weights=weights)
    text = json.dumps(made, separators=(",", ":"), allow_nan=False) + "\n"
    write_atomically(file, lambda partial: partial.write_text(text))
    return f"{file}: {len(text) / 1e3:.0f} kB, {len(made['step']['steps'])} loops a step"


class _Step(nn.Module):
    """The cost of an iterate and its slope, of gradients and labels that are inputs."""

    def __init__(self, model: nn.Module, image: Tensor, label: Tensor):
        super().__init__()
        self.model = model
        self.seen = observe(model, image, label)

    def forward(
        self, z: Tensor, gradient: Tensor, labels: Tensor, tv: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        update = dataclasses.replace(self.seen.updates[0], gradients=gradient, model=self.model)
        seen = dataclasses.replace(self.seen, updates=(update,), labels=labels)
        objective = Objective(seen, [GradientMatching(tv=1.0)], split=False)
        objective.weights = {"tv": tv}
        z = z.detach().requires_grad_()
        distance, penalty = objective.costs(z)
        (slope,) = torch.autograd.grad((distance + penalty).sum(), z)
        return distance, penalty, slope


class _Victim(nn.Module):
    """What a client shares of images and labels that are inputs, and the network's scores."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return flatten(problem_gradients(self.model, images, labels)), self.model(images[0])


def _loops(module: nn.Module, inputs: dict[str, Tensor], outputs: Sequence[str]) -> dict:
    """A traced and lowered module; its parameters are views of the input `weights`."""
    names = [name for name, _ in module.named_parameters()]

    def call(weights: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        # Trained ones: a client shares no gradient of a frozen parameter.
        parts = unflatten(weights.detach().requires_grad_()[None], module)
        named = {name: part[0] for name, part in zip(names, parts, strict=True)}
        return functional_call(module, named, kwargs=dict(zip(order, given, strict=True)), args=())

    order = [name for name in inputs if name != "weights"]
    examples = [inputs["weights"], *(inputs[name] for name in order)]
    lowered = Lowering(_traced(call, examples))
    return {
        "inputs": dict(zip(["weights", *order], lowered.inputs, strict=True)),
        "outputs": dict(zip(outputs, lowered.outputs, strict=True)),
        "buffers": lowered.buffers,
        "constants": [[buffer, values] for buffer, values in lowered.constants.items()],
        "steps": lowered.steps,
    }


def _traced(
    call: Callable[..., tuple[Tensor, ...]], examples: Sequence[Tensor]
) -> torch.fx.GraphModule:
    """Twice: the second time without operations that write into their operands."""
    table = torch._decomp.core_aten_decompositions()
    once = make_fx(call, decomposition_table=table)(*examples)
    graph = make_fx(functionalize(once, remove="mutations"), decomposition_table=table)(*examples)
    # Also what draws at random, which torch would keep: no output needs a probe of the gradients.
    graph.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    return graph
