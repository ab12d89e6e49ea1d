"""Units on many workers: the same numbers, nothing lost with a worker but its unit, nothing twice, nothing half."""

import dataclasses
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from atslib.errors import AtsError
from atslib.report.run.schedule import compute
from atslib.store import Store

UNITS = 12


@dataclasses.dataclass(frozen=True)
class Slow:
    """A unit of `steps` pieces that writes down each time that it is begun."""

    number: int
    steps: int = 5
    pause: float = 0.05
    greedy: bool = False
    kind: ClassVar[str] = "slow"
    needs: ClassVar[tuple] = ()
    passes: ClassVar[float] = 1.0
    model: ClassVar[object] = None

    @property
    def title(self):
        return f"slow {self.number}"

    def make(self, store, device):
        def work(state):
            log = store.root / "log" / str(self.number)
            log.parent.mkdir(exist_ok=True, parents=True)
            with log.open("a") as file:
                file.write(f"{os.getpid()}\n")
            if self.greedy and len(log.read_text().splitlines()) == 1:
                os.kill(os.getpid(), signal.SIGKILL)  # as the system does where memory is short
            value = torch.zeros(8)
            for step in range(self.steps):
                value += torch.randn(8, generator=torch.Generator().manual_seed(100 * self.number + step))
                time.sleep(self.pause)
            return {"x": value}

        return store.get(self.kind, self, work, label=self.title)


@pytest.fixture(autouse=True)
def _no_estimates(monkeypatch):
    """These units have no network whose FLOP could be counted."""
    monkeypatch.setattr("atslib.report.run.schedule.seconds", lambda unit, rate: 1.0)


def tables(store):
    """The bytes of every artifact; what is half-written has no place among them."""
    assert store.verify() == []
    assert not list(store.root.rglob("*.partial"))
    return {path.name: path.read_bytes() for path in (store.root / "slow").glob("*.safetensors")}


def begun(store):
    """Of each unit, how often it was begun."""
    return {int(path.name): len(path.read_text().splitlines()) for path in (store.root / "log").iterdir()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The artifacts as one process makes them, one after another."""
    store = Store(tmp_path_factory.mktemp("plain"))
    for number in range(UNITS):
        Slow(number).make(store, None)
    return {path.name: path.read_bytes() for path in (store.root / "slow").glob("*.safetensors")}


def running(store):
    """The processes that were the last to begin a unit that is not there yet."""
    units = [Slow(int(path.name)) for path in (store.root / "log").glob("*")]
    left = [unit for unit in units if not store.has(unit.kind, unit)]
    return {int((store.root / "log" / str(unit.number)).read_text().split()[-1]) for unit in left} - {os.getpid()}


def kill_some(store, kills, done):
    """Kill a worker that is at a unit, `kills` times, at random; the processes that were killed."""
    killed, draw = set(), random.Random(7)
    while len(killed) < kills and not done.is_set():
        if found := sorted(pid for pid in running(store) - killed if Path(f"/proc/{pid}").exists()):
            os.kill(victim := draw.choice(found), signal.SIGKILL)
            killed.add(victim)
        time.sleep(draw.uniform(0.02, 0.3))
    return killed


def with_kills(store, kills, **how):
    done, killed = threading.Event(), []
    killer = threading.Thread(target=lambda: killed.append(kill_some(store, kills, done)))
    killer.start()
    try:
        compute([Slow(number) for number in range(UNITS)], store, "cpu", **how)
    finally:
        done.set()
        killer.join()
    return len(killed[0])


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_killed_process_costs_its_unit_and_no_other(store, said, expected):
    assert with_kills(store, 1, jobs=2) == 1
    assert tables(store) == expected
    # The pool ends with its process, so the unit beside it is begun again as well.
    assert sum(begun(store).values()) - UNITS <= 2
    assert sum("a worker was lost" in line for line in said) == 1


def test_a_unit_that_kills_its_worker_each_time_ends_the_run(store, monkeypatch):
    monkeypatch.setattr("atslib.report.run.schedule.LOSSES", 0)
    with pytest.raises(AtsError, match="killed again and again, perhaps for want of memory"):
        compute([Slow(1, greedy=True)], store, "cpu", jobs=1)
    assert tables(store) == {}


def test_two_runs_on_one_store_do_each_unit_once(store, expected):
    code = (
        "import sys\nfrom test_cluster import Slow, UNITS\nfrom atslib.report.run import schedule\n"
        "from atslib.store import Store\n"
        "if __name__ == '__main__':\n"
        "    schedule.seconds = lambda unit, rate: 1.0\n"
        "    schedule.compute([Slow(n) for n in range(UNITS)], Store(sys.argv[1]), 'cpu', jobs=1)\n"
    )
    (script := store.root.parent / "run.py").write_text(code)
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    drivers = [
        subprocess.Popen([sys.executable, script, store.root], env=os.environ | {"PYTHONPATH": path}) for _ in range(2)
    ]
    assert [driver.wait(timeout=120) for driver in drivers] == [0, 0]
    assert tables(store) == expected
    assert begun(store) == dict.fromkeys(range(UNITS), 1)


def test_without_dask_one_sentence_names_the_extra(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(AtsError, match=r"^--scheduler local needs Dask: pip install 'atslib\[cluster\]'$"):
        compute([Slow(0)], store, "cpu", scheduler="local")


# --- Dask ---------------------------------------------------------------------------------------------------


@pytest.fixture
def dask():
    return pytest.importorskip("distributed", reason="an extra, which requirements.txt has")


@pytest.mark.usefixtures("dask")
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_five_killed_workers_of_a_cluster_cost_five_units(store, said, expected):
    killed = with_kills(store, 5, jobs=2, scheduler="local")
    assert killed == 5
    assert tables(store) == expected
    assert sum(begun(store).values()) - UNITS <= killed
    assert said[1].startswith("Dask's dashboard: http://")


@pytest.mark.usefixtures("dask")
def test_no_scheduler_at_an_address_is_said(store, monkeypatch):
    monkeypatch.setattr("atslib.report.run.workers.PATIENCE", 0.5)
    with pytest.raises(AtsError, match="no Dask scheduler answers there"):
        compute([Slow(0)], store, "cpu", scheduler="tcp://127.0.0.1:9")
