"""The example of a fine-tuned network on *Audit your own*, from stored reports."""

import json

import pytest

from atsbook.texts import audited
from atsbook.texts.audited import MARK, compared, fine_tuning, insert_fine_tuning
from atslib.audit.outcome import share_interval
from atslib.errors import AtsError
from atslib.files import project_root

ROOT = project_root()


def case(weights, found, count=40, chance=0.02):
    """A case of a report in which the first of `count` photographs are found."""
    low, high = share_interval(found, count)
    each = {"image": list(range(count)), "found": [row < found for row in range(count)]}
    return {
        "case": {"weights": weights}, "attack": "annealed-resnet", "images": count, "found": found,
        "low": low, "high": high, "chance": chance, "bits": 1.234, "gain": -0.51, "each": each,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("untrained", "given", "words"),
    [
        (30, 12, "with the shipped weights less is found than with untrained ones"),
        (12, 30, "with the shipped weights more is found than with untrained ones"),
        (13, 12, "less than untrained ones cannot be told"),
        (30, 1, "that the audit *cannot tell*"),
        (1, 1, "does not work here"),
    ],
)
def test_it_says_what_can_be_told_of_shipped_weights(untrained, given, words):
    said = compared(case("untrained", untrained), case("given", given))
    assert words in said
    assert "safe" not in said or "not that the photographs are safe" in said


def test_photographs_are_compared_that_both_were_attacked_on():
    said = compared(case("untrained", 30, 40), case("given", 12, 20))
    assert (
        "of 20 photographs found with untrained weights alone: 8, with the shipped ones alone: 0"
        in said
    )


def test_the_table_is_made_of_stored_reports(tmp_path):
    assert fine_tuning(tmp_path) == "Not measured yet.\n"
    (tmp_path / "audits").mkdir()
    report = {"cases": [case("untrained", 30), case("given", 12)], "plan": {"steps": 32}}
    for name in audited.TRAINED.values():
        (tmp_path / "audits" / f"{name}.json").write_text(json.dumps(report))
    lines = fine_tuning(tmp_path).splitlines()
    assert lines[2] == (
        "| All layers | untrained | 30 of 40 | 59 to 87 % | 2 % | 1.23 | −0.5 | `annealed-resnet`, 32 |"
    )
    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARK}\nold\n{MARK}\nafter\n")
    insert_fine_tuning(page, tmp_path)
    insert_fine_tuning(page, tmp_path)
    assert page.read_text() == f"before\n{MARK}\n\n{fine_tuning(tmp_path)}\n{MARK}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(AtsError, match="two lines"):
        insert_fine_tuning(page, tmp_path)


def test_the_book_shows_what_the_stored_reports_say():
    text = (ROOT / "book" / "audit_your_own.md").read_text(encoding="utf-8")
    assert text.split(MARK)[1] == f"\n\n{fine_tuning(ROOT / 'results')}\n"
    for name in audited.TRAINED.values():
        report = json.loads((ROOT / "results" / "audits" / f"{name}.json").read_text())
        assert all(each["images"] >= 32 for each in report["cases"])
