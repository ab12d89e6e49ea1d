"""The shell: it parses before it imports, says what is wrong in one line before it computes, and
leaves files.
"""

import dataclasses
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from checks import flip_a_bit, main
from PIL import Image
from safetensors.torch import load_file

import atslib
from atsbook.runs.tables import policy_image
from atsfed.command import absolute
from atsfed.federation import Federation, answer
from atslib.__main__ import COMMANDS
from atslib.attacks import engine
from atslib.clients.training import load_checkpoint, save_checkpoint
from atslib.commands import indices, kept_in
from atslib.data import official
from atslib.data.load import load
from atslib.data.packed import pack
from atslib.errors import AtsError
from atslib.files import project_root
from atslib.measures.metrics import psnr
from atslib.models import build_model
from atslib.policies.policy import load_policies

SMALL = "--dataset shapes --steps 3"
FILES = {"table.csv", "sheet.png", "arrays.safetensors"}  # of an attack


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A network trained from the shell, on 25 images."""
    path = tmp_path_factory.mktemp("checkpoint") / "model.safetensors"
    command = f"train --dataset shapes --model convnet-4 --policy 3-1-7 --epochs 1 --fraction 0.005 --out {path}"
    assert main(command.split()) == 0
    return path


# --- before torch -------------------------------------------------------------------------------------------


def python(*arguments, **environment):
    """A fresh interpreter; its output as text."""
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("command", "status"),
    [("--help", 0), ("attack --help", 0), ("serach", 2), ("train --epochs 0", 2), ("", 2)],
)
def test_help_and_mistyped_commands_answer_without_importing_torch(command, status):
    code = f"""
import runpy, sys
sys.argv = ["atslib", *{command.split()}]
try:
    runpy.run_module("atslib", run_name="__main__")
except SystemExit as stop:
    assert stop.code == {status}, stop.code
slow = {{"torch", "numpy", "pandas", "matplotlib"}} & set(sys.modules)
assert not slow, slow
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert (done.stdout.startswith("usage: python -m atslib"), done.stderr.count("\n")) == (
        status == 0,
        status // 2,
    )


def test_the_library_is_imported_without_torch_and_every_public_name_when_it_is_used():
    code = """
import sys, atslib
assert "torch" not in sys.modules
import atslib.rng, atslib.scores.search
assert atslib.rng(0).initial_seed() == atslib.rng(0).initial_seed()
from atslib import *
for name in atslib.__all__:
    assert globals()[name] is getattr(atslib, name), name
assert set(atslib.__all__) <= set(dir(atslib))
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", ["atslib", "atsbook"])
def test_a_command_that_moved_says_where_it_went(program, capsys):
    module = importlib.import_module(f"{program}.__main__")
    assert module.MOVED
    for command, home in module.MOVED.items():
        assert module.main([command, "--help"]) == 2
        assert capsys.readouterr().err == (
            f"error: {command} is a command of `{home}` now: {home} {command}\n"
        )


DESIGNED = """load Policy Hybrid build_model fit TrainConfig example_gradients gradsim_curve privacy_score
    accuracy_score search SearchConfig observe ThreatModel reconstruct ATTACKS psnr Observed rng Normalize"""


def test_public_names_are_what_they_say_and_rooms_stay_importable():
    for name in DESIGNED.split():
        value = getattr(atslib, name)
        assert not isinstance(value, type(sys)), f"{name} is a module"
        assert getattr(value, "__name__", name) == name
    assert atslib.transforms.apply is importlib.import_module("atslib.policies.operations").apply
    assert atslib.data is importlib.import_module("atslib.data")
    with pytest.raises(AttributeError, match="'atslib' has no attribute 'reconstruction'"):
        _ = atslib.reconstruction


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run --jobs 0", "error: argument --jobs: '0' must be a whole number, at least 1"),
        ("run --jobs -1", "error: argument --jobs: '-1' must be a whole number, at least 1"),
        (
            "bench attack --members 0",
            "error: argument --members: '0' must be a whole number, at least 1",
        ),
        ("bench attack --members -1", "error: argument --members: '-1' must be"),
        ("bench scores --device meta", "error: device 'meta' cannot be used"),
        ("search --out p.json --attack-steps 0", "error: argument --attack-steps: '0' must be"),
        (
            "search --out p.json --points 1",
            "error: argument --points: '1' must be a whole number, at least 2",
        ),
        ("search --out p.json --acc-images 1", "error: argument --acc-images: '1' must be"),
        ("search --out p.json --images 0", "error: argument --images: '0' must be"),
        ("search --out p.json --rungs 200:0.5", "error: --rungs=((200, 0.5),): images must rise"),
        (
            "search --out p.json --fraction 1.5",
            "error: argument --fraction: '1.5' must be a number above 0 and at",
        ),
        (
            "search --out p.json --fraction half",
            "error: argument --fraction: 'half' must be a number above 0",
        ),
        ("search --out p.json --t-acc nan", "error: argument --t-acc: 'nan' must be a number"),
        (
            "search --out p.json --image-size 4",
            "error: --image-size and --fit are for a folder of images; cifar100",
        ),
        (
            "search --out p.json --fit crop",
            "error: --image-size and --fit are for a folder of images; cifar100 has",
        ),
        ("report --minutes -3", "error: argument --minutes: '-3' must be a number above 0"),
        ("report --minutes nan", "error: argument --minutes: 'nan' must be a number above 0"),
        (
            "search --out p.csv",
            "error: --out p.csv is the name of the table of all scores; give the policies' file, p.j",
        ),
        (
            "search --out p.json --policies 0",
            "error: argument --policies: '0' must be a whole number, at least 1",
        ),
        (
            "search --out p.json --policies 99999999999999",
            "error: --policies=99999999999999 must be at most 1000000; there are 20,439 distinct functions",
        ),
        (
            "search --out p.json --dataset cifar",
            "error: data set 'cifar' is unknown; choose cifar100, ",
        ),
        ("search --out p.json --dataset=", "error: data set '' is unknown; choose cifar100, "),
        ("search --out p.json --rungs 10", "error: rungs '10': expected images:share"),
        ("search --out p.json --sampler best", "error: argument --sampler: invalid choice: 'best'"),
        (
            "search --out p.json --dataset shapes --model resnet7",
            "error: model 'resnet7' is unknown",
        ),
        ("search --out p.CSV", "error: --out p.CSV is the name of the table of all scores"),
        (
            "search --out p.json --seed x",
            "error: argument --seed: 'x' must be a whole number, at least 0",
        ),
        (
            "search --out p.json --dataset shapes --model lenet-99999999",
            "error: model 'lenet-99999999' for images 32 wide",
        ),
        (  # before it is built, which takes long
            "export-attack --dataset shapes --model convnet-1000 --out e.json",
            "error: a network of 702,462,010 weights is too large for a page",
        ),
        ("archive verify", "error: there is no archive at "),
        ("archive write", "error: there is no archive at "),
        (
            "pack tinyimagenet .",
            "error: tinyimagenet: . cannot be packed: there is no tiny-imagenet-200 in it",
        ),
        ("attack --out x --steps 0", "error: argument --steps: '0' must be"),
        (
            "attack --out x --adaptive",
            "error: --adaptive is for a server that knows the policy: give one, such as",
        ),
        (
            "attack --out x --attack magic",
            "error: attack 'magic' is unknown; choose one of adam-cosine, lbfgs-l2",
        ),
        (
            "attack --out x --defense prune:2",
            "error: defense prune: strength 2.0 must be the fraction",
        ),
        ("attack --out x --policy 50", "error: policy"),
        ("attack --out x --dataset shapes --index 0-5000", "error: index '0-5000'"),
        ("attack --out x --device abacus", "error: device 'abacus' cannot be used; torch has cpu"),
        (
            "attack --out x --device cuda:99",
            "error: device 'cuda:99' cannot be used; torch has cpu",
        ),
        ("attack --out x --device xla", "error: device 'xla' cannot be used; torch has cpu"),
        (
            "attack --out x --dataset shapes --model lenet --checkpoint .",
            "error: checkpoint . is a folder, not a file",
        ),
        ("attack --out x --dataset shapes --model resnet7", "error: model 'resnet7' is unknown"),
        (
            "attack --out x --dataset shapes --model lenet --checkpoint none.safetensors",
            "error: checkpoint none.safetensors does not exist",
        ),
        ("bench attack --device cuda:99", "error: device 'cuda:99' cannot be used"),
        ("fly", "error: argument command: invalid choice: 'fly'"),
        ("store eat", "error: argument action: invalid choice: 'eat'"),
        (
            "run --speed 9",
            "error: unrecognized arguments: --speed; `python -m atsbook --help` says more",
        ),
        (
            "train --out m.safetensors --epochs 2.5",
            "error: argument --epochs: '2.5' must be a whole number",
        ),
        (
            "train --out m.safetensors --device meta --dataset shapes",
            "error: device 'meta' cannot be used",
        ),
    ],
)
def test_a_wrong_option_is_named_in_one_line_before_any_work(
    command, message, tmp_path, refusal, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert refusal(command).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_images_too_small_for_the_network_is_refused_before_one_is_read(
    tmp_path, refusal
):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_text("never opened")
    command = (
        f"search --dataset {tmp_path} --model convnet-4 --image-size 4 --out {tmp_path / 'p.json'}"
    )
    message = "error: --model convnet-4 with --image-size 4: a ConvNet pools twice by 3, so its images must be at least 9"
    assert refusal(command).startswith(message)


PLACES = {
    "train": "train --dataset shapes --epochs 1 --out {out}",
    "attack": "attack --dataset shapes --out {out}",
    "search": "search --dataset shapes --out {out}",
    "bench": "bench attack --model lenet-2 --out {out}",
}


@pytest.mark.parametrize("command", PLACES)
def test_a_bad_place_for_the_result_is_refused_before_any_work(command, tmp_path, refusal):
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.write_text("kept")
    folder.mkdir()
    wrong = file if command == "attack" else folder
    kind = "file, give a folder" if command == "attack" else "folder, give a file in it"
    assert refusal(PLACES[command].format(out=wrong, store=folder)).endswith(f"{wrong} is a {kind}")
    deep = file / "deep" / "p.json"
    said = refusal(PLACES[command].format(out=deep, store=folder))
    assert f"{deep} cannot be written in {file}: " in said
    assert sorted(tmp_path.rglob("*")) == [file, folder]


def test_a_search_that_cannot_keep_what_is_finished_is_one_line(tmp_path, refusal):
    (tmp_path / "p.kept").write_text("")
    command = "search --dataset shapes --model convnet-2 --policies 1 --fraction 0.005 --epochs 1"
    line = refusal(f"{command} --out {tmp_path / 'p.json'}")
    assert line.startswith("error: ")
    assert line.endswith(f"{tmp_path / 'p.kept'} is a file, give a folder")


def test_a_damaged_part_of_a_search_is_made_again(tmp_path, capsys):
    keep = kept_in(tmp_path / "kept")
    assert keep("score", {"of": 1}, lambda: {"x": torch.ones(2)})["x"].tolist() == [1, 1]
    assert keep("score", {"of": 1}, lambda: {"x": torch.zeros(2)})["x"].tolist() == [1, 1]
    assert keep("score", {"of": "1"}, lambda: {"x": torch.zeros(2)})["x"].tolist() == [0, 0]
    for path in (tmp_path / "kept").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert keep("score", {"of": 1}, lambda: {"x": torch.full((2,), 3.0)})["x"].tolist() == [3, 3]
    assert "is damaged" in capsys.readouterr().err


def test_a_full_disk_is_one_line_that_names_the_file(tmp_path):
    """A limit on the size of files stands in for the disk: the same refusal comes from the system."""
    code = """
import resource, sys
from atslib.__main__ import main
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
sys.exit(main(sys.argv[1:]))
"""
    out = tmp_path / "m.safetensors"
    command = f"train --dataset shapes --model convnet-2 --epochs 1 --fraction 0.005 --out {out}"
    done = python("-c", code, *command.split())
    assert done.returncode == 2, done.stderr
    assert f"error: {out}.state cannot be written: " in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_at_the_end_of_an_attack_leaves_its_state(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("atslib.attacks.engine.SAVE_EVERY", -1)
    out = tmp_path / "out"
    command = f"attack --dataset shapes --model lenet-2 --steps 3 --index 0 --out {out}".split()

    def full(*args, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("atslib.commands.write_attack", full)
        assert main(command) == 2
    assert capsys.readouterr().err.endswith("error: No space left on device\n")
    assert list(out.glob("attack.state*"))
    assert main(command) == 0
    assert (out / "table.csv").exists()
    assert not list(out.glob("attack.state*"))


@pytest.mark.parametrize("action", ["list", "verify"])
def test_a_store_that_is_not_there_is_named(action, tmp_path, refusal, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = (
        f"error: there is no store at {tmp_path / 'nope'}; name one with --store or $ATS_STORE"
    )
    assert refusal(f"store {action} --store {tmp_path / 'nope'}") == message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        "store list --store {store}",
        "store --store {store} list",
    ],
)
def test_options_stand_before_or_after_names(command, store, capsys):
    store.get("kind", {}, lambda state: {"x": torch.zeros(1)})
    assert main(command.format(store=store.root).split()) == 0
    assert "kind/" in capsys.readouterr().out


def test_a_place_in_the_way_of_one_of_the_results_is_refused_before_any_work(tmp_path, refusal):
    for name in ("sheet.png", "p.csv"):
        (tmp_path / name).mkdir()
    assert refusal(PLACES["attack"].format(out=tmp_path)).endswith(
        "sheet.png is a folder, give a file in it"
    )
    assert refusal(PLACES["search"].format(out=tmp_path / "p.json")).endswith(
        "p.csv is a folder, give a file in it"
    )


@pytest.mark.parametrize("environment", [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_a_folder_in_any_spelling_is_searched_under_any_locale(environment, tmp_path):
    folder = tmp_path / "Füße"
    for name in ("ä", "b"):
        (folder / name).mkdir(parents=True)
        for i in range(2):
            Image.new("L", (9, 9), 50 * i + len(os.fsencode(name))).save(
                folder / name / f"é{i}.png"
            )
    options = "--model lenet-2 --image-size 9 --policies 2 --images 2 --acc-images 2 --points 2 --epochs 1 --keep 1"
    options += " --attack-winner 0"
    places = ("--dataset", folder, "--out", tmp_path / "ü.json")
    done = python("-m", "atslib", "search", *options.split(), *places, **environment)
    assert done.returncode == 0, done.stderr
    assert len(load_policies(tmp_path / "ü.json")) == 1


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


OWN = "--dataset photos --image-size 16 --model mine.py:build"


def test_an_attack_takes_a_folder_and_a_network_of_ones_own(mine, capsys):
    command = (
        f"attack {OWN} --split train --index 0-3 --steps 60 --attack annealed-convnet --out out"
    )
    assert main(command.split()) == 0
    table = pd.read_csv("out/table.csv")
    assert table["found"].all()  # a linear network
    assert "found 4 of 4, each among 8 photographs" in capsys.readouterr().out


def test_an_attack_and_a_defense_may_be_ones_own(mine, capsys, refusal):
    command = f"attack {OWN} --split train --index 0-3"
    assert main([*command.split(), *["--attack", "mine.py:grey", "--out", "out"]]) == 0
    assert pd.read_csv("out/table.csv")["psnr"].between(4, 15).all()
    quick = "--attack annealed-convnet --steps 3 --out silent"
    assert main([*command.split(), *f"{quick} --defense mine.py:silent".split()]) == 0
    capsys.readouterr()
    assert pd.read_csv("silent/table.csv")["found"].sum() < 4
    said = refusal(f"{command} --attack mine.py:number --out no")
    assert "must have `run`, or be a function" in said
    assert "is none" in refusal(f"{command} --attack mine.py:grey --steps 3 --out no")
    assert "defense 3 is none" in refusal(f"{command} --defense mine.py:number --out no")


def test_training_takes_a_folder_and_a_network_and_a_defense_of_ones_own(mine, capsys):
    command = f"train {OWN} --epochs 1 --out"
    assert main([*command.split(), "w.safetensors"]) == 0
    assert main([*command.split(), "silent.safetensors", "--defense", "mine.py:silent"]) == 0
    said = capsys.readouterr().out
    assert "mine.py:build on 8 images of photos" in said
    trained, silent = (load_file(f"{name}.safetensors") for name in ("w", "silent"))
    (weight,) = (name for name in trained if name.endswith("weight"))
    assert not torch.equal(trained[weight], silent[weight])  # gradients of 0 train nothing
    attack = (
        f"attack {OWN} --split train --index 0-1 --steps 2 --checkpoint w.safetensors --out out"
    )
    assert main(attack.split()) == 0


def test_a_federation_takes_a_folder_and_a_network_and_a_defense_of_ones_own(mine, refusal):
    assert absolute("mine.py:silent | prune:0.5") == f"{mine / 'mine.py'}:silent | prune:0.5"
    assert absolute("photos") == str(mine / "photos")
    assert absolute("cifar10") == "cifar10"
    own = {"dataset": "photos", "model": "mine.py:build", "image_size": 16}
    federation = Federation(**own, clients=2, defense="mine.py:silent")
    sent = answer(federation, federation.network(), client=0, number=1)
    assert sent.gradients.shape == (1, 2 * 768 + 2)
    assert not sent.gradients.any()
    open_ = dataclasses.replace(federation, defense="")
    assert answer(open_, open_.network(), client=0, number=1).gradients.any()
    said = refusal("federated --dataset cifar10 --image-size 16 --out out")
    assert "--image-size is for a folder of images" in said


# --- train and attack ---------------------------------------------------------------------------------------


def test_indices_are_numbers_and_ranges_in_the_order_given():
    assert indices("5", 10) == [5]
    assert indices("0-3,8, 1", 10) == [0, 1, 2, 3, 8, 1]


@pytest.mark.parametrize("text", ["", "a", "3-", "-3", "4-2", "0-10", "10", "1.5"])
def test_wrong_indices_say_what_is_allowed(text):
    with pytest.raises(AtsError, match=r"^index .* must "):
        indices(text, 10)


def test_training_leaves_the_checkpoint_alone_in_its_folder(checkpoint):
    assert [path.name for path in checkpoint.parent.iterdir()] == ["model.safetensors"]


def test_an_attack_writes_a_table_a_sheet_and_the_arrays_behind_them(
    checkpoint, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    command = f"attack {SMALL} --index 3,0-1 --policy 3-1-7 --checkpoint {checkpoint} --out ."
    assert main(command.split()) == 0
    assert {path.name for path in tmp_path.iterdir()} == FILES
    table, arrays = pd.read_csv(tmp_path / "table.csv"), load_file(tmp_path / "arrays.safetensors")
    images = load("shapes", "test")
    assert table["image"].tolist() == [3, 0, 1]
    assert table["label"].tolist() == [images.class_names[images.labels[i]] for i in (3, 0, 1)]
    expected = psnr(arrays["reconstruction"], arrays["target"])
    torch.testing.assert_close(torch.tensor(table["psnr"]).float(), expected, rtol=1e-4, atol=0)
    assert arrays["trace"].shape == (3, 3)
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_an_adaptive_attack_has_a_row_for_each_attacker_and_image(tmp_path, capsys):
    command = f"attack {SMALL} --attack annealed-lenet --model lenet-2 --index 3,0-1 --policy 43 --crop-flip --adaptive"
    assert main([*command.split(), "--defense", "prune:0.5", "--out", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == FILES
    table, arrays = pd.read_csv(tmp_path / "table.csv"), load_file(tmp_path / "arrays.safetensors")
    names = ["does not know the policy", "knows the policy", "knows its draws"]
    assert list(zip(table["attacker"], table["image"], strict=True)) == [
        (n, i) for n in names for i in (3, 0, 1)
    ]
    expected = torch.cat(
        [psnr(arrays[f"reconstruction, {name}"], arrays["before"]) for name in names]
    )
    torch.testing.assert_close(
        torch.tensor(table["psnr_before"]).float(), expected, rtol=1e-4, atol=0
    )
    guess = policy_image("shapes", "", True).expand_as(arrays["before"]).contiguous()
    floor = psnr(guess, arrays["before"]).repeat(len(names))
    torch.testing.assert_close(
        torch.tensor(table["floor_before"]).float(), floor, rtol=1e-4, atol=0
    )
    lost = (arrays["before"] != arrays["target"]).flatten(1).any(1)  # the policy moved each image
    assert lost.all()
    said = capsys.readouterr().out.splitlines()
    for name, line in zip(names, said[-3:], strict=True):
        own = table[table["attacker"] == name]
        assert line.startswith(
            f"{name:26}{own['psnr_before'].mean():5.1f} dB, found {own['found'].sum()} of 3"
        )


def test_training_images_that_the_floor_needs_are_asked_for_before_the_attack(
    tmp_path, monkeypatch, refusal
):
    monkeypatch.setenv("ATS_DATA", str(tmp_path / "data"))
    images = load("shapes", "test")[:4]
    pack(images.pixels, images.labels, images.class_names, tmp_path / "data" / "cifar10_test.npz")
    monkeypatch.setattr(official, "_fetch_torchvision", lambda *_: {}["no network"])
    monkeypatch.setattr(engine.OPTIMIZERS["adam"], "step", None)  # the attack would stumble here
    said = refusal(f"attack --dataset cifar10 --model lenet-2 --index 0 --out {tmp_path / 'out'}")
    assert f"cifar10: there is no file {tmp_path / 'data' / 'cifar10_train.npz'}" in said
    assert not (tmp_path / "out").exists()


def test_the_checkpoint_names_its_network_and_its_weights_are_used(checkpoint, tmp_path):
    costs = {}
    for name, more in {
        "trained": f"--checkpoint {checkpoint}",
        "untrained": "--model convnet-4",
    }.items():
        assert main(f"attack {SMALL} --index 0 {more} --out {tmp_path / name}".split()) == 0
        costs[name] = pd.read_csv(tmp_path / name / "table.csv")["cost"].item()
    assert costs["trained"] != pytest.approx(costs["untrained"])


def test_an_attack_says_what_it_attacked_and_where_its_files_and_its_floor_are(
    checkpoint, tmp_path, capsys
):
    # Inverts the image, and what one guesses
    options = f"{SMALL} --policy 0 --index 0-1 --out {tmp_path}"
    assert main(f"attack {options} --model convnet-4".split()) == 0
    said = capsys.readouterr()
    table = pd.read_csv(tmp_path / "table.csv")
    inverted = 1 - load("shapes", "train").pixels.float().mean(0) / 255
    target = load_file(tmp_path / "arrays.safetensors")["target"]
    floor = psnr(inverted.expand_as(target).contiguous(), target)
    found = torch.tensor(table["floor_policy"]).float()
    torch.testing.assert_close(found, floor, rtol=0, atol=0.1)  # of a sample of the training images
    guess = policy_image("shapes", "0", False).expand_as(target).contiguous()
    torch.testing.assert_close(found, psnr(guess, target), rtol=1e-4, atol=0)
    assert table["gain"].tolist() == pytest.approx(
        (table["psnr"] - table["floor_policy"]).tolist(), abs=1e-4
    )
    assert (table["found"] == (table["rank"] == 1)).all()
    mean, low = table["psnr"].mean(), table["floor_policy"].mean()
    assert said.out.splitlines() == [
        f"table: {tmp_path / 'table.csv'}",
        f"sheet: {tmp_path / 'sheet.png'}",
        f"found {table['found'].sum()} of 2, each among 100 photographs",
        f"mean PSNR {mean:.1f} dB; of the mean image after the policy, which needs no gradient, {low:.1f} dB (the floor)",
    ]
    assert "there is no --checkpoint: the attacked network is untrained" in said.err.splitlines()
    other, model = tmp_path / "other.safetensors", build_model("convnet-4", 10, norm="shapes")
    save_checkpoint(other, model, **(load_checkpoint(checkpoint, model) | {"dataset": "cifar10"}))
    assert main(f"attack {options} --checkpoint {other}".split()) == 0
    said = capsys.readouterr().err.splitlines()
    assert f"{other} was trained on cifar10; images of shapes are attacked" in said
    assert not [line for line in said if "untrained" in line]


def test_an_interrupted_attack_goes_on_to_the_same_result(
    checkpoint, tmp_path, capsys, monkeypatch
):
    def command(name):
        return f"attack {SMALL} --steps 30 --index 0 --checkpoint {checkpoint} --out {tmp_path / name}".split()

    assert main(command("whole")) == 0
    monkeypatch.setattr(engine, "SAVE_EVERY", 0.0)
    save, saved = engine._Run._save, []

    def interrupted(run, step):
        save(run, step)
        saved.append(run.file)
        if len(saved) == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine._Run, "_save", interrupted)
        assert main(command("cut")) == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"interrupted; {COMMANDS['attack'][1]}"
    assert list((tmp_path / "cut").iterdir()) == [saved[-1]]
    assert main(command("cut")) == 0
    assert (tmp_path / "cut" / "table.csv").read_bytes() == (
        tmp_path / "whole" / "table.csv"
    ).read_bytes()
    for name in ("cut", "whole"):
        assert {path.name for path in (tmp_path / name).iterdir()} == FILES


def test_a_checkpoint_that_is_damaged_of_another_network_or_none_is_one_line(
    checkpoint, tmp_path, refusal
):
    damaged, text = (
        Path(shutil.copy(checkpoint, tmp_path / "damaged.safetensors")),
        tmp_path / "text.safetensors",
    )
    flip_a_bit(damaged)
    text.write_text("no weights")
    for file, more, fault in (
        (damaged, "", "is damaged: its bytes do not match their hash"),
        (checkpoint, "--model lenet", "is of another network: "),
        (text, "--model lenet", "cannot be read as safetensors: "),
    ):
        command = f"attack --dataset shapes --checkpoint {file} --out {tmp_path / 'out'} {more}"
        assert refusal(command).startswith(f"error: checkpoint {file} {fault}")
    assert not (tmp_path / "out").exists()


TINY = {
    "train": "--model convnet-2 --epochs 1 --fraction 0.005 --out m.safetensors",
    "attack": "--model lenet-2 --steps 2 --index 0-1 --out leak",
    "search": "--model convnet-2 --policies 2 --images 2 --acc-images 2 --points 2 --epochs 1 --keep 1 "
    "--fraction 0.005 --attack-winner 0 --out p.json",
}


@pytest.mark.parametrize("command", TINY)
def test_the_library_alone_is_enough_for_its_commands(command, tmp_path):
    """As from a wheel, without the book, pandas and matplotlib."""
    *options, name = TINY[command].split()
    asked = [command, "--dataset", "shapes", *options, str(tmp_path / name)]
    code = (
        "import sys\n"
        "for name in ('atsbook', 'atsfed', 'pandas', 'matplotlib'): sys.modules[name] = None\n"
        "from atslib.__main__ import main\n"
        f"sys.exit(main({asked}))"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / name).exists()


def test_without_the_checkout_a_command_of_it_says_in_one_sentence_what_it_needs(tmp_path):
    code = "import sys; sys.modules['atsbook'] = None; from atslib.__main__ import main; "
    done = python(
        "-c", code + f"sys.exit(main(['export-attack', '--out', {str(tmp_path / 'x')!r}]))"
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: export-attack needs the project's checkout")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["run claim9_magic", "run regimes claim9_magic --dry-run"])
def test_an_unknown_page_is_named_with_those_there_are(command, refusal, monkeypatch):
    monkeypatch.chdir(project_root())
    message = "error: page 'claim9_magic' is unknown; choose one of claim1_defenses, claim1_privacy"
    assert refusal(f"{command} --profile smoke").startswith(message)
