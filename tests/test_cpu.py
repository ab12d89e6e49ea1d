"""Pieces of a batch on threads of their own: the same numbers, and nothing of torch's state
changed.
"""

import platform
import subprocess
import sys
import threading

import pytest
import torch

from atslib.attacks import GradientMatching, memory, reconstruct
from atslib.attacks.objective import Objective
from atslib.clients.observe import ThreatModel, observe
from atslib.gradients import cpu as _cpu
from atslib.models import build_model
from atslib.rng import rng
from atslib.scores.scores import gradsim_curve


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)


@pytest.fixture
def victims():
    """A ResNet20 of width 16 in double precision, three images and their labels."""
    model = build_model("resnet20-1", 10, norm="cifar100", rng=rng(0)).double()
    return model, torch.rand(3, 3, 16, 16, generator=rng(1)).double(), torch.tensor([1, 2, 3])


FAULTS = """
import resource, sys, torch
from atslib.gradients.cpu import keep_memory
if sys.argv[1] == "keep":
    keep_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step = lambda: [torch.zeros(12_000_000) for _ in range(3)] and None  # 48 MB each
for _ in range(8):  # until the heap has room for all, wherever it begins
    step()
before = faults()
for _ in range(8):
    step()
print(faults() - before)
"""


@pytest.mark.process
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_kept_memory_is_not_fetched_again_page_by_page():
    counts = {}
    for how in ("keep", "give back"):
        run = subprocess.run(
            [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True
        )
        counts[how] = int(run.stdout)
    assert 4 * counts["keep"] < counts["give back"]


@pytest.mark.parametrize(("rows", "threads"), [(1, 2), (2, 2), (3, 2), (7, 3), (2, 8), (5, 1)])
def test_pieces_cover_all_rows_once_and_evenly(rows, threads):
    torch.set_num_threads(threads)
    pieces = _cpu.pieces(rows, torch.device("cpu"))
    assert [i for piece in pieces for i in range(rows)[piece]] == list(range(rows))
    sizes = [piece.stop - piece.start for piece in pieces]
    assert len(pieces) == min(rows, threads)
    assert max(sizes) - min(sizes) <= 1


def test_a_gpu_has_one_piece(two_threads):
    assert _cpu.pieces(9, torch.device("cuda")) == [slice(0, 9)]


def test_calls_run_at_once_in_order_each_with_one_thread_and_the_callers_grad_mode(two_threads):
    together = threading.Barrier(2, timeout=10)

    def look(i: int) -> tuple:
        together.wait()  # returns only when both are running
        return i, torch.get_num_threads(), torch.is_grad_enabled()

    assert _cpu.each(look, [0, 1]) == [(0, 1, True), (1, 1, True)]
    with torch.no_grad():
        assert _cpu.each(look, [0, 1]) == [(0, 1, False), (1, 1, False)]
    assert torch.get_num_threads() == 2
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [2]


def test_an_error_in_a_thread_is_the_callers(two_threads):
    with pytest.raises(ZeroDivisionError):
        _cpu.each(lambda i: 1 / i, [1, 0])


@pytest.mark.parametrize("threat", [ThreatModel(), ThreatModel(victim="train", labels="optimized")])
def test_costs_and_their_gradient_do_not_depend_on_the_pieces(victims, two_threads, threat):
    model, pixels, labels = victims
    seen = observe(model, pixels, labels, threat=threat)
    attacks = [GradientMatching(penalties=(("batch-norm", 0.1),), tv=0.2)] * 3
    whole, split = Objective(seen, attacks, split=False), Objective(seen, attacks)
    assert (len(whole.parts), len(split.parts)) == (1, 2)
    extra = 30 // 3 if threat.labels == "optimized" else 0
    z = torch.randn(3, whole.pixels + extra, generator=rng(2)).double()

    def cost(objective: Objective) -> tuple[torch.Tensor, ...]:
        rows = z.clone().requires_grad_()
        distance, penalty = objective(rows)
        return (
            distance.detach(),
            penalty.detach(),
            torch.autograd.grad((distance + 2 * penalty).sum(), rows)[0],
        )

    for ours, theirs in zip(cost(split), cost(whole), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        assert not split(z)[0].requires_grad


def test_an_attack_and_a_curve_do_not_depend_on_the_threads(victims):
    model, pixels, labels = victims
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        run = reconstruct(
            observe(model, pixels, labels), GradientMatching(steps=4, signed=False), rng=rng(3)
        )
        results.append((run.images, gradsim_curve(model, pixels, labels, points=4, rng=rng(4))))
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-7, atol=1e-9)


def test_an_attack_on_a_large_network_takes_no_more_than_its_share_of_a_large_memory(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 1 << 40)
    gradients = 4 * 11_000_000
    many = memory.members_on_cpu(torch.nn.Flatten(), torch.rand(1, 3, 64, 64), gradients)
    assert 1 <= many <= memory.MOST_MEMORY / (6 * gradients)
    assert memory.members_on_cpu(torch.nn.Flatten(), torch.rand(1, 3, 32, 32), 4_000) == 32
    assert memory.members_on_cpu(torch.nn.Flatten(), torch.rand(1, 3, 32, 32), 1 << 33) == 1
