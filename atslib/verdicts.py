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
    "protection. Not reproduced: it is lower for at most half of them. Not measured: fewer than two images."
)


def generality_verdict(attacks: pd.DataFrame, presets: Sequence[str], hybrid: str) -> Verdict:
    """Claim 2 by `GENERALITY_RULE`, from rows with `attack`, `policy`, `image`, `psnr` and `gain`."""
    lower, working = [], []
    if attacks["image"].nunique() < 2:
        return Verdict("not measured", "fewer than two images, so there is no interval", GENERALITY_RULE)
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
    "nothing to compare. Not reproduced: otherwise. Not measured: fewer than two images."
)


def defenses_verdict(attacks: pd.DataFrame, accuracy: pd.Series, hybrid: str) -> Verdict:
    """The paper's Table 3 by `DEFENSES_RULE`, from rows with `defense`, `applied`, `image`, `psnr` and `gain`."""
    if attacks["image"].nunique() < 2:
        return Verdict("not measured", "fewer than two images, so there is no interval", DEFENSES_RULE)
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


TRANSFER_RULE = (
    "Reproduced: on the same images the attack's PSNR is lower with each policy than with none (95 % interval of the "
    "mean paired difference below 0), the hybrid costs at most {points} points of accuracy (published: {published}), "
    "the undefended network is at 5 times chance or better, so that a loss could show, and undefended attacks beat the "
    "mean image (interval of the mean gain above 0). Partly: the hybrid's PSNR is lower but another condition fails. "
    "Not reproduced: the hybrid's PSNR is not lower. Not measured: fewer than two images."
)


def transfer_verdict(
    attacks: pd.DataFrame, accuracy: pd.Series, hybrid: str, *, points: float, published: float, chance: float
) -> Verdict:
    """Claim 3, and Tiny ImageNet, by `TRANSFER_RULE`.

    Args:
        attacks: one network's rows, with `policy`, `image`, `psnr` and `gain`.
        accuracy: percent, by policy; `chance` is that of guessing.
        points, published: the loss of accuracy that is allowed, and the one that was published.
    """
    rule = TRANSFER_RULE.format(points=points, published=published)
    change = paired(attacks, NO_POLICY)
    fell = change.loc[hybrid]
    if fell["n"] < 2:
        return Verdict("not measured", "fewer than two images can be compared, so there is no interval", rule)
    loss = accuracy[NO_POLICY] - accuracy[hybrid]
    here = f"{fell['mean']:+.1f} dB [{fell['low']:.1f}, {fell['high']:.1f}], {-loss:+.1f} points"
    if not fell["high"] < 0:
        reason = "; ".join([f"the hybrid's PSNR is not lower ({here})", *no_leak(attacks)])
        return Verdict("not reproduced", reason, rule, here)
    others = change.drop(hybrid)
    faults = [
        f"{p} does not lower the PSNR ({row['mean']:+.1f} dB)" for p, row in others.iterrows() if row["high"] >= 0
    ]
    if not loss <= points:
        faults.append(f"the hybrid costs {loss:.1f} points of accuracy")
    if not accuracy[NO_POLICY] >= 5 * chance:
        faults.append(f"the undefended network's {accuracy[NO_POLICY]:.1f} % is too low to show a loss")
    faults += no_leak(attacks)
    reason = f"the hybrid lowers the PSNR ({here})" + ("; but " + "; ".join(faults) if faults else "")
    return Verdict("partly" if faults else "reproduced", reason, rule, here)


def no_leak(attacks: pd.DataFrame) -> list[str]:
    """The fault, if it is one, that undefended attacks find nothing: rows with `policy` and `gain`."""
    gain = attacks[attacks["policy"] == NO_POLICY]["gain"]
    return [] if bootstrap(gain)[0] > 0 else [f"undefended attacks do not beat the mean image ({gain.mean():+.1f} dB)"]


EFFICIENCY_RULE = (
    "Reproduced: the network trained with the hybrid reaches 50, 80 and 95 % of the undefended network's last test "
    "accuracy at most 10 % of all epochs later (at least one epoch is allowed), and drawing and applying the hybrid "
    "takes at most 5 % of an epoch's time. Partly: one of the two. Not reproduced: neither. Not measured: fewer than "
    "five epochs, an undefended network below 5 times chance, or a stored run without an accuracy for every epoch."
)


def efficiency_verdict(
    reached: pd.DataFrame, share: float, hybrid: str, *, epochs: int, accuracy: float, chance: float
) -> Verdict:
    """Claim 4 by `EFFICIENCY_RULE`.

    Args:
        reached: epochs until each level, a row a policy and a column a level; NaN where it is never reached.
        share: time of the hybrid's transformations over that of an epoch.
        accuracy, chance: percent, of the undefended network at the end, and of guessing.
    """
    if epochs < 5 or not accuracy >= 5 * chance or reached.loc[NO_POLICY].isna().any():
        reason = f"{epochs} epochs up to an undefended accuracy of {accuracy:.1f} % cannot show a speed"
        return Verdict("not measured", reason, EFFICIENCY_RULE)
    late = (reached.loc[hybrid] - reached.loc[NO_POLICY]).max(skipna=False)
    soon, cheap = late <= max(1, 0.1 * epochs), share <= 0.05
    when = f"{late:+.0f} epochs at the latest level" if late == late else "one level is never reached"
    here = f"{when}, transformations {share:.1%} of an epoch"
    status = "reproduced" if soon and cheap else "partly" if soon or cheap else "not reproduced"
    return Verdict(status, f"the hybrid against no policy: {here}", EFFICIENCY_RULE, here)


SEMANTICS_RULE = (
    "Reproduced: at the end of the attack the gradient's similarity in the shallow third of the convolutions is lower "
    "with the searched policy and with the hybrid than with none, on the same images (95 % interval of the mean paired "
    "difference below 0), it falls by more than in the deep third (interval of the difference of both changes below "
    "0), and undefended attacks beat the mean image (interval of the mean gain above 0). Partly: the shallow third "
    "falls for one of the two policies, or another condition fails. Not reproduced: it falls for neither. Not "
    "measured: fewer than two images."
)


def semantics_verdict(thirds: pd.DataFrame, attacks: pd.DataFrame, searched: Sequence[str]) -> Verdict:
    """Claim 5 by `SEMANTICS_RULE`.

    Args:
        thirds: final similarities, a row a policy and image, with `shallow`, `deep` and `contrast` (their difference).
        attacks: with `policy` and `gain`.
    """
    change = {name: paired(thirds, NO_POLICY, name).loc[list(searched)] for name in ("shallow", "deep", "contrast")}
    if change["shallow"]["n"].min() < 2:
        return Verdict("not measured", "fewer than two images can be compared", SEMANTICS_RULE)
    here = "; ".join(
        f"{p}: shallow {change['shallow'].loc[p, 'mean']:+.2f}, deep {change['deep'].loc[p, 'mean']:+.2f}"
        for p in searched
    )
    lower = [p for p in searched if change["shallow"].loc[p, "high"] < 0]
    if not lower:
        reason = f"the similarity in shallow layers falls for no searched policy ({here})"
        return Verdict("not reproduced", reason, SEMANTICS_RULE, here)
    faults = [f"it does not fall for {p}" for p in searched if p not in lower]
    faults += [f"it falls no more than in deep layers for {p}" for p in lower if change["contrast"].loc[p, "high"] >= 0]
    faults += no_leak(attacks)
    reason = f"the similarity in shallow layers falls ({here})" + ("; but " + "; ".join(faults) if faults else "")
    return Verdict("partly" if faults else "reproduced", reason, SEMANTICS_RULE, here)


LEAKAGE_RULE = (
    "The replication's observation is reproduced: some images leak in spite of a searched policy (an attack beats the "
    "mean image by 1 dB or more), and measurable properties of an image predict which (R² over policies' means on "
    "images that were left out, 95 % interval above 0). Partly: some leak, but nothing here predicts which. Not "
    "reproduced: no image leaks under a searched policy. Not measured: fewer than five images."
)


def leakage_verdict(defended: pd.Series, skill: tuple[float, float, float], images: int) -> Verdict:
    """Extension 3 by `LEAKAGE_RULE`.

    Args:
        defended: gain in dB of every attack on an image with a searched policy.
        skill: the cross-validated R² with its interval.
    """
    if images < 5:
        return Verdict("not measured", f"{images} images do not show which leak", LEAKAGE_RULE)
    leaks, (mean, low, high) = int((defended >= 1).sum()), skill
    here = f"{leaks} of {len(defended)} defended attacks leak; R² {mean:.2f} [{low:.2f}, {high:.2f}], {images} images"
    status = "not reproduced" if not leaks else "reproduced" if low > 0 else "partly"
    return Verdict(status, here, LEAKAGE_RULE, here)


DETAILS_RULE = (
    "The replication's two remarks are reproduced: without random crop and flip the undefended network loses more than "
    "10 points of accuracy (judged where it reaches 20 % with them), and a factor of 0.5 on the victim's loss alone "
    "lowers the PSNR of the attack by squared distance on the same images (95 % interval of the mean paired difference "
    "below 0). "
    "Partly: one of the two. Not reproduced: neither. Not measured: fewer than two images."
)


def details_verdict(accuracy: pd.Series, change: pd.Series) -> Verdict:
    """Extension 4 by `DETAILS_RULE`.

    Args:
        accuracy: percent, of the networks `with` and `without` crop and flip.
        change: mean, low, high and n of the PSNR with the factor minus that without, for the squared distance.
    """
    if change["n"] < 2:
        return Verdict("not measured", "fewer than two images can be compared", DETAILS_RULE)
    loss = accuracy["with"] - accuracy["without"]
    here = f"{-loss:+.1f} points; {change['mean']:+.1f} dB [{change['low']:.1f}, {change['high']:.1f}]"
    judged = accuracy["with"] >= 20
    holds = int(judged and loss > 10) + int(change["high"] < 0)
    status = ("not reproduced", "partly", "reproduced")[holds]
    reason = f"without crop and flip, and with the factor under the squared distance: {here}"
    if not judged:
        reason += f"; an accuracy of {accuracy['with']:.1f} % is too low to judge the first"
    return Verdict(status, reason, DETAILS_RULE, here)
