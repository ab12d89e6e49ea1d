"""Answers of strangers, hundreds of wrong ones: the round goes on with the others, and each client
is named.
"""

import copy
import io
import json
import random
import zipfile

import numpy as np
import pytest
import torch
from federations import SMALL, Nodes, curious, replies, sent_by

pytest.importorskip("flwr", reason="the extra atslib[federated] is not installed")
pytestmark = [pytest.mark.federated, pytest.mark.usefixtures("one_thread")]
WRONG, AT_ONCE = 540, 6  # answers; of ten in a round


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def with_head(text, body=b"", version=(1, 0)):
    """Bytes of NumPy's format with any text in their head."""
    head = text.encode("latin1")
    size = len(head).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + size + head + body


def archive():
    """A whole archive, which unpacks to a thousand times its size."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", npy(np.zeros(100_000, np.float32)))
    return stream.getvalue()


def noise(draw, array):
    return draw.randbytes(draw.randrange(200))


# Each makes bytes of an array (9 floats in the place of 10 will do for none of them) from those of
# a right one.
BYTES = {
    "archive": lambda draw, array: archive(),
    "begins as an archive": lambda draw, array: b"PK\x03\x04" + draw.randbytes(draw.randrange(60)),
    "noise": noise,
    "cut": lambda draw, array: npy(array)[: draw.randrange(len(npy(array)))],
    "longer": lambda draw, array: npy(array) + draw.randbytes(1 + draw.randrange(9)),
    "text": lambda draw, array: npy(np.full(array.shape, "a")),
    "bytes": lambda draw, array: npy(np.full(array.shape, b"a")),
    "objects": lambda draw, array: npy(np.full(array.shape, None, dtype=object)),
    "fields": lambda draw, array: npy(np.zeros(array.shape, [("a", "<f4"), ("b", "<i8")])),
    "dates": lambda draw, array: npy(np.zeros(array.shape, "M8[s]")),
    "complex": lambda draw, array: npy(array.astype(np.complex64)),
    "half": lambda draw, array: npy(array.astype(np.float16)),
    "double": lambda draw, array: npy(array.astype(np.float64)),
    "whole": lambda draw, array: npy(array.astype(np.int32)),
    "extended": lambda draw, array: npy(array.astype(np.longdouble)),
    "flat": lambda draw, array: npy(array.reshape(-1)[None, None]),
    "no shape": lambda draw, array: npy(np.float32(1.0)),
    "none": lambda draw, array: npy(array.reshape(-1)[:0]),
    "nan": lambda draw, array: npy(array * np.float32("nan")),
    "infinite": lambda draw, array: npy(np.full_like(array, -np.inf)),
    "version": lambda draw, array: with_head(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}\n", b"1234", (9, 9)
    ),
    "terabytes": lambda draw, array: with_head(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (10**12,)}\n"
    ),
    "terabytes in digits": lambda draw, array: with_head(
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10 ** draw.randrange(12, 40)},)}}\n",
        b"1234",
    ),
    "less than nothing": lambda draw, array: with_head(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -10)}\n", bytes(40)
    ),
    "nothing of much": lambda draw, array: with_head(
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': (0, {10**30})}}\n"
    ),
    "deep head": lambda draw, array: with_head("(" * 4000 + ")" * 4000),
    "head that is no dict": lambda draw, array: with_head("[1, 2, 3]\n", bytes(40)),
    "head that is code": lambda draw, array: with_head("__import__('os').abort()\n", bytes(40)),
    "old head": lambda draw, array: with_head(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (10L,)}\n", bytes(40)
    ),
    "endless head": lambda draw, array: with_head(" " * 60_000),
}


def spoiled(draw, reply, kind):
    """An answer with one thing wrong."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

    content = dict(copy.deepcopy(reply.content))
    arrays = dict(content["arrays"])
    name = draw.choice(list(arrays))
    numbers = dict(content["numbers"])
    where, _, what = kind.partition(": ")
    if where == "bytes":
        data = BYTES[what](draw, arrays[name].numpy())
        arrays[name] = Array(arrays[name].dtype, tuple(arrays[name].shape), "numpy.ndarray", data)
    elif where == "kind":
        arrays[name] = Array(arrays[name].dtype, tuple(arrays[name].shape), what, arrays[name].data)
    elif where == "name":
        arrays[what.encode().decode("unicode_escape")] = arrays.pop(name)
    elif where == "more":
        arrays[what] = arrays[name]
    elif where == "less":
        del arrays[name]
    elif where == "number":
        numbers |= json.loads(what)
    content["arrays"], content["numbers"] = ArrayRecord(arrays), MetricRecord(numbers)
    if where == "record":
        extra = {
            "two of arrays": {"control": ArrayRecord(arrays)},
            "arrays under another name": {"weights": ArrayRecord(arrays)},
            "config": {"config": ConfigRecord({"a": "b"})},
            "two of numbers": {"more": MetricRecord(numbers)},
        }
        gone = {
            "arrays under another name": ["arrays"],
            "no arrays": ["arrays"],
            "no numbers": ["numbers"],
            "nothing": ["arrays", "numbers"],
        }
        content |= extra.get(what, {})
        for name in gone.get(what, []):
            del content[name]
        if what == "swapped":
            content = {"arrays": content["numbers"], "numbers": content["arrays"]}
    return sent_by(
        reply.metadata.src_node_id,
        Message(content=RecordDict(content), dst_node_id=1, message_type="train"),
    )


RECORDS = (
    "two of arrays",
    "arrays under another name",
    "config",
    "two of numbers",
    "no arrays",
    "no numbers",
    "nothing",
)
NUMBERS = (
    '{"client": -1}', '{"client": 10}', '{"client": 2.5}', '{"client": [1]}', '{"client": 1e300}', '{"num-examples": 0}',
    '{"num-examples": -3}', '{"num-examples": 10000000}', '{"num-examples": 1000000000000000000}',
    '{"num-examples": 1.5}', '{"num-examples": [1, 2]}', '{"num-examples": NaN}', '{"extra": 1}',
)  # fmt: skip
NAMES = (r"\n\nnode 3 failed in round 1", r"a\u2028b", "x" * 5000, r"\x1b[2J", r"\ud800", "")
KINDS = (
    *[f"bytes: {name}" for name in BYTES], *[f"record: {name}" for name in (*RECORDS, "swapped")],
    *[f"number: {text}" for text in NUMBERS], *[f"name: {name}" for name in NAMES],
    "kind: pickle", "kind: ", "more: of another network", "less: ",
)  # fmt: skip
# With these Flower's own strategy goes on, as it would without anyone watching.
ITS_OWN = (
    "nan", "infinite", "half", "double", "whole", "client", "1.5", "10000000", "1000000000000000000", "no shape", "config",
)  # fmt: skip


@pytest.fixture
def ours(flower_task):
    return replies(SMALL, SMALL.network())


def rounds(draw, ours, kinds):
    """Rounds in which six of ten answers are wrong: its number, all answers and the kind of each
    wrong one by node.
    """
    wrong = [draw.choice(kinds) if i >= len(kinds) else kinds[i] for i in range(WRONG)]
    for number, first in enumerate(range(0, WRONG, AT_ONCE), 1):
        places = draw.sample(range(10), AT_ONCE)
        answers = [copy.deepcopy(reply) for reply in ours]
        named = {}
        for place, kind in zip(places, wrong[first : first + AT_ONCE], strict=True):
            answers[place] = spoiled(draw, answers[place], kind)
            named[answers[place].metadata.src_node_id] = kind
        yield number, answers, named


@pytest.mark.filterwarnings("error")
def test_of_540_wrong_answers_each_is_left_out_by_name_and_every_round_goes_on(ours, tmp_path):
    server = curious(tmp_path / "tap")
    tap = server.tap
    server.nodes = {client: 100 + client for client in range(10)}
    tried = 0
    for number, answers, named in rounds(random.Random(0), ours, KINDS):
        tap.begin(number, server.weights)
        arrays, _ = server.aggregate_train(number, answers)
        assert arrays.keys() == server.weights.keys()
        said = tap.refused(number)
        assert len(said) == AT_ONCE, (said, named)
        for node, kind in named.items():
            about = [
                line for line in said if line.startswith((f"node {node} ", f"client {node - 100} "))
            ]
            assert len(about) == 1, (kind, said)
            assert about[0].endswith("it is left out"), (kind, about)
            assert len(about[0]) < 1000, kind
        assert tap.clients(number) == sorted({*range(10)} - {node - 100 for node in named})
        tried += len(named)
    assert tried == WRONG
    assert all(torch.isfinite(value).all() for value in tap.model(number + 1).state_dict().values())


def test_a_watched_strategy_goes_on_with_the_others_in_each_of_them(ours, tmp_path, monkeypatch):
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    from atsfed.watch_flower import Watched

    monkeypatch.setattr(
        "logging.Logger.isEnabledFor", lambda *_: False
    )  # Flower's log of a hundred rounds

    watching = Watched(FedAvg(fraction_evaluate=0.0), tmp_path)
    sent = ArrayRecord({name: value.detach() for name, value in SMALL.network().named_parameters()})
    kinds = [kind for kind in KINDS if not any(word in kind for word in ITS_OWN)]
    for number, answers, named in rounds(random.Random(1), ours, kinds):
        watching.configure_train(number, sent, ConfigRecord(), Nodes())
        arrays, metrics = watching.aggregate_train(number, answers)
        assert arrays.keys() == sent.keys(), named
        assert "client" in metrics
        said = (
            (tmp_path / f"round-{number:05d}" / "refused.txt")
            .read_text(encoding="utf-8")
            .splitlines()
        )
        for node, kind in named.items():
            about = [line for line in said if line.startswith(f"node {node} in round {number} ")]
            assert len(about) == 1, (kind, said)
        assert len(said) == AT_ONCE


@pytest.mark.parametrize("order", [">f4", "<f4"])
@pytest.mark.parametrize("by_columns", [False, True])
def test_an_array_of_another_order_of_bytes_or_by_columns_is_read_as_what_it_is(order, by_columns):
    from flwr.app import Array, ArrayRecord

    from atsfed.flower import read

    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    array = np.asarray(values.astype(order), order="F" if by_columns else "C")
    tensor = read(
        ArrayRecord({"a": Array("float32", (2, 3, 4), "numpy.ndarray", npy(array))}), "node 1"
    )["a"]
    assert tensor.dtype == torch.float32
    assert tensor.tolist() == values.tolist()


def test_a_reply_of_two_records_of_arrays_is_kept_whole_and_read_by_name(ours, tmp_path):
    """What SCAFFOLD sends: weights and a control variate; its strategy takes both."""
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    import atslib
    from atsfed import Declared
    from atsfed.watch_flower import Watched, watched

    class Scaffold(FedAvg):
        def aggregate_train(self, server_round, replies):
            self.got = [set(reply.content.array_records) for reply in replies]
            return None, None

    watching = Watched(Scaffold(), tmp_path)
    network = SMALL.network()
    sent = ArrayRecord(
        {name.removeprefix("1."): value.detach() for name, value in network.named_parameters()}
    )
    from atslib.checkpoints import write_tensors

    write_tensors(tmp_path / "round-00001" / "sent.safetensors", network[1].state_dict(), {})
    assert ConfigRecord is not None
    for reply in ours:
        arrays = {name.removeprefix("1."): array for name, array in reply.content["arrays"].items()}
        reply.content["arrays"] = ArrayRecord(arrays)
        reply.content["control"] = ArrayRecord(
            {name: copy.deepcopy(array) for name, array in arrays.items()}
        )
    watching.aggregate_train(1, ours)
    assert watching.strategy.got == [{"arrays", "control"}] * 10
    assert not (tmp_path / "round-00001" / "refused.txt").exists()
    assert sent.keys() == ours[0].content["arrays"].keys()
    how = {
        "shape": (3, 32, 32),
        "normalize": network[0],
        "declared": Declared(sent="gradient"),
        "by": "client",
    }
    seen = watched(tmp_path, 1, network[1], record="arrays", **how)
    assert sorted(seen) == list(range(10))
    with pytest.raises(atslib.AtsError, match="has the records of arrays"):
        watched(tmp_path, 1, network[1], **how)
