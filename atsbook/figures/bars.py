"""Shares as bars, as SVG: the numbers of an answer, one bar each, in the page's font and colours."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from atsbook.figures.picks import LETTERS, WIDTH
from atsbook.figures.plots import COLORS
from atsbook.findings.statistics import share_interval

ROW = 58
LEFT = 6
LENGTH = 620  # of a bar of the whole scale
# One colour for each meaning, as in all figures: no policy, the paper's, anything else
KINDS = {"none": COLORS[1], "policy": COLORS[0], "other": "#7d8590"}


def bars(
    rows: Mapping[str, tuple[float, float, float]],
    kinds: Sequence[str],
    *,
    unit: str = "%",
    most: float = 100.0,
) -> str:
    """A bar for each number, with its interval as a line.

    Args:
        rows: by what to call it, from above: the number and its interval, from 0 to `most`; where
            the interval is not known both ends are the number.
        kinds: what each row is of, among `KINDS`.
        unit: after each number.
        most: the end of the scale.
    """
    height = ROW * len(rows)

    # 99.7 is not all; where one number needs a digit more, all have it
    digits = int(any(number < most and round(number) == most for number, _, _ in rows.values()))

    def told(number: float) -> str:
        if math.isnan(number):
            return "–"
        return f"{round(number, digits) + 0:.{digits}f} {unit}".replace("-", "−")  # + 0: no −0

    said = "; ".join(f"{name}: {told(number)}" for name, (number, _, _) in rows.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="bars" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(said)}" style="width: 100%; max-width: {WIDTH}px; height: auto" '
        f'fill="currentColor" font-size="{LETTERS}">'
    ]

    def at(number: float) -> float:
        return LEFT + LENGTH * min(max(number, 0.0), most) / most

    for row, ((name, (number, low, high)), kind) in enumerate(
        zip(rows.items(), kinds, strict=True)
    ):
        top = ROW * row
        middle = top + 40
        color = KINDS[kind]
        parts += [
            f'<text x="{LEFT}" y="{top + 22}">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{middle - 9}" width="{LENGTH}" height="18" fill="currentColor" opacity="0.08"/>',
        ]
        if not math.isnan(number):
            parts.append(
                f'<rect class="bar" x="{LEFT}" y="{middle - 9}" width="{at(number) - LEFT:.1f}" height="18" '
                f'fill="{color}"/>'
            )
        if low < high:
            parts.append(
                f'<path d="M{at(low):.1f} {middle}H{at(high):.1f}M{at(low):.1f} {middle - 5}v10M{at(high):.1f} '
                f'{middle - 5}v10" stroke="currentColor" stroke-width="2" fill="none"/>'
            )
        parts.append(
            f'<text x="{WIDTH}" y="{middle + 8}" text-anchor="end" font-weight="600" font-size="24">'
            f"{escape(told(number))}</text>"
        )
    return "".join([*parts, "</svg>"])


def share_found(found: Iterable[bool]) -> tuple[float, float, float]:
    """The share of photographs that is picked out, in percent, with its 95 % interval.

    Args:
        found: whether each was.
    """
    each = [bool(one) for one in found]
    low, high = share_interval(sum(each), len(each))
    return 100 * sum(each) / len(each), 100 * low, 100 * high
