"""A federation on Flower: aggregation by its strategy, faults by name, and a simulation that equals
plain steps.
"""

from dataclasses import replace

import pytest
import torch
from federations import SMALL, curious, replies, sent_by

from atsfed import Federation, answer
from atsfed.rounds import rounds

pytest.importorskip("flwr", reason="the extra atslib[federated] is not installed")
pytestmark = [pytest.mark.federated, pytest.mark.usefixtures("one_thread")]


def replaced(message, **records):
    """An answer with records of its own, None for one that is missing."""
    from flwr.app import Message, RecordDict

    content = {
        name: record
        for name, record in (dict(message.content) | records).items()
        if record is not None
    }
    other = Message(content=RecordDict(content), dst_node_id=1, message_type="train")
    return sent_by(message.metadata.src_node_id, other)


@pytest.fixture
def server(tmp_path, flower_task):
    """A server of ten clients that has sent its weights."""
    made = curious(tmp_path / "tap")
    made.tap.begin(1, made.weights)
    return made


def test_flowers_mean_of_ten_equal_participants_is_the_centralized_step(server):
    from atsfed import flower

    model = server.tap.network
    arrays, _ = server.aggregate_train(1, replies(SMALL, model))
    gradients = torch.cat(
        [answer(SMALL, model, client, 1).updates[0].gradients for client in range(10)]
    )
    sizes = torch.tensor([float(len(SMALL.shard(client))) for client in range(10)])
    step = SMALL.lr * (sizes / sizes.sum()) @ gradients
    moved = torch.cat([value.flatten() for value in flower._tensors(arrays).values()])
    before = torch.cat([value.flatten() for value in server.weights.values()])
    torch.testing.assert_close(moved, before - step, rtol=0, atol=1e-6)
    assert server.tap.clients(1) == list(range(10))


def test_an_answer_that_is_not_finite_is_left_out_by_name_and_the_round_goes_on(server):
    def broken(client, tensors):
        return {name: value / 0 if client == 3 else value for name, value in tensors.items()}

    server.aggregate_train(1, replies(SMALL, server.tap.network, broken))
    assert server.tap.clients(1) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_a_client_that_failed_is_named_and_the_round_goes_on(server):
    from flwr.app import Error, Message

    answers = replies(SMALL, server.tap.network)
    answers[3] = sent_by(106, Message(Error(code=0, reason="out of memory"), reply_to=answers[3]))
    arrays, _ = server.aggregate_train(1, answers)
    assert arrays is not None
    assert server.tap.clients(1) == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert server.tap.refused(1) == ["node 106 failed in round 1"]


def test_every_node_without_an_answer_is_named_and_the_round_goes_on(server):
    from flwr.app import Error, Message

    answers = replies(SMALL, server.tap.network)
    # Flower's server writes its own name, 1, where a node is gone; where time ran out there is no
    # answer at all.
    answers[3] = sent_by(1, Message(Error(code=3, reason="Node Unavailable"), reply_to=answers[3]))
    del answers[5]
    arrays, _ = server.aggregate_train(1, answers)
    assert arrays is not None
    assert server.tap.clients(1) == [0, 1, 2, 3, 5, 7, 8, 9]
    assert server.tap.refused(1) == [
        "node 104 did not answer in round 1",
        "node 106 did not answer in round 1",
    ]


def numbers(**values):
    from flwr.app import MetricRecord

    return MetricRecord({"num-examples": 4, "client": 6} | values)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (lambda: {"numbers": None}, "not arrays and numbers"),
        (lambda: {"arrays": None}, "not arrays and numbers"),
        (lambda: {"numbers": numbers(extra=1)}, "not arrays and numbers"),
        (lambda: {"more": numbers()}, "not arrays and numbers"),
        (lambda: {"numbers": numbers(client=2.5)}, "no such client"),
        (lambda: {"numbers": numbers(client=10)}, "no such client"),
        (
            lambda: {"numbers": numbers(**{"num-examples": 0})},
            "says it has 0 images, which must be 1 to",
        ),
        (lambda: {"numbers": numbers(**{"num-examples": 10**9})}, "says it has 1000000000 images"),
        (lambda: {"arrays": double(SMALL)}, "shared torch.float64 for"),
    ],
)
def test_an_answer_that_is_not_as_agreed_is_left_out_by_name_and_the_round_goes_on(
    server, records, words
):
    answers = replies(SMALL, server.tap.network)
    answers[3] = replaced(answers[3], **records())
    server.aggregate_train(1, answers)
    assert server.tap.clients(1) == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    (said,) = server.tap.refused(1)
    assert words in said


def double(federation):
    from atsfed import flower

    named = federation.network().named_parameters()
    return flower._record({name: value.detach().double().numpy() for name, value in named})


def test_no_node_answers_for_another_ones_client(server):
    answers = replies(SMALL, server.tap.network)  # clients 9, 8, 7 …
    server.aggregate_train(1, answers)
    kept = server.tap.observed(1, 6).gradients
    again = replies(SMALL, server.tap.network)
    again[0] = replaced(again[0], numbers=numbers(client=6))
    forged = replaced(again[3], arrays=again[5].content["arrays"])
    forged.metadata._src_node_id = 666
    server.aggregate_train(2, [forged, *again])
    assert server.tap.refused(2) == [
        "node 666 in round 2 says it is client 6, which is node 106; it is left out",
        "node 109 in round 2 says it is client 6, which is node 106; it is left out",
    ]
    assert server.tap.clients(2) == list(range(9))
    assert torch.equal(server.tap.observed(2, 6).gradients, kept)


def test_a_round_without_a_usable_answer_leaves_the_weights_and_says_so(server):
    def broken(client, tensors):
        return {name: value / 0 for name, value in tensors.items()}

    server.aggregate_train(1, replies(SMALL, server.tap.network, broken))
    assert server.tap.clients(1) == []
    assert (
        server.tap.refused(1)[-1]
        == "round 1 got no answer that can be taken; the weights stay as they are"
    )
    assert server.tap.next() == 2
    for before, after in zip(
        SMALL.network().parameters(), server.tap.model(2).parameters(), strict=True
    ):
        assert torch.equal(before, after)


def test_a_round_is_of_the_clients_that_are_there_when_patience_ends(server):
    from flwr.app import ConfigRecord

    from atsfed import flower

    class Grid:
        """Nobody at first, then two of ten."""

        asked = 0

        def get_node_ids(self):
            self.asked += 1
            return [] if self.asked == 1 else [100, 104]

    server.patience = 0.0
    arrays = flower._record({name: value.numpy() for name, value in server.weights.items()})
    messages = server.configure_train(1, arrays, ConfigRecord(), Grid())
    assert [message.metadata.dst_node_id for message in messages] == [100, 104]
    assert {message.content["config"]["server-round"] for message in messages} == {1}
    assert server.asked == {100, 104}


def test_a_federation_that_ended_goes_on_where_it_was_and_takes_the_steps_of_plain_code(tmp_path):
    from atsfed.simulation import simulate

    longer = Federation(
        dataset="shapes", model="lenet-4", clients=2, rounds=2, batch=8, defense="3-1-7"
    )
    half = simulate(replace(longer, rounds=1), tmp_path / "halves", processes=1)
    assert (half.rounds(), half.clients(1)) == ([1], [0, 1])
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "halves").glob("round-00001/*")}
    halves = simulate(longer, tmp_path / "halves", processes=1)
    assert {
        file: file.stat().st_mtime_ns for file in (tmp_path / "halves").glob("round-00001/*")
    } == before
    assert (halves.rounds(), halves.clients(2)) == ([1, 2], [0, 1])
    for number in (1, 2):
        for client in (0, 1):
            direct = answer(longer, halves.model(number), client, number).gradients
            seen = halves.observed(number, client).gradients
            torch.testing.assert_close(seen, direct, rtol=0, atol=1e-6)
    *_, (whole, _) = rounds(longer)
    for ours, theirs in zip(halves.model(3).parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
