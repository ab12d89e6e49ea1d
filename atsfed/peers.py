"""Training together without a server: each participant sends its answers to its neighbours, and
keeps its own network.

The peer-to-peer variant that the paper names beside the server (Gao et al. 2021, Section 1).
"""

import dataclasses
from collections.abc import Iterator, Sequence

from torch import nn

from atsfed.federation import Federation, answer
from atsfed.rounds import move
from atslib.clients.view import Observed
from atslib.errors import AtsError
from atslib.models import in_mode


def ring(clients: int) -> tuple[tuple[int, ...], ...]:
    """Neighbours of each participant on a ring: the one before and the one after it."""
    return tuple(
        tuple(sorted({(k - 1) % clients, (k + 1) % clients} - {k})) for k in range(clients)
    )


def exchange(
    federation: Federation, neighbours: Sequence[Sequence[int]]
) -> Iterator[tuple[list[nn.Module], list[Observed]]]:
    """Each round's networks, one per participant, and what each sends; at the end the networks
    alone.

    All begin with the same weights. Each takes the server's step on the answers of its neighbours
    and its own, so that the networks part unless everyone is everyone's neighbour. What travels is
    answers alone: a neighbour does not know the weights that a gradient was made with, beyond the
    first round; see `as_seen`.

    Args:
        neighbours: of each participant those that it gets answers from.
    Raises:
        AtsError: they are not of as many participants as the federation has clients, or not others
            of these.
    """
    everyone = range(federation.clients)
    odd = [k for k, own in enumerate(neighbours) if not set(own) <= set(everyone) - {k}]
    if len(neighbours) != federation.clients or odd:
        raise AtsError(
            f"neighbours={neighbours!r}: give each of {federation.clients} participants others by number"
        )
    networks = [federation.network() for _ in everyone]
    for number in range(1, federation.rounds + 1):
        sent = [answer(federation, model, client, number) for client, model in enumerate(networks)]
        yield [in_mode(model, federation.victim) for model in networks], sent
        for client, model in enumerate(networks):
            move(
                federation, model, [sent[other] for other in sorted({client, *neighbours[client]})]
            )
    yield [in_mode(model, federation.victim) for model in networks], []


def as_seen(sent: Observed, model: nn.Module) -> Observed:
    """An answer as a neighbour sees it who knows no network but its own, which it takes for the
    sender's.
    """
    return dataclasses.replace(sent, updates=(dataclasses.replace(sent.updates[0], model=model),))
