"""What is on disk: states that outlive their work until that is written, keys that tell inputs
apart, tied weights.
"""

import copy
import dataclasses

import pytest
import torch
from checks import refused
from safetensors.torch import load_file
from torch import nn

import atslib
from atsbook.store import Store
from atslib import ATTACKS, rng
from atslib.attacks import engine
from atslib.checkpoints import read_tensors, write_tensors
from atslib.clients.training import load_checkpoint, save_checkpoint
from atslib.files import states_kept

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT = dataclasses.replace(ATTACKS["adam-cosine"], steps=3)


def seen():
    model = atslib.build_model("lenet-2", 10, rng=0)
    return atslib.observe(model, torch.rand(2, 3, 32, 32, generator=rng(0)), torch.tensor([1, 2]))


def test_a_state_outlives_its_attack_until_the_artifact_is_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "SAVE_EVERY", -1)
    store = Store(tmp_path)

    def attacked(state):
        made = {"images": atslib.reconstruct(seen(), SHORT, rng=0, checkpoint=state).images}
        assert [file.name.split(".", 1)[1] for file in state.parent.iterdir()] == ["state.0-2"]
        return made

    def full(self, path, tensors, facts):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "_write", full)
        with pytest.raises(OSError, match="No space left"):
            store.get("attack", {"n": 1}, attacked)
    assert [file.suffix for file in (tmp_path / "attack").iterdir()] == [".0-2"]
    store.get("attack", {"n": 1}, attacked)
    assert sorted(file.suffix for file in (tmp_path / "attack").iterdir()) == [
        ".json",
        ".safetensors",
    ]


def test_outside_of_a_store_a_state_goes_with_the_attack(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "SAVE_EVERY", -1)
    atslib.reconstruct(seen(), SHORT, rng=0, checkpoint=tmp_path / "run")
    assert not list(tmp_path.iterdir())
    with states_kept():
        atslib.reconstruct(seen(), SHORT, rng=0, checkpoint=tmp_path / "run")
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_files_of_the_user_beside_a_state_are_left(tmp_path):
    mine = ["run.csv", "run.txt", "run.0-1.png", "run.best", "run"]
    for name in mine:
        (tmp_path / name).write_text("mine")
    atslib.reconstruct(seen(), SHORT, rng=0, checkpoint=tmp_path / "run")
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(mine)
    assert all((tmp_path / name).read_text() == "mine" for name in mine)


def test_keys_tell_tensors_networks_and_kinds_of_keys_apart(tmp_path):
    store, long = Store(tmp_path), torch.zeros(10_000)
    other = long.clone()
    other[5_000] = 1
    model, again = (atslib.build_model("lenet-2", 10, rng=seed) for seed in (0, 1))
    different = [
        long,
        other,
        long.double(),
        long.numpy(),
        model,
        again,
        {1: "a"},
        {"1": "a"},
        {1: "a", "1": "b"},
    ]
    paths = [store.path("x", {"config": value}) for value in different]
    assert len(set(paths)) == len(paths)
    same = [long.clone(), other.clone(), long.double(), long.numpy().copy(), copy.deepcopy(model)]
    assert [store.path("x", {"config": value}) for value in same] == paths[:5]


def test_tied_weights_are_written_once(tmp_path):
    model = nn.Sequential(
        atslib.Normalize((0.5,), (0.25,)), nn.Flatten(), nn.Linear(12, 12), nn.Linear(12, 12)
    )
    model[3].weight = model[2].weight
    save_checkpoint(tmp_path / "m", model, made="here")
    assert sum(name.endswith("weight") for name in load_file(tmp_path / "m")) == 1
    twin = copy.deepcopy(model)
    nn.init.zeros_(twin[2].weight)
    assert load_checkpoint(tmp_path / "m", twin) == {"made": "here"}
    assert all(
        torch.equal(a, b) for a, b in zip(twin.parameters(), model.parameters(), strict=True)
    )
    assert twin[2].weight is twin[3].weight


def test_parts_of_one_tensor_are_written_as_they_are(tmp_path):
    whole = torch.arange(6.0)
    write_tensors(tmp_path / "x", {"whole": whole, "end": whole[3:], "middle": whole[2:4]}, {})
    tensors, _, vouched = read_tensors(tmp_path / "x")
    assert vouched
    assert (tensors["end"].tolist(), tensors["middle"].tolist()) == ([3, 4, 5], [2, 3])


def test_a_checkpoint_of_another_network_changes_nothing(tmp_path):
    model, other = atslib.build_model("lenet-2", 10, rng=0), atslib.build_model("lenet-2", 7, rng=1)
    save_checkpoint(tmp_path / "m", other)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with refused("is of another network"):
        load_checkpoint(tmp_path / "m", model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_psnr_of_low_precision_is_computed_in_single():
    truth = torch.full((1, 1, 8, 8), 0.5)
    made = truth + 2**-10
    exact = float(atslib.psnr(made, truth))
    assert exact == pytest.approx(60.206, abs=1e-3)
    assert float(atslib.psnr(made.half(), truth.half())) == pytest.approx(exact, abs=1e-3)
    assert float(atslib.psnr((truth + 2**-8).bfloat16(), truth.bfloat16())) == pytest.approx(
        48.165, abs=1e-3
    )
