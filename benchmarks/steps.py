"""Fewer gradients for the same answer: `python benchmarks/steps.py`, one to two hours on two cores.

Each network has an attack that the book's pages use, and others that ask for fewer gradients. Both are
made of the same photographs, draws and starts: untrained network, no policy, gradient of one image,
test images 300 to 363 of CIFAR-100 (on 200 to 231 attacks were chosen), three draws of weights, crop,
mirror image and start.

*Outcome.* Bits: log2(100 / rank) of the photograph among 100 of its class, which needs no fit; and
whether it is picked out. *The same answer*: the 95 % interval over photographs of the paired
difference, mean of the draws, lies within 0.15 bits of 0. Seconds are of this process's processor time,
attacks of a draw in turn, so that a busy machine burdens all alike.

Prints a table in Markdown; `--small` shows that it runs, in a minute.
"""

import argparse
import dataclasses
import time

import numpy as np
import pandas as pd
import torch

import atslib
from atsbook.findings.statistics import interval
from atslib.attacks import ATTACKS
from atslib.attacks.matching import GradientMatching
from atslib.measures.found import found, match, own_class, rank

FIRST, COUNT, DRAWS = 300, 64, 3
MARGIN = 0.15  # bits
BLOCK = 32  # photographs at once


def attacks() -> dict[str, dict[str, GradientMatching]]:
    """Attacks by network and name; the first of each network is the one of the book's pages."""
    lenet, convnet, resnet = (
        ATTACKS[f"annealed-{name}"] for name in ("lenet", "convnet", "resnet")
    )
    resnet = dataclasses.replace(resnet, steps=300)
    return {
        "lenet": {
            "Adam, 300": lenet,
            "L-BFGS, 75 (`fast-lenet`)": ATTACKS["fast-lenet"],
            "L-BFGS, 100": dataclasses.replace(ATTACKS["fast-lenet"], steps=100),
            "L-BFGS, 250 (`strong-lenet`)": ATTACKS["strong-lenet"],
        },
        "convnet-16": {
            "Adam, 100": convnet,
            "Adam, 50": dataclasses.replace(convnet, steps=50),
            "Adam, 50, twice the step": dataclasses.replace(convnet, steps=50, lr=2.0),
        },
        "resnet20-1": {
            "Adam, 300": resnet,
            "Adam, 150": dataclasses.replace(resnet, steps=150),
            "Adam, 150, twice the step (`fast-resnet`)": ATTACKS["fast-resnet"],
        },
    }


def attacked(network: str, attack: GradientMatching, rows: range, draw: int) -> pd.DataFrame:
    """A row for each photograph: `rank` and `found` among 100 of its class, and `seconds` of processor
    time, an equal part of its block's.
    """
    test = atslib.load("cifar100", "test")
    model = atslib.build_model(network, 100, norm="cifar100", rng=atslib.rng(draw, "weights"))
    used = atslib.draw(rows.stop, "", rng=atslib.rng(draw, "used"), crop_flip=True)[rows.start :]
    used = used.apply(test.pixels[rows.start : rows.stop]) / 255
    labels = test.labels[rows.start : rows.stop]
    candidates, truth = own_class(test.labels, rows)
    parts = []
    for begin in range(0, len(rows), BLOCK):
        block = slice(begin, begin + BLOCK)
        seen = atslib.observe(model, used[block], labels[block])
        begun = time.process_time()
        made = atslib.reconstruct(seen, attack, rng=atslib.rng(draw, "start", begin)).images
        spent = time.process_time() - begun
        alike = match(made, test.pixels, candidates[block], "")
        part = {
            "image": rows[block],
            "rank": rank(alike, truth[block]),
            "found": found(alike, truth[block]),
        }
        parts.append(pd.DataFrame(part).assign(seconds=spent / len(made)))
    return pd.concat(parts, ignore_index=True).assign(draw=draw)


def compared(network: str, rows: range, draws: int, cut: int | None) -> list[dict[str, str]]:
    """A row of the table for each attack on a network; with `cut` each has so many steps."""
    tried = attacks()[network]
    made = {name: [] for name in tried}
    for draw in range(draws):
        for name, attack in tried.items():
            attack = dataclasses.replace(attack, steps=cut) if cut else attack
            made[name].append(attacked(network, attack, rows, draw))
    lines, bits, first = [], {}, None
    for name, parts in made.items():
        table = pd.concat(parts)
        table["bits"] = np.log2(100 / table["rank"])
        bits[name] = table.groupby("image")["bits"].mean()
        seconds = [part["seconds"].mean() for part in parts]
        first = first or (name, seconds, tried[name].evaluations)
        less = bits[name] - bits[first[0]]
        low, high = interval(less)
        ratio = [own / other for own, other in zip(seconds, first[1], strict=True)]
        same = "yes" if low >= -MARGIN and high <= MARGIN else "more" if low > 0 else "no"
        lines.append(
            {
                "network": network,
                "attack": name,
                "gradients": f"{tried[name].evaluations / first[2]:.2f}",
                "processor time": f"{np.mean(ratio):.2f} ({min(ratio):.2f} to {max(ratio):.2f})",
                "bits": f"{table['bits'].mean():.2f}",
                "difference": "–"
                if name == first[0]
                else f"{less.mean():+.2f} [{low:.2f}, {high:.2f}]",
                "picked out, %": f"{100 * table['found'].astype(float).mean():.0f}",
                "the same answer": "–" if name == first[0] else same,
            }
        )
    return lines


def main() -> None:
    """Print the table, network by network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="four photographs, five steps")
    parser.add_argument("--network", choices=list(attacks()), nargs="*", default=list(attacks()))
    parser.add_argument("--first", type=int, default=FIRST, help="of the test images")
    parser.add_argument("--count", type=int, default=COUNT, help="of test images")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows = range(chosen.first, chosen.first + (4 if chosen.small else chosen.count))
    size = (rows, 1, 5) if chosen.small else (rows, DRAWS, None)
    for place, network in enumerate(chosen.network):
        table = pd.DataFrame(compared(network, *size))
        if not place:
            print(f"| {' | '.join(table.columns)} |\n|{'---|' * len(table.columns)}")
        for line in table.itertuples(index=False):
            print(f"| {' | '.join(line)} |", flush=True)


if __name__ == "__main__":
    main()
