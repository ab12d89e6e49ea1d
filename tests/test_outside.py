"""A user's own optimizer, start, prior, distance, attack, model, data set and defense, each a row
of a page's table.

Everything above the tests is what a file outside the package holds: functions, classes, and their
entries in tables.
"""

import dataclasses

import pytest
import torch
from torch import nn

from atsbook.findings.table1 import HYBRID
from atsbook.runs.study import Study
from atslib import Images
from atslib.attacks import ATTACKS
from atslib.attacks.optimizers import OPTIMIZERS, Optimizer
from atslib.attacks.priors import PENALTIES
from atslib.attacks.starts import STARTS
from atslib.clients.defenses.perturbations import DEFENSES
from atslib.data.load import DATASETS
from atslib.gradients.problems import DISTANCES
from atslib.models import FAMILIES
from atslib.rng import rng

pytestmark = pytest.mark.usefixtures("one_thread", "few_images")
TINY = {"images": 2, "steps": 2, "fraction": 0.002}


class Still(Optimizer):
    """It never leaves the start."""

    def step(self, cost, step):
        distance, whole, _ = self.gradient(cost, self.state["z"])
        return distance, whole


def grey_start(shape, rng, normalize):
    return normalize(torch.full(shape, 0.5))


def nearness_to_white(normalized, pixels, seen):
    return (1 - pixels).square().flatten(2).mean(2)


def largest_difference(gradients, target):
    return torch.stack(
        [(g - t).flatten(1).abs().amax(1) for g, t in zip(gradients, target, strict=True)]
    ).amax(0)


@dataclasses.dataclass(frozen=True)
class Flat:
    """An attack that looks at nothing and answers with one shade."""

    shade: float = 0.5

    def run(self, seen, *, rng):
        return torch.full((len(seen), *seen.shape), self.shade)


def linear(width, num_classes, in_channels, image_size):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))


def noise_images(split):
    """Grey noise of 12×12 pixels, three classes."""
    count = {"train": 60, "test": 20}[split]
    pixels = torch.randint(256, (count, 1, 12, 12), dtype=torch.uint8, generator=rng(0, split))
    return Images(pixels, torch.arange(count) % 3, ("a", "b", "c"), "noise", split)


# --- each in a page's table ---------------------------------------------------------------------------------


@pytest.fixture
def presets(monkeypatch):
    """Five presets of one's own beside the paper's first, each with one new part; the last is
    another method.
    """
    monkeypatch.setitem(OPTIMIZERS, "still", Still)
    monkeypatch.setitem(STARTS, "grey", grey_start)
    monkeypatch.setitem(PENALTIES, "white", nearness_to_white)
    monkeypatch.setitem(DISTANCES, "largest", largest_difference)
    base = ATTACKS["adam-cosine"]
    own = {
        "my start": dataclasses.replace(base, start="grey", optimizer="still"),
        "my prior": dataclasses.replace(base, penalties=(("white", 1e6),), signed=True),
        "my distance": dataclasses.replace(base, distance="largest"),
        "my attack": Flat(0.25),
    }
    for name, attack in own.items():
        monkeypatch.setitem(ATTACKS, name, attack)
    return own


def test_parts_of_an_attack_and_whole_attacks_are_presets_of_a_study(presets, kept):
    study = Study("smoke", store=kept.root)
    net = study.network("lenet")
    runs = {}
    for name in ("adam-cosine", *presets):
        steps = 3 if name != "my attack" else None
        for policy in ("", HYBRID):
            runs[name, policy] = study.attack(
                net, policy=policy, attack=ATTACKS[name], steps=steps, images=3
            )
    for run in runs.values():
        run.request.make(kept, torch.device("cpu"))  # here, where the new parts are known
    rows = study.table(runs, ["attack", "policy"])
    rows = rows.set_index(["attack", "policy", "image"]).sort_index()
    for name, shade in {"my start": 0.5, "my attack": 0.25}.items():
        for policy in ("", HYBRID):
            target = study[runs[name, policy]]["target"].double() / 255
            expected = -10 * (target - shade).square().mean((1, 2, 3)).log10()
            psnr = rows.loc[(name, policy or "none"), "psnr"]
            assert psnr.tolist() == pytest.approx(expected.tolist(), abs=1e-3)
    assert (rows.loc["my prior", "psnr"] != rows.loc["adam-cosine", "psnr"]).all()
    assert (rows.loc["my distance", "cost"] != rows.loc["adam-cosine", "cost"]).all()
    assert rows.loc["my attack", "cost"].isna().all()
    brighter, usual = (
        study[runs[name, ""]]["reconstruction"].mean() for name in ("my prior", "adam-cosine")
    )
    assert brighter > usual


def test_a_model_a_data_set_and_a_defense_are_asked_for_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(FAMILIES, "linear", (linear, 1, 1))
    monkeypatch.setitem(DATASETS, "noise", noise_images)

    def zeros(gradients, strength, rng):
        return {name: 0 * gradient for name, gradient in gradients.items()}

    monkeypatch.setitem(DEFENSES, "zero", (zeros, "", bool))
    study = Study("smoke", "noise", store=tmp_path)
    runs = {
        name: study.attack(
            study.network("linear"), defense=name, attack="adam-cosine", steps=2, images=2
        )
        for name in ("", "prune:0.7", "zero:1")
    }
    for run in runs.values():
        run.request.make(study._own, torch.device("cpu"))
    cost = study.table(runs, ["defense"]).groupby("defense")["cost"].apply(list)
    assert cost["zero:1"] == [1, 1]  # nothing is shared, so nothing is similar
    assert 1 not in cost["prune:0.7"] + cost[""]
    assert runs[""].value["target"].shape == (2, 1, 12, 12)
