"""Extension 3: which images leak, whether that can be told beforehand, and what a guarantee would
need.
"""

import dataclasses
import math

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atsbook.findings import statistics
from atsbook.findings.result import NO_POLICY, Result, Verdict
from atsbook.findings.statistics import bootstrap, pearson, upper_bound, variance_shares
from atsbook.findings.statistics import needed as needed  # the notebook asks for it here
from atsbook.findings.verdicts import cannot_tell, guards
from atsbook.runs.attacks import CHUNK, AttackUnit, attack_unit
from atsbook.runs.networks import ModelUnit, dataset, device_of, model_unit, semi_trained, trained
from atsbook.runs.packing import PICTURES
from atsbook.runs.settings import Settings, at_laptop
from atsbook.runs.store import Artifact, Store
from atsbook.runs.table1 import HYBRID, POLICIES, SEARCHED, on_network, second_network
from atsbook.runs.tables import attack_rows, attacked_facts, label, provenance
from atslib.clients.prepare import to_images
from atslib.gradients.problems import example_gradients

DEFENDED = (*SEARCHED, HYBRID)
PROPERTIES = ("brightness", "contrast", "edges", "loss", "gradient")
IMAGES = 200  # of profile laptop on the first network, twice as many as claim 1 attacks
SEEDS = 3
LEAKAGE = ["policy", "image", "psnr", "floor_policy", "gain"]
RIDGE = 1.0  # weight of the squared coefficients, of standardized properties


def own(settings: Settings) -> Settings:
    """The settings with the page's number of images at laptop; what a user has changed stays."""
    return at_laptop(settings, images=IMAGES)


def policies(settings: Settings) -> dict[str, AttackUnit]:
    """Claim 1's attacks on the first network by the policy's label, at laptop on more images."""
    return {label(policy): attack_unit(settings, policy) for policy in POLICIES}


def others(settings: Settings) -> dict[str, dict[str, AttackUnit]]:
    """The same images attacked with something else changed: the network, or the seed of crop, flip,
    draw and start.

    Where trained networks are attacked, one undefended network is trained with another seed, one is
    semi-trained, one untrained, one of another kind. In the regime `initial` one has other weights,
    and two are of other kinds.
    """
    bare = attack_unit(settings)
    second = second_network(settings)
    if settings.regime == "initial":
        kinds = (on_network(settings, model) for model in (second, settings.model))
        networks = {
            bare.model.model: bare,
            "other weights": dataclasses.replace(
                bare, model=dataclasses.replace(bare.model, seed=settings.seed + 1)
            ),
        } | {kind.model: attack_unit(kind) for kind in kinds}
    else:
        models = {
            settings.model: bare.model,
            "other training seed": model_unit(settings, seed=settings.seed + 1),
            "semi-trained": semi_trained(settings),
            "untrained": dataclasses.replace(bare.model, train=None),
            second: model_unit(settings, model=second),
        }
        networks = {name: dataclasses.replace(bare, model=model) for name, model in models.items()}
    seeds = range(settings.seed, settings.seed + SEEDS)
    words = {"": "no policy", HYBRID: "hybrid"}
    return {"networks": networks} | {
        f"seeds, {words.get(policy, policy)}": {
            f"seed {n}": attack_unit(settings, policy, seed=n) for n in seeds
        }
        for policy in ("", *SEARCHED, HYBRID)
    }


def units(settings: Settings) -> dict[str, AttackUnit]:
    """All that the page needs."""
    settings = own(settings)
    more = {
        f"{over}: {name}": unit
        for over, group in others(settings).items()
        for name, unit in group.items()
    }
    return policies(settings) | more


@torch.no_grad()
def properties(model: nn.Module, target: Tensor, labels: Tensor) -> pd.DataFrame:
    """What can be measured of an attacked image without attacking it, one row per image.

    Args:
        target: (B, C, H, W) floats in [0, 1], as the client used them.
    Returns:
        `brightness` and `contrast` (mean and standard deviation of the channels' mean), `edges`
        (mean |dx| + mean |dy| of it), `loss` (cross-entropy) and `gradient` (its l2 norm), of the
        network that the client trains.
    """
    grey = target.mean(1)
    parts = zip(target.split(CHUNK), labels.split(CHUNK), strict=True)
    columns = {
        "brightness": grey.flatten(1).mean(1),
        "contrast": grey.flatten(1).std(1),
        "edges": grey.diff(dim=2).abs().flatten(1).mean(1)
        + grey.diff(dim=1).abs().flatten(1).mean(1),
        "loss": F.cross_entropy(model(target), labels, reduction="none"),
        "gradient": torch.cat([example_gradients(model, *part).norm(dim=1) for part in parts]),
    }
    return pd.DataFrame({name: value.double().cpu().numpy() for name, value in columns.items()})


def grid(table: pd.DataFrame, *columns: str, by: str = "policy") -> np.ndarray:
    """(images, policies, columns) of a table with one row per policy and image; images with a gap
    are left out.

    `by` names another column to be taken for the policy's.
    """
    wide = [
        table.pivot(index="image", columns=by, values=name)[list(table[by].unique())]
        for name in columns
    ]
    values = np.stack([w.to_numpy() for w in wide], 2)
    return values[np.isfinite(values).all((1, 2))]


def split(table: pd.DataFrame, by: str = "policy") -> pd.DataFrame:
    """Share of the gain's variance by source, with 95 % intervals over images; `by` as in `grid`."""
    gain = grid(table, "gain", by=by)[..., 0]
    rows = []
    for i, source in enumerate(("image", "setting", "rest")):
        low, high = bootstrap(gain, lambda x, axis, i=i: variance_shares(x)[..., i])
        rows.append({"source": source, "share": variance_shares(gain)[i], "low": low, "high": high})
    return pd.DataFrame(rows)


def rank_correlation(ranks: np.ndarray, axis: int = 1) -> np.ndarray:
    """Mean over policies of the correlation over images, 0 where one side is constant: (...,
    images, policies, 2).
    """
    x, y = np.moveaxis(np.moveaxis(ranks, axis, -1), -2, 0)
    return np.nan_to_num(pearson(x, y)).mean(-1)


def correlations(table: pd.DataFrame) -> pd.DataFrame:
    """Spearman correlation of each property with the gain within a policy, the mean over policies,
    95 % interval.

    The interval resamples images and keeps the ranks of the whole sample.
    """
    rows = []
    for name in PROPERTIES:
        ranks = np.moveaxis(statistics.ranks(np.moveaxis(grid(table, name, "gain"), 0, -1)), -1, 0)
        low, high = bootstrap(ranks, rank_correlation)
        rows.append(
            {
                "property": name,
                "spearman": float(rank_correlation(ranks, 0)),
                "low": low,
                "high": high,
            }
        )
    return pd.DataFrame(rows)


def left_out(table: pd.DataFrame) -> np.ndarray:
    """Squared errors of predictions for images left out, (images, 2): by ridge, and by the other
    images' mean.

    Gain and properties of a policy are taken relative to its mean over the other images, so that
    only the differences between images are predicted; all rows of an image are left out together.
    """
    values = grid(table, *PROPERTIES, "gain")
    errors = np.empty((len(values), 2))
    for i in range(len(values)):
        others = np.delete(values, i, 0)
        middle = others.mean(0)
        known = (others - middle).reshape(-1, values.shape[2])
        spread = known[:, :-1].std(0).clip(min=1e-12)
        x = known[:, :-1] / spread
        y = known[:, -1]
        weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ y)
        new = values[i] - middle
        errors[i] = (
            np.square(new[:, -1] - new[:, :-1] / spread @ weights).sum(),
            np.square(new[:, -1]).sum(),
        )
    return errors


def skill(table: pd.DataFrame) -> tuple[float, float, float]:
    """Cross-validated R² of the ridge over the other images' mean, and its 95 % interval; nan below
    three images.
    """
    if len(grid(table, "gain")) < 3:
        return (math.nan,) * 3

    def explained(errors: np.ndarray, axis: int) -> np.ndarray:
        ridge, mean = np.moveaxis(errors.sum(axis), -1, 0)
        return 1 - ridge / mean

    errors = left_out(table)
    return (float(explained(errors, 0)), *bootstrap(errors, explained))


def guarantees(table: pd.DataFrame, epsilon: float) -> pd.DataFrame:
    """One row per policy: the worst image, attacks at or above ε, and the highest rate this count
    does not rule out.
    """
    rows = []
    for policy, values in table.groupby("policy", sort=False):
        # An exact match is a success; a diverged attack (nan, -inf) is none, and one image all the
        # same.
        hits = int((values["psnr"] >= epsilon).sum())
        worst = {"worst PSNR": values["psnr"].max(), "worst gain": values["gain"].max()}
        bound = upper_bound(hits, len(values))
        rows.append(
            {"policy": policy, "images": len(values), "successes": hits, "rate at most": bound}
            | worst
        )
    return pd.DataFrame(rows)


LEAKAGE_RULE = (
    "The replication's observation is reproduced: some images leak in spite of a searched policy and others do not (an "
    "attack's gain over the best guess of somebody who knows the policy is 1 dB or more), and measurable properties of "
    "an image predict the gain (R² over policies' means on images that were left out, 95 % interval above 0). Partly: "
    "some leak and some do not, but nothing here predicts which; or all leak. Not reproduced: no image leaks under a "
    "searched policy. Cannot tell: fewer than 30 images. Not measured: fewer than five."
)


def leakage_verdict(defended: pd.Series, skill: tuple[float, float, float], images: int) -> Verdict:
    """Extension 3 by `LEAKAGE_RULE`.

    Args:
        defended: gain in dB of every attack on an image with a searched policy.
        skill: the cross-validated R² with its interval.
    """
    if images < 5:
        return Verdict("not measured", f"{images} images do not show which leak", LEAKAGE_RULE)
    leaks = int((defended >= 1).sum())
    (mean, low, high) = skill
    here = f"{leaks} of {len(defended)} defended attacks leak; R² {mean:.2f} [{low:.2f}, {high:.2f}], {images} images"
    some = 0 < leaks < len(defended)
    status = "not reproduced" if not leaks else "reproduced" if some and low > 0 else "partly"
    return cannot_tell(Verdict(status, here, LEAKAGE_RULE, here), guards(images=images))


def run(settings: Settings, store: Store) -> Result:
    """Read attacks under each policy, and further ones, image by image.

    Tables: `images` (one row per policy and image: leakage and properties), `others` (the attacks
    with another network or seed), `split`, `correlations`, `prediction` and `guarantees`.
    """
    settings = own(settings)
    by_policy = policies(settings)
    names = dataset(settings.dataset, "test").class_names
    rows, sheets = attack_rows(by_policy, ["policy"], settings, store)
    labels = torch.cat([attack["labels"] for attack in sheets.values()])
    measured = [
        measure(unit.model, sheets[policy], settings, store) for policy, unit in by_policy.items()
    ]
    images = rows[LEAKAGE].assign(**{"class": [names[i] for i in labels.tolist()]})
    images = images.join(pd.concat(measured, ignore_index=True))
    changed = {
        (over, name): unit
        for over, group in others(settings).items()
        for name, unit in group.items()
    }
    further = attack_rows(changed, ("over", "setting"), settings, store)[0][
        [*LEAKAGE, "over", "setting"]
    ]
    shares = {"policies": split(images)} | {
        over: split(part, "setting") for over, part in further.groupby("over", sort=False)
    }
    r2, low, high = skill(images)
    tables = {
        "images": images,
        "others": further,
        "split": pd.concat(shares, names=["over"]).reset_index(level="over"),
        "correlations": correlations(images),
        "prediction": pd.DataFrame(
            [{"r2": r2, "low": low, "high": high, "images": len(grid(images, "gain"))}]
        ),
        "guarantees": guarantees(images, settings.epsilon),
    }
    defended = images[images["policy"].isin(DEFENDED)]["gain"]
    verdict = leakage_verdict(defended, (r2, low, high), settings.images)
    facts = provenance(settings, sheets[NO_POLICY]) | attacked_facts(by_policy[NO_POLICY])
    return Result("ext3_which_images_leak", tables, facts, verdict, sheets)


def measure(unit: ModelUnit, attack: Artifact, settings: Settings, store: Store) -> pd.DataFrame:
    """`properties` of the images of an attack, on the network that was attacked."""
    device = device_of(settings.device)
    target, labels = (attack[name].to(device) for name in ("target", "labels"))
    return properties(trained(unit, store, device)[0], to_images(target), labels)


def ordered(result: Result, name: str = "images") -> pd.DataFrame:
    """`images` or `others` with `rank`: an image's place by its mean gain over policies, 1 for the
    most leaking.
    """
    table = result.tables[name]
    judged = result.tables["images"]
    rank = judged.groupby("image")["gain"].mean().rank(ascending=False, method="first")
    return table.assign(rank=table["image"].map(rank).astype(int)).sort_values(
        "rank", kind="stable"
    )


def worst(
    result: Result, policies: tuple[str, ...] = DEFENDED, count: int = 8
) -> tuple[dict[str, Tensor], dict]:
    """The attacks of greatest gain under `policies`: rows of images for `plots.sheet`, and their
    captions.

    Of the first images only, whose reconstructions the archive keeps.
    """
    table = result.tables["images"]
    shown = table["policy"].isin(policies) & (table["image"] < table["image"].min() + PICTURES)
    top = table[shown].nlargest(count, "gain")
    keys = list(zip(top["policy"], top["image"], strict=True))

    def pick(artifact: Artifact, name: str, image: int) -> Tensor:
        first = table["image"].min()
        value = artifact[name][image - first]
        return to_images(value) if value.dtype == torch.uint8 else value

    rows = {
        text: torch.stack([pick(result.sheets[policy], name, image) for policy, image in keys])
        for text, name in (
            ("original", "original"),
            ("target", "target"),
            ("recovered", "reconstruction"),
        )
    }
    captions = {
        "recovered": [f"{gain:+.1f} dB" for gain in top["gain"]],
        "original": [policy for policy, _ in keys],
    }
    return rows, captions
