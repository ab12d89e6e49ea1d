"""Copies of a photograph among the candidates are one candidate, wherever a rank is made."""

import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

import atsaudit
import atslib
from atsaudit.outcome import Pool, ranks
from atslib.data.copies import copies, looking_alike, near_copies
from atslib.data.load import available
from atslib.errors import AtsError
from atslib.measures.identification import identification

PIXELS = atslib.load("shapes", "test").pixels[:20]


def test_equal_mirrored_and_shifted_images_are_one_photograph():
    shifted = torch.zeros_like(PIXELS[:1])
    shifted[..., 3:, :-2] = PIXELS[2:3, :, :-3, 2:]
    images = torch.cat([PIXELS, PIXELS[:1], PIXELS[1:2].flip(-1), shifted])
    assert copies(images).tolist() == [*range(20), 0, 1, 2]
    assert copies(images, mirrored=False).tolist() == [*range(20), 0, 21, 2]
    assert copies(images, shift=0).tolist() == [*range(20), 0, 1, 22]


def test_three_copies_have_the_first_in_common_and_others_stay_apart():
    images = torch.cat([PIXELS[5:6], PIXELS[:7], PIXELS[5:6].flip(-1)])
    assert copies(images).tolist() == [0, 1, 2, 3, 4, 5, 0, 7, 0]


def test_a_picture_with_a_little_noise_is_near_and_no_copy():
    noisy = (PIXELS[3:4].int() + torch.tensor([1, -1, 0, 1])[torch.arange(32) % 4]).clamp(0, 255)
    images = torch.cat([PIXELS, noisy.byte()])
    first = copies(images)
    assert first.tolist() == list(range(21))
    near = near_copies(images, first)
    assert near[[3, 20]].all()


def saved(pixels, kind, **options):
    """The images (N, C, H, W) as they are read again from files of a kind."""
    again = []
    for image in pixels:
        array = image.permute(1, 2, 0).numpy()
        file = io.BytesIO()
        Image.fromarray(array if array.shape[2] == 3 else array[:, :, 0]).save(
            file, kind, **options
        )
        read = np.array(Image.open(file))
        again.append(
            torch.from_numpy(read if read.ndim == 3 else read[:, :, None]).permute(2, 0, 1)
        )
    return torch.stack(again)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        pytest.param("cifar100", 0.9, marks=pytest.mark.data),
        pytest.param("tinyimagenet", 1.0, marks=pytest.mark.data),
        pytest.param("fmnist", 1.0, marks=pytest.mark.data),
    ],
)
def test_photographs_saved_with_loss_are_near_and_without_are_copies(name, least):
    if not available(name, "test"):
        pytest.skip(f"{name} is not here")
    pixels = atslib.load(name, "test").pixels[:100]
    again = torch.cat([pixels, saved(pixels, "PNG")])
    assert copies(again).tolist() == list(range(100)) * 2
    both = torch.cat([pixels, saved(pixels, "JPEG", quality=90)])
    assert near_copies(both, copies(both)).float().mean() >= least
    mirrored = torch.cat([pixels, saved(pixels.flip(-1), "JPEG", quality=90)])
    assert near_copies(mirrored, copies(mirrored)).float().mean() >= least
    assert not near_copies(pixels, copies(pixels)).any()


def test_images_need_four_dimensions():
    with pytest.raises(AtsError, match="N, C, H, W"):
        copies(PIXELS[0])


@pytest.mark.parametrize("again", [lambda x: x, lambda x: x.flip(-1)])
def test_identification_ranks_photographs_and_not_their_copies(again):
    candidates = PIXELS / 255
    both = torch.cat([candidates, again(candidates)])
    truth = torch.arange(20)
    assert identification(candidates, candidates, truth).tolist() == [1] * 20
    assert identification(candidates, both, truth).tolist() == [1] * 20
    assert identification(candidates, both, truth + 20).tolist() == [1] * 20


def test_identification_of_a_flat_picture_is_last_of_the_different_ones():
    candidates = torch.cat([PIXELS, PIXELS]) / 255
    flat = torch.full_like(candidates[:1], 0.5)
    assert identification(flat, candidates, torch.tensor([3])).tolist() == [20]


def test_candidates_of_the_own_class_are_different_photographs():
    pixels = torch.cat([PIXELS, PIXELS])
    labels = torch.zeros(40, dtype=torch.int64)
    candidates, own = atslib.own_class(labels, [2, 25], photographs=pixels)
    assert candidates.shape == (2, 20)
    assert candidates[0, own[0]] == 2
    assert candidates[1, own[1]] == 25
    assert not (candidates[1] == 5).any()
    without = atslib.own_class(labels[:20], [2])
    kept = atslib.own_class(labels[:20], [2], photographs=PIXELS)
    assert all(torch.equal(a, b) for a, b in zip(without, kept, strict=True))


@pytest.mark.parametrize("again", [lambda x: x, lambda x: x.flip(-1)])
def test_an_audit_finds_photographs_that_are_there_twice(again):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3072, 2))
    options = {
        "untrained": network,
        "class_names": ("a", "b"),
        "normalize": ([0.5] * 3, [0.25] * 3),
        "batch": 1,
        "budget": 15,
        "attacked": 12,
    }
    images = torch.cat([PIXELS, again(PIXELS)])
    report = atsaudit.audit(network, images, torch.zeros(40, dtype=torch.int64), **options)
    assert report.found == 1.0
    attacked = report.results[0].outcome.images % 20
    assert len(attacked.unique()) == len(attacked)  # each photograph is attacked once


@pytest.mark.parametrize(
    "again",
    [
        lambda x: (x.int() + 3).clamp(0, 255).byte(),
        lambda x: (x // 2).flip(-1),
    ],
    ids=["brighter", "duller"],
)
def test_what_comparisons_do_not_see_makes_no_other_photograph(again):
    pixels = 40 + PIXELS // 4 * 2  # even, and clear of both ends
    both = torch.cat([pixels, again(pixels)])
    rows = torch.arange(20)
    pool = Pool.of(both, torch.zeros(40, dtype=torch.int64), rows)
    assert pool.first.tolist() == list(range(20)) * 2
    rank, candidates = ranks(pixels / 255, rows, pool, "")
    assert rank.tolist() == [1] * 20
    assert candidates.tolist() == [20] * 20


def test_large_pictures_that_differ_in_their_details_are_one_photograph_where_those_are_not_seen():
    stream = torch.Generator().manual_seed(0)
    large = F.interpolate(PIXELS.float(), 128, mode="bilinear").clamp(8, 247)
    fine = large + torch.randint(-8, 9, large.shape, generator=stream)
    both = torch.cat([large.round(), fine.round()]).byte()
    first = copies(both)
    assert first.tolist() == list(range(40))
    assert looking_alike(both, first, 32, 1e-2).tolist() == list(range(20)) * 2
    assert looking_alike(both, first, 128, 1e-5).tolist() == list(range(40))


@pytest.mark.parametrize("again", [lambda x: x, lambda x: x.flip(-1)], ids=["equal", "mirrored"])
def test_noise_hides_no_more_where_photographs_are_there_twice(again):
    stream = torch.Generator().manual_seed(0)
    noise = torch.randn(PIXELS.shape, generator=stream)
    made = (PIXELS / 255 + 3 * noise).clamp(0, 1)
    rows = torch.arange(20)
    found = []
    for pixels in (PIXELS, torch.cat([PIXELS, again(PIXELS)])):
        labels = torch.zeros(len(pixels), dtype=torch.int64)
        rank, candidates = ranks(made, rows, Pool.of(pixels, labels, rows), "")
        assert candidates.tolist() == [20] * 20
        found.append(rank.tolist())
    assert found[0] == found[1]
    assert 0 < found[0].count(1) < 20
