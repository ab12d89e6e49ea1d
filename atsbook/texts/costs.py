"""What pages and steps cost: measured times and what they let one expect, as Markdown."""

import math
from pathlib import Path

import pandas as pd

from atsbook.findings.result import FILE, stored_result, table_file
from atsbook.runs.archive import Archive
from atslib.data.load import is_drawn


def cost_table(results: Path) -> str:
    """Markdown: a row for each stored result on real data that says what it cost."""
    lines = [
        "| Page | Data, profile | Device | Units | Computing time, added up | Longest unit |",
        "|---|---|---|---|---|---|",
    ]
    for file in sorted(Path(results).glob(f"*/*/{FILE}")):
        page = file.parent.parent.name
        where = file.parent.name
        data, _, profile = where.rpartition("-")
        cost = stored_result(file.parent).get("cost")
        if is_drawn(data) or cost is None:
            continue
        lines.append(
            f"| [{page}](results/{page}.ipynb) | {data}, {profile} | {', '.join(cost['devices'])} | {cost['units']} | "
            f"{cost['seconds'] / 60:.0f} min | {cost['longest']:.0f} s |"
        )
    return "\n".join(lines) + "\n" if len(lines) > 2 else "Not measured yet.\n"


COSTS_TEXT = """# What it costs

## Predicted and measured

Work is counted in four ways: FLOP of convolutions and linear layers; activations; numbers of gradients that an attack
compares; calls of layers. A step of an attack is seven forward passes, a training step three. What each costs is
fitted to six short attacks on the machine at hand ({rates}), and everything else is predicted from it: `python -m
atsbook run --dry-run` does the same in some seconds. Errors below are of attacks that were not fitted: {errors}. Times
are of the process, not of the wall clock, so that other work on the machine counts less; the least of three runs.
Measured on {machine},
at a load of {load}.

{points}
## Whole profiles

Units are handed out in the order of their needs, as a run does it; handing out one takes {overhead}, measured with
units that do nothing, and the larger is used. Hours, on so many workers. The archive's units stand twice: with the
times that they took, two at a time on a machine of two cores, and as predicted for one core with nothing else to do.
What depends on results, such as attacks on what a search finds, is left out. No H100 has been measured: its row takes
the data sheet's 67 TFLOP/s in single precision and 3.35 TB/s, of which real work is assumed to reach a tenth to a
half. With many workers the longest chain of units decides.

{profiles}
The plain loop, one image at a time as the released code attacks, takes {loop} as long an iteration as the engine does
on the same CPU ({{doc}}`reproduce`), so that many times the hours of attacks above.

## The stored pages

Each unit of work in a process of its own with one thread on a CPU. Units that pages share count for each of them, so
the sum is more than a run of all takes: the {stored:,} units of the archive took {hours:.0f} hours, added up. As many
run at once as there are cores. A busy machine made some of them slower.

{pages}"""


def costs_page(results: Path) -> str:
    """The page *What it costs* in Markdown, from `results/costs.jsonl` (`bench costs`) and the
    pages' own costs.
    """
    file = results / "costs.jsonl"
    pages = cost_table(results)
    if not file.exists():
        return f"# What it costs\n\n{pages}"
    rows = pd.read_json(file, lines=True)
    rows = rows.loc[rows[rows["benchmark"] == "machine"].index[-1] :]  # the last run
    machine, rates, overhead = (
        rows[rows["benchmark"] == name].iloc[0].dropna()
        for name in ("machine", "rates", "overhead")
    )
    cases = rows[rows["benchmark"] == "costs"]
    off = cases.loc[cases["fitted"] == 0, "error"].abs()
    names = {"flop": "FLOP", "number": "activation", "weight": "number in a gradient"}
    stored = Archive(results).entries()
    words = {
        "pages": pages,
        "stored": len(stored),
        "hours": math.fsum(line["seconds"] for line in stored.values()) / 3600,
        "rates": ", ".join(
            f"{1e9 * rates[name]:.2g} ns per {word}" for name, word in names.items()
        ),
        "errors": f"median {off.median():.0%}, largest {off.max():.0%}, n = {len(off)}",
        "machine": f"{machine['device']}, {str(machine['made'])[:10]}, torch {machine['torch']}",
        "load": f"{machine['load']:.1f}",
        "points": _points(cases),
        "overhead": " and ".join(
            f"{overhead[name]:.0f} ms ({name})" for name in ("processes", "Dask")
        ),
        "profiles": _profiles(rows[rows["benchmark"] == "profile"]),
        "loop": _loop(results / "speed.jsonl"),
    }
    return COSTS_TEXT.format(**words)


def _points(cases: pd.DataFrame) -> str:
    lines = [
        "| Network | Images | Policies | Images a gradient | Steps | Side | Measured, s | Predicted, s | Error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case in cases.to_dict("records"):
        counts = " | ".join(
            f"{case[name]:.0f}" for name in ("images", "policies", "batch", "steps", "side")
        )
        error = "fitted" if case["fitted"] else f"{case['error']:+.0%}"
        lines.append(
            f"| {case['model']} | {counts} | {case['seconds']:.2f} | {case['predicted']:.2f} | {error} |"
        )
    return "\n".join(lines) + "\n"


def _profiles(rows: pd.DataFrame) -> str:
    workers = sorted(rows["workers"].astype(int).unique())
    lines = [f"| Profile | Times | Units | {' | '.join(f'{count} at once' for count in workers)} |"]
    lines.append("|---" * (3 + len(workers)) + "|")
    for (profile, way, units), part in rows.groupby(["profile", "times", "units"], sort=False):
        hours = [
            " to ".join(
                dict.fromkeys(f"{end:,.{2 if end < 1 else 1 if end < 100 else 0}f}" for end in ends)
            )
            for ends in part.sort_values("workers")[["low", "high"]].to_numpy()
        ]
        lines.append(f"| {profile} | {way} | {units:.0f} | {' | '.join(hours)} |")
    return "\n".join(lines) + "\n"


def _loop(measurements: Path) -> str:
    """How often the plain loop's iteration contains the engine's, over the pages' networks, in
    words.
    """
    runs = pd.read_json(measurements, lines=True)
    of_pages = (runs["benchmark"] == "attack") & ~runs["model"].str.contains("@")
    ratios = runs[of_pages].groupby("model")["ratio"].median()
    return ", ".join(
        f"{ratio:.1f} times ({model})" for model, ratio in ratios.sort_values().items()
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
    case, and beside another project's code where `benchmarks/peers.py` has compared them.
    """
    if not measurements.exists():
        return "Not measured yet.\n"
    runs = pd.read_json(measurements, lines=True)
    table = _against_loop(runs[runs["benchmark"].isin(("attack", "scores"))])
    peers = runs[runs["benchmark"] == "peers"]
    return table if peers.empty else f"{table}\n{_against_peers(peers)}"


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
            str(members),
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
            f"| {name} | {model} | {members} | {middle['engine_ms']:.1f} | {middle['breaching_ms']:.1f} | "
            f"{_with_range(rows['ratio'])} |"
        )
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
