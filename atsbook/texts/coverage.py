"""The page *Coverage*: every published number beside its measured twin and the page where that
stands, or why not.
"""

import re

import pandas as pd

from atsbook.findings.compare import SOURCES
from atsbook.texts.twins import Twin

TITLES = SOURCES | {"leakage": "general deep leakage"}
WORDS = (
    ("label_accuracy_pct", "labels restored, %"),
    (r"PSNR_dB_image(\d+)", r"PSNR of image \1, dB"),
    ("PSNR_dB", "PSNR, dB"),
    ("val_accuracy_pct", "accuracy, %"),
    (r"gradsim_final:.*\((.*)\)", r"final similarity, \1"),
    ("gradsim_shallow_final", "final similarity, shallow"),
    ("GradSim_mean", "mean similarity"),
    ("S_pri", "privacy score"),
    ("pearson_r.*", "r of score and PSNR"),
    ("top5_indices", "five most private"),
    ("C_max", "policies searched"),
)
HEAD = """# Coverage

**Of {rows} numbers that three papers print, {twins} have a counterpart measured here.** The papers are ATS, its
replication, and the one that {{doc}}`results/ext7_general_leakage` is about. Each number
stands beside its *twin*: what this project measured of the same quantity, with the same policy, data set and kind of
network. A twin is the same question **at this project's scale, not the same experiment**: networks are narrower
(`resnet20-1` for `resnet20-4`, `convnet-16` for `convnet`), attacks and trainings are shorter, images fewer, and
profile `laptop` attacks by its strongest attack where they print Adam+Cosine; {{doc}}`reproduce` has the sizes. An
untrained network in place of a trained one, and LeNet in place of a ResNet20, are named as such; n is the number of
images behind a mean. For ImageNet stands Tiny ImageNet, or CIFAR-100. Compare directions and differences, not digits.

"""


def coverage_page(rows: pd.DataFrame) -> str:
    """The page in Markdown: a summary by table, the reasons, and a dropdown with the rows of each
    table.

    Args:
        rows: from `coverage`.
    """
    groups = list(rows.groupby(["source", "table_or_figure"], sort=False))
    lines = ["| Published | Numbers | With a twin |", "|---|---|---|"]
    for (source, table), part in groups:
        lines.append(
            f"| [{_title(source, table)}](#{_anchor(source, table)}) | {len(part)} | {_having(part)} |"
        )
    lines += ["", "| Why the others have none | Numbers |", "|---|---|"]
    reasons = rows.loc[rows["reason"] != "", "reason"].value_counts(sort=False)
    lines += [f"| {_linked(reason)} | {count} |" for reason, count in reasons.items()]
    for (source, table), part in groups:
        lines += ["", f"({_anchor(source, table)})=", f"## {_title(source, table)}", ""]
        lines += [f"{_having(part)} of {len(part)} with a twin.", "", *_dropdown(part)]
    return HEAD.format(rows=len(rows), twins=_having(rows)) + "\n".join(lines) + "\n"


def _title(source: str, table: str) -> str:
    return f"{TITLES[source]}, {table}".capitalize().replace(table.lower(), table)


def _anchor(source: str, table: str) -> str:
    return "coverage-" + re.sub(r"\W+", "-", f"{source} {table}".lower())


def _having(rows: pd.DataFrame) -> int:
    return int((rows["reason"] == "").sum())


def _dropdown(rows: pd.DataFrame) -> list[str]:
    """The rows of one published table: those with a twin as a table, the others by reason."""
    varying = [
        name
        for name in ("dataset", "model", "attack")
        if rows.groupby("metric")[name].nunique().max() > 1
    ]
    common = [
        " ".join(set(rows[name])) for name in ("model", "dataset") if len(set(rows[name])) == 1
    ]
    lines = [f":::{{dropdown}} {' on '.join(filter(None, common)) or 'The numbers'}"]
    there = rows[rows["reason"] == ""]
    missing = rows[rows["reason"] != ""]
    if len(there):
        lines += [
            "",
            "| Quantity | Policy or defense | Published | Here | Made with | Page |",
            "|---|---|---|---|---|---|",
        ]
    for _, row in there.iterrows():
        here = "<br>".join(_value(twin, row["metric"]) for twin in row["twins"])
        made = "<br>".join(map(_made, row["twins"]))
        name = f"{_quantity(row, varying)} | {_policy(row)}"
        lines.append(
            f"| {name} | {_published(row)} | {here} | {made} | {_link(row['twins'][0].page)} |"
        )
    for reason, part in missing.groupby("reason", sort=False):
        lines += ["", f"Without a twin – {_linked(reason)}:", ""]
        each = part.assign(quantity=[_quantity(row, varying) for _, row in part.iterrows()])
        for quantity, rows in each.groupby("quantity", sort=False):
            printed = (
                f"{row['policy_or_defense']} ({_published(row)})".strip()
                for _, row in rows.iterrows()
            )
            lines.append(f"- {quantity}: {', '.join(printed)}")
    return [*lines, ":::"]


def _quantity(row: pd.Series, varying: list[str]) -> str:
    """The quantity in words, with what tells the rows of its table apart."""
    matches = ((re.fullmatch(pattern, row["metric"]), text) for pattern, text in WORDS)
    words = next(
        (match.expand(text) for match, text in matches if match), row["metric"].replace("_", " ")
    )
    return ", ".join([words, *(row[name] for name in varying if row[name])])


def _policy(row: pd.Series) -> str:
    return row["policy_or_defense"] or "–"


def _published(row: pd.Series) -> str:
    """As printed, a list with commas, and the spread where there is one; digits of a notebook are
    cut to four.
    """
    text = (
        row["text"].replace(";", ", ")
        if len(row["text"]) < 9 or ";" in row["text"]
        else f"{row['value']:.4g}"
    )
    return f"{text} ± {row['std']}" if row["std"] else text


def _value(twin: Twin, metric: str) -> str:
    digits = 2 if metric.startswith(("PSNR", "val_accuracy", "label")) else 3
    return twin.value if isinstance(twin.value, str) else f"{twin.value:.{digits}f}"


def _made(twin: Twin) -> str:
    return f"{twin.made}, n = {twin.n}" if twin.n else twin.made


def _link(page: str) -> str:
    return f"[{page}]({page}.md)" if page == "deviations" else f"[{page}](results/{page}.ipynb)"


def _linked(reason: str) -> str:
    """A reason with the page that it names as a link."""
    return re.sub(r"\b((?:claim|ext)\d\w+)\b", lambda found: _link(found[1]), reason)
