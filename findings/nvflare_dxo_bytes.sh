#!/usr/bin/env bash
# NVFlare: a DXO with PyTorch's weights becomes bytes without an error, and comes back empty.
#
# Versions: nvflare 2.9.0, numpy 2.4.6, torch 2.13.0
# Guess: `DXO(DataKind.WEIGHTS, data=...)` is what clients and server exchange, so
#   `dxo.to_bytes()` and `from_bytes` give its arrays back, NumPy's as well as PyTorch's.
# Behaviour: outside a job only plain Python is known to FOBS, NVFlare's serializer. NumPy's
#   arrays raise a RuntimeError. PyTorch's tensors do not: they are taken for plain objects with
#   a `__dict__`, of which nothing but that is kept, so that a state dict comes back with every
#   name and no number. Within a job components register what is missing. By hand that has to
#   happen before the first tensor is packed: later `fobs.register` does nothing, as the type
#   then has a decomposer, and tensors stay empty until the process ends.
# Source: nvflare/fuel/utils/fobs/fobs.py, Packer.pack and register ("does nothing if decomposer
#   is already registered"); nvflare/app_opt/pt/decomposers.py.
# Output seen:
#   nvflare 2.9.0 numpy 2.4.6 torch 2.13.0+cpu
#   NumPy: RuntimeError, ndarray can't be serialized by FOBS without a decomposer
#   NumPy, registered: (2, 3)
#   PyTorch: weight (0,), bias (0,)
#   PyTorch, registered after that: weight (0,), bias (0,)
#   PyTorch, registered first: weight (2, 3), bias (2,)
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
if [ -n "${FINDINGS_VENV:-}" ]; then
    python=$FINDINGS_VENV/bin/python
else
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check \
        nvflare==2.9.0 numpy==2.4.6 torch==2.13.0
    python=$tmp/venv/bin/python
fi
cat > common.py <<'PY'
import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, from_bytes
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs


def back(data):
    return from_bytes(DXO(DataKind.WEIGHTS, data=data).to_bytes()).data


def shapes(data):
    return ", ".join(f"{name} {tuple(value.shape)}" for name, value in data.items())


net = torch.nn.Linear(3, 2)
PY
cat > late.py <<'PY'
import importlib.metadata

from common import *

print("nvflare", importlib.metadata.version("nvflare"), "numpy", np.__version__, "torch", torch.__version__)
array = np.ones((2, 3), np.float32)
try:
    back({"w": array})
except RuntimeError as error:
    assert "can't be serialized by FOBS without a decomposer" in str(error)
    print("NumPy: RuntimeError, ndarray can't be serialized by FOBS without a decomposer")
else:
    raise SystemExit("NumPy's arrays are known now")
fobs.register(NumpyArrayDecomposer)
assert np.array_equal(back({"w": array})["w"], array)
print("NumPy, registered:", array.shape)
empty = back(net.state_dict())
print("PyTorch:", shapes(empty))
assert all(value.numel() == 0 for value in empty.values())
fobs.register(TensorDecomposer)
empty = back(net.state_dict())
print("PyTorch, registered after that:", shapes(empty))
assert all(value.numel() == 0 for value in empty.values())
PY
cat > first.py <<'PY'
from common import *

fobs.register(TensorDecomposer)
same = back(net.state_dict())
print("PyTorch, registered first:", shapes(same))
assert all(torch.equal(same[name], value) for name, value in net.state_dict().items())
PY
"$python" -W ignore late.py
"$python" -W ignore first.py
