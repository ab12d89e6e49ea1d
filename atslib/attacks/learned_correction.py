"""An attacker who has learned: a network trained on auxiliary images brings reconstructions back to
the photographs.
"""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from atslib.attacks.attack import Reconstruction
from atslib.attacks.composed import Around, WithImages
from atslib.attacks.run import run_attack
from atslib.attacks.through_policy import known_policy
from atslib.clients.observe import Observed, ThreatModel, observe
from atslib.clients.prepare import to_images
from atslib.errors import AtsError
from atslib.policies.operations import crop_and_flip
from atslib.policies.policy import parse_policy

BATCH = 50  # pairs in a step of the training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned(WithImages, Around):
    """Repeats its own attack on auxiliary images under the policy, and learns to map the outcome to
    the photograph.

    The server draws training images, crops and flips them, transforms them by the policy that it
    knows, computes their gradients with the network that it sent, and attacks these as `inner`
    attacks those it saw. From the pairs of reconstruction and image before the policy it trains a
    small network, which then corrects the reconstructions of the private images: what the policy
    moved out of the frame is filled by what such images look like. The network has the least mean
    squared error, so where the gradient told nothing it paints the mean image.

    Attributes:
        inner: the attack on the private and the auxiliary gradients; its length counts the private
            ones only.
        images: the auxiliary ones, before crop, flip and policy.
        pairs: how many of them.
        epochs: over the pairs.
        width: channels of the network's first layer.
    """

    lowest: ClassVar[dict[str, int]] = {"pairs": 1, "epochs": 1, "width": 1}

    pairs: int = 600
    epochs: int = 40
    width: int = 16

    @property
    def title(self) -> str:
        """The inner attack's, in words."""
        return f"{self.inner.title}, corrected by a network of {self.pairs} auxiliary images"

    def run(
        self,
        seen: Observed,
        *,
        rng: torch.Generator,
        start: Tensor | None = None,
        progress: bool = False,
    ) -> Reconstruction:
        """Run it on every gradient of `seen`; the images are those before the policy, the cost is
        the inner attack's.

        Args:
            seen: of one image per gradient, by a server that knows the policy
                (`ThreatModel.defense`).
            start: where the inner attack on the private gradients begins, see `reconstruct`.
        Raises:
            AtsError: the policy is not known, a gradient is of several images, or there are several
                rounds.
        """
        policy = known_policy(seen, self, single=True)
        own = run_attack(seen, self.inner, rng=rng, start=start, progress=progress)
        photographs, reconstructions = self._pairs(seen, policy, rng, progress)
        correct = _learned(reconstructions, photographs, self, rng)
        with torch.no_grad():
            images = torch.cat(
                [correct(part) for part in own.images.clamp(0, 1).split(BATCH)]
            ).clamp(0, 1)
        return dataclasses.replace(own, images=images)

    def _pairs(
        self, seen: Observed, policy: str, rng: torch.Generator, progress: bool
    ) -> tuple[Tensor, Tensor]:
        """Auxiliary images before the policy, and what the inner attack makes of their gradients,
        both (n, C, H, W).
        """
        known = self.own()
        rows = torch.randperm(len(known), generator=rng)[: self.pairs]
        before = crop_and_flip(known.pixels[rows], rng=rng)
        if before.shape[1:] != seen.shape:
            raise AtsError(
                f"Learned.images {known.name!r} has {tuple(before.shape[1:])} images, seen are {seen.shape}"
            )
        after = parse_policy(policy)(before, rng=rng)
        device = seen.gradients.device
        theirs = observe(
            seen.model,
            to_images(after).to(device),
            known.labels[rows].to(device),
            threat=dataclasses.replace(seen.threat, defense=ThreatModel.defense),
        )
        made = run_attack(theirs, self.inner, rng=rng, progress=progress).images.clamp(0, 1)
        return to_images(before).to(device), made


class Correction(nn.Module):
    """A U-Net of three scales from a reconstruction (B, C, H, W) in [0, 1] to an image, beginning
    as the identity.
    """

    def __init__(self, channels: int, width: int):
        super().__init__()
        sizes = (width, 2 * width, 4 * width)
        self.down = nn.ModuleList(
            _block(i, o) for i, o in zip((channels + 2, *sizes[:-1]), sizes, strict=True)
        )
        self.deep = _block(sizes[-1], sizes[-1])
        self.up = nn.ModuleList(
            _block(2 * o, i) for i, o in zip((width, *sizes[:-1]), sizes, strict=True)
        )
        self.last = nn.Conv2d(width, channels, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, images: Tensor) -> Tensor:
        """The images, with what the network adds."""
        *_, height, width = images.shape
        rows = (
            torch.linspace(-1, 1, height, device=images.device)
            .view(1, 1, -1, 1)
            .expand(len(images), 1, -1, width)
        )
        columns = torch.linspace(-1, 1, width, device=images.device).expand(
            len(images), 1, height, -1
        )
        x = torch.cat([images, rows, columns], 1)
        kept = []
        for block in self.down:
            kept.append(block(x))
            x = F.avg_pool2d(kept[-1], 2, ceil_mode=True)
        x = self.deep(x)
        for block, beside in zip(reversed(self.up), reversed(kept), strict=True):
            x = block(torch.cat([F.interpolate(x, beside.shape[2:]), beside], 1))
        return images + self.last(x)


def _block(into: int, out: int) -> nn.Sequential:
    one = nn.Sequential(nn.Conv2d(into, out, 3, padding=1), nn.GroupNorm(4, out), nn.SiLU())
    return one.append(nn.Conv2d(out, out, 3, padding=1)).append(nn.SiLU())


def _learned(inputs: Tensor, targets: Tensor, config: Learned, rng: torch.Generator) -> Correction:
    """A network trained to bring `inputs` to `targets`, both (n, C, H, W); mirrored pairs are pairs
    as well.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(1 << 62, (1,), generator=rng)))
        network = Correction(inputs.shape[1], config.width).to(inputs.device)
    steps = config.epochs * -(-len(inputs) // BATCH)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=2e-3, total_steps=max(2, steps)
    )
    for _ in range(config.epochs):
        for rows in torch.randperm(len(inputs), generator=rng).split(BATCH):
            mirror = torch.rand(len(rows), 1, 1, 1, generator=rng).to(inputs.device) < 0.5
            pair = torch.stack([inputs[rows.to(inputs.device)], targets[rows.to(inputs.device)]])
            given, wanted = torch.where(mirror, pair.flip(-1), pair)
            optimizer.zero_grad()
            F.mse_loss(network(given), wanted).backward()
            optimizer.step()
            schedule.step()
    return network.eval()
