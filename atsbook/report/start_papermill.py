"""papermill's command, started faster: `python -m atsbook.report.start_papermill IN OUT …`.

papermill reads notebooks with nbformat, and that imports jsonschema. Where `rfc3987_syntax` is
installed, as JupyterLab wants it, jsonschema builds a grammar of internationalized addresses at its
import: more than a second for each page, and no notebook's schema asks for such an address.
"""

import sys

sys.modules["rfc3987_syntax"] = None  # to import it is an ImportError, which jsonschema passes over

from papermill.__main__ import papermill  # noqa: E402

if __name__ == "__main__":
    papermill()
