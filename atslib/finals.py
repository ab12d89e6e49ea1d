"""The last rung of a search: short real attacks on the candidates that score best."""

from torch import Tensor, nn

from atslib.attacks import Attack, reconstruct
from atslib.data import Images
from atslib.metrics import psnr
from atslib.policies import Hybrid, Policy
from atslib.rng import rng
from atslib.scores import transformed
from atslib.threat import observe


def attack_gains(model: nn.Module, images: Images, policy: Policy | Hybrid, attack: Attack, *, seed: int) -> Tensor:
    """What an attack finds of each image beyond the mean image, in dB, (B,); lower is more private, 0 is nothing.

    PSNR of the reconstruction minus that of the mean of `images`, both against the transformed image: a policy
    that only makes its images darker, so that every guess scores less, gains nothing by it. Crops, flips and
    starts are the same for every policy.

    Args:
        model: in eval mode, as client and attacker run it.
        images: B of them, uint8.
    """
    device = next(model.parameters()).device
    target = transformed(images.to(device), policy, seed=seed).float() / 255
    seen = observe(model, target, images.labels.to(device))
    found = reconstruct(seen, attack, rng=rng(seed, "finals"))
    mean = (images.pixels.to(device).float().mean(0) / 255).expand_as(target).contiguous()
    return psnr(found.images, target) - psnr(mean, target)
