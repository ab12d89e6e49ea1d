"""The answers on top of the pages, their figures, and what several pages say of one thing."""

import html
import json
import re
from pathlib import Path

import pytest

from atsbook import prose
from atsbook.texts.first_screen import numbers
from atslib.files import project_root

ROOT = project_root()
PAGES = sorted((ROOT / "book" / "results").glob("*.ipynb"))


def on_top(page: Path) -> dict[str, str]:
    """The top of an executed page: its answer in Markdown and its picture in HTML."""
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    found = {"answer": prose.answer("".join(cells[0]["source"]))}
    for cell in cells:
        for output in cell.get("outputs", ()):
            name = output.get("metadata", {}).get("scrapbook", {}).get("name")
            for kind, text in output.get("data", {}).items():
                if name == "picture" and kind.endswith("/html"):
                    found[name] = "".join(text)
    return found


def bars(picture: str) -> dict[str, float]:
    """The number of each bar of a picture, in percent; none where it is another kind of picture."""
    label = re.search(r'<svg [^>]*aria-label="([^"]*)"', picture)
    parts = re.findall(
        r"(?:^|; )(.+?): (−?[\d.]+) (?:%|of 100 picked out)(?=;|$)",
        html.unescape(label[1]) if label else "",
    )
    return {name: float(number.replace("−", "-")) for name, number in parts}


def shares(text: str) -> set[float]:
    """The shares in percent that a text says: 83 %, or 299 of 300."""
    said = [float(number) for number in re.findall(r"([\d.]+)\s?%", text)]
    counts = re.findall(r"(\d+) of (\d+)", text)
    return {*said, *(round(100 * int(part) / int(whole), 1) for part, whole in counts)}


def lead(answer: str) -> str:
    """What an answer says first: its bold words, or, where these have no number, what follows, up to
    a semicolon.
    """
    bold, rest = re.fullmatch(r"\*\*(.+?)\*\*(.*)", answer, re.DOTALL).groups()
    return bold if re.search(r"\d", bold) else re.split("[.;] ", rest.strip())[0]


WITH_BARS = [page.stem for page in PAGES if bars(on_top(page).get("picture", ""))]


def test_most_answers_have_bars():
    assert len(WITH_BARS) > len(PAGES) / 2


@pytest.mark.parametrize("name", WITH_BARS)
def test_the_shares_that_an_answer_says_first_are_bars_of_its_picture(name):
    top = on_top(ROOT / "book" / "results" / f"{name}.ipynb")
    said = shares(lead(top["answer"]))
    assert said, "an answer whose picture has shares says none"
    drawn = set(bars(top["picture"]).values())
    assert said <= drawn, f"said and not drawn: {said - drawn}"


@pytest.mark.parametrize(
    ("name", "without", "behind"),
    [
        ("claim1_privacy", "without a policy", "with the paper's policy"),
        ("claim2_search", "no policy", "the paper's policy"),
        ("ext5_adaptive", "no policy", "with the policy: ignores it until it compares"),
    ],
)
def test_the_main_experiment_has_one_pair_of_shares_wherever_it_stands(name, without, behind):
    pair = numbers(ROOT / "results").found["untrained LeNet"]
    drawn = bars(on_top(ROOT / "book" / "results" / f"{name}.ipynb")["picture"])
    assert [drawn[without], drawn[behind]] == [round(100 * share) for share in pair]
