#!/usr/bin/env bash
# NVFlare: the aggregated counter of BatchNorm is no whole number any more.
#
# Versions: nvflare 2.9.0, numpy 2.4.6, torch 2.13.0
# Guess: FedAvg averages the weights; the integer buffer `num_batches_tracked`, which clients
#   send along in their state dicts, stays int64.
# Behaviour: the helper that FedAvg aggregates with multiplies every array by the client's
#   weight and divides by the sum, counters too. Of clients with 10 and 3 batches and weights 1
#   and 3 comes 4.75 in float64. So it is saved in FL_global_model.pt and sent to all in the next
#   round, where `load_state_dict` silently makes 4 of it; with equal counters it is a whole
#   number, yet in float64, and what a client sends back as a difference is float64 too.
# Source: nvflare/app_common/aggregators/weighted_aggregation_helper.py.
# Output seen:
#   nvflare 2.9.0 numpy 2.4.6 torch 2.13.0+cpu
#   aggregated: 4.75 float64, weights float32
#   loaded by PyTorch: 4
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
if [ -n "${FINDINGS_VENV:-}" ]; then
    python=$FINDINGS_VENV/bin/python
else
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check \
        nvflare==2.9.0 numpy==2.4.6 torch==2.13.0
    python=$tmp/venv/bin/python
fi
"$python" -W ignore -I - <<'PY'
import importlib.metadata

import numpy as np
import torch
from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper

print("nvflare", importlib.metadata.version("nvflare"), "numpy", np.__version__, "torch", torch.__version__)
helper = WeightedAggregationHelper()
for name, batches, weight in (("site-1", 10, 1.0), ("site-2", 3, 3.0)):
    norm = torch.nn.BatchNorm1d(2)
    norm.num_batches_tracked.fill_(batches)
    sent = {key: value.numpy() for key, value in norm.state_dict().items()}
    assert sent["num_batches_tracked"].dtype == np.int64
    helper.add(sent, weight, name, 0)
mean = helper.get_result()
counter = mean["num_batches_tracked"]
print(f"aggregated: {float(counter)} {counter.dtype}, weights {mean['weight'].dtype}")
assert float(counter) == 4.75 and counter.dtype == np.float64
norm = torch.nn.BatchNorm1d(2)
norm.load_state_dict({key: torch.as_tensor(value) for key, value in mean.items()})
print("loaded by PyTorch:", int(norm.num_batches_tracked))
assert int(norm.num_batches_tracked) == 4
PY
