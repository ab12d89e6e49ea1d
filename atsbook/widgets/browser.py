"""The payload of an attack that runs in the reader's browser, and what stands for it where no
script runs.
"""

import base64
import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from atsbook.figures import plots
from atsbook.figures.sheets import sheet
from atsbook.networks import ModelUnit, dataset, network
from atsbook.runs.settings import Settings
from atsbook.runs.study import Request, Study
from atsbook.runs.table1 import HYBRID, RANDOM, SEARCHED
from atsbook.widgets import data, html
from atsbook.widgets.browser_graph.graph import attack_graph
from atsbook.widgets.explorer import still
from atsbook.widgets.figures import Figure
from atslib.attacks import ATTACKS, GradientMatching
from atslib.clients.prepare import mean_prepared, streams, to_images, transform
from atslib.rng import rng

# Training images in the page, the server's: what it knows of a policy that the reader composes
OWN = 96
TRIED = 3  # the test image of the small form, of CIFAR-100 a mushroom
TRIAL = {RANDOM: "Random", SEARCHED[0]: "Searched, first", HYBRID: "Hybrid of both"}
LINE = (
    "This is the real attack, computed on your device: {what} Neither is it a measurement: the numbers of this book "
    "are means over many images. Pictures are neither cropped nor flipped here."
)
UNTRAINED = (
    "an untrained LeNet, which is what a server can do in the first round. At the end of their training "
    "the large networks of this book give less away."
)
TRAINED = (
    "a LeNet with ReLU, trained for {epochs} epochs on {images:,} images without a policy, which is what a server can "
    "do in a later round. It is not a good network, with {right:.1f} % of the test images right."
)


def preset(title: str, detail: str, attack: GradientMatching, *, knows: bool) -> dict:
    """What the page needs of an attack, with a sentence of `detail`."""
    settings = {name: getattr(attack, name) for name in ("lr", "tv", "steps", "schedule")}
    return {"title": title, "detail": detail, "knows": knows} | settings


PRESETS = [
    preset(
        "As published",
        "Inverting Gradients, Adam and TV;\nknows nothing of the policy",
        dataclasses.replace(ATTACKS["adam-cosine-tv"], steps=1000),
        knows=False,
    ),
    preset(
        "Knows the policy",
        "annealed Adam, less TV;\nthen undoes what was drawn",
        ATTACKS["annealed-lenet"],
        knows=True,
    ),
]


def mean_of(pixels: Tensor, policy: str, seed: int) -> str:
    """The library's floor, the mean of training images after the policy, as bytes in base64."""
    mean = mean_prepared(pixels, policy, rng=rng(seed, "floor", policy), crop_flip=False)
    return base64.b64encode((255 * mean).round().to(torch.uint8).numpy().tobytes()).decode()


def payload(study: Study, trained: Request, *, policies: Mapping[str, str], images: int) -> dict:
    """Pictures, operations, the traced step of each network with its weights, and the workers'
    script.

    The networks are an untrained LeNet and the trained one that is given, with weights rounded to
    16 bits.

    Args:
        policies: what to call each that the reader can choose; the last is chosen at first.
        images: the first of the test set, among which the reader chooses.
    """
    train = dataset(study.dataset, "train")
    taken = torch.randperm(len(train.pixels), generator=rng(study.seed, "own"))[:OWN]
    known = to_images(train.pixels[taken])[None]
    named = {policy: title for policy, title in policies.items() if policy}
    made = _common(study, range(images), named)
    return made | {
        "networks": [*made["networks"], _trained(study, trained)],
        "start": list(policies)[-1],
        "presets": PRESETS,
        "own": html.data_uri(sheet(known, 50), "image/webp"),
    }


def _common(settings: Study | Settings, images: Sequence[int], policies: dict[str, str]) -> dict:
    """What the attack and its small form have in common."""
    test = dataset(settings.dataset, "test")
    train = dataset(settings.dataset, "train")
    model = network(
        ModelUnit(
            dataset=settings.dataset, model="lenet", fraction=1.0, train=None, seed=settings.seed
        )
    )
    return data.pictures(settings.dataset, images) | {
        "where": f"{settings.dataset}, LeNet",
        "labels": test.labels[list(images)].tolist(),
        "operations": data.operations(),
        "policies": policies,
        "means": {
            policy: mean_of(train.pixels, policy, settings.seed) for policy in ("", *policies)
        },
        "networks": [_choice("Untrained: the first round", UNTRAINED, model, settings.dataset)],
        "worker": html.source("runner.js", "operations.js", "undo.js", "worker.js"),
    }


def _choice(title: str, what: str, model: nn.Module, name: str) -> dict:
    """A network that the page can attack, with the sentences above the form, which say `what` it
    is.

    Args:
        name: of the data set.
    """
    test = dataset(name, "test")
    graph = attack_graph(model, tuple(test.pixels.shape[1:]), test.num_classes, weights="f16")
    return {"title": title, "line": LINE.format(what=what), "graph": graph}


def _trained(study: Study, request: Request) -> dict:
    """The trained network of the page."""
    unit = request.unit
    size = round(unit.fraction * len(dataset(unit.dataset, "train")))
    model = request.value.cpu()
    right = study.accuracies({"": request}, ["network"])["accuracy"].item()
    what = TRAINED.format(epochs=unit.train.epochs, images=size, right=right)
    return _choice("Trained: a later round", what, model, unit.dataset)


def attack(study: Study, shown: dict, trained: Request, policies: Mapping[str, str]) -> Figure:
    """The attack on the explorer's test images; where no script runs, the explorer's own first
    round.

    Args:
        shown: the explorer's payload.
        trained: a network small enough for a browser to attack, beside an untrained one.
        policies: as of `payload`.
    """
    alt = "Test images, what the client used and what the attacker found in the first round, without and with a policy"
    return Figure(
        "attack",
        payload(study, trained, policies=policies, images=len(shown["images"])),
        still(shown),
        alt,
    )


def trial(settings: Settings) -> Figure:
    """The small form: one test image, three policies, the published attack; without scripts what
    they make of it.
    """
    pixels = dataset(settings.dataset, "test").pixels[TRIED : TRIED + 1]
    made = _common(settings, [TRIED], TRIAL) | {"start": HYBRID, "presets": PRESETS[:1]}
    draws = {policy: streams(settings.seed, "trial", policy) for policy in TRIAL}
    rows = {
        policy: transform(pixels, policy, rng=pair, crop_flip=False)
        for policy, pair in draws.items()
    }
    alt = "A test image, and what three policies make of it"
    return Figure("trial", made, html.png(plots.sheet({"original": pixels} | rows)), alt)
