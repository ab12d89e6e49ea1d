"""Updates that a federation has kept: a folder of `Watched`, or a plain folder of weights and a
small JSON file.
"""

import dataclasses
import json
import math
from pathlib import Path

import torch
from torch import Tensor, nn

from atsaudit.sources import read_weights
from atslib.checkpoints import read_tensors
from atslib.clients.record_files import (
    COUNT,
    NODE,
    SENT,
    answers_in,
    arrays_of,
    metrics_and_records,
    round_folder,
    rounds_in,
)
from atslib.clients.records import (
    COUNTER,
    KINDS,
    STATISTICS,
    Record,
    Recorded,
    counted_steps,
    steps_contradiction,
)
from atslib.errors import AtsError, check_kind, check_whole, choose
from atslib.models import shared_parameters
from atslib.weights import fitted

FACTS = "update.json"
ENDS = (".safetensors", ".npz", ".pt", ".pth", ".ckpt", ".bin")  # of the files in a plain folder
CLIENT = ("client", "partition-id", "cid")  # metrics that say which client an answer is of


def read(
    folder: Path,
    *,
    number: int | None,
    kind: str | None,
    lr: float | None,
    steps: int | None,
    network: nn.Module | None = None,
) -> Recorded:
    """One round of a folder.

    A folder of `Watched` has a folder per round. A plain one has `sent` and `received` (or
    `received-NAME` of several clients) as .safetensors, .npz or what torch saved (.pt, .pth, .ckpt,
    .bin). `update.json` says of either what
    else is needed:

        {"kind": "weights", "lr": 0.1, "steps": 5, "images": ["cats/7.png", "dogs/3.png"]}

    or, of several clients, "images": {"NAME": [...], ...}. A NAME of `Watched` is that of a node or
    of a client, by the metric "client" or the one that "by" names; where clients send several of
    Flower's records, "record" names the one with the weights. What is given here counts more than
    the file.

    Args:
        folder: of either kind.
        number: which round of a `Watched` folder; None: the first.
        kind, lr, steps: as in `Recorded`; None: as the file says, or steps as the counters of batch
            normalization do.
        network: that it is of: arrays that have a wrapper's names, or numbers, get its own.
    Raises:
        AtsError: neither kind of folder, or something that is needed and said nowhere.
    """
    if not folder.is_dir():
        raise AtsError(f"--update {folder} is no folder")
    facts = _facts(folder)
    rounds = rounds_in(folder)
    if rounds:
        place = round_folder(folder, number) if number is not None else rounds[0]
        if not (place / SENT).is_file():
            raise AtsError(
                f"--update {folder}: {place.name} was not recorded; there are {', '.join(r.name for r in rounds)}"
            )
        files = answers_in(place)
    else:
        place = folder
        files = sorted(file for file in place.glob("received*") if file.suffix in ENDS)
    sent = next((place / f"sent{end}" for end in ENDS if (place / f"sent{end}").is_file()), None)
    if sent is None or not files:
        raise AtsError(
            f"--update {folder} has no weights that were sent and received; give a folder of Watched, or one with "
            f"sent and received (.safetensors, .npz or .pt) and {FACTS}"
        )
    lr = lr if lr is not None else facts.get("lr")
    steps = steps if steps is not None else facts.get("steps")
    kind = kind if kind is not None else facts.get("kind")
    if kind is not None:
        choose(f"--update {folder}: kind", kind, KINDS)
    records = tuple(_record(file, facts) for file in files)
    weights = read_tensors(sent)[0] if sent.suffix == ".safetensors" else read_weights(sent)
    if network is not None:
        weights = fitted(weights, network, f"--update {sent}", partial=True)
        records = tuple(_renamed(record, network, folder) for record in records)
    for record in records:
        for name, value in record.arrays.items():
            if value.is_floating_point() and not bool(value.isfinite().all()):
                raise AtsError(
                    f"--update {folder}: {name!r}, which {record.name} sent, has numbers that are not finite"
                )
    found = None if kind is None else _kind(weights, records, kind, folder)
    told = False
    if found != "gradient":
        if steps is None and _positive(lr):
            found = found or _kind(weights, records, kind, folder)
            counted = {
                count
                for each in records
                if (count := counted_steps(weights, each, found)) is not None
            }
            steps = counted.pop() if len(counted) == 1 else None
            told = steps is not None
        if not _positive(lr) or not isinstance(steps, int) or steps < 1:
            raise AtsError(
                f"--update {folder}: say with --lr and --local-steps (or in {FACTS}) how clients trained"
            )
        found = found or _kind(weights, records, kind, folder)
    kept = Recorded(
        weights, found, float(lr or 1.0), int(steps or 1), records, folder, counted=told
    )
    return dataclasses.replace(kept, contradiction=steps_contradiction(kept))


def _renamed(record: Record, network: nn.Module, where: Path) -> Record:
    """The same with the network's own names."""
    whose = f"--update {where}: what {record.name} sent"
    return dataclasses.replace(record, arrays=fitted(record.arrays, network, whose, partial=True))


def kept_back(recorded: Recorded, model: nn.Module, shared: str | None) -> list[str]:
    """The trained parameters that stay with the clients, as those of their own heads do: none of
    them sent these.

    Args:
        recorded: the round, with the network's own names.
        model: the network.
        shared: the layers that are sent, as in `not_shared`; None: those that were.
    Raises:
        AtsError: `shared` leaves out what was sent.
    """
    sent = {name for record in recorded.records for name in record.arrays}
    own = shared_parameters(model)
    if shared is None:
        missing = [name for name in own if name not in sent]
        return missing if len(missing) < len(own) else []
    kept = not_shared(model, shared)
    if odd := sorted(sent & set(kept)):
        raise AtsError(f"--shared {shared!r} leaves out {odd[0]!r}, which clients sent")
    return kept


def not_shared(model: nn.Module, shared: str) -> list[str]:
    """The trained parameters outside the layers that a text names, such as "features,neck.1".

    Raises:
        AtsError: there is no such layer, or nothing is left to share.
    """
    own = shared_parameters(model)
    layers = [part.strip() for part in shared.split(",")]
    for layer in layers:
        if not any(name == layer or name.startswith(f"{layer}.") for name in own):
            known = ", ".join(dict.fromkeys(name.rpartition(".")[0] or name for name in own))
            raise AtsError(
                f"--shared {shared!r}: the network has no trained layer {layer!r}; it has {known[:300]}"
            )
    return [
        name
        for name in own
        if not any(name == layer or name.startswith(f"{layer}.") for layer in layers)
    ]


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _facts(folder: Path) -> dict:
    file = folder / FACTS
    if not file.is_file():
        return {}
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise AtsError(f"{file} is not JSON: {error}") from None
    if not isinstance(facts, dict):
        raise AtsError(
            f'{file} must be an object, such as {{"kind": "weights", "lr": 0.1, "steps": 5}}'
        )
    return facts


def _record(file: Path, facts: dict) -> Record:
    arrays, numbers = _sent(file, facts.get("record"))
    name = file.stem.removeprefix(NODE).removeprefix("received").removeprefix("-") or "the client"
    images = facts.get("images", [])
    if not isinstance(images, dict | list) or not all(
        isinstance(each, list) for each in (images.values() if isinstance(images, dict) else ())
    ):
        raise AtsError(f"{FACTS}: images must be a list of names or rows, or one for each client")
    if isinstance(images, dict):
        check_kind(f"{FACTS}: by", facts.get("by", ""), str, "the name of a metric")
        names = [
            name,
            *(str(numbers[each]) for each in (facts.get("by"), *CLIENT) if each in numbers),
        ]
        images = next((images[each] for each in names if each in images), [])
    count = numbers.get(COUNT)
    count = int(count) if isinstance(count, float) and count.is_integer() else count
    if count is not None:
        check_whole(f"{file}: {COUNT}", count, 1)
    return Record(name, arrays, tuple(images), count)


def _sent(file: Path, record: str | None) -> tuple[dict[str, Tensor], dict]:
    """The arrays in a client's file by their own names, and the metrics that came with them.

    `Watched` puts the name of Flower's record before each, and a hash beside them.
    """
    if file.suffix != ".safetensors":
        return read_weights(file), {}
    arrays, facts, _ = read_tensors(file)
    if "records" not in facts:
        return arrays, {}
    numbers, records = metrics_and_records(file, facts)
    own = record if record is not None else records[0] if len(records) == 1 else None
    if own not in records:
        raise AtsError(f'{file} has the records {records}; say which in {FACTS} as "record"')
    return arrays_of(own, arrays), numbers


def _norm(arrays: dict[str, Tensor]) -> float:
    return float(
        torch.stack([value.double().square().sum() for value in arrays.values()]).sum().sqrt()
    )


def _kind(
    sent: dict[str, Tensor], records: tuple[Record, ...], said: str | None, folder: Path
) -> str:
    """What clients sent, said or told from the sizes.

    Raises:
        AtsError: what is said contradicts the sizes, or nothing is said and they do not tell.
    """
    if said == "gradient":
        return said
    arrays = records[0].arrays
    # Buffers move by more than weights, and a server's mean over counters is no whole number.
    shared = [
        name
        for name in arrays
        if name in sent
        and sent[name].is_floating_point()
        and not name.endswith((COUNTER, *STATISTICS))
    ]
    if not shared:
        raise AtsError(
            f"--update {folder}: no array that was received has the name of one that was sent"
        )
    before = {name: sent[name] for name in shared}
    after = {name: arrays[name] for name in shared}
    for name in shared:
        if before[name].shape != after[name].shape:
            shapes = f"{tuple(before[name].shape)} and {tuple(after[name].shape)}"
            raise AtsError(f"--update {folder}: {name!r} was sent and received in shapes {shapes}")
    moved = _norm({name: after[name] - before[name] for name in shared})
    whole = _norm(before)
    size = _norm(after)
    likely = "weights" if moved < 0.5 * whole else "difference" if size < 0.5 * whole else None
    if likely is None and said is None:
        raise AtsError(
            f"--update {folder}: say whether clients sent weights or a difference (--kind, or in {FACTS})"
        )
    if said and likely and said != likely:
        other = "a difference of weights" if likely == "difference" else "weights"
        raise AtsError(
            f"--update {folder}: what was received is said to be of kind {said!r}, but looks like {other}: its norm is "
            f"{size:.3g}, that of the weights that were sent {whole:.3g}, and they differ by {moved:.3g}"
        )
    return said or likely


def rows_of(recorded: Recorded, names: tuple[str, ...], count: int) -> list[Tensor]:
    """Of each client which of the images were behind its update.

    Raises:
        AtsError: nothing says so, or it names images that are not there.
    """
    place = {name: row for row, name in enumerate(names)}
    found = []
    for record in recorded.records:
        if not record.images:
            raise AtsError(
                f"--update {recorded.where}: nothing says which images are behind what {record.name} sent, so "
                f'nobody could tell whether they are found; name them in {FACTS} as "images", by file or row'
            )
        rows = []
        for image in record.images:
            row = image if isinstance(image, int) else place.get(str(image), -1)
            if not 0 <= row < count:
                raise AtsError(
                    f"--update {recorded.where}: image {image!r} of {record.name} is not among the {count} of --data"
                )
            rows.append(row)
        if record.count is not None and record.count != len(rows):
            raise AtsError(
                f"--update {recorded.where}: {record.name} trained on {record.count} images, and {FACTS} names "
                f"{len(rows)}"
            )
        found.append(torch.tensor(rows))
    return found
