"""The page "Should I use this?": what a client gets for a policy, in numbers that the pages export."""

from pathlib import Path

from atsbook.texts.first_screen import MISSING, WIDE, Numbers, as_shares, numbers, percent
from atsbook.texts.start import answer, rendered, what_it_costs


def advice(results: Path) -> str:
    """The page as MyST Markdown; it says so where nothing has been measured."""
    known = numbers(results)
    bare, hidden = _situations(known)
    return rendered(
        "should_i.md.jinja",
        answer=answer(known),
        bare=bare,
        late_by_best=bool(known.best_late),
        hidden=hidden,
        rounds=known.rounds or "so many",
        batch={"size": known.batch[0], "named": percent(known.batch[1])}
        if known.batch
        else {"size": "several", "named": MISSING},
        epochs=f"{known.wide.epochs}" if known.wide else MISSING,
        what_it_costs=what_it_costs(known),
        share="" if known.time is None else f"{100 * known.time:.1f} %",
    )


def _situations(known: Numbers) -> tuple[dict[str, str], dict[str, str]]:
    """Photographs picked out without a policy and with the paper's, by situation."""
    pairs = {
        "wide": known.found.get(f"untrained {WIDE}"),
        "trained": known.found.get(f"trained {WIDE}"),
        "late": as_shares(known.best_late) or known.found.get("trained LeNet"),
        "sum": known.summed,
        "federated": known.federated,
    }
    sides = tuple(
        {name: percent(ends[side]) if ends else MISSING for name, ends in pairs.items()}
        for side in (0, 1)
    )
    for side, shown in enumerate(sides):
        shown["narrow"] = percent(known.best_narrow[side]) if known.best_narrow else ""
        # 299 of 300 are not all
        shown["best"] = (
            f"{100 * known.best[side] / known.best[2]:.1f}".removesuffix(".0") + " %"
            if known.best
            else MISSING
        )
    return sides
