"""The top of a page: its picture with the numbers behind it, and one table, made from the cells below
it; and what its text says in numbers (`prose`).

A page's first cell pastes these by the names `picture`, `data` and `numbers` (MyST-NB's glue); later
cells paste further texts.
"""

import base64
import json
import os
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from IPython.core.formatters import format_display_data
from IPython.display import HTML, Markdown, display
from matplotlib.figure import Figure

from atsbook.evidence.differences import write_changed
from atsbook.figures.svg import as_svg
from atsbook.findings import newest
from atsbook.findings.result import (
    FILE,
    NUMBERS,
    Result,
    Verdict,
    as_text,
    stored_digest,
    stored_result,
)
from atsbook.findings.rules import told
from atsbook.findings.statistics import Change
from atsbook.prose import EXPORTED, answer, filled
from atsbook.runs.study import Handle, Study
from atslib.data.load import is_drawn
from atslib.files import project_root, write_atomically

# The variable with the folder into which a run of the whole book writes each page's tables
WRITTEN = "ATS_RESULTS"
NETWORKS = {"lenet": "LeNet", "convnet": "ConvNet", "resnet20": "ResNet20"}


def title(network: str) -> str:
    """A network's name in prose: ConvNet-16 for convnet-16."""
    family, _, width = network.partition("-")
    return "-".join(filter(None, (NETWORKS.get(family, family), width)))


def data_link(table: pd.DataFrame, name: str) -> HTML:
    """A link that downloads the table as CSV; the page itself holds it, so that it works everywhere
    and offline.

    Args:
        name: of the file, without its ending.
    """
    text = table.to_csv(index=False, float_format="%.6g")
    data = base64.b64encode(text.encode()).decode()
    link = (
        f'<a download="{name}.csv" href="data:text/csv;base64,{data}">Data of this figure (CSV)</a>'
    )
    return HTML(f'<p class="data-link">{link}</p>')


def show_figure(figure: Figure, data: pd.DataFrame, name: str) -> None:
    """Show a figure, and under it a link to its data.

    Args:
        data: what is drawn; of photographs, what was found of them.
        name: of the file, without its ending.
    """
    display(figure, data_link(data, name))
    plt.close(figure)  # which the end of the cell would show once more


def glue(name: str, value: object) -> None:
    """Keep what `value` shows under a name, for the comments `<!-- glue:… -->` of the page.

    What `myst_nb.glue(name, value, display=False)` does. Importing that takes three seconds, on
    each of two dozen pages.
    """
    record = "application/papermill.record/"
    shown, metadata = format_display_data(value)
    named = {record + kind: data for kind, data in shown.items()}
    about = metadata | {"scrapbook": {"name": name, "mime_prefix": record}}
    display(named, raw=True, metadata=about)


def best_answer_finds(lenet: str, *, share: float) -> bool:
    """Whether the best answer picks out more than this share of the photographs, without a policy and
    with the paper's: for texts that speak of weaker attacks.

    Args:
        lenet: "hits" of an untrained one, "trained" of trained ones, as `best_answer` exports them.
    """
    counted = exported("best_answer").get("networks", {}).get("LeNet", {}).get(lenet)
    return bool(counted) and min(counted["none"], counted["hybrid"]) > share * counted["attacks"]


def on_top(
    result: Result,
    picture: Figure | HTML,
    data: HTML,
    numbers: pd.DataFrame | None = None,
    **texts: str,
) -> None:
    """Paste the picture with its data, the table, when the rule was made and further texts into the page,
    and show them.

    JupyterLab does not paste, so there they stand below the last cell, with the page's answer.

    Args:
        result: of the page, as `write_results` gave it.
        picture: a figure is shown as SVG.
        numbers: the table below it; None where the page's text has one.
        texts: Markdown by the name under which a cell pastes it, such as `provenance`.
    """
    if isinstance(picture, Figure):
        picture = HTML(as_svg(picture))
    texts |= {"dates": told(result.page, project_root() / "results")}
    shown = {"picture": picture, "data": data}
    shown |= {} if numbers is None else {"numbers": numbers}
    shown |= {name: Markdown(text) for name, text in texts.items()}
    with pd.option_context("display.max_colwidth", None):  # pandas cuts long words off
        for name, value in shown.items():
            glue(name, value)
        display(Markdown(_answer(result)), *shown.values())


def _answer(result: Result) -> str:
    """The text on top of a page, from its notebook, which runs in its own folder, with the numbers of
    this run; empty where that is not here.
    """
    file = Path(f"{result.page}.ipynb")
    if not file.exists():
        return ""
    top = "".join(json.loads(file.read_text())["cells"][0]["source"])
    return filled(answer(top), json.loads(result.files[NUMBERS]), ships=False)


def write_results(
    study: Study,
    page: str,
    tables: dict[str, pd.DataFrame],
    verdict: Verdict,
    facts: dict[str, object],
    files: dict[str, bytes] | None = None,
    *,
    numbers: dict[str, object] | None = None,
    claims: dict[str, bool] | None = None,
) -> Result:
    """The page's result; where $ATS_RESULTS names a folder, as a run of the whole book does, it is
    written there, with what the page cost and the keys of the evidence behind it.

    Args:
        files: what else is kept beside the tables, by name.
        numbers: what this page's text, README and other pages say of it; a text names them (`prose`),
            code reads them with `exported`.
        claims: sentences or parts of them that the page's text says, each with whether it is true of
            these results. A false one is an error on a page of the book.
    """
    files = dict(files or {})
    if numbers:  # NumPy's numbers become Python's
        plain = json.dumps(numbers, indent=1, default=lambda number: number.item())
        files[NUMBERS] = f"{plain}\n".encode()
    if claims is not None:
        output = {
            # nan, which the messages of Jupyter do not have, as null
            "numbers": json.loads(files.get(NUMBERS, "{}"), parse_constant=lambda name: None),
            "claims": {sentence: bool(holds) for sentence, holds in claims.items()},
            "toy": is_drawn(study.dataset),
        }
        display({EXPORTED: output}, raw=True)
    result = Result(page, tables, facts, verdict, files)
    if os.environ.get(WRITTEN):
        folder, _ = write_changed(result, Path(os.environ[WRITTEN]))
        more = {"cost": study.cost()._asdict(), "evidence": study.keys()}
        text = as_text(stored_result(folder) | more)
        write_atomically(folder / FILE, lambda partial: partial.write_text(text))
    return result


def as_pair(change: Change) -> dict[str, float]:
    """Both ends of a change from no policy to the paper's, and of how many photographs, for `numbers`."""
    return {"none": change.before, "hybrid": change.after, "photographs": change.n}


def as_change(change: Change) -> dict[str, float]:
    """A change with its 95 % interval, for `numbers`."""
    return {"mean": change.mean, "low": change.low, "high": change.high}


def exported(page: str) -> dict:
    """The numbers of another page that ship, on CIFAR-100 where it was run on that; empty where it has none."""
    return newest.exported(page, project_root() / "results")


def made(
    study: Study, requests: dict[object, Handle], result: Result, what: str = "attacks"
) -> str:
    """One sentence (Markdown): with what, where and when these results were made, and which tables
    came of them.

    Args:
        what: the requests are.
    """
    facts = study.origin(requests)
    days = (
        facts["made"]
        if facts["made"] == facts["made_first"]
        else f"{facts['made_first']} to {facts['made']}"
    )
    digest = result.digest
    if results := os.environ.get(WRITTEN):  # those that are kept: in last digits they may be others
        digest = stored_digest(result.folder(Path(results)))
    return (
        f"Profile <b>{facts['profile']}</b>: {facts['dataset']}, seed {facts['seed']}; {len(requests)} {what}, "
        f"computed {days}; {facts['device']}, torch {facts['torch']}, Python {facts['python']}; tables {digest}."
    )
