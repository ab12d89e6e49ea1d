"""Published numbers, summaries with n and intervals, and verdicts by rules written before the run."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from atslib.data.load import is_drawn
from atslib.errors import AtsError
from atslib.store import write_atomically

REPORTED = Path(__file__).with_name("book") / "reported.csv"
STATUSES = ("reproduced", "partly", "not reproduced", "withheld", "not measured")
NO_POLICY = "none"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim in one sentence, its page, and the published numbers that stand for it in the answer table.

    `figures` are (table or figure, policy, metric) in `reported.csv`; `form` puts them into words.
    """

    number: int
    page: str
    sentence: str
    form: str = "–"
    figures: tuple[tuple[str, str, str], ...] = ()


_HYBRID = "hybrid:3-1-7+43-18-18"
CLAIMS = (
    Claim(
        1,
        "claim1_privacy",
        "Searched policies lower the attack's PSNR and keep the accuracy",
        "{:.2f} → {:.2f} dB, {:.1f} → {:.1f} %",
        tuple(("Table 1a", p, m) for m in ("PSNR_dB", "val_accuracy_pct") for p in (NO_POLICY, _HYBRID)),
    ),
    Claim(
        2,
        "claim2_generality",
        "They hold against six attacks",
        "mean of six: {:.2f} → {:.2f} dB",
        (("Table 2", NO_POLICY, "PSNR_dB"), ("Table 2", _HYBRID, "PSNR_dB")),
    ),
    Claim(
        3,
        "claim3_transfer",
        "They transfer to another data set (Fashion-MNIST)",
        "{:.2f} → {:.2f} dB",
        (("Table 4a", NO_POLICY, "PSNR_dB"), ("Table 4a", _HYBRID, "PSNR_dB")),
    ),
    Claim(4, "claim4_efficiency", "They hardly slow training"),
    Claim(5, "claim5_semantics", "They hide what shallow layers see"),
    Claim(6, "claim6_transformations", "A few of the 50 transformations do most of the work"),
    Claim(
        7,
        "claim7_correlation",
        "The privacy score predicts the attack's success",
        "r = {:.3f}",
        (("", "", "pearson_r(S_pri,PSNR)"),),
    ),
)


def reported(**where: str) -> pd.DataFrame:
    """Published numbers, one row each, with source, table and unit; `text` is the value as printed, such as a list.

    Args:
        where: columns that must equal a value, e.g. `table_or_figure="Table 1a", source="ats"`.
    Raises:
        AtsError: an unknown column, or no such row.
    """
    rows = pd.read_csv(REPORTED, dtype={"policy_or_defense": str, "claim": str}, keep_default_na=False)
    for column, value in where.items():
        if column not in rows:
            raise AtsError(f"reported numbers have no column {column!r}; there are {', '.join(rows.columns)}")
        known = sorted(set(rows[column]))
        rows = rows[rows[column] == value]
        if rows.empty:
            raise AtsError(f"no reported number has {column}={value!r}; there are {', '.join(known)}")
    return rows.assign(text=rows["value"], value=pd.to_numeric(rows["value"], errors="coerce"))


def policy_label(published: str) -> str:
    """`hybrid:3-1-7+43-18-18` and `random:19-1-18` of the published tables → the policy alone."""
    return published.split(":", 1)[-1]


def bootstrap(
    values: Iterable[float],
    statistic: Callable[..., np.ndarray] = np.mean,
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of a statistic over independent values; (nan, nan) for fewer than two."""
    values = np.asarray(list(values), dtype=float)
    if len(values) < 2:
        return (float("nan"), float("nan"))
    rows = np.random.default_rng(seed).integers(0, len(values), (resamples, len(values)))
    low, high = np.quantile(statistic(values[rows], axis=1), [(1 - level) / 2, (1 + level) / 2])
    return (float(low), float(high))


def summarize(table: pd.DataFrame, by: str | Sequence[str], value: str = "psnr", *, epsilon: float) -> pd.DataFrame:
    """One row a group: n, mean, sd, 95 % interval of the mean, p95, max and success rate at `epsilon`.

    A diverged attack (nan or -inf) counts in n as a failure of the attack; an exact one (inf) as a success.
    Both are left out of the moments. The number of the first is in `diverged`.
    """

    def row(group: pd.Series) -> pd.Series:
        finite = group[np.isfinite(group)]
        low, high = bootstrap(finite)
        return pd.Series(
            {
                "n": len(group),
                "mean": finite.mean(),
                "sd": finite.std(ddof=1),
                "low": low,
                "high": high,
                "p95": finite.quantile(0.95),
                "max": group.max(),
                "success": (group >= epsilon).sum() / len(group),
                "diverged": len(group) - len(finite) - np.isposinf(group).sum(),
            }
        )

    rows = table.groupby(by, sort=False)[value].apply(row).unstack()
    return rows.astype({"n": int, "diverged": int})


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """A `summarize` table with further columns as a person reads it: one column a group, values as text."""
    text = pd.DataFrame(index=table.index)
    text["images (n)"] = table["n"].map("{:d}".format)
    text["PSNR (dB), mean ± sd"] = [f"{m:.2f} ± {s:.2f}" for m, s in zip(table["mean"], table["sd"], strict=True)]
    text["95 % interval of the mean"] = [
        f"{a:.2f} to {b:.2f}" for a, b in zip(table["low"], table["high"], strict=True)
    ]
    text["p95, max"] = [f"{a:.1f}, {b:.1f}" for a, b in zip(table["p95"], table["max"], strict=True)]
    text["share at or above ε"] = table["success"].map("{:.0%}".format)
    if table["diverged"].any():
        text["diverged"] = table["diverged"].map("{:d}".format)
    for name in table.columns[table.columns.get_loc("diverged") + 1 :]:
        text[name] = table[name].map(lambda value: "–" if np.isnan(value) else f"{value:.2f}")
    return text.T


def paired(
    table: pd.DataFrame, baseline: str, value: str = "psnr", *, by: str = "policy", unit: str = "image"
) -> pd.DataFrame:
    """Difference of each group to `baseline` on the same images: n, mean, 95 % interval. Below 0: lower."""
    wide = table.pivot(index=unit, columns=by, values=value)
    rows = {}
    for name in wide.columns.drop(baseline):
        difference = (wide[name] - wide[baseline]).dropna()
        rows[name] = dict(
            zip(("n", "mean", "low", "high"), (len(difference), difference.mean(), *bootstrap(difference)), strict=True)
        )
    return pd.DataFrame(rows).T.astype({"n": int}).rename_axis(by)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a claim came to, in words made from the numbers."""

    status: str
    reason: str
    rule: str
    here: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise AtsError(f"verdict {self.status!r} must be one of {', '.join(STATUSES)}")


@dataclasses.dataclass(frozen=True)
class Result:
    """What a page is drawn from.

    Attributes:
        page: the notebook's name.
        tables: tidy tables by name.
        facts: where and how it was made: profile, dataset, model, images, device, date, versions, seed.
    """

    page: str
    tables: dict[str, pd.DataFrame]
    facts: dict[str, object]
    verdict: Verdict
    sheets: dict[str, object] = dataclasses.field(default_factory=dict, repr=False)

    def texts(self) -> dict[str, str]:
        """The files of this result: each table as CSV, the verdict and the facts as JSON."""
        files = {f"{name}.csv": table.to_csv(index=False, float_format="%.6g") for name, table in self.tables.items()}
        files["verdict.json"] = json.dumps(dataclasses.asdict(self.verdict), indent=1) + "\n"
        files["facts.json"] = json.dumps(self.facts, indent=1, sort_keys=True) + "\n"
        return files

    @property
    def digest(self) -> str:
        """A short hash of the tables: a page shows it, and a test compares it with the stored tables."""
        text = "".join(text for name, text in sorted(self.texts().items()) if name.endswith(".csv"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def banner(self) -> str:
        """The line at the top of a page, in HTML: what made the numbers below it."""
        f = self.facts
        embedded = " Embedded stand-in images: no data set was found." if is_drawn(f["dataset"]) else ""
        note = f" {f['note']}." if f["note"] else ""
        return (
            f'<div class="banner">Profile <b>{f["profile"]}</b>: {f["dataset"]}, {f["model"]}, trained on '
            f"{f['fraction']:.0%} of {f['train']:,} images for {f['epochs']} epochs; n = {f['images']} images, "
            f"{f['steps'] or 'no'} attack steps, seed {f['seed']}; {f['device']}, {f['made']}, torch {f['torch']}, "
            f"Python {f['python']}; tables {self.digest}.{embedded}{note}</div>"
        )

    @property
    def headline(self) -> str:
        """The verdict as HTML; at less than the full profile it says that it is of this scale."""
        scale = "" if self.facts["profile"] == "full" else " at this scale"
        status = self.verdict.status
        return (
            f'<p><span class="verdict" data-status="{status}">{status}{scale}</span> {self.verdict.reason}.</p>'
            f"<p><b>Rule, fixed before the run.</b> {self.verdict.rule}</p>"
        )

    def write(self, results: Path) -> Path:
        """Write the files to `results/page/dataset-profile/`, the facts last; tables of an older run go."""
        folder, texts = Path(results) / self.page / f"{self.facts['dataset']}-{self.facts['profile']}", self.texts()
        for name, text in texts.items():
            write_atomically(folder / name, lambda partial, text=text: partial.write_text(text))
        for stale in set(folder.glob("*.csv")) - {folder / name for name in texts}:
            stale.unlink()
        return folder


def stored_digest(folder: Path) -> str:
    """`Result.digest` of the tables in a folder that `Result.write` made."""
    text = "".join(path.read_text() for path in sorted(Path(folder).glob("*.csv")))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _published(claim: Claim, source: str) -> str:
    """The numbers of a claim as one group printed them; a dash where there is none."""
    rows = reported(source=source)
    values = []
    for table, policy, metric in claim.figures:
        found = rows[rows["metric"] == metric]
        if table:
            found = found[(found["table_or_figure"] == table) & (found["policy_or_defense"] == policy)]
        values.append(found["value"].mean())
    return claim.form.format(*values) if values and np.isfinite(values).all() else "–"


def newest(page: str, results: Path) -> tuple[Path, dict] | None:
    """The folder and facts of a page's largest stored result on real data; None if there is none."""
    for profile in ("full", "quick"):
        # The claims are about CIFAR-100: another data set counts only where that is missing.
        folders = sorted((Path(results) / page).glob(f"*-{profile}"), key=lambda f: ("cifar100" not in f.name, f))
        for folder in folders:
            if not is_drawn(folder.name.removesuffix(f"-{profile}")) and (folder / "facts.json").exists():
                return folder, json.loads((folder / "facts.json").read_text())
    return None


def measured(claim: Claim, results: Path) -> tuple[Verdict, dict] | None:
    """The verdict and facts of a claim's `newest` result."""
    found = newest(claim.page, results)
    return found and (Verdict(**json.loads((found[0] / "verdict.json").read_text())), found[1])


def answers(results: Path, *, link: str = "book/results/{}.ipynb") -> str:
    """The answer table in Markdown: a row a claim, made from the stored verdicts."""
    lines = ["| Claim | Paper | Replication | Here | Verdict |", "|---|---|---|---|---|"]
    for claim in CLAIMS:
        paper, replication = _published(claim, "ats"), _published(claim, "replication")
        name, here, status = f"{claim.number}. {claim.sentence}", "–", "not measured yet"
        if found := measured(claim, results):
            verdict, facts = found
            name = f"[{name}]({link.format(claim.page)})"
            here = f"{verdict.here or '–'} (n={facts['images']}, {facts['model']}, {facts['profile']})"
            scale = "" if facts["profile"] == "full" else " at this scale"
            status = f'<span class="verdict" data-status="{verdict.status}">{verdict.status}{scale}</span>'
        lines.append(f"| {name} | {paper} | {replication} | {here} | {status} |")
    return "\n".join(lines) + "\n"


def insert_answers(path: Path, table: str) -> None:
    """Put the answer table between the `<!-- answers -->` marks of a Markdown file."""
    text, mark = path.read_text() if path.exists() else "", "<!-- answers -->"
    if text.count(mark) != 2:
        raise AtsError(f"{path} must hold two lines {mark}: the answer table goes between them")
    head, _, tail = text.split(mark)
    write_atomically(path, lambda partial: partial.write_text(f"{head}{mark}\n{table}{mark}{tail}"))
