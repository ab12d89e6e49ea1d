"""When a rule was written and changed, and its evidence made: read from git, kept, and held against both."""

import json
import subprocess

import pytest
from checks import needs

from atsbook.findings import rules
from atsbook.runs.runner import evidence_dates
from atslib.files import project_root

ROOT = project_root()
RECORDED = rules.recorded(ROOT / "results")
EARLY, MIDDLE, LATE = (f"2026-11-{day}T12:00:00+00:00" for day in (20, 22, 24))


def notebook(source, tags=("rule",)):
    cell = {"cell_type": "code", "metadata": {"tags": list(tags)}, "source": source, "outputs": []}
    return json.dumps({"cells": [cell]})


def test_layout_does_not_change_a_rule_and_words_and_bounds_do():
    module = "rules.py", 'POINTS = 2.0\nRULE = f"at most {POINTS} points"\n'
    written = rules.rules_in(*module)
    assert (
        rules.rules_in(
            "rules.py", 'POINTS = 2.0\nRULE = (\n    f"at most "\n    f"{POINTS} points"\n)\n'
        )
        == written
    )
    assert rules.rules_in("rules.py", module[1].replace("2.0", "3.0")) != written
    assert rules.rules_in("rules.py", module[1].replace("at most", "below")) != written
    cell = rules.rules_in("page.ipynb", notebook("low = change < 0  # falls"))
    assert rules.rules_in("page.ipynb", notebook("low   =   change < 0")) == cell
    assert rules.rules_in("page.ipynb", notebook("low = change < 1")) != cell
    assert rules.rules_in("page.ipynb", notebook("low = change < 1", tags=())) == {}


@pytest.fixture
def repository(tmp_path):
    """A function that commits a file's text on a date; a repository of its own."""

    def git(*arguments, date=EARLY):
        who = {
            f"GIT_{role}_{what}": "x@y"
            for role in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        when = {
            "GIT_AUTHOR_DATE": date,
            "GIT_COMMITTER_DATE": date,
            "PATH": "/usr/local/bin:/usr/bin:/bin",
        }
        subprocess.run(
            ["git", *arguments], cwd=tmp_path, env=who | when, check=True, capture_output=True
        )

    def commit(path, text, date, subject):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        git("add", "-A")
        git("commit", "-q", "-m", subject, date=date)

    git("init", "-q")
    commit.root = tmp_path
    commit.git = git
    return commit


def test_history_has_each_change_of_a_rule_with_its_day_and_its_reason(repository):
    page = "atsbook/pages/one.py"
    text = "PAD = 1\n" * 30 + 'RULE = "it protects if the bits of the photograph fall"\n'
    repository(page, text, EARLY, "The rule")
    repository(page, text + "OTHER = 2\n", MIDDLE, "Something else")
    repository(page, text.replace("fall", "fall by one"), LATE, "One bit is asked for")
    found = rules.changes(repository.root, rules.sources("one"))
    assert [(c["date"], c["what"]) for c in found] == [
        (EARLY, "The rule"),
        (LATE, "One bit is asked for"),
    ]
    assert found[-1]["rules"] == rules.current(repository.root, "one")


def test_a_rule_that_moved_was_written_where_it_was_first(repository):
    text = "PAD = 1\n" * 30 + 'RULE = "it protects if the bits of the photograph fall"\n'
    repository("verdicts.py", text + "MORE = 1\n" * 400, EARLY, "All rules")
    repository("atsbook/pages/one.py", text, LATE, "A module for each page")
    found = rules.changes(repository.root, rules.sources("one"))
    assert [(c["date"], c["what"]) for c in found] == [(EARLY, "All rules")]


def test_a_rule_whose_text_changed_on_the_move_has_both_dates(repository):
    text = (
        "PAD = 1\n" * 30
        + 'RULE = (\n    "it protects if the bits of the photograph fall"\n    " by one"\n)\n'
    )
    repository("verdicts.py", text.replace("by one", "by two"), EARLY, "All rules")
    repository("verdicts.py", "", MIDDLE, "No rules")
    repository("atsbook/pages/one.py", text, LATE, "A module for each page")
    found = rules.changes(repository.root, rules.sources("one"))
    assert [(c["date"], c["what"]) for c in found] == [
        (EARLY, "All rules"),
        (LATE, "A module for each page"),
    ]
    assert found[-1]["rules"] == rules.current(repository.root, "one")


@pytest.mark.parametrize(
    ("changed", "evidence", "said"),
    [
        ((), (MIDDLE, LATE), "commit c0; evidence of 22 November 2026 to 24 November 2026; unchanged since."),
        ((LATE,), (MIDDLE, MIDDLE), "Its text was changed since the first evidence: 24 November 2026 (c1): why1."),
        ((MIDDLE,), (LATE, LATE), "evidence of 24 November 2026; unchanged since."),
    ],
)  # fmt: skip
def test_a_page_says_what_was_changed_after_its_evidence_and_only_that(
    changed, evidence, said, tmp_path
):
    dates = [EARLY, *changed]
    made = [
        {"date": d, "commit": f"c{i}", "what": f"why{i}", "rules": str(i)}
        for i, d in enumerate(dates)
    ]
    (tmp_path / rules.FILE).write_text(
        json.dumps({"page": {"changes": made, "evidence": evidence}})
    )
    assert rules.told("page", tmp_path).endswith(said)
    assert rules.told("another", tmp_path) == ""


def test_a_rule_that_came_after_its_evidence_says_so(tmp_path):
    made = [{"date": LATE, "commit": "c0", "what": "", "rules": ""}]
    (tmp_path / rules.FILE).write_text(
        json.dumps({"page": {"changes": made, "evidence": [EARLY, LATE]}})
    )
    said = rules.told("page", tmp_path)
    assert "some of which was there when the rule was committed" in said
    assert "unchanged" not in said


@pytest.mark.parametrize("page", sorted(RECORDED))
def test_the_rule_of_a_page_is_the_one_whose_date_it_prints(page):
    """`python -m atsbook dates` records a rule that was changed, once its change is committed."""
    last = RECORDED[page]["changes"][-1:]
    assert [change["rules"] for change in last] == [rules.current(ROOT, page)] * len(last)
    assert bool(last) == bool(rules.current(ROOT, page))


@pytest.mark.skipif(not rules.has_history(ROOT), reason="a shallow clone has no history")
def test_the_recorded_commits_are_of_the_recorded_days():
    changes = [change for record in RECORDED.values() for change in record["changes"]]
    assert len(changes) > 20
    shown = subprocess.run(
        [
            *["git", "-c", "core.abbrev=12", "show", "-s", "--format=%h %cI %s"],
            *{change["commit"] for change in changes},
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    known = {commit: (date, what) for commit, date, what in (line.split(" ", 2) for line in shown)}
    for change in changes:
        assert known[change["commit"]] == (change["date"], change["what"])


@needs("cifar100")
@needs("fmnist")
@needs("tinyimagenet")
def test_the_recorded_days_of_the_evidence_are_its_own():
    dates = evidence_dates(ROOT)
    assert dates.keys() == RECORDED.keys()
    for page, made in dates.items():
        assert RECORDED[page]["evidence"] == ([min(made), max(made)] if made else []), page
