"""What `atsaudit.audit` does: checks what it is given, runs the work, and makes a report of it."""

import dataclasses
import inspect
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from atsaudit.candidate_attacks import CLOSED
from atsaudit.config import AuditConfig, Case, cases_of, not_tested
from atsaudit.line_up import SHARE
from atsaudit.named_photographs import named_wrongly
from atsaudit.outcome import said_of_copies
from atsaudit.report import AuditReport
from atsaudit.work import END, LOOK, Work
from atslib.checkpoints import fingerprint
from atslib.clients.records import Recorded, client_mode, observed
from atslib.clients.view import Observed, ThreatModel
from atslib.data.images import Images, describe, explain, label_fault
from atslib.errors import AtsError, as_path, check_kind
from atslib.gradients.inputs import check_state, first_parameter
from atslib.models import (
    Loss,
    Normalize,
    as_client,
    class_scores,
    copied,
    eagerly,
    loss_of,
    scores_in,
    shared_parameters,
    to_try,
    with_loss,
)
from atslib.rng import rng

COMPARING = 0.1  # of the budget at most, to hold recorded updates beside the photographs named

TAKEN = (
    "The network gives more than class scores; taken as these was its `logits`, or else the first tensor of what it "
    "gives."
)


class TwoScores(nn.Module):
    """A network of one logit as one of two scores, 0 and the logit: its cross-entropy is the
    logit's log loss.
    """

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        logit = self.network(images).reshape(len(images), 1)
        return torch.cat([torch.zeros_like(logit), logit], 1)


class TakesScores(nn.Module):
    """A network of which the scores are one part of what it gives, see `models.scores_in`."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return class_scores(self.network, images)


class Whole(nn.Module):
    """A network whose first layer is that `Normalize` layer which it uses within."""

    def __init__(self, normalize: Normalize, network: nn.Module):
        super().__init__()
        self.normalize = normalize
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)


def without_wrapper(model: nn.Module) -> nn.Module:
    """A copy of the network, of a compiled one or one inside Opacus's wrapper of the network within.

    What such a wrapper does to gradients is no part of the network.
    """
    within = model = uncompiled(model)
    if type(model).__name__ == "GradSampleModule":
        within = getattr(model, "_module", None)
    model = copied(within if isinstance(within, nn.Module) else model)
    for layer in model.modules():
        for hooks in (layer._forward_hooks, layer._backward_hooks, layer._forward_pre_hooks):
            for key in [key for key, hook in hooks.items() if _of_opacus(hook)]:
                del hooks[key]
    return model


def _of_opacus(hook: object) -> bool:
    hook = getattr(hook, "func", hook)  # of a functools.partial
    owner = getattr(hook, "__self__", hook)
    return type(owner).__module__.startswith("opacus")


@dataclasses.dataclass(frozen=True)
class OfOneScore:
    """A loss of a network with one score, for `TwoScores` of that network.

    Attributes:
        loss: of scores as the network gives them.
        shape: of one image's, () or (1,).
    """

    loss: Loss
    shape: tuple[int, ...]

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        return self.loss(scores[:, 1].reshape(-1, *self.shape), labels)


class FromUnits(nn.Module):
    """Undoes a `Normalize` layer before it, for a network that takes pixels in [0, 1].

    Attacks take their steps in the units of that layer, which fit images; in units of [0, 1] they
    would be too long.
    """

    def __init__(self, normalize: Normalize):
        super().__init__()
        self.register_buffer("mean", normalize.mean.clone())
        self.register_buffer("std", normalize.std.clone())

    def forward(self, normalized: Tensor) -> Tensor:
        return normalized * self.std + self.mean


@eagerly
def audited(
    model: nn.Module,
    images: Tensor | np.ndarray | Images,
    labels: Tensor | np.ndarray | None,
    settings: dict,
    *,
    untrained: nn.Module | None,
    normalize: tuple | None,
    folder: str | Path | None,
    class_names: Sequence[str],
    progress: bool,
    loss: Loss | None = None,
    repeat: str = "",
    update: tuple[Recorded, list[Tensor]] | None = None,
    contradictions: Sequence[str] = (),
    began: float | None = None,
) -> AuditReport:
    """See `atsaudit.audit`.

    Args:
        model, images, labels, untrained, normalize, folder, class_names, progress, loss: as there.
        settings: fields of `AuditConfig`.
        repeat: the command to show in the report.
        update: a recorded round, and of each client which images were behind what it sent. Then
            `model` has the weights that were sent.
        contradictions: sentences on what is said of the recorded round and what it tells itself.
        began: when the audit was asked for, by `time.monotonic`; None: now.
    """
    began = time.monotonic() if began is None else began
    config = config_of(settings)
    pixels, labels, class_names = images_of(images, labels, class_names)
    networks, zeros = networks_of(model, untrained, normalize, pixels, config.seed, loss)
    if loss is not None and config.labels == "restored":
        raise AtsError(
            "audit: labels are restored from gradients of the cross-entropy alone; with a loss of one's own they have "
            "to be known"
        )
    recorded = {}
    if update is None:
        cases = cases_of(config, untrained="untrained" in networks, given="given" in networks)
    else:
        recorded = recorded_cases(
            *update, networks["given"], labels, config, tuple(pixels.shape[1:])
        )
        alone = takes_one_image(networks["untrained"], pixels, config.victim)
        smallest = 1 if alone else min(case.batch for case in recorded)
        control = Case(weights="untrained", control=True, counts=False, batch=smallest)
        cases = [control, *recorded]
    folder = as_path("audit: folder", folder, optional=True)
    if folder is not None and folder.is_file():
        raise AtsError(f"audit: folder {folder} is a file")
    work = Work(
        networks, pixels, labels, config, cases, folder=folder, progress=progress, recorded=recorded,
        loss=_text(loss), began=began,
    )  # fmt: skip
    # Before the attacks, which would take the time that it needs.
    stream = rng(config.seed, "audit", "others")
    seconds = COMPARING * config.budget / max(1, len(recorded))
    mistaken = [
        named_wrongly(view, own, pixels, labels, stream, seconds) for view, own in recorded.values()
    ]
    work.line_ups(SHARE)  # first: they take seconds, and need no attack that works
    plan, pool, results, left = work.run()
    notes = [words] if (words := said_of_copies(pixels)) else []
    if update is not None and config.victim == "train" and client_mode(update[0]) == "train":
        notes.append(
            "Clients ran batch normalization in train mode: its running statistics and counters in what they sent "
            "have moved. They are attacked so."
        )
    if update is not None and update[0].counted:
        notes.append(
            f"The number of local steps, {update[0].steps}, is read off the counters of batch normalization, which "
            "count batches: whoever accumulates the gradients of several takes fewer steps; say how many with "
            "--local-steps."
        )
    notes += work.cut
    if plan.first_look:
        notes.append(
            f"The first photographs of each case, {LOOK[0]} or two updates, show beyond doubt that the limit is "
            "exceeded, so the audit ended with them; --thorough (thorough=True) takes the budget, for narrower "
            "intervals and stronger attacks."
        )
    faint = work.faint()
    if faint:
        notes.append(
            "Nearly all of the untrained network's gradient is in its last layers, and hardly depends on the photograph, "
            "as in networks that begin with batch statistics of 0 and 1; so the attack that compares each layer by "
            "itself comes first. After a few steps of training it can be harder to attack."
        )
    if any(isinstance(part, TakesScores) for each in networks.values() for part in each.modules()):
        notes.append(TAKEN)
    if zeros:
        notes.append(
            f"The untrained network begins with nothing but zeros in {', '.join(zeros[:5])}, so that its very first "
            "gradient tells nothing of the layers before, as each later one does; here they are drawn."
        )
    if untrained is None and (kept := stayed(model, drawn_anew(model, config.seed))):
        notes.append(
            f"The untrained network keeps the given values of {', '.join(kept[:5])}{' …' if len(kept) > 5 else ''}, "
            "which no layer draws; give it as `untrained` if that matters."
        )
    if not plan.fits(config.budget) and any(each.attack not in CLOSED for each in results):
        notes.append(
            f"Even the smallest plan is estimated at {plan.seconds:.0f} s, more than the budget."
        )
    return AuditReport(
        config=config,
        plan=plan,
        results=tuple(results),
        left_out=tuple(case.title for case in left),
        own_class=pool.own_class,
        originals=pixels,
        labels=labels,
        class_names=class_names,
        network=_words(model, loss),
        untested=tuple(not_tested(config, cases)),
        notes=tuple(notes),
        repeat=repeat or _call(config, loss),
        faint=faint,
        mistaken=tuple(filter(None, (*contradictions, *mistaken))),
        line_ups=work.line_ups(SHARE if plan.first_look else END),
    )


def takes_one_image(model: nn.Module, pixels: Tensor, victim: str) -> bool:
    """Whether a client can run a single image: some layers in train mode normalize over images
    alone.
    """
    client = as_client(model, victim)
    try:
        with torch.no_grad():
            client((pixels[:1] / 255).to(first_parameter(model)))
    except (AtsError, ValueError):
        return False
    return True


def recorded_cases(
    round_: Recorded,
    rows: list[Tensor],
    model: nn.Module,
    labels: Tensor,
    config: AuditConfig,
    shape: tuple[int, int, int],
) -> dict[Case, tuple[Observed, Tensor]]:
    """A case for each number of images that clients had, what the server saw of it, and which
    images these are.
    """
    cases = {}
    for size in sorted({len(each) for each in rows}):
        chosen = [place for place, each in enumerate(rows) if len(each) == size]
        part = dataclasses.replace(round_, records=tuple(round_.records[place] for place in chosen))
        own = [rows[place] for place in chosen]
        threat = ThreatModel(
            labels=config.labels, batch_norm=config.batch_norm, victim=config.victim, batch=size
        )
        shared = "gradient" if round_.kind == "gradient" else "update"
        case = Case(
            weights="given",
            shared=shared,
            batch=size,
            defense=config.defended,
            labels=config.labels,
            recorded=True,
        )
        cases[case] = (observed(part, model, own, labels, threat, shape), torch.cat(own))
    return cases


def config_of(settings: dict) -> AuditConfig:
    """The settings, or one sentence on the first that does not exist."""
    known = {field.name for field in dataclasses.fields(AuditConfig)}
    if odd := sorted(settings.keys() - known):
        raise AtsError(
            f"audit: there is no setting {odd[0]!r}; there are {', '.join(sorted(known))}"
        )
    return AuditConfig(**settings)


def images_of(
    images: Tensor | np.ndarray | Images,
    labels: Tensor | np.ndarray | None,
    class_names: Sequence[str],
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Pixels (N, C, H, W) uint8, labels (N,) and the names of the classes."""
    if isinstance(images, Images):
        if labels is not None:
            raise AtsError("audit: atslib.Images have their labels; give no others beside them")
        return images.pixels.cpu(), images.labels.cpu(), tuple(class_names) or images.class_names
    images, labels = (
        torch.as_tensor(part) if isinstance(part, np.ndarray) else part for part in (images, labels)
    )
    check_kind(
        "audit: images",
        images,
        Tensor,
        "a tensor (N, C, H, W), uint8 or floats in [0, 1], or atslib.Images",
    )
    check_kind("audit: labels", labels, Tensor, "a tensor (N,) of class numbers")
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise AtsError(
            f"audit: images are {describe(images)}; they must be (N, C, H, W) with 1 or 3 channels"
        )
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise AtsError(f"audit: labels are {describe(labels)}; they must be whole numbers (N,)")
    if images.is_floating_point():
        low, high = (float(edge) for edge in images.aminmax()) if images.numel() else (0.0, 0.0)
        if not (low >= -0.01 and high <= 1.01):
            raise AtsError(
                f"audit: images go from {low:.4g} to {high:.4g}; give them as uint8, or in [0, 1] before normalization"
            )
        images = (255 * images.clamp(0, 1)).round().byte()
    if images.dtype != torch.uint8:
        raise AtsError(
            f"audit: images are {describe(images)}; they must be uint8 or floats in [0, 1]"
        )
    classes = max(len(class_names), int(labels.max()) + 1 if labels.numel() else 1)
    if fault := label_fault(labels, len(images), classes):
        raise AtsError(f"audit: {fault}")
    names = tuple(class_names) or tuple(str(number) for number in range(classes))
    return images.cpu(), labels.long().cpu(), names


def networks_of(
    model: nn.Module,
    untrained: nn.Module | None,
    normalize: tuple | None,
    pixels: Tensor,
    seed: int,
    loss: Loss | None,
) -> tuple[dict[str, nn.Module], list[str]]:
    """The network by the name of its weights, each starting with a `Normalize` layer and in eval
    mode; and names of layers of zeros in the untrained one that are drawn, see `silent_layers`.
    """
    check_kind("audit: model", model, nn.Module, "a torch.nn.Module")
    model, untrained = uncompiled(model), untrained and uncompiled(untrained)
    check_shapes(model)
    if untrained is None:
        untrained = drawn_anew(model, seed)
    check_kind("audit: untrained", untrained, nn.Module, "a torch.nn.Module")
    check_shapes(untrained)
    only = untrained is model
    given = {} if only else {"given": prepared(model, normalize, pixels, loss)}
    made = prepared(untrained, normalize, pixels, loss)

    def drawn(layers: Sequence[str]) -> nn.Module:
        return prepared(drawn_anew(untrained, seed, layers), normalize, pixels, loss)

    zeros = [] if passes(made, pixels) else silent_layers(untrained, drawn, pixels)
    return {"untrained": drawn(zeros) if zeros else made} | given, zeros


def uncompiled(model: nn.Module) -> nn.Module:
    """The network that `torch.compile` has wrapped, of whose code there are no second derivatives;
    any other as it is.
    """
    while isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
        model = inner
    return model


def check_shapes(model: nn.Module) -> None:
    """Raise `AtsError` where a lazy layer has not seen an image yet."""
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(value, nn.parameter.UninitializedTensorMixin):
            raise AtsError(
                f"audit: {type(model).__name__}: {name} has no shape yet, as in lazy layers; let the network score one "
                "image first"
            )


def silent_layers(
    model: nn.Module, drawn: Callable[[Sequence[str]], nn.Module], pixels: Tensor
) -> list[str]:
    """Names of trained layers that draw their weights, have none but zeros, and let no gradient
    pass: as few as have to be drawn before one does. None where that takes more than drawing them.

    A residual branch may end in zeros, and a gradient passes beside it.

    Args:
        model: a network through which no gradient passes.
        drawn: that network with the layers of these names drawn, as the audit runs it.
        pixels: images, (N, C, H, W) uint8.
    """
    found = []
    for name, layer in model.named_modules():
        weight = getattr(layer, "weight", None)
        if not isinstance(weight, nn.Parameter) or not weight.requires_grad:
            continue
        if callable(getattr(layer, "reset_parameters", None)) and not weight.any():
            found.append(name)
    if not found or not passes(drawn(found), pixels):
        return []
    for name in tuple(found):
        fewer = [other for other in found if other != name]
        if fewer and passes(drawn(fewer), pixels):
            found = fewer
    return found


def passes(model: nn.Module, pixels: Tensor) -> bool:
    """Whether any of the loss's gradient comes back to the images; also where the network cannot
    be run, which others say.
    """
    images = (pixels[:4] / 255).to(first_parameter(model)).requires_grad_()
    try:
        with torch.enable_grad():
            scores = class_scores(model, images.clone())
            value = loss_of(model)(scores, scores.detach().argmin(1)).sum()
            (slope,) = torch.autograd.grad(value, images)
    except Exception:
        return True
    return bool(slope.any())


def prepared(
    model: nn.Module, normalize: tuple | None, pixels: Tensor, loss: Loss | None = None
) -> nn.Module:
    """A copy in eval mode that starts with a `Normalize` layer, gives at least two scores, and has
    the loss.

    Raises:
        AtsError: it does not start with one, and none is given; or both; or the loss gives no
            number that depends on the scores.
    """
    model = without_wrapper(model).eval()
    for name, layer in list(model.named_modules()):
        if name and uncompiled(layer) is not layer:
            model.set_submodule(name, uncompiled(layer))
    starts = isinstance(next(iter(model.children()), None), Normalize)
    if starts and normalize is not None:
        raise AtsError(
            "audit: the network starts with a Normalize layer, so it takes no other normalization"
        )
    if not starts:
        if normalize is None:
            raise AtsError(
                f"audit: {type(model).__name__} does not start with atslib.Normalize; say how its images are "
                "normalized (normalize=(mean, std), --mean and --std; 0 and 1 if it takes pixels in [0, 1])"
            )
        if not isinstance(normalize, tuple | list) or len(normalize) != 2:
            raise AtsError(f"audit: normalize={normalize!r} must be a pair (mean, std)")
        model = _behind(Normalize(*normalize), model)
    first = next(model.parameters(), None)
    if first is not None and first.dtype in (torch.float16, torch.bfloat16):
        for layer in model.modules():  # what was put before it is in half precision too
            if isinstance(layer, Normalize | FromUnits):
                layer.to(first.dtype)
    if first is None:
        raise AtsError(
            f"audit: {type(model).__name__} has no parameters, so there is no gradient to share"
        )
    check_state(model, (pixels[:2] / 255).to(first))
    try:
        with torch.no_grad():
            output = to_try(model)((pixels[:2] / 255).to(first))
    except AtsError:
        raise
    except Exception as error:  # of somebody else's code, which may raise anything
        shape = tuple(pixels.shape[1:])
        why = " ".join(str(error).split())[:200]
        kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
        raise AtsError(
            f"audit: the network does not take images of shape {shape}: {kind}{why}"
        ) from None
    scores = scores_in(output)
    if scores is not output:
        model = _around(model, TakesScores)
    if loss is not None and isinstance(scores, Tensor):
        _check_loss(loss, scores)
    if isinstance(scores, Tensor) and scores.numel() == len(scores):
        model = _around(model, TwoScores)
        loss = loss and OfOneScore(loss, tuple(scores.shape[1:]))
    return (with_loss(model, loss) if loss else model).eval()


def _around(model: nn.Module, wrapper: type[nn.Module]) -> nn.Module:
    """A wrapper around a network that starts with a `Normalize` layer, as what results does too."""
    if type(model) is not nn.Sequential:
        return Whole(next(model.children()), wrapper(model))
    front, *rest = model.children()
    return nn.Sequential(front, wrapper(nn.Sequential(*rest)))


def _check_loss(loss: Loss, scores: Tensor) -> None:
    """Raise `AtsError` unless a loss takes two images' scores and labels, and gives a number of
    which torch has a second derivative.
    """
    if not callable(loss):
        raise AtsError(
            f"audit: loss is a {type(loss).__name__}; it must be a function of scores and labels"
        )
    scores = scores.detach().clone().requires_grad_()
    labels = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
    try:
        with torch.enable_grad():
            value = loss(scores, labels)
    except Exception as error:
        raise AtsError(
            f"audit: the loss failed on scores {describe(scores)} and labels {describe(labels)}: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        ) from None
    if (
        not isinstance(value, Tensor)
        or value.shape not in ((), (len(scores),))
        or not value.requires_grad
    ):
        raise AtsError(
            f"audit: the loss gives {describe(value)}; it must be one number that depends on the scores, or one for each "
            "image"
        )
    try:
        (first,) = torch.autograd.grad(value.sum(), scores, create_graph=True)
        if first.requires_grad:
            torch.autograd.grad(first.sum(), scores)
    except RuntimeError as error:
        raise AtsError(
            f"audit: the loss cannot be attacked, since torch has no second derivative of it ({explain(error)}); write "
            "it in operations that have one"
        ) from None


def _behind(normalize: Normalize, model: nn.Module) -> nn.Module:
    first = next(model.parameters(), None)
    if first is not None and first.is_floating_point():  # in its own precision
        normalize = normalize.to(first.dtype)
    if bool((normalize.mean == 0).all() and (normalize.std == 1).all()):
        units = Normalize([0.5] * len(normalize.mean), [0.25] * len(normalize.mean))
        units = units.to(normalize.mean.dtype)
        return nn.Sequential(units, FromUnits(units), model)
    return nn.Sequential(normalize, model)


def drawn_anew(model: nn.Module, seed: int, layers: Sequence[str] | None = None) -> nn.Module:
    """A copy whose layers, all or those named, have new weights, as each layer draws its own; what
    cannot be drawn stays.
    """
    fresh = copied(model)
    with torch.random.fork_rng(devices=[]):
        number = torch.randint(1 << 62, (1,), generator=rng(seed, "audit", "untrained"))
        torch.default_generator.manual_seed(int(number))
        for name, layer in fresh.named_modules():
            if layers is not None and name not in layers:
                continue
            if callable(draw := getattr(layer, "reset_parameters", None)):
                draw()
    return fresh


def stayed(model: nn.Module, fresh: nn.Module) -> list[str]:
    """Parameters that a network drawn anew has in common with the given one, constant ones apart."""
    pairs = zip(model.named_parameters(), fresh.parameters(), strict=True)
    return [
        name
        for (name, own), new in pairs
        if torch.equal(own, new) and bool((own != own.flatten()[0]).any())
    ]


def _words(model: nn.Module, loss: Loss | None) -> str:
    count = sum(parameter.numel() for parameter in model.parameters())
    shared = sum(parameter.numel() for parameter in shared_parameters(model).values())
    words = f"{type(model).__name__} with {count:,} parameters"
    if shared < count:
        words += f", of which {shared:,} are trained and shared"
    return words if loss is None else f"{words}, trained with the loss {_name(loss)}"


def _name(loss: Loss) -> str:
    return getattr(loss, "__name__", type(loss).__name__)


def _text(loss: Loss | None) -> str:
    """What tells a loss from others: its text, or of a module its layers and numbers."""
    if loss is None or isinstance(loss, nn.Module):
        return fingerprint(loss) if loss else ""
    try:
        return inspect.getsource(loss)
    except (TypeError, OSError):  # one that was made without a file
        return _name(loss)


def _call(config: AuditConfig, loss: Loss | None) -> str:
    default = AuditConfig()
    changed = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != getattr(default, field.name)
    }
    words = "".join(f", {name}={value!r}" for name, value in changed.items())
    if loss is not None:
        words += f", loss={_name(loss)}"
    return f"atsaudit.audit(model, images, labels{words})"
