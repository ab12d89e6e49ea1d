"""Tables of outcomes, published numbers, training curves, and layers' similarity."""

import math
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from checks import Sizes, model_request

from atsbook import experiment, networks
from atsbook.figures import plots
from atsbook.findings import compare, table1
from atsbook.findings.reported import LAYERS
from atsbook.findings.result import Result
from atsbook.networks import ModelRequest, network, trained
from atsbook.requests import layers
from atsbook.store import Store
from atslib.attacks.engine import frame_steps
from atslib.rng import rng

pytestmark = pytest.mark.usefixtures("one_thread", "few_images")


# --- which data set, and how large --------------------------------------------------------------------------


def test_published_numbers_are_found_by_policy_whatever_the_order_of_a_hybrid():
    def printed(table, policy):
        return compare.published(table1.published_rows(table, policy))

    assert printed("Table 1b", "21-13-3+7-4-15") == {
        "paper PSNR": 6.83, "paper accuracy": 70.27, "replication PSNR": 9.89, "replication accuracy": 68.91,
    }  # fmt: skip
    assert printed("Table 1a", table1.RANDOM)["paper PSNR"] == 11.41
    assert printed("Table 1a", table1.RANDOM)["replication PSNR"] == 9.92
    assert printed("Table 1d", "none")["replication PSNR"] == 9.52
    assert all(math.isnan(value) for value in printed("Table 1d", "3-1-7").values())


def test_a_table_says_which_share_of_the_attacks_never_moved_if_any_did():
    rows = pd.DataFrame(
        {"policy": ["none"] * 4 + ["3"] * 4, "image": [0, 1, 2, 3] * 2, "psnr": 8.0, "gain": 0.0}
    )
    moved, stuck = ([False] * 8, [True, False, False, False] + [True] * 4)
    made = SimpleNamespace(tables={}, facts={"epsilon": 15.0})
    table = compare.comparison(made, "policy", attacks=rows.assign(stuck=stuck))
    assert table["share that never moved"].to_dict() == {"none": 0.25, "3": 1.0}
    assert "share that never moved" not in compare.comparison(
        made, "policy", attacks=rows.assign(stuck=moved)
    )


@pytest.mark.parametrize("count", [1, 8, 12])
def test_a_sheet_has_a_column_for_each_image_and_no_more(count):
    names = ("original", "does not know the policy", "knows the policy, tries all forms in full")
    figure = plots.sheet({name: torch.rand(count, 3, 8, 8) for name in names})
    assert [len(axis.images) for axis in figure.axes] == [1] * len(names) * count
    labels = [text.get_window_extent() for axis in figure.axes for text in axis.texts]
    assert len(labels) == len(names)
    assert all(label.x0 >= 0 for label in labels)
    plt.close(figure)


def test_every_outcome_stands_in_a_row_of_its_group():
    psnr, gain = [10.0, 20.0, 15.0, 14.9], [1.0, 2.0, 3.0, 4.0]
    attacks = pd.DataFrame(
        {"policy": ["none", "none", "3", "3"], "image": [0, 1, 0, 1], "psnr": psnr, "gain": gain}
    )
    attacks = attacks.assign(ssim=[0.1, 0.3, 0.5, 0.5], psnr_original=[8.0, 9.0, 4.0, 5.0])
    attacks = attacks.assign(rank_target=[1, 1, 2, 1], rank_original=np.nan)
    result = Result("page", {"attacks": attacks}, {"epsilon": 15.0}, None)
    table = compare.outcomes(result, "policy")
    assert table.index.tolist() == ["none", "3"]
    assert table.drop(columns="gain, dB").loc["none"].tolist() == [
        2,
        "15.0",
        "50%",
        "0.20",
        "8.5",
        "100%",
        "–",
    ]
    assert table.drop(columns="gain, dB").loc["3"].tolist() == [
        2,
        "14.9",
        "50%",
        "0.50",
        "4.5",
        "50%",
        "–",
    ]
    assert "at or above 15 dB" in table
    assert table.loc["none", "gain, dB"] == compare.interval(
        compare.gained(attacks.query("policy == 'none'")), ""
    )
    one = compare.outcomes(result, ["policy", "image"], attacks.query("policy == '3'"))
    assert one.index.names == ["policy", "image"]
    assert one["PSNR, dB"].to_dict() == {("3", 0): "15.0", ("3", 1): "14.9"}


# --- training curves ----------------------------------------------------------------------------------------


def test_the_accuracy_of_each_epoch_changes_no_weight_and_the_last_is_the_networks(
    store, monkeypatch
):
    request = model_request(Sizes(fraction=0.002, epochs=2))
    model, made = trained(request, store, torch.device("cpu"))
    assert made["history"].shape == (2, 4)
    assert made["history"][-1, 3] == made["accuracy"]
    fit = networks.fit
    monkeypatch.setattr(networks, "fit", lambda *a, test, **k: fit(*a, **k))
    plain, without = trained(request, Store(store.root / "other"), torch.device("cpu"))
    assert without["history"][:, 3].isnan().all()
    for one, other in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.equal(one, other)


# --- transfer -----------------------------------------------------------------------------------------------


# --- semantics ----------------------------------------------------------------------------------------------


def test_thirds_and_steps():
    assert [layers.third(i, 21) for i in (0, 6, 7, 13, 14, 20)] == ["shallow"] * 2 + [
        "middle"
    ] * 2 + ["deep"] * 2
    assert frame_steps(experiment.FRAMES, 300) == [30 * i for i in range(11)]
    assert frame_steps(experiment.FRAMES, 4) == [0, 1, 2, 3, 4]


def test_similarity_by_layer_is_the_cosine_of_autograds_gradients():
    model = network(
        ModelRequest(dataset="shapes", model="resnet20-1", fraction=1.0, train=None, seed=0)
    )
    target, frames = (
        torch.rand(2, 3, 8, 8, generator=rng(0)),
        torch.rand(3, 2, 3, 8, 8, generator=rng(1)),
    )
    frames[2] = target
    labels = torch.tensor([3, 7])
    found, whole = layers.layer_similarity(model, frames, target, labels)
    names = layers.convolutions(model)
    weights = [dict(model.named_parameters())[name] for name in names]
    assert (found.shape, whole.shape) == ((21, 3, 2), (3, 2))
    assert set(LAYERS) < set(names)

    def gradient(image, label, of=weights):
        return torch.autograd.grad(F.cross_entropy(model(image[None]), label[None]), of)

    for i in range(2):
        flat = [
            torch.cat([g.flatten() for g in gradient(image, labels[i], list(model.parameters()))])
            for image in (frames[0, i], target[i])
        ]
        assert float(whole[0, i]) == pytest.approx(
            float(F.cosine_similarity(*flat, dim=0)), abs=1e-4
        )
        pairs = zip(gradient(frames[0, i], labels[i]), gradient(target[i], labels[i]), strict=True)
        expected = [float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0)) for a, b in pairs]
        assert found[:, 0, i].tolist() == pytest.approx(expected, abs=1e-4)
    assert torch.cat([found, whole[None]])[:, 2].flatten().tolist() == pytest.approx(
        [1] * 44, abs=1e-5
    )
