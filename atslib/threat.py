"""Who sees what: the victim's side of an attack, and all that leaves it.

`observe` plays the clients. It returns an `Observed`, which holds no image, so no attack can peek.
"""

import copy
import dataclasses

import torch
from torch import Tensor, nn

from atslib.defenses import Defense
from atslib.errors import AtsError, choose
from atslib.gradients import flatten, problem_gradients
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


def _batch_statistics(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Mean and variance that each batch normalization of a client in train mode computes: (N, width) each."""
    found: dict[str, list[Tensor]] = {}

    def record(name: str) -> object:
        def hook(layer: nn.Module, inputs: tuple[Tensor]) -> None:
            variance, mean = torch.var_mean(inputs[0], (0, 2, 3), correction=0)
            found.setdefault(f"{name}.running_mean", []).append(mean)
            found.setdefault(f"{name}.running_var", []).append(variance)

        return hook

    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, BatchNorm)]
    handles = [layer.register_forward_pre_hook(record(name)) for name, layer in layers]
    with torch.no_grad():
        for problem in images:
            model(problem)
    for handle in handles:
        handle.remove()
    return {name: torch.stack(values) for name, values in found.items()}


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
    if defense is not None:
        gradients = defense(gradients, rng=rng)
    known = threat.batch_norm == "known"
    statistics = _batch_statistics(client, images) if known and threat.victim == "train" else {}
    return Observed(
        model=_in_mode(model, threat.victim if known else "train"),
        gradients=flatten(gradients).detach(),
        labels=grouped if threat.labels == "known" else None,
        shape=tuple(pixels.shape[1:]),
        threat=threat,
        statistics=statistics,
    )
