"""A federation on Flower: aggregation by its strategy, faults by name, and a simulation that equals plain steps."""

import pytest
import torch
from test_federated import SMALL, shared

from atslib.clients.federated import Federation, Tap, answer

pytest.importorskip("flwr", reason="the extra atslib[federated] is not installed")
pytestmark = pytest.mark.usefixtures("one_thread")


def replies(federation, model, change=None):
    """What Flower hands its strategy: an answer of every client, the last ones first."""
    from flwr.app import Message, MetricRecord, RecordDict

    from atslib.clients.federated import flower

    made = []
    for client in reversed(range(federation.clients)):
        seen = answer(federation, model, client, 1)
        tensors = shared(seen, model) if change is None else change(client, shared(seen, model))
        arrays = flower._record({name: value.numpy() for name, value in tensors.items()})
        numbers = MetricRecord({"num-examples": seen.threat.batch, "client": client})
        content = RecordDict({flower.ARRAYS: arrays, flower.NUMBERS: numbers})
        made.append(Message(content=content, dst_node_id=client, message_type="train"))
    return made


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server of ten clients that has sent its weights."""
    from flwr.supercore.task_identity import TaskIdentity

    from atslib.clients.federated import flower

    for name in ("_run_id", "_task_id", "_node_id"):  # messages carry them; a running app has them from Flower
        monkeypatch.setattr(TaskIdentity, name, 1)
    made = flower.Curious(SMALL, Tap(tmp_path / "tap", SMALL))
    made.weights = {name: value.detach().clone() for name, value in made.tap.network.named_parameters()}
    return made


def test_flowers_mean_of_ten_equal_participants_is_the_centralized_step(server):
    from atslib.clients.federated import flower

    model = server.tap.network
    arrays, _ = server.aggregate_train(1, replies(SMALL, model))
    gradients = torch.cat([answer(SMALL, model, client, 1).updates[0].gradients for client in range(10)])
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


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_simulation_takes_the_steps_that_plain_code_takes(tmp_path):
    from atslib.clients.federated.flower import simulate

    federation = Federation(dataset="shapes", model="lenet-4", clients=2, rounds=2, batch=8)
    tap = simulate(federation, tmp_path / "tap", processes=1)
    model = federation.network()
    for number in (1, 2):
        step = torch.cat([answer(federation, model, client, number).updates[0].gradients for client in (0, 1)]).mean(0)
        for client in (0, 1):
            direct = answer(federation, model, client, number)
            torch.testing.assert_close(tap.observed(number, client).gradients, direct.gradients, rtol=0, atol=1e-6)
        with torch.no_grad():
            at = 0
            for parameter in model.parameters():
                parameter -= federation.lr * step[at : at + parameter.numel()].view_as(parameter)
                at += parameter.numel()
    for ours, theirs in zip(tap.model(3).parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
