"""The claims of Inverting Gradients and the objections to them: the rule of each, and how it is
judged.

Written before the runs. A rule looks at the tables of its page alone, by the columns `line`,
`where` and `what`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from atsbook.findings import compare
from atsbook.findings.statistics import ENOUGH, interval, paired, share_interval
from atsbook.findings.verdicts import MARGIN, does_not_matter
from atsbook.runs.inverting import LOCAL
from atslib.errors import choose

Tables = dict[str, pd.DataFrame]
Judged = tuple[str, str]  # status, numbers in words
FOUND = 0.01  # the share of images that chance finds among 100
UNTOLD = ("cannot tell", f"not run, or on fewer than {ENOUGH} images")


# Tables of the page; a smaller profile makes some of them not at all.
TABLES = ("attacks", "each", "batches", "features", "stages")


class _NotRun(Exception):
    """A line was not run, or on too few images to judge it."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A claim or an objection in a sentence, its rule, and the function that judges it from the
    page's tables.
    """

    text: str
    rule: str
    judge: Callable[[Tables], Judged]

    def __call__(self, tables: Tables) -> Judged:
        """Status and numbers; *cannot tell* where the line was run on too few images, or not at
        all.
        """
        try:
            return self.judge(tables)
        except _NotRun:  # and nothing else: a column or an attack that is not there is an error
            return UNTOLD


def _status(holds: Sequence[bool]) -> str:
    return "reproduced" if all(holds) else "partly" if any(holds) else "not reproduced"


def _rows(tables: Tables, line: str, where: str = "", table: str = "attacks") -> pd.DataFrame:
    """The rows of a line, or of one place of it."""
    every = _table(tables, table)
    rows = every[every["line"] == line]
    rows = rows[rows["where"] == where] if where else rows
    if rows["image"].nunique() < ENOUGH:
        raise _NotRun(line)
    return rows


def _table(tables: Tables, name: str) -> pd.DataFrame:
    """A table of the page, which a smaller profile may not have made."""
    choose("table", name, TABLES)
    if name not in tables:
        raise _NotRun(name)
    return tables[name]


def _with_enough(images: pd.Series, line: str, count: int) -> list:
    """The least `count` labels of a series that counts images, of those that have enough."""
    enough = images[images >= ENOUGH].index
    if len(enough) < count:
        raise _NotRun(line)
    return list(enough[:count])


def _lead(
    rows: pd.DataFrame, name: object, base: object, value: str = "gain", unit: str = "image"
) -> dict[str, float]:
    """Mean and interval of `value` of one attack minus another's, on the same images or batches."""
    return dict(
        paired(rows[rows["what"].isin((name, base))], base, value, by="what", unit=unit).loc[name]
    )


def _gain(rows: pd.DataFrame, what: object) -> dict[str, float]:
    return compare.gained(rows[rows["what"] == what])


def found(rows: pd.DataFrame, column: str = "rank_target") -> tuple[float, float, float]:
    """Share of images singled out among 100, with its exact 95 % interval."""
    hits = int((rows[column] == 1).sum())
    return (hits / len(rows), *share_interval(hits, len(rows)))


def share(found: tuple[float, float, float]) -> str:
    """A share with its interval in words."""
    return f"{found[0]:.0%} [{found[1]:.0%}, {found[2]:.0%}]"


def direction(tables: Tables) -> Judged:
    """Line C1: of length and of direction, what the stage explains and what the image."""
    rows = _table(tables, "stages")
    ends = {}
    words = []
    for of, part in rows.groupby("of", sort=False):
        ends[of] = interval(part["image_sum"] - part["stage_sum"])
        image, stage = (part[name].sum() / part["all"].sum() for name in ("image_sum", "stage_sum"))
        low, high = (100 * end / part["all"].mean() for end in ends[of])
        difference = f"{100 * (image - stage):+.0f} points [{low:.0f}, {high:.0f}]"
        words.append(
            f"of the variance of the {of} the image explains {image:.0%}, the stage {stage:.0%} ({difference})"
        )
    return _status((ends["length"][1] < 0, ends["direction"][0] > 0)), "; ".join(words)


def cosine(tables: Tables) -> Judged:
    """Line C2: the lead of the cosine over L2 by place."""
    holds = []
    words = []
    leads = {}
    for where, rows in _rows(tables, "C2").groupby("where", sort=False):
        leads[where] = _lead(rows, "cosine", "L2")
        telling = max(_gain(rows, what)["low"] for what in rows["what"].unique()) > 0
        holds += [leads[where]["low"] > 0] if telling else []
        words.append(
            f"{where}: {compare.interval(leads[where])}{'' if telling else ' (no attack works)'}"
        )
    if not holds:
        return "cannot tell", "; ".join(words)
    trained = [where for where in leads if not where.endswith("initial")]
    first = next(
        where for where in leads if where.startswith("ResNet") and where.endswith("initial")
    )
    more = [leads[where]["low"] > leads[first]["high"] for where in trained]
    return _status([*holds, any(more)]), "; ".join(words)


def restarts(tables: Tables) -> Judged:
    """Line O4: what sixteen restarts, chosen by the attack's own cost, add to one."""
    changes = []
    words = []
    for (where, what), part in _rows(tables, "O4", table="each").groupby(
        ["where", "what"], sort=False
    ):
        change = chosen(part, part["restart"].nunique()) - chosen(part, 1)
        low, high = interval(change)
        changes.append((low, high))
        words.append(f"{where}, {what}: {change.mean():+.1f} dB [{low:.1f}, {high:.1f}]")
    if any(low > MARGIN for low, _ in changes):
        return ("reproduced" if all(low > MARGIN for low, _ in changes) else "partly"), "; ".join(
            words
        )
    small = all(does_not_matter(*change) for change in changes)
    return "not reproduced" if small else "cannot tell", "; ".join(words)


def chosen(rows: pd.DataFrame, count: int, by: str = "cost", *, best: str = "min") -> pd.Series:
    """PSNR of each image's restart of least cost among the first `count`; `by` "psnr" and "max" is
    the oracle.
    """
    few = rows[rows["restart"] < count].set_index(["image", "restart"])
    ranked = few[by].replace([np.inf, -np.inf], np.nan).dropna().groupby(level="image")
    return (
        few["psnr"].loc[ranked.idxmin() if best == "min" else ranked.idxmax()].droplevel("restart")
    )


def optimizers(tables: Tables) -> Judged:
    """Line C3: the lead of signed Adam over the others."""
    signed = "Adam, signed"
    best = []
    words = []
    for where, rows in _rows(tables, "C3").groupby("where", sort=False):
        leads = {
            what: _lead(rows, signed, what) for what in rows["what"].unique() if what != signed
        }
        ahead = all(lead["low"] > 0 for lead in leads.values())
        behind = any(lead["high"] < 0 for lead in leads.values())
        best.append(int(ahead) - int(behind))
        words += [f"{where}, over {what}: {compare.interval(lead)}" for what, lead in leads.items()]
    status = "reproduced" if min(best) == 1 else "not reproduced" if max(best) == -1 else "partly"
    return status, "; ".join(words)


def trained(tables: Tables) -> Judged:
    """Line C4: attacks at the end of the training."""
    gains = []
    finds = []
    words = []
    for where, rows in _rows(tables, "C4").groupby("where", sort=False):
        end = max(rows["what"])
        gain = _gain(rows, end)
        hits = found(rows[rows["what"] == end])
        gains.append(gain["low"] > 0)
        finds.append(hits[1] > FOUND)
        words.append(f"{where} after {end:,} steps: {compare.interval(gain)}, found {share(hits)}")
    status = (
        "reproduced" if all(gains) else "partly" if any(gains) or any(finds) else "not reproduced"
    )
    return status, "; ".join(words)


def depth(tables: Tables) -> Judged:
    """Line C5: gains of deeper networks, of the width at which enough images are attacked."""
    rows = _rows(tables, "C5")
    many = rows.groupby("where")["image"].nunique()
    rows = rows[rows["where"] == _with_enough(many, "C5", 1)[0]]
    first, *deeper = rows["what"].unique()
    changes = {name: _lead(rows, name, first) for name in deeper}
    words = "; ".join(f"{name}: {compare.interval(change)}" for name, change in changes.items())
    ends = [(change["low"], change["high"]) for change in changes.values()]
    if all(does_not_matter(*end) for end in ends):
        return "reproduced", words
    beyond = [low > MARGIN or high < -MARGIN for low, high in ends]
    return ("not reproduced" if all(beyond) else "partly" if any(beyond) else "cannot tell"), words


def width(tables: Tables) -> Judged:
    """Line C6: the spread over starts, and what the luckiest of four has above their mean."""
    rows = _rows(tables, "C6", table="each")
    many = rows.groupby("what")["image"].nunique()
    narrow, wide = _with_enough(many.sort_index(), "C6", 2)
    by_image = rows.groupby(["what", "image"])["psnr"]
    table = pd.DataFrame(
        {"spread": by_image.std(), "luck": by_image.max() - by_image.mean()}
    ).reset_index()
    changes = {name: _lead(table, wide, narrow, name) for name in ("spread", "luck")}
    mean = table.groupby("what")[["spread", "luck"]].mean()
    parts = [f"{name} at width {w}: {mean[name][w]:.2f} dB" for name in mean for w in mean.index]
    parts += [
        f"{n} at {wide} minus {narrow}: {c['mean']:+.2f} dB [{c['low']:.2f}, {c['high']:.2f}]"
        for n, c in changes.items()
    ]
    words = "; ".join(parts)
    if all(change["low"] > 0 for change in changes.values()):
        return "reproduced", words
    refuted = any(change["high"] < 0 for change in changes.values())
    some = any(change["low"] > 0 for change in changes.values())
    return ("partly" if some else "not reproduced" if refuted else "cannot tell"), words


def padding(tables: Tables) -> Judged:
    """Line C7: LeNet with and without padding, and a network that does not see shifts."""
    pads = _lead(_rows(tables, "C7", "lenet"), "zeros", "unpadded")
    rolls = _lead(_rows(tables, "C7", "resnet20-1"), "circular", "zeros")
    words = (
        f"LeNet, zeros minus unpadded: {compare.interval(pads)}; ResNet20-1, circular minus zeros: "
    )
    return _status((pads["high"] < 0, rolls["high"] < 0)), words + compare.interval(rolls)


def local_steps(tables: Tables) -> Judged:
    """Line C8: twenty local steps against one, by the attack that repeats them."""
    kept = []
    words = []
    for size, rows in _rows(tables, "C8", table="batches").groupby("where", sort=False):
        means = rows.groupby(["what", "group"], sort=False)["psnr"].mean().reset_index()
        change = _lead(means, f"{LOCAL[-1]} steps, unrolled", f"{LOCAL[0]} step", "psnr", "group")
        kept.append(1 if change["low"] > -MARGIN else -1 if change["high"] < -MARGIN else 0)
        words.append(f"batches of {size}, {LOCAL[-1]} steps minus one: {compare.interval(change)}")
    status = "reproduced" if min(kept) == 1 else "not reproduced" if max(kept) == -1 else None
    return status or ("partly" if 1 in kept or -1 in kept else "cannot tell"), "; ".join(words)


def hundred(tables: Tables) -> Judged:
    """Line C9: images singled out of a batch of a hundred."""
    holds = []
    words = []
    for where, rows in _rows(tables, "C9", table="batches").groupby("where", sort=False):
        hits = found(rows[rows["what"] == max(rows["what"])], "rank")
        holds.append(hits[1] > FOUND)
        words.append(f"{where}: {share(hits)} of {max(rows['what'])} found")
    return _status(holds), "; ".join(words)


def linear(tables: Tables) -> Judged:
    """Line O1: how exactly features are read off, and what they give away."""
    features = _table(tables, "features")
    single = features[features["size"] == 1]
    error = single.groupby("where")["error"].median()
    gains = {
        where: _gain(rows, "") for where, rows in _rows(tables, "O1").groupby("where", sort=False)
    }
    words = [f"median error at most {error.max():.0e} of a feature vector's length"]
    words += [
        f"{where}, from features alone: {compare.interval(gain)}" for where, gain in gains.items()
    ]
    words += [
        f"of {size} that share a gradient they single out {low:.0%} to {high:.0%}"
        for size, low, high in told(tables)
    ]
    return _status(
        (error.max() < 1e-4, any(gain["low"] > 0 for gain in gains.values()))
    ), "; ".join(words)


def told(tables: Tables) -> list[tuple[int, float, float]]:
    """The largest batch size whose features were read off: of images singled out by them the least
    and most share.
    """
    rows = _table(tables, "features")
    rows = rows[(rows["size"] == rows["size"].max()) & (rows["size"] > 1)]
    shares = (rows["rank_target"] == 1).groupby(rows["where"]).mean()
    return [] if rows.empty else [(int(rows["size"].iloc[0]), shares.min(), shares.max())]


def by_stage(stages: Mapping | None, steps: Sequence[int]) -> pd.DataFrame:
    """One row per stage of the training of line C1: median length of the gradients, and how alike
    directions are.
    """
    if stages is None:
        return pd.DataFrame()
    columns = {
        "length (median)": stages["norm"].median(1)[0],
        "cosine of two images": stages["same_stage"],
    }
    columns["cosine with the image's own before training"] = stages["same_image"][0]
    names = pd.Index(["untrained", *(f"step {step:,}" for step in steps), "end"])
    return pd.DataFrame(
        {name: values.double().numpy().round(2) for name, values in columns.items()}, index=names
    )


def overview(judged: pd.DataFrame) -> str:
    """Every line's text and status as an HTML table, nothing cut short."""
    with pd.option_context("display.max_colwidth", None):
        return judged.set_index("line")[["text", "status"]].to_html()


def sentence(tables: Tables) -> str:
    """The page in a sentence that a reader can quote, as Markdown; empty where its lines were not
    run.
    """
    try:
        rows = _rows(tables, "C9", table="batches")
        shares = told(tables)
    except _NotRun:
        return ""
    if not shares:
        return ""
    (size, low, high), *_ = shares
    sizes = (rows["what"].min(), rows["what"].max())
    one, most = (
        (rows[rows["what"] == n]["rank"] == 1).groupby(rows["where"]).mean() for n in sizes
    )
    return (
        f"**Gradient matching loses images in a batch; the last layer's gradient still names them.** Matching "
        f"singles out {one.min():.0%} ({one.idxmin()}) to {one.max():.0%} ({one.idxmax()}) of single images, and "
        f"{most.min():.0%} to {most.max():.0%} of {sizes[1]} that share a gradient. The inputs of the last layer, read "
        f"off in closed form, single out {low:.0%} to {high:.0%} of {size} that share one, by network."
    )


def batches(tables: Tables) -> Judged:
    """Line O2: whether what leaks from one image tells what leaks from a hundred, labels restored."""
    rows = _rows(tables, "O2", table="batches")
    one, most = (
        found(rows[rows["what"] == size], "rank") for size in (min(rows["what"]), max(rows["what"]))
    )
    words = f"found of single images {share(one)}, of {max(rows['what'])} that share a gradient {share(most)}"
    status = (
        "reproduced"
        if most[2] < one[0] / 2
        else "not reproduced"
        if most[1] > one[0] / 2
        else "cannot tell"
    )
    return status, words


def relative(tables: Tables) -> Judged:
    """Line O3: leads over another attack where no attack is better than the floor."""
    hidden = []
    seen = 0
    for where, rows in _rows(tables, "C2").groupby("where", sort=False):
        names = list(rows["what"].unique())
        best = max(names, key=lambda what: _gain(rows, what)["mean"])
        ahead = [name for name in names if name != best and _lead(rows, best, name)["low"] > 0]
        seen += len(ahead)
        hidden += [
            f"{where}: {best} over {name}" for name in ahead if not _gain(rows, best)["low"] > 0
        ]
    words = f"of {seen} clear leads {len(hidden)} are of attacks that do not beat their floor"
    return "reproduced" if hidden else "not reproduced", words + (
        f" ({'; '.join(hidden)})" if hidden else ""
    )
