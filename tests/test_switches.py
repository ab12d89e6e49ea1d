"""Fidelity switches: each setting of the notebook differs from its base in one thing; orders and the rule on
made-up tables; accuracy scores are the library's.
"""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from test_pilots import cell

import atslib
from atsbook.findings import compare, switches
from atsbook.findings.verdicts import guards
from atsbook.networks import network
from atsbook.requests.scoring import AccuracyRequest, unseen
from atsbook.runs.study import Study
from atslib import ATTACKS, ThreatModel
from atslib.data.load import is_drawn
from atslib.models import normalization_layer
from atslib.policies.policy import parse_policy
from atslib.rng import rng
from atslib.scores.scores import VARIANTS, accuracy_score

pytestmark = pytest.mark.usefixtures("one_thread", "few_images")


def differences(one, other):
    """Names of the fields, inner ones with a dot, in which two requests differ."""
    found = set()
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if a != b and dataclasses.is_dataclass(a):
            found |= {f"{field.name}.{inner}" for inner in differences(a, b)}
        elif a != b:
            found.add(field.name)
    return found


@pytest.fixture
def settings_of(tmp_path, monkeypatch):
    """A function that gives the requests of the notebook's attacks by setting; nothing is computed."""
    monkeypatch.setenv("ATS_STORE", str(tmp_path))

    def requests(profile="laptop", dataset="shapes"):
        source = cell("switches", "def on_lenet(")
        space = {"profile": profile, "dataset": dataset, "images": 9, "seed": None, "Study": Study}
        space |= {"ATTACKS": ATTACKS, "ThreatModel": ThreatModel, "dataclasses": dataclasses}
        space |= {"atslib": atslib, "is_drawn": is_drawn}
        exec(source[: source.index("attacks = study.table")], space)
        return {name: run.request for name, run in space["runs"].items()}

    return requests


@pytest.mark.parametrize("profile", ["smoke", "laptop", "full"])
def test_each_setting_differs_from_its_base_in_its_switch_alone(profile, settings_of):
    found = settings_of(profile)
    pairs = {name: base for name, base in switches.PAIRS.items() if name in found}
    turned = {name: differences(found[name], found[base]) for name, base in pairs.items()}
    assert turned == {
        "other normalization": {"model.norm"},
        "4 restarts": {"attack.restarts"},
        "optimized label": {"threat.labels"},
        "train-mode victim": {"threat.victim"},
        "unknown statistics": {"threat.batch_norm"},
        "pruned globally": {"defense"},
        "9 convolutions": {"model.model"},
        "first member": {"policy"},
        "second member": {"policy"},
    }


def test_a_network_with_other_constants_has_the_same_weights_and_another_first_layer(settings_of):
    found = settings_of()
    base, other = (network(found[name].model) for name in ("base", "other normalization"))
    assert all((a == b).all() for a, b in zip(base.parameters(), other.parameters(), strict=True))
    assert normalization_layer(other).std.flatten()[0] == pytest.approx(
        0.2470, abs=1e-4
    )  # CIFAR-10's red
    assert normalization_layer(base).std.flatten()[0] != pytest.approx(0.2470, abs=1e-4)


def test_grey_images_have_no_colour_constants(settings_of):
    assert "other normalization" not in settings_of(dataset="shapes-grey")


def made_up(policies=8, **columns):
    rising = np.arange(policies, dtype=float)
    table = {"s_pri fixed": rising, "s_pri fixed variance": 0 * rising, "s_pri code": rising}
    return pd.DataFrame(table | {f"s_acc {variant}": -rising for variant in VARIANTS} | columns)


def test_orders_agree_turn_round_and_say_what_both_would_keep():
    found = switches.orders(
        made_up(**{"s_pri code": np.arange(8.0)[::-1], "s_acc paper": np.arange(8.0)})
    )
    assert found["rank correlation"].round(9).to_dict() == {
        "GradSim by tensor": -1.0,
        "variance in the ranking": 1.0,
        "sign of S_acc": -1.0,
        "first image of each label": 1.0,
    }
    assert found["best"].unique().tolist() == [2]
    assert found["shared"].tolist() == [0, 2, 0, 2]


def test_a_large_variance_moves_a_policy_back():
    spread = np.array([9.0, *[0.0] * 7])
    found = switches.orders(made_up(**{"s_pri fixed variance": spread})).loc[
        "variance in the ranking"
    ]
    assert found["rank correlation"] < 1
    assert found["shared"] == 1


def test_the_threshold_rejects_what_is_below_it():
    assert switches.rejected(made_up(4, **{"s_acc code": [-84.0, -85.0, -85.1, -90.0]})) == 0.5


# --- the rule ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def rule():
    """What the notebook's rule defines."""
    source = cell("switches", "def decide(")
    space = {"compare": compare, "guards": guards, "PAIRS": switches.PAIRS}
    exec(source[: source.index("changed = decide(")], space)
    return space


@pytest.mark.parametrize(
    ("matters", "ranks", "policies", "status"),
    [
        (["no", "no"], [0.9, 0.8], 40, "reproduced"),
        (["no", "undecided"], [0.9, 0.8], 40, "reproduced"),
        (["yes", "no"], [0.9, 0.8], 40, "partly"),
        (["yes", "no"], [0.9, 0.79], 40, "partly"),
        (["yes", "yes"], [0.9, float("nan")], 40, "not reproduced"),
        (["undecided", "no"], [0.9, 0.8], 29, "cannot tell"),
        (["too few images"] * 2, [0.9, 0.8], 40, "cannot tell"),
    ],
)
def test_the_rule_counts_what_matters(rule, matters, ranks, policies, status):
    assert rule["judge"](matters, ranks, policies)[0] == status


@pytest.mark.parametrize(
    ("shift", "spread", "gain", "images", "word"),
    [
        (0.0, 0.1, 5, 40, "no"),
        (2.0, 0.1, 5, 40, "yes"),
        (0.3, 0.01, 5, 40, "no"),  # sure, and too small to matter
        (0.0, 9.0, 5, 40, "undecided"),
        (
            2.0,
            0.1,
            -5,
            40,
            "undefended attacks do not beat the policy's mean image (-5.0 dB [-5.0, -5.0])",
        ),
        (2.0, 0.1, 5, 29, "29 images are fewer than 30"),
    ],
)
def test_a_switch_matters_where_its_interval_leaves_half_a_decibel_and_zero(
    rule, shift, spread, gain, images, word
):
    wave = np.resize([-1.0, 1.0, 0.5, -0.5], images) * spread
    values = {"base": np.full(images, float(gain)), "4 restarts": gain + shift + wave}
    rows = [pd.DataFrame({"setting": n, "image": range(images), "gain": v, "psnr": v + 9, "floor_policy": 9.0})
            for n, v in values.items()]  # fmt: skip
    assert rule["decide"](pd.concat(rows)).loc["4 restarts", "matters"] == word


@pytest.mark.parametrize("variant", VARIANTS)
def test_accuracy_scores_are_the_librarys(kept, variant):
    request = AccuracyRequest(
        model=Study("smoke", store=kept.root).network("convnet-4").request,
        policies=("3-1-7", "43-18-18"),
        images=5,
        variant=variant,
        seed=3,
    )
    made = request.make(kept, torch.device("cpu"))["scores"]
    for policy, score in zip(request.policies, made, strict=True):
        known = accuracy_score(
            network(request.model).eval(),
            unseen("shapes")[:5],
            parse_policy(policy),
            variant=variant,
            rng=rng(3, "accuracy scores"),
        )
        assert float(score) == pytest.approx(known)
