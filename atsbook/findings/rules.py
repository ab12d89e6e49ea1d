"""When each page's rule was written and changed, and when the evidence that it judges was made.

The dates of a rule are those of git's history, the dates of the evidence its own. Both are kept in
`results/rules.json`, since a shallow clone has no history: a page prints them, and a test holds
them against both sources.
"""

import ast
import datetime
import hashlib
import html
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from atslib.errors import AtsError
from atslib.files import write_atomically

FILE = "rules.json"  # in results/


def rules_in(path: str, source: str) -> dict[str, str]:
    """The rules that a file states, by name, in a form that does not depend on its layout.

    Args:
        path: of a module, whose rules are the constants named `…RULE`, with the constants that they
            mention; or of a notebook, whose rules are its code cells with the tag `rule`, without
            what they print: the words in which an outcome is told decide nothing.
    """
    if path.endswith(".ipynb"):
        cells = json.loads(source)["cells"]
        stated = [cell for cell in cells if "rule" in cell["metadata"].get("tags", ())]
        return {
            f"rule {number}": ast.unparse(_Silent().visit(ast.parse("".join(cell["source"]))))
            for number, cell in enumerate(stated, 1)
        }
    constants = {
        node.targets[0].id: node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    rules = {}
    for name, value in constants.items():
        if name.endswith("RULE"):
            mentioned = sorted({n.id for n in ast.walk(value) if isinstance(n, ast.Name)})
            parts = [f"{n} = {ast.unparse(constants[n])}" for n in mentioned if n in constants]
            rules[name] = "\n".join([ast.unparse(value), *parts])
    return rules


class _Silent(ast.NodeTransformer):
    """Passes over the calls of `print`."""

    def visit_Expr(self, step: ast.Expr) -> ast.stmt:
        called = step.value.func if isinstance(step.value, ast.Call) else None
        prints = isinstance(called, ast.Name) and called.id == "print"
        return ast.Pass() if prints else step


def digest(rules: Mapping[str, str]) -> str:
    """A short hash of a page's rules; it changes when one of them does."""
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()[:12]


def _git(root: Path, *arguments: str) -> str:
    # Git's own abbreviations grow with a clone; these are the same in all of them.
    done = subprocess.run(
        ["git", "-c", "core.abbrev=12", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AtsError(f"git {arguments[0]}: {done.stderr.strip() or 'failed'}")
    return done.stdout


def has_history(root: Path) -> bool:
    """Whether git knows all of the project's history here: a clone that is not shallow."""
    try:
        return _git(root, "rev-parse", "--is-shallow-repository").strip() == "false"
    except (AtsError, OSError):
        return False


def _versions(root: Path, path: str) -> Iterator[tuple[str, str, str, str, dict[str, str]]]:
    """Each version of a file, oldest first, under all its names.

    Commit, date, subject, source, and the rules in it.
    """
    log = _git(root, "log", "--follow", "--format=%x00%h %cI %s", "--name-only", "--", path)
    for entry in reversed(log.split("\0")[1:]):
        first, _, names = entry.strip().partition("\n")
        commit, date, subject = first.split(" ", 2)
        name = names.strip().splitlines()[-1]
        try:
            source = _git(root, "show", f"{commit}:{name}")
        except AtsError:  # it was deleted in this commit
            continue
        yield commit, date, subject, source, rules_in(name, source)


def _first_seen(root: Path, source: str) -> tuple[str, str, str, bool] | None:
    """Commit, date and subject of the first commit that held a rule of this module, in whatever file.

    A rule that moved with its module was not written on that day. It is looked for by its longest
    line; last comes whether all of its text was there already.
    """
    rules = _rule_values(source)
    if not rules:
        return None
    segment = ast.get_source_segment(source, rules[0])
    longest = max((line.strip().strip("f\"'") for line in segment.splitlines()), key=len)[:60]
    log = _git(root, "log", "--reverse", "--format=%h %cI %s", "-S", longest, "--", "*.py")
    if not log:
        return None
    commit, date, subject = log.splitlines()[0].split(" ", 2)
    files = _git(root, "grep", "-lF", longest, commit, "--", "*.py").split()
    before = [ast.unparse(v) for file in files for v in _rule_values(_git(root, "show", file))]
    return commit, date, subject, all(ast.unparse(value) in before for value in rules)


def _rule_values(source: str) -> list[ast.expr]:
    """What a module assigns to its constants named `…RULE`."""
    return [
        node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id.endswith("RULE")
    ]


def changes(root: Path, paths: Sequence[str]) -> list[dict[str, str]]:
    """Each commit that wrote or changed the rules stated in one of these files, oldest first.

    Raises:
        AtsError: this is no clone with a history.
    """
    found = []
    for path in paths:
        before = ""
        for commit, date, subject, source, rules in _versions(root, path):
            now = digest(rules) if rules else before
            if now != before:
                change = {"date": date, "commit": commit, "what": subject, "rules": now}
                first = None
                if not found and path.endswith(".py"):
                    first = _first_seen(root, source)
                if first and first[0] != commit:
                    commit, date, subject, same = first
                    earlier = {"date": date, "commit": commit, "what": subject}
                    found.append(earlier | {"rules": now if same else "another text"})
                    if not same:
                        found.append(change)
                else:
                    found.append(change)
            before = now
    return sorted(found, key=lambda change: _moment(change["date"]))


# Pages that judge by another page's rule, or did before their notebooks stated one.
BORROWED = {
    "ext1_tinyimagenet": "claim3_transfer",
    "ext2_transformations_tinyimagenet": "claim6_transformations",
}


def sources(page: str) -> list[str]:
    """The files in which a page's rules are or were stated."""
    return [f"atsbook/pages/{BORROWED.get(page, page)}.py", f"notebooks/{page}.ipynb"]


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
    """What `write_rules` kept, by page; nothing where there is no such file."""
    file = Path(results) / FILE
    return json.loads(file.read_text()) if file.exists() else {}


def write_rules(root: Path, evidence: Mapping[str, Sequence[str]]) -> None:
    """Keep the dates of all pages' rules and evidence in `results/rules.json`.

    A shallow clone keeps the dates of the rules that are recorded already.

    Args:
        evidence: by page, when its results were made (ISO dates with a time).
    """
    known = recorded(root / "results")
    history = has_history(root)
    record = {}
    for page, made in evidence.items():
        before = known.get(page, {}).get("changes", [])
        days = sorted(made, key=_moment)
        record[page] = {
            "changes": changes(root, sources(page)) if history else before,
            "evidence": [days[0], days[-1]] if days else [],
        }
    text = json.dumps(record, indent=1, sort_keys=True) + "\n"
    write_atomically(root / "results" / FILE, lambda partial: partial.write_text(text))
