"""Networks along their training, and the page that asks when a photograph is found."""

import dataclasses
import functools

import numpy as np
import pandas as pd
import pytest
import torch
from checks import Sizes, attack_request, needs
from test_pilots import cell
from test_rules import functions

from atsbook.experiment import ranks
from atsbook.findings import compare
from atsbook.findings.reported import reported
from atsbook.findings.result import NO_POLICY
from atsbook.findings.statistics import holm, interval, paired, share_interval
from atsbook.findings.table1 import HYBRID, POLICIES, SEARCHED
from atsbook.findings.verdicts import guards
from atsbook.networks import STAGES, training_steps
from atsbook.runs.study import Study
from atsbook.runs.tables import image_rows, policy_image
from atslib.attacks import ATTACKS
from atslib.clients.prepare import to_images
from atslib.clients.training import TrainConfig
from atslib.measures.metrics import psnr


def attacks(lead, change, *, images=40, spread=1.0, seed=0):
    """One cell's rows: undefended gains around `lead`, the hybrid's around `lead + change`, on the
    same images.
    """
    draw = np.random.default_rng(seed)
    first, second = (spread * (noise - noise.mean()) for noise in draw.standard_normal((2, images)))
    bare, hybrid = lead + first, lead + first + change + second
    rows = [
        pd.DataFrame(
            {"image": range(images), "draw": 0, "policy": name, "gain": gain, "psnr": 10 + gain}
        )
        for name, gain in ((NO_POLICY, bare), (HYBRID, hybrid))
    ]
    return pd.concat(rows, ignore_index=True).assign(
        regime="initial", step=0, model="lenet", floor_policy=10.0
    )


@pytest.fixture(scope="module")
def rule():
    """What the notebook's rule defines."""
    return functions(
        "regimes",
        "def judge_all(",
        compare=compare,
        guards=guards,
        holm=holm,
        interval=interval,
        paired=paired,
    )


@pytest.mark.parametrize(
    ("lead", "change", "images", "status"),
    [
        (5, -4, 40, "reproduced"),
        (5, 2, 40, "not reproduced"),
        (-1, -4, 40, "cannot tell"),  # nothing to protect
        (5, -4, 20, "cannot tell"),  # too few images
    ],
)
def test_the_status_follows_the_rule(rule, lead, change, images, status):
    assert rule["judge_all"](attacks(lead, change, images=images))[1] == status


def test_an_imprecise_case_cannot_tell(rule):
    table, status = rule["judge_all"](attacks(9, -1.5, spread=10.0))
    assert table["low"].item() < rule["PUBLISHED"]
    assert table["high"].item() > 0
    assert "holds both 0 and the published" in table["why"].item()
    assert status == "cannot tell"


def test_one_protected_case_of_two_is_partly(rule):
    other = attacks(5, 2, seed=1).assign(model="convnet-16")
    table, status = rule["judge_all"](pd.concat([attacks(5, -4), other], ignore_index=True))
    assert table["protects"].tolist() == [True, False]
    assert status == "partly"


def test_p_is_corrected_over_all_cases(rule):
    weak = attacks(5, -0.5, spread=0.95)
    alone = rule["judge_all"](weak)[0].iloc[0]
    others = [attacks(5, 0, seed=k).assign(model=f"lenet-{k}") for k in range(1, 30)]
    among = rule["judge_all"](pd.concat([weak, *others], ignore_index=True))[0].loc[
        ("initial", 0, "lenet")
    ]
    assert (alone["high"], alone["why"]) == (among["high"], among["why"])
    assert alone["high"] < 0
    assert bool(alone["protects"])
    assert among["p"] > 0.05 > alone["p"]
    assert not among["protects"]


def test_the_published_change_is_the_smaller_of_both(rule):
    rows = reported(table_or_figure="Table 1a", metric="PSNR_dB")
    known = rows.set_index(["source", "policy_or_defense"])["value"]
    bare = known.xs(NO_POLICY, level="policy_or_defense")
    changes = known[known.index.get_level_values(1).str.startswith("hybrid:")].droplevel(1) - bare
    assert rule["PUBLISHED"] == pytest.approx(changes[changes.abs().idxmin()])


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A function that gives what the notebook asks for: its attacks, those on crossed networks and
    those by the paper, each by its key; nothing is computed.
    """
    store = tmp_path_factory.mktemp("asked")
    space = {"dataset": None, "images": None, "steps": None, "seed": None, "Study": Study}
    space |= {"STAGES": STAGES, "TrainConfig": TrainConfig, "training_steps": training_steps}

    @functools.cache
    def requests(profile="laptop"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ATS_STORE", str(store))
            return run(profile)

    def run(profile):
        space["profile"] = profile
        exec(cell("regimes", "STRONGEST = {"), space)
        loop = cell("regimes", "def network(")
        exec(loop[: loop.index("study.compute(runs)")], space)
        further = cell("regimes", "crossed_runs = {}")
        exec(further[: further.index("crossed = pd")], space)
        parts = (space[name] for name in ("runs", "crossed_runs", "paper_runs"))
        return [{key: run.request for key, run in part.items()} for part in parts]

    return requests


@needs("cifar100")
def test_the_evidence_has_every_network_policy_and_draw(asked):
    requests = asked()[0]
    untrained = {key: request for key, request in requests.items() if key[0] == "initial"}
    assert {key[2] for key in untrained} == {"lenet", "convnet-16", "resnet20-1", "resnet20-4"}
    assert len(untrained) == len(POLICIES) * (3 + 2 + 2) + 2
    assert all(
        request.last == (16 if key[2] == "resnet20-4" else 100)
        for key, request in untrained.items()
    )
    assert all(
        request.last >= 30 for request in requests.values() if request.model.model != "resnet20-4"
    )
    assert all(request.model.train is None for request in untrained.values())
    assert {request.seed for key, request in untrained.items() if key[2] == "lenet"} == {0, 1, 2}


FOLLOWED = {
    "resnet20-1": 100,
    "convnet-16": 100,
    "lenet": 300,
}  # and the steps of an attack, as before the training


@needs("cifar100")
def test_networks_are_followed_to_the_end_of_their_training_with_every_searched_policy(asked):
    requests = {key: request for key, request in asked()[0].items() if key[0] == "early"}
    steps = {model: {key[1] for key in requests if key[2] == model} for model in FOLLOWED}
    assert steps == {model: {*STAGES, 7820} for model in FOLLOWED}
    assert all(
        request.model.step == (0 if key[1] == 7820 else key[1]) for key, request in requests.items()
    )
    lengths = {(key[2], request.attack.steps) for key, request in requests.items()}
    assert lengths == FOLLOWED.items(), "one figure, one length of attack"
    policies = {model: {u.policy for k, u in requests.items() if k[2] == model} for model in steps}
    assert policies == {model: {"", *SEARCHED, HYBRID} for model in FOLLOWED}
    assert all(request.model.train.policy == request.policy for request in requests.values())


@needs("cifar100")
def test_every_policy_of_claim_1_has_a_network_trained_to_its_end(asked):
    requests = {key: request for key, request in asked()[0].items() if key[0] == "trained"}
    attacked = {(key[2], request.policy) for key, request in requests.items()}
    every = {(model, policy) for model in ("lenet", "resnet20-1") for policy in POLICIES}
    assert attacked == every | {("convnet-16", policy) for policy in ("", HYBRID)}
    for request in requests.values():
        assert (request.model.train.policy, request.model.step, request.last) == (
            request.policy,
            0,
            100,
        )


@needs("cifar100")
def test_the_papers_attack_stands_beside_the_strongest_on_the_same_images_and_starts(asked):
    requests, _, theirs = asked()
    assert {key[0] for key in theirs} == {"initial", "early", "semi", "trained"}
    for key, request in theirs.items():
        strongest = requests[(*key, 0)]
        assert request.attack == dataclasses.replace(
            ATTACKS["adam-cosine"], steps=strongest.attack.steps
        )
        assert request == dataclasses.replace(
            strongest, attack=request.attack, last=100 if key[0] == "initial" else 32
        )


def test_at_smoke_one_untrained_network_is_attacked(asked):
    requests, crossed, theirs = asked("smoke")
    assert [key[2:4] for key in requests] == [("convnet-4", ""), ("convnet-4", HYBRID)]
    assert {request.last for request in requests.values()} == {2}
    assert not crossed
    assert not theirs


NAMES = ["regime", "step", "model", "policy"]


def test_both_attacks_are_compared_case_by_case():
    one = attacks(5, -1).assign(rank_target=1)
    theirs = one.assign(gain=one["gain"] - 4, rank_target=2)
    other = one.assign(regime="trained", step=9, gain=0.0)
    more = one.assign(image=one["image"] + 1_000, gain=99.0)  # which the paper's attack did not get
    ours = pd.concat([one, one.assign(draw=1, gain=99.0), other, more])
    shown = functions("regimes", "def two_attacks(", compare=compare, NAMES=NAMES)["two_attacks"]
    row = shown(theirs, ours).loc["untrained", "lenet", NO_POLICY]
    assert row["strongest: gain, dB"].startswith("+5.0 [")
    assert row["the paper's: gain, dB"].startswith("+1.0 [")
    assert (row["strongest: used image found"], row["the paper's: used image found"]) == (
        "100%",
        "0%",
    )


def training(**parts):
    """What the cell about the way of a training defines, with these attacks."""
    known = {"compare": compare, "share_interval": share_interval}
    table = pd.concat(parts["rows"], ignore_index=True)
    table = table.assign(rank_target=1, rank_knowing=1, rank_original=1)
    return functions("regimes", "def by_step(", attacks=table, followed={}, **known)


def test_the_figure_follows_one_training_and_leaves_out_the_semi_trained_network():
    parts = [
        attacks(5, -1).assign(regime=r, step=s)
        for r, s in (("initial", 0), ("early", 3), ("early", 9))
    ]
    parts += [attacks(5, -1).assign(regime=r, step=s) for r, s in (("semi", 7), ("trained", 9))]
    space = training(rows=parts)
    found = space["by_step"](space["along"]("lenet"))
    assert sorted(set(found["step"])) == [0, 3, 9]
    assert found["outcome"].nunique() == 4
    table = space["attacks"]
    table.loc[table["step"] == 3, "rank_knowing"] = np.nan  # nobody looked
    found = space["by_step"](space["along"]("lenet"))
    assert found.groupby("step")["outcome"].nunique().to_dict() == {0: 4, 3: 3, 9: 4}


def test_stages_are_compared_on_the_images_that_all_have():
    parts = [
        attacks(5, -1).assign(regime="initial", step=0),
        attacks(5, -1, images=32).assign(regime="early", step=3),
        attacks(5, -1).assign(regime="semi", step=7),
    ]
    rows = training(rows=parts)["along"]("lenet")
    assert rows.groupby("step")["image"].nunique().to_dict() == {0: 32, 3: 32}


@needs("cifar100")
def test_network_and_target_are_crossed(asked):
    pairs = asked()[1]
    places = {(model, step) for model, step, _, _ in pairs}
    assert places == {(model, step) for model in FOLLOWED for step in (30, 300, 7820)}
    assert len(pairs) == 4 * len(places)
    for (model, step, network, target), request in pairs.items():
        assert (request.model.model, request.model.step) == (model, step % 7820)
        assert (network, target) == (request.model.train.policy or "none", request.policy or "none")


def crossed(network, target):
    """Attacks to which training with the hybrid adds `network` dB and transforming the images
    `target` dB.
    """
    rows = [
        {
            "model": "lenet",
            "step": 9,
            "network": n,
            "target": t,
            "image": i,
            "psnr": i + network * (n != NO_POLICY) + target * (t != NO_POLICY),
            "rank_target": 1 + (i > 1),
        }
        for n in (NO_POLICY, HYBRID)
        for t in (NO_POLICY, HYBRID)
        for i in range(6)
    ]
    return pd.DataFrame(rows).assign(
        floor_policy=3.0, gain=lambda table: table["psnr"] - table["floor_policy"]
    )


def test_what_lowers_the_psnr_is_told_apart():
    space = functions("regimes", "def what_lowers(", interval=interval)
    attacks = crossed(network=-0.5, target=-2.0)
    table = space["what_lowers"](attacks, HYBRID)["mean"]
    np.testing.assert_allclose(table.xs("network", level="the policy on"), -0.5)
    np.testing.assert_allclose(table.xs("target", level="the policy on"), -2.0)
    means = space["targets_crossed"](attacks)
    assert means.loc[("lenet", 9, NO_POLICY, HYBRID), ["PSNR, dB", "gain, dB"]].tolist() == [
        0.5,
        -2.5,
    ]
    np.testing.assert_allclose(means["used image found, %"], 100 / 3)


def test_the_floor_is_the_mean_of_transformed_training_images(kept):
    chosen = Sizes(model="lenet", regime="initial", steps=4)
    request = attack_request(chosen, HYBRID)
    rows = image_rows(request.make(kept, torch.device("cpu")), request)
    target = to_images(request.clients().used())
    guess = policy_image(chosen.dataset, HYBRID, True).expand_as(target)
    np.testing.assert_allclose(rows["floor_policy"], psnr(guess, target), rtol=1e-5)
    assert (
        policy_image(chosen.dataset, "3", True) - policy_image(chosen.dataset, "", True)
    ).abs().max() > 0.05


def test_a_perfect_reconstruction_is_first_among_a_hundred_and_another_image_is_not():
    request = attack_request(Sizes(model="lenet"), first=98, last=103)
    target = to_images(request.clients().used())
    assert ranks(request, target)["rank_target"].tolist() == [1] * 5
    assert ranks(request, target.flip(0))["rank_target"].tolist() != [1] * 5


def test_the_round_is_chosen_on_some_images_and_counted_on_the_others():
    rows = [
        {"step": step, "policy": policy, "image": image, "gain": gain(image) + 0.01 * image}
        for policy, gains in {
            "none": {
                0: lambda i: 1.0,
                3: lambda i: 5.0 - 6.0 * (i % 2),
                9: lambda i: 2.0 + 9.0 * (i % 2),
            },
            "3-1-7": {0: lambda i: 1.0, 3: lambda i: -1.0, 9: lambda i: -2.0},
        }.items()
        for step, gain in gains.items()
        for image in range(20 if step == 0 else 10)
    ]
    space = training(rows=[attacks(5, -1)]) | {"paired": paired}
    source = cell("regimes", "def chosen_round(")
    exec(source[: source.rindex("\n\n\n")], space)
    table = space["chosen_round"](pd.DataFrame(rows))
    assert table["chosen step"].to_dict() == {
        "none": 3,
        "3-1-7": 0,
    }  # step 9 is best on the other half alone
    assert table["images"].tolist() == [5, 5]  # those of odd number that every step has
    assert table.loc["none", "at step 0"].startswith("+1.1 [")
    assert table.loc["none", "at the chosen one"].startswith("-0.9 [")
    assert table.loc["none", "change"].startswith("-2.0")
    assert table.loc["3-1-7", "change"] == "–"
