"""Defenses of other publications, what they guarantee, and the attackers who know them: each
against plain autograd.
"""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from checks import refused
from opacus.accountants import RDPAccountant
from scipy.special import logsumexp
from torch import nn

from atsbook.evidence.archive import Archive, request_of
from atslib.attacks import (
    ATTACKS,
    BothImages,
    KeptEntries,
    KnownFeatures,
    ThroughPolicy,
    reconstruct,
)
from atslib.attacks.objective import Objective
from atslib.attacks.through_defense import _read_off
from atslib.clients.defenses import published
from atslib.clients.defenses.accountant import epsilon
from atslib.clients.defenses.defense import Defense
from atslib.clients.defenses.published import sensitivity
from atslib.clients.observe import ThreatModel, observe
from atslib.clients.training import TrainConfig, fit
from atslib.data.load import Images
from atslib.gradients.problems import unflatten
from atslib.models import Normalize, build_model
from atslib.rng import rng

pytestmark = pytest.mark.usefixtures("one_thread")
IMAGES = torch.rand(4, 3, 8, 8, generator=rng(0), dtype=torch.float64)
LABELS = torch.tensor([0, 1, 2, 1])
SHORT = dataclasses.replace(ATTACKS["annealed-lenet"], steps=3)


@pytest.fixture(scope="module")
def relunet():
    return build_model("relunet", 4, image_size=8, rng=0).double()


def last_features(model, images):
    network = model[1]
    return network[:-1](model[0](images))


def gradient(model, image, target):
    """Of one image, by plain autograd; the target is a class or its probabilities."""
    return torch.autograd.grad(
        F.cross_entropy(model(image[None]), target[None]), list(model.parameters())
    )


# --- Soteria ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.25, 0.8])
def test_soteria_leaves_out_the_features_of_largest_value_for_their_slope(relunet, share):
    *others, weight, bias = unflatten(
        observe(relunet, IMAGES, LABELS, defense=f"soteria:{share}").gradients, relunet
    )
    for i, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
        *plain, full, full_bias = gradient(relunet, image, label)
        assert all(
            torch.allclose(mine[i], theirs)
            for mine, theirs in zip([*others, bias], [*plain, full_bias], strict=True)
        )
        slopes = (
            torch.autograd.functional.jacobian(lambda x: last_features(relunet, x[None])[0], image)
            .flatten(1)
            .norm(dim=1)
        )
        values = last_features(relunet, image[None])[0]
        alive = values.nonzero().flatten()
        order = alive[(values[alive].abs() / slopes[alive]).argsort(descending=True)]
        count = int(share * len(alive))
        assert (weight[i][:, order[:count]] == 0).all()
        torch.testing.assert_close(weight[i][:, order[count:]], full[:, order[count:]])


def test_slopes_in_random_directions_are_the_exact_ones_on_average(relunet, monkeypatch):
    exact = sensitivity(relunet, IMAGES)[1]
    monkeypatch.setattr(published, "DIRECTIONS", 8_000)
    estimate = sensitivity(relunet, IMAGES, rng(1))[1]
    assert (
        (estimate - exact).abs() <= 0.1 * exact + 1e-12
    ).all()  # 2,000 directions an image: 1.7 % standard error


# --- the bottleneck -----------------------------------------------------------------------------------------


def test_the_sampled_latent_is_read_off_and_then_the_truth_costs_nothing(relunet):
    seen = observe(relunet, IMAGES, LABELS, defense="precode:0.5", rng=1)
    update, values = _read_off(seen.updates[0]), last_features(relunet, IMAGES)
    noise = (update.features - values) / (0.5 * values.std(1, keepdim=True, correction=0))
    assert abs(noise.detach().std() - 1) < 0.15
    assert abs(noise.detach().mean()) < 0.15
    z = relunet[0](IMAGES).flatten(1)
    known = dataclasses.replace(seen, updates=(update,))
    assert Objective(known, [SHORT] * 4)(z)[0].max() < 1e-9
    assert Objective(seen, [SHORT] * 4)(z)[0].min() > 1e-4


# --- MixUp --------------------------------------------------------------------------------------------------


def test_mixup_is_the_gradient_of_the_mixture_at_the_mixed_label(relunet):
    seen = observe(relunet, IMAGES, LABELS, defense="mixup:0.3")
    soft = F.one_hot(LABELS, 4).double()
    for i in range(4):
        mixed = (0.7 * part[i] + 0.3 * part[i - 1] for part in (IMAGES, soft))
        expected = torch.cat([g.flatten() for g in gradient(relunet, *mixed)])
        torch.testing.assert_close(seen.gradients[i], expected)
    pairs = torch.stack([IMAGES, IMAGES.roll(1, 0)], 1)
    updates = (dataclasses.replace(seen.updates[0], share=0.3),)
    both = dataclasses.replace(seen, updates=updates, threat=ThreatModel(batch=2))
    assert Objective(both, [SHORT] * 4)(relunet[0](pairs).flatten(1))[0].max() < 1e-9
    one = reconstruct(
        seen,
        BothImages(inner=SHORT, share=0.3),
        rng=0,
        start=torch.rand(4, 3, 8, 8, dtype=torch.float64),
    )
    assert one.images.shape == IMAGES.shape


def test_nothing_mixed_in_is_no_mixup(relunet):
    plain, mixed = (observe(relunet, IMAGES, LABELS, defense=d) for d in ("", "mixup:1e-13"))
    torch.testing.assert_close(plain.gradients, mixed.gradients)
    alone = BothImages(inner=SHORT, share=1e-13)
    start = torch.rand(4, 3, 8, 8, generator=rng(3), dtype=torch.float64)
    with_other, without = (
        reconstruct(seen, a, rng=0, start=start) for seen, a in ((mixed, alone), (plain, SHORT))
    )
    torch.testing.assert_close(with_other.cost, without.cost)


# --- DP-SGD -------------------------------------------------------------------------------------------------


def test_training_with_dp_clips_each_image_and_averages():
    model = build_model("relunet", 4, image_size=8, rng=0)
    pixels = (255 * IMAGES).byte()
    data = Images(pixels, LABELS, tuple("abcd"), "toy", "train")
    before = [p.detach().clone() for p in model.parameters()]
    alone = [
        gradient(model, p.float() / 255, label) for p, label in zip(pixels, LABELS, strict=True)
    ]
    norms = [torch.cat([g.flatten() for g in one]).norm() for one in alone]
    assert min(norms) > published.CLIP
    plain = {
        "crop_flip": False,
        "batch": 4,
        "epochs": 1,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "lr": 0.5,
    }
    fit(model, data, TrainConfig(defense="dp:1e-9", **plain), rng=0)
    for i, (start, end) in enumerate(zip(before, model.parameters(), strict=True)):
        mean = sum(one[i] / norm for one, norm in zip(alone, norms, strict=True)) / 4
        torch.testing.assert_close(end, start - 0.5 * mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "spent"),
    # The bound at whole orders alone, in closed form; the first is the setting of the usual MNIST
    # tutorial.
    [
        (1.1, 256 / 60_000, 14_062, 2.5969811786),
        (4.0, 0.01, 10_000, 1.0354900661),
        (1.0, 0.0256, 234, 2.9608484337),
    ],
)
def test_epsilon_is_that_of_the_renyi_divergence_by_quadrature(noise, rate, steps, spent):
    found = []
    for order in RDPAccountant.DEFAULT_ALPHAS:
        z = np.linspace(-15 * noise, order + 15 * noise, 40_001)
        ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + (2 * z - 1) / (2 * noise**2))
        density = -(z**2) / (2 * noise**2) - np.log(noise * np.sqrt(2 * np.pi))
        moment = logsumexp(density + order * ratio) + np.log(z[1] - z[0])
        rdp = steps * moment / (order - 1)
        found.append(rdp + np.log1p(-1 / order) - (np.log(1e-5) + np.log(order)) / (order - 1))
    assert epsilon(noise, rate=rate, steps=steps) == pytest.approx(min(found), rel=1e-8)
    assert epsilon(noise, rate=rate, steps=steps) <= spent * (
        1 + 1e-8
    )  # more orders give no worse a bound


def test_without_subsampling_epsilon_is_the_gaussian_mechanisms(monkeypatch):
    orders = np.array(RDPAccountant.DEFAULT_ALPHAS)
    rdp = 10 * orders / (2 * 5.0**2)
    expected = (rdp + np.log1p(-1 / orders) - (np.log(1e-5) + np.log(orders)) / (orders - 1)).min()
    assert epsilon(5.0, rate=1, steps=10) == pytest.approx(expected)
    assert epsilon(0.01, rate=1, steps=10) > 10_000
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with refused("pip install 'atslib[dp]'"):
        epsilon(1.0, rate=0.1, steps=1)
    for wrong in ({"noise": 0.0}, {"rate": 1.5}, {"steps": 0}, {"delta": 1.0}):
        with refused(next(iter(wrong))):
            epsilon(**({"noise": 1.0, "rate": 0.1, "steps": 1} | wrong))


# --- together -----------------------------------------------------------------------------------------------


def test_pruned_entries_left_out_are_an_attack_on_the_kept_ones_alone(relunet):
    seen = observe(relunet, IMAGES, LABELS, defense="prune:0.9")
    kept = dataclasses.replace(seen.updates[0], kept=seen.gradients != 0)
    z = torch.randn(4, 3 * 8 * 8, generator=rng(4), dtype=torch.float64)
    cost = Objective(dataclasses.replace(seen, updates=(kept,)), [SHORT] * 4)(z)[0]
    for i in range(4):
        image = relunet[0].inverse(z[i].view(3, 8, 8))
        mine = torch.cat([g.flatten() for g in gradient(relunet, image, LABELS[i])])
        chosen = seen.gradients[i] != 0
        torch.testing.assert_close(
            cost[i], 1 - F.cosine_similarity(mine[chosen], seen.gradients[i][chosen], dim=0)
        )
    whole = observe(
        build_model("lenet", 4, image_size=8, rng=0).double(), IMAGES, LABELS
    )  # it has no entry of 0
    start = torch.rand(4, 3, 8, 8, generator=rng(5), dtype=torch.float64)
    one, other = (
        reconstruct(whole, a, rng=0, start=start) for a in (SHORT, KeptEntries(inner=SHORT))
    )
    torch.testing.assert_close(one.cost, other.cost, rtol=1e-3, atol=1e-6)


def test_pruned_entries_are_left_out_through_a_policy_too(relunet):
    known = ThreatModel(defense="policy")
    seen = observe(relunet, IMAGES, LABELS, defense="3 | prune:0.5", rng=0, threat=known)
    made = reconstruct(seen, KeptEntries(inner=ThroughPolicy(inner=SHORT)), rng=0)
    assert made.images.shape == IMAGES.shape
    assert KeptEntries(inner=ThroughPolicy(inner=SHORT)).title.endswith(
        "through the policy on the entries that were kept"
    )


@pytest.mark.parametrize(
    "text", ["soteria:0.5", "precode:1", "mixup:0.3", "dp:0.5", "mixup:0.2 | soteria:0.5 | clip:1"]
)
def test_each_can_be_trained_with_and_its_stream_decides(text):
    data, weights = (
        Images(
            (255 * IMAGES).byte().repeat(3, 1, 1, 1),
            LABELS.repeat(3),
            tuple("abcd"),
            "toy",
            "train",
        ),
        [],
    )
    assert str(Defense.parse(text)) == text
    for seed in (0, 0, 1):
        model = build_model("relunet", 4, image_size=8, rng=0)
        fit(model, data, TrainConfig(defense=text, epochs=1, batch=6, lr=0.01), rng=seed)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert weights[0].isfinite().all()
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "soteria:1",
            "strength 1.0 must be the share of the last layer's inputs left out, above 0 and below 1",
        ),
        ("mixup:0.6", "strength 0.6 must be the share of the other image, above 0 and at most 0.5"),
        ("dp:0", "must be the noise multiplier, above 0"),
        ("precode:x", "after the colon comes a number, the deviation of the latent, above 0"),
    ],
)
def test_a_strength_that_is_not_allowed_is_told(text, message):
    with refused(message):
        Defense.parse(text)


def test_what_cannot_be_is_told(relunet):
    with refused("mixes images, and there is one"):
        observe(relunet, IMAGES[:1], LABELS[:1], defense="mixup:0.3")
    with refused("dp:1 acts on each image's gradient; observe it with ThreatModel.batch=1"):
        observe(relunet, IMAGES, LABELS, defense="dp:1", rng=0, threat=ThreatModel(batch=2))
    with refused("precode:1 draws at random: give it rng="):
        observe(relunet, IMAGES, LABELS, defense="precode:1")
    convolution = (
        nn.Sequential(Normalize([0.5], [0.5]), nn.Conv2d(3, 4, 8), nn.Flatten()).double().eval()
    )
    with refused("has no linear layer with a bias at its end"):
        observe(convolution, IMAGES, LABELS, defense="precode:1", rng=0)
    with refused("BothImages.share=1.0 must be above 0 and below 1"):
        BothImages(inner=SHORT, share=1.0)
    seen = observe(relunet, IMAGES, LABELS, threat=ThreatModel(batch=2))
    for attack in (KnownFeatures(inner=SHORT), BothImages(inner=SHORT, share=0.5)):
        with refused("ThreatModel.batch="):
            reconstruct(seen, attack, rng=0)
    with refused("KnownFeatures.inner"):
        KnownFeatures(inner=ThroughPolicy(inner=SHORT))


def test_attackers_made_of_another_keep_the_keys_of_their_stored_results():
    archive = Archive(Path(__file__).parents[1] / "results")
    lines = [line for line in archive.entries().values() if line["kind"].startswith("attack-")]
    assert {line["kind"] for line in lines} >= {
        f"attack-{name}" for name in ("ThroughPolicy", "FromMean", "Undone", "Learned")
    }
    assert [json.dumps(line["config"]) for line in lines if request_of(line) is None] == []
