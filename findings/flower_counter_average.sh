#!/usr/bin/env bash
# Flower: FedAvg makes a fraction of an integer counter, and load_state_dict cuts it off.
#
# Versions: flwr 1.41.0, torch 2.13.0 (the code is the same in flwr 1.42.0)
# Guess: BatchNorm's num_batches_tracked, an int64, is averaged and stays an integer, rounded, or
#   is left alone.
# Behaviour: clients at 7 and 8 batches with 1 and 3 examples give a float64 counter of 7.75; a
#   network that loads it has 7 without a word, below the average and below most clients.
# Source: flwr/serverapp/strategy/strategy_utils.py, aggregate_arrayrecords, which multiplies every
#   array by a share; torch copies into the buffer as Tensor.copy_ does.
# Output seen:
#   flwr 1.41.0 torch 2.13.0+cpu
#   sent: int64
#   averaged: float64 7.75
#   loaded: 7 torch.int64
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
if [ -n "${FINDINGS_VENV:-}" ]; then
    python=$FINDINGS_VENV/bin/python
else
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check \
        flwr==1.41.0 torch==2.13.0 numpy==2.4.6
    python=$tmp/venv/bin/python
fi
"$python" -I - <<'PY'
import flwr
import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as Flower's runner sets them


def reply(node, state, examples):
    sent = Message(content=RecordDict(), dst_node_id=node, message_type="train")
    metrics = MetricRecord({"num-examples": examples})
    return Message(content=RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=sent)


net = torch.nn.BatchNorm1d(2)
print("flwr", flwr.__version__, "torch", torch.__version__)
print("sent:", ArrayRecord(net.state_dict())["num_batches_tracked"].dtype)
replies = []
for node, (batches, examples) in enumerate([(7, 1), (8, 3)], 1):
    state = net.state_dict() | {"num_batches_tracked": torch.tensor(batches)}
    replies.append(reply(node, state, examples))
arrays, _ = FedAvg().aggregate_train(1, replies)
mean = arrays["num_batches_tracked"].numpy()
print("averaged:", mean.dtype, mean)
net.load_state_dict(arrays.to_torch_state_dict())
print("loaded:", net.num_batches_tracked.item(), net.num_batches_tracked.dtype)
assert mean == 7.75 and mean.dtype == np.float64 and net.num_batches_tracked == 7
PY
