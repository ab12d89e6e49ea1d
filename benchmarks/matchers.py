"""Which matcher tells best which photograph a reconstruction is of: `python
benchmarks/matchers.py`, about an hour.

Rule of 2026-11-26, committed before any of these attacks was run.

*What is compared.* A reconstruction is matched with each of the 100 test images of its own class by
a server that knows the policy, but not what was drawn: all forms that the policy can give a
photograph, both mirror images and shifts by up to four pixels are tried. A matcher is one choice of
each of these:

- which pixels: `overlap` (all pixels in which the shifted form and the reconstruction overlap, as
  `identification.similarity` does), `whole` (the content moves with the crop, the bands that the
  policy blackens stay where they are), `frame` (only pixels that the form keeps in the frame),
  `colors` (as `whole`, but absolute colors: minus the mean squared error, where the others take
  Pearson's correlation times the share of the image compared);
- which scale: `plain`, or `likelihood` (the correlation or error turned into the log likelihood,
per pixel, of a normal
  error of unknown variance: minus a half times the share times log(1 - r squared), or minus a half
  log(error));
- over the forms and mirror images: `best`, or `marginal` (log-mean-exp, at the temperature of the
guess). Shifts are
  always the best one.

*Data.* CIFAR-100's test images 200 to 299, as attacked; other test images of the class are
candidates only. One draw of crop, flip and policy (seed 0), untrained networks (seed 0), no policy
and the four policies of the paper's tables: LeNet, annealed attack of 300 steps, images 200 to 299;
ConvNet-16, annealed, 100 steps, and ResNet20-1, the paper's attack, 300 steps, images 200 to 231.
No result on images 0 to 99 or 300 to 399 is looked at for it.

*Outcome.* Bits: log2(100) minus the log loss of the softmax over similarities; the temperature is
fitted on the other half of the same cell (even and odd images), with one image's worth of doubt,
see `atslib.measures.found`. A cell is a network and a policy; its number is the mean over its
images. A matcher's number is the mean over the 15 cells.

*Choice.* The matcher with the most bits. Where others are within 0.05 bits of it, the first of
these in the order in which the choices are listed above (pixels first, then scale, then over
forms). It must hold what knowing the policy promises: its mean over the 12 cells with a policy may
not lie below that of the same matcher applied to the untouched photographs (`undoing nothing`); one
that breaks this is passed over.

Result of the same day: `whole`, `likelihood`, `best`. All sixteen hold the last condition.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import safetensors.torch
import torch
from torch import Tensor

import atslib
from atslib.clients.prepare import streams, transform
from atslib.measures.found import OVER, PIXELS, SCALES, Matcher, bits, found, match_each, own_class

FIRST = 200
MARGIN = 0.05  # bits within which the simpler matcher is taken
CELLS = (("lenet", "annealed-lenet", 300, 100), ("resnet20-1", "adam-cosine", 300, 32),
         ("convnet-16", "annealed-convnet", 100, 32))  # fmt: skip
POLICIES = ("", "3-1-7", "43-18-18", "3-1-7+43-18-18", "19-1-18")


def attacked(folder: Path) -> Iterator[tuple[str, str, Tensor]]:
    """Network, policy and reconstructions of the test images from `FIRST` on; kept in `folder`, so
    resumable.
    """
    test = atslib.load("cifar100", "test")
    for network, preset, steps, count in CELLS:
        model = atslib.build_model(
            network, 100, norm="cifar100", rng=atslib.rng(0, "weights")
        ).eval()
        attack = dataclasses.replace(atslib.ATTACKS[preset], steps=steps)
        rows = slice(FIRST, FIRST + count)
        for policy in POLICIES:
            file = folder / f"{network} {policy or 'none'}.safetensors"
            if not file.exists():
                # Drawn for all images up to the last, so that an image's draw does not depend on
                # the first one.
                pixels = transform(test.pixels[: rows.stop], policy, rng=streams(0, policy))[rows]
                seen = atslib.observe(model, pixels / 255, test.labels[rows])
                images = atslib.reconstruct(seen, attack, rng=atslib.rng(0, "start")).images
                safetensors.torch.save_file({"images": images.contiguous()}, file)
            yield network, policy, safetensors.torch.load_file(file)["images"]


def matched(network: str, policy: str, images: Tensor, file: Path) -> pd.DataFrame:
    """A row for each matcher, and for each one that undoes nothing; kept in `file`."""
    if file.exists():
        return pd.read_csv(file)
    test = atslib.load("cifar100", "test")
    candidates, truth = own_class(test.labels, range(FIRST, FIRST + len(images)))
    matchers = [
        Matcher(pixels, scale, "marginal") for pixels, scale in itertools.product(PIXELS, SCALES)
    ]
    rows = []
    for knows, known in (("policy", policy), ("nothing", "")):
        similarities = match_each(images, test.pixels, candidates, known, matchers=matchers)
        for matcher, marginal in zip(matchers, similarities, strict=True):
            for over in OVER:
                chosen = marginal if over == "marginal" else marginal.amax(2)
                told = bits(chosen, truth)
                rows.append(
                    {
                        "network": network,
                        "policy": policy or "none",
                        "pixels": matcher.pixels,
                        "scale": matcher.scale,
                        "over": over,
                        "knows": knows,
                        "n": len(images),
                        "found": float(found(chosen, truth).float().mean()),
                        "bits": float(told.mean()),
                        "error": float(told.std() / len(told) ** 0.5),
                    }
                )
    table = pd.DataFrame(rows)
    table.to_csv(file, index=False)
    return table


def ranked(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per matcher in the order of the rule: bits and found, and if it may be chosen."""
    by = ["pixels", "scale", "over"]
    order = list(itertools.product(PIXELS, SCALES, OVER))
    hidden = rows[rows["policy"] != "none"]
    table = pd.DataFrame(
        {
            "bits": rows[rows["knows"] == "policy"].groupby(by)["bits"].mean(),
            "found": rows[rows["knows"] == "policy"].groupby(by)["found"].mean(),
            "bits, policy known": hidden[hidden["knows"] == "policy"].groupby(by)["bits"].mean(),
            "bits, undoing nothing": hidden[hidden["knows"] == "nothing"]
            .groupby(by)["bits"]
            .mean(),
        }
    ).loc[order]
    table["may be chosen"] = table["bits, policy known"] >= table["bits, undoing nothing"]
    near = table["may be chosen"] & (
        table["bits"] >= table.loc[table["may be chosen"], "bits"].max() - MARGIN
    )
    table["chosen"] = table.index == near.idxmax()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Which matcher tells best which photograph a reconstruction is of."
    )
    parser.add_argument(
        "--keep", type=Path, default=Path(".store/matchers"), help="where reconstructions are kept"
    )
    parser.add_argument("--out", type=Path, default=Path("results/matchers.csv"), help="the table")
    options = parser.parse_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    tables = []
    for network, policy, images in attacked(options.keep):
        tables.append(
            matched(network, policy, images, options.keep / f"{network} {policy or 'none'}.csv")
        )
    rows = pd.concat(tables, ignore_index=True)
    rows.round(4).to_csv(options.out, index=False)
    print(ranked(rows).round(2).to_string())


if __name__ == "__main__":
    main()
