"""An attacker who knows the policy: gradient matching of the image *before* the policy."""

import dataclasses
import itertools
from typing import ClassVar

import torch
from torch import Tensor

from atslib.attacks.attack import Reconstruction
from atslib.attacks.composed import Around
from atslib.attacks.run import run_attack
from atslib.attacks.starts import STARTS
from atslib.clients.observe import Knowledge, Observed
from atslib.errors import AtsError
from atslib.models import normalization_layer
from atslib.policies.differentiable import Form, forms, members, turns


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByForms(Around):
    """An attack that is made in every form that the policy can draw, of which the one of least cost
    is kept.

    It is the attacker's own cost, never the truth. Where the draws are known there is one form for
    each image.

    Attributes:
        inner: the attack that is made in each form.
        trial: steps after which only the `keep` cheapest forms of each image are attacked in full;
            0: all are.
        keep: how many.
    """

    lowest: ClassVar[dict[str, int]] = {"trial": 0, "keep": 1}

    trial: int = 0
    keep: int = 2

    @property
    def evaluations(self) -> int:
        """How often the gradient of the cost is computed for each image and round, of a policy with
        eight forms.
        """
        return 8 * self.trial + (self.keep if self.trial else 8) * self.inner.evaluations

    def run(
        self,
        seen: Observed,
        *,
        rng: torch.Generator,
        start: Tensor | None = None,
        frames: int = 0,
        progress: bool = False,
    ) -> Reconstruction:
        """Run it on every gradient of `seen`.

        Args:
            seen: of one image per gradient, by a server that knows the policy
                (`ThreatModel.defense`).
            start: (N, C, H, W) in [0, 1] units, or (restarts, N, C, H, W), where every form begins.
            frames: how many snapshots to keep of the attack in full that costs least.
        Raises:
            AtsError: the policy is not known, or a gradient is of several images.
        """
        policy = known_policy(seen, self, single=True)
        begin = self.starts(seen, rng) if start is None else start
        options = {"rng": rng, "start": begin, "progress": progress}
        if seen.knows.draws:
            guesses = [[[self.modelled(form) for form in images] for images in drawn(seen.knows)]]
        else:
            guesses = self._likely(
                seen, list(dict.fromkeys(map(self.modelled, forms(policy)))), **options
            )
        options["frames"] = frames
        return _cheapest([self.attacked(seen, rounds, **options) for rounds in guesses])

    def attacked(
        self, seen: Observed, rounds: list[list[Form]], **options: object
    ) -> Reconstruction:
        """The whole attack, taking the policy to have made these forms of the N images in each
        round.
        """
        return run_attack(through(seen, rounds), self.inner, **options)

    def starts(self, seen: Observed, rng: torch.Generator) -> Tensor:
        """Where every form begins, (restarts, N, C, H, W) in [0, 1] units."""
        draw = STARTS[self.inner.start]
        normalize = normalization_layer(seen.updates[0].model)
        drawn = [draw(seen.shape, rng, normalize) for _ in range(self.inner.restarts * len(seen))]
        return normalize.inverse(torch.stack(drawn).to(normalize.mean)).unflatten(
            0, (-1, len(seen))
        )

    def modelled(self, form: Form) -> Form:
        """The operations through which the image is searched, if the policy made this form: all."""
        return form

    def _likely(
        self, seen: Observed, possible: list[Form], **options: object
    ) -> list[list[list[Form]]]:
        """What is attacked in full: guesses, each of which has the form of every image in every
        round, [R][N].
        """
        rounds = len(seen.updates)
        count = len(possible) ** rounds
        if not self.trial and count > len(possible):
            raise AtsError(
                f"{type(self).__name__}.trial=0: {count} combinations of the forms of {rounds} rounds; set a trial"
            )
        if not self.trial or count <= self.keep:
            return [
                [[form] * len(seen) for form in each]
                for each in itertools.product(possible, repeat=rounds)
            ]
        each = [dataclasses.replace(seen, updates=(update,)) for update in seen.updates]
        costs = torch.stack([self._trial(one, possible, **options) for one in each])
        chosen = least(costs, self.keep).tolist()
        return [[[possible[v] for v in images] for images in rounds] for rounds in chosen]

    def _trial(self, seen: Observed, possible: list[Form], **options: object) -> Tensor:
        """The cost of each possible form of a single round after a few steps, (N, V)."""
        short = dataclasses.replace(self.inner, steps=self.trial)
        tried = [[[form] * len(seen)] for form in possible]
        costs = torch.stack(
            [run_attack(through(seen, rounds), short, **options).cost for rounds in tried], 1
        ).cpu()
        return costs.nan_to_num(torch.inf, torch.inf, torch.inf)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThroughPolicy(ByForms):
    """Searches the image whose gradient, *after the policy*, is the one that was seen.

    The policy's operations are modelled by their differentiable `twin`. What was drawn for an
    image, member and signs, is tried in every form, and the one of least cost is kept: the
    attacker's own cost, never the truth. Where the draws are known (`ThreatModel.defense` "draws")
    there is one form for each image. Crop and flip are not modelled: what comes out is the image
    before the policy and after them. A mirror image before the same policy gives the same gradient,
    so that none tells the flip; a crop can be told by its black border, and an attacker who knew
    both reached 20.2 instead of 17.4 dB of the cropped image (LeNet, no policy, 16 images). Pixels
    that the policy moved out of the frame leave no trace in the gradient; the prior of `inner`
    fills them.

    Of several rounds (`Observed.join`) one image is searched whose gradients after each round's
    policy are those that were seen. Forms are tried in each round alone, and attacked in full are
    the combinations of least total cost: a greedy choice, since all combinations of eight rounds
    would be millions.

    Attributes:
        inner: the attack that is made in each form.
        trial, keep: as of `ByForms`.
    """

    words: ClassVar[str] = " through the policy"


def known_policy(seen: Observed, attack: object, *, single: bool = False) -> str:
    """The policy that an attack needs to know, as text.

    Raises:
        AtsError: the server does not know it, or a gradient is of several images where it must be
            of a `single` one.
    """
    name = type(attack).__name__
    if seen.knows.policy is None:
        raise AtsError(
            f"{name} needs a server that knows the policy: ThreatModel(defense='policy')"
        )
    if single and seen.threat.batch > 1:
        raise AtsError(
            f"{name} needs one image per gradient; ThreatModel.batch={seen.threat.batch}"
        )
    return seen.knows.policy


def least(costs: Tensor, keep: int) -> Tensor:
    """The `keep` combinations of least sum, cheapest first: (R, N, V) → (keep, R, N), which of the
    V in each round.
    """
    _, images, count = costs.shape
    total = costs.new_zeros(images, 1)
    chosen = torch.zeros(images, 1, 0, dtype=torch.int64)
    for cost in costs:
        grown = (total[:, :, None] + cost[:, None, :]).flatten(1)
        order = grown.argsort(dim=1, stable=True)[:, :keep]
        parents = chosen.gather(1, (order // count)[:, :, None].expand(-1, -1, chosen.shape[2]))
        total = grown.gather(1, order)
        chosen = torch.cat([parents, (order % count)[:, :, None]], 2)
    return chosen.permute(1, 2, 0)


def drawn(knows: Knowledge) -> list[list[Form]]:
    """The form of each image in each round, [R][N], where the draws are known."""
    ids_of = members(knows.policy)

    def form(which: int, signs: list[int]) -> Form:
        ids = ids_of[which]
        return ids, tuple(s if signed else 1 for s, signed in zip(signs, turns(ids), strict=False))

    rounds = [
        (member.flatten().tolist(), signs.flatten(0, 1).tolist()) for member, signs in knows.draws
    ]
    return [[form(*each) for each in zip(*images, strict=True)] for images in rounds]


def through(seen: Observed, rounds: list[list[Form]]) -> Observed:
    """What was seen, by an attacker who takes the policy to have made these forms of the N images
    in each round.
    """
    updates = [
        dataclasses.replace(u, forms=tuple(each))
        for u, each in zip(seen.updates, rounds, strict=True)
    ]
    return dataclasses.replace(seen, updates=tuple(updates))


def _cheapest(made: list[Reconstruction]) -> Reconstruction:
    """Of each gradient the reconstruction that costs least."""
    best = (
        torch.stack([each.cost for each in made])
        .nan_to_num(torch.inf, torch.inf, torch.inf)
        .argmin(0)
    )
    rows = torch.arange(len(best), device=best.device)
    whole = {
        n: torch.stack([getattr(each, n) for each in made])
        for n in ("images", "cost", "labels", "stuck", "restart")
    }
    picked = {name: value[best, rows] for name, value in whole.items()}
    trace = torch.stack([each.trace.T for each in made])[best, rows].T
    frames = torch.stack([each.frames.transpose(0, 1) for each in made])[best, rows].transpose(0, 1)
    return dataclasses.replace(made[0], **picked, trace=trace, frames=frames)
