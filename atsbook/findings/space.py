"""What can be said of all policies at once: choosing among them by a score, and what single
operations explain.

Gains are (P, B), of P policies on B images each, and `image` says which; every image has met many
policies. Intervals draw the images anew, because the policies are all there are.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import sparse, special

from atsbook.findings import statistics

FOLDS = 10  # of the policies, each predicted from the others
# Added to how many policies have an effect: what few have is pulled to 0. Of 3, 10, 30, 100 and 300
# this predicts best.
RIDGE = 30.0


def adjusted(gain: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Gains in dB without what their images have to do with them: each minus its image's mean, plus
    the mean of all.
    """
    place = np.unique(image, return_inverse=True)[1].reshape(gain.shape)
    means = np.bincount(place.ravel(), gain.ravel()) / np.bincount(place.ravel())
    return gain - means[place] + gain.mean()


def first_of(values: np.ndarray, candidates: int) -> np.ndarray:
    """Probability of each policy, (P,), to have the lowest value among so many that are drawn
    without replacement.

    Of equal values the earlier one counts as lower; a policy whose value is inf is never chosen.
    """
    count = len(values)
    order = np.argsort(values, kind="stable")
    worse = np.arange(count - 1, -1, -1.0)  # how many stand behind each in that order
    with np.errstate(invalid="ignore"):
        log = _choose(worse, candidates - 1) - _choose(float(count), candidates)
    shares = np.where(worse >= candidates - 1, np.exp(log), 0.0)
    chances = np.empty(count)
    chances[order] = shares
    chances[np.isinf(values)] = 0
    return chances / chances.sum()


def _choose(of: np.ndarray | float, drawn: int) -> np.ndarray:
    return special.gammaln(of + 1) - special.gammaln(drawn + 1) - special.gammaln(of - drawn + 1)


def compared(
    gain: np.ndarray,
    image: np.ndarray,
    chances: np.ndarray,
    beside: np.ndarray | None = None,
    *,
    sampled: bool = False,
    resamples: int = 500,
    seed: int = 0,
) -> dict[str, float]:
    """What an attack finds of the policy that is chosen with these chances, minus that of one at
    random, in dB or in the unit of another outcome.

    Args:
        gain: or another outcome.
        chances: (P,), of each policy.
        beside: the same of the other policy; None: all alike.
        sampled: the other policies are a random sample; the interval draws them anew, too.
    Returns:
        `chosen`, its mean gain, `mean`, the difference, and its 95 % interval `low` to `high`.
    """
    values = adjusted(gain, image)
    names, place = np.unique(image, return_inverse=True)
    place = place.reshape(image.shape)
    generator = np.random.default_rng(seed)
    draws = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), size=resamples)
    counts = np.vstack([np.ones(len(names)), draws])  # all images as they are, then drawn anew
    found = []
    for p in (chances, np.ones(len(gain)) if beside is None else beside):
        kept = np.flatnonzero(p > p.max() * 1e-9)  # what is left out could not be seen
        often = np.ones((1, len(kept)))  # how often each policy counts
        if sampled and found:
            drawn = generator.multinomial(
                len(kept), np.full(len(kept), 1 / len(kept)), size=resamples
            )
            often = np.vstack([often, drawn])
        # by image: the sum of weighted gains, and that of the weights, (1 or 1 + resamples, images)
        cells = (np.repeat(np.arange(len(kept)), image.shape[1]), place[kept].ravel())
        weights = np.broadcast_to(p[kept, None], place[kept].shape).ravel()
        shape = (len(kept), len(names))
        of_gain, of_weight = (
            often @ sparse.csr_matrix((part, cells), shape=shape)
            for part in (weights * values[kept].ravel(), weights)
        )
        sums = (of_gain * counts).sum(1), (of_weight * counts).sum(1)
        found.append(sums[0] / np.maximum(sums[1], 1e-300))
    differences = found[0] - found[1]
    low, high = np.quantile(differences[1:], [0.025, 0.975])
    return {"chosen": found[0][0], "mean": differences[0], "low": low, "high": high}


def rank_correlation(
    scores: np.ndarray, gain: np.ndarray, image: np.ndarray
) -> tuple[float, float, float]:
    """Spearman's correlation of mean score (P, K) and mean gain over policies, with its 95 %
    interval.

    The interval is the jackknife's: each image of the gains, and each of the scores, is left out in
    turn. To draw them anew, as elsewhere, would leave many policies a single image, and so lower
    the correlation itself.
    """
    values = adjusted(gain, image)

    def correlation(counts: np.ndarray, columns: np.ndarray) -> float:
        seen = counts.any(1)
        mean = (values * counts).sum(1)[seen] / counts.sum(1)[seen]
        return float(statistics.spearman(scores[seen][:, columns].mean(1), mean))

    every = np.arange(scores.shape[1])
    whole = np.ones(gain.shape)
    by_image = [correlation((image != name).astype(float), every) for name in np.unique(image)]
    by_column = (
        [correlation(whole, np.delete(every, k)) for k in every] if len(every) > 1 else [0.0]
    )
    error = np.sqrt(sum((len(found) - 1) * np.var(found) for found in (by_image, by_column)))
    mean = correlation(whole, every)
    return mean, mean - 1.96 * error, mean + 1.96 * error


def designs(policies: Sequence[Sequence[int]]) -> dict[str, sparse.csr_matrix]:
    """By name, what a policy is made of, one row per policy and one column per effect; each has
    those before it too.
    """
    rows = np.arange(len(policies))
    pairs = []
    ids = np.array([[*policy, *[-1] * (3 - len(policy))] for policy in policies])
    length = [_columns(rows, (ids >= 0).sum(1))]
    wherever = [sum(_columns(rows, ids[:, place], 50) for place in range(3))]
    placed = [_columns(rows, ids[:, place], 50) for place in range(3)]
    for first, second in ((0, 1), (1, 2), (0, 2)):
        both = np.where(ids[:, second] >= 0, 50 * ids[:, first] + ids[:, second], -1)
        pairs.append(_columns(rows, both, 2_500))
    parts = {
        "how many operations": length,
        "which operations": wherever,
        "which operation at which place": placed,
        "and which two together": pairs,
    }
    made = {}
    so_far = []
    for name, part in parts.items():
        so_far += part
        matrix = sparse.hstack(so_far, format="csr")
        made[name] = matrix[:, np.asarray(matrix.sum(0)).ravel() > 0]
    return made


def _columns(rows: np.ndarray, columns: np.ndarray, count: int | None = None) -> sparse.csr_matrix:
    """A one in each row at its column; none where that is -1."""
    kept = columns >= 0
    width = count or columns.max() + 1
    return sparse.csr_matrix(
        (np.ones(kept.sum()), (rows[kept], columns[kept])), shape=(len(rows), width)
    )


def predicted(design: sparse.csr_matrix, values: np.ndarray, ridge: float = RIDGE) -> np.ndarray:
    """Each policy's value, (P,), by a sum of effects that is fitted to the policies of the other
    folds.
    """
    fold = np.random.default_rng(0).permutation(len(values)) % FOLDS
    made = np.empty(len(values))
    for number in range(FOLDS):
        made[fold == number] = fitted(design, values, fold != number, ridge)[fold == number]
    return made


def fitted(
    design: sparse.csr_matrix,
    values: np.ndarray,
    kept: np.ndarray | None = None,
    ridge: float = RIDGE,
) -> np.ndarray:
    """All policies' values by effects that are fitted, by ridge regression, to those that are kept,
    or to all.
    """
    kept = np.ones(len(values), bool) if kept is None else kept
    known = design[kept]
    mean = values[kept].mean()
    normal = (known.T @ known).toarray()
    normal[np.diag_indices_from(normal)] += ridge
    return mean + design @ np.linalg.solve(normal, known.T @ (values[kept] - mean))


def explained(
    policies: Sequence[Sequence[int]], gain: np.ndarray, image: np.ndarray, ridge: float = RIDGE
) -> pd.DataFrame:
    """One row per set of effects: how many there are, and what a sum of them explains of how
    policies differ.

    `of what is measured`: the squared correlation of prediction and mean gain, over policies that
    were not fitted. `of the policies`: the same divided by the reliability of the mean gain, which
    leaves out the luck of the images.
    """
    values = adjusted(gain, image)
    real = statistics.reliability(values)
    rows = {}
    for name, design in designs(policies).items():
        share = (
            float(statistics.pearson(predicted(design, values.mean(1), ridge), values.mean(1))) ** 2
        )
        rows[name] = {
            "effects": design.shape[1],
            "of what is measured": share,
            "of the policies": share / real,
        }
    return pd.DataFrame(rows).T
