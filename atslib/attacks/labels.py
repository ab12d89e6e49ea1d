"""Labels restored from the gradient alone."""

import torch
from torch import Tensor

from atslib.clients.threat import Observed
from atslib.errors import AtsError
from atslib.gradients.problems import unflatten


def infer_labels(seen: Observed) -> Tensor:
    """The label of each single-image gradient, (N, 1): the class whose last-layer gradient is most negative.

    The cross-entropy's gradient at the logits is softmax - onehot, negative at the true class only; the
    bias shows it, and so does the weight's row where the features are not negative. Exact for those
    networks. Source: Zhao et al. 2020 (iDLG), arXiv:2001.02610.
    """
    update = seen.updates[0]
    last = unflatten(update.gradients, update.model)[-1]
    if last.ndim not in (2, 3):
        shape = tuple(last.shape[1:])
        raise AtsError(f"labels cannot be inferred: the last parameter {shape} is not of a linear layer")
    evidence = last if last.ndim == 2 else last.sum(2)
    return evidence.argmin(1, keepdim=True)


def initial_logits(seen: Observed, rng: torch.Generator) -> Tensor:
    """Where one member's labels start if they are optimized too: (batch · K,) logits from N(0, 1), as in DLG."""
    *_, last = seen.updates[0].model.parameters()  # as many rows as there are classes
    return torch.randn(seen.threat.batch * len(last), generator=rng, device=rng.device)
