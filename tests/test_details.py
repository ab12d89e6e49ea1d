"""Hidden details: a halved loss as each distance sees it; the notebook's settings differ in one thing, and its rule on
made-up tables.
"""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from test_pilots import cell

from atsbook.findings import compare
from atsbook.findings.verdicts import guards
from atsbook.networks import ModelRequest, network
from atsbook.runs.study import Study
from atslib import ATTACKS, TrainConfig
from atslib.clients.defenses.defense import Defense
from atslib.gradients.problems import DISTANCES, unflatten
from atslib.rng import rng

pytestmark = pytest.mark.usefixtures("one_thread", "few_images")


def test_a_halved_loss_is_a_halved_gradient_unseen_by_the_cosine_and_seen_by_the_others():
    model = network(ModelRequest(dataset="shapes", model="lenet", fraction=1.0, train=None, seed=0))
    given = torch.randn(2, sum(p.numel() for p in model.parameters()), generator=rng(0))
    whole = unflatten(given, model)
    half = tuple(Defense.parse("scale:0.5").after(dict(enumerate(whole))).values())
    assert all(torch.equal(h, w / 2) for h, w in zip(half, whole, strict=True))
    assert DISTANCES["cosine"](whole, half).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert (DISTANCES["l2"](whole, half) > 1).all()


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """A function that gives the requests of the notebook's attacks by setting, and what each is compared with."""
    monkeypatch.setenv("ATS_STORE", str(tmp_path))

    def requests(profile):
        source = cell("ext4_hidden_details", "PAIRS = {")
        accuracies = source.index("accuracy = study.accuracies"), source.index("cosine = ATTACKS")
        source = source[: accuracies[0]] + source[accuracies[1] : source.index("attacks = study")]
        space = {"profile": profile, "dataset": "shapes", "images": 9, "seed": None}
        space |= {"Study": Study, "ATTACKS": ATTACKS, "TrainConfig": TrainConfig}
        space["dataclasses"] = dataclasses
        exec(source, space)
        return {name: run.request for name, run in space["runs"].items()}, space["PAIRS"]

    return requests


@pytest.mark.parametrize("profile", ["laptop", "full"])
def test_settings_differ_in_the_one_detail_they_are_compared_for(asked, profile):
    found, pairs = asked(profile)
    changed = {}
    for name, other in pairs.items():
        fields = [f.name for f in dataclasses.fields(found[name])]
        changed[name] = [f for f in fields if getattr(found[name], f) != getattr(found[other], f)]
    assert changed == {
        "plain victim": ["crop_flip"],
        "cosine, factor 0.5": ["defense"],
        "l2, factor 0.5": ["defense"],
    } | (
        {"plain victim and training": ["model"], "factor 0.5 in training": ["model"]}
        if profile == "full"
        else {}
    )


def test_on_untrained_networks_nothing_is_asked_of_the_training_and_the_attack_is_one_that_works(
    asked,
):
    found, _ = asked("laptop")
    assert {request.model.train for request in found.values()} == {None}
    assert found["l2"].attack.line_search


@pytest.mark.parametrize(
    ("accuracy", "change", "gain", "images", "status"),
    [
        ((60, 45), -1, 5, 30, "reproduced"),
        ((60, 55), -1, 5, 30, "partly"),
        ((60, 45), 1, 5, 30, "partly"),
        ((60, 45), -1, -1, 30, "partly"),  # the attack finds nothing, so its change is not judged
        ((15, 1), 1, 5, 30, "not reproduced"),
        ((15, 1), -1, 5, 29, "cannot tell"),
    ],
)
def test_the_rule(accuracy, change, gain, images, status):
    noise = np.resize([-0.3, 0.2, 0.1, -0.1, 0.0, 0.1], images)
    parts = {"l2": gain + noise, "l2, factor 0.5": gain + change + noise[::-1]}
    rows = [pd.DataFrame({"setting": n, "image": range(images), "gain": v, "psnr": v, "floor_policy": 0.0})
            for n, v in parts.items()]  # fmt: skip
    by_training = pd.Series(dict(zip(("with", "without"), accuracy, strict=True)))
    source = cell("ext4_hidden_details", "def judge(accuracy")
    space = {"compare": compare, "guards": guards}
    exec(source[: source.index("percent = accuracy")], space)
    assert space["judge"](by_training, pd.concat(rows))[0] == status
