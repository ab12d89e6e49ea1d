"""Extension 7: general deep leakage – labels of any batch, regularizers, several updates, and
weights (Geng et al.).
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from atsbook.findings import compare
from atsbook.findings.reported import reported
from atsbook.findings.result import Result, Verdict
from atsbook.findings.statistics import interval, paired
from atsbook.runs.batches import BatchUnit, LabelUnit, attacked_batches, restored
from atsbook.runs.leakage import COLUMNS, OURS, THEIRS, attack_units, label_units
from atsbook.runs.settings import Settings
from atsbook.runs.store import Store
from atsbook.runs.tables import provenance
from atslib.attacks.labels import RULES
from atslib.models import device_of

SOURCE = "leakage"  # in the table of published numbers
KEYS = ("table", "setting", "dataset", "batch")
IMAGES = ("psnr", "floor", "mse", "ssim", "rank", "within")  # of each image


def units(settings: Settings) -> dict[tuple, LabelUnit | BatchUnit]:
    """All by (table, setting, dataset, batch)."""
    return label_units(settings) | attack_units(settings)


LEAKAGE_RULE = (
    "Four claims of the paper, judged on untrained LeNet. Labels: by the published rule the share of labels told on "
    "CIFAR-10 reaches the printed one in every cell that ten classes allow (95 % interval over batches not below it). "
    "Regularizers: tv+clip+scale has a higher PSNR than tv (95 % interval of the paired difference above 0), single "
    "images. Updates: four updates have a higher PSNR than one, CIFAR-100. Repeated labels: our labels give a higher "
    "PSNR than GradInversion's in all five rows of Table 5. Reproduced: all four hold; not reproduced: none does; "
    "partly: some do. Cannot tell: one of them was not run."
)


def leakage_verdict(labels: pd.DataFrame, attacks: pd.DataFrame) -> Verdict:
    """The claims by `LEAKAGE_RULE`, from the tables `labels` and `attacks` of `run`."""
    here = {
        "labels": _labels_hold(labels),
        "regularizers": _higher(attacks, "Table 2", "cifar10", 1, "tv", "tv+clip+scale"),
        "updates": _higher(attacks, "Table 1", "cifar100", 16, "1 update", "4 updates"),
        "repeated labels": _repeated_hold(attacks),
    }
    if missing := [name for name, held in here.items() if held is None]:
        return Verdict("cannot tell", f"not run: {', '.join(missing)}", LEAKAGE_RULE)
    held = [name for name, is_so in here.items() if is_so]
    status = "reproduced" if len(held) == len(here) else "partly" if held else "not reproduced"
    failed = [name for name in here if name not in held]
    reason = "; ".join(
        f"{words}: {', '.join(names)}"
        for words, names in (("holds", held), ("does not hold", failed))
        if names
    )
    return Verdict(status, reason, LEAKAGE_RULE, f"{len(held)} of {len(here)} claims hold")


def _labels_hold(labels: pd.DataFrame) -> bool | None:
    own = labels[
        (labels["table"] == "Table 4")
        & (labels["dataset"] == "cifar10")
        & (labels["rule"] == THEIRS)
    ]
    printed = published("Table 4", "cifar10")
    cells = own.assign(key=own["setting"] + " batch " + own["batch"].astype(str)).set_index("key")[
        "high"
    ]
    return None if cells.empty else bool((cells >= printed.reindex(cells.index) / 100).all())


def _repeated_hold(attacks: pd.DataFrame) -> bool | None:
    kinds = [
        s.removesuffix(", our labels")
        for s in attacks["setting"].unique()
        if s.endswith(", our labels")
    ]
    parts = [
        _higher(
            attacks, "Table 5", "cifar100", 16, f"{k}, GradInversion's labels", f"{k}, our labels"
        )
        for k in kinds
    ]
    return all(parts) if len(kinds) == 5 else None


def _higher(
    attacks: pd.DataFrame, table: str, dataset: str, batch: int, low: str, high: str
) -> bool | None:
    """Whether one setting has a higher PSNR than another on the same images; batches are the
    sample.
    """
    rows = attacks[
        (attacks["table"] == table) & (attacks["dataset"] == dataset) & (attacks["batch"] == batch)
    ]
    if not {low, high} <= set(rows["setting"]):
        return None
    means = rows.groupby(["setting", "group"], sort=False)["psnr"].mean().reset_index()
    return bool(paired(means, low, by="setting", unit="group").loc[high, "low"] > 0)


def published(table: str, dataset: str) -> pd.Series:
    """What the paper prints in a table for a data set: values by setting."""
    rows = reported(source=SOURCE, table_or_figure=table)
    return rows[rows["dataset"] == dataset].set_index("policy_or_defense")["value"]


def run(settings: Settings, store: Store) -> Result:
    """Tables `labels`, a row per cell and rule with `share`, `low`, `high`, `n`; `attacks`, one per
    setting and image.

    `group` is the batch of an image; `share` there is that of its batch's labels that the attacker
    had right.
    """
    device = device_of(settings.device)
    own = label_units(settings)
    made = attack_units(settings)
    cells = [_cell(key, restored(unit, store, device)) for key, unit in own.items()]
    sheets = {key: attacked_batches(unit, store, device) for key, unit in made.items()}
    rows = [_images(key, made[key], sheet) for key, sheet in sheets.items()]
    labels = pd.concat(cells, ignore_index=True)
    attacks = pd.concat(rows, ignore_index=True)
    first = next(iter(sheets.values()))
    many = attacks.groupby(list(KEYS)).size()
    facts = provenance(settings, first) | {
        "model": "lenet",
        "epochs": 0,
        "steps": next(iter(made.values())).attack.steps,
        "images": " to ".join(str(n) for n in sorted({min(many), max(many)})),
    }
    return Result("ext7_general_leakage", {"labels": labels, "attacks": attacks}, facts,
                  leakage_verdict(labels, attacks), sheets)  # fmt: skip


def _cell(key: tuple, sheet: Mapping) -> pd.DataFrame:
    rows = []
    for rule in (r for r in RULES if f"share_{r}" in sheet.tensors):
        share = sheet[f"share_{rule}"].double().numpy()
        low, high = interval(share)
        rows.append(
            {"rule": rule, "share": share.mean(), "low": low, "high": high, "n": len(share)}
        )
    return pd.DataFrame(rows).assign(**dict(zip(KEYS, key, strict=True)))


def _images(key: tuple, unit: BatchUnit, sheet: Mapping) -> pd.DataFrame:
    table = pd.DataFrame({name: sheet[name].double().numpy() for name in IMAGES})
    table["group"] = [i // unit.batches.size for i in range(len(table))]
    table["share"] = sheet["share"].double().numpy()[table["group"]]
    table["passes"] = unit.passes / unit.batches.images
    return table.assign(image=range(len(table)), **dict(zip(KEYS, key, strict=True)))


def twin(table: str, dataset: str, setting: str, method: str) -> dict[str, list]:
    """What the rows of our tables have that stand beside a published number, by column."""
    setting, _, batch = setting.partition(" batch ")
    keys = {"table": [table], "setting": [setting], "batch": [int(batch or 16)]}
    if table in ("Table 3", "Table 4"):
        keys["rule"] = [THEIRS if method == "ours" else COLUMNS]
    if table == "Table 1" and method != "ours":
        keys["setting"] = [method]
    if table == "Table 2":
        keys["batch"] = [1]
    if table == "Table 5":
        keys["setting"] = [
            f"{setting}, {'our' if method == 'ours' else method + chr(39) + 's'} labels"
        ]
    where = {"Table 5": "cifar100"}.get(table, "tinyimagenet" if dataset == "imagenet" else dataset)
    return keys | {"dataset": [where]}


def told(result: Result, *tables: str) -> pd.DataFrame:
    """Share of labels restored in percent, as text: one row per table, data, setting and batch, a
    column per rule.

    Levels that have one value are in the columns' name, with the number of batches.
    """
    rows = result.tables["labels"]
    rows = rows[rows["table"].isin(tables)]
    text = [
        f"{100 * r.share:.1f} [{100 * r.low:.1f}, {100 * r.high:.1f}]" for r in rows.itertuples()
    ]
    wide = rows.assign(text=text).pivot_table(
        index=["table", "dataset", "setting", "batch"],
        columns="rule",
        values="text",
        aggfunc="first",
        sort=False,
    )
    number = " to ".join(str(n) for n in sorted(set(rows["n"])))
    wide = wide.rename(
        columns={OURS: "ours", THEIRS: "published rule", COLUMNS: "column minima", "idlg": "iDLG"}
    )
    single = [name for name in wide.index.names if len(wide.index.unique(name)) == 1]
    words = [f"{'batches of ' * (name == 'batch')}{wide.index.unique(name)[0]}" for name in single]
    wide.columns.name = ", ".join([*words, f"%, n = {number} batches"])
    return wide.droplevel(single if len(single) < wide.index.nlevels else single[:-1]).fillna("–")


def compared(result: Result, *tables: str) -> pd.DataFrame:
    """One row per setting of these tables, as text: images, PSNR with its 95 % interval, floor,
    SSIM, MSE, labels.

    Diverged is an attack whose image is not finite, or farther from the truth than black from
    white. The others' means are given where they are most of a setting.
    """
    rows = result.tables["attacks"]
    found = {}
    rows = pd.concat([rows[rows["table"] == table] for table in tables])
    for key, part in rows.groupby(["table", "dataset", "batch", "setting"], sort=False):
        finite = part[part["mse"] <= 1]
        low, high = interval(finite["psnr"], finite["group"]) if len(finite) else (np.nan, np.nan)
        means = {
            "PSNR, dB": f"{finite['psnr'].mean():.1f} [{low:.1f}, {high:.1f}]",
            "SSIM": f"{finite['ssim'].mean():.3f}",
            "MSE": f"{finite['mse'].mean():.4f}",
        }
        means = means if 2 * len(finite) > len(part) else dict.fromkeys(means, "–")
        found[key] = {"found": compare.found(part["rank"]), "PSNR, dB": means.pop("PSNR, dB")}
        found[key] |= {
            "floor, dB": f"{part['floor'].mean():.1f}",
            "labels right": f"{part['share'].mean():.0%}",
        }
        found[key] |= {"own of its label": f"{part['within'].mean():.0%}", **means}
        found[key] |= {"diverged": str(len(part) - len(finite))}
        found[key] |= {"images (batches)": f"{len(part)} ({part['group'].nunique()})"}
    return pd.DataFrame(found).T


def steps_apart(result: Result, table: str) -> pd.DataFrame:
    """Images found among 100, in percent, with 95 % interval by setting, for a figure; batches are
    the sample.
    """
    rows = result.tables["attacks"]
    parts = []
    for (setting, batch), part in rows[rows["table"] == table].groupby(
        ["setting", "batch"], sort=False
    ):
        hits = 100.0 * (part["rank"] == 1)
        low, high = interval(hits, part["group"])
        name, _, how = (
            setting.partition(", ") if table == "Figure 5" else (setting, "", f"batch {batch}")
        )
        parts.append({"setting": name, "how": how, "mean": hits.mean(), "low": low, "high": high})
    return pd.DataFrame(parts)


def sentence(result: Result) -> str:
    """The page in one sentence, in numbers, as Markdown; empty where its tables were not all made."""
    labels = result.tables["labels"]
    attacks = result.tables["attacks"]
    hits = (
        (attacks["rank"] == 1)
        .groupby([attacks["table"], attacks["dataset"], attacks["setting"]])
        .mean()
    )
    cells = labels[(labels["table"] == "Table 4") & (labels["dataset"] == "cifar10")].groupby(
        "rule"
    )["share"]
    if not {"Table 1", "Figure 5"} <= set(attacks["table"]) or cells.ngroups == 0:
        return ""
    told = {rule: f"{cells.min()[rule]:.0%} to {cells.max()[rule]:.0%}" for rule in (OURS, THEIRS)}
    one, four = (hits["Table 1", "cifar100", f"{n} update{'s' * (n > 1)}"] for n in (1, 4))
    mean, exact = (
        hits["Figure 5", "cifar10", f"16 epochs, {how}"] for how in ("mean gradient", "unrolled")
    )
    return (
        f"**Batches, rounds and local steps are no defense of an untrained network.** A server reads "
        f"{told[OURS]} of the labels of a CIFAR-10 batch off its gradient ({told[THEIRS]} by the published rule); of "
        f"batches of 16 images it singles out {one:.0%} after one update and {four:.0%} after four; and of clients "
        f"that trained for 16 epochs {exact:.0%}, if it repeats their steps, {mean:.0%} by the mean step."
    )


def local_steps(result: Result) -> pd.DataFrame:
    """What repeating the local steps gains over their mean, as text: one row per number of epochs.

    The changes are on the same images, with 95 % intervals over batches; the cost is in passes
    through the network, forward or backward, per image.
    """
    rows = result.tables["attacks"]
    found = {}
    rows = rows[rows["table"] == "Figure 5"].assign(found=lambda r: 100.0 * (r["rank"] == 1))
    words = rows["setting"].str.split(", ")
    rows = rows.assign(epochs=words.str[0], how=words.str[1])
    for epochs, part in rows.groupby("epochs", sort=False):
        means = (
            part.groupby(["how", "group"], sort=False)[["psnr", "found", "passes"]]
            .mean()
            .reset_index()
        )
        sides = means.groupby("how", sort=False).mean()
        found[epochs] = {f"{how}: found": f"{row['found']:.0f} %" for how, row in sides.iterrows()}
        for value, unit, words in (("found", " points", "found"), ("psnr", " dB", "PSNR")):
            change = paired(means, "mean gradient", value, by="how", unit="group").loc["unrolled"]
            found[epochs] |= {f"unrolled minus mean: {words}": compare.interval(change, unit)}
        found[epochs] |= {
            f"{how}: passes": f"{row['passes']:,.0f}" for how, row in sides.iterrows()
        }
    return pd.DataFrame(found).T


def pictures(
    result: Result, table: str, dataset: str, batch: int, count: int = 8
) -> dict[str, object]:
    """The first images that a table's attacks met, and what each made of them, in the order that
    alignment gives.
    """
    found = {
        key[1]: sheet
        for key, sheet in result.sheets.items()
        if (key[0], *key[2:]) == (table, dataset, batch)
    }
    made = {name: sheet["reconstruction"][:count] for name, sheet in found.items()}
    return {"true images": next(iter(found.values()))["target"][:count]} | made if found else {}
