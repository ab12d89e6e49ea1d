#!/usr/bin/env bash
# torch: amax over a map and adaptive_max_pool2d have other gradients where pixels tie.
#
# Versions: torch 2.13.0
# Guess: global max pooling may be written x.amax((2, 3)), adaptive_max_pool2d(x, 1) or
#   x.flatten(2).max(2).values: same values, same gradient.
# Behaviour: same values; but where the largest value is there several times (a map that
#   ReLU set to 0, saturated pixels) amax shares the gradient among all of them and the
#   other two give it to one.
# Source: tools/autograd/derivatives.yaml (amax: scale_grad_by_count; max with a dimension:
#   value_selecting_reduction_backward).
# Output seen:
#   torch 2.13.0+cpu
#   amax                 [0.0, 0.333, 0.333, 0.333]
#   adaptive_max_pool2d  [0.0, 1.0, 0.0, 0.0]
#   flatten, max         [0.0, 1.0, 0.0, 0.0]
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
import torch.nn.functional as F

print("torch", torch.__version__)
x = torch.tensor([[0.2, 1.0], [1.0, 1.0]]).view(1, 1, 2, 2).requires_grad_()
ways = {
    "amax": x.amax((2, 3)),
    "adaptive_max_pool2d": F.adaptive_max_pool2d(x, 1),
    "flatten, max": x.flatten(2).max(2).values,
}
slopes = {name: torch.autograd.grad(out.sum(), x)[0].flatten().tolist() for name, out in ways.items()}
for name, slope in slopes.items():
    print(f"{name:20}", [round(s, 3) for s in slope])
assert max(slopes["amax"]) < 0.34 and max(slopes["adaptive_max_pool2d"]) == max(slopes["flatten, max"]) == 1
PY
