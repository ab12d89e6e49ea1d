"""Flower's messages between a server and its clients on one machine: the clients answer in
processes that get them through pipes.

Nothing here opens a socket.
"""

import contextlib
import itertools
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Self

import cloudpickle
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.server import History, Server, ServerAppComponents, SimpleClientManager
from flwr.serverapp import Grid, ServerApp

from atslib.errors import AtsError
from atslib.gradients.cpu import keep_to_one_core

FIRST = 1_000  # the node of client k is FIRST + k: Flower's server is node 1
RUN = 1  # Flower's number of a run
TRIES = 5  # in how many processes a message is given to a client, where they are killed
# Flower's own numbers, which have no public name: the app raised; its process ended
RAISED = 2
CRASHED = 8
ENDED = (EOFError, OSError, pickle.UnpicklingError)  # what a pipe gives whose other end is gone
BEGIN = "from atsfed.local_grid import answer_messages; answer_messages()"


class LocalGrid(Grid):
    """A few processes of this machine, in which a client app answers for all clients.

    What a client keeps from message to message, its `Context`, is kept here and goes with each
    message, so that any process can answer it. A client that raises answers with an error. One
    whose process is killed is begun again in a new one, and answers with an error if that happens
    `TRIES` times; no other client notices. One that has not answered in time is ended, and its
    context is that of before.

    Args:
        app: of every client; its node has the `partition-id` k, from 0.
        clients: how many there are.
        processes: how many of them answer at once.
    Raises:
        AtsError: on entry, processes cannot be begun.
    """

    def __init__(self, app: ClientApp, clients: int, processes: int):
        self._contexts = {
            FIRST + client: Context(
                run_id=RUN,
                node_id=FIRST + client,
                node_config={"partition-id": client, "num-partitions": clients},
                state=RecordDict(),
                run_config={},
            )
            for client in range(clients)
        }
        pickled = cloudpickle.dumps(app)  # an app is made of functions within functions
        self._processes = [_Process(pickled) for _ in range(min(processes, clients))]
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(len(self._processes), "client")
        self._sent: dict[str, _Request] = {}
        self._numbers = itertools.count(1)
        self._run = SimpleNamespace(run_id=RUN)

    def __enter__(self) -> Self:
        """Begin the processes here, so that their start takes nothing of a round's time."""
        try:
            for begun in [self._threads.submit(each.begin) for each in self._processes]:
                begun.result()
        except BaseException as error:
            self.close()
            if not isinstance(error, ENDED):
                raise
            raise AtsError(
                "a process for the clients ended as it began; see the messages above"
            ) from None
        for each in self._processes:
            self._idle.put(each)
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """End all processes, whatever they are at."""
        for request in self._sent.values():
            request.give_up()
        self._threads.shutdown()
        for each in self._processes:
            each.end()

    def set_run(self, run: object) -> None:
        """Take Flower's description of the run, of which only its `run_id` counts."""
        self._run = run

    @property
    def run(self) -> object:
        """What has a `run_id`."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """All nodes: none is ever gone."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Have messages answered; the name of each, for `pull_messages`."""
        names = []
        for message in messages:
            request = _Request(message)
            name = str(next(self._numbers))
            self._sent[name] = request
            request.reply = self._threads.submit(self._answer, request)
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Those replies that are there; each is given once."""
        there = [name for name in message_ids if name in self._sent]
        there = [name for name in there if self._sent[name].reply.done()]
        return [self._sent.pop(name).reply.result() for name in there]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """The replies to messages, in their order, but for those that are not there after `timeout`
        seconds.
        """
        names = self.push_messages(messages)
        wait([self._sent[name].reply for name in names], timeout)
        replies = self.pull_messages(names)
        for name in names:
            if late := self._sent.pop(name, None):
                late.give_up()
        return replies

    def _answer(self, request: "_Request") -> Message | None:
        """The reply to a message; None where it has been given up."""
        message = request.message
        node = message.metadata.dst_node_id
        if node not in self._contexts:
            return _failed(message, RAISED, f"there is no node {node}")
        sent = pickle.dumps((message, self._contexts[node]))
        process = self._idle.get()  # as many as threads
        try:
            for _ in range(TRIES):
                try:
                    if not request.is_at(process):
                        return None
                    made = process.answer(sent)
                    break
                except ENDED:
                    process.end()
            else:
                said = f"its process ended {TRIES} times before it had answered"
                return _failed(message, CRASHED, said)
        finally:
            request.is_over()
            self._idle.put(process)
        if isinstance(made, str):
            return _failed(message, RAISED, made)
        reply, self._contexts[node] = made
        return reply


class _Request:
    """A message to be answered, until it is or until it is given up."""

    def __init__(self, message: Message):
        self.message = message
        self.reply: Future[Message | None]
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._given_up = False

    def is_at(self, process: "_Process") -> bool:
        """Say which process begins with it now, and start that if need be; whether it is still
        wanted.
        """
        with self._lock:
            if self._given_up:
                return False
            self._process = process
            process.start()
            return True

    def is_over(self) -> None:
        """The process is free for others."""
        with self._lock:
            self._process = None

    def give_up(self) -> None:
        """End the process that is at it."""
        with self._lock:
            self._given_up = True
            if self._process:
                self._process.kill()


class _Process:
    """A process that answers messages, one after the other, and is started again after its end."""

    def __init__(self, app: bytes):
        self._app = app
        self._process: subprocess.Popen | None = None
        self._loaded = False

    def begin(self) -> None:
        """Start it, and wait until it has loaded the app; or one of `ENDED`."""
        self.start()
        self._load()

    def start(self) -> None:
        """Start it if it is not there."""
        if self._process and self._process.poll() is None:
            return
        self.end()
        path = os.pathsep.join(sys.path)  # it imports what this one can
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        self._loaded = False
        self._process = subprocess.Popen(
            [sys.executable, "-c", BEGIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": threads},
        )

    def answer(self, sent: bytes) -> tuple[Message, Context] | str:
        """A client's reply and its context afterwards, or what it raised; or one of `ENDED`."""
        if not self._loaded:
            self._load()
        return pickle.loads(self._asked(sent))

    def _load(self) -> None:
        self._asked(self._app)
        self._loaded = True

    def _asked(self, sent: bytes) -> bytes:
        pickle.dump(sent, self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)

    def kill(self) -> None:
        """Whoever waits for its answer gets one of `ENDED`."""
        self._process.kill()

    def end(self) -> None:
        """Kill it, if it is there, and close its pipes."""
        if self._process is None:
            return
        self.kill()
        with contextlib.suppress(OSError):  # of what it has not read
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def _failed(message: Message, code: int, said: str) -> Message:
    """A reply in place of a client's, and a line in Flower's log."""
    node = message.metadata.dst_node_id
    logging.getLogger("flwr").warning("node %s: %s", node, said)
    return Message(Error(code=code, reason=said), reply_to=message)


def answer_messages() -> None:
    """What a process does: load the app that comes first, and answer the messages after it, until
    nobody is there to send them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who has begun it is told, and ends it
    # Apart from what a client reads and prints
    asked = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    keep_to_one_core()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    got: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        """A process whose runner is killed ends at once, and not after its client."""
        with contextlib.suppress(EOFError):
            while True:
                got.put(pickle.load(asked))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    pickled = got.get()
    app = None
    made = b""
    while True:
        pickle.dump(made, answers)
        answers.flush()
        sent = got.get()
        try:
            app = app or cloudpickle.loads(pickled)
            message, context = pickle.loads(sent)
            made = pickle.dumps((app(message, context), context))
        except (Exception, SystemExit) as error:
            made = pickle.dumps(_said(error))


def _said(error: BaseException) -> str:
    """A sentence of ours as it is, anything else with where it was raised."""
    if isinstance(error, AtsError):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()


class _Given(Server):
    """A server that runs an app of its own."""

    def __init__(self, app: ServerApp, grid: Grid, context: Context):
        super().__init__(client_manager=SimpleClientManager())
        self._app = app
        self._grid = grid
        self._context = context
        self.error: Exception | None = None

    def fit(self, num_rounds: int, timeout: float | None) -> tuple[History, float]:
        """Run the app. What it raises is kept: raised here, it would leave a thread of Flower's."""
        try:
            self._app(self._grid, self._context)
        except Exception as error:
            self.error = error
        return History(), 0.0

    def disconnect_all_clients(self, timeout: float | None) -> None:
        """They are ended with their grid."""


def run_server(app: ServerApp, grid: LocalGrid) -> None:
    """Run a server app over a grid of ours.

    A message cannot be made before Flower has a number for its sender, which it has where its own
    SuperLink runs the app, or where a `Server` is given as a component. So the app is run as one.
    """
    context = Context(run_id=RUN, node_id=RUN, node_config={}, state=RecordDict(), run_config={})
    given = _Given(app, grid, context)
    ServerApp(server_fn=lambda _: ServerAppComponents(server=given))(grid, context)
    if given.error:
        raise given.error
