"""Max-pooling with one rule for ties, and any network's batch normalization: each against a plain
loop.
"""

import itertools

import pytest
import torch
import torch.nn.functional as F
import torchvision
from checks import plain_gradient, refused
from torch import nn
from torchvision.models.resnet import BasicBlock

from atslib.clients.observe import ThreatModel, observe
from atslib.gradients.problems import flatten, per_example, problem_gradients, vmapped
from atslib.models import MaxPool, Normalize, batch_norms, build_model, in_mode, max_pool
from atslib.rng import rng
from atslib.scores.scores import jacobian

pytestmark = pytest.mark.usefixtures("one_thread")

GEOMETRIES = [
    {"kernel_size": 3}, {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": (2, 3), "stride": (1, 2)},
    {"kernel_size": 2, "stride": 3, "dilation": 2}, {"kernel_size": 3, "padding": 1, "ceil_mode": True},
]  # fmt: skip


# --- ties in max-pooling ------------------------------------------------------------------------------------


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_without_ties_it_is_torchs_max_pool_to_second_order(geometry):
    maps = torch.randperm(2 * 3 * 11 * 13, generator=rng(0)).double().view(2, 3, 11, 13) - 400
    results = []
    for pool in (max_pool, F.max_pool2d):
        x = maps.clone().requires_grad_()
        out = pool(x, **geometry)
        (first,) = torch.autograd.grad((out * out.sin()).sum(), x, create_graph=True)
        results.append((out, first, torch.autograd.grad(first.square().sum(), x)[0]))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("noise", [0, 1e-13])
def test_of_tied_pixels_the_first_in_reading_order_is_chosen(geometry, noise):
    """As torch chooses among exactly equal ones; noise of the size of rounding changes nothing."""
    maps = torch.randint(3, (2, 3, 11, 13), generator=rng(0)).double()
    noisy = maps + noise * torch.randn(maps.shape, generator=rng(1), dtype=maps.dtype)
    gradients = []
    for pool, x in ((max_pool, noisy), (F.max_pool2d, maps)):
        x = x.requires_grad_()
        out = pool(x, **geometry)
        gradients.append(
            torch.autograd.grad(out, x, torch.rand(out.shape, generator=rng(2)).double())[0]
        )
    torch.testing.assert_close(*gradients, rtol=1e-14, atol=0)


def test_diverged_values_stay_visible():
    maps = torch.zeros(1, 1, 3, 6)
    maps[..., 1, 1], maps[..., 2, 4] = torch.nan, torch.inf
    assert max_pool(maps, 3).isnan().tolist() == [[[[True, False]]]]
    assert max_pool(maps, 3)[..., 1].isinf().all()


@pytest.fixture(scope="module")
def flat():
    """A double-precision ConvNet, images with black areas, and labels."""
    model = build_model("convnet-4", 10, norm="cifar100", rng=rng(0)).double()
    pixels = torch.rand(3, 3, 32, 32, generator=rng(1), dtype=torch.float64)
    pixels[:, :, 8:27, 4:30] = 0
    pixels[2, :, :5] = 1
    return model, pixels, torch.tensor([1, 2, 3])


class Plain(nn.Sequential):
    """The same network with torch's own max-pooling, as a user would build it."""

    def __init__(self, model):
        body = (
            nn.MaxPool2d(3) if isinstance(layer, MaxPool) else layer
            for layer in model[1].children()
        )
        super().__init__(model[0], *body)


def layouts(pixels):
    """The same images in four memory layouts."""
    transposed = (
        torch.empty(pixels.shape[::-1], dtype=pixels.dtype).permute(3, 2, 1, 0).copy_(pixels)
    )
    across = pixels.transpose(2, 3).contiguous().transpose(2, 3)
    return (
        pixels.contiguous(),
        pixels.contiguous(memory_format=torch.channels_last),
        across,
        transposed,
    )


def image_gradient(gradients, x):
    """What an attack descends: the gradient, with respect to the images, of their gradients'
    squared norm.
    """
    return torch.autograd.grad(gradients.square().sum(), x)[0]


def image_gradients(form, network, pixels, labels):
    x = pixels.detach().requires_grad_()
    return image_gradient(flatten(form(network, x[:, None], labels[:, None], {})), x)


def with_noise(pixels):
    return pixels + 1e-13 * torch.randn(pixels.shape, generator=rng(2), dtype=pixels.dtype)


def assert_same(ours, expected):
    assert (ours - expected).abs().max() < 1e-7 * expected.abs().max()


@pytest.mark.parametrize("form", [per_example, vmapped])
@pytest.mark.parametrize("own", [True, False])
def test_gradients_at_flat_images_depend_neither_on_layout_nor_on_rounding(flat, form, own):
    model, pixels, labels = flat
    network, expected = model if own else Plain(model), []
    for image, label in zip(pixels, labels, strict=True):
        x = image[None].clone().requires_grad_()
        expected.append(image_gradient(plain_gradient(model, x, label[None]), x))
    expected = torch.cat(expected)
    for x in (*layouts(pixels), with_noise(pixels)):
        assert_same(image_gradients(form, network, x, labels), expected)
    assert_same(image_gradients(form, network, pixels.flip(0), labels.flip(0)).flip(0), expected)


def test_torchs_own_rule_does_depend_on_rounding_there(flat):
    """Else the test above could not fail."""
    model, pixels, labels = flat
    slopes = []
    for images in (pixels, with_noise(pixels)):
        x = images.clone().requires_grad_()
        slopes.append(image_gradient(plain_gradient(Plain(model), x, labels), x))
    assert (slopes[0] - slopes[1]).norm() > 0.01 * slopes[0].norm()


@pytest.mark.parametrize("own", [True, False])
def test_the_accuracy_score_of_flat_images_depends_on_neither(flat, own):
    model, pixels, _ = flat
    network = model if own else Plain(model)
    expected = jacobian(network, pixels)
    assert expected.abs().max() > 0
    for x in (*layouts(pixels), with_noise(pixels)):
        assert_same(jacobian(network, x), expected)
    assert_same(torch.cat([jacobian(network, one) for one in pixels.split(1)]), expected)


# --- a user's own normalization -----------------------------------------------------------------------------


def seasoned(model):
    """The network in double precision and eval mode, its normalizations with generic weights and
    statistics.
    """
    for layer in model.modules():
        for name in ("weight", "bias", "running_mean", "running_var"):
            tensor = getattr(layer, name, None)
            if (
                isinstance(layer, nn.modules.batchnorm._NormBase | nn.GroupNorm)
                and tensor is not None
            ):
                drawn = torch.rand(tensor.shape, generator=rng(0, name))
                tensor.data = drawn + 0.5 if name in ("weight", "running_var") else drawn - 0.5
    return model.double().eval()


@pytest.fixture(scope="module")
def resnet():
    """torchvision's ResNet, a block a stage, with plain BatchNorm2d and MaxPool2d, float64; four images with a flat
    area, labels.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = torchvision.models.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10)
    pixels = torch.rand(4, 3, 32, 32, generator=rng(1), dtype=torch.float64)
    pixels[:, :, 10:22] = 0
    model = nn.Sequential(Normalize((0.5, 0.4, 0.3), (0.2, 0.25, 0.3)), body)
    assert {type(layer) for layer in batch_norms(model).values()} == {nn.BatchNorm2d}
    return seasoned(model), pixels, torch.tensor([1, 2, 3, 4])


def twin(model, mode):
    """A plain loop's network: torch's own normalization in that mode, and for torchvision's the
    rule for ties.
    """
    view = in_mode(model, "eval")
    if hasattr(view[1], "maxpool"):
        view[1].maxpool.forward = lambda x: max_pool(x, 3, 2, 1)
    for layer in view.modules():
        if mode == "train" and isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.train()
    return view


def statistics_of(model, images):
    """Mean and biased variance of what enters each batch normalization, by torch's own running
    average.
    """
    recorder = in_mode(model, "eval")
    for layer in batch_norms(recorder).values():
        layer.train()
        layer.momentum = 1.0
    values = {}
    for name, layer in batch_norms(recorder).items():
        layer.register_forward_pre_hook(
            lambda _, x, name=name: values.update({name: x[0].numel() // x[0].shape[1]})
        )
    recorder(images)
    statistics = {}
    for name, layer in batch_norms(recorder).items():
        biased = layer.running_var * (values[name] - 1) / values[name]
        statistics |= {f"{name}.running_mean": layer.running_mean, f"{name}.running_var": biased}
    return statistics


@pytest.fixture(scope="module")
def by_loop(resnet):
    """The gradients of two pairs of images by a plain loop, for each mode of the network, (2, P)."""
    model, pixels, labels = resnet
    pairs = list(zip(pixels.split(2), labels.split(2), strict=True))
    rows = {
        mode: [plain_gradient(twin(model, mode), *pair).detach() for pair in pairs]
        for mode in ("eval", "train")
    }
    return {mode: torch.stack(gradients) for mode, gradients in rows.items()}


@pytest.mark.parametrize("batch_norm", ["known", "unknown"])
@pytest.mark.parametrize("victim", ["eval", "train"])
def test_plain_batch_norm_follows_the_threat_model(resnet, by_loop, victim, batch_norm):
    model, pixels, labels = resnet
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen = observe(
        model, pixels, labels, threat=ThreatModel(victim=victim, batch_norm=batch_norm, batch=2)
    )
    assert_same(seen.gradients, by_loop[victim])
    attacker = by_loop[victim if batch_norm == "known" else "train"]
    with torch.no_grad():
        for form in (per_example, vmapped)[: 2 if batch_norm == "known" else 1]:
            assert_same(
                flatten(form(seen.model, pixels.unflatten(0, (2, 2)), labels.view(2, 2), {})),
                attacker,
            )
    assert bool(seen.statistics) == (victim == "train" and batch_norm == "known")
    for images, i in zip(pixels.split(2), range(2), strict=True):
        expected = statistics_of(model, images) if seen.statistics else {}
        for name, value in seen.statistics.items():
            torch.testing.assert_close(value[i], expected[name], rtol=1e-9, atol=1e-11)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_the_modes_differ(by_loop):
    assert (by_loop["train"] - by_loop["eval"]).norm() > 0.1 * by_loop["eval"].norm()


@pytest.mark.parametrize("form", [per_example, vmapped])
@pytest.mark.parametrize("name", ["resnet20-1", "convnet-4"])
def test_train_mode_equals_a_plain_loop_to_second_order(name, form):
    model = in_mode(seasoned(build_model(name, 10, rng=rng(0))), "train")
    pixels = torch.rand(2, 2, 3, 32, 32, generator=rng(1), dtype=torch.float64).requires_grad_()
    labels = torch.tensor([[0, 1], [2, 3]])
    gradients = flatten(form(model, pixels, labels, {}))
    expected = torch.stack(
        [plain_gradient(model, *pair) for pair in zip(pixels, labels, strict=True)]
    )
    torch.testing.assert_close(
        gradients, expected, rtol=1e-10, atol=1e-13 * expected.abs().max().item()
    )
    second = [torch.autograd.grad(g.square().sum(), pixels)[0] for g in (gradients, expected)]
    torch.testing.assert_close(*second, rtol=1e-9, atol=1e-12 * second[1].abs().max().item())


def small(norm, *, flat=False):
    """Pixels → 3 logits, with one normalization, of maps or of vectors."""
    head = [
        nn.Flatten(),
        nn.Linear(4 * 16, 6),
        *([norm] if flat else []),
        nn.ReLU(),
        nn.Linear(6, 3),
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = [
            nn.Conv2d(3, 4, 3, padding=1),
            *([] if flat else [norm]),
            nn.ReLU(),
            nn.MaxPool2d(2),
            *head,
        ]
        return seasoned(nn.Sequential(Normalize((0.5,), (0.25,)), *body))


OTHERS = {
    "group": lambda: nn.GroupNorm(2, 4), "layer": lambda: nn.LayerNorm([4, 8, 8]),
    "instance": lambda: nn.InstanceNorm2d(4), "batch without scale": lambda: nn.BatchNorm2d(4, affine=False),
    "batch without running statistics": lambda: nn.BatchNorm2d(4, track_running_stats=False),
    "cumulative average": lambda: nn.BatchNorm2d(4, momentum=None), "of vectors": lambda: nn.BatchNorm1d(6),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("victim", ["eval", "train"])
def test_other_normalizations_work_as_what_they_are(kind, victim):
    model = small(OTHERS[kind](), flat=kind == "of vectors")
    pixels = torch.rand(6, 3, 8, 8, generator=rng(1), dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    gradients = observe(model, pixels, labels, threat=ThreatModel(victim=victim, batch=3)).gradients
    for row, images, classes in zip(gradients, pixels.split(3), labels.split(3), strict=True):
        torch.testing.assert_close(
            row, plain_gradient(twin(model, victim), images, classes), rtol=1e-9, atol=1e-12
        )


def test_a_linear_layer_over_rows_of_pixels_is_what_it_is():
    layers = Normalize((0.5,), (0.25,)), nn.Linear(8, 4), nn.Flatten(), nn.Linear(96, 3)
    model = seasoned(nn.Sequential(*layers))
    pixels = torch.rand(2, 3, 8, 8, generator=rng(1), dtype=torch.float64)
    labels = torch.tensor([0, 2])
    for row, image, label in zip(
        observe(model, pixels, labels).gradients, pixels.split(1), labels.split(1), strict=True
    ):
        torch.testing.assert_close(row, plain_gradient(model, image, label), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "norm",
    [nn.SyncBatchNorm(4), nn.InstanceNorm2d(4, track_running_stats=True)],
    ids=lambda norm: type(norm).__name__,
)
@pytest.mark.parametrize("victim", ["eval", "train"])
def test_normalizations_with_other_running_statistics_are_refused(norm, victim):
    pixels = torch.rand(2, 3, 8, 8, generator=rng(1), dtype=torch.float64)
    with refused(f"layer '2' is a {type(norm).__name__} with running statistics", "BatchNorm2d"):
        observe(small(norm), pixels, torch.tensor([0, 1]), threat=ThreatModel(victim=victim))


def test_batch_statistics_of_one_value_are_refused(resnet):
    with refused("got 1 value per channel"):
        observe(*resnet, threat=ThreatModel(victim="train"))


def test_a_network_that_would_update_its_statistics_is_refused():
    model = build_model("resnet20-1", 10, rng=rng(0)).train()
    images, labels = (
        torch.rand(2, 2, 3, 8, 8, generator=rng(1)),
        torch.zeros(2, 2, dtype=torch.int64),
    )
    with refused("updates its running statistics", "model.eval()"):
        problem_gradients(model, images, labels)
    assert all(
        (layer.running_mean == 0).all()
        for layer in itertools.islice(batch_norms(model).values(), 3)
    )
