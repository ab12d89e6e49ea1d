"""Correlations, their intervals and their noise ceiling, against closed forms and other people's code."""

import numpy as np
import pytest
from scipy import stats

from atslib.measures import statistics as agreement


def cloud(seed=0, policies=12, images=6, noise=0.5):
    """Two noisy measurements of the same policies, (P, I) each."""
    draw = np.random.default_rng(seed)
    truth = draw.normal(size=(policies, 1))
    return tuple(truth + noise * draw.normal(size=(policies, images)) for _ in range(2))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(agreement.pearson, stats.pearsonr), (agreement.spearman, stats.spearmanr), (agreement.kendall, stats.kendalltau)],
)
def test_correlations_are_scipys_with_ties_and_in_batches(ours, theirs):
    draw = np.random.default_rng(1)
    x, y = draw.integers(0, 5, (2, 4, 9)).astype(float)
    found = ours(x, y)
    assert found.shape == (4,)
    np.testing.assert_allclose(found, [theirs(a, b).statistic for a, b in zip(x, y, strict=True)], atol=1e-12)


def test_a_constant_side_has_no_correlation():
    for statistic in agreement.CORRELATIONS.values():
        assert np.isnan(statistic(np.ones(4), np.arange(4.0)))


def test_partial_correlation_is_that_of_the_residuals():
    draw = np.random.default_rng(2)
    given = draw.normal(size=50)
    x, y = given + draw.normal(size=50), 2 * given + draw.normal(size=50)
    left = [v - np.polyval(np.polyfit(given, v, 1), given) for v in (x, y)]
    np.testing.assert_allclose(agreement.partial(x, y, given), agreement.pearson(*left), atol=1e-12)
    assert agreement.pearson(x, y) > agreement.partial(x, y, given) + 0.2
    assert np.isnan(agreement.partial(given, y, given))


def test_the_interval_covers_the_estimate_and_narrows_with_more_policies():
    wide = agreement.interval(agreement.pearson, *cloud(policies=12))
    narrow = agreement.interval(agreement.pearson, *cloud(policies=60))
    r = agreement.pearson(*(m.mean(1) for m in cloud(policies=12)))
    assert wide[0] < r < wide[1]
    assert narrow[1] - narrow[0] < wide[1] - wide[0]
    assert agreement.interval(agreement.pearson, *cloud(policies=12)) == wide  # seeded


def test_the_interval_draws_images_too():
    """Policies alike but for one image: drawing policies alone would see no doubt."""
    draw = np.random.default_rng(3)
    score = np.tile(np.arange(10.0)[:, None], 4)
    success = score.copy()
    success[:, 0] = -20 * np.arange(10) + draw.normal(size=10)
    low, high = agreement.interval(agreement.pearson, score, success)
    assert low < -0.9
    assert high > 0.9


@pytest.mark.parametrize("noise", [0.2, 1.0, 3.0])
def test_reliability_is_the_share_of_true_variance(noise):
    draw = np.random.default_rng(4)
    truth, images = draw.normal(size=(4000, 1)), 8
    found = agreement.reliability(truth + noise * draw.normal(size=(4000, images)))
    assert found == pytest.approx(1 / (1 + noise**2 / images), abs=0.02)


def test_pure_noise_is_not_reliable():
    assert agreement.reliability(np.random.default_rng(5).normal(size=(200, 6))) < 0.3
    opposite = np.stack([np.arange(5.0), -np.arange(5.0)], 1)
    assert agreement.reliability(opposite) == 0


def test_variance_shares_find_where_the_variance_is():
    policy, image = np.arange(5.0)[:, None], np.array([[3.0, -3.0, 0.0]])
    shares = agreement.variance_shares(policy + 0 * image)
    assert shares == pytest.approx({"policy": 1, "image": 0, "rest": 0})
    both = agreement.variance_shares(policy + image)
    assert both["rest"] == pytest.approx(0)
    assert both["policy"] == pytest.approx(2 / 8)
    assert both["image"] == pytest.approx(6 / 8)
