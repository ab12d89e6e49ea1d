"""The store: keys, faults on disk, kills, and archives that come from elsewhere."""

import copy
import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch
from checks import flip_a_bit, refused
from safetensors.torch import load_file, save_file

from atsbook.store import Store
from atslib.attacks import GradientMatching
from atslib.checkpoints import fingerprint, load_state, plain, save_state
from atslib.clients.observe import ThreatModel
from atslib.clients.training import TrainConfig
from atslib.files import project_root, write_atomically
from atslib.models import build_model
from atslib.rng import rng

CONFIG = {"policy": "3-1-7", "steps": 10}


class Maker:
    """A compute function that counts its calls; `value` goes into its tensors."""

    def __init__(self, value=1.5):
        self.calls, self.value = 0, value

    def __call__(self, state):
        self.calls += 1
        return {"x": torch.full((2, 3), self.value), "n": torch.tensor([self.calls])}


def make(store, config=CONFIG, kind="attack"):
    """An artifact on disk: its two files."""
    store.get(kind, config, Maker())
    path = store.path(kind, config)
    return path, path.with_suffix(".json")


def files(folder):
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


# --- states of unfinished runs -----------------------------------------------------------------------------


def test_a_fingerprint_sees_every_value_shape_and_type():
    one, network = torch.arange(4), build_model("lenet", 3, rng=rng(0))
    distinct = [
        one,
        one.view(2, 2),
        one.float(),
        one.flip(0),
        one[0],
        [one],
        {"a": one},
        {"b": one},
        [[one], one],
    ]
    distinct += [
        [one, one],
        network,
        build_model("lenet", 3, rng=rng(1)),
        network[0],
        rng(0),
        rng(1),
        "a",
        ["a"],
        None,
    ]
    distinct += [GradientMatching(), GradientMatching(steps=2), ThreatModel(), 1, 1.0, "1", True]
    assert len({fingerprint(value) for value in distinct}) == len(distinct)
    for value in (
        one.clone(),
        build_model("lenet", 3, rng=rng(0)),
        rng(0),
        GradientMatching(),
        {"a": [one]},
    ):
        assert fingerprint(value) == fingerprint(copy.deepcopy(value))
    assert fingerprint(one) == fingerprint(one.repeat_interleave(2)[::2])  # values, not layout


def test_fingerprints_in_the_keys_of_old_artifacts_hold():
    assert fingerprint(torch.arange(4), torch.ones(2)) == "b328189385a4543ca33a"


def test_a_state_comes_back_to_its_own_run_only(tmp_path):
    path, tensors = tmp_path / "run.state", {"x": torch.arange(3.0), "n": torch.tensor(2)}
    assert load_state(path, "mine") is None
    save_state(path, "mine", tensors, epoch=3)
    loaded, facts = load_state(path, "mine")
    assert {name: value.tolist() for name, value in loaded.items()} == {"x": [0, 1, 2], "n": 2}
    assert facts == {"run": "mine", "epoch": 3}
    with pytest.warns(
        UserWarning, match=r"^run.state is not resumed \(it is the state of another run: other data"
    ):
        assert load_state(path, "another") is None
    assert files(tmp_path) == ["run.state.aside"]
    assert load_state(path, "mine") is None


SPOILED = {
    "garbage": lambda state: state.write_bytes(b"\x00garbage" * 50),
    "empty": lambda state: state.write_bytes(b""),
    "truncated": lambda state: state.write_bytes(state.read_bytes()[:-5]),
    "a flipped bit": flip_a_bit,
    "of an older version": lambda state: save_file(
        {"x": torch.zeros(2)}, state, metadata={"history": "[]"}
    ),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_damaged_state_is_set_aside_with_a_warning(how, tmp_path):
    path = tmp_path / "run.state"
    save_state(path, "mine", {"x": torch.arange(3.0)})
    SPOILED[how](path)
    with pytest.warns(UserWarning, match="^run.state is not resumed .*the run starts anew"):
        assert load_state(path, "mine") is None
    assert files(tmp_path) == ["run.state.aside"]


# --- computing once, and the key ---------------------------------------------------------------------------


def test_the_same_config_is_computed_once(store, said):
    maker = Maker()
    assert not store.has("attack", CONFIG)
    first = store.get("attack", CONFIG, maker, label="3-1-7")
    again = Store(store.root).get("attack", dict(reversed(CONFIG.items())), maker)
    assert maker.calls == 1
    assert (store.has("attack", CONFIG), store.has("attack", CONFIG, version=2)) == (True, False)
    assert said == ["made attack 3-1-7 in 0 s"]
    assert again.facts == first.facts
    assert torch.equal(again["x"], first["x"])
    assert first["x"].tolist() == [[1.5] * 3] * 2


def changed(value):
    """Another value of the same type."""
    if isinstance(value, float):
        return value / 2
    return not value if isinstance(value, bool) else value + 1


MATCHING = {"distance": "l2", "optimizer": "sgd", "start": "zeros", "schedule": "linear"}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (TrainConfig(), {"policy": "3-1-7", "defense": "prune:0.9", "schedule": "onecycle"}),
        (GradientMatching(), {"penalties": (("tv-isotropic", 0.1),), **MATCHING}),
        (
            ThreatModel(),
            {
                "labels": "optimized",
                "batch_norm": "unknown",
                "victim": "train",
                "defense": "policy",
            },
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_field_of_a_config_changes_the_key(store, config, text):
    keys = {store.path("attack", config)}
    for field in dataclasses.fields(config):
        other = text[field.name] if field.name in text else changed(getattr(config, field.name))
        keys.add(store.path("attack", dataclasses.replace(config, **{field.name: other})))
    assert len(keys) == 1 + len(dataclasses.fields(config))


def test_kind_and_version_change_the_key_and_the_order_of_a_dict_does_not(store):
    here = store.path("attack", CONFIG)
    assert store.path("model", CONFIG).stem != here.stem
    assert store.path("attack", CONFIG, version=2) != here
    assert store.path("attack", dict(reversed(CONFIG.items()))) == here


def test_a_config_inside_a_config_changes_the_key(store):
    outer = {"attack": GradientMatching(), "images": (0, 8)}
    inner = dataclasses.replace(GradientMatching(), tv=0.5)
    assert store.path("attack", outer) == store.path(
        "attack", {"attack": plain(GradientMatching()), "images": [0, 8]}
    )
    assert store.path("attack", outer | {"attack": inner}) != store.path("attack", outer)


def test_values_that_json_tells_apart_are_told_apart(store):
    values = [1, "1", True, None, "None", 1.5, [1], {"1": 1}]
    assert len({store.path("attack", {"x": value}) for value in values}) == len(values)


# --- what lies on disk --------------------------------------------------------------------------------------


def test_an_artifact_can_be_read_without_the_library(store):
    tensors, facts = make(store, {"train": TrainConfig(policy="3-1-7"), "images": (0, 8)})
    read = json.loads(facts.read_text())
    assert read["config"]["train"]["policy"] == "3-1-7"
    assert read["config"]["images"] == [0, 8]
    assert (read["kind"], read["version"], read["torch"]) == ("attack", 1, torch.__version__)
    assert load_file(tensors)["x"].shape == (2, 3)


def test_tensors_that_share_memory_are_kept_as_two(store):
    whole = torch.arange(6.0)
    first = store.get(
        "attack", CONFIG, lambda state: {"a": whole, "b": whole[2:], "c": whole.view(2, 3).T}
    )
    again = Store(store.root).get("attack", CONFIG, Maker())
    for name in "abc":
        assert torch.equal(again[name], first[name])
    assert again["c"].tolist() == [[0, 3], [1, 4], [2, 5]]


FAULTS = {
    "flipped bit": lambda tensors, facts: flip_a_bit(tensors),
    "truncated": lambda tensors, facts: tensors.write_bytes(tensors.read_bytes()[:-5]),
    "empty": lambda tensors, facts: tensors.write_bytes(b""),
    "tensors missing": lambda tensors, facts: tensors.unlink(),
    "facts are no JSON": lambda tensors, facts: facts.write_text('{"sha256": '),
    "facts are no text": lambda tensors, facts: facts.write_bytes(b"\xff\xfe\x00"),
    "another fact": lambda tensors, facts: facts.write_text(
        facts.read_text().replace('"seconds": 0', '"seconds": 9')
    ),
    "facts without hash": lambda tensors, facts: facts.write_text("{}"),
    "facts are a list": lambda tensors, facts: facts.write_text("[]"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_artifact_is_found_set_aside_and_made_again(store, said, fault):
    tensors, facts = make(store)
    there = [path for path in (tensors, facts) if (path, fault) != (tensors, "tensors missing")]
    FAULTS[fault](tensors, facts)
    damaged = {path: path.read_bytes() for path in there}
    (line,) = store.verify()
    assert tensors.name in line
    said.clear()
    maker = Maker(2.5)
    for _ in range(2):
        assert store.get("attack", CONFIG, maker)["x"][0, 0] == 2.5
    assert maker.calls == 1
    assert len(said) == 2, said  # what was wrong, and that it was made
    assert "set aside" in said[0]
    assert tensors.name in said[0]
    for path, data in damaged.items():
        assert path.with_name(f"{path.name}.corrupt").read_bytes() == data
    assert store.verify() == []


def test_verify_names_only_the_damaged(store):
    good, bad = make(store, {"a": 1})[0], make(store, {"a": 2}, kind="model")[0]
    assert store.verify() == []
    bad.write_bytes(b"x")
    assert store.verify() == [f"model/{bad.name}: its bytes do not match their hash"]
    assert good.exists()
    assert bad.exists()


# --- kills --------------------------------------------------------------------------------------------------


def test_a_compute_that_fails_leaves_no_artifact_and_keeps_its_state(store):
    states = []

    def killed(state):
        states.append(state)
        assert state.parent.is_dir()
        state.write_text("step 7")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.get("attack", CONFIG, killed)
    assert not store.has("attack", CONFIG)
    assert files(store.root) == [states[0].relative_to(store.root).as_posix()]

    def resumed(state):
        assert state.read_text() == "step 7"
        return {"x": torch.ones(1)}

    store.get("attack", CONFIG, resumed)
    assert not states[0].exists()
    assert len(files(store.root)) == 2


def test_an_atomic_write_that_fails_changes_nothing(tmp_path):
    path = tmp_path / "new" / "file"
    write_atomically(path, lambda partial: partial.write_text("old"))

    def fails(partial):
        partial.write_text("half")
        raise OSError("no space")

    with refused("file cannot be written: no space"):
        write_atomically(path, fails)
    assert path.read_text() == "old"
    assert files(tmp_path) == ["new/file"]


def test_a_kill_between_tensors_and_facts_leaves_no_artifact_and_it_is_made_again(
    store, monkeypatch
):
    replace = os.replace

    def killed(self, to):
        if to.suffix == ".json":
            raise KeyboardInterrupt
        return replace(self, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            store.get("attack", CONFIG, Maker())
    assert not store.has("attack", CONFIG)
    assert files(store.root) == [f"attack/{store.path('attack', CONFIG).name}"]
    store.get("attack", CONFIG, maker := Maker())
    assert maker.calls == 1
    assert store.verify() == []


# --- where things are ---------------------------------------------------------------------------------------


def test_the_project_root_is_the_nearest_folder_with_a_pyproject(tmp_path, monkeypatch):
    deep = tmp_path / "project" / "notebooks"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    outside = project_root()
    assert outside == next((f for f in deep.parents if (f / "pyproject.toml").exists()), deep)
    (tmp_path / "project" / "pyproject.toml").touch()
    assert project_root() == tmp_path / "project"


def test_a_store_lies_where_it_is_told_else_in_the_environment_else_in_the_project(
    tmp_path, monkeypatch
):
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATS_STORE", str(tmp_path / "env"))
    assert Store(tmp_path / "told").root == tmp_path / "told"
    assert Store().root == tmp_path / "env"
    monkeypatch.delenv("ATS_STORE")
    assert Store().root == tmp_path / ".store"
    assert not list(Store().entries())


@pytest.mark.parametrize("address", ["s3://bucket/prefix", "file:///tmp/store"])
def test_a_store_is_a_folder_and_no_address(address):
    with refused(f"Store: root={address!r} must be a folder of this machine, not an address"):
        Store(address)
