"""The rule of each claim's verdict, written before the runs, and nothing else: numbers in, words out."""

from collections.abc import Sequence

import pandas as pd

from atslib.report import NO_POLICY, Verdict, bootstrap, paired

PRIVACY_RULE = (
    "Reproduced: on the same images the attack's PSNR is lower with each searched policy and with their "
    "hybrid than with no policy (95 % interval of the mean paired difference below 0), the hybrid costs at most "
    "2 points of accuracy, and there was something to protect: without a policy, attacks beat the best guess "
    "made without the gradient (interval of mean PSNR minus the mean image's PSNR above 0). "
    "Partly: the hybrid's PSNR is lower but one of the other conditions fails. "
    "Not reproduced: the hybrid's PSNR is not lower. "
    "Withheld: the positive control fails (attack on an untrained network, mean PSNR not above the mean "
    "image's by 2 dB)."
)


def privacy_verdict(
    attacks: pd.DataFrame, accuracy: pd.Series, control: pd.DataFrame, searched: Sequence[str], hybrid: str
) -> Verdict:
    """Claim 1 by `PRIVACY_RULE`.

    Args:
        attacks: a row a policy and image, with `policy`, `image`, `psnr`, `floor_mean`.
        accuracy: percent, by policy.
        control: rows of the positive control, with `psnr` and `floor_mean`.
        searched: the searched policies beside the hybrid.
    """
    lead = (control["psnr"] - control["floor_mean"]).mean()
    if not lead >= 2:
        return Verdict("withheld", f"the positive control leads its floor by {lead:.1f} dB, not 2", PRIVACY_RULE)
    change = paired(attacks, NO_POLICY)
    lower = {p: bool(change.loc[p, "high"] < 0) for p in (*searched, hybrid)}
    bare = attacks[attacks["policy"] == NO_POLICY]
    gain = bare["psnr"] - bare["floor_mean"]
    gain_low, gain_high = bootstrap(gain.dropna())
    cost = accuracy[NO_POLICY] - accuracy[hybrid]
    fell = change.loc[hybrid]
    if fell["n"] < 2:
        return Verdict("withheld", "fewer than two images can be compared, so there is no interval", PRIVACY_RULE)
    here = f"{fell['mean']:+.1f} dB [{fell['low']:.1f}, {fell['high']:.1f}], {-cost:+.1f} points"
    faults = [f"{p} does not lower the PSNR ({change.loc[p, 'mean']:+.1f} dB)" for p in searched if not lower[p]]
    if not gain_low > 0:
        faults.append(
            f"without a policy attacks do not beat the mean image ({gain.mean():+.1f} dB [{gain_low:.1f}, "
            f"{gain_high:.1f}]), so a lower PSNR does not show protection"
        )
    if not cost <= 2:
        faults.append(f"the hybrid costs {cost:.1f} points of accuracy")
    if not lower[hybrid]:
        return Verdict("not reproduced", f"the hybrid's PSNR is not lower ({here})", PRIVACY_RULE, here)
    status = "partly" if faults else "reproduced"
    reason = f"the hybrid lowers the PSNR ({here})" + ("; but " + "; ".join(faults) if faults else "")
    return Verdict(status, reason, PRIVACY_RULE, here)


GENERALITY_RULE = (
    "Reproduced: for each of the paper's six attacks, as released, the PSNR on the same images is lower with the "
    "hybrid than without (95 % interval of the mean paired difference below 0), and each attack beats the mean "
    "image on undefended images (interval of mean PSNR minus the mean image's above 0). Partly: the PSNR is lower "
    "for most attacks, or for all while some attacks do not beat the mean image, so that the row shows no "
    "protection. Not reproduced: it is lower for at most half of them."
)


def generality_verdict(attacks: pd.DataFrame, presets: Sequence[str], hybrid: str) -> Verdict:
    """Claim 2 by `GENERALITY_RULE`, from rows with `attack`, `policy`, `image`, `psnr` and `gain`."""
    lower, working = [], []
    for name in presets:
        rows = attacks[attacks["attack"] == name]
        if paired(rows, NO_POLICY).loc[hybrid, "high"] < 0:
            lower.append(name)
        if bootstrap(rows[rows["policy"] == NO_POLICY]["gain"])[0] > 0:
            working.append(name)
    here = f"lower for {len(lower)} of {len(presets)} attacks; {len(working)} beat the mean image undefended"
    reason = f"the hybrid's PSNR is {here}"
    if len(lower) <= len(presets) / 2:
        return Verdict("not reproduced", reason, GENERALITY_RULE, here)
    whole = len(lower) == len(working) == len(presets)
    return Verdict("reproduced" if whole else "partly", reason, GENERALITY_RULE, here)


DEFENSES_RULE = (
    "Reproduced: on the same images the hybrid's mean PSNR is lower than under each pruning and noise that keeps "
    "its accuracy within 5 points of no defense, and the hybrid itself keeps its accuracy within 2. Partly: lower "
    "than under most of those, or under all while undefended attacks do not beat the mean image, so that there is "
    "nothing to compare. Not reproduced: otherwise."
)


def defenses_verdict(attacks: pd.DataFrame, accuracy: pd.Series, hybrid: str) -> Verdict:
    """The paper's Table 3 by `DEFENSES_RULE`, from rows with `defense`, `applied`, `psnr` and `gain`."""
    mean = attacks[attacks["applied"] == "fixed"].groupby("defense")["psnr"].mean()
    loss = accuracy[NO_POLICY] - accuracy
    rivals = [name for name in mean.index if name not in (NO_POLICY, hybrid) and loss[name] <= 5]
    beaten = [name for name in rivals if mean[hybrid] < mean[name]]
    here = f"lower than {len(beaten)} of {len(rivals)} usable defenses, {-loss[hybrid]:+.1f} points"
    reason = f"the hybrid's PSNR of {mean[hybrid]:.1f} dB is {here}"
    bare = attacks[(attacks["defense"] == NO_POLICY) & (attacks["applied"] == "fixed")]
    leaks = bootstrap(bare["gain"])[0] > 0
    if not leaks:
        reason += f"; but undefended attacks do not beat the mean image ({bare['gain'].mean():+.1f} dB)"
    if rivals and len(beaten) == len(rivals) and loss[hybrid] <= 2 and leaks:
        return Verdict("reproduced", reason, DEFENSES_RULE, here)
    status = "partly" if len(beaten) > len(rivals) / 2 else "not reproduced"
    return Verdict(status, reason, DEFENSES_RULE, here)
