"""What a linear layer's gradient says in closed form: exactly its input, for random shapes, stacks
and our networks.
"""

import itertools

import pytest
import torch
import torch.nn.functional as F
from checks import refused
from torch import nn

from atslib import GradientMatching, observe, reconstruct
from atslib.attacks.analytic import (
    LastLayerAlone,
    entries,
    invert_linear,
    last_features,
    of_last_layer,
)
from atslib.clients.observe import ThreatModel
from atslib.models import Normalize, before_last, build_model
from atslib.rng import rng

pytestmark = pytest.mark.usefixtures("one_thread")


def gradients_of(layers, images, labels):
    """Gradients of each layer's weight and bias, image by image, and the inputs of the layers."""
    inputs, parts = [], []
    hooks = [
        layer.register_forward_pre_hook(lambda _, x: inputs.append(x[0].detach()))
        for layer in layers
    ]
    for one, label in zip(images, labels, strict=True):
        loss = F.cross_entropy(nn.Sequential(*layers)(one[None]), label[None])
        parts.append(torch.autograd.grad(loss, [p for layer in layers for p in layer.parameters()]))
    [hook.remove() for hook in hooks]
    return [torch.stack(each) for each in zip(*parts, strict=True)], inputs


@pytest.mark.parametrize("seed", range(20))
def test_every_layer_of_a_stack_gives_its_input_away(seed):
    """Linear layers of random widths one after another, random inputs."""
    stream = rng(seed, "shapes")
    count, depth = (int(n) for n in torch.randint(1, 5, (2,), generator=stream))
    widths = torch.randint(2, 40, (depth + 1,), generator=stream).tolist()
    layers = [nn.Linear(*pair).double() for pair in itertools.pairwise(widths)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=layer.in_features**-0.5, generator=stream)
    images = torch.randn(count, widths[0], generator=stream, dtype=torch.float64)
    gradients, inputs = gradients_of(
        layers, images, torch.randint(widths[-1], (count,), generator=stream)
    )
    for i in range(depth):
        found, true = invert_linear(*gradients[2 * i : 2 * i + 2]), torch.cat(inputs[i::depth])
        assert ((found - true).norm(dim=1) <= 1e-6 * true.norm(dim=1)).all()


def test_tiny_gradients_are_no_reason_to_lose_it():
    features = torch.rand(3, 7, generator=rng(0))
    bias = 1e-30 * torch.randn(3, 5, generator=rng(1))
    torch.testing.assert_close(
        invert_linear(bias[:, :, None] * features[:, None], bias), features, rtol=1e-5, atol=0
    )


@pytest.mark.parametrize(
    "name", ["lenet", "relunet", "convnet-4", "resnet20-1", "resnet18-4", "resnet34-2"]
)
def test_the_features_of_our_networks_are_read_off(name):
    model = build_model(name, 10, norm="cifar100", rng=rng(0))
    images = torch.rand(3, 3, 32, 32, generator=rng(1))
    seen = observe(model, images, torch.tensor([1, 4, 4]))
    true = []
    with before_last(model, lambda features: true.append(features.detach())), torch.no_grad():
        model(images)
    found = last_features(seen.updates[0])
    assert ((found - true[0]).norm(dim=1) < 1e-5 * true[0].norm(dim=1)).all()


def test_of_several_images_it_is_their_mixture_by_what_each_does_to_the_output():
    model = build_model("lenet", 10, rng=rng(0))
    images, labels = torch.rand(3, 3, 32, 32, generator=rng(1)), torch.tensor([1, 4, 7])
    seen, true = observe(model, images, labels, threat=ThreatModel(batch=3)), []
    with before_last(model, lambda features: true.append(features.detach())), torch.no_grad():
        slopes = model(images).softmax(1) - F.one_hot(labels, 10)
    weight, bias = (g[0] for g in seen.gradients.split([seen.gradients.shape[1] - 10, 10], 1))
    weight = weight[-10 * true[0].shape[1] :].view(1, 10, -1)
    found = invert_linear(weight.transpose(0, 1), bias.view(10, 1))  # each output by itself
    torch.testing.assert_close(
        found, (slopes.T @ true[0]) / slopes.sum(0)[:, None], rtol=1e-3, atol=1e-4
    )


def test_what_says_nothing_is_refused():
    weight, bias = torch.rand(2, 3, 4), torch.rand(2, 3)
    with refused("bias_gradient is None; a layer without a bias gives its input up to a factor"):
        invert_linear(weight, None)
    with refused("(2, 3, 4) and (3, 2)", "(N, O, I) and (N, O)"):
        invert_linear(weight, bias.T)
    with refused("weight_gradient", "a torch.Tensor (N, O, I)"):
        invert_linear(weight.numpy(), bias)
    with refused("the bias gradients of images [1] are all 0"):
        invert_linear(weight, bias * torch.tensor([[1.0], [0.0]]))
    model = nn.Sequential(Normalize((0.5,), (0.25,)), nn.Flatten(), nn.Linear(12, 5, bias=False))
    seen = observe(model, torch.rand(1, 3, 2, 2), torch.tensor([0]))
    with refused("no linear layer with a bias at its end"):
        last_features(seen.updates[0])


def test_the_last_layer_alone_is_compared():
    """Its cost is that of the last layer's gradient, and an attack on it finds features, not
    pixels.
    """
    model = build_model("lenet", 10, norm="cifar100", rng=rng(0))
    images = torch.rand(2, 3, 32, 32, generator=rng(1))
    seen = observe(model, images, torch.tensor([1, 4]))
    kept = entries(seen.updates[0], of_last_layer(model))
    assert kept.shape == seen.gradients.shape
    assert kept.sum(1).tolist() == [10 * 768 + 10] * 2
    assert kept[:, -7690:].all()
    inner = GradientMatching(steps=60, signed=False, lr=0.3, tv=0.0, schedule="cosine")
    attack = LastLayerAlone(inner=inner)
    found = reconstruct(seen, attack, rng=rng(2))
    assert attack.title == f"{inner.title} on the last layer alone"
    own = observe(model, found.images.clamp(0, 1), torch.tensor([1, 4]))
    ours, theirs = (each.gradients * kept for each in (own, seen))
    torch.testing.assert_close(
        1 - F.cosine_similarity(ours, theirs), found.cost, rtol=0.05, atol=1e-4
    )
    assert (found.cost < found.trace[0]).all()
