"""Claim 1: searched policies lower the quality of reconstructions and keep the accuracy (paper, Table 1)."""

import dataclasses
from collections.abc import Callable

import pandas as pd

from atslib.experiments import blocks
from atslib.experiments.blocks import RANDOM
from atslib.experiments.settings import Settings
from atslib.experiments.tables import curve_rows, image_rows, label, provenance
from atslib.experiments.units import AttackUnit, attack_unit, attacked, device_of, trained
from atslib.report import NO_POLICY, Result, paired, summarize
from atslib.store import Store
from atslib.verdicts import privacy_verdict

SEARCHED = blocks.BLOCKS["cifar100", "resnet20"][1]
HYBRID = blocks.hybrid(SEARCHED)
POLICIES = ("", RANDOM, *SEARCHED, HYBRID)
CONTROL_MODEL = "convnet-16"
CONTROL_IMAGES = 8
GRID_IMAGES, GRID_FRAMES = 12, 12  # of the grid of images: those of the explorer, so that both read one artifact


def control_unit(settings: Settings) -> AttackUnit:
    """The positive control: the same attack on undefended images and an untrained ConvNet."""
    unit = attack_unit(settings, "")
    return dataclasses.replace(
        unit,
        model=dataclasses.replace(unit.model, model=CONTROL_MODEL, train=None, fraction=1.0),
        attack=dataclasses.replace(unit.attack, steps=settings.control_steps),
        last=min(CONTROL_IMAGES, settings.images),
        crop_flip=False,
    )


def grid(settings: Settings) -> dict[str, AttackUnit]:
    """The attacks without a policy and with the hybrid on as many images as the grid shows."""
    own = settings.images >= GRID_IMAGES or settings.profile == "smoke"
    size = {} if own else {"last": GRID_IMAGES, "frames": GRID_FRAMES}
    return {label(policy): attack_unit(settings, policy, **size) for policy in ("", HYBRID)}


def units(settings: Settings) -> dict[object, AttackUnit]:
    """All that the page needs: its attacks by the policy's label, the control, the grid and the four blocks."""
    more = {("grid", name): unit for name, unit in grid(settings).items()} | blocks.units(settings)
    return attacks_of(settings) | {"control": control_unit(settings)} | more


def attacks_of(settings: Settings) -> dict[str, AttackUnit]:
    """The attacks that are judged, by the policy's label."""
    return {label(policy): attack_unit(settings, policy) for policy in POLICIES}


def run(settings: Settings, store: Store, *, on_unit: Callable[[str], None] | None = None) -> Result:
    """Train with and without policies, attack, and judge.

    Tables: `attacks` (a row a policy and image), `accuracy` (a row a policy), `curve` (GradSim along the
    attack, a row a policy, step and image), `control`, and those of `blocks.measure`. Sheets: the images behind
    the first, the control, and "grid …".
    """
    device, started = device_of(settings.device), on_unit or (lambda name: None)
    attacks, accuracy, curve, sheets = [], [], [], {}
    attacked_units = attacks_of(settings) | {"control": control_unit(settings)}
    for name, unit in attacked_units.items():
        started(f"policy {name}" if name != "control" else "positive control")
        found = sheets[name] = attacked(unit, store, device)
        if name != "control":
            _, model = trained(unit.model, store, device)
            attacks.append(image_rows(found, unit))
            accuracy.append({"policy": name, "accuracy": float(model["accuracy"]), "train": int(model["images"])})
            curve.append(curve_rows(found, name))
    for name, unit in grid(settings).items():
        sheets[f"grid {name}"] = attacked(unit, store, device)
    control = image_rows(sheets["control"], attacked_units["control"])
    tables = {
        "attacks": pd.concat(attacks, ignore_index=True),
        "accuracy": pd.DataFrame(accuracy),
        "curve": pd.concat(curve, ignore_index=True),
        "control": control,
    } | blocks.measure(settings, store)
    verdict = privacy_verdict(
        tables["attacks"],
        tables["accuracy"].set_index("policy")["accuracy"],
        tables["control"],
        SEARCHED,
        HYBRID,
    )
    facts = provenance(settings, sheets[NO_POLICY])
    return Result("claim1_privacy", tables, facts, verdict, sheets)


def comparison(result: Result) -> pd.DataFrame:
    """Our summary a policy beside the paper's and the replication's Table 1a."""
    ours = summarize(result.tables["attacks"], "policy", epsilon=float(result.facts["epsilon"]))
    attacks = result.tables["attacks"]
    ours["gain over mean image"] = attacks.groupby("policy")["gain"].mean()
    ours["accuracy"] = result.tables["accuracy"].set_index("policy")["accuracy"]
    others = {policy: blocks.published("Table 1a", policy) for policy in ours.index}
    return ours.join(pd.DataFrame(others).T)


def differences(result: Result) -> pd.DataFrame:
    """Each policy minus none on the same images, with intervals: of the PSNR, and of the gain over the mean image.

    Below 0: harder to attack. The gain leaves out what a policy does to the floor itself.
    """
    parts = {name: paired(result.tables["attacks"], NO_POLICY, name) for name in ("psnr", "gain")}
    return pd.concat(parts, axis=1)
