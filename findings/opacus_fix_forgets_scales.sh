#!/usr/bin/env bash
# Opacus: ModuleValidator.fix throws away the learned scales and shifts of BatchNorm.
#
# Versions: opacus 1.6.0, torch 2.13.0
# Guess: replacing BatchNorm by GroupNorm loses the running statistics, but the learned
#   weight and bias, of the same shape and meaning, are kept.
# Behaviour: the new GroupNorm begins with ones and zeros. And the number of groups is the
#   greatest common divisor of 32 and the channels: 48 channels have 16 groups, 33 a single
#   one, which is a LayerNorm in effect.
# Source: opacus/validators/batch_norm.py, _batchnorm_to_groupnorm.
# Output seen:
#   torch 2.13.0+cpu opacus 1.6.0
#   33 channels: weight 3 -> 1.0, bias 2 -> 0.0, 1 groups
#   48 channels: weight 3 -> 1.0, bias 2 -> 0.0, 16 groups
#   64 channels: weight 3 -> 1.0, bias 2 -> 0.0, 32 groups
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
from opacus.validators import ModuleValidator
from torch import nn

warnings.simplefilter("ignore")
print("torch", torch.__version__, "opacus", opacus.__version__)
for channels in (33, 48, 64):
    net = nn.Sequential(nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels))
    nn.init.constant_(net[1].weight, 3.0)
    nn.init.constant_(net[1].bias, 2.0)
    fixed = ModuleValidator.fix(net)[1]
    print(f"{channels} channels: weight 3 -> {fixed.weight[0].item()}, bias 2 -> {fixed.bias[0].item()}, {fixed.num_groups} groups")
    assert (fixed.weight == 1).all() and not fixed.bias.any()
    assert fixed.num_groups == {33: 1, 48: 16, 64: 32}[channels]
PY
