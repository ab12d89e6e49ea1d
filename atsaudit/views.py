"""The clients' side of an audit: what the server sees in a case, and what the network really got."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import grad

from atsaudit.config import KNOWLEDGE, AuditConfig, Case
from atslib.clients.defenses.defense import Defense, Transformation, share
from atslib.clients.observe import attackers_network, client_draws, observe
from atslib.clients.sums import summed
from atslib.clients.updates import (
    LocalTraining,
    Slope,
    each_client,
    observe_weights,
    start_and_loss,
)
from atslib.clients.view import Knowledge, Observed, ThreatModel, Update
from atslib.data.images import to_images
from atslib.errors import AtsError
from atslib.gradients.problems import Gradients, flatten, problem_gradients, unflatten
from atslib.models import (
    as_client,
    copied,
    in_mode,
    shared_parameters,
)

# torch.optim.Adam's own
MOMENTS = (0.9, 0.999)
EPSILON = 1e-8


@dataclasses.dataclass(frozen=True)
class Seen:
    """One case from both sides.

    Attributes:
        view: what the server has; it holds no image.
        got: (B, C, H, W) what the network got in the first round, in [0, 1].
        draw: what the policy drew for that: member (B,) and signs (B, k); None without a policy.
    """

    view: Observed
    got: Tensor
    draw: tuple[Tensor, Tensor] | None


def see(
    models: Sequence[nn.Module],
    pixels: Tensor,
    labels: Tensor,
    case: Case,
    config: AuditConfig,
    rng: torch.Generator,
) -> Seen:
    """Let clients share what they share in this case.

    Args:
        models: the network in each round.
        pixels: (B, C, H, W) uint8, a multiple of `case.images`.
        labels: (B,) class numbers.
        rng: of what defenses and the order of local steps draw.
    """
    rounds = [_round(model, pixels, labels, case, config, rng) for model in models]
    views = [each.view for each in rounds]
    return dataclasses.replace(rounds[0], view=Observed.join(views) if len(views) > 1 else views[0])


def _round(
    model: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    case: Case,
    config: AuditConfig,
    rng: torch.Generator,
) -> Seen:
    parts = Defense.parse(case.defense).parts
    policy = ""
    draw = None
    for part in parts:
        if isinstance(part, Transformation):
            policy = str(part)
            pixels, draw = part.drawn(pixels, rng=rng)
    rest = Defense.of([part for part in parts if not isinstance(part, Transformation)])
    images = to_images(pixels, next(model.parameters()).dtype).to(next(model.parameters()).device)
    threat = ThreatModel(
        labels=config.labels if case.labels == "restored" else "known",
        batch_norm=config.batch_norm,
        victim=config.victim,
        batch=case.batch,
        defense=KNOWLEDGE[case.knows],
    )
    if case.shared == "gradient":
        # The mean of gradients is the gradient of all images together.
        whole = dataclasses.replace(threat, batch=case.images)
        view = observe(model, images, labels, threat=whole, defense=rest, rng=rng)
    else:
        view = _updates(model, images, labels, threat, rest, config, rng)
        view = _sums(view, case.clients)
    known = Knowledge()
    if case.knows != "nothing" and draw is not None:
        told = (
            (tuple(part.unflatten(0, (-1, case.images)) for part in draw),)
            if case.knows == "draws"
            else ()
        )
        known = Knowledge(policy, told)
    return Seen(dataclasses.replace(view, knows=known), images, draw)


def _updates(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    threat: ThreatModel,
    defense: Defense,
    config: AuditConfig,
    rng: torch.Generator,
) -> Observed:
    """What local training changes, after the defense."""
    train = observe_weights if config.optimizer == "sgd" else _observe_adam
    view = train(model, images, labels, local=config.local, rng=rng, threat=threat)
    if not defense.parts:
        return view
    client = in_mode(model, threat.victim)
    rows = dict(zip(shared_parameters(client), unflatten(view.gradients, client), strict=True))
    shared = share(
        defense, rows, model=client, rng=rng, images=images.unflatten(0, (-1, threat.batch))
    )
    update = dataclasses.replace(
        view.updates[0], gradients=flatten(tuple(shared.values())).detach()
    )
    return dataclasses.replace(view, updates=(update,))


def _observe_adam(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    local: LocalTraining,
    rng: torch.Generator,
    threat: ThreatModel,
) -> Observed:
    """As `observe_weights`, for clients that train with Adam."""
    client = as_client(model, threat.victim)
    steps = local.steps(threat.batch)
    few = images[: min(threat.batch, 2)]  # batch statistics need two
    drawn = client_draws(client, few, rng)
    inputs, targets = (
        part.unflatten(0, (-1, threat.batch)) for part in (images, labels.to(images.device))
    )
    orders = torch.stack([local.order(threat.batch, rng) for _ in range(len(inputs))])
    parts = zip(inputs.split(4), targets.split(4), orders.split(4), strict=True)
    with drawn():
        rows = torch.cat([flatten(_adam(client, *part, local.lr)).detach() for part in parts])
    if len(bad := (~rows.isfinite().all(1)).nonzero().flatten()):
        raise AtsError(
            f"the local training of clients {bad.tolist()} diverged; lower LocalTraining.lr={local.lr}"
        )
    facts = dataclasses.asdict(local) | {"steps": steps}
    attacker = attackers_network(model, threat, client, few)
    known = targets if threat.labels == "known" else None
    return Observed(
        (Update(attacker, rows, kind="difference", local=facts),),
        known,
        tuple(images.shape[1:]),
        threat,
    )


def _adam(
    model: nn.Module, inputs: Tensor, targets: Tensor, orders: Tensor, lr: float
) -> Gradients:
    """Weights after minus weights before, (N, *shape) per parameter."""
    start, loss = start_and_loss(model)
    first, second = MOMENTS

    def one(
        images: Tensor, labels: Tensor, order: Tensor, slope: Slope | None = None
    ) -> tuple[Tensor, ...]:
        weights = tuple(start)
        mean = tuple(torch.zeros_like(p) for p in start)
        square = tuple(torch.zeros_like(p) for p in start)
        for step, rows in enumerate(order, 1):
            slopes = (slope or grad(loss))(weights, images[rows], labels[rows])
            mean = tuple(first * m + (1 - first) * g for m, g in zip(mean, slopes, strict=True))
            square = tuple(
                second * s + (1 - second) * g * g for s, g in zip(square, slopes, strict=True)
            )
            moves = [
                m / (1 - first**step) / ((s / (1 - second**step)).sqrt() + EPSILON)
                for m, s in zip(mean, square, strict=True)
            ]
            weights = tuple(w - lr * move for w, move in zip(weights, moves, strict=True))
        return tuple(after - before for before, after in zip(start, weights, strict=True))

    return each_client(model, one, inputs, targets, orders)


def _sums(view: Observed, clients: int) -> Observed:
    """Of every `clients` consecutive updates the mean, which is all that secure aggregation leaves."""
    if clients == 1:
        return view
    each = [view.take(slice(i, i + 1)) for i in range(len(view))]
    groups = [summed(each[i : i + clients]) for i in range(0, len(each), clients)]
    return Observed.beside(groups) if len(groups) > 1 else groups[0]


def moved_on(
    model: nn.Module, images: Tensor, labels: Tensor, rounds: int, lr: float
) -> list[nn.Module]:
    """The network in each of several rounds: between two of them others' images (B, C, H, W) move
    it one step.
    """
    models = [model]
    for _ in range(rounds - 1):
        after = copied(models[-1])
        with torch.no_grad():
            steps = problem_gradients(
                in_mode(after, "eval"), images[None], labels[None].to(images.device)
            )
            for parameter, step in zip(shared_parameters(after).values(), steps, strict=True):
                parameter -= lr * step[0]
        models.append(after)
    return models
