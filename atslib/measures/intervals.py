"""How sure one may be of a share, such as that of images found: exact intervals of a binomial count
(Clopper and Pearson 1934).
"""

import math

from scipy import stats


def share_interval(successes: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """Two-sided interval of a share, low and high in [0, 1]: it covers at least at its level.

    Args:
        successes: how many of the trials, such as images found.
        trials: at least 1.
        level: in (0, 1).
    """
    low, high = stats.binomtest(successes, trials).proportion_ci(level, "exact")
    return float(low), float(high)


def upper_bound(successes: int, trials: int, *, level: float = 0.95) -> float:
    """The largest share that such a count does not rule out, one-sided."""
    count = stats.binomtest(successes, trials, alternative="less")
    return float(count.proportion_ci(level, "exact").high)


def lower_bound(successes: int, trials: int, *, level: float = 0.95) -> float:
    """The smallest share that such a count does not rule out, one-sided."""
    count = stats.binomtest(successes, trials, alternative="greater")
    return float(count.proportion_ci(level, "exact").low)


def needed(share: float, *, level: float = 0.95) -> int:
    """Trials of which none may succeed before a share above this one is ruled out, one-sided."""
    return math.ceil(math.log(1 - level) / math.log(1 - share))
