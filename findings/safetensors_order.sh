#!/usr/bin/env bash
# safetensors: a file does not keep the order of the network's arrays.
#
# Versions: safetensors 0.8.0, torch 2.13.0
# Guess: load_file(...) gives the arrays in the order in which they were saved, as
#   torch.load does, so that list(values) fits a network's list of parameters.
# Behaviour: arrays are sorted by type and then by name: the BatchNorm counter comes first,
#   biases before weights, layer 10 before layer 2. Engines that send lists of arrays
#   without names mix them up, without a word where shapes agree.
# Source: safetensors/src/tensor.rs, prepare (sorts by dtype, then name).
# Output seen:
#   torch 2.13.0+cpu safetensors 0.8.0
#   saved:  0.weight 0.bias 1.weight 1.bias 1.running_mean 1.running_var 1.num_batches_tracked 2.weight 2.bias ...
#   loaded: 1.num_batches_tracked 0.bias 0.weight 1.bias 1.running_mean 1.running_var 1.weight 10.bias 10.weight ...
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
if [ -n "${FINDINGS_VENV:-}" ]; then
    python=$FINDINGS_VENV/bin/python
else
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check \
        torch==2.13.0 numpy==2.4.6 safetensors==0.8.0
    python=$tmp/venv/bin/python
fi
"$python" -I - <<'PY'
import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import nn

net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), *[nn.Linear(4, 4) for _ in range(9)])
save_file(net.state_dict(), "weights.safetensors")
saved, loaded = list(net.state_dict()), list(load_file("weights.safetensors"))
print("torch", torch.__version__, "safetensors", safetensors.__version__)
print("saved: ", *saved[:9], "...")
print("loaded:", *loaded[:9], "...")
assert sorted(saved) == sorted(loaded) and saved != loaded
assert loaded[0] == "1.num_batches_tracked" and loaded.index("10.weight") < loaded.index("2.weight")
PY
