#!/usr/bin/env bash
# Flower: FedAdam sends the weights on in double precision, FedAvg as they came.
#
# Versions: flwr 1.41.0, torch 2.13.0, numpy 2.4.6 (the code is the same in flwr 1.42.0)
# Guess: weights of float32 stay float32 whatever the strategy.
# Behaviour: FedAdam's result is float64, twice the size on the wire: its learning rate is a numpy
#   scalar of float64, which numpy 2 does not round to the array's type. With FedAvg it is float32.
# Source: flwr/serverapp/strategy/fedadam.py, eta_norm; NEP 50.
# Output seen:
#   flwr 1.41.0 numpy 2.4.6
#   FedAvg: float32
#   FedAdam: float64
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
from flwr.serverapp.strategy import FedAdam, FedAvg
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as Flower's runner sets them


def reply(node, state, examples):
    sent = Message(content=RecordDict(), dst_node_id=node, message_type="train")
    metrics = MetricRecord({"num-examples": examples})
    return Message(content=RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=sent)


print("flwr", flwr.__version__, "numpy", np.__version__)
seen = {}
for strategy in (FedAvg(), FedAdam()):
    strategy.current_arrays = {"w": np.zeros(3, np.float32)}  # as configure_train leaves them
    arrays, _ = strategy.aggregate_train(1, [reply(1, {"w": torch.ones(3)}, 1)])
    seen[type(strategy).__name__] = arrays["w"].dtype
    print(f"{type(strategy).__name__}:", arrays["w"].dtype)
assert seen == {"FedAvg": "float32", "FedAdam": "float64"}
PY
