"""Which images each client has: every image belongs to exactly one."""

import torch
from torch import Tensor

from atslib.errors import AtsError, check_whole
from atslib.rng import as_stream


def equal_shards(labels: Tensor, clients: int, *, rng: torch.Generator | int) -> tuple[Tensor, ...]:
    """Image numbers of each client: shares of equal size, or of sizes that differ by one, drawn at
    random.

    Args:
        labels: (B,) of all images; only their number matters.
        clients: how many.
        rng: the stream of the draw, or a seed for one.
    Raises:
        AtsError: fewer images than clients.
    """
    check_whole("clients", clients, 1)
    if len(labels) < clients:
        raise AtsError(
            f"{clients} clients cannot share {len(labels)} images: each needs at least one"
        )
    return torch.randperm(len(labels), generator=as_stream(rng)).tensor_split(clients)


def dirichlet_shards(
    labels: Tensor, clients: int, *, alpha: float, rng: torch.Generator | int, least: int = 1
) -> tuple[Tensor, ...]:
    """Image numbers of each client: each class is dealt out by shares drawn from a Dirichlet
    distribution.

    The smaller `alpha`, the more a client's images are of few classes; 100 is nearly even. Source:
    Hsu et al. 2019, "Measuring the effects of non-identical data distribution".

    Args:
        labels: (B,) class numbers of all images.
        clients: how many.
        alpha: of the distribution, above 0.
        rng: the stream of the draw, or a seed for one.
        least: images that each client has at least; the draw is repeated until it is so.
    Raises:
        AtsError: an `alpha` that is not above 0, or 100 draws that leave a client with fewer
            images.
    """
    check_whole("clients", clients, 1)
    if not 0 < alpha < float("inf"):
        raise AtsError(f"alpha={alpha} of a Dirichlet distribution must be above 0 and finite")
    stream = as_stream(rng)
    classes = labels.unique().tolist()
    own = [(labels == c).nonzero().flatten() for c in classes]
    for _ in range(100):
        shares = torch._sample_dirichlet(torch.full((len(classes), clients), float(alpha)), stream)
        parts: list[list[Tensor]] = [[] for _ in range(clients)]
        for rows, share in zip(own, shares, strict=True):
            cuts = (share.cumsum(0)[:-1] * len(rows)).round().long().clamp(max=len(rows))
            drawn = rows[torch.randperm(len(rows), generator=stream)]
            for client, piece in zip(parts, drawn.tensor_split(cuts), strict=True):
                client.append(piece)
        dealt = tuple(torch.cat(pieces) for pieces in parts)
        if min(map(len, dealt)) >= least:
            return dealt
    raise AtsError(
        f"100 draws of Dirichlet({alpha}) left one of {clients} clients with fewer than {least} images; "
        "take fewer clients or a larger alpha"
    )
