"""What the pages' tables and verdicts share: our numbers beside published ones, changes on the same
images.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
import pandas as pd

from atsbook.findings.result import NO_POLICY, Result
from atsbook.findings.statistics import interval as confidence
from atsbook.findings.statistics import paired, summarize

SOURCES = {
    "ats": "paper",
    "replication": "replication",
}  # in `reported.csv` → at the head of a column
METRICS = {"PSNR_dB": "PSNR", "val_accuracy_pct": "accuracy"}
VALUES = ("psnr", "gain")


def published(rows: pd.DataFrame) -> dict[str, float]:
    """Mean PSNR (dB) and accuracy (percent) that each source prints in rows of `reported`; nan
    where it prints none.
    """
    known = rows.groupby(["source", "metric"])["value"].mean()
    return {
        f"{who} {name}": known.get((source, metric), float("nan"))
        for source, who in SOURCES.items()
        for metric, name in METRICS.items()
    }


def beside(table: pd.DataFrame, rows_of: Callable[[Hashable], pd.DataFrame]) -> pd.DataFrame:
    """The table with the `published` columns in which anything is printed.

    Args:
        rows_of: from an entry of the table's index to the rows of `reported` that stand beside it.
    """
    columns = pd.DataFrame([published(rows_of(key)) for key in table.index], index=table.index)
    return table.join(columns.dropna(axis=1, how="all"))


def comparison(
    result: Result,
    by: str | Sequence[str],
    rows_of: Callable[[Hashable], pd.DataFrame] | None = None,
    *,
    attacks: pd.DataFrame | None = None,
    accuracy: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """One row per group: `summarize` of the PSNR, the mean gain over the floor, the accuracy,
    published numbers.

    Args:
        by: columns of `attacks` that name a group.
        rows_of: see `beside`; without it there is no published column.
        attacks, accuracy: the result's tables of these names by default. The accuracy is that of
            the columns in `by` that its table has; where it has none of them it is left out.
    """
    attacks = result.tables["attacks"] if attacks is None else attacks
    accuracy = result.tables.get("accuracy") if accuracy is None else accuracy
    table = summarize(attacks, by, epsilon=float(result.facts["epsilon"]))
    table["gain over the floor"] = attacks.groupby(by)["gain"].mean()
    if "stuck" in attacks and attacks["stuck"].any():
        table["share that never moved"] = attacks.groupby(by)["stuck"].mean()
    shared = [name for name in table.index.names if accuracy is not None and name in accuracy]
    if shared:
        known = accuracy.drop_duplicates(shared).set_index(shared)["accuracy"]
        table = table.join(known, on=shared)
    return table if rows_of is None else beside(table, rows_of)


def outcomes(
    result: Result, by: str | Sequence[str], attacks: pd.DataFrame | None = None
) -> pd.DataFrame:
    """One row per group, as text: every outcome of its attacks, so that none need be taken on
    trust.

    Columns: images; mean PSNR against what the client used, and gain over the floor with its 95 %
    interval, in dB; the share of attacks whose PSNR is at or above the result's ε; mean SSIM; mean
    PSNR against the photograph as it was before crop, flip and policy; and the shares of
    reconstructions that single out the used image, and the photograph without undoing anything,
    among 100. Every one of them is higher where more leaks.

    Args:
        by: columns of the attacks that name a group.
        attacks: the result's table of that name by default.
    """
    attacks = result.tables["attacks"] if attacks is None else attacks
    epsilon = float(result.facts["epsilon"])
    rows = {
        key: {
            "images": table["image"].nunique(),
            "PSNR, dB": f"{table['psnr'].mean():.1f}",
            "gain, dB": interval(gained(table), ""),
            f"at or above {epsilon:g} dB": f"{(table['psnr'] >= epsilon).mean():.0%}",
            "SSIM": f"{table['ssim'].mean():.2f}",
            "PSNR to the photograph, dB": f"{table['psnr_original'].mean():.1f}",
            "used image found": found(table["rank_target"]),
            "photograph found": found(table["rank_original"]),
        }
        for key, table in attacks.groupby(by, sort=False)
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(by)


def differences(
    attacks: pd.DataFrame, base: str = NO_POLICY, *, by: str = "policy", within: Sequence[str] = ()
) -> pd.DataFrame:
    """Each group minus the base on the same images: PSNR and gain in dB with 95 % intervals.

    Below 0: harder to attack. The gain leaves out what a policy does to the floor itself.

    Args:
        base: the group that the others are compared with, by default the undefended one.
        by: the column that names the groups.
        within: columns, such as the network, whose values are compared among themselves only.
    """

    def change(value: str) -> pd.DataFrame:
        if not within:
            return paired(attacks, base, value, by=by)
        groups = attacks.groupby(within[0] if len(within) == 1 else list(within), sort=False)
        return pd.concat(
            {key: paired(rows, base, value, by=by) for key, rows in groups}, names=list(within)
        )

    return pd.concat({value: change(value) for value in VALUES}, axis=1)


def changes(attacks: pd.DataFrame, pairs: Mapping[str, str], value: str = "psnr") -> pd.DataFrame:
    """One row per setting that differs from another in one thing: n, mean and 95 % interval of the
    change in dB.

    Args:
        attacks: one row per setting and image, with `setting`, `image` and `value`.
        pairs: setting → what it is compared with on the same images; settings that are not there
            are left out.
    """
    there = {name: base for name, base in pairs.items() if name in set(attacks["setting"])}
    rows = {
        name: paired(attacks, base, value, by="setting").loc[name] for name, base in there.items()
    }
    return pd.DataFrame(rows).T.astype({"n": int}).rename_axis("setting")


def interval(change: Mapping[str, float], unit: str = " dB") -> str:
    """A mean with its interval in words, such as `-1.2 dB [-1.9, -0.5]`."""
    return f"{change['mean']:+.1f}{unit} [{change['low']:.1f}, {change['high']:.1f}]"


def spread(changes: pd.Series) -> str:
    """The least and the most of some changes in dB, in words."""
    ends = (
        f"{changes.min():+.1f} to {changes.max():+.1f}"
        if len(changes) > 1
        else f"{changes.sum():+.1f}"
    )
    return f"{ends} dB"


def gained(attacks: pd.DataFrame) -> dict[str, float]:
    """`mean`, `low` and `high` of the gain in dB: 95 % interval over images."""
    low, high = confidence(attacks["gain"], attacks["image"])
    return {"mean": attacks["gain"].mean(), "low": low, "high": high}


def matrices(table: pd.DataFrame, *columns: str) -> tuple[np.ndarray, ...]:
    """Columns of a table with one row per policy and image as matrices (policies, images), all in
    one order.
    """
    return tuple(
        table.pivot(index="policy", columns="image", values=column).to_numpy() for column in columns
    )


def found(ranks: pd.Series) -> str:
    """Share of images that were singled out, in words; a dash where nobody looked."""
    return "–" if ranks.isna().all() else f"{(ranks == 1).mean():.0%}"
