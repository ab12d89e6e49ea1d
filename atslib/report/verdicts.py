"""What the rules of the pages' verdicts share: numbers in, words out."""

import pandas as pd

from atslib.report.result import NO_POLICY, bootstrap


def no_leak(attacks: pd.DataFrame) -> list[str]:
    """The fault, if it is one, that undefended attacks find nothing: rows with `policy` and `gain`."""
    gain = attacks[attacks["policy"] == NO_POLICY]["gain"]
    return [] if bootstrap(gain)[0] > 0 else [f"undefended attacks do not beat the mean image ({gain.mean():+.1f} dB)"]
