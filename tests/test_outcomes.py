"""Outcomes of kept attacks: the same as the measures give when they are called by hand."""

import dataclasses

import pytest
import torch
from checks import refused

import atslib
from atsbook.attackers import Undone
from atsbook.experiment import AttackRequest, OutcomeRequest, outcomes_of, outcomes_of_all
from atsbook.networks import ModelRequest
from atsbook.packing import PICTURES, as_kept
from atsbook.requests.outcomes import RecognizedRequest
from atsbook.runs.tables import outcome_rows, picture_rows
from atsbook.store import Store
from atslib.attacks import ATTACKS, KeptEntries, ThroughPolicy
from atslib.clients.prepare import streams
from atslib.measures import perceptual
from atslib.measures.found import bits, match, own_class, rank
from atslib.measures.guesses import guess_knowing_draw

POLICY = "3-1-7+43-18-18"


def request(**changes):
    made = AttackRequest(
        model=ModelRequest(dataset="shapes", model="lenet", fraction=1.0, train=None, seed=0),
        policy=POLICY,
        attack=dataclasses.replace(ATTACKS["annealed-lenet"], steps=4),
        first=3,
        last=9,
        frames=0,
        seed=5,
    )
    return dataclasses.replace(made, **changes)


@pytest.mark.parametrize("policy", ["", POLICY])
def test_outcomes_are_what_the_measures_say_of_the_images_as_the_client_used_them(policy, tmp_path):
    store = Store(tmp_path)
    attack = request(policy=policy)
    kept = attack.make(store, "cpu")
    found = OutcomeRequest(attack=attack).make(store, "cpu")
    test = atslib.load("shapes", "test")
    train = atslib.load("shapes", "train")
    drawn = atslib.draw(9, policy, rng=streams(5, policy))[3:9]
    used = drawn.apply(test.pixels[3:9])
    assert torch.equal(used, kept["target"])
    assert torch.equal(found["psnr"], kept["psnr"])
    guess = guess_knowing_draw(drawn, train.pixels, train.labels, labels=test.labels[3:9])
    torch.testing.assert_close(found["gain"], kept["psnr"] - atslib.psnr(guess, used / 255))
    candidates, truth = own_class(test.labels, range(3, 9))
    alike = match(kept["reconstruction"], test.pixels, candidates, policy)
    assert torch.equal(found["bits"], bits(alike, truth))
    rows = outcome_rows(found, attack)
    assert rows["image"].tolist() == list(range(3, 9))
    assert rows["found"].tolist() == [bool(rank == 1) for rank in found["rank"]]


@pytest.mark.parametrize(
    ("attack", "defense"),
    [
        (ThroughPolicy(inner=request().attack), ""),
        (Undone(inner=request().attack, images="shapes"), ""),
        (KeptEntries(inner=ThroughPolicy(inner=request().attack)), "prune:0.5"),
    ],
    ids=["through", "undone", "kept entries"],
)
def test_what_an_attack_through_the_policy_finds_is_the_image_before_it(attack, defense, tmp_path):
    store = Store(tmp_path)
    attack = request(attack=attack, defense=defense, threat=atslib.ThreatModel(defense="draws"))
    kept = attack.make(store, "cpu")
    found = OutcomeRequest(attack=attack).make(store, "cpu")
    assert torch.equal(found["psnr"], kept["psnr_before"])
    assert not torch.equal(found["psnr"], kept["psnr"])


def test_kept_pictures_are_judged_as_all_are(tmp_path):
    store = Store(tmp_path)
    attack = request(last=3 + PICTURES + 2)
    kept = attack.make(store, "cpu")
    rows = picture_rows([kept], [attack])[0]
    assert rows["image"].tolist() == list(range(3, 3 + PICTURES))
    found = OutcomeRequest(attack=attack).make(store, "cpu")
    for name in ("psnr", "gain", "frame"):  # eight bits are a little less than a float
        assert rows[name].to_numpy() == pytest.approx(found[name][:PICTURES].numpy(), abs=0.05)
    test = atslib.load("shapes", "test")
    candidates, truth = own_class(test.labels, range(3, 3 + PICTURES))
    made = as_kept(kept["reconstruction"][:PICTURES]) / 255
    expected = bits(match(made, test.pixels, candidates, POLICY), truth)
    assert torch.equal(torch.tensor(rows["bits"].to_numpy()), expected)


def test_attacks_are_judged_together_as_each_alone(tmp_path):
    """Some share their photographs and policy, and one has others."""
    store = Store(tmp_path)
    attacks = [
        request(),
        request(policy=""),
        request(attack=dataclasses.replace(ATTACKS["annealed-lenet"], steps=2)),
        request(seed=6),
        request(first=4, last=12),
        request(policy="", crop_flip=False),
    ]
    images = [attack.make(store, "cpu")["reconstruction"] for attack in attacks]
    together = outcomes_of_all(attacks, images)
    for attack, own, found in zip(attacks, images, together, strict=True):
        alone = outcomes_of(attack, own)
        assert found.keys() == alone.keys()
        for name, value in alone.items():
            assert torch.equal(found[name], value), name


def test_a_crop_that_was_not_made_is_not_tried(tmp_path):
    store = Store(tmp_path)
    attack = request(policy="", crop_flip=False)
    found = OutcomeRequest(attack=attack).make(store, "cpu")
    kept = attack.make(store, "cpu")
    assert torch.equal(kept["target"], kept["original"])
    torch.testing.assert_close(found["frame"], kept["psnr"])


def test_what_a_network_recognizes_is_told_attack_by_attack(tmp_path, monkeypatch):
    # Its weights are an extra: every seventh pixel stands in for its features.
    monkeypatch.setattr(perceptual, "features", lambda images: images.flatten(1)[:, ::7])
    store = Store(tmp_path)
    attacks = (request(policy=""), request(policy="", crop_flip=False), request())
    found = RecognizedRequest(attacks=attacks, most=5).make(store, "cpu")
    test = atslib.load("shapes", "test")
    candidates, truth = own_class(test.labels, range(3, 9), most=5)
    for i, attack in enumerate(attacks):
        made = as_kept(attack.make(store, "cpu")["reconstruction"]) / 255
        alike = perceptual.recognize(made, test.pixels, candidates)
        assert torch.equal(found["seen_rank"][i], rank(alike, truth))
        torch.testing.assert_close(found["seen_bits"][i], bits(alike, truth))
        used = attack.make(store, "cpu")["target"] / 255
        of_used = perceptual.recognize(used, test.pixels, candidates)
        assert torch.equal(found["used_rank"][i], rank(of_used, truth))
        torch.testing.assert_close(found["used_bits"][i], bits(of_used, truth))
    with refused("recognized: 2 sets of photographs"):
        RecognizedRequest(attacks=(request(), request(last=8)))
