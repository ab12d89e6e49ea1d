#!/usr/bin/env bash
# torch: attention has a second derivative for 3-D input, or when its mask is trained; else it has none.
#
# Versions: torch 2.13.0, CPU
# Guess: scaled_dot_product_attention either can be differentiated twice or cannot; adding a
#   head dimension of one changes nothing.
# Behaviour: queries of shape (batch, tokens, width) work; with a dimension for the heads
#   the second derivative is not implemented, float64 included; a zero mask that requires a
#   gradient makes it work again (a network with trained position biases can be
#   differentiated twice, one without cannot).
# Source: aten/src/ATen/native/transformers/attention.cpp and sdp_utils_cpp.cpp (the choice
#   of the kernel).
# Output seen:
#   torch 2.13.0+cpu
#       derivative for aten::_scaled_dot_product_flash_attention_for_cpu_backward is not implemented
#       derivative for aten::_scaled_dot_product_flash_attention_for_cpu_backward is not implemented
#   3-D: second derivative
#   4-D: none
#   4-D, zero mask: none
#   4-D, zero mask that is trained: second derivative
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


def second(x, mask=None):
    x = x.requires_grad_()
    out = F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
    (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    try:
        return bool(torch.autograd.grad(first.square().sum(), x)[0].any())
    except RuntimeError as error:
        print("   ", str(error).split(".")[0])
        return False


cases = {
    "3-D": (second(torch.rand(2, 5, 4)), True),
    "4-D": (second(torch.rand(2, 1, 5, 4)), False),
    "4-D, zero mask": (second(torch.rand(2, 1, 5, 4), torch.zeros(5, 5)), False),
    "4-D, zero mask that is trained": (second(torch.rand(2, 1, 5, 4), torch.zeros(5, 5, requires_grad=True)), True),
}
for name, (works, expected) in cases.items():
    print(f"{name}: {'second derivative' if works else 'none'}")
    assert works == expected
PY
