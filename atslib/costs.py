"""What pages and steps cost: Markdown tables of measured times, for the Reproduce page."""

import json
from collections.abc import Iterable
from pathlib import Path

from atslib.experiments.units import Unit
from atslib.store import Store, write_atomically


def write_cost(units: Iterable[Unit], store: Store, folder: Path) -> None:
    """`cost.json` beside a page's tables: how many units it and they need, and the seconds that each took, added up."""
    needed: dict[Unit, None] = {}
    for unit in units:
        needed |= dict.fromkeys((*unit.needs, unit))
    facts = [json.loads(store.path(unit.kind, unit).with_suffix(".json").read_text()) for unit in needed]
    cost = {
        "units": len(facts),
        "seconds": round(sum(fact["seconds"] for fact in facts), 1),
        "longest": round(max(fact["seconds"] for fact in facts), 1),
        "devices": sorted({fact["device"] for fact in facts}),
    }
    write_atomically(folder / "cost.json", lambda partial: partial.write_text(json.dumps(cost, indent=1) + "\n"))


def cost_table(results: Path) -> str:
    """Markdown: a row for each stored result on real data that says what it cost."""
    lines = [
        "| Page | Data, profile | Device | Units | Computing time, added up | Longest unit |",
        "|---|---|---|---|---|---|",
    ]
    for file in sorted(Path(results).glob("*/*/cost.json")):
        page, where = file.parent.parent.name, file.parent.name
        if where.startswith("shapes"):
            continue
        cost = json.loads(file.read_text())
        data, _, profile = where.rpartition("-")
        lines.append(
            f"| [{page}](results/{page}.ipynb) | {data}, {profile} | {', '.join(cost['devices'])} | {cost['units']} | "
            f"{cost['seconds'] / 60:.0f} min | {cost['longest']:.0f} s |"
        )
    return "\n".join(lines) + "\n" if len(lines) > 2 else "Not measured yet.\n"


def speed_table(measurements: Path) -> str:
    """Markdown from the JSON lines of `python -m atslib bench`, the last of each benchmark, device and model."""
    if not measurements.exists():
        return "Not measured yet.\n"
    found = [json.loads(line) for line in measurements.read_text().splitlines()]
    last = {(r["benchmark"], r["device"], r["threads"], r["model"], r["members"]): r for r in found}.values()
    lines = [
        "| Measured | Device | Network | At once | Engine | Plain loop | Ratio | Share of convolution rate |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in sorted(last, key=lambda r: r["benchmark"]):
        device = f"{r['device']}, {r['threads']} threads" if r["device"] == "cpu" else r["device"]
        attack = r["benchmark"] == "attack"
        name = "attack, ms an image and iteration" if attack else "privacy score, gradients a second"
        ours, theirs = ("engine_ms", "loop_ms") if attack else ("engine_gradients", "loop_gradients")
        lines.append(
            f"| {name} | {device} | {r['model']} | {r['members']} | {r[ours]:.1f} | {r[theirs]:.1f} | "
            f"{r['ratio']:.1f} | {r['convolution_share']:.0%} |"
        )
    return "\n".join(lines) + "\n"
