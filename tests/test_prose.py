"""The text of a page: numbers in their places, and claims that are checked."""

import copy
import json
from pathlib import Path

import pytest

from atsbook import prose
from atsbook.report.making import publish
from atsbook.store import Store
from atslib.errors import AtsError
from atslib.files import project_root

ROOT = project_root()
NUMBERS = {
    "found": {"untrained LeNet": {"none": 0.972, "hybrid": 0.831}},
    "change": {"mean": -1.94, "low": -2.41, "high": 0.04},
    "photographs": 12_345,
    "count": 3,
    "small": 2.4e-7,
    "unknown": float("nan"),
    "nothing": None,
    "half": {"mean": 1.0, "low": None},
}


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('{{ found["untrained LeNet"] | pair }}', "97 → 83 %"),
        ('{{ found["untrained LeNet"].hybrid | percent }} %', "83 %"),
        ('{{ found["untrained LeNet"].hybrid | percent(1) }} %', "83.1 %"),
        ("{{ change | interval }}", "−1.9 [−2.4, 0.0]"),
        ("{{ change | level }}", "−1.9 [−2.4, 0.0]"),
        ("{{ -0.01 | fixed }}", "0.0"),
        ("{{ change | interval(2) }}", "−1.94 [−2.41, 0.04]"),
        ("{{ change.low | fixed(2) }}, {{ change.high | signed }}", "−2.41, +0.0"),
        ("{{ photographs | fixed(0) }}", "12,345"),
        ("{{ count | words }} and {{ photographs | words }}", "three and 12,345"),
        ("{{ small | significant }}, {{ small | significant(1) }}", "2.4e-07, 2e-07"),
        ("no number, and {braces}", "no number, and {braces}"),
    ],
)
def test_numbers_are_written_as_the_text_asks(text, written):
    assert prose.filled(text, NUMBERS, ships=True) == written


@pytest.mark.parametrize(
    "text",
    [
        "{{ absent | percent }}",
        "{{ found.absent.none | fixed }}",
        "{{ unknown | fixed }}",
        "{{ nothing | percent }}",
        "{{ half | interval }}",
    ],
)
def test_a_number_that_is_not_there_is_an_error_on_a_page_of_the_book_and_a_dash_on_another(text):
    with pytest.raises(AtsError, match="its page exports found, change"):
        prose.filled(text, NUMBERS, ships=True)
    assert prose.filled(text, NUMBERS, ships=False) == "–"


def executed(parameters, *, claims, text="It hides {{ count | words }}.", toy=False):
    """A made-up executed notebook."""
    told = {"numbers": NUMBERS, "claims": claims, "toy": toy}
    output = {"output_type": "display_data", "data": {prose.EXPORTED: told}, "metadata": {}}
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": f"# Does it?\n\n{text}"},
        {"cell_type": "code", "metadata": {}, "source": "", "outputs": [output]},
    ]
    return {"cells": cells, "metadata": {"papermill": {"parameters": parameters}}}


def test_a_true_claim_is_silent():
    page = executed(prose.SHIPS, claims={"It hides": True})
    assert prose.fill(page) == []
    assert page["cells"][0]["source"] == "# Does it?\n\nIt hides three."


def test_a_page_of_the_book_with_a_false_claim_is_not_made_in_silence(tmp_path):
    made, page = tmp_path / "made.ipynb", tmp_path / "page.ipynb"
    made.write_text(json.dumps(executed(prose.SHIPS, claims={"It hides": False})))
    with pytest.raises(AtsError, match="not true of its results: 'It hides'"):
        publish(made, page, "page", Store(tmp_path / "store", say=lambda line: None))
    # who changed the experiment sees what came of it
    assert "Not true here: “It hides”." in json.loads(page.read_text())["cells"][0]["source"]


def test_a_page_of_the_book_without_a_number_of_its_text_is_made_with_a_dash_and_an_error(tmp_path):
    made, page = tmp_path / "made.ipynb", tmp_path / "page.ipynb"
    text = "{{ count | words }} of {{ absent.none | percent }} % and {{ also.absent }}"
    made.write_text(json.dumps(executed(prose.SHIPS, claims={}, text=text)))
    with pytest.raises(AtsError, match="'absent' is undefined"):
        publish(made, page, "page", Store(tmp_path / "store", say=lambda line: None))
    assert json.loads(page.read_text())["cells"][0]["source"].endswith("three of – % and –")


def test_another_run_says_what_is_not_true_of_it(tmp_path):
    made, page = tmp_path / "made.ipynb", tmp_path / "page.ipynb"
    other = executed({"profile": "smoke"}, claims={"hides {{ count | words }}": False}, toy=True)
    made.write_text(json.dumps(other))
    publish(made, page, "page", Store(tmp_path / "store", say=lambda line: None))
    top = json.loads(page.read_text())["cells"][0]["source"]
    assert "Not true here: “hides three”." in top
    assert "proves nothing" in top


def test_a_claim_that_the_text_does_not_make_is_an_error():
    (fault,) = prose.fill(executed(prose.SHIPS, claims={"It shows": True}))
    assert fault == "a claim is not in the text: 'It shows'"
    assert prose.fill(executed({"profile": "smoke"}, claims={"It shows": True})) == []


def test_a_claim_may_have_bold_words_and_a_line_break():
    text = "**It hides\nnothing.** Else, no."
    assert (
        prose.fill(executed(prose.SHIPS, claims={"It hides nothing. Else": True}, text=text)) == []
    )


PAGES = [
    page
    for page in sorted((ROOT / "book" / "results").glob("*.ipynb"))
    if prose.exported(json.loads(page.read_text()))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_committed_page_has_the_text_of_its_notebook_and_claims_nothing_false(page):
    made = json.loads(page.read_text())
    again = copy.deepcopy(made)
    source = json.loads((ROOT / "notebooks" / page.name).read_text())
    texts = [cell for cell in source["cells"] if cell["cell_type"] == "markdown"]
    places = [cell for cell in again["cells"] if cell["cell_type"] == "markdown"]
    for place, text in zip(places, texts, strict=True):
        place["source"] = "".join(text["source"])
    assert prose.fill(again) == []
    whole = ["".join(cell["source"]) for cell in made["cells"]]
    assert ["".join(cell["source"]) for cell in again["cells"]] == whole


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_exports_what_its_text_is_filled_with(page):
    (kept,) = (ROOT / "results" / page.stem).glob("*-laptop/numbers.json")
    told = prose.exported(json.loads(Path(page).read_text()))["numbers"]
    assert told.keys() == json.loads(kept.read_text()).keys()
