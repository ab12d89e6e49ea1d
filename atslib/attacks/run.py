"""The one function that runs any attack: gradient matching, those that wrap it, and attacks of
one's own.
"""

import inspect
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from atslib.attacks.attack import Attack, Reconstruction, check_returned
from atslib.attacks.engine import OPTIONS, match
from atslib.attacks.matching import GradientMatching
from atslib.clients.observe import Observed
from atslib.errors import AtsError

AnyAttack = (
    GradientMatching | Sequence[GradientMatching] | Attack | Callable[..., Reconstruction | Tensor]
)


def run_attack(
    seen: Observed, attack: AnyAttack, *, rng: torch.Generator, **options: object
) -> Reconstruction:
    """Run an attack on every gradient of `seen`; `atslib.reconstruct` with the attack itself in
    place of its name.

    Args:
        seen: what `observe` returned.
        attack: gradient matching, the same for all gradients or one for each; an object with `run`;
            or a function.
        rng: the stream of all that the attack draws.
        options: those of `match`. What is no gradient matching gets those that it names.
    Raises:
        AtsError: an attack that is none of these, that cannot run on `seen`, or that returns
            something else; an option that there is not.
    """
    if odd := options.keys() - set(OPTIONS):
        raise AtsError(
            f"reconstruct: {', '.join(sorted(odd))} is no option of an attack; there are {', '.join(OPTIONS)}"
        )
    if isinstance(attack, GradientMatching):
        return match(seen, [attack] * len(seen), rng=rng, **options)
    if isinstance(attack, Sequence) and not isinstance(attack, str):
        for one in attack:
            if not isinstance(one, GradientMatching):
                raise AtsError(
                    f"attack {one!r} must be a GradientMatching, where there is one for each gradient"
                )
        return match(seen, attack, rng=rng, **options)
    run = getattr(attack, "run", attack)
    if not callable(run) or isinstance(attack, type):
        raise AtsError(
            f"attack {attack!r} must be a preset's name, an object with a method run, or a function"
        )
    result = run(seen, rng=rng, **_named(run, options))
    if isinstance(result, Tensor):
        return Reconstruction.of(result, seen)
    if not isinstance(result, Reconstruction):
        raise AtsError(
            f"an attack returned a {type(result).__name__}; it must be a Reconstruction or images"
        )
    check_returned(result.images, seen)
    return result


def _named(run: Callable, options: dict[str, object]) -> dict[str, object]:
    """Of the options those that an attack's function names, or all, if it takes any."""
    parameters = inspect.signature(run).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    if not parameters or not (takes_all or "rng" in parameters):
        raise AtsError(
            f"attack {run!r} takes ({', '.join(parameters)}); it must take what was seen, and rng by name"
        )
    return {name: value for name, value in options.items() if takes_all or name in parameters}
