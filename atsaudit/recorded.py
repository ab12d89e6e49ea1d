"""Updates that a federation has kept: a folder of `Watched`, or a plain folder of weights and a
small JSON file.
"""

import dataclasses
import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from atsaudit.outcome import one_photograph
from atsaudit.sources import read_weights
from atslib.checkpoints import read_tensors
from atslib.clients.observe import attackers_view, observe
from atslib.clients.updates import LocalTraining, observe_weights
from atslib.clients.view import Observed, ThreatModel, Update
from atslib.errors import AtsError, check_kind, check_whole, choose
from atslib.gradients.inputs import first_parameter
from atslib.models import as_client, class_scores, copied, loss_of, shared_parameters
from atslib.weights import fill, fitted

KINDS = ("weights", "difference", "gradient")
FACTS = "update.json"
ENDS = (".safetensors", ".npz", ".pt", ".pth", ".ckpt", ".bin")  # of the files in a plain folder
ROUND = re.compile(r"round-\d{5,}")
BETWEEN = "|"  # the name of a record and that of an array in it, as `Watched` keeps them
CLIENT = ("client", "partition-id", "cid")  # metrics that say which client an answer is of
# Buffers of batch normalization by the end of their names; they move in train mode alone.
COUNTER = "num_batches_tracked"
STATISTICS = ("running_mean", "running_var")
# A cosine of torch's own gradient and the loss's, below which they are two: ties of max-pooling and
# rounding leave more than 0.998.
FORM = 0.995
COMPARED = 8  # updates that are held beside the photographs named behind them
OTHERS = 19  # sets of other photographs with the same labels
FEWEST = 4  # of them, below which nothing is said
ROUNDED = 1e-2  # of a running statistic: what rounding to half precision or bfloat16 may move it by
REPEATED = 10  # local steps that are made again for that, at most
# A cosine at or below which the sign is reversed. Of K classes wrong labels make it -1 / (K - 1) in
# the last layer of an untrained network: -0.5 of three.
REVERSED = -0.6


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
        contradiction: a sentence where the number of steps that was said is not that of the buffers
            that clients sent; "" where they agree, or tell nothing.
    """

    sent: dict[str, Tensor]
    kind: str
    lr: float
    steps: int
    records: tuple[Record, ...]
    where: Path
    contradiction: str = ""


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
    found = None if kind is None else _kind(weights, records, kind, folder)
    if found != "gradient":
        if steps is None and _positive(lr):
            found = found or _kind(weights, records, kind, folder)
            counted = {
                count
                for each in records
                if (count := counted_steps(weights, each, found)) is not None
            }
            steps = counted.pop() if len(counted) == 1 else None
        if not _positive(lr) or not isinstance(steps, int) or steps < 1:
            raise AtsError(
                f"--update {folder}: say with --lr and --local-steps (or in {FACTS}) how clients trained"
            )
        found = found or _kind(weights, records, kind, folder)
    kept = Recorded(weights, found, float(lr or 1.0), int(steps or 1), records, folder)
    return dataclasses.replace(kept, contradiction=steps_contradiction(kept))


def _bare(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """Arrays by their names without the prefix of `DataParallel`."""
    return {name.removeprefix("module."): value for name, value in arrays.items()}


def counted_steps(sent: dict[str, Tensor], record: Record, kind: str) -> int | None:
    """How many forward passes in train mode a client has made, by the counters of batch
    normalization that it sent; None where there are none, or in a gradient.

    A server's mean over counters is no whole number; a client's counter goes on from the whole part.
    Where layers were used several times in a pass, the one that was used least tells.
    """
    if kind == "gradient":
        return None
    before = _bare(sent)
    counts = []
    for name, value in _bare(record.arrays).items():
        own = before.get(name)
        if not name.endswith(COUNTER) or value.numel() != 1:
            continue
        if kind == "difference":
            counts.append(math.ceil(float(value) - 1e-3))
        elif own is not None and own.numel() == 1:
            counts.append(round(float(value) - math.floor(float(own) + 1e-3)))
    return min((count for count in counts if count > 0), default=0) if counts else None


def client_mode(recorded: Recorded) -> str | None:
    """In which mode the clients ran batch normalization, by the buffers that they sent: "train" if
    counters or running statistics of any moved, "eval" if those of none did; None where there are
    none, or in gradients.
    """
    if recorded.kind == "gradient":
        return None
    before = _bare(recorded.sent)
    told = False
    for record in recorded.records:
        if counted_steps(recorded.sent, record, recorded.kind):
            return "train"
        for name, value in _bare(record.arrays).items():
            own = before.get(name)
            if not name.endswith((COUNTER, *STATISTICS)):
                continue
            if recorded.kind == "difference":
                own = torch.zeros_like(value)
            if own is None or own.shape != value.shape:
                continue
            told = True
            moved = (value.double() - own.double()).abs()
            # A server's mean over counters is no whole number, and clients make it one.
            least = 1 if name.endswith(COUNTER) else ROUNDED * own.double().abs()
            if bool((moved > least).any()):
                return "train"
    return "eval" if told else None


def steps_contradiction(recorded: Recorded) -> str:
    """A sentence where the number of local steps that is said is not that of the counters; "" where
    they agree, or tell nothing.
    """
    for record in recorded.records:
        count = counted_steps(recorded.sent, record, recorded.kind)
        if count and count != recorded.steps:
            return (
                f"{record.name} is said to have made {recorded.steps} local steps (--local-steps), and its counters of "
                f"batch normalization (num_batches_tracked) went up by {count}; with another number of steps little is "
                "found, whatever leaks."
            )
    return ""


def mode_contradiction(recorded: Recorded, said: str) -> str:
    """A sentence where the mode in which clients are said to have run batch normalization is not
    that of the buffers that they sent; "" where they agree.
    """
    told = client_mode(recorded)
    if told is None or told == said:
        return ""
    moved = "have moved" if told == "train" else "have not moved"
    return (
        f"Clients are said to run batch normalization in {said} mode, and its running statistics and counters {moved}, "
        f"as in {told} mode; in another mode little is found, whatever leaks (victim: {told})."
    )


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
        threat: what the server knows, and the mode in which clients ran the network; `batch` is the
            number of images of each.
        shape: (C, H, W) of an image.
    """
    flat = []
    for record in recorded.records:
        part = _parameters(recorded, record, model)
        flat.append(torch.cat([value.flatten() for value in part]))
    gradients = torch.stack(flat).to(next(model.parameters()))
    if not gradients.isfinite().all():
        raise AtsError(f"--update {recorded.where}: what was received is not finite")
    attacker = attackers_view(model, threat, shape)
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
    sent = _bare(recorded.sent)
    got = _bare(record.arrays)
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
    """The network with the weights that were sent; buffers and frozen parameters that were not sent
    stay as they are made.
    """
    model = copied(fresh)
    whose = f"--update {recorded.where}"
    sent = fitted(recorded.sent, model, whose, partial=True)
    trained = shared_parameters(model)
    missing = {name: value for name, value in model.state_dict().items() if name not in trained}
    return fill(model, missing | sent, whose)


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
    behind them than like those of others, where they are their opposite, or where nothing could be
    compared; "" only where they fit. Photographs that were named wrongly are not found, which
    calms.

    Others have the same labels where there are such, and are given them where there are none. Where
    time is short, fewer local steps are made again, down to the first one's gradient, and fewer
    others are compared, before fewer updates are.

    Args:
        view: of clients with equally many images.
        rows: (B,) which images are named, client by client.
        pixels, labels: all images, (N, C, H, W) uint8 and (N,).
        rng: of the choice of the others, and of what the network draws.
        seconds: that it may take.
    """
    began = time.monotonic()
    update = view.updates[0]
    own = rows.unflatten(0, (len(view), -1))
    chosen = update.gradients.any(1).nonzero().flatten().tolist()[:COMPARED]
    if not chosen:
        return (
            f"Nothing shows that the photographs named are behind the {_updates(len(view))}: all that was received is "
            "zero in every entry. Is it a copy of what was sent?"
        )
    closeness = []
    fault = ""
    steps = 1
    free = ~torch.isin(first := one_photograph(pixels), first[rows])
    for done, place in enumerate(chosen):
        seen = update.gradients[place]
        each: list[float] = []
        for images in _sets(own[place], free, labels, rng):
            share = (time.monotonic() - began) / seconds if seconds > 0 else math.inf
            if share > (1 if len(each) <= FEWEST else (done + 1) / len(chosen)):
                break
            at = time.monotonic()
            made, fault = _again(view, images, pixels, labels[own[place]], rng, steps)
            if fault:
                break
            if not each and not done:  # how much time there is, by what one gradient takes
                took = max(time.monotonic() - at, 1e-6)
                most = _local_steps(update)
                steps = max(1, min(most, int(seconds / (took * (1 + OTHERS) * len(chosen)))))
                if steps > 1:
                    made, fault = _again(view, images, pixels, labels[own[place]], rng, steps)
                    if fault:
                        break
            each.append(float(torch.cosine_similarity(seen, made, dim=0)))
        if len(each) > FEWEST:
            closeness.append(each)
    first = own[chosen[0]]
    if closeness and (words := _torchs_form(view, chosen[0], first, pixels, labels[first], rng)):
        return words
    return _said_of(closeness, _updates(len(view)), fault)


def _updates(count: int) -> str:
    return "recorded update" if count == 1 else f"{count} recorded updates"


def _local_steps(update: Update) -> int:
    return min(update.local["steps"], REPEATED) if update.kind == "difference" else 1


def _sets(own: Tensor, free: Tensor, labels: Tensor, rng: torch.Generator) -> Iterator[Tensor]:
    """The images named behind an update (k,), and then sets of others, of those that are free
    (N,).
    """
    yield own
    alike = [(free & (labels == label)).nonzero().flatten() for label in labels[own]]
    if any(len(each) < 2 for each in alike):
        alike = [free.nonzero().flatten()] * len(own)
    for _ in range(OTHERS):
        drawn = [each[torch.randint(len(each), (1,), generator=rng)] for each in alike]
        yield torch.cat(drawn)


def _again(
    view: Observed,
    images: Tensor,
    pixels: Tensor,
    labels: Tensor,
    rng: torch.Generator,
    steps: int,
) -> tuple[Tensor | None, str]:
    """What a client with these images and labels would have sent after so many local steps, (P,),
    or why it cannot be told.
    """
    update = view.updates[0]
    threat = dataclasses.replace(view.threat, labels="known", batch=len(images))
    like = update.gradients
    given = (update.model, (pixels[images] / 255).to(like), labels.to(like.device))
    try:
        if update.kind == "gradient":
            return observe(*given, threat=threat, rng=rng).updates[0].gradients[0], ""
        local = LocalTraining(epochs=steps, lr=update.local["lr"])
        made = observe_weights(*given, local=local, rng=rng, threat=threat)
    except AtsError as error:
        return None, str(error)
    return made.updates[0].gradients[0], ""


def _torchs_form(
    view: Observed, place: int, images: Tensor, pixels: Tensor, labels: Tensor, rng: torch.Generator
) -> str:
    """A sentence where an update is of a client whose torch made another gradient than the loss's;
    "" where it made that.

    On a CPU, torch's batch and instance normalization pass a wrong gradient back for one image
    whose maps become tokens before a layer normalization or a transformer. The client shares it.

    Args:
        place: of the update among those of `view`.
        images: (k,) which images are named behind it.
        labels: (k,) of these.
    """
    update = view.updates[0]
    loss, fault = _again(view, images, pixels, labels, rng, 1)
    if fault:
        return ""
    client = copied(as_client(update.model, view.threat.victim)).cpu()
    given = (pixels[images] / 255).to(first_parameter(client)), labels.cpu()

    def own() -> Tensor:
        value = loss_of(client)(class_scores(client, given[0]), given[1]).mean()
        parts = torch.autograd.grad(
            value, list(shared_parameters(client).values()), materialize_grads=True
        )
        return torch.cat([part.flatten() for part in parts]).double()

    try:
        with torch.enable_grad():
            made, again = own(), own()
    except Exception:  # what is wrong with it has been said by who ran it before
        return ""
    if not torch.equal(made, again):  # it draws at random
        return ""
    sign = -1 if update.kind == "difference" else 1
    seen = update.gradients[place].cpu().double()
    fits = float(torch.cosine_similarity(seen, sign * made, dim=0))
    right = float(torch.cosine_similarity(seen, loss.cpu().double(), dim=0))
    apart = float(torch.cosine_similarity(made, sign * loss.cpu().double(), dim=0))
    if apart > FORM or fits <= right:
        return ""
    return (
        f"What was received fits the gradient that torch makes of this network on a CPU (cosine {fits:.2f}) better than "
        f"the gradient of its loss (cosine {right:.2f}): for one image whose maps become tokens, torch's batch and "
        "instance normalization pass a wrong one back. Attacks here match that of the loss, so that they find little "
        "says nothing about what leaks."
    )


def _said_of(closeness: list[list[float]], updates: str, fault: str) -> str:
    """What the cosines of updates tell, each with that of the photographs named and then of others."""
    if not closeness:
        why = f"({fault})" if fault else "in the time there was; give a larger budget"
        return (
            f"Whether the photographs named are behind the {updates} could not be checked {why}. If they are not, none "
            "of them is found, whatever leaks."
        )
    compared = len(closeness)
    nearest = sum(each[0] > max(each[1:]) for each in closeness)
    own = sum(each[0] for each in closeness) / compared
    # Of wrong photographs some cosines are strongly negative too, but not mostly the least.
    if own <= REVERSED and sum(each[0] < min(each[1:]) for each in closeness) >= compared / 2:
        return (
            f"What was received is the opposite of what the photographs named behind it give (cosine {own:.2f}): its sign "
            "is reversed. A difference is the weights after training minus those before, a gradient that of the loss, "
            "which a step takes off. Turn the sign, swap sent and received, or say the right --kind. Of few classes "
            "wrong labels do the same."
        )
    if nearest > compared / 2:
        return ""
    others = min(len(each) for each in closeness) - 1
    away = ""
    if own < 0:
        away = f" It points away from them (cosine {own:.2f}), as with wrong labels or with the sign reversed."
    return (
        f"Of {compared} recorded updates {nearest} are more like those of the photographs named behind them than of "
        f"{others} others with the same labels.{away} Are they the right ones, and are their labels? A number in {FACTS} "
        "is a row of --data, which of a known data set is its test images; the classes of a folder are in alphabetical "
        "order. A strong policy or augmentation can have this effect too."
    )
