"""Which of a page's stored results texts and other pages are about."""

import json
from collections.abc import Iterator
from pathlib import Path

from atsbook.findings.result import FILE, NUMBERS, stored_result
from atslib.data.load import is_drawn


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


def exported(page: str, results: Path) -> dict:
    """What the first of `stored` that exports numbers exports, by name; empty where there is none."""
    for folder, _ in stored(page, results):
        if (folder / NUMBERS).exists():
            return json.loads((folder / NUMBERS).read_text(encoding="utf-8"))
    return {}
