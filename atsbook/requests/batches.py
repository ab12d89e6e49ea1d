"""Requests of gradients of several images: labels restored from them; attacks on batches, rounds and
local training.
"""

import copy
import dataclasses
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from atsbook.experiment import outcomes_of_photographs
from atsbook.kept import Kept
from atsbook.networks import ModelRequest, dataset, trained
from atsbook.requests.outcomes import OfAttacks
from atsbook.store import Store
from atslib.attacks import GradientMatching, reconstruct, restore_labels
from atslib.attacks.labels import RULES
from atslib.attacks.starts import STARTS
from atslib.clients.observe import Observed, ThreatModel, observe
from atslib.clients.prepare import to_images
from atslib.clients.updates import LocalTraining, observe_weights, trained_weights
from atslib.errors import AtsError, choose
from atslib.measures.batches import align, label_share
from atslib.measures.identification import identification, similarity
from atslib.measures.metrics import mse, psnr, ssim
from atslib.models import normalization_layer
from atslib.policies.draws import draw
from atslib.rng import rng

HEADS = ("", "signed", "without bias")
CANDIDATES = 100  # among which a reconstruction may single out its own image
APART = 512  # images at the end of the test set, of other clients: never in a batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches:
    """Which test images share gradients: `count` batches of `size`, drawn by `seed`, whatever is
    done to them.

    Each label occurs `amount` times, or one of them `repetition` times more than the others, which
    occur once.
    """

    size: int
    count: int
    amount: int = 1
    repetition: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if (
            self.size % self.amount
            or (self.repetition and self.amount > 1)
            or self.repetition >= self.size
        ):
            raise AtsError(
                f"{self}: a batch is of whole groups of one label, or of one repeated label and single ones"
            )

    @property
    def images(self) -> int:
        """In all batches."""
        return self.size * self.count

    def rows(self, labels: Tensor, classes: int) -> Tensor:
        """Test images by number, (count, size).

        Raises:
            AtsError: a batch wants more labels than there are classes.
        """
        groups = [self.repetition + 1] if self.repetition else []
        groups += [self.amount] * ((self.size - sum(groups)) // self.amount)
        if len(groups) > classes:
            raise AtsError(
                f"{self} has {len(groups)} different labels, and there are {classes} classes"
            )
        stream = rng(self.seed, "batches", *groups)
        by_class = labels[:-APART]
        own = [(by_class == c).nonzero().flatten() for c in range(classes)]

        def batch() -> Tensor:
            chosen = torch.randperm(classes, generator=stream).tolist()
            drawn = [
                own[c][torch.randperm(len(own[c]), generator=stream)[:n]]
                for c, n in zip(chosen, groups, strict=False)
            ]
            return torch.cat(drawn)

        return torch.stack([batch() for _ in range(self.count)])


def chosen(name: str, batches: Batches) -> tuple[Tensor, Tensor]:
    """Pixels (images, C, H, W) uint8 and labels (images,) of all batches, one after the other."""
    images = dataset(name, "test")
    rows = batches.rows(images.labels, images.num_classes).flatten()
    return images.pixels[rows], images.labels[rows]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelRequest(Kept):
    """The labels of batches, restored by every rule that allows such a batch.

    `head` changes the network: "signed" has tanh for its activations, "without bias" a last layer
    of weights alone.

    Its tensors: `labels` (count, size) and by rule those restored, `told_<rule>`, int16, and their
    share, `share_<rule>` (count,).
    """

    kind: ClassVar[str] = "labels"

    model: ModelRequest
    batches: Batches
    defense: str = ""
    head: str = ""

    def __post_init__(self) -> None:
        choose("LabelRequest.head", self.head, HEADS)

    @property
    def title(self) -> str:
        """Batches, and what is done to them."""
        where = ", ".join(filter(None, (self.model.title, self.defense, self.head)))
        return f"labels of {self.batches.count} batches of {self.batches.size}, {where}"

    @property
    def passes(self) -> float:
        """Forward, and backward for each image."""
        return 4 * self.batches.images

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Observe the batches, and restore their labels by each rule."""
        model = with_head(trained(self.model, store, device)[0], self.head)
        pixels, labels = chosen(self.model.dataset, self.batches)
        size = self.batches.size
        stream = rng(self.batches.seed, "defense", self.defense)
        classes = dataset(self.model.dataset, "test").num_classes
        threat = ThreatModel(labels="restored", batch=size)
        allowed = {"idlg": size == 1, "minima": size <= classes}
        parts: dict[str, list[Tensor]] = {rule: [] for rule in RULES if allowed.get(rule, True)}
        for part in torch.arange(len(labels)).split(size * max(1, 512 // size)):
            images = to_images(pixels[part]).to(device)
            seen = observe(
                model, images, labels[part], threat=threat, defense=self.defense, rng=stream
            )
            for rule, found in parts.items():
                dummy = rng(self.batches.seed, "dummy data")
                found.append(restore_labels(seen, rng=dummy, rule=rule).cpu())
        true = labels.unflatten(0, (-1, size))
        restored = {rule: torch.cat(found) for rule, found in parts.items()}
        return {
            "labels": true.short(),
            **{f"told_{rule}": own.short() for rule, own in restored.items()},
            **{f"share_{rule}": label_share(own, true) for rule, own in restored.items()},
        }


def with_head(model: nn.Module, head: str) -> nn.Module:
    """A copy of the network as `LabelRequest.head` says."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if head == "signed" and isinstance(layer, nn.Sigmoid | nn.ReLU):
                setattr(parent, name, nn.Tanh())
    if head == "without bias":
        [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1].bias = None
    return model


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchRequest(Kept):
    """An attack on gradients of batches, or on what local training left.

    Attributes:
        rule: by which labels are restored, a key of `RULES`; "" for known ones.
        rounds: in which the same batches are seen, each of a network one step of other clients
            further.
        defense: of the clients, drawn anew in each round.
        local: training before anything is sent; None for a gradient.

    Its tensors are of reconstructions beside the images that they belong to (`align`, which needs
    the truth): `reconstruction` (B, C, H, W) in [0, 1] and `target` uint8, `labels` and `told`, the
    restored ones (count, size), `share`, `cost` (count,), and those of `outcomes` and of
    `at_random`, which older ones lack.
    """

    kind: ClassVar[str] = "batches"

    model: ModelRequest
    attack: GradientMatching
    batches: Batches
    rule: str = ""
    rounds: int = 1
    defense: str = ""
    local: LocalTraining | None = None

    @property
    def title(self) -> str:
        """Batches, rounds and attack."""
        local = f", {self.local.epochs} epochs" if self.local else ""
        where = f"{self.model.dataset}, {self.batches.count} batches of {self.batches.size}, {self.rounds} rounds{local}"
        return f"{where}, {self.attack.title}"

    @property
    def passes(self) -> float:
        """Two nested gradients, seven passes, a step, image and round or local step."""
        steps = (
            self.local.steps(self.batches.size)
            if self.local and self.attack.unroll
            else self.rounds
        )
        return 7 * self.attack.evaluations * self.batches.images * steps

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Attack the batches, and hold what is recovered beside the images."""
        model, _ = trained(self.model, store, device)
        pixels, labels = chosen(self.model.dataset, self.batches)
        size = self.batches.size
        seen = _seen(self, model, to_images(pixels).to(device), labels.to(device))
        true = labels.unflatten(0, (-1, size))
        if self.rule:
            dummy = rng(self.batches.seed, "dummy data")
            seen = dataclasses.replace(seen, labels=restore_labels(seen, rng=dummy, rule=self.rule))
        found = reconstruct(
            seen,
            self.attack,
            rng=rng(self.batches.seed, "attack"),
            start=_starts(self, seen),
            checkpoint=state,
            on_saved=store.check_time,
            progress=store.progress,
        )
        truth = to_images(pixels).unflatten(0, (-1, size))
        made = found.images.cpu().view_as(truth)
        used = seen.labels.cpu()
        pairs = [align(*each) for each in zip(made, truth, true, used, strict=True)]
        ordered = torch.stack([images[pair] for images, pair in zip(made, pairs, strict=True)])
        others = to_images(dataset(self.model.dataset, "test").pixels[-APART:])
        return {
            **outcomes(ordered, truth, true, others),
            **at_random(ordered, truth),
            "reconstruction": ordered.flatten(0, 1),
            "target": pixels,
            "labels": true,
            "told": used,
            "cost": found.cost,
            "share": label_share(used, true),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchOutcomes(OfAttacks):
    """What an attack on batches tells of the photographs.

    The clients neither crop nor flip, and have no policy: photographs are used as they are. Its
    tensors (images of all batches,) are those of `OutcomeRequest`. Which reconstruction is of which
    photograph, `align` says, which knows the truth. The guess without a gradient is the mean of the
    class over the test images that are in none of the batches.
    """

    kind: ClassVar[str] = "batch-outcomes"

    attacks: BatchRequest

    def __post_init__(self) -> None:
        if self.attacks.defense:
            raise AtsError(
                f"BatchOutcomes: the clients have {self.attacks.defense!r}; only attacks on photographs "
                "as they are have these outcomes"
            )

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Attack, and look."""
        attacks = self.attacks
        name = attacks.model.dataset
        test = dataset(name, "test")
        rows = attacks.batches.rows(test.labels, test.num_classes).flatten()
        apart = torch.ones(len(test), dtype=torch.bool)
        apart[rows] = False
        made = attacks.compute(store, device, state)["reconstruction"]
        as_they_are = draw(len(rows), rng=0, crop_flip=False)
        return outcomes_of_photographs(
            name, rows, as_they_are, made, crop_flip=False, others=test[apart]
        )


def outcomes(made: Tensor, truth: Tensor, labels: Tensor, others: Tensor) -> dict[str, Tensor]:
    """What reconstructions (count, size, C, H, W), in the order of their images `truth`, are worth;
    one of each image.

    `psnr`, `mse`, `ssim`; `floor`, the PSNR of the mean image of other clients, a guess that needs
    no gradient; `rank` of its own image among those of the batch and others, 100 in all, by
    `similarity` without shifts; and `within`: whether it is more like its own image than like any
    other of its label.
    """
    flat = made.flatten(0, 1)
    images = truth.flatten(0, 1)
    size = made.shape[1]
    rank = []
    within = []
    for one, own, named in zip(made, truth, labels, strict=True):
        alike = similarity(one, own, shift=0).nan_to_num(nan=-torch.inf)
        alike = alike.masked_fill(named[:, None] != named, -torch.inf)
        within.append(alike.argmax(1) == torch.arange(size))
        candidates = torch.cat([own, others[: max(2, CANDIDATES - size)]])
        rank.append(identification(one, candidates, torch.arange(size), shift=0))
    return {
        "psnr": psnr(flat, images),
        "mse": mse(flat, images),
        "ssim": ssim(flat, images),
        "floor": psnr(others.mean(0).expand_as(images), images),
        "rank": torch.cat(rank),
        "within": torch.cat(within),
    }


def at_random(made: Tensor, truth: Tensor, times: int = 100) -> dict[str, Tensor]:
    """What reconstructions are worth that are assigned to images at random: `psnr_random` (1,
    times), the mean of each.

    So much they tell of all images together, and not of one.
    """
    flat = made.flatten(0, 1)
    images = truth.flatten(0, 1)
    stream = rng(0, "random assignments")
    orders = [torch.randperm(len(flat), generator=stream) for _ in range(times)]
    return {
        "psnr_random": torch.stack([psnr(flat[order], images).mean() for order in orders])[None]
    }


def _starts(request: BatchRequest, seen: Observed) -> Tensor:
    """Where each image begins, in [0, 1] units: the same for every attack of one kind of start."""
    normalize = normalization_layer(seen.updates[0].model)
    stream = rng(request.batches.seed, "start")
    drawn = [
        STARTS[request.attack.start](seen.shape, stream, normalize)
        for _ in range(request.batches.images)
    ]
    return normalize.inverse(torch.stack(drawn).to(normalize.mean))


def _seen(request: BatchRequest, model: nn.Module, images: Tensor, labels: Tensor) -> Observed:
    """What the server saw of the batches in all rounds."""
    threat = ThreatModel(batch=request.batches.size)
    if request.local:
        return observe_weights(
            model, images, labels, local=request.local, rng=rng(0, "local"), threat=threat
        )
    seen = []
    for r in range(request.rounds):
        stream = rng(request.batches.seed, "defense", request.defense, r)
        seen.append(
            observe(model, images, labels, threat=threat, defense=request.defense, rng=stream)
        )
        model = _one_step(model, request.model.dataset, r)
    return Observed.join(seen)


def _one_step(model: nn.Module, name: str, number: int) -> nn.Module:
    """The network after a step (0.1) along the gradient of other clients' images."""
    others = dataset(name, "test")[-APART:]
    model = copy.deepcopy(model)
    local = LocalTraining()
    rows = torch.arange(128 * number, 128 * (number + 1)) % APART
    place = next(model.parameters()).device
    images, labels = (part[rows].to(place).unsqueeze(0) for part in (others.pixels, others.labels))
    steps = trained_weights(
        model, to_images(images), labels, local, torch.arange(128).expand(1, 1, -1)
    )
    with torch.no_grad():
        for parameter, mean in zip(model.parameters(), steps, strict=True):
            parameter -= local.lr * mean[0].detach()
    return model
