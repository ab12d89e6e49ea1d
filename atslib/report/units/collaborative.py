"""Units of federations: the accuracy of the global network, and attacks on what the server sees of every client."""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor, nn

from atslib.attacks import GradientMatching, reconstruct
from atslib.clients.federated.federation import Federation, taken, used
from atslib.clients.federated.rounds import accuracy, rounds
from atslib.clients.observed import Observed
from atslib.clients.prepare import mean_prepared, to_images
from atslib.measures.batches import align, label_share
from atslib.measures.identification import identification
from atslib.measures.metrics import psnr
from atslib.policies.policy import forms, parse_policy
from atslib.report.units.networks import ModelUnit, Unit
from atslib.rng import rng
from atslib.store import Artifact, Store

CANDIDATES = 100  # among which a reconstruction may single out its own image
TESTED = 1_000  # images by which the global network is tested


@dataclasses.dataclass(frozen=True, kw_only=True)
class FederationUnit:
    """A federation, its accuracy on the way, and attacks on all clients' answers in some rounds.

    Attributes:
        federation: with a `fraction` below 1: the network is tested on images that nobody has.
        measured: after how many rounds its accuracy is.
        attacked: which answers are attacked: those to the network after so many rounds, so that 0 is the first.
        attack: None where there are none.
    """

    kind: ClassVar[str] = "federation"

    federation: Federation
    measured: tuple[int, ...]
    attacked: tuple[int, ...] = ()
    attack: GradientMatching | None = None

    @property
    def model(self) -> ModelUnit:
        """The network with its first weights, by which costs are told."""
        f = self.federation
        return ModelUnit(dataset=f.dataset, model=f.model, fraction=1.0, train=None, seed=f.seed)

    @property
    def needs(self) -> tuple[Unit, ...]:
        """Nothing."""
        return ()

    @property
    def title(self) -> str:
        """Network, shards, what is shared and what is done against attacks."""
        f = self.federation
        shards, shared = f"Dirichlet {f.alpha:g}" if f.alpha else "equal shards", f"{f.kind} of {f.batch} images"
        return f"{f.model}, {f.clients} clients, {shards}, {shared}, {f.defense or 'no policy'}, seed {f.seed}"

    @property
    def passes(self) -> float:
        """Forward and backward of all answers, forward of all tests, and seven passes a step of an attack."""
        f = self.federation
        images = f.clients * f.batch
        steps = 7 * self.attack.evaluations * len(self.attacked) if self.attack else 0
        local = f.local.epochs if f.local else 1
        return images * (3 * local * f.rounds + steps) + TESTED * len(self.measured)

    def make(self, store: Store, device: torch.device) -> Artifact:
        """Run it, if it is not in the store."""
        return federated(self, store, device)


def federated(unit: FederationUnit, store: Store, device: torch.device) -> Artifact:
    """Run a federation and attack what its server sees.

    Tensors: `accuracy` (measured,) in percent. Of the attacks (attacked, clients · batch), one client after the other:
    `psnr`, `floor`, the PSNR of the mean image after the policy, both in dB, ranks among 100 of the used image,
    `rank_target`, of the photograph, `rank_original`, and of the photograph for a server that knows the policy,
    `rank_knowing`; `label` and `named`, whether the label was restored.
    """

    def compute(state: object) -> dict[str, Tensor]:
        f, tests, found = unit.federation, unit.federation.held_out()[:TESTED], []
        measured = []
        for past, (model, seen) in enumerate(rounds(f)):
            if past in unit.measured:
                measured.append(accuracy(model, tests))
            if past in unit.attacked:
                found.append(_attacked(unit, model.to(device), seen, past))
        parts = {name: torch.stack([each[name] for each in found]) for name in found[0]} if found else {}
        return {"accuracy": torch.tensor(measured)} | parts

    return store.get(unit.kind, unit, compute, label=unit.title)


def joined(seen: list[Observed]) -> Observed:
    """The answers of several clients in one round as one view, of which each problem is attacked by itself."""
    first = seen[0].updates[0]
    rows = torch.cat([each.updates[0].gradients for each in seen])
    return dataclasses.replace(seen[0], updates=(dataclasses.replace(first, gradients=rows),))


def _attacked(unit: FederationUnit, model: nn.Module, seen: list[Observed], past: int) -> dict[str, Tensor]:
    f, number = unit.federation, past + 1
    pixels, labels = (
        torch.stack(parts) for parts in zip(*(taken(f, c, number) for c in range(f.clients)), strict=True)
    )
    truth = to_images(torch.stack([used(f, client, number) for client in range(f.clients)]))
    result = reconstruct(joined(seen), unit.attack, rng=rng(f.seed, "attack", past))
    made, told = result.images.cpu().view_as(truth), result.labels.cpu()
    pairs = [align(*each) for each in zip(made, truth, labels, told, strict=True)]
    images = torch.stack([own[pair] for own, pair in zip(made, pairs, strict=True)]).flatten(0, 1)
    floor = _floor(f).expand_as(images).contiguous()
    kept = {"psnr": psnr(images, truth.flatten(0, 1)), "floor": psnr(floor, truth.flatten(0, 1))}
    named = label_share(told, labels) if f.batch == 1 else label_share(told, labels).repeat_interleave(f.batch)
    kept |= _ranks(f, images, pixels.flatten(0, 1), truth.flatten(0, 1))
    return kept | {"label": labels.flatten().short(), "named": named}


def _floor(federation: Federation) -> Tensor:
    """The best guess of a server that knows the policy and sees no gradient, (1, C, H, W)."""
    f, stream = federation, rng(0, "floor", federation.dataset, federation.defense)
    return mean_prepared(f.held_out().pixels, parse_policy(f.defense), rng=stream, crop_flip=f.crop_flip)


def _ranks(federation: Federation, images: Tensor, pixels: Tensor, truth: Tensor) -> dict[str, Tensor]:
    """Ranks of the true images among those of the round and others that nobody has, 100 in all."""
    others, which = federation.held_out().pixels[-max(2, CANDIDATES - len(pixels)) :], torch.arange(len(pixels))
    policy, hundred = parse_policy(federation.defense), torch.cat([pixels, others])
    drawn = policy.apply_draw(others, *policy.draw(len(others), rng=rng(0, "candidates", federation.defense)))
    return {
        "rank_target": identification(images, torch.cat([truth, to_images(drawn)]), which),
        "rank_original": identification(images, to_images(hundred), which),
        "rank_knowing": identification(images, to_images(forms(policy, hundred)), which),
    }
