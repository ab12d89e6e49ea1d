#!/usr/bin/env bash
# NumPy: ascontiguousarray gives a 0-d array one dimension.
#
# Versions: numpy 2.4.6
# Guess: it copies where the layout asks for it, and leaves the shape alone.
# Behaviour: np.ascontiguousarray(np.array(3)) has shape (1,), so that a counter such as
#   num_batches_tracked, shape (), goes through it and fits no buffer any more.
#   np.asarray(..., order="C") keeps shape ().
# Source: documentation of numpy.ascontiguousarray ("ndim >= 1").
# Output seen:
#   numpy 2.4.6
#   ascontiguousarray: (1,)
#   asarray, order C: ()
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
if [ -n "${FINDINGS_VENV:-}" ]; then
    python=$FINDINGS_VENV/bin/python
else
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check \
        numpy==2.4.6
    python=$tmp/venv/bin/python
fi
"$python" -I - <<'PY'
import numpy as np

print("numpy", np.__version__)
counter = np.array(3)
print("ascontiguousarray:", np.ascontiguousarray(counter).shape)
print("asarray, order C:", np.asarray(counter, order="C").shape)
assert np.ascontiguousarray(counter).shape == (1,) and np.asarray(counter, order="C").shape == ()
PY
