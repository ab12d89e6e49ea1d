"""Requests of federations: the accuracy of the global network, and attacks on what the server sees of
every client.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from atsbook.kept import Kept
from atsbook.networks import ModelRequest
from atsbook.requests.outcomes import OfAttacks
from atsbook.store import Store
from atsfed.federation import Federation, chosen, taken, used
from atsfed.peers import as_seen, exchange, ring
from atsfed.rounds import accuracy, rounds
from atslib.attacks import GradientMatching, reconstruct
from atslib.clients.prepare import mean_prepared, to_images
from atslib.clients.sums import summed
from atslib.clients.view import Observed
from atslib.errors import choose
from atslib.measures.batches import align, label_share
from atslib.measures.found import match, own_class
from atslib.measures.frame import frame_psnr
from atslib.measures.guesses import guess_knowing_draw
from atslib.measures.identification import identification
from atslib.measures.metrics import psnr
from atslib.policies.draws import Draw, draw
from atslib.policies.policy import forms, parse_policy
from atslib.rng import rng

CANDIDATES = 100  # among which a reconstruction may single out its own image
VIEWS = ("server", "sum", "neighbour")
TESTED = 1_000  # images by which the global network is tested


class OnFederation(Kept):
    """A request for something of a federation, its field `federation`."""

    federation: Federation

    @property
    def model(self) -> ModelRequest:
        """The network with its first weights, by which costs are told."""
        f = self.federation
        return ModelRequest(dataset=f.dataset, model=f.model, fraction=1.0, train=None, seed=f.seed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FederationRequest(OnFederation):
    """A federation, its accuracy on the way, and attacks on all clients' answers in some rounds.

    Attributes:
        federation: with a `fraction` below 1: the network is tested on images that nobody has.
        measured: after how many rounds its accuracy is.
        attacked: which answers are attacked: those to the network after so many rounds, so that 0
            is the first.
        attack: None where there are none.
        view: who looks. "server": every client's answer. "sum": a server that gets the sum of all
            answers and nothing else. "neighbour": without a server, on a ring, each participant's
            answer as the next one sees it, whose own network it takes for the sender's; the
            accuracy is then the mean of all participants'.

    Its tensors: `accuracy` (measured,) in percent. Of the attacks (attacked, clients · batch), one
    client after the other: `psnr`, `floor`, the PSNR of the mean image after the policy, both in
    dB, ranks among 100 of the used image, `rank_target`, of the photograph, `rank_original`, and of
    the photograph for a server that knows the policy, `rank_knowing`; `label` and `named`, whether
    the label was restored.
    """

    kind: ClassVar[str] = "federation"

    federation: Federation
    measured: tuple[int, ...]
    attacked: tuple[int, ...] = ()
    attack: GradientMatching | None = None
    view: str = "server"

    def __post_init__(self) -> None:
        choose("FederationRequest.view", self.view, VIEWS)

    @property
    def title(self) -> str:
        """Network, shards, what is shared and what is done against attacks."""
        f = self.federation
        shards = f"Dirichlet {f.alpha:g}" if f.alpha else "equal shards"
        shared = f"{f.kind} of {f.batch} images"
        who = "" if self.view == "server" else f", seen as {self.view}"
        return f"{f.model}, {f.clients} clients, {shards}, {shared}, {f.defense or 'no policy'}, seed {f.seed}{who}"

    @property
    def passes(self) -> float:
        """Forward and backward of all answers, forward of all tests, and seven passes a step of an
        attack.
        """
        f = self.federation
        images = f.clients * f.batch
        steps = 7 * self.attack.evaluations * len(self.attacked) if self.attack else 0
        local = f.local.epochs if f.local else 1
        return images * (3 * local * f.rounds + steps) + TESTED * len(self.measured)

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Run the federation, and attack what is seen of it."""
        tests = self.federation.held_out()[:TESTED]
        measured = []
        found = []
        for past, (networks, seen) in enumerate(_history(self)):
            if past in self.measured:
                measured.append(sum(accuracy(model, tests) for model in networks) / len(networks))
            if past in self.attacked:
                found.append(_attacked(self, seen(), past))
        names = found[0] if found else ()
        parts = {name: torch.stack([each[name] for each in found]) for name in names}
        return {"accuracy": torch.tensor(measured)} | parts


def _history(
    request: FederationRequest,
) -> Iterator[tuple[list[nn.Module], Callable[[], list[Observed]]]]:
    """Each round's networks, and how to get what whoever looks sees of it, all that is attacked in
    one.
    """
    f = request.federation
    if request.view == "neighbour":
        for networks, sent in exchange(f, ring(f.clients)):
            after = networks[1:] + networks[:1]
            yield (
                networks,
                lambda s=sent, a=after: [as_seen(*each) for each in zip(s, a, strict=True)],
            )
    else:
        for model, sent in rounds(f):
            yield (
                [model],
                lambda s=sent: [Observed.beside(s) if request.view == "server" else summed(s)],
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FederationOutcomes(OfAttacks):
    """What the attacks on a federation tell of the photographs.

    Its tensors (attacked, clients · batch), one client after the other: `psnr` in dB against what
    the client used; `gain`, dB above the guess of somebody who knows label, policy and draw, and
    has the images that no client has; `frame`, PSNR in dB of the photograph on the part that is in
    the frame. `alike` (attacked, clients · batch, 100): how alike the reconstruction is to the
    photograph and to others of its class, for a server that knows the policy; `truth`, which of
    these is the photograph. Bits and ranks are made of them by `atslib.measures.found`, over
    federations of several seeds.
    """

    kind: ClassVar[str] = "federation-outcomes"

    attacks: FederationRequest

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Run the federation, attack, and look."""
        attacks = self.attacks
        found = [
            _outcomes(attacks, seen(), past)
            for past, (_, seen) in enumerate(_history(attacks))
            if past in attacks.attacked
        ]
        return {name: torch.stack([each[name] for each in found]) for name in found[0]}


def _outcomes(request: FederationRequest, seen: list[Observed], past: int) -> dict[str, Tensor]:
    f = request.federation
    images, truth, _, _ = _recovered(request, seen, past)
    parts = [photographs(f, client, past + 1) for client in range(f.clients)]
    pixels, labels = (torch.cat([part[k] for part in parts]) for k in range(2))
    others = f.held_out()
    candidates, place = own_class(torch.cat([labels, others.labels]), range(len(pixels)))
    everything = torch.cat([pixels, others.pixels])
    policy = parse_policy(f.defense)
    alike = match(images, everything, candidates, policy, crop_flip=f.crop_flip)
    rows = [len(part[0]) for part in parts]
    guess = torch.cat(
        [
            guess_knowing_draw(drawn, others.pixels, others.labels, labels=own)
            for _, own, drawn in parts
        ]
    )
    reached = psnr(images, truth)
    framed = [
        frame_psnr(made, own, drawn)
        for made, (own, _, drawn) in zip(images.split(rows), parts, strict=True)
    ]
    return {
        "alike": alike.squeeze(2),
        "truth": place,
        "psnr": reached,
        "gain": reached - psnr(guess, truth),
        "frame": torch.cat(framed),
    }


def photographs(federation: Federation, client: int, number: int) -> tuple[Tensor, Tensor, Draw]:
    """Pixels (B, C, H, W) uint8 and labels (B,) of a client's answer in a round as they are before
    crop and flip, and what is drawn for them; what the draws make of them is `used`.
    """
    f = federation
    images, stream = chosen(f, client, number)
    both = stream, rng(f.seed, "defense", client, number)
    drawn = draw(len(images), f.defense, rng=both, crop_flip=f.crop_flip)
    return images.pixels, images.labels, drawn


def _recovered(
    request: FederationRequest, seen: list[Observed], past: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the attack recovers, beside what clients used, (clients · batch, C, H, W) each; the true
    labels, and the share of them that is restored.
    """
    f = request.federation
    number = past + 1
    stream = rng(request.federation.seed, "attack", past)
    size = seen[0].threat.batch
    labels = torch.cat([taken(f, client, number)[1] for client in range(f.clients)])
    truth = to_images(
        torch.cat([used(f, client, number) for client in range(f.clients)])
    ).unflatten(0, (-1, size))
    results = [reconstruct(each, request.attack, rng=stream) for each in seen]
    made, told = (
        torch.cat([getattr(one, name).cpu() for one in results]) for name in ("images", "labels")
    )
    made = made.view_as(truth)
    named = labels.view_as(told)
    pairs = [align(*each) for each in zip(made, truth, named, told, strict=True)]
    images = torch.stack([own[pair] for own, pair in zip(made, pairs, strict=True)]).flatten(0, 1)
    return images, truth.flatten(0, 1), labels, label_share(told, named).repeat_interleave(size)


def _attacked(request: FederationRequest, seen: list[Observed], past: int) -> dict[str, Tensor]:
    f = request.federation
    images, truth, labels, named = _recovered(request, seen, past)
    pixels = torch.cat([taken(f, client, past + 1)[0] for client in range(f.clients)])
    floor = _floor(f).expand_as(images).contiguous()
    kept = {"psnr": psnr(images, truth), "floor": psnr(floor, truth)}
    kept |= _ranks(f, images, pixels, truth)
    return kept | {"label": labels.short(), "named": named}


@functools.lru_cache(maxsize=16)
def _floor(federation: Federation) -> Tensor:
    """The best guess of a server that knows the policy and sees no gradient, (1, C, H, W)."""
    f = federation
    stream = rng(0, "floor", federation.dataset, federation.defense)
    return mean_prepared(
        f.held_out().pixels, parse_policy(f.defense), rng=stream, crop_flip=f.crop_flip
    )


def _ranks(
    federation: Federation, images: Tensor, pixels: Tensor, truth: Tensor
) -> dict[str, Tensor]:
    """Ranks of the true images among those of the round and others that nobody has, 100 in all."""
    others = federation.held_out().pixels[-max(2, CANDIDATES - len(pixels)) :]
    which = torch.arange(len(pixels))
    policy = parse_policy(federation.defense)
    hundred = torch.cat([pixels, others])
    drawn = policy.apply_draw(
        others, *policy.draw(len(others), rng=rng(0, "candidates", federation.defense))
    )
    return {
        "rank_target": identification(images, torch.cat([truth, to_images(drawn)]), which),
        "rank_original": identification(images, to_images(hundred), which),
        "rank_knowing": identification(images, to_images(forms(policy, hundred)), which),
    }
