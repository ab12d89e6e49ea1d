"""Claim 1, second part: pruning and noise on the shared gradient beside the hybrid (paper, Table 3)."""

from collections.abc import Callable

import pandas as pd

from atslib.clients.training import TrainConfig
from atslib.report.pages.claim1_privacy import HYBRID
from atslib.report.result import NO_POLICY, Result, Verdict, bootstrap, paired, reported, summarize
from atslib.report.units.settings import Settings
from atslib.report.units.tables import image_rows, provenance
from atslib.report.units.units import AttackUnit, attack_unit, attacked, device_of, model_unit, trained
from atslib.store import Store

# defense → its row in the paper's Table 3 and the replication's Table 6
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
    found = {}
    for name in (NO_POLICY, *DEFENSES, HYBRID):
        policy, defense = HYBRID if name == HYBRID else "", name if name in DEFENSES else ""
        train = TrainConfig(policy=policy, epochs=settings.epochs, defense=defense)
        model = model_unit(settings, policy, train=train)
        found[name, "fixed"] = attack_unit(settings, policy, model=model, defense=defense)
        if defense:
            found[name, "code"] = attack_unit(settings, policy, model=model)
    return found


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


def run(settings: Settings, store: Store, *, on_unit: Callable[[str], None] | None = None) -> Result:
    """Train with each defense, attack gradients with and without it.

    Tables: `attacks`, a row a defense and image with `applied` "fixed" (the shared gradient is perturbed)
    or "code" (only the training was, as both published codebases do), and `accuracy`.
    """
    device, started = device_of(settings.device), on_unit or (lambda name: None)
    tables, accuracy, sheets = [], {}, {}
    for (name, applied), unit in units(settings).items():
        started(f"defense {name}, {applied}")
        found = sheets[name, applied] = attacked(unit, store, device)
        tables.append(image_rows(found, unit).assign(defense=name, applied=applied))
        accuracy[name] = float(trained(unit.model, store, device)[1]["accuracy"])
    accuracy = [{"defense": name, "accuracy": value} for name, value in accuracy.items()]
    tables = {"attacks": pd.concat(tables, ignore_index=True), "accuracy": pd.DataFrame(accuracy)}
    verdict = defenses_verdict(tables["attacks"], tables["accuracy"].set_index("defense")["accuracy"], HYBRID)
    return Result("claim1_defenses", tables, provenance(settings, sheets[NO_POLICY, "fixed"]), verdict, sheets)


def comparison(result: Result) -> pd.DataFrame:
    """A row a defense and way of applying it: our summary, accuracy, and the published numbers."""
    ours = summarize(result.tables["attacks"], ["defense", "applied"], epsilon=float(result.facts["epsilon"]))
    ours["gain over mean image"] = result.tables["attacks"].groupby(["defense", "applied"])["gain"].mean()
    defense = ours.index.get_level_values("defense")
    ours["accuracy"] = result.tables["accuracy"].set_index("defense")["accuracy"].reindex(defense).to_numpy()
    printed = defense.map({**DEFENSES, HYBRID: f"hybrid:{HYBRID}"})
    for source, table in (("ats", "Table 3"), ("replication", "Table 6")):
        rows = reported(source=source, table_or_figure=table)
        for metric, name in (("PSNR_dB", "PSNR"), ("val_accuracy_pct", "accuracy")):
            found = rows[rows["metric"] == metric].set_index("policy_or_defense")["value"]
            ours[f"{'paper' if source == 'ats' else source} {name}"] = found.reindex(printed).to_numpy()
    return ours


def differences(result: Result) -> pd.DataFrame:
    """Each defense minus none on the same images, where the shared gradient is perturbed; below 0: harder."""
    rows = result.tables["attacks"]
    rows = rows[rows["applied"] == "fixed"]
    return pd.concat({name: paired(rows, NO_POLICY, name, by="defense") for name in ("psnr", "gain")}, axis=1)
