"""Who sees what: the victim's side of an attack, and all that leaves it.

`observe` plays the clients. It returns an `Observed`, which holds no image, so no attack can peek.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from atslib.clients.defenses import Defense
from atslib.errors import AtsError, choose
from atslib.gradients.problems import flatten, problem_gradients
from atslib.models import BatchNorm


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreatModel:
    """What an honest-but-curious server knows beside the model it sent and the gradient it received.

    Attributes:
        labels: "known" (the paper), "inferred" from the last layer's gradient (iDLG; one image a gradient),
            or "optimized" together with the image (DLG).
        batch_norm: of a victim in eval mode: "known": the attacker has the running statistics too;
            "unknown": only those of its own reconstruction. Of a victim in train mode: "known": the
            statistics of the private batch are shared beside the gradient (`Observed.statistics`).
        victim: "eval" (the paper): the client uses the running statistics; "train": those of its batch,
            and the attacker then runs its reconstruction in the same way.
        batch: images that share one gradient; 1 in the paper.
    """

    labels: str = "known"
    batch_norm: str = "known"
    victim: str = "eval"
    batch: int = 1

    def __post_init__(self) -> None:
        choose("ThreatModel.labels", self.labels, ("known", "inferred", "optimized"))
        choose("ThreatModel.batch_norm", self.batch_norm, ("known", "unknown"))
        choose("ThreatModel.victim", self.victim, ("eval", "train"))
        if self.batch < 1:
            raise AtsError(f"ThreatModel.batch={self.batch}: a gradient is of at least one image")
        if self.labels == "inferred" and self.batch > 1:
            raise AtsError("ThreatModel.labels='inferred' is the iDLG rule, which needs batch=1")


@dataclasses.dataclass(frozen=True)
class Observed:
    """All that the server sees of N gradients. No image is in it.

    Attributes:
        model: as the attacker may run it (batch normalization per `threat`).
        gradients: (N, P), flattened, after the client's defense.
        labels: (N, batch) int64, or None where the threat model hides them.
        statistics: (N, ...) buffers that differ by gradient: what a victim in train mode normalized with,
            where it is known, or the running statistics of stacked models.
        parameters: (N, ...) weights where the gradients come from different models (see `stack`).
        shape: (C, H, W) of one image.
    """

    model: nn.Module
    gradients: Tensor
    labels: Tensor | None
    shape: tuple[int, int, int]
    threat: ThreatModel
    statistics: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    parameters: dict[str, Tensor] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.gradients)

    def take(self, members: slice | Tensor) -> "Observed":
        """The same view of some of the N gradients."""
        return dataclasses.replace(
            self,
            gradients=self.gradients[members],
            labels=None if self.labels is None else self.labels[members],
            statistics={name: value[members] for name, value in self.statistics.items()},
            parameters={name: value[members] for name, value in self.parameters.items()},
        )


def _in_mode(model: nn.Module, mode: str) -> nn.Module:
    """A copy whose batch normalization uses batch statistics ("train") or running ones ("eval")."""
    view = copy.deepcopy(model).eval()
    for layer in view.modules():
        if mode == "train" and isinstance(layer, BatchNorm):
            layer.train()
            layer.track_running_stats = False
    return view


def _norm_layers(model: nn.Module) -> list[tuple[str, BatchNorm]]:
    return [(name, layer) for name, layer in model.named_modules() if isinstance(layer, BatchNorm)]


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """The model's own running mean and variance of each batch normalization, (width,), by buffer name."""
    found = {}
    for name, layer in _norm_layers(model):
        found |= {f"{name}.running_mean": layer.running_mean, f"{name}.running_var": layer.running_var}
    return found


def batch_statistics(
    model: nn.Module,
    images: Tensor,
    *,
    parameters: dict[str, Tensor] | None = None,
    buffers: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Mean and variance of what enters each batch normalization, over the k images of each problem.

    Args:
        model: as it runs: later statistics depend on how earlier layers normalize.
        images: (N, k, C, H, W) floats in [0, 1].
        parameters, buffers: (N, ...) where they differ by problem.
    Returns:
        (N, width) under the names of `running_statistics`, differentiable with respect to `images`. The
        variance is divided by the number of values, as in a forward pass in train mode.
    """

    def one(parameters: dict, buffers: dict, problem: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}

        def record(name: str) -> Callable:
            def hook(layer: nn.Module, inputs: tuple[Tensor]) -> None:
                variance, mean = torch.var_mean(inputs[0], (0, 2, 3), correction=0)
                found.update({f"{name}.running_mean": mean, f"{name}.running_var": variance})

            return hook

        handles = [layer.register_forward_pre_hook(record(name)) for name, layer in _norm_layers(model)]
        try:
            functional_call(model, {**parameters, **buffers}, (problem,))
        finally:
            for handle in handles:
                handle.remove()
        return found

    return vmap(one)(parameters or {}, buffers or {}, images)


def _joined(pieces: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}


def observe(
    model: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    *,
    threat: ThreatModel | None = None,
    defense: Defense | None = None,
    rng: torch.Generator | None = None,
) -> Observed:
    """Let clients compute and share their gradients.

    Args:
        model: from `build_model`; not changed.
        pixels: (B, C, H, W) floats in [0, 1], already transformed if the client uses a policy. Each run of
            `threat.batch` consecutive images shares one gradient.
        labels: (B,) int64.
        threat: what the server knows; the paper's by default.
        defense: perturbs the shared gradients; `rng` is the stream of its noise.
    Raises:
        AtsError: B is not a multiple of `threat.batch`, or the pixels are not floats of shape (B, C, H, W).
    """
    threat = threat or ThreatModel()
    if pixels.ndim != 4 or not pixels.is_floating_point():
        raise AtsError(f"observe: pixels {tuple(pixels.shape)} {pixels.dtype} must be floats (B, C, H, W) in [0, 1]")
    if len(pixels) % threat.batch or len(pixels) != len(labels):
        raise AtsError(
            f"observe: {len(pixels)} images and {len(labels)} labels do not make gradients of {threat.batch}"
        )
    images = pixels.unflatten(0, (-1, threat.batch))
    grouped = labels.unflatten(0, (-1, threat.batch))
    client = _in_mode(model, threat.victim)
    with torch.no_grad():
        parts = [problem_gradients(client, *part) for part in zip(images.split(16), grouped.split(16), strict=True)]
        gradients = tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))
        shared = threat.batch_norm == "known" and threat.victim == "train"
        statistics = _joined([batch_statistics(client, part) for part in images.split(16)]) if shared else {}
    if defense is not None:
        gradients = defense(gradients, rng=rng)
    return Observed(
        model=_in_mode(model, threat.victim if threat.batch_norm == "known" else "train"),
        gradients=flatten(gradients).detach(),
        labels=grouped if threat.labels == "known" else None,
        shape=tuple(pixels.shape[1:]),
        threat=threat,
        statistics=statistics,
    )


def stack(views: Sequence[Observed]) -> Observed:
    """Gradients of models of one architecture with different weights as one view, in the order given.

    An attack on it equals attacks on one view after the other. Weights and running statistics get a row a
    gradient, so they take as much memory again as the gradients, and no model is copied. It pays where each
    model has few gradients: on one CPU core 8 models with one each took 0.2 (LeNet) to 0.6 (ConvNet) of the
    time, 2 models with 8 each 0.9 to 1.4, because a convolution whose weights differ by problem is slower.

    Raises:
        AtsError: no view, or views that differ in architecture, threat or image shape; it names the first
            difference.
    """
    if not views:
        raise AtsError("stack: no view is given; at least one is needed")
    facts = [_facts(view) for view in views]
    for i, other in enumerate(facts):
        for key in facts[0] | other:
            a, b = (f.get(key, "absent") for f in (facts[0], other))
            if a != b:
                raise AtsError(f"stack: views must share architecture, threat and shape; 0 and {i}: {key} {a}, {b}")
    labels = [view.labels for view in views if view.labels is not None]
    return dataclasses.replace(
        views[0],
        gradients=torch.cat([view.gradients for view in views]),
        labels=torch.cat(labels) if labels else None,
        statistics=_joined([_own_statistics(view) for view in views]),
        parameters=_joined([_own_parameters(view) for view in views]),
    )


def _facts(view: Observed) -> dict[str, object]:
    """What views in one stack share: all but weights, statistics, gradients and labels."""
    found = {"shape": view.shape} | {f"threat.{k}": v for k, v in dataclasses.asdict(view.threat).items()}
    for name, module in view.model.named_modules():
        leaf = not list(module.children())
        found[f"layer {name or 'model'}"] = repr(module) if leaf else type(module).__name__
    for name, p in view.model.named_parameters():
        found[f"parameter {name}"] = f"{tuple(p.shape)} {p.dtype} on {p.device}"
    for name, buffer in view.model.named_buffers():
        if not name.endswith(("running_mean", "running_var", "num_batches_tracked")):
            found[f"buffer {name}"] = buffer.flatten().tolist()
    return found


def _own_parameters(view: Observed) -> dict[str, Tensor]:
    own = {name: p.detach().expand(len(view), *p.shape) for name, p in view.model.named_parameters()}
    return view.parameters or own


def _own_statistics(view: Observed) -> dict[str, Tensor]:
    """Those given with the gradients, else the running statistics where the attacker normalizes with them."""
    used = view.threat.batch_norm == "known" and view.threat.victim == "eval"
    own = running_statistics(view.model) if used else {}
    return {name: value.expand(len(view), *value.shape) for name, value in own.items()} | view.statistics
