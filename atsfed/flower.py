"""A federation on Flower: its ClientApp, and its ServerApp with a tap.

Flower is the extra `atslib[federated]`. It reports its use over the network unless
FLWR_TELEMETRY_ENABLED is 0, which this package sets before Flower is loaded; whoever loads Flower
first, or starts its programs, sets it too.
"""

import io
import logging
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor, nn

from atsfed.federation import Federation, answer
from atsfed.tap import WORD, Tap, one_line
from atslib.errors import AtsError
from atslib.gradients.problems import unflatten

MISSING = "this needs Flower, which is not installed; `pip install 'atslib[federated]'` brings it"
try:
    from flwr.app import (
        Array,
        ArrayRecord,
        ConfigRecord,
        Context,
        Message,
        MetricRecord,
        RecordDict,
    )
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "flwr":
        raise
    raise AtsError(MISSING) from None

# Names of the records in a message
ARRAYS = "arrays"
NUMBERS = "numbers"


def _tensors(record: "ArrayRecord") -> dict[str, Tensor]:
    """The arrays of a message by name, as tensors of their own."""
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def read(record: "ArrayRecord", who: str) -> dict[str, Tensor]:
    """The arrays of a stranger's message by name, as tensors of their own.

    Nothing in them is taken on trust: an array is what the head of its bytes says only if exactly
    so many bytes follow. So no archive is opened, no object is made, and no more memory is taken
    than what came over the wire.

    Args:
        record: of the message.
        who: its sender, for the sentence.
    Raises:
        AtsError: an array cannot be read, or has no numbers in it.
    """
    tensors = {}
    for name, array in record.items():
        try:
            name.encode()  # a name that no file can hold
            values = torch.from_numpy(_numbers(array))
            # NumPy gives an empty array strides of 0, which tensors do not have.
            tensors[name] = (
                values if values.numel() else torch.empty(values.shape, dtype=values.dtype)
            )
        except (
            Exception
        ) as error:  # whatever a stranger's bytes raise, it is that answer which is left out
            reason = one_line(f"{name}: {error or type(error).__name__}", WORD)
            raise AtsError(
                f"{who} shared arrays that cannot be read ({reason}); it is left out"
            ) from None
    return tensors


def _numbers(array: "Array") -> np.ndarray:
    """A copy of an array in this machine's order of bytes, from the bytes of one in NumPy's own
    format.
    """
    if array.stype != "numpy.ndarray":
        raise ValueError(f"it is serialized as {array.stype!r}, not as numpy.ndarray")
    stream = io.BytesIO(array.data)
    if (version := npy.read_magic(stream)) not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of NumPy's format is unknown")
    head = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = head(stream)
    if dtype.kind not in "biuf":
        raise ValueError(f"{dtype} is no kind of number")
    count = 1
    size = len(array.data) - stream.tell()
    for side in shape:
        if not isinstance(side, int) or side < 0:
            raise ValueError(f"its shape {shape} is none")
        count *= side
    if size != count * dtype.itemsize:
        raise ValueError(f"{size} bytes are not an array {shape} of {dtype}")
    flat = np.frombuffer(array.data, dtype, count, stream.tell())
    # In memory by rows, as tensors are: a copy, since the bytes are the message's.
    return np.array(
        flat.reshape(shape, order="F" if fortran else "C"), dtype.newbyteorder("="), order="C"
    )


def answered(
    federation: Federation, model: nn.Module, client: int, number: int
) -> tuple[dict, int]:
    """A client's answer in a round to a network's weights: arrays by parameter, and its number of
    images.
    """
    seen = answer(federation, model, client, number)
    rows = unflatten(seen.updates[0].gradients, model)
    arrays = {
        name: row[0].numpy() for (name, _), row in zip(model.named_parameters(), rows, strict=True)
    }
    return arrays, seen.threat.batch


def client_app(federation: Federation) -> ClientApp:
    """What every participant runs. Its number is the `partition-id` of its node, from 0."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        client = int(context.node_config["partition-id"])
        number = int(message.content["config"]["server-round"])
        model = federation.network()
        sent = _tensors(message.content[ARRAYS])
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(sent[name])
        arrays, images = answered(federation, model, client, number)
        numbers = MetricRecord({"num-examples": images, "client": client})
        content = RecordDict({ARRAYS: _record(arrays), NUMBERS: numbers})
        return Message(content=content, reply_to=message)

    return app


def _record(arrays: dict) -> ArrayRecord:
    return ArrayRecord({name: Array(value) for name, value in arrays.items()})


class Curious(FedAvg):
    """Flower's FedAvg of what clients share, whose server takes a step and keeps all that it sees.

    An answer that cannot be read, is of other shapes, or has values that are not finite, is left
    out by name, and the round goes on. A client is the node that first answered under its number:
    no other node can answer for it. A round without any answer that can be taken leaves the weights
    as they were. A server that is started again goes on with the tap's next round.

    Args:
        federation: what is trained.
        tap: which records are kept; its next round is the first that is run.
        patience: seconds for which a round waits for clients that are not connected; then it is of
            those that are.
    """

    def __init__(self, federation: Federation, tap: Tap, *, patience: float = 600.0):
        super().__init__(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
        self.federation = federation
        self.tap = tap
        self.patience = patience
        self.weights: dict[str, Tensor] = {}
        self.nodes: dict[int, int] = {}  # of each client
        self.asked: set[int] = set()
        self.before = tap.next() - 1  # rounds that an earlier server finished; Flower counts from 1

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the weights to all clients, and keep them."""
        number = self.before + server_round
        self.weights = _tensors(arrays)
        self.tap.begin(number, self.weights)
        end = time.monotonic() + self.patience
        # Flower's own wait has no end; a round of nobody is none, so the first client is waited
        # for.
        while not (nodes := list(grid.get_node_ids())) or (
            len(nodes) < self.federation.clients and time.monotonic() < end
        ):
            time.sleep(0.2)
        self.asked = set(nodes)
        config["server-round"] = number
        content = RecordDict({ARRAYS: arrays, "config": config})
        return [Message(content=content, message_type="train", dst_node_id=node) for node in nodes]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Keep every answer, and move the weights by the mean of those that can be taken."""
        number = self.before + server_round
        taken = {}
        failed = []
        refused = []
        silent = set(self.asked)
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error():
                failed.append(reply)
                # Flower answers in its own name for a node that is gone, which is then still among
                # the silent ones.
                if node in silent:
                    refused.append(f"node {node} failed in round {number}")
                    silent.remove(node)
                continue
            silent.discard(node)
            try:
                client, shared, images = self._checked(number, reply)
            except AtsError as error:
                refused.append(one_line(error))
                continue
            self.tap.record(
                number, client, shared, images
            )  # a full disk is the server's fault, and no answer's
            self.nodes[client] = node
            # Flower averages what was checked, and no byte that was not.
            arrays = _record({name: value.numpy() for name, value in shared.items()})
            numbers = MetricRecord({"num-examples": images, "client": client})
            reply.content = RecordDict({ARRAYS: arrays, NUMBERS: numbers})
            taken[client] = reply
        refused += [f"node {node} did not answer in round {number}" for node in sorted(silent)]
        # In one order: the mean of floats depends on it, and answers come as they come.
        whole = [taken[client] for client in sorted(taken)]
        if not whole:
            refused.append(
                f"round {number} got no answer that can be taken; the weights stay as they are"
            )
        self.tap.refuse(number, refused)
        for sentence in refused:
            logging.getLogger("flwr").warning("%s", sentence)
        mean, numbers = super().aggregate_train(number, whole + failed)
        step = -self.federation.lr if self.federation.kind == "gradient" else 1.0
        moved = self.weights
        if mean is not None:
            moved = {
                name: moved[name] + step * value.to(moved[name])
                for name, value in _tensors(mean).items()
            }
        if not all(value.isfinite().all() for value in moved.values()):
            said = f"the mean of round {number} is beyond the numbers there are; the weights stay as they are"
            logging.getLogger("flwr").warning("%s", said)
            self.tap.refuse(number, [*refused, said])
            moved = self.weights
        self.tap.begin(number + 1, moved)
        return _record({name: value.numpy() for name, value in moved.items()}), numbers

    def _checked(self, number: int, reply: Message) -> tuple[int, dict[str, Tensor], int]:
        """Client, arrays and number of images of an answer.

        `AtsError` with its sender's name if it cannot be taken.
        """
        node = reply.metadata.src_node_id
        content = reply.content
        who = f"node {node} in round {number}"
        fields = {name: sorted(record) for name, record in content.items()}
        # Flower ends the whole round where one answer has a field that others lack.
        kinds = list(content.array_records), list(content.metric_records)
        if (
            kinds != ([ARRAYS], [NUMBERS])
            or len(fields) != 2
            or fields[NUMBERS] != ["client", "num-examples"]
        ):
            shown = one_line(list(fields), WORD)
            raise AtsError(
                f"{who} shared the records {shown}, not {ARRAYS} and {NUMBERS} as agreed; it is left out"
            )
        client = content[NUMBERS]["client"]
        images = content[NUMBERS]["num-examples"]
        if (
            type(client) is not int
            or type(images) is not int
            or not 0 <= client < self.federation.clients
        ):
            claim = one_line(f"client {client!r} with {images!r} images", WORD)
            raise AtsError(f"{who} says it is {claim}: no such client; it is left out")
        owner = self.nodes.get(client, node)
        own = next((known for known, other in self.nodes.items() if other == node), client)
        if owner != node or own != client:
            known = f"which is node {owner}" if owner != node else f"and was client {own}"
            raise AtsError(f"{who} says it is client {client}, {known}; it is left out")
        shared = read(content[ARRAYS], who)
        self.tap.check(number, client, shared, images)
        return client, shared, images


def server_app(federation: Federation, folder: Path | str, *, patience: float = 600.0) -> ServerApp:
    """The curious server: it aggregates, and keeps all that it sees in `folder`, a `Tap`; started
    again it goes on.

    Args:
        federation: what is trained.
        folder: of the tap.
        patience: seconds that a round waits for clients to be there, and then for their answers.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        tap = Tap(folder, federation)
        network = tap.model(tap.next()) if tap.next() > 1 else tap.network
        first = _record(
            {name: value.detach().numpy() for name, value in network.named_parameters()}
        )
        left = federation.rounds - tap.next() + 1
        curious = Curious(federation, tap, patience=patience)
        curious.start(grid=grid, initial_arrays=first, num_rounds=left, timeout=patience)

    return app
