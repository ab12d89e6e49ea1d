"""What a federation trains, and what one of its clients answers in one round."""

import dataclasses
import functools
from pathlib import Path

import torch
from torch import Tensor, nn

from atsfed.shards import dirichlet_shards, equal_shards
from atslib.clients.defenses.defense import Transformation, own_defense
from atslib.clients.observe import observe
from atslib.clients.prepare import to_images, transform
from atslib.clients.updates import LocalTraining, observe_weights
from atslib.clients.view import Observed, ThreatModel
from atslib.data.folder import load_folder
from atslib.data.load import DATASETS, Images, load, measured_normalization, normalization
from atslib.errors import AtsError, check_most, check_types, choose
from atslib.models import build_model, named_model, starting_with
from atslib.named import is_own
from atslib.rng import rng


@dataclasses.dataclass(frozen=True, kw_only=True)
class Federation:
    """Everything that decides a run: two runs of one federation give the same weights, wherever
    their clients are.

    Attributes:
        dataset: a name for `load`, or a folder for `load_folder`.
        model: a name for `build_model`, or file.py:name of a network.
        split: of the data set, whose images are dealt out: "train" or "test".
        victim: as of `ThreatModel`. In "eval" mode an untrained network with batch normalization
            does not learn; in "train" mode each client uses its own batch's statistics, which it
            does not share.
        clients: participants; each answers in every round.
        alpha: of the Dirichlet distribution by which classes are dealt out, each client at least
            `batch` images; 0: shards of equal size, where a client with fewer than `batch` answers
            with all it has.
        rounds: how often the server sends its weights and gets answers.
        batch: images of one answer, drawn anew in each round; 0: all that a client has.
        lr: of the server's step along the mean gradient; of a local training it is
            `LocalTraining.lr`.
        local: training of each client before it answers (FedAvg); None: one gradient (FedSGD).
        defense: text of a `Defense`, which every client applies, or file.py:name; with local
            training a policy, or none.
        crop_flip: random crop and flip of each image, before the defense.
        fraction: share of the split that is dealt out, in (0, 1].
        seed: of weights, shards, batches and all draws.
        image_size: side of a folder's images.
    Raises:
        AtsError: a defense that is unknown, or that local training does not take; a number out of
            range.
    """

    dataset: str = "cifar10"
    model: str = "convnet-16"
    split: str = "train"
    victim: str = "train"
    clients: int = 10
    alpha: float = 0.0
    rounds: int = 1
    batch: int = 0
    lr: float = 0.1
    local: LocalTraining | None = None
    defense: str = ""
    crop_flip: bool = False
    fraction: float = 1.0
    seed: int = 0
    image_size: int = 32

    def __post_init__(self) -> None:
        check_types(self)
        choose("Federation.split", self.split, ("train", "test"))
        choose("Federation.victim", self.victim, ("eval", "train"))
        for field, least in (("clients", 1), ("rounds", 1), ("batch", 0)):
            if getattr(self, field) < least:
                raise AtsError(
                    f"Federation.{field}={getattr(self, field)} must be at least {least}"
                )
        check_most(self, rounds=1_000_000)
        if self.alpha < 0 or not self.lr > 0 or not 0 < self.fraction <= 1:
            raise AtsError(f"{self}: alpha must be at least 0, lr above 0, fraction in (0, 1]")
        parts = own_defense(self.defense).parts
        if self.local and not all(isinstance(part, Transformation) for part in parts):
            raise AtsError(
                f"Federation.defense={self.defense!r}: with local training it must be a policy, or none"
            )

    @property
    def kind(self) -> str:
        """What a client shares, of `Update.kind`: a "gradient", or the "difference" that its
        training made.
        """
        return "difference" if self.local else "gradient"

    def threat(self, images: int) -> ThreatModel:
        """What the server knows of an answer of so many images: no labels, no statistics of their
        batch.
        """
        statistics = "known" if self.victim == "eval" else "unknown"
        return ThreatModel(
            labels="restored", batch=images, victim=self.victim, batch_norm=statistics
        )

    @property
    def most(self) -> int:
        """The largest number of images that one answer can be of."""
        return self.batch or len(_dealt(self)[1])

    def network(self) -> nn.Sequential:
        """The network with its first weights, as all participants know it."""
        images = _whole(self.dataset, self.split, self.image_size)
        channels, size = images.pixels.shape[1:3]
        norm = self.dataset
        if norm not in DATASETS:
            norm = measured_normalization(_whole(self.dataset, "train", self.image_size))
        if is_own(self.model):
            constants = normalization(norm) if isinstance(norm, str) else norm
            return starting_with(named_model(self.model, images, self.seed), constants)
        stream = rng(self.seed, "weights", self.model)
        return build_model(
            self.model, images.num_classes, channels, norm=norm, image_size=size, rng=stream
        )

    def shard(self, client: int) -> Images:
        """The images of one client, a number from 0 to `clients` - 1."""
        if not 0 <= client < self.clients:
            raise AtsError(f"client {client} is none of {self.clients}; they are numbered from 0")
        return _dealt(self)[0][client]

    def held_out(self) -> Images:
        """The images of the split that no client has; none if `fraction` is 1."""
        return _dealt(self)[2]


@functools.lru_cache(maxsize=4)
def _whole(name: str, split: str, size: int) -> Images:
    if Path(name).is_dir():
        return load_folder(name, size=size)[split == "test"]
    return load(name, split)


def _dealt(federation: Federation) -> tuple[tuple[Images, ...], Images, Images]:
    """The clients' images, those of all together, and the others."""
    f = federation
    least = max(1, f.batch) if f.alpha else 1
    return _dealt_out(
        f.dataset, f.split, f.image_size, f.fraction, f.clients, f.alpha, least, f.seed
    )


@functools.lru_cache(maxsize=4)
def _dealt_out(
    dataset: str,
    split: str,
    size: int,
    fraction: float,
    clients: int,
    alpha: float,
    least: int,
    seed: int,
) -> tuple[tuple[Images, ...], Images, Images]:
    """`_dealt` of all federations that share these: the copies of fifty thousand images are made
    once for them.
    """
    stream = rng(seed, "shards")
    dealt, rest = _whole(dataset, split, size).split_off(fraction, rng=rng(seed, "subset"))
    if alpha:
        shards = dirichlet_shards(dealt.labels, clients, alpha=alpha, rng=stream, least=least)
    else:
        shards = equal_shards(dealt.labels, clients, rng=stream)
    return tuple(dealt[rows] for rows in shards), dealt, rest


def chosen(federation: Federation, client: int, number: int) -> tuple[Images, torch.Generator]:
    """The images of a client's answer in a round as they are before crop and flip, and the stream
    from which these are drawn next.
    """
    shard = federation.shard(client)
    stream = rng(federation.seed, "round", client, number)
    rows = torch.randperm(len(shard), generator=stream)[: federation.batch or None]
    return shard[rows], stream


def taken(federation: Federation, client: int, number: int) -> tuple[Tensor, Tensor]:
    """Pixels (B, C, H, W) uint8 and labels (B,) of a client's answer in a round, before its
    defense.
    """
    images, stream = chosen(federation, client, number)
    pixels = transform(images.pixels, "", rng=stream, crop_flip=federation.crop_flip)
    return pixels, images.labels


def used(federation: Federation, client: int, number: int) -> Tensor:
    """What a client's network gets in a round: `taken` after the policy of its defense, (B, C, H,
    W) uint8.
    """
    pixels = taken(federation, client, number)[0]
    stream = rng(federation.seed, "defense", client, number)
    for part in own_defense(federation.defense).parts:
        pixels = part.before(pixels, rng=stream)
    return pixels


def answer(federation: Federation, model: nn.Module, client: int, number: int) -> Observed:
    """What a client makes of the weights that it was sent in a round: all that leaves it.

    Args:
        model: with the server's weights; not changed.
        client: its number, from 0.
        number: of the round, from 1.
    Returns:
        One update of one gradient, or difference of weights; the labels are not in it.
    """
    pixels, labels = taken(federation, client, number)
    threat = federation.threat(len(labels))
    if federation.local is None:
        stream = rng(federation.seed, "defense", client, number)
        defense = own_defense(federation.defense)
        return observe(model, to_images(pixels), labels, threat=threat, defense=defense, rng=stream)
    images = to_images(used(federation, client, number))
    order = rng(federation.seed, "order", client, number)
    return observe_weights(model, images, labels, local=federation.local, rng=order, threat=threat)
