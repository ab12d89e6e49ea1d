"""Files of weights as frameworks write them, and wrappers' names: read rightly, or one sentence.

Files of frameworks that are not installed here were made by them on a network as `net` makes it:
timm 1.0.31 (`CheckpointSaver` with `ModelEmaV3`, decay 0.5, all trained weights one above the
first), Lightning 2.6.6 (`Trainer.save_checkpoint`, after training, and with
`EMAWeightAveraging` during it) and
NVFlare 2.9.0 (`PTModelPersistenceFormatManager`, as `PTFileModelPersistor` saves). The two folders
are of jobs of its `FedAvgRecipe`, simulated, with `TransferType.FULL` and `DIFF`: two clients, two
rounds of two local steps each; the global model after the first round (`sent.pt`), the data of the
clients' DXO in the second, as a `DXOFilter` of the server gets it, and the global model at the end.
"""

import argparse
import json
import re
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from checks import refused
from safetensors.torch import save_file, save_model
from torch import nn
from torch.optim.swa_utils import AveragedModel

from atsaudit.sources import read_weights, weights_in
from atsaudit.update_files import read
from atslib.clients.training import load_checkpoint, save_checkpoint
from atslib.weights import fill, fitted

KEPT = Path(__file__).with_name("weights")


def net(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        layers = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)
    return nn.Sequential(*layers)


class Named(nn.Module):
    """The same behind one name more, as a user's own class has it."""

    def __init__(self, seed=0):
        super().__init__()
        self.layers = net(seed)

    def forward(self, images):
        return self.layers(images)


def equal(model, wanted):
    """Whether two networks have the same numbers in all that they hold."""
    own, other = model.state_dict(), wanted.state_dict()
    return own.keys() == other.keys() and all(torch.equal(own[name], other[name]) for name in own)


class OfTransformers(Named):
    """Reads files as transformers 5.24.0 does: names of an earlier version, and what is missing drawn."""

    config = types.SimpleNamespace(seed=5)

    @classmethod
    def from_pretrained(cls, name, *, config, state_dict, output_loading_info):
        assert name is None
        assert output_loading_info
        torch.rand(3)
        model = cls(config.seed)
        given = {key.replace("gamma", "weight"): value for key, value in state_dict.items()}
        missing, odd = model.load_state_dict(given, strict=False)
        return model, {"missing_keys": set(missing), "unexpected_keys": set(odd)}


@pytest.mark.parametrize("partial", [False, True])
def test_names_of_an_earlier_version_are_read_by_the_networks_own_library(partial):
    wanted = OfTransformers(1)
    saved = {key.replace("weight", "gamma"): v for key, v in wanted.state_dict().items()}
    before = torch.get_rng_state()
    found = fitted(saved, OfTransformers(2), "w", partial=partial)
    assert equal(fill(OfTransformers(2), found, "w"), wanted)
    assert torch.equal(before, torch.get_rng_state())
    head = {key: value for key, value in saved.items() if not key.startswith("layers.4.")}
    if partial:  # a client that keeps its head
        assert fitted(head, OfTransformers(2), "w", partial=True).keys() == {
            key.replace("gamma", "weight") for key in head
        }
        return
    for other in (head, saved | {"more": torch.ones(1)}):
        with refused("w is of another network"):
            fitted(other, OfTransformers(2), "w")
    with refused("w is of another network"):
        fitted(saved, Named(2), "w")  # it has no reader of its own


# --- wrappers' names ------------------------------------------------------------------------------------


def distributed(model):
    """Its state dict in torch's DistributedDataParallel of one process."""
    from torch import distributed as processes

    processes.init_process_group("gloo", store=processes.HashStore(), rank=0, world_size=1)
    try:
        return nn.parallel.DistributedDataParallel(model).state_dict()
    finally:
        processes.destroy_process_group()


def compiled(model):
    return torch.compile(model, backend="eager")


def held(model, name):
    """Its state dict in a module that keeps it under a name, as a LightningModule does."""
    holder = nn.Module()
    setattr(holder, name, model)
    return holder.state_dict()


def one_layer_compiled(model):
    return {re.sub(r"^0\.", "0._orig_mod.", name): v for name, v in model.state_dict().items()}


WRAPPED = {
    "plain": lambda model: model.state_dict(),
    "DataParallel": lambda model: nn.DataParallel(model).state_dict(),
    "DistributedDataParallel": distributed,
    "compiled": lambda model: compiled(model).state_dict(),
    "compiled DistributedDataParallel": lambda model: {
        f"_orig_mod.{name}": value for name, value in distributed(model).items()
    },
    "DataParallel of a compiled one": lambda model: nn.DataParallel(compiled(model)).state_dict(),
    "one layer compiled": one_layer_compiled,
    "averaged": lambda model: AveragedModel(model).state_dict(),
    "averaged and compiled": lambda model: AveragedModel(compiled(model)).state_dict(),
    "in a module as model": lambda model: held(model, "model"),
    "in a module as net": lambda model: held(model, "net"),
    "in a module, compiled": lambda model: held(compiled(model), "network"),
    "two deep": lambda model: {f"task.backbone.{k}": v for k, v in model.state_dict().items()},
    "beside other things": lambda model: {"criterion.weight": torch.ones(2)} | held(model, "net"),
}


@pytest.mark.parametrize("kind", WRAPPED)
@pytest.mark.parametrize("make", [net, Named])
def test_the_names_of_wrappers_are_taken_off(make, kind):
    whole = make(1)
    assert equal(fill(make(2), WRAPPED[kind](make(1)), "w.pt"), whole)


@pytest.mark.parametrize("wrap", [compiled, nn.DataParallel, Named], ids=["compiled", "DP", "own"])
def test_a_network_that_is_wrapped_takes_what_was_saved_without(wrap):
    class Held(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.model = net(seed)

    make = Held if wrap is Named else (lambda seed: wrap(net(seed)))
    assert equal(fill(make(2), net(1).state_dict(), "w.pt"), make(1))


def test_the_networks_own_names_come_first():
    """One that has a layer called "module" and another beside it."""

    class Own(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.module = net(seed)
            self.model = net(seed + 10)

    assert equal(fill(Own(1), Own(2).state_dict(), "w.pt"), Own(2))


def test_two_networks_in_one_file_are_not_chosen_between():
    both = {
        f"{who}.{k}": v for who in ("student", "teacher") for k, v in net().state_dict().items()
    }
    with refused("w.pt holds the network 2 times, under 'student.' and 'teacher.'"):
        fill(net(), both, "w.pt")


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"a.b.weight": torch.ones(2)}, "it has 'a.b.weight', and the network '0.weight'"),
        (
            {k: v for k, v in net().state_dict().items() if k != "4.bias"},
            "it has no '4.bias'",
        ),
        (
            net().state_dict() | {"5.weight": torch.ones(2)},
            "it has '5.weight', and the network none but '0.weight' and the like",
        ),
        (
            net().state_dict() | {"4.weight": torch.ones(3, 8)},
            "'4.weight' is of shape (3, 8), and the network's of (2, 8)",
        ),
        ({}, "has no arrays"),
        (
            {str(row): torch.ones(2) for row in range(3)},
            "has 3 arrays without names, and the network 9",
        ),
    ],
)
def test_another_network_is_named_by_one_name_of_each_side(tensors, words):
    with refused("w.pt", words):
        fill(net(), tensors, "w.pt")


def test_a_part_of_several_is_named():
    half = dict(list(net().state_dict().items())[:3])
    with refused("give the .index.json beside it"):
        fill(net(), half, "model-00001-of-00002.safetensors")


@pytest.mark.parametrize("number", ["{}", "arr_{}"])
@pytest.mark.parametrize("order", [1, -1])
def test_lists_are_in_the_order_of_the_state_dict(number, order):
    values = list(enumerate(net(1).state_dict().values()))[::order]
    tensors = {number.format(row): value for row, value in values}
    assert equal(fill(net(2), tensors, "w.npz"), net(1))


def test_lists_of_parameters_alone_are_in_their_order():
    gradients = [p.detach() + 1 for p in net(1).parameters()]
    found = fitted(
        {f"arr_{row}": g for row, g in enumerate(gradients)}, net(), "g.npz", partial=True
    )
    assert list(found) == [name for name, _ in net().named_parameters()]
    assert torch.equal(found["4.bias"], net(1)[4].bias + 1)


def test_tied_weights_may_be_there_once_under_either_name(tmp_path):
    class Tied(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.first = net(seed)[4]
            self.second = nn.Linear(8, 2)
            self.second.weight = self.first.weight

    save_model(Tied(1), str(tmp_path / "w.safetensors"))
    stored = read_weights(tmp_path / "w.safetensors")
    assert len(stored) == 3
    made = Tied(2)
    stored |= {"first.bias": Tied(1).first.bias, "second.bias": made.second.bias.detach()}
    for names in (stored, {k.replace("first.w", "second.w"): v for k, v in stored.items()}):
        fill(made, names, "w.safetensors")
        assert torch.equal(made.first.weight, net(1)[4].weight)
        assert made.first.weight is made.second.weight


def test_checkpoints_of_the_library_are_read_by_wrapped_networks_too(tmp_path):
    save_checkpoint(tmp_path / "w.safetensors", compiled(net(1)))
    model = net(2)
    load_checkpoint(tmp_path / "w.safetensors", model)
    assert equal(model, net(1))


# --- kinds of numbers -----------------------------------------------------------------------------------


WHOLE = [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.uint16]


@pytest.mark.parametrize("kind", [*WHOLE, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64])
@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("partial", [False, True])
def test_whole_and_complex_numbers_are_no_weights(kind, prefix, partial):
    state = net().state_dict()
    state["4.weight"] = (100 * state["4.weight"]).abs().to(kind)
    named = str(kind).removeprefix("torch.")
    with refused(f"'4.weight' is {named}, and the network's is float32", "times their scale"):
        fitted({prefix + k: v for k, v in state.items()}, net(), "w.npz", partial=partial)


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_other_precisions_are_weights(kind):
    state = {k: v.to(kind) if v.is_floating_point() else v for k, v in net(1).state_dict().items()}
    made = fill(net(2), state, "w.pt").state_dict()
    for name, value in state.items():
        assert torch.equal(made[name], value.to(made[name].dtype))


def test_the_mean_of_counters_is_rounded_and_a_missing_one_stays():
    state = net(1).state_dict()
    state["1.num_batches_tracked"] = torch.tensor(7.75, dtype=torch.float64)
    assert fill(net(2), state, "w.pt")[1].num_batches_tracked == 8
    del state["1.num_batches_tracked"]
    model = net(2)
    model[1].num_batches_tracked += 3
    assert fill(model, state, "w.pt")[1].num_batches_tracked == 3


# --- files ----------------------------------------------------------------------------------------------


def as_npz(state, place):
    np.savez(place / "w.npz", **{name: value.numpy() for name, value in state.items()})
    return place / "w.npz"


def as_list(state, place):
    """As apps of Flower's NumPyClient save what they have."""
    np.savez(place / "w.npz", *(value.numpy() for value in state.values()))
    return place / "w.npz"


def as_torch(state, place, name="w.pt"):
    torch.save(state, place / name)
    return place / name


def as_safetensors(state, place):
    save_file(state, place / "w.safetensors")
    return place / "w.safetensors"


def as_parts(state, place, end="safetensors"):
    """As Hugging Face's save_pretrained writes large networks."""
    names = list(state)
    places = {}
    for number, part in ((1, names[::2]), (2, names[1::2])):
        file = f"model-0000{number}-of-00002.{end}"
        values = {name: state[name] for name in part}
        (save_file if end == "safetensors" else torch.save)(values, place / file)
        places |= dict.fromkeys(part, file)
    index = place / f"model.{end}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return index


def from_flower(state, place, *, numbers=False):
    """What Flower's result holds, as its documentation saves it."""
    from flwr.app import ArrayRecord

    record = ArrayRecord(state)
    if numbers:
        np.savez(place / "w.npz", *record.to_numpy_ndarrays())
        return place / "w.npz"
    return as_torch(record.to_torch_state_dict(), place, "final_model.pt")


def from_dxo(state, place):
    """NVFlare's DXO of kind WEIGHTS or WEIGHT_DIFF has `data`, numpy arrays by name."""
    data = {name: value.numpy() for name, value in state.items()}
    np.savez(place / "w.npz", **data)
    return place / "w.npz"


FILES = {
    "npz": as_npz,
    "npz of a list": as_list,
    "a state dict": as_torch,
    "in a dict": lambda state, place: as_torch({"epoch": 3, "model_state_dict": state}, place),
    "safetensors": as_safetensors,
    "an index of safetensors": as_parts,
    "an index of torch's": lambda state, place: as_parts(state, place, "bin"),
    "the folder of an index": lambda state, place: as_parts(state, place).parent,
    "the folder of a file": lambda state, place: as_safetensors(state, place).parent,
    "Flower's result": from_flower,
    "Flower's arrays": lambda state, place: from_flower(state, place, numbers=True),
    "NVFlare's DXO": from_dxo,
    "options beside it": lambda state, place: as_torch(
        {"args": argparse.Namespace(lr=0.1, names=["a"]), "state_dict": state}, place
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning:typer")  # which Flower's import loads
@pytest.mark.parametrize("kind", FILES)
def test_files_are_read_whatever_wrote_them(tmp_path, kind):
    weights, note = weights_in(FILES[kind](net(1).state_dict(), tmp_path))
    assert equal(fill(net(2), weights, "it"), net(1))
    assert note == ""


@pytest.mark.filterwarnings("ignore::UserWarning:opacus")  # of its generator
@pytest.mark.parametrize("whole", [False, True], ids=["state dict", "checkpoint"])
def test_what_opacus_saves_is_read(tmp_path, whole):
    from opacus import GradSampleModule, PrivacyEngine

    def make(seed):  # it takes no batch normalization
        layers = list(net(seed))
        return nn.Sequential(layers[0], nn.GroupNorm(1, 2), *layers[2:])

    wrapped = GradSampleModule(make(1))
    if whole:
        PrivacyEngine().save_checkpoint(path=tmp_path / "w.pt", module=wrapped)
    else:
        torch.save(wrapped.state_dict(), tmp_path / "w.pt")
    assert "_module.0.weight" in read_weights(tmp_path / "w.pt")
    assert equal(fill(make(2), read_weights(tmp_path / "w.pt"), "w.pt"), make(1))


def test_a_lightning_checkpoint_is_read_by_the_network_within():
    weights, note = weights_in(KEPT / "lightning-2.6.6.ckpt")
    model = fill(Named(3), weights, "it")
    assert torch.equal(model.layers[4].weight, weights["model.layers.4.weight"])
    assert model.layers[1].num_batches_tracked == 2  # two steps were taken
    assert note == ""


def test_of_lightnings_average_it_is_said_that_it_is_one():
    file = KEPT / "lightning-2.6.6-average.ckpt"
    weights, note = weights_in(file)
    stored = torch.load(file, weights_only=True)
    name = "model.layers.4.weight"
    assert torch.equal(fill(Named(3), weights, "it").layers[4].weight, stored["state_dict"][name])
    assert not torch.equal(stored["state_dict"][name], stored["current_model_state"][name])
    assert "are the average; those in training are under 'current_model_state'" in note


def test_of_timms_two_networks_the_trained_one_is_taken_and_said():
    weights, note = weights_in(KEPT / "timm-1.0.31.pth.tar")
    model = fill(net(3), weights, "it")
    assert torch.allclose(model[1].weight, torch.full((2,), 2.0))  # one more than at first
    assert "under 'state_dict', which were trained" in note
    assert "under 'state_dict_ema' was not taken" in note


def test_nvflares_global_model_is_read():
    weights, note = weights_in(KEPT / "nvflare-2.9.0.pt")
    assert equal(fill(Named(3), weights, "it"), Named(0))
    assert note == ""


@pytest.mark.parametrize("kind", ["weights", "difference"])
def test_a_job_of_nvflares_is_read(kind):
    folder = KEPT / f"nvflare-2.9.0-{kind}"
    recorded = read(folder, number=None, kind=None, lr=0.05, steps=None, network=small())
    assert (recorded.kind, recorded.steps, recorded.contradiction) == (kind, 2, "")
    assert [record.name for record in recorded.records] == ["site-1", "site-2"]
    after = fill(small(), read_weights(folder / "FL_global_model.pt"), "it").state_dict()
    for name in ("body.0.weight", "body.1.bias", "body.1.running_mean", "head.bias"):
        mean = torch.stack([record.arrays[name] for record in recorded.records]).mean(0)
        mean = mean + recorded.sent[name] if kind == "difference" else mean
        assert torch.allclose(mean, after[name], atol=1e-6)
    assert after["body.1.num_batches_tracked"] == 4  # a job makes floating point numbers of it


def test_bytes_of_nvflares_dxo_are_one_sentence(tmp_path):
    file = tmp_path / "w.pt"
    file.write_bytes((KEPT / "nvflare-2.9.0-weights" / "dxo.bytes").read_bytes())
    with refused("w.pt cannot be read"):
        weights_in(file)


def small():
    """The network of the jobs: 3 x 32 x 32, two classes."""
    model = nn.Module()
    model.body = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.Sigmoid(), nn.AvgPool2d(4)
    )
    model.head = nn.Linear(64, 2)
    return model


def write(place, text):
    place.write_text(text)
    return place


DAMAGED = {
    "no JSON": ("{", "is no index of weights"),
    "no map": ('{"metadata": {}}', "is no index of weights"),
    "a list": ("[]", "is no index of weights"),
    "other folders": (
        '{"weight_map": {"a": "../w.safetensors"}}',
        "names files outside its own folder",
    ),
    "absolute": ('{"weight_map": {"a": "/etc/passwd"}}', "names files outside its own folder"),
    "no part": ('{"weight_map": {"a": "b.safetensors"}}', "b.safetensors is no file"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_an_index_that_is_wrong_is_one_sentence(tmp_path, kind):
    text, words = DAMAGED[kind]
    with refused(words):
        read_weights(write(tmp_path / "model.safetensors.index.json", text))


def test_an_index_whose_parts_lack_an_array_is_one_sentence(tmp_path):
    index = as_parts(net().state_dict(), tmp_path)
    facts = json.loads(index.read_text())
    facts["weight_map"]["lost"] = facts["weight_map"]["0.weight"]
    with refused("'lost' is in none of its 2 files"):
        read_weights(write(index, json.dumps(facts)))


def test_folders_and_kinds_that_are_no_weights_are_one_sentence(tmp_path):
    with refused("is a folder; give a file, or a folder with one index.json"):
        read_weights(tmp_path)
    (tmp_path / ".metadata").touch()
    with refused("is a folder of parts of processes; give a file, which", "dcp_to_torch_save"):
        read_weights(tmp_path)
    np.savez(tmp_path / "w.npz", a=np.zeros(2, "V2"))  # as some write bfloat16
    with refused("w.npz cannot be read as weights: 'a' is of kind |V2", "store float32"):
        read_weights(tmp_path / "w.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "w.npz").read_bytes()[:40])
    with refused("cut.npz cannot be read as weights"):
        read_weights(tmp_path / "cut.npz")
    torch.save({"state_dict": {"a": 1}}, tmp_path / "w.pt")
    with refused("w.pt holds no state dict"):
        read_weights(tmp_path / "w.pt")
    torch.save(net(), tmp_path / "whole.pt")
    with refused("whole.pt cannot be read: it is no state dict, or it holds more than tensors"):
        read_weights(tmp_path / "whole.pt")


# --- siblings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["module.", "_orig_mod."])
def test_an_averaged_network_within_a_wrapper_is_read(before):
    averaged = AveragedModel(net(1)).state_dict()
    given = {before + name: value for name, value in averaged.items()}
    assert equal(fill(net(), given, "w"), net(1))


def test_arrays_that_are_not_plain_are_named():
    given = net().state_dict()
    with refused("'4.weight'", "layout torch.sparse_coo", "dense"):
        fill(net(), given | {"4.weight": given["4.weight"].to_sparse()}, "w")
    with refused("'4.weight'", "no values (device meta)"):
        fill(net(), given | {"4.weight": given["4.weight"].to("meta")}, "w")


def test_a_list_of_parameters_alone_is_no_state_dict():
    given = {str(place): value for place, value in enumerate(net().parameters())}
    with refused("6 parameters", "not '1.running_mean'", "state_dict()"):
        fill(net(), given, "w")
    assert len(fitted(given, net(), "w", partial=True)) == 6
