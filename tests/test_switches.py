"""Fidelity switches: each differs from its base in one thing; orders and verdict on made-up tables;
a toy run.
"""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from atsbook.pages import switches
from atsbook.pages.switches import switches_verdict
from atsbook.runs.attacks import attack_unit
from atsbook.runs.networks import network
from atsbook.runs.scoring import unseen
from atsbook.runs.settings import settings
from atsbook.runs.study import Study
from atsbook.runs.table1 import HYBRID
from atslib.clients.training import TrainConfig
from atslib.models import normalization_layer
from atslib.policies.policy import parse_policy, sample_functions
from atslib.rng import rng
from atslib.scores.scores import VARIANTS, accuracy_score

pytestmark = pytest.mark.usefixtures("one_thread", "few_images")
TINY = {"images": 3, "steps": 3, "fraction": 0.002, "sampled": 4, "score_points": 3}


def differences(one, other):
    """Names of the fields, inner ones with a dot, in which two units differ."""
    found = set()
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if a != b and dataclasses.is_dataclass(a):
            found |= {f"{field.name}.{inner}" for inner in differences(a, b)}
        elif a != b:
            found.add(field.name)
    return found


@pytest.mark.parametrize("profile", ["laptop", "full"])
def test_each_setting_differs_from_its_base_in_its_switch_alone(profile):
    found = switches.attacks(place := settings(profile=profile, dataset="shapes", images=9))
    assert found["base"] == attack_unit(place)
    assert found["hybrid"] == attack_unit(place, HYBRID)
    assert found["batch norm"].model.model.startswith("resnet20")
    assert {unit.model.train is None for unit in found.values()} == {profile == "laptop"}
    turned = {name: differences(found[name], found[base]) for name, base in switches.PAIRS.items()}
    assert turned == {
        "other normalization": {"model.norm"},
        "4 restarts": {"attack.restarts"},
        "optimized label": {"threat.labels"},
        "train-mode victim": {"threat.victim"},
        "unknown statistics": {"threat.batch_norm"},
        "pruned globally": {"defense"},
        "9 convolutions": {"model.model"},
        "32 pixels": {"model.dataset"},
        "first member": {"policy"},
        "second member": {"policy"},
    }


def test_a_network_with_other_constants_has_the_same_weights_and_another_first_layer():
    found = switches.attacks(settings())
    base, other = (network(found[name].model) for name in ("base", "other normalization"))
    assert all((a == b).all() for a, b in zip(base.parameters(), other.parameters(), strict=True))
    assert normalization_layer(other).std.flatten()[0] == pytest.approx(
        0.2470, abs=1e-4
    )  # CIFAR-10's red
    assert normalization_layer(base).std.flatten()[0] != pytest.approx(0.2470, abs=1e-4)


def test_grey_images_have_no_colour_constants():
    assert "other normalization" not in switches.attacks(settings(dataset="shapes-grey"))


def test_scores_share_policies_and_the_first_is_claim_sevens():
    found = switches.scores(settings())
    study = Study("smoke")
    semi = study.network("convnet-4", train=TrainConfig(epochs=1), fraction=0.04)
    policies = list(map(str, sample_functions(6, rng=rng(0, "correlation"))))
    assert found["s_pri fixed"] == study.scores(semi, policies, images=2).unit
    assert {unit.policies for unit in found.values()} == {tuple(policies)}
    assert all(found[f"s_acc {variant}"].model.train is None for variant in VARIANTS)


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


NO, YES, OPEN = ("no", (-0.1, 0.2)), ("yes", (0.6, 1.0)), ("undecided", (-1.0, 1.0))


@pytest.mark.parametrize(
    ("switches_", "orders", "policies", "status"),
    [
        ([NO, NO], [0.9, 0.8], 40, "reproduced"),
        ([NO, OPEN], [0.9, 0.8], 40, "reproduced"),
        ([YES, NO], [0.9, 0.8], 40, "partly"),
        ([YES, NO], [0.9, 0.79], 40, "partly"),
        ([YES, YES], [0.9, float("nan")], 40, "not reproduced"),
        ([OPEN, NO], [0.9, 0.8], 29, "cannot tell"),
        ([("too few images", (-0.1, 0.2))] * 2, [0.9, 0.8], 40, "cannot tell"),
    ],
)
def test_the_rule_counts_what_matters(switches_, orders, policies, status):
    rows = [
        {"mean": sum(pair) / 2, "low": pair[0], "high": pair[1], "matters": word}
        for word, pair in switches_
    ]
    verdict = switches_verdict(
        pd.DataFrame(rows, index=["a", "b"]), pd.Series(orders, index=["c", "d"]), policies
    )
    assert verdict.status == status


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
    shift, spread, gain, images, word
):
    wave = np.resize([-1.0, 1.0, 0.5, -0.5], images) * spread
    values = {"base": np.full(images, float(gain)), "4 restarts": gain + shift + wave}
    rows = [pd.DataFrame({"setting": n, "image": range(images), "gain": v, "psnr": v + 9, "floor_policy": 9.0})
            for n, v in values.items()]  # fmt: skip
    assert switches.decided(pd.concat(rows)).loc["4 restarts", "matters"] == word


def test_a_toy_run_holds_every_setting_and_its_scores_are_the_librarys(kept):
    chosen = settings(**TINY)
    result = switches.run(chosen, kept)
    attacks = result.tables["attacks"]
    assert attacks.groupby("setting").size().to_dict() == dict.fromkeys(switches.attacks(chosen), 3)
    assert result.verdict.status == "cannot tell"
    change = switches.changes(result).loc["4 restarts"]
    for column, value in {"PSNR": "psnr", "gain": "gain"}.items():
        known = attacks.set_index(["setting", "image"])[value]
        assert change[column] == pytest.approx((known["4 restarts"] - known["base"]).mean())
    table = result.tables["scores"]
    unit = switches.scores(chosen)["s_acc code"]
    score = accuracy_score(
        network(unit.model).eval(),
        unseen(chosen.dataset)[: unit.images],
        parse_policy(table["policy"][1]),
        variant="code",
        rng=rng(unit.seed, "accuracy scores"),
    )
    assert table["s_acc code"][1] == pytest.approx(score)
    assert set(switches.comparison(result).index) == set(switches.attacks(chosen))
