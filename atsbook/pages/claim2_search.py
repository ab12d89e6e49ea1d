"""Claim 2, the search itself: score random policies, choose, attack what was found (paper,
Algorithm 1, Table 2).
"""

from collections.abc import Sequence

import pandas as pd

from atsbook.findings import compare
from atsbook.findings.result import NO_POLICY, Result, Verdict
from atsbook.findings.statistics import paired
from atsbook.findings.verdicts import KEEPS, cannot_tell, guards, kept
from atsbook.pages import claim2_generality
from atsbook.runs.attacks import AttackUnit, attack_unit, scaled
from atsbook.runs.networks import ModelUnit, Unit, model_unit
from atsbook.runs.scoring import SearchUnit, search_result, search_unit
from atsbook.runs.settings import Settings
from atsbook.runs.store import Store
from atsbook.runs.table1 import HYBRID, RANDOM, classes, short
from atsbook.runs.tables import accuracy_rows, attack_rows, attacked_facts, label, provenance
from atslib.policies.policy import Policy, sample_authors
from atslib.rng import rng
from atslib.scores.search import pareto

RIVAL = "random hybrids, mean"
RIVALS = 20  # random hybrids that the found one is compared with


def units(settings: Settings) -> dict[str, SearchUnit]:
    """The search."""
    return {"search": search_unit(settings)}


def later_units(settings: Settings, store: Store) -> dict[tuple[str, ...], Unit]:
    """What the search decides: attacks on the hybrid that it found and on those beside it, and its
    trainings.
    """
    found = str(search_result(settings, store)[0].hybrid)
    return attacks(settings, found) | {
        ("trained", name): unit for name, unit in networks(settings, found).items()
    }


def random_hybrids(settings: Settings) -> tuple[str, ...]:
    """Hybrids of two policies drawn as the search draws its candidates, without a look at any
    score.
    """
    drawn = sample_authors(2 * RIVALS, rng=rng(settings.seed, "random hybrids"))
    pairs = zip(drawn[::2], drawn[1::2], strict=True)
    return tuple(f"{one}+{other}" for one, other in pairs)[
        : 2 if settings.profile == "smoke" else RIVALS
    ]


def attacks(settings: Settings, found: str) -> dict[tuple[str, str], AttackUnit]:
    """The settings' attack on every policy, and at full the paper's six on the found one, by
    (preset, policy).
    """
    rivals = ("", found, HYBRID, *random_hybrids(settings))
    keys = [(settings.attack, policy) for policy in dict.fromkeys(rivals)]
    if settings.profile == "full":
        keys += [
            (name, p)
            for name in claim2_generality.PAPER_ROWS
            for p in ("", found)
            if (name, p) not in keys
        ]
    return {
        (name, label(policy)): attack_unit(settings, policy, attack=scaled(name, settings))
        for name, policy in keys
    }


def networks(settings: Settings, found: str) -> dict[str, ModelUnit]:
    """Short trainings by the policy's label: none, the found hybrid, the published one, and a
    random policy.
    """
    return {
        label(policy): model_unit(short(settings), policy) for policy in ("", found, HYBRID, RANDOM)
    }


SEARCH_RULE = (
    "The outcome is the gain of one attack over the best guess of somebody who knows the policy and sees no gradient. "
    f"The found hybrid has {RIVALS} rivals, hybrids drawn at random. Reproduced: on the same images its gain is lower "
    "than without a policy and than the rivals' mean (95 % intervals of the mean paired differences below 0), and it "
    f"keeps at least {KEEPS:.0%} of what a network learns above chance without it. Partly: lower than one of the two, "
    "or than both at a higher cost, "
    "or the accuracy cannot be judged (a network within twice chance). Not reproduced: lower than neither. Cannot "
    "tell: undefended attacks have no gain, or fewer than 30 images."
)


def search_verdict(
    attacks: pd.DataFrame, accuracy: pd.Series, found: str, rivals: Sequence[str], classes: int
) -> Verdict:
    """Whether the search finds protection, by `SEARCH_RULE`.

    Args:
        attacks: rows of one attack, with `policy`, `image`, `psnr`, `floor_policy` and `gain`.
        accuracy: percent, by policy, of networks that tell `classes` apart.
    """
    cost = accuracy[NO_POLICY] - accuracy[found]
    left = kept(accuracy[found], accuracy[NO_POLICY], classes)
    change = against(attacks, found, rivals)
    here = "; ".join(f"against {name} {compare.interval(row)}" for name, row in change.iterrows())
    here += f"; {-cost:+.1f} points of accuracy"
    if reasons := guards(attacks):
        return cannot_tell(Verdict("partly", "", SEARCH_RULE, here), reasons)
    higher = change[~(change["high"] < 0)].index
    mean = attacks.groupby("policy")["gain"].mean()
    better = int((mean[list(rivals)] < mean[found]).sum())
    reason = f"gain of the found hybrid {found}: {here}; {better} of {len(rivals)} random hybrids have a lower gain"
    faults = [f"it is not lower than that of {name}" for name in higher]
    faults += [f"it keeps {left:.0%} of what is learned"] if not left >= KEEPS else []
    faults += guards(accuracies={NO_POLICY: accuracy[NO_POLICY]}, classes=classes)
    return compare.judge(SEARCH_RULE, reason, here, faults, refuted=len(higher) == len(change))


def against(attacks: pd.DataFrame, found: str, rivals: Sequence[str]) -> pd.DataFrame:
    """The found hybrid's gain minus that without a policy, and minus the rivals' mean, on the same
    images, in dB.
    """
    random = attacks[attacks["policy"].isin(rivals)].groupby("image", as_index=False)["gain"].mean()
    bases = {"no policy": NO_POLICY, "random hybrids": RIVAL}
    both = pd.concat(
        [attacks[["policy", "image", "gain"]], random.assign(policy=RIVAL)], ignore_index=True
    )
    table = pd.DataFrame(
        {name: paired(both, base, "gain").loc[found] for name, base in bases.items()}
    ).T
    return table.astype({"n": int})


def run(settings: Settings, store: Store) -> Result:
    """Search, and attack what was found.

    Tables: `candidates` (the search's), `attacks` (one row per attack, policy and image),
    `accuracy` (one row per policy).
    """
    search, _ = search_result(settings, store)
    found = str(search.hybrid)
    rows, artifacts = attack_rows(attacks(settings, found), ("attack", "policy"), settings, store)
    candidates = pd.DataFrame(search.table)
    tables = {
        "candidates": candidates.assign(pareto=pareto(candidates["s_pri"], candidates["s_acc"])),
        "attacks": rows,
        "accuracy": accuracy_rows(networks(settings, found), ["policy"], settings, store).drop(
            columns="train"
        ),
    }
    accuracy = tables["accuracy"].set_index("policy")["accuracy"]
    rivals = random_hybrids(settings)
    own = rows[rows["attack"] == settings.attack]
    verdict = search_verdict(own, accuracy, found, rivals, classes(settings.dataset))
    first = attacks(settings, found)[settings.attack, NO_POLICY]
    facts = provenance(settings, artifacts[settings.attack, found]) | attacked_facts(first)
    facts |= {"hybrid": found, "rivals": list(rivals)}
    return Result("claim2_search", tables, facts, verdict)


def chosen(result: Result) -> pd.DataFrame:
    """The best policies with their scores, best first, their functions named."""
    table = result.tables["candidates"]
    best = table[table["chosen"]].set_index("policy")
    best.insert(0, "functions", [Policy.parse(policy).names() for policy in best.index])
    return best[["functions", "s_pri", "ci_low", "ci_high", "s_acc", "n"]]


def comparison(result: Result) -> pd.DataFrame:
    """One row per policy, as text: PSNR, gain and identification; the random hybrids as one row of
    means.
    """
    rivals = result.facts["rivals"]
    rows = {}
    attacks = result.tables["attacks"].query("attack == @result.facts['attack']")
    known = result.tables["accuracy"].set_index("policy")["accuracy"]
    attacks = attacks.assign(policy=attacks["policy"].where(~attacks["policy"].isin(rivals), RIVAL))
    for name, table in attacks.groupby("policy", sort=False):
        row = {
            "PSNR, dB": f"{table['psnr'].mean():.1f}",
            "floor, dB": f"{table['floor_policy'].mean():.1f}",
        }
        row |= {"gain, dB": compare.interval(compare.gained(table), "")}
        row |= {"used image found": compare.found(table["rank_target"])}
        row |= {"photograph found": compare.found(table["rank_original"])}
        rows[name] = row | {"accuracy, %": f"{known[name]:.1f}" if name in known else "–"}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("policy")


def ladder(result: Result) -> pd.DataFrame:
    """Mean gain of every policy with its 95 % interval in dB, lowest first, and whether it was
    found, drawn or none.
    """
    kinds = {NO_POLICY: "no policy", result.facts["hybrid"]: "found", HYBRID: "published"}
    attacks = result.tables["attacks"].query("attack == @result.facts['attack']")
    rows = []
    for name, table in attacks.groupby("policy", sort=False):
        rows.append({"policy": name, "kind": kinds.get(name, "random")} | compare.gained(table))
    return pd.DataFrame(rows).sort_values("mean", ignore_index=True)


def differences(result: Result) -> pd.DataFrame:
    """The found hybrid's gain minus that without a policy and minus the random hybrids' mean, in
    dB.
    """
    attacks = result.tables["attacks"].query("attack == @result.facts['attack']")
    return against(attacks, result.facts["hybrid"], result.facts["rivals"])
