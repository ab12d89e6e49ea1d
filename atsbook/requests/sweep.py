"""Requests that look at every policy: attacks on all, longer ones on those that they find least of,
and scores of all.

A policy's number is its place in `enumerate_distinct`. Crops, flips, starts and what is drawn of a
policy are those of `AttackRequest` with the same seed.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from atsbook.experiment import (
    CANDIDATES,
    AttackRequest,
    drawn,
    outcomes_of_photographs,
    starts,
)
from atsbook.kept import Kept
from atsbook.networks import ModelRequest, dataset, trained
from atsbook.requests.outcomes import OfAttacks
from atsbook.requests.scoring import unseen
from atsbook.store import Store
from atslib.attacks import GradientMatching, reconstruct
from atslib.clients.observe import observe
from atslib.clients.prepare import mean_prepared, to_images
from atslib.measures.identification import identification
from atslib.measures.metrics import psnr
from atslib.policies.draws import Draw
from atslib.policies.policy import Policy, enumerate_distinct
from atslib.rng import rng
from atslib.scores.scores import accuracy_score, area, gradsim_curves

AT_ONCE = 64  # images in one batch of attacks
FLOOR = 256  # training images, each transformed once, behind a policy's mean image


@functools.cache
def all_policies() -> tuple[Policy, ...]:
    """The 20,439 distinct functions of up to three operations, by their numbers."""
    return tuple(enumerate_distinct())


def spaced(count: int) -> list[int]:
    """So many policies by number, evenly spaced."""
    return (
        torch.linspace(0, len(all_policies()) - 1, count, dtype=torch.float64)
        .round()
        .long()
        .tolist()
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rung:
    """Attacks on so many policies, each on `each` of the test images `first` to `last` - 1, drawn
    for it.

    All its images meet many policies, and no two policies need the same ones: what is found over
    all policies holds for images like these, not for the few that a single policy has met.
    """

    attack: GradientMatching
    policies: int
    first: int
    last: int
    each: int
    size: int  # policies in one request
    numbers: tuple[int, ...] = ()  # these policies, and no others


@dataclasses.dataclass(frozen=True, kw_only=True)
class Halving:
    """Attacks on many policies: each rung takes those on that the one before found least of.

    The first has so many of all policies, evenly spaced by number. Where no image belongs to two
    rungs, a policy's luck in one does not reach the next.
    """

    model: ModelRequest
    rungs: tuple[Rung, ...]
    seed: int = 0

    def requests(self, rung: int) -> tuple["SweepRequest", ...]:
        """A rung's requests, in order."""
        count = self.rungs[rung].policies
        size = self.rungs[rung].size
        return tuple(
            SweepRequest(plan=self, rung=rung, low=low, high=min(low + size, count))
            for low in range(0, count, size)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRequest(Kept):
    """Attacks on the policies at places `low` to `high` - 1 of a rung.

    Its tensors: `number` (P,) of the policies; (P, B) `image`, `gain` in dB over the mean of `FLOOR`
    training images after crop, flip and policy, that mean's own PSNR `floor`, and `found`, whether
    the photograph is singled out among 100.
    """

    kind: ClassVar[str] = "sweep"

    plan: Halving
    rung: int
    low: int
    high: int

    @property
    def model(self) -> ModelRequest:
        """The attacked network."""
        return self.plan.model

    @property
    def needs(self) -> tuple[Kept, ...]:
        """The network where it is a trained one, and the whole rung before."""
        network = (self.model,) if self.model.is_kept else ()
        before = self.plan.requests(self.rung - 1) if self.rung else ()
        return (*network, *before)

    @property
    def title(self) -> str:
        """Policies, images and steps."""
        rung = self.plan.rungs[self.rung]
        where = f"policies {self.low}-{self.high - 1} of rung {self.rung + 1}"
        return f"{where}, {rung.each} images each, {rung.attack.steps} steps"

    @property
    def passes(self) -> float:
        """Two nested gradients, seven passes, a step and image."""
        rung = self.plan.rungs[self.rung]
        return 7 * (self.high - self.low) * rung.each * rung.attack.evaluations

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Attack each of the policies on its images."""
        model = trained(self.model, store, device)[0].eval()
        chosen = torch.tensor(numbers(self, store, device))
        each = self.plan.rungs[self.rung].each
        rows = [
            _attacked(self, model, few.tolist(), device)
            for few in chosen.split(max(1, AT_ONCE // each))
        ]
        joined = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
        return {"number": chosen} | joined


def numbers(request: SweepRequest, store: Store, device: torch.device) -> list[int]:
    """The request's policies by number: of a later rung those with the least mean gain in the one
    before, least first.
    """
    count = request.plan.rungs[request.rung].policies
    given = request.plan.rungs[request.rung].numbers
    if given:
        return list(given[request.low : request.high])
    if request.rung == 0:
        return spaced(count)[request.low : request.high]
    before = [each.make(store, device) for each in request.plan.requests(request.rung - 1)]
    number, image, gain = (
        torch.cat([each[name] for each in before]) for name in ("number", "image", "gain")
    )
    # Rounded far below any difference that matters, so that no last bit decides who goes on.
    order = adjusted(gain, image).mean(1).mul(1e6).round().sort(stable=True).indices
    return number[order][request.low : min(request.high, count)].tolist()


def adjusted(gain: Tensor, image: Tensor) -> Tensor:
    """Gains in dB without what their images have to do with them: each minus its image's mean, plus
    the mean of all.

    Args:
        gain: (P, B), of policies on images.
        image: (P, B), integers: which image each is of.
    """
    gain = gain.double()
    (names, place) = image.unique(return_inverse=True)
    count = torch.zeros(len(names), dtype=torch.float64).index_add_(
        0, place.flatten(), torch.ones(place.numel()).double()
    )
    total = torch.zeros(len(names), dtype=torch.float64).index_add_(
        0, place.flatten(), gain.flatten()
    )
    return gain - (total / count)[place] + gain.mean()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepOutcomes(OfAttacks):
    """The attacks of a request, and all that they tell of the photographs.

    Its tensors: `number` (P,) of the policies; (P, B) `image` and those of `OutcomeRequest`.
    """

    kind: ClassVar[str] = "sweep-outcomes"

    attacks: SweepRequest

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Attack each policy on its images, and look for the photographs."""
        attacks = self.attacks
        model = trained(self.model, store, device)[0].eval()
        chosen = numbers(attacks, store, device)
        each = attacks.plan.rungs[attacks.rung].each
        parts = []
        for few in torch.tensor(chosen).split(max(1, AT_ONCE // each)):
            rows, _, made = _recovered(attacks, model, few.tolist(), device)
            for number, own, images in zip(few.tolist(), rows, made.cpu().split(each), strict=True):
                draws = _drawn(attacks, all_policies()[number], own)
                found = outcomes_of_photographs(self.model.dataset, own, draws, images)
                parts.append({"image": own} | found)
        joined = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
        return {"number": torch.tensor(chosen)} | joined


def _drawn(request: SweepRequest, policy: Policy, rows: Tensor) -> Draw:
    """What is drawn of a policy for these test images, as in an `AttackRequest` of the same seed."""
    last = request.plan.rungs[request.rung].last
    return drawn(range(last), str(policy), seed=request.plan.seed)[rows]


def _images(request: SweepRequest, number: int) -> Tensor:
    """Which test images a policy meets, (B,), in their order."""
    rung = request.plan.rungs[request.rung]
    seed = request.plan.seed
    drawn = torch.randperm(
        rung.last - rung.first, generator=rng(seed, "sweep", request.rung, number)
    )
    return rung.first + drawn[: rung.each].sort().values


def _recovered(
    request: SweepRequest, model: nn.Module, chosen: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Which test images these policies meet, (P, B); as clients used them and as the attack
    recovered them, (P × B, C, H, W) each.
    """
    images = dataset(request.model.dataset, "test")
    rung = request.plan.rungs[request.rung]
    rows = torch.stack([_images(request, number) for number in chosen])
    used = [
        _drawn(request, all_policies()[number], own).apply(images.pixels[own])
        for number, own in zip(chosen, rows, strict=True)
    ]
    target = to_images(torch.cat(used).to(device))
    begin = starts(_as_attack(request), model)[:, rows.flatten() - rung.first]
    seen = observe(model, target, images.labels[rows.flatten()].to(device))
    stream = rng(request.plan.seed, "attack")
    return rows, target, reconstruct(seen, rung.attack, rng=stream, start=begin).images


def _attacked(
    request: SweepRequest, model: nn.Module, chosen: Sequence[int], device: torch.device
) -> dict[str, Tensor]:
    """(P, B) of these policies: image, gain, floor and found."""
    name = request.model.dataset
    plan = request.plan
    rung = request.plan.rungs[request.rung]
    policies = [all_policies()[number] for number in chosen]
    images = dataset(name, "test")
    rows, target, made = _recovered(request, model, chosen, device)
    floor = psnr(
        _mean_images(name, policies, plan.seed).repeat_interleave(rung.each, 0).to(device), target
    )
    found = torch.empty(rows.numel(), dtype=torch.bool)
    hundred = rows.flatten() // CANDIDATES
    for number in hundred.unique().tolist():
        own = hundred == number
        candidates = to_images(images.pixels[number * CANDIDATES :][:CANDIDATES].to(device))
        truth = (rows.flatten()[own] % CANDIDATES).to(device)
        found[own] = (identification(made[own.to(device)], candidates, truth) == 1).cpu()
    parts = {"gain": psnr(made, target) - floor, "floor": floor, "found": found}
    return {"image": rows} | {key: value.cpu().view(rows.shape) for key, value in parts.items()}


def _as_attack(request: SweepRequest) -> AttackRequest:
    rung = request.plan.rungs[request.rung]
    plan = request.plan
    return AttackRequest(
        model=plan.model,
        policy="",
        attack=rung.attack,
        first=rung.first,
        last=rung.last,
        seed=plan.seed,
    )


def _mean_images(name: str, policies: Sequence[Policy], seed: int) -> Tensor:
    """The best guess of a server that knows each policy and sees no gradient, (P, C, H, W)."""
    pixels = dataset(name, "train").pixels
    own = [rng(seed, "floor", name, str(policy)) for policy in policies]
    return torch.cat(
        [
            mean_prepared(pixels, p, rng=g, most=FLOOR, draws=1)
            for p, g in zip(policies, own, strict=True)
        ]
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepScores(Kept):
    """A score of the policies at places `low` to `high` - 1 of `count` evenly spaced ones.

    Privacy scores are of the first test images, as attacks meet them; accuracy scores of images
    that none meets, as in the search. `score` is "privacy" or "accuracy"; `points` are those of a
    privacy score's curve.

    Its tensor: `scores` (variants, P, B): privacy, lower is more private, of B images; or accuracy
    of all in one, B = 1.
    """

    kind: ClassVar[str] = "sweep-scores"

    model: ModelRequest
    score: str
    variants: tuple[str, ...]
    images: int
    count: int
    low: int
    high: int
    points: int = 0
    seed: int = 0

    @property
    def title(self) -> str:
        """Which score, of what."""
        which = f"{self.score} scores ({', '.join(self.variants)})"
        return f"{which} of policies {self.low}-{self.high - 1}, {self.model.title}"

    @property
    def passes(self) -> float:
        """Forward and backward, every point of a curve."""
        return 3 * (self.high - self.low) * self.images * max(1, self.points)

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Score each of the policies."""
        model = trained(self.model, store, device)[0].eval()
        policies = [all_policies()[n] for n in spaced(self.count)[self.low : self.high]]
        score = _accuracy if self.score == "accuracy" else _privacy
        return {"scores": torch.stack([score(self, model, policy) for policy in policies], 1)}


def _accuracy(request: SweepScores, model: nn.Module, policy: Policy) -> Tensor:
    images = unseen(request.model.dataset)[: request.images]
    return torch.tensor(
        [
            [accuracy_score(model, images, policy, variant=v, rng=request.seed)]
            for v in request.variants
        ]
    )


def _privacy(request: SweepScores, model: nn.Module, policy: Policy) -> Tensor:
    name = request.model.dataset
    like = next(model.parameters())
    test = dataset(name, "test")[: request.images]
    pixels = drawn(range(request.images), str(policy), seed=request.seed).apply(test.pixels)
    stream = rng(request.seed, "score start")
    noise = torch.stack(
        [torch.rand(pixels.shape[1:], generator=stream) for _ in range(request.images)]
    ).to(like)
    seen = to_images(pixels.to(like.device)), test.labels.to(like.device)
    curves = gradsim_curves(model, *seen, request.variants, points=request.points, start=noise)
    return torch.stack(
        [area(curve, name) for curve, name in zip(curves, request.variants, strict=True)]
    ).cpu()
