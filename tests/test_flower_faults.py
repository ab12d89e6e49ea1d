"""Faults in a federation of real processes: what the server says of each, and that what it keeps
stays right.
"""

import contextlib
import json
import os
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from atsfed import Tap, answer

pytest.importorskip("flwr", reason="the extra atslib[federated] is not installed")
pytestmark = [
    pytest.mark.federated,
    pytest.mark.alone,
    pytest.mark.usefixtures("one_thread"),
]
HERE = Path(__file__).parent
APP, EXAMPLE = HERE / "flower_faults", HERE.parent / "examples" / "flower"
STRANGER = 3  # has a pair of keys, of which the SuperLink was told nothing
FAULTS = "1 0 nan, 1 1 shape, 2 0 policy, 2 1 wait, 3 0 wait, 3 1 wait, 3 2 wait"


def until(true, processes, *, patience=600):
    """Wait for a condition; fail with what the processes said last if it does not come."""
    end = time.monotonic() + patience
    while not true():
        if time.monotonic() > end:
            logs = "\n".join(
                f"{file.name}: {file.read_text()[-2000:]}" for file in processes.own.glob("*.log")
            )
            pytest.fail(f"not so after {patience} seconds; the processes said\n{logs}")
        time.sleep(0.1)


def ours(own):
    """The numbers of all processes that run for this federation, whoever started them: its folder
    is told to all.
    """
    mark, found = f"FLWR_HOME={own}".encode(), []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in file.read_bytes().split(b"\0"):
                found.append(int(file.parent.name))
        except OSError:  # it has just ended, or is somebody else's
            continue
    return found


def addresses(own):
    """The addresses on which they listen, as Linux writes them: in hexadecimal, the last number
    first.
    """
    sockets = set()
    for number in ours(own):
        with contextlib.suppress(OSError):  # it has just ended
            for name in os.listdir(f"/proc/{number}/fd"):
                with contextlib.suppress(OSError):  # it has just been closed
                    sockets.add(os.readlink(f"/proc/{number}/fd/{name}"))
    lines = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()
    ]
    return {
        words[1].split(":")[0]
        for words in lines
        if words[3] == "0A" and f"socket:[{words[9]}]" in sockets
    }


@pytest.fixture(scope="module")
def modules():
    """The example's script, and the app whose clients spoil their answers."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in (EXAMPLE, APP):
            patch.syspath_prepend(folder)
        import processes
        import spoiled

        yield processes, spoiled
    for name in ("processes", "app", "spoiled"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def went(modules, tmp_path_factory):
    """A federation that went through all faults, one after the other; all its processes have been
    ended.
    """
    processes, spoiled = modules
    top = tmp_path_factory.mktemp("faults")
    for name in ("own", "gate", "other"):
        (top / name).mkdir()
    made = SimpleNamespace(top=top, spoiled=spoiled, tap=Tap(top / "tap", spoiled.FEDERATION))
    made.processes = processes.Processes(top / "own", STRANGER + 1)
    made.config = {"faults": FAULTS, "gate": str(top / "gate"), "out": str(top / "tap")}
    processes.make_keys(top / "other", 0)  # another authority
    try:
        begin(made)
        lose_a_supernode(made, processes.free_ports(3))
        lose_the_superlink(made)
    finally:
        made.processes.end()
    return made


def begin(made):
    """The SuperNodes of all clients, and the app; the first round needs nothing more."""
    made.processes.superlink()
    for client in range(STRANGER):
        made.processes.register(client)
        made.processes.supernode(client)
    made.processes.submit(APP, made.config)


def lose_a_supernode(made, ports):
    """In the second round; until the SuperLink misses it, others try what they may not."""
    started = made.processes
    until((made.top / "gate" / "2-1").exists, started)
    started.kill("supernode-1")
    right, wrong = started.ca, made.top / "other" / "ca.pem"
    for name, key, ca in (
        ("stranger", STRANGER, right),
        ("misled", 1, wrong),
        ("nobody", None, right),
    ):
        keys = (
            []
            if key is None
            else ["--auth-supernode-private-key", started.own / f"client-{key}.key"]
        )
        node = [
            "--superlink",
            started.link,
            "--port",
            ports.pop(),
            "--root-certificates",
            ca,
            *keys,
        ]
        started.start(name, "flower-supernode", *node)
    started.submit(
        APP, made.config | {"defense": made.spoiled.UNKNOWN, "out": str(made.top / "unknown")}
    )
    for name in ("stranger", "misled", "nobody"):
        until(lambda name=name: started.running[name].poll() is not None, started)
    until(lambda: ended(made), started)
    until(lambda: made.tap.next() == 3, started)
    started.supernode(1)


def ended(made):
    """What the SuperLink says of runs that have ended."""
    runs = json.loads(made.processes.command("flwr", "list", "own", "--format", "json"))["runs"]
    made.ended = [run["status-details"] for run in runs if run["status"].startswith("finished")]
    return made.ended


def lose_the_superlink(made):
    """With all that runs beside it, while all clients are at work in the third round; then the app
    is handed in again.

    Clients answer the lost run first, and the new one then.
    """
    for client in range(STRANGER):
        until((made.top / "gate" / f"3-{client}").exists, made.processes)
    made.addresses = addresses(made.processes.own)
    for name in ("superlink", "superexec"):
        made.processes.kill(name)
    made.processes.superlink()
    made.processes.submit(APP, made.config)
    (made.top / "gate" / "3-open").touch()
    until(lambda: made.tap.next() == 4, made.processes)


def node(went, client):
    """Flower's number of a client's SuperNode, which it keeps when it is started again."""
    (number,) = set(
        re.findall(
            r"SuperNode ID: (\d+)", (went.processes.own / f"supernode-{client}.log").read_text()
        )
    )
    return int(number)


def test_an_answer_that_is_not_finite_or_of_another_shape_is_left_out_by_name_and_the_round_goes_on(
    went,
):
    assert sorted(went.tap.refused(1)) == [
        "client 0 in round 1 shared values of 1.7.bias that are nan or infinite; it is left out",
        "client 1 in round 1 shared (9,) for 1.7.bias, which is (10,); it is left out",
    ]
    assert went.tap.clients(1) == [2]


def test_a_client_that_failed_and_one_whose_supernode_was_killed_are_named_and_the_round_goes_on(
    went,
):
    assert went.tap.refused(2) == [
        f"node {node(went, 0)} failed in round 2",
        f"node {node(went, 1)} did not answer in round 2",
    ]
    assert went.tap.clients(2) == [2]


def test_after_the_supernode_and_the_superlink_were_started_again_every_client_answers(went):
    assert went.tap.refused(3) == []
    assert went.tap.clients(3) == [0, 1, 2]


def test_nothing_that_the_server_saw_is_lost_or_there_twice(went):
    there = {file.parent.name: set() for file in (went.top / "tap").glob("*/*")}
    for file in (went.top / "tap").glob("*/*"):
        there[file.parent.name].add(file.name)
    every = {f"client-{client:04d}.safetensors" for client in range(STRANGER)}
    whole = {"sent.safetensors", "refused.txt"}
    assert there == {
        "round-00001": whole | {"client-0002.safetensors"},
        "round-00002": whole | {"client-0002.safetensors"},
        "round-00003": whole | every,
        "round-00004": {"sent.safetensors"},
    }


def test_what_the_server_saw_and_the_steps_it_took_are_those_of_plain_code(went):
    trained = went.spoiled.FEDERATION
    assert torch.equal(weights(went.tap.model(1)), weights(trained.network()))
    for number, clients in ((1, [2]), (2, [2]), (3, [0, 1, 2])):
        model = went.tap.model(number)
        answers = [
            answer(trained, model, client, number).updates[0].gradients for client in clients
        ]
        for client, ours in zip(clients, answers, strict=True):
            torch.testing.assert_close(
                went.tap.observed(number, client).gradients, ours, rtol=0, atol=1e-6
            )
        step = trained.lr * torch.cat(answers).mean(0)
        before, after = (weights(went.tap.model(each)) for each in (number, number + 1))
        torch.testing.assert_close(after, before - step, rtol=0, atol=1e-6)


def weights(model):
    return torch.cat([value.detach().flatten() for value in model.parameters()])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stranger", "Failed to activate SuperNode"),  # a key that the SuperLink does not know
        ("nobody", "All SuperNodes must be registered"),  # no key
        ("misled", "certificate verify failed"),  # the certificate of another authority
    ],
)
def test_a_supernode_without_the_right_key_and_certificate_is_refused(went, name, words):
    assert went.processes.running[name].returncode > 0
    said = (went.processes.own / f"{name}.log").read_text()
    assert words in said
    assert "SuperNode ID" not in said  # which the SuperLink tells those that it takes


def test_a_policy_that_nobody_knows_is_said_in_one_sentence_before_any_training(went):
    sentence = "policy '3-1-77': no operation [77]; ids run 0..49"
    assert went.ended == [f"ServerApp failed with exception: {sentence}"]
    assert not (went.top / "unknown").exists()
    # Where one client alone has it, this client says so; the server names the node.
    assert (went.processes.own / "supernode-0.log").read_text().count(
        f"AtsError: {sentence}\n"
    ) == 1


def test_all_processes_listened_on_this_machine_only_and_have_ended(went):
    if sys.platform == "linux":
        assert went.addresses == {"0100007F"}  # 127.0.0.1
    until(lambda: not ours(went.processes.own), went.processes)
