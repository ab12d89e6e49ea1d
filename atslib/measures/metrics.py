"""How close a reconstruction is to the truth, one value per image; averages are left to the caller."""

import functools
import math
import warnings
from pathlib import Path
from pickle import UnpicklingError

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atslib.data.images import describe, explain, is_tensor
from atslib.errors import AtsError, check_kind


def check_images(name: str, images: Tensor) -> None:
    """Raise `AtsError` unless these are float images, (B, C, H, W)."""
    if not is_tensor(images) or not images.is_floating_point():
        odd = isinstance(images, Tensor) and not is_tensor(images)
        kind = describe(images) if odd else getattr(images, "dtype", type(images).__name__)
        raise AtsError(
            f"{name}: images of {kind} must be a float torch.Tensor in [0, 1]; divide uint8 pixels by 255"
        )
    if images.ndim != 4:
        raise AtsError(f"{name}: images of shape {tuple(images.shape)} must be (B, C, H, W)")


def _check_pair(name: str, estimate: Tensor, truth: Tensor, data_range: float = math.inf) -> None:
    for images in (estimate, truth):
        check_images(name, images)
    if estimate.shape != truth.shape:
        shapes = f"{tuple(estimate.shape)} and {tuple(truth.shape)}"
        raise AtsError(f"{name}: shapes {shapes} must be equal; nothing is broadcast")
    if not isinstance(data_range, int | float) or not (
        1e-9 <= data_range <= 1e9 or data_range == math.inf
    ):
        raise AtsError(f"{name}: data_range={data_range!r} must be a number from 1e-9 to 1e9")
    if not truth.isfinite().all():
        raise AtsError(f"{name}: the truth holds nan or infinity")
    if (truth > 10 * data_range).any():
        raise AtsError(
            f"{name}: the truth goes up to {truth.max():.4g}, far beyond data_range={data_range}"
        )


def mse(estimate: Tensor, truth: Tensor) -> Tensor:
    """Mean squared error of each image in [0, 1] over channels and pixels, (B, C, H, W) → (B,);
    lower is closer.

    Raises:
        AtsError: shapes that differ, pixels that are no floats, or a truth far beyond 1.
    """
    _check_pair("mse", estimate, truth, 1.0)
    return _error(estimate, truth)


def _error(estimate: Tensor, truth: Tensor) -> Tensor:
    """In single precision at least: in half, squares of small differences are 0."""
    estimate, truth = (
        x.float() if x.dtype not in (torch.float32, torch.float64) else x for x in (estimate, truth)
    )
    return (estimate - truth.to(estimate.device)).square().flatten(1).mean(1)


def psnr(estimate: Tensor, truth: Tensor, *, data_range: float = 1.0) -> Tensor:
    """Peak signal-to-noise ratio of each image; higher is closer to the truth.

    Args:
        estimate, truth: (B, C, H, W), same shape, pixels in [0, `data_range`]. Values outside are
            not clamped, as in the authors' inversefed/metrics.py.
    Returns:
        (B,) in dB; `inf` where the images are equal, `nan` where the estimate is not finite.
    Raises:
        AtsError: the shapes differ, the pixels are not floats, or the truth is far beyond
            `data_range`.
    """
    _check_pair("psnr", estimate, truth, data_range)
    error = _error(estimate, truth)
    return 10 * torch.log10(data_range**2 / torch.where(error.isfinite(), error, torch.nan))


def ssim(estimate: Tensor, truth: Tensor, *, data_range: float = 1.0) -> Tensor:
    """Structural similarity of each image, in [-1, 1]; 1 is equal. (B, C, H, W) → (B,).

    Uniform 7×7 window and sample covariance, averaged over the interior and the channels:
    scikit-image's default. Source: Wang et al. 2004, doi:10.1109/TIP.2003.819861.

    Raises:
        AtsError: as `mse`, or sides below 7.
    """
    _check_pair("ssim", estimate, truth, data_range)
    side = 7
    x = estimate.double()
    y = truth.to(x.device).double()
    if min(x.shape[-2:]) < side:
        raise AtsError(
            f"ssim: images of {tuple(x.shape[-2:])} are smaller than the {side}×{side} window"
        )

    def local(a: Tensor) -> Tensor:
        return F.avg_pool2d(a, side, stride=1)

    sample = side**2 / (side**2 - 1)
    mean_x = local(x)
    mean_y = local(y)
    var_x, var_y = (sample * (local(a * a) - m * m) for a, m in ((x, mean_x), (y, mean_y)))
    covariance = sample * (local(x * y) - mean_x * mean_y)
    c1 = (0.01 * data_range) ** 2
    c2 = (0.03 * data_range) ** 2
    similarity = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    similarity /= (mean_x.square() + mean_y.square() + c1) * (var_x + var_y + c2)
    return similarity.flatten(1).mean(1).to(estimate.dtype)


@torch.no_grad()
def feature_mse(model: nn.Module, estimate: Tensor, truth: Tensor) -> Tensor:
    """Mean squared difference of the logits of two batches in [0, 1], (B,); lower is closer.

    The authors store it as `feat_mse`.
    """
    check_kind("feature_mse: model", model, nn.Module, "a torch.nn.Module")
    _check_pair("feature_mse", estimate, truth, 1.0)
    try:
        return (model(estimate) - model(truth)).square().mean(1)
    except RuntimeError as error:
        raise AtsError(
            f"feature_mse: the model does not take {tuple(truth.shape)}: {explain(error)}"
        ) from None


@torch.no_grad()
def lpips(estimate: Tensor, truth: Tensor) -> Tensor:
    """Learned perceptual distance of each image; lower is more alike, and 0 is equal.

    It compares the features of an AlexNet trained on ImageNet, weighted to agree with human
    judgments (version 0.1). There is no upper bound. Images with a side below 64 are enlarged to it
    first (bilinear): the size on which it was calibrated, and about the least that the network
    takes.

    Args:
        estimate, truth: (B, C, H, W), same shape, C = 1 or 3, pixels in [0, 1]; not clamped.
    Returns:
        (B,); `nan` where the estimate is not finite.
    Raises:
        AtsError: the shapes differ, the pixels are not floats, the extra `[lpips]` is not
            installed, or the weights cannot be had.
    Source: Zhang et al. 2018, arXiv:1801.03924, through the authors' package `lpips`.
    """
    _check_pair("lpips", estimate, truth)
    if estimate.shape[1] not in (1, 3):
        raise AtsError(f"lpips: images have {estimate.shape[1]} channels; it takes 1 or 3")
    network = _perceptual_network(estimate.device)
    return network(_for_network(estimate), _for_network(truth)).flatten().to(estimate.dtype)


def _for_network(images: Tensor) -> Tensor:
    """(B, C, H, W) in [0, 1] → float32 (B, 3, ≥ 64, ≥ 64) in [-1, 1]."""
    images = 2 * images.float() - 1
    if (least := min(images.shape[-2:])) < 64:
        size = [round(side * 64 / least) for side in images.shape[-2:]]
        images = F.interpolate(images, size, mode="bilinear", align_corners=False)
    return images.expand(-1, 3, -1, -1)


@functools.lru_cache
def _perceptual_network(device: torch.device) -> nn.Module:
    """The `lpips` package's AlexNet; loaded once per device."""
    try:
        import lpips as package
        import torchvision
    except ImportError as error:
        raise AtsError(f"lpips needs an extra ({error}): pip install atslib[lpips]") from None
    url = torchvision.models.AlexNet_Weights.IMAGENET1K_V1.url
    file = Path(torch.hub.get_dir(), "checkpoints", url.rsplit("/", 1)[1])
    try:
        # The package asks for the weights in a way that torchvision deprecates, and draws them
        # first.
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            network = package.LPIPS(net="alex", verbose=False)
    except (OSError, RuntimeError, EOFError, UnpicklingError) as error:
        why = (str(error) or repr(error)).splitlines()[0]
        raise AtsError(
            f"lpips: the weights of AlexNet cannot be had ({why}); put {url} at {file}"
        ) from None
    return network.to(device)
