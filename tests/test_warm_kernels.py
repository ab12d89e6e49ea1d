"""Kernels that are forked from a process that has imported everything: to Jupyter they are like
others.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.manager import start_new_kernel

from atsbook.report import warm_kernels

pytestmark = [
    pytest.mark.notebook,
    pytest.mark.jupyter,
    pytest.mark.skipif(sys.platform != "linux", reason="forks there alone"),
]
SCRIPT = Path(warm_kernels.__file__)
# As the command starts it, but for the imports, which take seconds
SERVER = "import sys, warm_kernels as w; w.import_all = lambda: None; w.serve(sys.argv[1], int(sys.argv[2]))"


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A started kernel behind its relay, and a client of it."""
    address = tmp_path / "socket"
    spec = tmp_path / "kernels" / "python3"
    spec.mkdir(parents=True)
    relayed = [sys.executable, str(SCRIPT), "--relay", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps(get_kernel_dict() | {"argv": relayed}))
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(address), str(os.getpid())],
        env=os.environ | {"PYTHONPATH": str(SCRIPT.parent)},
    )
    monkeypatch.delenv("PYTHONPATH", raising=False)  # other tests may have set it
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("ATS_WARM_KERNELS", str(address))
    monkeypatch.setenv("MARK", "in its environment")
    until(address.exists)
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    yield manager, client, server.pid
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    server.kill()
    server.wait()


def until(true, seconds=60):
    """Wait for a condition; fail if it does not come."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "not so after a minute"
        time.sleep(0.05)


def printed(client, code):
    """What a cell prints, and the name of its error or None."""
    lines = []

    def hear(message):
        if message["msg_type"] == "stream":
            lines.append(message["content"]["text"])

    reply = client.execute_interactive(code, output_hook=hear, timeout=60)
    return "".join(lines), reply["content"].get("ename")


def runs(process):
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_kernel_has_the_folder_and_the_environment_of_who_started_it(kernel, tmp_path):
    _, client, server = kernel
    of_environment = "os.environ['MARK'], int(os.environ['JPY_PARENT_PID'])"
    facts = f"os.getcwd(), {of_environment}, os.getppid(), sys.path"
    text, error = printed(client, f"import json, os, sys; print(json.dumps([{facts}]))")
    assert error is None
    folder, mark, maker, parent, paths = json.loads(text)
    assert (folder, mark) == (str(tmp_path), "in its environment")
    assert (maker, parent) == (os.getpid(), server)
    assert str(SCRIPT.parent) not in paths


def test_a_cell_can_be_interrupted_and_the_next_one_runs(kernel):
    manager, client, _ = kernel
    asked = client.execute("import time; time.sleep(600)")
    until(lambda: client.get_iopub_msg(timeout=60)["msg_type"] == "execute_input")
    manager.interrupt_kernel()
    reply = client.get_shell_msg(timeout=60)
    while reply["parent_header"]["msg_id"] != asked:  # answers to what was asked while it started
        reply = client.get_shell_msg(timeout=60)
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert printed(client, "print(2 + 2)") == ("4\n", None)


def test_a_kernel_ends_with_its_relay_and_the_relay_with_its_kernel(kernel):
    manager, client, _ = kernel
    number = int(printed(client, "import os; print(os.getpid())")[0])
    os.kill(manager.provisioner.pid, signal.SIGKILL)
    until(lambda: not runs(number))
    manager.restart_kernel(now=True)
    client.wait_for_ready(timeout=60)
    other = int(printed(client, "import os; print(os.getpid())")[0])
    assert other != number
    os.kill(other, signal.SIGKILL)
    until(lambda: not manager.is_alive())


def test_the_commands_status_is_that_of_the_whole():
    command = [sys.executable, str(SCRIPT), sys.executable, "-c", "raise SystemExit(7)"]
    assert subprocess.run(command, cwd=SCRIPT.parents[2], check=False).returncode == 7


def test_the_server_ends_with_who_started_it(tmp_path):
    server = "[sys.executable, '-c', *sys.argv[1:], str(os.getpid())]"
    code = f"import os, subprocess, sys\nprint(subprocess.Popen({server}, stdout=2).pid)"
    maker = subprocess.run(
        [sys.executable, "-c", code, SERVER, str(tmp_path / "socket")],
        env=os.environ | {"PYTHONPATH": str(SCRIPT.parent)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    until(lambda: not runs(int(maker.stdout)))
