"""An attack beside breaching's, by its own code, on one thread: an iteration in milliseconds of
processor time an image, and with `--answers` what both make of the same photographs, and in how long.

`pip install --no-deps breaching hydra-core omegaconf antlr4-python3-runtime==4.9.3`, best into an
environment of its own, then `python benchmarks/peers.py --out results/speed.jsonl`. Both attack the
same networks with the same kind of cost: cosine distance, total variation, signed Adam in a box, the
label known. breaching attacks one problem at a time. MobileNetV3 and ViT are not compared: torch has
no second derivative of their hard sigmoids and fused attention, for which breaching has no other form.
"""

import argparse
import contextlib
import json
import statistics
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from atsbook import bench
from atslib import (
    ATTACKS,
    build_model,
    found,
    load,
    match,
    observe,
    own_class,
    parse_policy,
    psnr,
    reconstruct,
    rng,
)
from atslib.attacks.matching import GradientMatching
from atslib.attacks.objective import Objective
from atslib.attacks.optimizers import Adam
from atslib.gradients.cpu import keep_memory
from atslib.models import normalization_layer

# What is compared by its answer: our presets, and iterations of breaching's; its default is 24,000.
ANSWERS = {
    "lenet": (("fast-lenet", "strong-lenet"), (800, 4_800, 24_000)),
    "resnet20-1": (("fast-resnet",), (600, 2_400)),
    "convnet-16": (("annealed-convnet",), (550, 1_200)),
}
PHOTOGRAPHS = range(200, 208)  # of CIFAR-100's test images, on which attacks are chosen
# (network, images attacked at once)
SIZES = (
    ("lenet", 16),
    ("resnet20-1", 16),
    ("convnet-16", 16),
    ("resnet18@64", 8),
)
STEPS = 3  # of each run; what a run costs beside its steps is subtracted


def breaching_attack(
    model: nn.Module, image: Tensor, label: Tensor, steps: int
) -> Callable[[], object]:
    """A run of breaching's *Inverting Gradients* on one image's gradient, by its own code."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")  # of its settings' library
        import breaching

        settings = breaching.get_attack_config("invertinggradients")
    settings.optim.max_iterations = steps
    loss = nn.CrossEntropyLoss()
    front = normalization_layer(model)
    image = front(image)
    model = nn.Sequential(*[layer for layer in model.children() if layer is not front]).eval()
    setup = {"device": torch.device("cpu"), "dtype": torch.float32}
    attacker = breaching.attacks.prepare_attack(model, loss, settings, setup)
    gradients = torch.autograd.grad(loss(model(image), label), list(model.parameters()))
    metadata = {
        "num_data_points": 1,
        "labels": label,
        "local_hyperparams": None,
        "data_key": "inputs",
    }
    shared = {"gradients": list(gradients), "buffers": None, "metadata": metadata}
    about = types.SimpleNamespace(
        shape=tuple(image.shape[1:]),
        modality="vision",
        mean=front.mean.flatten().tolist(),
        std=front.std.flatten().tolist(),
    )
    payload = {
        "parameters": list(model.parameters()),
        "buffers": list(model.buffers()),
        "metadata": about,
    }
    return lambda: attacker.reconstruct([payload], [shared], {})


def our_attack(
    model: nn.Module, images: Tensor, labels: Tensor, begin: Tensor, steps: int
) -> Callable[[], object]:
    """So many steps of `adam-cosine` on all images at once."""
    seen = observe(model, images, labels)
    settings = [GradientMatching()] * len(images)
    objective = Objective(seen, settings)
    normalize = normalization_layer(model)
    ones = torch.ones(images.shape[1:])
    low, high = (normalize(edge * ones).flatten() for edge in (0, 1))
    start = normalize(begin).flatten(1)

    def run() -> Tensor:
        optimizer = Adam(settings, start, start.shape[1], low, high)
        for step in range(steps):
            optimizer.step(objective, step)
        return optimizer.state["z"]

    return run


def compare(name: str, members: int, repeats: int = 5) -> dict:
    """Medians of runs in turn, of one step more or fewer."""
    place = torch.device("cpu")
    model, images, begin, labels = bench.victims(name, members, place)
    calls = [our_attack(model, images, labels, begin, STEPS)]
    for steps in (1, 1 + STEPS):
        calls.append(breaching_attack(model, images[:1], labels[:1], steps))
    rows = [[_spent(call) for call in calls] for _ in range(repeats + 1)][1:]
    ours, short, long = (statistics.median(column) for column in zip(*rows, strict=True))
    engine = 1e3 * ours / members / STEPS
    theirs = 1e3 * (long - short) / STEPS
    return bench.described("peers", place, name, members) | {
        "engine_ms": round(engine, 3),
        "breaching_ms": round(theirs, 3),
        "ratio": round(theirs / engine, 2),
    }


def answers(name: str) -> Iterator[dict]:
    """What each makes of the photographs' gradients: PSNR, how many are found among 100 of their class,
    and seconds of processor time an image.
    """
    presets, iterations = ANSWERS[name]
    test = load("cifar100", "test")
    rows = list(PHOTOGRAPHS)
    photographs, labels = test.pixels[rows] / 255, test.labels[rows]
    model = build_model(name, test.num_classes, norm="cifar100", rng=rng(0))
    candidates, own = own_class(test.labels, rows, photographs=test.pixels)
    normalize = normalization_layer(model)

    def row(who: str, steps: int, seconds: float, images: Tensor) -> dict:
        alike = match(images, test.pixels, candidates, parse_policy(""), crop_flip=False)
        return bench.described("answers", torch.device("cpu"), name, len(rows)) | {
            "by": who,
            "steps": steps,
            "seconds": round(seconds / len(rows), 3),
            "psnr": round(float(psnr(images, photographs).mean()), 2),
            "found": int(found(alike, own).sum()),
        }

    seen = observe(model, photographs, labels)
    for preset in presets:
        began = time.process_time()
        images = reconstruct(seen, preset, rng=1).images
        yield row(preset, ATTACKS[preset].steps, time.process_time() - began, images)
    for steps in iterations:
        torch.manual_seed(1)
        runs = [
            breaching_attack(model, photographs[[place]], labels[[place]], steps)
            for place in range(len(rows))
        ]
        began = time.process_time()
        made = [run()[0]["data"] for run in runs]
        seconds = time.process_time() - began
        images = normalize.inverse(torch.cat(made).detach()).clamp(0, 1)
        yield row("breaching", steps, seconds, images)


def _spent(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def main() -> None:
    """Measure the sizes, or one of them; a JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--answers", action="store_true", help="compare what they make, hours")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    if args.answers:
        names = [args.model] if args.model else ANSWERS
        rows = (row for name in names for row in answers(name))
    else:
        sizes = [(args.model, args.members)] if args.model else SIZES
        rows = (compare(name, members) for name, members in sizes)
    for row in rows:
        print(line := json.dumps(row), flush=True)
        if args.out:
            with args.out.open("a") as file:
                file.write(f"{line}\n")


if __name__ == "__main__":
    main()
