"""Which of a page's stored results the texts are about."""

from collections.abc import Iterator
from pathlib import Path

from atsbook.findings.result import FILE, stored_result
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
