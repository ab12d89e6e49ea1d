"""Claim 2, the search itself: score random policies, choose, attack what was found (paper, Algorithm 1, Table 2)."""

import pandas as pd

from atslib.measures.statistics import paired
from atslib.policies.policy import Policy
from atslib.report import compare
from atslib.report.pages import claim2_generality
from atslib.report.result import NO_POLICY, Result, Verdict
from atslib.report.units.networks import model_unit
from atslib.report.units.scoring import SearchUnit, search_result, search_unit
from atslib.report.units.settings import Settings
from atslib.report.units.table1 import HYBRID, RANDOM
from atslib.report.units.tables import accuracy_rows, attack_rows, label, provenance
from atslib.report.units.units import AttackUnit, attack_unit, scaled
from atslib.report.verdicts import no_leak
from atslib.scores.search import pareto
from atslib.store import Store

MAIN = "adam-cosine"


def units(settings: Settings) -> dict[str, SearchUnit]:
    """The search."""
    return {"search": search_unit(settings)}


def later_units(settings: Settings, store: Store) -> dict[tuple[str, str], AttackUnit]:
    """What the search decides: the paper's six attacks without a policy and with the hybrid that it found, and
    the paper's own attack on the published hybrid and on the random policy, by (preset, policy)."""
    return attacks(settings, str(search_result(settings, store)[0].hybrid))


def attacks(settings: Settings, hybrid: str) -> dict[tuple[str, str], AttackUnit]:
    """`later_units`, for a hybrid."""
    keys = [(name, policy) for name in claim2_generality.PAPER_ROWS for policy in ("", hybrid)]
    keys += [(MAIN, policy) for policy in (HYBRID, RANDOM) if policy != hybrid]
    return {
        (name, label(policy)): attack_unit(settings, policy, attack=scaled(name, settings)) for name, policy in keys
    }


SEARCH_RULE = (
    "Reproduced: on the same images the attack's PSNR is lower with the found hybrid than without a policy and than "
    "with the random one (95 % intervals of the mean paired differences below 0), the hybrid costs at most 2 points of "
    "accuracy, and undefended attacks beat the policy's mean image (interval of the mean gain above 0). Partly: lower "
    "than without a policy, but another condition fails. Not reproduced: not lower than without a policy. Not "
    "measured: fewer than two images."
)


def search_verdict(attacks: pd.DataFrame, accuracy: pd.Series, hybrid: str, random: str) -> Verdict:
    """Whether the search finds protection, by `SEARCH_RULE`.

    Args:
        attacks: rows of the paper's attack, with `policy`, `image`, `psnr` and `gain`.
        accuracy: percent, by policy.
    """
    change = {base: paired(attacks, base).loc[hybrid] for base in (NO_POLICY, random)}
    cost = accuracy[NO_POLICY] - accuracy[hybrid]
    fell = change[NO_POLICY]
    if fell["n"] < 2:
        return Verdict("not measured", "fewer than two images can be compared, so there is no interval", SEARCH_RULE)
    here = f"{compare.interval(fell)}, {-cost:+z.1f} points"
    if not fell["high"] < 0:
        return compare.judge(SEARCH_RULE, f"the found hybrid's PSNR is not lower ({here})", here, refuted=True)
    faults = []
    if not change[random]["high"] < 0:
        faults.append(f"it is not lower than with the random policy ({change[random]['mean']:+.1f} dB)")
    if not cost <= 2:
        faults.append(f"it costs {cost:.1f} points of accuracy")
    faults += no_leak(attacks)
    return compare.judge(SEARCH_RULE, f"the found hybrid {hybrid} lowers the PSNR ({here})", here, faults)


def run(settings: Settings, store: Store) -> Result:
    """Search, and attack what was found.

    Tables: `candidates` (the search's), `attacks` (one row per attack, policy and image), `accuracy` (one row per
    policy).
    """
    search, seconds = search_result(settings, store)
    by_preset = attacks(settings, str(search.hybrid))
    rows, artifacts = attack_rows(by_preset, ("attack", "policy"), settings, store)
    networks = {policy: model_unit(settings, unit.policy) for (_, policy), unit in by_preset.items()}
    tables = {
        "candidates": search.table.assign(pareto=pareto(search.table)),
        "attacks": rows,
        "accuracy": accuracy_rows(networks, ["policy"], settings, store).drop(columns="train"),
    }
    accuracy = tables["accuracy"].set_index("policy")["accuracy"]
    verdict = search_verdict(rows[rows["attack"] == MAIN], accuracy, str(search.hybrid), RANDOM)
    last = list(artifacts.values())[-1]
    facts = provenance(settings, last) | {"hybrid": str(search.hybrid), "search seconds": round(seconds)}
    return Result("claim2_search", tables, facts, verdict)


def chosen(result: Result) -> pd.DataFrame:
    """The best policies with their scores, best first, their functions named."""
    table = result.tables["candidates"]
    best = table[table["chosen"]].set_index("policy")
    best.insert(0, "functions", [Policy.parse(policy).names() for policy in best.index])
    return best[["functions", "s_pri", "ci_low", "ci_high", "s_acc", "n"]]


def comparison(result: Result) -> pd.DataFrame:
    """One row per policy under the paper's attack: our summary, the gain over the mean image and the accuracy."""
    attacks = result.tables["attacks"]
    return compare.comparison(result, "policy", attacks=attacks[attacks["attack"] == MAIN])


def differences(result: Result) -> pd.DataFrame:
    """The found hybrid minus none on the same images, one row per attack; below 0: harder to attack."""
    attacks, hybrid = result.tables["attacks"], result.facts["hybrid"]
    pair = attacks[attacks["policy"].isin((NO_POLICY, hybrid))]
    return compare.differences(pair, within=["attack"]).xs(hybrid, level="policy")
