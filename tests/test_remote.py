"""Stores that are far away: a real S3-compatible server, and folders and servers that vanish."""

import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from checks import free_port, refused
from test_cluster import UNITS, Slow, wait_until

from atsbook.runs.schedule import compute
from atsbook.runs.store import Store
from atsbook.runs.transport import export_artifacts, import_artifacts
from atslib.checkpoints import load_state, save_state
from atslib.errors import AtsError


class Server:
    """moto's S3 server in threads of this process; what it holds outlives a stop."""

    def __init__(self, moto):
        self.make, self.port = moto.ThreadedMotoServer, free_port()

    def start(self):
        self.running = self.make("127.0.0.1", self.port, verbose=False)
        self.running.start()

    def stop(self):
        self.running.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    pytest.importorskip("s3fs", reason="an extra, which requirements.txt has")
    moto = pytest.importorskip("moto.server", reason="an extra, which requirements.txt has")
    made = Server(moto)
    keys = {
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    keys["AWS_MAX_ATTEMPTS"] = "1"  # a server that does not answer shall not be waited for
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (keys | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{made.port}"}).items():
            patch.setenv(name, value)
        made.start()
        yield made
        made.stop()


@pytest.fixture
def bucket(server, request):
    """The address of a new bucket."""
    import boto3

    name = f"bucket-{abs(hash(request.node.name))}"
    boto3.client("s3").create_bucket(Bucket=name)
    return f"s3://{name}/in/here"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Makes this process another machine, as far as a store can tell: with a cache of its own."""

    def become(name):
        monkeypatch.setenv("ATS_CACHE", str(tmp_path / f"cache of {name}"))

    become("one")
    return become


@pytest.fixture
def log(monkeypatch, tmp_path):
    """Where units write down that they are begun, of whatever machine."""
    monkeypatch.setenv("ATS_TEST_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


@pytest.fixture(autouse=True)
def _no_estimates(monkeypatch):
    monkeypatch.setattr("atsbook.runs.schedule.seconds", lambda unit, rate: 1.0)


def ones(state):
    return {"x": torch.ones(3)}


def never(state):
    raise AssertionError("it is there already")


def numbers(store):
    """The tensors of every unit, by its number; nothing is half-written, here or there."""
    assert store.verify() == []
    found = {facts["config"]["number"]: path.read_bytes() for path, facts in store.entries()}
    assert not list(store.root.rglob("*.partial"))
    assert not list(store.root.rglob("*.unsent"))
    return found


def begun(log):
    return {int(path.name): len(path.read_text().splitlines()) for path in log.iterdir()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("plain"))
    for number in range(UNITS):
        Slow(number).make(store, None)
    return numbers(store)


# --- what is at an address ----------------------------------------------------------------------------------


def test_what_one_machine_makes_another_has(bucket, machine, said):
    store = Store(bucket, say=said.append)
    assert not store.has("a", 1)
    store.get("a", 1, ones)
    store.get("b", 1, ones)
    machine("two")
    other = Store(bucket)
    assert other.root != store.root
    assert not list(other.root.rglob("*"))
    assert [other.has("a", 1), other.has("a", 2), other.has("b", 1)] == [True, False, True]
    assert other.get("a", 1, never)["x"].tolist() == [1, 1, 1]
    assert other.verify() == []
    assert len(list(other.entries())) == 2


def test_what_is_damaged_there_is_named_and_made_again(bucket, machine, said):
    store = Store(bucket)
    store.get("a", 1, ones)
    files = store.remote.fs
    (tensors,) = files.glob(f"{store.remote.base}/a/*.safetensors")
    files.pipe_file(tensors, b"nothing")
    machine("two")
    other = Store(bucket, say=said.append)
    name = f"{bucket}/a/{store.path('a', 1).stem}: its bytes do not match their hash"
    assert other.verify() == [name]
    assert other.get("a", 1, ones)["x"].tolist() == [1, 1, 1]
    assert said[0] == f"{name}; made again"
    assert other.verify() == Store(bucket).verify() == []


def test_what_is_damaged_here_is_brought_again(bucket, machine):
    store = Store(bucket)
    store.get("a", 1, ones)
    store.path("a", 1).write_bytes(b"nothing")
    assert store.get("a", 1, never)["x"].tolist() == [1, 1, 1]


def test_tensors_without_facts_are_no_artifact(bucket, machine):
    store = Store(bucket)
    store.get("a", 1, ones)
    (facts,) = store.remote.fs.glob(f"{store.remote.base}/a/*.json")
    store.remote.fs.rm(facts)
    machine("two")
    other = Store(bucket)
    assert (other.has("a", 1), list(other.entries()), other.verify()) == (False, [], [])


def test_a_bucket_that_is_not_there_is_said_before_the_work(server, machine):
    with refused("the store s3://no-such-bucket/x cannot be written: "):
        Store("s3://no-such-bucket/x").get("a", 1, never)


def test_an_archive_travels_from_address_to_address(bucket, machine, tmp_path):
    Store(bucket).get("a", 1, ones)
    machine("two")
    assert export_artifacts(Store(bucket), tmp_path / "all.tar") == 1
    assert import_artifacts(Store(f"{bucket}/other"), tmp_path / "all.tar") == 1
    machine("three")
    assert Store(f"{bucket}/other").get("a", 1, never)["x"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("missing", "address", "words"),
    [
        ("fsspec", "s3://b/x", "needs packages: pip install 'atslib[cluster]'"),
        ("", "nothing://b/x", "fsspec knows"),
    ],
)
def test_an_address_that_nothing_is_known_of_is_refused(monkeypatch, missing, address, words):
    pytest.importorskip("fsspec")
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    with refused(words):
        Store(address)


# --- vanished, killed, two at once ------------------------------------------------------------------------


def test_a_folder_that_vanishes_is_an_error_and_is_not_made_again(tmp_path):
    store, elsewhere = Store(tmp_path / "share" / "store"), tmp_path / "elsewhere"

    def work(state):
        save_state(state, "run", {"x": torch.ones(3)}, step=7)
        store.root.rename(elsewhere)
        with refused("cannot be written: "):  # hidden under the place where the share comes back
            save_state(state, "run", {"x": torch.ones(3)}, step=8)
        return ones(state)

    with refused("cannot be written: "):
        store.get("a", 1, work)
    assert not store.root.exists()
    elsewhere.rename(store.root)
    assert store.verify() == []

    def resumed(state):
        assert load_state(state, "run")[1]["step"] == 7
        return ones(state)

    assert store.get("a", 1, resumed)["x"].tolist() == [1, 1, 1]
    assert not list(store.root.rglob("*.partial"))


def test_a_run_whose_store_vanishes_ends_and_the_next_one_goes_on(tmp_path, log, expected):
    store, elsewhere = Store(tmp_path / "share" / "store"), tmp_path / "elsewhere"

    left_at = []

    def leave():
        wait_until(lambda: len(list((store.root / "slow").glob("*.json"))) >= 2)
        store.root.rename(elsewhere)
        left_at.append(time.monotonic())

    (gone := threading.Thread(target=leave)).start()
    units = [Slow(number) for number in range(UNITS)]
    try:
        with pytest.raises(AtsError):
            compute(units, store, "cpu", jobs=2)
    finally:
        gone.join()
    assert time.monotonic() - left_at[0] < 60  # seconds, where a machine is not busy
    assert not store.root.exists()
    elsewhere.rename(store.root)
    compute(units, store, "cpu", jobs=2)
    assert numbers(store) == expected
    assert sum(begun(log).values()) <= UNITS + 2  # those that were running are begun again


def test_a_server_that_does_not_answer_is_an_error_and_what_was_made_is_sent_later(
    server, bucket, machine
):
    store = Store(bucket)

    def work(state):
        server.stop()
        return ones(state)

    try:
        with pytest.raises(
            AtsError, match=rf"^the store {bucket} does not answer \(.*\); what is finished is kept"
        ):
            store.get("a", 1, work)
        machine("two")
        with pytest.raises(AtsError, match="does not answer"):  # and is not taken for damaged
            Store(bucket).get("b", 1, never)
    finally:
        server.start()
    machine("two")
    assert not Store(bucket).has("a", 1)
    machine("one")
    assert Store(bucket).has("a", 1)
    machine("two")
    assert Store(bucket).get("a", 1, never)["x"].tolist() == [1, 1, 1]


def test_a_killed_process_at_an_address_costs_its_unit(bucket, machine, log, said):
    units = [Slow(0, greedy=True), Slow(1), Slow(2)]
    compute(units, Store(bucket, say=said.append), "cpu", jobs=1)
    assert begun(log) == {0: 2, 1: 1, 2: 1}
    assert sum("a worker was lost" in line for line in said) == 1


def test_two_machines_at_one_address_end_with_the_same_tables(
    bucket, machine, log, tmp_path, expected
):
    code = (
        "import sys\nfrom test_cluster import Slow, UNITS\nfrom atsbook.runs import schedule\n"
        "from atsbook.runs.store import Store\n"
        "if __name__ == '__main__':\n"
        "    schedule.seconds = lambda unit, rate: 1.0\n"
        "    schedule.compute([Slow(n) for n in range(UNITS)], Store(sys.argv[1]), 'cpu', jobs=1)\n"
    )
    (script := tmp_path / "run.py").write_text(code)
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    drivers = []
    for name in ("one", "two"):
        machine(name)
        drivers.append(
            subprocess.Popen(
                [sys.executable, script, bucket], env=os.environ | {"PYTHONPATH": path}
            )
        )
    assert [driver.wait(timeout=300) for driver in drivers] == [0, 0]
    machine("three")
    assert numbers(Store(bucket)) == expected
    assert begun(log).keys() == set(range(UNITS))


@pytest.mark.parametrize(
    ("command", "endpoint"),
    [
        ("atsbook store list --store s3://nobucket/x", ""),
        ("atsbook store list --store s3://nobucket/x", "http://127.0.0.1:9"),
        (
            "atsbook run claim1_privacy --profile smoke --compute-only --store s3://nobucket",
            "http://127.0.0.1:9",
        ),
    ],
)
def test_an_address_that_nobody_reaches_is_said_within_seconds(command, endpoint, tmp_path):
    """In a process of its own: s3fs keeps the connections that it has."""
    pytest.importorskip("s3fs", reason="an extra, which requirements.txt has")
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    env |= {
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOME": str(tmp_path),
        "ATS_CACHE": str(tmp_path / "cache"),
    }
    env["PYTHONPATH"] = str(Path(__file__).parents[1])
    if endpoint:
        env |= {
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_ENDPOINT_URL": endpoint,
        }
    words = command.format(out=tmp_path / "policies.json").split()
    told = [sys.executable, "-m", *words]
    done = subprocess.run(told, env=env, cwd=tmp_path, text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("error: the store s3://nobucket")
    assert "cannot be reached: " in done.stderr.splitlines()[-1]


SILENT = """
from atsbook.runs import remote
from atsbook.runs.store import Store
from atslib.errors import AtsError

remote.QUICK["config_kwargs"]["read_timeout"] = 1  # ten times as long would tell no more
remote.WRITTEN = 1
store = Store("s3://bucket/x")
for act in (lambda: store.has("a", 1), store.verify, store.remote.check):
    try:
        act()
    except AtsError as error:
        print(error)
"""


def at(port, tmp_path, code):
    """What code prints in a process of its own whose S3 is at that port of this machine."""
    env = os.environ | {
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "ATS_CACHE": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        text=True,
        capture_output=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()


def test_an_address_that_falls_silent_during_a_run_is_an_error_within_seconds(tmp_path):
    """It takes the connection and says nothing: left to itself, s3fs waits for minutes, for ever
    when it writes, and takes what it cannot list for empty.
    """
    pytest.importorskip("s3fs", reason="an extra, which requirements.txt has")
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        lines = at(server.getsockname()[1], tmp_path, SILENT)
    assert len(lines) == 3
    assert all(line.startswith("the store s3://bucket/x does not answer (") for line in lines)


class Late(http.server.BaseHTTPRequestHandler):
    """Lists one artifact, three seconds after it is asked."""

    def do_GET(self):
        time.sleep(3)
        name = b"<Contents><Key>x/a/b.json</Key><Size>1</Size></Contents>"
        listed = b"<ListBucketResult><Name>bucket</Name>" + name + b"</ListBucketResult>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(listed)))
        self.end_headers()
        self.wfile.write(listed)

    def log_message(self, *args):
        pass


def test_an_address_that_is_slow_is_waited_for(tmp_path):
    pytest.importorskip("s3fs", reason="an extra, which requirements.txt has")
    code = """
from pathlib import Path
from atsbook.runs.store import Store
print(Store("s3://bucket/x").remote.has(Path("a/b.safetensors")))
"""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Late) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        lines = at(server.server_port, tmp_path, code)
        server.shutdown()
    assert lines == ["True"]


def test_a_place_that_must_not_be_read_is_not_taken_for_an_empty_one(bucket, machine, monkeypatch):
    store = Store(bucket)

    def forbidden(*args, **options):
        raise PermissionError("Access Denied")

    monkeypatch.setattr(store.remote.fs, "ls", forbidden)
    with refused(f"the store {bucket} cannot be read: Access Denied"):
        store.has("a", 1)
