"""When a verdict may be given at all: guards that every rule shares, in words made from the
numbers.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from atsbook.findings.result import NO_POLICY, Verdict
from atsbook.findings.statistics import ENOUGH, interval

# Share of what a network learns above chance that is left to one that is trained with a usable defense
KEEPS = 0.8
MARGIN = 0.5  # dB: a change whose interval lies inside ± this does not matter


def guards(
    attacks: pd.DataFrame | None = None,
    *,
    images: int | None = None,
    effect: tuple[float, float] | None = None,
    published: float | None = None,
    accuracies: Mapping[str, float] | None = None,
    classes: int = 0,
) -> list[str]:
    """Why a rule cannot tell, one reason each; an empty list: it may judge.

    Args:
        attacks: one row per policy, image and draw, with `policy`, `image`, `psnr`, and
            `floor_policy`, the PSNR of the mean image that knows the policy. Undefended attacks
            must beat it: 95 % interval of their lead above 0, a diverged attack leading by nothing.
        images: how many were measured; None: those of the undefended attacks. Fewer than 30 cannot
            tell.
        effect, published: 95 % interval here, and the published effect. One that holds this and 0
            decides nothing.
        accuracies, classes: percent by network, where a rule judges accuracy. Within twice chance
            none can be lost.
    """
    reasons = []
    if attacks is not None:
        images = (
            attacks[attacks["policy"] == NO_POLICY]["image"].nunique() if images is None else images
        )
        reasons += _no_lead(attacks)
    if images is not None and images < ENOUGH:
        reasons.append(f"{images} images are fewer than {ENOUGH}")
    if effect is not None:
        low, high = effect
        if not np.isfinite(effect).all():
            reasons.append("the effect has no interval")
        elif published is not None and low <= min(0, published) and max(0, published) <= high:
            reasons.append(
                f"the interval [{low:.2f}, {high:.2f}] holds both 0 and the published {published:.2f}"
            )
    for name, accuracy in (accuracies or {}).items():
        if not accuracy > 200 / classes:
            reasons.append(
                f"the network {name} is at {accuracy:.1f} %, within twice chance ({200 / classes:.1f} %)"
            )
    return reasons


def _no_lead(attacks: pd.DataFrame) -> list[str]:
    bare = attacks[attacks["policy"] == NO_POLICY]
    lead = bare["psnr"] - bare["floor_policy"]
    lead = lead.where(np.isfinite(lead), 0.0)
    low, high = interval(lead, bare["image"])
    return (
        []
        if low > 0
        else [
            f"undefended attacks do not beat the policy's mean image ({lead.mean():+.1f} dB [{low:.1f}, {high:.1f}])"
        ]
    )


def cannot_tell(verdict: Verdict, reasons: list[str]) -> Verdict:
    """The verdict, or *cannot tell* for these reasons; what was measured stays beside it."""
    if not reasons or verdict.status == "not measured":
        return verdict
    return dataclasses.replace(verdict, status="cannot tell", reason="; ".join(reasons))


def kept(accuracy: float | pd.Series, bare: float, classes: int) -> float | pd.Series:
    """Share of what a network learned above chance that is left with a defense; 1: all, 0: chance.

    A difference in points says little of a network at 10 %.

    Args:
        accuracy, bare: percent, with and without the defense.
        classes: that are told apart.
    """
    chance = 100 / classes
    return (accuracy - chance) / (bare - chance) if bare > chance else math.nan


def does_not_matter(low: float, high: float, margin: float = MARGIN) -> bool:
    """Whether a 95 % interval lies inside ± `margin` dB: an imprecise measurement never does."""
    return -margin < low <= high < margin
