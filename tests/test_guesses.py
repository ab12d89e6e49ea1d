"""The guess that knows the draw, what is in the frame, and what was drawn itself: against loops
over images.
"""

import math

import pytest
import torch
from checks import refused

from atslib.clients.prepare import mean_prepared, streams, transform
from atslib.data.load import load
from atslib.measures import guesses
from atslib.measures.frame import frame_psnr, shown, undone
from atslib.measures.guesses import gain, guess_knowing_draw
from atslib.measures.metrics import mse, psnr
from atslib.policies.draws import draw
from atslib.policies.operations import crop_and_flip
from atslib.policies.policy import parse_policy
from atslib.rng import rng

HYBRID = "3-1-7+43-18-18"


@pytest.fixture(scope="module")
def train():
    return load("shapes", "train")


@pytest.fixture(scope="module")
def pixels():
    return load("shapes", "test").pixels[:24]


@pytest.mark.parametrize("crop_flip", [True, False])
@pytest.mark.parametrize("policy", ["", "3-1-7", HYBRID])
def test_a_draw_makes_what_a_client_makes_and_of_some_images_the_same(pixels, policy, crop_flip):
    drawn = draw(24, policy, rng=streams(3, policy), crop_flip=crop_flip)
    made = transform(pixels, policy, rng=streams(3, policy), crop_flip=crop_flip)
    assert torch.equal(drawn.apply(pixels), made)
    rows = torch.tensor([5, 5, 0])
    assert torch.equal(drawn[rows].apply(pixels[rows]), made[rows])
    cropped = crop_and_flip(pixels, rng=streams(3, policy)[0]) if crop_flip else pixels
    assert torch.equal(drawn.cropped(pixels), cropped)
    with refused("24 images", "3"):
        drawn.apply(pixels[:3])


@pytest.mark.parametrize("known", [True, False])
def test_the_guess_is_the_mean_of_the_own_images_after_the_draw_of_each_image(
    train, monkeypatch, known
):
    monkeypatch.setattr(guesses, "CHUNK", 7)  # many parts, of which none is whole
    drawn = draw(5, HYBRID, rng=rng(1))
    labels = torch.tensor([3, 0, 3, 9, 1])
    options = {"classes": train.labels, "labels": labels} if known else {}
    ours = guess_knowing_draw(drawn, train.pixels, **options, most=20)
    for number in range(5):
        own = train.pixels[train.labels == labels[number]] if known else train.pixels
        every = [
            drawn[torch.tensor([number])].apply(image[None])[0].double() / 255 for image in own[:20]
        ]
        torch.testing.assert_close(ours[number], torch.stack(every).mean(0).float())


def test_who_knows_the_draw_guesses_better(train):
    test = load("shapes", "test")
    rows = slice(0, 60)
    for policy in ("", "3-1-7", HYBRID):
        drawn = draw(60, policy, rng=rng(2))
        truth = drawn.apply(test.pixels[rows]) / 255
        blind = mean_prepared(train.pixels, policy, rng=rng(0)).expand_as(truth)
        told = guess_knowing_draw(drawn, train.pixels, most=100)
        label_too = guess_knowing_draw(
            drawn, train.pixels, train.labels, labels=test.labels[rows], most=100
        )
        for guess in (told, label_too):
            assert mse(guess, truth).mean() < mse(blind, truth).mean() - 0.001
        assert gain(label_too, truth, label_too).abs().max() == 0
        assert torch.equal(gain(told, truth, blind), psnr(told, truth) - psnr(blind, truth))


def test_a_guess_needs_images_and_labels_of_both_sides(train):
    drawn = draw(2, "", rng=rng(1))
    with refused("or neither"):
        guess_knowing_draw(drawn, train.pixels, train.labels)
    with refused("no image of class 77"):
        guess_knowing_draw(drawn, train.pixels, train.labels, labels=torch.tensor([1, 77]))
    with refused("2 draws"):
        guess_knowing_draw(drawn, train.pixels, train.labels, labels=torch.tensor([1]))
    with refused("mean of 0 images"):
        guess_knowing_draw(drawn, train.pixels[:0])


@pytest.mark.parametrize("policy", ["", "3", "7", "24-21", "0-3"])
def test_shifts_flips_and_inversions_are_undone_exactly_where_the_photograph_is_in_the_frame(
    pixels, policy
):
    drawn = draw(24, policy, rng=rng(4))
    restored, inside = undone(drawn.apply(pixels) / 255, drawn)
    assert torch.equal((255 * restored * inside[:, None]).round().byte(), pixels * inside[:, None])
    assert (frame_psnr(drawn.apply(pixels) / 255, pixels, drawn) > 90).all()
    assert torch.equal(
        inside.flatten(1).sum(1), shown(drawn, pixels).flatten(1).sum(1)
    )  # as many on either side


@pytest.mark.parametrize("member", [0, 1])
def test_what_is_in_the_frame_is_found_pixel_by_pixel(pixels, member):
    """A photograph with one bright pixel: in the frame if what is made of it depends on the pixel."""
    ids = parse_policy(HYBRID).members[member].ids
    moves = "-".join(str(i) for i in ids if i in (3, 7, 43))
    drawn = draw(1, moves, rng=rng(5))
    inside = undone(torch.zeros(1, 3, 32, 32), drawn)[1][0]
    into = torch.zeros(32, 32, dtype=torch.bool)
    for row in range(0, 32, 3):
        for column in range(0, 32, 3):
            one = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
            one[..., row, column] = 255
            made = drawn.apply(one)[0, 0]
            assert inside[row, column] == bool(made.any())
            into |= made > 0
    assert not (into & ~shown(drawn, pixels)[0]).any()


@pytest.mark.parametrize(
    ("policy", "least"),
    [("3-1-7", 30), ("43-18-18", 25), ("12", 30), ("13", 25), ("4", 35), ("6", 20)],
)
def test_colors_contrast_and_sharpness_are_undone_but_for_what_was_clipped(policy, least):
    pixels = load("shapes", "test").pixels[:24] // 2 + 60  # nothing is clipped
    drawn = draw(24, policy, rng=rng(6))
    made = drawn.apply(pixels) / 255
    undoing_nothing = draw(24, "", rng=rng(6))
    assert frame_psnr(made, pixels, drawn).median() > least
    assert (
        frame_psnr(made, pixels, drawn).mean()
        > frame_psnr(made, pixels, undoing_nothing).mean() + 3
    )


def test_members_of_a_hybrid_are_undone_each_in_its_own_way(pixels):
    drawn = draw(24, HYBRID, rng=rng(7))
    noisy = drawn.apply(pixels) / 255 + 0.05 * torch.randn(pixels.shape, generator=rng(8))
    together, inside = undone(noisy, drawn)
    for row in range(0, 24, 5):
        alone, own = undone(noisy[row : row + 1], drawn[slice(row, row + 1)])
        torch.testing.assert_close(together[row], alone[0])
        assert torch.equal(inside[row], own[0])


def test_a_diverged_reconstruction_has_no_psnr_in_the_frame(pixels):
    drawn = draw(24, "", rng=rng(9))
    images = drawn.apply(pixels) / 255
    images[3, 0, 0, 0] = math.inf
    assert frame_psnr(images, pixels, drawn).isnan().tolist() == [row == 3 for row in range(24)]
    with refused("24 draws for 2"):
        undone(images[:2], drawn)
    with refused("equal"):
        frame_psnr(images[:2], pixels, drawn)
