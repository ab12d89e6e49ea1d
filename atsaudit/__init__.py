"""How much one's own network gives away: attacks inside a budget of time, and a report with a yes
or no.

`config` says what is audited and which cases follow; `views` plays the clients of a case,
`candidate_attacks` lists the attacks that are tried, `line_up` is a server that holds the
photographs and needs none, `outcome` says what an attack has told of each
image, `work` plans, tunes, attacks and goes on after an interrupt. `numbers` holds what came of it
and the verdict, `page` writes both as one HTML file, `report` saves all. `run_audit` is what the
function does, `sources` finds losses, weights and images that are named in the shell,
`update_files` reads updates that a federation has kept and `named_photographs` holds them beside
the photographs that are said to be behind them; `command` is that of the shell. To add an attack,
one line in `candidate_attacks.candidates`; to add a case, one in `config.cases_of`.

This module imports nothing heavy, so that the command line answers at once.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from atsaudit.report import AuditReport
    from atslib.clients.updates import LocalTraining
    from atslib.data.images import Images
    from atslib.models import Loss


def audit(
    model: "nn.Module",
    images: "Tensor | np.ndarray | Images",
    labels: "Tensor | np.ndarray | str | None" = None,
    *,
    untrained: "nn.Module | None" = None,
    normalize: tuple[Sequence[float], Sequence[float]] | None = None,
    loss: "Loss | None" = None,
    batch: int | Sequence[int] = (1, 8),
    local: "LocalTraining | None" = None,
    policy: str = "",
    defense: str = "",
    limit: float | None = None,
    budget: float = 600.0,
    folder: str | Path | None = None,
    class_names: Sequence[str] = (),
    progress: bool = False,
    **settings: object,
) -> "AuditReport":
    """Attack your own network with your own images, and say how many of them a server recognizes.

    Args:
        model: gives one row of scores for each image, or one score for two classes. Its weights are
            those of a case; it is not changed.
        images: (N, C, H, W), uint8 or floats in [0, 1]; or `atslib.Images`, which have their
            labels. At least 12, and more where many share a gradient.
        labels: (N,) class numbers, of a tensor or array of images. Of `atslib.Images`, whether the
            server knows them: "known" or "restored" from what is shared; None: known.
        untrained: the network before training; by default the same layers with new weights. The
            same object as `model` says that this one is untrained.
        normalize: mean and deviation of each channel where the network does not start with
            `atslib.Normalize`.
        loss: (scores (k, K), labels (k,)) → the mean over k images, what clients train with; by
            default the cross-entropy. Of a network with a single score it gets scores as that gives
            them.
        batch: how many images share one gradient or update.
        local: how clients train before they share, an `atslib.LocalTraining`; None: they share one
            gradient.
        policy: of the clients, such as "3-1-7+43-18-18".
        defense: of the clients beside the policy, such as "prune:0.7".
        limit: share of images that may be found, such as 0.05; `named_limit` is the same for a
            server that holds the photographs and compares their gradients.
        budget: seconds into which the audit is planned; a very slow network can exceed them. Where a
            first look shows beyond doubt that the limit is exceeded, it ends with that, unless
            `thorough=True`.
        folder: where it keeps its state; a killed audit goes on from there.
        class_names: for the report.
        progress: whether to show a bar with the remaining time.
        settings: further fields of `atsaudit.config.AuditConfig` by name.
    Returns:
        The report: `.found`, the share of images found in the worst case, in [0, 1]; `.named`, the
        share that a server names which holds them, None where that was not tried; `.verdict`, in
        words; `.rows`, one per case; `.save(folder)`, which writes report.html.
    Raises:
        AtsError: too few images, inputs that do not fit each other, or a network that cannot be
            attacked.
    """
    from atsaudit.run_audit import audited

    if isinstance(labels, str):
        settings["labels"], labels = labels, None
    options = {
        "batch": batch,
        "local": local,
        "policy": policy,
        "defense": defense,
        "limit": limit,
        "budget": budget,
    }
    return audited(
        model,
        images,
        labels,
        options | settings,
        untrained=untrained,
        normalize=normalize,
        loss=loss,
        folder=folder,
        class_names=class_names,
        progress=progress,
    )
