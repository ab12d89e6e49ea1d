"""How far two measurements of the same policies agree, each of them a mean over images.

Matrices are (policies P, images I). Functions of vectors take any leading dimensions and correlate along the
last one, so that a thousand resamples are one call.
"""

from collections.abc import Callable

import numpy as np

Correlation = Callable[[np.ndarray, np.ndarray], np.ndarray]


def pearson(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Linear correlation along the last axis, in [-1, 1]; nan where one side is constant."""
    x, y = (v - v.mean(-1, keepdims=True) for v in (x, y))
    scale = np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    return np.divide((x * y).sum(-1), scale, out=np.full(np.shape(scale), np.nan), where=scale > 0)


def ranks(x: np.ndarray) -> np.ndarray:
    """Ranks along the last axis from 0, ties by their mean."""
    below = (x[..., None, :] < x[..., :, None]).sum(-1)
    ties = (x[..., None, :] == x[..., :, None]).sum(-1)
    return below + (ties - 1) / 2


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Correlation of the ranks along the last axis."""
    return pearson(ranks(x), ranks(y))


def kendall(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Kendall's tau-b along the last axis: concordant minus discordant pairs over the root of the untied ones."""
    x, y = (np.sign(v[..., :, None] - v[..., None, :]) for v in (x, y))
    scale = np.sqrt((x * x).sum((-1, -2)) * (y * y).sum((-1, -2)))
    return np.divide((x * y).sum((-1, -2)), scale, out=np.full(np.shape(scale), np.nan), where=scale > 0)


CORRELATIONS: dict[str, Correlation] = {"Pearson": pearson, "Spearman": spearman, "Kendall": kendall}


def partial(x: np.ndarray, y: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Pearson correlation of what a straight line through `given` leaves of `x` and `y`; nan if that is nothing."""
    xy, xz, yz = pearson(x, y), pearson(x, given), pearson(y, given)
    left = np.sqrt(np.clip((1 - xz**2) * (1 - yz**2), 0, None))
    return np.divide(xy - xz * yz, left, out=np.full(np.shape(left), np.nan), where=left > 1e-9)


def interval(
    statistic: Callable[..., np.ndarray], *matrices: np.ndarray, resamples: int = 2_000, seed: int = 0
) -> tuple[float, float]:
    """95 % interval of a statistic of the matrices' means over images, policies and images both drawn anew.

    Args:
        statistic: of one (resamples, P) array a matrix, along the last axis.
        matrices: (P, I) each, rows and columns in one order; the same draw for all.
    """
    draw, (policies, images) = np.random.default_rng(seed), matrices[0].shape
    rows = draw.integers(0, policies, (resamples, policies))
    columns = draw.integers(0, images, (resamples, images))
    weights = np.stack([np.bincount(c, minlength=images) for c in columns]) / images
    means = [np.take_along_axis(weights @ m.T, rows, 1) for m in matrices]
    found = np.concatenate([statistic(*(m[part] for m in means)) for part in np.array_split(np.arange(resamples), 10)])
    low, high = np.nanquantile(found, [0.025, 0.975])
    return float(low), float(high)


def reliability(matrix: np.ndarray, *, splits: int = 200, seed: int = 0) -> float:
    """Split-half reliability of the rows' means: the share of their variance that other images would confirm.

    The mean correlation of the means over two random halves of the images, stepped up to all of them
    (Spearman-Brown). 1: no noise; 0: nothing but noise, which is also what halves that disagree come to. No
    measurement can be expected to correlate with this one by more than its root.
    """
    draw, images = np.random.default_rng(seed), matrix.shape[1]
    orders = np.stack([draw.permutation(images) for _ in range(splits)])
    halves = [matrix[:, o].mean(-1).T for o in (orders[:, : images // 2], orders[:, images // 2 :])]
    half = max(0.0, float(np.mean(pearson(*halves))))
    return 2 * half / (1 + half)


def variance_shares(matrix: np.ndarray) -> dict[str, float]:
    """Shares of the total variance of (P, I): policy, image, and the rest (interaction and noise); they add up to 1."""
    centred = matrix - matrix.mean()
    policy, image = centred.mean(1, keepdims=True), centred.mean(0, keepdims=True)
    rest, total = centred - policy - image, (centred**2).sum()
    parts = {"policy": policy, "image": image, "rest": rest}
    return {name: float((np.broadcast_to(part, matrix.shape) ** 2).sum() / total) for name, part in parts.items()}
