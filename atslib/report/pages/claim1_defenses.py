"""Claim 1, second part: pruning and noise on the shared gradient beside the hybrid (paper, Table 3)."""

import pandas as pd

from atslib.clients.training import TrainConfig
from atslib.report import compare
from atslib.report.reported import reported
from atslib.report.result import NO_POLICY, Result, Verdict
from atslib.report.units.settings import Settings
from atslib.report.units.table1 import HYBRID
from atslib.report.units.tables import accuracy_rows, attack_rows, provenance
from atslib.report.units.units import AttackUnit, attack_unit, model_unit
from atslib.report.verdicts import no_leak
from atslib.store import Store

# defense → its row in the paper's Table 3 and the replication's Table 6, or "" for one of your own
DEFENSES = {
    "prune:0.7": "pruning-70",
    "prune:0.95": "pruning-95",
    "prune:0.99": "pruning-99",
    "laplace:0.001": "laplacian-1e-3",
    "laplace:0.01": "laplacian-1e-2",
    "gaussian:0.001": "gaussian-1e-3",
    "gaussian:0.01": "gaussian-1e-2",
}


def units(settings: Settings) -> dict[tuple[str, str], AttackUnit]:
    """All attacks of the page by (defense, how it is applied); their models are in them."""
    attacks = {}
    for name in (NO_POLICY, *DEFENSES, HYBRID):
        policy, defense = HYBRID if name == HYBRID else "", name if name in DEFENSES else ""
        train = TrainConfig(policy=policy, epochs=settings.epochs, defense=defense)
        model = model_unit(settings, policy, train=train)
        attacks[name, "fixed"] = attack_unit(settings, policy, model=model, defense=defense)
        if defense:
            attacks[name, "code"] = attack_unit(settings, policy, model=model)
    return attacks


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
    shared = attacks[attacks["applied"] == "fixed"]
    mean = shared.groupby("defense")["psnr"].mean()
    loss = accuracy[NO_POLICY] - accuracy
    rivals = [name for name in mean.index if name not in (NO_POLICY, hybrid) and loss[name] <= 5]
    beaten = [name for name in rivals if mean[hybrid] < mean[name]]
    here = f"lower than {len(beaten)} of {len(rivals)} usable defenses, {-loss[hybrid]:+.1f} points"
    leaks_nothing = no_leak(shared.assign(policy=shared["defense"]))
    reason = "; but ".join([f"the hybrid's PSNR of {mean[hybrid]:.1f} dB is {here}", *leaks_nothing])
    if rivals and len(beaten) == len(rivals) and loss[hybrid] <= 2 and not leaks_nothing:
        return Verdict("reproduced", reason, DEFENSES_RULE, here)
    status = "partly" if len(beaten) > len(rivals) / 2 else "not reproduced"
    return Verdict(status, reason, DEFENSES_RULE, here)


def run(settings: Settings, store: Store) -> Result:
    """Train with each defense, attack gradients with and without it.

    Tables: `attacks`, one row per defense and image with `applied` "fixed" (the shared gradient is perturbed)
    or "code" (only the training was, as both published codebases do), and `accuracy`.
    """
    by_defense = units(settings)
    attacks, sheets = attack_rows(by_defense, ("defense", "applied"), settings, store)
    networks = {name: unit.model for (name, _), unit in by_defense.items()}
    accuracy = accuracy_rows(networks, ["defense"], settings, store).drop(columns="train")
    verdict = defenses_verdict(attacks, accuracy.set_index("defense")["accuracy"], HYBRID)
    facts = provenance(settings, sheets[NO_POLICY, "fixed"])
    return Result("claim1_defenses", {"attacks": attacks, "accuracy": accuracy}, facts, verdict, sheets)


def comparison(result: Result) -> pd.DataFrame:
    """One row per defense and way of applying it: our summary, accuracy, and the published numbers."""
    tables = ("ats", "Table 3"), ("replication", "Table 6")
    rows = pd.concat([reported(source=source, table_or_figure=table) for source, table in tables])
    printed = {NO_POLICY: NO_POLICY, HYBRID: f"hybrid:{HYBRID}"} | DEFENSES
    by = ["defense", "applied"]
    return compare.comparison(result, by, lambda key: rows[rows["policy_or_defense"] == printed[key[0]]])


def differences(result: Result) -> pd.DataFrame:
    """Each defense minus none on the same images, where the shared gradient is perturbed; below 0: harder."""
    rows = result.tables["attacks"]
    return compare.differences(rows[rows["applied"] == "fixed"], by="defense")
