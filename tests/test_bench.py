"""The benchmark's line: complete, and of two computations that agree."""

import json
import time

import pandas as pd
import pytest
import torch

from atsbook import bench
from atsbook.__main__ import main
from atsbook.evidence.archive import Archive
from atsbook.findings.result import FILE
from atsbook.texts.speed import cost_line, speed_table, steps_table
from atslib.files import project_root

pytestmark = pytest.mark.usefixtures("one_thread")


def test_bench_prints_a_json_line_keeps_it_and_the_book_shows_it(tmp_path, capsys):
    kept = tmp_path / "speed.jsonl"
    assert main(f"bench attack --model lenet --members 2 --out {kept}".split()) == 0
    line = capsys.readouterr().out
    assert kept.read_text() == line
    speed = json.loads(line)
    assert speed["ratio"] == pytest.approx(
        speed["loop_ms"] / speed["engine_ms"], rel=0.02, abs=0.01
    )
    assert speed["difference"] < 1e-3
    assert (speed["model"], speed["members"], speed["device"], speed["threads"]) == (
        "lenet",
        2,
        "cpu",
        1,
    )
    machine = f"{speed['processor']} ({speed['features']}), 1 thread"
    table = speed_table(kept)
    assert f"| {machine} | lenet | 2 | {speed['engine_ms']:.1f} |" in table
    assert f"| {speed['engine_mb']:,}, {speed['loop_mb']:,} |" in table


@pytest.mark.parametrize(
    ("low", "high", "same"),
    [
        (-0.14, 0.1, "yes"),
        (-0.16, 0.1, "cannot tell"),
        (-0.3, -0.16, "no, fewer"),
        (0.01, 0.3, "cannot tell"),
    ],
)
def test_fewer_gradients_give_the_same_answer_within_a_margin(tmp_path, low, high, same):
    kept = tmp_path / "speed.jsonl"
    row = {"benchmark": "steps", "model": "lenet", "attack": "A", "against": "B", "photographs": 9}
    row |= {"device": "cpu", "processor": "P", "features": "AVX2", "threads": 1}
    row |= {"gradients": 0.5, "time": 0.5, "time_low": 0.4, "time_high": 0.6}
    row |= {"bits_before": 6.0, "bits": 5.9, "change": (low + high) / 2, "low": low, "high": high}
    step = {"benchmark": "attack", "model": "lenet", "members": 8, "device": "cpu", "threads": 1}
    step |= {"engine_ms": 4, "loop_ms": 9, "ratio": 2.25, "convolution_share": 0.5}
    kept.write_text("".join(json.dumps(line) + "\n" for line in (step, row)))
    table = speed_table(kept)
    assert "three draws; P (AVX2), 1 thread. *The same*" in table
    assert table.splitlines()[-1].endswith(f"| 9 | {same} |")


def test_memory_is_what_a_call_adds_to_it_and_no_earlier_peak():
    def call(megabytes):
        return lambda: torch.ones(megabytes << 18).sum()

    place = torch.device("cpu")
    if bench.raised_by(call(1), place) is None:
        pytest.skip("this system does not tell")
    large, small = (bench.raised_by(call(megabytes), place) / 2**20 for megabytes in (256, 64))
    assert 250 < large < 300
    assert 60 < small < 100


def test_one_thread_is_measured_by_the_processors_time():
    clock = bench.clock_of(torch.device("cpu"))
    started = clock()
    time.sleep(0.2)
    assert clock() - started < 0.15


def test_the_table_names_the_machine_and_has_the_peers_below(tmp_path):
    kept = tmp_path / "speed.jsonl"
    known = {"device": "cpu", "processor": "P", "features": "AVX512, bf16", "threads": 1}
    rows = [
        {"benchmark": "attack", "members": 8, "engine_ms": 4, "loop_ms": 9, "ratio": 2.25},
        {"benchmark": "peers", "members": 8, "engine_ms": 4, "breaching_ms": 10, "ratio": 2.5},
    ]
    rows[0] |= {"convolution_share": 0.5, "engine_mb": 1200, "loop_mb": 30}
    kept.write_text("".join(json.dumps(known | {"model": "lenet"} | row) + "\n" for row in rows))
    loop, peers = speed_table(kept).split("\n\n", 1)
    assert loop.splitlines()[2].endswith(
        "| P (AVX512, bf16), 1 thread | lenet | 8 | 4.0 | 9.0 | 2.2 (n = 1) | 50% | 1,200, 30 |"
    )
    assert "| P (AVX512, bf16), 1 thread | lenet | 8 | 4.0 | 10.0 | 2.5 (n = 1) |" in peers


def test_the_table_has_what_both_make_of_the_same_photographs(tmp_path):
    kept = tmp_path / "speed.jsonl"
    known = {
        "benchmark": "answers",
        "device": "cpu",
        "processor": "P",
        "features": "AVX2",
        "threads": 1,
    }
    ours = {"by": "fast-lenet", "steps": 75, "seconds": 0.1, "psnr": 17.6, "found": 8, "members": 8}
    theirs = {"by": "breaching", "steps": 24_000, "seconds": 90.0, "psnr": 18.04, "found": 7}
    rows = [known | {"model": "lenet"} | ours | more for more in ({}, theirs)]
    loop = {"benchmark": "attack", "engine_ms": 4, "loop_ms": 9, "ratio": 2.25}
    rows.insert(0, rows[0] | loop | {"convolution_share": 0.5, "engine_mb": 1200, "loop_mb": 30})
    kept.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = speed_table(kept).strip().splitlines()[-2:]
    assert lines[0] == "| lenet | fast-lenet | 75 | 0.10 | 1 | 17.6 | 8 of 8 |"
    assert lines[1] == "| lenet | breaching | 24,000 | 90.00 | 900 | 18.0 | 7 of 8 |"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v3_small@32", "vit@16"])
def test_networks_of_others_are_measured_against_the_plain_loop_too(name):
    speed = bench.attack(name, 2, repeats=1)
    assert speed["model"] == name
    assert speed["difference"] < 1e-2
    assert speed["ratio"] > 0


def test_the_book_shows_what_steps_gain(tmp_path):
    assert steps_table(tmp_path) == ""
    folder = tmp_path / "steps" / "shapes-laptop"
    folder.mkdir(parents=True)
    rows = [("lenet", "annealed", *own) for own in ((1_200, 0, 2), (1_200, 1, 4), (25, 0, -1))]
    rows += [("resnet20-1", "annealed", 25, image, 0.3) for image in (0, 1)]
    pd.DataFrame(rows, columns=["model", "schedule", "steps", "image", "gain"]).to_csv(
        folder / "attacks.csv.gz"
    )
    (folder / FILE).write_text('{"facts": {"seed": 3, "device": "CPU, 2 cores"}}')
    said, _, *table = steps_table(tmp_path, "shapes").splitlines()
    assert said.endswith("no policy, shapes, n = 2 images, profile laptop, seed 3, CPU, 2 cores.")
    assert table == [
        "| Network | Step size | 25 | 1,200 |",
        "|---|---|---|---|",
        "| lenet | annealed | -1.0 | +3.0 |",
        "| resnet20-1 | annealed | +0.3 | – |",
    ]


def test_members_count_for_the_reference_sizes_too_and_each_is_announced(capsys, monkeypatch):
    monkeypatch.setitem(bench.SIZES, "attack", ((("lenet-2", 8), ("lenet-3", 4)), "the plain loop"))
    monkeypatch.setattr(bench, "attack", lambda model, members, *, device: [model, members])
    assert main(["bench", "attack", "--members", "5"]) == 0
    said = capsys.readouterr()
    assert said.out == '["lenet-2", 5]\n["lenet-3", 5]\n'
    assert (
        said.err.splitlines()[0] == "measuring attack on lenet-2, 5 at once, against the plain loop"
    )


def test_bench_of_the_scores_is_a_json_line_and_a_row_of_its_own(tmp_path, capsys):
    kept = tmp_path / "speed.jsonl"
    assert main(f"bench scores --model lenet --members 2 --out {kept}".split()) == 0
    speed = json.loads(capsys.readouterr().out)
    assert speed["ratio"] == pytest.approx(
        speed["engine_gradients"] / speed["loop_gradients"], rel=0.01, abs=0.01
    )
    assert speed["difference"] < 1e-4
    assert (speed["benchmark"], speed["model"], speed["members"], speed["points"]) == (
        "scores",
        "lenet",
        2,
        21,
    )
    machine = f"{speed['processor']} ({speed['features']}), 1 thread"
    shown = f"| privacy score, gradients per second | {machine} | lenet | 2 | {speed['engine_gradients']:.1f} |"
    assert shown in speed_table(kept)


def test_what_a_policy_adds_to_a_step_is_a_json_line_and_no_row_against_a_loop(tmp_path, capsys):
    kept = tmp_path / "speed.jsonl"
    assert main(f"bench attack --model lenet-2 --members 2 --out {kept}".split()) == 0
    rows = speed_table(kept)
    assert main(f"bench adaptive --model lenet-2 --members 3 --out {kept}".split()) == 0
    speed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (speed["benchmark"], speed["model"], speed["members"]) == ("adaptive", "lenet-2", 3)
    assert speed["added"] == pytest.approx(speed["policy_ms"] / speed["plain_ms"] - 1, abs=0.01)
    assert speed["policy_ms"] > 0
    assert speed_table(kept) == rows


def test_the_time_that_labels_take_stands_beside_the_share_that_was_told(capsys):
    assert main(["bench", "labels", "--model", "lenet-2", "--members", "3"]) == 0
    speed = json.loads(capsys.readouterr().out)
    assert (speed["benchmark"], speed["members"], speed["batch"]) == ("labels", 3, 64)
    assert min(speed["seconds"], speed["published_seconds"]) > 0
    assert 0.5 < speed["share"] <= 1


def test_the_time_of_repeated_local_steps_is_per_step(capsys):
    assert main(["bench", "weights", "--model", "lenet-2", "--members", "2"]) == 0
    speed = json.loads(capsys.readouterr().out)
    assert (speed["benchmark"], speed["members"], speed["batch"], speed["local_steps"]) == (
        "weights",
        2,
        8,
        4,
    )
    assert min(speed["mean_ms"], speed["unrolled_ms"]) > 0


def test_images_that_share_a_gradient_and_single_ones_are_measured_with_their_memory(
    tmp_path, capsys
):
    kept = tmp_path / "speed.jsonl"
    assert main(f"bench forms --model lenet-2 --members 3 --out {kept}".split()) == 0
    speed = json.loads(capsys.readouterr().out)
    assert (speed["benchmark"], speed["members"]) == ("forms", 3)
    assert min(speed["shared_ms"], speed["single_ms"]) > 0
    assert 0 < speed["shared_peak_mb"] <= speed["single_peak_mb"]
    assert len(speed_table(kept).splitlines()) == 2  # it compares with no loop


def test_the_plain_curve_ends_at_one_and_starts_at_the_noise():
    model = bench.build_model("lenet-2", 10, rng=bench.rng(0))
    pixels, start = torch.rand(2, 2, 3, 32, 32, generator=bench.rng(1))
    labels = torch.tensor([3, 7])
    curve = bench.plain_curve(model, pixels, labels, start, 3)
    assert curve[:, -1] == pytest.approx([1, 1], abs=1e-4)
    other = bench.plain_curve(model, pixels, labels, start.flip(0), 3)
    assert not torch.allclose(other[:, 0], curve[:, 0], atol=1e-4)


def test_calls_take_turns_and_each_has_its_median():
    order = []

    def slow():
        order.append("slow")
        time.sleep(0.02)

    medians = bench.seconds(
        slow, lambda: order.append("fast"), device=torch.device("cpu"), repeats=3
    )
    assert order == ["slow", "fast"] * 4
    assert medians[0] > 0.02 > medians[1]


def test_the_table_has_medians_and_the_range_of_several_runs(tmp_path):
    kept = tmp_path / "speed.jsonl"
    known = {"benchmark": "attack", "device": "cpu", "threads": 2, "model": "lenet", "members": 8}
    runs = [(10, 20, 2.0, 0.3), (12, 48, 4.0, 0.5), (20, 60, 3.0, 0.4)]
    names = ("engine_ms", "loop_ms", "ratio", "convolution_share")
    kept.write_text(
        "".join(json.dumps(known | dict(zip(names, run, strict=True))) + "\n" for run in runs)
    )
    (row,) = speed_table(kept).splitlines()[2:]
    assert row.endswith(
        "| cpu, 2 threads | lenet | 8 | 12.0 | 48.0 | 3.0 (2.0 to 4.0, n = 3) | 40% | – |"
    )


def test_without_measurements_the_tables_say_so(tmp_path):
    assert speed_table(tmp_path / "none.jsonl") == "Not measured yet.\n"


def test_what_the_evidence_took_is_one_sentence():
    results = project_root() / "results"
    seconds = [line["seconds"] for line in Archive(results).entries().values()]
    said = cost_line(results)
    assert said.startswith(
        f"The {len(seconds):,} results of the archive took {sum(seconds) / 3600:.0f} hours, added up"
    )


def test_forward_flop_counts_two_for_each_multiplication():
    assert bench.forward_flop(torch.nn.Linear(3, 5), torch.ones(7, 3)) == 2 * 3 * 5
