#!/usr/bin/env bash
# torch: three spellings of ReLU have three gradients at zero.
#
# Versions: torch 2.13.0
# Guess: relu(x), x.clamp(min=0), maximum(x, 0) are one function with one gradient.
# Behaviour: at exactly 0 (black borders under a layer without bias, a biasless unit that
#   got no input) the gradient is 0, 1 and 0.5.
# Source: tools/autograd/derivatives.yaml (relu through threshold_backward, clamp_min with
#   >=, maximum shared between ties).
# Output seen:
#   torch 2.13.0+cpu
#   relu(x)         slope at 0: 0.0
#   x.clamp(min=0)  slope at 0: 1.0
#   maximum(x, 0)   slope at 0: 0.5
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
x = torch.zeros((), requires_grad=True)
spellings = {
    "relu(x)": (torch.relu, 0.0),
    "x.clamp(min=0)": (lambda t: t.clamp(min=0), 1.0),
    "maximum(x, 0)": (lambda t: torch.maximum(t, torch.zeros(())), 0.5),
}
for name, (function, expected) in spellings.items():
    slope = torch.autograd.grad(function(x), x)[0].item()
    print(f"{name:15} slope at 0: {slope}")
    assert slope == expected
PY
