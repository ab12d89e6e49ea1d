"""Extension 8: nine claims of Inverting Gradients (Geiping et al.) and four objections to it, each tested."""

import html
from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch

from atslib.measures.statistics import interval, share_interval
from atslib.report import lines
from atslib.report.lines import Line
from atslib.report.result import Result, Verdict
from atslib.report.units.batches import BatchUnit, attacked_batches
from atslib.report.units.gradients import FeatureUnit, StagesUnit, features_read, rolled_ranks, through_training
from atslib.report.units.inverting import RESTARTS, attack_units, batch_units, gradient_units
from atslib.report.units.networks import Unit, device_of
from atslib.report.units.settings import Settings
from atslib.report.units.tables import image_rows, label, provenance
from atslib.report.units.units import AttackUnit, attacked
from atslib.report.verdicts import MARGIN
from atslib.store import Artifact, Store

KEYS = ("line", "where", "what")


def units(settings: Settings) -> dict[tuple, Unit]:
    """All by (line, where, what); those of tuning by ("tuned", line, where, attack, step size)."""
    return gradient_units(settings) | attack_units(settings) | batch_units(settings)


LINES = {
    "C1": Line(
        "The direction of a gradient carries the image, its length the stage of training.",
        "Gradients of 64 images at ten stages of ResNet20-1's training. The stage explains more of the variance "
        "of the logarithm of the length than the image does, and the image more of that of the direction than the "
        "stage (95 % intervals over images of the difference).",
        lines.direction,
    ),
    "C2": Line(
        "The cosine is a better distance than the Euclidean one, and more so on trained networks.",
        "Where one of the four attacks gains on the floor, each at its best step size, the cosine gains more than "
        "L2 (95 % interval of the difference above 0); and its lead on the semi-trained or the trained network is "
        "clearly larger than on the untrained one (intervals apart). Partly: one of these holds. Cannot tell: no "
        "attack gains anywhere.",
        lines.cosine,
    ),
    "O4": Line(
        "Sixteen restarts were given to one side only.",
        f"The objection holds if restarts, chosen by the attack's own cost, raise the PSNR by more than {MARGIN} "
        f"dB (95 % interval) for every attack; partly: for some. It does not if all changes lie within ± {MARGIN} "
        "dB.",
        lines.restarts,
    ),
    "C3": Line(
        "Adam on the signs of the gradient is the better optimizer.",
        "At equal gradients and the best step size of each, signed Adam gains more than all others in both places "
        "(95 % intervals of the differences above 0). Not reproduced: in both some other one gains more than it. "
        "Partly: neither.",
        lines.optimizers,
    ),
    "C4": Line(
        "Trained networks leak, too.",
        "At the end of the training of both networks attacks gain on the floor (95 % interval above 0). Partly: "
        "in one, or in one more images are singled out among 100 than by chance (exact 95 % interval above 1 %).",
        lines.trained,
    ),
    "C5": Line(
        "Depth hardly matters.",
        "At width 16, 32 images, the gains on ResNet-34 and -152 differ from that on ResNet-18 by less than "
        f"{MARGIN} dB (95 % intervals inside). Not reproduced: both by more. Partly: one by more. Else it cannot "
        "be told.",
        lines.depth,
    ),
    "C6": Line(
        "Width raises the variance: more attempts, more luck.",
        "Of ResNet-18 at widths 16 and 64, 32 images with four starts each: at 64 the deviation over starts and "
        "what the luckiest start has above their mean are larger (95 % intervals of the differences above 0). "
        "Partly: one is. Not reproduced: one is smaller, and none larger. Else it cannot be told.",
        lines.width,
    ),
    "C7": Line(
        "Padding hides the image, and translation invariance hurts the attack.",
        "The gain on LeNet padded with zeros is below that without padding; and that on ResNet20-1 with circular "
        "padding, which does not see shifts by its stride, is below that with zeros (95 % intervals).",
        lines.padding,
    ),
    "C8": Line(
        "Averaging over local steps does not protect.",
        f"The PSNR after twenty local steps, which the attack repeats, is not more than {MARGIN} dB below that "
        "after one, for single images and for batches of eight (95 % intervals). Not reproduced: it is for both. "
        "Partly: for one. Else it cannot be told.",
        lines.local_steps,
    ),
    "C9": Line(
        "A batch of a hundred leaks some of its images.",
        "Of a hundred images of CIFAR-100 that share a gradient, attacked as one problem, more are singled out "
        "among 100 than by chance (exact 95 % interval above 1 %), on LeNet and on ResNet20-1, both untrained. "
        "Partly: on one.",
        lines.hundred,
    ),
    "O1": Line(
        "The theorem on linear layers stands alone; it could have been used.",
        "The objection holds if the inputs of the last layer are read off gradients of single images to 1e-4 of "
        "their length (median, every network), and some attack on these features alone gains on the floor (95 % "
        "interval).",
        lines.linear,
    ),
    "O2": Line(
        "Realistic batches were given a single experiment.",
        "The objection holds if single images mislead: of a hundred that share a gradient, labels restored, less "
        "than half as many are found (exact 95 % interval below that). It does not if the interval is above.",
        lines.batches,
    ),
    "O3": Line(
        "Comparisons stand without the truth and without absolute numbers.",
        "The objection holds if, among the clear leads of line C2 (95 % interval above 0), some are of attacks "
        "that do not beat the floor themselves: a comparison alone would take them for a success.",
        lines.relative,
    ),
}

RULE = (
    "Each line has its rule, written before its run and printed with it. Of the nine claims: reproduced if all hold, not "
    "reproduced if none does, partly otherwise; cannot tell if half of them or more cannot be told."
)


def verdict(tables: Mapping[str, pd.DataFrame]) -> tuple[pd.DataFrame, Verdict]:
    """Every line's status and numbers, one row each, and what the claims come to."""
    judged = pd.DataFrame(
        [(name, *line(tables)) for name, line in LINES.items()], columns=["line", "status", "numbers"]
    )
    claims = judged[judged["line"].str.startswith("C")]["status"].value_counts()
    counted = "; ".join(f"{status}: {count}" for status, count in claims.items())
    if 2 * claims.get("cannot tell", 0) >= claims.sum():
        status = "cannot tell"
    else:
        full = {"reproduced", "not reproduced"} & set(claims.index) if len(claims) == 1 else set()
        status = full.pop() if full else "partly"
    return judged, Verdict(status, f"of nine claims {counted}", RULE, counted)


def run(settings: Settings, store: Store) -> Result:
    """Tables `lines` (status, numbers), and one row per image of `attacks`, `each` restart, `batches`, `features`,
    `stages`, by line, place and what differs; `tuned` has the mean PSNR of every step size that was tried.
    """
    device, asked = device_of(settings.device), attack_units(settings)
    made = {key: attacked(unit, store, device) for key, unit in asked.items()}
    rows: dict[str, list[pd.DataFrame]] = {name: [] for name in ("attacks", "each", "tuned", "batches", "features")}
    for key, unit in asked.items():
        if key[0] == "tuned":
            tried = dict(zip((*KEYS, "rate"), key[1:], strict=True)) | {"psnr": float(made[key]["psnr"].mean())}
            rows["tuned"].append(pd.DataFrame([tried]))
            continue
        rows["attacks"].append(_attacks(key, unit, made[key], store, device))
        if unit.every:
            rows["each"].append(_each(key, unit, made[key]))
    sheets = {key: attacked_batches(unit, store, device) for key, unit in batch_units(settings).items()}
    rows["batches"] = [_batches(key, batch_units(settings)[key], sheet) for key, sheet in sheets.items()]
    stages: list[pd.DataFrame] = []
    for key, unit in gradient_units(settings).items():
        if isinstance(unit, StagesUnit):
            stages += _stages(through_training(unit, store, device))
        else:
            rows["features"].append(_features(key, unit, features_read(unit, store, device)))
    tables = {name: pd.concat(parts, ignore_index=True) for name, parts in (rows | {"stages": stages}).items() if parts}
    judged, whole = verdict(tables)
    first = next(iter(made.values()))
    facts = provenance(settings, first) | {
        "model": "LeNet, ConvNet-16 and ResNets",
        "epochs": 0,
        "images": " to ".join(str(n) for n in np.unique([u.last - u.first for u in asked.values()])[[0, -1]]),
        "steps": " to ".join(str(n) for n in np.unique([u.attack.evaluations for u in asked.values()])[[0, -1]]),
    }
    return Result("ext8_inverting_gradients", {"lines": judged} | tables, facts, whole, made | sheets)


def _named(table: pd.DataFrame, key: tuple) -> pd.DataFrame:
    return table.assign(**dict(zip(KEYS, key, strict=True)))


def _attacks(key: tuple, unit: AttackUnit, artifact: Artifact, store: Store, device: torch.device) -> pd.DataFrame:
    table = image_rows(artifact, unit)[["image", "psnr", "gain", "floor_policy", "ssim", "cost", "rank_target"]]
    if key[0] == "C7":
        rolled = rolled_ranks(unit, store, device)
        table = table.assign(**{name: rolled[name].double().numpy() for name in ("rank_rolled", "psnr_rolled")})
    return _named(table, key)


def _each(key: tuple, unit: AttackUnit, artifact: Artifact) -> pd.DataFrame:
    count, images = artifact["psnr_each"].shape
    table = pd.DataFrame({"restart": np.repeat(range(count), images), "image": list(range(images)) * count})
    for name in ("psnr", "rank", "cost"):
        table[name] = artifact[f"{name}_each"].double().flatten().numpy()
    return _named(table, key)


def _batches(key: tuple, unit: BatchUnit, artifact: Artifact) -> pd.DataFrame:
    table = pd.DataFrame({n: artifact[n].double().numpy() for n in ("psnr", "floor", "ssim", "rank")})
    table["random"] = float(artifact["psnr_random"].mean())
    table["group"] = [i // unit.batches.size for i in range(len(table))]
    table["label"] = artifact["labels"].flatten().numpy()
    table["share"] = artifact["share"].double().numpy()[table["group"]]
    return _named(table.assign(image=range(len(table))), key)


def _features(key: tuple, unit: FeatureUnit, artifact: Artifact) -> pd.DataFrame:
    names = ("error", "error_mean", "rank_target", "rank_original")
    table = pd.DataFrame({name: artifact[name].double().numpy() for name in names})
    return table.assign(line=key[0], where=key[1], size=unit.batches.size, policy=label(unit.policy))


def _stages(artifact: Artifact) -> list[pd.DataFrame]:
    """Sums of squares of each image, of the logarithm of the length and of the direction."""
    length = artifact["norm"].double().log10().numpy()
    mean, count = length.mean(), len(length)
    sums = {
        "length": (
            np.square(length - mean).sum(0),
            count * np.square(length.mean(0) - mean),
            np.square(length.mean(1) - mean).sum(),
        ),
        "direction": (
            artifact["direction_all"].numpy(),
            artifact["direction_image"].numpy(),
            float(artifact["direction_stage"]) / length.shape[1],
        ),
    }
    names = ("all", "image_sum", "stage_sum")
    return [pd.DataFrame(dict(zip(names, each, strict=True))).assign(of=of) for of, each in sums.items()]
