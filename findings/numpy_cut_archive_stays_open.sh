#!/usr/bin/env bash
# NumPy: load of an .npz file that was cut short raises, and leaves the file open.
#
# Versions: numpy 2.4.6, Linux
# Guess: a load that raises has closed what it opened.
# Behaviour: BadZipFile, and the file is still open while the exception is handled. Python closes it
#   when it lets go of the exception, and warns of an unclosed file; where warnings are errors this
#   turns up later and elsewhere.
# Source: numpy/lib/_npyio_impl.py, load, which lets NpzFile own the file before it has read it.
# Output seen:
#   numpy 2.4.6
#   BadZipFile: File is not a zip file
#   still open: 1
#   afterwards: 0, and ResourceWarning: 1
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
import os
import warnings
import zipfile

import numpy as np

np.savez("whole.npz", w=np.zeros(1000))
with open("whole.npz", "rb") as whole, open("cut.npz", "wb") as cut:
    cut.write(whole.read()[:1000])


def still_open():
    links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return sum(os.path.exists(link) and os.readlink(link).endswith("cut.npz") for link in links)


print("numpy", np.__version__)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always", ResourceWarning)
    try:
        np.load("cut.npz")
    except zipfile.BadZipFile as error:
        print("BadZipFile:", error)
        during = still_open()
    else:
        raise AssertionError("a cut file is read")
kinds = [each.category.__name__ for each in said]
print("still open:", during)
print(f"afterwards: {still_open()}, and {', '.join(sorted(set(kinds)))}: {len(kinds)}")
assert during == 1 and kinds == ["ResourceWarning"]
PY
