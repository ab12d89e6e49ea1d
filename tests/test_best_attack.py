"""The attack that is best behind a policy: which are tried, and which is taken."""

from types import SimpleNamespace

import numpy as np
import pytest

from atsbook.runs.best_attack import DRAW, Choice, bits
from atsbook.runs.study import Study
from atslib import ATTACKS

pytestmark = pytest.mark.book


class Told:
    """A study whose attacks come to so many bits, by optimizer, total variation and steps."""

    def __init__(self, worth):
        self.worth = worth
        self.made = []

    def network(self, model, draw):
        assert draw == DRAW
        return model

    def attack(self, net, *, policy, attack, images, draw):
        self.made.append((attack.optimizer, attack.tv, attack.steps, images))
        told = self.worth(attack)
        return SimpleNamespace(rank=[100 / 2**told] * len(images))

    def outcomes(self, run):
        return SimpleNamespace(value={"rank": run.rank})

    def compute(self, runs):
        pass


def test_bits_are_those_of_the_rank():
    study = Told(lambda attack: 0)
    run = SimpleNamespace(rank=[1, 100, 10])
    assert bits(study, run) == pytest.approx(np.log2([100, 1, 10]).mean())


def test_the_best_of_each_optimizer_goes_on_in_both_lengths_and_the_most_bits_decide():
    worth = {"adam": {0.1: 3, 0.02: 4, 3e-3: 5, 3e-4: 6}, "lbfgs-once": {3e-4: 1, 3e-3: 2}}

    def told(attack):
        return worth[attack.optimizer].get(attack.tv, 0) + (attack.steps == 1_200)

    study = Told(told)
    best, rows = Choice().made(study, "lenet", "3-1-7")
    assert (best.optimizer, best.tv, best.steps) == ("adam", 3e-4, 1_200)
    names = ["Adam, tv 0.0003", "Adam, tv 0.003", "Adam, tv 0.02", "L-BFGS, tv 0.003"]
    each = [f"{name}, {steps} steps" for name in names for steps in (300, 1_200)]
    assert rows["attack"].tolist() == [*each, "the paper's, 4,800 steps"]
    assert rows.loc[rows["chosen"], "attack"].tolist() == ["Adam, tv 0.0003, 1200 steps"]
    assert set(rows["policy"]) == {"3-1-7"}
    first = [images for *_, images in study.made[:8]]
    assert first == [range(200, 208)] * 8
    assert {images for *_, images in study.made[8:]} == {range(200, 232)}
    assert study.made[-1][2] == ATTACKS["adam-cosine"].steps == 4_800


def test_at_a_tie_the_shorter_attack_is_taken_and_of_two_as_short_the_better_one():
    lead = {0.1: 0.0, 0.02: 0.01, 3e-3: 0.02, 3e-4: -1}
    study = Told(lambda attack: 6 + lead[attack.tv] + 0.02 * (attack.steps == 1_200))
    best, rows = Choice(longest=False).made(study, "resnet20-1", "")
    assert (best.tv, best.steps) == (3e-3, 300)
    assert set(rows["policy"]) == {"none"}
    assert len(rows) == 6  # ReLU networks have no L-BFGS


def test_candidates_are_those_of_their_network():
    choice = Choice(variation=(0.5,), steps=(7, 9))
    assert list(choice.candidates("convnet-16")) == ["Adam, tv 0.5"]
    found = choice.candidates("lenet")
    assert list(found) == ["Adam, tv 0.5", "L-BFGS, tv 0.5"]
    assert {attack.steps for attack in found.values()} == {7}


def test_a_choice_is_made_by_real_attacks(tmp_path):
    study = Study("smoke", store=tmp_path)
    small = Choice(
        variation=(0.02, 0.1), steps=(2, 3), quick=range(40, 42), on=range(40, 44), kept=1
    )
    best, rows = small.made(study, "convnet-4", "")
    assert rows["chosen"].sum() == 1
    assert best.steps in (2, 3)
    assert len(rows) == 2
