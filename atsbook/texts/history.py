"""The page "How we kept ourselves honest": the verdicts by date, and what made them so."""

import json
import math
from pathlib import Path

from atsbook.evidence.archive import Archive
from atsbook.findings.newest import exported
from atsbook.findings.rules import recorded
from atsbook.texts.start import rendered

FEW = 6  # changes of PSNR that are listed one by one
FILE = "history.json"  # in results/: by page, its verdicts, oldest first
# Outcomes by their first words, in the order in which they were in use, and how the table names them
OUTCOMES = {
    "PSNR of attacks": "By PSNR",
    "r of score and PSNR": "By PSNR",
    "gain": "By gain",
    "bits": "By bits and photographs found",
    "r of score and bits": "By bits and photographs found",
}


def history(results: Path, evidence: Path | None = None) -> str:
    """The page as MyST Markdown.

    Args:
        evidence: where the archive is; by default in results/.
    """
    if not (results / FILE).exists():
        return "# How we kept ourselves honest\n\nNo verdict is recorded here.\n"
    stored = Archive(evidence or results).entries()
    verdicts = json.loads((results / FILE).read_text(encoding="utf-8"))
    rules = recorded(results)
    pages = []
    for name, steps in verdicts.items():
        changes = max(len(rules.get(name, {}).get("changes", ())) - 1, 0)
        times = {0: "never changed", 1: "changed once", 2: "changed twice"}
        times = times.get(changes, f"changed {changes} times")
        pages.append(
            {
                "name": name,
                "title": _title(results.parent / "notebooks" / f"{name}.ipynb"),
                "link": f"{{doc}}`results/{name}`",
                "steps": steps,
                "times": times,
                "changes": changes,
            }
        )
    moved = sum(len({step["verdict"] for step in page["steps"]}) > 1 for page in pages)
    kinds = list(dict.fromkeys(OUTCOMES.values()))
    return rendered(
        "honest.md.jinja",
        pages=pages,
        moved=moved,
        kinds=[kinds[0], "PSNR today", *kinds[1:]],
        turning=[row for page in pages if (row := _turning(page, kinds, results))],
        changes=sum(page["changes"] for page in pages),
        changed=sum(page["changes"] > 0 for page in pages),
        results=f"{len(stored):,}",
        hours=f"{math.fsum(line['seconds'] for line in stored.values()) / 3600:.0f}",
    )


def _title(notebook: Path) -> str:
    """The first heading of a page."""
    first = "".join(json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"])
    return first.partition("\n")[0].removeprefix("# ")


def _turning(page: dict, kinds: list[str], results: Path) -> dict | None:
    """The last verdict by each outcome, of a page that is judged by bits and where these differ."""
    last = {
        kind: step
        for step in page["steps"]
        for words, kind in OUTCOMES.items()
        if step["outcome"].startswith(words)
    }
    if kinds[-1] not in last or len({step["verdict"] for step in last.values()}) < 2:
        return None
    first, *others = (
        f"{last[kind]['verdict']}: {last[kind]['result']}" if kind in last else "–"
        for kind in kinds
    )
    today = _psnr(exported(page["name"], results).get("psnr", {}))
    return {"link": page["link"], "cells": [first, today, *others]}


def _psnr(changes: dict[str, dict[str, float]]) -> str:
    """How a policy changes PSNR on the photographs that a page judges: each change, or how many fall and rise."""
    if not changes:
        return "–"
    if len(changes) <= FEW:
        words = [
            f"{name} {each['mean']:+.1f} dB [{each['low']:.1f}, {each['high']:.1f}]"
            for name, each in changes.items()
        ]
        return "; ".join(words).replace(" -", " −").replace("[-", "[−")
    falls = sum(each["high"] < 0 for each in changes.values())
    rises = sum(each["low"] > 0 for each in changes.values())
    return f"of {len(changes)} comparisons lower in {falls}, higher in {rises} (95 % interval)"
