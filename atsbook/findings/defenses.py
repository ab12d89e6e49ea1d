"""Which of many defenses to use, each judged at its worst: against the strongest of several attackers
who know it.

The tables have one row per setting, as the page `ext6_defenses` keeps them in `worst`: `defense`,
`kind`, `attacker`, `found` with `found low` and `found high` (photographs found, percent, and the
exact 95 % interval), `accuracy` in percent, and `usable`, whether it keeps enough of that.
"""

import re

import pandas as pd

from atsbook.findings.result import NO_POLICY

REGIMES = {
    "initial": "before training",
    "trained": "after a short training",
}  # of the attacked network, in words
TUNED = "ATS, tuned against the attack"
# The two policies that the paper's search found for CIFAR-100, and its hybrid of them
SEARCHED = ("3-1-7", "43-18-18")
HYBRID = "+".join(SEARCHED)
OF_THE_PAPER = {HYBRID: "the paper's policy"}  # how its policies are called
OF_THE_PAPER |= {policy: f"member {policy} alone" for policy in SEARCHED}
OWN = ("ATS", TUNED)  # the kinds that the claim is about
LEAST_KIND = "ATS, least found of all"
# A defense of the gradient, the network or the batch → how it is called, with its strength
CALLED = {
    "prune": "pruning of {:.0%}",
    "gaussian": "Gaussian noise of {:g}",
    "laplace": "Laplacian noise of {:g}",
    "dp": "DP-SGD, noise of {:g}",
    "soteria": "Soteria, {:.0%} left out",
    "precode": "bottleneck, noise of {:g}",
    "mixup": "MixUp, {:.0%} of another",
}


def called(setting: str) -> str:
    """A setting in words: `prune:0.7` is pruning of 70 %, a policy *policy 3-3-3*."""
    if " | " in setting:
        return " and ".join(map(called, setting.split(" | ")))
    names = {NO_POLICY: "no defense"} | OF_THE_PAPER
    if setting in names:
        return names[setting]
    kind, _, value = setting.partition(":")
    if value:
        return CALLED[kind].format(float(value)).replace("%", " %")
    return f"policy {setting}" if setting[:1].isdigit() else setting


def strength(setting: str) -> str:
    """The strength alone, of one among settings of a kind: `prune:0.7` is 70 %."""
    defense = setting.rpartition(" | ")[2]
    kind, _, value = defense.partition(":")
    if not value:
        return called(setting)
    return re.search(r"{.*}", CALLED[kind])[0].format(float(value)).replace("%", " %")


def best(table: pd.DataFrame) -> pd.DataFrame:
    """Of each kind the usable setting under which fewest photographs are found, then of highest
    accuracy.
    """
    order = table[table["usable"]].sort_values(
        ["found", "accuracy"], ascending=[True, False], kind="stable"
    )
    return order.drop_duplicates("kind")
