#!/usr/bin/env bash
# torch: with one seed, randn(15) is not the beginning of randn(16).
#
# Versions: torch 2.13.0, CPU
# Guess: a generator is a stream: with the same seed the first numbers of a longer draw are
#   those of a shorter one.
# Behaviour: from 16 numbers on another routine fills the tensor, so that every number is
#   another; and randn(17) shares with randn(16) only some of them, since the last 16 are
#   drawn anew. Noise that is added layer by layer depends on how the layers are cut into
#   tensors.
# Source: aten/src/ATen/native/cpu/DistributionTemplates.h, normal_fill (size >= 16).
# Output seen:
#   torch 2.13.0+cpu
#   randn(14) and the first 14 of randn(15): 14 numbers are the same
#   randn(15) and the first 15 of randn(16): 0 numbers are the same
#   randn(16) and the first 16 of randn(17): 1 numbers are the same
#   randn(32) and the first 32 of randn(33): 17 numbers are the same
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


def draw(size):
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


print("torch", torch.__version__)
for short, long in ((14, 15), (15, 16), (16, 17), (32, 33)):
    same = (draw(short) == draw(long)[:short]).sum().item()
    print(f"randn({short}) and the first {short} of randn({long}): {same} numbers are the same")
    assert (same == short) == (long == 15)
PY
