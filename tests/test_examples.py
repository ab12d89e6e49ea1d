"""The examples in `examples/` run as they are, and leave what they say."""

import hashlib
import json
import os
import runpy
import struct

import pytest
import torch

from atslib.data import official
from atslib.data.load import load
from atslib.files import project_root

pytestmark = pytest.mark.usefixtures("one_thread")


EXAMPLES = project_root() / "examples"  # tests go elsewhere


def run(name):
    """Run an example in the working folder, as `python examples/NAME.py` does; its names."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.mark.slow
def test_a_network_is_trained_and_attacked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trained = run("train")
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    attacked = run("attack")
    weights = [names["model"].state_dict() for names in (trained, attacked)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert attacked["made"].images.shape == attacked["private"].shape == (4, 3, 32, 32)
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("model.safetensors: test accuracy ")
    assert [line.split(":")[0] for line in rest] == [f"image {number}" for number in range(4)]


@pytest.mark.slow  # to trace one takes seconds
def test_an_attack_is_written_for_a_page(tmp_path, monkeypatch, exported):
    monkeypatch.chdir(tmp_path)
    run("export_attack")
    assert json.loads((tmp_path / "attack.json").read_text()) == exported


def idx(array):
    """The bytes of a file of Fashion-MNIST's official copy."""
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.numpy().tobytes()


def test_an_official_copy_is_packed_and_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "ATS_DATA", str(tmp_path / "packed"))
    raw = tmp_path / "official" / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    pixels = torch.arange(20 * 28 * 28).remainder(251).to(torch.uint8).view(20, 28, 28)
    labels = torch.arange(20).remainder(10).to(torch.uint8)
    for split in ("train", "t10k"):
        (raw / f"{split}-images-idx3-ubyte").write_bytes(idx(pixels))
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(idx(labels))
    md5 = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in raw.iterdir()}
    monkeypatch.setattr(official, "FASHION_MD5", md5)  # of this small copy
    run("pack")
    assert len(capsys.readouterr().out.splitlines()) == 2
    test = load("fmnist", "test")
    assert torch.equal(test.pixels[:, 0], pixels)
    assert torch.equal(test.labels, labels.long())
    run("pack")
    assert capsys.readouterr().out == "nothing to do: the files are there\n"
