"""The example of a fine-tuned network on *Audit your own*, from stored reports."""

import json

import pytest

from atsbook.texts import audits
from atsbook.texts.audits import (
    MARK,
    NETWORK,
    NETWORKS_MARK,
    compared,
    fine_tuning,
    insert_audits,
    networks,
)
from atslib.errors import AtsError
from atslib.files import project_root
from atslib.measures.intervals import share_interval

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
    report = {"cases": [case("untrained", 30), case("given", 12)], "plan": {"steps": 32}}
    reports = dict.fromkeys(audits.TRAINED.values(), report)
    (tmp_path / "audits.json").write_text(json.dumps(reports))
    lines = fine_tuning(tmp_path).splitlines()
    assert lines[2] == (
        "| All layers | untrained | 30 of 40 | 59 to 87 % | 2 % | 1.23 | −0.5 | `annealed-resnet`, 32 |"
    )
    page = tmp_path / "page.md"
    page.write_text(
        f"before\n{MARK}\nold\n{MARK}\nbetween\n{NETWORKS_MARK}\n{NETWORKS_MARK}\nafter\n"
    )
    insert_audits(page, tmp_path)
    insert_audits(page, tmp_path)
    assert page.read_text() == (
        f"before\n{MARK}\n\n{fine_tuning(tmp_path)}\n{MARK}\nbetween\n"
        f"{NETWORKS_MARK}\n\nNot measured yet.\n\n{NETWORKS_MARK}\nafter\n"
    )
    page.write_text("no marks")
    with pytest.raises(AtsError, match="two lines"):
        insert_audits(page, tmp_path)


def test_a_control_counts_that_finds_more_than_chance(tmp_path):
    reports = {}
    for name, found in (("good", 30), ("bad", 1)):
        control = case("untrained", found) | {"control": True}
        control["title"] = "one gradient of 1 image, untrained network"
        reports[NETWORK + name] = {
            "cases": [control], "plan": {"steps": 60}, "seconds": 300, "threads": 2, "processor": "A",
        }  # fmt: skip
    (tmp_path / "audits.json").write_text(json.dumps(reports))
    lines = networks(tmp_path).splitlines()
    assert lines[2] == (
        "| good | untrained | one gradient of 1 image | 30 of 40 | 59 to 87 % | 2 % | `annealed-resnet`, 60 | 5 |"
    )
    assert "by chance in 1 of 2 audits" in lines[-1]


def test_the_book_shows_what_the_stored_reports_say():
    text = (ROOT / "book" / "audit_your_own.md").read_text(encoding="utf-8")
    assert text.split(MARK)[1] == f"\n\n{fine_tuning(ROOT / 'results')}\n"
    assert text.split(NETWORKS_MARK)[1] == f"\n\n{networks(ROOT / 'results')}\n"
    reports = json.loads((ROOT / "results" / "audits.json").read_text())
    shown = {name: report for name, report in reports.items() if not name.startswith(NETWORK)}
    assert shown.keys() == set(audits.TRAINED.values())
    for report in shown.values():
        assert all(each["images"] >= 32 for each in report["cases"])


def test_stored_audits_were_done_within_their_budget_and_a_control_of_each_network_works():
    reports = json.loads((ROOT / "results" / "audits.json").read_text())
    works = {}
    for name, report in reports.items():
        if not name.startswith(NETWORK):
            continue
        assert report["seconds"] <= 1.1 * report["settings"]["budget"], report["sentence"]
        control = next(each for each in report["cases"] if each["control"])
        kind = name.removeprefix(NETWORK).partition(",")[0]
        works[kind] = works.get(kind, False) or control["low"] > control["chance"]
    assert len(works) >= 6
    assert all(works.values()), works
