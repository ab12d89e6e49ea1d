"""Claim 1, second part: pruning and noise on the shared gradient beside the hybrid (paper, Table
3).
"""

import pandas as pd

from atsbook.findings import compare
from atsbook.findings.reported import reported
from atsbook.findings.result import NO_POLICY, Result, Verdict
from atsbook.findings.statistics import paired, share_interval
from atsbook.findings.verdicts import KEEPS, cannot_tell, guards, kept
from atsbook.runs.attacks import AttackUnit, attack_unit
from atsbook.runs.networks import ModelUnit, Unit, model_unit, semi_trained
from atsbook.runs.settings import Settings
from atsbook.runs.store import Store
from atsbook.runs.table1 import HYBRID, SEARCHED, classes, on_network, short
from atsbook.runs.tables import accuracy_rows, attack_rows, attacked_facts, label, provenance
from atslib.clients.training import TrainConfig

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


# Further strengths, without a published row, so that each defense is a curve.
FURTHER = (
    "prune:0.5",
    "prune:0.9",
    *(f"{kind}:{s}" for kind in ("laplace", "gaussian") for s in (1e-4, 3e-3, 0.1)),
)


def attacks(settings: Settings) -> dict[tuple[str, str], AttackUnit]:
    """All attacks of the page by (defense or policy, how it is applied).

    On untrained networks there is one way, "fixed", and more strengths and policies. Else the
    network is the one that was trained with the defense, and "code" attacks a gradient that is not
    perturbed.
    """
    initial = settings.regime == "initial"
    units = {}
    trained = networks(settings)
    for name in (*DEFENSES, *(FURTHER if initial else ())):
        model = {} if initial else {"model": trained[name]}
        units[name, "fixed"] = attack_unit(settings, "", defense=name, **model)
        if not initial:
            units[name, "code"] = attack_unit(settings, "", **model)
    policies = {
        label(policy): policy for policy in (("", *SEARCHED, HYBRID) if initial else ("", HYBRID))
    }
    return {
        (name, "fixed"): attack_unit(settings, policy) for name, policy in policies.items()
    } | units


def semi(settings: Settings) -> dict[tuple[str, str], AttackUnit]:
    """The attacks that are made on untrained networks, on the semi-trained one: fewer images, a
    hundred steps.
    """
    if settings.regime != "initial":
        return {}
    there = on_network(settings, settings.model)
    model = semi_trained(settings)
    return {
        key: attack_unit(there, unit.policy, defense=unit.defense, model=model)
        for key, unit in attacks(settings).items()
    }


def networks(settings: Settings) -> dict[str, ModelUnit]:
    """A network for each policy and each defense that is attacked, after short trainings."""
    own = short(settings)
    initial = settings.regime == "initial"
    kinds = {label(policy): (policy, "") for policy in ("", *(SEARCHED if initial else ()), HYBRID)}
    kinds |= {name: ("", name) for name in (*DEFENSES, *(FURTHER if initial else ()))}
    return {
        name: model_unit(own, train=TrainConfig(policy=policy, epochs=own.epochs, defense=defense))
        for name, (policy, defense) in kinds.items()
    }


def units(settings: Settings) -> dict[tuple[str, str], Unit]:
    """All that the page needs."""
    there = {("semi", *key): unit for key, unit in semi(settings).items()}
    return (
        attacks(settings)
        | {("trained", name): unit for name, unit in networks(settings).items()}
        | there
    )


DEFENSES_RULE = (
    "The outcome is the attack's gain over the best guess of somebody who knows the policy and sees no gradient, when "
    "the shared gradient is perturbed. A defense is usable if a network trained with it keeps at least "
    f"{KEEPS:.0%} of what one without learns above chance. A rival is a usable pruning or noise of the paper's Table 3. "
    "Reproduced: on the same images the hybrid leaves an attack less than each rival (95 % interval of the mean "
    "paired difference below 0), and is usable "
    "itself. Partly: lower than under more than half of them, or than under all at a higher cost. Not "
    "reproduced: otherwise. Cannot tell: undefended attacks have no gain, fewer than 30 images, or a network within "
    "twice chance without any defense."
)


def defenses_verdict(
    attacks: pd.DataFrame, accuracy: pd.Series, hybrid: str, classes: int
) -> Verdict:
    """The paper's Table 3 by `DEFENSES_RULE`.

    Args:
        attacks: rows with `defense`, `applied`, `image`, `psnr`, `floor_policy` and `gain`.
        accuracy: percent, by defense, of networks that tell `classes` apart.
    """
    shared = attacks[attacks["applied"] == "fixed"]
    cost = accuracy[NO_POLICY] - accuracy[hybrid]
    left = kept(accuracy[hybrid], accuracy[NO_POLICY], classes)
    rivals = usable(accuracy, classes)
    beaten = [
        name
        for name in rivals
        if paired(shared, name, "gain", by="defense").loc[hybrid, "high"] < 0
    ]
    mean = shared.groupby("defense")["gain"].mean()
    here = f"lower than {len(beaten)} of {len(rivals)} usable defenses, {-cost:+.1f} points"
    reason = f"the hybrid's gain of {mean[hybrid]:+.1f} dB is {here}"
    bare = shared.assign(policy=shared["defense"])
    why = guards(bare, accuracies={NO_POLICY: accuracy[NO_POLICY]}, classes=classes)
    faults = (
        []
        if len(beaten) == len(rivals)
        else [f"not than {', '.join(n for n in rivals if n not in beaten)}"]
    )
    faults += (
        [f"the hybrid keeps {left:.0%} of what is learned above chance"]
        if not left >= KEEPS
        else []
    )
    refuted = len(beaten) <= len(rivals) / 2
    return cannot_tell(compare.judge(DEFENSES_RULE, reason, here, faults, refuted=refuted), why)


def usable(accuracy: pd.Series, classes: int) -> list[str]:
    """The paper's prunings and noises that keep what the rule asks of the accuracy, in percent by
    defense.
    """
    return [
        name
        for name in accuracy.index
        if name in DEFENSES and kept(accuracy[name], accuracy[NO_POLICY], classes) >= KEEPS
    ]


def judged(result: Result, table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a `summary` that the verdict is about: no defense, the hybrid, and those that are
    usable.
    """
    accuracy = result.tables["accuracy"].set_index("defense")["accuracy"]
    return table.xs("fixed", level="applied").loc[
        [NO_POLICY, HYBRID, *usable(accuracy, classes(result.facts["dataset"]))]
    ]


def run(settings: Settings, store: Store) -> Result:
    """Train with each defense, attack gradients with and without it.

    Tables: `attacks`, one row per defense and image with `applied` "fixed" (the shared gradient is
    perturbed) or "code" (only the training was, as both published codebases do), `accuracy`, and
    where `attacks` is of untrained networks `semi`, the same of the semi-trained one.
    """
    by_defense = attacks(settings)
    rows, sheets = attack_rows(by_defense, ("defense", "applied"), settings, store)
    accuracy = accuracy_rows(networks(settings), ["defense"], settings, store).drop(columns="train")
    known = accuracy.set_index("defense")["accuracy"]
    verdict = defenses_verdict(rows, known, HYBRID, classes(settings.dataset))
    facts = provenance(settings, sheets[NO_POLICY, "fixed"]) | attacked_facts(
        by_defense[NO_POLICY, "fixed"]
    )
    tables = {"attacks": rows, "accuracy": accuracy}
    if there := semi(settings):
        tables["semi"], _ = attack_rows(there, ("defense", "applied"), settings, store)
    return Result("claim1_defenses", tables, facts, verdict, sheets)


def summary(result: Result, table: str = "attacks") -> pd.DataFrame:
    """One row per defense, as text: PSNR, gain with its interval, identification, accuracy, where
    it is known.
    """
    known = result.tables["accuracy"].set_index("defense")["accuracy"]
    rows = compare.outcomes(result, ["defense", "applied"], result.tables[table])
    rows = rows[["PSNR, dB", "gain, dB", "used image found", "photograph found"]]
    return rows.assign(
        **{
            "accuracy, %": [
                f"{known[name]:.1f}" if name in known else "–" for name, _ in rows.index
            ]
        }
    )


def strengths(result: Result, table: str = "attacks") -> pd.DataFrame:
    """One row per defense in order of kind and strength: `kind`, and the gain's `mean`, `low` and
    `high` in dB.
    """
    attacks = result.tables[table]
    rows = []
    for name, own in attacks[attacks["applied"] == "fixed"].groupby("defense", sort=False):
        kind, _, strength = name.partition(":")
        row = {
            "defense": name,
            "kind": kind if strength else "policy",
            "strength": float(strength or 0),
        }
        rows.append(row | compare.gained(own))
    return pd.DataFrame(rows).sort_values(["kind", "strength"], kind="stable", ignore_index=True)


def exchange(result: Result, table: str = "attacks") -> pd.DataFrame:
    """What each defense gives for what: one row per outcome and defense whose accuracy is known, by
    kind and strength.

    Columns: `outcome`, `defense`, `kind`, `strength`, `accuracy` in percent of the network trained
    with it, and `mean`, `low` and `high`: the gain in dB, or the share of photographs singled out
    in percent, with its 95 % interval.
    """
    known = result.tables["accuracy"].set_index("defense")["accuracy"]
    attacks = result.tables[table]
    rows = strengths(result, table).assign(
        outcome="gain, dB", accuracy=lambda rows: rows["defense"].map(known)
    )
    shares = {}
    for name, own in attacks[attacks["applied"] == "fixed"].groupby("defense", sort=False):
        hits = int((own["rank_original"] == 1).sum())
        parts = (hits / len(own), *share_interval(hits, len(own)))
        shares[name] = dict(
            zip(("mean", "low", "high"), (100 * part for part in parts), strict=True)
        )
    found = rows.drop(columns=["mean", "low", "high"]).assign(outcome="photograph found, %")
    found = found.join(pd.DataFrame(shares).T, on="defense")
    return pd.concat([rows, found]).dropna(subset="accuracy", ignore_index=True)


def comparison(result: Result) -> pd.DataFrame:
    """One row per defense and way of applying it: our summary, accuracy, and the published numbers."""
    tables = ("ats", "Table 3"), ("replication", "Table 6")
    rows = pd.concat([reported(source=source, table_or_figure=table) for source, table in tables])
    printed = {NO_POLICY: NO_POLICY, HYBRID: f"hybrid:{HYBRID}"} | DEFENSES
    by = ["defense", "applied"]
    return compare.comparison(
        result, by, lambda key: rows[rows["policy_or_defense"] == printed.get(key[0])]
    )


def differences(result: Result) -> pd.DataFrame:
    """Each defense minus none on the same images, where the shared gradient is perturbed; below 0:
    harder.
    """
    rows = result.tables["attacks"]
    return compare.differences(rows[rows["applied"] == "fixed"], by="defense")
