"""What is left to see where answers are added up before anyone looks at them, as in secure
aggregation.
"""

import dataclasses
from collections.abc import Sequence

import torch

from atslib.clients.view import Observed
from atslib.errors import AtsError


def summed(seen: Sequence[Observed]) -> Observed:
    """The mean of what clients shared in one round, weighted by their images, as one view on all of
    these.

    The mean of gradients is the gradient of all images together, so that every attack on batches
    takes it as it is; with batch normalization in train mode only nearly, because each client's
    statistics were its own. The mean of differences of weights is not what any training makes;
    attacks take it for that of one client that took the same number of steps.

    Args:
        seen: one view per client, each of one answer in the same round; the mean is attacked with
            the first's network.
    Returns:
        A view of one client's row, whose `threat.batch` is the number of all images together.
    Raises:
        AtsError: no view, one of several answers or rounds, or gradients beside differences.
    """
    if not seen or any(len(each.updates) != 1 or len(each) != 1 for each in seen):
        raise AtsError(
            f"the sum is of one answer of each client in one round; {len(seen)} views are not all such"
        )
    updates = [each.updates[0] for each in seen]
    if len({update.kind for update in updates}) > 1:
        raise AtsError("gradients and differences of weights cannot be summed")
    images = torch.tensor([float(each.threat.batch) for each in seen])
    rows = torch.cat([update.gradients for update in updates])
    mean = ((images / images.sum()).to(rows) @ rows)[None]
    alike = all(update.local == updates[0].local for update in updates)
    update = dataclasses.replace(
        updates[0], gradients=mean, local=updates[0].local if alike else None
    )
    threat = dataclasses.replace(seen[0].threat, batch=int(images.sum()))
    known = (
        None
        if any(each.labels is None for each in seen)
        else torch.cat([each.labels for each in seen], 1)
    )
    return dataclasses.replace(
        seen[0], updates=(update,), labels=known, threat=threat, declared="", doubts=()
    )
