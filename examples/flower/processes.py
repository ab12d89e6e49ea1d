"""`python processes.py OUT [name=value …]`: the app of this folder in real processes on 127.0.0.1, over TLS.

A SuperLink and a SuperNode for each client, whose keys the SuperLink knows; certificates and keys are made for the run.
All processes are ended with it. Names are those of `[tool.flwr.app.config]`, values as TOML writes them.
"""

import datetime
import ipaddress
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from app import federation
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from atsfed import Tap
from atslib.errors import AtsError

HERE = Path(__file__).parent
PEM, BARE = serialization.Encoding.PEM, serialization.NoEncryption()
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}  # nothing leaves this machine


def run(config: dict, folder: Path | str, *, patience: float = 600.0) -> Tap:
    """Run a federation in processes of its own and return what its server saw; rounds that `folder` has are kept.

    Args:
        config: values that differ from those of `[tool.flwr.app.config]`.
        folder: of the tap.
        patience: seconds for which a round waits for its clients, and this function for each next round.
    Raises:
        AtsError: a name or value that is not of the configuration, before anything is started; a process that ended;
            a round without an answer, or that took longer.
    """
    defaults = tomllib.loads((HERE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    if odd := sorted(config.keys() - (defaults.keys() - {"out", "patience"})):
        raise AtsError(
            f"{odd[0]!r} is no name of the configuration, which are {', '.join(defaults)}"
        )
    config = defaults | config | {"out": str(Path(folder).absolute()), "patience": float(patience)}
    trained = federation(config)
    tap = Tap(folder, trained)
    with tempfile.TemporaryDirectory() as own:
        processes = Processes(Path(own), trained.clients)
        try:
            if tap.next() <= trained.rounds:
                processes.superlink()
                for client in range(trained.clients):
                    processes.register(client)
                    processes.supernode(client)
                processes.submit(HERE, config)
            _wait(tap, trained.rounds, processes, patience)
        finally:
            processes.end()
    if empty := [number for number in range(1, trained.rounds + 1) if not tap.clients(number)]:
        raise AtsError(f"round {empty[0]} has no answer: {'; '.join(tap.refused(empty[0]))}")
    return tap


class Processes:
    """A SuperLink on 127.0.0.1, and SuperNodes that it knows by their keys.

    Each process has a log, NAME.log, and a group of its own; what it starts is in its group, and ends with it.

    Args:
        own: a folder for keys, certificates, logs and what the SuperLink keeps.
        clients: how many SuperNodes there are.
    """

    def __init__(self, own: Path, clients: int):
        self.own, self.clients, self.ca = own, clients, own / "ca.pem"
        self.running: dict[str, subprocess.Popen] = {}
        make_keys(own, clients)
        self.port, *self.ports = free_ports(clients + 1)
        self.link = f"127.0.0.1:{self.port}"
        text = f'[superlink]\ndefault = "own"\n[superlink.own]\naddress = "{self.link}"\n'
        (own / "config.toml").write_text(f'{text}root-certificates = "{self.ca}"\n')

    def superlink(self) -> None:
        """Start the SuperLink, on what an earlier one kept, and beside it what starts its ServerApp."""
        tls = ["--ssl-certfile", self.own / "server.pem", "--ssl-keyfile", self.own / "server.key"]
        still = [
            "--ssl-ca-certfile",
            self.ca,
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        ]
        # The SuperExec that a SuperLink starts by itself is in a group of its own: it is not killed with the SuperLink.
        apart = ["--isolation", "process", "--database", self.own / "state.db"]
        here = ["--host", "127.0.0.1", "--port", self.port]
        self.start("superlink", "flower-superlink", *here, *tls, *still, *apart)
        _listening(self.port, self.running["superlink"])
        runtime = ["--runtime-api-address", self.link, "--root-certificates", self.ca]
        self.start("superexec", "flower-superexec", *runtime)

    def register(self, client: int) -> None:
        """Tell the SuperLink the key of a client."""
        self.command("flwr", "supernode", "register", self.own / f"client-{client}.pub", "own")

    def supernode(self, client: int) -> None:
        """Start the SuperNode of a client."""
        node = [
            f"partition-id={client} num-partitions={self.clients}",
            "--port",
            self.ports[client],
        ]
        key = [
            "--auth-supernode-private-key",
            self.own / f"client-{client}.key",
            "--root-certificates",
            self.ca,
        ]
        name = f"supernode-{client}"
        self.start(name, "flower-supernode", "--superlink", self.link, *key, "--node-config", *node)

    def submit(self, app: Path, config: dict) -> None:
        """Hand an app to the SuperLink, with values of its configuration."""
        text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in config.items())
        (self.own / "run.toml").write_text(text)
        self.command("flwr", "run", app, "own", "--run-config", self.own / "run.toml")

    def start(self, name: str, *words: object) -> None:
        """Start a process by its name."""
        with open(self.own / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                list(map(str, words)),
                stdout=log,
                stderr=log,
                env=self._env(),
                start_new_session=True,
            )

    def command(self, *words: object) -> str:
        """Run one command of Flower's; what it says. `AtsError` with that if it fails."""
        done = subprocess.run(
            list(map(str, words)), env=self._env(), capture_output=True, text=True
        )
        if done.returncode:
            raise AtsError(
                f"`{' '.join(map(str, words))}` failed: {' '.join((done.stdout + done.stderr).split())}"
            )
        return done.stdout

    def _env(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return os.environ | QUIET | {"FLWR_HOME": str(self.own), "PATH": path}

    def kill(self, name: str) -> None:
        """End a process, and those that it started, with no time to say anything."""
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def end(self) -> None:
        """End all processes, and those that they started."""
        processes = self.running.values()
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for process in processes:
                try:
                    os.killpg(process.pid, sign)
                except ProcessLookupError:
                    continue
            end = time.monotonic() + 10
            while (
                sign == signal.SIGTERM
                and time.monotonic() < end
                and any(p.poll() is None for p in processes)
            ):
                time.sleep(0.1)
        for process in processes:
            process.wait()


def _listening(port: int, process: subprocess.Popen, patience: float = 120.0) -> None:
    end = time.monotonic() + patience
    while process.poll() is None and time.monotonic() < end:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.2)
    raise AtsError(f"the SuperLink does not answer on port {port}")


def _wait(tap: Tap, rounds: int, processes: Processes, patience: float) -> None:
    """Until the tap has all rounds; the patience is for each."""
    before, end = tap.next(), time.monotonic() + 2 * patience  # for clients to come, and to answer
    while (number := tap.next()) <= rounds:
        if number > before:
            before, end = number, time.monotonic() + 2 * patience
        if ended := [
            name for name, process in processes.running.items() if process.poll() is not None
        ]:
            raise AtsError(f"{ended[0]} ended in round {number}")
        if time.monotonic() > end:
            raise AtsError(f"round {number} was not over after {2 * patience:.0f} seconds")
        time.sleep(0.2)


def free_ports(many: int) -> list[int]:
    """Different ports of 127.0.0.1 that nobody listens on.

    They lie below 32768. Above it Linux, macOS and Windows take ports for connections that go out, and might take one
    of these before its process listens there.
    """
    ports: list[int] = []
    for port in random.SystemRandom().sample(range(20000, 32768), k=12768):
        if len(ports) == many:
            return ports
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:  # somebody listens there
            continue
        ports.append(port)
    raise AtsError(f"fewer than {many} of the ports 20000 to 32767 are free")


def make_keys(folder: Path, clients: int) -> None:
    """A certificate authority, the server's certificate for 127.0.0.1, and a pair of keys for each client.

    Secret keys are for nobody but their owner to read. The authority's is kept nowhere, so that nobody can have another
    certificate from it.
    """
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    (folder / "ca.pem").write_bytes(_certificate("authority", authority, authority, ca=True))
    (folder / "server.pem").write_bytes(_certificate("server", server, authority, ca=False))
    secret(
        folder / "server.key", server.private_bytes(PEM, serialization.PrivateFormat.PKCS8, BARE)
    )
    for client in range(clients):
        key, openssh = ec.generate_private_key(ec.SECP384R1()), serialization.PublicFormat.OpenSSH
        secret(
            folder / f"client-{client}.key",
            key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, BARE),
        )
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, openssh)
        (folder / f"client-{client}.pub").write_bytes(public)


def secret(file: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, from its first byte on."""
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(content)


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey, *, ca: bool
) -> bytes:
    now, issuer = datetime.datetime.now(datetime.UTC), "authority"
    names = [
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, each)]) for each in (name, issuer)
    ]
    made = x509.CertificateBuilder(
        names[1], names[0], key.public_key(), x509.random_serial_number()
    )
    made = made.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(
        now + datetime.timedelta(days=30)
    )
    made = made.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    if not ca:
        here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        made = made.add_extension(x509.SubjectAlternativeName([here]), critical=False)
    return made.sign(signer, hashes.SHA256()).public_bytes(PEM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the processes are ended then too
    try:
        seen = run(tomllib.loads("\n".join(sys.argv[2:])), sys.argv[1])
    except (AtsError, IndexError, tomllib.TOMLDecodeError) as error:
        sys.exit(f"processes.py: {error}" if len(sys.argv) > 1 else __doc__.splitlines()[0])
    for number in seen.rounds():
        print(f"round {number}: answers of clients {', '.join(map(str, seen.clients(number)))}")
