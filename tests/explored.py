"""The explorer's notebook, cell by cell, in a namespace that a test can look into."""

from pathlib import Path

import nbformat
import pytest
import torch

from atsbook.store import Store
from atsbook.widgets.frames import pack

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "explorer.ipynb"


def explored(store, *, instead=None, **parameters):
    """What the notebook's cells define, up to the one that asks for the attacks.

    Args:
        store: the folder of its results.
        instead: by name, what stands in place of what the cells define.
        parameters: of the notebook.
    """
    space = {"__name__": "explorer"}
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATS_STORE", str(store))
        for number, source in enumerate(sources):
            exec(source, space)
            space |= parameters if number == 0 else instead or {}
            if "runs = {" in source:
                return space
    raise AssertionError("no cell asks for the attacks")


def album(space, **options):
    """What the notebook shows of the runs of `explored`, attacked in this process."""
    study = space["study"]
    kept = Store(study.store.address)
    for run in space["runs"].values():
        run.unit.make(kept, torch.device("cpu"))
    return pack(study, space["runs"], scenes=space["SCENES"], policies=space["POLICIES"], **options)
