"""Claim 2: the hybrid holds against six attacks (paper, Table 2), as the code runs them and as they should run."""

import dataclasses
from collections.abc import Callable

import pandas as pd

from atslib.attacks import ATTACKS, Attack
from atslib.experiments.privacy import HYBRID
from atslib.experiments.settings import Settings
from atslib.experiments.tables import image_rows, label, provenance
from atslib.experiments.units import AttackUnit, attack_unit, attacked, device_of
from atslib.report import NO_POLICY, Result, paired, reported, summarize
from atslib.store import Store
from atslib.verdicts import generality_verdict

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
