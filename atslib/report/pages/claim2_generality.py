"""Claim 2: the hybrid holds against six attacks (paper, Table 2), as the code runs them and as they should run."""

from collections.abc import Sequence

import pandas as pd

from atslib.measures.statistics import interval, paired
from atslib.report import compare
from atslib.report.reported import policy_label, reported
from atslib.report.result import NO_POLICY, Result, Verdict
from atslib.report.units.settings import Settings
from atslib.report.units.table1 import HYBRID
from atslib.report.units.tables import attack_rows, label, provenance
from atslib.report.units.units import AttackUnit, attack_unit, scaled
from atslib.store import Store

# preset → the name of its row in the paper's Table 2; "-fixed" twins repair what cannot work as released
PAPER_ROWS = {
    "lbfgs-l2": "LBFGS+L2",
    "adam-cosine": "Adam+Cosine",
    "lbfgs-cosine": "LBFGS+Cosine",
    "adam-l1": "Adam+L1",
    "adam-l2": "Adam+L2",
    "sgd-cosine": "SGD+Cosine",
}
# Presets without a published row; one of your own is added to `ATTACKS` and here.
FURTHER = ["lbfgs-l2-fixed", "lbfgs-cosine-fixed", "sgd-cosine-fixed", "adam-cosine-tv", "adam-cosine-weak-tv"]


def units(settings: Settings) -> dict[tuple[str, str], AttackUnit]:
    """All attacks of the page by (preset, policy); their models are in them."""
    keys = [(name, policy) for name in (*PAPER_ROWS, *FURTHER) for policy in ("", HYBRID)]
    return {(n, label(p)): attack_unit(settings, p, attack=scaled(n, settings)) for n, p in keys}


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
        if interval(rows[rows["policy"] == NO_POLICY]["gain"])[0] > 0:
            working.append(name)
    here = f"lower for {len(lower)} of {len(presets)} attacks; {len(working)} beat the mean image undefended"
    reason = f"the hybrid's PSNR is {here}"
    if len(lower) <= len(presets) / 2:
        return Verdict("not reproduced", reason, GENERALITY_RULE, here)
    whole = len(lower) == len(working) == len(presets)
    return Verdict("reproduced" if whole else "partly", reason, GENERALITY_RULE, here)


def run(settings: Settings, store: Store) -> Result:
    """Every attack on undefended images and on images with the hybrid. Table `attacks`: one row per image."""
    by_preset = units(settings)
    attacks, sheets = attack_rows(by_preset, ("attack", "policy"), settings, store)
    attacks["steps"] = attacks["attack"].map(
        {name: getattr(unit.attack, "steps", 0) for (name, _), unit in by_preset.items()}
    )
    verdict = generality_verdict(attacks, list(PAPER_ROWS), HYBRID)
    facts = provenance(settings, sheets["adam-cosine", NO_POLICY])
    return Result("claim2_generality", {"attacks": attacks}, facts, verdict, sheets)


def comparison(result: Result) -> pd.DataFrame:
    """One row per attack and policy: our summary beside the published means."""
    rows = reported(table_or_figure="Table 2", metric="PSNR_dB")
    policies = rows["policy_or_defense"].map(policy_label)

    def rows_of(key: tuple[str, str]) -> pd.DataFrame:
        return rows[(rows["attack"] == PAPER_ROWS.get(key[0])) & (policies == key[1])]

    return compare.comparison(result, ["attack", "policy"], rows_of)


def differences(result: Result) -> pd.DataFrame:
    """Hybrid minus none on the same images, one row per attack; below 0: harder to attack."""
    return compare.differences(result.tables["attacks"], within=["attack"]).xs(HYBRID, level="policy")
