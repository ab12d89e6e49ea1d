"""Extension 8: nine claims of Inverting Gradients (Geiping et al.) and four objections to it, each
tested.
"""

from collections.abc import Hashable, Mapping

import numpy as np
import pandas as pd

from atsbook.findings import compare, lines
from atsbook.findings.lines import Line
from atsbook.findings.result import NO_POLICY, Result, Verdict
from atsbook.findings.statistics import interval
from atsbook.findings.verdicts import MARGIN
from atsbook.runs import inverting
from atsbook.runs.attacks import attacked
from atsbook.runs.batches import attacked_batches
from atsbook.runs.gradients import StagesUnit, features_read, through_training
from atsbook.runs.networks import Unit, dataset
from atsbook.runs.settings import Settings
from atsbook.runs.store import Store
from atsbook.runs.tables import provenance
from atslib.models import device_of


def units(settings: Settings) -> dict[tuple, Unit]:
    """All by (line, where, what); those of tuning by ("tuned", line, where, attack, step size)."""
    return (
        inverting.gradient_units(settings)
        | inverting.attack_units(settings)
        | inverting.batch_units(settings)
    )


LINES = {
    "C1": Line(
        "The direction of a gradient carries the image, its length the stage of training.",
        "Gradients of 64 images at ten stages of ResNet20-1's training. The stage explains more of the variance "
        "of the logarithm of the length than the image does, and the image more of that of the direction than the "
        "stage (95 % intervals over images of the difference).",
        lines.direction,
    ),
    "C2": Line(
        "The cosine is a better distance than the Euclidean one, and more so on trained networks.",
        "Where one of the four attacks gains on the floor, each at its best step size, the cosine gains more than "
        "L2 (95 % interval of the difference above 0); and its lead on the semi-trained or the trained network is "
        "clearly larger than on the untrained one (intervals apart). Partly: one of these holds. Cannot tell: no "
        "attack gains anywhere.",
        lines.cosine,
    ),
    "O4": Line(
        "Sixteen restarts were given to one side only.",
        f"The objection holds if restarts, chosen by the attack's own cost, raise the PSNR by more than {MARGIN} "
        f"dB (95 % interval) for every attack; partly: for some. It does not if all changes lie within ± {MARGIN} "
        "dB.",
        lines.restarts,
    ),
    "C3": Line(
        "Adam on the signs of the gradient is the better optimizer.",
        "At equal gradients and the best step size of each, signed Adam gains more than all others in both places "
        "(95 % intervals of the differences above 0). Not reproduced: in both some other one gains more than it. "
        "Partly: neither.",
        lines.optimizers,
    ),
    "C4": Line(
        "Trained networks leak, too.",
        "At the end of the training of both networks attacks gain on the floor (95 % interval above 0). Partly: "
        "in one, or in one more images are singled out among 100 than by chance (exact 95 % interval above 1 %).",
        lines.trained,
    ),
    "C5": Line(
        "Depth hardly matters.",
        "At width 16, 32 images, the gains on ResNet-34 and -152 differ from that on ResNet-18 by less than "
        f"{MARGIN} dB (95 % intervals inside). Not reproduced: both by more. Partly: one by more. Else it cannot "
        "be told.",
        lines.depth,
    ),
    "C6": Line(
        "Width raises the variance: more attempts, more luck.",
        "Of ResNet-18 at widths 16 and 64, 32 images with four starts each: at 64 the deviation over starts and "
        "what the luckiest start has above their mean are larger (95 % intervals of the differences above 0). "
        "Partly: one is. Not reproduced: one is smaller, and none larger. Else it cannot be told.",
        lines.width,
    ),
    "C7": Line(
        "Padding hides the image, and translation invariance hurts the attack.",
        "The gain on LeNet padded with zeros is below that without padding; and that on ResNet20-1 with circular "
        "padding, which does not see shifts by its stride, is below that with zeros (95 % intervals).",
        lines.padding,
    ),
    "C8": Line(
        "Averaging over local steps does not protect.",
        f"The PSNR after twenty local steps, which the attack repeats, is not more than {MARGIN} dB below that "
        "after one, for single images and for batches of eight (95 % intervals). Not reproduced: it is for both. "
        "Partly: for one. Else it cannot be told.",
        lines.local_steps,
    ),
    "C9": Line(
        "A batch of a hundred leaks some of its images.",
        "Of a hundred images of CIFAR-100 that share a gradient, attacked as one problem, more are singled out "
        "among 100 than by chance (exact 95 % interval above 1 %), on LeNet and on ResNet20-1, both untrained. "
        "Partly: on one.",
        lines.hundred,
    ),
    "O1": Line(
        "The theorem on linear layers stands alone; it could have been used.",
        "The objection holds if the inputs of the last layer are read off gradients of single images to 1e-4 of "
        "their length (median, every network), and some attack on these features alone gains on the floor (95 % "
        "interval).",
        lines.linear,
    ),
    "O2": Line(
        "Realistic batches were given a single experiment.",
        "The objection holds if single images mislead: of a hundred that share a gradient, labels restored, less "
        "than half as many are found (exact 95 % interval below that). It does not if the interval is above.",
        lines.batches,
    ),
    "O3": Line(
        "Comparisons stand without the truth and without absolute numbers.",
        "The objection holds if, among the clear leads of line C2 (95 % interval above 0), some are of attacks "
        "that do not beat the floor themselves: a comparison alone would take them for a success.",
        lines.relative,
    ),
}

HOLDS = {"reproduced": "holds", "partly": "holds in part", "not reproduced": "does not hold"}
RULE = (
    "Each line has its rule, written before its run and printed with it. Of the nine claims: reproduced if all hold, "
    "not reproduced if none does, partly otherwise; cannot tell if half of them or more cannot be told."
)


def verdict(tables: Mapping[str, pd.DataFrame]) -> tuple[pd.DataFrame, Verdict]:
    """One row per line, text, status and numbers, and what the claims come to."""
    rows = [(name, line.text, *line(tables)) for name, line in LINES.items()]
    judged = pd.DataFrame(rows, columns=["line", "text", "status", "numbers"])
    claims = judged[judged["line"].str.startswith("C")]["status"].value_counts()
    counted = "; ".join(f"{status}: {count}" for status, count in claims.items())
    if 2 * claims.get("cannot tell", 0) >= claims.sum():
        status = "cannot tell"
    else:
        full = {"reproduced", "not reproduced"} & set(claims.index) if len(claims) == 1 else set()
        status = full.pop() if full else "partly"
    return judged, Verdict(status, f"of nine claims {counted}", RULE, counted)


def run(settings: Settings, store: Store) -> Result:
    """Tables `lines` (status, numbers), and one row per image of `attacks`, `each` restart, `batches`,
    `features`, `stages`, by line, place and what differs; `tuned` has the mean PSNR of every step
    size that was tried.
    """
    device = device_of(settings.device)
    asked = inverting.attack_units(settings)
    groups = inverting.batch_units(settings)
    made = {key: attacked(unit, store, device) for key, unit in asked.items()}
    sheets = {key: attacked_batches(unit, store, device) for key, unit in groups.items()}
    rows: dict[str, list[pd.DataFrame]] = {
        name: [] for name in ("attacks", "each", "tuned", "features", "stages")
    }
    rows["batches"] = [
        inverting.batch_rows(key, groups[key], sheet) for key, sheet in sheets.items()
    ]
    for key, unit in asked.items():
        if key[0] == "tuned":
            tried = dict(zip((*inverting.KEYS, "rate"), key[1:], strict=True))
            rows["tuned"].append(pd.DataFrame([tried | {"psnr": float(made[key]["psnr"].mean())}]))
            continue
        rows["attacks"].append(inverting.attack_rows(key, unit, made[key], store, device))
        rows["each"] += [inverting.restart_rows(key, unit, made[key])] if unit.every else []
    for key, unit in inverting.gradient_units(settings).items():
        if isinstance(unit, StagesUnit):
            sheets[key] = through_training(unit, store, device)
            rows["stages"] += inverting.stage_rows(sheets[key])
        else:
            rows["features"].append(
                inverting.feature_rows(key, unit, features_read(unit, store, device))
            )
    tables = {name: pd.concat(parts, ignore_index=True) for name, parts in rows.items() if parts}
    judged, whole = verdict(tables)
    first = next(iter(made.values()))
    facts = provenance(settings, first) | {
        "model": "LeNet, ConvNet-16 and ResNets",
        "epochs": 0,
        "images": " to ".join(
            str(n) for n in np.unique([u.last - u.first for u in asked.values()])[[0, -1]]
        ),
        "steps": " to ".join(
            str(n) for n in np.unique([u.attack.evaluations for u in asked.values()])[[0, -1]]
        ),
    }
    return Result(
        "ext8_inverting_gradients", {"lines": judged} | tables, facts, whole, made | sheets
    )


def said(result: Result, *names: str) -> str:
    """Lines as HTML: text, status, numbers and rule."""
    judged = result.tables["lines"].set_index("line")
    parts = []
    for name in names:
        status, numbers = judged.loc[name, ["status", "numbers"]]
        shown = {
            "reproduced": "holds",
            "partly": "holds in part",
            "not reproduced": "does not hold",
        }.get(status, status)
        badge = f'<span class="verdict" data-status="{status}">{shown}</span>'
        parts.append(
            f"<p>{badge} <b>{name}. {LINES[name].text}</b> {numbers}.</p><p><i>Rule.</i> {LINES[name].rule}</p>"
        )
    return "".join(parts)


def _of(result: Result, table: str, *names: str) -> pd.DataFrame:
    """The rows of these lines; where none was run, of all."""
    rows = result.tables[table]
    own = pd.concat([rows[rows["line"] == name] for name in names])
    return rows if own.empty else own


def variance(result: Result) -> pd.DataFrame:
    """Shares of the variance of length and direction, in percent: one row for each; empty where it
    was not run.
    """
    rows = result.tables.get(
        "stages", pd.DataFrame(columns=["of", "all", "image_sum", "stage_sum"])
    )
    sums = rows.groupby("of", sort=False).sum()
    table = pd.DataFrame({"stage": sums["stage_sum"], "image": sums["image_sum"]}).div(
        sums["all"], axis=0
    )
    return (100 * table.assign(both=1 - table.sum(axis=1))).map("{:.1f}".format)


def means(result: Result, *names: str, value: str = "gain") -> pd.DataFrame:
    """Mean and 95 % interval of `value` by place and attack, for a figure."""
    parts = []
    for (where, what), rows in _of(result, "attacks", *names).groupby(
        ["where", "what"], sort=False
    ):
        low, high = interval(rows[value])
        parts.append(
            {
                "where": where,
                "what": str(what),
                "mean": rows[value].mean(),
                "low": low,
                "high": high,
            }
        )
    return pd.DataFrame(parts)


def outcomes(result: Result, *names: str, table: str = "attacks") -> pd.DataFrame:
    """One row per line, place and attack, as text: images, PSNR, gain on the floor, share found
    among 100.

    Intervals of gains are over images that have a gradient each, else over batches, of a single one
    over its images.
    """
    found = {}
    for (line, where, what), rows in _of(result, table, *names).groupby(
        list(inverting.KEYS), sort=False
    ):
        single = table == "attacks"
        key = (line, where, str(what) or NO_POLICY)
        rows = (
            rows
            if single
            else rows.assign(gain=rows["psnr"] - rows["floor"], rank_target=rows["rank"])
        )
        low, high = interval(
            rows["gain"], rows["image" if single or rows["group"].nunique() < 2 else "group"]
        )
        found[key] = {"n": str(len(rows)), "PSNR, dB": f"{rows['psnr'].mean():.1f}"}
        found[key] |= {"gain, dB": f"{rows['gain'].mean():+.1f} [{low:.1f}, {high:.1f}]"}
        found[key] |= {"found": lines.share(lines.found(rows))}
        if "rank_rolled" in rows and rows["rank_rolled"].notna().all():
            found[key] |= {"found, any shift": lines.share(lines.found(rows, "rank_rolled"))}
            found[key] |= {"PSNR at the best shift": f"{rows['psnr_rolled'].mean():.1f}"}
        if not single:
            found[key] |= {"PSNR assigned at random": f"{rows['random'].mean():.1f}"}
    table = pd.DataFrame(found).T.rename_axis(["", " ", "  "])
    return table.droplevel(0) if len(names) == 1 else table


def luck(result: Result) -> pd.DataFrame:
    """What restarts add to the PSNR, chosen by the attack's own cost, and of one by the truth; for
    a figure.
    """
    parts = []
    for (where, what), rows in _of(result, "each", "O4").groupby(["where", "what"], sort=False):
        choices = [("", "cost", "min")] + [(", oracle", "psnr", "max")] * (what == "cosine")
        for count in (n for n in inverting.RESTARTS if n <= rows["restart"].nunique()):
            for who, by, best in choices:
                values = lines.chosen(rows, count, by, best=best) - lines.chosen(rows, 1)
                low, high = interval(values)
                named = {"where": where, "what": f"{what}{who}", "restarts": count}
                parts.append(named | {"mean": values.mean(), "low": low, "high": high})
    return pd.DataFrame(parts)


def along(result: Result) -> pd.DataFrame:
    """Gain and share found along two trainings, for a figure."""
    parts = []
    for (where, step), rows in _of(result, "attacks", "C4").groupby(["where", "what"], sort=False):
        step = step if isinstance(step, int) else 0
        for of, values in (
            ("gain on the floor (dB)", compare.gained(rows)),
            ("found among 100 (%)", _percent(rows)),
        ):
            parts.append({"where": where, "step": step, "of": of} | values)
    return pd.DataFrame(parts)


def _percent(rows: pd.DataFrame, column: str = "rank_target") -> dict[str, float]:
    return dict(
        zip(("mean", "low", "high"), (100 * x for x in lines.found(rows, column)), strict=True)
    )


def shared(result: Result) -> pd.DataFrame:
    """Share found among 100, in percent, by the number of images behind a gradient, for a figure."""
    parts = []
    for (line, where, size), rows in _of(result, "batches", "C9", "O2").groupby(
        list(inverting.KEYS), sort=False
    ):
        name = f"{where}, labels restored" if line == "O2" else where
        parts.append({"what": name, "size": size, "of": "all images"} | _percent(rows, "rank"))
    return pd.DataFrame(parts)


def classes(result: Result, count: int = 10) -> pd.DataFrame:
    """Of the largest batch: class and PSNR of the images that came out best and worst, two columns
    a network.
    """
    rows = _of(result, "batches", "C9")
    found = {}
    names = dataset(str(result.facts["dataset"]), "test").class_names
    for where, part in rows[rows["what"] == rows["what"].max()].groupby("where", sort=False):
        text = [
            f"{names[r.label]} {r.psnr:.1f}"
            for r in part.sort_values("psnr", ascending=False).itertuples()
        ]
        found |= {f"{where}, best": text[:count], f"{where}, worst": text[: -count - 1 : -1]}
    return pd.DataFrame(found, index=range(1, len(next(iter(found.values()))) + 1))


def read_off(result: Result) -> pd.DataFrame:
    """One row per network, policy and batch size: error of the features read off, and whose they
    are.
    """
    rows = result.tables["features"]
    by = rows.groupby(["where", "policy", "size"], sort=False)
    table = pd.DataFrame(
        {"n": by.size(), "error (median)": by["error"].median().map("{:.1e}".format)}
    )
    table["error of the mean features"] = by["error_mean"].median().map("{:.2f}".format)
    for name, words in (("rank_target", "used image found"), ("rank_original", "photograph found")):
        table[words] = by[name].apply(lambda ranks: f"{(ranks == 1).mean():.0%}")
    return table


def pictures(result: Result, line: str, where: Hashable, count: int = 8) -> dict[str, object]:
    """The first images that a line's attacks met in a place, and what each made of them from the
    same starts.
    """
    own = {str(key[2]): sheet for key, sheet in result.sheets.items() if key[:2] == (line, where)}
    made = {name: sheet["reconstruction"][:count] for name, sheet in own.items()}
    return {"true images": next(iter(own.values()))["target"][:count]} | made if own else {}
