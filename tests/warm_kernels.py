"""Kernels that start at once: `python tests/warm_kernels.py COMMAND …` runs a command, and whatever
that runs, in an environment where Jupyter kernels are forked from one process that has imported
what pages import.

A kernel spends some five seconds of processor time on these imports before its page begins, and
`make check` and `make test` start eighty kernels. Nobody else needs this: it is for pages that are
executed by the dozen on few cores.

Three processes take part. The *server* imports, listens on a socket and forks. To Jupyter a kernel
is the *relay*, a small process that asks the server for one, hands it its output, passes signals on
and ends when it ends. The *kernel* is the fork; it ends when its relay does.
"""

import array
import contextlib
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ADDRESS = "ATS_WARM_KERNELS"  # the server's socket
LENGTH = 8  # bytes of a message's length


def receive(connection: socket.socket, count: int) -> bytes:
    """So many bytes, or fewer where the other side has ended."""
    data = b""
    while len(data) < count and (part := connection.recv(count - len(data))):
        data += part
    return data


# --- the relay ----------------------------------------------------------------------------------


def relay(arguments: list[str]) -> int:
    """Ask for a kernel and wait until it ends; its status, or 1 where it was killed."""
    parent = os.getppid()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ[ADDRESS])
    asked = json.dumps(
        {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    ).encode()
    outputs = array.array("i", [1, 2])
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, outputs)]
    connection.sendmsg([len(asked).to_bytes(LENGTH, "big")], rights)
    connection.sendall(asked)
    kernel = int.from_bytes(receive(connection, LENGTH), "big")

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(kernel, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    while not select.select([connection], [], [], 1)[0]:
        if os.getppid() != parent:  # who started it was killed
            return 1
    ended = receive(connection, 1)
    return ended[0] if ended else 1


# --- the server ---------------------------------------------------------------------------------


def import_all() -> None:
    """Import what pages import: the book's modules, and with them torch, pandas and the rest."""
    import ipykernel.kernelapp  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import pandas as pd
    import torch._dynamo  # noqa: F401

    import atsbook

    pd.set_option("display.max_columns", 20)  # pandas takes this process for a terminal
    for module in pkgutil.walk_packages(atsbook.__path__, "atsbook."):
        if not module.name.endswith(("__main__", "start_papermill")):
            importlib.import_module(module.name)


def serve(address: str) -> None:
    """Fork a kernel for each relay that asks, for ever."""
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [path for path in sys.path if path != here]  # a page does not see the tests
    # As ipykernel sets it, but before matplotlib is imported
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    import_all()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a kernel but its relay
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            become_kernel(connection)
        connection.close()


def become_kernel(connection: socket.socket) -> None:
    """Turn this fork into the kernel that a relay has asked for; it never returns."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        outputs = array.array("i")
        head, rights, *_ = connection.recvmsg(LENGTH, socket.CMSG_SPACE(2 * outputs.itemsize))
        outputs.frombytes(rights[0][2])
        for place, given in enumerate(outputs, 1):
            os.dup2(given, place)
            os.close(given)
        asked = json.loads(receive(connection, int.from_bytes(head, "big")))
        connection.sendall(os.getpid().to_bytes(LENGTH, "big"))
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [path for path in paths if path and path not in sys.path]
        threading.Thread(target=end_with, args=(connection,), daemon=True).start()
        sys.argv = ["ipykernel_launcher", *asked["arguments"]]
        from ipykernel import kernelapp

        # 1: it need not watch who started it (JPY_PARENT_PID), the relay does
        kernelapp.launch_new_instance(parent_handle=1)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(bytes([status % 256]))
        os._exit(status % 256)


def end_with(connection: socket.socket) -> None:
    """End the process when the other side of a connection has ended."""
    connection.recv(1)
    os._exit(1)


# --- the command --------------------------------------------------------------------------------


def main() -> int:
    """Run a command with the server beside it; the command's status."""
    if sys.platform != "linux":  # elsewhere a process that has imported so much may not be forked
        return subprocess.call(sys.argv[1:])
    from ipykernel.kernelspec import get_kernel_dict

    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "kernels" / "python3"
        spec.mkdir(parents=True)
        relayed = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), "--relay"]
        usual = get_kernel_dict()
        usual["argv"] = [*relayed, *usual["argv"][usual["argv"].index("-f") :]]
        (spec / "kernel.json").write_text(json.dumps(usual))
        address = str(Path(folder) / "socket")
        paths = (folder, os.environ.get("JUPYTER_PATH"))
        environment = os.environ | {
            ADDRESS: address,
            "JUPYTER_PATH": os.pathsep.join(filter(None, paths)),
        }
        one_thread = {"OMP_NUM_THREADS": "1"} | os.environ
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", address]
        server = subprocess.Popen(command, env=one_thread, stdin=subprocess.DEVNULL)
        try:
            while not os.path.exists(address):
                if server.poll() is not None:
                    return server.returncode
                time.sleep(0.1)
            return subprocess.call(sys.argv[1:], env=environment)
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    if sys.argv[1] == "--relay":
        sys.exit(relay(sys.argv[2:]))
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    sys.exit(main())
