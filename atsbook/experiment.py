"""The experiment: how photographs become what clients send, what the server sees, what an attack
recovers of them, and what that is worth.

    attack = AttackRequest(model=net, policy="3-1-7", attack=annealed, first=0, last=100)
    outcomes = OutcomeRequest(attack=attack)

Whatever else looks at these photographs, a score or a table, takes what was drawn for them from
`drawn`: nothing else here draws.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from atsbook.attackers import FromMean, Learned, Undone
from atsbook.kept import Kept
from atsbook.networks import ModelRequest, dataset, trained
from atsbook.store import Store
from atslib import attacks
from atslib.attacks import GradientMatching, Reconstruction, reconstruct
from atslib.attacks.analytic import LastLayerAlone
from atslib.attacks.composed import Around
from atslib.attacks.starts import STARTS
from atslib.attacks.through_defense import BothImages, KeptEntries, KnownFeatures
from atslib.attacks.through_policy import ByForms, ThroughPolicy
from atslib.clients.observe import Knowledge, Observed, ThreatModel, observe
from atslib.clients.prepare import streams, to_images
from atslib.data.images import Images
from atslib.errors import AtsError
from atslib.measures.found import bits, match, match_sets, own_class, rank
from atslib.measures.frame import frame_psnr
from atslib.measures.guesses import guess_knowing_draw
from atslib.measures.identification import identification
from atslib.measures.metrics import mse, psnr, ssim
from atslib.models import normalization_layer
from atslib.policies.draws import Draw, draw
from atslib.rng import rng

TRACE = 26  # steps at most whose costs are kept of every attack
FRAMES = 11  # iterates kept of every attack, the first and the last among them
CANDIDATES = 100  # test images among which a reconstruction is to single out its own
MOST = 500  # training images of the class that the guess without a gradient is the mean of


# --- the photographs, and what is drawn for them ----------------------------------------------------------------------


def drawn(
    images: range, policy: str, *, seed: int, crop_flip: bool = True, number: int = 0
) -> Draw:
    """What is drawn for these test images: crop and flip, and the policy's member and signs.

    Crops and flips of one seed are the same for every policy, and so comparisons of policies are
    paired.

    Args:
        number: of the round. In each the policy draws anew, after the same crops and flips.
    """
    path = (number,) if number else ()
    both = streams(seed, policy)[0], streams(seed, policy, *path)[1]
    # From image 0 on, so that an image's draw is the same in any range.
    return draw(images.stop, policy, rng=both, crop_flip=crop_flip)[images.start : images.stop]


@dataclasses.dataclass(frozen=True)
class Clients:
    """Clients with one photograph each, before they send anything.

    Attributes:
        photographs: (B, C, H, W) uint8, as they are in the test set.
        labels: (B,).
        draws: what is drawn for them in each round.
    """

    photographs: Tensor
    labels: Tensor
    draws: tuple[Draw, ...]

    @property
    def cropped(self) -> Tensor:
        """The photographs after crop and flip, before the policy: (B, C, H, W) uint8."""
        return self.draws[0].cropped(self.photographs)

    def used(self, number: int = 0) -> Tensor:
        """What the network gets in a round, after crop, flip and policy: (B, C, H, W) uint8."""
        return self.draws[number].apply(self.photographs)


# --- the attack -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttackRequest(Kept):
    """What a server recovers of the test images `first` … `last` - 1, each behind a gradient of its
    own.

    Crops, flips and starts are the same for every policy, defense and attack of one seed, so that
    comparisons are paired. In each of several `rounds` the policy draws anew. With `every` each
    restart is looked at too.

    Its tensors: `reconstruction`, `target` and `original` (B, C, H, W) in [0, 1] (the last two
    uint8; `target` is what the client used in the first round), `labels`, `psnr`, `psnr_original`,
    `psnr_before` (against the image after crop and flip, before the policy), `mse`, `ssim`, `cost`,
    `stuck` and both of `ranks` (B,), `trace` (T, B) of at most 26 `trace_steps` (T,), `frames` (F, B,
    …); with `every` also `psnr_each`, `rank_each` (that of the target) and `cost_each` (restarts, B).
    """

    kind: ClassVar[str] = "attack"

    model: ModelRequest
    policy: str
    attack: (
        GradientMatching
        | ThroughPolicy
        | FromMean
        | Undone
        | Learned
        | KeptEntries
        | KnownFeatures
        | BothImages
        | LastLayerAlone
        | attacks.Attack
    )
    first: int
    last: int
    crop_flip: bool = True
    threat: ThreatModel = dataclasses.field(default_factory=ThreatModel)
    defense: str = ""
    frames: int = FRAMES
    seed: int = 0
    rounds: int = 1
    every: bool = False

    def __post_init__(self) -> None:
        own = dataclasses.is_dataclass(self.attack) and hasattr(self.attack, "run")
        if not own and not isinstance(self.attack, GradientMatching):
            raise AtsError(
                f"AttackRequest.attack={self.attack!r} must be a GradientMatching, or a frozen dataclass with a method run"
            )
        if not isinstance(self.attack, GradientMatching):  # two classes may have the same fields
            object.__setattr__(self, "kind", f"attack-{type(self.attack).__name__}")

    @property
    def title(self) -> str:
        """Policy, images and steps."""
        images = f"images {self.first}-{self.last - 1}"
        defended = f" and {self.defense}" if self.defense else ""
        seen = f", {self.rounds} rounds" if self.rounds > 1 else ""
        return f"{self.policy or 'no policy'}{defended}, {images}{seen}, {getattr(self.attack, 'title', self.kind)}"

    @property
    def passes(self) -> float:
        """Two nested gradients, seven passes, a step, image and round."""
        return 7 * getattr(self.attack, "evaluations", 1) * (self.last - self.first) * self.rounds

    @property
    def images(self) -> range:
        """Which test images are attacked."""
        return range(self.first, self.last)

    def clients(self) -> Clients:
        """Whose photographs are attacked."""
        test = dataset(self.model.dataset, "test")
        rows = slice(self.first, self.last)
        draws = tuple(self.drawn(self.policy, number) for number in range(self.rounds))
        return Clients(test.pixels[rows], test.labels[rows], draws)

    def drawn(self, policy: str, number: int = 0) -> Draw:
        """What is drawn for the attacked images under a policy, with the attack's seed."""
        return drawn(self.images, policy, seed=self.seed, crop_flip=self.crop_flip, number=number)

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Play the clients and the server that attacks them."""
        model, _ = trained(self.model, store, device)
        clients = self.clients()
        begin = starts(self, model)
        seen = observed(self, model, clients, device)
        made = reconstruct(
            seen,
            self.attack,
            rng=rng(self.seed, "labels", self.first),
            start=begin,
            frames=self.frames,
            keep_restarts=self.every,
            checkpoint=state,
            on_saved=store.check_time,
            progress=store.progress,
        )
        return measured(self, clients, made)


def observed(
    attack: AttackRequest, model: nn.Module, clients: Clients, device: torch.device
) -> Observed:
    """What the server sees of the clients in all rounds, and what it knows of their policy."""
    knows = [knowledge(attack, own) for own in clients.draws]
    rounds = []
    for number, known in enumerate(knows):
        path = (number,) if number else ()
        seen = observe(
            model,
            to_images(clients.used(number)).to(device),
            clients.labels.to(device),
            threat=attack.threat,
            defense=attack.defense,
            rng=rng(attack.seed, "defense", attack.defense, *path),
        )
        rounds.append(dataclasses.replace(seen, knows=known))
    return Observed.join(rounds)


def knowledge(attack: AttackRequest, own: Draw) -> Knowledge:
    """What the server knows of the policy, of which this was drawn in one round."""
    if attack.threat.defense == "unknown":
        return Knowledge()
    if attack.threat.defense == "policy" or not attack.policy:
        return Knowledge(attack.policy)
    return knowledge_of_draw(own)


def knowledge_of_draw(own: Draw) -> Knowledge:
    """What a server knows that was told what one round drew."""
    return Knowledge(str(own.policy), ((own.member.unsqueeze(1), own.signs.unsqueeze(1)),))


def starts(attack: AttackRequest, model: nn.Module) -> Tensor:
    """Where the attack begins, (restarts, B, C, H, W) in [0, 1] units; image i's is the same in any
    range.
    """
    shape = dataset(attack.model.dataset, "test").pixels.shape[1:]
    start = STARTS[getattr(attack.attack, "start", "normal")]
    normalize = normalization_layer(model)
    restarts = range(getattr(attack.attack, "restarts", 1))
    streams = [rng(attack.seed, "start", number) for number in restarts]
    every = [torch.stack([start(shape, g, normalize) for _ in range(attack.last)]) for g in streams]
    begin = torch.stack(every)[:, attack.first :]
    return normalize.inverse(begin.to(normalize.mean))


def measured(attack: AttackRequest, clients: Clients, made: Reconstruction) -> dict[str, Tensor]:
    """The tensors of an `AttackRequest`: what was recovered, beside what the clients have."""
    restarts = made.restarts if attack.every else ()
    first, *others = [ranks(attack, images.cpu()) for images in (made.images, *restarts)]
    device = made.images.device
    target, original, before = (
        pixels.to(device) for pixels in (clients.used(), clients.photographs, clients.cropped)
    )
    images = to_images(target)
    kept = torch.linspace(0, len(made.trace) - 1, min(TRACE, len(made.trace))).round().long()
    found = {
        "reconstruction": made.images,
        "target": target,
        "original": original,
        "labels": clients.labels,
        "cost": made.cost,
        "stuck": made.stuck,
        "trace": made.trace[kept.to(device)],
        "trace_steps": kept,
        "frames": made.frames,
        "psnr": psnr(made.images, images),
        "psnr_original": psnr(made.images, to_images(original)),
        "psnr_before": psnr(made.images, to_images(before)),
        **first,
        "mse": mse(made.images, images),
        "ssim": ssim(made.images, images),
    }
    if attack.every:
        found["psnr_each"] = torch.stack([psnr(own, images) for own in restarts])
        found["rank_each"] = torch.stack([own["rank_target"] for own in others])
        found["cost_each"] = torch.stack(list(made.costs))
    return found


def ranks(attack: AttackRequest, reconstructions: Tensor) -> dict[str, Tensor]:
    """Rank of each true image among 100 test images by similarity to its reconstruction, (B,); 1:
    it is identified.

    `rank_target` is among images as the clients would have transformed them, `rank_original` among
    untouched ones. The hundred is the one that the image belongs to, 0 … 99 or 100 … 199 and so on.
    """
    test = dataset(attack.model.dataset, "test").pixels
    found = {"rank_target": [], "rank_original": []}
    for low in range(attack.first - attack.first % CANDIDATES, attack.last, CANDIDATES):
        original = test[low : low + CANDIDATES]
        hundred = range(low, low + len(original))
        own = drawn(hundred, attack.policy, seed=attack.seed, crop_flip=attack.crop_flip)
        begin, end = max(low, attack.first), min(low + CANDIDATES, attack.last)
        rows = reconstructions[begin - attack.first : end - attack.first]
        truth = torch.arange(begin, end) - low
        target = to_images(own.apply(original))
        found["rank_target"].append(identification(rows, target, truth))
        found["rank_original"].append(identification(rows, to_images(original), truth))
    return {name: torch.cat(parts) for name, parts in found.items()}


# --- what that is worth -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutcomeRequest(Kept):
    """What an attack tells of the photographs, for a server that knows the policy.

    Its tensors (B,), an entry for each photograph:

    - `rank`: its place among 100 test images of its class by similarity, 1: found.
    - `bits`: what the reconstruction tells of it, up to 6.6; see `atslib.measures.found.bits`.
    - `psnr`: dB, against what the client used (or what it used before the policy, where the attack
      searches that).
    - `gain`: dB above the guess of somebody who knows label, policy and draw and sees no gradient.
    - `frame`: PSNR in dB of the photograph on the part that is in the frame.
    """

    kind: ClassVar[str] = "outcomes"

    attack: AttackRequest

    @property
    def model(self) -> ModelRequest:
        """The attacked network."""
        return self.attack.model

    @property
    def title(self) -> str:
        """That of the attack, and what is looked for."""
        return f"photographs found, {self.attack.title}"

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Compare what the attack recovered with the photographs."""
        return outcomes_of(self.attack, self.attack.make(store, device)["reconstruction"].cpu())


def outcomes_of(attack: AttackRequest, images: Tensor) -> dict[str, Tensor]:
    """The tensors of `OutcomeRequest` of what an attack recovered of the first of its photographs.

    Args:
        images: floats in [0, 1], (B, C, H, W), at most as many as the attack has photographs.
    """
    return outcomes_of_all([attack], [images])[0]


def outcomes_of_all(
    requests: Sequence[AttackRequest], images: Sequence[Tensor]
) -> list[dict[str, Tensor]]:
    """`outcomes_of` of several attacks, each with its images.

    What a policy makes of the candidates takes longer than to compare it with one reconstruction:
    attacks on the same photographs behind one policy are compared with it together.
    """
    together: dict[tuple, list[int]] = {}
    for number, (attack, own) in enumerate(zip(requests, images, strict=True)):
        photographs = (attack.model.dataset, attack.first, len(own), attack.crop_flip)
        together.setdefault((*photographs, policy_searched(attack)), []).append(number)
    found: dict[int, dict[str, Tensor]] = {}
    for (name, first, count, crop_flip, policy), numbers in together.items():
        test = dataset(name, "test")
        rows = torch.arange(first, first + count)
        candidates, _ = own_class(test.labels, rows)
        alike = match_sets(
            [images[number] for number in numbers],
            test.pixels,
            candidates,
            policy,
            crop_flip=crop_flip,
        )
        for number, (own_alike,) in zip(numbers, alike, strict=True):
            attack = requests[number]
            # All attacks on these photographs have one guess, which takes as long as the comparison
            guess = guessed(name, policy, first, first + count, attack.seed, crop_flip, most=MOST)
            found[number] = outcomes_of_photographs(
                name,
                rows,
                attack.drawn(policy)[:count],
                images[number],
                crop_flip=crop_flip,
                guess=guess,
                alike=own_alike,
            )
    return [found[number] for number in range(len(found))]


def outcomes_of_photographs(
    name: str,
    rows: Tensor,
    own: Draw,
    images: Tensor,
    *,
    crop_flip: bool = True,
    others: Images | None = None,
    guess: Tensor | None = None,
    alike: Tensor | None = None,
) -> dict[str, Tensor]:
    """The tensors of `OutcomeRequest` of what was recovered of these test images.

    Args:
        name: of the data set.
        rows: (B,) which of its test images.
        own: what was drawn for each.
        images: what was recovered, floats in [0, 1], (B, C, H, W).
        others: of which the guess without a gradient is made; None: the training images.
        guess: (B,) that guess's PSNR in dB where it is known.
        alike: (B, K, 1) what `match` says of these images where it is known.
    """
    test = dataset(name, "test")
    others = others or dataset(name, "train")
    candidates, truth = own_class(test.labels, rows)
    if alike is None:
        alike = match(images, test.pixels, candidates, own.policy, crop_flip=crop_flip)
    used = to_images(own.apply(test.pixels[rows]))
    if guess is None:
        mean = guess_knowing_draw(
            own, others.pixels, others.labels, labels=test.labels[rows], most=MOST
        )
        guess = psnr(mean, used)
    reached = psnr(images, used)
    return {
        "rank": rank(alike, truth),
        "bits": bits(alike, truth),
        "psnr": reached,
        "gain": reached - guess,
        "frame": frame_psnr(images, test.pixels[rows], own),
    }


def policy_searched(attack: AttackRequest) -> str:
    """The policy of what the attack searches: none where that is the image before it, after crop
    and flip, as with an attack that goes through the policy or undoes it, alone or inside another.
    """
    inner, before = attack.attack, False
    while inner is not None:
        before |= isinstance(inner, (ByForms, attacks.Undone))
        inner = inner.inner if isinstance(inner, Around) else None
    return "" if before else attack.policy


@functools.lru_cache(maxsize=256)
def guessed(
    name: str, policy: str, first: int, last: int, seed: int, crop_flip: bool, most: int = 100
) -> Tensor:
    """PSNR in dB of the guess of somebody who knows label, policy and draw, for test images `first`
    … `last` - 1 as the client used them, (B,).

    Args:
        most: training images of the class that the guess is the mean of.
    """
    test = dataset(name, "test")
    train = dataset(name, "train")
    rows = slice(first, last)
    own = drawn(range(first, last), policy, seed=seed, crop_flip=crop_flip)
    guess = guess_knowing_draw(own, train.pixels, train.labels, labels=test.labels[rows], most=most)
    return psnr(guess, to_images(own.apply(test.pixels[rows])))


def guess_of(attack: AttackRequest) -> Tensor:
    """`guessed` for the images that an attack is compared with, of its first round."""
    name = attack.model.dataset
    return guessed(name, attack.policy, attack.first, attack.last, attack.seed, attack.crop_flip)
