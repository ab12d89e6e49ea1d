"""The networks: their size, their batch normalization against torch's, their seeds and their
errors.
"""

import copy

import pytest
import torch
import torchvision
from checks import refused
from torch import nn

from atslib.models import (
    FAMILIES,
    BatchNorm,
    Normalize,
    build_model,
    normalization_layer,
)
from atslib.rng import rng

# Counts of the authors' networks (resnet20-4, convnet) and of the replication's (convnet9).
SIZES = {
    ("resnet20-4", 3, 100, 32): (4_350_884, 65),
    ("resnet20-4", 1, 10, 28): (4_326_602, 65),
    ("resnet20-4", 3, 200, 64): (4_376_584, 65),
    ("convnet", 3, 100, 32): (3_112_420, 34),
    ("convnet", 1, 10, 28): (2_903_818, 34),
    ("convnet", 1, 10, 32): (2_903_818, 34),
    ("convnet9", 3, 100, 32): (3_703_012, 38),
}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("name", "channels", "classes", "side"), SIZES)
def test_networks_have_the_published_size(name, channels, classes, side):
    parameters = list(build_model(name, classes, channels, image_size=side).parameters())
    assert (sum(p.numel() for p in parameters), len(parameters)) == SIZES[
        name, channels, classes, side
    ]


@pytest.mark.parametrize(
    ("name", "same"), [("resnet20", "resnet20-4"), ("convnet", "convnet-64"), ("lenet", "lenet-12")]
)
def test_a_name_without_width_is_the_papers_width(name, same):
    shapes = [[p.shape for p in build_model(n, 10).parameters()] for n in (name, same)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", ["resnet20-1", "convnet-4", "convnet9-4", "lenet"])
@pytest.mark.parametrize(("channels", "side"), [(3, 32), (1, 28), (3, 18)])
def test_pixels_go_in_and_one_row_of_logits_comes_out(name, channels, side):
    model = build_model(name, 7, channels, image_size=side, rng=rng(0))
    assert not model.training
    logits = model(torch.rand(2, channels, side, side, generator=rng(1)))
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()
    assert not torch.equal(logits[0], logits[1])


def test_batch_norm_is_torchs_in_train_mode_with_its_running_statistics_and_in_eval_mode():
    ours, theirs = BatchNorm(5).double(), nn.BatchNorm2d(5).double()
    nn.init.normal_(ours.weight, generator=rng(0))
    nn.init.normal_(ours.bias, generator=rng(1))
    theirs.load_state_dict(ours.state_dict())
    for i in range(3):
        x = 3 * torch.randn(4, 5, 6, 7, generator=rng(2, i), dtype=torch.float64) + i
        torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)
    before = copy.deepcopy(ours.state_dict())
    for name, value in before.items():
        torch.testing.assert_close(value, theirs.state_dict()[name], rtol=0, atol=0)
    assert ours.num_batches_tracked == 3
    assert (ours.running_mean != 0).all()
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-10, atol=1e-10)
    assert all(torch.equal(before[name], value) for name, value in ours.state_dict().items())


def test_one_seed_gives_one_set_of_weights_and_another_seed_another():
    first, again, other = (
        build_model("convnet-4", 10, rng=rng(*path)) for path in ((0,), (0,), (0, "other"))
    )
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_a_stream_of_ones_own_leaves_the_global_stream_alone():
    before = torch.get_rng_state()
    build_model("resnet20-1", 10, rng=rng(0))
    assert torch.equal(torch.get_rng_state(), before)
    build_model("lenet", 10)
    assert not torch.equal(torch.get_rng_state(), before)


def test_a_stream_of_ones_own_gives_the_weights_that_the_same_global_seed_gives():
    stream = rng(0)
    seed = int(torch.randint(1 << 62, (1,), generator=rng(0)))
    ours = build_model("lenet", 10, rng=stream)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        plain = build_model("lenet", 10)
    assert all(
        torch.equal(a, b) for a, b in zip(ours.parameters(), plain.parameters(), strict=True)
    )


@pytest.mark.parametrize("name", ["resnet21", "convnet-0", "convnet-x", "", "resnet20-4-4", "-4"])
def test_an_unknown_model_is_told_the_known_ones(name):
    with refused(repr(name), ", ".join(FAMILIES)):
        build_model(name, 10)


NO_SIZES = [
    *(("num_classes", value, 2) for value in (1, -1, 2.5)),
    ("in_channels", 0, 1),
    ("image_size", 0, 1),
]


@pytest.mark.parametrize(("name", "value", "least"), NO_SIZES)
def test_a_size_that_makes_no_network_is_named(name, value, least):
    with refused(f"{name}={value} must be a whole number, at least {least}"):
        build_model("lenet", **{"num_classes": 10, name: value})


def test_constants_must_be_known_and_fit_the_channels():
    with refused("cifar100"):
        build_model("lenet", 10, norm="cifar1000")
    with refused("has 3 channels and the model takes 1"):
        build_model("lenet", 10, 1, norm="cifar100")


def test_normalization_goes_there_and_back():
    layer = normalization_layer(
        build_model("lenet", 10, norm=((0.1, 0.2, 0.3), (0.5, 0.25, 2.0)))
    ).double()
    pixels = torch.rand(2, 3, 4, 5, generator=rng(0), dtype=torch.float64)
    torch.testing.assert_close(layer.inverse(layer(pixels)), pixels, rtol=0, atol=1e-15)
    first = torch.tensor([0.1, 0.2, 0.3]).double().view(3, 1, 1)  # the mean colour becomes zero
    assert layer(first.expand(1, 3, 4, 5)).abs().max() < 1e-7
    assert layer(first + torch.tensor([0.5, 0.25, 2.0]).view(3, 1, 1)).sub(1).abs().max() < 1e-6


def test_normalization_is_the_first_layer_or_an_error():
    model = build_model("lenet", 10)
    assert normalization_layer(model) is model[0]
    assert isinstance(model[0], Normalize)
    for other in (nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2)):
        with refused("does not start with a Normalize layer"):
            normalization_layer(other)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("resnet18", "resnet18"), ("resnet34", "resnet34"), ("resnet152", "resnet152")],
)
def test_larger_resnets_are_torchvisions_behind_a_first_layer_for_small_images(name, theirs):
    ours, other = (
        build_model(name, 10, rng=rng(0))[1],
        getattr(torchvision.models, theirs)(num_classes=10),
    )
    other.conv1, other.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    mine = list(ours.state_dict().values())
    # a block of theirs has its shortcut after its convolutions, as ours has
    other.load_state_dict(dict(zip(other.state_dict(), mine, strict=True)))
    images = torch.rand(2, 3, 16, 16, generator=rng(1))
    torch.testing.assert_close(ours.eval()(images), other.eval()(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", ["circular", "reflect"])
@pytest.mark.parametrize("name", ["lenet-4", "convnet-4", "resnet18-4"])
def test_a_padding_is_that_of_a_network_built_with_it_and_shares_its_weights(name, padding):
    plain, padded = (build_model(n, 10, rng=rng(0)) for n in (name, f"{name}-{padding}"))
    images = torch.rand(2, 3, 32, 32, generator=rng(1))
    for a, b in zip(plain.parameters(), padded.parameters(), strict=True):
        assert torch.equal(a, b)
    layers = [layer for layer in padded.modules() if isinstance(layer, nn.Conv2d)]
    assert {layer.padding_mode for layer in layers if any(layer.padding)} == {padding}
    for layer in layers[:2]:
        mode = layer.padding_mode
        fresh = nn.Conv2d(
            *layer.weight.shape[1::-1],
            layer.kernel_size,
            layer.stride,
            layer.padding,
            padding_mode=mode,
        )
        fresh.load_state_dict({"weight": layer.weight, "bias": torch.zeros(len(layer.weight))})
        x = torch.rand(2, layer.in_channels, 9, 9, generator=rng(2))
        bias = 0 if layer.bias is None else layer.bias.view(-1, 1, 1)
        torch.testing.assert_close(layer(x), fresh(x) + bias)
    assert not torch.allclose(plain(images), padded(images), atol=1e-6)


def test_a_circular_network_that_pools_over_all_places_does_not_see_a_shift():
    model = build_model("resnet20-1-circular", 10, rng=rng(0)).double()
    images = torch.rand(2, 3, 32, 32, generator=rng(1), dtype=torch.float64)
    torch.testing.assert_close(
        model(images), model(images.roll((8, -4), (2, 3))), rtol=1e-10, atol=1e-10
    )
    zeros = build_model("resnet20-1", 10, rng=rng(0)).double()
    assert not torch.allclose(zeros(images), zeros(images.roll((8, -4), (2, 3))), atol=1e-6)


def test_an_unpadded_lenet_shrinks_and_other_networks_are_refused():
    model = build_model("lenet-12-unpadded", 10)
    assert [tuple(layer.padding) for layer in model.modules() if isinstance(layer, nn.Conv2d)] == [
        (0, 0)
    ] * 3
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert list(model.parameters())[-2].shape == (10, 12)
    with refused("only LeNets can be unpadded"):
        build_model("resnet20-1-unpadded", 10)
    with refused("at least 29 pixels wide, not 28"):
        build_model("lenet-unpadded", 10, image_size=28)
