"""A federation in one process, round after round, without Flower: the same weights, for experiments
and pages.
"""

from collections.abc import Iterator

import torch
from torch import nn

from atsfed.federation import Federation, answer
from atslib.clients.prepare import to_images
from atslib.clients.sums import summed
from atslib.clients.view import Observed
from atslib.data.load import Images
from atslib.gradients.problems import unflatten
from atslib.models import class_scores, in_mode, shared_parameters

CHUNK = 250  # images whose accuracy is taken at once


def rounds(federation: Federation) -> Iterator[tuple[nn.Module, list[Observed]]]:
    """Each round's network as the server sends it, and what every client answers, in order; at the
    end the result.

    After the last round the network comes once more, with no answers. Each is a copy of its own.
    """
    model = federation.network()
    for number in range(1, federation.rounds + 1):
        seen = [answer(federation, model, client, number) for client in range(federation.clients)]
        yield in_mode(model, federation.victim), seen
        move(federation, model, seen)
    yield in_mode(model, federation.victim), []


def move(federation: Federation, model: nn.Module, seen: list[Observed]) -> None:
    """The server's step: along the mean of all answers, each weighted by its number of images
    (FedAvg, FedSGD).
    """
    step = -federation.lr if federation.kind == "gradient" else 1.0
    with torch.no_grad():
        changes = unflatten(summed(seen).gradients, model)
        for parameter, change in zip(shared_parameters(model).values(), changes, strict=True):
            parameter += step * change[0]


@torch.no_grad()
def accuracy(model: nn.Module, images: Images) -> float:
    """Share of images, in percent, that a federation's network names rightly; higher is better.

    Unlike `atslib.evaluate` it leaves the network in the mode in which clients ran it: with
    victim="train" each `CHUNK` images are normalized by their own statistics.
    """
    pairs = zip(images.pixels.split(CHUNK), images.labels.split(CHUNK), strict=True)
    hits = [
        (class_scores(model, to_images(pixels)).argmax(1) == labels).sum()
        for pixels, labels in pairs
    ]
    return 100 * int(torch.stack(hits).sum()) / len(images)
