"""The seven claims: their pages, their published numbers, and what they came to."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from atsbook.findings.newest import newest
from atsbook.findings.reported import reported
from atsbook.findings.result import NO_POLICY, Verdict, stored_result
from atsbook.texts.first_screen import Numbers, in_cases, numbers, percent, printed_score


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


def measured(claim: Claim, results: Path) -> tuple[Verdict, dict] | None:
    """The verdict and facts of a claim's `newest` result."""
    result = newest(claim.page, results)
    return result and (Verdict(**stored_result(result[0])["verdict"]), result[1])


def _first(known: Numbers) -> tuple[str, str] | None:
    lenet = known.found.get("untrained LeNet")
    if not (lenet and known.learned):
        return None
    word = "Hardly" if lenet[0] - lenet[1] < FEW else "In part"
    lost = f"{known.learned[0].none:.1f} → {known.learned[0].hybrid:.1f} %"
    words = f"{word}: {_pair(lenet)} picked out of 100 on an untrained LeNet"
    if known.best:
        words += f", by the best answer {in_cases(known.best)}"
    words += f"; accuracy {lost}"
    return "", words


def _second(known: Numbers) -> tuple[str, str] | None:
    if not known.long:
        return None
    word = "No" if known.long[0] - known.long[1] < FEW else "Yes"
    words = f"{word}: {_pair(known.long)} picked out of 100 by the paper's own attack in its 4,800 steps"
    return "", words + ". Shorter attacks are hindered"


def _third(known: Numbers) -> tuple[str, str] | None:
    if not (lenet := known.fashion.get("LeNet")):
        return None
    word = "No" if lenet[0] - lenet[1] < FEW else "In part"
    return "", f"{word}: {_pair(lenet)} picked out of 100 on an untrained LeNet, by the best answer"


def _seventh(known: Numbers) -> tuple[str, str] | None:
    """By the measure of the papers, PSNR, and not by that of the page's rule."""
    if "psnr" not in known.score:
        return None
    mean, low, high = known.score["psnr"]
    reached = low > 0 and high >= printed_score("ats")
    words = f"{'Yes' if reached else 'No'}: r = {mean:.2f} [{low:.2f}, {high:.2f}]"
    if "bits" in known.score:
        words += ". With bits, which is our measure, {:.2f} [{:.2f}, {:.2f}]".format(
            *known.score["bits"]
        )
    return "reproduced" if reached else "not reproduced", words


FEW = 0.2  # so small a change of the share that is picked out is hardly any
# What a claim came to in plain words, and its status where that is not the page's rule's, by number
PLAINLY: dict[int, Callable[[Numbers], tuple[str, str] | None]] = {
    1: _first,
    2: _second,
    3: _third,
    7: _seventh,
}


def _pair(ends: tuple[float, ...]) -> str:
    return f"{100 * ends[0]:.0f} → {percent(ends[1])}"


def claims(results: Path, *, link: str = "results/{}.ipynb") -> str:
    """The seven claims in Markdown: a row each, what was published, what it came to here, and by
    which numbers.
    """
    known = numbers(results)
    lines = ["| Claim | Paper | Replication | Here |", "|---|---|---|---|"]
    for claim in CLAIMS:
        paper = _published(claim, "ats")
        replication = _published(claim, "replication")
        name = f"{claim.number}. {claim.sentence}"
        status = "not measured yet"
        if result := measured(claim, results):
            verdict, facts = result
            plain = PLAINLY.get(claim.number, lambda known: None)(known)
            said, words = plain or ("", verdict.here)
            said = said or verdict.status
            name = f"[{name}]({link.format(claim.page)})"
            scale = "" if facts["profile"] == "full" else " at this scale"
            badge = f'<span class="verdict" data-status="{said}">{said}{scale}</span>'
            words = f" {words}".replace(" -", " −").replace("[-", "[−").strip()
            status = " ".join(filter(None, (words, badge) if plain else (badge, words)))
        lines.append(f"| {name} | {paper} | {replication} | {status} |")
    return "\n".join(lines) + "\n"
