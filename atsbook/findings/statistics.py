"""How sure one may be of a mean, a difference, a share or a correlation of per-image values.

Images are what is sampled: draws of one image (of crop, flip, policy and start) are averaged before
anything else. Matrices are (policies P, images I). Correlations are taken along the last axis for
any leading dimensions, so that a thousand resamples are one call.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd
from scipy import stats

Correlation = Callable[[np.ndarray, np.ndarray], np.ndarray]
ENOUGH = 30  # values from which the bootstrap is to be trusted, and images that a verdict needs


# --- correlations -------------------------------------------------------------------------------------------


def pearson(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Linear correlation along the last axis, in [-1, 1]; nan where one side is constant.

    scipy's `pearsonr` is its oracle in the tests; that one warns for each resample with a constant
    side.
    """
    x, y = (v - v.mean(-1, keepdims=True) for v in (x, y))
    scale = np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    return np.divide((x * y).sum(-1), scale, out=np.full(np.shape(scale), np.nan), where=scale > 0)


def ranks(x: np.ndarray) -> np.ndarray:
    """Ranks along the last axis from 1; equal values get the mean of their ranks."""
    return stats.rankdata(x, axis=-1)


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Correlation of the ranks along the last axis, in [-1, 1]."""
    return pearson(ranks(x), ranks(y))


def kendall(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Kendall's tau-b along the last axis, in [-1, 1]: the correlation of the signs of all pairwise
    differences.
    """
    signs = (np.sign(v[..., :, None] - v[..., None, :]) for v in (x, y))
    return pearson(*(s.reshape(*s.shape[:-2], -1) for s in signs))


CORRELATIONS: dict[str, Correlation] = {
    "Pearson": pearson,
    "Spearman": spearman,
    "Kendall": kendall,
}


def partial(x: np.ndarray, y: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Pearson correlation of what a straight line through `given` leaves of `x` and `y`; nan if
    that is nothing.
    """
    xy = pearson(x, y)
    xz = pearson(x, given)
    yz = pearson(y, given)
    scale = np.sqrt(np.clip((1 - xz**2) * (1 - yz**2), 0, None))
    return np.divide(xy - xz * yz, scale, out=np.full(np.shape(scale), np.nan), where=scale > 1e-9)


def correlation_interval(
    statistic: Callable[..., np.ndarray],
    *matrices: np.ndarray,
    resamples: int = 2_000,
    seed: int = 0,
) -> tuple[float, float]:
    """95 % percentile interval of a correlation of the matrices' means over images.

    Policies and images are both drawn anew, because both are samples.

    Args:
        statistic: of one (resamples, P) array per matrix, along the last axis.
        matrices: (P, I) each, rows and columns in one order; the same draw for all.
    """
    draw = np.random.default_rng(seed)
    (policies, images) = matrices[0].shape
    rows = draw.integers(0, policies, (resamples, policies))
    columns = draw.integers(0, images, (resamples, images))
    weights = np.stack([np.bincount(c, minlength=images) for c in columns]) / images
    means = [np.take_along_axis(weights @ m.T, rows, 1) for m in matrices]
    parts = np.array_split(np.arange(resamples), 10)
    values = np.concatenate([statistic(*(m[part] for m in means)) for part in parts])
    low, high = np.nanquantile(values, [0.025, 0.975])
    return float(low), float(high)


def reliability(matrix: np.ndarray, *, splits: int = 200, seed: int = 0) -> float:
    """Split-half reliability of the rows' means: the share of their variance that other images
    would confirm.

    The mean correlation of the means over two random halves of the images, stepped up to all of
    them (Spearman-Brown). 1: no noise; 0: nothing but noise, or halves that contradict each other.
    No measurement can be expected to correlate with this one by more than its root.
    """
    draw = np.random.default_rng(seed)
    images = matrix.shape[1]
    orders = np.stack([draw.permutation(images) for _ in range(splits)])
    halves = [matrix[:, o].mean(-1).T for o in (orders[:, : images // 2], orders[:, images // 2 :])]
    half = max(0.0, float(np.mean(pearson(*halves))))
    return 2 * half / (1 + half)


def variance_shares(matrix: np.ndarray) -> np.ndarray:
    """Shares of the variance that belong to the rows, to the columns, and to the rest (interaction
    and noise alike).

    Args:
        matrix: (..., R, C), one value per cell.
    Returns:
        (..., 3), adding up to 1; nan where nothing varies.
    """
    centred = matrix - matrix.mean((-2, -1), keepdims=True)
    rows = centred.shape[-1] * np.square(centred.mean(-1)).sum(-1)
    columns = centred.shape[-2] * np.square(centred.mean(-2)).sum(-1)
    total = np.square(centred).sum((-2, -1))
    with np.errstate(invalid="ignore"):
        return np.stack([rows, columns, total - rows - columns], -1) / total[..., None]


# --- intervals ----------------------------------------------------------------------------------------------


def bootstrap(
    values: Iterable[float],
    statistic: Callable[..., np.ndarray] = np.mean,
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Interval of any statistic over independent rows; of a mean, `interval` is better.

    Bias-corrected and accelerated (Efron 1987) from 30 rows on; percentiles of the resamples below,
    where bias and acceleration cannot be estimated, and where all resamples agree.

    Args:
        values: (n, ...), one row per image.
        statistic: called with resampled rows and the `axis` to reduce; numpy's mean and median are
            such.
    Returns:
        Low and high; (nan, nan) for fewer than two rows.
    """
    values = np.asarray(list(values), dtype=float)
    if len(values) < 2:
        return (math.nan, math.nan)
    resampled = stats.bootstrap(
        (np.arange(len(values)),),
        lambda rows, axis: statistic(values[rows], axis=rows.ndim - 1),
        method="BCa" if len(values) >= ENOUGH else "percentile",
        n_resamples=resamples,
        confidence_level=level,
        vectorized=True,
        rng=np.random.default_rng(seed),
    )
    return tuple(map(float, resampled.confidence_interval))


def interval(
    values: Iterable[float],
    units: Iterable | None = None,
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Interval of a mean over images, of which each may have several draws.

    Draws of one image are averaged first, and the images' means are the sample: their variance
    holds that of the draws already, in the proportion in which it disturbs the mean. (Resampling
    draws inside resampled images counts it twice.) Student's t below 30 images, where percentiles
    of resamples cover 80 % (n = 4) to 88 % (n = 8) instead of 95 %; the bias-corrected and
    accelerated bootstrap from there on, which follows skew.

    A share of successes wants `share_interval`: where all succeed or all fail, an interval of the
    mean has no width.

    Args:
        values: one value per draw.
        units: the image that each value belongs to; None: each value is an image of its own.
    Returns:
        Low and high; (nan, nan) for fewer than two images, or where a value is not finite.
    """
    values = np.asarray(list(values), dtype=float)
    if units is not None and np.isfinite(values).all():
        values = pd.Series(values).groupby(list(units)).mean().to_numpy()
    if len(values) < 2 or not np.isfinite(values).all():
        return (math.nan, math.nan)
    mean = values.mean()
    half = stats.t.ppf((1 + level) / 2, len(values) - 1) * stats.sem(values)
    if len(values) >= ENOUGH and half > 1e-9 * abs(mean):
        return bootstrap(values, level=level, resamples=resamples, seed=seed)
    return (float(mean - half), float(mean + half))


def share_interval(successes: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """Interval of a success rate (Clopper and Pearson 1934): it covers at least at its level."""
    return tuple(map(float, stats.binomtest(successes, trials).proportion_ci(level, "exact")))


def upper_bound(successes: int, trials: int, *, level: float = 0.95) -> float:
    """The largest success rate that such a count does not rule out, one-sided (Clopper and Pearson
    1934).
    """
    return float(
        stats.binomtest(successes, trials, alternative="less").proportion_ci(level, "exact").high
    )


def needed(rate: float, *, level: float = 0.95) -> int:
    """Trials that must all fail before a success rate above `rate` is ruled out one-sidedly at
    `level`.
    """
    return math.ceil(math.log(1 - level) / math.log(1 - rate))


def chance(shared: int, of: int, drawn: int) -> float:
    """Probability that two random sets of `drawn` out of `of` share at least `shared`
    (hypergeometric).
    """
    return float(stats.hypergeom.sf(shared - 1, of, drawn, drawn))


# --- comparisons --------------------------------------------------------------------------------------------


def p_value(differences: Sequence[float]) -> float:
    """Two-sided p of Student's t-test that paired differences, one per image, have mean 0; nan for
    fewer than two.
    """
    differences = pd.Series(differences, dtype=float)
    mean = differences.mean()
    error = differences.sem()
    if len(differences) < 2 or error == 0:
        return math.nan if len(differences) < 2 else float(mean == 0)
    return float(2 * stats.t.sf(abs(mean) / error, len(differences) - 1))


def holm(p_values: Sequence[float]) -> np.ndarray:
    """p values adjusted for a family of comparisons (Holm 1979).

    If all below 5 % are called significant, the risk that any of them is a false alarm is at most 5
    %.

    A nan is no comparison and stays nan.
    """
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p)[: np.isfinite(p).sum()]
    adjusted = np.full(p.shape, np.nan)
    steps = p[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.maximum.accumulate(steps).clip(max=1)
    return adjusted


def paired(
    table: pd.DataFrame,
    baseline: str,
    value: str = "psnr",
    *,
    by: str = "policy",
    unit: str = "image",
    p_values: bool = False,
) -> pd.DataFrame:
    """Difference of each group to `baseline` on the same images and draws, one row per group; below
    0: lower.

    Args:
        table: one row per group, image and, where there is a column `draw`, draw. A row without a
            partner, or whose difference is nan, is left out.
        by, unit: columns that name the group and the image.
        p_values: add `p` (Student's t over images) and `p_holm`, adjusted for all rows of this
            table as one family.
    Returns:
        `n` images, `mean`, and `low` to `high`, the 95 % `interval` over images of their draws'
        mean difference.
    """
    keys = [unit, "draw"] if "draw" in table else [unit]
    wide = table.pivot(index=keys, columns=by, values=value)
    rows = {}
    for name in wide.columns.drop(baseline):
        per_image = (wide[name] - wide[baseline]).dropna().groupby(level=unit).mean()
        low, high = interval(per_image)
        rows[name] = {"n": len(per_image), "mean": per_image.mean(), "low": low, "high": high}
        rows[name] |= {"p": p_value(per_image)} if p_values else {}
    columns = ["n", "mean", "low", "high"] + ["p"] * p_values
    differences = pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis(by)
    return differences.assign(p_holm=holm(differences["p"])) if p_values else differences


def summarize(
    table: pd.DataFrame,
    by: str | Sequence[str],
    value: str = "psnr",
    *,
    epsilon: float,
    unit: str = "image",
) -> pd.DataFrame:
    """Each group in one row: n images, mean, sd, 95 % interval of the mean, p95, max and success
    rate at `epsilon`.

    A diverged attack (nan or -inf) is a failure, an exact one (inf) a success; both are left out of
    the moments, and `diverged` counts the first. Mean and interval are over images, of their draws'
    mean; the rest is over attacks. Where the table has no column `unit`, each row is an image.
    """

    def row(group: pd.DataFrame) -> pd.Series:
        every = group[value]
        finite = group[np.isfinite(every)]
        means = finite.groupby(unit)[value].mean()
        low, high = interval(means)
        return pd.Series(
            {
                "n": group[unit].nunique(),
                "mean": means.mean(),
                "sd": finite[value].std(ddof=1),
                "low": low,
                "high": high,
                "p95": finite[value].quantile(0.95),
                "max": every.max(),
                "success": (every >= epsilon).mean(),
                "diverged": len(group) - len(finite) - np.isposinf(every).sum(),
            }
        )

    if unit not in table:
        table = table.assign(**{unit: range(len(table))})
    return (
        table.groupby(by, sort=False)[[value, unit]].apply(row).astype({"n": int, "diverged": int})
    )
