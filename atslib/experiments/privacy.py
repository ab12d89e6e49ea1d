"""Claim 1: searched policies lower the quality of reconstructions and keep the accuracy (paper, Table 1)."""

import dataclasses
import datetime
from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor

from atslib.attacks import ATTACKS
from atslib.errors import AtsError
from atslib.experiments.settings import Settings
from atslib.experiments.units import AttackUnit, attacked, dataset, device_of, model_unit, trained
from atslib.metrics import psnr
from atslib.report import NO_POLICY, Result, paired, policy_label, privacy_verdict, reported, summarize
from atslib.store import Artifact, Store

RANDOM = "19-1-18"  # the replication's one random policy; the paper averages over ten it does not name
SEARCHED = ("3-1-7", "43-18-18")
HYBRID = "3-1-7+43-18-18"
POLICIES = ("", RANDOM, *SEARCHED, HYBRID)
CONTROL_MODEL = "convnet-16"
CONTROL_IMAGES = 8


def label(policy: str) -> str:
    """How tables name a policy."""
    return policy or NO_POLICY


def attack_unit(settings: Settings, policy: str) -> AttackUnit:
    """The attack on images transformed by `policy`, against the network trained with it."""
    if settings.images > (there := len(dataset(settings.dataset, "test"))):
        raise AtsError(f"parameter images={settings.images}: {settings.dataset} has {there} test images")
    attack = dataclasses.replace(ATTACKS["adam-cosine"], steps=settings.steps)
    return AttackUnit(
        model=model_unit(settings, policy),
        policy=policy,
        attack=attack,
        first=0,
        last=settings.images,
        crop_flip=settings.crop_flip == "fixed" or policy != "",
        seed=settings.seed,
    )


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


def floors(target: Tensor, name: str) -> dict[str, Tensor]:
    """PSNR of what can be guessed without any gradient: flat mid-grey, and the mean training image."""
    pixels = target.float() / 255
    mean = dataset(name, "train").pixels.float().mean(0) / 255
    guesses = {"floor_grey": torch.full_like(pixels, 0.5), "floor_mean": mean.expand_as(pixels)}
    return {column: psnr(guess.contiguous(), pixels) for column, guess in guesses.items()}


def _rows(artifact: Artifact, unit: AttackUnit, name: str) -> pd.DataFrame:
    columns = {key: artifact[key] for key in ("psnr", "psnr_original", "mse", "ssim", "cost")}
    columns |= floors(artifact["target"], name)
    table = pd.DataFrame({key: value.double().numpy() for key, value in columns.items()})
    table.insert(0, "image", range(unit.first, unit.last))
    table.insert(0, "policy", label(unit.policy))
    return table


def run(settings: Settings, store: Store, *, on_unit: Callable[[str], None] | None = None) -> Result:
    """Train with and without policies, attack, and judge.

    Tables: `attacks` (a row a policy and image), `accuracy` (a row a policy), `curve` (GradSim along the
    attack, a row a policy, step and image), `control`. Sheets: the images behind them.
    """
    device, started = device_of(settings.device), on_unit or (lambda name: None)
    attacks, accuracy, curve, sheets = [], [], [], {}
    for policy in POLICIES:
        started(f"policy {label(policy)}")
        unit = attack_unit(settings, policy)
        _, model = trained(unit.model, store, device)
        found = attacked(unit, store, device)
        attacks.append(_rows(found, unit, settings.dataset))
        accuracy.append({"policy": label(policy), "accuracy": float(model["accuracy"]), "train": int(model["images"])})
        curve.append(_curve(found, label(policy)))
        sheets[label(policy)] = found
    started("positive control")
    unit = control_unit(settings)
    control = attacked(unit, store, device)
    tables = {
        "attacks": pd.concat(attacks, ignore_index=True),
        "accuracy": pd.DataFrame(accuracy),
        "curve": pd.concat(curve, ignore_index=True),
        "control": _rows(control, unit, settings.dataset),
    }
    verdict = privacy_verdict(
        tables["attacks"],
        tables["accuracy"].set_index("policy")["accuracy"],
        tables["control"],
        SEARCHED,
        HYBRID,
    )
    facts = _facts(settings, sheets[NO_POLICY])
    return Result("claim1_privacy", tables, facts, verdict, sheets | {"control": control})


def _curve(found: Artifact, policy: str) -> pd.DataFrame:
    """1 - cosine distance before each kept step; one value an image."""
    steps, images = found["trace"].shape
    return pd.DataFrame(
        {
            "policy": policy,
            "iteration": found["trace_steps"].repeat_interleave(images).numpy(),
            "image": list(range(images)) * steps,
            "gradsim": 1 - found["trace"].flatten().double().numpy(),
        }
    )


def _facts(settings: Settings, artifact: Artifact) -> dict[str, object]:
    """Provenance for the banner; `made` is the day of the computation, not of the page."""
    keys = ("device", "made", "torch", "python")
    facts = dataclasses.asdict(settings) | {key: artifact.facts[key] for key in keys}
    facts["made"] = datetime.datetime.fromisoformat(facts["made"]).date().isoformat()
    images = dataset(settings.dataset, "train")
    return facts | {"train": len(images), "note": images.note}


def comparison(result: Result) -> pd.DataFrame:
    """Our summary a policy beside the paper's and the replication's Table 1a."""
    ours = summarize(result.tables["attacks"], "policy", epsilon=float(result.facts["epsilon"]))
    attacks = result.tables["attacks"]
    ours["gain over mean image"] = (attacks["psnr"] - attacks["floor_mean"]).groupby(attacks["policy"]).mean()
    ours["accuracy"] = result.tables["accuracy"].set_index("policy")["accuracy"]
    rows = reported(table_or_figure="Table 1a")
    rows = rows.assign(policy=rows["policy_or_defense"].map(policy_label).replace({"random": RANDOM}))
    for source in ("ats", "replication"):
        for metric, name in (("PSNR_dB", "PSNR"), ("val_accuracy_pct", "accuracy")):
            found = rows[(rows["source"] == source) & (rows["metric"] == metric)].set_index("policy")["value"]
            ours[f"{ {'ats': 'paper'}.get(source, source) } {name}"] = found
    return ours


def differences(result: Result) -> pd.DataFrame:
    """PSNR with each policy minus without, on the same images, with its interval; below 0: harder to attack."""
    return paired(result.tables["attacks"], NO_POLICY)
