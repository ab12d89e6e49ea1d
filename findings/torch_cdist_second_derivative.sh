#!/usr/bin/env bash
# torch: cdist has a second derivative from 26 rows on, and none below.
#
# Versions: torch 2.13.0, CPU
# Guess: whether an operation can be differentiated twice does not depend on how many rows
#   it gets.
# Behaviour: with 25 rows or fewer a second derivative raises NotImplementedError; with 26
#   rows the default switches to matrix products and the same call works. A test on a small
#   example says the opposite of what the real size does.
# Source: aten/src/ATen/native/Distance.cpp (compute_mode
#   'use_mm_for_euclid_dist_if_necessary': more than 25 rows).
# Output seen:
#   torch 2.13.0+cpu
#   25 rows: the derivative for '_cdist_backward' is not implemented
#   26 rows: finite and not zero: True
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


def second(rows):
    torch.manual_seed(0)
    x, y = torch.rand(rows, 3).double().requires_grad_(), torch.rand(rows, 3).double()
    (first,) = torch.autograd.grad((torch.cdist(x, y) ** 3).sum(), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), x)[0]


try:
    second(25)
except NotImplementedError as error:
    print("25 rows:", str(error).split(".")[0])
else:
    raise AssertionError("25 rows have a second derivative now")
h = second(26)
print("26 rows: finite and not zero:", bool(h.isfinite().all() and h.any()))
assert h.isfinite().all() and h.any()
PY
