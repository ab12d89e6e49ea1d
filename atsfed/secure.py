"""A federation on Flower with secure aggregation (SecAgg+): the server gets the sum of all answers,
and no single one.

Flower's own protocol: clients mask what they share by numbers that cancel in the sum (Bell et al.
2020, "Secure single-server aggregation with (poly)logarithmic overhead"). In the clear stay who
took part, and with how many images. Values are clipped to ±8 and rounded at random to whole
`STEP`s, by draws that no seed repeats.
"""

import logging
from pathlib import Path

import torch

from atsfed.federation import Federation
from atsfed.flower import ClientApp, Context, Grid, ServerApp, answered
from atsfed.tap import Tap, one_line
from atslib.errors import AtsError

# isort: split
# Only now: where Flower is missing, `flower` has said so.
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.common import FitIns, FitRes, Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

# Flower's own
CLIP = 8.0
LEVELS = 2**22
STEP = 2 * CLIP / LEVELS
RECOVER = (
    2 / 3
)  # share of the clients that must stay to the end; above 1/2, no client's two secrets can both be told


class Participant(NumPyClient):
    """What a client does: `answered`, in the form that Flower's protocol takes."""

    def __init__(self, federation: Federation, client: int):
        self.federation = federation
        self.client = client

    def fit(self, parameters: list, config: dict) -> tuple[list, int, dict]:
        """A round's answer: arrays, number of images, and which client it is."""
        torch.set_num_threads(1)
        model = self.federation.network()
        with torch.no_grad():
            for parameter, sent in zip(model.parameters(), parameters, strict=True):
                parameter.copy_(torch.from_numpy(sent))
        arrays, images = answered(self.federation, model, self.client, config["server-round"])
        return list(arrays.values()), images, {"client": self.client}


def client_app(federation: Federation) -> ClientApp:
    """What every participant runs, as `flower.client_app`, and only its masked answer leaves it."""

    def made(context: Context) -> Client:
        return Participant(federation, int(context.node_config["partition-id"])).to_client()

    return ClientApp(made, mods=[secaggplus_mod])


class Summing(FedAvg):
    """The curious server's side: it takes a step along the mean of all answers, and keeps that,
    which is all it sees.

    A client that is lost on the way is named, and the sum is of the others. One answer cannot be
    left out for what it holds, as nobody sees it: a client that sends nonsense spoils the round.

    Args:
        federation: what is trained.
        tap: which records are kept; its next round is the first that is run.
        patience: seconds for which a round waits for clients that are not connected; then it is of
            those that are.
    """

    def __init__(self, federation: Federation, tap: Tap, *, patience: float):
        self.federation = federation
        self.tap = tap
        self.patience = patience
        self.before = tap.next() - 1  # rounds that an earlier server finished; Flower counts from 1
        self.weights = tap.model(tap.next()) if self.before else federation.network()
        self.asked: set[int] = set()
        super().__init__(fraction_evaluate=0.0, initial_parameters=self._parameters())

    def _parameters(self) -> Parameters:
        return ndarrays_to_parameters(
            [value.detach().numpy() for value in self.weights.parameters()]
        )

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Send the weights to all clients, and keep them."""
        number = self.before + server_round
        self.tap.begin(number, dict(self.weights.named_parameters()))
        # Where too few are left, Flower ends a round without a word to its strategy.
        self.tap.refuse(
            number,
            [f"too few clients stayed in round {number} for a sum; the weights stay as they are"],
        )
        client_manager.wait_for(self.federation.clients, self.patience)
        proxies = list(client_manager.all().values())
        self.asked = {proxy.node_id for proxy in proxies}
        return [(proxy, FitIns(parameters, {"server-round": number})) for proxy in proxies]

    def aggregate_fit(
        self, server_round: int, results: list[tuple[ClientProxy, FitRes]], failures: list
    ) -> tuple[Parameters, dict]:
        """Keep the mean that Flower has written in place of every answer, and move the weights by
        it.
        """
        number = self.before + server_round
        named = dict(self.weights.named_parameters())
        lost = sorted(self.asked - {proxy.node_id for proxy, _ in results})
        refused = [f"node {node} is not in the sum of round {number}" for node in lost]
        arrays = map(torch.from_numpy, parameters_to_ndarrays(results[0][1].parameters))
        mean = {
            name: array.to(named[name].dtype) for name, array in zip(named, arrays, strict=True)
        }
        claimed = [fit.metrics.get("client", -1) for _, fit in results]
        images = {
            client: fit.num_examples for client, (_, fit) in zip(claimed, results, strict=True)
        }
        try:
            if len(images) < len(claimed):
                who = f"the sum of round {number}"
                raise AtsError(
                    f"{who}: two nodes say they are the same client of {claimed}; it is left out"
                )
            self.tap.record_sum(number, mean, images)
        except AtsError as error:
            refused.append(one_line(error))
            mean = {}
        self.tap.refuse(number, refused)
        for sentence in refused:
            logging.getLogger("flwr").warning("%s", sentence)
        step = -self.federation.lr if self.federation.kind == "gradient" else 1.0
        with torch.no_grad():
            for name, change in mean.items():
                named[name] += step * change
        self.tap.begin(number + 1, named)
        return self._parameters(), {}


def server_app(federation: Federation, folder: Path | str, *, patience: float = 600.0) -> ServerApp:
    """The server, as `flower.server_app`; of each round it keeps the sum.

    Fewer clients than two thirds make no round.

    Raises:
        AtsError: a federation of one client, whose answer is the sum, or of more than the
            protocol's numbers hold.
    """
    if not 2 <= federation.clients < 2**32 // LEVELS:
        raise AtsError(
            f"Federation.clients={federation.clients}: secure aggregation is of 2 to {2**32 // LEVELS - 1}"
        )
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        tap = Tap(folder, federation)
        left = ServerConfig(num_rounds=federation.rounds - tap.next() + 1)
        summing = Summing(federation, tap, patience=patience)
        # An answer's weight is a whole number of 1 / LEVELS of the largest there can be.
        protocol = SecAggPlusWorkflow(
            1.0,
            RECOVER,
            max_weight=federation.most,
            clipping_range=CLIP,
            quantization_range=LEVELS,
            timeout=patience,
        )
        DefaultWorkflow(fit_workflow=protocol)(
            grid, LegacyContext(context, config=left, strategy=summing)
        )

    return app
