#!/usr/bin/env bash
# Opacus: per-sample gradients of a convolution with another padding than zeros are silently wrong.
#
# Versions: opacus 1.6.0, torch 2.13.0
# Guess: padding_mode='circular', 'reflect' or 'replicate' is either supported or refused
#   when the network is wrapped.
# Behaviour: the forward pass and `.grad` are right, but `.grad_sample`, which is what is
#   clipped, is computed as if the border were padded with zeros: 20 to 50 % off, without a
#   message.
# Source: opacus/grad_sample/conv.py, compute_conv_grad_sample (uses layer.padding, never
#   layer.padding_mode).
# Output seen:
#   torch 2.13.0+cpu opacus 1.6.0
#   zeros: per-sample gradients 0% off, .grad right: True
#   circular: per-sample gradients 29% off, .grad right: True
#   reflect: per-sample gradients 31% off, .grad right: True
#   replicate: per-sample gradients 28% off, .grad right: True
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


def errors(padding_mode):
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 6, 3, padding=1, padding_mode=padding_mode)
    net = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(384, 5))
    x, y = torch.rand(4, 3, 8, 8), torch.arange(4)
    true = torch.stack(
        [torch.autograd.grad(F.cross_entropy(net(x[i : i + 1]), y[i : i + 1]), conv.weight)[0] for i in range(4)]
    )
    F.cross_entropy(GradSampleModule(net)(x), y).backward()
    mean, sample = conv.weight.grad, conv.weight.grad_sample
    return ((sample - true).norm() / true.norm()).item(), ((mean - true.mean(0)).norm() / true.mean(0).norm()).item()


for mode in ("zeros", "circular", "reflect", "replicate"):
    sample, mean = errors(mode)
    print(f"{mode}: per-sample gradients {sample:.0%} off, .grad right: {mean < 1e-4}")
    assert mean < 1e-4 and (sample < 1e-4) == (mode == "zeros") and (mode == "zeros" or sample > 0.1)
PY
