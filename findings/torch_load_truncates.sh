#!/usr/bin/env bash
# torch: load_state_dict cuts a fraction off where a buffer has another type.
#
# Versions: torch 2.13.0
# Guess: an array of a type that does not fit is refused, as one of another shape is.
# Behaviour: 7.75 becomes 7 in an int64 buffer without a word, 300 becomes 44 in a uint8 one:
#   strict=True says nothing of types.
# Source: torch/nn/modules/module.py, _load_from_state_dict, which compares shapes and copies.
# Output seen:
#   torch 2.13.0+cpu
#   7.75 in int64: 7
#   300 in uint8: 44
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
if [ -n "${FINDINGS_VENV:-}" ]; then
    python=$FINDINGS_VENV/bin/python
else
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check \
        torch==2.13.0 numpy==2.4.6
    python=$tmp/venv/bin/python
fi
"$python" -I - <<'PY'
import torch

print("torch", torch.__version__)
for value, dtype, kept in ((7.75, torch.int64, 7), (300, torch.uint8, 44)):
    net = torch.nn.Module()
    net.register_buffer("counter", torch.zeros((), dtype=dtype))
    net.load_state_dict({"counter": torch.tensor(value)}, strict=True)
    print(f"{value} in {str(dtype)[6:]}: {net.counter.item()}")
    assert net.counter.item() == kept
PY
