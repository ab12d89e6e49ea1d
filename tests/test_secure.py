"""Secure aggregation on Flower: the mean is that of the answers, and nothing of a single one
reaches the server.
"""

import copy
import dataclasses
import types

import pytest
import torch
from checks import refused
from federations import sent_by

from atsfed import Federation, Tap, answer
from atslib import GradientMatching, reconstruct
from atslib.clients.sums import summed
from atslib.clients.updates import LocalTraining
from atslib.rng import rng

pytest.importorskip("flwr", reason="the extra atslib[federated] is not installed")
pytestmark = [pytest.mark.federated, pytest.mark.usefixtures("one_thread")]
THREE = Federation(dataset="shapes", model="lenet-4", clients=3, rounds=2, alpha=1.0, fraction=0.02)


class Line:
    """Carries Flower's messages between a server and participants in one process, and keeps what
    goes to the server.

    `lost` says which answers do not arrive: of which client, in which stage.
    """

    def __init__(self, federation, lost=()):
        from flwr.app import Context, RecordDict

        from atsfed.secure import client_app

        self.app, self.lost, self.seen = client_app(federation), set(lost), []
        self.run = types.SimpleNamespace(run_id=1)
        self.contexts = {
            100 + client: Context(1, 100 + client, {"partition-id": client}, RecordDict(), {})
            for client in range(federation.clients)
        }

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        from flwr.app import Error, Message

        replies = []
        for message in messages:
            node, content = (
                message.metadata.dst_node_id,
                copy.deepcopy(message.content),
            )  # the protocol changes its own
            stage = content["secaggplus_configs"]["stage"]
            sent = Message(content=content, dst_node_id=node, message_type="train")
            if (node - 100, stage) in self.lost:
                replies.append(sent_by(node, Message(Error(code=0, reason="gone"), reply_to=sent)))
            else:
                replies.append(sent_by(node, self.app(sent, self.contexts[node])))
                self.seen.append(copy.deepcopy(replies[-1].content))
        return replies


@pytest.fixture
def serve(tmp_path, flower_task):
    """Run a federation over a `Line`: its tap and the line."""
    from flwr.app import Context, RecordDict

    from atsfed.secure import server_app

    def run(federation, lost=()):
        line = Line(federation, lost)
        server_app(federation, tmp_path / "tap", patience=60)(
            line, Context(1, 1, {}, RecordDict(), {})
        )
        return Tap(tmp_path / "tap", federation), line

    return run


def assert_sum(tap, number, clients):
    """The tap's mean is that of the clients' answers to the weights that they got, up to the
    protocol's rounding.
    """
    from atsfed.secure import STEP

    f, model = tap.federation, tap.model(number)
    direct, seen = (
        summed([answer(f, model, client, number) for client in clients]),
        tap.observed(number),
    )
    rounding = 2 * STEP * len(clients) * f.most / direct.threat.batch
    assert rounding < 0.01 * float(direct.gradients.abs().max())
    torch.testing.assert_close(seen.gradients, direct.gradients, rtol=0, atol=rounding)
    assert (seen.updates[0].local, seen.threat, seen.shape) == (
        direct.updates[0].local,
        direct.threat,
        direct.shape,
    )
    assert tap.clients(number) == clients


@pytest.mark.parametrize(
    "changes", [{}, {"batch": 4}, {"batch": 4, "local": LocalTraining(epochs=2, lr=0.1)}]
)
def test_the_sum_is_the_weighted_mean_of_the_answers(serve, changes):
    federation = dataclasses.replace(THREE, **changes)
    tap, _ = serve(federation)
    assert tap.rounds() == [1, 2]
    for number in (1, 2):
        assert_sum(tap, number, [0, 1, 2])
        assert not tap.refused(number)
    step = 1.0 if federation.local else -federation.lr
    first, second = (
        torch.cat([p.flatten() for p in tap.model(number).parameters()]) for number in (1, 2)
    )
    torch.testing.assert_close(
        second, first + step * tap.observed(1).gradients[0], rtol=0, atol=1e-6
    )


def test_no_single_answer_is_kept_or_reaches_the_server(serve):
    tap, line = serve(THREE)
    with refused("client 1 in round 2: only the sum was seen; leave the client out to get it"):
        tap.observed(2, 1)
    assert {file.name for file in tap.folder.rglob("*.safetensors")} == {
        "sent.safetensors",
        "summed.safetensors",
    }
    masked = [content for content in line.seen if "masked_params" in content["secaggplus_configs"]]
    assert len(masked) == 6
    assert not any(record for content in masked for record in content.array_records.values())


def test_every_attack_runs_on_the_sum(serve):
    tap, _ = serve(dataclasses.replace(THREE, batch=2, rounds=1))
    found = reconstruct(tap.observed(1), GradientMatching(steps=2), rng=rng(0))
    assert found.images.shape == (6, 3, 32, 32)


def test_the_sum_of_a_plain_tap_is_that_of_its_answers(tmp_path):
    tap = Tap(tmp_path, THREE)
    tap.begin(1, dict(tap.network.named_parameters()))
    for client in range(3):
        seen = answer(THREE, tap.network, client, 1)
        at, shared = 0, {}
        for name, value in tap.network.named_parameters():
            shared[name], at = (
                seen.gradients[0, at : at + value.numel()].view_as(value),
                at + value.numel(),
            )
        tap.record(1, client, shared, seen.threat.batch)
    assert torch.equal(
        tap.observed(1).gradients, summed([tap.observed(1, k) for k in range(3)]).gradients
    )


def test_a_client_that_is_lost_on_the_way_is_named_and_the_sum_is_of_the_others(serve):
    tap, _ = serve(dataclasses.replace(THREE, rounds=1), lost=[(1, "collect_masked_vectors")])
    assert_sum(tap, 1, [0, 2])
    assert tap.refused(1) == ["node 101 is not in the sum of round 1"]


def test_where_too_few_stay_there_is_no_sum_and_the_weights_stay(serve):
    tap, _ = serve(THREE, lost=[(client, "collect_masked_vectors") for client in (1, 2)])
    assert tap.rounds() == []
    assert tap.refused(1) == [
        "too few clients stayed in round 1 for a sum; the weights stay as they are"
    ]
    for before, after in zip(THREE.network().parameters(), tap.model(2).parameters(), strict=True):
        assert torch.equal(before, after)


def test_a_server_that_is_started_again_goes_on_with_the_next_round(serve):
    first, _ = serve(dataclasses.replace(THREE, rounds=1))
    kept = first.observed(1).gradients
    tap, line = serve(THREE)
    assert sum("masked_params" in content["secaggplus_configs"] for content in line.seen) == 3
    assert torch.equal(tap.observed(1).gradients, kept)
    assert_sum(tap, 2, [0, 1, 2])


def test_a_sum_with_images_that_no_client_has_is_left_out(tmp_path):
    tap = Tap(tmp_path, THREE)
    zeros = {name: torch.zeros_like(value) for name, value in tap.network.named_parameters()}
    for images, words in (
        ({0: 3, 3: 3}, "it has client 3 with 3 images"),
        ({0: 3, 1: 10**9}, "client 1 with 1000"),
    ):
        with refused("the sum of round 1", words):
            tap.record_sum(1, zeros, images)
    assert tap.rounds() == []


def test_one_client_has_no_secure_aggregation(tmp_path):
    from atsfed.secure import server_app

    with refused("Federation.clients=1: secure aggregation is of 2 to 1023"):
        server_app(dataclasses.replace(THREE, clients=1), tmp_path)


def test_a_simulation_with_secure_aggregation_gives_the_sum(tmp_path):
    from atsfed.simulation import simulate

    federation = dataclasses.replace(THREE, batch=4, rounds=1)
    assert_sum(simulate(federation, tmp_path / "tap", processes=2, secure=True), 1, [0, 1, 2])


def test_two_nodes_that_claim_one_client_make_no_sum(serve, monkeypatch):
    from atsfed import secure

    fit = secure.Participant.fit

    def liar(self, parameters, config):
        arrays, images, metrics = fit(self, parameters, config)
        return arrays, images, metrics | {"client": min(1, self.client)}

    monkeypatch.setattr(secure.Participant, "fit", liar)
    tap, _ = serve(dataclasses.replace(THREE, rounds=1))
    (said,) = tap.refused(1)
    assert "two nodes say they are the same client" in said
    assert tap.rounds() == []
