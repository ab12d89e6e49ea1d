"""Small pages to test with: a notebook of one short attack for each policy."""

import sys

# See `atsbook.report.start_papermill`; what pytest has imported before stays as it is.
sys.modules.setdefault("rfc3987_syntax", None)

import nbformat  # noqa: E402

from atsbook.runs.study import Study  # noqa: E402

PAGE = """
from atsbook.findings.result import Verdict
from atsbook.page import write_results
from atsbook.runs.study import Study, check_parameters
from IPython.display import HTML

check_parameters(vars())
study = Study(profile, dataset)
net = study.network("lenet")
runs = {{
    policy: study.attack(net, policy=policy, attack="adam-cosine", steps=4, images=2)
    for policy in {policies}
}}
attacks = study.table(runs, ["policy"])
verdict = Verdict("cannot tell", "two images are few", "{here}")
shape = {{"model": "lenet", "epochs": 0, "images": 2, "steps": 4, "fraction": 1.0}}
facts = study.facts(runs, **shape)
result = write_results(study, "{name}", {{"attacks": attacks}}, verdict, facts)
HTML(result.verdict.status)
"""


def write_page(root, name, policies=("", "3-1-7"), here="few"):
    """Write the notebook of a page into a project; its file."""
    parameters = 'profile: str = "smoke"\ndataset: str = None'
    cells = [nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}, id="first")]
    text = PAGE.format(name=name, policies=repr(policies), here=here)
    cells.append(nbformat.v4.new_code_cell(text, id="second"))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    file = root / f"notebooks/{name}.ipynb"
    nbformat.write(notebook, file)
    return file


def asked_by(policies=("", "3-1-7")):
    """The requests that such a page asks for."""
    study = Study("smoke", store="unused")
    net = study.network("lenet")
    how = {"attack": "adam-cosine", "steps": 4, "images": 2}
    return [study.attack(net, policy=policy, **how).request for policy in policies]
