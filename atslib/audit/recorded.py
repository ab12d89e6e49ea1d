"""Updates that a federation has kept: a folder of `Watched`, or a plain folder of weights and a
small JSON file.
"""

import dataclasses
import json
import math
import re
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from atslib.audit.sources import fill, read_weights
from atslib.checkpoints import read_tensors
from atslib.clients.observe import observe
from atslib.clients.updates import LocalTraining, observe_weights
from atslib.clients.view import Observed, ThreatModel, Update
from atslib.errors import AtsError, check_kind, check_whole, choose
from atslib.models import copied, in_mode, shared_parameters

KINDS = ("weights", "difference", "gradient")
FACTS = "update.json"
ROUND = re.compile(r"round-\d{5,}")
BETWEEN = "|"  # the name of a record and that of an array in it, as `Watched` keeps them
CLIENT = ("client", "partition-id", "cid")  # metrics that say which client an answer is of
COMPARED = 8  # updates that are held beside the photographs named behind them
OTHERS = 19  # sets of other photographs with the same labels
REPEATED = 10  # local steps that are made again for that, at most


@dataclasses.dataclass(frozen=True)
class Record:
    """What one client sent.

    Attributes:
        name: whose it is, for messages.
        arrays: by name, as they were sent.
        images: which images were behind it: names of files or row numbers; empty where nothing says
            so.
        count: how many images were behind it; None where nothing says so.
    """

    name: str
    arrays: dict[str, Tensor]
    images: tuple[str | int, ...]
    count: int | None


@dataclasses.dataclass(frozen=True)
class Recorded:
    """One round.

    Attributes:
        sent: the weights that clients got, by name.
        kind: what clients sent: "weights", the "difference" of weights (after minus before) or a
            "gradient".
        lr, steps: of their training.
        records: one per client.
        where: the folder, for messages.
    """

    sent: dict[str, Tensor]
    kind: str
    lr: float
    steps: int
    records: tuple[Record, ...]
    where: Path


def read(
    folder: Path, *, number: int | None, kind: str | None, lr: float | None, steps: int | None
) -> Recorded:
    """One round of a folder.

    A folder of `Watched` has a folder per round. A plain one has `sent` and `received` (or
    `received-NAME` of several clients) as .safetensors or .npz. `update.json` says of either what
    else is needed:

        {"kind": "weights", "lr": 0.1, "steps": 5, "images": ["cats/7.png", "dogs/3.png"]}

    or, of several clients, "images": {"NAME": [...], ...}. A NAME of `Watched` is that of a node or
    of a client, by the metric "client" or the one that "by" names; where clients send several of
    Flower's records, "record" names the one with the weights. What is given here counts more than
    the file.

    Args:
        folder: of either kind.
        number: which round of a `Watched` folder; None: the first.
        kind, lr, steps: as in `Recorded`; None: as the file says.
    Raises:
        AtsError: neither kind of folder, or something that is needed and said nowhere.
    """
    if not folder.is_dir():
        raise AtsError(f"--update {folder} is no folder")
    facts = _facts(folder)
    rounds = sorted(each for each in folder.glob("round-*") if ROUND.fullmatch(each.name))
    if rounds:
        place = folder / f"round-{number:05d}" if number is not None else rounds[0]
        if not (place / "sent.safetensors").is_file():
            raise AtsError(
                f"--update {folder}: {place.name} was not recorded; there are {', '.join(r.name for r in rounds)}"
            )
        files = sorted(place.glob("node-*.safetensors"))
    else:
        place = folder
        files = sorted(
            file for file in place.glob("received*") if file.suffix in (".safetensors", ".npz")
        )
    sent = next(
        (
            place / f"sent{end}"
            for end in (".safetensors", ".npz")
            if (place / f"sent{end}").is_file()
        ),
        None,
    )
    if sent is None or not files:
        raise AtsError(
            f"--update {folder} has no weights that were sent and received; give a folder of Watched, or one with "
            f"sent and received (.safetensors or .npz) and {FACTS}"
        )
    lr = lr if lr is not None else facts.get("lr")
    steps = steps if steps is not None else facts.get("steps")
    kind = kind if kind is not None else facts.get("kind")
    if kind != "gradient" and (not _positive(lr) or not isinstance(steps, int) or steps < 1):
        raise AtsError(
            f"--update {folder}: say with --lr and --local-steps (or in {FACTS}) how clients trained"
        )
    if kind is not None:
        choose(f"--update {folder}: kind", kind, KINDS)
    records = tuple(_record(file, facts) for file in files)
    weights = read_tensors(sent)[0] if sent.suffix == ".safetensors" else read_weights(sent)
    found = _kind(weights, records, kind, folder)
    return Recorded(weights, found, float(lr or 1.0), int(steps or 1), records, folder)


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
    name = (
        file.stem.removeprefix("node-").removeprefix("received").removeprefix("-") or "the client"
    )
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
    count = numbers.get("num-examples")
    count = int(count) if isinstance(count, float) and count.is_integer() else count
    if count is not None:
        check_whole(f"{file}: num-examples", count, 1)
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
    numbers = facts.get("numbers")
    records = facts["records"]
    if not isinstance(numbers, dict) or not isinstance(records, list):
        raise AtsError(f"{file} is no answer that a `Watched` strategy has kept")
    own = record if record is not None else records[0] if len(records) == 1 else None
    if own not in records:
        raise AtsError(f'{file} has the records {records}; say which in {FACTS} as "record"')
    before = f"{own}{BETWEEN}"
    return {
        name.removeprefix(before): value
        for name, value in arrays.items()
        if name.startswith(before)
    }, numbers


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
    shared = [name for name in arrays if name in sent and sent[name].is_floating_point()]
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


def observed(
    recorded: Recorded,
    model: nn.Module,
    rows: list[Tensor],
    labels: Tensor,
    threat: ThreatModel,
    shape: tuple[int, int, int],
) -> Observed:
    """What the server saw of clients with equally many images, as one view.

    Args:
        recorded: the round; its records are those of `rows`.
        model: the network with the weights that were sent, as `prepared` gives it.
        rows: of each client which images were behind its update.
        labels: (N,) of all images.
        threat: what the server knows; `batch` is the number of images of each.
        shape: (C, H, W) of an image.
    """
    flat = []
    for record in recorded.records:
        part = _parameters(recorded, record, model)
        flat.append(torch.cat([value.flatten() for value in part]))
    gradients = torch.stack(flat).to(next(model.parameters()))
    if not gradients.isfinite().all():
        raise AtsError(f"--update {recorded.where}: what was received is not finite")
    attacker = in_mode(model, threat.victim if threat.batch_norm == "known" else "train")
    if recorded.kind == "gradient":
        update = Update(attacker, gradients)
    else:
        facts = {
            "epochs": recorded.steps,
            "batch": 0,
            "lr": recorded.lr,
            "momentum": 0.0,
            "steps": recorded.steps,
        }
        update = Update(attacker, gradients, kind="difference", local=facts)
    known = None
    if threat.labels == "known":
        known = torch.stack([labels[each] for each in rows]).to(gradients.device)
    return Observed((update,), known, shape, threat)


def _parameters(recorded: Recorded, record: Record, model: nn.Module) -> list[Tensor]:
    """A client's change of each parameter of the network, or its gradient, in the network's order."""
    sent = {name.removeprefix("module."): value for name, value in recorded.sent.items()}
    got = {name.removeprefix("module."): value for name, value in record.arrays.items()}
    found = []
    for name, parameter in shared_parameters(model).items():
        fitting = [each for each in got if name == each or name.endswith(f".{each}")]
        own = max(
            fitting, key=len, default=None
        )  # the network stands behind its normalization, so names grow
        if own is None:
            raise AtsError(
                f"--update {recorded.where}: {record.name} sent no array for {name!r}; it sent {', '.join(got)[:120]}"
            )
        arrays = [got[own]]
        if recorded.kind == "weights":
            arrays.append(sent.get(own))
        if any(array is None or array.shape != parameter.shape for array in arrays):
            raise AtsError(
                f"--update {recorded.where}: {own!r} must have been sent, and received from {record.name}, in the shape "
                f"that the network has, {tuple(parameter.shape)}"
            )
        value = got[own].double()
        if recorded.kind == "weights":
            value = value - sent[own].double()
        found.append(value)
    return found


def network_of(recorded: Recorded, fresh: nn.Module) -> nn.Module:
    """The network with the weights that were sent; buffers that were not sent stay as they are
    made.
    """
    model = copied(fresh)
    own = model.state_dict()
    missing = {
        name: value
        for name, value in own.items()
        if name not in recorded.sent and name not in dict(model.named_parameters())
    }
    return fill(model, missing | recorded.sent, f"--update {recorded.where}")


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


def named_wrongly(
    view: Observed,
    rows: Tensor,
    pixels: Tensor,
    labels: Tensor,
    rng: torch.Generator,
    seconds: float,
) -> str:
    """A sentence where recorded updates are no more like those of the photographs that are named
    behind them than like those of others with the same labels; "" where they are, or where nothing
    can be compared. Photographs that were named wrongly are not found, which calms.

    Args:
        view: of clients with equally many images.
        rows: (B,) which images are named, client by client.
        pixels, labels: all images, (N, C, H, W) uint8 and (N,).
        rng: of the choice of the others.
        seconds: after which no further update is compared.
    """
    ends = time.monotonic() + seconds
    update = view.updates[0]
    threat = dataclasses.replace(view.threat, labels="known")
    local = None
    if update.kind == "difference":
        steps = min(update.local["steps"], REPEATED)
        local = LocalTraining(epochs=steps, lr=update.local["lr"])
    compared = 0
    nearest = 0
    for seen, own in zip(update.gradients, rows.unflatten(0, (len(view), -1)), strict=True):
        alike = [(labels == label).nonzero().flatten() for label in labels[own]]
        alike = [each[~torch.isin(each, rows)] for each in alike]
        if compared == COMPARED or not seen.any() or any(len(each) < 2 for each in alike):
            continue
        sets = [own]
        for _ in range(OTHERS):
            drawn = [each[torch.randint(len(each), (1,), generator=rng)] for each in alike]
            sets.append(torch.cat(drawn))
        closeness = []
        for images in sets:
            if time.monotonic() > ends:
                break
            given = (update.model, (pixels[images] / 255).to(seen), labels[images].to(seen.device))
            try:
                if local is None:
                    made = observe(*given, threat=threat)
                else:
                    made = observe_weights(*given, local=local, rng=rng, threat=threat)
            except AtsError:  # such a training diverges
                break
            likely = made.updates[0].gradients[0]
            closeness.append(float(torch.cosine_similarity(seen, likely, dim=0)))
        if len(closeness) < len(sets):
            continue
        compared += 1
        nearest += closeness[0] > max(closeness[1:])
    if nearest >= compared / 2:
        return ""
    return (
        f"Of {compared} recorded updates {nearest} are more like those of the photographs named behind them than of "
        f"{OTHERS} others with the same labels. Are they the right ones, and are their labels? A number in {FACTS} is a "
        "row of --data, which of a known data set is its test images; the classes of a folder are in alphabetical order. "
        "A strong policy or augmentation can have this effect too."
    )
