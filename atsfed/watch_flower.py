"""Somebody's own federation on Flower as its server sees it: kept by any strategy, and read back
for attacks.
"""

import dataclasses
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from atsfed import flower
from atsfed.declared import Declared
from atsfed.tap import WORD, one_line, read_hashed
from atslib.attacks.explained import in_labels, warn
from atslib.clients.observe import attackers_view
from atslib.clients.record_files import (
    COUNT,
    NODE,
    SENT,
    answers_in,
    arrays_of,
    metrics_and_records,
    round_folder,
    write_answer,
    write_sent,
)
from atslib.clients.records import (
    Record,
    Recorded,
    client_mode,
    mode_contradiction,
    steps_contradiction,
)
from atslib.clients.view import Observed, ThreatModel
from atslib.errors import AtsError, check_kind, check_whole
from atslib.files import write_atomically
from atslib.models import Normalize, copied, shared_parameters

# isort: split
# After the module that says which extra is missing.
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy


class Watched(Strategy):
    """A strategy that does what another does, and keeps what the server sends and gets in each
    round of training.

    `Watched(FedAvg(…), "seen")` in a ServerApp, in place of `FedAvg(…)`.

    Outermost it keeps what came: `Watched(DifferentialPrivacyServerSide…(FedAvg(…)), …)`. Inside of a
    wrapper that changes answers, as Flower's server-side clipping does, it keeps what is left of
    them.

    One client does not end a round: an answer that cannot be read goes no further, and where the
    strategy refuses a round because of answers that are built unlike most others, it gets the round
    once more without these. Who was left out, and why, is in refused.txt of the round, and in
    Flower's log.

    Args:
        strategy: any of Flower's strategies, or one's own.
        folder: where it is kept, a folder per round: sent.safetensors, and a file per node that
            answered, with a hash.
    """

    def __init__(self, strategy: Strategy, folder: Path | str):
        self.strategy = strategy
        self.folder = Path(folder)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keep the weights, and send what the strategy sends."""
        write_sent(self.folder, server_round, flower._tensors(arrays))
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Keep every answer that is no error, and aggregate as the strategy does."""
        readable = []
        refused = []
        for reply in replies:
            if reply.has_error():
                readable.append(reply)
                continue
            node = reply.metadata.src_node_id
            try:
                records, numbers = _answer(reply, f"node {node} in round {server_round}")
            except AtsError as error:
                refused.append(one_line(error))
                continue
            write_answer(self.folder, server_round, node, records, numbers)
            readable.append(reply)
        result, unlike = _without_odd(
            self.strategy.aggregate_train, server_round, readable, (None, None)
        )
        self._refuse(server_round, refused + unlike)
        return result

    def _refuse(self, number: int, sentences: list[str]) -> None:
        """Say who was left out, in the log and in the round's folder."""
        for sentence in sentences:
            logging.getLogger("flwr").warning("%s", sentence)
        if sentences:
            text = "".join(f"{sentence}\n" for sentence in sentences)
            file = round_folder(self.folder, number) / "refused.txt"
            write_atomically(file, lambda partial: partial.write_text(text, encoding="utf-8"))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As the strategy does; a client whose metrics are unlike those of most is left out where
        they stop it.
        """
        result, unlike = _without_odd(
            self.strategy.aggregate_evaluate, server_round, list(replies), None
        )
        for sentence in unlike:
            logging.getLogger("flwr").warning("%s", sentence)
        return result

    def summary(self) -> None:
        """As the strategy does."""
        self.strategy.summary()


def _answer(reply: Message, who: str) -> tuple[dict[str, dict[str, Tensor]], dict]:
    """The arrays of an answer by the names of their records, and all its metrics.

    Raises:
        AtsError: an array cannot be read, or the number of examples is none.
    """
    records = {
        record: flower.read(arrays, who) for record, arrays in reply.content.array_records.items()
    }
    metrics = reply.content.metric_records.values()
    numbers = {name: value for record in metrics for name, value in record.items()}
    count = numbers.get(COUNT, 0)
    # Flower's strategies take it for the answer's weight, so that a negative one turns the mean around.
    if not isinstance(count, int | float) or not 0 <= count < math.inf:
        raise AtsError(
            f"{who} says {COUNT}={count!r}, which must be a number, at least 0; it is left out"
        )
    return records, numbers


def _without_odd(
    aggregate: Callable, number: int, replies: list[Message], nothing: object
) -> tuple[object, list[str]]:
    """What a strategy makes of all answers; if these stop it, of those that are built like most of
    them.

    Returns:
        Its result, `nothing` where nobody is left, and a sentence on each answer that was left out.
    """
    try:
        return aggregate(number, replies), []
    except (
        Exception
    ) as error:  # Flower's strategies have several for answers that do not fit each other
        built = {id(reply): _built(reply) for reply in replies if not reply.has_error()}
        usual = Counter(shape for shape in built.values() if shape is not None).most_common(1)
        odd = [
            reply
            for reply in replies
            if not reply.has_error() and (not usual or built[id(reply)] != usual[0][0])
        ]
        if not odd:
            raise
        reason = one_line(error, WORD)
    sentences = [
        f"node {reply.metadata.src_node_id} in round {number} is left out: its answer is not built as most others are, "
        f"and with it the strategy says: {reason}"
        for reply in odd
    ]
    unlike = {id(reply) for reply in odd}
    kept = [reply for reply in replies if id(reply) not in unlike]
    if all(reply.has_error() for reply in kept):
        return nothing, sentences
    return aggregate(number, kept), sentences


def _built(reply: Message) -> tuple | None:
    """How an answer is built: names, shapes and formats; None if its number of images can weigh
    nothing.
    """
    content = reply.content
    arrays = tuple(
        (
            record,
            tuple(
                sorted(
                    (name, tuple(t.shape), str(t.dtype))
                    for name, t in flower.read(each, "").items()
                )
            ),
        )
        for record, each in content.array_records.items()
    )
    metrics = []
    for record, each in content.metric_records.items():
        own = [
            (name, len(value) if isinstance(value, list) else -1)
            for name, value in sorted(each.items())
        ]
        metrics.append((record, tuple(own)))
        weight = each.get(COUNT, 1)
        if isinstance(weight, list) or not 0 < weight < math.inf:
            return None
    return arrays, tuple(metrics)


class Seen(dict[int, Observed]):
    """What a server saw of each client by its number, and in `left_out` a sentence on each answer
    that is not in it.
    """

    left_out: tuple[str, ...] = ()


def watched(
    folder: Path | str,
    number: int,
    network: nn.Module,
    *,
    shape: tuple[int, int, int],
    normalize: Normalize,
    declared: Declared,
    by: str = "",
    record: str = "",
    most: int = 10_000,
    threat: ThreatModel | None = None,
) -> Seen:
    """What a server saw of each client in a round, as every attack takes it. Labels are not known.

    What was sent is held against what was declared: `Observed.doubts` says what cannot be, and a
    warning that there is such. `atslib.reconstruct` then does the same with what its attack found.

    Args:
        folder: of a `Watched` strategy.
        number: of the round, from 1.
        network: of the federation; its weights are taken from the folder.
        shape: (C, H, W) of an image.
        normalize: what clients do to images in [0, 1] before the network gets them.
        declared: what each client sent, and how it was trained.
        by: the metric that says who a client is, a whole number; "" for Flower's number of its
            node.
        record: the name of the answers' record of arrays, where they have several, as those of
            SCAFFOLD.
        most: images that an answer may say it is of; one that says more is left out.
        threat: what the server knows; by default labels are restored, and `victim` is what moved
            running statistics and counters of batch normalization tell. Its `batch` is taken from
            the answers' metric `num-examples`.
    Returns:
        One view per client; `left_out` has a sentence on every answer that is none.
    Raises:
        AtsError: no such round, no answer that can be read, or two nodes that say they are the same
            client.
    """
    check_whole("watched: number", number, 1)
    check_whole("watched: most", most, 1)
    check_kind("watched: declared", declared, Declared, "an atsfed.Declared")
    check_kind("watched: normalize", normalize, Normalize, "an atslib.Normalize")
    check_kind("watched: network", network, nn.Module, "a torch.nn.Module")
    place = round_folder(folder, number)
    if not (place / SENT).exists():
        raise AtsError(f"{place} was not recorded")
    model = nn.Sequential(normalize, copied(network))
    sent = read_hashed(place / SENT)[0]
    _fill(model[1], sent, place / SENT)
    shared = shared_parameters(model[1]).values()
    before = torch.cat([parameter.detach().flatten() for parameter in shared])
    seen = Seen()
    left_out = []
    nodes = {}
    files = answers_in(place)
    for file in files:
        node = file.stem.removeprefix(NODE)
        try:
            client, images, arrays = _read(file, node, by, record, most, network)
        except AtsError as error:
            left_out.append(str(error))
            continue
        if client in seen:
            raise AtsError(
                f"{place}: nodes {nodes[client]} and {node} both say that they are client {client} ({by}); "
                "by='' tells clients apart by Flower's numbers of their nodes, which nobody chooses"
            )
        single = Record(f"client {client}", arrays, (), images)
        kept = Recorded(sent, declared.sent, declared.lr, declared.steps, (single,), place)
        own = threat or ThreatModel(labels="restored", victim=client_mode(kept) or "eval")
        own = dataclasses.replace(own, batch=images)
        attacked = attackers_view(model, own, tuple(shape))
        update, doubts = declared.update(attacked, before, _row(network, arrays))
        against = mode_contradiction(kept, own.victim), steps_contradiction(kept)
        doubts += in_labels(update, images, tuple(shape))[0] + tuple(filter(None, against))
        view = Observed(
            (update,), None, tuple(shape), own, declared=declared.title, doubts=(doubts,)
        )
        seen[client] = view
        nodes[client] = node
    if files and not seen:
        raise AtsError(f"{place}: none of {len(files)} answers can be read; {left_out[0]}")
    seen.left_out = tuple(left_out)
    warn([view.doubts[0] for view in seen.values()], list(seen))
    return seen


def _read(
    file: Path, node: str, by: str, record: str, most: int, network: nn.Module
) -> tuple[int, int, dict[str, Tensor]]:
    """Client, number of images and arrays of one answer; `AtsError` if it cannot be taken."""
    tensors, facts = read_hashed(file)
    numbers, records = metrics_and_records(file, facts)
    numbers = numbers | {"": int(node)} if node.lstrip("-").isdigit() else numbers
    if missing := {COUNT, by} - numbers.keys():
        there = one_line(", ".join(sorted(numbers)))
        raise AtsError(f"{file} has no metric {', '.join(sorted(missing))}; it has {there}")
    if (named := record or (records[0] if len(records) == 1 else "")) not in records:
        raise AtsError(
            f"{file} has the records of arrays {one_line(records)}; say which as `record`"
        )
    client = numbers[by]
    images = numbers[COUNT]
    for name, value, least in ((by, client, 0), (COUNT, images, 1)):
        if name and (not _is_whole(value) or value < least):
            raise AtsError(
                f"{file}: {name} is {one_line(value)}, which must be a whole number, at least {least}"
            )
    if images > most:
        raise AtsError(f"{file}: it says it is of {images:.0f} images, more than most={most}")
    own = arrays_of(named, tensors)
    _check_arrays(network, own, file)
    return int(client), int(images), own


def _is_whole(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value == int(value)
    )


def _row(network: nn.Module, tensors: dict[str, Tensor]) -> Tensor:
    """An answer's values for the parameters of a network, (P,)."""
    return torch.cat([tensors[name].double().flatten() for name in shared_parameters(network)])


def _check_arrays(network: nn.Module, tensors: dict[str, Tensor], file: Path) -> None:
    """Raise `AtsError` where names or shapes of an answer are not those of a network's parameters,
    or values not finite; buffers, such as running means, may be there or not.
    """
    parameters = {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    if odd := sorted(
        (tensors.keys() - network.state_dict().keys()) | (parameters.keys() - tensors.keys())
    ):
        what = "lacks" if odd[0] in parameters else "has"
        raise AtsError(f"{file} has not the arrays of this network: it {what} {one_line(odd[0])}")
    for name, wanted in parameters.items():
        value = tensors[name]
        if tuple(value.shape) != wanted or not value.is_floating_point():
            given = f"{tuple(value.shape)} of {value.dtype}"
            raise AtsError(
                f"{file} has not the arrays of this network: {name} is {given}, not {wanted} of floats"
            )
        if not value.isfinite().all():
            raise AtsError(f"{file} has values of {name} that are nan or infinite")


def _fill(network: nn.Module, tensors: dict[str, Tensor], file: Path) -> None:
    """Give a network the tensors of a file.

    Raises:
        AtsError: they are not of its names and shapes, or not finite.
    """
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        reason = one_line(str(error).splitlines()[1].strip())
        raise AtsError(f"{file} has not the arrays of this network: {reason}") from None
    if bad := [
        name
        for name, value in tensors.items()
        if value.is_floating_point() and not value.isfinite().all()
    ]:
        raise AtsError(f"{file} has values of {one_line(bad[0])} that are nan or infinite")
