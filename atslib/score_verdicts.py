"""The verdict rules of the pages about scores and search, written before the runs: numbers in, words out."""

from collections.abc import Mapping, Sequence
from math import comb

import numpy as np
import pandas as pd

from atslib import agreement
from atslib.report import NO_POLICY, Verdict, bootstrap, paired
from atslib.verdicts import no_leak

CORRELATION_RULE = (
    "Reproduced: over random policies, Pearson's r between mean privacy score and mean PSNR on the same images "
    "has a 95 % interval (policies and images drawn anew) above 0 that reaches the paper's value, and r stays above "
    "0 with the PSNR of pure noise held constant (interval of the partial correlation above 0). Partly: the interval "
    "of r is above 0 but another condition fails. Not reproduced: it reaches 0 or below. "
    "Withheld: fewer than 10 policies or fewer than 4 images."
)


def correlation_verdict(matrices: Sequence[np.ndarray], published: Mapping[str, float]) -> Verdict:
    """Claim 7 by `CORRELATION_RULE`.

    Args:
        matrices: score, PSNR and the PSNR of pure noise, (policies, images) each.
        published: r by source, "ats" and "replication".
    """
    score, success, floor = matrices
    policies, images = score.shape
    if policies < 10 or images < 4:
        why = f"{policies} policies and {images} images are too few for an interval"
        return Verdict("withheld", why, CORRELATION_RULE)
    r = float(agreement.pearson(score.mean(1), success.mean(1)))
    low, high = agreement.interval(agreement.pearson, score, success)
    rest = float(agreement.partial(score.mean(1), success.mean(1), floor.mean(1)))
    rest_low, rest_high = agreement.interval(agreement.partial, score, success, floor)
    here = f"r = {r:.2f} [{low:.2f}, {high:.2f}], {policies} policies"
    reason = f"r = {r:.2f} [{low:.2f}, {high:.2f}] over {policies} policies and {images} images"
    known = f"with the PSNR of noise held constant {rest:.2f} [{rest_low:.2f}, {rest_high:.2f}]"
    if not low > 0:
        return Verdict(
            "not reproduced", f"{reason}, an interval that reaches 0 or below; {known}", CORRELATION_RULE, here
        )
    faults = []
    if high < published["ats"]:
        faults.append(f"it stays below the paper's {published['ats']:.3f}")
    if not rest_low > 0:
        faults.append(f"{known}, so that darkness can explain it")
    reason += f"; {known}" if not faults else "; but " + "; ".join(faults)
    return Verdict("partly" if faults else "reproduced", reason, CORRELATION_RULE, here)


TRANSFORMATIONS_RULE = (
    "Reproduced: at least four of the five transformations that were published are among the five with the lowest "
    "mean privacy score here, and all five score below doing nothing on the same images (95 % interval of the mean "
    "paired difference below 0). Partly: at least two are among the five, or at least three score below doing nothing. "
    "Not reproduced: neither. Withheld: fewer than 4 images."
)


def transformations_verdict(
    scores: pd.DataFrame, named: Sequence[int], identities: Sequence[int], source: str = "paper"
) -> Verdict:
    """Claim 6 by `TRANSFORMATIONS_RULE`.

    Args:
        scores: a row a transformation, a column an image; indexed by id.
        named: the published five.
        identities: the ids that do nothing; their mean is the reference.
    """
    if scores.shape[1] < 4:
        return Verdict("withheld", f"{scores.shape[1]} images are too few for an interval", TRANSFORMATIONS_RULE)
    best = scores.mean(axis=1).nsmallest(5).index
    shared = [op for op in named if op in best]
    difference = scores.loc[list(named)] - scores.loc[list(identities)].mean()
    below = [op for op, row in difference.iterrows() if bootstrap(row)[1] < 0]
    here = f"{len(shared)} of the {source}'s five among ours"
    reason = (
        f"{here} ({', '.join(map(str, sorted(best)))}), where chance alone shares at least as many with probability "
        f"{chance(len(shared), len(scores)):.2g}; {len(below)} of the five score below doing nothing"
    )
    if len(shared) >= 4 and len(below) == len(named):
        return Verdict("reproduced", reason, TRANSFORMATIONS_RULE, here)
    status = "partly" if len(shared) >= 2 or len(below) >= 3 else "not reproduced"
    return Verdict(status, reason, TRANSFORMATIONS_RULE, here)


def chance(shared: int, of: int, five: int = 5) -> float:
    """Probability that two random sets of `five` out of `of` share at least so many."""
    return sum(comb(five, k) * comb(of - five, five - k) for k in range(shared, five + 1)) / comb(of, five)


SEARCH_RULE = (
    "Reproduced: on the same images the attack's PSNR is lower with the found hybrid than without a policy and than "
    "with the random one (95 % intervals of the mean paired differences below 0), the hybrid costs at most 2 points of "
    "accuracy, and undefended attacks beat the mean image (interval of the mean gain above 0). Partly: lower than "
    "without a policy, but another condition fails. Not reproduced: not lower than without a policy. Not measured: "
    "fewer than two images."
)


def search_verdict(attacks: pd.DataFrame, accuracy: pd.Series, found: str, random: str) -> Verdict:
    """Whether the search finds protection, by `SEARCH_RULE`.

    Args:
        attacks: rows of the paper's attack, with `policy`, `image`, `psnr` and `gain`.
        accuracy: percent, by policy.
    """
    change = {base: paired(attacks, base).loc[found] for base in (NO_POLICY, random)}
    cost = accuracy[NO_POLICY] - accuracy[found]
    fell = change[NO_POLICY]
    if fell["n"] < 2:
        return Verdict("not measured", "fewer than two images can be compared, so there is no interval", SEARCH_RULE)
    here = f"{fell['mean']:+.1f} dB [{fell['low']:.1f}, {fell['high']:.1f}], {-cost:+z.1f} points"
    if not fell["high"] < 0:
        return Verdict("not reproduced", f"the found hybrid's PSNR is not lower ({here})", SEARCH_RULE, here)
    faults = []
    if not change[random]["high"] < 0:
        faults.append(f"it is not lower than with the random policy ({change[random]['mean']:+.1f} dB)")
    if not cost <= 2:
        faults.append(f"it costs {cost:.1f} points of accuracy")
    faults += no_leak(attacks)
    reason = f"the found hybrid {found} lowers the PSNR ({here})" + ("; but " + "; ".join(faults) if faults else "")
    return Verdict("partly" if faults else "reproduced", reason, SEARCH_RULE, here)


SWITCHES_RULE = (
    "The claim, implied by both papers: what they leave out does not matter. Reproduced: with each switch turned, the "
    "95 % interval of the mean paired change in PSNR holds 0, and both orders of the policies by a score have a rank "
    "correlation of 0.8 or more. Partly: this holds for at least half of the switches. Not reproduced: for fewer. "
    "Not measured: fewer than two images or ten policies."
)


def switches_verdict(changes: pd.DataFrame, orders: pd.Series, policies: int) -> Verdict:
    """The fidelity switches by `SWITCHES_RULE`.

    Args:
        changes: a row a switch of the attack: n, mean, low, high of the change in PSNR.
        orders: rank correlation of the policies' two orders, by switch of a score.
        policies: behind each correlation.
    """
    if changes["n"].min() < 2 or policies < 10:
        return Verdict("not measured", "fewer than two images or ten policies", SWITCHES_RULE)
    matter = [
        f"{name} ({row['mean']:+.1f} dB [{row['low']:.1f}, {row['high']:.1f}])"
        for name, row in changes.iterrows()
        if not row["low"] <= 0 <= row["high"]
    ]
    matter += [f"{name} (rank correlation {value:.2f})" for name, value in orders.items() if not value >= 0.8]
    count = len(changes) + len(orders)
    here = f"{len(matter)} of {count} switches matter"
    status = "partly" if matter else "reproduced"
    if len(matter) > count / 2:
        status = "not reproduced"
    return Verdict(status, here + (": " + ", ".join(matter) if matter else ""), SWITCHES_RULE, here)
