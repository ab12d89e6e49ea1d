"""Correlations, intervals and comparisons, against closed forms, simulations and scipy."""

import math

import numpy as np
import pandas as pd
import pytest
from checks import refused
from scipy import stats

from atsbook.findings import statistics


def cloud(seed=0, policies=12, images=6, noise=0.5):
    """Two noisy measurements of the same policies, (P, I) each."""
    draw = np.random.default_rng(seed)
    truth = draw.normal(size=(policies, 1))
    return tuple(truth + noise * draw.normal(size=(policies, images)) for _ in range(2))


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("pearson", stats.pearsonr), ("spearman", stats.spearmanr), ("kendall", stats.kendalltau)],
)
def test_correlations_are_scipys_with_ties_and_in_batches(name, theirs):
    draw = np.random.default_rng(1)
    x, y = draw.integers(0, 5, (2, 4, 9)).astype(float)
    values = getattr(statistics, name)(x, y)
    assert values.shape == (4,)
    np.testing.assert_allclose(
        values, [theirs(a, b).statistic for a, b in zip(x, y, strict=True)], atol=1e-12
    )


def test_kendalls_tau_is_the_correlation_of_the_signs_of_all_differences_to_the_last_bit():
    draw = np.random.default_rng(1)
    for x in (draw.normal(size=(6, 11)), draw.integers(0, 3, (6, 11)).astype(float)):
        y = draw.normal(size=x.shape)
        y[2, 4] = np.nan
        signs = [np.sign(v[:, :, None] - v[:, None]).reshape(6, -1) for v in (x, y)]
        np.testing.assert_array_equal(statistics.kendall(x, y), statistics.pearson(*signs))


def test_a_constant_side_has_no_correlation():
    for statistic in statistics.CORRELATIONS.values():
        assert np.isnan(statistic(np.ones(4), np.arange(4.0)))


def test_partial_correlation_is_that_of_the_residuals():
    draw = np.random.default_rng(2)
    given = draw.normal(size=50)
    x, y = given + draw.normal(size=50), 2 * given + draw.normal(size=50)
    residuals = [v - np.polyval(np.polyfit(given, v, 1), given) for v in (x, y)]
    np.testing.assert_allclose(
        statistics.partial(x, y, given), statistics.pearson(*residuals), atol=1e-12
    )
    assert statistics.pearson(x, y) > statistics.partial(x, y, given) + 0.2
    assert np.isnan(statistics.partial(given, y, given))


def test_the_interval_covers_the_estimate_and_narrows_with_more_policies():
    wide = statistics.correlation_interval(statistics.pearson, *cloud(policies=12))
    narrow = statistics.correlation_interval(statistics.pearson, *cloud(policies=60))
    r = statistics.pearson(*(m.mean(1) for m in cloud(policies=12)))
    assert wide[0] < r < wide[1]
    assert narrow[1] - narrow[0] < wide[1] - wide[0]
    assert (
        statistics.correlation_interval(statistics.pearson, *cloud(policies=12)) == wide
    )  # seeded


def test_the_interval_draws_images_too():
    """Policies alike but for one image: drawing policies alone would see no doubt."""
    draw = np.random.default_rng(3)
    score = np.tile(np.arange(10.0)[:, None], 4)
    success = score.copy()
    success[:, 0] = -20 * np.arange(10) + draw.normal(size=10)
    low, high = statistics.correlation_interval(statistics.pearson, score, success)
    assert low < -0.9
    assert high > 0.9


@pytest.mark.parametrize("noise", [0.2, 1.0, 3.0])
def test_reliability_is_the_share_of_true_variance(noise):
    draw = np.random.default_rng(4)
    truth, images = draw.normal(size=(4000, 1)), 8
    share = statistics.reliability(truth + noise * draw.normal(size=(4000, images)))
    assert share == pytest.approx(1 / (1 + noise**2 / images), abs=0.02)


def test_pure_noise_is_not_reliable():
    assert statistics.reliability(np.random.default_rng(5).normal(size=(200, 6))) < 0.3
    opposite = np.stack([np.arange(5.0), -np.arange(5.0)], 1)
    assert statistics.reliability(opposite) == 0


def test_variance_shares_find_where_the_variance_is():
    row, column = np.array([[1.0], [2], [6]]), np.array([[0.0, 4]])
    assert statistics.variance_shares(row + 0 * column).tolist() == pytest.approx([1, 0, 0])
    assert statistics.variance_shares(0 * row + column).tolist() == pytest.approx([0, 1, 0])
    both = statistics.variance_shares(row + column)
    assert both.tolist() == pytest.approx([7 / 15, 8 / 15, 0])  # (4+1+9)/2 and (2²+2²)/1
    stacked = statistics.variance_shares(np.stack([row + column, 3 * (row + column)]))
    assert stacked.tolist() == [pytest.approx(both.tolist())] * 2
    assert np.isnan(statistics.variance_shares(np.ones((2, 3)))).all()


def test_variance_shares_are_not_biased_by_few_columns():
    draw = np.random.default_rng(6)
    noise = draw.normal(size=(4000, 3))
    assert statistics.variance_shares(noise).tolist() == pytest.approx([0, 0, 1], abs=0.05)
    rows = draw.normal(size=(4000, 1))
    assert statistics.variance_shares(rows + noise)[0] == pytest.approx(0.5, abs=0.05)


# --- intervals ----------------------------------------------------------------------------------------------


def coverage(draw, truth, runs, units=None, **options):
    """The share of `runs` samples whose interval holds the truth, and four standard deviations of
    that share.
    """
    holds = [
        low <= truth <= high
        for low, high in (statistics.interval(draw(), units, **options) for _ in range(runs))
    ]
    return np.mean(holds), 4 * math.sqrt(0.95 * 0.05 / runs)


# Of 20,000 samples (3,000 from 30 values on). Few values of a skewed distribution hardly show their
# tail.
NORMAL = [("normal", 4, 0.949), ("normal", 8, 0.953), ("normal", 30, 0.930), ("normal", 100, 0.941)]
SKEWED = [
    ("exponential", n, share) for n, share in ((4, 0.880), (8, 0.893), (30, 0.921), (100, 0.937))
]


@pytest.mark.parametrize(("kind", "n", "share"), NORMAL + SKEWED)
def test_an_interval_holds_the_true_mean_about_as_often_as_it_says(kind, n, share):
    random = np.random.default_rng(n)
    draw = {
        "normal": lambda: random.normal(1, 2, n),
        "exponential": lambda: random.exponential(1, n),
    }[kind]
    runs = 600 if n < 30 else 150
    covered, tolerance = coverage(draw, 1, runs, resamples=999)
    assert abs(covered - share) < tolerance * math.sqrt(share * (1 - share) / (0.95 * 0.05))
    if n < 30:  # which is why percentiles of resamples will not do
        percentiles = [statistics.bootstrap(draw(), resamples=999) for _ in range(runs)]
        assert np.mean([low <= 1 <= high for low, high in percentiles]) < covered


@pytest.mark.parametrize(("images", "draws", "spread"), [(8, 3, 1.0), (8, 2, 0.3), (40, 2, 1.0)])
def test_draws_of_one_image_are_no_further_images(images, draws, spread):
    """Image means with sd 1 and draws around them: averaging draws first covers 95 %, taking each
    as an image less.
    """
    random, units = np.random.default_rng(images + draws), np.repeat(np.arange(images), draws)

    def draw():
        means = random.normal(size=(images, 1))
        return (means + spread * random.normal(size=(images, draws))).ravel()

    runs = 400 if images < 30 else 150
    covered, tolerance = coverage(draw, 0, runs, units, resamples=999)
    assert abs(covered - 0.95) < tolerance
    assert coverage(draw, 0, runs, resamples=999)[0] < covered


def test_an_interval_below_30_images_is_students_and_from_there_on_scipys_bca():
    few, many = np.arange(6.0) ** 2, np.arange(40.0) ** 2
    expected = stats.ttest_1samp(few, 0).confidence_interval(0.95)
    assert statistics.interval(few) == pytest.approx(tuple(expected))
    expected = stats.bootstrap(
        (many,), np.mean, n_resamples=10_000, rng=np.random.default_rng(0)
    ).confidence_interval
    assert statistics.interval(many) == pytest.approx(tuple(expected))
    assert statistics.interval(np.repeat(many, 2), np.repeat(range(40), 2)) == pytest.approx(
        tuple(expected)
    )


def test_intervals_without_spread_or_sense():
    assert statistics.interval([2.5] * 3) == statistics.interval([2.5] * 50) == (2.5, 2.5)
    for values in ([], [3.0], [1, math.nan, 2], [1, math.inf, 2]):
        assert all(map(math.isnan, statistics.interval(values)))
    assert all(map(math.isnan, statistics.interval([1, 2, 3], [0, 0, 0])))  # draws of one image
    assert all(map(math.isnan, statistics.bootstrap([1.0])))


def test_bootstrap_takes_any_statistic_and_rows_of_any_shape():
    assert statistics.bootstrap([0, 0, 0, 0, 100], np.median) == (0, 100)
    rows = np.random.default_rng(1).normal([0, 5], 1, (40, 2))
    low, high = statistics.bootstrap(
        rows, lambda values, axis: np.diff(values.mean(axis), axis=-1)[..., 0]
    )
    assert low < 5 < high
    values = [1.0, 2, 4, 8, 16]
    (low50, high50), (low95, high95) = (
        statistics.bootstrap(iter(values), level=0.5),
        statistics.bootstrap(values),
    )
    assert low95 < low50 < high50 < high95
    assert statistics.bootstrap(values, seed=1, resamples=50) != statistics.bootstrap(
        values, resamples=50
    )


def test_chance_is_that_of_two_random_sets():
    assert statistics.chance(0, 50, 5) == 1
    assert statistics.chance(5, 50, 5) == pytest.approx(1 / math.comb(50, 5))
    random = np.random.default_rng(0)
    hits = np.mean([len({*random.permutation(10)[:3]} & {0, 1, 2}) >= 2 for _ in range(4000)])
    assert statistics.chance(2, 10, 3) == pytest.approx(hits, abs=4 * math.sqrt(0.25 / 4000))


# --- comparisons --------------------------------------------------------------------------------------------

BASE = np.array([12.0, 18.0, 15.0, 9.0, 14.0, 16.0])


def attacks(draws=1, **policies):
    """One row per policy, image and, if there are several, draw; `none` has BASE, a policy BASE
    plus its values.
    """
    parts = []
    for name, shift in ({"none": 0.0} | policies).items():
        values = np.broadcast_to(BASE + np.asarray(shift, float), (draws, 6))
        rows = {
            "policy": name,
            "draw": np.repeat(range(draws), 6),
            "image": np.tile(range(6), draws),
        }
        parts.append(pd.DataFrame(rows | {"psnr": values.ravel()}))
    table = pd.concat(parts, ignore_index=True)
    return table if draws > 1 else table.drop(columns="draw")


def test_paired_differences_are_taken_on_the_same_image():
    table = attacks(a=-3.0, b=[1, -1, 1, -1, 1, -1])
    rows = statistics.paired(table.sample(frac=1, random_state=0), "none")
    assert list(rows.index) == ["a", "b"]
    assert rows.loc["a"].tolist() == [
        6,
        -3,
        -3,
        -3,
    ]  # images differ by 9 dB, differences by nothing
    assert rows.loc["b", "mean"] == 0
    assert rows.loc["b", "low"] < 0 < rows.loc["b", "high"]


def test_paired_leaves_out_images_without_a_partner():
    table = attacks(a=[math.nan, -2, -2, -2, -2, -2])
    assert statistics.paired(table, "none").loc["a"].tolist() == [5, -2, -2, -2]
    assert statistics.paired(table[table["image"] == 0], "none").loc["a", "n"] == 0


def test_paired_differences_are_taken_on_the_same_draw_and_averaged_by_image():
    shifts = np.array([[-1, -2, -3, -1, -2, -3], [-3, -4, -5, -3, -4, -5]])
    rows = statistics.paired(attacks(draws=2, a=shifts), "none")
    once = statistics.paired(attacks(a=shifts.mean(0)), "none")
    assert rows.loc["a"].tolist() == pytest.approx(once.loc["a"].tolist())
    table = attacks(draws=2, a=shifts)
    lost = (table["policy"] == "none") & (table["draw"] == 1) & (table["image"] == 0)
    row = statistics.paired(table[~lost], "none").loc["a"]
    assert row["n"] == 6
    assert row["mean"] == pytest.approx(
        (shifts.mean(0).sum() + 1) / 6
    )  # image 0 has its first draw alone: -1, not -2


def test_p_values_are_those_of_the_paired_t_test_and_holms_of_the_family():
    changes = {
        "a": [-1, -2, -3, -1, -2, -4],
        "b": [1, -1, 2, -1, 1, -1],
        "c": [-1, -1, 0, -2, -1, 0],
    }
    rows = statistics.paired(attacks(**changes), "none", p_values=True)
    for name, change in changes.items():
        assert rows.loc[name, "p"] == pytest.approx(stats.ttest_1samp(change, 0).pvalue)
        assert (rows.loc[name, "p"] < 0.05) == (
            not rows.loc[name, "low"] <= 0 <= rows.loc[name, "high"]
        )
    assert rows["p_holm"].tolist() == pytest.approx(statistics.holm(rows["p"]).tolist())
    assert statistics.p_value([2.0, 2, 2]) == 0
    assert statistics.p_value([0.0, 0]) == 1
    assert math.isnan(statistics.p_value([1.0]))


def test_holm_steps_down_and_never_turns_the_order():
    # 3·0.01, then max(0.03, 2·0.02), then max(0.04, 1·0.03); a nan is no comparison
    assert statistics.holm([0.02, math.nan, 0.01, 0.03]) == pytest.approx(
        [0.04, math.nan, 0.03, 0.04], nan_ok=True
    )
    assert statistics.holm([0.6, 0.7]).tolist() == [1, 1]
    assert statistics.holm([]).size == 0


def test_holm_keeps_a_family_without_effects_at_five_percent():
    """500 families of 5 true nulls: one is rejected in 5 % of families, in 23 % without the
    adjustment.
    """
    p = np.random.default_rng(0).uniform(size=(500, 5))
    rejected = np.mean([(statistics.holm(family) < 0.05).any() for family in p])
    assert abs(rejected - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 500)
    assert (p < 0.05).any(1).mean() > 0.15


@pytest.mark.parametrize(
    ("lost", "won", "both"), [(0, 0, 5), (6, 0, 1), (5, 2, 9), (1, 1, 0), (20, 9, 70)]
)
def test_mcnemars_p_is_that_of_all_ways_in_which_the_changed_images_could_have_changed(
    lost, won, both
):
    before = [True] * lost + [False] * won + [True] * both
    after = [False] * lost + [True] * won + [True] * both
    changed = lost + won
    as_far = [k for k in range(changed + 1) if abs(2 * k - changed) >= abs(lost - won)]
    exact = sum(math.comb(changed, k) for k in as_far) / 2**changed
    assert statistics.mcnemar(before, after) == pytest.approx(exact)
    assert statistics.mcnemar(after, before) == pytest.approx(exact)


def test_mcnemar_takes_one_answer_per_image():
    with refused("equally many"):
        statistics.mcnemar([True], [True, False])
    with refused("true or false"):
        statistics.mcnemar([0.5], [1])


def test_a_change_is_paired_over_images_whose_draws_are_averaged():
    before = [4.0, 5, 3, 4, 6, 5]
    after = [3.0, 4.5, 1, 3, 4, 4]
    alone = statistics.change(before, after)
    differences = np.subtract(after, before)
    half = stats.t.ppf(0.975, 5) * stats.sem(differences)
    assert (alone.before, alone.after, alone.n) == (4.5, 3.25, 6)
    assert (alone.mean, alone.low, alone.high) == pytest.approx((-1.25, -1.25 - half, -1.25 + half))
    assert alone.p == pytest.approx(stats.ttest_rel(after, before).pvalue)
    twice = statistics.change(
        before * 2, [a + 1 for a in after] + [a - 1 for a in after], units=[*range(6)] * 2
    )
    assert twice == alone
    assert alone.falls
    assert not alone.rises
    with refused("finite"):
        statistics.change([1.0, math.nan], [1.0, 2.0])
    with refused("equally many"):
        statistics.change([1.0], [1.0, 2.0])


def test_intervals_of_a_change_cover_the_true_one():
    """1,000 samples of 12 paired skewed values: 95 % intervals cover in 95 %, within four standard
    errors and skew.
    """
    draw = np.random.default_rng(7)
    covered = []
    for _ in range(1_000):
        before = draw.gamma(4, size=12)
        found = statistics.change(before, before - 1 + draw.normal(size=12))
        covered.append(found.low <= -1 <= found.high)
    assert abs(np.mean(covered) - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 1_000)


def fall(mean, low, high, p=0.001, before=4.5):
    return statistics.Change(before, before + mean, mean, low, high, p, 100)


def test_a_defense_protects_where_bits_fall_and_the_gain_does_not_rise():
    falls, flat, rises = fall(-1.6, -2.1, -1.0), fall(-0.2, -0.5, 0.1, p=0.2), fall(0.4, 0.1, 0.7)
    assert statistics.protects(falls, flat)
    assert statistics.protects(falls, falls)
    assert not statistics.protects(falls, rises)
    assert not statistics.protects(flat, falls)
    assert not statistics.protects(rises, falls)
    assert not statistics.protects(falls, flat, p_holm=0.06)
    assert statistics.taken(falls) == "takes 1.6 [1.0, 2.1] of 4.5 bits"
    assert statistics.taken(rises) == "adds 0.4 [0.1, 0.7] to 4.5 bits"
    assert statistics.taken(flat) == "takes no certain part (0.2 [−0.1, 0.5] of 4.5 bits)"


def test_a_summary_counts_diverged_attacks_as_failures_and_exact_ones_as_successes():
    values = [10.0, 20.0, math.nan, math.inf, 15.0, 15.0, -math.inf, 12.0]
    rows = statistics.summarize(
        pd.DataFrame({"policy": ["z"] * 4 + ["a"] * 4, "psnr": values}), "policy", epsilon=15
    )
    assert list(rows.index) == ["z", "a"]  # as they come, not sorted
    z, a = rows.loc["z"], rows.loc["a"]
    assert (z["n"], z["mean"], z["diverged"], z["success"], z["max"]) == (4, 15, 1, 0.5, math.inf)
    assert z["sd"] == pytest.approx(math.sqrt(50))  # (10 - 15)² + (20 - 15)² over n - 1 = 1
    assert z["p95"] == pytest.approx(19.5)
    assert (a["n"], a["mean"], a["diverged"], a["success"], a["max"]) == (4, 14, 1, 0.5, 15)
    assert (a["low"], a["high"]) == statistics.interval([15, 15, 12])


def test_a_summary_of_a_group_that_diverged_has_no_mean():
    table = pd.DataFrame({"policy": ["a", "a"], "psnr": [math.nan, math.nan]})
    row = statistics.summarize(table, ["policy"], epsilon=15).loc["a"]
    assert (row["n"], row["diverged"], row["success"]) == (2, 2, 0)
    assert np.isnan([row["mean"], row["low"], row["high"], row["max"]]).all()


def test_a_summary_by_two_columns_has_one_row_per_pair():
    table = pd.DataFrame({"a": ["x", "x", "y"], "b": [1, 2, 1], "mse": [0.1, 0.2, 0.3]})
    rows = statistics.summarize(table, ["a", "b"], "mse", epsilon=0.2)
    assert rows["mean"].to_dict() == {("x", 1): 0.1, ("x", 2): 0.2, ("y", 1): 0.3}
    assert rows["success"].tolist() == [0, 1, 1]


def test_a_summary_counts_images_and_averages_their_draws():
    row = statistics.summarize(attacks(draws=3), "policy", epsilon=15).loc["none"]
    assert (row["n"], row["mean"], row["success"]) == (6, BASE.mean(), 0.5)
    assert (row["low"], row["high"]) == pytest.approx(statistics.interval(BASE))
