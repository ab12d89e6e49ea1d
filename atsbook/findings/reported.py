"""The published numbers: `book/reported.csv`, one row per number, as the paper and its replication
print them.
"""

from pathlib import Path

import pandas as pd

from atslib.errors import AtsError

REPORTED = Path(__file__).with_name("reported.csv")
# A defense → its row in the paper's Table 3 and the replication's Table 6.
DEFENSES = {
    "prune:0.7": "pruning-70",
    "prune:0.95": "pruning-95",
    "prune:0.99": "pruning-99",
    "laplace:0.001": "laplacian-1e-3",
    "laplace:0.01": "laplacian-1e-2",
    "gaussian:0.001": "gaussian-1e-3",
    "gaussian:0.01": "gaussian-1e-2",
}
# A preset → the name of its row in the paper's Table 2.
ATTACKS = {
    "lbfgs-l2": "LBFGS+L2",
    "adam-cosine": "Adam+Cosine",
    "lbfgs-cosine": "LBFGS+Cosine",
    "adam-l1": "Adam+L1",
    "adam-l2": "Adam+L2",
    "sgd-cosine": "SGD+Cosine",
}
# A parameter of a ResNet20 → the replication's name of its layer in Figure 5: two shallow layers
# and two deep ones.
LAYERS = {
    "1.stage1_0.conv1.weight": "layers.3.0.conv1(stage1 block0 conv1)",
    "1.stage1_1.conv1.weight": "layers.3.1.conv1(stage1 block1 conv1)",
    "1.stage3_1.conv2.weight": "layers.5.1.conv2(stage3 block1 conv2)",
    "1.stage3_2.conv2.weight": "layers.5.2.conv2(stage3 block2 conv2)",
}


def reported(**where: str) -> pd.DataFrame:
    """Published numbers, one row each, with source, table and unit; `text` is the value as printed,
    such as a list.

    Args:
        where: columns that must equal a value, e.g. `table_or_figure="Table 1a", source="ats"`.
    Raises:
        AtsError: an unknown column, or no such row.
    """
    rows = pd.read_csv(
        REPORTED, dtype={"policy_or_defense": str, "claim": str}, keep_default_na=False
    )
    for column, value in where.items():
        if column not in rows:
            raise AtsError(
                f"reported numbers have no column {column!r}; there are {', '.join(rows.columns)}"
            )
        known = sorted(set(rows[column]))
        rows = rows[rows[column] == value]
        if rows.empty:
            raise AtsError(
                f"no reported number has {column}={value!r}; there are {', '.join(known)}"
            )
    return rows.assign(text=rows["value"], value=pd.to_numeric(rows["value"], errors="coerce"))


def policy_label(published: str) -> str:
    """`hybrid:3-1-7+43-18-18` and `random:19-1-18` of the published tables → the policy alone."""
    return published.split(":", 1)[-1]
