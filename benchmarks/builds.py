"""What an attack costs in this build and in an older one: processor time on one thread, both in turn in one run.

    git worktree add ../old 874432a9
    python benchmarks/builds.py ../old

Each build attacks the same 16 photographs (test images 300 to 315 of CIFAR-100, untrained network, no policy, no
crop) by the attack that its pages use, and this one by its faster one as well. Prints a table in Markdown: medians of
the repeats, and the range of the ratios within a repeat.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
# network: the attack of the pages, in both builds; the faster one of this build
PAIRS = {
    "lenet": ("annealed-lenet", "fast-lenet"),
    "resnet20-1": ("annealed-resnet", "fast-resnet"),
}
STEPS = 300  # of the pages' attack
ONE = """
import dataclasses, json, sys, time
import torch
import atslib
from atslib.attacks import ATTACKS
network, name, steps = sys.argv[1:]
torch.set_num_threads(1)
attack = ATTACKS[name]
if int(steps):
    attack = dataclasses.replace(attack, steps=int(steps))
test = atslib.load("cifar100", "test")
model = atslib.build_model(network, 100, norm="cifar100", rng=atslib.rng(0, "weights"))
rows = slice(300, 316)
seen = atslib.observe(model, test.pixels[rows] / 255, test.labels[rows])
atslib.reconstruct(seen, dataclasses.replace(attack, steps=5), rng=1)  # warms up
began = time.process_time()
made = atslib.reconstruct(seen, attack, rng=1).images
spent = time.process_time() - began
error = ((made - test.pixels[rows] / 255) ** 2).flatten(1).mean(1)
print(json.dumps({"seconds": spent, "psnr": (-10 * error.log10()).mean().item()}))
"""


def spent(build: Path, network: str, attack: str, steps: int) -> dict[str, float]:
    """Seconds of processor time and the mean PSNR of an attack by one build."""
    command = [sys.executable, "-c", ONE, network, attack, str(steps)]
    environment = os.environ | {"PYTHONPATH": str(build), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=environment, cwd=build, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(ran.stderr)
    return json.loads(ran.stdout.splitlines()[-1])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="a checkout of the older build")
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    print(
        "| network | attack | s an image | ratio to the older build (range) | PSNR, dB |\n|---|---|---|---|---|"
    )
    for network, (pages, faster) in PAIRS.items():
        cases = {
            f"older build, `{pages}`": (chosen.old.resolve(), pages, STEPS),
            f"this build, `{pages}`": (HERE, pages, STEPS),
            f"this build, `{faster}`": (HERE, faster, 0),
        }
        runs = {name: [] for name in cases}
        for _ in range(chosen.repeats):
            for name, (build, attack, steps) in cases.items():
                runs[name].append(spent(build, network, attack, steps))
        first = next(iter(runs.values()))
        for name, own in runs.items():
            each = statistics.median(run["seconds"] for run in own) / 16
            ratios = [run["seconds"] / old["seconds"] for run, old in zip(own, first, strict=True)]
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(
                f"| {network} | {name} | {each:.2f} | {ratio} | {own[0]['psnr']:.1f} |", flush=True
            )


if __name__ == "__main__":
    main()
