"""Whether what a server saw can be what its clients are said to have sent: in size, in labels, and
after an attack.
"""

import dataclasses
import itertools
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from atslib.attacks.attack import Reconstruction
from atslib.attacks.labels import head
from atslib.clients.view import Observed, Update
from atslib.errors import AtsError
from atslib.gradients.problems import flatten, problem_gradients

# Cosine distance below which one image explains a gradient; right declarations end below 0.1, wrong
# above 0.5
NEAR = 0.2
TIMES = (
    3.0  # by which factor the size of a gradient may differ from that of the image that was found
)
AT_ONCE = 16  # gradients

Doubts = tuple[tuple[str, ...], ...]


class NotExplainedWarning(UserWarning):
    """An update is not what it was declared to be, or an attack did not explain it."""


def in_labels(update: Update, batch: int, shape: tuple[int, ...]) -> Doubts:
    """What the last layer's bias says that cannot be, for each of N gradients of the mean
    cross-entropy.

    There the gradient is the mean of p - [label], whose absolute values sum to at most 2, and are
    negative at labels only. Empty for networks that end otherwise.
    """
    none = ((),) * len(update.gradients)
    gray = torch.full((2, *shape), 0.5, device=update.gradients.device)
    try:
        last = head(update, gray)
    except AtsError:
        return none
    if last.shift is None:
        return none
    steps = int((update.local or {}).get("steps", 1))
    momentum = float((update.local or {}).get("momentum", 0.0))
    # A step with momentum goes along the sum of m^i times the gradients before it.
    longest = sum((1 - momentum**step) / (1 - momentum) for step in range(1, steps + 1)) / steps
    size = last.shift.abs().sum(1)
    negative = (last.shift < -1e-5 * size[:, None]).sum(1)
    found = []
    for total, labels in zip(size.tolist(), negative.tolist(), strict=True):
        own = []
        if total > 2.02 * longest and update.limit is None:
            own.append(
                f"the last layer's bias changed {total / (2 * longest):.3g} times as much as it can"
            )
        if labels > batch:
            own.append(
                f"it speaks of {labels} labels, and is of {batch} {'image' if batch == 1 else 'images'}"
            )
        found.append(tuple(own))
    return tuple(found)


def after(seen: Observed, result: Reconstruction) -> Doubts:
    """What the images that were found do not explain of each of N declared gradients of one image,
    a sentence each.

    Gradients of several images say nothing here: an attack on them may fail for other reasons.
    """
    if not seen.declared or seen.threat.batch > 1 or (result.labels < 0).any():
        return ((),) * len(seen)
    images = result.images.unflatten(0, (len(seen), -1))
    found = []
    for first in range(0, len(seen), AT_ONCE):
        rows = slice(first, first + AT_ONCE)
        each = [
            _explained(update, seen.declared, images[rows], result.labels[rows])
            for update in seen.take(rows).updates
        ]
        found += [tuple(itertools.chain(*own)) for own in zip(*each, strict=True)]
    return tuple(found)


@torch.no_grad()
def _explained(
    update: Update, declared: str, images: Tensor, labels: Tensor
) -> list[tuple[str, ...]]:
    made = flatten(
        problem_gradients(
            update.model, update.transformed(images), labels, buffers=update.statistics
        )
    )
    sent = update.mean_gradients
    if update.limit is not None:
        made = made.clamp(-update.limit, update.limit)
    if update.kept is not None:
        made = made * update.kept
        sent = sent * update.kept
    lengths = made.norm(dim=1), sent.norm(dim=1)
    distance = 1 - (made * sent).sum(1) / (lengths[0] * lengths[1]).clamp_min(1e-30)
    factor = lengths[1] / lengths[0].clamp_min(1e-30)
    found = []
    for far, times in zip(distance.tolist(), factor.tolist(), strict=True):
        own = []
        if not far < NEAR:
            own.append(
                f"this update is not explained by what was declared ({declared}): the gradient of the image that was "
                f"found is at a cosine distance of {far:.2f}, not near 0; or the attack has failed"
            )
        elif not 1 / TIMES < times < TIMES and update.limit is None:
            own.append(
                f"this update is not explained by what was declared ({declared}): it is {times:.3g} times as large as "
                "the image that was found makes it"
            )
        found.append(tuple(own))
    return found


def with_doubts(seen: Observed, result: Reconstruction) -> Reconstruction:
    """The result of an attack with all doubts about the updates that it was made from; a warning
    where there is one.
    """
    if not seen.declared:
        return result
    before = seen.doubts or ((),) * len(seen)
    doubts = tuple(first + last for first, last in zip(before, after(seen, result), strict=True))
    warn(doubts)
    return dataclasses.replace(result, doubts=doubts)


def warn(doubts: Doubts, names: Sequence[object] | None = None) -> None:
    """One warning for all gradients that are in doubt, by number or name, with the first sentence
    of the first.
    """
    who = [str(name) for name, own in zip(names or range(len(doubts)), doubts, strict=True) if own]
    if not who:
        return
    first = next(own[0] for own in doubts if own)
    several = f" and {len(who) - 1} more" if len(who) > 1 else ""
    warnings.warn(f"update {who[0]}{several}: {first}", NotExplainedWarning, stacklevel=3)
