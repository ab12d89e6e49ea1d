"""A federation of `atslib` as a Flower app, in which clients that are named spoil their answers in
named rounds.
"""

import dataclasses
import time
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from atsfed import Federation
from atsfed.flower import ARRAYS, client_app, server_app

FEDERATION = Federation(
    dataset="shapes", model="lenet-4", clients=3, rounds=3, batch=8, defense="3-1-7"
)
UNKNOWN = "3-1-77"  # no policy
client = ClientApp()
server = ServerApp()


def federation(config: dict) -> Federation:
    """What the server of this run trains."""
    return dataclasses.replace(FEDERATION, defense=config["defense"])


def fault(config: dict, number: int, who: int) -> str:
    """What a client does wrong in a round; "" for nothing."""
    named = {
        tuple(map(int, words[:2])): words[2]
        for words in map(str.split, config["faults"].split(","))
        if words
    }
    return named.get((number, who), "")


def wait(gate: Path, number: int, who: int) -> None:
    """Say that this client is at work in the round, and go on when the round's file is there."""
    (gate / f"{number}-{who}").touch()
    while not (gate / f"{number}-open").exists():
        time.sleep(0.1)


@client.train()
def train(message: Message, context: Context) -> Message:
    """The answer of `client_app`, spoiled: with "nan"s, of a wrong "shape", or of a "policy" that
    nobody knows.
    """
    who, number = (
        int(context.node_config["partition-id"]),
        int(message.content["config"]["server-round"]),
    )
    config = context.run_config
    kind, trained = fault(config, number, who), federation(config)
    if kind == "wait":
        wait(Path(config["gate"]), number, who)
    if kind == "policy":
        trained = dataclasses.replace(trained, defense=UNKNOWN)
    reply = client_app(trained)(message, context)
    arrays = {name: array.numpy() for name, array in reply.content[ARRAYS].items()}
    last = list(arrays)[-1]
    if kind == "nan":
        arrays[last] = arrays[last] * float("nan")
    if kind == "shape":
        arrays[last] = arrays[last][1:]
    reply.content[ARRAYS] = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    return reply


@server.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds, as `server_app` runs them."""
    config = context.run_config
    server_app(federation(config), config["out"], patience=config["patience"])(grid, context)
