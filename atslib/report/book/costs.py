"""What pages and steps cost: Markdown tables of measured times, for the Reproduce page."""

import json
import math
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from atslib.data.load import is_drawn
from atslib.report.units.networks import Unit
from atslib.store import Store, write_atomically


def write_cost(units: Iterable[Unit], store: Store, folder: Path) -> None:
    """`cost.json` beside a page's tables: how many units it and they need, and the seconds that each took, added up."""
    needed: dict[Unit, None] = {}
    for unit in units:
        needed |= dict.fromkeys((*unit.needs, unit))
    facts = [json.loads(store.path(unit.kind, unit).with_suffix(".json").read_text()) for unit in needed]
    cost = {
        "units": len(facts),
        "seconds": round(math.fsum(fact["seconds"] for fact in facts), 1),
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
        data, _, profile = where.rpartition("-")
        if is_drawn(data):
            continue
        cost = json.loads(file.read_text())
        lines.append(
            f"| [{page}](results/{page}.ipynb) | {data}, {profile} | {', '.join(cost['devices'])} | {cost['units']} | "
            f"{cost['seconds'] / 60:.0f} min | {cost['longest']:.0f} s |"
        )
    return "\n".join(lines) + "\n" if len(lines) > 2 else "Not measured yet.\n"


def speed_table(measurements: Path) -> str:
    """Markdown from the JSON lines of `python -m atslib bench`: medians over the runs of each case."""
    if not measurements.exists():
        return "Not measured yet.\n"
    runs = pd.read_json(measurements, lines=True)
    runs = runs[runs["benchmark"].isin(("attack", "scores"))]  # the others compare with no loop
    lines = [
        "| Measured | Device | Network | At once | Engine | Plain loop | Ratio (range, n runs) | Convolution rate |",
        "|---|---|---|---|---|---|---|---|",
    ]
    keys = ["benchmark", "device", "threads", "model", "members"]
    for (benchmark, device, threads, model, members), rows in runs.groupby(keys, sort=False):
        device = f"{device}, {threads} threads" if device == "cpu" else device
        attack = benchmark == "attack"
        name = "attack, ms per image and iteration" if attack else "privacy score, gradients per second"
        ours, theirs = ("engine_ms", "loop_ms") if attack else ("engine_gradients", "loop_gradients")
        middle, ratio = rows[[ours, theirs, "ratio", "convolution_share"]].median(), rows["ratio"]
        lines.append(
            f"| {name} | {device} | {model} | {members} | {middle[ours]:.1f} | {middle[theirs]:.1f} | "
            f"{middle['ratio']:.1f} ({ratio.min():.1f} to {ratio.max():.1f}, n = {len(rows)}) | "
            f"{middle['convolution_share']:.0%} |"
        )
    return "\n".join(lines) + "\n"
