#!/usr/bin/env bash
# torch: hardswish can be differentiated twice, hardsigmoid cannot.
#
# Versions: torch 2.13.0
# Guess: hardswish(x) = x * hardsigmoid(x), so that the two share their fate; the simpler
#   one surely works.
# Behaviour: hardswish has a second derivative, hardsigmoid raises in backward.
#   MobileNetV3's squeeze-and-excitation gates are hardsigmoids, so that its networks fail
#   as a whole; written out as clamp(x / 6 + 0.5, 0, 1) they do not.
# Source: tools/autograd/derivatives.yaml (hardsigmoid_backward has no derivative).
# Output seen:
#   torch 2.13.0+cpu
#   hardswish [0.403, -0.187, -0.155, 0.5, 1.778, 3.679, 6.203]
#   clamp(x / 6 + 0.5, 0, 1) [0.056, 0.056, 0.056, 0.056, 0.056, 0.056, 0.056]
#   hardsigmoid: derivative for aten::hardsigmoid_backward is not implemented
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


def second(function):
    x = torch.linspace(-2.9, 2.9, 7, requires_grad=True)
    (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)[0]


for name, function in (("hardswish", F.hardswish), ("clamp(x / 6 + 0.5, 0, 1)", lambda x: (x / 6 + 0.5).clamp(0, 1))):
    print(name, [round(v, 3) for v in second(function).tolist()])
    assert second(function).any()
try:
    second(F.hardsigmoid)
except RuntimeError as error:
    print("hardsigmoid:", error)
else:
    raise AssertionError("hardsigmoid has a second derivative now")
PY
