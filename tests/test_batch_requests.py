"""Requests of batches: which images share a gradient, labels told of them, and attacks on rounds and
local training.
"""

import dataclasses

import pytest
import torch
from checks import refused

from atsbook.evidence.archive import Archive, request_of
from atsbook.networks import ModelRequest, dataset, network
from atsbook.requests.batches import (
    Batches,
    BatchOutcomes,
    BatchRequest,
    LabelRequest,
    chosen,
    outcomes,
    with_head,
)
from atslib.attacks import ATTACKS
from atslib.checkpoints import plain
from atslib.clients.prepare import to_images
from atslib.clients.updates import LocalTraining
from atslib.measures.batches import align
from atslib.measures.found import bits, match, own_class, rank
from atslib.measures.metrics import psnr

CPU = torch.device("cpu")
MODEL = ModelRequest(dataset="shapes", model="lenet-2", fraction=1.0, train=None, seed=0)
BASE = BatchRequest(
    model=MODEL,
    attack=dataclasses.replace(ATTACKS["annealed-lenet"], steps=3, start="uniform"),
    batches=Batches(size=3, count=2),
)
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("batches", "counts"),
    [
        (Batches(size=6, count=5), [1] * 6),
        (Batches(size=6, count=5, amount=3), [3, 3]),
        (Batches(size=6, count=5, repetition=2), [1, 1, 1, 3]),
    ],
)
def test_a_batch_has_its_labels_as_often_as_it_says(batches, counts):
    labels = dataset("shapes", "test").labels
    rows = batches.rows(labels, 10)
    for batch in rows:
        assert sorted(labels[batch].unique(return_counts=True)[1].tolist()) == counts
        assert len(batch.unique()) == 6
    assert len({tuple(batch.tolist()) for batch in rows}) == 5
    longer = dataclasses.replace(batches, count=7)
    assert torch.equal(longer.rows(labels, 10)[:5], rows)
    pixels, own = chosen("shapes", batches)
    assert torch.equal(own, labels[rows.flatten()])
    assert torch.equal(pixels, dataset("shapes", "test").pixels[rows.flatten()])


def test_a_batch_that_cannot_be_is_refused():
    with refused("a batch is of whole groups of one label"):
        Batches(size=5, count=1, amount=2)
    with refused("has 12 different labels, and there are 10 classes"):
        Batches(size=12, count=1).rows(dataset("shapes", "test").labels, 10)


def test_the_labels_of_a_batch_are_told_by_each_rule_that_allows_it(store):
    request = LabelRequest(model=MODEL, batches=Batches(size=4, count=3, amount=2))
    sheet = request.make(store, CPU)
    assert {name for name in sheet.tensors if name.startswith("share")} == {
        "share_features",
        "share_published",
        "share_minima",
    }
    assert sheet["labels"].shape == sheet["told_features"].shape == (3, 4)
    assert (
        sheet["share_minima"].tolist() == [0.5] * 3
    )  # each label once, and half of the batch repeats one
    twelve = dataclasses.replace(request, batches=Batches(size=12, count=1, amount=2)).make(
        store, CPU
    )
    assert "share_minima" not in twelve.tensors
    single = dataclasses.replace(request, batches=Batches(size=1, count=4)).make(store, CPU)
    assert single["share_idlg"].tolist() == [1.0] * 4


def test_the_other_last_layers_are_what_they_say():
    model, images = network(MODEL), torch.rand(2, 3, 32, 32)
    assert with_head(model, "without bias")[1][-1].bias is None
    assert model[1][-1].bias is not None
    inputs = []
    signed = with_head(model, "signed")
    signed[1][-1].register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    signed(images)
    assert (inputs[0] < 0).any()


def test_a_reconstruction_stands_beside_its_own_image(store):
    sheet = BASE.make(store, CPU)
    truth = to_images(sheet["target"])
    torch.testing.assert_close(sheet["psnr"], psnr(sheet["reconstruction"], truth))
    for made, true, labels in zip(
        *(t.unflatten(0, (2, 3)) for t in (sheet["reconstruction"], truth)),
        sheet["labels"],
        strict=False,
    ):
        assert align(made, true, labels).tolist() == [0, 1, 2]
    assert sheet["share"].tolist() == [1.0, 1.0]
    assert sheet["within"].all()  # labels differ, so each image is alone with its own
    assert sheet["floor"].shape == sheet["rank"].shape == (6,)


def test_what_batches_give_away_is_what_the_measures_say(store, tmp_path):
    request = BatchOutcomes(attacks=BASE)
    told, sheet = request.make(store, CPU), BASE.make(store, CPU)
    test = dataset("shapes", "test")
    candidates, truth = own_class(test.labels, BASE.batches.rows(test.labels, 10).flatten())
    alike = match(sheet["reconstruction"], test.pixels, candidates, crop_flip=False)
    assert torch.equal(told["rank"], rank(alike, truth))
    assert torch.equal(told["bits"], bits(alike, truth))
    torch.testing.assert_close(told["psnr"], sheet["psnr"])
    torch.testing.assert_close(told["frame"], sheet["psnr"])  # the frame has all of it
    archive = Archive(tmp_path / "archive")
    archive.write(store, embedded=True)
    assert request in [request_of(line) for line in archive.entries().values()]


def test_photographs_of_clients_with_a_policy_are_not_looked_for_as_if_there_were_none():
    with refused("the clients have '3-1-7'"):
        BatchOutcomes(attacks=dataclasses.replace(BASE, defense="3-1-7"))


def test_an_image_itself_is_found_and_another_is_not():
    pixels, labels = chosen(BASE.model.dataset, BASE.batches)
    images = to_images(pixels).unflatten(0, (2, 3))
    rest = images, labels.view(2, 3), to_images(dataset(BASE.model.dataset, "test").pixels[-512:])
    exact = outcomes(images, *rest)
    assert exact["rank"].tolist() == [1] * 6
    moved = outcomes(images.roll(1, dims=1), *rest)
    assert (moved["rank"] > 1).all()
    assert exact["floor"].tolist() == moved["floor"].tolist()
    assert (exact["floor"] < 20).all()


@pytest.mark.parametrize(
    "changes", [{"rounds": 2}, {"local": LocalTraining(epochs=2)}, {"defense": "3-1-7"}]
)
def test_rounds_local_training_and_defenses_reach_the_attack(changes, store):
    other = dataclasses.replace(BASE, **changes)
    assert (other.make(store, CPU)["cost"] != BASE.make(store, CPU)["cost"]).all()
    assert other.passes >= BASE.passes
    assert request_of({"kind": other.kind, "version": 1, "config": plain(other)}) == other


def test_from_the_archive_pictures_stand_beside_their_targets(store, tmp_path):
    sheet, kept = BASE.make(store, CPU), Archive(tmp_path / "archive")
    kept.write(store, embedded=True)
    again = kept.read(store.path(BASE.kind, BASE).stem)
    for name in ("target", "rank", "floor", "psnr"):
        torch.testing.assert_close(again[name], sheet[name])
    torch.testing.assert_close(
        again["reconstruction"], sheet["reconstruction"].clamp(0, 1), atol=1.501 / 255, rtol=0
    )


def test_an_attack_goes_by_the_labels_that_its_rule_tells(store):
    twice = dataclasses.replace(BASE, batches=Batches(size=4, count=2, amount=2), rule="minima")
    sheet = twice.make(store, CPU)
    assert sheet["share"].tolist() == [0.5, 0.5]
    assert all(len(set(batch)) == 4 for batch in sheet["told"].tolist())
