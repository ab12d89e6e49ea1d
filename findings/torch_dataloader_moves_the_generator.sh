#!/usr/bin/env bash
# torch: reading a DataLoader that shuffles nothing moves the global generator.
#
# Versions: torch 2.13.0
# Guess: without shuffling and without workers a DataLoader draws nothing, so that noise
#   drawn later does not depend on how often data were read.
# Behaviour: each `iter(loader)` draws one number for the seed of workers that do not exist:
#   reading the data once more changes every number that is drawn afterwards (noise,
#   dropout, initial weights).
# Source: torch/utils/data/dataloader.py, _BaseDataLoaderIter.__init__ (_base_seed).
# Output seen:
#   torch 2.13.0+cpu
#   noise after 0 passes over the data: [1.541, -0.293, -2.179]
#   noise after 1 passes over the data: [-0.291, -1.07, 1.264]
#   noise after 2 passes over the data: [-2.179, 0.568, -1.085]
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
from torch.utils.data import DataLoader, TensorDataset


def noise(passes):
    torch.manual_seed(0)
    for _ in range(passes):
        list(DataLoader(TensorDataset(torch.zeros(4)), batch_size=2))
    return torch.randn(3)


print("torch", torch.__version__)
for passes in (0, 1, 2):
    print(f"noise after {passes} passes over the data:", [round(v, 3) for v in noise(passes).tolist()])
assert not torch.equal(noise(0), noise(1)) and not torch.equal(noise(1), noise(2))
PY
