"""Claim 1: searched policies lower the quality of reconstructions and keep the accuracy (paper, Table 1)."""

import dataclasses
from collections.abc import Callable, Sequence

import pandas as pd

from atslib.report.result import NO_POLICY, Result, Verdict, bootstrap, paired, summarize
from atslib.report.units import table1
from atslib.report.units.settings import Settings
from atslib.report.units.table1 import RANDOM
from atslib.report.units.tables import curve_rows, image_rows, label, provenance
from atslib.report.units.units import AttackUnit, attack_unit, attacked, device_of, trained
from atslib.store import Store

SEARCHED = table1.BLOCKS["cifar100", "resnet20"][1]
HYBRID = table1.hybrid(SEARCHED)
POLICIES = ("", RANDOM, *SEARCHED, HYBRID)
CONTROL_MODEL = "convnet-16"
CONTROL_IMAGES = 8
GRID_IMAGES, GRID_FRAMES = 12, 12  # of the grid of images: those of the explorer, so that both read one artifact


def control_unit(settings: Settings) -> AttackUnit:
    """The positive control: the same attack on undefended images and an untrained ConvNet."""
    unit = attack_unit(settings, "")
    return dataclasses.replace(
        unit,
        model=dataclasses.replace(unit.model, model=CONTROL_MODEL, train=None, fraction=1.0),
        attack=dataclasses.replace(unit.attack, steps=settings.control_steps),
        last=min(CONTROL_IMAGES, settings.images),
        crop_flip=False,
    )


def grid(settings: Settings) -> dict[str, AttackUnit]:
    """The attacks without a policy and with the hybrid on as many images as the grid shows."""
    own = settings.images >= GRID_IMAGES or settings.profile == "smoke"
    size = {} if own else {"last": GRID_IMAGES, "frames": GRID_FRAMES}
    return {label(policy): attack_unit(settings, policy, **size) for policy in ("", HYBRID)}


def units(settings: Settings) -> dict[object, AttackUnit]:
    """All that the page needs: its attacks by the policy's label, the control, the grid and the four blocks."""
    more = {("grid", name): unit for name, unit in grid(settings).items()} | table1.units(settings)
    return attacks_of(settings) | {"control": control_unit(settings)} | more


def attacks_of(settings: Settings) -> dict[str, AttackUnit]:
    """The attacks that are judged, by the policy's label."""
    return {label(policy): attack_unit(settings, policy) for policy in POLICIES}


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


def run(settings: Settings, store: Store, *, on_unit: Callable[[str], None] | None = None) -> Result:
    """Train with and without policies, attack, and judge.

    Tables: `attacks` (a row a policy and image), `accuracy` (a row a policy), `curve` (GradSim along the
    attack, a row a policy, step and image), `control`, and those of `table1.measure`. Sheets: the images behind
    the first, the control, and "grid …".
    """
    device, started = device_of(settings.device), on_unit or (lambda name: None)
    attacks, accuracy, curve, sheets = [], [], [], {}
    attacked_units = attacks_of(settings) | {"control": control_unit(settings)}
    for name, unit in attacked_units.items():
        started(f"policy {name}" if name != "control" else "positive control")
        found = sheets[name] = attacked(unit, store, device)
        if name != "control":
            _, model = trained(unit.model, store, device)
            attacks.append(image_rows(found, unit))
            accuracy.append({"policy": name, "accuracy": float(model["accuracy"]), "train": int(model["images"])})
            curve.append(curve_rows(found, name))
    for name, unit in grid(settings).items():
        sheets[f"grid {name}"] = attacked(unit, store, device)
    control = image_rows(sheets["control"], attacked_units["control"])
    tables = {
        "attacks": pd.concat(attacks, ignore_index=True),
        "accuracy": pd.DataFrame(accuracy),
        "curve": pd.concat(curve, ignore_index=True),
        "control": control,
    } | table1.measure(settings, store)
    verdict = privacy_verdict(
        tables["attacks"],
        tables["accuracy"].set_index("policy")["accuracy"],
        tables["control"],
        SEARCHED,
        HYBRID,
    )
    facts = provenance(settings, sheets[NO_POLICY])
    return Result("claim1_privacy", tables, facts, verdict, sheets)


def comparison(result: Result) -> pd.DataFrame:
    """Our summary a policy beside the paper's and the replication's Table 1a."""
    ours = summarize(result.tables["attacks"], "policy", epsilon=float(result.facts["epsilon"]))
    attacks = result.tables["attacks"]
    ours["gain over mean image"] = attacks.groupby("policy")["gain"].mean()
    ours["accuracy"] = result.tables["accuracy"].set_index("policy")["accuracy"]
    others = {policy: table1.published("Table 1a", policy) for policy in ours.index}
    return ours.join(pd.DataFrame(others).T)


def differences(result: Result) -> pd.DataFrame:
    """Each policy minus none on the same images, with intervals: of the PSNR, and of the gain over the mean image.

    Below 0: harder to attack. The gain leaves out what a policy does to the floor itself.
    """
    parts = {name: paired(result.tables["attacks"], NO_POLICY, name) for name in ("psnr", "gain")}
    return pd.concat(parts, axis=1)
