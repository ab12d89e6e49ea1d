"""The units of the page on general deep leakage: every cell of its tables, and the sizes that they
are measured at.
"""

import dataclasses

from atsbook.runs.batches import Batches, BatchUnit, LabelUnit
from atsbook.runs.networks import ModelUnit
from atsbook.runs.regimes import SEMI_EPOCHS, SEMI_FRACTION, TRAINED_EPOCHS
from atsbook.runs.settings import Settings
from atsbook.runs.table1 import HYBRID
from atslib.attacks import ATTACKS, GradientMatching
from atslib.clients.training import TrainConfig
from atslib.clients.updates import LocalTraining

CELLS = 200  # batches behind a share of labels
FRESH = 4  # their seed: on those of seeds 0 to 3 our rule was made
GROUPS = 10  # batches that are attacked
TENTH = 40  # steps in an epoch of a tenth of CIFAR-100
SINGLE = 50  # gradients of one image
LOCAL = (1, 2, 4, 8, 16)  # epochs before anything is sent
OURS, THEIRS, COLUMNS = "features", "published", "minima"
TERMS = {"l2": 0.1, "clip": 100.0, "scale": 100.0}  # printed weights; 0.5 for the total variation
SETTINGS = ("tv", "tv+l2", "tv+clip", "tv+scale", "tv+clip+scale", "tv+l2+clip+scale")
STARTS = {
    "U(0, 1)": "uniform",
    "N(0.5, 1)": "pixels-normal",
    "N(0, 1)": "pixels-normal-zero",
    "U(-0.5, 0.5)": "pixels-uniform-zero",
}
STRONG = dataclasses.replace(ATTACKS["annealed-lenet"], start="uniform")
# Eq. 10 and 19 with the printed weights, by the optimizer that works here, and by the printed one.
TERMWISE = dataclasses.replace(STRONG, distance="norms", boxed=False, tv=0.5)
PRINTED = dataclasses.replace(
    TERMWISE, optimizer="lbfgs", lr=0.5, schedule="constant", inner=1, history=20
)


def network(dataset: str, **changes: object) -> ModelUnit:
    """An untrained LeNet, the network of the paper."""
    unit = ModelUnit(dataset=dataset, model="lenet", fraction=1.0, train=None, seed=0)
    return dataclasses.replace(unit, **changes)


def label_units(settings: Settings) -> dict[tuple, LabelUnit]:
    """Label restoration by (table, what, dataset, batch, amount, repetition)."""
    if settings.profile == "smoke":
        small = LabelUnit(
            model=network(settings.dataset), batches=Batches(size=4, count=3, amount=2)
        )
        return {("Table 4", "each label 2 times", settings.dataset, 4): small}
    found: dict[tuple, LabelUnit] = {}
    tiny = network("tinyimagenet")
    ten = network("cifar10")
    for extra in range(9):
        unit = LabelUnit(
            model=tiny, batches=Batches(size=16, count=CELLS, seed=FRESH, repetition=extra)
        )
        found["Table 3", f"repetition {extra}", "tinyimagenet", 16] = unit
    for place, classes in ((ten, 10), (tiny, 200)):
        for amount in (2, 4):
            for size in (4, 8, 16, 32, 64, 128, 256):
                if size // amount <= classes:
                    batches = Batches(size=size, count=CELLS, amount=amount, seed=FRESH)
                    unit = LabelUnit(model=place, batches=batches)
                    found["Table 4", f"each label {amount} times", place.dataset, size] = unit
    for size in (1, 4, 8):
        unit = LabelUnit(model=ten, batches=Batches(size=size, count=CELLS, seed=FRESH))
        found["different labels", "untrained LeNet", "cifar10", size] = unit
    return found | _elsewhere()


def _elsewhere() -> dict[tuple, LabelUnit]:
    """Where the paper does not look: batches of 16, each label twice, on other networks and
    defended gradients.
    """
    twice = Batches(size=16, count=CELLS, seed=FRESH, amount=2)
    train = TrainConfig(epochs=TRAINED_EPOCHS)
    hundred = network("cifar100")
    wide = dataclasses.replace(hundred, model="resnet20-1")
    semi = dataclasses.replace(wide, fraction=SEMI_FRACTION, train=TrainConfig(epochs=SEMI_EPOCHS))
    places = {
        "untrained LeNet": (hundred, "", ""),
        "signed features (tanh)": (hundred, "", "signed"),
        "a last layer without bias": (hundred, "", "without bias"),
        "untrained ResNet20-1": (wide, "", ""),
        "ResNet20-1 after 300 steps (0.8 epochs)": (
            dataclasses.replace(wide, train=train, step=300),
            "",
            "",
        ),
        "ResNet20-1 after 3,000 steps (7.7 epochs)": (
            dataclasses.replace(wide, train=train, step=3_000),
            "",
            "",
        ),
        "ResNet20-1 after 20 epochs": (dataclasses.replace(wide, train=train), "", ""),
        "ResNet20-1 after 1 epoch of a tenth": (dataclasses.replace(semi, step=TENTH), "", ""),
        "ResNet20-1 after 10 epochs of a tenth": (
            dataclasses.replace(semi, step=10 * TENTH),
            "",
            "",
        ),
        "ResNet20-1 after 50 epochs of a tenth": (semi, "", ""),
    }
    for defense in (
        "prune:0.7",
        "prune:0.99",
        "gaussian:0.001",
        "gaussian:0.01",
        "clip:1",
        "3-1-7",
        HYBRID,
    ):
        places[f"LeNet, {defense}"] = (hundred, defense, "")
    return {
        ("elsewhere", name, "cifar100", 16): LabelUnit(
            model=model, batches=twice, defense=defense, head=head
        )
        for name, (model, defense, head) in places.items()
    }


def with_terms(attack: GradientMatching, setting: str) -> GradientMatching:
    """The attack with the regularizers that a row of Table 2 names, beside the total variation."""
    return dataclasses.replace(
        attack, penalties=tuple((n, TERMS[n]) for n in setting.split("+") if n != "tv")
    )


def attack_units(settings: Settings) -> dict[tuple, BatchUnit]:
    """Attacks by `KEYS`: table, setting, dataset, batch."""
    if settings.profile == "smoke":
        strong = dataclasses.replace(STRONG, steps=settings.steps)
        batches = Batches(size=2, count=2)
        base = BatchUnit(model=network(settings.dataset), attack=strong, batches=batches)
        more = {"1 update": base, "2 updates": dataclasses.replace(base, rounds=2)}
        return {("Table 1", name, settings.dataset, 2): unit for name, unit in more.items()}
    return _ablations() | _several(settings.dataset) | _repeated() | _weights() | _policies()


def _ablations() -> dict[tuple, BatchUnit]:
    """Table 2 and Figure 3, single images and batches of four."""
    found = {}
    for size, count in ((1, SINGLE), (4, 13)):
        base = BatchUnit(
            model=network("cifar10"), attack=TERMWISE, batches=Batches(size=size, count=count)
        )
        for setting in SETTINGS:
            unit = dataclasses.replace(base, attack=with_terms(TERMWISE, setting))
            found["Table 2", setting, "cifar10", size] = unit
            printed = dataclasses.replace(base, attack=with_terms(PRINTED, setting))
            found["Table 2, printed optimizer", setting, "cifar10", size] = printed
        for name, start in STARTS.items():
            attack = dataclasses.replace(with_terms(TERMWISE, "tv+clip+scale"), start=start)
            found["Figure 3", name, "cifar10", size] = dataclasses.replace(base, attack=attack)
    return found


def _several(own: str) -> dict[tuple, BatchUnit]:
    """Table 1: batches of 16 different labels, one to four updates, and GradInversion's labels and
    penalties.

    A data set of one's own, such as ImageNet at 224 pixels, is one more.
    """
    found = {}
    for name in dict.fromkeys(("cifar100", "tinyimagenet", own)):
        base = BatchUnit(
            model=network(name), attack=STRONG, batches=Batches(size=16, count=GROUPS), rule=OURS
        )
        yin = dataclasses.replace(STRONG, distance="l2", penalties=(("l2", 1e-3),), start="normal")
        found["Table 1", "GradInversion", name, 16] = dataclasses.replace(
            base, attack=yin, rule=COLUMNS
        )
        for rounds in (1, 2, 3, 4):
            words = f"{rounds} update{'s' if rounds > 1 else ''}"
            found["Table 1", words, name, 16] = dataclasses.replace(base, rounds=rounds)
    return found


def _repeated() -> dict[tuple, BatchUnit]:
    """Table 5: repeated labels, by GradInversion's rule for them and by ours."""
    kinds = {f"repetition {n}": {"repetition": n} for n in (1, 2, 3)}
    kinds |= {f"each label {n} times": {"amount": n} for n in (2, 4)}
    return {
        ("Table 5", f"{name}, {who}", "cifar100", 16): BatchUnit(
            model=network("cifar100"),
            attack=STRONG,
            batches=Batches(size=16, count=GROUPS, **how),
            rule=rule,
        )
        for name, how in kinds.items()
        for who, rule in (("GradInversion's labels", COLUMNS), ("our labels", OURS))
    }


def _weights() -> dict[tuple, BatchUnit]:
    """Figure 5: from what local training left, by its mean gradient and step by step."""
    found = {}
    for epochs in LOCAL:
        mean = dataclasses.replace(STRONG, distance="cosine-tensors")
        local = LocalTraining(epochs=epochs)
        unit = BatchUnit(
            model=network("cifar10"),
            attack=mean,
            batches=Batches(size=8, count=GROUPS),
            local=local,
        )
        words = f"{epochs} epoch{'s' if epochs > 1 else ''}"
        found["Figure 5", f"{words}, mean gradient", "cifar10", 8] = unit
        exact = dataclasses.replace(mean, unroll=True)
        found["Figure 5", f"{words}, unrolled", "cifar10", 8] = dataclasses.replace(
            unit, attack=exact
        )
    return found


def _policies() -> dict[tuple, BatchUnit]:
    """The same image under new draws of a policy in each round, by a server that does not know the
    policy.
    """
    base = BatchUnit(
        model=network("cifar100"),
        attack=STRONG,
        batches=Batches(size=1, count=32),
        defense=HYBRID,
        rounds=1,
    )
    rounds = {f"{n} draws": dataclasses.replace(base, rounds=n) for n in (1, 2, 4)}
    rounds["no policy"] = dataclasses.replace(base, defense="")
    return {("draws of the hybrid", name, "cifar100", 1): unit for name, unit in rounds.items()}
