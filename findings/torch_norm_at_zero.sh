#!/usr/bin/env bash
# torch: the norm's gradient at zero is 0, its second derivative there nan.
#
# Versions: torch 2.13.0
# Guess: since torch sets the slope of a norm at zero to 0, derivatives of that slope are 0
#   too.
# Behaviour: first derivative 0, second nan; std of equal numbers, which looks the same,
#   gives 0 for both. Everything that differentiates a gradient (matching gradients,
#   penalties) turns into nan where a map is all zeros, while training looks healthy.
# Source: torch/csrc/autograd/FunctionsManual.cpp, norm_backward (masked) and std_backward.
# Output seen:
#   torch 2.13.0+cpu
#   norm of zeros: first [0.0, 0.0, 0.0], second [nan, nan, nan]
#   std of equal numbers: first [0.0, 0.0, 0.0], second [0.0, 0.0, 0.0]
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


def both(function, x):
    x = x.requires_grad_()
    (first,) = torch.autograd.grad(function(x), x, create_graph=True)
    return first, torch.autograd.grad(first.sum(), x)[0]


for name, function, x in (("norm of zeros", torch.linalg.vector_norm, torch.zeros(3)), ("std of equal numbers", torch.std, torch.ones(3))):
    first, second = both(function, x)
    print(f"{name}: first {first.tolist()}, second {second.tolist()}")
    assert not first.any() and second.isnan().all() == (function is torch.linalg.vector_norm)
PY
