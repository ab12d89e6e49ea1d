"""Two tables of *Audit your own*, made from stored reports of `atsaudit`: what a network gives
away that is fine-tuned from pretrained weights, and what an audit finds of networks that people have.
"""

import json
from pathlib import Path

from atsbook.findings.statistics import mcnemar
from atsbook.texts.marks import insert_tables

MARK = "<!-- fine-tuning -->"
NETWORKS_MARK = "<!-- networks -->"
NETWORK = "network: "  # begins the names of the reports that `benchmarks/audits.py` stores
# What is trained, and the name of its report in `results/audits.json`
TRAINED = {"All layers": "lite0-all", "The head alone": "lite0-head"}
WEIGHTS = {"untrained": "untrained", "given": "shipped"}
LEVEL = 0.05


def fine_tuning(results: Path) -> str:
    """Markdown: what was found in each case by which attack, and what that says of pretrained
    weights beside untrained ones.
    """
    lines = [
        "| Trained | Weights | Found | 95 % interval | Chance | Bits | Gain, dB | Attack, steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    said = []
    file = results / "audits.json"
    if not file.exists():
        return "Not measured yet.\n"
    reports = json.loads(file.read_text(encoding="utf-8"))
    for trained, name in TRAINED.items():
        report = reports[name]
        cases = {case["case"]["weights"]: case for case in report["cases"]}
        for weights, words in WEIGHTS.items():
            case = cases[weights]
            cells = (
                trained,
                words,
                f"{case['found']} of {case['images']}",
                f"{100 * case['low']:.0f} to {100 * case['high']:.0f} %",
                f"{100 * case['chance']:.0f} %",
                f"{case['bits']:.2f}",
                f"{case['gain']:.1f}",
                f"`{case['attack']}`, {report['plan']['steps']}",
            )
            lines.append(f"| {' | '.join(cells).replace('| -', '| −')} |")
        said.append(f"{trained}: {compared(cases['untrained'], cases['given'])}")
    return "\n".join(lines) + "\n\n" + "\n\n".join(said) + "\n"


def compared(untrained: dict, given: dict) -> str:
    """Whether the given weights give away less than untrained ones, by the photographs that both
    were attacked on: an exact test of those found with one and not with the other (McNemar).

    Args:
        untrained, given: cases of a report.
    """
    found = [
        dict(zip(case["each"]["image"], case["each"]["found"], strict=True))
        for case in (untrained, given)
    ]
    both = found[0].keys() & found[1].keys()
    before, after = ([each[image] for image in both] for each in found)
    likely = mcnemar(before, after)
    fewer = sum(was and not now for was, now in zip(before, after, strict=True))
    more = sum(now and not was for was, now in zip(before, after, strict=True))
    doubt = ""
    if untrained["low"] <= untrained["chance"]:
        doubt = (
            " Not even with untrained weights more is found than by chance, so the attack does not work here: of what "
            "leaks the audit *cannot tell*."
        )
    elif given["low"] <= given["chance"]:
        doubt = (
            " With the shipped weights no more is found than by chance, which shows what these attacks can do in so "
            "many steps, and not that the photographs are safe: of that the audit *cannot tell*."
        )
    if likely < LEVEL:
        than = "less" if fewer > more else "more"
        verdict = f"with the shipped weights {than} is found than with untrained ones"
    else:
        verdict = "whether the shipped weights give away less than untrained ones cannot be told"
    return (
        f"{verdict} (of {len(both)} photographs found with untrained weights alone: {fewer}, with the shipped ones alone: "
        f"{more}; p = {likely:.2g}).{doubt}"
    )


def networks(results: Path) -> str:
    """Markdown: a row for each case of the audits that `benchmarks/audits.py` has stored."""
    lines = [
        "| Network | Weights | Shared | Found | 95 % interval | Chance | Attack, steps | Minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    file = results / "audits.json"
    stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    reports = {
        name.removeprefix(NETWORK): report
        for name, report in stored.items()
        if name.startswith(NETWORK)
    }
    if not reports:
        return "Not measured yet.\n"
    works = 0
    for name, report in reports.items():
        for case in report["cases"]:
            shared = case["title"].rpartition(", ")[0]
            cells = (
                name,
                case["case"]["weights"],
                shared,
                f"{case['found']} of {case['images']}",
                f"{100 * case['low']:.0f} to {100 * case['high']:.0f} %",
                f"{100 * case['chance']:.0f} %",
                f"`{case['attack']}`, {report['plan']['steps']}",
                f"{report['seconds'] / 60:.0f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
        control = next(case for case in report["cases"] if case["control"])
        works += control["low"] > control["chance"]
    threads = sorted({report["threads"] for report in reports.values()})
    processors = sorted({report["processor"] for report in reports.values()})
    count = f"{' or '.join(map(str, threads))} thread{'s' if threads[-1] > 1 else ''}"
    said = (
        f"In the positive control more is found than by chance in {works} of {len(reports)} audits. "
        f"Minutes are those of the whole command, with {count} of {' and '.join(processors)} and other work beside it. "
        "Its budget is ten unless the row says another."
    )
    return "\n".join(lines) + "\n\n" + said + "\n"


def insert_audits(path: Path, results: Path) -> None:
    """Put the two tables between their marks in a Markdown file; a file that is not there is left."""
    insert_tables(path, results, {MARK: fine_tuning, NETWORKS_MARK: networks})
