#!/usr/bin/env bash
# torch: BatchNorm1d in train mode lets almost no gradient through for a batch of two.
#
# Versions: torch 2.13.0
# Guess: batch statistics of two images are noisy, but the gradient of the layers before has
#   its usual size.
# Behaviour: two values a channel are always normalized to -1 and +1 whatever they were, so
#   that the gradient before the layer is what eps leaves of it: hundreds of times smaller
#   than for three images. Batches of two (the remainder of a data set) train only what
#   comes after.
# Source: follows from the formula in torch.nn.BatchNorm1d's documentation; nothing warns.
# Output seen:
#   torch 2.13.0+cpu
#   2 images: median slope 1.4e-06
#   3 images: median slope 1.2e-01
#   8 images: median slope 2.0e-01
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

print("torch", torch.__version__)
norms = {}
for images in (2, 3, 8):
    torch.manual_seed(0)
    x = (3 * torch.randn(images, 256)).double().requires_grad_()
    layer = nn.BatchNorm1d(256).double()
    (gradient,) = torch.autograd.grad((layer(x) * torch.randn(images, 256)).sum(), x)
    norms[images] = gradient.abs().median().item()
    print(f"{images} images: median slope {norms[images]:.1e}")
assert norms[3] > 100 * norms[2] and norms[8] > 100 * norms[2]
PY
