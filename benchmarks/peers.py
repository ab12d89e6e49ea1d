"""An attack's iteration beside that of breaching, by its own code: milliseconds of processor time an
image, on one thread.

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
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from atsbook import bench
from atslib.attacks.matching import GradientMatching
from atslib.attacks.objective import Objective
from atslib.attacks.optimizers import Adam
from atslib.clients.observe import observe
from atslib.gradients.cpu import keep_memory
from atslib.models import normalization_layer

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


def _spent(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def main() -> None:
    """Measure the sizes, or one of them; a JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    for name, members in [(args.model, args.members)] if args.model else SIZES:
        print(line := json.dumps(compare(name, members)), flush=True)
        if args.out:
            with args.out.open("a") as file:
                file.write(f"{line}\n")


if __name__ == "__main__":
    main()
