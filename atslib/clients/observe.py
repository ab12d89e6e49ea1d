"""Who sees what: the victim's side of an attack, and all that leaves it.

`observe` plays the clients. It returns an `Observed`, which holds no image, so no attack can peek.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atslib.clients.defenses.defense import (
    AnyDefense,
    Defense,
    Transformation,
    acts,
    share,
    wrapped,
)
from atslib.clients.prepare import to_images
from atslib.clients.view import Knowledge, Observed, ThreatModel, Update
from atslib.errors import AtsError
from atslib.gradients.inputs import check_images, check_labels, check_network, first_parameter
from atslib.gradients.problems import batch_statistics, flatten, problem_gradients
from atslib.models import in_mode
from atslib.rng import as_stream


def observe(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    threat: ThreatModel | None = None,
    defense: AnyDefense = None,
    rng: torch.Generator | int | None = None,
) -> Observed:
    """Let clients compute and share their gradients.

    Args:
        model: from `build_model`, or any network that starts with a `Normalize` layer; not changed.
        images: (B, C, H, W) floats in [0, 1], already transformed if the client uses a policy (or
            with the policy as `defense`). Each run of `threat.batch` consecutive images shares one
            gradient.
        labels: (B,) class numbers.
        threat: what the server knows; the paper's by default.
        defense: what the clients do against it, see `Defense.of`: text such as "3-1-7 | prune:0.5",
            a policy, a `Defense`, or a function of a dict of gradients, parameter name → (N,
            *shape), that returns the same. One that acts on images gets them rounded to 8 bits.
        rng: the stream of the defense's draws, or a seed for one.
    Returns:
        A view with one update. For several rounds call it once per round, then `Observed.join`.
    Raises:
        AtsError: images, labels, network and threat that do not fit each other, or a gradient that
            is not finite.
    """
    threat = threat or ThreatModel()
    defense = Defense.of(defense)
    rng = as_stream(rng, optional=True)
    images = check_images(images, first_parameter(model))
    check_threat(threat, len(images))
    client = in_mode(model, threat.victim)
    with torch.no_grad():
        classes = check_network(client, images[: min(threat.batch, 2)])  # batch statistics need two
    labels = check_labels(labels, len(images), classes).to(images.device)
    images, knows = _before(defense, images, threat, rng)
    images, labels = _mixed(defense, images, labels, classes, rng)
    problems, targets = (
        part.unflatten(0, (-1, threat.batch)).split(16) for part in (images, labels)
    )
    gradients = _shared_gradients(client, defense, problems, targets, rng)
    statistics = {}
    if threat.batch_norm == "known" and threat.victim == "train":
        with torch.no_grad():
            own = [batch_statistics(client, part) for part in problems]
        statistics = {name: torch.cat([part[name] for part in own]) for name in own[0]}
    attacker = in_mode(model, threat.victim if threat.batch_norm == "known" else "train")
    known = torch.cat(targets) if threat.labels == "known" else None
    update = Update(attacker, gradients, statistics=statistics)
    return Observed((update,), known, tuple(images.shape[1:]), threat, knows)


def check_threat(threat: ThreatModel, count: int) -> None:
    """Raise `AtsError` unless so many images are those of whole gradients."""
    if not isinstance(threat, ThreatModel):
        raise AtsError(
            f"threat {threat!r} must be an atslib.ThreatModel, such as ThreatModel(labels='inferred')"
        )
    if count % threat.batch:
        raise AtsError(
            f"{count} images do not make gradients of {threat.batch} (ThreatModel.batch)"
        )


def _shared_gradients(
    client: nn.Module,
    defense: Defense,
    problems: Sequence[Tensor],
    targets: Sequence[Tensor],
    rng: torch.Generator | None,
) -> Tensor:
    """The gradients (N, P) of all parts, after what the defense does inside the network and to what
    is shared.
    """
    defended = wrapped(defense, client, rng)
    alone = acts(defense, "each")
    if alone and problems[0].shape[1] > 1:
        raise AtsError(
            f"defense {defense} acts on each image's gradient; observe it with ThreatModel.batch=1"
        )
    with torch.no_grad():
        parts = [problem_gradients(defended, *part) for part in zip(problems, targets, strict=True)]
    names = [name for name, _ in client.named_parameters()]
    gradients = {
        name: torch.cat(each) for name, each in zip(names, zip(*parts, strict=True), strict=True)
    }
    gradients = defense.each(gradients) if alone else gradients
    shared = share(defense, gradients, model=defended, rng=rng, images=torch.cat(list(problems)))
    shared = flatten(tuple(shared.values())).detach()
    if len(bad := (~shared.isfinite().all(1)).nonzero().flatten()):
        raise AtsError(
            f"gradients {bad.tolist()} are not finite; check the network's weights and the defense"
        )
    return shared


def _mixed(
    defense: Defense, images: Tensor, labels: Tensor, classes: int, rng: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """What the defense makes of images and labels at once; class numbers stay where it makes
    nothing.
    """
    if not acts(defense, "examples"):
        return images, labels
    return defense.examples(images, F.one_hot(labels, classes).to(images), rng=rng)


def _before(
    defense: Defense, images: Tensor, threat: ThreatModel, rng: torch.Generator | None
) -> tuple[Tensor, Knowledge]:
    """The images after what the defense does to them, and what the attacker knows of it."""
    policy, draw = "", None
    if any(type(part).before is not Defense.before for part in defense.parts):
        pixels = (255 * images).round().byte()
        for part in defense.parts:
            if isinstance(part, Transformation):
                policy = str(part)
                pixels, draw = part.drawn(pixels, rng=rng)
            else:
                pixels = part.before(pixels, rng=rng)
        images = to_images(pixels, images.dtype)
    if threat.defense == "unknown":
        return images, Knowledge()
    if threat.defense == "policy" or draw is None:
        return images, Knowledge(policy)
    return images, Knowledge(
        policy, (tuple(part.unflatten(0, (-1, threat.batch)) for part in draw),)
    )
