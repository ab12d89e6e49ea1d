#!/usr/bin/env bash
# torch: GroupNorm with one value a group is refused for one image and silently constant for two.
#
# Versions: torch 2.13.0
# Guess: GroupNorm does not look at the batch, so that one value a group is either refused
#   for every batch or for none.
# Behaviour: one value a group (as many groups as channels on a 1 x 1 map) raises ValueError
#   for one image, in eval mode too; for two images nothing is raised, each output is its
#   bias and the gradient of the input vanishes.
# Source: torch/nn/functional.py, group_norm: the check counts the batch among the values of
#   a group.
# Output seen:
#   torch 2.13.0+cpu
#   one image: Expected more than 1 value per channel when training, got input size [1, 4, 1, 1]
#   two images: outputs all 0: True - gradient all 0: True
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
from torch import nn

layer = nn.GroupNorm(4, 4).eval()
print("torch", torch.__version__)
torch.manual_seed(0)
try:
    layer(torch.randn(1, 4, 1, 1))
except ValueError as error:
    print("one image:", error)
else:
    raise AssertionError("one image is taken now")
x = torch.randn(2, 4, 1, 1, requires_grad=True)
out = layer(x)
(gradient,) = torch.autograd.grad((out * torch.randn_like(out)).sum(), x)
print("two images: outputs all 0:", bool((out.abs() < 1e-3).all()), "- gradient all 0:", bool((gradient.abs() < 1e-3).all()))
assert (out.abs() < 1e-3).all() and (gradient.abs() < 1e-3).all() and x.abs().min() > 0.05
PY
