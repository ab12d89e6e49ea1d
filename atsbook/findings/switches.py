"""The fidelity switches, points where paper and codes differ: which setting is compared with which,
and what a switch of a score does to the order of policies.

`notebooks/switches.ipynb` turns them, and the Deviations page says what each changes.
"""

import numpy as np
import pandas as pd

from atsbook.findings.statistics import spearman
from atslib.scores.search import RANKINGS, T_ACC

# setting → what it is compared with: the same but for one switch
PAIRS = {
    "other normalization": "base",
    "4 restarts": "base",
    "optimized label": "base",
    "train-mode victim": "batch norm",
    "unknown statistics": "batch norm",
    "pruned globally": "pruned by tensor",
    "9 convolutions": "8 convolutions",
    "32 pixels": "28 pixels",
    "first member": "hybrid",
    "second member": "hybrid",
}


def orders(scores: pd.DataFrame) -> pd.DataFrame:
    """One row per switch of a score: rank correlation of the policies' two orders, and how many of
    the best ten agree.

    Orders are from the policy that the rule would keep first; the ten are a quarter of them where
    there are fewer than 40 policies.
    """
    spread = scores.rename(columns={"s_pri fixed": "mean", "s_pri fixed variance": "variance"})
    both = RANKINGS["mean+variance"](spread["mean"].to_numpy(), spread["variance"].to_numpy())
    kept = {  # low is kept
        "GradSim by tensor": (scores["s_pri fixed"], scores["s_pri code"]),
        "variance in the ranking": (scores["s_pri fixed"], pd.Series(both)),
        "sign of S_acc": (-scores["s_acc fixed"], -scores["s_acc paper"]),
        "first image of each label": (-scores["s_acc fixed"], -scores["s_acc code"]),
    }
    few = min(10, max(1, len(scores) // 4))
    rows = {}
    for name, (one, other) in kept.items():
        best = [set(values.nsmallest(few).index) for values in (one, other)]
        rank = float(spearman(one.to_numpy(), other.to_numpy()))
        rows[name] = {
            "policies": len(scores),
            "rank correlation": rank,
            "best": few,
            "shared": len(best[0] & best[1]),
        }
    return (
        pd.DataFrame(rows)
        .T.astype({"policies": int, "best": int, "shared": int})
        .rename_axis("switch")
    )


def rejected(scores: pd.DataFrame) -> float:
    """Share of the policies that the released threshold of -85 rejects, in variant "code"."""
    return float(np.mean(scores["s_acc code"] < T_ACC))
