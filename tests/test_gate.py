"""The gate at the client: a mod of Flower that attacks the client's own update before it is sent."""

import json
import logging
from types import SimpleNamespace

import pytest
import torch
from federations import Nodes
from torch import nn

import atslib
from atslib.data.images import scaled
from atslib.errors import AtsError

pytestmark = [pytest.mark.federated, pytest.mark.usefixtures("flower_task")]

flwr = pytest.importorskip("flwr")
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict  # noqa: E402

from atsfed.gate import HELD_BACK, gate  # noqa: E402

SIDE, LR = 12, 0.01


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 10))


def photographs(context=None, count=2):
    images = scaled(atslib.load("shapes", "test"), SIDE, "small")
    return images.pixels[:count], images.labels[:count]


def others(context=None):
    images = scaled(atslib.load("shapes", "test"), SIDE, "small")
    return images.pixels[2:300], images.labels[2:300]


def asked(number):
    arrays = ArrayRecord(network().state_dict())
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": number})})
    return Message(content=content, dst_node_id=1, message_type="train")


def answer(count=2, difference=False, loss=nn.functional.cross_entropy):
    """A client that takes one step on its photographs."""

    def app(message, context):
        model = network()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        pixels, labels = photographs(count=count)
        loss(model((pixels / 255 - 0.5) / 0.25), labels).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= LR * parameter.grad
        after = {
            name: value - difference * before[name] for name, value in model.state_dict().items()
        }
        content = RecordDict(
            {"arrays": ArrayRecord(after), "metrics": MetricRecord({"num-examples": count})}
        )
        return Message(content=content, reply_to=message)

    return app


def passed(mod, number=1, count=2, difference=False):
    """The arrays that leave the client; None where an error does."""
    reply = mod(asked(number), SimpleNamespace(), answer(count, difference))
    if reply.has_error():
        assert reply.error.code == HELD_BACK
        assert reply.error.reason.startswith("gate: held back")
        return None
    assert reply.content["metrics"]["num-examples"] == count
    return reply.content["arrays"].to_torch_state_dict()


def made(tmp_path, **options):
    given = {
        "limit": 0.4,
        "lr": LR,
        "steps": 1,
        "normalize": ([0.5] * 3, [0.25] * 3),
        "folder": tmp_path,
    }
    given |= {"attack_steps": 40, "photographs": photographs, "others": others} | options
    return gate(network, given.pop("photographs"), **given)


def lines(tmp_path):
    return [json.loads(line) for line in (tmp_path / "gate.jsonl").read_text().splitlines()]


def one(context):
    return photographs(count=1)


class Nothing:
    """An attack that returns grey images."""

    def run(self, seen, *, rng):
        return torch.full((len(seen) * seen.threat.batch, *seen.shape), 0.5)


class Truth:
    """An attack that is told the photographs: what a perfect one would find."""

    def run(self, seen, *, rng):
        pixels, _ = photographs(count=2)
        rows = torch.arange(len(seen) * seen.threat.batch) % 2
        return pixels[rows] / 255


def test_an_update_that_tells_too_much_does_not_leave(tmp_path, caplog):
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.INFO, logger="flwr"):
        assert passed(made(tmp_path, attack=Truth())) is None
    (figure,) = lines(tmp_path)
    assert (figure["round"], figure["images"], figure["found"], figure["sent"]) == (1, 2, 2, False)
    assert "2 of 2 photographs are found, and at most 40.0% may be" in caplog.text


@pytest.mark.parametrize("kind", ["weights", "difference"])
def test_a_real_attack_holds_back_the_update_of_a_single_photograph(tmp_path, kind):
    mod = made(tmp_path, photographs=one, kind=kind, attack="annealed-resnet")
    sent = passed(mod, count=1, difference=kind == "difference")
    (figure,) = lines(tmp_path)
    assert figure["found"] == 1
    assert not figure["sent"]
    assert sent is None


def smoothed(scores, labels):
    """A loss that is not the plain cross-entropy."""
    return nn.functional.cross_entropy(scores, labels, label_smoothing=0.3)


def test_a_client_that_trains_with_another_loss_says_so(tmp_path):
    mod = made(tmp_path, photographs=one, loss=smoothed, attack="annealed-resnet")
    mod(asked(1), SimpleNamespace(), answer(1, loss=smoothed))
    (figure,) = lines(tmp_path)
    assert (figure["found"], figure["sent"]) == (1, False)
    for loss, words in (
        (lambda scores, labels: 0.0, "one number that depends on the scores"),
        (nn.functional.multi_margin_loss, "no second derivative"),
    ):
        with pytest.raises(AtsError, match=words):
            made(tmp_path, loss=loss)(asked(1), SimpleNamespace(), answer())


def test_an_update_in_which_nothing_is_found_goes_through_as_it_is_unless_the_gate_is_strict(
    tmp_path,
):
    raw = answer()(asked(1), None).content["arrays"].to_torch_state_dict()
    for strict in (False, True):
        sent = passed(made(tmp_path, attack=Nothing(), strict=strict))
        assert (sent is None) == strict
        assert strict or all(torch.equal(sent[name], raw[name]) for name in raw)
    assert all("cannot tell" in figure["why"] for figure in lines(tmp_path))


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(3), nn.BatchNorm1d(8)], ids=["maps", "rows"])
def test_a_client_in_train_mode_is_told_by_its_buffers(tmp_path, monkeypatch, layer):
    from atsfed import gate as gated

    def normalized():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if isinstance(layer, nn.BatchNorm2d):
                return nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * SIDE**2, 10))
            layers = nn.Linear(3 * SIDE**2, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)
            return nn.Sequential(nn.Flatten(), *layers)

    def training(mode, message, context):
        model = normalized().train(mode)
        pixels, labels = photographs(count=2)
        nn.functional.cross_entropy(model((pixels / 255 - 0.5) / 0.25), labels).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= LR * parameter.grad
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": 2}),
            }
        )
        return Message(content=content, reply_to=message)

    modes = []
    real = gated.observed
    monkeypatch.setattr(
        gated, "observed", lambda *args: modes.append(args[4].victim) or real(*args)
    )
    given = {"limit": 0.4, "lr": LR, "normalize": ([0.5] * 3, [0.25] * 3), "others": others}
    for mode, steps in ((True, 1), (False, 1), (True, 7)):
        folder = tmp_path / f"{mode} {steps}"
        mod = gate(
            normalized,
            photographs,
            steps=steps,
            attack=Nothing(),
            folder=folder,
            strict=True,
            **given,
        )
        content = RecordDict({
            "arrays": ArrayRecord(normalized().state_dict()),
            "config": ConfigRecord({"server-round": 1}),
        })  # fmt: skip
        asked = Message(content=content, dst_node_id=1, message_type="train")
        mod(asked, SimpleNamespace(), lambda *each, mode=mode: training(mode, *each))
        (figure,) = lines(folder)
        assert ("went up by 1" in figure["why"]) == (steps == 7)
        assert not figure["sent"]
    assert modes == ["train", "eval", "train"]


def test_rounds_between_are_not_attacked_but_after_one_that_was_held_back(tmp_path):
    mod = made(tmp_path, attack=Truth(), every=3)
    for number in range(1, 6):
        passed(mod, number)
    assert [figure["found"] for figure in lines(tmp_path)] == [None, None, 2, 2, 2]
    assert [figure["sent"] for figure in lines(tmp_path)] == [True, True, False, False, False]


def test_more_images_than_it_takes_are_not_attacked_and_said(tmp_path):
    raw = answer()(asked(1), None).content["arrays"].to_torch_state_dict()
    sent = passed(made(tmp_path, most=1))
    assert all(torch.equal(sent[name], raw[name]) for name in raw)
    assert "2 images are behind it, and the gate takes at most 1" in lines(tmp_path)[0]["why"]
    passed(made(tmp_path, most=1, strict=True))
    assert not lines(tmp_path)[1]["sent"]


def test_a_photograph_alone_is_not_found_among_nobody(tmp_path):
    with pytest.raises(atslib.AtsError, match="2 photographs are too few"):
        passed(made(tmp_path, attack=Truth(), others=None))


def listed(message):
    """The same with numbers for names, as a NumPyClient's app sends and gets arrays."""
    (name,) = message.content.array_records
    arrays = message.content[name].to_numpy_ndarrays()
    message.content[name] = ArrayRecord(arrays)
    return message


def test_arrays_without_names_are_those_of_the_state_dict_in_order(tmp_path):
    def app(message, context):
        return listed(answer()(asked(1), context))

    for attack, leaves in ((Truth(), False), (Nothing(), True)):
        reply = made(tmp_path, attack=attack)(listed(asked(1)), SimpleNamespace(), app)
        assert reply.has_error() != leaves
    assert [figure["found"] for figure in lines(tmp_path)] == [2, 0]


def test_an_answer_of_another_network_is_one_sentence(tmp_path):
    def app(message, context):
        content = RecordDict({"arrays": ArrayRecord({"stem.weight": torch.ones(2)})})
        return Message(content=content, reply_to=message)

    with pytest.raises(AtsError, match="what this client sends is of another network"):
        made(tmp_path)(asked(1), SimpleNamespace(), app)


@pytest.mark.parametrize("stage", ["setup", "collect"])
def test_secure_aggregation_is_one_sentence(tmp_path, stage):
    message = asked(1)
    message.content["secaggplus_configs"] = ConfigRecord({"stage": stage})
    if stage == "setup":
        del message.content["arrays"]
    with pytest.raises(AtsError, match="secaggplus_mod adds masks to each update"):
        made(tmp_path)(message, SimpleNamespace(), answer())


@pytest.mark.parametrize("wrapped", ["fixed", "adaptive"])
def test_a_round_in_which_all_is_held_back_goes_on_under_flowers_differential_privacy(
    tmp_path, wrapped
):
    from flwr.serverapp import strategy

    kind = {
        "fixed": strategy.DifferentialPrivacyServerSideFixedClipping,
        "adaptive": strategy.DifferentialPrivacyServerSideAdaptiveClipping,
    }[wrapped]
    clip = {"clipping_norm": 1.0} if wrapped == "fixed" else {"clipped_count_stddev": 1.0}
    inner = strategy.FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    server = kind(inner, noise_multiplier=0.1, num_sampled_clients=1, **clip)
    mod = made(tmp_path, attack=Truth())
    arrays = ArrayRecord(network().state_dict())
    config = ConfigRecord({"server-round": 1})
    (message,) = server.configure_train(1, arrays, config, Nodes(1, 1))
    reply = mod(message, SimpleNamespace(), answer())
    assert reply.has_error()
    assert server.aggregate_train(1, [reply]) == (None, None)


@pytest.mark.parametrize("mod", ["fixedclipping_mod", "adaptiveclipping_mod"])
def test_flowers_own_mods_pass_an_answer_on_that_was_held_back(tmp_path, mod):
    """The gate behind a mod that clips: what is held back is no answer, and nothing is divided."""
    from flwr.clientapp import mod as mods

    key = {"fixedclipping_mod": "clipping_norm", "adaptiveclipping_mod": "clipping_norm"}[mod]
    message = asked(1)
    message.content["config"][key] = 1.0
    gated = made(tmp_path, attack=Truth())
    reply = getattr(mods, mod)(message, SimpleNamespace(), lambda m, c: gated(m, c, answer()))
    assert reply.has_error()


def test_other_messages_pass_untouched(tmp_path):
    message = Message(content=RecordDict({}), dst_node_id=1, message_type="evaluate")
    mod = made(tmp_path, attack=Truth())
    reply = mod(
        message, SimpleNamespace(), lambda m, c: Message(content=RecordDict({}), reply_to=m)
    )
    assert not reply.content
    assert not (tmp_path / "gate.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [({"limit": 5}, "limit=5"), ({"lr": 0}, "lr=0"), ({"every": 0}, "every=0"), ({"kind": "sum"}, "'sum' is unknown"),
     ({"attack": "strong"}, "'strong' is unknown")],
)  # fmt: skip
def test_wrong_settings_are_refused_at_once(tmp_path, options, words):
    with pytest.raises(atslib.AtsError, match=words):
        made(tmp_path, **options)
