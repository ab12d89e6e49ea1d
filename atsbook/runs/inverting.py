"""The units of the page on Inverting Gradients: every claim's cells, and the sizes that they are
measured at.
"""

import dataclasses

import numpy as np
import pandas as pd
import torch

from atsbook.runs.attacks import AttackUnit
from atsbook.runs.batches import Batches, BatchUnit
from atsbook.runs.gradients import FeatureUnit, StagesUnit, rolled_ranks
from atsbook.runs.leakage import OURS, STRONG
from atsbook.runs.networks import STAGES, ModelUnit
from atsbook.runs.regimes import Cell, training_steps
from atsbook.runs.settings import Settings
from atsbook.runs.store import Artifact, Store
from atsbook.runs.table1 import FEW, HYBRID
from atsbook.runs.tables import image_rows, label
from atslib.attacks import ATTACKS, GradientMatching
from atslib.attacks.analytic import LastLayerAlone
from atslib.clients.training import TrainConfig
from atslib.clients.updates import LocalTraining

KEYS = ("line", "where", "what")  # of a unit, beside what its table has
RESNET = ATTACKS["annealed-resnet"]
LENET = dataclasses.replace(ATTACKS["annealed-lenet"], steps=200)
ONE_STAGE = dataclasses.replace(RESNET, steps=100)
STRONGEST = {"lenet": LENET, "convnet-16": ATTACKS["annealed-convnet"], "resnet20-1": ONE_STAGE}
DISTANCES = {
    "cosine": "cosine",
    "L2": "l2-relative",
    "L2, each layer": "l2-tensors",
    "L1": "l1-relative",
}
OPTIMIZERS = {
    "Adam, signed": {"optimizer": "adam", "signed": True},
    "Adam": {"optimizer": "adam"},
    "SGD": {"optimizer": "sgd"},
    "L-BFGS": {"optimizer": "lbfgs", "line_search": True, "schedule": "constant"},
}
TUNED_ON = (200, 208)  # images that no line attacks
RATES = {
    "adam": (0.1, 0.3, 1.0, 3.0, 10.0),
    "sgd": (10.0, 100.0, 1000.0, 10_000.0),
    "lbfgs": (0.1, 0.3, 1.0, 3.0),
}
RESTARTS = (1, 2, 4, 8, 16)
DEPTHS = ("resnet18", "resnet34", "resnet152")
WIDTHS = {16: 32, 64: 32, 128: 8}  # of a ResNet-18, and how many images are attacked
PADDED = {
    "lenet": ("", "circular", "reflect", "unpadded"),
    "convnet-16": ("", "circular", "reflect"),
}
PADDED["resnet20-1"] = PADDED["convnet-16"]
LOCAL = (1, 5, 20)
SIZES = {1: 64, 4: 16, 16: 4, 64: 1, 100: 1}  # images of a batch, and batches
LONGER = {
    "lenet": 3_000,
    "resnet20-1": 800,
}  # steps on the largest batch, shown beside what is judged
OTHER = ModelUnit(
    dataset="cifar100", model="resnet18-16", fraction=1.0, train=TrainConfig(epochs=2), seed=0
)
OTHER_STAGES = (10, 100)


def network(model: str, regime: str = "initial") -> ModelUnit:
    """A network of the book's regimes on CIFAR-100."""
    return Cell(regime=regime, model=model, attack="annealed-resnet", steps=1, images=1).network("")


def single(
    model: ModelUnit, attack: GradientMatching | LastLayerAlone, **changes: object
) -> AttackUnit:
    """An attack on single images, the first of the test set, without a policy."""
    unit = AttackUnit(model=model, policy="", attack=attack, first=0, last=FEW, frames=0)
    return dataclasses.replace(unit, **changes)


def places() -> dict[str, tuple[ModelUnit, GradientMatching]]:
    """Where distances and optimizers are compared: networks with the attack that fits them."""
    regimes = {
        name: (network("resnet20-1", name), ONE_STAGE) for name in ("initial", "semi", "trained")
    }
    return {"LeNet, initial": (network("lenet"), LENET)} | {
        f"ResNet20-1, {n}": each for n, each in regimes.items()
    }


def variants(line: str) -> dict[str, dict[str, object]]:
    """What line C2 or C3 compares, by name: the fields in which the attacks differ."""
    return (
        {name: {"distance": value} for name, value in DISTANCES.items()}
        if line == "C2"
        else OPTIMIZERS
    )


def varied(attack: GradientMatching, evaluations: int, **fields: object) -> GradientMatching:
    """The attack with other fields and so many gradients of its cost; of L-BFGS in five outer
    steps.
    """
    attack = dataclasses.replace(attack, steps=evaluations, **fields)
    return (
        dataclasses.replace(attack, steps=5, inner=evaluations // 5)
        if attack.optimizer == "lbfgs"
        else attack
    )


def trials() -> dict[tuple, AttackUnit]:
    """Every step size of every attack of lines C2 and C3, on other images: by line, place, attack
    and step size.
    """
    found = {}
    for line in ("C2", "C3"):
        for where, (model, attack) in places().items():
            if line == "C3" and not where.endswith("initial"):
                continue
            for name, fields in variants(line).items():
                steps = attack.steps if where.startswith("LeNet") else attack.steps // 2
                for lr in RATES[str(fields.get("optimizer", "adam"))]:
                    own = varied(attack, steps, lr=lr, **fields)
                    unit = single(model, own, first=TUNED_ON[0], last=TUNED_ON[1])
                    found["tuned", line, where, name, lr] = unit
    return found


# The step size of each trial's best mean PSNR; a test holds them to the archive.
BEST: dict[tuple[str, str, str], float] = {
    ("C2", "LeNet, initial", "cosine"): 1.0,
    ("C2", "LeNet, initial", "L2"): 1.0,
    ("C2", "LeNet, initial", "L2, each layer"): 3.0,
    ("C2", "LeNet, initial", "L1"): 1.0,
    ("C2", "ResNet20-1, initial", "cosine"): 1.0,
    ("C2", "ResNet20-1, initial", "L2"): 0.3,
    ("C2", "ResNet20-1, initial", "L2, each layer"): 0.3,
    ("C2", "ResNet20-1, initial", "L1"): 0.3,
    ("C2", "ResNet20-1, semi", "cosine"): 0.1,
    ("C2", "ResNet20-1, semi", "L2"): 0.1,
    ("C2", "ResNet20-1, semi", "L2, each layer"): 0.1,
    ("C2", "ResNet20-1, semi", "L1"): 0.1,
    ("C2", "ResNet20-1, trained", "cosine"): 0.1,
    ("C2", "ResNet20-1, trained", "L2"): 0.1,
    ("C2", "ResNet20-1, trained", "L2, each layer"): 0.1,
    ("C2", "ResNet20-1, trained", "L1"): 0.1,
    ("C3", "LeNet, initial", "Adam, signed"): 0.3,
    ("C3", "LeNet, initial", "Adam"): 1.0,
    ("C3", "LeNet, initial", "SGD"): 1000.0,
    ("C3", "LeNet, initial", "L-BFGS"): 1.0,
    ("C3", "ResNet20-1, initial", "Adam, signed"): 3.0,
    ("C3", "ResNet20-1, initial", "Adam"): 1.0,
    ("C3", "ResNet20-1, initial", "SGD"): 1000.0,
    ("C3", "ResNet20-1, initial", "L-BFGS"): 1.0,
}


def tuned(line: str, where: str, name: str, evaluations: int, restarts: int = 1) -> AttackUnit:
    """The attack of a line at its best step size, on the images of all lines; each of several
    restarts is kept.
    """
    model, attack = places()[where]
    own = varied(attack, evaluations, lr=BEST[line, where, name], **variants(line)[name])
    return single(model, dataclasses.replace(own, restarts=restarts), every=restarts > 1)


def attack_units(settings: Settings) -> dict[tuple, AttackUnit]:
    """Attacks on single images by (line, where, what)."""
    if settings.profile == "smoke":
        model = dataclasses.replace(
            network("lenet"), dataset=settings.dataset, model=settings.model
        )
        for_all = {"last": settings.images, "every": True}
        attack = dataclasses.replace(LENET, steps=settings.steps, restarts=2)
        return {
            (line, "LeNet, initial", name): single(
                model, dataclasses.replace(attack, distance=distance), **for_all
            )
            for line in ("C2", "O4")
            for name, distance in DISTANCES.items()
        }
    found: dict[tuple, AttackUnit] = trials() | _restarts() | _stages() | _networks() | _features()
    for line in ("C2", "C3"):
        for where, (_, attack) in places().items():
            if line == "C2" or where.endswith("initial"):
                found |= {
                    (line, where, name): tuned(line, where, name, attack.steps)
                    for name in variants(line)
                }
    return found


def _restarts() -> dict[tuple, AttackUnit]:
    """As many starts for every attack; on the ResNet of the two that the claim is about, with fewer
    steps.
    """
    where = ("LeNet, initial", "ResNet20-1, initial")
    most = RESTARTS[-1]
    found = {
        ("O4", where[0], name): tuned("C2", where[0], name, LENET.steps, most) for name in DISTANCES
    }
    return found | {
        ("O4", where[1], name): tuned("C2", where[1], name, 30, most) for name in ("cosine", "L2")
    }


def _stages() -> dict[tuple, AttackUnit]:
    """ResNet20-1 and ResNet-18 along their training; the first are those of the page on regimes."""
    cell = Cell(
        regime="early", model="resnet20-1", attack="annealed-resnet", steps=100, images=FEW, step=1
    )
    end = training_steps(cell.dataset, network("resnet20-1", "trained").train)
    found = {("C4", "ResNet20-1", 0): single(network("resnet20-1"), ONE_STAGE)}
    for step in (*STAGES, end):
        found["C4", "ResNet20-1", step] = dataclasses.replace(cell, step=step).unit("")
    found["C4", "ResNet-18", 0] = single(dataclasses.replace(OTHER, train=None), ONE_STAGE)
    for step in OTHER_STAGES:
        found["C4", "ResNet-18", step] = single(dataclasses.replace(OTHER, step=step), ONE_STAGE)
    found["C4", "ResNet-18", training_steps(OTHER.dataset, OTHER.train)] = single(OTHER, ONE_STAGE)
    return found


def _networks() -> dict[tuple, AttackUnit]:
    """Depth, width and padding of untrained networks."""
    found: dict[tuple, AttackUnit] = {}
    for width, steps, images in ((16, 60, FEW), (64, 30, 8)):
        attack = dataclasses.replace(RESNET, steps=steps)
        for name in DEPTHS:
            found["C5", f"{width} wide", name] = single(
                network(f"{name}-{width}"), attack, last=images
            )
    luck = dataclasses.replace(RESNET, steps=20, restarts=4)
    for width, images in WIDTHS.items():
        found["C6", "ResNet-18", width] = single(
            network(f"resnet18-{width}"), luck, last=images, every=True
        )
    for name, paddings in PADDED.items():
        for padding in paddings:
            model = network(f"{name}-{padding}" if padding else name)
            # A draw of their own: shifts are looked for in all images, of which the archive keeps a
            # few.
            found["C7", name, padding or "zeros"] = single(model, STRONGEST[name], seed=7)
    return found


def _features() -> dict[tuple, AttackUnit]:
    """How much of an image the features before the last layer give away, with and without a policy."""
    return {
        ("O1", name, policy): single(network(name), LastLayerAlone(inner=attack), policy=policy)
        for name, attack in STRONGEST.items()
        for policy in ("", HYBRID)
    }


def batch_units(settings: Settings) -> dict[tuple, BatchUnit]:
    """Attacks on batches by (line, where, what)."""
    short = dataclasses.replace(STRONG, steps=settings.steps)
    if settings.profile == "smoke":
        model = dataclasses.replace(network("lenet"), dataset=settings.dataset)
        sizes = {size: Batches(size=size, count=2) for size in (1, 2)}
        return {
            ("C9", "lenet", size): BatchUnit(model=model, attack=short, batches=b)
            for size, b in sizes.items()
        }
    found: dict[tuple, BatchUnit] = {}
    for size, count in SIZES.items():
        batches = Batches(size=size, count=count)
        for name, attack in {"lenet": STRONG, "resnet20-1": ONE_STAGE}.items():
            found["C9", name, size] = BatchUnit(model=network(name), attack=attack, batches=batches)
        found["O2", "lenet", size] = dataclasses.replace(found["C9", "lenet", size], rule=OURS)
    for name, steps in LONGER.items():
        unit = found["C9", name, 100]
        found["C9, longer", name, 100] = dataclasses.replace(
            unit, attack=dataclasses.replace(unit.attack, steps=steps)
        )
    local = dataclasses.replace(STRONG, steps=150, distance="cosine-tensors")
    for size, count in ((1, FEW), (8, 5)):
        base = BatchUnit(
            model=network("lenet"), attack=local, batches=Batches(size=size, count=count)
        )
        found["C8", size, f"{LOCAL[0]} step"] = dataclasses.replace(
            base, local=LocalTraining(epochs=LOCAL[0])
        )
        for steps in LOCAL[1:]:  # of one step both attacks are the same
            mean = dataclasses.replace(base, local=LocalTraining(epochs=steps))
            found["C8", size, f"{steps} steps, mean"] = mean
            exact = dataclasses.replace(local, unroll=True)
            found["C8", size, f"{steps} steps, unrolled"] = dataclasses.replace(mean, attack=exact)
    return found


def gradient_units(settings: Settings) -> dict[tuple, StagesUnit | FeatureUnit]:
    """What is read off gradients without an attack, by (line, network, what)."""
    if settings.profile == "smoke":
        model = dataclasses.replace(network("lenet"), dataset=settings.dataset)
        batches = Batches(size=1, count=settings.images)
        return {("O1", "LeNet", (1, "")): FeatureUnit(model=model, batches=batches)}
    end = network("resnet20-1", "trained")
    found: dict[tuple, StagesUnit | FeatureUnit] = {
        ("C1", "ResNet20-1", ""): StagesUnit(model=end, steps=STAGES, images=64)
    }
    models = {
        "LeNet": network("lenet"),
        "ConvNet-16": network("convnet-16"),
        "ResNet20-1": network("resnet20-1"),
    }
    models |= {
        "ResNet20-1, semi-trained": network("resnet20-1", "semi"),
        "ResNet20-1, trained": end,
    }
    models |= {"ResNet-18": dataclasses.replace(OTHER, train=None), "ResNet-18, 2 epochs": OTHER}
    for name, model in models.items():
        for size, count in SIZES.items():
            if size < 100:
                found["O1", name, (size, "")] = FeatureUnit(
                    model=model, batches=Batches(size=size, count=count)
                )
        found["O1", name, (1, HYBRID)] = dataclasses.replace(
            found["O1", name, (1, "")], policy=HYBRID
        )
    return found


def _named(table: pd.DataFrame, key: tuple) -> pd.DataFrame:
    return table.assign(**dict(zip(KEYS, key, strict=True)))


def attack_rows(
    key: tuple, unit: AttackUnit, artifact: Artifact, store: Store, device: torch.device
) -> pd.DataFrame:
    """One row per image of an attack; of padded networks also what it is worth at the best circular
    shift.
    """
    table = image_rows(artifact, unit)[
        ["image", "psnr", "gain", "floor_policy", "ssim", "cost", "rank_target"]
    ]
    if key[0] == "C7":
        rolled = rolled_ranks(unit, store, device)
        table = table.assign(
            **{name: rolled[name].double().numpy() for name in ("rank_rolled", "psnr_rolled")}
        )
    return _named(table, key)


def restart_rows(key: tuple, unit: AttackUnit, artifact: Artifact) -> pd.DataFrame:
    """One row per restart and image."""
    count, images = artifact["psnr_each"].shape
    table = pd.DataFrame(
        {"restart": np.repeat(range(count), images), "image": list(range(images)) * count}
    )
    for name in ("psnr", "rank", "cost"):
        table[name] = artifact[f"{name}_each"].double().flatten().numpy()
    return _named(table, key)


def batch_rows(key: tuple, unit: BatchUnit, artifact: Artifact) -> pd.DataFrame:
    """One row per image of batches."""
    table = pd.DataFrame(
        {n: artifact[n].double().numpy() for n in ("psnr", "floor", "ssim", "rank")}
    )
    table["random"] = float(artifact["psnr_random"].mean())
    table["group"] = [i // unit.batches.size for i in range(len(table))]
    table["label"] = artifact["labels"].flatten().numpy()
    table["share"] = artifact["share"].double().numpy()[table["group"]]
    return _named(table.assign(image=range(len(table))), key)


def feature_rows(key: tuple, unit: FeatureUnit, artifact: Artifact) -> pd.DataFrame:
    """One row per image whose features were read off."""
    names = ("error", "error_mean", "rank_target", "rank_original")
    table = pd.DataFrame({name: artifact[name].double().numpy() for name in names})
    return table.assign(
        line=key[0], where=key[1], size=unit.batches.size, policy=label(unit.policy)
    )


def stage_rows(artifact: Artifact) -> list[pd.DataFrame]:
    """Sums of squares of each image, of the logarithm of the length and of the direction."""
    length = artifact["norm"].double().log10().numpy()
    mean = length.mean()
    count = len(length)
    by_image, by_stage = (np.square(length.mean(axis) - mean) for axis in (0, 1))
    each = np.square(length - mean).sum(0), count * by_image, by_stage.sum()
    ways = (artifact[f"direction_{of}"].numpy() for of in ("all", "image", "stage"))
    sums = {
        "length": each,
        "direction": [way / (1 if way.ndim else length.shape[1]) for way in ways],
    }
    names = ("all", "image_sum", "stage_sum")
    return [
        pd.DataFrame(dict(zip(names, three, strict=True))).assign(of=of)
        for of, three in sums.items()
    ]
