"""How the rounds of a federation lie on disk: a folder for each, with what the server sent and a file
for each node that answered. `atsfed.watch_flower` writes them; it and the audit read them.

    round-00001/sent.safetensors    the weights that the server sent, by name
    round-00001/node-7.safetensors  node 7's answer: its arrays, named RECORD|ARRAY, since an answer
                                    can have several records; as facts the names of the records and
                                    all metrics that came along
"""

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from atslib.checkpoints import write_tensors
from atslib.errors import AtsError

COUNT = "num-examples"  # the metric of Flower's own strategies: of how many images an answer is
SENT = "sent.safetensors"
NODE = "node-"
BETWEEN = "|"  # the name of a record and that of an array in it
ROUND = re.compile(r"round-\d{5,}")


def round_folder(folder: Path | str, number: int) -> Path:
    """Where a round is kept, from 1."""
    return Path(folder) / f"round-{number:05d}"


def rounds_in(folder: Path) -> list[Path]:
    """The rounds that a folder has, in their order."""
    found = [each for each in folder.glob("round-*") if ROUND.fullmatch(each.name)]
    return sorted(found, key=lambda each: int(each.name.removeprefix("round-")))


def answers_in(place: Path) -> list[Path]:
    """The files of the nodes that answered in a round."""
    return sorted(place.glob(f"{NODE}*.safetensors"))


def write_sent(folder: Path | str, number: int, weights: dict[str, Tensor]) -> None:
    """Keep what the server sent in a round."""
    write_tensors(round_folder(folder, number) / SENT, weights, {})


def write_answer(
    folder: Path | str,
    number: int,
    node: int,
    records: Mapping[str, dict[str, Tensor]],
    numbers: dict,
) -> None:
    """Keep what a node answered in a round: its records of arrays, and all its metrics."""
    tensors = {
        f"{record}{BETWEEN}{name}": tensor
        for record, arrays in records.items()
        for name, tensor in arrays.items()
    }
    file = round_folder(folder, number) / f"{NODE}{node}.safetensors"
    write_tensors(file, tensors, {"numbers": numbers, "records": list(records)})


def metrics_and_records(file: Path, facts: dict) -> tuple[dict, list[str]]:
    """The metrics of an answer and the names of its records, of the facts in its file.

    Raises:
        AtsError: these are not those of `write_answer`.
    """
    numbers = facts.get("numbers")
    records = facts.get("records")
    if not isinstance(numbers, dict) or not isinstance(records, list):
        raise AtsError(f"{file} is no answer that a `Watched` strategy has kept")
    return numbers, records


def arrays_of(record: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The arrays of one record of an answer, by their own names."""
    before = f"{record}{BETWEEN}"
    return {
        name.removeprefix(before): value
        for name, value in tensors.items()
        if name.startswith(before)
    }
