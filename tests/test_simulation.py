"""Federations in processes of this machine: closed to the network, and what one client does ends
nobody else's part in it.
"""

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

from atsfed import Federation, Tap, answer

pytest.importorskip("flwr", reason="the extra atslib[federated] is not installed")
pytestmark = [pytest.mark.federated, pytest.mark.usefixtures("one_thread")]


# --- the grid ------------------------------------------------------------------------------------


def made_app(folder):
    """An app that counts its messages in its context, and otherwise does as it is told."""
    from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def killed():
        os.kill(os.getpid(), 9)

    def killed_once():
        if not (folder / "killed").exists():
            (folder / "killed").touch()
            killed()

    def raises():
        raise ValueError("no photograph")

    def leaves():
        sys.exit("of its own accord")

    def never():
        (folder / "at it").touch()
        threading.Event().wait()

    def prints():
        print("words", flush=True)
        os.system("echo words")
        assert sys.stdin.read() == ""

    does = {
        "nothing": lambda: None,
        "killed": killed,
        "killed once": killed_once,
        "raises": raises,
        "leaves": leaves,
        "prints": prints,
        "never": never,
    }

    @app.train()
    def train(message, context):
        kept = context.state.setdefault("kept", MetricRecord({"count": 0}))
        kept["count"] += 1
        told = message.content["config"]["do"]
        numbers = MetricRecord(
            {
                "count": kept["count"],
                "partition": context.node_config["partition-id"],
                "process": os.getpid(),
                "threads": torch.get_num_threads(),
            }
        )
        if told == "cannot be sent":
            context.state["kept"].__dict__["lock"] = threading.Lock()
        else:
            does[told]()
        return Message(RecordDict({"numbers": numbers, "c": ConfigRecord()}), reply_to=message)

    return app


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("grid")


@pytest.fixture(scope="module")
def grid(folder):
    """Four clients in two processes."""
    from atsfed.local_grid import LocalGrid

    with LocalGrid(made_app(folder), 4, 2) as made:
        yield made


@pytest.fixture
def tell(grid, flower_task):
    """Has clients do what they are told to; their replies by client."""
    from flwr.app import ConfigRecord, Message, RecordDict

    from atsfed.local_grid import FIRST

    def run(told, timeout=None):
        messages = [
            Message(RecordDict({"config": ConfigRecord({"do": do})}), FIRST + client, "train")
            for client, do in told.items()
        ]
        replies = grid.send_and_receive(messages, timeout=timeout)
        return {reply.metadata.src_node_id - FIRST: reply for reply in replies}

    return run


def count(reply):
    return reply.content["numbers"]["count"]


def test_every_client_answers_once_with_what_it_has_kept_in_whatever_process(tell, grid):
    everyone = dict.fromkeys(range(4), "nothing")
    first, second = tell(everyone), tell(everyone)
    for client in range(4):
        assert count(second[client]) == count(first[client]) + 1
        assert first[client].content["numbers"]["partition"] == client
        assert first[client].content["numbers"]["threads"] == 1
    used = {reply.content["numbers"]["process"] for reply in (*first.values(), *second.values())}
    assert os.getpid() not in used
    assert len(used) <= 2
    assert len(list(grid.get_node_ids())) == 4


@pytest.mark.parametrize(
    ("do", "words"),
    [
        ("raises", "ValueError: no photograph"),
        ("leaves", "SystemExit: of its own accord"),
        ("cannot be sent", "cannot pickle"),
    ],
)
def test_a_client_that_raises_answers_with_its_error_and_keeps_what_it_had(tell, do, words):
    before = count(tell({1: "nothing"})[1])
    replies = tell({0: "nothing", 1: do, 2: "nothing"})
    assert [replies[client].has_error() for client in range(3)] == [False, True, False]
    assert words in replies[1].error.reason
    assert count(tell({1: "nothing"})[1]) == before + 1


def test_a_client_whose_process_is_killed_is_begun_again(tell):
    before = count(tell({1: "nothing"})[1])
    assert count(tell({1: "killed once"})[1]) == before + 1


def test_a_client_that_is_killed_each_time_is_named_and_no_other_pays_for_it(tell, monkeypatch):
    monkeypatch.setattr("atsfed.local_grid.TRIES", 2)
    replies = tell({0: "killed", 1: "nothing", 2: "nothing", 3: "nothing"})
    assert replies[0].error.reason == "its process ended 2 times before it had answered"
    assert not any(replies[client].has_error() for client in (1, 2, 3))


def test_what_a_client_prints_or_reads_is_not_taken_for_a_message(tell):
    assert not tell({0: "prints"})[0].has_error()
    assert not tell({0: "nothing"})[0].has_error()


def at_it(folder):
    """Wait until a client is at what never ends."""
    while not (folder / "at it").exists():
        time.sleep(0.05)
    (folder / "at it").unlink()


def test_a_client_that_is_late_is_ended_with_what_it_had_before(tell, folder, monkeypatch):
    before = count(tell({0: "nothing"})[0])
    with monkeypatch.context() as patch:
        patch.setattr("atsfed.local_grid.wait", lambda replies, timeout: at_it(folder))
        assert tell({0: "never"}, timeout=1) == {}
    assert tell(dict.fromkeys(range(4), "never"), timeout=0) == {}
    assert count(tell({0: "nothing"})[0]) == before + 1


def test_a_message_to_nobody_is_answered_with_an_error(tell):
    assert "no node 1007" in tell({7: "nothing"})[7].error.reason


def test_replies_can_be_pulled_later_each_once(tell, grid):
    from concurrent.futures import wait

    from flwr.app import ConfigRecord, RecordDict

    from atsfed.local_grid import FIRST

    content = RecordDict({"config": ConfigRecord({"do": "nothing"})})
    names = grid.push_messages([grid.create_message(content, "train", FIRST + 2, "1")])
    wait([grid._sent[name].reply for name in names])
    (reply,) = grid.pull_messages(names)
    assert reply.metadata.src_node_id == FIRST + 2
    assert grid.pull_messages(names) == []


@pytest.mark.usefixtures("flower_task")
def test_a_grid_that_is_closed_leaves_no_process_whatever_its_clients_are_at(tmp_path):
    from flwr.app import ConfigRecord, RecordDict

    from atsfed.local_grid import FIRST, LocalGrid

    others = set(psutil.Process().children())
    content = RecordDict({"config": ConfigRecord({"do": "never"})})
    with LocalGrid(made_app(tmp_path), 2, 1) as grid:
        (own,) = set(psutil.Process().children()) - others
        grid.push_messages(
            grid.create_message(content, "train", FIRST + client, "1") for client in (0, 1)
        )
        at_it(tmp_path)
    assert not own.is_running()


@pytest.mark.usefixtures("flower_task")
def test_an_app_that_a_process_cannot_load_is_each_clients_error():
    from flwr.app import ConfigRecord, RecordDict
    from flwr.clientapp import ClientApp

    from atsfed.local_grid import FIRST, LocalGrid

    class Unknown(ClientApp):
        def __reduce__(self):
            return int, ("no number",)

    with LocalGrid(Unknown(), 1, 1) as grid:
        content = RecordDict({"config": ConfigRecord()})
        (reply,) = grid.send_and_receive([grid.create_message(content, "train", FIRST, "1")])
    assert "no number" in reply.error.reason


def test_processes_that_end_as_they_begin_are_one_sentence(folder, monkeypatch):
    from atsfed.local_grid import LocalGrid

    monkeypatch.setattr("atsfed.local_grid.BEGIN", "raise SystemExit(3)")
    with (
        refused("a process for the clients ended as it began; see the messages above"),
        LocalGrid(made_app(folder), 2, 2),
    ):
        pass


# --- a federation --------------------------------------------------------------------------------


def test_a_killed_process_costs_no_client_a_round_and_nobody_has_a_socket(tmp_path):
    from atsfed.simulation import simulate

    federation = Federation(dataset="shapes", model="lenet-4", clients=3, rounds=3, batch=8)
    own, others = psutil.Process(), set(psutil.Process().children())
    before = set(own.net_connections("inet"))
    killed, connections, over = [], set(), threading.Event()

    def kill_once():
        """A process once the first round is over; it is at a client of the second, or idle."""
        while not over.wait(0.05):
            if killed or not (tmp_path / "tap" / "round-00002" / "sent.safetensors").exists():
                continue
            there = [each for each in own.children() if each not in others]
            connections.update(set(own.net_connections("inet")) - before)
            for each in there:
                connections.update(each.net_connections("inet"))
            there[0].kill()
            killed.append(there[0].pid)

    killer = threading.Thread(target=kill_once)
    killer.start()
    try:
        tap = simulate(federation, tmp_path / "tap", processes=2)
    finally:
        over.set()
        killer.join()
    assert len(killed) == 1
    assert not connections
    assert set(own.children()) == others
    for number in range(1, 4):
        assert tap.clients(number) == [0, 1, 2], tap.refused(number)
        for client in range(3):
            direct = answer(federation, tap.model(number), client, number)
            torch.testing.assert_close(
                tap.observed(number, client).gradients, direct.gradients, rtol=0, atol=1e-6
            )


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
    with refused(words):
        simulate(federation, tmp_path / "tap")
    assert not (tmp_path / "tap").exists()


def test_no_process_is_refused(tmp_path):
    from atsfed.simulation import simulate

    federation = Federation(dataset="shapes", model="lenet-4", clients=2, batch=8)
    with refused("processes=0 must be a whole number, at least 1"):
        simulate(federation, tmp_path / "tap", processes=0)


def test_rounds_in_which_nobody_answered_are_run_again(tmp_path):
    from atsfed.simulation import simulate

    federation = Federation(dataset="shapes", model="lenet-4", clients=2, rounds=2, batch=8)
    tap = Tap(tmp_path / "tap", federation)
    for number in (1, 2, 3):  # as two rounds leave it in which every client failed
        tap.begin(number, dict(tap.network.named_parameters()))
    tap = simulate(federation, tmp_path / "tap", processes=2)
    assert [tap.clients(number) for number in (1, 2)] == [[0, 1], [0, 1]]


def test_a_round_that_every_client_fails_in_is_said(tmp_path):
    """Their defense is a file of one's own, which is there for the server alone."""
    from atsfed.simulation import simulate

    defense = tmp_path / "mine.py"
    defense.write_text(
        "import os\n"
        "from atslib.clients.defenses.defense import own_defense\n"
        f"assert os.getpid() == {os.getpid()}, 'not here'\n"
        "mine = own_defense('prune:0.9')\n"
    )
    federation = Federation(
        dataset="shapes", model="lenet-4", clients=2, batch=8, defense=f"{defense}:mine"
    )
    with refused("round 1 of 1 has no answer: node 1000 failed in round 1; node 1001 failed in"):
        simulate(federation, tmp_path / "tap", processes=1)


def test_what_the_server_cannot_keep_is_raised_and_nothing_is_left_running(tmp_path, monkeypatch):
    from atsfed.simulation import simulate

    def full(*_):
        raise OSError(28, "No space left on device")

    federation = Federation(dataset="shapes", model="lenet-4", clients=2, batch=8)
    threads, others = set(threading.enumerate()), set(psutil.Process().children())
    monkeypatch.setattr(Tap, "record", full)
    with pytest.raises(OSError, match="No space left"):
        simulate(federation, tmp_path / "tap", processes=1)
    assert set(threading.enumerate()) <= threads
    assert set(psutil.Process().children()) == others


@pytest.mark.process
def test_a_script_needs_no_guard_and_its_processes_end_with_it(tmp_path):
    """The script runs once, loads nothing that opens a port, and is killed while a client is at
    work.
    """
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, threading\n"
        "from atsfed import Federation, flower\n"
        "from atsfed.simulation import simulate\n"
        "print('begun', flush=True)\n"
        "federation = Federation(dataset='shapes', model='lenet-4', clients=2, batch=8)\n"
        "print(simulate(federation, 'tap', processes=1).clients(1), 'ray' in sys.modules)\n"
        "def waits(federation):\n"
        "    app = flower.ClientApp()\n"
        "    @app.train()\n"
        "    def train(message, context):\n"
        "        print(f'at it {os.getpid()}', file=sys.stderr, flush=True)\n"
        "        threading.Event().wait()\n"
        "    return app\n"
        "flower.client_app = waits\n"
        "simulate(federation, 'other', processes=1)\n"
    )
    done = subprocess.Popen(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    )
    with done:
        client = None
        for line in done.stderr:
            if line.startswith("at it"):
                client = psutil.Process(int(line.split()[2]))
                done.kill()
                break
        said = done.stdout.read()
    assert said.splitlines() == ["begun", "[0, 1] False"]
    _, alive = psutil.wait_procs([client], timeout=60)
    assert not alive
