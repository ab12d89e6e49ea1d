"""Claim 2: the hybrid holds against six attacks (paper, Table 2), as the code runs them and as they should run."""

import dataclasses
from collections.abc import Callable, Sequence

import pandas as pd

from atslib.attacks import ATTACKS, Attack
from atslib.report.pages.claim1_privacy import HYBRID
from atslib.report.result import NO_POLICY, Result, Verdict, bootstrap, paired, reported, summarize
from atslib.report.units.settings import Settings
from atslib.report.units.tables import image_rows, label, provenance
from atslib.report.units.units import AttackUnit, attack_unit, attacked, device_of
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
FURTHER = ("lbfgs-l2-fixed", "lbfgs-cosine-fixed", "sgd-cosine-fixed", "adam-cosine-tv", "adam-cosine-weak-tv")


def scaled(name: str, settings: Settings) -> Attack:
    """A preset at the profile's length: its own steps times `settings.steps` / 4,800.

    Restarts are the preset's at the paper's length only; a shorter run has one.
    """
    attack, share = ATTACKS[name], settings.steps / ATTACKS["adam-cosine"].steps
    steps = max(2, round(attack.steps * share))
    return dataclasses.replace(attack, steps=steps, restarts=attack.restarts if share >= 1 else 1)


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
        if bootstrap(rows[rows["policy"] == NO_POLICY]["gain"])[0] > 0:
            working.append(name)
    here = f"lower for {len(lower)} of {len(presets)} attacks; {len(working)} beat the mean image undefended"
    reason = f"the hybrid's PSNR is {here}"
    if len(lower) <= len(presets) / 2:
        return Verdict("not reproduced", reason, GENERALITY_RULE, here)
    whole = len(lower) == len(working) == len(presets)
    return Verdict("reproduced" if whole else "partly", reason, GENERALITY_RULE, here)


def run(settings: Settings, store: Store, *, on_unit: Callable[[str], None] | None = None) -> Result:
    """Every attack on undefended images and on images with the hybrid. Table `attacks`: a row an image."""
    device, started = device_of(settings.device), on_unit or (lambda name: None)
    tables, sheets = [], {}
    for (name, policy), unit in units(settings).items():
        started(f"{name}, policy {policy}")
        found = attacked(unit, store, device)
        tables.append(image_rows(found, unit).assign(attack=name, steps=unit.attack.steps))
        sheets[name, policy] = found
    attacks = pd.concat(tables, ignore_index=True)
    verdict = generality_verdict(attacks, list(PAPER_ROWS), HYBRID)
    facts = provenance(settings, sheets["adam-cosine", NO_POLICY])
    return Result("claim2_generality", {"attacks": attacks}, facts, verdict, sheets)


def comparison(result: Result) -> pd.DataFrame:
    """A row an attack and policy: our summary beside the published means."""
    ours = summarize(result.tables["attacks"], ["attack", "policy"], epsilon=float(result.facts["epsilon"]))
    ours["gain over mean image"] = result.tables["attacks"].groupby(["attack", "policy"])["gain"].mean()
    rows = reported(table_or_figure="Table 2", metric="PSNR_dB")
    rows = rows.assign(policy=rows["policy_or_defense"].str.removeprefix("hybrid:"))
    names = {printed: name for name, printed in PAPER_ROWS.items()}
    rows = rows[rows["attack"].isin(names)].assign(attack=lambda found: found["attack"].map(names))
    for source, column in (("ats", "paper PSNR"), ("replication", "replication PSNR")):
        ours[column] = rows[rows["source"] == source].set_index(["attack", "policy"])["value"]
    return ours.loc[list(dict.fromkeys(ours.index))]


def differences(result: Result) -> pd.DataFrame:
    """Hybrid minus none on the same images, an attack a row; below 0: harder to attack."""
    groups = result.tables["attacks"].groupby("attack", sort=False)
    parts = {
        name: pd.concat([paired(rows, NO_POLICY, name).loc[[HYBRID]] for _, rows in groups])
        for name in ("psnr", "gain")
    }
    table = pd.concat(parts, axis=1)
    table.index = pd.Index([name for name, _ in groups], name="attack")
    return table
