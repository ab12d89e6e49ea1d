"""The plan: what is missing and in which order, budgets that are kept, words about it, and the
command line's part.
"""

import dataclasses
import itertools
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import cloudpickle
import pytest
import torch
from checks import TINY, attack_request, model_request
from made_pages import asked_by

from atsbook.__main__ import main
from atsbook.networks import ModelRequest
from atsbook.pool import schedule
from atsbook.pool.estimate import USUAL, Rates
from atsbook.pool.schedule import (
    _Schedule,
    compute,
    describe,
    duration,
    plan,
    say,
    seconds,
    shared,
)
from atsbook.pool.workers import InThisProcess
from atsbook.report import runner
from atsbook.report.runner import run
from atsbook.store import Store
from atslib.checkpoints import read_tensors
from atslib.clients.training import TrainConfig
from atslib.errors import OutOfTime

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
CPU = torch.device("cpu")
RATES, FASTER = (
    Rates(2e-11, 2e-9, 2e-8, 1e-4),
    Rates(1e-11, 1e-9, 1e-8, 5e-5),
)


def stored(request, store):
    """As if the request had been made: a plan looks at no more than whether it is there."""
    store.get(request.kind, request, lambda state: {"x": torch.ones(1)})


# --- the plan -----------------------------------------------------------------------------------------------


def test_a_plan_has_each_request_once_after_what_it_needs(store):
    requests = [
        attack_request(TINY, policy, seed=seed) for policy in ("", "3-1-7") for seed in range(3)
    ]
    planned = plan([*requests, *requests[::-1]], store)
    assert len(planned) == len(set(planned)) == len(set(requests)) + 2  # two networks
    for request in requests:
        assert planned.index(request.model) < planned.index(request)


def test_an_untrained_network_is_nothing_to_make(store):
    request = attack_request(dataclasses.replace(TINY, regime="initial"))
    assert request.needs == ()
    assert plan([request], store) == [request]


def test_a_network_on_its_way_is_planned_before_the_attack_on_it_and_takes_its_steps(store):
    early = dataclasses.replace(model_request(TINY), step=100)
    request = dataclasses.replace(attack_request(TINY), model=early)
    assert plan([request], store) == [early, request]
    assert early.passes - dataclasses.replace(early, step=40).passes == 3 * 60 * early.train.batch


def test_a_plan_leaves_out_what_is_stored(store):
    requests = [attack_request(TINY, policy) for policy in ("", "28")]
    everything = plan(requests, store)
    stored(requests[0].model, store)
    assert plan(requests, store) == [
        request for request in everything if request != requests[0].model
    ]
    stored(requests[1], store)
    # The network of a stored attack is planned all the same: a page reads its accuracy.
    assert plan(requests, store) == [requests[0], requests[1].model]


def test_the_time_of_a_request_grows_with_its_work_and_falls_with_the_rate():
    request = attack_request(TINY)
    longer = dataclasses.replace(request, attack=dataclasses.replace(request.attack, steps=20))
    assert seconds(request, RATES) > 0
    assert seconds(longer, RATES) == pytest.approx(10 * seconds(request, RATES))
    assert seconds(request, FASTER) == pytest.approx(seconds(request, RATES) / 2)
    wider = dataclasses.replace(
        request, model=dataclasses.replace(request.model, model="convnet-16")
    )
    assert seconds(wider, RATES) > seconds(request, RATES)
    assert seconds(dataclasses.replace(request.model, train=None), RATES) == 0


def in_seconds(text):
    """`12 s`, `3 min` or `2.5 hours`, which are rounded."""
    number, unit = re.search(r"([\d.,]+) (s|min|hours)", text).groups()
    return float(number.replace(",", "")) * {"s": 1, "min": 60, "hours": 3600}[unit]


@pytest.mark.parametrize(
    ("time", "words"),
    [
        (0.4, "0 s"),
        (99, "99 s"),
        (150, "2 min"),
        (5900, "98 min"),
        (9000, "2.5 hours"),
        (26_470_260, "7,353 hours"),
    ],
)
def test_durations_are_said_in_words(time, words):
    assert duration(time) == words


@pytest.mark.parametrize(
    ("times", "slots", "together"), [([], 2, 0), ([9], 2, 9), ([4, 4, 4], 2, 6), ([8, 2, 1], 4, 8)]
)
def test_the_longest_request_is_not_divided_among_workers(times, slots, together):
    assert shared(times, slots) == together


def test_the_plan_in_words_names_every_request_and_says_once_how_long_all_may_take():
    requests = [attack_request(TINY, policy) for policy in ("", "28", "30")]
    head, *titles, last = describe(requests, "cpu", 2).splitlines()
    assert head == "3 requests to compute:"
    assert [title.strip() for title in titles] == [request.title for request in requests]
    assert last.endswith(
        "with 2 at once on this machine, by what such work took on one core of a CPU"
    )
    times = [seconds(request, USUAL) for request in 1000 * requests]
    long = describe(1000 * requests, "cpu", 2).splitlines()[-1]
    assert in_seconds(long) == pytest.approx(sum(times) / 2, rel=0.1)


# --- budgets ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Long(ModelRequest):
    """A network like any other, but for what it says of its cost; the key of its artifact is the
    same.
    """

    @property
    def passes(self):
        return 1e12


@pytest.fixture
def in_this_process(monkeypatch):
    """Workers as threads: tests of the runner have real ones, which take seconds to start."""
    monkeypatch.setattr(
        "atsbook.pool.workers.ProcessPoolExecutor", lambda jobs, **_: ThreadPoolExecutor(jobs)
    )


def same(one, other):
    assert one.tensors.keys() == other.tensors.keys()
    for name, value in one.tensors.items():
        if name == "history":  # its third column is time
            value[:, 2] = other[name][:, 2] = 0
        assert torch.equal(other[name], value), name


@pytest.mark.usefixtures("in_this_process")
def test_a_request_that_outlasts_the_budget_pauses_and_the_next_run_goes_on_with_it(tmp_path, said):
    long = dataclasses.replace(model_request(TINY), train=TrainConfig(epochs=40))
    attack = dataclasses.replace(attack_request(TINY), model=long)
    store, here = Store(tmp_path / "away", say=said.append), Store(tmp_path / "here")
    # Estimates are kept in this process. Made now, they do not use up the time in which to begin.
    for request in (long, attack):
        schedule.seconds(request, USUAL)
    compute([attack], store, "cpu", jobs=1, ends=time.monotonic() + 0.3)
    assert said[1:] == [f"time is over: {long.title} goes on where it is with the next run"]
    assert not list(store.entries())
    (state,) = (tmp_path / "away").glob("model/*.state")
    assert 0 < len(read_tensors(state)[1]["history"]) < 40
    compute([attack], store, "cpu", jobs=1)
    assert said[-1].startswith(f"2 of 2 done: attack {attack.title}, ")
    same(long.make(store, CPU), long.make(here, CPU))
    same(attack.make(store, CPU), attack.make(here, CPU))


def test_an_attack_that_outlasts_the_budget_pauses_too(tmp_path, monkeypatch):
    request = attack_request(TINY)
    store, here = Store(tmp_path / "away"), Store(tmp_path / "here")
    request.model.make(store, CPU)
    monkeypatch.setattr("atslib.attacks.engine.SAVE_EVERY", 0)
    for _ in range(TINY.steps):  # each call takes one step
        with pytest.raises(OutOfTime):
            request.make(Store(store.root, ends=time.monotonic()), CPU)
        assert not store.has(request.kind, request)
    same(request.make(Store(store.root, ends=time.monotonic()), CPU), request.make(here, CPU))


def test_a_worker_elsewhere_gives_its_state_back_and_another_goes_on_from_it(tmp_path):
    request = dataclasses.replace(model_request(TINY), train=TrainConfig(epochs=3))
    store, here = Store(tmp_path / "driver"), Store(tmp_path / "here")
    calls, done = 0, False
    while not done:
        sent = store.files(request.kind, request)
        assert bool(sent) == bool(calls)
        done, _, made = schedule._work(cloudpickle.dumps(request), None, sent, "cpu", 0.0)
        store.take_in(made)
        calls += 1
    assert calls > 1
    assert store.verify() == []
    same(request.make(store, CPU), request.make(here, CPU))


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_workers_end_when_their_runner_is_killed(tmp_path):
    """Left alone they would wait for ever, a gigabyte each."""
    code = (
        "from atsbook.networks import ModelRequest\nfrom atslib.clients.training import TrainConfig\n"
        "from atsbook.pool.schedule import compute\nfrom atsbook.store import Store\n"
        "if __name__ == '__main__':\n"
        "    train = TrainConfig(epochs=100_000)\n"
        "    request = ModelRequest(dataset='shapes', model='lenet', fraction=0.04, train=train, seed=0)\n"
        "    compute([request], Store('kept'), 'cpu', jobs=1)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    with subprocess.Popen(
        [sys.executable, script], cwd=tmp_path, stderr=subprocess.DEVNULL
    ) as runner:
        try:
            wait_for(lambda: list(tmp_path.glob("kept/model/*.state")), seconds=300)
            family = [
                int(pid)
                for pid in Path(f"/proc/{runner.pid}/task/{runner.pid}/children")
                .read_text()
                .split()
            ]
        finally:
            runner.kill()  # else a failure would wait for 100,000 epochs
    assert family
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family), seconds=10)


@dataclasses.dataclass(frozen=True)
class Asks:
    """A request that keeps how many seconds its worker has for it."""

    kind: ClassVar[str] = "asks"
    title: ClassVar[str] = "asks"
    needs: ClassVar[tuple] = ()

    def make(self, store, device):
        left = torch.tensor(store.ends - time.monotonic())
        return store.get(self.kind, self, lambda state: {"left": left})


@pytest.mark.usefixtures("in_this_process")
def test_a_budget_is_counted_in_seconds_whatever_a_clock_shows(store, monkeypatch):
    """Neither a wall clock that is set meanwhile nor the clock of a worker's machine changes it."""
    monkeypatch.setattr(schedule, "seconds", lambda request, rate: 1.0)
    days = itertools.count(step=86_400)
    monkeypatch.setattr(time, "time", lambda: float(next(days)))
    compute([Asks()], store, "cpu", jobs=1, ends=time.monotonic() + 100)
    assert 50 < float(store.get("asks", Asks(), None)["left"]) <= 100

    own = time.monotonic
    elsewhere = Store(store.root.parent / "elsewhere")
    (elsewhere.root / "asks").mkdir(parents=True)
    monkeypatch.setattr(time, "monotonic", lambda: own() - 1e6)  # that machine was started later
    schedule._work(cloudpickle.dumps(Asks()), elsewhere.address, {}, "cpu", 100.0)
    assert 50 < float(elsewhere.get("asks", Asks(), None)["left"]) <= 100


def wait_for(condition, seconds):
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.1)


def test_without_time_nothing_is_begun(store, said):
    compute([attack_request(TINY)], store, "cpu", jobs=1, ends=time.monotonic())
    assert said == ["requests to compute: 1 model, 1 attack; 1 at once"]
    assert not list(store.entries())


@pytest.mark.usefixtures("in_this_process")
def test_a_request_that_would_come_too_late_is_left_and_a_second_run_finishes_with_the_same_numbers(
    tmp_path, said
):
    first, later = model_request(TINY), Long(**vars(model_request(TINY, "28")))
    attack = dataclasses.replace(attack_request(TINY, "28"), model=later)
    store, here = Store(tmp_path / "away", say=said.append), Store(tmp_path / "here")
    # The first is begun since nothing is known of its kind; by its pace the second takes years.
    compute([first, attack], store, "cpu", jobs=1, ends=time.monotonic() + 3600)
    assert said[0] == "requests to compute: 2 model, 1 attack; 1 at once"
    (line,) = said[1:]
    assert re.fullmatch(
        rf"1 of 3 done, about [\d,]+ hours left, 60 min of it now: model {re.escape(first.title)}, \d+ s",
        line,
    )
    assert [request for request in (first, later, attack) if store.has(request.kind, request)] == [
        first
    ]
    said.clear()
    compute([first, attack], store, "cpu", jobs=1)
    assert said[0] == "requests to compute: 1 model, 1 attack; 1 at once"
    assert [line.split(" done")[0] for line in said[1:]] == ["1 of 2", "2 of 2"]
    for request in (first, later, attack):
        same(
            *(
                made[1] if isinstance(made, tuple) else made
                for made in (request.make(here, CPU), request.make(store, CPU))
            )
        )


@pytest.mark.usefixtures("in_this_process")
def test_a_bar_moves_while_requests_run_and_leaves_the_lines_alone(tmp_path, capsys):
    store = Store(tmp_path / "store", say=say, progress=True)
    compute([attack_request(TINY, policy) for policy in ("", "28")], store, "cpu", jobs=1)
    text = capsys.readouterr().err
    assert "now " + attack_request(TINY, "28").title in text
    shares = [int(share) for share in re.findall(r"(\d+)%", text)]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert 0 < shares[-1] <= 100
    lines = [line.split("\r")[-1] for line in text.split("\n")]
    assert len([line for line in lines if re.match(r"\d of 4 done", line)]) == 4


def test_a_request_of_a_gpu_runs_in_this_process(store):
    """No GPU is needed: the executor is the whole difference."""
    requests = plan([attack_request(TINY)], store)
    with InThisProcess() as pool:
        _Schedule(requests, store, None).run(pool, "cpu", lambda: 1)
    assert plan(requests, store) == []
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result()


# --- from the command line ----------------------------------------------------------------------------------


@pytest.mark.jupyter
def test_a_dry_run_says_what_there_is_to_do_and_does_nothing(root, page, capsys):
    page("toy")
    before = sorted(root.rglob("*"))
    assert main(["run", "toy", "--profile", "smoke", "--dry-run"]) == 0
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    requests = asked_by()
    assert captured.out == ""
    assert lines[0] == "toy: profile smoke, convnet-4 on shapes, seed 0"
    assert lines[1] == f"toy, {len(requests)} requests to compute:"
    assert [line.strip() for line in lines[2:-1]] == [request.title for request in requests]
    assert lines[-1].startswith("about ")
    assert sorted(root.rglob("*")) == before
    assert not Store().root.exists()
    for request in requests:
        request.make(Store(), torch.device("cpu"))
    assert main(["run", "toy", "--profile", "smoke", "--dry-run"]) == 0
    assert "toy: nothing is missing" in capsys.readouterr().err
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90), ("8m", 480), ("2h", 7200), ("45", 45), ("1.5m", 90), ("0", 0), ("0s", 0)],
)
def test_a_budget_is_a_duration(root, monkeypatch, text, expected):
    seen = {}
    monkeypatch.setattr(runner, "run", lambda names, **options: seen.update(options))
    assert main(["run", "--budget", text]) == 0
    assert seen["budget"] == expected
    assert main(["run"]) == 0
    assert seen["budget"] is None


@pytest.mark.parametrize("text", ["soon", "", "2d", "1h30m", "-5", "m", "nan", "5 m"])
def test_what_is_no_duration_is_refused_in_one_line(refusal, text):
    line = refusal(["run", f"--budget={text}"])
    assert line.startswith(
        f"error: argument --budget: {text!r} is not a duration such as 90s, 8m or 2h"
    )


@pytest.mark.jupyter
def test_pages_that_wait_for_requests_are_named(root, page, store, said):
    page("toy")
    page("other", ("28",))
    options = {"profile": "smoke", "compute_only": True, "budget": 0}
    run(["toy", "other"], root=root, store=store, **options)
    assert said[-1].startswith("the budget is spent; run again to go on with toy: ")
    assert "2 results are missing" in said[-1]
    assert ", other: " in said[-1]
    assert "1 results are missing" in said[-1]
    assert not list(store.entries())
    assert not (root / "results").exists()
