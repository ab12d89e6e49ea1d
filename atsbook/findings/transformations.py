"""The 50 transformations as functions: which ids are the same, how their privacy scores rank them,
and what was published of them.

Tables of scores have one row per function (by its first id) and one column per image, as `wide`
makes them; lower is meant to be more private.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from atsbook.findings.reported import reported
from atsbook.findings.statistics import chance, interval
from atslib.policies.policy import CANONICAL, IDENTITIES, Policy

NOTHING = IDENTITIES[0]
FUNCTIONS = (NOTHING, *(op for op in range(50) if CANONICAL[op] == op))  # the first id of each


def first_id(op: int) -> int:
    """The lowest id of the function that `op` is; of the two that do nothing the first."""
    return NOTHING if CANONICAL[op] is None else CANONICAL[op]


def twins(op: int) -> list[int]:
    """All ids of the same function; the two that do nothing are one."""
    return [other for other in range(50) if first_id(other) == first_id(op)]


def named_five(source: str, figure: str) -> list[int]:
    """The five most private transformations as published, as ids."""
    (text,) = reported(source=source, table_or_figure=figure, metric="top5_indices")["text"]
    return [int(op) for op in text.split(";")]


def by_function(scores: pd.DataFrame) -> pd.DataFrame:
    """Scores of `Study.table` with the columns `op`, the function's first id, `image`, `s_pri`,
    `variant` and `function`, its name.

    Args:
        scores: of single operations, the variant of the score in the column `variant`.
    """
    op = scores["policy"].astype(int)
    names = [Policy((each,)).names() for each in op]
    columns = {"op": op, "image": scores["image"], "s_pri": scores["score"]}
    return pd.DataFrame(columns | {"variant": scores["variant"], "function": names})


def wide(table: pd.DataFrame, variant: str) -> pd.DataFrame:
    """Scores of one variant: one row per function, one column per image."""
    return table[table["variant"] == variant].pivot(index="op", columns="image", values="s_pri")


def ranking(scores: pd.DataFrame, *, resamples: int = 4_000, seed: int = 0) -> pd.DataFrame:
    """One row per function, most private first: mean score and rank with intervals over images.

    `in top five` is the share of resamples of the images in which the function is among the five
    lowest.
    """
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


def beside_nothing(scores: pd.DataFrame) -> pd.DataFrame:
    """One row per function, the lowest score first: its score minus that of doing nothing on the
    same images, `mean` with its 95 % interval `low` to `high`.
    """
    rows = {}
    for op, values in scores.iterrows():
        difference = values - scores.loc[NOTHING]
        low, high = interval(difference)
        rows[op] = {"mean": difference.mean(), "low": low, "high": high}
    return pd.DataFrame(rows).T.rename_axis("op").sort_values("mean", kind="stable")


def overlap(best: Sequence[int], published: Mapping[str, Sequence[int]]) -> pd.DataFrame:
    """Our five functions beside published ones: shared ones, and the probability of sharing as many
    by chance.

    Args:
        best: ours, by their first ids.
        published: five ids, by who names them.
    """
    rows = {}
    for source, five in published.items():
        shared = sorted(set(best) & set(map(first_id, five)))
        rows[source] = {
            "five": ", ".join(map(str, sorted(five))),
            "shared with ours": ", ".join(map(str, shared)) or "none",
            "count": len(shared),
            "by chance": chance(len(shared), len(FUNCTIONS), 5),
        }
    return pd.DataFrame(rows).T.rename_axis("source")


def beside_replication(scores: pd.DataFrame, figure: str) -> pd.DataFrame:
    """Mean score of each function, ours (of the variant `code`) and the replication's, read off its
    figure: mean over ids.
    """
    rows = reported(source="replication", table_or_figure=figure, metric="S_pri")
    rows = rows[rows["policy_or_defense"].str.isdigit()]
    theirs = rows.groupby(rows["policy_or_defense"].astype(int).map(first_id))["value"].mean()
    both = {"ours": scores.mean(axis=1), "replication": theirs}
    return pd.DataFrame(both).rename_axis("op")
