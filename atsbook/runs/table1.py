"""The four blocks of the paper's Table 1: two data sets, two networks, each with the policies
searched for it.
"""

import dataclasses
from collections.abc import Sequence

import pandas as pd

from atsbook.findings.defenses import HYBRID, SEARCHED
from atsbook.findings.reported import policy_label, reported
from atsbook.runs.attacks import AttackUnit, attack_unit
from atsbook.runs.networks import ModelUnit, dataset, model_unit
from atsbook.runs.settings import Settings, unless_changed
from atsbook.runs.tables import label
from atslib.attacks import ATTACKS
from atslib.data.load import available, is_drawn
from atslib.errors import AtsError
from atslib.policies.policy import sample_functions
from atslib.rng import rng

RANDOM = "19-1-18"  # the replication's one random policy
# The paper averages over ten it does not name; ours are `random_policies`.
TEN = 10
OF_TEN = "mean of ten random"
# (data set, network) → table, and the two policies searched there, whose hybrid is the paper's
# proposal
BLOCKS = {
    ("cifar100", "resnet20"): ("Table 1a", SEARCHED),
    ("cifar100", "convnet"): ("Table 1b", ("21-13-3", "7-4-15")),
    ("fmnist", "resnet20"): ("Table 1c", ("19-15-45", "2-43-21")),
    ("fmnist", "convnet"): ("Table 1d", ("42-28-42", "14-48-48")),
}
KEYS = ("dataset", "model", "policy")
FEW = 32  # images of the larger networks, where an attack takes ten times as long
MORE = 50  # images of the ConvNet's blocks, where it is untrained
LONGER = 300  # steps there


def hybrid(policies: Sequence[str]) -> str:
    """One of them for each image."""
    return "+".join(policies)


POLICIES = ("", RANDOM, *SEARCHED, HYBRID)  # of the first block, the one that most pages look at


def second_network(settings: Settings) -> str:
    """The network of another kind that stands beside the settings' own."""
    return {"smoke": "lenet", "full": "convnet-64"}.get(settings.profile, "convnet-16")


def relocated(settings: Settings, name: str, embedded: str, **less: float | int) -> Settings:
    """The settings on data set `name`; on `embedded` where they are of embedded images, or `name`
    is not to be had.

    Args:
        less: quantities in place of the profile's, such as fewer images; what a user has changed
            stays. A data set that the user chose, neither CIFAR-100 nor `name`, stays too.
    Raises:
        AtsError: `name` is here but damaged.
    """
    if is_drawn(settings.dataset):
        return dataclasses.replace(settings, dataset=embedded)
    if settings.dataset not in ("cifar100", name):
        return settings
    try:
        for split in ("train", "test"):
            dataset(name, split)
    except AtsError:
        if available(name, "train") and available(name, "test"):  # damaged: for its owner to see
            raise
        return dataclasses.replace(settings, dataset=embedded)
    return dataclasses.replace(unless_changed(settings, **less), dataset=name)


def family(model: str) -> str:
    """The network of the paper's that a model is of."""
    return "convnet" if model.startswith("convnet") else "resnet20"


def block(name: str, model: str) -> tuple[str, tuple[str, str]]:
    """The table, and its two searched policies, that a data set and network are nearest to."""
    grey = name.startswith("fmnist") or "grey" in name
    return BLOCKS["fmnist" if grey else "cifar100", family(model)]


def on_network(settings: Settings, model: str) -> Settings:
    """The settings with `model` for the network; in the regime `initial` with the strongest attack
    on its family.
    """
    own = dataclasses.replace(settings, model=model)
    if settings.regime != "initial" or model == "lenet":
        return own
    preset = f"annealed-{family(model).removesuffix('20')}"
    few = {"steps": min(settings.steps, ATTACKS[preset].steps), "images": min(FEW, settings.images)}
    return dataclasses.replace(own, attacked=model, attack=preset, **few)


def in_block(settings: Settings, model: str) -> Settings:
    """The settings of a block of Table 1: `on_network`, with more images and steps for an untrained
    ConvNet.
    """
    own = on_network(settings, model)
    if settings.regime != "initial" or family(model) != "convnet":
        return own
    return dataclasses.replace(
        own, images=min(MORE, settings.images), steps=min(LONGER, settings.steps)
    )


def short(settings: Settings) -> Settings:
    """The settings of trainings of which there are many: at laptop at most a tenth of the data, for
    ten epochs.
    """
    if settings.profile != "laptop":
        return settings
    return dataclasses.replace(
        settings, fraction=min(0.1, settings.fraction), epochs=min(10, settings.epochs)
    )


def classes(name: str) -> int:
    """How many classes a data set has."""
    return dataset(name, "test").num_classes


def units(settings: Settings) -> dict[tuple[str, str, str], AttackUnit]:
    """All attacks by (data set, network, policy); at smoke without a policy and with the hybrid
    only.
    """
    attacks = {}
    for place in (settings, relocated(settings, "fmnist", "shapes-grey")):
        for model in (settings.model, second_network(settings)):
            own = in_block(place, model)
            searched = block(own.dataset, model)[1]
            between = () if settings.profile == "smoke" else (RANDOM, *searched)
            for policy in ("", *between, hybrid(searched)):
                attacks[own.dataset, model, label(policy)] = attack_unit(own, policy)
    return attacks


def random_policies(settings: Settings) -> list[str]:
    """Ten random policies as the authors draw them, each function once; one at smoke."""
    count = 1 if settings.profile == "smoke" else TEN
    return list(map(str, sample_functions(count, rng=rng(settings.seed, "table 1"))))


def networks(settings: Settings) -> dict[tuple[str, str, str], ModelUnit]:
    """Short trainings of all blocks with all their policies, by (data set, network, policy); none
    at smoke.

    At laptop the ConvNet is a quarter as wide as the one that is attacked, whose steps take several
    times as long.
    """
    trained: dict[tuple[str, str, str], ModelUnit] = {}
    for place in (
        (settings, relocated(settings, "fmnist", "shapes-grey"))
        if settings.profile != "smoke"
        else ()
    ):
        for model in (settings.model, trained_second(settings)):
            searched = block(place.dataset, model)[1]
            for policy in ("", RANDOM, *searched, hybrid(searched)):
                trained[place.dataset, model, label(policy)] = model_unit(
                    short(place), policy, model=model
                )
    return trained


def trained_second(settings: Settings) -> str:
    """The network that stands for the second one where many are trained."""
    return "convnet-4" if settings.profile == "laptop" else second_network(settings)


def published_rows(table: str, policy: str, random: str = RANDOM) -> pd.DataFrame:
    """Rows of `reported` for a policy in one table of both publications; `random` stands for the
    paper's ten.
    """
    rows = reported(table_or_figure=table)
    names = rows["policy_or_defense"].map(policy_label).replace({"random": random})
    # The replication writes a hybrid's members in the other order.
    return rows[names.map(lambda name: sorted(name.split("+")) == sorted(policy.split("+")))]
