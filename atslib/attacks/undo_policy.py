"""Attackers who know the policy and attack what the network got: from a better start, or undoing
the policy afterwards.

Both have images of their own, and know what the policy can make of them.
"""

import dataclasses
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import MultivariateNormal

from atslib.attacks.attack import Reconstruction
from atslib.attacks.composed import Around, WithImages
from atslib.attacks.priors import total_variation
from atslib.attacks.run import run_attack
from atslib.attacks.through_policy import ByForms, drawn, forms, known_policy
from atslib.clients.observe import Observed
from atslib.clients.prepare import mean_prepared, streams, to_images, transform
from atslib.errors import AtsError
from atslib.policies.differentiable import Form, twins
from atslib.policies.operations import OPS
from atslib.policies.policy import Policy
from atslib.rng import rng as stream

OWN = 2_000  # images of the attacker's that a prior is fitted on
BLUR = 8  # cells along each side of a blurred image
SHIFTS = ("translateX", "translateY")
DARK = (
    "brightness",
    "color",
    "posterize",
    ("contrast", 1),
)  # black stays black, with this sign if one is given
SMOOTH = 0.2  # weight of the total variation, in units of what the attacker's images have


@dataclasses.dataclass(frozen=True, kw_only=True)
class FromMean(WithImages, ByForms):
    """Starts from the mean of the attacker's images after crop, flip and policy, and tries where
    black bands may be.

    A shift leaves black rows or columns, unless a later operation lightens them (less contrast, for
    instance) or mixes them with others: see `bands`. The image is searched whose gradient is the
    one that was seen with those pixels held black, for each choice of bands that the policy's signs
    leave open; the choice of least cost is kept.

    Attributes:
        inner: the attack that is started there.
        trial, keep: as of `ByForms`, of choices of bands instead of forms.
        images: those that the attacker has, before crop, flip and policy.
        crop_flip: whether clients crop and flip.
    """

    words: ClassVar[str] = " from the policy's mean image, black bands tried"

    crop_flip: bool = True

    def run(
        self,
        seen: Observed,
        *,
        rng: torch.Generator,
        start: Tensor | None = None,
        frames: int = 0,
        progress: bool = False,
    ) -> Reconstruction:
        """Run it on every gradient of `seen`, see `ByForms`.

        Raises:
            AtsError: the policy is not known, a gradient is of several images, there are several
                rounds, or the images are not of the shape of the attacked ones.
        """
        single_round(seen, self)
        return super().run(seen, rng=rng, start=start, frames=frames, progress=progress)

    def starts(self, seen: Observed, rng: torch.Generator) -> Tensor:
        """The mean image once for each gradient, (N, C, H, W) in [0, 1]."""
        policy = seen.knows.policy
        own = self.own()
        draws = stream(0, "floor", own.name, policy)
        mean = mean_prepared(own.pixels, policy, rng=draws, crop_flip=self.crop_flip)
        return mean.expand(len(seen), *mean.shape[1:])

    def attacked(
        self, seen: Observed, rounds: list[list[Form]], **options: object
    ) -> Reconstruction:
        """The whole attack, and these bands of the images black."""
        made = super().attacked(seen, rounds, **options)
        return dataclasses.replace(made, images=twins(rounds[0], made.images))

    def modelled(self, form: Form) -> Form:
        """The bands that this form leaves black."""
        return bands(form)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Undone(WithImages, Around):
    """Reconstructs what the network got, then undoes the policy.

    What was drawn is read off the reconstruction, blurred to 8 × 8 cells: of all forms of the
    policy it is taken to have the one under which it is likeliest, as a normal distribution fitted
    to the attacker's own images in that form says. Then the image is searched whose form is closest
    to the reconstruction and which is itself likely among the attacker's images before the policy
    (blurred as above; total variation for the rest), by gradient steps through the policy's twin,
    so that no operation needs an inverse. Crop and flip stay.

    Attributes:
        inner: the attack whose reconstruction is undone.
        images: those that the attacker has, before crop, flip and policy.
        crop_flip: whether clients crop and flip.
        noise: standard deviation of a reconstruction's pixels about the truth that the attacker
            reckons with.
        steps: of the search, with Adam.
    """

    words: ClassVar[str] = ", the policy undone afterwards"

    crop_flip: bool = True
    noise: float = 0.2
    steps: int = 60

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("noise", "steps"):
            if getattr(self, field) <= 0:
                raise AtsError(f"Undone.{field}={getattr(self, field)} must be above 0")

    def run(
        self,
        seen: Observed,
        *,
        rng: torch.Generator,
        start: Tensor | None = None,
        progress: bool = False,
    ) -> Reconstruction:
        """Run it on every gradient of `seen`.

        Raises:
            AtsError: the policy is not known, a gradient is of several images, or there are several
                rounds.
        """
        policy = known_policy(seen, self, single=True)
        single_round(seen, self)
        made = run_attack(seen, self.inner, rng=rng, start=start, progress=progress)
        own = self.own().pixels
        taken = torch.randperm(len(own), generator=stream(0, "own"))[:OWN]
        pixels = transform(own[taken], rng=streams(0, "own"), crop_flip=self.crop_flip)
        images = made.images.nan_to_num().clamp(0, 1)
        chosen = (
            drawn(seen.knows)[0] if seen.knows.draws else self.likeliest(images, pixels, policy)
        )
        return dataclasses.replace(
            made, images=self.undo(images, chosen, to_images(pixels).to(images))
        )

    def likeliest(self, images: Tensor, pixels: Tensor, policy: str) -> list[Form]:
        """The form in which each of the images (B, C, H, W) most likely is, by the attacker's own,
        uint8.
        """
        possible = forms(policy)
        likely = []
        for ids, signs in possible:
            each = torch.tensor(signs, dtype=torch.int64).expand(len(pixels), len(ids))
            fitted = _normal(
                to_images(Policy(ids).apply_signs(pixels, each)).to(images), self.noise
            )
            likely.append(fitted.log_prob(_blurred(images)))
        return [possible[v] for v in torch.stack(likely).argmax(0).tolist()]

    def undo(self, images: Tensor, chosen: list[Form], own: Tensor) -> Tensor:
        """The likely images whose forms come close to `images` (B, C, H, W); `own` are the
        attacker's, in [0, 1].
        """
        prior = _normal(own, 0.01)
        smooth = total_variation(own).mean()
        size = images[0].numel()
        x = own.mean(0).expand_as(images).clone().requires_grad_()
        optimizer = torch.optim.Adam([x], lr=0.1)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        for _ in range(self.steps):
            off = (twins(chosen, x) - images).square().flatten(1).sum(1) / (2 * self.noise**2)
            rough = SMOOTH * size * total_variation(x) / smooth
            (x.grad,) = torch.autograd.grad((off + rough - prior.log_prob(_blurred(x))).sum(), x)
            optimizer.step()
            falling.step()
            x.data.clamp_(0, 1)
        return x.detach()


def single_round(seen: Observed, attack: object) -> None:
    """Refuse several rounds: what the network got was another image in each."""
    if (rounds := len(seen.updates)) > 1:
        raise AtsError(
            f"{type(attack).__name__} needs one round, in which the policy drew once; there are {rounds}"
        )


def bands(form: Form) -> Form:
    """What blackens the rows and columns that are black in every image of this form, and leaves the
    rest as it is.

    A shift there and back does. Of a shift that a later operation may lighten there is none.
    """
    found = []
    (ids, signs) = form
    for n, (index, sign) in enumerate(zip(ids, signs, strict=True)):
        later = zip(ids[n + 1 :], signs[n + 1 :], strict=True)
        if OPS[index].name in SHIFTS and all(
            OPS[i].name in SHIFTS + DARK or (OPS[i].name, s) in DARK for i, s in later
        ):
            found += [(index, -sign), (index, sign)]
    return tuple(index for index, _ in found), tuple(sign for _, sign in found)


def _blurred(images: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(images, BLUR).flatten(1).double()


def _normal(images: Tensor, noise: float) -> MultivariateNormal:
    """Fitted to the images, blurred, with independent noise on top."""
    cells = _blurred(images)
    return MultivariateNormal(
        cells.mean(0), cells.T.cov() + noise**2 * torch.eye(cells.shape[1]).to(cells)
    )
