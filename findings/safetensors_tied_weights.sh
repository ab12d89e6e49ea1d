#!/usr/bin/env bash
# safetensors: a file of save_model lacks the second name of a shared array.
#
# Versions: safetensors 0.8.0, torch 2.13.0
# Guess: save_model writes what state_dict has, and load_file with load_state_dict reads it
#   back.
# Behaviour: of two names for one array one is left out (it is named in the file's
#   metadata): load_state_dict on what load_file gives raises for a missing key. Only
#   load_model knows.
# Source: safetensors/torch.py, save_model, load_model and _remove_duplicate_names.
# Output seen:
#   torch 2.13.0+cpu safetensors 0.8.0
#   missing in the file: second.weight
#   metadata: {'second.weight': 'first.weight'}
#   load_state_dict: Missing key(s) in state_dict: "second.weight".
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
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_model
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight


net = Tied()
save_model(net, "tied.safetensors")
print("torch", torch.__version__, "safetensors", safetensors.__version__)
missing = set(net.state_dict()) - set(load_file("tied.safetensors"))
print("missing in the file:", *missing)
with safe_open("tied.safetensors", "pt") as file:
    print("metadata:", file.metadata())
try:
    net.load_state_dict(load_file("tied.safetensors"))
except RuntimeError as error:
    print("load_state_dict:", str(error).splitlines()[-1].strip())
else:
    raise AssertionError("all names are there now")
assert load_model(Tied(), "tied.safetensors") == (set(), []) and missing == {"second.weight"}
PY
