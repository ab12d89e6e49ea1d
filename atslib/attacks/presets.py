"""The table of attacks by name, and the door through which every attack runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from atslib.attacks.attack import Attack, Reconstruction
from atslib.attacks.explained import with_doubts
from atslib.attacks.labels import seen_ends
from atslib.attacks.matching import GradientMatching
from atslib.attacks.run import run_attack
from atslib.attacks.through_policy import ThroughPolicy, known_policy
from atslib.clients.view import Observed, Update
from atslib.copying import apart
from atslib.data.images import explain
from atslib.errors import AtsError, choose
from atslib.gradients.per_example import SameRules
from atslib.models import class_scores, copied, eagerly
from atslib.rng import as_stream

# Inverting Gradients (Geiping et al. 2020) as ATS ran it; the authors' benchmark/comm.py,
# "inversed".
_ADAM_COSINE = GradientMatching()
_LBFGS = replace(_ADAM_COSINE, optimizer="lbfgs", lr=1e-4, schedule="constant")
# Deep Leakage from Gradients as ATS ran it ("zhu"): its step of 1e-4 hardly leaves the start.
_LBFGS_L2 = replace(_LBFGS, distance="l2", steps=50, restarts=2, tv=1e-3, signed=False, boxed=False)
_LBFGS_COSINE = replace(_LBFGS, steps=300, restarts=16)
_SGD_COSINE = replace(_ADAM_COSINE, optimizer="sgd", lr=0.01)  # the code ignores its configured 0.1
_ANNEALED = replace(_ADAM_COSINE, signed=False, lr=1.0, schedule="cosine", steps=100)
_ONCE = replace(_ANNEALED, optimizer="lbfgs-once", schedule="constant", history=10)

# Names up to sgd-cosine-fixed are the settings of ATS's own code, benchmark/comm.py, with a `-fixed`
# twin where those cannot work as meant. Where the others are from stands above each.
ATTACKS: dict[str, GradientMatching | Attack] = {
    "adam-cosine": _ADAM_COSINE,
    "lbfgs-l2": _LBFGS_L2,
    "lbfgs-l2-fixed": replace(_LBFGS_L2, lr=1.0, line_search=True),
    "lbfgs-cosine": _LBFGS_COSINE,
    "lbfgs-cosine-fixed": replace(
        _LBFGS_COSINE, lr=1.0, line_search=True, signed=False, restarts=4
    ),
    "adam-l1": replace(_ADAM_COSINE, distance="l1"),
    "adam-l2": replace(_ADAM_COSINE, distance="l2"),
    "sgd-cosine": _SGD_COSINE,
    "sgd-cosine-fixed": replace(_SGD_COSINE, lr=0.1),
    # The replication's Table 3: Inverting Gradients' own default, unsigned and smoother.
    "adam-cosine-tv": replace(_ADAM_COSINE, signed=False, tv=0.1),
    # Balunovic et al. 2022 against ATS early in training.
    "adam-cosine-weak-tv": replace(_ADAM_COSINE, tv=1e-5, steps=2000),
    # The strongest standard attacks that we found, each fitted once to an untrained network of its
    # family, on undefended images that no page attacks. A trained ResNet is attacked with the same
    # settings.
    "annealed-lenet": replace(_ANNEALED, steps=300, tv=0.02),
    "annealed-convnet": replace(_ANNEALED, tv=3e-4),
    "annealed-resnet": replace(_ANNEALED, tv=0.1),
    # Fewer gradients for as many bits, on untrained networks without a policy (`benchmarks/NOTES.md`): chosen on
    # CIFAR-100's test images 200 to 231, held against the annealed ones on others. On LeNet a quarter of the
    # evaluations in 0.29 of the time; ReLU networks have kinks, which mislead its curvature. On ResNet20-1 half of them.
    "fast-lenet": replace(_ONCE, steps=75, tv=0.02),
    "strong-lenet": replace(_ONCE, steps=250, tv=0.005),
    "fast-resnet": replace(_ANNEALED, steps=150, tv=0.1, lr=2.0),
}


@eagerly
def reconstruct(
    seen: Observed,
    attack: str
    | GradientMatching
    | Sequence[str | GradientMatching]
    | Attack
    | Callable[..., Reconstruction | Tensor],
    *,
    rng: torch.Generator | int,
    **options: object,
) -> Reconstruction:
    """Attack what a server saw of N gradients.

    Args:
        seen: what `observe` returned.
        attack: the name of a preset in `ATTACKS` (the strongest that we know: annealed-lenet,
            annealed-convnet, annealed-resnet) or a `GradientMatching`, or one for each gradient; or
            an attack of your own: an object with `run`, or a function `f(seen, rng=...)`, that
            returns a `Reconstruction` or images (B, C, H, W) in [0, 1].
        rng: the stream of all that the attack draws, or a seed for one.
        options: of gradient matching, as in `atslib.attacks.engine.match`: start, frames, on_frame,
            keep_restarts, chunk, checkpoint, on_saved, progress. An attack of your own gets those
            that it names.
    Returns:
        What the attack made of it. Where `seen` says what clients are said to have sent, `doubts`
        tells what speaks against that, and the first such sentence is a warning.
    Raises:
        AtsError: an attack that is none of these, that cannot run on `seen`, or that returns
            something else.
    """
    if not isinstance(seen, Observed):
        raise AtsError(f"seen is a {type(seen).__name__}; give what atslib.observe returned")
    rng = as_stream(rng)
    if any(update.gradients.is_inference() for update in seen.updates):
        raise AtsError(
            "what was seen was made under torch.inference_mode, where nothing can be differentiated again"
        )
    if isinstance(attack, Sequence) and not isinstance(attack, str):
        attack = [_preset(each) for each in attack]
    else:
        attack = _preset(attack)
    seen = replace(seen, updates=tuple(_in_single(each, seen.shape) for each in seen.updates))
    for update in seen.updates:  # where its last layer is, which attacks ask for
        seen_ends(update.model, seen.shape)
    with torch.inference_mode(False), torch.enable_grad():
        result = run_attack(seen, attack, rng=rng, **options)
        return with_doubts(seen, result)


def _in_single(update: Update, shape: tuple[int, int, int]) -> Update:
    """The update in single precision at least: in half precision the squares that an attack
    computes underflow to 0.

    Raises:
        AtsError: a network that casts its images of `shape` itself, and cannot run in it.
    """
    kinds = {value.dtype for value in (update.gradients, *update.model.parameters())}
    if kinds <= {torch.float32, torch.float64}:
        return update
    model = copied(update.model).float()
    images = torch.zeros(2, *shape, device=update.gradients.device)
    try:
        with torch.no_grad(), SameRules():
            class_scores(apart(model), images)
    except Exception as error:  # of somebody else's code, which may raise anything
        raise AtsError(
            f"{type(model).__name__} cannot be attacked in float32 ({explain(error)}), and in half precision the squares "
            "of its gradients underflow; leave out the casts in its forward pass"
        ) from None
    return replace(
        update,
        model=model,
        gradients=update.gradients.float(),
        statistics={name: value.float() for name, value in update.statistics.items()},
        features=None if update.features is None else update.features.float(),
    )


def by_knowledge(
    seen: Observed,
    attack: str | GradientMatching,
    *,
    rng: torch.Generator | int,
    progress: bool = False,
) -> dict[str, Reconstruction]:
    """The same attack by servers that know more and more of the client's policy, from the same
    starts.

    Args:
        seen: by the one that knows most, of one image per gradient: `ThreatModel(defense="draws")`,
            or "policy".
        attack: the name of a preset of gradient matching, or one of your own.
        rng: the stream of the starts, or a seed for one.
    Returns:
        "does not know the policy", which reconstructs what the network got, "knows the policy", and
        where `seen` says what was drawn "knows its draws"; these two reconstruct the image before
        the policy.
    Raises:
        AtsError: the policy is not known, a gradient is of several images, or the attack is not
            gradient matching.
    """
    attack = _preset(attack)
    rng = as_stream(rng)
    if not isinstance(attack, GradientMatching):
        raise AtsError(
            f"by_knowledge: attack {attack!r} must be a GradientMatching or the name of one"
        )
    through = ThroughPolicy(inner=attack, trial=min(30, attack.steps))
    known_policy(seen, through, single=True)
    told = replace(seen.knows, draws=())
    views = {
        "does not know the policy": (seen, attack),
        "knows the policy": (replace(seen, knows=told), through),
    }
    if seen.knows.draws:
        views["knows its draws"] = (seen, through)
    options = {"rng": rng, "start": through.starts(seen, rng), "progress": progress}
    return {name: reconstruct(view, each, **options) for name, (view, each) in views.items()}


def _preset(attack: object) -> object:
    """What the name of a preset stands for; anything else as it is."""
    if isinstance(attack, str):
        choose("attack", attack, ATTACKS)
        return ATTACKS[attack]
    return attack
