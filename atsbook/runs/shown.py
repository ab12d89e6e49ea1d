"""What executed pages and stored tables show, and where two versions of them differ.

What a machine adds does not count: times, paths and hashes, the bytes of a figure, and the last
digit of a number. So a page made again on another machine shows the same, and one whose code has
changed does not.
"""

import base64
import io
import json
import math
import re
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from atsbook.findings.result import TABLE, Result

CLOSE = (
    1e-4  # relative difference of numbers up to which tables, written with six digits, are the same
)
ALIKE = (
    0.002  # share of a figure's pixels that may differ by more than `STEP`, as edges of letters do
)
STEP = 32  # of 255
_LINKED = re.compile(r"data:text/csv;base64,([\w+/=]+)")  # a table that a link holds
LONGEST = 300  # characters of a text that a difference quotes
_NUMBER = re.compile(r"(?<![\w.])[-−+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
_NOT_SHOWN = (
    (
        re.compile(r"tables [0-9a-f]{12}"),
        "tables",
    ),  # a hash of numbers that may differ in the last digit
    (re.compile(r"data:image/\w+;base64,[\w+/=]+"), "data:image"),
    (re.compile(r"\bat 0x[0-9a-f]+"), "at"),
    # Names that are drawn anew each time: of widgets, of cells of a styled table.
    (re.compile(r"\b[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\b"), "name"),
    (re.compile(r"\bT_[0-9a-f]{5}(?=\b|_)"), "T"),
)


def page_differences(old: Path, new: Path, *, figures: bool) -> list[str]:
    """Where two executed notebooks differ for who reads them: one line each, with both texts.

    Args:
        old: as it is committed.
        new: as it was made now.
        figures: whether pictures are looked at too, pixel by pixel.
    """
    before = _cells(old)
    after = _cells(new)
    if len(before) != len(after):
        return [f"{len(before)} cells are committed, {len(after)} are made now"]
    found = []
    for number, (was, now) in enumerate(zip(before, after, strict=True), 1):
        if was["source"] != now["source"]:
            found.append(f"cell {number}, its source: {_quoted(was['source'], now['source'])}")
            continue
        if was["layout"] != now["layout"]:
            found.append(f"cell {number}, its layout: {_quoted(was['layout'], now['layout'])}")
        texts, pictures = _outputs(was)
        new_texts, new_pictures = _outputs(now)
        if len(texts) != len(new_texts) or len(pictures) != len(new_pictures):
            counts = f"{len(texts)} texts and {len(pictures)} figures are committed"
            found.append(
                f"cell {number}: {counts}, {len(new_texts)} and {len(new_pictures)} are made now"
            )
            continue
        for one, other in zip(texts, new_texts, strict=True):
            if not same_text(one, other):
                found.append(f"cell {number}: {_quoted(one, other)}")
        for one, other in zip(pictures, new_pictures, strict=True):
            if figures and not same_picture(one, other):
                found.append(f"cell {number}: its figure has changed")
    return found


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
    """Whether two texts are equal but for what no reader sees, for one in the last digit of a
    fraction, and in the tables that they link to for numbers within `CLOSE`.
    """
    before, after = (list(map(_table, _LINKED.findall(text))) for text in (one, other))
    if len(before) != len(after) or any(map(_difference, before, after)):
        return False
    one, other = (_LINKED.sub("data:text/csv", text) for text in (one, other))
    for pattern, instead in _NOT_SHOWN:
        one = pattern.sub(instead, one)
        other = pattern.sub(instead, other)
    if one == other:
        return True
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(_same_number(was, now) for was, now in pairs)


def _table(encoded: str) -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(base64.b64decode(encoded)))


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


def same_picture(one: str, other: str) -> bool:
    """Whether two pictures, PNG in base64, look the same."""
    if one == other:
        return True
    was, now = (
        Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB") for text in (one, other)
    )
    if was.size != now.size:
        return False
    apart = np.abs(np.asarray(was, np.int16) - np.asarray(now, np.int16)).max(-1) > STEP
    return bool(apart.mean() <= ALIKE)


def _cells(page: Path) -> list[dict]:
    """The cells of a notebook but for the one that papermill puts in."""
    cells = json.loads(page.read_text())["cells"]
    kept = [cell for cell in cells if "injected-parameters" not in cell["metadata"].get("tags", [])]
    return [
        cell | {"source": "".join(cell["source"]), "layout": _layout(cell["metadata"])}
        for cell in kept
    ]


def _layout(metadata: dict) -> str:
    """What a cell says of how it is shown: its tags, the name and caption of its figure."""
    times = ("execution", "papermill")
    told = {name: value for name, value in metadata.items() if name not in times and value}
    return json.dumps(told, sort_keys=True)


def _outputs(cell: dict) -> tuple[list[str], list[str]]:
    """The texts and the pictures, in base64, that a cell shows."""
    texts = []
    pictures = []
    stream = None  # that the last output was of
    for output in cell.get("outputs", ()):
        for kind, text in _parts(output):
            if kind == stream:  # what is printed may come in pieces, by chance
                texts[-1] += text
            else:
                (pictures if kind.startswith("image/") and "svg" not in kind else texts).append(
                    text
                )
        stream = output["name"] if output["output_type"] == "stream" else None
    return texts, pictures


def _parts(output: dict) -> Iterator[tuple[str, str]]:
    """The forms of an output that a page may show, by their kind."""
    if output["output_type"] == "stream":
        yield output["name"], "".join(output["text"])
    elif output["output_type"] == "error":
        yield "error", f"{output['ename']}: {output['evalue']}"
    for kind, value in output.get("data", {}).items():
        yield (
            kind,
            value
            if isinstance(value, str)
            else "".join(value)
            if isinstance(value, list)
            else json.dumps(value),
        )


def _quoted(one: str, other: str) -> str:
    """Both texts around the first place in which they differ."""
    place = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    low = max(0, place - LONGEST // 3)
    was, now = (text[low : low + LONGEST].replace("\n", " ") for text in (one, other))
    return f"committed “{was}”, made now “{now}”"
