"""What a page is drawn from: tables, facts and a verdict, written to a folder and read back."""

import dataclasses
import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd

from atslib.errors import AtsError
from atslib.files import write_atomically

# Beside the tables of a page: its verdict, its facts, and what it cost.
FILE = "result.json"
# What README and other pages say of a page, by name
NUMBERS = "numbers.json"
TABLE = ".csv.gz"  # ends the name of a table's file
STATUSES = ("reproduced", "partly", "not reproduced", "cannot tell", "not measured")
NO_POLICY = "none"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a claim came to, in words made from the numbers.

    Attributes:
        status: one of `STATUSES`.
        reason: why, by the rule that the page states.
        here: the numbers in a few words, for the table of claims.
    """

    status: str
    reason: str
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
        facts: where and how it was made: profile, dataset, model, images, device, date, versions,
            seed.
        files: what else lies beside the tables, by name.
    """

    page: str
    tables: dict[str, pd.DataFrame]
    facts: dict[str, object]
    verdict: Verdict
    files: dict[str, bytes] = dataclasses.field(default_factory=dict, repr=False)

    def texts(self) -> dict[str, str]:
        """The files of this result as text: each table as CSV, which is written compressed, and `FILE`
        with the verdict and the facts.
        """
        files = {
            f"{name}{TABLE}": table.to_csv(index=False, float_format="%.6g")
            for name, table in self.tables.items()
        }
        facts = json.loads(json.dumps(self.facts, sort_keys=True))
        whole = {"verdict": dataclasses.asdict(self.verdict), "facts": facts}
        files[FILE] = as_text(whole)
        return files

    @property
    def dataset(self) -> str:
        """The data set that the tables are about."""
        return str(self.facts["dataset"])

    @property
    def digest(self) -> str:
        """A short hash of the tables: a page shows it, and a test compares it with the stored
        tables.
        """
        text = "".join(text for name, text in sorted(self.texts().items()) if name.endswith(TABLE))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def folder(self, results: Path) -> Path:
        """Where `write` puts the files."""
        return Path(results) / self.page / f"{self.facts['dataset']}-{self.facts['profile']}"

    def write(self, results: Path) -> Path:
        """Write the files to `results/page/dataset-profile/`, `FILE` last; tables of an older run
        go.
        """
        folder = self.folder(results)
        texts = self.texts()
        for name, data in self.files.items():
            write_atomically(folder / name, lambda partial, data=data: partial.write_bytes(data))
        for name, text in texts.items():
            data = text.encode()
            if name.endswith(TABLE):
                data = gzip.compress(data, mtime=0)  # a date would make every run's bytes its own
            write_atomically(folder / name, lambda partial, data=data: partial.write_bytes(data))
        for stale in set(folder.glob("*.csv*")) - {folder / name for name in texts}:
            stale.unlink()
        return folder


def as_text(whole: dict) -> str:
    """What `FILE` holds, as its text."""
    return json.dumps(whole, indent=1) + "\n"


def stored_result(folder: Path) -> dict[str, dict]:
    """`verdict`, `facts` and, once it is known, `cost` of a folder that `Result.write` made.

    Raises:
        AtsError: there is no such file, or it is damaged.
    """
    file = Path(folder) / FILE
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise AtsError(f"{file} cannot be read: {error}") from None


def table_file(folder: Path, name: str) -> Path:
    """The file of a table in a folder that `Result.write` made; pandas reads it as any CSV."""
    return Path(folder) / f"{name}{TABLE}"


def stored_digest(folder: Path) -> str:
    """`Result.digest` of the tables in a folder that `Result.write` made."""
    files = sorted(Path(folder).glob(f"*{TABLE}"))
    text = "".join(gzip.decompress(file.read_bytes()).decode() for file in files)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """A `summarize` table with further columns as a person reads it: one column a group, values as
    text.
    """
    text = pd.DataFrame(index=table.index)
    text["images (n)"] = table["n"].map("{:d}".format)
    text["PSNR (dB), mean ± sd"] = [
        f"{m:.2f} ± {s:.2f}" for m, s in zip(table["mean"], table["sd"], strict=True)
    ]
    text["95 % interval of the mean"] = [
        f"{a:.2f} to {b:.2f}" for a, b in zip(table["low"], table["high"], strict=True)
    ]
    text["p95, max"] = [
        f"{a:.1f}, {b:.1f}" for a, b in zip(table["p95"], table["max"], strict=True)
    ]
    text["share at or above ε"] = table["success"].map("{:.0%}".format)
    if table["diverged"].any():
        text["diverged"] = table["diverged"].map("{:d}".format)
    for name in table.columns[table.columns.get_loc("diverged") + 1 :]:
        text[name] = table[name].map(lambda value: "–" if np.isnan(value) else f"{value:.2f}")
    return text.T
