"""What attacks cost: times, and what more steps bring, as Markdown."""

import math
from pathlib import Path

import pandas as pd

from atsbook.evidence.archive import Archive
from atsbook.findings.result import stored_result, table_file


def cost_line(results: Path) -> str:
    """How long all of the evidence took, in one sentence."""
    stored = Archive(results).entries()
    hours = math.fsum(line["seconds"] for line in stored.values()) / 3600
    return (
        f"The {len(stored):,} results of the archive took {hours:.0f} hours, added up, each in a process with one "
        "thread on a CPU; `python -m atsbook run --dry-run` says how long another run may take.\n"
    )


def steps_table(results: Path, data: str = "cifar100") -> str:
    """Markdown: an attack's mean gain in dB by its number of steps, a row per network and schedule;
    "" before a run.
    """
    folder = Path(results) / "steps" / f"{data}-laptop"
    if not folder.exists():
        return ""
    rows = pd.read_csv(table_file(folder, "attacks"))
    facts = stored_result(folder)["facts"]
    means = (
        rows.groupby(["model", "schedule", "steps"], sort=False)["gain"]
        .mean()
        .unstack("steps")
        .sort_index(axis=1)
    )
    lines = [
        "Mean gain of an attack over the best guess without a gradient, in dB, after so many steps: untrained "
        f"networks, no policy, {data}, n = {rows['image'].nunique()} images, profile laptop, seed {facts['seed']}, "
        f"{facts['device']}.",
        "",
        f"| Network | Step size | {' | '.join(f'{steps:,}' for steps in means)} |",
        "|---|---|" + "---|" * means.shape[1],
    ]
    for (model, schedule), row in means.iterrows():
        cells = ("–" if math.isnan(gain) else f"{gain:+.1f}" for gain in row)
        lines.append(f"| {model} | {schedule} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def speed_table(measurements: Path) -> str:
    """Markdown from the JSON lines of `python -m atsbook bench`: medians over the runs of each
    case; beside another project's code where `benchmarks/peers.py` has compared them; and what
    attacks of fewer steps reach, by `benchmarks/steps.py`.
    """
    if not measurements.exists():
        return "Not measured yet.\n"
    runs = pd.read_json(measurements, lines=True)
    table = _against_loop(runs[runs["benchmark"].isin(("attack", "scores"))])
    peers, same, fewer = (runs[runs["benchmark"] == name] for name in ("peers", "answers", "steps"))
    parts = [table]
    parts += [] if peers.empty else [_against_peers(peers)]
    parts += [] if same.empty else [_same_photographs(same)]
    parts += [] if fewer.empty else [_fewer_gradients(fewer)]
    return "\n".join(parts)


def _against_loop(runs: pd.DataFrame) -> str:
    head = (
        "Measured", "Device", "Network", "At once", "Engine", "Plain loop", "Ratio (range, n runs)",
        "Convolution rate", "Memory, MB: engine, loop",
    )  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    machine = runs.apply(_machine, axis=1)
    for (name, benchmark, model, members), rows in runs.groupby(
        [machine, "benchmark", "model", "members"], sort=False
    ):
        attack = benchmark == "attack"
        measured = (
            "attack, ms per image and iteration"
            if attack
            else "privacy score, gradients per second"
        )
        ours, theirs = (
            ("engine_ms", "loop_ms") if attack else ("engine_gradients", "loop_gradients")
        )
        middle = rows[[ours, theirs, "ratio", "convolution_share"]].median()
        cells = (
            measured,
            name,
            model,
            f"{members:.0f}",
            f"{middle[ours]:.1f}",
            f"{middle[theirs]:.1f}",
            _with_range(rows["ratio"]),
            f"{middle['convolution_share']:.0%}",
            _memory(rows),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _against_peers(runs: pd.DataFrame) -> str:
    """A table of an attack's iteration beside that of breaching."""
    lines = [
        "An attack's iteration beside that of breaching, by its own code, in ms of processor time per image:",
        "",
        "| Device | Network | At once | Engine | breaching, one at a time | Ratio (range, n runs) |",
        "|---|---|---|---|---|---|",
    ]
    machine = runs.apply(_machine, axis=1)
    for (name, model, members), rows in runs.groupby([machine, "model", "members"], sort=False):
        middle = rows[["engine_ms", "breaching_ms"]].median()
        lines.append(
            f"| {name} | {model} | {members:.0f} | {middle['engine_ms']:.1f} | {middle['breaching_ms']:.1f} | "
            f"{_with_range(rows['ratio'])} |"
        )
    return "\n".join(lines) + "\n"


def _same_photographs(runs: pd.DataFrame) -> str:
    """A table of what an attack and breaching's make of the same photographs, and in how long."""
    machines = ", ".join(runs.apply(_machine, axis=1).unique())
    lines = [
        "What both make of the same eight photographs, each alone in its gradient, without a policy, on untrained "
        f"networks; {machines}. *Found*: among 100 test images of its class. breaching's *Inverting Gradients* takes "
        "24,000 iterations by default.",
        "",
        "| Network | Attack | Steps | Processor time an image, s | Times ours | PSNR, dB | Found |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, rows in runs.groupby("model", sort=False):
        ours = rows[rows["by"] != "breaching"]["seconds"].iloc[0]
        for row in rows.itertuples():
            times = "1" if row.seconds == ours else f"{row.seconds / ours:,.0f}"
            lines.append(
                f"| {model} | {row.by} | {row.steps:,.0f} | {row.seconds:.2f} | {times} | {row.psnr:.1f} | "
                f"{row.found:.0f} of {row.members:.0f} |"
            )
    return "\n".join(lines) + "\n"


EQUAL = 0.15  # bits; within these the answer is the same


def _fewer_gradients(runs: pd.DataFrame) -> str:
    """A table of attacks of fewer steps, each beside the one that the pages use."""
    machines = ", ".join(runs.apply(_machine, axis=1).unique())
    lines = [
        "The same answer with fewer gradients: what an attack reveals of a photograph, without a policy, untrained "
        f"network, three draws; {machines}. *The same*: the 95 % interval of the paired change, over photographs, "
        f"lies within ±{EQUAL} bits.",
        "",
        "| Network | Attack | Instead of | Gradients | Processor time | Bits | Change | n | The same? |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for run in runs.itertuples():
        change = f"{run.change:+.2f} [{run.low:.2f}, {run.high:.2f}]".replace("-", "−")
        inside = run.low >= -EQUAL and run.high <= EQUAL
        other = "no, fewer" if run.high < 0 else "cannot tell"
        cells = (
            run.model,
            run.attack,
            run.against,
            f"{run.gradients:.2f}",
            f"{run.time:.2f} ({run.time_low:.2f} to {run.time_high:.2f})",
            f"{run.bits_before:.2f} → {run.bits:.2f}",
            change,
            f"{run.photographs:.0f}",
            "yes" if inside else other,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _machine(run: pd.Series) -> str:
    """A device in words: of a processor its name, its vectors and the number of threads."""
    if run["device"] != "cpu":
        return run["device"]
    count = f"{run['threads']} threads" if run["threads"] > 1 else "1 thread"
    named = isinstance(run.get("processor"), str)  # older lines say less
    return f"{run['processor']} ({run['features']}), {count}" if named else f"cpu, {count}"


def _with_range(ratio: pd.Series) -> str:
    spread = "" if len(ratio) == 1 else f"{ratio.min():.1f} to {ratio.max():.1f}, "
    return f"{ratio.median():.1f} ({spread}n = {len(ratio)})"


def _memory(rows: pd.DataFrame) -> str:
    """What an iteration of engine and loop adds to the memory in use; "–" where it is not known."""
    names = ["engine_mb", "loop_mb"]
    if not set(names) <= set(rows) or rows[names].isna().to_numpy().any():
        return "–"
    engine, loop = rows[names].median()
    return f"{engine:,.0f}, {loop:,.0f}"
