"""Claim 2, the search itself: score random policies, choose, attack what was found (paper, Algorithm 1, Table 2)."""

import pandas as pd

from atslib.policies.policy import Policy
from atslib.report.pages import claim2_generality
from atslib.report.pages.claim1_privacy import HYBRID, RANDOM
from atslib.report.result import NO_POLICY, Result, Verdict, paired, summarize
from atslib.report.units.scoring import SearchUnit, search_unit, searched
from atslib.report.units.settings import Settings
from atslib.report.units.tables import image_rows, label, provenance
from atslib.report.units.units import AttackUnit, attack_unit, attacked, device_of, trained
from atslib.report.verdicts import no_leak
from atslib.scores.search import Found, pareto
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
    keys = [(name, policy) for name in claim2_generality.PAPER_ROWS for policy in ("", found)]
    keys += [(MAIN, policy) for policy in (HYBRID, RANDOM) if policy != found]
    return {
        (name, label(policy)): attack_unit(settings, policy, attack=claim2_generality.scaled(name, settings))
        for name, policy in keys
    }


def found_by(settings: Settings, store: Store) -> tuple[Found, float]:
    """What the search found, and the seconds it took."""
    unit, device = search_unit(settings), device_of(settings.device)
    seconds = float(unit.make(store, device)["seconds"])  # first, because it keeps the time that the search takes
    return searched(unit, store, device), seconds


SEARCH_RULE = (
    "Reproduced: on the same images the attack's PSNR is lower with the found hybrid than without a policy and than "
    "with the random one (95 % intervals of the mean paired differences below 0), the hybrid costs at most 2 points of "
    "accuracy, and undefended attacks beat the mean image (interval of the mean gain above 0). Partly: lower than "
    "without a policy, but another condition fails. Not reproduced: not lower than without a policy. Not measured: "
    "fewer than two images."
)


def search_verdict(attacks: pd.DataFrame, accuracy: pd.Series, found: str, random: str) -> Verdict:
    """Whether the search finds protection, by `SEARCH_RULE`.

    Args:
        attacks: rows of the paper's attack, with `policy`, `image`, `psnr` and `gain`.
        accuracy: percent, by policy.
    """
    change = {base: paired(attacks, base).loc[found] for base in (NO_POLICY, random)}
    cost = accuracy[NO_POLICY] - accuracy[found]
    fell = change[NO_POLICY]
    if fell["n"] < 2:
        return Verdict("not measured", "fewer than two images can be compared, so there is no interval", SEARCH_RULE)
    here = f"{fell['mean']:+.1f} dB [{fell['low']:.1f}, {fell['high']:.1f}], {-cost:+z.1f} points"
    if not fell["high"] < 0:
        return Verdict("not reproduced", f"the found hybrid's PSNR is not lower ({here})", SEARCH_RULE, here)
    faults = []
    if not change[random]["high"] < 0:
        faults.append(f"it is not lower than with the random policy ({change[random]['mean']:+.1f} dB)")
    if not cost <= 2:
        faults.append(f"it costs {cost:.1f} points of accuracy")
    faults += no_leak(attacks)
    reason = f"the found hybrid {found} lowers the PSNR ({here})" + ("; but " + "; ".join(faults) if faults else "")
    return Verdict("partly" if faults else "reproduced", reason, SEARCH_RULE, here)


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
