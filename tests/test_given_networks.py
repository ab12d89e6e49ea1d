"""What people hand to an audit as a network: outputs that are more than scores, wrappers, half
precision, and code that raises whatever it likes.
"""

import collections
import dataclasses

import pytest
import torch
from checks import refused
from torch import nn
from torch.utils.checkpoint import checkpoint

import atslib
from atslib.audit.calls import TAKEN, TakesScores, prepared
from atslib.models import Normalize

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
    report = atslib.audit(
        model, pixels + noise, LABELS.repeat(10), untrained=model, normalize=NORM, batch=1,
        attacked=2, steps=2,
    )  # fmt: skip
    assert TAKEN in report.notes


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
