"""The payload of an attack that runs in the reader's browser, and what stands for it where no script runs."""

import dataclasses

import torch

from atslib.attacks import ATTACKS, GradientMatching
from atslib.clients.prepare import to_images
from atslib.report.pages.explorer import HYBRID, POLICIES, Explorer, sheet
from atslib.report.units.networks import ModelUnit, dataset, network
from atslib.report.units.settings import Settings
from atslib.report.widgets import data, html
from atslib.report.widgets.explorer import still
from atslib.report.widgets.figures import Figure
from atslib.report.widgets.graph import attack_graph
from atslib.rng import rng

OWN = 96  # training images in the page, the server's: their mean after the policy is the floor
LINE = (
    "This is the real attack, computed on your device: an untrained LeNet, which is what a server can do in the first "
    "round. It is not a trained network, where such attacks find next to nothing, and not a measurement: the numbers "
    "of this book are means over many images. Pictures are neither cropped nor flipped here."
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
        "annealed Adam, less TV;\ncompares with every form of each picture",
        ATTACKS["annealed-lenet"],
        knows=True,
    ),
]


def payload(settings: Settings, *, images: int) -> dict:
    """Pictures, operations, the traced step with its weights, and the workers' script.

    The network is the untrained LeNet of the explorer's first round, with weights rounded to 16 bits.
    """
    test, train = dataset(settings.dataset, "test"), dataset(settings.dataset, "train")
    model = network(ModelUnit(dataset=settings.dataset, model="lenet", fraction=1.0, train=None, seed=settings.seed))
    taken = torch.randperm(len(train.pixels), generator=rng(settings.seed, "own"))[:OWN]
    shape = tuple(test.pixels.shape[1:])
    known = to_images(train.pixels[taken])[None]
    own = html.data_uri(sheet(known, 50), "image/webp")
    return data.pictures(settings, range(images)) | {
        "where": f"{settings.dataset}, untrained LeNet",
        "labels": test.labels[:images].tolist(),
        "operations": data.operations(),
        "policies": {policy: title for policy, title in POLICIES.items() if policy},
        "start": HYBRID,
        "presets": PRESETS,
        "line": LINE,
        "own": own,
        "graph": attack_graph(model, shape, test.num_classes, weights="f16"),
        "worker": html.source("runner.js", "worker.js"),
    }


def attack(result: Explorer, settings: Settings) -> Figure:
    """The attack on the explorer's test images; where no script runs, the explorer's own first round."""
    alt = "Test images, what the client used and what the attacker found in the first round, without and with a policy"
    return Figure("attack", payload(settings, images=len(result.payload["images"])), still(result.payload), alt)
