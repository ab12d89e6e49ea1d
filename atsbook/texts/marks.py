"""Tables that are made from stored results and stand between two marks in a Markdown file."""

from collections.abc import Callable, Mapping
from pathlib import Path

from atslib.errors import AtsError
from atslib.files import write_atomically


def insert_tables(path: Path, results: Path, tables: Mapping[str, Callable[[Path], str]]) -> None:
    """Put each table between its marks; a file that is not there is left.

    Args:
        results: the folder of stored results.
        tables: by their mark, what makes each of the results.
    Raises:
        AtsError: the file does not hold a mark twice.
    """
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    for mark, made in tables.items():
        if text.count(mark) != 2:
            raise AtsError(f"{path} must hold two lines {mark}: a table goes between them")
        head, _, tail = text.split(mark)
        text = f"{head}{mark}\n\n{made(results)}\n{mark}{tail}"
    write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"))
