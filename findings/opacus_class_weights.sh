#!/usr/bin/env bash
# Opacus: with class weights a per-sample gradient depends on the other images of the batch.
#
# Versions: opacus 1.6.0, torch 2.13.0
# Guess: `grad_sample` is each image's own gradient, also with cross_entropy(weight=w): its
#   length before clipping has nothing to do with its neighbours.
# Behaviour: torch divides the batch's loss by the weights that are present, and Opacus
#   multiplies by the number of images: the same image has its own gradient, or 0.011 times
#   it, as the classes around it change.
# Source: opacus/grad_sample/grad_sample_module.py, rearrange_grad_samples (loss_reduction
#   'mean' is a multiplication by the batch's size); the formula in
#   torch.nn.CrossEntropyLoss's documentation.
# Output seen:
#   torch 2.13.0+cpu opacus 1.6.0
#   nine others of class 0: the first image's gradient is 1.000 times its own
#   nine others of class 1: the first image's gradient is 0.011 times its own
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
if [ -n "${FINDINGS_VENV:-}" ]; then
    python=$FINDINGS_VENV/bin/python
else
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check \
        torch==2.13.0 numpy==2.4.6 opacus==1.6.0
    python=$tmp/venv/bin/python
fi
"$python" -I - <<'PY'
import warnings

import opacus
import torch
import torch.nn.functional as F
from opacus import GradSampleModule
from torch import nn

warnings.simplefilter("ignore")
print("torch", torch.__version__, "opacus", opacus.__version__)

weight = torch.tensor([1.0, 100.0])
torch.manual_seed(0)
net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
x = torch.rand(10, 12)
(alone,) = torch.autograd.grad(F.cross_entropy(net(x[:1]), torch.tensor([0]), weight=weight), net[1].weight)
wrapped = GradSampleModule(net)
factors = []
for other in (0, 1):
    labels = torch.tensor([0] + [other] * 9)
    wrapped.zero_grad()
    F.cross_entropy(wrapped(x), labels, weight=weight).backward()
    factors.append((net[1].weight.grad_sample[0].norm() / alone.norm()).item())
    print(f"nine others of class {other}: the first image's gradient is {factors[-1]:.3f} times its own")
assert abs(factors[0] - 1) < 1e-3 and factors[1] < 0.02
PY
