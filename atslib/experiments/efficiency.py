"""Claim 4: policies hardly slow training (paper, Figure 3; replication, Figure 4)."""

import math
from collections.abc import Callable

import pandas as pd
import torch

from atslib.bench import seconds
from atslib.experiments.privacy import HYBRID, POLICIES
from atslib.experiments.settings import Settings
from atslib.experiments.tables import label, provenance
from atslib.experiments.units import CURVE_IMAGES, ModelUnit, dataset, device_of, model_unit, network, trained
from atslib.policies import parse_policy
from atslib.report import NO_POLICY, Result, policy_label, reported
from atslib.rng import rng
from atslib.store import Artifact, Store
from atslib.training import TrainConfig, fit
from atslib.transforms import crop_and_flip
from atslib.verdicts import efficiency_verdict

LEVELS = (0.5, 0.8, 0.95)  # of the undefended network's last accuracy
TIMED_BATCHES = 4
REPEATS = 3


def units(settings: Settings) -> dict[str, ModelUnit]:
    """The page's trained networks by the policy's label: those of claim 1."""
    return {label(policy): model_unit(settings, policy) for policy in POLICIES}


def timed(settings: Settings, store: Store) -> Artifact:
    """Seconds for `TIMED_BATCHES` batches: `epoch` () of training, `crop_flip` () and `policy` (P,) alone.

    All are medians of `REPEATS` runs after a warm-up, in one process: their ratios do not depend on what else
    ran when the networks were trained. The device is part of what the numbers mean, so it is in the key.
    """
    device = device_of(settings.device)
    config = {"model": settings.model, "dataset": settings.dataset, "policies": POLICIES}
    config |= {"batches": TIMED_BATCHES, "device": str(device)}

    def compute(state: object) -> dict[str, torch.Tensor]:
        model = network(model_unit(settings)).to(device)
        batch = TrainConfig().batch
        images = dataset(settings.dataset, "train")[: TIMED_BATCHES * batch]
        pixels, plain = images.pixels.to(device), TrainConfig(epochs=1, crop_flip=False)

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

    return store.get("timing", config, compute, label=f"time of the transformations, {settings.model}")


def epochs_to(curve: pd.DataFrame, accuracies: dict[str, float]) -> pd.DataFrame:
    """The first epoch (from 1) at each accuracy, a row a policy; NaN where it is never reached.

    Args:
        curve: with `policy`, `epoch` and `accuracy`.
        accuracies: in percent, by the column's name.
    """
    groups = curve.groupby("policy", sort=False)
    rows = {
        policy: {name: rows["epoch"][rows["accuracy"] >= level].min() for name, level in accuracies.items()}
        for policy, rows in groups
    }
    return pd.DataFrame(rows).T.rename_axis("policy").astype(float)


def levels(curve: pd.DataFrame) -> dict[str, float]:
    """`LEVELS` of the undefended network's last accuracy, in percent, by a name for people."""
    bare = curve[curve["policy"] == NO_POLICY].sort_values("epoch")["accuracy"].iloc[-1]
    return {f"{level:.0%} of {bare:.1f} %": level * bare for level in LEVELS}


def run(settings: Settings, store: Store) -> Result:
    """Training curves with and without policies, and what the transformations cost.

    Tables: `curve` (a row a policy and epoch: training loss, accuracy on the first `CURVE_IMAGES` test
    images, seconds), `accuracy` (after the last epoch, on all test images) and `cost`, a row a policy: seconds
    for the same images, and `share` of an epoch without any transformation.
    """
    device, curve, accuracy, last = device_of(settings.device), [], [], None
    for policy, unit in units(settings).items():
        last = trained(unit, store, device)[1]
        history = last["history"].double()
        if history.shape[1] == 3:  # made before the accuracy of each epoch was kept
            history = torch.cat([history, history.new_full((len(history), 1), math.nan)], 1)
        rows = pd.DataFrame(history.numpy(), columns=["loss", "lr", "seconds", "accuracy"])
        rows.insert(0, "epoch", range(1, len(rows) + 1))
        curve.append(rows.assign(policy=policy))
        accuracy.append({"policy": policy, "accuracy": float(last["accuracy"])})
    curve, time = pd.concat(curve, ignore_index=True), timed(settings, store)
    cost = pd.DataFrame({"policy": [label(p) for p in POLICIES], "seconds": time["policy"].double().numpy()})
    cost["share"] = cost["seconds"] / float(time["epoch"])
    cost["epoch_seconds"], cost["crop_flip_seconds"] = float(time["epoch"]), float(time["crop_flip"])
    share = cost.set_index("policy").loc[HYBRID, "share"]
    bare, chance = accuracy[0]["accuracy"], 100 / dataset(settings.dataset, "test").num_classes
    reached, epochs = epochs_to(curve, levels(curve)), settings.epochs
    verdict = efficiency_verdict(reached, float(share), HYBRID, epochs=epochs, accuracy=bare, chance=chance)
    facts = provenance(settings, last) | {"timed_on": time.facts["device"], "curve_images": CURVE_IMAGES}
    return Result(
        "claim4_efficiency", {"curve": curve, "accuracy": pd.DataFrame(accuracy), "cost": cost}, facts, verdict
    )


def comparison(result: Result) -> pd.DataFrame:
    """A row a policy: epochs to each level, last loss and accuracy here and as published."""
    curve = result.tables["curve"]
    table = epochs_to(curve, levels(curve)).add_prefix("epochs to ")
    table["last training loss"] = curve.groupby("policy")["loss"].last()
    table["accuracy"] = result.tables["accuracy"].set_index("policy")["accuracy"]
    rows = reported(table_or_figure="Table 1a", metric="val_accuracy_pct")
    for source, name in (("ats", "paper accuracy"), ("replication", "replication accuracy")):
        found = rows[rows["source"] == source]
        policies = found["policy_or_defense"].map(policy_label)
        table[name] = found["value"].set_axis(policies).rename({"random": POLICIES[1]})
    return table


def overhead(result: Result) -> pd.DataFrame:
    """A row a policy: milliseconds for an image, and percent of the training time of that image."""
    cost, images = result.tables["cost"].set_index("policy"), TIMED_BATCHES * TrainConfig().batch
    found = pd.DataFrame({"policy, ms an image": 1e3 * cost["seconds"] / images})
    found["crop and flip, ms an image"] = 1e3 * cost["crop_flip_seconds"] / images
    found["training, ms an image"] = 1e3 * cost["epoch_seconds"] / images
    found["policy, % of training"] = 100 * cost["share"]
    return found
