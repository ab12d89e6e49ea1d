"""Bounds on a share are Clopper and Pearson's."""

import pytest
from scipy import stats

from atslib.measures.intervals import lower_bound, needed, share_interval, upper_bound


@pytest.mark.parametrize(("hits", "trials"), [(0, 8), (1, 8), (3, 100), (0, 299)])
def test_bounds_on_a_rate_are_clopper_and_pearsons(hits, trials):
    assert stats.binom.cdf(hits, trials, upper_bound(hits, trials)) == pytest.approx(0.05)
    low, high = share_interval(hits, trials)
    assert stats.binom.cdf(hits, trials, high) == pytest.approx(0.025)
    assert low == 0 if hits == 0 else stats.binom.sf(hits - 1, trials, low) == pytest.approx(0.025)
    assert upper_bound(trials, trials) == share_interval(trials, trials)[1] == 1


def test_images_needed_for_a_guarantee():
    assert needed(0.01) == 299
    assert upper_bound(0, 299) <= 0.01 < upper_bound(0, 298)


def test_bounds_of_none_are_in_closed_form():
    assert share_interval(0, 32) == pytest.approx((0, 1 - 0.025 ** (1 / 32)))
    assert upper_bound(0, needed(0.05)) <= 0.05 < upper_bound(0, needed(0.05) - 1)


@pytest.mark.parametrize(("hits", "trials"), [(1, 8), (3, 100), (8, 8)])
def test_a_lower_bound_mirrors_the_upper_one(hits, trials):
    low = lower_bound(hits, trials)
    assert stats.binom.sf(hits - 1, trials, low) == pytest.approx(0.05)
    assert low == pytest.approx(1 - upper_bound(trials - hits, trials))
    assert lower_bound(0, trials) == 0
