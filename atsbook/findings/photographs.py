"""What a policy or a defense changes of what an attack tells of the photographs: found, bits and
decibels, and the rule for *protects*, which is the same on all pages.
"""

from collections.abc import Mapping

import pandas as pd

from atsbook.findings.result import NO_POLICY
from atsbook.findings.statistics import Change, change, holm, interval, mcnemar, protects, taken

__all__ = [
    "OUTCOMES",
    "arrow",
    "changes",
    "found_changes",
    "judge",
    "level",
    "row",
    "status",
    "taken",
    "words",
]

OUTCOMES = ("bits", "found", "gain_told", "psnr", "frame")


def changes(
    attacks: pd.DataFrame, name: str, base: str = NO_POLICY, *, by: str = "policy"
) -> dict[str, Change]:
    """How every outcome changes from `base` to `name` on the same photographs and draws.

    Args:
        attacks: one network's rows of `Study.table` with outcomes.
        name, base: values of the column `by`.
    """
    order = [column for column in ("image", "draw") if column in attacks]
    before, after = (
        attacks[attacks[by] == each].sort_values(order, ignore_index=True) for each in (base, name)
    )
    return {
        outcome: change(
            before[outcome].astype(float), after[outcome].astype(float), units=before["image"]
        )
        for outcome in OUTCOMES
    }


def found_changes(
    attacks: pd.DataFrame, name: str, base: str = NO_POLICY, *, by: str = "policy"
) -> pd.DataFrame:
    """Which photographs are found under `base` and under `name`, one row per draw.

    Args:
        attacks, name, base, by: see `changes`.
    Returns:
        `photographs`; `before` and `after`, how many are found; `lost` and `won`, how many are
        found with `base` alone and with `name` alone; and `p`, exact, by McNemar's test.
    """
    rows = attacks if "draw" in attacks else attacks.assign(draw=0)
    lines = {}
    for draw, own in rows.groupby("draw"):
        both = own.pivot(index="image", columns=by, values="found")[[base, name]].astype(bool)
        before, after = both[base], both[name]
        lines[draw] = {
            "photographs": len(both),
            "before": int(before.sum()),
            "after": int(after.sum()),
            "lost": int((before & ~after).sum()),
            "won": int((after & ~before).sum()),
            "p": mcnemar(before, after),
        }
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis("draw")


def judge(
    cases: Mapping[object, pd.DataFrame], names: Mapping[object, str], *, family: int = 0
) -> pd.DataFrame:
    """Whether a policy protects, case by case; all cases are one family.

    A case can tell if the bits without a policy have an interval above 0. There the policy
    protects if the bits fall (interval of the paired change below 0, p below 5 % after Holm) and
    the gain over the guess of somebody who was told label, policy and draw does not rise.

    Args:
        cases: the rows of each, see `changes`.
        names: the policy that is judged in each.
        family: how many cases Holm's rule counts, if some of them are on other pages; those are
            taken to have larger p, which no case can gain by.
    Returns:
        One row per case: the changes of `bits`, `found`, `gain_told`, `psnr` and `frame`, `draws`,
        `tells`, `p` after Holm, and `protects`.
    """
    rows = {}
    for key, attacks in cases.items():
        bare = attacks[attacks["policy"] == NO_POLICY]
        draws = bare["draw"].nunique() if "draw" in bare else 1
        tells = interval(bare["bits"], bare["image"])[0] > 0
        rows[key] = changes(attacks, names[key]) | {"draws": draws, "tells": tells}
    table = pd.DataFrame(rows).T
    table["tells"] = table["tells"].astype(bool)  # so that a sum of them is a number
    p = [bits.p for bits in table["bits"]]
    table["p"] = holm(p + [1.0] * max(0, family - len(p)))[: len(p)]
    table["protects"] = [
        bool(row["tells"]) and protects(row["bits"], row["gain_told"], p_holm=row["p"])
        for _, row in table.iterrows()
    ]
    return table


def status(cases: pd.DataFrame) -> str:
    """What a claim comes to by `judge`: reproduced if the policy protects in every case that can
    tell, partly if in some, not reproduced if in none, cannot tell if no case can.
    """
    telling = cases[cases["tells"].astype(bool)]
    if telling.empty:
        return "cannot tell"
    if telling["protects"].all():
        return "reproduced"
    return "partly" if telling["protects"].any() else "not reproduced"


def words(each: Change, digits: int = 1) -> str:
    """A change with its interval, such as −1.9 [−2.4, −1.3]."""
    text = f"{each.mean:+.{digits}f} [{each.low:.{digits}f}, {each.high:.{digits}f}]"
    return text.replace("-", "−")


def level(values: pd.Series, form: str = "{:.1f}") -> str:
    """A mean over photographs with its 95 % interval, such as 4.2 [3.6, 4.8]."""
    middle, *ends = (form.format(each) for each in (values.mean(), *interval(values)))
    return f"{middle} [{', '.join(ends)}]".replace("-", "−")


def arrow(before: float, after: float, form: str = "{:.1f}") -> str:
    """Two values in a table's cell, which no line break parts."""
    return f"{form.format(before)}\u00a0→\u00a0{form.format(after)}".replace("-", "−")


def row(changed: Mapping[str, Change], draws: int = 0) -> dict[str, str]:
    """One line of a page's main table, column by column, as text.

    Args:
        changed: see `changes`.
        draws: of weights, crops and policy, for each photograph; 0: not said.
    """
    found = changed["found"]
    size = {"photographs × draws": f"{found.n} × {draws}"} if draws else {"photographs": found.n}
    return size | {
        "found, %": arrow(100 * found.before, 100 * found.after, "{:.0f}"),
        "bits": arrow(changed["bits"].before, changed["bits"].after),
        "change of bits": words(changed["bits"]),
        "change of gain, dB": words(changed["gain_told"]),
        "PSNR, dB": arrow(changed["psnr"].before, changed["psnr"].after),
        "in the frame, dB": arrow(changed["frame"].before, changed["frame"].after),
    }
