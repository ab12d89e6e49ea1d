"""The shared pieces of the experiments: data, trained models and attacks, each an artifact of the store."""

import dataclasses
import functools

import torch
from torch import Tensor, nn

from atslib.attacks import ATTACKS, Attack, reconstruct
from atslib.data import Images, load
from atslib.defenses import Defense
from atslib.errors import AtsError
from atslib.experiments.settings import Settings
from atslib.metrics import mse, psnr, ssim
from atslib.models import build_model, normalization_layer
from atslib.policies import parse_policy
from atslib.rng import rng
from atslib.store import Artifact, Store
from atslib.threat import ThreatModel, observe
from atslib.training import TrainConfig, evaluate, fit
from atslib.transforms import crop_and_flip


def device_of(name: str) -> torch.device:
    """The torch device of that name; "auto" is a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise AtsError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from None


@functools.lru_cache(maxsize=4)
def dataset(name: str, split: str) -> Images:
    """`load`, once a process."""
    return load(name, split)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelUnit:
    """What decides a trained model; `train=None` is the untrained network."""

    dataset: str
    model: str
    fraction: float
    train: TrainConfig | None
    seed: int


def model_unit(settings: Settings, policy: str = "", **changes: object) -> ModelUnit:
    """The network of `settings` trained with `policy`."""
    train = TrainConfig(policy=policy, epochs=settings.epochs)
    unit = ModelUnit(
        dataset=settings.dataset, model=settings.model, fraction=settings.fraction, train=train, seed=settings.seed
    )
    return dataclasses.replace(unit, **changes)


def network(unit: ModelUnit) -> nn.Module:
    """The untrained network of a unit; all policies of one seed share their initial weights."""
    images = dataset(unit.dataset, "test")
    return build_model(
        unit.model,
        images.num_classes,
        images.pixels.shape[1],
        norm=unit.dataset,
        image_size=images.pixels.shape[2],
        rng=rng(unit.seed, "weights", unit.model),
    )


def trained(unit: ModelUnit, store: Store, device: torch.device) -> tuple[nn.Module, Artifact | None]:
    """The unit's network on `device`, with its artifact: weights, `history` (epochs, 3) and `accuracy` ()."""
    model = network(unit).to(device)
    if unit.train is None:
        return model, None

    def compute(state: object) -> dict[str, Tensor]:
        train = dataset(unit.dataset, "train").subset(unit.fraction, rng=rng(unit.seed, "subset"))
        stream = rng(unit.seed, "train", unit.train.policy)
        done = fit(model, train, unit.train, rng=stream, checkpoint=state, progress=store.progress)
        columns = [[e["loss"], e["lr"], e["seconds"]] for e in done.history]
        facts = {
            "history": torch.tensor(columns),
            "accuracy": torch.tensor(evaluate(model, dataset(unit.dataset, "test"))),
            "images": torch.tensor(len(train)),
        }
        return {f"model.{name}": value for name, value in model.state_dict().items()} | facts

    label = f"{unit.model} on {unit.dataset}, policy {unit.train.policy or 'none'}"
    artifact = store.get("model", unit, compute, label=label)
    weights = {n.removeprefix("model."): v for n, v in artifact.tensors.items() if n.startswith("model.")}
    model.load_state_dict(weights)
    return model.eval(), artifact


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttackUnit:
    """What decides a batch of attacks: the model, the victims' images and the attack.

    The crops and flips, and the starts, are the same for every policy, defense and attack of one seed:
    comparisons are paired. Images are the test images `first` … `last` - 1.
    """

    model: ModelUnit
    policy: str
    attack: Attack
    first: int
    last: int
    crop_flip: bool = True
    threat: ThreatModel = dataclasses.field(default_factory=ThreatModel)
    defense: str = ""
    frames: int = 0
    seed: int = 0


def attack_unit(settings: Settings, policy: str = "", **changes: object) -> AttackUnit:
    """The attack on images transformed by `policy`, against the network trained with it.

    `changes` replace the unit's fields; the attack is `adam-cosine` at the settings' steps by default.
    """
    if settings.images > (there := len(dataset(settings.dataset, "test"))):
        raise AtsError(f"parameter images={settings.images}: {settings.dataset} has {there} test images")
    attack = dataclasses.replace(ATTACKS["adam-cosine"], steps=settings.steps)
    unit = AttackUnit(
        model=model_unit(settings, policy),
        policy=policy,
        attack=attack,
        first=0,
        last=settings.images,
        crop_flip=settings.crop_flip == "fixed" or policy != "",
        seed=settings.seed,
    )
    return dataclasses.replace(unit, **changes)


def targets(unit: AttackUnit) -> tuple[Tensor, Tensor, Tensor]:
    """Test images before and after crop, flip and policy, uint8 (B, C, H, W), and their labels (B,)."""
    images = dataset(unit.model.dataset, "test")[: unit.last]
    moved = images.pixels
    if unit.crop_flip:
        moved = crop_and_flip(moved, rng=rng(unit.seed, "crop and flip"))
    moved = parse_policy(unit.policy)(moved, rng=rng(unit.seed, "policy", unit.policy))
    rows = slice(unit.first, unit.last)
    return images.pixels[rows], moved[rows], images.labels[rows]


def starts(unit: AttackUnit, model: nn.Module) -> Tensor:
    """Starts of the unit's attacks, (restarts, B, C, H, W) in [0, 1] units; image i's is the same in any range."""
    shape = dataset(unit.model.dataset, "test").pixels.shape[1:]
    draw = {"normal": torch.randn, "uniform": torch.rand, "zeros": lambda s, generator: torch.zeros(s)}
    streams = [rng(unit.seed, "start", r) for r in range(unit.attack.restarts)]
    drawn = [torch.stack([draw[unit.attack.start](shape, generator=g) for _ in range(unit.last)]) for g in streams]
    begin = torch.stack(drawn)[:, unit.first :]
    normalize = normalization_layer(model)
    return begin if unit.attack.start == "uniform" else normalize.inverse(begin.to(normalize.mean))


def attacked(unit: AttackUnit, store: Store, device: torch.device) -> Artifact:
    """Attack the unit's images: reconstructions, cost, trace (≤ 100 steps), frames, and metrics an image.

    Tensors: `reconstruction`, `target` and `original` (B, C, H, W) in [0, 1] (the last two uint8), `psnr`,
    `psnr_original`, `mse`, `ssim`, `cost` (B,), `trace` (T, B), `trace_steps` (T,), `frames` (F, B, …).
    """

    def compute(state: object) -> dict[str, Tensor]:
        model, _ = trained(unit.model, store, device)
        original, target, labels = (t.to(device) for t in targets(unit))
        pixels = target.float() / 255
        defense = Defense.parse(unit.defense) if unit.defense else None
        seen = observe(
            model, pixels, labels, threat=unit.threat, defense=defense, rng=rng(unit.seed, "defense", unit.defense)
        )
        found = reconstruct(
            seen,
            unit.attack,
            rng=rng(unit.seed, "labels", unit.first),
            start=starts(unit, model),
            frames=unit.frames,
            checkpoint=state,
            progress=store.progress,
        )
        kept = torch.linspace(0, len(found.trace) - 1, min(100, len(found.trace))).round().long()
        return {
            "reconstruction": found.images,
            "target": target,
            "original": original,
            "labels": labels,
            "cost": found.cost,
            "trace": found.trace[kept.to(device)],
            "trace_steps": kept,
            "frames": found.frames,
            "psnr": psnr(found.images, pixels),
            "psnr_original": psnr(found.images, original.float() / 255),
            "mse": mse(found.images, pixels),
            "ssim": ssim(found.images, pixels),
        }

    label = f"{unit.policy or 'none'}, images {unit.first}-{unit.last - 1}, {unit.attack.steps} steps"
    return store.get("attack", unit, compute, label=label)


def make(unit: ModelUnit | AttackUnit, store: Store, device: str) -> None:
    """Compute a unit into the store, if it is not there."""
    (attacked if isinstance(unit, AttackUnit) else trained)(unit, store, device_of(device))
