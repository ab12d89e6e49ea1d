"""What clients are said to send: the right words give the right picture, wrong ones the sentence
that they are wrong.
"""

import copy
import dataclasses
import json
import warnings

import pytest
import torch
import torch.nn.functional as F
from checks import flip_a_bit, refused
from federations import Nodes, sent_by
from torch import nn

import atslib
from atsfed import Declared
from atslib import reconstruct
from atslib.attacks.explained import NotExplainedWarning

pytest.importorskip("flwr", reason="the extra atslib[federated] is not installed")
pytestmark = [pytest.mark.federated, pytest.mark.usefixtures("one_thread")]
SHAPE = {"shape": (3, 32, 32), "normalize": atslib.Normalize([0.5] * 3, [0.5] * 3)}
LR = 0.02
NOT_EXPLAINED = "this update is not explained by what was declared"
RIGHT = {
    "sgd": Declared(lr=LR, momentum=0.9),
    "adamw": Declared(optimizer="adamw", lr=1e-3, weight_decay=0.01),
    "adam": Declared(optimizer="adam", lr=1e-3),
    "gradient": Declared(sent="gradient"),
    "difference": Declared(sent="difference", lr=LR),
}
# What the same attack makes of one image on average: 17.6 dB of SGD's weights, 14.2 of AdamW's;
# grey alone has 7.
LEAST = {"sgd": 15, "adamw": 12, "adam": 12, "gradient": 15, "difference": 15}


SHORT = dataclasses.replace(atslib.ATTACKS["annealed-lenet"], steps=100)


class LeNet(nn.Module):
    """Two convolutions and three linear layers, as many a Flower app has them."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.pool = (
            nn.Conv2d(3, 6, 5),
            nn.Conv2d(6, 16, 5),
            nn.MaxPool2d(2, 2),
        )
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


def arrays_of(kind, net, image, label):
    """The arrays that a client sends after one step on an image."""
    before, trained = net.state_dict(), copy.deepcopy(net)
    optimizer = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.01),
        "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    }.get(kind, lambda p: torch.optim.SGD(p, lr=LR, momentum=0.9))(trained.parameters())
    F.cross_entropy(trained(2 * image - 1), label).backward()
    if kind == "gradient":
        return {name: p.grad.clone() for name, p in trained.named_parameters()}
    optimizer.step()
    after = trained.state_dict()
    return (
        {name: value - before[name] for name, value in after.items()}
        if kind == "difference"
        else after
    )


@pytest.fixture
def seen_round(tmp_path, flower_task):
    """A round of a `Watched` strategy in which client i sends `kinds[i]` of image i."""
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAvg

    from atsfed.watch_flower import Watched

    data = atslib.load("shapes", "train")

    def made(kinds, *, clients=None, images=1):
        torch.manual_seed(0)
        net, watching, replies = LeNet(), Watched(FedAvg(fraction_evaluate=0.0), tmp_path), []
        watching.configure_train(1, ArrayRecord(net.state_dict()), ConfigRecord(), Nodes())
        for i, kind in enumerate(kinds):
            arrays = arrays_of(kind, net, data.pixels[i : i + 1] / 255, data.labels[i : i + 1])
            numbers = MetricRecord({"num-examples": images, "client": (clients or range(10))[i]})
            content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": numbers})
            reply = Message(content=content, dst_node_id=1, message_type="train")
            replies.append(sent_by(100 + i, reply))
        watching.aggregate_train(1, replies)
        return net, data.pixels[: len(kinds)] / 255

    made.folder = tmp_path
    return made


def watched(seen_round, net, declared, **how):
    from atsfed.watch_flower import watched

    return watched(seen_round.folder, 1, net, declared=declared, by="client", **SHAPE, **how)


@pytest.mark.parametrize("kind", RIGHT)
def test_the_right_declaration_gives_the_right_picture_and_no_doubt(seen_round, kind):
    net, image = seen_round([kind])
    result = reconstruct(watched(seen_round, net, RIGHT[kind])[0], "annealed-lenet", rng=0)
    assert result.doubts == ((),)
    assert result.labels.tolist() == [[0]]
    assert atslib.psnr(result.images, image).item() > LEAST[kind]


PAIRS = [
    (sent, said)
    for sent in RIGHT
    for said in RIGHT
    if sent != said and {sent, said} != {"adam", "adamw"}
]


@pytest.mark.parametrize(("kind", "said"), PAIRS)
def test_a_wrong_declaration_is_doubted_before_any_attack(seen_round, kind, said):
    net, _ = seen_round([kind])
    with pytest.warns(NotExplainedWarning, match="update 0: "):
        seen = watched(seen_round, net, RIGHT[said])
    assert seen[0].doubts[0]


@pytest.mark.parametrize("kind", ["adamw", "gradient", "difference"])
def test_after_an_attack_what_was_wrongly_declared_as_weights_of_sgd_is_not_explained(
    seen_round, kind
):
    net, _ = seen_round([kind])
    with pytest.warns(NotExplainedWarning):
        seen = watched(seen_round, net, RIGHT["sgd"])[0]
    with pytest.warns(NotExplainedWarning):
        result = reconstruct(seen, SHORT, rng=0)
    assert NOT_EXPLAINED in result.doubts[0][-1]
    assert result.doubts[0][:-1] == seen.doubts[0]


def test_what_only_the_attack_can_tell_is_told_by_it(seen_round):
    """Weights that another image than one explains: of all that can be held against a size, nothing
    is wrong.
    """
    net, _ = seen_round(["sgd"])
    seen = watched(seen_round, net, RIGHT["sgd"])[0]
    draw = torch.Generator().manual_seed(0)
    update = seen.updates[0]
    names = [name for name, _ in update.model.named_parameters()]
    rows = list(update.gradients.split([p.numel() for p in update.model.parameters()], 1))
    for i, name in enumerate(
        names[:-2]
    ):  # the last layer is as it was: its bias tells labels and size
        rows[i] = rows[i].std() * torch.randn(rows[i].shape, generator=draw)
        assert name.split(".")[1] != "fc3"
    other = dataclasses.replace(
        seen, updates=(dataclasses.replace(update, gradients=torch.cat(rows, 1)),)
    )
    with pytest.warns(NotExplainedWarning, match=NOT_EXPLAINED):
        result = reconstruct(other, SHORT, rng=0)
    assert NOT_EXPLAINED in result.doubts[0][0]


@pytest.mark.parametrize("wrong", [{"lr": 100 * LR}, {"steps": 100}, {"lr": LR / 100}])
def test_a_size_that_is_a_hundred_times_off_is_told(seen_round, wrong):
    net, _ = seen_round(["sgd"])
    declared = dataclasses.replace(RIGHT["sgd"], momentum=0.0, **wrong)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotExplainedWarning)
        seen = watched(seen_round, net, declared)[0]
        result = reconstruct(seen, SHORT, rng=0)
    assert result.doubts[0]


def test_more_labels_than_images_are_told(seen_round):
    net, _ = seen_round(["sgd", "sgd"])
    # An update of both images, from a client that says it has one.
    from atslib.checkpoints import read_tensors, write_tensors

    first, second = (
        seen_round.folder / "round-00001" / f"node-{node}.safetensors" for node in (100, 101)
    )
    (one, facts, _), (two, *_) = read_tensors(first), read_tensors(second)
    write_tensors(first, {name: (one[name] + two[name]) / 2 for name in one}, facts)
    with pytest.warns(NotExplainedWarning, match="it speaks of 2 labels, and is of 1 image"):
        watched(seen_round, net, RIGHT["sgd"])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"steps": -1}, "Declared.steps=-1 must be a whole number, at least 1"),
        ({"steps": 0}, "Declared.steps=0"),
        ({"steps": 1.5}, "Declared.steps=1.5 must be a whole number"),
        ({"lr": 0.0}, "Declared.lr=0.0 must be above 0"),
        ({"lr": float("nan")}, "Declared.lr=nan must be finite"),
        (
            {"sent": "gradients"},
            "Declared.sent 'gradients' is unknown; choose one of weights, difference, gradient",
        ),
        ({"optimizer": "lamb"}, "Declared.optimizer 'lamb' is unknown"),
        ({"momentum": 1.0}, "Declared.momentum=1.0"),
        ({"momentum": 0.9, "optimizer": "adam"}, "is of SGD"),
        ({"weight_decay": -1.0}, "Declared.weight_decay=-1.0"),
        ({"eps": 0.0}, "Declared.eps=0.0"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_in_one_sentence(wrong, words):
    with refused(words):
        Declared(**wrong)


def test_two_nodes_that_claim_one_client_are_told_and_neither_vanishes(seen_round):
    net, _ = seen_round(["sgd"] * 3, clients=[0, 1, 1])
    with refused("nodes 101 and 102 both say that they are client 1", "by=''"):
        watched(seen_round, net, RIGHT["sgd"])
    from atsfed.watch_flower import watched as of_nodes

    assert list(of_nodes(seen_round.folder, 1, net, declared=RIGHT["sgd"], **SHAPE)) == [
        100,
        101,
        102,
    ]


def test_a_client_that_claims_more_images_than_there_can_be_is_left_out_at_once(seen_round):
    net, _ = seen_round(["sgd"], images=10**7)
    with refused("it says it is of 10000000 images, more than most=10000"):
        watched(seen_round, net, RIGHT["sgd"])


def test_an_audit_reads_what_was_watched_and_sees_that_a_bit_was_flipped(seen_round):
    from atsaudit.update_files import read

    given = {"number": 1, "kind": "weights", "lr": LR, "steps": 1}
    facts = {"images": {"3": ["a.png"], "101": [7]}}  # of a client, and of a node
    (seen_round.folder / "update.json").write_text(json.dumps(facts))
    net, _ = seen_round(["sgd"] * 2, clients=[3, 4])
    found = read(seen_round.folder, **given)
    assert [record.images for record in found.records] == [("a.png",), (7,)]
    assert [record.count for record in found.records] == [1, 1]
    for record in found.records:
        moved = [record.arrays[name] - value for name, value in net.state_dict().items()]
        assert 0 < max(float(change.abs().max()) for change in moved) < 1
    for name in ("sent", "node-100"):
        file = seen_round.folder / "round-00001" / f"{name}.safetensors"
        whole = file.read_bytes()
        flip_a_bit(file)
        with refused(f"{name}.safetensors is damaged: its bytes do not match their hash"):
            read(seen_round.folder, **given)
        file.write_bytes(whole)


def test_a_damaged_answer_is_left_out_by_name_and_the_others_are_there(seen_round):
    net, _ = seen_round(["sgd"] * 2)
    file = seen_round.folder / "round-00001" / "node-100.safetensors"
    whole = file.read_bytes()
    for at in (len(whole) // 2, len(whole) - 1, 60):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        file.write_bytes(damaged)
        seen = watched(seen_round, net, RIGHT["sgd"])
        assert list(seen) == [1]
        assert "node-100.safetensors" in seen.left_out[0]
    sent = file.with_name("sent.safetensors")
    content = bytearray(sent.read_bytes())
    content[-9] ^= 4
    sent.write_bytes(content)
    with refused("sent.safetensors is damaged: its bytes do not match their hash"):
        watched(seen_round, net, RIGHT["sgd"])
