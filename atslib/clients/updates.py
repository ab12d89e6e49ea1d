"""A client that trains on its images before it sends anything: what the server sees is a difference
of weights.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from atslib.clients.observe import attackers_network, check_threat, client_draws
from atslib.clients.view import Observed, ThreatModel, Update
from atslib.copying import apart, kept_tensors
from atslib.data.images import explain
from atslib.errors import AtsError, check_kind, check_most, check_types
from atslib.gradients.inputs import (
    FAULTS,
    check_images,
    check_labels,
    check_network,
    check_state,
    trained_parameter,
)
from atslib.gradients.per_example import SameRules
from atslib.gradients.problems import Gradients, flatten, route_alone
from atslib.gradients.routes import Route
from atslib.models import (
    as_client,
    class_scores,
    eagerly,
    keeps_nothing,
    loss_of,
    shared_parameters,
)
from atslib.rng import as_stream, rng


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains on its `ThreatModel.batch` images: plain SGD on the mean cross-entropy.

    Attributes:
        epochs: over all its images, in a new order each time.
        batch: images of one step; 0: all at once, so that a step is an epoch.
        lr, momentum: of SGD, as in torch without dampening.
    """

    epochs: int = 1
    batch: int = 0
    lr: float = 0.1
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        if self.epochs < 1 or self.batch < 0:
            raise AtsError(
                f"{self}: epochs must be at least 1, and batch at least 0 (all images at once)"
            )
        check_most(self, epochs=10_000)
        if not self.lr > 0 or not 0 <= self.momentum < 1:
            raise AtsError(f"{self}: lr must be above 0, and momentum in [0, 1)")

    def steps(self, images: int) -> int:
        """Steps of a client with so many images.

        Raises:
            AtsError: they cannot be split into batches of equal size.
        """
        if images % (self.batch or images):
            raise AtsError(
                f"LocalTraining.batch={self.batch}: {images} images of a client make no whole number of steps"
            )
        return self.epochs * images // (self.batch or images)

    def order(self, images: int, generator: torch.Generator) -> Tensor:
        """Which images each step takes, (steps, batch)."""
        each = [
            torch.randperm(images, generator=generator, device=generator.device)
            for _ in range(self.epochs)
        ]
        whole = torch.arange(images).expand(
            self.epochs, -1
        )  # an order of all at once has no effect
        return (torch.cat(each).view(self.steps(images), -1) if self.batch else whole).cpu()


# (weights, images, labels of one step) → the slope of each weight
Slope = Callable[[tuple[Tensor, ...], Tensor, Tensor], tuple[Tensor, ...]]


def each_client(
    model: nn.Module,
    train: Callable[..., tuple[Tensor, ...]],
    inputs: Tensor,
    targets: Tensor,
    orders: Tensor,
) -> Gradients:
    """The local training of N clients at once, or one after the other where a pass changes the
    network: each begins with the state that was sent, and its steps move that on.

    Args:
        model: as the client runs it.
        train: (images, labels, order) of one client, and where one after the other trains what
            gives the slopes, → a tensor per parameter.
        inputs, targets, orders: see `trained_weights`.
    """
    orders = orders.to(inputs.device)
    if not keeps_nothing(model):
        route = route_alone(model, (orders.shape[2], *inputs.shape[2:]))
        if route.moves:
            clients = zip(inputs, targets, orders, strict=True)
            rows = [train(*client, _moving(model, route)) for client in clients]
            return tuple(torch.stack(each) for each in zip(*rows, strict=True))
    with SameRules():
        return vmap(train, randomness="different")(inputs, targets, orders)


def _moving(model: nn.Module, route: Route) -> Slope:
    """The slopes of one client's steps, each of which finds the network as the one before left it,
    without what that kept of its own weights.
    """
    names = list(shared_parameters(model))
    of_scores = loss_of(model)
    network = [route.start(model)]

    def slope(weights: tuple[Tensor, ...], images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        further = images.requires_grad
        weights = tuple(
            w if further and w.requires_grad else w.detach().requires_grad_() for w in weights
        )
        made = [place for place, t in kept_tensors(network[0]).items() if t.requires_grad]
        network[0] = apart(network[0], draws=True, empty=made)
        with torch.enable_grad():
            with SameRules():
                own = dict(zip(names, weights, strict=True))
                scores = class_scores(network[0], images, own)
            loss = of_scores(scores, labels)
            slopes = torch.autograd.grad(loss, weights, create_graph=further, allow_unused=True)
        pairs = zip(slopes, weights, strict=True)
        return tuple(torch.zeros_like(w) if s is None else s for s, w in pairs)

    return slope


def start_and_loss(
    model: nn.Module,
) -> tuple[list[Tensor], Callable[[tuple[Tensor, ...], Tensor, Tensor], Tensor]]:
    """Where local training begins, the shared parameters; and its loss, a function of their values,
    of images and of labels.
    """
    own = shared_parameters(model)
    names = list(own)
    of_scores = loss_of(model)

    def loss(weights: tuple[Tensor, ...], images: Tensor, labels: Tensor) -> Tensor:
        trained = dict(zip(names, weights, strict=True))
        return of_scores(class_scores(model, images, trained), labels)

    return [parameter.detach() for parameter in own.values()], loss


def trained_weights(
    model: nn.Module, inputs: Tensor, targets: Tensor, local: LocalTraining, orders: Tensor
) -> Gradients:
    """What local training changes the weights by, minus the learning rate and the number of steps:
    a mean gradient.

    Args:
        model: as the client runs it, see `models.in_mode`.
        inputs: (N, k, C, H, W), what `model` takes.
        targets: (N, k) class indices, or (N, k, K) probabilities.
        orders: (N, steps, batch) which images each step takes, see `LocalTraining.order`.
    Returns:
        One tensor (N, *shape) per parameter, differentiable with respect to `inputs`: (weights
        before - weights after) / (lr · steps). Of one step of all images without momentum it is
        their gradient.
    """
    start, loss = start_and_loss(model)

    def one(
        images: Tensor, labels: Tensor, order: Tensor, slope: Slope | None = None
    ) -> tuple[Tensor, ...]:
        weights = tuple(start)
        speed = tuple(torch.zeros_like(p) for p in start)
        for rows in order:
            slopes = (slope or grad(loss))(weights, images[rows], labels[rows])
            speed = tuple(local.momentum * v + g for v, g in zip(speed, slopes, strict=True))
            weights = tuple(w - local.lr * v for w, v in zip(weights, speed, strict=True))
        scale = local.lr * len(order)
        return tuple((before - after) / scale for before, after in zip(start, weights, strict=True))

    try:
        return each_client(model, one, inputs, targets, orders)
    except AtsError:
        raise
    except FAULTS as error:
        raise AtsError(
            f"{type(model).__name__} cannot be trained locally here ({explain(error)})"
        ) from None


@eagerly
def observe_weights(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    local: LocalTraining,
    rng: torch.Generator | int,
    threat: ThreatModel | None = None,
) -> Observed:
    """Let clients train locally and share how their weights changed.

    `Observed` does not hold the order of their steps.

    Args:
        model: from `build_model`, or any network that starts with a `Normalize` layer; not changed.
        images: (B, C, H, W) floats in [0, 1]; each client has `threat.batch` consecutive ones.
        labels: (B,) class numbers.
        local: how each client trains.
        rng: the stream of the orders, or a seed for one.
        threat: what the server knows; the paper's by default.
    Returns:
        A view with one update of kind "difference", weights after minus weights before.
    Raises:
        AtsError: inputs that do not fit each other, images that make no whole number of steps, or a
            training that diverged.
    """
    threat = ThreatModel() if threat is None else threat
    stream = as_stream(rng)
    check_kind(
        "observe_weights: local", local, LocalTraining, "an atslib.clients.updates.LocalTraining"
    )
    check_threat(threat, 0)
    images = check_images(images, trained_parameter(model))
    check_threat(threat, len(images))
    client = as_client(model, threat.victim)
    steps = local.steps(threat.batch)
    few = images[: min(threat.batch, 2)]  # batch statistics need two
    check_state(client, few)
    drawn = client_draws(client, few, stream)
    with torch.no_grad(), drawn():
        classes = check_network(client, few)
        labels = check_labels(labels, len(images), classes).to(images.device)
        inputs, targets = (part.unflatten(0, (-1, threat.batch)) for part in (images, labels))
        orders = torch.stack([local.order(threat.batch, stream) for _ in range(len(inputs))])
        parts = zip(inputs.split(4), targets.split(4), orders.split(4), strict=True)
        means = torch.cat(
            [flatten(trained_weights(client, *part[:2], local, part[2])) for part in parts]
        )
    if len(bad := (~means.isfinite().all(1)).nonzero().flatten()):
        raise AtsError(
            f"the local training of clients {bad.tolist()} diverged; lower LocalTraining.lr={local.lr}"
        )
    known = targets if threat.labels == "known" else None
    facts = dataclasses.asdict(local) | {"steps": steps}
    attacker = attackers_network(model, threat, client, few)
    update = Update(attacker, -local.lr * steps * means, kind="difference", local=facts)
    return Observed((update,), known, tuple(images.shape[1:]), threat)


def guessed_orders(update: Update, clients: int, images: int) -> tuple[LocalTraining, Tensor]:
    """How clients trained, and an order of their steps as a server may guess it, (clients, steps,
    batch).
    """
    local = LocalTraining(
        **{name: value for name, value in update.local.items() if name != "steps"}
    )
    order = local.order(images, rng(0, "the server's guess of an order"))
    return local, order.expand(clients, -1, -1)
