"""The attacks of the pages: what decides a batch of them, their starts, and how their images are
identified.
"""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor, nn

from atsbook.runs.attackers import FromMean, Learned, Undone
from atsbook.runs.networks import ModelUnit, OnModel, Unit, dataset, trained
from atsbook.runs.store import Artifact, Store
from atslib.attacks import Attack, GradientMatching, reconstruct
from atslib.attacks.analytic import LastLayerAlone
from atslib.attacks.starts import STARTS
from atslib.attacks.through_defense import BothImages, KeptEntries, KnownFeatures
from atslib.attacks.through_policy import ThroughPolicy
from atslib.clients.observe import Knowledge, Observed, ThreatModel, observe
from atslib.clients.prepare import streams, to_images
from atslib.errors import AtsError
from atslib.measures.identification import identification
from atslib.measures.metrics import mse, psnr, ssim
from atslib.models import normalization_layer
from atslib.policies.draws import draw
from atslib.policies.policy import forms, parse_policy
from atslib.rng import rng

TRACE = 26  # steps at most whose costs are kept of every attack
CHUNK = 16  # gradients of single images in memory at once
FRAMES = 11  # iterates kept of every attack, the first and the last among them
CANDIDATES = 100  # test images among which a reconstruction is to single out its own


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttackUnit(OnModel):
    """What decides a batch of attacks: the model, the victims' images and the attack.

    The crops and flips, and the starts, are the same for every policy, defense and attack of one
    seed: comparisons are paired. Images are the test images `first` … `last` - 1. In each of
    several `rounds` the policy draws anew for the same images after the same crops and flips;
    `target` is what the client used in the first. With `every` each restart is looked at too, see
    `attacked`.
    """

    kind: ClassVar[str] = "attack"

    model: ModelUnit
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
        | Attack
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
                f"AttackUnit.attack={self.attack!r} must be a GradientMatching, or a frozen dataclass with a method run"
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

    def make(self, store: Store, device: torch.device) -> object:
        """Attack, if it is not in the store."""
        return attacked(self, store, device)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfAttack(AttackUnit):
    """Something that is looked for in an attack's images: described as the attack is, and kept under
    a kind of its own.
    """

    def __post_init__(self) -> None:
        """An attack's kind goes with its class, this one's does not."""

    @classmethod
    def of(cls, unit: AttackUnit) -> "OfAttack":
        """What is looked for in this attack's images."""
        return cls(**{field.name: getattr(unit, field.name) for field in dataclasses.fields(unit)})

    @property
    def attack_unit(self) -> AttackUnit:
        """The attack whose images are looked at."""
        return AttackUnit(
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        )

    @property
    def needs(self) -> tuple[Unit, ...]:
        """The network and the attack."""
        return (*super().needs, self.attack_unit)

    @property
    def passes(self) -> float:
        """No network is needed."""
        return 0.0


def transformed(
    name: str, policy: str, images: range, *, seed: int, crop_flip: bool = True
) -> Tensor:
    """These test images after crop, flip and policy, uint8 (B, C, H, W); crops and flips are the
    same for every policy.
    """
    # Drawn from image 0 on, so that an image's draw is the same in any range.
    every = draw(images.stop, policy, rng=streams(seed, policy), crop_flip=crop_flip)
    rows = slice(images.start, images.stop)
    return every[rows].apply(dataset(name, "test").pixels[rows])


def targets(unit: AttackUnit) -> tuple[Tensor, Tensor, Tensor]:
    """Test images before and after crop, flip and policy, uint8 (B, C, H, W), and their labels
    (B,).
    """
    images = dataset(unit.model.dataset, "test")
    rows = slice(unit.first, unit.last)
    pixels = transformed(
        unit.model.dataset,
        unit.policy,
        range(unit.first, unit.last),
        seed=unit.seed,
        crop_flip=unit.crop_flip,
    )
    return images.pixels[rows], pixels, images.labels[rows]


def starts(unit: AttackUnit, model: nn.Module) -> Tensor:
    """Starts of the unit's attacks, (restarts, B, C, H, W) in [0, 1] units; image i's is the same
    in any range.
    """
    shape = dataset(unit.model.dataset, "test").pixels.shape[1:]
    draw = STARTS[getattr(unit.attack, "start", "normal")]
    normalize = normalization_layer(model)
    streams = [rng(unit.seed, "start", r) for r in range(getattr(unit.attack, "restarts", 1))]
    drawn = [torch.stack([draw(shape, g, normalize) for _ in range(unit.last)]) for g in streams]
    begin = torch.stack(drawn)[:, unit.first :]
    return normalize.inverse(begin.to(normalize.mean))


def ranks(unit: AttackUnit, reconstructions: Tensor) -> dict[str, Tensor]:
    """Rank of each true image among 100 test images by similarity to its reconstruction, (B,); 1:
    it is identified.

    `rank_target` is among images as the client transformed them, `rank_original` among untouched
    ones. The hundred is the one that the image belongs to, 0 … 99 or 100 … 199 and so on; see
    `identification`.
    """
    name = unit.model.dataset
    parts = {"rank_target": [], "rank_original": []}
    for low in range(unit.first - unit.first % CANDIDATES, unit.last, CANDIDATES):
        begin = max(low, unit.first)
        end = min(low + CANDIDATES, unit.last)
        original = dataset(name, "test").pixels[low : low + CANDIDATES]
        target = transformed(
            name,
            unit.policy,
            range(low, low + len(original)),
            seed=unit.seed,
            crop_flip=unit.crop_flip,
        )
        estimates = reconstructions[begin - unit.first : end - unit.first]
        for column, pixels in (("rank_target", target), ("rank_original", original)):
            parts[column].append(
                identification(estimates, to_images(pixels), torch.arange(begin, end) - low)
            )
    return {column: torch.cat(each) for column, each in parts.items()}


def known_ranks(unit: AttackUnit, store: Store, device: torch.device) -> Artifact:
    """`rank_knowing` (B,): rank of each photograph for a server that knows the policy, but not what
    was drawn.

    It compares a reconstruction with all `forms` that the policy can give to each of 100 untouched
    test images; shifts of a crop and mirror images it tolerates as `ranks` does.
    """

    def compute(state: object) -> dict[str, Tensor]:
        images = dataset(unit.model.dataset, "test")
        policy = parse_policy(unit.policy)
        estimates = attacked(unit, store, device)["reconstruction"].cpu()
        parts = []
        for low in range(unit.first - unit.first % CANDIDATES, unit.last, CANDIDATES):
            begin = max(low, unit.first)
            end = min(low + CANDIDATES, unit.last)
            known = to_images(forms(policy, images.pixels[low : low + CANDIDATES]))
            rows = estimates[begin - unit.first : end - unit.first]
            parts.append(identification(rows, known, torch.arange(begin, end) - low))
        return {"rank_knowing": torch.cat(parts)}

    return store.get("ranks", unit, compute, label=f"ranks for who knows the policy, {unit.title}")


def attacked(unit: AttackUnit, store: Store, device: torch.device) -> Artifact:
    """Attack the unit's images: reconstructions, cost, trace (≤ 26 steps), frames, and metrics of
    each image.

    Tensors: `reconstruction`, `target` and `original` (B, C, H, W) in [0, 1] (the last two uint8),
    `psnr`, `psnr_original`, `psnr_before` (against the image after crop and flip, before the
    policy), `mse`, `ssim`, `cost`, `stuck` and both of `ranks` (B,), `trace` (T, B), `trace_steps`
    (T,), `frames` (F, B, …). Of a unit with `every` also `psnr_each`, `rank_each` and `cost_each`
    (restarts, B), of every restart; the rank is that of the target.
    """
    return store.get(
        unit.kind, unit, lambda state: _attack(unit, store, device, state), label=unit.title
    )


def before(unit: AttackUnit) -> Tensor:
    """The unit's test images after crop and flip, before the policy, uint8 (B, C, H, W)."""
    images = range(unit.first, unit.last)
    return transformed(unit.model.dataset, "", images, seed=unit.seed, crop_flip=unit.crop_flip)


def drawn(unit: AttackUnit, *path: int) -> tuple[Tensor, Tensor]:
    """Member and signs of the policy for each of the unit's images, (B,) and (B, k); `path` tells
    rounds apart.
    """
    every = parse_policy(unit.policy).draw(unit.last, rng=streams(unit.seed, unit.policy, *path)[1])
    return tuple(part[unit.first :] for part in every)


def told(unit: AttackUnit, draws: tuple[Tensor, Tensor]) -> Knowledge:
    """What a server knows that was told the draws of one round."""
    return Knowledge(unit.policy, (tuple(part.unsqueeze(1) for part in draws),))


def _known(unit: AttackUnit, draws: tuple[Tensor, Tensor]) -> Knowledge:
    """What the unit's attacker knows of its policy, of which this was drawn."""
    if unit.threat.defense == "unknown":
        return Knowledge()
    if unit.threat.defense == "policy" or not unit.policy:
        return Knowledge(unit.policy)
    return told(unit, draws)


def _observed(unit: AttackUnit, model: nn.Module, labels: Tensor) -> Observed:
    """What the server saw of the unit's images in all its rounds."""
    rounds = []
    policy = parse_policy(unit.policy)
    pixels = before(unit)
    for path in [(), *((r,) for r in range(1, unit.rounds))]:
        draws = drawn(unit, *path)
        images = to_images(policy.apply_draw(pixels, *draws)).to(labels.device)
        stream = rng(unit.seed, "defense", unit.defense, *path)
        seen = observe(model, images, labels, threat=unit.threat, defense=unit.defense, rng=stream)
        rounds.append(dataclasses.replace(seen, knows=_known(unit, draws)))
    return Observed.join(rounds)


def _attack(
    unit: AttackUnit, store: Store, device: torch.device, state: object
) -> dict[str, Tensor]:
    """The tensors of `attacked`; `state` is where a long attack keeps what it has so far."""
    model, _ = trained(unit.model, store, device)
    original, target, labels = (t.to(device) for t in targets(unit))
    images = to_images(target)
    attack = reconstruct(
        _observed(unit, model, labels),
        unit.attack,
        rng=rng(unit.seed, "labels", unit.first),
        start=starts(unit, model),
        frames=unit.frames,
        keep_restarts=unit.every,
        checkpoint=state,
        on_saved=store.check_time,
        progress=store.progress,
    )
    each = {
        "psnr_each": [psnr(made, images) for made in attack.restarts],
        "rank_each": [ranks(unit, made.cpu())["rank_target"] for made in attack.restarts],
        "cost_each": list(attack.costs),
    }
    kept = torch.linspace(0, len(attack.trace) - 1, min(TRACE, len(attack.trace))).round().long()
    return {
        "reconstruction": attack.images,
        "target": target,
        "original": original,
        "labels": labels,
        "cost": attack.cost,
        "stuck": attack.stuck,
        "trace": attack.trace[kept.to(device)],
        "trace_steps": kept,
        "frames": attack.frames,
        "psnr": psnr(attack.images, images),
        "psnr_original": psnr(attack.images, to_images(original)),
        "psnr_before": psnr(attack.images, to_images(before(unit)).to(device)),
        **ranks(unit, attack.images.cpu()),
        **{name: torch.stack(values) for name, values in each.items() if unit.every},
        "mse": mse(attack.images, images),
        "ssim": ssim(attack.images, images),
    }
