"""Which form of the gradient of many problems is right for a network, found by trying, once for
each network.

The fast form runs all problems through the network as one batch. That is wrong where the network
mixes its batch, as a normalization over it does, and where the fast form misses a use of a
parameter. So it is compared with plain backward passes on two small problems, in double precision.
If it differs, `torch.func.vmap` is tried, then one problem after the other, which is plain torch.
What plain torch cannot do either is refused, and the layer named.
"""

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from atslib import models
from atslib.copying import Place, apart, kept_tensors, moved
from atslib.data.images import explain
from atslib.errors import AtsError
from atslib.gradients.per_example import SameRules, Unsupported, WithoutDraws
from atslib.models import copied, shared_parameters
from atslib.rng import rng

EQUAL = {
    torch.float64: 1e-6,
    torch.float32: 1e-2,
}  # of a gradient's norm: up to which two forms count as one

Form = Callable[[nn.Module, Tensor, Tensor, dict[str, Tensor]], tuple[Tensor, ...]]


@dataclasses.dataclass(frozen=True)
class Route:
    """How a network's gradients are computed.

    Attributes:
        form: the name of one of `problems.FORMS`.
        unused: names of parameters that take no part in the scores; their gradients are 0.
        moves: whether a pass changes the network: a counter, an own running mean, a tensor that is
            kept for the next call. Then each gradient is of a copy that starts where it did.
        kept: where the network holds tensors of an earlier call that it made of its parameters,
            and that such a copy has to make itself.
    """

    form: str
    unused: tuple[str, ...] = ()
    moves: bool = False
    kept: tuple[Place, ...] = ()

    def start(self, model: nn.Module, like: nn.Module | None = None) -> nn.Module:
        """What to run for one gradient: the network, or where a pass changes it a copy with the
        same parameters and a state of its own.

        Args:
            like: the network that `model` wraps, of which the route is; `model` itself by default.
        """
        if not self.moves:
            return model
        return apart(model, draws=True, empty=self.kept, like=like)


def route_of(
    model: nn.Module, shape: tuple[int, ...], forms: dict[str, Form], *, further: bool
) -> Route:
    """The route of a network.

    Args:
        model: as it runs.
        shape: (k, C, H, W) of one problem.
        forms: the forms of a gradient by name, the fastest first; the last is plain torch.
        further: whether the gradient is differentiated once more, as attacks do.
    Raises:
        AtsError: plain torch cannot compute it; the sentence names the layer.
    """
    state = (tuple(shape), _state(model))
    known = model.__dict__.setdefault(models.ROUTES, {})
    if not further and (state, True) in known:  # what can be differentiated again is right as it is
        return known[state, True]
    if (state, further) not in known:
        known[state, further] = _tried(model, tuple(shape), forms, further)
    return known[state, further]


def _state(model: nn.Module) -> int:
    """What a route depends on: layers, their modes, and which parameters are trained."""
    layers = [(type(layer), layer.training) for layer in model.modules()]
    return hash(
        (*layers, *(p.requires_grad for p in model.parameters()), next(model.parameters()).dtype)
    )


def _is_ours(model: nn.Module) -> bool:
    like = next(model.parameters())
    standard = like.dtype in EQUAL and models.keeps_nothing(model)
    return standard and all(
        layer.groups == 1 and not isinstance(layer.padding, str)
        if isinstance(layer, nn.Conv2d)
        else not getattr(layer, "inplace", False)  # two of them in a row are too many for torch
        for layer in model.modules()
    )


def _tried(
    model: nn.Module, shape: tuple[int, ...], forms: dict[str, Form], further: bool
) -> Route:
    if not shared_parameters(model):
        raise AtsError(
            f"{type(model).__name__} has frozen parameters only, so there is no gradient"
        )
    if _is_ours(model) and _runs_fast(next(iter(forms.values())), model, shape):
        return Route(next(iter(forms)))
    like = next(model.parameters())
    with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
        kept = _stale(model, shape)
        probe, inputs, targets, plain, second, unused, moves = _plain(model, shape, further, kept)
        _check_second(model, shape, plain, second)
        route = Route(list(forms)[-1], unused, moves or bool(kept), kept)
        for name, form in list(forms.items())[:-1]:
            try:
                if _agrees(form, route.start(probe), inputs, targets, plain, second) and _runs(
                    form, route, model, inputs, targets
                ):
                    return dataclasses.replace(route, form=name)
            except (
                Unsupported,
                RuntimeError,
                NotImplementedError,
                TypeError,
                ValueError,
                IndexError,
            ):
                continue
    return route


def _check_second(
    model: nn.Module, shape: tuple[int, ...], plain: list[Tensor], second: Tensor | None
) -> None:
    """Raise `AtsError` where the gradient is finite and its derivative is not, as that of a root at
    0: an attack would stand still.
    """
    if second is None or second.dtype not in EQUAL or second.isfinite().all():
        return
    if not all(part.isfinite().all() for part in plain):  # which is said by who shares it
        return
    raise AtsError(
        f"{_layer(model, shape)} cannot be attacked: its second derivative is not finite, as that of a root or a "
        "power below 2 at 0; add a small number before the root"
    )


def _stale(model: nn.Module, shape: tuple[int, ...]) -> tuple[Place, ...]:
    """Where the network holds tensors that an earlier call made of its parameters, and that a call
    takes as they are, so that no gradient reaches these parameters.

    Layers of one class are tried together: what they hold is taken out of a copy, and was such a
    tensor if a call makes it again and it then depends on a parameter.
    """
    held = kept_tensors(model)
    if not held:
        return ()
    image = _probe(next(model.parameters()), shape)[0]

    def made(places: list[Place]) -> set[Place]:
        """Those places that hold a tensor with a gradient after a call."""
        twin = apart(model, empty=places)
        with contextlib.suppress(Exception), torch.enable_grad(), WithoutDraws():
            twin(image)
            again = kept_tensors(twin)
            return {place for place in held if place in again and again[place].requires_grad}
        return set()

    anew = made([])  # those that each call makes again by itself
    groups: dict[object, list[Place]] = {}
    for place in held:
        if place not in anew:
            groups.setdefault((type(model.get_submodule(place[0])), place[1]), []).append(place)
    found: set[Place] = set()
    for places in groups.values():
        found |= made(places) & set(places)
    return tuple(place for place in held if place in found)


def _runs_fast(form: Form, model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the fast form takes the network: its layers may be used as it does not know them."""
    image = _probe(next(model.parameters()), shape)[:1]
    targets = torch.zeros(image.shape[:2], dtype=torch.int64, device=image.device)
    try:
        with torch.no_grad(), WithoutDraws():
            form(model, image, targets, {})
    except Unsupported:
        return False
    return True


def _probe(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Two problems of random images."""
    return torch.rand(2, *shape, generator=rng(0, "probe"), dtype=torch.float64).to(like)


def _plain(
    model: nn.Module, shape: tuple[int, ...], further: bool, kept: tuple[Place, ...]
) -> tuple:
    """A copy of the network in double precision if it runs so, and what plain backward passes make
    of two problems.
    """
    faults = []
    for double in (True, False):  # one that casts within may run in its own precision alone
        try:
            probe = copied(model).double() if double else copied(model)
            inputs = _probe(next(probe.parameters()), shape)
            return probe, inputs, *_by_torch(probe, inputs, further, kept)
        except AtsError:
            raise
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
            faults.append(error)
    raise AtsError(_fault(model, shape, faults[-1])) from None


def _by_torch(model: nn.Module, inputs: Tensor, further: bool, kept: tuple[Place, ...]) -> tuple:
    """Targets of two problems, their plain gradients, a second derivative of each, the unused
    parameters, and whether a pass changes the network.
    """
    plain = []
    second = []
    for images in inputs:
        probe = apart(model, empty=kept)
        parameters = shared_parameters(probe)
        z = images.clone().requires_grad_(further)
        with torch.enable_grad(), WithoutDraws():
            logits = models.class_scores(probe, z)
            targets = torch.arange(2 * len(images), device=z.device).view(2, -1) % logits.shape[1]
            loss = models.loss_of(probe)(logits, targets[len(plain)])
            gradients = torch.autograd.grad(
                loss, list(parameters.values()), create_graph=further, allow_unused=True
            )
            unused = tuple(name for name, g in zip(parameters, gradients, strict=True) if g is None)
            used = [g for g in gradients if g is not None]
            if further:
                second.append(_slope(used, z).detach())
        whole = zip(parameters.values(), gradients, strict=True)
        plain.append([torch.zeros_like(p) if g is None else g.detach() for p, g in whole])
    plain = [torch.stack(each) for each in zip(*plain, strict=True)]
    second = torch.stack(second) if further else None
    return targets, plain, second, unused, moved(model, probe)


def _slope(gradients: list[Tensor], z: Tensor, retain_graph: bool = False) -> Tensor:
    """The derivative of a cost of the gradients in `z`; zeros where they do not depend on it."""
    cost = sum(g.square().sum() + g.sin().sum() for g in gradients if g.requires_grad)
    if not isinstance(cost, Tensor):
        return torch.zeros_like(z)
    slope = torch.autograd.grad(cost, z, retain_graph=retain_graph, allow_unused=True)[0]
    return torch.zeros_like(z) if slope is None else slope


def _agrees(
    form: Form,
    probe: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    plain: list[Tensor],
    second: Tensor | None,
) -> bool:
    """Whether a form gives what plain backward passes gave."""
    z = inputs.clone().requires_grad_(second is not None)
    with torch.set_grad_enabled(second is not None), WithoutDraws():
        ours = form(probe, z, targets, {})
        pairs = [(g.detach(), p) for g, p in zip(ours, plain, strict=True)]
        if second is not None:
            pairs.append((_slope(list(ours), z), second))
    least = EQUAL.get(inputs.dtype, 0.05)
    whole = max((float(torch.linalg.vector_norm(p)) for p in plain), default=0.0)
    for got, wanted in pairs:
        if not wanted.isfinite().all():  # a network of nan is refused elsewhere
            continue
        far = float(torch.linalg.vector_norm((got.detach() - wanted.detach()).flatten()))
        if (
            not far
            <= least * (float(torch.linalg.vector_norm(wanted.detach().flatten())) + 1e-3 * whole)
            + 1e-300
        ):
            return False
    return True


def _runs(form: Form, route: Route, model: nn.Module, inputs: Tensor, targets: Tensor) -> bool:
    """Whether it runs in the network's own precision: one that casts, as with autocast, may mix
    several then.
    """
    like = next(model.parameters())
    if like.dtype != inputs.dtype or like.dtype not in EQUAL:
        with torch.no_grad(), WithoutDraws():
            form(route.start(copied(model)), inputs.to(like), targets, {})
    return True


def _fault(model: nn.Module, shape: tuple[int, ...], error: Exception) -> str:
    """What plain torch cannot do with a network, and in which layer."""
    with warnings.catch_warnings(record=True) as said:  # torch warns of one kind of checkpointing
        warnings.simplefilter("always")
        where = _layer(model, shape)
    files = " ".join(str(each.filename) for each in said)
    if "checkpoint" in f"{type(error).__name__} {error} {files}".lower():
        return (
            f"{type(model).__name__} cannot be attacked with gradient checkpointing, of which torch has no second "
            f"derivative in this form ({explain(error)}); switch it off, which changes no gradient"
        )
    return f"{where} cannot be attacked: torch has no second derivative of it, or no gradient ({explain(error)})"


def _layer(model: nn.Module, shape: tuple[int, ...]) -> str:
    """`_culprit` in words; the whole network where no layer is found alone."""
    if not (name := _culprit(model, shape)):
        return type(model).__name__
    return f"layer {name!r} ({type(model.get_submodule(name)).__name__})"


def _culprit(model: nn.Module, shape: tuple[int, ...]) -> str:
    """The name of the first innermost layer that cannot be differentiated twice, "" where none is
    found alone.
    """
    probe = copied(model)
    calls = []

    def record(name: str, layer: nn.Module, inputs: tuple, output: object) -> None:
        calls.append((name, layer, inputs))

    handles = [
        layer.register_forward_hook(functools.partial(record, name))
        for name, layer in probe.named_modules()
        if name and not isinstance(layer, torch.jit.ScriptModule)  # which takes no hook
    ]
    try:
        with torch.no_grad(), SameRules():
            probe(_probe(next(probe.parameters()), shape)[0])
    except Exception:  # it is named as far as it came
        pass
    finally:
        for handle in handles:
            handle.remove()
    for name, layer, inputs in calls:  # inner layers end before those that hold them
        if not _twice(layer, inputs):
            return name
    return ""


def _twice(layer: nn.Module, inputs: tuple) -> bool:
    """Whether a layer alone can be differentiated twice in what it got."""
    own = [x.detach().clone().requires_grad_() if _is_float(x) else x for x in inputs]
    varied = [x for x in own if _is_float(x)] + [p for p in layer.parameters() if p.requires_grad]
    if not varied or not _is_float(own[0]):
        return True
    try:
        with torch.enable_grad(), SameRules():
            out = layer(*own)
            out = out if isinstance(out, Tensor) else next(part for part in out if _is_float(part))
            weights = torch.ones_like(out).requires_grad_()  # layers behind it depend on others too
            cost = (out.square() + weights * out).sum()
            slopes = torch.autograd.grad(cost, varied, create_graph=True, allow_unused=True)
            used = [s for s in slopes if s is not None]
            second = [_slope(used, of, retain_graph=True) for of in (own[0], weights)]
    except Exception:
        return False
    return all(bool(each.isfinite().all()) for each in second)


def _is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
