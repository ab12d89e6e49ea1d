"""Per-example gradients against one backward pass an image, and the distances between gradients."""

import pytest
import torch
import torch.nn.functional as F
from checks import plain_gradient

from atslib.gradients import problems as gradients
from atslib.gradients.per_example import Unsupported
from atslib.gradients.problems import DISTANCES
from atslib.models import BatchNorm, build_model
from atslib.rng import rng

MODELS = ["resnet20-1", "convnet-4", "lenet"]
LABELS = torch.tensor([2, 0, 4])


pytestmark = pytest.mark.usefixtures("one_thread")


def case(name, count=3, seed=0):
    """A float64 model with generic running statistics, and pixels that are not square."""
    height = 12 if name == "resnet20-1" else 10
    model = build_model(name, 5, image_size=height, rng=rng(seed)).double()
    width = 14 if name == "resnet20-1" else height  # the other heads fix the size of the image
    with torch.no_grad():
        model.train()(
            torch.rand(8, 3, height, width, generator=rng(seed, "seen"), dtype=torch.float64)
        )
    pixels = torch.rand(count, 3, height, width, generator=rng(seed, "pixels"), dtype=torch.float64)
    return model.eval(), pixels


def generic(seed, rows=3):
    """Gradients of `rows` problems for two parameters, (rows, 2, 3) and (rows, 4)."""
    shapes = enumerate([(2, 3), (4,)])
    return tuple(
        torch.randn(rows, *shape, generator=rng(seed, i), dtype=torch.float64)
        for i, shape in shapes
    )


@pytest.mark.parametrize("name", MODELS)
def test_batched_gradients_equal_looped_autograd(name):
    model, pixels = case(name)
    batched = gradients.example_gradients(model, pixels, LABELS)
    for i in range(3):
        expected = plain_gradient(model, pixels[i : i + 1], LABELS[i : i + 1])
        torch.testing.assert_close(batched[i], expected, rtol=1e-8, atol=1e-11)
    assert not torch.allclose(batched[0], batched[1])


@pytest.mark.parametrize("name", MODELS)
def test_a_problem_of_several_images_has_their_mean_gradient(name):
    model, pixels = case(name)
    (together,) = gradients.flatten(gradients.problem_gradients(model, pixels[None], LABELS[None]))
    mean = gradients.example_gradients(model, pixels, LABELS).mean(0)
    torch.testing.assert_close(together, mean, rtol=1e-8, atol=1e-11)


def test_indices_and_certain_probabilities_are_the_same_target():
    model, pixels = case("lenet")
    indexed = gradients.problem_gradients(model, pixels[:, None], LABELS[:, None])
    certain = gradients.problem_gradients(
        model, pixels[:, None], F.one_hot(LABELS, 5)[:, None].double()
    )
    torch.testing.assert_close(certain, indexed, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", ["convnet-4", "lenet"])
def test_a_gradient_can_be_differentiated_with_respect_to_pixels_and_probabilities(name):
    model, pixels = case(name, 1)
    pixels, soft = (
        pixels[:, None].requires_grad_(),
        torch.rand(1, 1, 5, generator=rng(5)).double().requires_grad_(),
    )
    square = (
        gradients.flatten(gradients.problem_gradients(model, pixels, soft.softmax(-1)))
        .square()
        .sum()
    )
    ours = torch.autograd.grad(square, [pixels, soft])
    plain = torch.autograd.grad(
        plain_gradient(model, pixels[0], soft[0].softmax(-1)).square().sum(), [pixels, soft]
    )
    for a, b in zip(ours, plain, strict=True):
        assert b.abs().max() > 0
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10 * b.abs().max().item())


def test_the_caller_keeps_its_model():
    model, pixels = case("convnet-4")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert not gradients.example_gradients(model, pixels, LABELS).requires_grad
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("name", MODELS)
def test_unflatten_is_the_inverse_of_flatten(name):
    model, pixels = case(name, 2)
    tensors = gradients.problem_gradients(model, pixels[:, None], LABELS[:2, None])
    assert [t.shape[1:] for t in tensors] == [p.shape for p in model.parameters()]
    flat = gradients.flatten(tensors)
    assert flat.shape == (2, sum(p.numel() for p in model.parameters()))
    assert all(
        torch.equal(a, b) for a, b in zip(gradients.unflatten(flat, model), tensors, strict=True)
    )


@pytest.mark.parametrize("name", DISTANCES)
def test_equal_gradients_are_at_distance_zero_and_others_are_not(name):
    one, other = generic(0), generic(1)
    assert DISTANCES[name](one, one).abs().max() < 1e-14
    assert DISTANCES[name](one, other).min() > 0.1


@pytest.mark.parametrize("name", ["cosine", "cosine-tensors"])
def test_cosine_distance_is_two_of_opposite_and_one_of_orthogonal_gradients(name):
    opposite = tuple(-3 * g for g in generic(0))
    torch.testing.assert_close(
        DISTANCES[name](generic(0), opposite), torch.full((3,), 2.0).double()
    )
    assert DISTANCES[name]((torch.tensor([[1.0, 0.0]]),), (torch.tensor([[0.0, 5.0]]),)).item() == 1


@pytest.mark.parametrize("scale", [1e-6, 7.0, 1e6])
def test_cosine_ignores_the_scale_of_the_whole_and_cosine_tensors_that_of_each_tensor(scale):
    (first, second), target = generic(0), generic(1)
    for name, other in (("cosine", scale), ("cosine-tensors", 1.0)):
        expected = DISTANCES[name]((first, second), target)
        scaled = DISTANCES[name]((scale * first, other * second), target)
        torch.testing.assert_close(scaled, expected, rtol=1e-10, atol=0)
    by_tensor = DISTANCES["cosine"]((scale * first, second), target)
    assert (by_tensor - DISTANCES["cosine"]((first, second), target)).abs().min() > 1e-3


def test_cosine_survives_the_tiny_gradients_of_a_well_trained_model():
    tiny = tuple(1e-10 * g.float() for g in generic(0))
    assert DISTANCES["cosine"](tiny, tiny).abs().max() < 1e-5  # float32: 1e-20 · 1e-20 underflows


@pytest.mark.parametrize("name", ["cosine", "cosine-tensors"])
def test_a_zero_gradient_is_at_cosine_distance_one_and_has_a_finite_derivative(name):
    zero = tuple(torch.zeros_like(g).requires_grad_() for g in generic(0))
    distance = DISTANCES[name](zero, generic(1))
    torch.testing.assert_close(distance, torch.ones_like(distance))
    assert not any(g.isnan().any() for g in torch.autograd.grad(distance.sum(), zero))


def test_distances_of_small_arrays():
    gradients = (torch.tensor([[1.0, 2.0]]), torch.tensor([[[3.0]]]))
    target = (torch.tensor([[0.0, 4.0]]), torch.tensor([[[5.0]]]))
    cosine = 1 - (2 * 4 + 3 * 5) / (1 + 4 + 9) ** 0.5 / (16 + 25) ** 0.5
    by_tensor = 1 - (8 / (5**0.5 * 4) + 1) / 2
    known = {
        "l1": 1 + 2 + 2,
        "l2": 1 + 4 + 4,
        "cosine": cosine,
        "cosine-tensors": by_tensor,
        "norms": 5**0.5 + 2,
    }
    known |= {"l2-relative": 9 / 41, "l2-tensors": (5 / 16 + 4 / 25) / 2, "l1-relative": 5 / 9}
    for name, expected in known.items():
        assert DISTANCES[name](gradients, target).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", DISTANCES)
def test_a_row_has_its_own_distance_and_derivative(name):
    gradients, target = tuple(g.requires_grad_() for g in generic(0)), generic(1)
    together = DISTANCES[name](gradients, target)
    for i in range(3):
        alone = DISTANCES[name](
            tuple(g[i : i + 1] for g in gradients), tuple(t[i : i + 1] for t in target)
        )
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-14)
    assert torch.autograd.gradcheck(lambda *g: DISTANCES[name](g, target), gradients)


@pytest.mark.parametrize("name", [*MODELS, "lenet-4-circular", "resnet18-2-reflect"])
def test_shared_layers_with_handles_equal_vmap_to_second_order(name):
    model = build_model(name, 10, rng=rng(0)).double()
    pixels = torch.rand(3, 2, 3, 32, 32, generator=rng(1), dtype=torch.float64).requires_grad_()
    assert_second_order_equals_vmap(model, pixels, torch.tensor([[0, 1], [2, 3], [4, 4]]))


def strangely_convolved(width, side, *, stride, padding, dilation, bias, inplace=False):
    """Two convolutions of uneven geometry, each with a generic normalization, and a head; float64,
    eval mode.
    """
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "bias": bias}
    layers = [
        torch.nn.Conv2d(3, width, (3, 2), **geometry), BatchNorm(width), torch.nn.ReLU(inplace=inplace),
        torch.nn.Conv2d(width, width, 3, **geometry), BatchNorm(width), torch.nn.Sigmoid(),
        torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(4 * width, 5),
    ]  # fmt: skip
    model = torch.nn.Sequential(*layers).double()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point():
            drawn = torch.rand(tensor.shape, generator=rng(0, name), dtype=torch.float64)
            tensor.data = drawn + 0.5 if "running_var" in name else drawn - 0.4
    pixels = torch.rand(
        2, 2, 3, side, side + 3, generator=rng(1), dtype=torch.float64
    ).requires_grad_()
    return model.eval(), pixels, torch.tensor([[0, 1], [2, 3]])


def assert_second_order_equals_vmap(model, pixels, labels):
    fast = gradients.per_example(model, pixels, labels, {})
    slow = gradients.vmapped(model, pixels, labels, {})
    weights = [torch.randn(g.shape, generator=rng(2, i), dtype=g.dtype) for i, g in enumerate(slow)]
    second = []
    for form in (fast, slow):
        cost = sum((g * w).sum() + g.square().sum() for g, w in zip(form, weights, strict=True))
        second.append(torch.autograd.grad(cost, pixels)[0])
    for ours, expected in zip((*fast, second[0]), (*slow, second[1]), strict=True):
        assert expected.abs().max() > 1e-6
        torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-11)


# Patches, groups, patches of large maps, weights larger than maps.
@pytest.mark.parametrize(("width", "side"), [(4, 9), (4, 30), (256, 30), (64, 5)])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation"),
    [(1, 1, 1), (2, 1, 1), (1, 0, 1), ((1, 2), (0, 2), 1), (2, 3, (2, 1))],
)
def test_any_convolution_with_its_normalization_equals_vmap_to_second_order(
    width, side, stride, padding, dilation
):
    bias = stride == 1
    model = strangely_convolved(
        width, side, stride=stride, padding=padding, dilation=dilation, bias=bias
    )
    assert_second_order_equals_vmap(*model)


def test_a_normalization_is_not_folded_into_a_convolution_that_was_changed_in_place():
    class Changed(torch.nn.Sequential):
        def forward(self, x):
            for layer in self:
                x = layer(x)
                if isinstance(layer, torch.nn.Conv2d):
                    x.tanh_()
            return x

    model, pixels, labels = strangely_convolved(
        4, 9, stride=1, padding=1, dilation=1, bias=False, inplace=True
    )
    assert_second_order_equals_vmap(model, pixels, labels)
    assert_second_order_equals_vmap(Changed(*model), pixels, labels)


def test_maps_that_go_to_a_normalization_and_elsewhere_have_both_gradients():
    class Both(torch.nn.Sequential):
        def forward(self, x):
            maps = self[0](x)
            return torch.nn.Sequential(*list(self)[2:])((self[1](maps) + maps).relu())

    model, pixels, labels = strangely_convolved(4, 9, stride=1, padding=1, dilation=1, bias=True)
    assert_second_order_equals_vmap(Both(*model), pixels, labels)


class _Scaled(torch.nn.Module):
    """A parameter outside any layer, which the handles cannot follow."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))
        self.linear = torch.nn.Linear(12, 3)

    def forward(self, x):
        return self.linear(x.flatten(1) * self.scale)


def test_a_model_with_other_parameters_falls_back_and_is_still_exact():
    model, pixels, labels = (
        _Scaled(),
        torch.rand(4, 3, 2, 2, generator=rng(0)),
        torch.tensor([0, 1, 2, 0]),
    )
    with pytest.raises(Unsupported):
        gradients.per_example(model, pixels[:, None], labels[:, None], {})
    rows = gradients.example_gradients(model, pixels, labels)
    for row, image, label in zip(rows, pixels.split(1), labels.split(1), strict=True):
        torch.testing.assert_close(row, plain_gradient(model, image, label))
