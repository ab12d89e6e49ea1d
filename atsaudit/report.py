"""The files that an audit is saved as."""

import csv
import dataclasses
import io
import json
from pathlib import Path

import torch
from torch import Tensor

from atsaudit.numbers import Numbers, png
from atsaudit.page import page
from atsaudit.work import Attacked
from atslib.errors import AtsError, as_path
from atslib.files import write_atomically


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class AuditReport(Numbers):
    """What an audit found, and its files."""

    def save(self, folder: str | Path, *, pictures: bool = True) -> Path:
        """Write report.html, report.json, table.csv and the pictures of each case.

        Args:
            folder: made where it is missing.
            pictures: whether to write any picture, in the report too. They are private images.
        Returns:
            The path of report.html.
        Raises:
            AtsError: the folder cannot be written.
        """
        folder = as_path("audit: folder", folder)
        if folder.is_file():
            raise AtsError(f"{folder} is a file; give a folder for the report")
        _text(folder / "report.json", json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n")
        _text(folder / "table.csv", self._csv())
        for number, each in enumerate(self.results):
            file = folder / f"case-{number}.png"
            if pictures:
                sheet = self._sheet(each)
                write_atomically(file, lambda path, sheet=sheet: path.write_bytes(png(sheet)))
            else:
                file.unlink(missing_ok=True)
        _text(folder / "report.html", page(self, pictures=pictures))
        return folder / "report.html"

    def _csv(self) -> str:
        buffer = io.StringIO(newline="")
        rows = self.table()
        writer = csv.DictWriter(buffer, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {name: f"{v:.6g}" if isinstance(v, float) else v for name, v in row.items()}
            )
        return buffer.getvalue()

    def _sheet(self, each: Attacked, most: int = 32) -> Tensor:
        """Originals above reconstructions, (C, 2H, nW) uint8."""
        rows = each.outcome.images[:most]
        above, below = (
            torch.cat(list(part), 2)
            for part in (self.originals[rows], each.outcome.pictures[:most])
        )
        return torch.cat([above, below], 1)


def _text(file: Path, text: str) -> None:
    write_atomically(file, lambda path: path.write_text(text, encoding="utf-8"))
