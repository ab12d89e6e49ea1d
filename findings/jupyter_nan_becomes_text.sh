#!/usr/bin/env bash
# Jupyter: a number that is nan or infinite arrives in the notebook as text.
#
# Versions: ipykernel 7.4.0, jupyter_client 8.10.0, nbclient 0.11.0, nbformat 5.11.1, IPython 9.18.1
# Guess: a JSON output with float("nan") is refused, or keeps nan (as json.dumps writes it), or
#   becomes null. So whoever reads the executed notebook finds a number or None.
# Behaviour: nan becomes the text "nan", infinity "inf", beside numbers that stay numbers; the kernel
#   prints a warning into the cell (a stream on stderr, which a tag that removes stderr hides). Code
#   that reads the output then sorts or formats text, or takes "nan" for a name.
# Source: jupyter_client/session.py, json_packer (tries JSON without nan, then json_clean), and
#   jupyter_client/jsonutil.py, json_clean (repr of what is out of range).
# Output seen:
#   {'mean': 0.5, 'low': 'nan', 'high': 'inf'}
#   .../jupyter_client/session.py:727: UserWarning: Message serialization failed with:
#   Out of range float values are not JSON compliant: nan
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
if [ -n "${FINDINGS_VENV:-}" ]; then
    python=$FINDINGS_VENV/bin/python
else
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check \
        ipykernel==7.4.0 jupyter_client==8.10.0 nbclient==0.11.0 nbformat==5.11.1 ipython==9.18.1
    python=$tmp/venv/bin/python
fi
"$python" -I - <<'PY'
import nbclient
import nbformat

SHOWS = """
from IPython.display import display
display({"application/interval+json": {"mean": 0.5, "low": float("nan"), "high": float("inf")}}, raw=True)
"""
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(SHOWS)])
nbclient.NotebookClient(notebook, kernel_name="python3").execute()
outputs = notebook.cells[0].outputs
(shown,) = (each.data["application/interval+json"] for each in outputs if "data" in each)
said = "".join(each.text for each in outputs if each.output_type == "stream")
print(shown)
print(next(line for line in said.splitlines() if "serialization failed" in line))
assert shown == {"mean": 0.5, "low": "nan", "high": "inf"}
assert "not JSON compliant" in said
PY
