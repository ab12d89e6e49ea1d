"""Claim 2, the search itself: score random policies, choose, attack what was found (paper, Algorithm 1, Table 2)."""

import pandas as pd

from atslib.experiments import generality
from atslib.experiments.privacy import HYBRID, RANDOM
from atslib.experiments.scoring import SearchUnit, search_unit, searched
from atslib.experiments.settings import Settings
from atslib.experiments.tables import image_rows, label, provenance
from atslib.experiments.units import AttackUnit, attack_unit, attacked, device_of, trained
from atslib.policies import Policy
from atslib.report import NO_POLICY, Result, paired, summarize
from atslib.score_verdicts import search_verdict
from atslib.search import Found, pareto
from atslib.store import Store

MAIN = "adam-cosine"


def units(settings: Settings) -> dict[str, SearchUnit]:
    """The search."""
    return {"search": search_unit(settings)}


def then(settings: Settings, store: Store) -> dict[tuple[str, str], AttackUnit]:
    """What the search decides: the paper's six attacks without a policy and with the found hybrid, and
    the paper's own attack on the published hybrid and on the random policy, by (preset, policy)."""
    return attacks(settings, str(found_by(settings, store)[0].hybrid))


def attacks(settings: Settings, found: str) -> dict[tuple[str, str], AttackUnit]:
    """`then`, for the found hybrid."""
    keys = [(name, policy) for name in generality.PAPER_ROWS for policy in ("", found)]
    keys += [(MAIN, policy) for policy in (HYBRID, RANDOM) if policy != found]
    return {
        (name, label(policy)): attack_unit(settings, policy, attack=generality.scaled(name, settings))
        for name, policy in keys
    }


def found_by(settings: Settings, store: Store) -> tuple[Found, float]:
    """What the search found, and the seconds it took."""
    unit, device = search_unit(settings), device_of(settings.device)
    seconds = float(unit.make(store, device)["seconds"])  # first, because it keeps the time that the search takes
    return searched(unit, store, device), seconds


def run(settings: Settings, store: Store) -> Result:
    """Search, and attack what was found.

    Tables: `candidates` (the search's), `attacks` (a row an attack, policy and image), `accuracy` (a row a policy).
    """
    device, rows, accuracy = device_of(settings.device), [], {}
    found, seconds = found_by(settings, store)
    for (name, policy), attack in attacks(settings, str(found.hybrid)).items():
        artifact = attacked(attack, store, device)
        rows.append(image_rows(artifact, attack).assign(attack=name))
        accuracy[policy] = float(trained(attack.model, store, device)[1]["accuracy"])
    table = pd.concat(rows, ignore_index=True)
    tables = {
        "candidates": found.table.assign(pareto=pareto(found.table)),
        "attacks": table,
        "accuracy": pd.DataFrame({"policy": list(accuracy), "accuracy": list(accuracy.values())}),
    }
    verdict = search_verdict(table[table["attack"] == MAIN], pd.Series(accuracy), str(found.hybrid), RANDOM)
    facts = provenance(settings, artifact) | {"hybrid": str(found.hybrid), "search seconds": round(seconds)}
    return Result("claim2_search", tables, facts, verdict)


def chosen(result: Result) -> pd.DataFrame:
    """The best policies with their scores, best first, their functions named."""
    table = result.tables["candidates"]
    best = table[table["chosen"]].set_index("policy")
    best.insert(0, "functions", [Policy.parse(policy).names() for policy in best.index])
    return best[["functions", "s_pri", "ci_low", "ci_high", "s_acc", "n"]]


def comparison(result: Result) -> pd.DataFrame:
    """A row a policy under the paper's attack: our summary, the gain over the mean image and the accuracy."""
    attacks = result.tables["attacks"]
    rows = attacks[attacks["attack"] == MAIN]
    ours = summarize(rows, "policy", epsilon=float(result.facts["epsilon"]))
    ours["gain over mean image"] = rows.groupby("policy")["gain"].mean()
    ours["accuracy"] = result.tables["accuracy"].set_index("policy")["accuracy"]
    return ours


def differences(result: Result) -> pd.DataFrame:
    """The found hybrid minus none on the same images, an attack a row; below 0: harder to attack."""
    rows, found = {}, result.facts["hybrid"]
    for name, group in result.tables["attacks"].groupby("attack", sort=False):
        pair = group[group["policy"].isin((NO_POLICY, found))]
        rows[name] = pd.concat({v: paired(pair, NO_POLICY, v).loc[found] for v in ("psnr", "gain")})
    return pd.DataFrame(rows).T.rename_axis("attack").astype({("psnr", "n"): int, ("gain", "n"): int})
