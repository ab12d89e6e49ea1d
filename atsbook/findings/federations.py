"""What a policy changes of the accuracy that a federation ends with."""

import pandas as pd

from atsbook.findings.result import NO_POLICY
from atsbook.findings.statistics import paired

# The columns that name a federation
FEDERATION = ["network", "protocol", "shards", "policy", "seed", "view"]


def last_round(table: pd.DataFrame) -> pd.DataFrame:
    """The rows after each federation's last round."""
    return table[table["rounds"] == table.groupby(FEDERATION)["rounds"].transform("max")]


def policy_changes(
    table: pd.DataFrame, within: list[str], *, by_seed: bool = False
) -> pd.DataFrame:
    """What each policy changes the last accuracy by, in points: `n` federations, mean and 95 %
    interval over them.

    Federations are compared that differ in the policy alone. `undefended` is the mean accuracy
    without a policy, in percent.

    Args:
        table: one row per federation and number of `rounds`, with `accuracy` in percent and the
            columns `FEDERATION`.
        within: columns, such as the network, whose values have rows of their own.
        by_seed: the strict count: federations of one seed, which begin with the same weights, are
            one.
    """
    last = last_round(table)
    each = last["network"] + last["protocol"] + last["shards"] + last["view"]
    if by_seed:
        last = last.assign(draw=each)
        unit = "seed"
    else:
        last = last.assign(one=each + last["seed"].astype(str))
        unit = "one"
    parts = {}
    for key, rows in last.groupby(within, sort=False):
        bare = rows[rows["policy"] == NO_POLICY]["accuracy"].mean()
        parts[key] = paired(rows, NO_POLICY, "accuracy", unit=unit).assign(undefended=bare)
    return pd.concat(parts, names=[*within, "policy"])
