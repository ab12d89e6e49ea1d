"""The attacks that an audit tries, and what each costs."""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor, nn

from atsaudit.config import Case
from atslib.attacks import (
    ATTACKS,
    GradientMatching,
    KeptEntries,
    LastLayerAlone,
    PatchEmbedding,
    ThroughPolicy,
    invert_linear,
)
from atslib.attacks.analytic import patches_of
from atslib.attacks.attack import Attack
from atslib.attacks.through_policy import forms
from atslib.clients.view import Observed
from atslib.errors import AtsError
from atslib.gradients.problems import unflatten
from atslib.models import batch_norms, last_linear, normalization_layer, shared_parameters

# Where most layers have no say in the plain cosine: each tensor has the same there.
LAYERS = "annealed-layers"
PRESETS = ATTACKS | {
    LAYERS: dataclasses.replace(ATTACKS["annealed-resnet"], distance="cosine-layers")
}
# The strongest of each family; what is best on a network shows only there.
FAMILIES = ("annealed-convnet", "annealed-resnet", "annealed-lenet", "adam-cosine", LAYERS)
# Share of the gradient's length, below which a tensor changes the cosine by less than single
# precision holds
FAINT = torch.finfo(torch.float32).eps ** 0.5
MOST_UNROLLED = 10  # local steps through which an attack is made
CLOSED = ("first-layer", "patch-embedding")  # exact, and lost where a defense changes the gradient
# Of `ThroughPolicy`
TRIAL = 20
KEEP = 2
SILENT = 0.05  # share of entries that are exactly 0, from which an attack leaves them out


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstLayer:
    """Reads the image off the gradient of a first layer that is linear on its pixels: exact for a
    single image.
    """

    title: ClassVar[str] = "the first layer's input in closed form"

    def run(self, seen: Observed, *, rng: torch.Generator) -> Tensor:
        """All images of `seen`, (B, C, H, W) in [0, 1].

        Raises:
            AtsError: as `invert_linear`; a gradient is of several images, or the first layer is not
                linear on them.
        """
        update = seen.updates[0]
        layer = first_linear(update.model, seen.shape)
        if layer is None or seen.threat.batch > 1:
            raise AtsError(
                "FirstLayer needs one image per gradient and a network whose first layer is linear"
            )
        names = [id(parameter) for parameter in shared_parameters(update.model).values()]
        gradients = unflatten(update.mean_gradients, update.model)
        weight, bias = (
            gradients[names.index(id(parameter))] for parameter in (layer.weight, layer.bias)
        )
        silent = (bias == 0).all(1)
        # Of a gradient that is 0 nothing can be read: its image stays grey.
        inputs = torch.zeros_like(weight[:, 0])
        if not silent.all():
            inputs[~silent] = invert_linear(weight[~silent], bias[~silent])
        return (
            normalization_layer(update.model).inverse(inputs.unflatten(1, seen.shape)).clamp(0, 1)
        )


def first_linear(model: nn.Module, shape: tuple[int, int, int]) -> nn.Linear | None:
    """The first layer with weights, if it is linear, trained, with a bias, and takes as many
    numbers as an image has.
    """
    layers = [layer for layer in model.modules() if list(layer.parameters(recurse=False))]
    if not layers or not isinstance(layers[0], nn.Linear) or not _is_trained(layers[0]):
        return None
    size = shape[0] * shape[1] * shape[2]
    return layers[0] if layers[0].in_features == size else None


def candidates(seen: Observed, case: Case, steps: int) -> dict[str, Attack]:
    """The attacks that are tried on a case, by name: closed forms first, then the likeliest."""
    found: dict[str, Attack] = {}
    model = seen.updates[0].model
    likely = _likely(seen)
    families = sorted(FAMILIES, key=lambda name: name != likely)
    plain = {name: dataclasses.replace(PRESETS[name], steps=steps) for name in families}
    if case.images == 1 and first_linear(model, seen.shape) is not None:
        found["first-layer"] = FirstLayer()
    patches = patches_of(model, seen.shape) if case.images == 1 else None
    if patches is not None and patches.exact:
        found["patch-embedding"] = PatchEmbedding()
    found |= plain
    if (
        patches is not None
    ):  # of least norm, where there are more patches than the embedding is wide
        found.setdefault("patch-embedding", PatchEmbedding())
    if case.images == 1 and _has_head(model):
        found["last-layer-alone"] = LastLayerAlone(inner=plain["annealed-convnet"])
    local = seen.updates[0].local
    if case.shared == "update" and local and 1 < local["steps"] <= MOST_UNROLLED:
        for name in FAMILIES[:2]:
            found[f"{name}, local steps unrolled"] = dataclasses.replace(plain[name], unroll=True)
    return found


def _likely(seen: Observed) -> str:
    """The attack of a family of networks like this one."""
    if is_faint(seen):
        return LAYERS
    return "annealed-resnet" if batch_norms(seen.updates[0].model) else "annealed-convnet"


def is_faint(seen: Observed) -> bool:
    """Whether most tensors of a gradient are so short beside the whole that the plain cosine does
    not see them.
    """
    update = seen.updates[0]
    whole = update.gradients.double().norm(dim=1)
    lengths = [
        part.double().flatten(1).norm(dim=1) for part in unflatten(update.gradients, update.model)
    ]
    told = torch.stack([length for length in lengths if length.any()] or lengths)
    return bool(((told < FAINT * whole).double().mean() > 0.5).all())


def _is_trained(layer: nn.Linear) -> bool:
    """Whether both weight and bias are shared."""
    return layer.weight.requires_grad and layer.bias is not None and layer.bias.requires_grad


def _has_head(model: nn.Module) -> bool:
    """Whether the last layer tells its input, and is not all that is shared."""
    try:
        layer = last_linear(model)
    except AtsError:
        return False
    return _is_trained(layer) and len(shared_parameters(model)) > 2


def forms_effort(case: Case, policy: str, steps: int) -> float:
    """How many steps an attack that knows the policy takes in place of each one."""
    if case.knows == "nothing" or not policy:
        return 1.0
    if case.knows == "draws":
        return 1.0
    possible = len(forms(policy))
    if possible <= KEEP:
        return float(possible)
    return (possible * min(TRIAL, steps) + KEEP * steps) / steps


def against(attack: Attack, seen: Observed) -> Attack:
    """The attack by a server that makes use of what it knows of the defense: its policy, and what
    was not shared.
    """
    inner = getattr(attack, "inner", attack)
    if not isinstance(inner, GradientMatching):
        return attack
    silent = torch.stack(
        [(update.gradients == 0).double().mean() for update in seen.updates]
    ).mean()
    if seen.knows.policy:
        attack = ThroughPolicy(inner=inner, trial=min(TRIAL, inner.steps), keep=KEEP)
    if SILENT < float(silent) < 1 and isinstance(attack, GradientMatching | ThroughPolicy):
        attack = KeptEntries(inner=attack)
    return attack


def seeks_before(attack: Attack) -> bool:
    """Whether an attack reconstructs the image before the policy, and not what the network got."""
    return isinstance(attack, ThroughPolicy) or isinstance(
        getattr(attack, "inner", None), ThroughPolicy
    )
