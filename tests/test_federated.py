"""Training together: how images are dealt out, what one client answers, and what the server's tap
keeps of it.
"""

import copy
import dataclasses
import importlib
import os
import sys

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from checks import refused
from federations import SMALL, shared
from PIL import Image

from atsfed import Federation, Tap, answer, dirichlet_shards, equal_shards
from atsfed.federation import taken
from atslib import GradientMatching, observe, reconstruct
from atslib.clients.observe import ThreatModel
from atslib.clients.prepare import to_images
from atslib.clients.updates import LocalTraining
from atslib.errors import AtsError
from atslib.rng import rng

pytestmark = pytest.mark.usefixtures("one_thread")
LABELS = torch.arange(10).repeat_interleave(50)


# --- shards --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0, 0.1, 1.0, 100.0])
def test_every_image_belongs_to_exactly_one_client(alpha):
    dealt = (
        dirichlet_shards(LABELS, 7, alpha=alpha, rng=0) if alpha else equal_shards(LABELS, 7, rng=0)
    )
    assert torch.cat(dealt).sort().values.tolist() == list(range(500))
    assert min(map(len, dealt)) >= 1


def test_equal_shards_differ_by_one_image_at_most_and_are_of_all_classes():
    dealt = equal_shards(LABELS, 7, rng=0)
    assert {len(rows) for rows in dealt} == {71, 72}
    assert all(len(LABELS[rows].unique()) >= 9 for rows in dealt)
    assert [rows.tolist() for rows in dealt] == [
        rows.tolist() for rows in equal_shards(LABELS, 7, rng=0)
    ]
    assert [rows.tolist() for rows in dealt] != [
        rows.tolist() for rows in equal_shards(LABELS, 7, rng=1)
    ]


def test_the_smaller_alpha_the_fewer_classes_a_client_has():
    def largest(alpha):
        dealt = dirichlet_shards(LABELS, 5, alpha=alpha, rng=3)
        return torch.stack(
            [LABELS[rows].bincount(minlength=10).max() / len(rows) for rows in dealt]
        ).mean()

    assert largest(0.1) > 2 * largest(100.0)
    assert largest(100.0) < 0.16


def test_what_cannot_be_dealt_out_is_refused():
    with refused("501 clients cannot share 500 images"):
        equal_shards(LABELS, 501, rng=0)
    with refused("alpha=0 of a Dirichlet distribution must be above 0"):
        dirichlet_shards(LABELS, 5, alpha=0, rng=0)
    with refused("fewer than 400 images"):
        dirichlet_shards(LABELS, 5, alpha=1.0, rng=0, least=400)


# --- one client's answer -------------------------------------------------------------------------------------


def test_one_participants_gradient_is_the_plain_one_of_its_images():
    one = Federation(dataset="shapes", model="lenet-4", clients=1, batch=12)
    model = one.network().double()
    pixels, labels = taken(one, 0, 1)
    loss = F.cross_entropy(model(to_images(pixels).double()), labels)
    plain = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    seen = answer(one, model, 0, 1)
    torch.testing.assert_close(
        seen.updates[0].gradients[0], plain, rtol=0, atol=1e-6 * float(plain.abs().max())
    )
    assert seen.labels is None
    assert seen.threat.batch == 12


def test_ten_equal_participants_make_the_step_of_all_their_images():
    model = SMALL.network().double()
    parts = [taken(SMALL, client, 1) for client in range(10)]
    answers = torch.cat(
        [answer(SMALL, model, client, 1).updates[0].gradients for client in range(10)]
    )
    weights = torch.tensor([len(labels) for _, labels in parts], dtype=torch.float64)
    pixels, labels = (torch.cat(each) for each in zip(*parts, strict=True))
    whole = observe(
        model, to_images(pixels), labels, threat=ThreatModel(batch=len(labels))
    ).gradients[0]
    mean = (weights / weights.sum()) @ answers
    torch.testing.assert_close(mean, whole, rtol=0, atol=1e-6 * float(whole.abs().max()))


def test_one_participant_that_trains_locally_does_what_plain_training_does():
    local = LocalTraining(epochs=3, lr=0.2, momentum=0.5)
    one = Federation(dataset="shapes", model="lenet-4", clients=1, batch=8, local=local)
    model = one.network().double()
    pixels, labels = taken(one, 0, 1)
    trained = copy.deepcopy(model)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.2, momentum=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(trained(to_images(pixels).double()), labels).backward()
        optimizer.step()
    pairs = zip(trained.parameters(), model.parameters(), strict=True)
    moved = torch.cat([(after - before).detach().flatten() for after, before in pairs])
    seen = answer(one, model, 0, 1)
    assert seen.updates[0].kind == one.kind == "difference"
    torch.testing.assert_close(
        seen.updates[0].gradients[0], moved, rtol=0, atol=1e-6 * float(moved.abs().max())
    )


def test_a_defense_a_round_and_a_client_have_draws_of_their_own_and_a_seed_repeats_them():
    def gradient(client=0, number=1, **changes):
        own = Federation(dataset="shapes", model="lenet-4", clients=4, batch=4, **changes)
        return answer(own, own.network(), client, number).updates[0].gradients

    first = gradient(defense="3-1-7")
    assert torch.equal(first, gradient(defense="3-1-7"))
    others = [
        gradient(),
        gradient(1, defense="3-1-7"),
        gradient(0, 2, defense="3-1-7"),
        gradient(defense="prune:0.5"),
    ]
    assert not any(torch.equal(first, other) for other in others)
    assert gradient(defense="3-1-7", local=LocalTraining()).shape == first.shape


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"defense": "3-1-77"}, "3-1-77"),
        (
            {"defense": "prune:0.5", "local": LocalTraining()},
            "with local training it must be a policy, or none",
        ),
        ({"clients": 0}, "Federation.clients=0 must be at least 1"),
        ({"lr": -1.0}, "lr above 0"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_is(changes, words):
    with refused(words):
        Federation(dataset="shapes", model="lenet-4", **changes)
    with refused("client 10 is none of 10"):
        SMALL.shard(10)


# --- the tap -------------------------------------------------------------------------------------------------


@pytest.fixture
def tap(tmp_path):
    """A round of two clients of four images, recorded."""
    federation = Federation(dataset="shapes", model="lenet-4", clients=2, batch=4)
    made = Tap(tmp_path / "tap", federation)
    made.begin(1, dict(made.network.named_parameters()))
    for client in range(2):
        made.record(1, client, shared(answer(federation, made.network, client, 1), made.network), 4)
    return made


def test_the_tap_keeps_what_observe_shows_of_the_same_images(tap):
    pixels, labels = taken(tap.federation, 1, 1)
    threat = ThreatModel(labels="restored", batch=4, victim="train", batch_norm="unknown")
    direct = observe(tap.network, to_images(pixels), labels, threat=threat)
    kept = Tap(tap.folder, tap.federation).observed(1, 1)
    torch.testing.assert_close(kept.gradients, direct.gradients, rtol=0, atol=0)
    assert (kept.labels, kept.shape, kept.threat) == (direct.labels, direct.shape, direct.threat)
    for ours, theirs in zip(kept.model.parameters(), direct.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_what_clients_with_a_defense_of_their_own_shared_is_read(tmp_path):
    (file := tmp_path / "mine.py").write_text(
        "def halved(gradients):\n    return {name: value / 2 for name, value in gradients.items()}\n"
    )
    plain = Federation(dataset="shapes", model="lenet-4", clients=2, batch=4)
    federation = dataclasses.replace(plain, defense=f"{file}:halved")
    tap = Tap(tmp_path / "tap", federation)
    tap.begin(1, dict(tap.network.named_parameters()))
    tap.record(1, 0, shared(answer(federation, tap.network, 0, 1), tap.network), 4)
    whole = answer(plain, tap.network, 0, 1).gradients
    torch.testing.assert_close(2 * tap.observed(1, 0).gradients, whole, rtol=1e-5, atol=0)


def test_every_attack_runs_on_what_the_tap_keeps(tap):
    found = reconstruct(tap.observed(1, 0), GradientMatching(steps=2), rng=rng(0))
    assert found.images.shape == (4, 3, 32, 32)
    assert found.labels.shape == (1, 4)


def test_a_round_that_is_run_again_is_there_once(tap):
    before = {file: file.read_bytes() for file in tap.folder.rglob("*.safetensors")}
    seen = answer(tap.federation, tap.network, 1, 1)
    tap.record(1, 1, shared(seen, tap.network), 4)
    assert {file: file.read_bytes() for file in tap.folder.rglob("*.safetensors")} == before
    assert (tap.rounds(), tap.clients(1), tap.clients(2)) == ([1], [0, 1], [])
    with refused("round-00002/client-0000 was not recorded; rounds with records: 1"):
        tap.observed(2, 0)


def test_other_weights_in_a_round_drop_what_answered_the_old_ones(tap):
    same = dict(tap.network.named_parameters())
    tap.begin(2, same)
    tap.begin(1, same)
    assert (tap.clients(1), tap.next()) == ([0, 1], 2)
    tap.begin(1, {name: value + 1 for name, value in same.items()})
    assert (tap.rounds(), tap.clients(1), tap.next()) == ([], [], 1)


def test_a_folder_is_of_one_federation(tap):
    Tap(tap.folder, dataclasses.replace(tap.federation, rounds=9))
    with refused("has records of a federation with seed=0, not 1"):
        Tap(tap.folder, dataclasses.replace(tap.federation, seed=1))


def test_what_is_not_of_the_network_or_not_finite_is_refused_by_its_senders_name(tap):
    good = shared(answer(tap.federation, tap.network, 0, 1), tap.network)
    name = next(iter(good))
    with refused("client 7 in round 2 shared values of", name, "nan or infinite; it is left out"):
        tap.record(2, 7, good | {name: torch.full_like(good[name], torch.nan)}, 4)
    with refused("client 7 in round 2 shared (3,) for", name):
        tap.record(2, 7, good | {name: torch.zeros(3)}, 4)
    assert tap.rounds() == [1]


@pytest.mark.parametrize("place", ["sent", "client-0000"])
def test_every_flipped_bit_of_a_record_is_seen(tap, place):
    file = tap.folder / "round-00001" / f"{place}.safetensors"
    whole = file.read_bytes()
    kept = tap.observed(1, 0)
    for at in range(0, len(whole), len(whole) // 150):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        file.write_bytes(damaged)
        refusal = seen = None
        try:
            seen = tap.observed(1, 0)
        except AtsError as error:
            refusal = str(error)
        if refusal is not None:
            assert "\n" not in refusal
        else:  # a bit of the JSON that means the same, such as a space
            assert torch.equal(seen.gradients, kept.gradients)
            assert torch.equal(next(seen.model.parameters()), next(kept.model.parameters()))
            assert seen.threat == kept.threat
    for cut in (0, 7, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        with refused(f"{place}.safetensors cannot be read as safetensors"):
            tap.observed(1, 0)
    file.write_bytes(safetensors.torch.save({"a": torch.zeros(2)}))
    with refused(f"{place}.safetensors carries no hash"):
        tap.observed(1, 0)


def test_a_damaged_record_is_no_reason_to_drop_others(tap):
    file = tap.folder / "round-00001" / "sent.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with refused("sent.safetensors is damaged"):
        tap.begin(1, dict(tap.network.named_parameters()))
    assert tap.clients(1) == [0, 1]


def test_folders_and_files_of_others_are_no_rounds(tap):
    for name in ("round-abc", "round-1", "round-00009x", "round-00007"):
        (tap.folder / name).mkdir()
    (tap.folder / "round-00001" / "client-abcd.safetensors").touch()
    (tap.folder / "round-00008").touch()
    assert (tap.rounds(), tap.clients(1), tap.next()) == ([1], [0, 1], 1)
    for look in (tap.observed, tap.clients, tap.model, tap.refused):
        with refused("round 'a' must be a whole number"):
            look("a")


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff"])
def test_a_damaged_description_is_told_in_one_sentence(tap, content):
    (tap.folder / "federation.json").write_bytes(content)
    with refused("federation.json is damaged"):
        Tap(tap.folder, tap.federation)


def test_no_name_of_an_array_forges_a_line_of_what_was_refused(tap):
    good = shared(answer(tap.federation, tap.network, 0, 1), tap.network)
    for name in ("x\nclient 9 in round 1 shared nothing", "x\u2028y", "x\r\x1b[2J", "x\x85y"):
        with pytest.raises(AtsError) as error:
            tap.record(1, 5, good | {name: torch.zeros(1)}, 4)
        tap.refuse(1, [str(error.value)])
        (line,) = tap.refused(1)
        assert line.startswith("client 5 in round 1 shared (1,) for x\\")
    tap.refuse(1, ["a\nb", "c"])
    assert tap.refused(1) == ["a\\nb", "c"]


def test_an_answer_that_the_federation_cannot_have_given_is_doubted(tap):
    assert tap.observed(1, 0).doubts == ((),)
    honest = shared(answer(tap.federation, tap.network, 0, 1), tap.network)
    weights = {name: value.detach() for name, value in tap.network.named_parameters()}
    tap.record(1, 0, weights, 4)
    assert "it is weights" in tap.observed(1, 0).doubts[0][0]
    tap.record(1, 0, {name: -value for name, value in honest.items()}, 4)
    assert "labels, and is of 4 images" in tap.observed(1, 0).doubts[0][0]


def test_another_missing_package_is_not_called_flower(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.split(".")[0] == "flwr"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "atsfed.flower", raising=False)
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr" / "__init__.py").touch()
    (tmp_path / "flwr" / "app.py").write_text("import needed_by_flower")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="needed_by_flower"):
        importlib.import_module("atsfed.flower")
    for name in ("flwr", "flwr.app"):
        sys.modules.pop(name, None)


def test_flower_reports_nothing_of_its_use():
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"


@pytest.mark.parametrize("module", ["flower", "secure"])
def test_without_flower_one_line_names_the_extra(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    for name in ("flower", "secure"):
        monkeypatch.delitem(sys.modules, f"atsfed.{name}", raising=False)
    with refused("pip install 'atslib[federated]'"):
        importlib.import_module(f"atsfed.{module}")


def test_an_unknown_policy_is_refused_before_anything_is_trained():
    with refused("3-1-77"):
        Federation(dataset="shapes", defense="3-1-77")


MINE = """
import torch
from torch import nn


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 2))


def silent(gradients):
    return {name: torch.zeros_like(value) for name, value in gradients.items()}


def grey(seen, rng):
    return torch.full((len(seen), *seen.shape), 0.5)


number = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A working folder with photographs of two classes and a file of one's own."""
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(5):
            pixels = np.random.default_rng(100 * ord(name) + i).integers(
                0, 255, (16, 16, 3), dtype=np.uint8
            )
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_federation_takes_a_folder_and_a_network_and_a_defense_of_ones_own(mine):
    own = {"dataset": "photos", "model": "mine.py:build", "image_size": 16}
    federation = Federation(**own, clients=2, defense="mine.py:silent")
    sent = answer(federation, federation.network(), client=0, number=1)
    assert sent.gradients.shape == (1, 2 * 768 + 2)
    assert not sent.gradients.any()
    open_ = dataclasses.replace(federation, defense="")
    assert answer(open_, open_.network(), client=0, number=1).gradients.any()
