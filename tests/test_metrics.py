"""Measures of a reconstruction: closed forms, scikit-image as oracle, one value per image."""

import sys
import urllib.error
from pathlib import Path

import numpy as np
import pytest
import torch
from checks import refused
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import nn

from atslib.errors import AtsError
from atslib.measures import metrics
from atslib.rng import rng

PER_IMAGE = {"mse": metrics.mse, "psnr": metrics.psnr, "ssim": metrics.ssim}
LOGITS = nn.Sequential(nn.Flatten(), nn.Linear(3 * 9 * 12, 4)).double()


def noisy(channels):
    """Pairs of random images, not square, float64."""
    truth = torch.rand(3, channels, 9, 12, generator=rng(0), dtype=torch.float64)
    noise = torch.randn(truth.shape, generator=rng(1), dtype=torch.float64)
    return truth + noise * torch.tensor([0.01, 0.1, 0.5]).view(3, 1, 1, 1), truth


def natural(channels):
    """Smooth shapes with an edge, against a blurred and shifted copy, float64."""
    y, x = torch.meshgrid(torch.linspace(0, 1, 24), torch.linspace(0, 1, 32), indexing="ij")
    waves = [torch.sin(3 * x + c) * torch.cos(2 * y - c) / 2 + 0.5 for c in range(3)]
    truth = torch.stack(
        [(w + (x > y) * 0.3).clamp(0, 1).expand(channels, -1, -1) for w in waves]
    ).double()
    blurred = nn.functional.avg_pool2d(
        nn.functional.pad(truth, (1, 1, 1, 1), mode="replicate"), 3, stride=1
    )
    return (blurred * 0.9).roll(1, -1), truth


@pytest.mark.parametrize("pair", [noisy, natural])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("data_range", [1.0, 255.0])
def test_psnr_and_ssim_equal_scikit_image(pair, channels, data_range):
    estimate, truth = (data_range * images for images in pair(channels))
    psnr = metrics.psnr(estimate, truth, data_range=data_range)
    ssim = metrics.ssim(estimate, truth, data_range=data_range)
    for i, (e, t) in enumerate(zip(estimate.numpy(), truth.numpy(), strict=True)):
        assert psnr[i].item() == pytest.approx(
            peak_signal_noise_ratio(t, e, data_range=data_range), abs=1e-6
        )
        oracle = structural_similarity(t, e, data_range=data_range, channel_axis=0)
        assert ssim[i].item() == pytest.approx(oracle, abs=1e-6)
    assert (
        len(np.unique(ssim.numpy().round(3))) == 3
    )  # the three pairs differ, so their order is tested too


def test_psnr_of_a_known_error():
    truth = torch.zeros(2, 3, 4, 4)
    estimate = truth + torch.tensor([0.1, 0.01]).view(2, 1, 1, 1)  # mse 1e-2 and 1e-4
    torch.testing.assert_close(metrics.mse(estimate, truth), torch.tensor([1e-2, 1e-4]))
    torch.testing.assert_close(metrics.psnr(estimate, truth), torch.tensor([20.0, 40.0]))
    torch.testing.assert_close(
        metrics.psnr(estimate, truth, data_range=10), torch.tensor([40.0, 60.0])
    )


def test_psnr_does_not_clamp_what_leaves_the_range():
    truth = torch.zeros(1, 1, 2, 2)
    torch.testing.assert_close(metrics.psnr(truth - 1, truth), torch.tensor([0.0]))


def test_ssim_of_two_flat_images():
    black, grey = torch.zeros(1, 1, 8, 8), torch.full((1, 1, 8, 8), 0.5)
    expected = 1e-4 / (
        0.25 + 1e-4
    )  # no variance: the luminance term alone, (2·0·0.5 + c1) / (0 + 0.25 + c1)
    torch.testing.assert_close(metrics.ssim(black, grey), torch.tensor([expected]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_images_are_infinitely_and_wholly_alike(dtype):
    _, truth = noisy(3)
    truth = truth.to(dtype)
    assert (metrics.mse(truth, truth) == 0).all()
    assert metrics.psnr(truth, truth).isposinf().all()
    torch.testing.assert_close(metrics.ssim(truth, truth), torch.ones(3, dtype=dtype))
    assert metrics.ssim(truth, truth).dtype == dtype


@pytest.mark.parametrize("name", PER_IMAGE)
def test_each_image_has_its_own_value(name):
    estimate, truth = noisy(3)
    together = PER_IMAGE[name](estimate, truth)
    alone = torch.cat([PER_IMAGE[name](estimate[i : i + 1], truth[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", PER_IMAGE)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_diverged_image_is_nan_and_only_it(name, bad):
    estimate, truth = noisy(3)
    clean = PER_IMAGE[name](estimate, truth)
    estimate[1, 0, 4, 4] = bad
    values = PER_IMAGE[name](estimate, truth)
    assert values[1].isposinf() if (name, bad) == ("mse", torch.inf) else values[1].isnan()
    torch.testing.assert_close(values[[0, 2]], clean[[0, 2]], rtol=0, atol=0)


def test_feature_mse_is_that_of_the_logits():
    estimate, truth = noisy(3)
    apart = (LOGITS(estimate) - LOGITS(truth)).detach().numpy()
    values = metrics.feature_mse(LOGITS, estimate, truth)
    np.testing.assert_allclose(values.numpy(), (apart**2).sum(1) / 4, rtol=1e-12)
    assert not values.requires_grad


@pytest.mark.parametrize("name", [*PER_IMAGE, "feature_mse"])
@pytest.mark.parametrize("shape", [(1, 3, 9, 12), (2, 1, 9, 12), (2, 3, 1, 12), (3, 9, 12)])
def test_nothing_is_broadcast(name, shape):
    measure = PER_IMAGE.get(name) or (lambda a, b: metrics.feature_mse(LOGITS, a, b))
    with refused(name, str(shape)):
        measure(torch.zeros(2, 3, 9, 12), torch.zeros(shape))


@pytest.mark.parametrize("name", [*PER_IMAGE, "lpips"])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("torch.uint8", torch.Tensor.byte),
        ("torch.int64", torch.Tensor.long),
        ("float64", np.float64),
        ("list", list),
    ],
)
def test_only_float_tensors_are_measured(name, side, kind, other):
    pair = [torch.zeros(2, 3, 9, 12)] * 2
    pair[side] = other(pair[side])
    with refused(f"{name}: images of {kind} must be a float torch.Tensor"):
        (PER_IMAGE.get(name) or metrics.lpips)(*pair)


def test_one_image_without_a_batch_and_images_smaller_than_the_window_are_refused():
    with refused("psnr"):
        metrics.psnr(torch.zeros(3, 9, 12), torch.zeros(3, 9, 12))
    with refused("smaller than the 7×7 window"):
        metrics.ssim(torch.zeros(1, 1, 6, 9), torch.zeros(1, 1, 6, 9))


# --- learned perceptual distance -------------------------------------------------------------------------


@pytest.fixture
def unloaded():
    """No network is kept from another test, nor for one."""
    metrics._perceptual_network.cache_clear()
    yield
    metrics._perceptual_network.cache_clear()


@pytest.fixture
def package():
    """The real package, which the project's own set leaves out."""
    return pytest.importorskip("lpips", reason="the extra [lpips] is not installed")


@pytest.fixture
def random_trunk(package, unloaded, monkeypatch):
    """Random weights in place of AlexNet's pretrained ones; all else is the package's."""
    from torchvision.models import _api, alexnet

    monkeypatch.setattr(
        _api, "load_state_dict_from_url", lambda *args, **options: alexnet().state_dict()
    )


def test_without_its_extra_lpips_says_what_to_install(unloaded, monkeypatch):
    monkeypatch.setitem(sys.modules, "lpips", None)
    with refused("pip install atslib[lpips]"):
        metrics.lpips(*noisy(3))


@pytest.mark.parametrize(
    ("channels", "width", "message"),
    [(2, 12, "images have 2 channels; it takes 1 or 3"), (3, 11, "must be equal")],
)
def test_lpips_refuses_other_images(channels, width, message):
    with refused(message):
        metrics.lpips(torch.zeros(2, channels, 9, 12), torch.zeros(2, channels, 9, width))


def test_lpips_sees_colour_of_at_least_64_pixels_between_minus_one_and_one():
    ramp = torch.linspace(0, 1, 32, dtype=torch.float64).expand(2, 1, 16, 32)
    seen = metrics._for_network(ramp)
    assert (seen.shape, seen.dtype) == (
        (2, 3, 64, 128),
        torch.float32,
    )  # enlarged by 4: the sides keep their ratio
    assert (seen.min(), seen.max()) == (-1, 1)
    assert (seen[..., 1:] - seen[..., :-1] >= 0).all()
    assert torch.equal(seen[:, 0], seen[:, 2])
    large = torch.rand(1, 3, 64, 70, generator=rng(0))
    torch.testing.assert_close(metrics._for_network(large), 2 * large - 1)


def test_lpips_without_weights_says_which_file_goes_where(package, unloaded, monkeypatch, tmp_path):
    def unreachable(*args, **options):
        raise urllib.error.URLError("no network")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", unreachable)
    with pytest.raises(AtsError, match="no network") as error:
        metrics.lpips(*noisy(3))
    file = "alexnet-owt-7be5be79.pth"
    assert f"put https://download.pytorch.org/models/{file} at " in str(error.value)
    there = Path(str(error.value).split(" at ")[-1])
    assert there == tmp_path / "hub" / "checkpoints" / file
    there.write_bytes(b"not weights")
    with pytest.raises(AtsError, match=file):
        metrics.lpips(*noisy(3))


def test_lpips_is_the_packages_one_value_per_image(package, random_trunk):
    truth = torch.rand(3, 3, 64, 64, generator=rng(0), dtype=torch.float64)
    estimate = truth.roll(5, -1)
    values = metrics.lpips(estimate, truth)
    assert (values.shape, values.dtype, values.requires_grad) == ((3,), torch.float64, False)
    network = metrics._perceptual_network(truth.device)
    assert network is metrics._perceptual_network(truth.device)  # loaded once
    for i in range(3):
        oracle = network(estimate[i].float(), truth[i].float(), normalize=True).item()
        assert values[i].item() == pytest.approx(oracle, rel=1e-4)
    assert (values > 1e-3).all()
    assert (metrics.lpips(truth, truth) == 0).all()
    estimate[1, 0, 4, 4] = torch.nan
    assert metrics.lpips(estimate, truth).isnan().tolist() == [False, True, False]


def test_lpips_takes_small_grey_images(package, random_trunk):
    grey = torch.rand(2, 1, 28, 28, generator=rng(0))
    values = metrics.lpips(grey, grey.flip(-1))
    torch.testing.assert_close(
        values, metrics.lpips(*(g.expand(-1, 3, -1, -1) for g in (grey, grey.flip(-1))))
    )


def test_lpips_grows_with_noise(package, unloaded):
    file = Path(torch.hub.get_dir(), "checkpoints", "alexnet-owt-7be5be79.pth")
    if not file.exists():
        pytest.skip(f"AlexNet's pretrained weights are not at {file}")
    _, truth = natural(3)
    noise = torch.randn(truth.shape, generator=rng(1), dtype=torch.float64)
    steps = torch.stack(
        [metrics.lpips((truth + s * noise).clamp(0, 1), truth) for s in (0, 0.05, 0.2, 0.8)]
    )
    assert (steps[0] == 0).all()
    assert (steps.diff(dim=0) > 0).all()
    assert (steps[-1] > 0.3).all()
