"""Who sees what: the victim's side of an attack, and all that leaves it.

`observe` plays the clients. It returns an `Observed`, which holds no image, so no attack can peek.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atslib.clients.defenses.defense import (
    AnyDefense,
    Defense,
    Transformation,
    acts,
    share,
    wrapped,
)
from atslib.clients.prepare import to_images
from atslib.clients.view import Knowledge, Observed, ThreatModel, Update
from atslib.copying import apart, moved_layers
from atslib.errors import AtsError
from atslib.gradients.inputs import (
    check_images,
    check_labels,
    check_network,
    check_state,
    trained_parameter,
)
from atslib.gradients.per_example import SameRules
from atslib.gradients.problems import (
    batch_statistics,
    flatten,
    problem_gradients,
    unused_parameters,
)
from atslib.models import (
    as_client,
    copied,
    eagerly,
    in_mode,
    keep_ends,
    keeps_nothing,
    shared_parameters,
    to_try,
)
from atslib.rng import as_stream, torch_draws
from atslib.rng import rng as stream


@eagerly
def observe(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    threat: ThreatModel | None = None,
    defense: AnyDefense = None,
    rng: torch.Generator | int | None = None,
) -> Observed:
    """Let clients compute and share their gradients.

    Args:
        model: from `build_model`, or any network that starts with a `Normalize` layer; not changed.
        images: (B, C, H, W) floats in [0, 1], already transformed if the client uses a policy (or
            with the policy as `defense`). Each run of `threat.batch` consecutive images shares one
            gradient.
        labels: (B,) class numbers.
        threat: what the server knows; the paper's by default.
        defense: what the clients do against it, see `Defense.of`: text such as "3-1-7 | prune:0.5",
            a policy, a `Defense`, or a function of a dict of gradients, parameter name → (N,
            *shape), that returns the same. One that acts on images gets them rounded to 8 bits.
        rng: a stream, or a seed for one, for what the defense draws and, with
            ThreatModel.victim="train", for what the network draws, such as dropout, which the
            attacker does not know and runs without. Needed only if something draws.
    Returns:
        A view with one update. For several rounds call it once per round, then `Observed.join`.
        Frozen parameters are not shared; those that take no part in the scores have gradients of 0,
        which a warning says.
    Raises:
        AtsError: images, labels, network and threat that do not fit each other; something that
            draws without `rng`; a defense that needs ThreatModel.batch=1; a gradient that is not
            finite; or a call under torch.inference_mode.
    """
    threat = ThreatModel() if threat is None else threat
    defense = Defense.of(defense)
    rng = as_stream(rng, optional=True)
    check_threat(threat, 0)
    if torch.is_inference_mode_enabled():
        raise AtsError(
            "observe: torch.inference_mode is on, where there are no gradients; call it outside"
        )
    images = check_images(images, trained_parameter(model))
    check_threat(threat, len(images))
    client = as_client(model, threat.victim)
    few = images[: min(threat.batch, 2)]  # batch statistics need two
    check_state(client, few)
    drawn = client_draws(client, few, rng)
    with torch.no_grad(), drawn():
        classes = check_network(client, few)
    labels = check_labels(labels, len(images), classes).to(images.device)
    images, knows = _before(defense, images, threat, rng)
    images, labels = _mixed(defense, images, labels, classes, rng)
    problems, targets = (
        part.unflatten(0, (-1, threat.batch)).split(16) for part in (images, labels)
    )
    with drawn():
        gradients = _shared_gradients(client, defense, problems, targets, rng)
        statistics = {}
    if threat.batch_norm == "known" and threat.victim == "train":
        with torch.no_grad():
            own = [batch_statistics(in_mode(model, "train"), part) for part in problems]
        statistics = {name: torch.cat([part[name] for part in own]) for name in own[0]}
    if unused := unused_parameters(client, tuple(problems[0].shape[1:])):
        more = f" and {len(unused) - 1} more take" if len(unused) > 1 else " takes"
        warnings.warn(
            f"{unused[0]}{more} no part in the network's scores: their gradients are 0",
            stacklevel=2,
        )
    attacker = attackers_network(model, threat, client, few)
    known = torch.cat(targets) if threat.labels == "known" else None
    update = Update(attacker, gradients, statistics=statistics)
    return Observed((update,), known, tuple(images.shape[1:]), threat, knows)


def check_threat(threat: ThreatModel, count: int) -> None:
    """Raise `AtsError` unless `threat` is a `ThreatModel` and `count` images are a multiple of its
    `batch`.
    """
    if not isinstance(threat, ThreatModel):
        raise AtsError(
            f"threat {threat!r} must be an atslib.ThreatModel, such as ThreatModel(labels='inferred')"
        )
    if count % threat.batch:
        raise AtsError(
            f"{count} images do not make gradients of {threat.batch} (ThreatModel.batch)"
        )


def client_draws(
    client: nn.Module, images: Tensor, rng: torch.Generator | None
) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """What to run the client's network in: it draws from `rng` there, if it draws at all.

    Raises:
        AtsError: it draws, and there is no stream.
    """
    if not client.training:
        return contextlib.nullcontext
    if not _run(to_try(client), images):
        return contextlib.nullcontext
    if rng is None:
        raise AtsError(
            f"{type(client).__name__} draws at random in train mode, as dropout does: give observe rng=atslib.rng(seed)"
        )
    seed = int(torch.randint(1 << 62, (1,), generator=rng, device=rng.device))
    return functools.partial(torch_draws, seed, images.device)


def _run(network: nn.Module, images: Tensor) -> bool:
    """Run a network, and say whether it draws from torch's own generators, which stay as they are.

    What is wrong with it is said by who runs it next.
    """
    device = images.device
    with torch_draws(0, device), torch.no_grad():
        before = _states(device)
        with contextlib.suppress(Exception), SameRules():
            network(images)
        return any(not torch.equal(a, b) for a, b in zip(before, _states(device), strict=True))


def attackers_network(
    model: nn.Module, threat: ThreatModel, client: nn.Module, images: Tensor
) -> nn.Module:
    """The network as the attacker may run it, with the state that was sent.

    Layers of a client in train mode that a pass changes, such as one that counts its steps, run in
    train mode here too, unless they draw: so the attacker changes them as the client did.

    Args:
        client: the network as the client runs it.
        images: (B, C, H, W), a few that the network takes.
    """
    mode = threat.victim if threat.batch_norm == "known" else "train"
    view = keep_ends(in_mode(model, mode), client)
    if threat.victim == "eval" or keeps_nothing(client):
        return view
    after = apart(client)
    _run(after, images)
    if moving := moved_layers(client, after):
        moved = copied(view)
        for name in moving:
            moved.get_submodule(name).training = True
        if not _run(apart(moved), images):
            return moved
    return view


def attackers_view(model: nn.Module, threat: ThreatModel, shape: tuple[int, int, int]) -> nn.Module:
    """`attackers_network` of clients elsewhere, whose images of `shape`, (C, H, W), are not at hand."""
    few = torch.rand(min(threat.batch, 2), *shape, generator=stream(0, "probe"))
    client = as_client(model, threat.victim)
    return attackers_network(model, threat, client, few.to(trained_parameter(model)))


def _states(device: torch.device) -> list[Tensor]:
    """The states of torch's own generators for this device."""
    return [
        torch.random.get_rng_state(),
        *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else []),
    ]


def _shared_gradients(
    client: nn.Module,
    defense: Defense,
    problems: Sequence[Tensor],
    targets: Sequence[Tensor],
    rng: torch.Generator | None,
) -> Tensor:
    """The gradients (N, P) of all parts, after what the defense does inside the network and to what
    is shared.
    """
    defended = wrapped(defense, client, rng)
    alone = acts(defense, "each")
    if alone and problems[0].shape[1] > 1:
        raise AtsError(
            f"defense {defense} acts on each image's gradient; observe it with ThreatModel.batch=1"
        )
    with torch.no_grad():
        parts = [
            problem_gradients(defended, *part, like=client)
            for part in zip(problems, targets, strict=True)
        ]
    names = list(shared_parameters(client))
    gradients = {
        name: torch.cat(each) for name, each in zip(names, zip(*parts, strict=True), strict=True)
    }
    gradients = defense.each(gradients) if alone else gradients
    shared = share(defense, gradients, model=defended, rng=rng, images=torch.cat(list(problems)))
    shared = flatten(tuple(shared.values())).detach()
    if len(bad := (~shared.isfinite().all(1)).nonzero().flatten()):
        raise AtsError(
            f"gradients {bad.tolist()} are not finite; check the network's weights and the defense"
        )
    return shared


def _mixed(
    defense: Defense, images: Tensor, labels: Tensor, classes: int, rng: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """What the defense makes of images and labels at once; class numbers stay where it makes
    nothing.
    """
    if not acts(defense, "examples"):
        return images, labels
    return defense.examples(images, F.one_hot(labels, classes).to(images), rng=rng)


def _before(
    defense: Defense, images: Tensor, threat: ThreatModel, rng: torch.Generator | None
) -> tuple[Tensor, Knowledge]:
    """The images after what the defense does to them, and what the attacker knows of it."""
    policy = ""
    draw = None
    if any(type(part).before is not Defense.before for part in defense.parts):
        pixels = (255 * images).round().byte()
        for part in defense.parts:
            if isinstance(part, Transformation):
                policy = str(part)
                pixels, draw = part.drawn(pixels, rng=rng)
            else:
                pixels = part.before(pixels, rng=rng)
        images = to_images(pixels, images.dtype)
    if threat.defense == "unknown":
        return images, Knowledge()
    if threat.defense == "policy" or draw is None:
        return images, Knowledge(policy)
    return images, Knowledge(
        policy, (tuple(part.unflatten(0, (-1, threat.batch)) for part in draw),)
    )
