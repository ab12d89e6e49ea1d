"""Kernels that start at once: within `warm` Jupyter kernels are forked from one process that has
imported what pages import. `python atsbook/report/warm_kernels.py COMMAND …` runs a command, and
whatever that runs, in the same way.

A kernel spends some five seconds of processor time on these imports before its page begins, and a
report starts two dozen of them. This is for pages that are executed by the dozen on few cores.

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
from collections.abc import Iterator
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


def serve(address: str, maker: int) -> None:
    """Fork a kernel for each relay that asks, until the process that started this one has ended."""
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [path for path in sys.path if path != here]  # where Python puts a script's folder
    # As ipykernel sets it, but before matplotlib is imported
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    import_all()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a kernel but its relay
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    listener.settimeout(1)
    while os.getppid() == maker:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(None)
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


# --- who wants kernels --------------------------------------------------------------------------


@contextlib.contextmanager
def warm() -> Iterator[dict[str, str]]:
    """The environment in which kernels are forked from a server, which ends at the end.

    It is empty, and kernels start as ever, where there is such a server already, and on systems
    where a process that has imported so much may not be forked.
    """
    if sys.platform != "linux" or ADDRESS in os.environ:
        yield {}
        return
    from ipykernel.kernelspec import get_kernel_dict

    from atslib.errors import AtsError

    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "kernels" / "python3"
        spec.mkdir(parents=True)
        script = str(Path(__file__).resolve())
        usual = get_kernel_dict()
        relayed = [sys.executable, "-I", "-S", script, "--relay"]
        usual["argv"] = [*relayed, *usual["argv"][usual["argv"].index("-f") :]]
        (spec / "kernel.json").write_text(json.dumps(usual))
        address = str(Path(folder) / "socket")
        paths = (folder, os.environ.get("JUPYTER_PATH"))
        one_thread = {"OMP_NUM_THREADS": "1"} | os.environ
        # What the kernels import is found as from here, wherever this was started
        library = (str(Path(script).parents[2]), os.environ.get("PYTHONPATH"))
        one_thread["PYTHONPATH"] = os.pathsep.join(filter(None, library))
        server = subprocess.Popen(
            [sys.executable, script, "--serve", address, str(os.getpid())],
            env=one_thread,
            stdin=subprocess.DEVNULL,
        )
        try:
            while not os.path.exists(address):
                if server.poll() is not None:
                    raise AtsError("the server of kernels ended; the lines above say why")
                time.sleep(0.1)
            yield {ADDRESS: address, "JUPYTER_PATH": os.pathsep.join(filter(None, paths))}
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    if sys.argv[1] == "--relay":
        sys.exit(relay(sys.argv[2:]))
    if sys.argv[1] == "--serve":
        serve(sys.argv[2], int(sys.argv[3]))
        sys.exit()
    with warm() as more:
        sys.exit(subprocess.call(sys.argv[1:], env=os.environ | more))
