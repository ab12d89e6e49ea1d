"""Requests on many workers: the same numbers, nothing lost with a worker but its request, nothing half."""

import dataclasses
import datetime
import gc
import ipaddress
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from checks import Sizes, attack_request, free_port, refused

from atsbook.pool import workers
from atsbook.pool.schedule import compute
from atsbook.pool.workers import is_open
from atsbook.store import Store
from atslib.errors import AtsError

pytestmark = pytest.mark.slow

REQUESTS = 12
SMALL = Sizes(model="lenet", images=2, steps=4, regime="initial")


@dataclasses.dataclass(frozen=True)
class Slow:
    """A request of `steps` pieces that writes down each time that it is begun."""

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
            log = log_of(store) / str(self.number)
            log.parent.mkdir(exist_ok=True, parents=True)
            with log.open("a") as file:
                file.write(f"{os.getpid()}\n")
            if self.greedy and len(log.read_text().splitlines()) == 1:
                os.kill(os.getpid(), signal.SIGKILL)  # as the system does where memory is short
            value = torch.zeros(8)
            for step in range(self.steps):
                value += torch.randn(
                    8, generator=torch.Generator().manual_seed(100 * self.number + step)
                )
                time.sleep(self.pause)
            return {"x": value}

        return store.get(self.kind, self, work, label=self.title)


@pytest.fixture(autouse=True)
def _no_estimates(monkeypatch):
    """These requests have no network whose FLOP could be counted."""
    monkeypatch.setattr("atsbook.pool.schedule.seconds", lambda request, rate: 1.0)


def tables(store):
    """The bytes of every slow request's artifact by its number; what is half-written has no place
    among them.
    """
    assert store.verify() == []
    assert not list(store.root.rglob("*.partial"))
    return {
        facts["config"]["number"]: path.read_bytes()
        for path, facts in store.entries()
        if facts["kind"] == "slow"
    }


def log_of(store):
    """The folder in which requests write down that they were begun."""
    return Path(os.environ.get("ATS_TEST_LOG", store.root / "log"))


def begun(store):
    """Of each request, how often it was begun."""
    return {int(path.name): len(path.read_text().splitlines()) for path in log_of(store).iterdir()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The artifacts as one process makes them, one after another."""
    store = Store(tmp_path_factory.mktemp("plain"))
    for number in range(REQUESTS):
        Slow(number).make(store, None)
    return tables(store)


def running(store):
    """The processes that were the last to begin a request that is not there yet."""
    requests = [Slow(int(path.name)) for path in log_of(store).glob("*")]
    left = [request for request in requests if not store.has(request.kind, request)]
    logs = [(log_of(store) / str(request.number)).read_text().split() for request in left]
    # a log that has just been opened is empty
    return {int(log[-1]) for log in logs if log} - {os.getpid()}


def kill_some(store, kills, done):
    """Kill a worker that is at a request, `kills` times, at random; the processes that were killed."""
    killed, draw = set(), random.Random(7)
    while len(killed) < kills and not done.is_set():
        if found := sorted(pid for pid in running(store) - killed if Path(f"/proc/{pid}").exists()):
            os.kill(victim := draw.choice(found), signal.SIGKILL)
            killed.add(victim)
        time.sleep(draw.uniform(0.02, 0.3))
    return killed


def with_kills(store, kills, more=(), **how):
    done, killed = threading.Event(), []
    killer = threading.Thread(target=lambda: killed.append(kill_some(store, kills, done)))
    killer.start()
    try:
        compute([*(Slow(number) for number in range(REQUESTS)), *more], store, "cpu", **how)
    finally:
        done.set()
        killer.join()
    return len(killed[0])


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_killed_process_costs_its_request_and_no_other(store, said, expected):
    assert with_kills(store, 1, jobs=2) == 1
    assert tables(store) == expected
    # The pool ends with its process, so the request beside it is begun again as well.
    assert sum(begun(store).values()) - REQUESTS <= 2
    assert sum("a worker was lost" in line for line in said) == 1


def test_a_request_that_kills_its_worker_each_time_ends_the_run(store, monkeypatch):
    monkeypatch.setattr("atsbook.pool.schedule.LOSSES", 0)
    with pytest.raises(
        AtsError,
        match="killed again and again, perhaps for want of memory, the last time at slow 1:",
    ):
        compute([Slow(1, greedy=True)], store, "cpu", jobs=1)
    assert tables(store) == {}


def test_without_dask_one_sentence_names_the_extra(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(
        AtsError,
        match=r"^--scheduler tcp://10.0.0.5:1 needs Dask: pip install 'atslib\[cluster\]'$",
    ):
        compute([Slow(0)], store, "cpu", scheduler="tcp://10.0.0.5:1")


# --- Dask ---------------------------------------------------------------------------------------------------


@pytest.fixture
def dask():
    return pytest.importorskip("distributed", reason="an extra, which requirements.txt has")


@pytest.mark.usefixtures("dask")
def test_no_scheduler_at_an_address_is_said(store, monkeypatch):
    monkeypatch.setattr("atsbook.pool.workers.PATIENCE", 0.5)
    for address in ("tcp://127.0.0.1:9", "local"):
        with pytest.raises(AtsError, match="no Dask scheduler answers there"):
            compute([Slow(0)], store, "cpu", scheduler=address)


def test_a_cluster_whose_workers_are_gone_is_waited_for_and_then_left():
    now, threads, said = 0.0, {"a": 2, "b": 1}, []
    slots = workers._slots(lambda: threads, "tcp://10.0.0.5:8786", said.append, lambda: now)
    assert slots() == 3
    threads = {}
    assert slots() == 1
    assert said == ["tcp://10.0.0.5:8786 has no worker now; waiting for one"]
    now = workers.WITHOUT_WORKERS - 1
    assert slots() == 1
    threads = {"c": 1}  # one comes back, and the time begins anew
    assert slots() == 1
    threads = {}
    assert slots() == 1
    assert len(said) == 2
    now += workers.WITHOUT_WORKERS + 1
    with refused(
        "--scheduler tcp://10.0.0.5:8786", "no worker for 301 s", "what is finished is kept"
    ):
        slots()


def test_a_client_that_found_no_scheduler_is_gone_before_the_next_one_begins(
    dask, store, monkeypatch
):
    made = []

    class Refused:
        def __init__(self, *_, **__):
            assert all(one() is None for one in made)
            self.cycle = self  # as through an error's traceback: only a collection ends it
            made.append(weakref.ref(self))
            raise OSError("refused")

    monkeypatch.setattr(dask, "Client", Refused)
    gc.disable()
    try:
        for _ in range(2):
            with refused("no Dask scheduler answers there (refused)"):
                compute([Slow(0)], store, "cpu", scheduler="tcp://127.0.0.1:9")
    finally:
        gc.enable()
    assert len(made) == 2


def test_a_scheduler_without_any_worker_ends_with_a_sentence(cluster, store, monkeypatch):
    monkeypatch.setattr(workers, "WITHOUT_WORKERS", 1.0)
    cluster.scheduler()
    with refused(cluster.address, "there was no worker for"):
        compute([Slow(0)], store, "cpu", scheduler=cluster.address)


@dataclasses.dataclass(frozen=True)
class Doubled:
    """A request that needs another one."""

    of: Slow
    kind: ClassVar[str] = "doubled"
    title: ClassVar[str] = "doubled"
    passes: ClassVar[float] = 1.0

    @property
    def needs(self):
        return (self.of,)

    def make(self, store, device):
        return store.get(self.kind, self, lambda state: {"x": 2 * self.of.make(store, device)["x"]})


@pytest.fixture
def local(dask, tmp_path, monkeypatch):
    """Two workers of this machine, on loopback, which do not know the store's folder."""
    import dask as configured

    monkeypatch.setenv("ATS_TEST_LOG", str(tmp_path / "log"))
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    # Beside other tests processes take long to start.
    patient = {f"distributed.comm.timeouts.{name}": "180s" for name in ("connect", "tcp")}
    with (
        configured.config.set(patient),
        dask.LocalCluster(host="127.0.0.1", silence_logs=50, **options) as made,
    ):
        yield made.scheduler_address


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_results_come_back_from_workers_and_a_killed_one_costs_its_request(
    local, store, said, expected, tmp_path
):
    attack = attack_request(SMALL)
    doubled = Doubled(Slow(0))
    assert with_kills(store, 1, more=[doubled, attack], scheduler=local) == 1
    assert tables(store) == expected
    assert sum(begun(store).values()) - REQUESTS <= 1
    assert begun(store)[0] <= 2  # what a request needs is sent, and not made again
    assert torch.equal(doubled.make(store, None)["x"], 2 * Slow(0).make(store, None)["x"])
    # A real attack, byte for byte.
    attack.make(here := Store(tmp_path / "here"), torch.device("cpu"))
    made, own = (each.path(attack.kind, attack).read_bytes() for each in (store, here))
    assert made == own
    assert not any("warning" in line for line in said)


class Cluster:
    """A scheduler and workers, each a process that was started as anyone would start it."""

    def __init__(self, dask, folder):
        self.port, self.folder, self.running = free_port(), folder, []
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.env = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])
        }

    def start(self, *arguments):
        with (self.folder / "dask.log").open("ab") as log:
            command = [sys.executable, "-m", "dask", *arguments]
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.env, stdout=log, stderr=log
            )
        self.running.append(process)
        return process

    def scheduler(self):
        place = ("--host", "127.0.0.1", "--port", str(self.port))
        return self.start("scheduler", *place, "--no-dashboard", "--no-show")

    def worker(self, *options):
        place = (
            self.address,
            "--host",
            "127.0.0.1",
            "--nthreads",
            "1",
            "--no-dashboard",
            "--death-timeout",
            "60",
        )
        return self.start("worker", *place, *options)

    def stop(self):
        for process in self.running:
            process.kill()  # a worker ends with its nanny
        for process in self.running:
            process.wait(timeout=60)


@pytest.fixture
def cluster(dask, tmp_path):
    made = Cluster(dask, tmp_path)
    yield made
    made.stop()


@pytest.mark.usefixtures("dask")
@pytest.mark.parametrize(
    ("address", "warned"),
    [
        ("tcp://10.0.0.5:8786", True),
        ("10.0.0.5:8786", True),
        ("tcp://node-7:8786", True),
        ("tcp://[2001:db8::1]:8786", True),
        ("tls://10.0.0.5:8786", False),
        ("tcp://127.0.0.1:8786", False),
        ("tcp://localhost:8786", False),
        ("tcp://[::1]:8786", False),
    ],
)
def test_a_line_to_another_machine_without_tls_is_open(address, warned):
    assert is_open(address) == warned


@pytest.mark.usefixtures("one_thread")
def test_a_scheduler_elsewhere_is_warned_of_in_one_line(cluster, store, said, monkeypatch):
    cluster.scheduler()
    cluster.worker()
    monkeypatch.setattr(
        "atsbook.pool.workers.is_open", lambda scheduler: scheduler == cluster.address
    )
    compute([Slow(0)], store, "cpu", scheduler=cluster.address)
    (line,) = [line for line in said if line.startswith("warning: ")]
    assert cluster.address in line
    assert "use tls://" in line


def certificates(folder):
    """A certificate that signs itself for 127.0.0.1, and its key, as Dask's configuration names
    them.
    """
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP384R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "cluster")])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(
        now + datetime.timedelta(days=1)
    )
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = made.add_extension(here, critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    (folder / "cluster.pem").write_bytes(
        made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "cluster.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    pem, key = str(folder / "cluster.pem"), str(folder / "cluster.key")
    settings = {"tls.ca-file": pem, "require-encryption": True}
    for role in ("scheduler", "worker", "client"):
        settings |= {f"tls.{role}.cert": pem, f"tls.{role}.key": key}
    return {f"distributed.comm.{name}": value for name, value in settings.items()}


@pytest.mark.usefixtures("one_thread")
def test_requests_are_made_over_tls_with_the_certificates_of_dasks_configuration(
    cluster, store, said, expected, tmp_path
):
    import dask as configured

    settings = certificates(tmp_path)
    # As Dask writes the same names in the environment.
    cluster.env |= {
        f"DASK_{name.replace('.', '__').replace('-', '_').upper()}": str(value)
        for name, value in settings.items()
    }
    cluster.address = cluster.address.replace("tcp://", "tls://")
    cluster.start("scheduler", "--host", cluster.address, "--no-dashboard", "--no-show")
    cluster.worker()
    with pytest.raises(
        AtsError, match=r"Dask has no certificates for it \(.*DASK_DISTRIBUTED__COMM__TLS__CA_FILE"
    ):
        compute([Slow(0)], store, "cpu", scheduler=cluster.address)
    with configured.config.set(settings):
        compute([Slow(0), Slow(1)], store, "cpu", scheduler=cluster.address)
    assert tables(store) == {number: expected[number] for number in (0, 1)}
    assert not [line for line in said if line.startswith("warning: ")]
