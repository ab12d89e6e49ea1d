"""Federations that Flower simulates with Ray: closed to the network, and one killed worker ends
nobody's part in it.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from checks import refused

from atsfed import Federation, answer

pytest.importorskip("flwr", reason="the extra atslib[federated] is not installed")
if importlib.util.find_spec("ray") is None:  # looked for, not loaded: it reads its settings then
    pytest.skip("the extra atslib[federated] is not installed", allow_module_level=True)
pytestmark = [
    pytest.mark.federated,
    pytest.mark.alone,
    pytest.mark.usefixtures("one_thread", "rays_leftovers"),
    pytest.mark.filterwarnings("ignore"),
]  # Ray's own


def listening(processes):
    """The addresses on which processes listen, as text."""
    found = set()
    for process in processes:
        try:
            connections = process.net_connections("inet")
        except psutil.Error:  # it has just ended
            continue
        found |= {
            each.laddr.ip.removeprefix("::ffff:")
            for each in connections
            if each.status == psutil.CONN_LISTEN
        }
    return found


def first(name, processes):
    """The first process with this in its command; one that has just ended has none."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if name in "".join(process.cmdline()[:1]):
                return process
    raise LookupError(name)


def test_a_killed_worker_costs_no_client_a_round_and_nothing_listens_to_the_network(tmp_path):
    from atsfed.simulation import simulate

    federation = Federation(dataset="shapes", model="lenet-4", clients=3, rounds=3, batch=8)
    killed, addresses, over = [], set(), threading.Event()

    def kill_once():
        """The first worker that there is once the first round is over; it is at a client of the
        second, or idle. Ray's control process stands still meanwhile, as on a busy machine, so that
        the death is noticed late.
        """
        while not over.wait(0.2):
            if killed or not (tmp_path / "tap" / "round-00002" / "sent.safetensors").exists():
                continue
            processes = psutil.Process().children(recursive=True)
            addresses.update(listening([psutil.Process(), *processes]))
            worker, control = (
                first(name, processes) for name in ("ray::ClientAppActor", "gcs_server")
            )
            control.suspend()
            try:
                worker.kill()
                killed.append(worker.pid)
                time.sleep(2)
            finally:
                control.resume()

    killer = threading.Thread(target=kill_once)
    killer.start()
    try:
        tap = simulate(federation, tmp_path / "tap", processes=2)
    finally:
        over.set()
        killer.join()
    assert len(killed) == 1
    assert addresses == {"127.0.0.1"}
    for number in range(1, 4):
        assert tap.clients(number) == [0, 1, 2], tap.refused(number)
        for client in range(3):
            direct = answer(federation, tap.model(number), client, number)
            torch.testing.assert_close(
                tap.observed(number, client).gradients, direct.gradients, rtol=0, atol=1e-6
            )


def test_ray_is_open_only_to_who_has_its_token():
    """In a process of its own, since Ray reads this when it is loaded."""
    load = "import os; import atsfed.simulation; "
    code = f"{load}print(os.environ['RAY_AUTH_MODE'], os.environ['RAY_AUTH_TOKEN'])"
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env["PYTHONPATH"] = str(Path(__file__).parents[1])
    said = {
        subprocess.check_output([sys.executable, "-c", code], env=env, text=True) for _ in range(2)
    }
    assert len(said) == 2  # drawn anew
    assert all(len(words.split()[1]) == 64 and words.startswith("token ") for words in said)


def test_a_ray_that_was_loaded_before_is_not_started(tmp_path):
    code = (
        "import ray; from atsfed import Federation\n"
        "from atsfed.simulation import simulate\n"
        "simulate(Federation(dataset='shapes', model='lenet-4', clients=2, batch=8), 'tap')"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env["PYTHONPATH"] = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        text=True,
        capture_output=True,
        cwd=tmp_path,
        timeout=100,
    )
    assert "Ray was loaded before" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "tap").exists()


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        (999_999, "Federation.clients=999999: one machine simulates at most 1000"),
        (700, "700 clients cannot share 50 images"),
    ],
)
def test_more_clients_than_there_can_be_are_refused_at_once(tmp_path, clients, words):
    from atsfed.simulation import simulate

    federation = Federation(dataset="shapes", model="lenet-4", clients=clients, fraction=0.01)
    started = time.monotonic()
    with refused(words):
        simulate(federation, tmp_path / "tap")
    assert time.monotonic() < started + 20
    assert not (tmp_path / "tap").exists()


SLOW = "The current node timed out during startup. This could happen because …"  # as Ray says it


@pytest.mark.parametrize(
    ("words", "times"), [(SLOW, 5), ("no such resource", 1)], ids=["slow", "wrong"]
)
def test_only_a_ray_that_does_not_come_up_in_time_is_started_again(
    tmp_path, monkeypatch, words, times
):
    from atsfed.simulation import simulate

    begun = []

    def init(**options):
        begun.append(options)
        raise Exception(words)

    monkeypatch.setattr("ray.init", init)
    federation = Federation(dataset="shapes", model="lenet-4", clients=2, batch=8)
    with pytest.raises(Exception, match=words[:20]):
        simulate(federation, tmp_path / "tap")
    assert len(begun) == times


def test_rounds_in_which_nobody_answered_are_run_again_and_a_ray_that_was_slow_is_started_again(
    tmp_path, monkeypatch
):
    """Of the slow one no process is left."""
    from atsfed import Tap
    from atsfed.simulation import simulate

    services = importlib.import_module("ray._private.services")
    find, left = services.get_node, []

    def get_node(*args):
        """What Ray asks until its processes have come up: the first time as if they had not."""
        if not left:
            children = psutil.Process().children(recursive=True)
            left.extend(each for each in children if each.name() in ("gcs_server", "raylet"))
            raise Exception(SLOW)
        return find(*args)

    monkeypatch.setattr(services, "get_node", get_node)
    federation = Federation(dataset="shapes", model="lenet-4", clients=2, rounds=2, batch=8)
    tap = Tap(tmp_path / "tap", federation)
    for number in (1, 2, 3):  # as two rounds leave it in which every client failed
        tap.begin(number, dict(tap.network.named_parameters()))
    tap = simulate(federation, tmp_path / "tap", processes=2)
    assert left
    _, alive = psutil.wait_procs(left, timeout=10)
    assert not alive
    assert [tap.clients(number) for number in (1, 2)] == [[0, 1], [0, 1]]
