#!/usr/bin/env bash
# torch: the gradient of BatchNorm2d is wrong for one image whose maps become tokens.
#
# Versions: torch 2.13.0, CPU
# Guess: a first-order gradient of a standard layer equals finite differences, whatever
#   follows the layer.
# Behaviour: for one image (batch of one) whose maps are flattened to tokens and meet a
#   LayerNorm, the gradient that BatchNorm2d passes back is wrong in direction and length,
#   in eval and in train mode; with two images it is right. A client that trains such a
#   network on a CPU, one image at a time, shares a gradient that is not that of its loss.
# Source: aten/src/ATen/native/Normalization.cpp and cpu/batch_norm_kernel.cpp: probably
#   because with one image the strides of the incoming gradient look contiguous and
#   channels-last at once. Found by comparing with central differences; no report known.
# Output seen:
#   torch 2.13.0+cpu
#   eval mode: one image 100% off, two images 2e-10 off
#   train mode: one image 118% off, two images 6e-10 off
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


def error(mode, images):
    """Relative error of the gradient of the convolution's weights against central differences."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Flatten(2)).double().train(mode)
    norm, head = nn.LayerNorm(8).double(), nn.Linear(8, 5).double()
    x, weight = torch.rand(images, 3, 6, 6).double(), body[0].weight

    def loss():
        return (head(norm(body(x).transpose(1, 2))) ** 2 * torch.arange(5)).mean()

    (gradient,) = torch.autograd.grad(loss(), weight)
    numeric = torch.zeros_like(gradient)
    with torch.no_grad():
        for i in range(weight.numel()):
            for sign in (1, -1):
                weight.view(-1)[i] += sign * 1e-6
                numeric.view(-1)[i] += sign * loss() / 2e-6
                weight.view(-1)[i] -= sign * 1e-6
    return ((gradient - numeric).norm() / numeric.norm()).item()


print("torch", torch.__version__)
for mode in (False, True):
    one, two = error(mode, 1), error(mode, 2)
    print(f"{'train' if mode else 'eval'} mode: one image {one:.0%} off, two images {two:.0e} off")
    assert one > 0.3 and two < 1e-6
PY
