"""The rules of claims 1, 2, 3, 5 and 7, each as its notebook's own cell judges made-up tables."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from test_pilots import cell, defined

from atsbook.findings import compare, photographs, statistics, table1
from atsbook.findings.photographs import words
from atsbook.findings.statistics import change, holm, interval, paired
from atsbook.findings.table1 import HYBRID, family
from atsbook.findings.verdicts import guards
from atsbook.requests.layers import GROUPS

IMAGES = 40


def told(bits, *, gain=0.0, images=IMAGES, seed=0):
    """Rows of one policy: what an attack tells of each photograph, about so many bits."""
    noise = np.random.default_rng(seed)
    drawn = noise.normal(bits, 0.3, images) if bits else noise.normal(0, 0.5, images)
    return pd.DataFrame(
        {
            "image": range(images),
            "bits": drawn,
            "found": drawn > 3,
            "gain_told": noise.normal(gain, 0.3, images),
            "psnr": 10.0,
            "frame": 10.0,
        }
    )


def compared(before, after, *, rise=0.0):
    """Rows without a policy and with the hybrid."""
    parts = [told(before).assign(policy="none"), told(after, gain=rise).assign(policy=HYBRID)]
    return pd.concat(parts, ignore_index=True)


# --- claim 1 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "more", "status"),
    [
        ([(5, 3), (5, 3)], {}, "reproduced"),  # two points of accuracy are allowed
        ([(5, 3), (0, 0)], {}, "reproduced"),  # the other case cannot tell
        ([(5, 3), (5, 5.5)], {}, "partly"),
        ([(5, 3), (5, 3)], {"hybrid": 67.9}, "partly"),
        ([(5, 3), (5, 3)], {"hybrid": float("nan")}, "partly"),
        ([(5, 3), (5, 3)], {"hybrid": 1.9, "none": 2.1}, "partly"),  # within twice chance
        ([(5, 3), (5, 3)], {"classes": 2}, "partly"),
        ([(5, 5.5), (5, 5.5)], {}, "not reproduced"),
        ([(0, 0), (0, 0)], {}, "cannot tell"),
    ],
)
def test_the_rule_of_privacy(ends, more, status, capsys):
    numbers = {"none": 70.0, "hybrid": 68.0, "classes": 100} | more
    accuracy = {"none": numbers["none"], HYBRID: numbers["hybrid"]}
    places = [("initial", "lenet"), ("trained", "resnet20-1")]
    rows = [
        compared(*each).assign(regime=regime, model=model, draw=0)
        for (regime, model), each in zip(places, ends, strict=True)
    ]
    space = {
        "attacks": pd.concat(rows, ignore_index=True),
        "accuracy": pd.DataFrame({"policy": accuracy.keys(), "accuracy": accuracy.values()}),
        "names": ["regime", "model", "policy", "draw"],
        "HYBRID": HYBRID,
        "photographs": photographs,
        "guards": guards,
        "study": SimpleNamespace(dataset=""),
        "table1": SimpleNamespace(classes=lambda name: numbers["classes"]),
    }
    exec(cell("claim1_privacy", "CASES = 8"), space)
    assert space["status"] == status
    assert space["telling"] == sum(before > 0 for before, _ in ends)
    assert space["protected"] == sum(after < before for before, after in ends)
    assert capsys.readouterr().out.startswith(f"{status}: ")


PARTS = ["data path", "network", "darkness", "image"]


def as_published():
    """What the page on the paper's own network defines of the published fall."""
    printed = ("printed_ends", "sources", "bare", "hybrid", "falls", "smaller", "POINTS")
    known = {"HYBRID": HYBRID, "change": change, "compare": compare, "table1": table1}
    return defined("claim1_network", *printed, "five", **known)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-5.3, -0.8, "there"),
        (-9.0, -7.0, "there"),  # larger than published
        (-3.0, -1.0, "smaller than published"),
        (-3.0, 1.0, "not there"),
        (-5.0, 1.0, "more photographs are needed to tell"),
    ],
)
def test_the_published_fall_is_there_if_the_change_is_below_0_and_reaches_the_smaller_one(
    low, high, said
):
    space = as_published()
    assert [round(fall, 2) for fall in space["falls"]] == [-6.24, -3.9]
    assert space["there"](SimpleNamespace(low=low, high=high)) == said


@pytest.mark.parametrize(
    ("fall", "cost", "status"),
    [
        ("there", 2.0, "reproduced"),
        ("there", 7.7, "partly"),
        ("smaller than published", 0.0, "partly"),
        ("not there", 0.0, "not reproduced"),
        ("more photographs are needed to tell", 0.0, "cannot tell"),
    ],
)
def test_the_papers_own_network_is_judged_by_the_fall_and_its_cost(fall, cost, status):
    assert as_published()["judge"](fall, cost) == status


@pytest.mark.parametrize("changed", ["data path", "network", "darkness", "image", None])
def test_a_fall_of_the_psnr_is_made_of_what_changed(changed):
    """Each part finds its own effect and no other's; together they are the whole change."""
    space = as_published()
    noise = np.random.default_rng(0)
    effect = {name: -2.0 if changed in (name, None) else 0.0 for name in PARTS}
    tables = []
    for case, (network, policy, crop_flip) in space["five"].items():
        guess = noise.normal(12, 0.1, 8) + effect["darkness"] * (policy != "")
        gain = noise.normal(-1, 0.1, 8) + effect["image"] * (policy != "")
        gain += effect["network"] * (network != "none") + effect["data path"] * crop_flip
        told = {"image": range(8), "psnr": guess + gain, "gain_told": gain}
        tables.append(pd.DataFrame(told).assign(case=case))
    told = pd.concat(tables, ignore_index=True)
    # The guess is one for a target, whichever network is attacked.
    for target in "CH":
        first, second = (told["case"] == f"{network}, {target}" for network in ("N0", "NH"))
        guess = (told["psnr"] - told["gain_told"])[first].to_numpy()
        told.loc[second, "psnr"] = guess + told.loc[second, "gain_told"].to_numpy()
    parts = space["made_of"](told)
    assert list(parts) == PARTS
    for name, part in parts.items():
        assert part.mean == pytest.approx(effect[name], abs=0.2)
    psnr = told.pivot(index="image", columns="case", values="psnr")
    whole = change(psnr["N0, P"], psnr["NH, H"])
    assert sum(part.mean for part in parts.values()) == pytest.approx(whole.mean)


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ([0.1, -0.4, 0.2], "undertraining"),
        ([5.0, 5.5, 4.9], "policy, and in part undertraining"),
        ([10.4, 10.9, 10.1], "policy"),
        ([1.0, 3.5, 2.0], "cannot tell"),
        ([5.0], "cannot tell"),
    ],
)
def test_what_accuracy_is_lost_to(lost, said):
    space = {"POINTS": 2.0, "cost": 10.4}
    rule, _, _ = cell("claim1_privacy", "SEEDS_60 = ").rpartition("\n\n\n")  # before the trainings
    exec(rule, space)
    assert space["why"](change([60.0] * len(lost), [60.0 - each for each in lost])) == said


# --- claim 2 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ([(5, 3)] * 6, "reproduced"),
        ([(5, 3)] * 5 + [(0, 0)], "partly"),  # one of the six does not work
        ([(5, 3)] * 4 + [(5, 5.5)] * 2, "partly"),
        ([(5, 3)] * 3 + [(5, 5.5)] * 3, "not reproduced"),
        ([(0, 0)] * 6, "cannot tell"),
    ],
)
def test_the_rule_of_six_attacks(ends, status, capsys):
    six = [f"attack {number}" for number in range(6)]
    groups = {name: compared(*each) for name, each in zip(six, ends, strict=True)}
    groups["another"] = compared(5, 6)  # which the claim is not about
    space = {"groups": groups, "SIX": six, "HYBRID": HYBRID, "photographs": photographs}
    exec(cell("claim2_generality", "\nworks = ["), space)
    assert space["status"] == status
    assert space["works"] == [name for name, (before, _) in zip(six, ends, strict=True) if before]
    assert capsys.readouterr().out.startswith(f"{status}: ")


def test_against_an_attack_that_gains_more_decibels_nothing_holds():
    groups = {"a": compared(5, 3, rise=2.0)}
    space = {"groups": groups, "SIX": ["a"], "HYBRID": HYBRID, "photographs": photographs}
    exec(cell("claim2_generality", "\nworks = ["), space)
    assert space["held"] == []


@pytest.mark.parametrize(
    ("none", "random", "status"),
    [(6, 5, "reproduced"), (6, 4, "partly"), (4, 5, "partly"), (4, 3, "not reproduced")],
)
def test_the_rule_of_the_search(none, random, status, capsys):
    rivals = [f"random {number}" for number in range(8)]
    parts = {"none": told(none), "found": told(4)}
    parts |= {name: told(random, seed=seed) for seed, name in enumerate(rivals, 1)}
    attacks = pd.concat([rows.assign(policy=name) for name, rows in parts.items()])
    space = {"attacks": attacks, "FOUND": "found", "rivals": rivals, "np": np}
    space |= {"change": change, "words": words}
    exec(cell("claim2_search", "resampled ="), space)
    assert space["status"] == status
    assert space["better"] == sum(
        parts[name]["bits"].mean() < parts["found"]["bits"].mean() for name in rivals
    )
    assert capsys.readouterr().out.startswith(f"{status}: ")


# --- claim 3 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "cost", "status"),
    [
        ([(5, 3), (5, 3)], 4.0, "reproduced"),
        ([(5, 3), (0, 0)], 4.0, "reproduced"),  # the other network cannot tell
        ([(5, 3), (5, 3)], 4.1, "partly"),
        ([(5, 3), (5, 5.5)], 0.0, "partly"),
        ([(5, 5.5), (5, 5.5)], 0.0, "not reproduced"),
        ([(0, 0), (0, 0)], 0.0, "cannot tell"),
    ],
)
def test_the_rule_of_the_transfer(ends, cost, status):
    networks = [f"network {number}" for number in range(len(ends))]
    rows = [compared(*each).assign(model=name) for name, each in zip(networks, ends, strict=True)]
    policies = ["3-1-7", "43-18-18"]
    accuracy = {"none": 80.0, HYBRID: 80.0 - cost}
    weaker = compared(5, 1).assign(model=networks[0])  # where the best answer is known, it decides
    space = {
        "attacks": pd.concat([weaker, *rows[1:]], ignore_index=True),
        "best": rows[0],
        "accuracy": pd.DataFrame(
            {"model": "resnet20-1", "policy": accuracy.keys(), "accuracy": accuracy.values()}
        ),
        "HYBRID": HYBRID,
        "SEARCHED": {"resnet20": policies},
        "family": family,
        "trainings": ["resnet20-1"],
        "photographs": photographs,
    }
    exec(cell("claim3_transfer", "CASES = 8"), space)
    assert space["status"] == status


# --- claim 5 ----------------------------------------------------------------------------------------------------------


def path(whole, shallow, deep, *, model="m", policy="none", image=0):
    """Rows of a curve: the groups' similarities at the iterates 0, 1, …"""
    groups = {"whole": whole, "first": shallow, "shallow": shallow, "deep": deep}
    key = {"model": model, "policy": policy, "image": image}
    return [
        key | {"layers": n, "iteration": i, "gradsim": v}
        for n, vs in groups.items()
        for i, v in enumerate(vs)
    ]


def test_layers_are_compared_where_the_whole_gradient_is_as_similar():
    source = cell("claim5_semantics", "def at_equal(")
    space = {"pd": pd, "np": np, "GROUPS": GROUPS}
    exec(source[: source.index("curve = along(")], space)
    curve = path([0.0, 0.4, 0.8], [0.0, 0.2, 0.6], [0.5, 0.7, 0.9])
    # It falls back.
    curve += path([0.0, 0.6, 0.5, 0.6], [0.0, 0.6, 0.1, 0.9], [0.5, 0.8, 0.1, 0.1], policy="a")
    curve += path([0.0, 0.9], [0.0, 0.9], [0.0, 0.9], model="other")
    # It begins above what the other reaches.
    curve += path([0.95, 0.99], [0.0, 0.9], [0.0, 0.9], model="other", policy="a")
    found = space["at_equal"](pd.DataFrame(curve)).set_index(["model", "policy"])
    assert found["whole"].tolist() == pytest.approx([0.6, 0.6, np.nan, 0.9], nan_ok=True)
    ends = found.loc[("m", "none"), ["shallow", "deep", "contrast"]].tolist()
    assert ends == pytest.approx([0.4, 0.8, -0.4])
    # Where it first comes there.
    assert found.loc[("m", "a"), ["shallow", "deep"]].tolist() == pytest.approx([0.6, 0.8])


def layered(shallow, deep, *, images=IMAGES, model="m"):
    """Similarities under no policy and two searched ones, whose shallow third changes by so much."""
    rows = []
    for policy, by in ({"none": 0.0} | shallow).items():
        for image in range(images):
            wobble = ((policy == "a") - (policy == "h")) * 0.01 * (image % 3 - 1)
            row = {"model": model, "policy": policy, "image": image}
            row |= {"shallow": 0.6 + by + wobble, "deep": 0.9 + (policy != "none") * deep}
            rows.append(row)
    table = pd.DataFrame(rows)
    return table.assign(contrast=table["shallow"] - table["deep"])


@pytest.mark.parametrize(
    ("shallow", "deep", "more", "status"),
    [
        ({"a": -0.3, "h": -0.3}, 0.0, {}, "reproduced"),
        ({"a": -0.3, "h": 0.0}, 0.0, {}, "partly"),
        ({"a": -0.3, "h": -0.3}, -0.3, {}, "partly"),  # weaker everywhere
        ({"a": 0.0, "h": 0.3}, 0.0, {}, "not reproduced"),
        ({"a": -0.3, "h": -0.3}, 0.0, {"tells": False}, "cannot tell"),  # nothing leaks
        ({"a": -0.3, "h": -0.3}, 0.0, {"images": 29}, "cannot tell"),
        ({"a": -0.3, "h": -0.3}, 0.0, {"other": True}, "partly"),  # not on another network
        ({"a": -0.3, "h": -0.3}, 0.0, {"other": False}, "reproduced"),  # which cannot tell
    ],
)
def test_the_rule_of_the_layers(shallow, deep, more, status):
    source = cell("claim5_semantics", "def judge(levels, tells)")
    space = {"pd": pd, "paired": paired, "holm": holm, "SEARCHED": ["a", "h"]}
    exec(source[: source.index("bare = attacks[")], space)
    levels = layered(shallow, deep, images=more.get("images", IMAGES))
    tells = {"m": more.get("tells", True)}
    if "other" in more:
        levels = pd.concat([levels, layered({"a": 0.0, "h": 0.0}, 0.0, model="other")])
        tells["other"] = more["other"]
    assert space["claim"](space["judge"](levels, tells)) == status


def test_a_wave_has_its_power_at_its_frequency_and_a_constant_at_none():
    source = cell("claim5_semantics", "def radial_power(")
    space = {"torch": torch}
    exec(source[: source.index("spectrum = []")], space)
    x = torch.arange(16.0)
    wave = (0.2 * torch.cos(2 * torch.pi * 5 * x / 16)).expand(1, 3, 16, 16)
    found = space["radial_power"](torch.cat([wave, torch.full((1, 3, 16, 16), 0.5)]))
    assert found.shape == (2, 9)
    assert found[0].argmax() == 5
    grid = torch.meshgrid(*[torch.fft.fftfreq(16, 1 / 16)] * 2, indexing="ij")
    rings = torch.hypot(*grid).round()
    assert found[0, 5] * (rings == 5).sum() == pytest.approx(0.02)  # mean square of the wave
    assert found[1].tolist() == pytest.approx([0.25] + [0] * 8)


# --- claim 7 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval_of_r", "status"),
    [
        ((0.7, 0.5, 0.8), "reproduced"),
        ((0.4, 0.2, 0.6), "partly"),
        ((0.2, -0.1, 0.8), "not reproduced"),
        ((-0.5, -0.7, -0.2), "not reproduced"),
        ((0.9, np.nan, np.nan), "cannot tell"),
    ],
)
def test_the_rule_of_the_correlation(interval_of_r, status):
    source = cell("claim7_correlation", "PAPER, REPLICATION = ")
    rule = source[source.index("if np.isnan(bits[1])") :]
    space = {"bits": interval_of_r, "PAPER": 0.697, "np": np}
    exec(rule, space)
    assert space["status"] == status


def test_the_correlation_is_of_the_policies_means():
    source = cell("claim7_correlation", "def agreement(")
    start = source.index("def agreement(")
    end = source.index('bits = agreement("bits")')
    scores = np.random.default_rng(0).random((12, 6))
    policies = [f"p{number}" for number in range(12)]
    # Told in another order of rows, by another set of photographs.
    rows = [
        {"policy": name, "image": 100 + image, "bits": 3 * scores[place].mean() + image}
        for place, name in reversed(list(enumerate(policies)))
        for image in range(6)
    ]
    space = {"judged": pd.DataFrame(rows), "new_policies": policies, "new_scores": scores}
    space |= {"np": np, "statistics": statistics}
    exec(source[start:end], space)
    r, low, high = space["agreement"]("bits")
    assert r == pytest.approx(1.0)
    assert low <= high <= 1.0


def test_photographs_that_can_tell_are_those_whose_bits_are_above_chance():
    assert interval(told(0)["bits"])[0] < 0 < interval(told(5)["bits"])[0]


# --- extension 5 ------------------------------------------------------------------------------------------------------


def servers(none, watched, **options):
    """Rows of one network: bits without a policy in one round, and of who is told four rounds."""
    parts = [
        told(bits, **options).assign(knows=knows, rounds=rounds)
        for knows, rounds, bits in (("no policy", 1, none), ("draws", 4, watched))
    ]
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize(
    ("ends", "status", "given_back"),
    [
        ([(5, 3), (4, 2)], "reproduced", 0),
        ([(5, 3), (0, 0)], "reproduced", 0),  # the other network cannot tell
        ([(5, 3), (4, 4)], "partly", 1),
        ([(5, 5), (4, 4.5)], "not reproduced", 2),
        ([(5, 4.8), (0, 0)], "reproduced", 1),  # less than half a bit is no protection
        ([(0, 0), (0, 0)], "cannot tell", 0),
    ],
)
def test_the_rule_of_a_server_that_is_told(ends, status, given_back, capsys):
    parts = [servers(*each).assign(model=str(place)) for place, each in enumerate(ends)]
    space = {"new": pd.concat(parts), "interval": interval, "change": change, "holm": holm}
    exec(cell("ext5_adaptive", "GIVEN_BACK ="), space)
    assert space["status"] == status
    assert len(space["back"]) == given_back
    assert capsys.readouterr().out.startswith(f"{status}: ")
