"""The four blocks of the paper's Table 1: two data sets, two networks, each with the policies
searched for it.
"""

from collections.abc import Sequence

import pandas as pd

from atsbook.findings.defenses import HYBRID, SEARCHED
from atsbook.findings.reported import policy_label, reported
from atsbook.networks import dataset

RANDOM = "19-1-18"  # the replication's one random policy
# The paper averages over ten it does not name; ours are drawn as the authors draw.
TEN = 10
OF_TEN = "mean of ten random"
# (data set, network) → table, and the two policies searched there, whose hybrid is the paper's
# proposal
BLOCKS = {
    ("cifar100", "resnet20"): ("Table 1a", SEARCHED),
    ("cifar100", "convnet"): ("Table 1b", ("21-13-3", "7-4-15")),
    ("fmnist", "resnet20"): ("Table 1c", ("19-15-45", "2-43-21")),
    ("fmnist", "convnet"): ("Table 1d", ("42-28-42", "14-48-48")),
}
KEYS = ("dataset", "model", "policy")


def hybrid(policies: Sequence[str]) -> str:
    """One of them for each image."""
    return "+".join(policies)


POLICIES = ("", RANDOM, *SEARCHED, HYBRID)  # of the first block, the one that most pages look at


def family(model: str) -> str:
    """The network of the paper's that a model is of."""
    return "convnet" if model.startswith("convnet") else "resnet20"


def block(name: str, model: str) -> tuple[str, tuple[str, str]]:
    """The table, and its two searched policies, that a data set and network are nearest to."""
    grey = name.startswith("fmnist") or "grey" in name
    return BLOCKS["fmnist" if grey else "cifar100", family(model)]


def classes(name: str) -> int:
    """How many classes a data set has."""
    return dataset(name, "test").num_classes


def published_rows(table: str, policy: str, random: str = RANDOM) -> pd.DataFrame:
    """Rows of `reported` for a policy in one table of both publications; `random` stands for the
    paper's ten.
    """
    rows = reported(table_or_figure=table)
    names = rows["policy_or_defense"].map(policy_label).replace({"random": random})
    # The replication writes a hybrid's members in the other order.
    return rows[names.map(lambda name: sorted(name.split("+")) == sorted(policy.split("+")))]
