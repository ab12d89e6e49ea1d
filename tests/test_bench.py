"""The benchmark's line: complete, and of two computations that agree."""

import json

import pytest
import torch

from atslib import bench
from atslib.__main__ import main
from atslib.report import speed_table

pytestmark = pytest.mark.usefixtures("one_thread")


def test_bench_prints_a_json_line_keeps_it_and_the_book_shows_it(tmp_path, capsys):
    kept = tmp_path / "speed.jsonl"
    assert main(f"bench attack --model lenet --members 2 --out {kept}".split()) == 0
    line = capsys.readouterr().out
    assert kept.read_text() == line
    found = json.loads(line)
    assert found["ratio"] == pytest.approx(found["loop_ms"] / found["engine_ms"], rel=0.02, abs=0.01)
    assert found["difference"] < 1e-3
    assert (found["model"], found["members"], found["device"], found["threads"]) == ("lenet", 2, "cpu", 1)
    assert f"| cpu, 1 threads | lenet | 2 | {found['engine_ms']:.1f} |" in speed_table(kept)


def test_bench_of_the_scores_is_a_json_line_that_the_books_table_passes_over(tmp_path, capsys):
    kept = tmp_path / "speed.jsonl"
    assert main(f"bench scores --model lenet --members 2 --out {kept}".split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ratio"] == pytest.approx(found["engine_gradients"] / found["loop_gradients"], rel=0.01, abs=0.01)
    assert found["difference"] < 1e-4
    assert (found["benchmark"], found["model"], found["members"], found["points"]) == ("scores", "lenet", 2, 21)
    assert "lenet" not in speed_table(kept)


def test_the_plain_curve_ends_at_one_and_starts_at_the_noise():
    model = bench.build_model("lenet-2", 10, rng=bench.rng(0))
    pixels, start = torch.rand(2, 2, 3, 32, 32, generator=bench.rng(1))
    labels = torch.tensor([3, 7])
    curve = bench.plain_curve(model, pixels, labels, start, 3)
    assert curve[:, -1] == pytest.approx([1, 1], abs=1e-4)
    moved = bench.plain_curve(model, pixels, labels, start.flip(0), 3)
    assert not torch.allclose(moved[:, 0], curve[:, 0], atol=1e-4)


def test_without_measurements_the_speed_table_says_so(tmp_path):
    assert speed_table(tmp_path / "none.jsonl") == "Not measured yet.\n"


def test_forward_flop_counts_two_for_each_multiplication():
    assert bench.forward_flop(torch.nn.Linear(3, 5), torch.ones(7, 3)) == 2 * 3 * 5
