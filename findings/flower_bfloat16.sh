#!/usr/bin/env bash
# Flower: a network in bfloat16 cannot be sent, one in float16 can.
#
# Versions: flwr 1.41.0, torch 2.13.0 (the code is the same in flwr 1.42.0)
# Guess: an ArrayRecord takes every state_dict that torch saves.
# Behaviour: arrays go through NumPy, which has no bfloat16: TypeError, of torch and without the
#   array's name. float16 is taken.
# Source: flwr/app/message/array.py, from_torch_tensor.
# Output seen:
#   flwr 1.41.0 torch 2.13.0+cpu
#   float16: taken
#   bfloat16: TypeError: Got unsupported ScalarType BFloat16
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
import torch
from flwr.app import ArrayRecord

print("flwr", flwr.__version__, "torch", torch.__version__)
net = torch.nn.Linear(2, 2)
ArrayRecord(net.half().state_dict())
print("float16: taken")
try:
    ArrayRecord(net.to(torch.bfloat16).state_dict())
except TypeError as error:
    print("bfloat16: TypeError:", error)
else:
    raise AssertionError("bfloat16 is taken now")
PY
