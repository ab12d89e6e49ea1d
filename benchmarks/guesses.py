"""What the gain of the stored attacks is over guesses that know more and more: `python
benchmarks/guesses.py`.

No attack is made: the archive has every attack's PSNR by image, and targets are made again from
data and seed. Three guesses beside the blind one, which is the mean over all that the policy may
draw:

- `policy's draw`: the mean training image after all crops and flips, put through the member and
signs that were drawn; - `all draws`: the mean of training images after the very crop, flip, member
and signs; - `all draws, label`: the same of training images of the class, what
`atslib.guess_knowing_draw` gives.

Prints the claims of the book that are about gain, each by every guess; `--units` also writes a row
for every stored attack on test images below 300 (later ones are for confirmation, and are not
looked at).
"""

import argparse
import dataclasses
import functools
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import atslib
from atsbook.findings.statistics import change, correlation_interval, interval, pearson, spearman
from atsbook.runs.archive import Archive, unit_of
from atsbook.runs.attacks import AttackUnit
from atslib.clients.prepare import mean_prepared, streams
from atslib.measures.metrics import psnr

RESULTS = Path(__file__).parents[1] / "results"
HYBRID = "3-1-7+43-18-18"
FOUND = "3-19-26+15-42-15"  # by the search of claim 2
GUESSES = ("policy's draw", "all draws", "all draws, label")
MOST = 100  # training images that a mean is taken of
LOOKED_AT = 300  # test images from here on are for confirmation


@functools.lru_cache
def mean_image(name: str, crop_flip: bool) -> Tensor:
    """The mean training image after all crops and flips, as the pages have it, uint8."""
    train = atslib.load(name, "train").pixels
    mean = mean_prepared(train, "", rng=atslib.rng(0, "floor", name, ""), crop_flip=crop_flip)
    return (255 * mean).round().byte()


@functools.cache
def guessed(name: str, policy: str, seed: int, count: int, crop_flip: bool = True) -> pd.DataFrame:
    """PSNR in dB of each guess for the first test images, one row per image."""
    test = atslib.load(name, "test")
    train = atslib.load(name, "train")
    drawn = atslib.draw(count, policy, rng=streams(seed, policy), crop_flip=crop_flip)
    truth = drawn.apply(test.pixels[:count]) / 255
    uncropped = dataclasses.replace(drawn, offsets=None, flips=None)
    mean = mean_image(name, crop_flip).expand(count, -1, -1, -1).contiguous()
    made = (
        uncropped.apply(mean) / 255,
        atslib.guess_knowing_draw(drawn, train.pixels, most=MOST),
        atslib.guess_knowing_draw(
            drawn, train.pixels, train.labels, labels=test.labels[:count], most=MOST
        ),
    )
    return pd.DataFrame(
        {word: psnr(guess, truth).numpy() for word, guess in zip(GUESSES, made, strict=True)}
    )


def table(page: str, name: str, dataset: str = "cifar100") -> pd.DataFrame:
    """A page's table of attacks, with the gain over each guess."""
    file = RESULTS / page / f"{dataset}-laptop" / f"{name}.csv"
    rows = pd.read_csv(file, keep_default_na=False, low_memory=False)
    for column in ("psnr", "floor_policy", "image"):
        rows[column] = pd.to_numeric(rows[column])
    rows["draw"] = pd.to_numeric(rows["draw"]) if "draw" in rows else 0
    rows["blind"] = rows["psnr"] - rows["floor_policy"]
    for (policy, seed), group in rows.groupby(["policy", "draw"]):
        text = "" if policy == "none" else str(policy)
        best = guessed(dataset, text, int(seed), int(group["image"].max()) + 1)
        for word in GUESSES:
            rows.loc[group.index, word] = group["psnr"] - best.loc[group["image"], word].to_numpy()
    return rows


def compared(rows: pd.DataFrame, word: str, first: str = "none", second: str = HYBRID) -> str:
    """How the gain over this guess changes from the first policy to the second."""
    wide = rows.pivot(index=["image", "draw"], columns="policy", values=word)[
        [first, second]
    ].dropna()
    found = change(wide[first], wide[second], units=wide.index.get_level_values("image"))
    return f"{found.before:+.2f} -> {found.after:+.2f}: {found.mean:+.2f} [{found.low:.1f}, {found.high:.1f}]"


def claims() -> pd.DataFrame:
    """One row per number of the book that is about gain, one column per guess."""
    words = ("blind", *GUESSES)
    lines = {}
    hybrid = table("claim1_privacy", "attacks")
    hybrid = hybrid[hybrid["policy"].isin(["none", HYBRID])]
    for (regime, model), rows in hybrid.groupby(["regime", "model"], sort=False):
        lines[f"claim 1, hybrid, {model}, {regime}"] = [compared(rows, word) for word in words]
    rivals = table("claim2_search", "attacks")
    lines["claim 2, found hybrid minus random ones"] = [_ahead(rivals, word) for word in words]
    fashion = table("claim3_transfer", "attacks", "fmnist")
    rows = fashion[(fashion["model"] == "lenet") & fashion["policy"].isin(["none", HYBRID])]
    lines["claim 3, hybrid, Fashion-MNIST"] = [compared(rows, word) for word in words]
    random = table("claim7_correlation", "policies")
    score = random.pivot(index="policy", columns="image", values="s_pri untrained")
    lines["claim 7, r of score and gain, untrained"] = [
        _correlated(random, score, word, pearson) for word in words
    ]
    single = table("claim6_transformations", "attacks")
    means = single.groupby("op")[["s_pri attacked", *words]].mean()
    lines["claim 6, rank correlation of score and gain"] = [
        f"{float(spearman(means['s_pri attacked'].to_numpy(), means[word].to_numpy())):+.2f}, n = {len(means)}"
        for word in words
    ]
    return pd.DataFrame.from_dict(lines, orient="index", columns=words)


def _ahead(rows: pd.DataFrame, word: str) -> str:
    """The gain under the hybrid that the search found, minus the mean under random ones."""
    wide = rows.pivot(index="image", columns="policy", values=word)
    random = wide.drop(columns=["none", HYBRID, FOUND])
    ahead = wide[FOUND] - random.mean(axis=1)
    low, high = interval(ahead)
    return f"{ahead.mean():+.2f} [{low:.1f}, {high:.1f}], {random.shape[1]} random ones"


def _correlated(rows: pd.DataFrame, score: pd.DataFrame, word: str, statistic: object) -> str:
    gain = rows.pivot(index="policy", columns="image", values=word).loc[score.index, score.columns]
    sides = score.to_numpy(), gain.to_numpy()
    low, high = correlation_interval(statistic, *sides)
    return f"{float(statistic(*(side.mean(1) for side in sides))):+.2f} [{low:.2f}, {high:.2f}]"


def units() -> pd.DataFrame:
    """A row for each stored attack on images that may be looked at: means in dB over its images."""
    archive = Archive(RESULTS)
    rows = []
    for key, line in sorted(archive.entries().items()):
        unit = unit_of(line)
        if not isinstance(unit, AttackUnit) or unit.last > LOOKED_AT:
            continue
        tensors = archive.read(key).tensors
        if "psnr" not in tensors:
            continue
        values = pd.Series(tensors["psnr"].numpy())
        best = guessed(unit.model.dataset, unit.policy, unit.seed, unit.last, unit.crop_flip)[
            unit.first :
        ]
        gains = {
            word: float(np.mean(values.to_numpy() - best[word].to_numpy())) for word in GUESSES
        }
        low, high = interval(values.to_numpy() - best[GUESSES[-1]].to_numpy())
        facts = {
            "unit": key,
            "network": unit.model.model,
            "data": unit.model.dataset,
            "policy": unit.policy or "none",
        }
        facts |= {
            "attack": unit.title,
            "seed": unit.seed,
            "n": len(values),
            "psnr": float(values.mean()),
        }
        rows.append(facts | gains | {"low": low, "high": high})
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The gain of the stored attacks over guesses that know more."
    )
    parser.add_argument(
        "--units", type=Path, help="also a row for each stored attack, into this CSV"
    )
    parser.add_argument("--out", type=Path, help="also the printed table, into this CSV")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = claims()
    print(found.to_string())
    if options.out:
        found.rename_axis("number").to_csv(options.out)
    if options.units:
        units().round(3).to_csv(options.units, index=False)


if __name__ == "__main__":
    main()
