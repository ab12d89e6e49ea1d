"""A federation of `atslib` as a Flower app: what is trained, and how, is in `[tool.flwr.app.config]`."""

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from atsfed import Federation
from atsfed.flower import client_app, server_app
from atslib.clients.updates import LocalTraining

client = ClientApp()  # one assignment each: `flwr run` looks for them by name
server = ServerApp()


def federation(config: dict) -> Federation:
    """What the run's configuration says."""
    fields = {name.replace("-", "_"): value for name, value in config.items()}
    epochs = fields.pop("epochs")
    del fields["out"], fields["patience"]
    return Federation(
        **fields, local=LocalTraining(epochs=epochs, lr=fields["lr"]) if epochs else None
    )


@client.train()
def train(message: Message, context: Context) -> Message:
    """One client's answer in a round; its number is the `partition-id` of its node."""
    return client_app(federation(context.run_config))(message, context)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds, with the tap in `out`."""
    config = context.run_config
    out = Path(config["out"]).expanduser()
    server_app(federation(config), out, patience=config["patience"])(grid, context)
