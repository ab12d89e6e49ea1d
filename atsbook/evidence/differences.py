"""Where two versions of a page differ: in the code and the text of its notebook, and in its tables,
facts and verdict.

What a machine adds does not count: times, and the last digit of a number. So a page made again on
another machine is the same, and one whose numbers have changed is not.
"""

import json
import math
import re
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

from atsbook.findings.result import NUMBERS, TABLE, Result

CLOSE = (
    1e-4  # relative difference of numbers up to which tables, written with six digits, are the same
)
LONGEST = 300  # characters of a text that a difference quotes
_NUMBER = re.compile(r"(?<![\w.])[-−+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")


def source_differences(old: Path, new: Path) -> list[str]:
    """Where the cells of two notebooks say something else: one line each, with both texts.

    Args:
        old: as it is committed.
        new: as it was made now. Parameters that papermill put in, outputs, and in a text the last
            digit of a fraction do not count.
    """
    before, after = map(_sources, (old, new))
    if len(before) != len(after):
        return [f"{len(before)} cells are committed, {len(after)} are made now"]
    pairs = enumerate(zip(before, after, strict=True), 1)
    return [
        f"cell {number}: {_quoted(was, now)}"
        for number, ((kind, was), (_, now)) in pairs
        if was != now and not (kind == "markdown" and same_text(was, now))
    ]


def _sources(page: Path) -> list[tuple[str, str]]:
    """Of each cell its kind and its text."""
    cells = json.loads(page.read_text())["cells"]
    return [
        (cell["cell_type"], "".join(cell["source"]))
        for cell in cells
        if "injected-parameters" not in cell["metadata"].get("tags", [])
    ]


def folder_differences(old: Path, new: Path) -> list[str]:
    """Where the tables, facts, verdict and other files of two folders of results differ: one line
    for each file.
    """
    names = {file.name for folder in (old, new) for file in folder.glob("*")}
    found = []
    for name in sorted(names):
        if not (old / name).exists() or not (new / name).exists():
            found.append(
                f"{name} is {'made now and not committed' if (new / name).exists() else 'no longer made'}"
            )
        elif name.endswith(TABLE):
            if fault := table_difference(old / name, new / name):
                found.append(f"{name}: {fault}")
        elif name == NUMBERS:
            was, now = (json.loads((folder / name).read_text()) for folder in (old, new))
            found += [f"{name}, {place}" for place in _numbers_apart(was, now)]
        elif name.endswith(".zip"):
            found += [f"{name}, {fault}" for fault in _zip_differences(old / name, new / name)]
        elif not name.endswith(".json"):
            if (old / name).read_bytes() != (new / name).read_bytes():
                found.append(f"{name} has changed")
        else:
            was = _told(old / name)
            now = _told(new / name)
            if not same_text(was, now):
                found.append(f"{name}: {_quoted(was, now)}")
    return found


def _numbers_apart(was: object, now: object, place: str = "") -> list[str]:
    """Where two values of `NUMBERS` differ, numbers by more than `CLOSE`."""
    if isinstance(was, dict) and isinstance(now, dict) and list(was) == list(now):
        pairs = [(f"{place}{name}: ", was[name], now[name]) for name in was]
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        pairs = [(place, *both) for both in zip(was, now, strict=True)]
    elif isinstance(was, float) and isinstance(now, float):
        close = math.isclose(was, now, rel_tol=CLOSE, abs_tol=1e-9)
        same = close or (math.isnan(was) and math.isnan(now))
        return [] if same else [f"{place}{was} is committed, {now} is made now"]
    else:
        return [] if was == now else [f"{place}{was!r} is committed, {now!r} is made now"]
    return [each for at, one, other in pairs for each in _numbers_apart(one, other, at)]


def _zip_differences(old: Path, new: Path) -> list[str]:
    """Where two zips differ: JSON in it as a text, all else in its bytes."""
    before, after = ({n: z.read(n) for n in z.namelist()} for z in map(zipfile.ZipFile, (old, new)))
    if list(before) != list(after):
        return [f"its files were {', '.join(before)} and are {', '.join(after)}"]
    found = []
    for name, was in before.items():
        now = after[name]
        told = name.endswith(".json") and same_text(was.decode(), now.decode())
        if not told and was != now:
            found.append(f"{name} has changed")
    return found


def _told(file: Path) -> str:
    """What a JSON file says, but for what no page speaks of: the cost, which is of the machine, and
    the keys of the evidence.
    """
    whole = json.loads(file.read_text())
    hidden = ("cost", "evidence")
    return json.dumps(
        {name: value for name, value in whole.items() if name not in hidden}, indent=1
    )


def write_changed(result: Result, results: Path) -> tuple[Path, bool]:
    """Write a page's result where it says something else than the one that is there.

    The last digits of another machine would be no news.

    Returns:
        Its folder, and whether it was written.
    """
    with tempfile.TemporaryDirectory() as scratch:
        made = result.write(Path(scratch))
        folder = results / made.relative_to(scratch)
        same = folder.is_dir() and not folder_differences(folder, made)
    if not same:
        result.write(results)
    return folder, not same


def table_difference(old: Path, new: Path) -> str | None:
    """The first thing in which two CSV tables differ, numbers by more than `CLOSE`; None if there
    is none.
    """
    if old.read_bytes() == new.read_bytes():
        return None
    return _difference(pd.read_csv(old), pd.read_csv(new))


def _difference(before: pd.DataFrame, after: pd.DataFrame) -> str | None:
    if list(before.columns) != list(after.columns):
        return f"its columns were {', '.join(before.columns)} and are {', '.join(after.columns)}"
    if len(before) != len(after):
        return f"it had {len(before)} rows and has {len(after)}"
    for name in before.columns:
        was = before[name]
        now = after[name]
        numbers = pd.api.types.is_float_dtype(was) and pd.api.types.is_numeric_dtype(now)
        if numbers:
            same = np.isclose(was, now.astype(float), rtol=CLOSE, atol=1e-9, equal_nan=True)
        else:
            same = (was == now) | (was.isna() & now.isna())
        if not np.all(same):
            row = int(np.argmin(same))
            found = f"row {row + 1}, {name}: {was[row]} is committed, {now[row]} is made now"
            several = f"; {np.sum(~np.asarray(same))} of {len(was)} rows differ"
            most = (now - was).abs().max() if numbers else np.nan  # a nan on one side has no size
            largest = f", at most by {most:.2g}" if most > 0 else ""
            return found + several + largest
    return None


def text_differences(old: str, new: str) -> list[str]:
    """The first place in which two texts differ for a reader, see `same_text`; none where they do
    not.
    """
    return [] if same_text(old, new) else [_quoted(old, new)]


def same_text(one: str, other: str) -> bool:
    """Whether two texts are equal but for the last digit of fractions."""
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(_same_number(was, now) for was, now in pairs)


def _same_number(one: str, other: str) -> bool:
    """Whole numbers are counts and must be equal; others may differ by one in the last digit that
    is written.
    """
    if one == other:
        return True
    digits = [len(text.partition("e")[0].partition(".")[2]) for text in (one, other)]
    if not min(digits):
        return False
    was, now = (float(text.replace("−", "-").replace(",", "")) for text in (one, other))
    exponents = [int(text.partition("e")[2] or 0) for text in (one, other)]
    last = 10.0 ** max(exponent - count for exponent, count in zip(exponents, digits, strict=True))
    return math.isclose(was, now, rel_tol=1e-9, abs_tol=1.001 * last)


def _quoted(one: str, other: str) -> str:
    """Both texts around the first place in which they differ."""
    place = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    low = max(0, place - LONGEST // 3)
    was, now = (text[low : low + LONGEST].replace("\n", " ") for text in (one, other))
    return f"committed “{was}”, made now “{now}”"
