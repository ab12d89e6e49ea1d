"""The shell: it parses before it imports, says what is wrong in one line before it computes, and
leaves files.
"""

import importlib
import os
import subprocess
import sys

import pytest
import torch
from checks import main
from PIL import Image

import atslib
from atslib.commands import kept_in
from atslib.files import project_root
from atslib.policies.policy import load_policies

# --- before torch -------------------------------------------------------------------------------------------


def python(*arguments, **environment):
    """A fresh interpreter; its output as text."""
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("atslib --help", 0),
        ("atslib search --help", 0),
        ("atslib serach", 2),
        ("atslib search --epochs 0", 2),
        ("atslib", 2),
        ("atsaudit --help", 0),
        ("atsaudit", 2),
        ("atsaudit --images 1", 2),
    ],
)
def test_help_and_mistyped_commands_answer_without_importing_torch(command, status):
    program = command.split()[0]
    code = f"""
import runpy, sys
sys.argv = {command.split()}
try:
    runpy.run_module("{program}", run_name="__main__")
except SystemExit as stop:
    assert stop.code == {status}, stop.code
slow = {{"torch", "numpy", "pandas", "matplotlib"}} & set(sys.modules)
assert not slow, slow
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    usage = f"usage: python -m {program}"
    assert (done.stdout.startswith(usage), done.stderr.count("\n")) == (status == 0, status // 2)


@pytest.mark.parametrize("options", ["--images 1", "--model lenet-2 --data shapes --out o --lr 1"])
def test_the_audit_of_the_library_goes_on_working_and_says_where_it_went(options, capsys):
    audit = importlib.import_module("atsaudit.__main__").main
    assert audit(options.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert main(["audit", *options.split()]) == 2
    assert capsys.readouterr().err == (
        "atslib audit is atsaudit now, with the same options; this name goes with the next release\n"
        + said
    )


@pytest.mark.process
def test_the_audit_of_the_library_takes_the_options_of_its_process(tmp_path):
    out = tmp_path / "file"
    out.touch()
    options = ["--model", "lenet-2", "--data", "shapes", "--out", str(out)]
    done = python("-m", "atslib", "audit", *options)
    assert done.returncode == 2
    assert "atslib audit is atsaudit now" in done.stderr
    assert done.stderr.endswith(f"error: --out {out} is a file, give a folder\n")


@pytest.mark.process
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
        assert capsys.readouterr().err == f"error: {command} is `{home}` now\n"


DESIGNED = """load Policy parse_policy build_model fit TrainConfig privacy_score search SearchConfig observe
    ThreatModel reconstruct ATTACKS psnr Observed rng Normalize"""


def test_public_names_are_what_they_say_and_rooms_stay_importable():
    for name in DESIGNED.split():
        value = getattr(atslib, name)
        assert not isinstance(value, type(sys)), f"{name} is a module"
        assert getattr(value, "__name__", name) == name
    assert atslib.transforms.apply is importlib.import_module("atslib.policies.operations").apply
    assert atslib.data is importlib.import_module("atslib.data")
    with pytest.raises(
        AttributeError, match=r"'atslib' has no attribute 'reconstruction'; it has .* reconstruct, "
    ):
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
        ("archive verify", "error: there is no archive at "),
        ("archive write", "error: there is no archive at "),
        (
            "search --out p.json --dataset shapes --device abacus",
            "error: device 'abacus' cannot be used; torch has cpu",
        ),
        (
            "search --out p.json --dataset shapes --device xla",
            "error: device 'xla' cannot be used; torch has cpu",
        ),
        ("train --epochs 1", "error: argument command: invalid choice: 'train'"),
        ("bench attack --device cuda:99", "error: device 'cuda:99' cannot be used"),
        ("fly", "error: argument command: invalid choice: 'fly'"),
        ("store eat", "error: argument action: invalid choice: 'eat'"),
        (
            "run --speed 9",
            "error: unrecognized arguments: --speed; `python -m atsbook --help` says more",
        ),
        (
            "search --out p.json --epochs 2.5",
            "error: argument --epochs: '2.5' must be a whole number",
        ),
        (
            "search --out p.json --device meta --dataset shapes",
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
    "search": "search --dataset shapes --out {out}",
    "bench": "bench attack --model lenet-2 --out {out}",
}


@pytest.mark.parametrize("command", PLACES)
def test_a_bad_place_for_the_result_is_refused_before_any_work(command, tmp_path, refusal):
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.write_text("kept")
    folder.mkdir()
    said = refusal(PLACES[command].format(out=folder, store=folder))
    assert said.endswith(f"{folder} is a folder, give a file in it")
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


@pytest.mark.process
def test_a_full_disk_is_one_line_that_names_the_file(tmp_path):
    """A limit on the size of files stands in for the disk: the same refusal comes from the system."""
    code = """
import resource, sys
from atslib.__main__ import main
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
sys.exit(main(sys.argv[1:]))
"""
    out = tmp_path / "p.json"
    command = f"search --dataset shapes --model convnet-2 --policies 1 --epochs 1 --fraction 0.005 --out {out}"
    done = python("-c", code, *command.split())
    assert done.returncode == 2, done.stderr
    assert (
        f"error: {tmp_path / 'p.kept' / 'training.state'} cannot be written: "
        in done.stderr.splitlines()[-1]
    )
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


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
    (tmp_path / "p.csv").mkdir()
    assert refusal(PLACES["search"].format(out=tmp_path / "p.json")).endswith(
        "p.csv is a folder, give a file in it"
    )


@pytest.mark.process
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


@pytest.mark.process
def test_the_library_alone_is_enough_for_a_search(tmp_path):
    """As from a wheel, without the book, pandas and matplotlib."""
    options = (
        "--model convnet-2 --policies 2 --images 2 --acc-images 2 --points 2 --epochs 1 --keep 1"
    )
    options = f"--dataset shapes {options} --fraction 0.005 --attack-winner 0".split()
    asked = ["search", *options, "--out", str(tmp_path / "p.json")]
    code = (
        "import sys\n"
        "for name in ('atsbook', 'atsfed', 'pandas', 'matplotlib'): sys.modules[name] = None\n"
        "from atslib.__main__ import main\n"
        f"sys.exit(main({asked}))"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "p.json").exists()


@pytest.mark.parametrize("command", ["run claim9_magic", "run regimes claim9_magic --dry-run"])
def test_an_unknown_page_is_named_with_those_there_are(command, refusal, monkeypatch):
    monkeypatch.chdir(project_root())
    message = "error: page 'claim9_magic' is unknown; choose one of best_answer, claim1_defenses"
    assert refusal(f"{command} --profile smoke").startswith(message)
