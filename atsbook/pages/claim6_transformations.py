"""Claim 6: which of the 50 transformations hide most (paper, Figure 5; replication, Figure 6), by
privacy score.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from atsbook.findings.reported import reported
from atsbook.findings.result import Result, Verdict
from atsbook.findings.statistics import chance, correlation_interval, interval, spearman
from atsbook.runs.attacks import AttackUnit, attack_unit
from atsbook.runs.networks import Unit, device_of, semi_trained, victim
from atsbook.runs.scoring import ScoreUnit, scored
from atsbook.runs.settings import Settings, at_laptop
from atsbook.runs.store import Store
from atsbook.runs.table1 import RANDOM, SEARCHED
from atsbook.runs.tables import attack_rows, provenance
from atslib.policies.policy import CANONICAL, IDENTITIES, Policy

PAGE = "claim6_transformations"
VARIANTS = ("fixed", "code")  # of the score; the published numbers are of the second
SCORED = 500  # images of profile laptop behind each score
NOTHING = IDENTITIES[0]
FUNCTIONS = (NOTHING, *(op for op in range(50) if CANONICAL[op] == op))  # the first id of each
ATTACKED = 64  # images under each
# What the policy builder starts from: policies of claim 1 and how they grow; single operations are
# scored anyway.
BUILT = {
    "": "No policy",
    SEARCHED[0]: "Searched, first",
    "3-1": "its first two",
    SEARCHED[1]: "Searched, second",
    "43-18": "its first two",
    RANDOM: "Random",
    "19-1": "its first two",
}


def own(settings: Settings) -> Settings:
    """The settings with the page's number of scored images at laptop; what a user has changed
    stays.
    """
    return at_laptop(settings, score_images=SCORED)


def units(settings: Settings) -> dict[str, Unit]:
    """All that the page needs: scores by variant, those of the builder's `policies`, and `attacks`."""
    singles = scores(own(settings))
    return (
        singles
        | {"policies": dataclasses.replace(singles["fixed"], policies=tuple(BUILT))}
        | attacks(settings)
    )


def attacks(settings: Settings) -> dict[str, AttackUnit | ScoreUnit]:
    """Attacks on every distinct function alone, by its first id, and "attacked": its scores on the
    attacked network.

    Untrained networks only: elsewhere attacks on single operations are those of the other pages'
    policies.
    """
    if settings.regime != "initial":
        return {}
    few = dataclasses.replace(settings, images=min(ATTACKED, settings.images))
    singles = {str(op): attack_unit(few, str(op)) for op in FUNCTIONS}
    score = dataclasses.replace(
        scores(settings)["fixed"], model=victim(settings), images=few.images
    )
    return singles | {"attacked": score}


def scores(settings: Settings, variants: Sequence[str] = VARIANTS) -> dict[str, ScoreUnit]:
    """The scores of all distinct functions, each by its first id, by the score's variant."""
    model = semi_trained(settings)
    return {
        variant: ScoreUnit(
            model=model,
            policies=tuple(map(str, FUNCTIONS)),
            images=settings.score_images,
            points=settings.score_points,
            variant=variant,
            seed=settings.seed,
        )
        for variant in variants
    }


TRANSFORMATIONS_RULE = (
    "Of the distinct functions, each counted once however many ids it has. "
    "Reproduced: at least four of the five transformations that were published are among the five with the lowest "
    "mean privacy score here, and all five score below doing nothing on the same images (95 % interval of the mean "
    "paired difference below 0). Partly: at least two are among the five, or at least three score below doing nothing. "
    "Not reproduced: neither. Cannot tell: fewer than 4 images."
)


def transformations_verdict(
    scores: pd.DataFrame, named: Sequence[int], source: str = "paper"
) -> Verdict:
    """Claim 6 by `TRANSFORMATIONS_RULE`.

    Args:
        scores: one row per function, one column per image, as `wide` returns them.
        named: the published five, as ids.
    """
    if scores.shape[1] < 4:
        return Verdict(
            "cannot tell",
            f"{scores.shape[1]} images are too few for an interval",
            TRANSFORMATIONS_RULE,
        )
    best = scores.mean(axis=1).nsmallest(5).index
    named = [first_id(op) for op in named]
    shared = [op for op in named if op in best]
    difference = scores.loc[named] - scores.loc[NOTHING]
    below = [op for op, row in difference.iterrows() if interval(row)[1] < 0]
    here = f"{len(shared)} of the {source}'s five among ours"
    reason = (
        f"{here} ({', '.join(map(str, sorted(best)))}), where chance alone shares at least as many with probability "
        f"{chance(len(shared), len(scores), 5):.2g}; {len(below)} of the five score below doing nothing"
    )
    if len(shared) >= 4 and len(below) == len(named):
        return Verdict("reproduced", reason, TRANSFORMATIONS_RULE, here)
    status = "partly" if len(shared) >= 2 or len(below) >= 3 else "not reproduced"
    return Verdict(status, reason, TRANSFORMATIONS_RULE, here)


def run(settings: Settings, store: Store) -> Result:
    """Score every function, and attack it alone where attacks work.

    Tables: `scores`, one row per variant, function (`op`, its first id) and image, and that of
    `attacked_alone`.
    """
    named = named_five("ats", "Figure 5")
    result = measure(own(settings), store, PAGE, VARIANTS, named, "paper")
    return dataclasses.replace(result, tables=result.tables | attacked_alone(settings, store))


def attacked_alone(settings: Settings, store: Store) -> dict[str, pd.DataFrame]:
    """Table `attacks`: one row per function and image with `op`, the metrics, and `s_pri attacked`;
    or none.
    """
    if not (units := attacks(settings)):
        return {}
    by_op = {int(name): unit for name, unit in units.items() if name != "attacked"}
    rows, _ = attack_rows(by_op, ["op"], settings, store)
    score = scored(units["attacked"], store, device_of(settings.device))["scores"]
    return {"attacks": rows.assign(**{"s_pri attacked": score.flatten().double().numpy()})}


def measure(
    settings: Settings,
    store: Store,
    page: str,
    variants: Sequence[str],
    named: Sequence[int],
    source: str,
) -> Result:
    """`run` for one data set, judged by the published five."""
    device = device_of(settings.device)
    tables = []
    for variant, unit in scores(settings, variants).items():
        artifact = scored(unit, store, device)
        rows = (
            pd.DataFrame(artifact["scores"].double().numpy(), FUNCTIONS)
            .rename_axis("op")
            .reset_index()
        )
        rows = rows.melt("op", var_name="image", value_name="s_pri")
        tables.append(
            rows.assign(variant=variant, function=[Policy((op,)).names() for op in rows["op"]])
        )
    table = pd.concat(tables, ignore_index=True)
    verdict = transformations_verdict(wide(table, variants[0]), named, source)
    facts = provenance(settings, artifact)
    facts |= {
        "images": settings.score_images,
        "epochs": settings.semi_epochs,
        "fraction": settings.semi_fraction,
    }
    return Result(page, {"scores": table}, facts | {"steps": 0}, verdict)


def named_five(source: str, figure: str) -> list[int]:
    """The five most private transformations as published."""
    (text,) = reported(source=source, table_or_figure=figure, metric="top5_indices")["text"]
    return [int(op) for op in text.split(";")]


def first_id(op: int) -> int:
    """The lowest id of the function that `op` is; of the two that do nothing the first."""
    return NOTHING if CANONICAL[op] is None else CANONICAL[op]


def twins(op: int) -> list[int]:
    """All ids of the same function; the two that do nothing are one."""
    return [other for other in range(50) if first_id(other) == first_id(op)]


def wide(table: pd.DataFrame, variant: str) -> pd.DataFrame:
    """Scores of one variant: one row per function, one column per image."""
    return table[table["variant"] == variant].pivot(index="op", columns="image", values="s_pri")


def means(result: Result) -> pd.Series:
    """Mean score of the page's first variant, by function."""
    table = result.tables["scores"]
    return wide(table, table["variant"].iloc[0]).mean(axis=1)


def ranking(
    result: Result, variant: str | None = None, *, resamples: int = 4_000, seed: int = 0
) -> pd.DataFrame:
    """One row per function by its first id, most private first: mean score and rank with intervals
    over images.

    `in top five` is the share of resamples of the images in which the function is among the five
    best.
    """
    table = result.tables["scores"]
    scores = wide(table, variant or table["variant"].iloc[0])
    matrix = scores.to_numpy()
    draw = np.random.default_rng(seed)
    columns = draw.integers(0, matrix.shape[1], (resamples, matrix.shape[1]))
    means = matrix[:, columns].mean(-1)
    ranks = means.argsort(0).argsort(0) + 1
    table = pd.DataFrame({"s_pri": matrix.mean(1), "n": matrix.shape[1]}, index=scores.index)
    for name, share in {"low": 0.025, "high": 0.975}.items():
        table[name] = np.quantile(means, share, axis=1)
        table[f"rank {name}"] = np.quantile(ranks, share, axis=1).round().astype(int)
    table["in top five"] = (ranks <= 5).mean(1)
    table.insert(0, "function", [Policy((op,)).names() for op in table.index])
    table["same as"] = [", ".join(str(o) for o in twins(op) if o != op) for op in table.index]
    table = table.sort_values("s_pri", kind="stable")
    table.insert(1, "rank", range(1, len(table) + 1))
    return table


def overlap(result: Result, published: dict[str, Sequence[int]]) -> pd.DataFrame:
    """Our five functions beside published ones: shared ones, and the probability of sharing as many
    by chance.
    """
    ours = set(means(result).nsmallest(5).index)
    rows = {}
    for source, five in published.items():
        shared = sorted(ours & set(map(first_id, five)))
        rows[source] = {
            "five": ", ".join(map(str, sorted(five))),
            "shared with ours": ", ".join(map(str, shared)) or "none",
            "count": len(shared),
            "by chance": chance(len(shared), len(FUNCTIONS), 5),
        }
    return pd.DataFrame(rows).T.rename_axis("source")


def beside_replication(result: Result, figure: str, variant: str = "code") -> pd.DataFrame:
    """Mean score of each function, ours (variant "code") and the replication's, read off its
    figure: mean over ids.
    """
    rows = reported(source="replication", table_or_figure=figure, metric="S_pri")
    rows = rows[rows["policy_or_defense"].str.isdigit()]
    theirs = rows.groupby(rows["policy_or_defense"].astype(int).map(first_id))["value"].mean()
    ours = wide(result.tables["scores"], variant).mean(axis=1)
    return pd.DataFrame({"ours": ours, "replication": theirs}).rename_axis("op")


def success(result: Result) -> pd.DataFrame:
    """One row per function: mean score on the semi-trained and on the attacked network, PSNR, floor
    and gain in dB.

    Lowest gain first. The last column is the share of reconstructions that single out the image
    that the client used.
    """
    attacks = result.tables["attacks"]
    table = attacks.groupby("op")[["s_pri attacked", "psnr", "floor_policy", "gain"]].mean()
    semi = wide(result.tables["scores"], "fixed")
    table.insert(
        0,
        "s_pri semi-trained",
        semi[semi.columns.intersection(attacks["image"].unique())].mean(axis=1),
    )
    table["found"] = (attacks["rank_target"] == 1).groupby(attacks["op"]).mean()
    table.insert(0, "function", [Policy((op,)).names() for op in table.index])
    words = {
        "s_pri semi-trained": "score, semi-trained",
        "s_pri attacked": "score, attacked network",
    }
    words |= {"floor_policy": "floor, dB", "found": "used image found"}
    return table.sort_values("gain").rename(columns=words)


def agreement(result: Result) -> pd.DataFrame:
    """Rank correlation over functions of each score with PSNR and gain, with 95 % intervals, on the
    same images.

    A score that ranks transformations rightly has one above 0: a low score, hence a low gain.
    """
    attacks = result.tables["attacks"]
    semi = wide(result.tables["scores"], "fixed")
    by_image = {
        value: attacks.pivot(index="op", columns="image", values=value)
        for value in ("psnr", "gain")
    }
    scores = {"semi-trained": semi.loc[by_image["gain"].index]}
    scores["attacked"] = attacks.pivot(index="op", columns="image", values="s_pri attacked")
    rows = []
    for name, score in scores.items():
        for value, outcome in by_image.items():
            shared = min(score.shape[1], outcome.shape[1])
            both = [matrix.to_numpy()[:, :shared] for matrix in (score, outcome)]
            low, high = correlation_interval(spearman, *both)
            rank = float(spearman(*(matrix.mean(1) for matrix in both)))
            rows.append(
                {"score on": name, "with": value, "functions": len(score), "images": shared}
            )
            rows[-1] |= {"rank correlation": rank, "low": low, "high": high}
    return pd.DataFrame(rows).set_index(["score on", "with"])
