#!/usr/bin/env bash
# Opacus: a channels-last batch gives silently wrong per-sample gradients.
#
# Versions: opacus 1.6.0, torch 2.13.0
# Guess: the memory format changes the speed, never the result.
# Behaviour: with the very same numbers in channels-last order the outputs and `.grad` are
#   right and the convolution's `.grad_sample` is 65 to 90 % off; nothing is said.
# Source: opacus/utils/tensor_utils.py, unfold2d (reads the strides of the activations by
#   position).
# Output seen:
#   torch 2.13.0+cpu opacus 1.6.0
#   contiguous: per-sample gradients 0% off, .grad right: True
#   channels-last: per-sample gradients 65% off, .grad right: True
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

torch.manual_seed(0)
conv = nn.Conv2d(3, 6, 3, padding=1)
net = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(384, 5))
x, y = torch.rand(4, 3, 8, 8), torch.arange(4)
true = torch.stack(
    [torch.autograd.grad(F.cross_entropy(net(x[i : i + 1]), y[i : i + 1]), conv.weight)[0] for i in range(4)]
)
wrapped = GradSampleModule(net)
for name, batch in (("contiguous", x), ("channels-last", x.contiguous(memory_format=torch.channels_last))):
    wrapped.zero_grad()
    F.cross_entropy(wrapped(batch), y).backward()
    off = ((conv.weight.grad_sample - true).norm() / true.norm()).item()
    mean = ((conv.weight.grad - true.mean(0)).norm() / true.mean(0).norm()).item()
    print(f"{name}: per-sample gradients {off:.0%} off, .grad right: {mean < 1e-4}")
    assert torch.equal(batch, x) and mean < 1e-4 and (off > 0.5 if name == "channels-last" else off < 1e-4)
PY
