"""What every client runs."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import Net, load_data
from quickstart.task import train as train_locally

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train on the client's own images, and answer with the weights."""
    torch.set_num_threads(1)
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    config = context.run_config
    loader = load_data(context.node_config["partition-id"], config["images"], config["batch-size"])
    loss = train_locally(net, loader, config["local-epochs"], config["learning-rate"])
    own = {"num-examples": len(loader.dataset), "client": context.node_config["partition-id"]}
    metrics = MetricRecord({"train_loss": loss} | own)
    return Message(
        content=RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}),
        reply_to=msg,
    )
