"""From pixels to images: the streams of crops, flips and policies, and the mean of all draws."""

import pytest
import torch

from atslib.clients.prepare import mean_prepared, prepare, streams, to_images, transform
from atslib.data.images import EXACT, sum_of
from atslib.data.load import load
from atslib.policies.operations import crop_and_flip
from atslib.policies.policy import parse_policy
from atslib.rng import rng


@pytest.fixture(scope="module")
def pixels():
    return load("shapes", "train").pixels[:600]


@pytest.mark.parametrize("crop_flip", [True, False])
@pytest.mark.parametrize("text", ["", "3-1-7", "3-1-7+43-18-18"])
def test_an_image_is_cropped_flipped_and_then_transformed(pixels, text, crop_flip):
    for_crop, for_policy, one = rng(5, "crop and flip", 2), rng(5, "policy", text, 2), rng(9)
    cropped = crop_and_flip(pixels, rng=for_crop) if crop_flip else pixels
    expected = parse_policy(text)(cropped, rng=for_policy)
    assert torch.equal(
        transform(pixels, text, rng=streams(5, text, 2), crop_flip=crop_flip), expected
    )
    images = prepare(pixels, parse_policy(text), rng=streams(5, text, 2), crop_flip=crop_flip)
    assert images.dtype == torch.float32
    assert torch.equal(images, expected.float() / 255)
    cropped = (
        crop_and_flip(pixels, rng=one) if crop_flip else pixels
    )  # one stream for all draws, as in training
    assert torch.equal(
        transform(pixels, text, rng=rng(9), crop_flip=crop_flip),
        parse_policy(text)(cropped, rng=one),
    )


def test_policies_of_one_seed_share_their_crops_and_flips(pixels):
    one, other = (transform(pixels, text, rng=streams(0, text)) for text in ("", "0"))
    assert torch.equal(255 - one, other)  # operation 0 inverts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_255_is_one(dtype):
    grey = torch.arange(256, dtype=torch.uint8)
    images = to_images(grey, dtype)
    assert images.dtype == dtype
    assert (images.min(), images.max()) == (0, 1)
    assert torch.equal((255 * images).round().byte(), grey)


@pytest.mark.parametrize("text", ["", "3-1-7+43-18-18"])
def test_the_mean_is_of_every_image_in_every_draw(pixels, text):
    stream = rng(3)
    rows = torch.randperm(600, generator=stream)[:550]
    seed = int(torch.randint(1 << 62, (1,), generator=stream))
    prepared = torch.cat(
        [prepare(pixels[rows], text, rng=streams(seed, text, draw)) for draw in range(3)]
    )
    mean = mean_prepared(pixels, text, rng=rng(3), most=550, draws=3)
    assert mean.shape == (1, 3, 32, 32)
    torch.testing.assert_close(
        mean.double(), prepared.double().mean(0, keepdim=True), rtol=0, atol=1e-7
    )


def test_a_sum_of_more_bytes_than_a_float_can_add_up_is_exact():
    pixels = torch.full((EXACT + 7, 1, 1, 2), 255, dtype=torch.uint8)
    pixels[3, 0, 0, 1] = 0
    whole = 255 * (EXACT + 7)
    assert whole > 2**24
    assert sum_of(pixels).tolist() == [[[whole, whole - 255]]]
    assert sum_of(pixels[:0]).tolist() == [[[0, 0]]]


def test_the_mean_without_crop_and_policy_is_the_mean_image_and_inverting_inverts_it(pixels):
    plain, inverted = (
        mean_prepared(pixels, text, rng=rng(0), crop_flip=False) for text in ("", "0")
    )
    torch.testing.assert_close(plain, pixels.double().mean(0, keepdim=True).float() / 255)
    torch.testing.assert_close(plain + inverted, torch.ones_like(plain))


def test_the_mean_is_the_best_constant_guess_of_images_it_has_not_seen(pixels):
    """On fresh draws its squared error is below that of the untransformed mean image, policy by
    policy.
    """
    for text in ("0", "3-1-7", "43-18-18"):
        fresh = prepare(pixels[300:], text, rng=streams(1, text)).double()
        floor, naive = (
            mean_prepared(pixels[:300], text, rng=rng(0)),
            pixels[:300].double().mean(0) / 255,
        )
        assert (fresh - floor).square().mean() < (fresh - naive).square().mean(), text
