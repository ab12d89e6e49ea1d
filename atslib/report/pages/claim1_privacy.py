"""Claim 1: searched policies lower the quality of reconstructions and keep the accuracy (paper, Table 1)."""

import dataclasses
from collections.abc import Sequence

import pandas as pd

from atslib.measures.statistics import interval, paired
from atslib.report import compare
from atslib.report.result import NO_POLICY, Result, Verdict
from atslib.report.units import table1
from atslib.report.units.settings import Settings
from atslib.report.units.table1 import HYBRID, POLICIES, SEARCHED, block, published_rows
from atslib.report.units.tables import accuracy_rows, attack_rows, curve_rows, image_rows, label, provenance
from atslib.report.units.units import AttackUnit, attack_unit, attacked, device_of
from atslib.store import Store

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
    "Cannot tell: the positive control fails (attack on an untrained network, mean PSNR not above the mean "
    "image's by 2 dB)."
)


def privacy_verdict(
    attacks: pd.DataFrame, accuracy: pd.Series, control: pd.DataFrame, searched: Sequence[str], hybrid: str
) -> Verdict:
    """Claim 1 by `PRIVACY_RULE`.

    Args:
        attacks: one row per policy and image, with `policy`, `image`, `psnr`, `floor_mean`.
        accuracy: percent, by policy.
        control: rows of the positive control, with `psnr` and `floor_mean`.
        searched: the searched policies beside the hybrid.
    """
    lead = (control["psnr"] - control["floor_mean"]).mean()
    if not lead >= 2:
        return Verdict("cannot tell", f"the positive control leads its floor by {lead:.1f} dB, not 2", PRIVACY_RULE)
    change = paired(attacks, NO_POLICY)
    lower = {p: bool(change.loc[p, "high"] < 0) for p in (*searched, hybrid)}
    bare = attacks[attacks["policy"] == NO_POLICY]
    gain = bare["psnr"] - bare["floor_mean"]
    gain_low, gain_high = interval(gain.dropna())
    cost = accuracy[NO_POLICY] - accuracy[hybrid]
    fell = change.loc[hybrid]
    if fell["n"] < 2:
        return Verdict("cannot tell", "fewer than two images can be compared, so there is no interval", PRIVACY_RULE)
    here, words = compare.levels(attacks, accuracy, hybrid), f"{compare.interval(fell)}, {-cost:+.1f} points"
    faults = [f"{p} does not lower the PSNR ({change.loc[p, 'mean']:+.1f} dB)" for p in searched if not lower[p]]
    if not gain_low > 0:
        faults.append(
            f"without a policy attacks do not beat the mean image ({gain.mean():+.1f} dB [{gain_low:.1f}, "
            f"{gain_high:.1f}]), so a lower PSNR does not show protection"
        )
    if not cost <= 2:
        faults.append(f"the hybrid costs {cost:.1f} points of accuracy")
    if not lower[hybrid]:
        return compare.judge(PRIVACY_RULE, f"the hybrid's PSNR is not lower ({words})", here, refuted=True)
    return compare.judge(PRIVACY_RULE, f"the hybrid lowers the PSNR ({words})", here, faults)


def run(settings: Settings, store: Store) -> Result:
    """Train with and without policies, attack, and judge.

    Tables: `attacks` (one row per policy and image), `accuracy` (one row per policy), `curve` (GradSim along the
    attack, one row per policy, step and image), `control`, and of the four blocks of Table 1 `blocks` (one row per
    data set, network, policy and image) and `blocks_accuracy`. Sheets: the images behind the first, the control,
    and "grid …".
    """
    by_policy, blocks, control = attacks_of(settings), table1.units(settings), control_unit(settings)
    attacks, sheets = attack_rows(by_policy, ["policy"], settings, store)
    sheets["control"] = attacked(control, store, device_of(settings.device))
    for name, unit in grid(settings).items():
        sheets[f"grid {name}"] = attacked(unit, store, device_of(settings.device))
    tables = {
        "attacks": attacks,
        "accuracy": accuracy_rows({p: unit.model for p, unit in by_policy.items()}, ["policy"], settings, store),
        "curve": pd.concat([curve_rows(sheets[policy], policy) for policy in by_policy], ignore_index=True),
        "control": image_rows(sheets["control"], control),
        "blocks": attack_rows(blocks, table1.KEYS, settings, store)[0],
    }
    networks = {key: unit.model for key, unit in blocks.items()}
    tables["blocks_accuracy"] = accuracy_rows(networks, table1.KEYS, settings, store).drop(columns="train")
    accuracy = tables["accuracy"].set_index("policy")["accuracy"]
    verdict = privacy_verdict(attacks, accuracy, tables["control"], SEARCHED, HYBRID)
    return Result("claim1_privacy", tables, provenance(settings, sheets[NO_POLICY]), verdict, sheets)


def comparison(result: Result) -> pd.DataFrame:
    """One row per policy: our summary beside the paper's and the replication's Table 1a."""
    return compare.comparison(result, "policy", lambda policy: published_rows("Table 1a", policy))


def differences(result: Result) -> pd.DataFrame:
    """Each policy minus none on the same images, PSNR and gain; below 0: harder to attack."""
    return compare.differences(result.tables["attacks"])


def blocks(result: Result) -> pd.DataFrame:
    """One row per data set, network and policy: our summary beside both publications' block of Table 1."""
    attacks, accuracy = result.tables["blocks"], result.tables["blocks_accuracy"]

    def rows_of(key: tuple[str, str, str]) -> pd.DataFrame:
        return published_rows(block(*key[:2])[0], key[2])

    return compare.comparison(result, list(table1.KEYS), rows_of, attacks=attacks, accuracy=accuracy)


def block_differences(result: Result) -> pd.DataFrame:
    """Each policy minus none on the same images, PSNR and gain, one row per block and policy; below 0: harder."""
    return compare.differences(result.tables["blocks"], within=table1.KEYS[:2])
