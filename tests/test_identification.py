"""Identification: which candidate a reconstruction is of, whatever crop, flip, darkness and noise
did to it.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from checks import refused
from scipy import stats

from atslib.data.load import available, load
from atslib.measures.identification import identification, rolled, similarity
from atslib.rng import rng

K = 40
EVERY = torch.arange(K)


def smooth(count, *path, channels=3, height=20, width=24):
    """Random images with the large-scale structure of natural ones, not square."""
    coarse = torch.rand(count, channels, 5, 6, generator=rng(0, "identification", *path))
    return F.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 1)


CANDIDATES = smooth(K)


def cropped(images, dy, dx):
    """Moved down and right behind a black border, as a crop from a padded image moves them."""
    height, width = images.shape[-2:]
    return F.pad(images, (4,) * 4)[..., 4 - dy : 4 - dy + height, 4 - dx : 4 - dx + width]


def noise(images, deviation, *path):
    return images + deviation * torch.randn(images.shape, generator=rng(0, "noise", *path))


@pytest.mark.parametrize(
    "changed",
    [
        lambda x: x,
        lambda x: noise(x, 0.5),
        lambda x: 0.2 * x,
        lambda x: 0.9 - 0.1 * (1 - x),
        lambda x: x.flip(-1),
        lambda x: cropped(x, 4, -4),
        lambda x: cropped(x, -3, 1).flip(-1),
        lambda x: noise(0.4 * cropped(x, 2, 4), 0.1),
        lambda x: F.avg_pool2d(x, 5, stride=1, padding=2),
    ],
)
def test_an_image_is_identified_when_noisy_dark_pale_mirrored_shifted_or_blurred(changed):
    assert (identification(changed(CANDIDATES), CANDIDATES, EVERY) == 1).all()


def test_an_image_beyond_the_shift_or_upside_down_is_not_its_own():
    far = F.pad(CANDIDATES, (12, 0, 0, 0))[..., :24]
    for lost in (far, CANDIDATES.flip(-2), 1 - CANDIDATES):
        assert (identification(lost, CANDIDATES, EVERY) == 1).float().mean() < 0.5


def test_who_tries_every_form_finds_an_image_that_was_moved_far():
    far = F.pad(CANDIDATES, (12, 0, 0, 0))[..., :24]
    known = torch.stack([CANDIDATES, far])
    assert (identification(far, known, EVERY) == 1).all()
    assert (identification(far, known[:1], EVERY) == identification(far, CANDIDATES, EVERY)).all()


def test_noise_is_identified_as_often_as_chance_says():
    """600 images of pure noise among 40: a count within 99.99 % of the binomial with rate 1/40;
    ranks are uniform.
    """
    ranks = torch.cat([identification(torch.rand(200, 3, 20, 24, generator=rng(i)), CANDIDATES, EVERY.repeat(5))
                       for i in range(3)]).numpy()  # fmt: skip
    low, high = stats.binom.interval(0.9999, ranks.size, 1 / K)
    assert low <= (ranks == 1).sum() <= high
    assert stats.kstest((ranks - 0.5) / K, "uniform").pvalue > 1e-4


@pytest.mark.data
@pytest.mark.skipif(not available("cifar100", "test"), reason="CIFAR-100 is not here")
def test_cifar_images_are_identified_as_in_the_trial_that_chose_the_measure():
    """100 test images; each bound is the trial's share less four binomial standard deviations."""
    images = load("cifar100", "test").pixels[:100].float() / 255
    for changed, share in (
        (images, 1.0),
        (cropped(images, 4, 4), 1.0),
        (cropped(images, -4, 2).flip(-1), 1.0),
        (noise(images, 10 ** (5 / 20), "-5 dB"), 0.97),
        (noise(0.3 * images, 10 ** (-5 / 20)), 0.95),
    ):
        identified = (identification(changed, images, torch.arange(100)) == 1).float().mean()
        assert identified >= share - 4 * (max(share * (1 - share), 0.01) / 100) ** 0.5


@pytest.mark.parametrize("value", [0.0, 0.5, 0.3, torch.nan, torch.inf])
def test_a_flat_or_diverged_reconstruction_identifies_nothing(value):
    ranks = identification(torch.full((3, 3, 20, 24), value), CANDIDATES, EVERY[:3])
    assert ranks.tolist() == [K] * 3


def test_one_bad_pixel_spoils_its_own_image_only():
    images = noise(CANDIDATES, 0.1)
    images[1, 0, 3, 3] = torch.nan
    assert identification(images, CANDIDATES, EVERY).tolist() == [1, K, *[1] * (K - 2)]


def test_an_equal_copy_of_the_truth_counts_as_the_truth():
    twins = torch.cat([CANDIDATES, CANDIDATES[:1]])
    assert identification(CANDIDATES[:2], twins, EVERY[:2]).tolist() == [1, 1]


def test_a_twin_as_similar_but_not_equal_ranks_before_the_truth():
    twins = torch.cat([CANDIDATES, CANDIDATES[:1] * 0.5 + 0.25])  # brightness and contrast only
    assert identification(CANDIDATES[:2], twins, EVERY[:2]).tolist() == [2, 1]


def test_the_rank_counts_the_candidates_that_are_more_alike():
    query, truth = CANDIDATES[:4], torch.tensor([3, 2, 1, 0])
    scores = similarity(query, CANDIDATES)
    ranks = [1 + int((row > row[t]).sum()) for row, t in zip(scores, truth, strict=True)]
    assert identification(query, CANDIDATES, truth).tolist() == ranks
    assert len(set(ranks)) > 1


def test_without_shifts_similarity_is_pearsons_with_the_image_or_its_mirror():
    a, b = CANDIDATES[:2], CANDIDATES[2:5]
    flat = [np.corrcoef(torch.cat([a, x]).flatten(1))[:2, 2:] for x in (b, b.flip(-1))]
    np.testing.assert_allclose(similarity(a, b, shift=0), np.maximum(*flat), atol=1e-5)


def test_an_overlap_counts_by_its_share_of_the_image():
    shifted = cropped(CANDIDATES[:1], 4, 0)
    assert similarity(shifted, CANDIDATES[:1]).item() == pytest.approx(16 / 20, abs=1e-4)
    assert similarity(shifted, CANDIDATES[:1], shift=3).item() < 0.75


@pytest.mark.parametrize("channels", [1, 3])
def test_images_in_a_batch_do_not_depend_on_each_other(channels):
    images = smooth(6, "batch", channels=channels, height=9, width=11)
    together = similarity(images[:2], images)
    alone = torch.cat(
        [similarity(images[i : i + 1], images[j : j + 1]) for i in range(2) for j in range(6)]
    )
    torch.testing.assert_close(together.flatten(), alone.flatten())


@pytest.mark.parametrize(
    ("images", "candidates", "truth", "message"),
    [
        (torch.zeros(2, 3, 8, 8), (3, 1, 8, 8), [0, 1], "must agree in"),
        (torch.zeros(2, 3, 8, 8), (1, 3, 8, 8), [0, 0], "at least two candidates"),
        (torch.zeros(2, 3, 4, 8), (3, 3, 4, 8), [0, 1], "above the shift of 4"),
        *[
            (torch.zeros(2, 3, 8, 8), (3, 3, 8, 8), t, f"{t} must name one of 3")
            for t in ([0, 3], [0, -1], [0])
        ],
        (torch.zeros(2, 3, 8, 8).byte(), (3, 3, 8, 8), [0, 1], "divide uint8 pixels by 255"),
        (torch.zeros(3, 8, 8), (3, 3, 8, 8), [0, 1], "must be (B, C, H, W)"),
    ],
)
def test_what_cannot_be_compared_is_refused(images, candidates, truth, message):
    with refused(message):
        identification(images, torch.zeros(candidates), torch.tensor(truth))


def test_over_all_circular_shifts_the_best_is_found_with_its_place():
    images, few = noise(CANDIDATES[:3].roll((7, -5), (2, 3)), 0.05, "rolled"), CANDIDATES[:4]
    best, down, right = rolled(images, few)
    assert [(int(down[i, i]), int(right[i, i])) for i in range(3)] == [(7, 19)] * 3
    flat = [x.flatten(1) - x.flatten(1).mean(1, keepdim=True) for x in (images, few)]
    width = images.shape[-1]
    for i in range(3):
        for j in range(4):
            every = torch.stack(
                [few[j].roll((s // width, s % width), (1, 2)) for s in range(20 * width)]
            ).flatten(1)
            expected = F.cosine_similarity(
                flat[0][i], every - every.mean(1, keepdim=True), dim=1
            ).max()
            torch.testing.assert_close(best[i, j], expected, rtol=1e-4, atol=1e-5)


def test_an_image_rolled_far_is_identified_where_all_shifts_are_tried():
    far = CANDIDATES.roll((10, 9), (2, 3))
    assert (identification(far, CANDIDATES, EVERY, shift=None) == 1).all()
    assert (identification(far, CANDIDATES, EVERY) == 1).float().mean() < 0.5
    assert (identification(torch.full_like(far, 0.3), CANDIDATES, EVERY, shift=None) == K).all()
