"""What gradients say in closed form: the input of a linear layer, and the patches of a vision
transformer.

The weight gradient of a linear layer is the outer product of its bias gradient and its input,
summed over the images that share the gradient. Of one image the input can be read off exactly;
Geiping et al. 2020, Proposition 3.1. A vision transformer embeds patches by one linear map and adds
a learned position to each: the gradient of the positions is that of the embedded patches, so that
the map's gradient is linear in the patches; Lu et al. 2022 (APRIL).
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atslib.attacks.attack import Reconstruction
from atslib.attacks.composed import Around
from atslib.attacks.run import run_attack
from atslib.clients.view import Observed, Update
from atslib.copying import apart
from atslib.errors import AtsError, check_kind
from atslib.gradients.inputs import FAULTS
from atslib.gradients.per_example import WithoutDraws
from atslib.gradients.problems import unflatten
from atslib.models import class_scores, copied, last_linear, loss_of, shared_parameters
from atslib.rng import rng as stream


def invert_linear(weight_gradient: Tensor, bias_gradient: Tensor) -> Tensor:
    """The input of a linear layer, from its gradient of one image: exact up to rounding.

    Each output whose bias gradient is not 0 tells the input; they are averaged by the squares of
    their bias gradients, which is least squares. Of a gradient that several images share it is a
    mixture of their inputs.

    Args:
        weight_gradient: (N, O, I) floats, of N images.
        bias_gradient: (N, O), of the same.
    Returns:
        (N, I), the inputs.
    Raises:
        AtsError: a layer without a bias, shapes that do not fit each other, or an image whose bias
            gradients are all 0, such as one of which the network is certain: it says nothing of its
            input.
    """
    check_kind(
        "invert_linear: weight_gradient", weight_gradient, Tensor, "a torch.Tensor (N, O, I)"
    )
    if bias_gradient is None:
        raise AtsError(
            "invert_linear: bias_gradient is None; a layer without a bias gives its input up to a factor"
        )
    check_kind("invert_linear: bias_gradient", bias_gradient, Tensor, "a torch.Tensor (N, O)")
    if weight_gradient.ndim != 3 or bias_gradient.shape != weight_gradient.shape[:2]:
        shapes = f"{tuple(weight_gradient.shape)} and {tuple(bias_gradient.shape)}"
        raise AtsError(
            f"invert_linear: gradients of weight and bias are {shapes}; they must be (N, O, I) and (N, O)"
        )
    if silent := (bias_gradient == 0).all(1).nonzero().flatten().tolist():
        raise AtsError(
            f"invert_linear: the bias gradients of images {silent} are all 0, so they say nothing of an input"
        )
    # By their largest first: squares of small gradients would underflow.
    largest = bias_gradient.abs().amax(1, keepdim=True)
    share = bias_gradient / largest
    return torch.einsum(
        "no,noi->ni",
        share / share.square().sum(1, keepdim=True),
        weight_gradient / largest[..., None],
    )


def last_features(update: Update) -> Tensor:
    """What the network's last layer got of the one image behind each gradient, (N, D); see
    `invert_linear`.

    Raises:
        AtsError: the network has no linear layer with a bias at its end, or as `invert_linear`.
    """
    gradients = unflatten(update.mean_gradients, update.model)
    own = [g for g, own in zip(gradients, of_last_layer(update.model), strict=True) if own]
    if len(own) < 2:
        raise AtsError(
            "the last layer is frozen, so its gradient is not shared, and nothing can be read off it"
        )
    return invert_linear(*own)


def of_last_layer(model: nn.Module) -> list[bool]:
    """Which of a network's parameters are those of its last linear layer: weight and bias."""
    layer = last_linear(model)
    return [any(p is q for q in layer.parameters()) for p in shared_parameters(model).values()]


def entries(update: Update, parameters: list[bool]) -> Tensor:
    """(N, P) bool: the entries of the gradient that belong to these parameters."""
    pairs = zip(unflatten(update.gradients, update.model), parameters, strict=True)
    return torch.cat([torch.full_like(g.flatten(1), own, dtype=torch.bool) for g, own in pairs], 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LastLayerAlone(Around):
    """Compares the last layer's gradient alone: the image is sought whose features and outputs are
    those seen.

    That is how much of an image the inputs of the last layer give away, which `last_features` reads
    off.
    """

    words: ClassVar[str] = " on the last layer alone"

    def run(self, seen: Observed, **options: object) -> Reconstruction:
        """Run it on every gradient of `seen`; `options` are those of `reconstruct`.

        Raises:
            AtsError: the network has no linear layer with a bias at its end.
        """
        updates = [
            dataclasses.replace(u, kept=entries(u, of_last_layer(u.model))) for u in seen.updates
        ]
        last_layer = dataclasses.replace(seen, updates=tuple(updates))
        return run_attack(last_layer, self.inner, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatchEmbedding:
    """Solves for the patches of the one image behind a vision transformer's gradient.

    Exact but for rounding where the embedding is at least as wide as there are patches; else the
    solution of least norm. What the network does to the image before its embedding, such as a
    resize, is undone by least squares. Source: Lu et al. 2022 (APRIL), arXiv:2112.14087, of learned
    positions.

    Attributes:
        rtol: singular values below this share of the largest count as zero.
    """

    rtol: float = 1e-4

    title: ClassVar[str] = "the patches from the gradients of embedding and positions"

    def run(self, seen: Observed, *, rng: torch.Generator) -> Tensor:
        """All images of `seen`, (B, C, H, W) in [0, 1].

        Raises:
            AtsError: a gradient is of several images, or the network has no such layers, or does
                not share them.
        """
        update = seen.updates[0]
        found = patches_of(update.model, seen.shape)
        if found is None or seen.threat.batch > 1:
            raise AtsError(
                "PatchEmbedding needs one image per gradient and a network that starts with an embedding of patches "
                "and has learned positions, both trained"
            )
        gradients = dict(
            zip(
                shared_parameters(update.model),
                unflatten(update.mean_gradients, update.model),
                strict=True,
            )
        )
        images = solved(
            update.model,
            found,
            gradients[found.weight],
            gradients[found.positions],
            seen.shape,
            self.rtol,
        )
        return images.to(update.gradients).clamp(0, 1)


@dataclasses.dataclass(frozen=True)
class Patches:
    """Where a network embeds patches of its image, and the parameter that is added to them.

    Attributes:
        layer, weight: the name of the embedding layer, and of its weight.
        positions: the name of the parameter that is added to the embedded patches.
        along: the dimension of `positions` that has the embedding's width.
        rows: which row of it is added to each patch.
        scale: the gradient of an embedded patch over that of its row.
        shape: of what the layer gets of one image: (C, H, W), or (patches, numbers) of a linear one.
        kernel: sides of a patch; () of a linear layer.
        grid: patches in each direction; () of a linear layer.
        exact: whether the solution of an image of the server's own has that image's gradient.
    """

    layer: str
    weight: str
    positions: str
    along: int
    rows: tuple[int, ...]
    scale: float
    shape: tuple[int, ...]
    kernel: tuple[int, ...]
    grid: tuple[int, ...]
    exact: bool = False


# An attribute of networks whose patches were looked for; copies of a network inherit it
_PATCHES = "_atslib_patches"
ALIKE = {torch.float64: 1e-6, torch.float32: 1e-3}  # up to which two gradients count as one
OWN = 0.02  # of a gradient's norm: how far that of a solution may be from the one that was seen
STEPS = 300  # of least squares at most


def patches_of(model: nn.Module, shape: tuple[int, int, int]) -> Patches | None:
    """Where a network embeds patches of images (C, H, W), seen by running it on an image of the
    server's own: the first layer that gets what was made of the image, and the parameter whose
    gradient is that of the embedded patches. None where there are no such two.
    """
    known = model.__dict__.setdefault(_PATCHES, {})
    key = (tuple(shape), tuple(shared_parameters(model)))
    if key not in known:
        known[key] = None
        image = torch.rand(1, *shape, generator=stream(0, "patches"))
        with (
            contextlib.suppress(AtsError, *FAULTS),
            torch.enable_grad(),
        ):  # a network that does not run
            known[key] = _found(model, image)
    return known[key]


def _found(model: nn.Module, image: Tensor) -> Patches | None:
    if (entry := _entry(model, image)) is None:
        return None
    probe = copied(model)
    for dtype in (torch.float64, next(model.parameters()).dtype):
        try:
            probe = probe.to(dtype)
            image = image.to(next(probe.parameters()))
            slopes, gradients = _slopes(probe, entry, image)
            break
        except FAULTS:
            if dtype != torch.float64:
                raise
    place = _place(slopes, gradients, ALIKE.get(image.dtype, 0.05))
    if place is None or not _is_affine(apart(probe), entry.layer, image):
        return None
    found = dataclasses.replace(entry, **place)
    names = (found.weight, found.positions)
    # A probe in double precision is solved as exactly as that goes: layers are judged, not rounding.
    rtol = 1e-12 if image.dtype == torch.float64 else 1e-4
    made = solved(probe, found, *(gradients[name][None] for name in names), image.shape[1:], rtol)
    _, again = _slopes(probe, entry, made)
    far = [float((again[n] - gradients[n]).norm() / gradients[n].norm()) for n in names]
    return dataclasses.replace(found, exact=max(far) < OWN)


def _entry(model: nn.Module, image: Tensor) -> Patches | None:
    """The first layer that gets what was made of the image, if it may embed patches."""
    probe = apart(model)
    names = {id(p): name for name, p in shared_parameters(probe).items()}
    calls: list[tuple[str, nn.Module, Tensor]] = []

    def seen(name: str, layer: nn.Module, inputs: tuple) -> None:
        if inputs and isinstance(inputs[0], Tensor) and inputs[0].requires_grad:
            calls.append((name, layer, inputs[0].detach()))
            raise _Stop

    with contextlib.ExitStack() as hooks:
        for name, layer in probe.named_modules():
            if isinstance(layer, torch.jit.ScriptModule):
                return None
            if list(layer.parameters(recurse=False)) and not list(layer.children()):
                hook = layer.register_forward_pre_hook(functools.partial(seen, name))
                hooks.callback(hook.remove)
        x = image.to(next(probe.parameters())).requires_grad_()
        with contextlib.suppress(_Stop), WithoutDraws():
            probe(x)
    if not calls:
        return None
    name, layer, got = calls[0]
    weight = names.get(id(getattr(layer, "weight", None)))
    kernel: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    if weight is None or len(got) != 1:
        return None
    if isinstance(layer, nn.Conv2d):
        kernel = tuple(layer.kernel_size)
        plain = layer.groups == 1 and not isinstance(layer.padding, str) and not any(layer.padding)
        if not plain or layer.stride != kernel or set(layer.dilation) != {1} or got.ndim != 4:
            return None
        grid = tuple(n // side for n, side in zip(got.shape[2:], kernel, strict=True))
        count = math.prod(grid)
    elif isinstance(layer, nn.Linear) and got.ndim == 3:
        count = got.shape[1]
    else:
        return None
    if count < 2:
        return None
    return Patches(name, weight, "", 0, (0,) * count, 1.0, tuple(got.shape[1:]), kernel, grid)


class _Stop(Exception):
    """Ends a forward pass at a layer."""


def _slopes(model: nn.Module, entry: Patches, image: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Gradients of the embedded patches of one image, (patches, width), and of the parameters by
    name.
    """
    probe = apart(model)
    shared = shared_parameters(probe)
    given: list[Tensor] = []
    layer = probe.get_submodule(entry.layer)
    hook = layer.register_forward_hook(lambda layer, inputs, output: given.append(output))
    try:
        with WithoutDraws():
            scores = class_scores(probe, image)
            loss = loss_of(probe)(scores, torch.zeros(1, dtype=torch.int64, device=image.device))
    finally:
        hook.remove()
    found = torch.autograd.grad(loss, [given[0], *shared.values()], allow_unused=True)
    pairs = zip(shared.items(), found[1:], strict=True)
    gradients = {name: torch.zeros_like(p) if g is None else g.detach() for (name, p), g in pairs}
    slopes = torch.zeros_like(given[0]) if found[0] is None else found[0].detach()
    slopes = slopes[0].flatten(1).T if entry.kernel else slopes[0]
    return slopes if len(given) == 1 else torch.zeros_like(slopes), gradients


def _place(slopes: Tensor, gradients: dict[str, Tensor], alike: float) -> dict | None:
    """The parameter that has, for each embedded patch, a row whose gradient is the patch's up to a
    common factor; fields of `Patches`.
    """
    count, width = slopes.shape
    lengths = slopes.norm(dim=1)
    if not (lengths > 0).all():
        return None
    for name, gradient in gradients.items():
        for along in range(gradient.ndim) if gradient.numel() >= slopes.numel() else ():
            if gradient.ndim < 2 or gradient.shape[along] != width:
                continue
            rows = gradient.movedim(along, -1).reshape(-1, width)
            far = rows.norm(dim=1).clamp_min(torch.finfo(rows.dtype).tiny)
            cosines = (slopes / lengths[:, None]) @ (rows / far[:, None]).T
            best = cosines.abs().argmax(1)
            if len(best.unique()) < count:
                continue
            scale = float((rows[best] * slopes).sum() / rows[best].square().sum())
            if (scale * rows[best] - slopes).norm() <= alike * slopes.norm():
                return {
                    "positions": name,
                    "along": along,
                    "rows": tuple(best.tolist()),
                    "scale": scale,
                }
    return None


def _got(model: nn.Module, name: str, images: Tensor) -> Tensor:
    """What the embedding layer gets of images (N, C, H, W)."""
    got: list[Tensor] = []

    def stop(layer: nn.Module, inputs: tuple) -> None:
        got.append(inputs[0])
        raise _Stop

    hook = model.get_submodule(name).register_forward_pre_hook(stop)
    try:
        with contextlib.suppress(_Stop), WithoutDraws():
            model(images)
    finally:
        hook.remove()
    return got[0]


def _is_affine(model: nn.Module, name: str, image: Tensor) -> bool:
    """Whether what the embedding gets is an affine function of the image."""
    with torch.no_grad():
        none, half, whole = (_got(model, name, share * image) for share in (0, 0.5, 1))
    far = (none + whole - 2 * half).norm()
    return bool(far <= ALIKE.get(image.dtype, 0.05) * (whole - none).norm())


def solved(
    model: nn.Module,
    found: Patches,
    by_weight: Tensor,
    by_positions: Tensor,
    shape: Sequence[int],
    rtol: float = 1e-4,
) -> Tensor:
    """The image behind each of N gradients, (N, C, H, W) in units of [0, 1], in the network's
    precision.

    Args:
        by_weight, by_positions: (N, *shape) gradients of the embedding's weight and of the
            positions.
        shape: (C, H, W) of an image.
    """
    weight = by_weight.double().flatten(2)  # (N, D, numbers in a patch)
    rows = by_positions.double().movedim(found.along + 1, -1)
    rows = rows.reshape(len(rows), -1, rows.shape[-1])[:, list(found.rows)] * found.scale
    patches = torch.linalg.pinv(rows.transpose(1, 2), rtol=rtol) @ weight
    like = next(model.parameters())
    known = torch.ones(1, *found.shape, dtype=torch.bool, device=like.device)
    if found.kernel:
        sides = [n * side for n, side in zip(found.grid, found.kernel, strict=True)]
        patches = F.fold(patches.transpose(1, 2), sides, found.kernel, stride=found.kernel)
        missing = [whole - side for whole, side in zip(found.shape[1:], sides, strict=True)]
        edge = (0, missing[1], 0, missing[0])
        patches = F.pad(patches, edge)
        known = F.pad(known[..., : sides[0], : sides[1]], edge)
    start = torch.full((len(patches), *shape), 0.5, dtype=like.dtype, device=like.device)
    with torch.enable_grad():
        return _fitted(apart(model), found.layer, patches.to(like), known, start)


def _fitted(model: nn.Module, name: str, wanted: Tensor, known: Tensor, images: Tensor) -> Tensor:
    """The images of which the embedding gets what is wanted where it is known: conjugate gradients
    of the least squares, from `images`. One step where it gets the image itself, normalized.
    """
    none = torch.zeros_like(images)
    constant = _got(model, name, none).detach()

    def forward(direction: Tensor) -> Tensor:
        return (_got(model, name, direction).detach() - constant) * known

    def back(residual: Tensor) -> Tensor:
        x = none.clone().requires_grad_()
        return torch.autograd.grad((_got(model, name, x) * residual).sum(), x)[0]

    def squares(rows: Tensor) -> Tensor:
        return rows.flatten(1).square().sum(1).view(-1, 1, 1, 1)

    tiny = torch.finfo(images.dtype).tiny
    residual = (wanted - _got(model, name, images).detach()) * known
    slope = direction = back(residual)
    whole = first = squares(slope)
    for _ in range(STEPS):
        moved = forward(direction)
        step = whole / squares(moved).clamp_min(tiny)
        images = images + step * direction
        residual = residual - step.view(-1, *[1] * (residual.ndim - 1)) * moved
        slope = back(residual)
        before, whole = whole, squares(slope)
        if (whole <= torch.finfo(images.dtype).eps ** 1.5 * first).all():
            break
        direction = slope + whole / before.clamp_min(tiny) * direction
    return images.detach()
