"""What only a GPU can do within minutes: `benchmarks/gpu.sh FOLDER`, or `python benchmarks/gpu.py`.

Three parts, in this order, each resumable: what is finished is in the folder and is not made again.

1. *speed*: one step of an attack on N photographs at once, engine against the plain loop (`atsbook
   bench attack`), a step of training, and the comparison of gradients, each beside one photograph at a
   time. A line of JSON each, in `speed.jsonl`.
2. *check*: the same attack on the GPU and on its machine's processor, whose pictures must agree: the
   mean difference of PSNR over photographs, in `speed.jsonl`, too.
3. *cell*: the cell that both papers print, a ResNet20-4 trained for 60 epochs and attacked in 4,800
   steps, without a policy and with the paper's, on test images 9,588 to 9,687 (100 photographs in blocks
   of 32). Kept in `store`, from which `python -m atsbook archive` takes results in.

A part begins only if half a minute of `--budget` is left, or for the cell as long as the longest part of it
took so far; the line at the end says what is still to do. `gpu.sh` packs the folder. `--small` makes all of
it in minutes on a CPU, with drawn images, to see that it runs.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path

import torch

import atslib
from atsbook import bench
from atsbook.experiment import AttackRequest
from atsbook.findings.defenses import HYBRID
from atsbook.kept import Kept
from atsbook.networks import ModelRequest
from atsbook.requests.timing import seconds
from atsbook.store import Store
from atslib import ATTACKS, TrainConfig
from atslib.clients.training import fit

MEMBERS = (1, 8, 32, 128, 512)
LOOPED = 32  # of the plain loop at most so many: it takes one at a time
FIRST, COUNT, BLOCK = 9_588, 100, 32


def training_step(network: str, batch: int, device: torch.device, repeats: int) -> dict:
    """Seconds of one step of training, the mean of an epoch on ten batches."""
    images = atslib.load("shapes", "train")
    rows = torch.arange(10 * batch) % len(images)
    images = dataclasses.replace(images, pixels=images.pixels[rows], labels=images.labels[rows])
    spent = []
    for _ in range(repeats):
        model = atslib.build_model(network, images.num_classes, norm="shapes", rng=atslib.rng(0))
        begun = time.perf_counter()
        fit(
            model.to(device), images, TrainConfig(epochs=1, batch=batch), rng=atslib.rng(0, "order")
        )
        if device.type == "cuda":
            torch.cuda.synchronize()
        spent.append((time.perf_counter() - begun) / 10)
    return bench.described("training", device, network, batch) | {"step_ms": 1e3 * min(spent)}


def line_up_step(network: str, members: int, device: torch.device, repeats: int) -> dict:
    """Seconds a photograph of the comparison of gradients, all at once and one at a time."""
    test = atslib.load("shapes", "test")
    rows = list(range(members))
    candidates, _ = atslib.own_class(test.labels, rows)
    model = atslib.build_model(network, test.num_classes, norm="shapes", rng=atslib.rng(0))
    model = model.to(device)
    used = (test.pixels[rows] / 255).to(device)
    seen = atslib.observe(model, used, test.labels[rows].to(device))
    single = [
        atslib.observe(model, used[i : i + 1], test.labels[i : i + 1].to(device)) for i in rows
    ]

    def together() -> None:
        atslib.line_up(seen, test.pixels, candidates, "")

    def apart() -> None:
        for i, one in enumerate(single):
            atslib.line_up(one, test.pixels, candidates[i : i + 1], "")

    both = seconds(together, apart, device=device, repeats=repeats)
    return bench.described("line-up", device, network, members) | {
        "together_ms": 1e3 * both[0] / members,
        "apart_ms": 1e3 * both[1] / members,
    }


def agreement(network: str, members: int, device: torch.device, steps: int) -> dict:
    """PSNR of one attack on this device minus that on the processor, over photographs in dB."""
    test = atslib.load("shapes", "test")
    reached = []
    for place in (device, torch.device("cpu")):
        model = atslib.build_model(network, test.num_classes, norm="shapes", rng=atslib.rng(0))
        used = (test.pixels[:members] / 255).to(place)
        seen = atslib.observe(model.to(place), used, test.labels[:members].to(place))
        attack = atslib.GradientMatching(steps=steps)
        made = atslib.reconstruct(seen, attack, rng=1).images
        reached.append(atslib.psnr(made.cpu(), used.cpu()))
    off = reached[0] - reached[1]
    return bench.described("agreement", device, network, members) | {
        "mean_db": float(off.mean()),
        "largest_db": float(off.abs().max()),
    }


def paper_cell(small: bool) -> list[Kept]:
    """The requests of the papers' cell, trainings first."""
    place = "shapes" if small else "cifar100"
    network = "resnet20-1" if small else "resnet20-4"
    attack = ATTACKS["adam-cosine"]
    first, count, block, epochs = (60, 4, 2, 1) if small else (FIRST, COUNT, BLOCK, 60)
    if small:
        attack = atslib.GradientMatching(steps=3)
    networks = {
        policy: ModelRequest(
            dataset=place,
            model=network,
            fraction=1.0,
            train=TrainConfig(policy=policy, epochs=epochs),
            seed=0,
        )
        for policy in ("", HYBRID)
    }
    attacks = [
        AttackRequest(
            model=networks[policy],
            policy=policy,
            attack=attack,
            first=begin,
            last=min(begin + block, first + count),
        )
        for begin in range(first, first + count, block)
        for policy in networks
    ]
    return [*networks.values(), *attacks]


def main() -> None:
    """Do what is not there yet, as far as the time goes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--budget", type=float, default=480, help="seconds, after which nothing is begun"
    )
    parser.add_argument("--small", action="store_true", help="drawn images, on any device")
    chosen = parser.parse_args()
    begun = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen.folder.mkdir(parents=True, exist_ok=True)
    log = chosen.folder / "speed.jsonl"
    there = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {(line["benchmark"], line["members"]) for line in there}
    network = "resnet20-1" if chosen.small else "resnet20-4"
    repeats = 1 if chosen.small else 3
    sizes = MEMBERS[:2] if chosen.small else MEMBERS

    def left() -> float:
        return chosen.budget - (time.monotonic() - begun)

    on = {"device": str(device), "repeats": repeats}
    here = (device, repeats)
    looped = [n for n in sizes if n <= LOOPED]
    calls = {
        "attack": (looped, lambda n: bench.attack(network, n, **on)),
        "forms": (sizes, lambda n: bench.forms(network, n, **on)),
        "training": ([128], lambda n: training_step(network, n, *here)),
        "line-up": (sizes[:2], lambda n: line_up_step(network, n, *here)),
        "agreement": ([8], lambda n: agreement("lenet", n, device, 3 if chosen.small else 300)),
    }
    to_do = []
    for name, n, call in [(name, n, call) for name, (ns, call) in calls.items() for n in ns]:
        if (name, n) in done:
            continue
        if left() < 30:
            to_do.append(f"{name} {n}")
            continue
        with log.open("a") as file:
            file.write(json.dumps(call(n)) + "\n")
        print(name, n, f"{left():.0f} s left", flush=True)

    store = Store(chosen.folder / "store")
    longest = 0.0  # of what was computed here
    for request in paper_cell(chosen.small):
        if store.has(request.kind, request):
            continue
        if left() < max(60, longest) and not chosen.small:
            to_do.append(request.title)
            continue
        since = time.monotonic()
        request.make(store, device)
        longest = max(longest, time.monotonic() - since)
        print(request.title, f"{left():.0f} s left", flush=True)
    print("all done" if not to_do else f"still to do: {'; '.join(to_do)}")


if __name__ == "__main__":
    main()
