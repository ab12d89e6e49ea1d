"""A federation on Flower: its ClientApp, its ServerApp with a tap, and a simulation of all clients on one machine.

Flower is the extra `atslib[federated]`. It reports its use over the network unless FLWR_TELEMETRY_ENABLED is 0, which
is set here before it is loaded.
"""

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from atslib.clients.federated.federation import Federation, answer
from atslib.clients.federated.tap import Tap
from atslib.errors import AtsError
from atslib.gradients.problems import unflatten

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
except ImportError:
    raise AtsError("this needs Flower, which is not installed; `pip install 'atslib[federated]'` brings it") from None

ARRAYS, NUMBERS = "arrays", "numbers"  # names of the records in a message


def _tensors(record: "ArrayRecord") -> dict[str, Tensor]:
    """The arrays of a message by name, as tensors of their own."""
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def client_app(federation: Federation) -> ClientApp:
    """What every participant runs. Its number is the `partition-id` of its node, from 0."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        client, number = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
        model, sent = federation.network(), _tensors(message.content[ARRAYS])
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(sent[name])
        seen = answer(federation, model, client, number)
        names = [name for name, _ in model.named_parameters()]
        rows = unflatten(seen.updates[0].gradients, model)
        arrays = {name: row[0].numpy() for name, row in zip(names, rows, strict=True)}
        numbers = MetricRecord({"num-examples": seen.threat.batch, "client": client})
        content = RecordDict({ARRAYS: _record(arrays), NUMBERS: numbers})
        return Message(content=content, reply_to=message)

    return app


def _record(arrays: dict) -> ArrayRecord:
    return ArrayRecord({name: Array(value) for name, value in arrays.items()})


class Curious(FedAvg):
    """Flower's FedAvg of what clients share, whose server takes a step and keeps all that it sees.

    An answer of other shapes, or with values that are not finite, is left out by name, and the round goes on.
    """

    def __init__(self, federation: Federation, tap: Tap, **options: object):
        nodes = {"min_train_nodes": federation.clients, "min_available_nodes": federation.clients}
        super().__init__(fraction_evaluate=0.0, **nodes, **options)
        self.federation, self.tap, self.weights = federation, tap, {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the weights to all clients, and keep them."""
        self.weights = _tensors(arrays)
        self.tap.begin(server_round, self.weights)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Keep every answer, and move the weights by the mean of those that can be taken."""
        whole = [reply for reply in replies if self._taken(server_round, reply)]
        # In one order: the mean of floats depends on it, and answers come as they come.
        whole.sort(key=lambda reply: reply.content[NUMBERS]["client"])
        mean, numbers = super().aggregate_train(server_round, whole)
        if mean is None:
            return None, None
        step = -self.federation.lr if self.federation.kind == "gradient" else 1.0
        moved = {
            name: self.weights[name] + step * value.to(self.weights[name]) for name, value in _tensors(mean).items()
        }
        self.tap.begin(server_round + 1, moved)
        return _record({name: value.numpy() for name, value in moved.items()}), numbers

    def _taken(self, server_round: int, reply: Message) -> bool:
        """Record an answer; whether it can be part of the mean."""
        if reply.has_error():
            return True  # Flower counts and names it
        numbers = reply.content[NUMBERS]
        try:
            shared = _tensors(reply.content[ARRAYS])
            self.tap.record(server_round, int(numbers["client"]), shared, int(numbers["num-examples"]))
        except AtsError as refused:
            logging.getLogger("flwr").warning("%s", refused)
            return False
        return True


def server_app(federation: Federation, folder: Path | str) -> ServerApp:
    """The curious server: it aggregates, and keeps all that it sees in `folder`, a `Tap`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        tap = Tap(folder, federation)
        first = _record({name: value.detach().numpy() for name, value in tap.network.named_parameters()})
        Curious(federation, tap).start(grid=grid, initial_arrays=first, num_rounds=federation.rounds)

    return app


def simulate(federation: Federation, folder: Path | str, *, processes: int = 2) -> Tap:
    """Run a federation on this machine, its clients in so many processes (Ray), and return what the server saw.

    Raises:
        AtsError: a round got no answer that could be taken.
    """
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.WARNING)
    backend = {
        "init_args": {"num_cpus": processes, "include_dashboard": False, "log_to_driver": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(
        server_app(federation, folder),
        client_app(federation),
        num_supernodes=federation.clients,
        backend_config=backend,
    )
    tap = Tap(folder, federation)
    if len(tap.rounds()) < federation.rounds:
        raise AtsError(f"of {federation.rounds} rounds {len(tap.rounds())} were answered; see the messages above")
    return tap
