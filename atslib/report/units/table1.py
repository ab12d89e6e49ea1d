"""The four blocks of the paper's Table 1: two data sets, two networks, each with the policies searched for it."""

import dataclasses
from collections.abc import Sequence

import pandas as pd

from atslib.data.load import available
from atslib.errors import AtsError
from atslib.report.result import NO_POLICY, paired, policy_label, reported, summarize
from atslib.report.units.settings import PROFILES, Settings
from atslib.report.units.tables import image_rows, label
from atslib.report.units.units import AttackUnit, attack_unit, attacked, dataset, device_of, trained
from atslib.store import Store

RANDOM = "19-1-18"  # the replication's one random policy; the paper averages over ten it does not name
# (data set, network) → table, and the two policies searched there, whose hybrid is the paper's proposal
BLOCKS = {
    ("cifar100", "resnet20"): ("Table 1a", ("3-1-7", "43-18-18")),
    ("cifar100", "convnet"): ("Table 1b", ("21-13-3", "7-4-15")),
    ("fmnist", "resnet20"): ("Table 1c", ("19-15-45", "2-43-21")),
    ("fmnist", "convnet"): ("Table 1d", ("42-28-42", "14-48-48")),
}
SECOND = {"smoke": "lenet", "quick": "convnet-16", "paper": "convnet-64"}  # beside the settings' own network
KEYS = ["dataset", "model", "policy"]


def relocated(settings: Settings, name: str, embedded: str, **less: float | int) -> Settings:
    """The settings on data set `name`; on `embedded` where they are of embedded images, or `name` is not to be had.

    Args:
        less: quantities in place of the profile's, such as fewer images; what a user has changed stays. A
            data set that the user chose, neither CIFAR-100 nor `name`, stays too.
    Raises:
        AtsError: `name` is here but damaged.
    """
    if settings.dataset.startswith("shapes"):
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
    unchanged = {k: v for k, v in less.items() if getattr(settings, k) == PROFILES[settings.profile][k]}
    return dataclasses.replace(settings, dataset=name, **unchanged)


def family(model: str) -> str:
    """The network of the paper's that a model is of."""
    return "convnet" if model.startswith("convnet") else "resnet20"


def hybrid(policies: Sequence[str]) -> str:
    """One of them for each image."""
    return "+".join(policies)


def block(name: str, model: str) -> tuple[str, tuple[str, str]]:
    """The table, and its two searched policies, that a data set and network are nearest to."""
    grey = name.startswith("fmnist") or "grey" in name
    return BLOCKS["fmnist" if grey else "cifar100", family(model)]


def units(settings: Settings) -> dict[tuple[str, str, str], AttackUnit]:
    """All attacks by (data set, network, policy); below the paper's size without a policy and with the hybrid only."""
    found = {}
    for place in (settings, relocated(settings, "fmnist", "shapes-grey")):
        for model in (settings.model, SECOND[settings.profile]):
            own = dataclasses.replace(place, model=model)
            searched = block(own.dataset, model)[1]
            between = (RANDOM, *searched) if settings.profile == "paper" else ()
            for policy in ("", *between, hybrid(searched)):
                found[own.dataset, model, label(policy)] = attack_unit(own, policy)
    return found


def measure(settings: Settings, store: Store) -> dict[str, pd.DataFrame]:
    """Tables `blocks` (a row a data set, network, policy and image) and `blocks_accuracy`."""
    device, attacks, accuracy = device_of(settings.device), [], []
    for key, unit in units(settings).items():
        where = dict(zip(KEYS, key, strict=True))
        attacks.append(image_rows(attacked(unit, store, device), unit).assign(**where))
        accuracy.append(where | {"accuracy": float(trained(unit.model, store, device)[1]["accuracy"])})
    return {"blocks": pd.concat(attacks, ignore_index=True), "blocks_accuracy": pd.DataFrame(accuracy)}


def published(table: str, policy: str) -> dict[str, float]:
    """Both publications' PSNR and accuracy for a policy; nan where there is none."""
    rows = reported(table_or_figure=table)
    names = rows["policy_or_defense"].map(policy_label).replace({"random": RANDOM})
    # The replication writes a hybrid's members in the other order.
    rows = rows[names.map(lambda name: sorted(name.split("+")) == sorted(policy.split("+")))]
    return {
        f"{ {'ats': 'paper'}.get(source, source) } {name}": rows["value"][
            (rows["source"] == source) & (rows["metric"] == metric)
        ].mean()
        for source in ("ats", "replication")
        for metric, name in (("PSNR_dB", "PSNR"), ("val_accuracy_pct", "accuracy"))
    }


def comparison(tables: dict[str, pd.DataFrame], epsilon: float) -> pd.DataFrame:
    """A row a data set, network and policy: our summary, and the numbers of the paper's and the replication's block."""
    ours = summarize(tables["blocks"], KEYS, epsilon=epsilon)
    ours["gain over mean image"] = tables["blocks"].groupby(KEYS)["gain"].mean()
    ours["accuracy"] = tables["blocks_accuracy"].set_index(KEYS)["accuracy"]
    others = pd.DataFrame({key: published(block(*key[:2])[0], key[2]) for key in ours.index}).T
    return ours.join(others.rename_axis(KEYS))


def differences(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Each policy minus none on the same images, PSNR and gain, a row a block and policy; below 0: harder."""
    groups = dict(list(tables["blocks"].groupby(KEYS[:2], sort=False)))
    parts = {
        name: pd.concat({place: paired(rows, NO_POLICY, name) for place, rows in groups.items()}, names=KEYS[:2])
        for name in ("psnr", "gain")
    }
    return pd.concat(parts, axis=1)
