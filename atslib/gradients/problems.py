"""Per-example gradients of the training loss, and the distances between them.

A *problem* is `k` images that share one gradient (k = 1 in the paper). Gradients of N problems are
a tuple of tensors (N, *parameter shape), in the order of `models.shared_parameters`; the public
functions return them flattened to (N, P).
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call, grad, vmap

from atslib.gradients.inputs import checked
from atslib.gradients.per_example import PerExample, SameRules
from atslib.gradients.routes import Route, route_of
from atslib.models import batch_norms, class_scores, loss_of, shared_parameters, to_try

Gradients = tuple[Tensor, ...]

LONG_ROW = (
    1 << 17
)  # elements from which one call per row is faster on a CPU than a temporary for all rows


def problem_gradients(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    buffers: dict[str, Tensor] | None = None,
    like: nn.Module | None = None,
    route: Route | None = None,
) -> Gradients:
    """Gradient of the mean loss of each problem, the cross-entropy unless the network has another,
    with respect to every parameter that is trained.

    Args:
        model: as the client runs it, see `models.in_mode`: in train mode the statistics of a
            problem are those of its own k images.
        inputs: (N, k, C, H, W), what `model` takes.
        targets: (N, k) class indices, or (N, k, K) class probabilities.
        buffers: (N, ...) statistics that differ by problem; the model's own otherwise.
        like: the network that `model` wraps, where running that one more often than asked would
            have an effect.
        route: what `prepare` found; looked up by default.
    Returns:
        One tensor (N, *shape) per parameter of `shared_parameters`, differentiable with respect to
        `inputs` and `targets`; zeros of a parameter that takes no part in the scores.
    Raises:
        AtsError: a batch normalization that would update its running statistics, or has one value
            per channel; or a network that torch cannot differentiate, and the layer because of
            which.
    """
    if route is None:
        further = torch.is_grad_enabled() and (inputs.requires_grad or targets.requires_grad)
        route = route_of(
            model if like is None else like, tuple(inputs.shape[1:]), FORMS, further=further
        )
    form = FORMS[route.form]
    buffers = buffers or {}
    if form is not alone or not route.moves:
        return form(route.start(model, like), inputs, targets, buffers)
    rows = []
    for i in range(len(inputs)):
        own = {name: value[i : i + 1] for name, value in buffers.items()}
        one = slice(i, i + 1)
        rows.append(alone(route.start(model, like), inputs[one], targets[one], own))
    return tuple(torch.cat(each) for each in zip(*rows, strict=True))


def per_example(
    model: nn.Module, inputs: Tensor, targets: Tensor, buffers: dict[str, Tensor]
) -> Gradients:
    """The fast form of `problem_gradients`, for most networks; see the module `per_example`.

    Raises:
        Unsupported: a parameter outside of the layers that it knows.
    """
    handles = {}
    wanted = []
    for parameter in model.parameters():
        handle = parameter.detach().expand(len(inputs), *parameter.shape)
        handles[id(parameter)] = handle.requires_grad_(parameter.requires_grad)
        if parameter.requires_grad:
            wanted.append(handle)
    statistics = {id(b): buffers[name] for name, b in model.named_buffers() if name in buffers}
    further = torch.is_grad_enabled() and (inputs.requires_grad or targets.requires_grad)
    with torch.enable_grad():
        with PerExample(len(inputs), handles, statistics) as mode:
            logits = class_scores(model, inputs.flatten(0, 1))
        loss = _summed(model, logits, targets)
        gradients = torch.autograd.grad(loss, wanted, create_graph=further, allow_unused=True)
        mode.handles_wanted = False
        return _filled(gradients, wanted)


def _summed(model: nn.Module, logits: Tensor, targets: Tensor) -> Tensor:
    """The sum over the problems of their losses, from the scores of all images (N·k, K)."""
    loss = loss_of(model)
    if loss is F.cross_entropy:
        return loss(logits, targets.flatten(0, 1), reduction="sum") / targets.shape[1]
    # A loss of one's own may weigh the images of a problem by each other.
    each = zip(logits.unflatten(0, targets.shape[:2]), targets, strict=True)
    return sum(loss(*problem) for problem in each)


def vmapped(
    model: nn.Module, inputs: Tensor, targets: Tensor, buffers: dict[str, Tensor]
) -> Gradients:
    """The readable reference of `problem_gradients`, for any network: `vmap` over `grad`."""
    parameters = {name: p.detach() for name, p in shared_parameters(model).items()}
    of_scores = loss_of(model)

    def loss(parameters: dict, buffers: dict, images: Tensor, labels: Tensor) -> Tensor:
        return of_scores(class_scores(model, images, {**parameters, **buffers}), labels)

    with SameRules():
        by_problem = vmap(grad(loss), in_dims=(None, 0, 0, 0), randomness="different")
        gradients = by_problem(parameters, buffers, inputs, targets)
    return tuple(gradients.values())


def alone(
    model: nn.Module, inputs: Tensor, targets: Tensor, buffers: dict[str, Tensor]
) -> Gradients:
    """One problem after the other by plain backward passes, for networks that the other two forms
    cannot take.
    """
    parameters = list(shared_parameters(model).values())
    further = torch.is_grad_enabled() and (inputs.requires_grad or targets.requires_grad)
    rows = []
    for i, (images, labels) in enumerate(zip(inputs, targets, strict=True)):
        own = {name: value[i] for name, value in buffers.items()}
        with torch.enable_grad():
            with SameRules():
                scores = class_scores(model, images, own)
            loss = loss_of(model)(scores, labels)
            gradients = torch.autograd.grad(
                loss, parameters, create_graph=further, allow_unused=True
            )
            rows.append(_filled(gradients, parameters))
    return tuple(torch.stack(each) for each in zip(*rows, strict=True))


def _filled(gradients: Sequence[Tensor | None], like: Sequence[Tensor]) -> Gradients:
    """The gradients, with zeros for parameters that were not used."""
    pairs = zip(gradients, like, strict=True)
    return tuple(
        torch.zeros(p.shape, dtype=p.dtype, device=p.device) if g is None else g for g, p in pairs
    )


# The forms of `problem_gradients`, the fastest first; the last is plain torch.
FORMS = {"per_example": per_example, "vmapped": vmapped, "alone": alone}


def mixes_nothing(model: nn.Module, shape: Sequence[int]) -> bool:
    """Whether the network is known to score each image (C, H, W) by itself, whatever else is in its
    batch.
    """
    return route_alone(model, (1, *shape)).form == "per_example"


def prepare(model: nn.Module, shape: Sequence[int]) -> Route:
    """Find out how the network's gradients are computed where they are differentiated once more, as
    in attacks.

    `problem_gradients` would find out by itself; this is for networks that are about to be changed
    by hooks, or copied.

    Args:
        shape: (k, C, H, W) of the images of one problem.
    """
    return route_of(model, tuple(shape), FORMS, further=True)


def route_alone(model: nn.Module, shape: Sequence[int]) -> Route:
    """How the network's gradients are computed where they are not differentiated once more.

    Args:
        shape: (k, C, H, W) of the images of one problem.
    """
    return route_of(model, tuple(shape), FORMS, further=False)


def unused_parameters(model: nn.Module, shape: Sequence[int]) -> tuple[str, ...]:
    """Names of trained parameters that take no part in the scores of images of `shape`, (k, C, H,
    W).
    """
    return route_alone(model, shape).unused


def batch_statistics(
    model: nn.Module, images: Tensor, *, buffers: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Mean and variance of what enters each batch normalization, over the k images of each problem.

    Args:
        model: in the mode in which it runs, as later statistics depend on how earlier layers
            normalize.
        images: (N, k, C, H, W) floats in [0, 1].
        buffers: (N, ...) where they differ by problem.
    Returns:
        (N, width) under the names of `running_statistics`, differentiable with respect to `images`.
        The variance is divided by the number of values, as in a forward pass in train mode.
    """

    def one(buffers: dict, problem: Tensor) -> dict[str, Tensor]:
        network = to_try(model)
        statistics: dict[str, Tensor] = {}

        def record(name: str, inputs: tuple[Tensor]) -> None:
            (maps,) = inputs
            variance, mean = torch.var_mean(maps, [0, *range(2, maps.ndim)], correction=0)
            statistics.update({f"{name}.running_mean": mean, f"{name}.running_var": variance})

        with ExitStack() as hooks:
            for name, layer in batch_norms(network).items():
                hook = layer.register_forward_pre_hook(
                    lambda _, inputs, name=name: record(name, inputs)
                )
                hooks.callback(hook.remove)
            functional_call(network, buffers, (problem,))
        return statistics

    if not batch_norms(model):
        return {}
    try:
        with SameRules():
            return vmap(one, randomness="different")(buffers or {}, images)
    except RuntimeError:  # a layer of which torch has no form for several problems
        own = [
            {name: value[i] for name, value in (buffers or {}).items()} for i in range(len(images))
        ]
        with SameRules():
            rows = [one(*pair) for pair in zip(own, images, strict=True)]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def example_gradients(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Gradient of the loss of each image alone, flattened: the cross-entropy, unless the network
    has another (`models.with_loss`).

    Args:
        images: (B, C, H, W) floats in [0, 1].
        labels: (B,) int64.
    Returns:
        (B, P), the trained parameters in the order of `models.shared_parameters`; frozen ones are
        not in it. Equal to one backward pass per image with one rule for ties of max-pooling, see
        `models.max_pool`: torch's own choice among pixels that are equal, or in single precision
        all but equal, can differ, and with it the gradients of the layers before by some percent.
    Raises:
        AtsError: network, images and labels that do not fit each other.
    """
    images, labels = checked(model, images, labels)
    return flatten(problem_gradients(model, images[:, None], labels[:, None]))


def flatten(gradients: Gradients) -> Tensor:
    """Tensors (N, ...) side by side: (N, P)."""
    return torch.cat([g.reshape(len(g), -1) for g in gradients], 1)


def unflatten(gradients: Tensor, model: nn.Module) -> Gradients:
    """(N, P) → views (N, *shape), one per parameter of `shared_parameters`; the inverse of
    `flatten`.
    """
    shapes = [p.shape for p in shared_parameters(model).values()]
    pieces = gradients.split([s.numel() for s in shapes], 1)
    return tuple(
        piece.unflatten(1, s) if s else piece[:, 0] for piece, s in zip(pieces, shapes, strict=True)
    )


class _Inner(Function):
    """Inner products of each tensor with its target and with itself, (L, N) each.

    Memory limits their speed: one pass for the derivatives of both takes half the traffic of
    autograd's two.
    """

    @staticmethod
    def forward(ctx: object, target: Gradients, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        ctx.target = target
        ctx.save_for_backward(*gradients)
        pairs = [(_rows(g), _rows(t, g)) for g, t in zip(gradients, target, strict=True)]
        return torch.stack([_dots(g, t) for g, t in pairs]), _squares([g for g, _ in pairs])

    @staticmethod
    def backward(ctx: object, for_dot: Tensor, for_square: Tensor) -> tuple:
        slopes = []
        for g, t, a, b in zip(ctx.saved_tensors, ctx.target, for_dot, 2 * for_square, strict=True):
            column = (-1, *[1] * (g.ndim - 1))
            slopes.append((t * a.view(column)).addcmul_(g, b.view(column)))
        return None, *slopes


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each row, (N,); `vecdot` writes the products of long rows to memory
    first.
    """
    if a.is_cuda or a.shape[1] < LONG_ROW:
        return torch.linalg.vecdot(a, b)
    return torch.stack([torch.dot(*rows) for rows in zip(a.unbind(), b.unbind(), strict=True)])


def _inner(gradients: Gradients, target: Gradients) -> tuple[Tensor, Tensor, Tensor]:
    """(gradients · target, gradients · gradients, target · target) of each tensor, (L, N)."""
    return *_Inner.apply(target, *gradients), target.squares if isinstance(
        target, Fixed
    ) else _squares(target)


def _squares(gradients: Sequence[Tensor]) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(_rows(g), dim=1) for g in gradients]).square()


def _rows(gradient: Tensor, like: Tensor | None = None) -> Tensor:
    """(N, elements), the elements in the order in which `like`, by default `gradient`, lies in
    memory.
    """
    like = gradient if like is None else like
    if not like.is_contiguous():
        gradient = gradient.permute(0, *sorted(range(1, like.ndim), key=like.stride, reverse=True))
    return gradient.reshape(len(gradient), -1)


class Fixed(tuple):
    """Gradients that many others are compared with."""

    @functools.cached_property
    def squares(self) -> Tensor:
        """Squared norm of each tensor, (L, N)."""
        return _squares(self)

    def laid_out(self, like: Gradients) -> "Fixed":
        """The same values in the memory layout of `like`, so that their products copy nothing."""
        pairs = list(zip(self, like, strict=True))
        if all(g.stride() == other.stride() for g, other in pairs):
            return self
        return Fixed(torch.empty_like(other).copy_(g) for g, other in pairs)


def cosine(gradients: Gradients, target: Gradients) -> Tensor:
    """1 - cosine similarity of the whole gradients, (N,) in [0, 2].

    Paper Eq. 5; the attacks' `sim`.
    """
    dot, square, norm = (part.sum(0) for part in _inner(gradients, target))
    tiny = torch.finfo(dot.dtype).tiny  # two roots: the product of the squares would underflow
    return 1 - dot / (square.clamp_min(tiny).sqrt() * norm.clamp_min(tiny).sqrt())


def cosine_tensors(gradients: Gradients, target: Gradients) -> Tensor:
    """1 - the mean over parameter tensors of their cosine similarities, (N,) in [0, 2].

    Each norm is at least 1e-8, as in torch's cosine similarity. The authors' privacy score uses
    this form.
    """
    dot, square, norm = _inner(gradients, target)
    return 1 - (dot / (square.clamp_min(1e-16).sqrt() * norm.clamp_min(1e-16).sqrt())).mean(0)


NONE = 1e-37  # largest entry of a tensor that is taken for 0
FLOOR = 1e-6  # part of the target's largest entry, below which an own tensor counts less and less


def cosine_layers(gradients: Gradients, target: Gradients) -> Tensor:
    """1 - the mean of the cosine similarities of the parameter tensors, (N,) in [0, 2].

    No tensor is too short to count, as in `cosine_tensors`; those of which the target is 0 are left
    out. `cosine` adds up all entries: in a deep network whose layers pass on little, such as an
    untrained EfficientNet with the batch statistics 0 and 1 that it begins with, nearly all of a
    gradient's length is in its last layers. These hardly depend on the image: two photographs of
    one label differ by 1e-15, which single precision does not hold.
    """
    own = []
    sent = []
    told = []
    for part, aim in zip(gradients, target, strict=True):
        # By their largest entries first, since the squares of small ones would underflow: a cosine
        # is of directions, so that its slope is the same.
        most = _largest(aim)
        own.append(part / torch.maximum(_largest(part), FLOOR * most).clamp_min(NONE))
        sent.append(aim / most.clamp_min(NONE))
        told.append(most.flatten() > NONE)
    dot, square, norm = _inner(tuple(own), Fixed(sent))
    alike = dot / (square.clamp_min(0.5).sqrt() * norm.clamp_min(0.5).sqrt())
    counted = torch.stack(told)
    return 1 - (alike * counted).sum(0) / counted.sum(0).clamp_min(1)


def _largest(part: Tensor) -> Tensor:
    """The largest size of an entry in each row, (N, 1, ...), a constant for autograd."""
    return part.detach().flatten(1).abs().amax(1).view(-1, *[1] * (part.ndim - 1))


def l2(gradients: Gradients, target: Gradients) -> Tensor:
    """Sum of squared differences, (N,). Deep Leakage from Gradients, Eq. 4."""
    return sum(_rows((g - t).square()).sum(1) for g, t in zip(gradients, target, strict=True))


def l1(gradients: Gradients, target: Gradients) -> Tensor:
    """Sum of absolute differences, (N,)."""
    return sum(_rows((g - t).abs()).sum(1) for g, t in zip(gradients, target, strict=True))


def norms(gradients: Gradients, target: Gradients) -> Tensor:
    """Sum over parameter tensors of the norms of the differences, (N,).

    Geng et al. 2021, Eq. 10.
    """
    return sum(
        torch.linalg.vector_norm(_rows(g - t), dim=1)
        for g, t in zip(gradients, target, strict=True)
    )


def l2_relative(gradients: Gradients, target: Gradients) -> Tensor:
    """`l2` as a share of the target's squared norm, (N,): the same descent for gradients of any
    length.
    """
    return l2(gradients, target) / _squares(target).sum(0).clamp_min(
        torch.finfo(target[0].dtype).tiny
    )


def l2_tensors(gradients: Gradients, target: Gradients) -> Tensor:
    """The mean over parameter tensors of their `l2_relative`, (N,): every layer has the same say."""
    squares = [_rows(g - t).square().sum(1) for g, t in zip(gradients, target, strict=True)]
    return (torch.stack(squares) / _squares(target).clamp_min(1e-16)).mean(0)


def l1_relative(gradients: Gradients, target: Gradients) -> Tensor:
    """`l1` as a share of the target's sum of absolute values, (N,)."""
    whole = sum(_rows(t).abs().sum(1) for t in target)
    return l1(gradients, target) / whole.clamp_min(torch.finfo(whole.dtype).tiny)


# (gradients, target), each a tensor (N, ...) per parameter → (N,); lower is more alike.
DISTANCES: dict[str, Callable[[Gradients, Gradients], Tensor]] = {
    "cosine": cosine,
    "cosine-tensors": cosine_tensors,
    "cosine-layers": cosine_layers,
    "l2": l2,
    "l1": l1,
    "norms": norms,
    "l2-relative": l2_relative,
    "l2-tensors": l2_tensors,
    "l1-relative": l1_relative,
}
