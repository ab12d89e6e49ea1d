"""The report as one HTML file, from `report.html.jinja`: what of it is not a number or a text of the
report itself.
"""

import base64
import shlex
from collections.abc import Iterable

import jinja2
import torch
from torch import Tensor
from torch.nn import functional as F

from atsaudit.numbers import ABOVE, CANNOT_TELL, NO_LIMIT, WITHIN, Numbers, Row, png
from atslib._version import __version__

SHOWN = 10  # worst images on the first screen
DISPLAYED = 96  # pixels that a picture is wide
# In words, and how it is set off.
ANSWERS = {
    ABOVE: ("No: above the limit.", "above"),
    WITHIN: ("Yes: within the limit.", "within"),
    CANNOT_TELL: ("Cannot tell.", "open"),
    NO_LIMIT: ("No limit was set.", "open"),
}


def page(report: Numbers, *, pictures: bool = True) -> str:
    """The whole report as HTML; without pictures where they shall not leave."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("atsaudit", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    answer, tone = ANSWERS[report.verdict]
    worst = report.worst_line_up
    if report.warning:
        tone = "open"
    rows = report.rows
    groups = {}
    for each in report.results:
        groups.setdefault(each.case.group, each)
    return templates.get_template("report.html.jinja").render(
        report=report,
        rows=rows,
        answer=answer,
        tone=tone,
        lined_up=report.named_rows,
        recognized=worst is not None and worst.works and report.verdict == CANNOT_TELL,
        config=report.config,
        limit=report.config.limit,
        local=report.config.local,
        plan=report.plan,
        control=report.control,
        worst=_worst(report) if pictures else None,
        plot=_plot(rows, report.config.limit),
        attacks=list(dict.fromkeys(name for each in report.results for name in each.tried)),
        tuned=list(groups.values()),
        version=__version__,
        torch_version=torch.__version__,
        ABOVE=ABOVE,
        WITHIN=WITHIN,
        CANNOT_TELL=CANNOT_TELL,
    )


def _worst(report: Numbers) -> list[dict]:
    """The images of which most is told, in the case in which most are found."""
    told = report.worst_case.outcome
    score = (
        told.bits.nan_to_num(0) + told.gain.double().nan_to_num(-99) / 1000 + told.found.double()
    )
    found = []
    for place in score.argsort(descending=True)[:SHOWN].tolist():
        image = int(told.images[place])
        name = report.class_names[int(report.labels[image])]
        state = (
            "found"
            if bool(told.found[place])
            else f"rank {int(told.rank[place])} of {int(told.candidates[place])}"
        )
        short = name if len(name) < 32 else name[:30] + "…"
        found.append(
            {
                "caption": f"{short}: {state}, {float(told.gain[place]):+.1f} dB",
                "pictures": [
                    _picture(report.originals[image], "original"),
                    _picture(told.pictures[place], "recovered"),
                ],
            }
        )
    return found


def _picture(pixels: Tensor, words: str) -> dict:
    height, width = pixels.shape[-2:]
    if max(height, width) > 2 * DISPLAYED:  # larger than it is shown, and heavy
        scale = 2 * DISPLAYED / max(height, width)
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        pixels = (
            F.interpolate(pixels[None].float(), size, mode="bilinear", antialias=True)[0]
            .round()
            .to(torch.uint8)
        )
    return {
        "png": base64.b64encode(png(pixels)).decode(),
        "width": DISPLAYED,
        "height": DISPLAYED * height // width,
        "alt": words,
    }


def _plot(rows: list[Row], limit: float | None) -> dict:
    """Where everything stands in a dot plot of the shares with their intervals, in pixels."""
    left = 390
    width = 300
    step = 30

    def at(share: float) -> float:
        return round(left + width * share, 1)

    cases = []
    for number, row in enumerate(rows):
        y = 26 + step * number
        lines = _wrapped(row.title + (" (control)" if row.control else ""))
        label = [
            {"words": words, "y": round(y + 4 + 13 * (place - (len(lines) - 1) / 2), 1)}
            for place, words in enumerate(lines)
        ]
        cases.append(
            {
                "y": y,
                "low": at(row.low),
                "share": at(row.share),
                "high": at(row.high),
                "chance": at(row.chance),
                "color": "#1d4f91" if row.counts else "#5a6572",
                "label": label,
            }
        )
    return {
        "left": left,
        "width": left + width + 24,
        "height": 34 + step * len(rows),
        "grid": [{"percent": percent, "x": at(percent / 100)} for percent in (0, 25, 50, 75, 100)],
        "limit": None if limit is None else at(limit),
        "cases": cases,
    }


def _wrapped(words: str, most: int = 60) -> list[str]:
    """Words in at most two lines of about so many letters."""
    if len(words) <= most:
        return [words]
    cut = words.rfind(", ", 0, most) + 1 or words.rfind(" ", 0, most) + 1 or most
    second = words[cut:].strip()
    return [words[:cut].strip(), second if len(second) <= most else second[: most - 1] + "…"]


def command_line(arguments: Iterable[str]) -> str:
    """The command as one could type it again."""
    return "python -m atsaudit " + " ".join(map(shlex.quote, arguments))
