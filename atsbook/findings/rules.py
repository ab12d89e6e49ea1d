"""When each page's rule was written and changed, and when the evidence that it judges was made.

Both are written down in `results/rules.json`, and a page prints them. Who changes a rule adds the
commit there; a test holds the last entry against the rule as it stands, and the dates of the evidence
against the archive.
"""

import ast
import datetime
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

FILE = "rules.json"  # in results/


def rules_in(notebook: str) -> dict[str, str]:
    """The rules that a notebook states, by number, in a form that does not depend on their layout.

    Args:
        notebook: its JSON. Its rules are the code cells with the tag `rule`, without what they
            print: the words in which an outcome is told decide nothing.
    """
    cells = json.loads(notebook)["cells"]
    stated = [cell for cell in cells if "rule" in cell["metadata"].get("tags", ())]
    return {
        f"rule {number}": ast.unparse(_Silent().visit(ast.parse("".join(cell["source"]))))
        for number, cell in enumerate(stated, 1)
    }


class _Silent(ast.NodeTransformer):
    """Passes over the calls of `print`."""

    def visit_Expr(self, step: ast.Expr) -> ast.stmt:
        called = step.value.func if isinstance(step.value, ast.Call) else None
        prints = isinstance(called, ast.Name) and called.id == "print"
        return ast.Pass() if prints else step


def digest(rules: Mapping[str, str]) -> str:
    """A short hash of a page's rules; it changes when one of them does."""
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()[:12]


def told(page: str, results: Path) -> str:
    """When a page's rule is from, when its evidence, and what was changed in between, in a sentence
    or two; what was changed opens on a click (HTML in Markdown).

    Empty where nothing is recorded.
    """
    record = recorded(results).get(page)
    if not record or not record["changes"]:
        return ""
    written = record["changes"][0]
    words = f"Rule of {_day(written['date'])}, commit {written['commit'][:7]}"
    if record["changes"][1:]:
        last = record["changes"][-1]
        words += f", in its present form of {_day(last['date'])}, commit {last['commit'][:7]}"
    if evidence := record["evidence"]:
        words += f"; evidence of {_span(*evidence)}"
        first = _moment(evidence[0])
        later = [c for c in record["changes"][1:] if _moment(c["date"]) >= first]
        same = _moment(written["date"]) >= first
        if same:
            words += ", some of which was there when the rule was first committed"
        if later:
            return f"{words}. {_folded(later)}"
        if not same:
            words += "; unchanged since"
    return f"{words}."


def _folded(changes: Sequence[Mapping[str, str]]) -> str:
    """How often a rule was changed, and on a click when and what (HTML)."""
    times = "once" if len(changes) == 1 else f"{len(changes)} times"
    lines = "".join(
        f"<li>{_day(change['date'])} ({change['commit'][:7]}): {html.escape(change['what'])}</li>"
        for change in changes
    )
    summary = f"Its text was changed {times} since the first evidence."
    return f"<details><summary>{summary}</summary><ul>{lines}</ul></details>"


def _moment(date: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(date).astimezone(datetime.UTC)


def _day(date: str) -> str:
    day = _moment(date)
    return f"{day.day} {day:%B %Y}"


def _span(first: str, last: str) -> str:
    return _day(first) if _day(first) == _day(last) else f"{_day(first)} to {_day(last)}"


def recorded(results: Path) -> dict[str, dict]:
    """The changes of its rule and the span of its evidence, by page; nothing where there is no such
    file.
    """
    file = Path(results) / FILE
    return json.loads(file.read_text()) if file.exists() else {}
