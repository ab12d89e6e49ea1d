"""What is said of all policies at once, against simulations and sums made by hand."""

import itertools

import numpy as np
import pytest

from atsbook.findings import space


def test_the_chance_to_be_first_is_that_of_all_draws():
    values = np.array([3.0, 1.0, 2.0, 5.0, 4.0])
    for candidates in (1, 2, 3, 5):
        draws = list(itertools.combinations(range(5), candidates))
        first = [min(draw, key=lambda i: values[i]) for draw in draws]
        expected = np.bincount(first, minlength=5) / len(draws)
        np.testing.assert_allclose(space.first_of(values, candidates), expected, atol=1e-12)


def test_who_is_rejected_is_never_first_and_of_equals_the_earlier_one_is():
    chances = space.first_of(np.array([np.inf, 1.0, 1.0]), 3)
    np.testing.assert_allclose(chances, [0, 1, 0], atol=1e-12)


def test_many_candidates_of_many_policies_give_finite_chances():
    chances = space.first_of(np.random.default_rng(0).normal(size=20_439), 1_500)
    assert chances.sum() == pytest.approx(1)
    assert chances.max() == pytest.approx(1_500 / 20_439)


def test_an_image_that_is_hard_for_all_says_nothing_of_a_policy():
    draw = np.random.default_rng(0)
    image = np.stack([draw.permutation(40)[:2] for _ in range(4_000)])
    effect, difficulty = draw.normal(size=4_000), 10 * draw.normal(size=40)
    values = space.adjusted(effect[:, None] + difficulty[image], image)
    # Each image's mean is over two hundred policies of standard deviation 1.
    assert np.abs(values - effect[:, None] - (values.mean() - effect.mean())).max() < 0.5


def test_the_interval_of_a_choice_covers():
    """A policy chosen at random differs from the others by nothing: 95 of 100 intervals hold 0,
    give or take.
    """
    inside = 0
    for seed in range(100):
        draw = np.random.default_rng(seed)
        image = np.stack([draw.permutation(60)[:2] for _ in range(600)])
        gain = draw.normal(size=60)[image] + draw.normal(size=(600, 2))
        chances = space.first_of(draw.normal(size=600), 20)
        change = space.compared(gain, image, chances, resamples=200, seed=seed)
        inside += change["low"] <= 0 <= change["high"]
    assert inside >= 85  # fewer in one of ten thousand runs, where they cover


def test_an_interval_over_a_sample_of_policies_covers_what_all_of_them_are():
    covered = {False: 0, True: 0}
    for seed in range(60):
        draws = np.random.default_rng(seed)
        worth = np.concatenate(
            [[0.0], draws.normal(1.0, 2.0, 12)]
        )  # of one that is chosen, and of a sample
        image = np.stack([np.sort(draws.permutation(40)[:10]) for _ in worth])
        gain = worth[:, None] + draws.normal(0, 0.5, image.shape)
        chances = np.eye(len(worth))[0]
        for sampled in covered:
            change = space.compared(
                gain, image, chances, 1 - chances, sampled=sampled, resamples=200, seed=seed
            )
            covered[sampled] += change["low"] <= -1.0 <= change["high"]
    assert covered[True] >= 50  # 57 are wanted; a bootstrap of twelve falls short by a little
    assert covered[False] <= covered[True] - 6


def test_a_choice_is_worth_what_its_policies_are():
    gain, image = np.array([[0.0, 0.0], [2.0, 2.0], [4.0, 4.0]]), np.array([[0, 1]] * 3)
    change = space.compared(gain, image, np.array([1.0, 0.0, 0.0]))
    assert (change["chosen"], change["mean"], change["low"], change["high"]) == pytest.approx(
        (0, -2, -2, -2)
    )


def test_the_interval_of_a_correlation_covers_what_other_images_would_show():
    """Policies and their scores stay, images are drawn anew: of 40 intervals most hold the mean
    correlation.
    """
    real, found = np.random.default_rng(0).normal(size=300), []
    for seed in range(40):
        draw = np.random.default_rng(1 + seed)
        image = np.stack([draw.permutation(50)[:2] for _ in range(300)])
        gain = real[:, None] * (1 + draw.normal(size=50))[image] + draw.normal(size=(300, 2))
        found.append(space.rank_correlation(real[:, None] + draw.normal(size=6), gain, image))
    means, lows, highs = np.array(found).T
    assert 0.4 < means.mean() < 0.9
    assert ((lows <= means.mean()) & (means.mean() <= highs)).sum() >= 32


def test_a_score_at_random_correlates_with_nothing():
    draw = np.random.default_rng(0)
    image = np.stack([draw.permutation(50)[:2] for _ in range(500)])
    mean, low, high = space.rank_correlation(
        draw.normal(size=(500, 3)), draw.normal(size=(500, 2)), image
    )
    assert low < 0 < high
    assert low < mean < high


def test_effects_explain_sums_of_effects_and_nothing_else():
    draw, ids = np.random.default_rng(0), (0, 1, 2, 3, 6, 7)
    policies = [p for length in (1, 2, 3) for p in itertools.product(ids, repeat=length)]
    single = dict(zip(ids, draw.normal(size=len(ids)), strict=True))
    image = np.stack([draw.permutation(30)[:4] for _ in policies])
    gain = np.array([sum(single[i] for i in p) for p in policies])[:, None] + 0.3 * draw.normal(
        size=image.shape
    )
    shares = space.explained(policies, gain, image)["of the policies"]
    assert shares["how many operations"] < 0.5
    assert shares["which operations"] == pytest.approx(1, abs=0.05)
    assert shares["which operation at which place"] == pytest.approx(1, abs=0.05)
    noise = space.explained(policies, draw.normal(size=image.shape), image)["of what is measured"]
    assert (noise < 0.1).all()


def test_pairs_explain_what_two_operations_do_only_together():
    draw, ids = np.random.default_rng(0), tuple(range(6))
    policies = [p for length in (2, 3) for p in itertools.product(ids, repeat=length)]
    both = {pair: draw.normal() for pair in itertools.product(ids, repeat=2)}
    value = np.array([sum(both[pair] for pair in itertools.pairwise(p)) for p in policies])
    image = np.stack([draw.permutation(30)[:4] for _ in policies])
    gain = value[:, None] + 0.1 * draw.normal(size=image.shape)
    shares = space.explained(policies, gain, image, ridge=1.0)["of the policies"]
    assert shares["which operation at which place"] < 0.7 < 0.8 < shares["and which two together"]
