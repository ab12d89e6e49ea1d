"""How sure one may be of a mean, a difference, a share or a correlation of per-image values.

Images are what is sampled: draws of one image (of crop, flip, policy and start) are averaged before
anything else. Matrices are (policies P, images I). Correlations are taken along the last axis for
any leading dimensions, so that a thousand resamples are one call.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from atslib.errors import AtsError
from atslib.measures.intervals import needed as needed
from atslib.measures.intervals import share_interval as share_interval
from atslib.measures.intervals import upper_bound as upper_bound

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
    first, second = np.triu_indices(np.shape(x)[-1], 1)
    # Each pair once. The sums are whole, so the quotient is that of all pairs to the last bit.
    x, y = (np.sign(v[..., first] - v[..., second]).astype(np.float32) for v in (x, y))
    agree, of_x, of_y = (
        np.einsum("...i,...i->...", one, other, dtype=np.float64)
        for one, other in ((x, y), (x, x), (y, y))
    )
    scale = np.sqrt(of_x * of_y)
    return np.divide(agree, scale, out=np.full(np.shape(scale), np.nan), where=scale > 0)


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

    The variances are estimated without bias from the mean squares of the table (random effects;
    Searle, Casella and McCulloch 1992, section 4.3), so that one which is 0 may come out a little
    below. Sums of squares alone would give rows that do not differ a share of 1/C.

    Args:
        matrix: (..., R, C), one value per cell, R and C at least 2.
    Returns:
        (..., 3), adding up to 1; nan where nothing varies.
    """
    height, width = matrix.shape[-2:]
    centred = matrix - matrix.mean((-2, -1), keepdims=True)
    rows = width * np.square(centred.mean(-1)).sum(-1)
    columns = height * np.square(centred.mean(-2)).sum(-1)
    rest = np.square(centred).sum((-2, -1)) - rows - columns
    noise = rest / ((height - 1) * (width - 1))
    of_rows = (rows / (height - 1) - noise) / width
    of_columns = (columns / (width - 1) - noise) / height
    parts = np.stack([of_rows, of_columns, noise], -1)
    with np.errstate(invalid="ignore"):
        return parts / parts.sum(-1, keepdims=True)


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
    low, high = student_interval(values, level=level)
    if len(values) >= ENOUGH and high - low > 2e-9 * abs(values.mean()):
        return bootstrap(values, level=level, resamples=resamples, seed=seed)
    return low, high


def student_interval(values: Iterable[float], *, level: float = 0.95) -> tuple[float, float]:
    """Student's t interval of a mean, whatever the number of values; `interval` chooses.

    Args:
        values: at least two, one for each image.
    """
    values = np.asarray(list(values), dtype=float)
    half = stats.t.ppf((1 + level) / 2, len(values) - 1) * stats.sem(values)
    return (float(values.mean() - half), float(values.mean() + half))


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


def mcnemar(before: Sequence[bool], after: Sequence[bool]) -> float:
    """Exact two-sided p that paired successes and failures changed by chance alone (McNemar 1947).

    Only images count that succeed on one side and fail on the other; half of them on either side is
    what chance gives.

    Args:
        before, after: for each image, such as whether it was `found`; one draw of each.
    Returns:
        p, 1 where no image changed.
    Raises:
        AtsError: other lengths, none at all, or values that are neither true nor false.
    """
    first, second = (np.asarray(list(side)) for side in (before, after))
    if first.shape != second.shape or first.ndim != 1 or len(first) == 0:
        raise AtsError(
            f"mcnemar: {first.shape} and {second.shape} must be equally many images, at least one"
        )
    if not (np.isin(first, (0, 1)).all() and np.isin(second, (0, 1)).all()):
        raise AtsError("mcnemar: values must be true or false; average no draws")
    lost = int(np.sum(first > second))
    won = int(np.sum(second > first))
    return float(stats.binomtest(lost, lost + won).pvalue) if lost + won else 1.0


@dataclasses.dataclass(frozen=True)
class Change:
    """How a value per image changes, on the same images.

    Attributes:
        before, after: means over images.
        mean: of the change; `low` to `high` is its 95 % interval over images.
        p: Student's t, two-sided, of this comparison alone.
        n: images.
    """

    before: float
    after: float
    mean: float
    low: float
    high: float
    p: float
    n: int

    @property
    def falls(self) -> bool:
        """Whether the interval is below 0."""
        return self.high < 0

    @property
    def rises(self) -> bool:
        """Whether the interval is above 0."""
        return self.low > 0


def change(
    before: Sequence[float], after: Sequence[float], units: Sequence | None = None
) -> Change:
    """How a value changes on the same images, see `Change`; bits, decibels or anything else that
    has a mean.

    Args:
        before, after: one value per image, or per image and draw, in one order.
        units: which image each belongs to; draws of one are averaged. None: each is an image of its
            own.
    Raises:
        AtsError: other lengths, or a value that is not finite.
    """
    first, second = (np.asarray(list(side), dtype=float) for side in (before, after))
    names = range(len(first)) if units is None else list(units)
    if first.shape != second.shape or first.ndim != 1 or len(names) != len(first):
        raise AtsError(
            f"change: {first.shape}, {second.shape} and {len(names)} units must be equally many"
        )
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise AtsError(
            "change: every value must be finite; say first what a diverged attack counts for"
        )
    means = pd.DataFrame({"before": first, "after": second}).groupby(list(names)).mean()
    differences = means["after"] - means["before"]
    low, high = interval(differences)
    return Change(
        before=float(means["before"].mean()),
        after=float(means["after"].mean()),
        mean=float(differences.mean()),
        low=low,
        high=high,
        p=p_value(differences),
        n=len(differences),
    )


def protects(bits: Change, gain: Change, *, p_holm: float | None = None) -> bool:
    """Whether a defense protects in a cell: one network, in one state, attacked in one way.

    The rule: the bits that a reconstruction tells of the photograph fall (the 95 % interval of the
    paired change is below 0, and its p, adjusted by Holm's rule within the family that was named
    beforehand, is below 5 %), and the gain over the guess that knows the draw does not say the
    opposite (its interval is not above 0). What does not protect by this rule need not be harmful
    or without effect: see the intervals.

    Args:
        bits: `change` of `atslib.measures.found.bits` from undefended to defended.
        gain: `change` of `atslib.measures.guesses.gain`, in dB, on the same images.
        p_holm: adjusted p of `bits`; None where the cell is a family of its own.
    """
    p = bits.p if p_holm is None else p_holm
    return bool(bits.falls and p < 0.05 and not gain.rises)


def taken(bits: Change) -> str:
    """What a defense does to the bits that are told of a photograph, in words: "takes 1.6 [1.0,
    2.1] of 4.5 bits".
    """

    def one(value: float) -> str:
        return f"{round(value, 1) + 0.0:.1f}".replace("-", "−")  # never −0.0

    amount = f"[{one(-bits.high)}, {one(-bits.low)}] of {one(bits.before)} bits"
    if bits.falls:
        return f"takes {one(-bits.mean)} {amount}"
    if bits.rises:
        more = f"{one(bits.mean)} [{one(bits.low)}, {one(bits.high)}]"
        return f"adds {more} to {one(bits.before)} bits"
    return f"takes no certain part ({one(-bits.mean)} {amount})"


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
