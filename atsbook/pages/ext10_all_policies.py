"""Extension 10: every policy there is, by its scores and by what an attack finds."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import sparse

from atsbook.findings import compare, space, statistics
from atsbook.findings.result import NO_POLICY, Result, Verdict
from atsbook.findings.verdicts import MARGIN, cannot_tell, guards
from atsbook.runs import atlas
from atsbook.runs.networks import Unit, device_of
from atsbook.runs.settings import Settings
from atsbook.runs.store import Artifact, Store
from atsbook.runs.sweep import all_policies, swept, swept_scores
from atsbook.runs.tables import attack_rows, attacked_facts, provenance
from atslib.policies.policy import Policy, parse_policy
from atslib.scores.search import T_ACC

PAGE = "ext10_all_policies"


def units(settings: Settings) -> dict[object, Unit]:
    """All that the page needs."""
    plan = atlas.halving(settings)
    found = dict(atlas.published(settings))
    for rung in range(len(plan.rungs)):
        found |= {("rung", rung, unit.low): unit for unit in plan.units(rung)}
    return found | {
        (name, unit.low): unit for name, group in atlas.scores(settings).items() for unit in group
    }


def later_units(settings: Settings, store: Store) -> dict[object, Unit]:
    """The attacks behind the verdict, on policies that the scores choose."""
    return {("judged", unit.low): unit for unit in atlas.judged(settings, store).units(0)}


SIZES = (10, 100, atlas.CANDIDATES)
RELEASED = "Algorithm 1 as released"
BY_ATTACK, PREDICTED = (
    "a short attack on one image",
    "operations, fitted to one image of each policy",
)
SCORES = {
    "semi-trained, code": "score as released, semi-trained network",
    "semi-trained, fixed": "score, semi-trained network",
    "attacked, code": "score as released, attacked network",
    "attacked, fixed": "score, attacked network",
}

ALL_RULE = (
    "The claim: Algorithm 1 finds policies that protect better than random ones (paper, Section 4). Judged on all "
    f"policies, for {atlas.CANDIDATES:,} candidates, by the score as released on the semi-trained network, its filter "
    "by the accuracy score on: the difference between what an attack on an untrained network finds of the policy so "
    "chosen and of a random one, on images that the map does not know, with a 95 % interval. Reproduced: it lies below "
    f"-{MARGIN} dB. Partly: below 0, but reaching above -{MARGIN}. Not reproduced: above -{MARGIN}. Cannot tell: it "
    f"holds both 0 and -{MARGIN}, fewer than 30 images, or undefended attacks do not beat the floor that knows the "
    "policy."
)


def all_verdict(change: dict[str, float], bare: pd.DataFrame) -> Verdict:
    """The claim by `ALL_RULE`, from the difference that `space.compared` returns and the undefended
    attacks.
    """
    here = f"what an attack finds of Algorithm 1's choice, beside a random one: {compare.interval(change)}"
    low = change["low"]
    high = change["high"]
    more = (
        "which is more, so it protects less" if low > 0 else f"a lead, if any, is below {MARGIN} dB"
    )
    faults = [] if high < -MARGIN else [more] if low > -MARGIN else ["the lead may be smaller"]
    verdict = compare.judge(ALL_RULE, here, here, faults, refuted=low > -MARGIN)
    return cannot_tell(
        verdict,
        guards(bare) + ([f"{here}: either is possible"] if low <= -MARGIN <= 0 <= high else []),
    )


def run(settings: Settings, store: Store) -> Result:
    """Collect what is known of all policies.

    Table `policies`: one row per policy with its mean scores, and for each of its images `image`,
    `gain` and `found`. `rungs`: one row per later rung, policy and image. `published`: attacks on
    the published policies, one row per rung, policy and image. `judged`: those behind the verdict,
    see `atlas.judged`. `searches`, `correlations`, `effects`: see the functions of those names.
    """
    plan = atlas.halving(settings)
    device = device_of(settings.device)
    made = [
        pd.concat([_rows(swept(unit, store, device)) for unit in plan.units(k)])
        for k in range(len(plan.rungs))
    ]
    values = {}
    each = {name: _matrix(made[0], name) for name in ("image", "gain", "found")}
    for name, group in atlas.scores(settings).items():
        whole = np.concatenate(
            [swept_scores(u, store, device)["scores"].double().numpy() for u in group], axis=1
        )
        values |= {
            f"{name}, {variant}": part
            for variant, part in zip(group[0].variants, whole, strict=True)
        }
    chosen = [all_policies()[number] for number in made[0]["number"].unique()]
    gain = each["gain"]
    image = each["image"]
    columns = {name: value.mean(1) for name, value in values.items()}
    columns |= {
        f"{name} {k + 1}": part for name, whole in each.items() for k, part in enumerate(whole.T)
    }
    policies = pd.DataFrame({"policy": list(map(str, chosen))} | columns)
    rows, sheets = attack_rows(atlas.published(settings), ["rung", "policy"], settings, store)
    unit = next(iter(atlas.published(settings).values()))
    bare = rows[(rows["rung"] == 0) & (rows["policy"] == NO_POLICY)]
    trial = atlas.judged(settings, store)
    apart = pd.concat([_rows(swept(unit, store, device)) for unit in trial.units(0)])
    change = lead(apart, trial.rungs[0].numbers, atlas.preferred(settings, store))
    tables = {
        "policies": policies.round(4),
        "rungs": pd.concat([each.assign(rung=k).round(4) for k, each in enumerate(made) if k]),
        "published": rows,
        "judged": apart.round(4),
        "searches": searches(policies, gain, image),
        "correlations": correlations(values, gain, image),
        "effects": space.explained([policy.ids for policy in chosen], gain, image)
        .rename_axis("known")
        .reset_index(),
    }
    facts = provenance(settings, next(iter(sheets.values()))) | attacked_facts(unit)
    return Result(
        PAGE, tables, facts | {"policies": len(policies)}, all_verdict(change, bare), sheets
    )


def _rows(made: Artifact) -> pd.DataFrame:
    """One row per policy and image of a unit: `number` of the policy, `place` among its images, and
    the rest.
    """
    count, each = made["gain"].shape
    rows = {
        "number": made["number"].repeat_interleave(each).numpy(),
        "place": list(range(each)) * count,
    }
    return pd.DataFrame(
        rows | {name: made[name].flatten().numpy() for name in ("image", "gain", "floor", "found")}
    )


def _matrix(rows: pd.DataFrame, name: str) -> np.ndarray:
    """A column as (policies, images)."""
    return rows.pivot(index="number", columns="place", values=name).to_numpy()


def lead(rows: pd.DataFrame, numbers: Sequence[int], chances: pd.Series) -> dict[str, float]:
    """`space.compared` of what Algorithm 1 chooses and of a random policy, from the attacks of
    `atlas.judged`.

    Args:
        numbers: of the policies in `rows`: first those that it prefers, then as many at random.
        chances: to be chosen, by a policy's number.
    """
    gain, image = (
        rows.pivot(index="number", columns="place", values=v).loc[list(numbers)]
        for v in ("gain", "image")
    )
    preferred = np.arange(len(numbers)) < len(numbers) // 2
    chosen = np.where(preferred, chances[list(numbers)], 0.0)
    return space.compared(gain.to_numpy(), image.to_numpy(), chosen, (~preferred).astype(float))


def searches(policies: pd.DataFrame, gain: np.ndarray, image: np.ndarray) -> pd.DataFrame:
    """One row per rule of choosing (`by`) and number of candidates: what an attack finds of the
    policy that is chosen.

    `chosen` in dB, and the difference from a policy at random, `mean`, with its 95 % interval. A
    rule that looks at a policy's first image is judged by its others. `Algorithm 1 as released`
    rejects by the accuracy score first.
    """
    passed = policies["accuracy, code"] >= T_ACC
    first = space.adjusted(gain, image)[:, 0]
    rules = {RELEASED: policies["semi-trained, code"].where(passed, np.inf).to_numpy()}
    rules |= {words: policies[name].to_numpy() for name, words in SCORES.items()}
    rules |= {BY_ATTACK: first, PREDICTED: space.fitted(_pairs(policies), first)}
    rows = []
    for by, values in rules.items():
        seen = slice(1, None) if by in (BY_ATTACK, PREDICTED) else slice(None)
        for candidates in dict.fromkeys(min(size, len(policies)) for size in SIZES):
            change = space.compared(
                gain[:, seen], image[:, seen], space.first_of(values, candidates)
            )
            rows.append({"by": by, "candidates": candidates, **change})
    return pd.DataFrame(rows)


def correlations(
    values: dict[str, np.ndarray], gain: np.ndarray, image: np.ndarray
) -> pd.DataFrame:
    """One row per privacy score: Spearman's correlation with the gain, and what noise lets any
    correlation reach.

    `ceiling` is the square root of the product of both reliabilities, that of the gain for as few
    images as it has.
    """
    real = statistics.reliability(space.adjusted(gain, image))
    rows = []
    for name, words in SCORES.items():
        mean, low, high = space.rank_correlation(values[name], gain, image)
        own = statistics.reliability(values[name])
        top = float(np.sqrt(max(0.0, own * real)))
        rows.append(
            {
                "score": words,
                "mean": mean,
                "low": low,
                "high": high,
                "reliability": own,
                "ceiling": top,
            }
        )
    return pd.DataFrame(rows)


def operations(result: Result) -> pd.DataFrame:
    """One row per operation: what an attack finds of a policy with it, `mean`, beside all, with its
    95 % interval.
    """
    gain, image = gains(result)
    own = [Policy.parse(text).ids for text in result.tables["policies"]["policy"]]
    rows = []
    for index in sorted({index for ids in own for index in ids}):
        chances = np.array([index in ids for ids in own], float)
        name = {"policy": f"{index}: {Policy((index,)).names()}", "kind": "operation"}
        rows.append(name | space.compared(gain, image, chances))
    return pd.DataFrame(rows).sort_values("mean")


def known(result: Result) -> pd.DataFrame:
    """One row per published policy: gain on the first rung's images, and the share of all policies
    with less.

    A single policy's gain on the map is of few images, which spreads the gains; `of all, less` is
    by the spread that the policies themselves have. `lower score`: the share of all policies with a
    lower score, as released, on the semi-trained network.
    """
    rows = result.tables["published"]
    table = result.tables["policies"]
    values = space.adjusted(*gains(result))
    shrunk = np.sqrt(max(0.0, statistics.reliability(values)))
    means = values.mean() + shrunk * (values.mean(1) - values.mean())
    found = {}
    place = dict(zip(table["policy"], table["semi-trained, code"], strict=True))
    for policy, part in rows[rows["rung"] == 0].groupby("policy", sort=False):
        change = compare.gained(part)
        line = {
            "gain, dB": compare.interval(change, ""),
            "of all, less": f"{(means < change['mean']).mean():.0%}",
        }
        line["photograph found"] = compare.found(part["rank_original"])
        score = (
            place.get(str(parse_policy(policy).canonical()))
            if "+" not in policy and policy != NO_POLICY
            else None
        )
        line["lower score"] = (
            "–" if score is None else f"{(table['semi-trained, code'] < score).mean():.0%}"
        )
        found[policy] = line
    return pd.DataFrame(found).T


def gains(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """The map's gains in dB and their images, (policies, images) each."""
    table = result.tables["policies"]
    return tuple(table.filter(regex=f"^{name} [0-9]").to_numpy() for name in ("gain", "image"))


def regrets(result: Result) -> pd.DataFrame:
    """One row per rule of choosing, one column per number of candidates: gain beside a random
    policy's, in words.
    """
    rows = result.tables["searches"]
    words = rows.assign(words=[compare.interval(row) for row in rows.to_dict("records")])
    return words.pivot(index="by", columns="candidates", values="words").reindex(
        rows["by"].unique()
    )


def heights(result: Result) -> dict[str, np.ndarray]:
    """Two gains of each policy in dB, (P,): as measured, and as its operations and their pairs make
    one expect it.
    """
    values = space.adjusted(*gains(result)).mean(1)
    return {
        "expected from its operations": space.fitted(_pairs(result.tables["policies"]), values),
        "measured": values,
    }


def _pairs(policies: pd.DataFrame) -> sparse.csr_matrix:
    """The largest of `space.designs` of these policies."""
    return list(space.designs([Policy.parse(text).ids for text in policies["policy"]]).values())[-1]


def places(result: Result) -> list[int]:
    """The policies' numbers, in the order of the table."""
    number = {str(policy): number for number, policy in enumerate(all_policies())}
    return [number[policy] for policy in result.tables["policies"]["policy"]]


def single_policies(result: Result) -> list[str]:
    """The published policies that are no hybrids."""
    return [
        name
        for name in result.tables["published"]["policy"].unique()
        if name != NO_POLICY and "+" not in name
    ]


def climbed(result: Result) -> pd.DataFrame:
    """One row per rung: how many policies and images, and mean gains in dB of the policies and of
    no policy.
    """
    rungs = result.tables["rungs"]
    first = gains(result)[0]
    lines = {
        1: {"policies": len(first), "images each": first.shape[1], "their mean gain": first.mean()}
    }
    for rung, rows in rungs.groupby("rung"):
        lines[rung + 1] = {
            "policies": rows["number"].nunique(),
            "images each": rows["place"].nunique(),
        }
        lines[rung + 1]["their mean gain"] = rows["gain"].mean()
    bare = result.tables["published"].query("policy == @NO_POLICY").groupby("rung")["gain"].mean()
    table = pd.DataFrame(lines).T.rename_axis("rung").assign(**{"no policy": bare.to_numpy()})
    return table.round(2).astype({"policies": int, "images each": int})


def finalists(result: Result) -> pd.DataFrame:
    """One row per policy of the last rung, least gain first: `gain` in dB, share `found`, and the
    change from none.

    Beside them the accuracy score, of which higher is better, and the share of all policies that
    have a higher one. The change is on the same images: `mean`, `low` and `high` in dB, and
    `p_holm` for all of them as one family.
    """
    last = result.tables["rungs"].query("rung == rung.max()")
    last = last.assign(policy=[str(all_policies()[number]) for number in last["number"]])
    bare = result.tables["published"].query("policy == @NO_POLICY and rung == rung.max()")
    change = statistics.paired(pd.concat([last, bare]), NO_POLICY, "gain", p_values=True)
    score = result.tables["policies"].set_index("policy")["accuracy, code"]
    own = last.groupby("policy")[["gain", "found"]].mean().join(change).sort_values("gain")
    return own.assign(
        **{
            # In three digits: of a policy that blackens all images it is minus a million.
            "accuracy score": [f"{score[name]:.3g}" for name in own.index],
            "of all, higher": [(score > score[name]).mean() for name in own.index],
        }
    )
