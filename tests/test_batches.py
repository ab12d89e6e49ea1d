"""The pairing of a batch with its reconstructions, against trying all, and the share of its labels."""

import itertools

import pytest
import torch
from checks import refused

from atslib.measures import align
from atslib.measures.batches import label_share
from atslib.measures.metrics import psnr
from atslib.rng import rng


def noise(count, *path):
    return torch.rand(count, 3, 4, 4, generator=rng(0, *path), dtype=torch.float64)


@pytest.mark.parametrize("k", range(1, 7))
def test_the_pairing_is_the_best_of_all(k):
    for trial in range(5):
        truth, made = noise(k, "truth", trial), noise(k, "made", trial)
        labels = torch.randint(3, (k,), generator=rng(trial, "labels"))
        restored = labels[torch.randperm(k, generator=rng(trial, "order"))]

        def worth(order, truth=truth, made=made, labels=labels, restored=restored):
            right = (labels == restored[list(order)]).sum()
            return int(right), float(psnr(made[list(order)], truth).sum())

        best = max(itertools.permutations(range(k)), key=worth)
        assert align(made, truth, labels, restored).tolist() == list(best)


def test_images_of_one_label_are_paired_among_themselves():
    truth, labels = noise(4, "truth"), torch.tensor([0, 0, 1, 1])
    assert align(truth[[1, 0, 3, 2]], truth, labels).tolist() == [1, 0, 3, 2]
    assert align(truth[[2, 3, 0, 1]], truth, labels)[:2].sort().values.tolist() == [
        0,
        1,
    ]  # nearer ones have the other


def test_wrong_labels_and_images_that_are_not_finite_are_paired_with_what_is_left():
    truth, labels = noise(3, "truth"), torch.tensor([0, 1, 2])
    made = torch.stack([torch.full_like(truth[0], torch.nan), truth[2], truth[1]])
    assert align(made, truth, labels, torch.tensor([0, 1, 5])).tolist() == [0, 1, 2]
    assert align(made, truth, labels, torch.tensor([7, 7, 5])).tolist() == [0, 2, 1]


def test_the_share_of_a_multiset():
    told, true = (
        torch.tensor([[1, 1, 2, 3], [5, 5, 5, 5]]),
        torch.tensor([[3, 1, 2, 2], [0, 5, 0, 5]]),
    )
    assert label_share(told, true).tolist() == [0.75, 0.5]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: align(noise(2), noise(3), torch.zeros(3)),
            "must be equal: one reconstruction for each image",
        ),
        (
            lambda: align(noise(3), noise(3), torch.zeros(2)),
            "labels float32 of shape (2,) must be one for each of 3 images",
        ),
        (
            lambda: align(noise(3), noise(3), torch.zeros(3), [0]),
            "restored list must be one for each of 3 images",
        ),
        (lambda: align(noise(3)[0], noise(3), torch.zeros(3)), "align: images of shape (3, 4, 4)"),
        (
            lambda: label_share(torch.zeros(1, 2), torch.zeros(2, 1)),
            "label_share: shapes (1, 2) and (2, 1)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, words):
    with refused(words):
        call()
