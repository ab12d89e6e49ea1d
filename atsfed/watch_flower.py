"""Somebody's own federation on Flower as its server sees it: kept by any strategy, and read back
for attacks.
"""

import copy
import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from atsfed import flower
from atslib.clients.view import Observed, ThreatModel, Update
from atslib.errors import AtsError
from atslib.files import write_atomically
from atslib.models import Normalize, in_mode

# isort: split
# After the module that says which extra is missing.
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy


class Watched(Strategy):
    """A strategy that does what another does, and keeps what the server sends and gets in each
    round of training.

    `Watched(FedAvg(…), "seen")` in a ServerApp, in place of `FedAvg(…)`. Answers have one record of
    arrays.

    Args:
        strategy: any of Flower's strategies, or one's own.
        folder: where it is kept, a folder per round: sent.safetensors, and a file per node that
            answered.
    """

    def __init__(self, strategy: Strategy, folder: Path | str):
        self.strategy = strategy
        self.folder = Path(folder)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keep the weights, and send what the strategy sends."""
        _keep(self.folder, server_round, "sent", arrays, {})
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Keep every answer that is no error, and aggregate as the strategy does."""
        replies = list(replies)
        for reply in replies:
            if not reply.has_error():
                (arrays,) = reply.content.array_records.values()
                numbers = [
                    item
                    for record in reply.content.metric_records.values()
                    for item in record.items()
                ]
                _keep(
                    self.folder,
                    server_round,
                    f"node-{reply.metadata.src_node_id}",
                    arrays,
                    dict(numbers),
                )
        return self.strategy.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As the strategy does."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """As the strategy does."""
        self.strategy.summary()


def watched(
    folder: Path | str,
    number: int,
    network: nn.Module,
    *,
    shape: tuple[int, int, int],
    normalize: Normalize,
    lr: float,
    steps: int,
    by: str = "",
    threat: ThreatModel | None = None,
) -> dict[int, Observed]:
    """What a server saw of each client in a round, as every attack takes it. Labels are not known.

    Args:
        folder: of a `Watched` strategy.
        number: of the round, from 1.
        network: of the federation; its weights are taken from the folder.
        shape: (C, H, W) of an image.
        normalize: what clients do to images in [0, 1] before the network gets them.
        lr, steps: of each client's training: the step size of SGD, and how many steps it took.
        by: the metric that says who a client is, a whole number; "" for Flower's number of its
            node.
        threat: what the server knows; labels are restored by default. Its `batch` is taken from the
            answers' metric `num-examples`.
    Returns:
        One view per client.
    Raises:
        AtsError: no such round, arrays that are not the network's, or an answer that lacks a
            metric.
    """
    place = _round(folder, number)
    if not (place / "sent.safetensors").exists():
        raise AtsError(f"{place} was not recorded")
    model = nn.Sequential(normalize, copy.deepcopy(network))
    threat = threat or ThreatModel(labels="restored")
    sent = _load(model[1], place / "sent.safetensors")
    seen = {}
    names = [name for name, _ in network.named_parameters()]
    for file in sorted(place.glob("node-*.safetensors")):
        with safetensors.safe_open(file, "pt") as data:
            numbers = json.loads(data.metadata()["numbers"]) | {"": file.stem.removeprefix("node-")}
        if missing := {"num-examples", by} - numbers.keys():
            raise AtsError(
                f"{file} has no metric {', '.join(sorted(missing))}; it has {', '.join(sorted(numbers))}"
            )
        got = _load(copy.deepcopy(network), file)
        row = torch.cat([(got[name] - sent[name]).flatten() for name in names])[None]
        mode = threat.victim if threat.batch_norm == "known" else "train"
        update = Update(
            in_mode(model, mode), row, kind="difference", local={"lr": lr, "steps": steps}
        )
        own = dataclasses.replace(threat, batch=int(numbers["num-examples"]))
        seen[int(numbers[by])] = Observed((update,), None, tuple(shape), own)
    return seen


def _round(folder: Path | str, number: int) -> Path:
    return Path(folder) / f"round-{number:05d}"


def _keep(folder: Path, number: int, name: str, arrays: ArrayRecord, numbers: dict) -> None:
    tensors = flower._tensors(arrays)
    facts = {"numbers": json.dumps(numbers)}
    data = safetensors.torch.save(
        {key: value.contiguous() for key, value in tensors.items()}, facts
    )
    file = _round(folder, number) / f"{name}.safetensors"
    write_atomically(file, lambda partial: partial.write_bytes(data))


def _load(network: nn.Module, file: Path) -> dict[str, Tensor]:
    """Fill a network from a file; its tensors by name."""
    tensors = safetensors.torch.load_file(file)
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise AtsError(
            f"{file} has not the arrays of this network: {str(error).splitlines()[1].strip()}"
        ) from None
    return tensors
