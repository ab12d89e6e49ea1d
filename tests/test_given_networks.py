"""What people hand to an audit as a network: outputs that are more than scores, wrappers, half
precision, and code that raises whatever it likes.
"""

import collections
import contextlib
import dataclasses

import pytest
import torch
from checks import refused
from torch import nn
from torch.utils.checkpoint import checkpoint

import atsaudit
import atslib
from atsaudit.run_audit import TAKEN, TakesScores, prepared
from atslib.clients.updates import observe_weights
from atslib.models import Normalize
from atslib.scores.scores import jacobian

NORM = ([0.5] * 3, [0.25] * 3)
SIDE = 6
PIXELS = torch.randint(256, (4, 3, SIDE, SIDE), generator=atslib.rng(0), dtype=torch.uint8)
LABELS = torch.tensor([0, 1, 2, 0])


def body(classes=3):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), nn.Sigmoid(), nn.Flatten(), nn.Linear(36, classes)
    )


@dataclasses.dataclass
class Output:
    """As Hugging Face's classifiers give it."""

    logits: torch.Tensor
    hidden_states: tuple = ()


Pair = collections.namedtuple("Pair", "scores features")


class Giving(nn.Module):
    """A network that gives its scores inside of something."""

    def __init__(self, how, classes=3):
        super().__init__()
        self.body = body(classes)
        self.how = how

    def forward(self, x):
        return self.how(self.body(x))


HOW = {
    "object": Output,
    "dict": lambda scores: {"features": scores.sum(), "logits": scores},
    "tuple": lambda scores: (scores, scores.sum()),
    "list": lambda scores: ["of a layer", scores],
    "named tuple": lambda scores: Pair(scores, None),
}


def gradients(model):
    return atslib.observe(model, PIXELS / 255, LABELS).gradients


@pytest.mark.parametrize("name", HOW)
def test_scores_are_taken_from_what_a_network_gives(name):
    model = prepared(Giving(HOW[name]), NORM, PIXELS)
    assert any(isinstance(part, TakesScores) for part in model.modules())
    plain = prepared(body(), NORM, PIXELS)
    torch.testing.assert_close(gradients(model), gradients(plain))


def test_one_score_of_an_object_is_one_of_two():
    model = prepared(Giving(Output, classes=1), NORM, PIXELS)
    assert model(PIXELS / 255).shape == (4, 2)


class Starting(nn.Module):
    """A network of one's own that starts with `Normalize`, and does more than its layers in a row."""

    def __init__(self, how):
        super().__init__()
        self.normalize = Normalize(*NORM)
        self.body = body()
        self.how = how

    def forward(self, x):
        return self.how(3 * self.body(self.normalize(x)))


def test_a_network_that_starts_with_its_normalization_stays_what_it_is():
    model = prepared(Starting(Output), None, PIXELS)
    plain = prepared(Starting(lambda scores: scores), None, PIXELS)
    torch.testing.assert_close(gradients(model), gradients(plain))


def test_the_report_says_what_was_taken():
    model = Giving(Output)
    pixels = PIXELS.repeat(10, 1, 1, 1) // 2
    noise = torch.randint(100, pixels.shape, generator=atslib.rng(1), dtype=torch.uint8)
    report = atsaudit.audit(
        model, pixels + noise, LABELS.repeat(10), untrained=model, normalize=NORM, batch=1,
        attacked=2, steps=2,
    )  # fmt: skip
    assert TAKEN in report.notes


class Plain(Starting):
    """Its scores alone."""

    def __init__(self):
        super().__init__(lambda scores: scores)


class WithoutBatches(Starting):
    """A network that the fast form of the gradient does not take: it mixes its batch."""

    def forward(self, x):
        return self.how(3 * self.body(self.normalize(x)) / (1 + 0 * x.mean()))


def said(how):
    """What `observe` may say of a network that gives a tuple or a list."""
    sure = how in ("object", "dict", "tensor")
    return contextlib.nullcontext() if sure else pytest.warns(UserWarning, match="first tensor")


@pytest.mark.parametrize("network", [Starting, WithoutBatches])
@pytest.mark.parametrize("name", HOW)
def test_a_client_and_an_attack_take_the_scores_of_what_a_network_gives(name, network):
    model = network(HOW[name])
    plain = network(lambda scores: scores)
    with said(name):
        seen = atslib.observe(model, PIXELS / 255, LABELS)
    wanted = atslib.observe(plain, PIXELS / 255, LABELS)
    assert list(dict(model.named_parameters())) == list(dict(plain.named_parameters()))
    torch.testing.assert_close(seen.gradients, wanted.gradients)
    short = dataclasses.replace(atslib.ATTACKS["adam-cosine"], steps=3)
    for labels in ("known", "inferred"):
        threat = atslib.ThreatModel(labels=labels)
        got, same = (
            atslib.reconstruct(dataclasses.replace(each, threat=threat), short, rng=0)
            for each in (seen, wanted)
        )
        torch.testing.assert_close(got.images, same.images)


@pytest.mark.parametrize("name", HOW)
def test_local_training_takes_the_scores_too(name):
    threat = atslib.ThreatModel(batch=2, victim="train")
    local = atslib.LocalTraining(epochs=2, lr=0.1, batch=1)
    with said(name):
        got = observe_weights(
            Starting(HOW[name]), PIXELS / 255, LABELS, local=local, threat=threat, rng=0
        )
    same = observe_weights(Plain(), PIXELS / 255, LABELS, local=local, threat=threat, rng=0)
    torch.testing.assert_close(got.gradients, same.gradients)


@pytest.mark.parametrize("name", HOW)
def test_training_and_scores_take_the_scores_too(name):
    images = atslib.Images(PIXELS, LABELS, ("a", "b", "c"), "own", "train")
    config = atslib.TrainConfig(epochs=1, batch=2)

    def trained(model):
        atslib.fit(model, images, config, rng=0)
        slopes = jacobian(model, PIXELS / 255)
        return flat(model), slopes, torch.tensor(atslib.evaluate(model, images))

    with said(name):
        got = trained(Starting(HOW[name]))
    torch.testing.assert_close(got, trained(Plain()))


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_a_first_tensor_that_is_no_row_of_scores_is_refused():
    maps = torch.zeros(4, 2, 3, 3)
    for how in (lambda s: (maps, s), lambda s: {"scores": s}, lambda s: Output(maps)):
        with refused("it must give one row of class scores per image"):
            gradients(Starting(how))
    with refused("1 score per image"):
        gradients(Starting(lambda s: Output(s[:, :1])))


@pytest.mark.parametrize("how", [lambda s: None, lambda s: {"out": s}, lambda s: (s.sum(),) * 0])
def test_where_there_are_no_scores_it_is_said(how):
    model = prepared(Giving(how), NORM, PIXELS)
    with refused("gives", "class scores"):
        gradients(model)


class Raising(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.body = body()
        self.error = error

    def forward(self, x):
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("Input height (32) doesn't match model (224)"),
        ValueError("Input image size (32*32) doesn't match model"),
        KeyError("pixel_values"),
        ZeroDivisionError("division by zero"),
        Exception("a guard of an exported network failed"),
    ],
)
def test_whatever_a_network_raises_is_one_sentence(error):
    with refused("does not take images of shape (3, 6, 6)", str(error.args[0])):
        prepared(Raising(error), NORM, PIXELS)
    with refused("does not take images of shape (3, 6, 6)", str(error.args[0])):
        gradients(nn.Sequential(Normalize(*NORM), Raising(error)))


class TwoArguments(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = body()

    def forward(self, x, mask):
        return self.body(x)


def test_a_network_of_two_arguments_is_one_sentence():
    with refused("does not take images", "TypeError", "'mask'"):
        prepared(TwoArguments(), NORM, PIXELS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_precision_is_taken(dtype):
    got = gradients(prepared(body().to(dtype), NORM, PIXELS))
    wanted = gradients(prepared(body(), NORM, PIXELS))
    assert torch.cosine_similarity(got.float(), wanted).min() > 0.99


@pytest.mark.parametrize("stepped", [False, True])
def test_the_network_inside_opacus_wrapper_is_taken(stepped):
    from opacus import GradSampleModule

    wrapped = GradSampleModule(body())
    if stepped:
        wrapped((PIXELS / 255).requires_grad_()).sum().backward()
    hooks = sum(len(layer._forward_hooks) for layer in wrapped.modules())
    got = prepared(wrapped, NORM, PIXELS)
    torch.testing.assert_close(gradients(got), gradients(prepared(body(), NORM, PIXELS)))
    seen = atslib.observe(got, PIXELS / 255, LABELS)
    short = dataclasses.replace(atslib.ATTACKS["adam-cosine"], steps=2)
    assert atslib.reconstruct(seen, short, rng=0).cost.isfinite().all()
    assert hooks == sum(len(layer._forward_hooks) for layer in wrapped.modules())


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.body = body()
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=self.reentrant)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # torch's own
def test_of_checkpointing_the_sentence_names_it():
    model = prepared(Checkpointed(True), NORM, PIXELS)
    with refused("gradient checkpointing", "switch it off"):
        atslib.reconstruct(atslib.observe(model, PIXELS / 255, LABELS), "adam-cosine", rng=0)


def test_a_loss_of_an_object_is_of_its_scores():
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    model = prepared(Giving(Output), NORM, PIXELS, loss)
    plain = prepared(body(), NORM, PIXELS, loss)
    torch.testing.assert_close(gradients(model), gradients(plain))
