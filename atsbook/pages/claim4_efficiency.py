"""Claim 4: policies hardly slow training (paper, Figure 3; replication, Figure 4)."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import torch

from atsbook.bench import seconds
from atsbook.findings.compare import beside
from atsbook.findings.result import NO_POLICY, Result, Verdict
from atsbook.findings.statistics import paired
from atsbook.runs.networks import (
    CURVE_IMAGES,
    ModelUnit,
    dataset,
    device_of,
    model_unit,
    network,
    trained,
)
from atsbook.runs.settings import Settings
from atsbook.runs.store import Artifact, Store
from atsbook.runs.table1 import HYBRID, POLICIES, published_rows
from atsbook.runs.tables import accuracy_rows, label, provenance
from atslib.clients.training import TrainConfig, fit
from atslib.policies.operations import crop_and_flip
from atslib.policies.policy import parse_policy
from atslib.rng import rng

LEVELS = (0.5, 0.8, 0.95)  # of the undefended network's last accuracy
TIMED_BATCHES = 4
REPEATS = 3
SEEDS = 3  # trainings with each policy
MARGIN = 2.0  # points of accuracy: a policy that costs less is no worse


def networks(settings: Settings) -> dict[str, ModelUnit]:
    """The trainings behind the curves, by the policy's label: those of claim 1."""
    return {label(policy): model_unit(settings, policy) for policy in POLICIES}


def repeated(settings: Settings) -> dict[tuple[str, int], ModelUnit]:
    """The same without a policy and with the hybrid, with several seeds, by (policy, seed); none at
    smoke.
    """
    seeds = range(settings.seed, settings.seed + SEEDS) if settings.profile != "smoke" else ()
    return {
        (label(p), seed): model_unit(settings, p, seed=seed) for seed in seeds for p in ("", HYBRID)
    }


def units(settings: Settings) -> dict[object, ModelUnit]:
    """All trainings of the page."""
    return networks(settings) | {
        ("repeated", *key): unit for key, unit in repeated(settings).items()
    }


def timed(settings: Settings, store: Store) -> Artifact:
    """Seconds for `TIMED_BATCHES` batches: `epoch` () of training, `crop_flip` () and `policy` (P,)
    alone.

    All are medians of `REPEATS` runs after a warm-up, in one process: their ratios do not depend on
    what else ran when the networks were trained. The device is part of what the numbers mean, so it
    is in the key.
    """
    device = device_of(settings.device)
    config = {"model": settings.model, "dataset": settings.dataset, "policies": POLICIES}
    config |= {"batches": TIMED_BATCHES, "device": str(device)}

    def compute(state: object) -> dict[str, torch.Tensor]:
        model = network(model_unit(settings)).to(device)
        batch = TrainConfig().batch
        images = dataset(settings.dataset, "train")[: TIMED_BATCHES * batch]
        pixels = images.pixels.to(device)
        plain = TrainConfig(epochs=1, crop_flip=False)

        def apply(policy: str) -> None:
            draws = rng(0, "timing")
            for part in pixels.split(batch):
                parse_policy(policy)(part, rng=draws)

        def crop() -> None:
            for part in pixels.split(batch):
                crop_and_flip(part, rng=rng(0, "timing"))

        def clock(call: Callable[[], object]) -> torch.Tensor:
            return torch.tensor(seconds(call, device=device, repeats=REPEATS)[0], device=device)

        epoch = clock(lambda: fit(model, images, plain, rng=rng(0, "timing")))
        policies = [clock(lambda p=p: apply(p)) for p in POLICIES]
        return {"epoch": epoch, "crop_flip": clock(crop), "policy": torch.stack(policies)}

    return store.get(
        "timing", config, compute, label=f"time of the transformations, {settings.model}"
    )


def epochs_to(curve: pd.DataFrame, accuracies: dict[str, float]) -> pd.DataFrame:
    """The first epoch (from 1) at each accuracy, one row per policy; NaN where it is never reached.

    Args:
        curve: with `policy`, `epoch` and `accuracy`.
        accuracies: in percent, by the column's name.
    """
    groups = curve.groupby("policy", sort=False)
    rows = {
        policy: {
            name: rows["epoch"][rows["accuracy"] >= level].min()
            for name, level in accuracies.items()
        }
        for policy, rows in groups
    }
    return pd.DataFrame(rows).T.rename_axis("policy").astype(float)


def levels(curve: pd.DataFrame) -> dict[str, float]:
    """`LEVELS` of the undefended network's last accuracy, in percent, by a name for people."""
    bare = curve[curve["policy"] == NO_POLICY].sort_values("epoch")["accuracy"].iloc[-1]
    return {f"{level:.0%} of {bare:.1f} %": level * bare for level in LEVELS}


EFFICIENCY_RULE = (
    "Reproduced: the network trained with the hybrid reaches 50, 80 and 95 % of the undefended network's last test "
    "accuracy at most 10 % of all epochs later (at least one epoch is allowed), and drawing and applying the hybrid "
    "takes at most 5 % of an epoch's time. Partly: one of the two. Not reproduced: neither. Not measured: fewer than "
    "five epochs, an undefended network below 5 times chance, or a stored run without an accuracy for every epoch."
)


def efficiency_verdict(
    reached: pd.DataFrame, share: float, hybrid: str, *, epochs: int, accuracy: float, chance: float
) -> Verdict:
    """Claim 4 by `EFFICIENCY_RULE`.

    Args:
        reached: epochs until each level, one row per policy and one column per level; NaN where it
            is never reached.
        share: time of the hybrid's transformations over that of an epoch.
        accuracy, chance: percent, of the undefended network at the end, and of guessing.
    """
    if epochs < 5 or not accuracy >= 5 * chance or reached.loc[NO_POLICY].isna().any():
        reason = (
            f"{epochs} epochs up to an undefended accuracy of {accuracy:.1f} % cannot show a speed"
        )
        return Verdict("not measured", reason, EFFICIENCY_RULE)
    late = (reached.loc[hybrid] - reached.loc[NO_POLICY]).max(skipna=False)
    soon = late <= max(1, 0.1 * epochs)
    cheap = share <= 0.05
    when = (
        f"{late:+.0f} epochs at the latest level" if late == late else "one level is never reached"
    )
    here = f"{when}, transformations {share:.1%} of an epoch"
    status = "reproduced" if soon and cheap else "partly" if soon or cheap else "not reproduced"
    return Verdict(status, f"the hybrid against no policy: {here}", EFFICIENCY_RULE, here)


def run(settings: Settings, store: Store) -> Result:
    """Training curves with and without policies, and what the transformations cost.

    Tables: `curve` (one row per policy and epoch: training loss, accuracy on the first
    `CURVE_IMAGES` test images, seconds), `accuracy` (after the last epoch, on all test images),
    `cost`, one row per policy: seconds for the same images, and `share` of an epoch without any
    transformation; and, but for smoke, `seeds`: the accuracy of trainings with several seeds, one
    row per policy and seed.
    """
    device = device_of(settings.device)
    long = networks(settings)
    made = {policy: trained(unit, store, device)[1] for policy, unit in long.items()}
    curve = pd.concat(
        [history_rows(model["history"], policy) for policy, model in made.items()],
        ignore_index=True,
    )
    accuracy = accuracy_rows(long, ["policy"], settings, store).drop(columns="train")
    time = timed(settings, store)
    cost = pd.DataFrame(
        {"policy": [label(p) for p in POLICIES], "seconds": time["policy"].double().numpy()}
    )
    cost["share"] = cost["seconds"] / float(time["epoch"])
    cost["epoch_seconds"] = float(time["epoch"])
    cost["crop_flip_seconds"] = float(time["crop_flip"])
    share = float(cost.set_index("policy").loc[HYBRID, "share"])
    bare = accuracy["accuracy"][0]
    classes = dataset(settings.dataset, "test").num_classes
    reached = epochs_to(curve, levels(curve))
    epochs = settings.epochs
    verdict = efficiency_verdict(
        reached, share, HYBRID, epochs=epochs, accuracy=bare, chance=100 / classes
    )
    facts = provenance(settings, list(made.values())[-1]) | {
        "images": len(dataset(settings.dataset, "test")),
        "steps": 0,
    }
    facts |= {"timed_on": time.facts["device"], "curve_images": CURVE_IMAGES, "classes": classes}
    tables = {"curve": curve, "accuracy": accuracy, "cost": cost}
    if several := repeated(settings):
        tables["seeds"] = accuracy_rows(several, ["policy", "seed"], settings, store)
    return Result("claim4_efficiency", tables, facts, verdict)


def history_rows(history: torch.Tensor, policy: str) -> pd.DataFrame:
    """One row per epoch of a training; the accuracy is nan where a network was trained before it
    was kept.
    """
    table = pd.DataFrame(
        history.double().numpy(), columns=["loss", "lr", "seconds", "accuracy"][: history.shape[1]]
    )
    table = table.reindex(columns=["loss", "lr", "seconds", "accuracy"])
    table.insert(0, "epoch", range(1, len(table) + 1))
    return table.assign(policy=policy)


def comparison(result: Result) -> pd.DataFrame:
    """One row per policy: epochs to each level, last loss and accuracy here and as published."""
    curve = result.tables["curve"]
    table = epochs_to(curve, levels(curve)).add_prefix("epochs to ")
    table["last training loss"] = curve.groupby("policy")["loss"].last()
    table["accuracy"] = result.tables["accuracy"].set_index("policy")["accuracy"]
    table = beside(table, lambda policy: published_rows("Table 1a", policy))
    return table.drop(columns=["paper PSNR", "replication PSNR"], errors="ignore")


def overhead(result: Result) -> pd.DataFrame:
    """One row per policy: milliseconds per image, and percent of the training time of that image."""
    cost = result.tables["cost"].set_index("policy")
    images = TIMED_BATCHES * TrainConfig().batch
    return pd.DataFrame(
        {
            "policy, ms per image": 1e3 * cost["seconds"] / images,
            "crop and flip, ms per image": 1e3 * cost["crop_flip_seconds"] / images,
            "training, ms per image": 1e3 * cost["epoch_seconds"] / images,
            "policy, % of training": 100 * cost["share"],
        }
    )


NO_WORSE_RULE = (
    f"Over {SEEDS} trainings with seeds of their own, the policy and no policy sharing each: a policy is no worse if "
    f"the 95 % interval (Student's t) of its change of the accuracy lies above -{MARGIN:.0f} points, worse if it lies "
    "below that, and else nobody can tell. A network below 5 times chance is not judged."
)


def no_worse(result: Result) -> pd.DataFrame:
    """One row per policy: accuracies in percent, the change in points, and what `NO_WORSE_RULE`
    says of it.
    """
    table = result.tables["seeds"]
    accuracy = table.groupby("policy")["accuracy"].mean()
    change = paired(table, NO_POLICY, "accuracy", unit="seed")
    words = np.select(
        [change["low"] > -MARGIN, change["high"] < -MARGIN], ["no worse", "worse"], "cannot tell"
    )
    if accuracy[NO_POLICY] < 500 / result.facts["classes"]:
        words = "not judged"
    change = change.assign(judged=words).rename(columns={"n": "seeds", "mean": "change, points"})
    change.insert(1, "accuracy, %", accuracy)
    change.insert(1, "without a policy, %", accuracy[NO_POLICY])
    return change
