"""Whether the photographs that are named behind recorded updates can be the ones they are of."""

import dataclasses
import math
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from atsaudit.outcome import one_photograph
from atsaudit.update_files import FACTS
from atslib.clients.observe import observe
from atslib.clients.updates import LocalTraining, observe_weights
from atslib.clients.view import Observed, Update
from atslib.errors import AtsError
from atslib.gradients.inputs import first_parameter
from atslib.models import as_client, class_scores, copied, loss_of, shared_parameters

# A cosine of torch's own gradient and the loss's, below which they are two: ties of max-pooling and
# rounding leave more than 0.998.
FORM = 0.995
COMPARED = 8  # updates that are held beside the photographs named behind them
OTHERS = 19  # sets of other photographs with the same labels
FEWEST = 4  # of them, below which nothing is said
REPEATED = 10  # local steps that are made again for that, at most
# A cosine at or below which the sign is reversed. Of K classes wrong labels make it -1 / (K - 1) in
# the last layer of an untrained network: -0.5 of three.
REVERSED = -0.6


def named_wrongly(
    view: Observed,
    rows: Tensor,
    pixels: Tensor,
    labels: Tensor,
    rng: torch.Generator,
    seconds: float,
) -> str:
    """A sentence where recorded updates are no more like those of the photographs that are named
    behind them than like those of others, where they are their opposite, or where nothing could be
    compared; "" only where they fit. Photographs that were named wrongly are not found, which
    calms.

    Others have the same labels where there are such, and are given them where there are none. Where
    time is short, fewer local steps are made again, down to the first one's gradient, and fewer
    others are compared, before fewer updates are.

    Args:
        view: of clients with equally many images.
        rows: (B,) which images are named, client by client.
        pixels, labels: all images, (N, C, H, W) uint8 and (N,).
        rng: of the choice of the others, and of what the network draws.
        seconds: that it may take.
    """
    began = time.monotonic()
    update = view.updates[0]
    own = rows.unflatten(0, (len(view), -1))
    chosen = update.gradients.any(1).nonzero().flatten().tolist()[:COMPARED]
    if not chosen:
        return (
            f"Nothing shows that the photographs named are behind the {_updates(len(view))}: all that was received is "
            "zero in every entry. Is it a copy of what was sent?"
        )
    closeness = []
    fault = ""
    steps = 1
    free = ~torch.isin(first := one_photograph(pixels), first[rows])
    for done, place in enumerate(chosen):
        seen = update.gradients[place]
        each: list[float] = []
        for images in _sets(own[place], free, labels, rng):
            share = (time.monotonic() - began) / seconds if seconds > 0 else math.inf
            if share > (1 if len(each) <= FEWEST else (done + 1) / len(chosen)):
                break
            at = time.monotonic()
            made, fault = _again(view, images, pixels, labels[own[place]], rng, steps)
            if fault:
                break
            if not each and not done:  # how much time there is, by what one gradient takes
                took = max(time.monotonic() - at, 1e-6)
                most = _local_steps(update)
                steps = max(1, min(most, int(seconds / (took * (1 + OTHERS) * len(chosen)))))
                if steps > 1:
                    made, fault = _again(view, images, pixels, labels[own[place]], rng, steps)
                    if fault:
                        break
            each.append(float(torch.cosine_similarity(seen, made, dim=0)))
        if len(each) > FEWEST:
            closeness.append(each)
    first = own[chosen[0]]
    if closeness and (words := _torchs_form(view, chosen[0], first, pixels, labels[first], rng)):
        return words
    return _said_of(closeness, _updates(len(view)), fault)


def _updates(count: int) -> str:
    return "recorded update" if count == 1 else f"{count} recorded updates"


def _local_steps(update: Update) -> int:
    return min(update.local["steps"], REPEATED) if update.kind == "difference" else 1


def _sets(own: Tensor, free: Tensor, labels: Tensor, rng: torch.Generator) -> Iterator[Tensor]:
    """The images named behind an update (k,), and then sets of others, of those that are free
    (N,).
    """
    yield own
    alike = [(free & (labels == label)).nonzero().flatten() for label in labels[own]]
    if any(len(each) < 2 for each in alike):
        alike = [free.nonzero().flatten()] * len(own)
    for _ in range(OTHERS):
        drawn = [each[torch.randint(len(each), (1,), generator=rng)] for each in alike]
        yield torch.cat(drawn)


def _again(
    view: Observed,
    images: Tensor,
    pixels: Tensor,
    labels: Tensor,
    rng: torch.Generator,
    steps: int,
) -> tuple[Tensor | None, str]:
    """What a client with these images and labels would have sent after so many local steps, (P,),
    or why it cannot be told.
    """
    update = view.updates[0]
    threat = dataclasses.replace(view.threat, labels="known", batch=len(images))
    like = update.gradients
    given = (update.model, (pixels[images] / 255).to(like), labels.to(like.device))
    try:
        if update.kind == "gradient":
            return observe(*given, threat=threat, rng=rng).updates[0].gradients[0], ""
        local = LocalTraining(epochs=steps, lr=update.local["lr"])
        made = observe_weights(*given, local=local, rng=rng, threat=threat)
    except AtsError as error:
        return None, str(error)
    return made.updates[0].gradients[0], ""


def _torchs_form(
    view: Observed, place: int, images: Tensor, pixels: Tensor, labels: Tensor, rng: torch.Generator
) -> str:
    """A sentence where an update is of a client whose torch made another gradient than the loss's;
    "" where it made that.

    On a CPU, torch's batch and instance normalization pass a wrong gradient back for one image
    whose maps become tokens before a layer normalization or a transformer. The client shares it.

    Args:
        place: of the update among those of `view`.
        images: (k,) which images are named behind it.
        labels: (k,) of these.
    """
    update = view.updates[0]
    loss, fault = _again(view, images, pixels, labels, rng, 1)
    if fault:
        return ""
    client = copied(as_client(update.model, view.threat.victim)).cpu()
    given = (pixels[images] / 255).to(first_parameter(client)), labels.cpu()

    def own() -> Tensor:
        value = loss_of(client)(class_scores(client, given[0]), given[1]).mean()
        parts = torch.autograd.grad(
            value, list(shared_parameters(client).values()), materialize_grads=True
        )
        return torch.cat([part.flatten() for part in parts]).double()

    try:
        with torch.enable_grad():
            made, again = own(), own()
    except Exception:  # what is wrong with it has been said by who ran it before
        return ""
    if not torch.equal(made, again):  # it draws at random
        return ""
    sign = -1 if update.kind == "difference" else 1
    seen = update.gradients[place].cpu().double()
    fits = float(torch.cosine_similarity(seen, sign * made, dim=0))
    right = float(torch.cosine_similarity(seen, loss.cpu().double(), dim=0))
    apart = float(torch.cosine_similarity(made, sign * loss.cpu().double(), dim=0))
    if apart > FORM or fits <= right:
        return ""
    return (
        f"What was received fits the gradient that torch makes of this network on a CPU (cosine {fits:.2f}) better than "
        f"the gradient of its loss (cosine {right:.2f}): for one image whose maps become tokens, torch's batch and "
        "instance normalization pass a wrong one back. Attacks here match that of the loss, so that they find little "
        "says nothing about what leaks."
    )


def _said_of(closeness: list[list[float]], updates: str, fault: str) -> str:
    """What the cosines of updates tell, each with that of the photographs named and then of others."""
    if not closeness:
        why = f"({fault})" if fault else "in the time there was; give a larger budget"
        return (
            f"Whether the photographs named are behind the {updates} could not be checked {why}. If they are not, none "
            "of them is found, whatever leaks."
        )
    compared = len(closeness)
    nearest = sum(each[0] > max(each[1:]) for each in closeness)
    own = sum(each[0] for each in closeness) / compared
    # Of wrong photographs some cosines are strongly negative too, but not mostly the least.
    if own <= REVERSED and sum(each[0] < min(each[1:]) for each in closeness) >= compared / 2:
        return (
            f"What was received is the opposite of what the photographs named behind it give (cosine {own:.2f}): its sign "
            "is reversed. A difference is the weights after training minus those before, a gradient that of the loss, "
            "which a step takes off. Turn the sign, swap sent and received, or say the right --kind. Of few classes "
            "wrong labels do the same."
        )
    if nearest > compared / 2:
        return ""
    others = min(len(each) for each in closeness) - 1
    away = ""
    if own < 0:
        away = f" It points away from them (cosine {own:.2f}), as with wrong labels or with the sign reversed."
    return (
        f"Of {compared} recorded updates {nearest} are more like those of the photographs named behind them than of "
        f"{others} others with the same labels.{away} Are they the right ones, and are their labels? A number in {FACTS} "
        "is a row of --data, which of a known data set is its test images; the classes of a folder are in alphabetical "
        "order. A strong policy or augmentation can have this effect too."
    )
