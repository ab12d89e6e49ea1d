"""Scores of many policies in shards that can be kept, so that a killed search goes on where it was."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from atslib.attacks import Attack, GradientMatching, reconstruct
from atslib.checkpoints import fingerprint
from atslib.clients.observe import observe
from atslib.clients.prepare import mean_prepared, to_images
from atslib.data.load import Images
from atslib.errors import check_kind
from atslib.measures.metrics import psnr
from atslib.policies.policy import Hybrid, Policy
from atslib.rng import rng
from atslib.scores.scores import accuracy_score, privacy_scores, transformed


def _accuracy(
    model: nn.Module, images: Images, policies: Sequence[Policy], seed: int, **options: object
) -> Tensor:
    scores = [
        accuracy_score(model, images, policy, rng=rng(seed, "scores"), **options)
        for policy in policies
    ]
    return torch.tensor(scores, dtype=torch.float64)


def _privacy(
    model: nn.Module, images: Images, policies: Sequence[Policy], seed: int, **options: object
) -> Tensor:
    return privacy_scores(model, images, policies, rng=rng(seed, "scores"), **options)


def _gains(
    model: nn.Module,
    images: Images,
    policies: Sequence[Policy],
    seed: int,
    attack: GradientMatching | Attack,
) -> Tensor:
    return torch.stack(
        [attack_gains(model, images, policy, attack, seed=seed) for policy in policies]
    )


# Name → the scores of P policies, (P,) or (P, images), and what is added to the description that
# they are kept under: a version, to be raised when the meaning of those scores changes.
SCORES: dict[str, tuple[Callable[..., Tensor], dict[str, int]]] = {
    "accuracy": (_accuracy, {"version": 2}),
    "privacy": (_privacy, {}),
    "attack": (_gains, {"version": 2}),
}


class Keep(Protocol):
    """A function that keeps what was computed, such as one that writes it to a folder."""

    def __call__(
        self, kind: str, description: dict, compute: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """What `compute` returns, or what it returned when it was last called under the same kind
        and description.

        Args:
            kind: what it is, one word: "score".
            description: all that decides the result: text, numbers, dataclasses, and lists and
                dicts of such. Two results are the same if, and only if, their descriptions are
                equal.
            compute: called without arguments, and only where nothing is kept.
        """
        ...


def _computed(kind: str, description: dict, compute: Callable[[], dict[str, Tensor]]) -> dict:
    """Keeps nothing."""
    return compute()


def check_parties(keep: Keep | None, **networks: nn.Module) -> None:
    """Raise `AtsError` unless a search's networks are networks and `keep`, if there is one, can be
    called.
    """
    for name, network in networks.items():
        check_kind(f"search: {name}", network, nn.Module, "a torch.nn.Module")
    check_kind("search: keep", keep, Callable | None, "a function, or None")


@dataclass(frozen=True)
class Scorer:
    """Computes scores with the draws of `seed`, in shards of `size` policies, each of which `keep`
    may keep.
    """

    seed: int
    size: int
    keep: Keep | None
    progress: bool

    def __call__(
        self,
        score: str,
        model: nn.Module,
        images: Images,
        policies: Sequence[Policy],
        **options: object,
    ) -> np.ndarray:
        """The scores of all policies by a key of `SCORES`, (P,) or (P, images); `options` are that
        score's.
        """
        compute, version = SCORES[score]
        key = {"score": score, "seed": self.seed, "network": str(model), **options, **version}
        key["images"] = fingerprint(images.pixels, images.labels)
        key["model"] = fingerprint(*model.state_dict().values())

        keep = self.keep or _computed

        def scores(shard: Sequence[Policy]) -> Tensor:
            named = key | {"policies": [str(policy) for policy in shard]}
            made = keep(
                "score",
                named,
                lambda: {"scores": compute(model, images, shard, self.seed, **options)},
            )
            return made["scores"]

        shards = []
        with tqdm(
            total=len(policies), disable=not self.progress, unit="policy", desc=f"{score} scores"
        ) as bar:
            for low in range(0, len(policies), self.size):
                shards.append(scores(policies[low : low + self.size]).double().cpu())
                bar.update(len(policies[low : low + self.size]))
        return torch.cat(shards).numpy()


def attack_gains(
    model: nn.Module,
    images: Images,
    policy: Policy | Hybrid,
    attack: GradientMatching | Attack,
    *,
    seed: int,
) -> Tensor:
    """PSNR of an attack's reconstructions minus that of the mean image after the policy, in dB,
    (B,); lower is more private.

    The mean image (`mean_prepared` of all `images`) knows the policy, but neither the label nor
    what was drawn. It is a weaker guess than `measures.guesses.guess_knowing_draw`, so these gains are
    larger. Both PSNRs are against the transformed image: a policy that only makes its images
    darker, so that every guess scores less, gains nothing by it. Crops, flips and starts are the
    same for every policy.

    Args:
        model: in eval mode, as client and attacker run it.
        images: B of them, uint8.
    """
    images = images.to(next(model.parameters()).device)
    target = to_images(transformed(images, policy, seed=seed))
    attacked = reconstruct(observe(model, target, images.labels), attack, rng=rng(seed, "finals"))
    floor = (
        mean_prepared(images.pixels, policy, rng=rng(seed, "floor")).expand_as(target).contiguous()
    )
    return psnr(attacked.images, target) - psnr(floor, target)
