"""The shared pieces of the pages: data, trained models and attacks, each an artifact of the store."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from atslib.attacks import ATTACKS, Attack, GradientMatching, reconstruct
from atslib.attacks.starts import STARTS
from atslib.clients.prepare import streams, to_images, transform
from atslib.clients.threat import ThreatModel, observe
from atslib.clients.training import TrainConfig, evaluate, fit
from atslib.data.load import Images, load
from atslib.errors import AtsError, NotKept
from atslib.measures.identification import identification
from atslib.measures.metrics import mse, psnr, ssim
from atslib.models import build_model, normalization_layer
from atslib.policies.policy import forms, parse_policy
from atslib.report.units.settings import Settings
from atslib.rng import rng
from atslib.store import ADDED_SINCE, Artifact, Store

TRACE = 26  # steps at most whose costs are kept of every attack
CHUNK = 16  # gradients of single images in memory at once
FRAMES = 11  # iterates kept of every attack, the first and the last among them
CANDIDATES = 100  # test images among which a reconstruction is to single out its own
STAGES = (1, 3, 10, 30, 100, 300, 1_000, 3_000)  # steps of a training at which its network is kept
CURVE_IMAGES = 1_000  # test images behind the accuracy after each epoch


def device_of(name: str) -> torch.device:
    """The torch device of that name; "auto" is a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        probe = torch.empty(0, device=name)
        probe.cpu()  # "meta" refuses here: it holds no numbers
        return probe.device
    except (RuntimeError, AssertionError) as error:
        raise AtsError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from None


@functools.lru_cache(maxsize=4)
def dataset(name: str, split: str) -> Images:
    """`load`, once a process."""
    return load(name, split)


class Unit(Protocol):
    """A piece of work shared by pages: one artifact of the store, made when the units that it `needs` are there.

    A unit is a frozen dataclass; its fields are the artifact's key. `title` names it for a person, `passes` is
    its cost in forward passes of one image through its network (a backward pass counts two).
    """

    kind: ClassVar[str]

    @property
    def needs(self) -> tuple["Unit", ...]: ...

    @property
    def title(self) -> str: ...

    @property
    def passes(self) -> float: ...

    def make(self, store: Store, device: torch.device) -> object: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelUnit:
    """What decides a trained model; `train=None` is the untrained network, which is no artifact.

    A network with a `step` is one on its way: the same training, looked at before its end.
    """

    kind: ClassVar[str] = "model"

    dataset: str
    model: str
    fraction: float
    train: TrainConfig | None
    seed: int
    norm: str = dataclasses.field(default="", metadata=ADDED_SINCE)  # another data set's constants in the first layer
    step: int = dataclasses.field(default=0, metadata=ADDED_SINCE)  # as it was after so many steps; 0: at the end

    @property
    def needs(self) -> tuple[Unit, ...]:
        """Nothing."""
        return ()

    @property
    def title(self) -> str:
        """Network, data and policy."""
        kind = f"policy {self.train.policy or 'none'}" if self.train else "untrained"
        if self.train and self.train.defense:
            kind += f", {self.train.defense}"
        norm = f", normalized as {self.norm}" if self.norm else ""
        return f"{self.model} on {self.dataset}, {kind}{norm}{f', step {self.step}' if self.step else ''}"

    @property
    def passes(self) -> float:
        """Forward and backward through each training image, forward through each test image."""
        if not self.train:
            return 0
        train, test = (len(dataset(self.dataset, split)) for split in ("train", "test"))
        seen = self.step * self.train.batch if self.step else self.train.epochs * self.fraction * train
        return 3 * seen + test

    def make(self, store: Store, device: torch.device) -> object:
        """Train it, if it is not in the store."""
        return trained(self, store, device)


def model_unit(settings: Settings, policy: str = "", **changes: object) -> ModelUnit:
    """The network of `settings` trained with `policy`."""
    train = TrainConfig(policy=policy, epochs=settings.epochs)
    unit = ModelUnit(
        dataset=settings.dataset, model=settings.model, fraction=settings.fraction, train=train, seed=settings.seed
    )
    return dataclasses.replace(unit, **changes)


def semi_trained(settings: Settings) -> ModelUnit:
    """The network that privacy scores are computed on (paper, Algorithm 1): no policy, little data, few epochs."""
    train = TrainConfig(policy="", epochs=settings.semi_epochs)
    return model_unit(settings, fraction=settings.semi_fraction, train=train)


def network(unit: ModelUnit) -> nn.Module:
    """The untrained network of a unit; all policies of one seed share their initial weights."""
    images = dataset(unit.dataset, "test")
    return build_model(
        unit.model,
        images.num_classes,
        images.pixels.shape[1],
        norm=unit.norm or unit.dataset,
        image_size=images.pixels.shape[2],
        rng=rng(unit.seed, "weights", unit.model),
    )


def trained(
    unit: ModelUnit,
    store: Store,
    device: torch.device,
    *,
    on_batch: Callable[[], None] | None = None,
    stages: Sequence[int] = (),
) -> tuple[nn.Module, Artifact | None]:
    """The unit's network on `device`, with its artifact: weights, `history` and `accuracy` ().

    `history` (epochs, 4): loss, lr, seconds, and percent correct of the first `CURVE_IMAGES` test images.
    Where it must be trained, `on_batch` is called before each batch. What it raises ends the training, which
    another call takes up at the last whole epoch. A network on its way leaves those of `STAGES` before it in the
    store too, and one at its end those of `stages`.
    """
    model, on_the_way = network(unit).to(device), STAGES if unit.step else stages
    if unit.train is None:
        return model, None

    def compute(state: object) -> dict[str, Tensor]:
        train = dataset(unit.dataset, "train").subset(unit.fraction, rng=rng(unit.seed, "subset"))
        stream = rng(unit.seed, "train", unit.train.policy)
        test = dataset(unit.dataset, "test")
        few = test[:CURVE_IMAGES]
        try:
            done = fit(
                model, train, unit.train, rng=stream, test=few, checkpoint=state, on_saved=store.check_time,
                on_step=lambda step: _pass(step, unit, model, store, on_the_way), progress=store.progress,
            )  # fmt: skip
        except _Reached:
            return _weights(model) | _facts(unit, model)
        if unit.step:
            raise AtsError(f"ModelUnit.step={unit.step}: the training of {unit.title} ends before that step")
        columns = [[e["loss"], e["lr"], e["seconds"], e.get("accuracy", math.nan)] for e in done.history]
        known = done.history[-1].get("accuracy") if len(few) == len(test) else None
        facts = {
            "history": torch.tensor(columns),
            "accuracy": torch.tensor(evaluate(model, test) if known is None else known),
            "images": torch.tensor(len(train)),
        }
        return _weights(model) | facts

    # A hook is before tests, too, whose batches are not those of the training; attacks must not meet it.
    hook = (
        model.register_forward_pre_hook(lambda net, batch: on_batch() if net.training else None) if on_batch else None
    )
    artifact = store.get("model", unit, compute, label=unit.title)
    if hook:
        hook.remove()
    weights = {n.removeprefix("model."): v for n, v in artifact.tensors.items() if n.startswith("model.")}
    if not weights:
        return _Absent(unit.title), artifact
    model.load_state_dict(weights)
    return model.eval(), artifact


class _Reached(Exception):
    """The step that a training was to end at."""


def _pass(step: int, unit: ModelUnit, model: nn.Module, store: Store, stages: Sequence[int]) -> None:
    """After a step of the unit's training: keep the network at one of `stages`, end the training at the unit's own.

    Raises:
        _Reached: it is at the unit's own step.
    """
    if step == unit.step:
        raise _Reached
    reached = dataclasses.replace(unit, step=step)
    if step in stages and not store.has("model", reached):
        store.get("model", reached, lambda state: _weights(model) | _facts(unit, model), label=reached.title)
        model.train()


def _facts(unit: ModelUnit, model: nn.Module) -> dict[str, Tensor]:
    return {"accuracy": torch.tensor(evaluate(model, dataset(unit.dataset, "test")))}


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {f"model.{name}": value for name, value in model.state_dict().items()}


class _Absent(nn.Module):
    """A network whose weights the archive of evidence leaves out: its accuracy is known, but it cannot run."""

    def __init__(self, title: str):
        super().__init__()
        self.title = title

    def forward(self, images: Tensor) -> Tensor:
        raise NotKept(f"the archive keeps no weights of {self.title}; `python -m atslib run` trains it")


class OnModel:
    """A unit of work on a network, its field `model`."""

    model: ModelUnit

    @property
    def needs(self) -> tuple[Unit, ...]:
        """The network, where it is a trained one: an untrained one is no artifact."""
        return (self.model,) if self.model.train else ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttackUnit(OnModel):
    """What decides a batch of attacks: the model, the victims' images and the attack.

    The crops and flips, and the starts, are the same for every policy, defense and attack of one seed:
    comparisons are paired. Images are the test images `first` … `last` - 1.
    """

    kind: ClassVar[str] = "attack"

    model: ModelUnit
    policy: str
    attack: GradientMatching | Attack
    first: int
    last: int
    crop_flip: bool = True
    threat: ThreatModel = dataclasses.field(default_factory=ThreatModel)
    defense: str = ""
    frames: int = FRAMES
    seed: int = 0

    def __post_init__(self) -> None:
        if not dataclasses.is_dataclass(self.attack) or not hasattr(self.attack, "run"):
            raise AtsError(f"AttackUnit.attack={self.attack!r} must be a frozen dataclass with a method run")
        if not isinstance(self.attack, GradientMatching):  # two classes may have the same fields
            object.__setattr__(self, "kind", f"attack-{type(self.attack).__name__}")

    @property
    def title(self) -> str:
        """Policy, images and steps."""
        images = f"images {self.first}-{self.last - 1}"
        defended = f" and {self.defense}" if self.defense else ""
        return f"{self.policy or 'no policy'}{defended}, {images}, {getattr(self.attack, 'title', self.kind)}"

    @property
    def passes(self) -> float:
        """Two nested gradients, seven passes, a step and image."""
        return 7 * getattr(self.attack, "evaluations", 1) * (self.last - self.first)

    def make(self, store: Store, device: torch.device) -> object:
        """Attack, if it is not in the store."""
        return attacked(self, store, device)


def check_images_there(name: str, images: int) -> None:
    """Refuse to attack more images than a data set has.

    Raises:
        AtsError: there are fewer test images.
    """
    if images > (there := len(dataset(name, "test"))):
        raise AtsError(f"parameter images={images}: {name} has {there} test images")


def victim(settings: Settings, policy: str = "") -> ModelUnit:
    """The network that is attacked: by the settings' regime the client's trained one, or an untrained one."""
    if settings.regime == "trained":
        return model_unit(settings, policy)
    return model_unit(settings, model=settings.attacked or settings.model, train=None, fraction=1.0)


def attack_unit(settings: Settings, policy: str = "", **changes: object) -> AttackUnit:
    """The settings' attack on images transformed by `policy`, against its `victim`.

    `changes` replace the unit's fields.
    """
    check_images_there(settings.dataset, settings.images)
    attack = ATTACKS[settings.attack]
    if isinstance(attack, GradientMatching):
        attack = dataclasses.replace(attack, steps=settings.steps)
    unit = AttackUnit(
        model=victim(settings, policy),
        policy=policy,
        attack=attack,
        first=0,
        last=settings.images,
        crop_flip=settings.crop_flip == "fixed" or policy != "",
        frames=0,
        seed=settings.seed,
    )
    return dataclasses.replace(unit, **changes)


def scaled(name: str, settings: Settings) -> Attack:
    """A preset as it is at the full size; below it with one restart and as many gradients as the settings' steps.

    At least two steps are left, also of L-BFGS, which takes several gradients in each. An attack that matches no
    gradients is taken as it is.
    """
    attack = ATTACKS[name]
    if not isinstance(attack, GradientMatching) or settings.profile == "full":
        return attack
    single = dataclasses.replace(attack, restarts=1)
    steps = max(2, settings.steps * single.steps // single.evaluations)  # a step of L-BFGS takes several gradients
    return dataclasses.replace(single, steps=min(single.steps, steps))


def transformed(name: str, policy: str, last: int, *, seed: int, crop_flip: bool = True) -> Tensor:
    """Test images 0 … `last` - 1 after crop, flip and policy, uint8; crops and flips are the same for every policy."""
    pixels = dataset(name, "test").pixels[:last]
    return transform(pixels, policy, rng=streams(seed, policy), crop_flip=crop_flip)


def targets(unit: AttackUnit) -> tuple[Tensor, Tensor, Tensor]:
    """Test images before and after crop, flip and policy, uint8 (B, C, H, W), and their labels (B,)."""
    images, rows = dataset(unit.model.dataset, "test"), slice(unit.first, unit.last)
    pixels = transformed(unit.model.dataset, unit.policy, unit.last, seed=unit.seed, crop_flip=unit.crop_flip)
    return images.pixels[rows], pixels[rows], images.labels[rows]


def starts(unit: AttackUnit, model: nn.Module) -> Tensor:
    """Starts of the unit's attacks, (restarts, B, C, H, W) in [0, 1] units; image i's is the same in any range."""
    shape = dataset(unit.model.dataset, "test").pixels.shape[1:]
    draw, normalize = STARTS[getattr(unit.attack, "start", "normal")], normalization_layer(model)
    streams = [rng(unit.seed, "start", r) for r in range(getattr(unit.attack, "restarts", 1))]
    drawn = [torch.stack([draw(shape, g, normalize) for _ in range(unit.last)]) for g in streams]
    begin = torch.stack(drawn)[:, unit.first :]
    return normalize.inverse(begin.to(normalize.mean))


def ranks(unit: AttackUnit, reconstructions: Tensor) -> dict[str, Tensor]:
    """Rank of each true image among 100 test images by similarity to its reconstruction, (B,); 1: it is identified.

    `rank_target` is among images as the client transformed them, `rank_original` among untouched ones. The hundred is
    the one that the image belongs to, 0 … 99 or 100 … 199 and so on; see `identification`.
    """
    name, parts = unit.model.dataset, {"rank_target": [], "rank_original": []}
    for low in range(unit.first - unit.first % CANDIDATES, unit.last, CANDIDATES):
        begin, end = max(low, unit.first), min(low + CANDIDATES, unit.last)
        original = dataset(name, "test").pixels[low : low + CANDIDATES]
        target = transformed(name, unit.policy, low + len(original), seed=unit.seed, crop_flip=unit.crop_flip)[low:]
        estimates = reconstructions[begin - unit.first : end - unit.first]
        for column, pixels in (("rank_target", target), ("rank_original", original)):
            parts[column].append(identification(estimates, to_images(pixels), torch.arange(begin, end) - low))
    return {column: torch.cat(found) for column, found in parts.items()}


def known_ranks(unit: AttackUnit, store: Store, device: torch.device) -> Artifact:
    """`rank_knowing` (B,): rank of each photograph for a server that knows the policy, but not what was drawn.

    It compares a reconstruction with all `forms` that the policy can give to each of 100 untouched test images; shifts
    of a crop and mirror images it tolerates as `ranks` does.
    """

    def compute(state: object) -> dict[str, Tensor]:
        images, policy = dataset(unit.model.dataset, "test"), parse_policy(unit.policy)
        estimates = attacked(unit, store, device)["reconstruction"].cpu()
        parts = []
        for low in range(unit.first - unit.first % CANDIDATES, unit.last, CANDIDATES):
            begin, end = max(low, unit.first), min(low + CANDIDATES, unit.last)
            known = to_images(forms(policy, images.pixels[low : low + CANDIDATES]))
            rows = estimates[begin - unit.first : end - unit.first]
            parts.append(identification(rows, known, torch.arange(begin, end) - low))
        return {"rank_knowing": torch.cat(parts)}

    return store.get("ranks", unit, compute, label=f"ranks for who knows the policy, {unit.title}")


def attacked(unit: AttackUnit, store: Store, device: torch.device) -> Artifact:
    """Attack the unit's images: reconstructions, cost, trace (≤ 26 steps), frames, and metrics of each image.

    Tensors: `reconstruction`, `target` and `original` (B, C, H, W) in [0, 1] (the last two uint8), `psnr`,
    `psnr_original`, `mse`, `ssim`, `cost`, `stuck` and both of `ranks` (B,), `trace` (T, B), `trace_steps` (T,),
    `frames` (F, B, …).
    """

    def compute(state: object) -> dict[str, Tensor]:
        model, _ = trained(unit.model, store, device)
        original, target, labels = (t.to(device) for t in targets(unit))
        images = to_images(target)
        seen = observe(
            model, images, labels, threat=unit.threat, defense=unit.defense, rng=rng(unit.seed, "defense", unit.defense)
        )
        found = reconstruct(
            seen,
            unit.attack,
            rng=rng(unit.seed, "labels", unit.first),
            start=starts(unit, model),
            frames=unit.frames,
            checkpoint=state,
            on_saved=store.check_time,
            progress=store.progress,
        )
        kept = torch.linspace(0, len(found.trace) - 1, min(TRACE, len(found.trace))).round().long()
        return {
            "reconstruction": found.images,
            "target": target,
            "original": original,
            "labels": labels,
            "cost": found.cost,
            "stuck": found.stuck,
            "trace": found.trace[kept.to(device)],
            "trace_steps": kept,
            "frames": found.frames,
            "psnr": psnr(found.images, images),
            "psnr_original": psnr(found.images, to_images(original)),
            **ranks(unit, found.images.cpu()),
            "mse": mse(found.images, images),
            "ssim": ssim(found.images, images),
        }

    return store.get(unit.kind, unit, compute, label=unit.title)
