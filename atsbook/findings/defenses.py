"""Which of many defenses to use, each judged at its worst: against the strongest of several attackers
who know it.

The tables have one row per setting, as the page `ext6_defenses` keeps them in `worst`: `defense`,
`kind`, `attacker`, `found` with `found low` and `found high` (photographs found, percent, and the
exact 95 % interval), `accuracy` in percent, and `usable`, whether it keeps enough of that.
"""

import pandas as pd

from atsbook.findings.result import NO_POLICY
from atsbook.findings.verdicts import KEEPS

REGIMES = {
    "initial": "before training",
    "trained": "after a short training",
}  # of the attacked network, in words
TUNED = "ATS, tuned against the attack"
OWN = ("ATS", TUNED)  # the kinds that the claim is about
LEAST_KIND = "ATS, least found of all"


def best(table: pd.DataFrame) -> pd.DataFrame:
    """Of each kind the usable setting under which fewest photographs are found, then of highest
    accuracy.
    """
    order = table[table["usable"]].sort_values(
        ["found", "accuracy"], ascending=[True, False], kind="stable"
    )
    return order.drop_duplicates("kind")


def advice(table: pd.DataFrame) -> str:
    """Which defense to use, in sentences made of the numbers, for who cannot lose accuracy and who
    can.
    """
    bare = table.set_index("defense").loc[NO_POLICY]
    chosen = best(table[table["kind"] != "none"])
    words = [
        f"Without a defense the strongest attack finds {bare['found']:.0f} % of the photographs; the network reaches "
        f"{bare['accuracy']:.1f} %."
    ]
    if chosen.empty:
        words.append(f"No setting here keeps {KEEPS:.0%} of what is learned.")
    elif chosen.iloc[0]["found low"] > 50:
        words.append(
            f"Nothing that keeps {KEEPS:.0%} of that hides much: at best there is {_at(chosen.iloc[0])}."
        )
    else:
        words.append(f"Who must keep {KEEPS:.0%} of that is best off with {_at(chosen.iloc[0])}.")
    hidden = table[table["found high"] <= 50].sort_values(
        "accuracy", ascending=False, kind="stable"
    )
    words.append(
        f"Who must keep half of them from being found, beyond chance, pays least with {_at(hidden.iloc[0])}."
        if len(hidden)
        else "No setting here keeps half of them from being found, beyond chance."
    )
    policies = table[table["kind"].isin(OWN)]
    survivors = policies[policies["found high"] <= 50]["defense"]
    words.append(
        f"Of the {len(policies)} policies, the one tuned against this very attack among them, "
        f"{', '.join(survivors) if len(survivors) else 'none'} keeps half of them from being found."
    )
    least = table[table["kind"] == LEAST_KIND]
    kept = hidden[hidden["kind"] == LEAST_KIND]
    words.append(
        f"Of the policies that leave least to an attack which knows none, {len(kept)} of {len(least)} keep half from "
        f"being found{f', at best {_at(kept.iloc[0])}' if len(kept) else ''}."
    )
    return " ".join(words)


def _at(row: pd.Series) -> str:
    return f"`{row['defense']}` ({row['kind']}): {row['found']:.0f} % found, {row['accuracy']:.1f} % accuracy"
