"""The payload of an attack that runs in the reader's browser, and what stands for it where no
script runs.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from atsbook.figures import plots
from atsbook.figures.sheets import fitting, sheet
from atsbook.findings.table1 import HYBRID, SEARCHED
from atsbook.networks import ModelRequest, dataset, network
from atsbook.runs.settings import Settings
from atsbook.runs.study import Handle, Study
from atsbook.widgets import data, html
from atsbook.widgets.browser_graph.graph import attack_graph
from atsbook.widgets.figures import Figure
from atslib.attacks import ATTACKS, GradientMatching
from atslib.clients.prepare import streams, to_images, transform
from atslib.measures.found import own_class
from atslib.models import last_linear
from atslib.policies.policy import CANONICAL
from atslib.rng import rng

OWN = 96  # training images in the page, the server's: what it knows of what a policy makes of photographs
TRIED = 3  # the test image of the small form, of CIFAR-100 a mushroom
TRIAL = {HYBRID: "The paper's policy", SEARCHED[0]: "Its first half alone", "": "No policy"}
BUDGET = 620_000  # bytes of all candidates: the page stays below 2 MB
TRIAL_BUDGET = 60_000
STILL = 6  # photos of the picture on paper
LINE = (
    "The attack is the real one, computed on your device: {what} It is no measurement: this book's numbers "
    "are of many photos. Pictures are neither cropped nor flipped here."
)
UNTRAINED = (
    "on an untrained LeNet, which is what a server can do in the first round. At the end of their training "
    "the large networks of this book give less away."
)
TRAINED = (
    "on a LeNet with ReLU, trained for {epochs} epochs on {images:,} images without a policy, which is what a server can "
    "do in a later round. It is not a good network, with {right:.1f} % of the test images right."
)


def preset(title: str, attack: GradientMatching) -> dict:
    """What the page needs of an attack."""
    settings = {name: getattr(attack, name) for name in ("lr", "tv", "steps", "schedule")}
    return {"title": title} | settings


PRESETS = [
    preset("Annealed Adam", ATTACKS["annealed-lenet"]),
    preset(
        "As published, Inverting Gradients",
        dataclasses.replace(ATTACKS["adam-cosine-tv"], steps=1000),
    ),
]


def line_ups(name: str, images: Sequence[int], budget: int) -> dict:
    """Candidates of each of the test images: 100 of its own class, as the book's pages have them.

    Args:
        name: of the data set.
        images: rows of its test images.
        budget: bytes of the candidates' pictures, which are compressed to fit; the images
            themselves are not.
    Returns:
        `classes`, each with its name, label, count and sheet, and `of`, for each image its class
        and its place among the candidates.
    """
    test = dataset(name, "test")
    rows = list(images)
    candidates, places = own_class(test.labels, rows)
    labels = test.labels[rows].tolist()
    first = {label: i for i, label in reversed(list(enumerate(labels)))}
    kinds = sorted(first, key=first.get)
    pictures = {str(k): to_images(test.pixels[candidates[first[k]]])[None] for k in kinds}
    sheets = fitting(pictures, budget)
    classes = [
        {
            "name": test.class_names[k].replace("_", " "),
            "label": k,
            "count": candidates.shape[1],
            "sheet": html.data_uri(sheets[str(k)], "image/webp"),
        }
        for k in kinds
    ]
    of = [[kinds.index(label), place] for label, place in zip(labels, places.tolist(), strict=True)]
    return {"classes": classes, "of": of}


def payload(study: Study, trained: Handle, *, policies: Mapping[str, str], images: int) -> dict:
    """Pictures, operations, the traced step of each network with its weights, and the workers'
    script.

    The networks are an untrained LeNet and the trained one that is given, with weights rounded to
    16 bits.

    Args:
        policies: what to call each that the reader can choose; the first is chosen at first.
        images: the first of the test set, among which the reader chooses.
    """
    train = dataset(study.dataset, "train")
    taken = torch.randperm(len(train.pixels), generator=rng(study.seed, "own"))[:OWN]
    known = to_images(train.pixels[taken])[None]
    made = _common(study, range(images), policies, BUDGET)
    return made | {
        "networks": [*made["networks"], _trained(study, trained)],
        "presets": PRESETS,
        "own": html.data_uri(sheet(known, 50), "image/webp"),
    }


def _common(
    settings: Study | Settings, images: Sequence[int], policies: Mapping[str, str], budget: int
) -> dict:
    """What the attack and its small form have in common."""
    model = network(
        ModelRequest(
            dataset=settings.dataset, model="lenet", fraction=1.0, train=None, seed=settings.seed
        )
    )
    pictures = data.pictures(settings.dataset, images) | line_ups(settings.dataset, images, budget)
    return pictures | {
        "where": f"{settings.dataset}, LeNet",
        "operations": data.operations(),
        "canonical": list(CANONICAL),
        "policies": dict(policies),
        "start": next(iter(policies)),
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
    features = last_linear(model).in_features
    return {"title": title, "line": LINE.format(what=what), "graph": graph, "features": features}


def _trained(study: Study, network: Handle) -> dict:
    """The trained network of the page."""
    request = network.request
    size = round(request.fraction * len(dataset(request.dataset, "train")))
    model = network.value.cpu()
    right = study.accuracies({"": network}, ["network"])["accuracy"].item()
    what = TRAINED.format(epochs=request.train.epochs, images=size, right=right)
    return _choice("Trained: a later round", what, model, request.dataset)


def attack(
    study: Study, ahead: Mapping[str, Handle], trained: Handle, policies: Mapping[str, str]
) -> Figure:
    """The attack on the first test images, as many as were attacked ahead.

    Args:
        ahead: attacks of the first round by policy, whose pictures stand for it on paper and where
            no script runs.
        trained: a network small enough for a browser to attack, beside an untrained one.
        policies: as of `payload`.
    """
    rows = {}
    for policy, run in ahead.items():
        kept = run.value
        rows.setdefault("photo", kept["original"][:STILL])
        rows[f"{policies[policy]}: used"] = kept["target"][:STILL]
        rows[f"{policies[policy]}: rebuilt"] = kept["reconstruction"][:STILL]
    images = len(next(iter(ahead.values())).value["original"])
    made = payload(study, trained, policies=policies, images=images)
    alt = "Photos, what the client used and what the server rebuilt in the first round, without and with a policy"
    return Figure("attack", made, html.png(plots.sheet(rows), dpi=150), alt)


def trial(settings: Settings) -> Figure:
    """The small form: one test image and three policies; without scripts what they make of it."""
    pixels = dataset(settings.dataset, "test").pixels[TRIED : TRIED + 1]
    made = _common(settings, [TRIED], TRIAL, TRIAL_BUDGET) | {"presets": PRESETS[:1]}
    draws = {policy: streams(settings.seed, "trial", policy) for policy in TRIAL}
    rows = {
        policy: transform(pixels, policy, rng=pair, crop_flip=False)
        for policy, pair in draws.items()
    }
    alt = "A test image, and what three policies make of it"
    return Figure("trial", made, html.png(plots.sheet({"original": pixels} | rows)), alt)
