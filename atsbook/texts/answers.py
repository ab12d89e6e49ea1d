"""The seven claims: their pages, their published numbers, and what they came to."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from atsbook.findings.reported import reported
from atsbook.findings.result import FILE, NO_POLICY, Verdict, stored_result
from atslib.data.load import is_drawn
from atslib.errors import AtsError
from atslib.files import write_atomically


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim in one sentence, its page, and the published numbers that stand for it in the table of claims.

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
        tuple(
            ("Table 1a", p, m)
            for m in ("PSNR_dB", "val_accuracy_pct")
            for p in (NO_POLICY, _HYBRID)
        ),
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


def _published(claim: Claim, source: str) -> str:
    """The numbers of a claim as one group printed them; a dash where there is none."""
    rows = reported(source=source)
    values = []
    for table, policy, metric in claim.figures:
        chosen = rows[rows["metric"] == metric]
        if table:
            chosen = chosen[
                (chosen["table_or_figure"] == table) & (chosen["policy_or_defense"] == policy)
            ]
        values.append(chosen["value"].mean())
    return claim.form.format(*values) if values and np.isfinite(values).all() else "–"


def stored(page: str, results: Path) -> Iterator[tuple[Path, dict]]:
    """The folders and facts of a page's stored results on real data, the largest profile first."""
    for profile in ("full", "laptop"):
        # The claims are about CIFAR-100: another data set counts only where that is missing.
        folders = sorted(
            (Path(results) / page).glob(f"*-{profile}"), key=lambda f: ("cifar100" not in f.name, f)
        )
        for folder in folders:
            if not is_drawn(folder.name.removesuffix(f"-{profile}")) and (folder / FILE).exists():
                yield folder, stored_result(folder)["facts"]


def newest(page: str, results: Path) -> tuple[Path, dict] | None:
    """The first of `stored`; None if there is none."""
    return next(stored(page, results), None)


def measured(claim: Claim, results: Path) -> tuple[Verdict, dict] | None:
    """The verdict and facts of a claim's `newest` result."""
    result = newest(claim.page, results)
    return result and (Verdict(**stored_result(result[0])["verdict"]), result[1])


def claims(results: Path, *, link: str = "results/{}.ipynb") -> str:
    """The seven claims in Markdown: a row each, what was published, what it came to here, and by
    which numbers.
    """
    lines = ["| Claim | Paper | Replication | Here |", "|---|---|---|---|"]
    for claim in CLAIMS:
        paper = _published(claim, "ats")
        replication = _published(claim, "replication")
        name = f"{claim.number}. {claim.sentence}"
        status = "not measured yet"
        if result := measured(claim, results):
            verdict, facts = result
            name = f"[{name}]({link.format(claim.page)})"
            scale = "" if facts["profile"] == "full" else " at this scale"
            status = f'<span class="verdict" data-status="{verdict.status}">{verdict.status}{scale}</span>'
            if verdict.here:
                status += f" {verdict.here}".replace(" -", " −").replace("[-", "[−")
        lines.append(f"| {name} | {paper} | {replication} | {status} |")
    return "\n".join(lines) + "\n"


def insert_answers(path: Path, text: str) -> None:
    """Put the answers between the `<!-- answers -->` marks of a Markdown file."""
    whole = path.read_text() if path.exists() else ""
    mark = "<!-- answers -->"
    if whole.count(mark) != 2:
        raise AtsError(f"{path} must hold two lines {mark}: the answers go between them")
    head, _, tail = whole.split(mark)
    write_atomically(path, lambda partial: partial.write_text(f"{head}{mark}\n{text}{mark}{tail}"))
