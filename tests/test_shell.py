"""`python -m atslib train` and `attack`: files out of a shell command, and one-line errors."""

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from atslib.__main__ import main
from atslib.commands import indices
from atslib.data.load import load
from atslib.errors import AtsError
from atslib.measures.metrics import psnr

SMALL = "--dataset shapes --steps 3"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A network trained from the shell, on 25 images."""
    path = tmp_path_factory.mktemp("checkpoint") / "model.safetensors"
    command = f"train --dataset shapes --model convnet-4 --policy 3-1-7 --epochs 1 --fraction 0.005 --out {path}"
    assert main(command.split()) == 0
    return path


def test_indices_are_numbers_and_ranges_in_the_order_given():
    assert indices("5", 10) == [5]
    assert indices("0-3,8, 1", 10) == [0, 1, 2, 3, 8, 1]


@pytest.mark.parametrize("text", ["", "a", "3-", "-3", "4-2", "0-10", "10", "1.5"])
def test_wrong_indices_say_what_is_allowed(text):
    with pytest.raises(AtsError, match=r"^index .* must "):
        indices(text, 10)


def test_training_leaves_the_checkpoint_alone_in_its_folder(checkpoint):
    assert [path.name for path in checkpoint.parent.iterdir()] == ["model.safetensors"]


def test_an_attack_writes_a_table_a_sheet_and_the_arrays_behind_them(checkpoint, tmp_path):
    command = f"attack {SMALL} --index 3,0-1 --policy 3-1-7 --checkpoint {checkpoint} --out {tmp_path}"
    assert main(command.split()) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"table.csv", "sheet.png", "arrays.safetensors"}
    table, arrays = pd.read_csv(tmp_path / "table.csv"), load_file(tmp_path / "arrays.safetensors")
    images = load("shapes", "test")
    assert table["image"].tolist() == [3, 0, 1]
    assert table["label"].tolist() == [images.class_names[images.labels[i]] for i in (3, 0, 1)]
    expected = psnr(arrays["found"], arrays["target"])
    torch.testing.assert_close(torch.tensor(table["psnr"]).float(), expected, rtol=1e-4, atol=0)
    assert arrays["trace"].shape == (3, 3)
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_the_checkpoint_names_its_network_and_its_weights_are_used(checkpoint, tmp_path):
    costs = {}
    for name, more in {"trained": f"--checkpoint {checkpoint}", "untrained": "--model convnet-4"}.items():
        assert main(f"attack {SMALL} --index 0 {more} --out {tmp_path / name}".split()) == 0
        costs[name] = pd.read_csv(tmp_path / name / "table.csv")["cost"].item()
    assert costs["trained"] != pytest.approx(costs["untrained"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--attack magic", "error: attack 'magic' is unknown; choose one of adam-cosine, lbfgs-l2"),
        ("--defense prune:2", "error: defense prune: strength 2.0 must be the fraction"),
        ("--policy 50", "error: policy"),
        ("--index 0-5000", "error: index '0-5000'"),
        ("--steps 0", "error: Attack.steps=0 must be above 0"),
        ("--device abacus", "error: device 'abacus' cannot be used"),
        ("--checkpoint none.safetensors", "error: checkpoint none.safetensors does not exist"),
        ("--model resnet7", "error: model 'resnet7' is unknown"),
    ],
)
def test_a_wrong_attack_is_one_line_that_names_what_is_allowed(more, message, tmp_path, capsys):
    assert main(f"attack --dataset shapes --out {tmp_path / 'out'} {more}".split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_of_another_network_or_no_checkpoint_at_all_is_one_line(checkpoint, tmp_path, capsys):
    other = tmp_path / "text.safetensors"
    other.write_text("no weights")
    for more in (f"--model lenet --checkpoint {checkpoint}", f"--model lenet --checkpoint {other}"):
        assert main(f"attack --dataset shapes --out {tmp_path / 'out'} {more}".split()) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: checkpoint ")
        assert error.count("\n") == 1
