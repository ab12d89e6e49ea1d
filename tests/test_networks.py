"""Networks that people have: their gradients are torch's own, to second order, or one sentence
names the layer.
"""

import copy
import dataclasses
import warnings

import pytest
import torch
import torch.nn.functional as F
from checks import plain_gradient, refused
from torch import nn

import atslib
from atslib import ATTACKS, Images, Normalize, ThreatModel, TrainConfig, rng
from atslib.attacks import restore_labels
from atslib.attacks.analytic import last_features
from atslib.attacks.labels import infer_labels
from atslib.clients.observe import observe
from atslib.clients.updates import LocalTraining, observe_weights
from atslib.clients.view import Observed, Update
from atslib.gradients import problems
from atslib.gradients.layers import LAYERS
from atslib.gradients.per_example import SameRules
from atslib.models import shared_parameters
from atslib.scores.scores import accuracy_score

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT = dataclasses.replace(ATTACKS["adam-cosine"], steps=2)


def seeded(make, *, normalize=True):
    """A network in eval mode whose weights are drawn from a seed; those that start at zero are
    drawn too.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = make()
        for parameter in network.parameters():
            if not parameter.any():
                nn.init.normal_(parameter, std=0.1)
    return (nn.Sequential(Normalize((0.5,), (0.25,)), network) if normalize else network).eval()


def photographs(count, side):
    return torch.rand(count, 3, side, side, generator=rng(0, "photographs"))


def plain(model, images, labels, *, further=False):
    """torch's own gradient of the mean loss by name, zeros where there is none."""
    shared = shared_parameters(model)
    loss = F.cross_entropy(model(images), labels)
    gradients = torch.autograd.grad(
        loss, list(shared.values()), create_graph=further, allow_unused=True
    )
    pairs = zip(shared.items(), gradients, strict=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in pairs}


def flat(gradients):
    return torch.cat([g.flatten() for g in gradients.values()])


def assert_gradients_are_torchs(model, side, *, k=1):
    """In double precision, each problem's gradient, and the derivative of a cost of it, as an
    attack takes it.
    """
    model = copy.deepcopy(model).double()
    inputs = photographs(2 * k, side).double().unflatten(0, (2, k)).requires_grad_()
    targets = torch.arange(2 * k).view(2, k) % 3
    ours = problems.problem_gradients(model, inputs, targets)
    (slope,) = torch.autograd.grad(sum(g.square().sum() + g.sin().sum() for g in ours), inputs)
    for i in range(2):
        z = inputs[i].detach().requires_grad_()
        with (
            SameRules()
        ):  # one rule for ties of max-pooling, and forms that have a second derivative
            expected = plain(model, z, targets[i], further=True)
        (wanted,) = torch.autograd.grad(
            sum(g.square().sum() + g.sin().sum() for g in expected.values()), z
        )
        for (name, g), got in zip(expected.items(), ours, strict=True):
            torch.testing.assert_close(
                got[i], g, rtol=1e-6, atol=1e-9 * float(flat(expected).detach().norm()), msg=name
            )
        torch.testing.assert_close(
            slope[i], wanted, rtol=1e-5, atol=1e-7 * float(wanted.detach().abs().max())
        )
        assert wanted.abs().max() > 0


def torchvision_network(name):
    import torchvision.models as networks  # after atslib, which lets it be imported
    from torchvision.models.vision_transformer import VisionTransformer

    if name == "vit":
        return seeded(lambda: VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=10)), 32
    if name == "googlenet":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return seeded(
                lambda: networks.GoogLeNet(num_classes=10, aux_logits=True, init_weights=False)
            ), 64
    return seeded(
        lambda: getattr(networks, name)(weights=None, num_classes=10)
    ), 32 if name == "resnet18" else 64


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("resnet18", marks=pytest.mark.slow),
        "mobilenet_v3_small",
        pytest.param("googlenet", marks=pytest.mark.slow),
        pytest.param("efficientnet_b0", marks=pytest.mark.slow),
        "vit",
    ],
)
def test_networks_of_torchvision_share_torchs_gradient_and_can_be_attacked(name):
    model, side = torchvision_network(name)
    images, labels = photographs(2, side), torch.tensor([1, 2])
    double = copy.deepcopy(model).double()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        seen = observe(double, images, labels)
    unused = [str(warning.message) for warning in said]
    assert len(unused) == (name == "googlenet")
    assert all(
        "aux1.conv.conv.weight and 13 more take no part in the network's scores" in line
        for line in unused
    )
    for row, image, label in zip(
        seen.gradients, images.double().split(1), labels.split(1), strict=True
    ):
        wanted = flat(plain(double, image, label))
        assert float((row - wanted).norm()) < 1e-7 * float(wanted.norm())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*take no part")
        seen = observe(model, images[:1], labels[:1])
    found = atslib.reconstruct(seen, SHORT, rng=0)
    assert found.images.isfinite().all()
    assert found.cost.isfinite().all()
    assert not found.stuck.any()


class Mixing(nn.Module):
    """Scores that depend on the other images of the batch."""

    def __init__(self, how):
        super().__init__()
        self.first, self.last, self.how = nn.Linear(192, 8), nn.Linear(8, 5), how

    def forward(self, x):
        z = self.first(x.flatten(1))
        return self.last(HOW[self.how](z).tanh())


HOW = {
    "centred": lambda z: z - 0.1 * z.mean(0),
    "softmax": lambda z: z + z.softmax(0),
    "instance norm": lambda z: F.instance_norm(z.t()[None])[0].t() if len(z) > 1 else z,
    "neighbour": lambda z: z + 0.01 * z.roll(1, 0),
}


class Parts(nn.Module):
    """Parameters that are used in parts, and one weight that is used twice, once through `unbind`."""

    def __init__(self):
        super().__init__()
        self.both = nn.Parameter(torch.randn(10, 192) / 14)
        self.body, self.head = nn.Linear(5, 5), nn.Linear(5, 5)
        self.stack = nn.ParameterList([nn.Parameter(torch.randn(5) / 2) for _ in range(2)])

    def forward(self, x):
        one, other = self.both.chunk(2)
        z = F.linear(x.flatten(1), one).tanh() * F.linear(x.flatten(1), other)
        z = self.body(z).tanh() + 0.1 * self.body.weight.unbind()[0].sum() * z
        written = torch.zeros(5, dtype=z.dtype)
        written[1:3] = self.stack[0][:2]
        return self.head(z) + torch.stack(list(self.stack)).sum(0) + written


class Sequences(nn.Module):
    """Rows of pixels through a recurrent layer."""

    def __init__(self, layer, width):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 5)

    def forward(self, x):
        x = x.flatten(1, 2).transpose(1, 2)
        return self.head(
            self.layer(x if self.layer.batch_first else x.transpose(0, 1))[0].flatten(2).mean(1)
        )


class Tokens(nn.Module):
    """Patches of 4×4 pixels through a layer for sequences."""

    def __init__(self, layer):
        super().__init__()
        self.enter, self.layer, self.head = nn.Linear(48, 16), layer, nn.Linear(16, 5)

    def forward(self, x):
        z = self.enter(F.unfold(x, 4, stride=4).transpose(1, 2))
        z = (
            self.layer(z, z, z)[0]
            if isinstance(self.layer, nn.MultiheadAttention)
            else self.layer(z)
        )
        return self.head(z.mean(1))


class Attention(nn.Module):
    """4-D fused attention of query, key and value."""

    def __init__(self, **options):
        super().__init__()
        self.enter, self.options = nn.Linear(16, 48), options

    def forward(self, z):
        q, k, v = self.enter(z).unflatten(2, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return z + F.scaled_dot_product_attention(q, k, v, **self.options).transpose(1, 2).flatten(
            2
        )


def encoder(**options):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options)
    return Tokens(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))


def hard(*layers):
    return nn.Sequential(nn.Conv2d(3, 6, 3), *layers, nn.Flatten(), nn.Linear(216, 5))


def rows(layer, width):
    return Sequences(layer, width)


SMALL = {
    **{f"mixes: {how}": lambda how=how: Mixing(how) for how in HOW},
    "parts of parameters": Parts,
    "hardsigmoid": lambda: hard(nn.Hardsigmoid()),
    "hardswish": lambda: hard(nn.Hardswish()),
    "both in place": lambda: hard(nn.Hardswish(inplace=True), nn.Hardsigmoid(inplace=True)),
    "group norm": lambda: hard(nn.GroupNorm(2, 6), nn.GELU()),
    "instance norm": lambda: hard(nn.InstanceNorm2d(6, affine=True), nn.SiLU()),
    "layer norm": lambda: hard(nn.LayerNorm([6, 6, 6]), nn.ELU()),
    "grouped convolution": lambda: hard(nn.Conv2d(6, 6, 3, padding="same", groups=3), nn.Mish()),
    "weight norm": lambda: hard(
        nn.utils.parametrizations.weight_norm(nn.Conv2d(6, 6, 3, padding=1))
    ),
    "batch norm of vectors": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(192, 6), nn.BatchNorm1d(6), nn.Linear(6, 5)
    ),
    "lstm": lambda: rows(nn.LSTM(24, 6, 2, batch_first=True, bidirectional=True), 12),
    "lstm with projection": lambda: rows(
        nn.LSTM(24, 6, proj_size=4, bias=False, batch_first=True), 4
    ),
    "gru": lambda: rows(nn.GRU(24, 6, batch_first=True), 6),
    "rnn": lambda: rows(nn.RNN(24, 6, batch_first=True), 6),
    "rnn of relus": lambda: rows(nn.RNN(24, 6, nonlinearity="relu", batch_first=True), 6),
    "attention of many heads": lambda: Tokens(nn.MultiheadAttention(16, 2, batch_first=True)),
    "encoder": encoder,
    "encoder, norm first": lambda: encoder(norm_first=True, activation="gelu"),
    "fused attention": lambda: Tokens(Attention()),
    "fused attention, causal": lambda: Tokens(Attention(is_causal=True, scale=0.3)),
    "fused attention, masked": lambda: Tokens(
        Attention(attn_mask=torch.tensor([[True, True, False, True]] * 4))
    ),
}


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("name", SMALL)
def test_gradients_are_torchs_to_second_order(name, k):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*oneDNN")
        assert_gradients_are_torchs(seeded(SMALL[name]), 8, k=k)


@pytest.mark.parametrize("name", SMALL)
def test_any_network_is_observed_and_attacked(name):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*oneDNN")
        model = seeded(SMALL[name])
        images, labels = photographs(3, 8), torch.tensor([0, 1, 4])
        seen = observe(model, images, labels)
        for row, image, label in zip(seen.gradients, images.split(1), labels.split(1), strict=True):
            torch.testing.assert_close(row, flat(plain(model, image, label)), rtol=1e-3, atol=1e-5)
        with torch.no_grad():
            found = atslib.reconstruct(seen, SHORT, rng=0)
        assert found.cost.isfinite().all()
        truth = atslib.reconstruct(
            seen, dataclasses.replace(SHORT, steps=1, lr=1e-12), rng=0, start=images
        )
        assert (truth.cost < 1e-4).all()  # the truth explains what was sent


def test_forms_of_layers_have_torchs_values():
    x, y = (torch.randn(2, 3, 4, 8, generator=rng(0, part), dtype=torch.float64) for part in "xy")
    mask = torch.tensor(
        [[True, False, True, False], [False] * 4, [True] * 4, [False, True, True, True]]
    )
    calls = [
        (F.hardsigmoid, (4 * x,), {}),
        (F.layer_norm, (x, (4, 8)), {}),
        (F.layer_norm, (x, (8,), y[0, 0, 0], y[0, 0, 1]), {"eps": 0.1}),
        (F.instance_norm, (x,), {}),
        (F.instance_norm, (x,), {"weight": y[0, :, 0, 0], "bias": y[1, :, 0, 0], "eps": 0.1}),
        (torch.cdist, (x, y), {}),
        (torch.cdist, (x, y), {"p": 1.0}),
        (torch.linalg.vector_norm, (x,), {"dim": (1, 3)}),
        (torch.linalg.vector_norm, (x,), {"ord": 3.0, "dim": -1, "keepdim": True}),
        (torch.norm, (x,), {}),
        (torch.norm, (x,), {"p": 2, "dim": 1}),
        (torch.norm, (x,), {"p": 1, "dim": 1}),
        (torch.Tensor.norm, (x,), {"dim": (2, 3), "keepdim": True}),
        (torch.linalg.norm, (x[0, 0, 0],), {}),
        (torch.linalg.norm, (x[0, 0],), {"ord": 2}),
        (torch.linalg.norm, (x,), {"dim": 1}),
        (F.normalize, (x,), {}),
        (F.normalize, (x,), {"p": 1.0, "dim": -1, "eps": 3.0}),
        (F.cosine_similarity, (x, y), {}),
        (F.cosine_similarity, (x, y[:1, :1]), {"dim": 2, "eps": 2.0}),
        (F.scaled_dot_product_attention, (x, y, x), {"attn_mask": mask}),
        (F.scaled_dot_product_attention, (x, y, x), {"attn_mask": mask.double().log()}),
        (F.scaled_dot_product_attention, (x, y[:, :1], x[:, :1]), {"enable_gqa": True}),
        (
            F.scaled_dot_product_attention,
            (x, y[..., :3, :], x[..., :3, :]),
            {"is_causal": True, "scale": 2.0},
        ),
    ]
    for function, args, options in calls:
        ours, torchs = LAYERS[function](*args, **options), function(*args, **options)
        torch.testing.assert_close(ours, torchs, msg=f"{function.__name__} {options.keys()}")


AT_ZERO = {
    "cdist": lambda x: torch.cdist(x, x),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "norm": lambda x: x.norm(dim=-1),
    "torch.norm": lambda x: torch.norm(x, dim=-1),
    "linalg.norm": lambda x: torch.linalg.norm(x, dim=-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "cosine_similarity": lambda x: F.cosine_similarity(x, torch.ones_like(x), dim=-1),
}


@pytest.mark.parametrize("name", AT_ZERO)
def test_second_derivatives_are_finite_at_zero_and_do_not_spoil_the_others(name):
    function = AT_ZERO[name]
    x = torch.tensor([[0.0, 0, 0], [1, 2, 3], [0, 0, 0]], dtype=torch.float64, requires_grad=True)
    with SameRules():
        (first,) = torch.autograd.grad(function(x).square().cos().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first[1].sum(), x)
    assert first.isfinite().all()
    assert second.isfinite().all()
    one = x[1:2].detach().requires_grad_()  # without a row of zeros it is torch's own
    (alone,) = torch.autograd.grad(
        function(one).square().cos().sum(), one, create_graph=True, materialize_grads=True
    )
    if name not in ("cdist",):
        torch.testing.assert_close(first[1:2], alone)


class Distances(nn.Module):
    """Distances of an image's rows to each other: equal rows are at 0."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(36, 3)

    def forward(self, x):
        rows = x[:, 0]
        return self.head(torch.cdist(rows, rows).flatten(1))


def test_a_signed_attack_moves_where_points_are_equal():
    model = seeded(Distances)
    seen = observe(model, photographs(2, 6), torch.tensor([0, 1]))
    found = atslib.reconstruct(seen, SHORT, rng=0)
    assert not found.stuck.any()
    assert found.images.isfinite().all()


class Root(nn.Module):
    """A power whose second derivative is infinite at 0, where the middle column always is."""

    def forward(self, x):
        return (x - x.flip(-1)).abs() ** 1.5


class Entropy(nn.Module):
    """Not finite in what the layers behind it make of it alone, since ReLU hides its own nan."""

    def forward(self, x):
        return torch.special.entr(x.relu())


@pytest.mark.parametrize("kind", [Root, Entropy])
def test_a_second_derivative_that_is_not_finite_is_told_with_its_layer(kind):
    model = seeded(
        lambda: nn.Sequential(nn.Conv2d(3, 2, 3), kind(), nn.Flatten(), nn.Linear(18, 3))
    )
    seen = observe(model, photographs(1, 5), torch.tensor([0]))
    with refused(f"layer '1.1' ({kind.__name__})", "second derivative is not finite"):
        atslib.reconstruct(seen, SHORT, rng=0)


class Odd(nn.Module):
    """A layer that torch cannot differentiate twice."""

    def forward(self, x):
        return _Once.apply(x)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, out):
        return _Never.apply(out)


class _Never(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out):
        return out.clone()

    @staticmethod
    def backward(ctx, further):
        raise RuntimeError("derivative for odd_backward is not implemented")


def test_a_layer_without_a_second_derivative_is_named():
    model = seeded(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 6), Odd(), nn.Tanh(), nn.Linear(6, 5))
    )
    seen = observe(model, photographs(1, 8), torch.tensor([0]))  # the first is there
    with refused("layer '1.2' (Odd) cannot be attacked: torch has no second derivative of it"):
        atslib.reconstruct(seen, SHORT, rng=0)


def test_two_layers_in_place_in_a_row_are_refused_in_one_sentence():
    layers = nn.ReLU(inplace=True), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(192, 5)
    model = seeded(lambda: nn.Sequential(*layers))
    seen = observe(model, photographs(2, 8), torch.tensor([0, 1]))  # the first derivative is there
    with refused("cannot be attacked: torch has no second derivative of it", "inplace"):
        atslib.reconstruct(seen, SHORT, rng=0)


def test_a_network_whose_way_depends_on_its_input_is_run_one_by_one():
    class Forked(nn.Sequential):
        def forward(self, x):
            z = self[0](x.flatten(1))
            return self[1](z) if z.sum() > 0 else self[2](z)

    def make():
        return Forked(nn.Linear(192, 6), nn.Linear(6, 5), nn.Linear(6, 5))

    assert_gradients_are_torchs(seeded(make), 8)


def test_a_way_that_depends_on_values_is_each_images_own_also_where_a_probe_goes_one_way():
    class Turned(nn.Sequential):
        def forward(self, x):
            z = super().forward(x)
            return (
                z if x.mean() > 0.9 else -z
            )  # a probe of random images is darker, and so are both

    model = seeded(lambda: Turned(nn.Flatten(), nn.Linear(192, 5)))
    images = torch.stack([torch.full((3, 8, 8), 0.95), torch.full((3, 8, 8), 0.1)])
    labels = torch.tensor([0, 1])
    seen = observe(model, images, labels).gradients
    for row, image, label in zip(seen, images.split(1), labels.split(1), strict=True):
        torch.testing.assert_close(row, plain_gradient(model, image, label))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("how", ["script", "trace"])
def test_scripted_networks_are_run_one_by_one_or_refused(how):
    layers = nn.Flatten(), nn.Linear(192, 6), nn.Sigmoid(), nn.Linear(6, 5)
    model = seeded(lambda: nn.Sequential(*layers))
    whole = (
        torch.jit.script(model[1])
        if how == "script"
        else torch.jit.trace(model[1], photographs(1, 8))
    )
    images, labels = photographs(2, 8), torch.tensor([0, 1])
    seen = observe(nn.Sequential(model[0], whole), images, labels)
    torch.testing.assert_close(seen.gradients, observe(model, images, labels).gradients)
    found = atslib.reconstruct(seen, SHORT, rng=0)
    torch.testing.assert_close(
        found.images, atslib.reconstruct(observe(model, images, labels), SHORT, rng=0).images
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["lenet", "resnet20-1", "convnet-4"])
def test_networks_of_low_precision_share_what_torch_makes_of_them(name, dtype):
    model = atslib.build_model(name, 10, rng=0).to(dtype)
    images, labels = photographs(2, 32), torch.tensor([1, 2])
    seen = observe(model, images, labels)
    assert seen.gradients.dtype == dtype
    for row, image, label in zip(
        seen.gradients, images.to(dtype).split(1), labels.split(1), strict=True
    ):
        wanted = flat(plain(copy.deepcopy(model).float(), image.float(), label))
        assert float((row.float() - wanted).norm()) < 0.15 * float(wanted.norm())
    found = atslib.reconstruct(seen, SHORT, rng=0)
    assert found.images.isfinite().all()
    assert atslib.psnr(found.images, images.to(dtype)).dtype == torch.float32


# --- what is shared ----------------------------------------------------------------------------------------------


def frozen(name="lenet-4", but="3."):
    model = atslib.build_model(name, 10, rng=0)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parameter in list(model.parameters())[-2:]:
        parameter.requires_grad_(True)
    return model


def test_frozen_parameters_are_not_shared():
    model, images, labels = frozen(), photographs(2, 32), torch.tensor([1, 2])
    seen = observe(model, images, labels)
    last = list(model.parameters())[-2:]
    assert seen.gradients.shape == (2, sum(p.numel() for p in last))
    for row, image, label in zip(seen.gradients, images.split(1), labels.split(1), strict=True):
        torch.testing.assert_close(row, flat(plain(model, image, label)))
    assert infer_labels(seen).flatten().tolist() == labels.tolist()
    assert restore_labels(seen, rng=0).flatten().tolist() == labels.tolist()
    features = nn.Sequential(model[0], model[1][:-1])(images)
    torch.testing.assert_close(last_features(seen.updates[0]), features, rtol=1e-3, atol=1e-4)
    assert atslib.reconstruct(seen, SHORT, rng=0).cost.isfinite().all()
    local = observe_weights(model, images, labels, local=LocalTraining(lr=0.1), rng=0)
    torch.testing.assert_close(
        local.updates[0].mean_gradients, seen.gradients, rtol=1e-3, atol=1e-5
    )


def test_a_network_that_is_wholly_frozen_shares_nothing():
    model = frozen().requires_grad_(False)
    with refused("has frozen parameters only"):
        observe(model, photographs(1, 32), torch.tensor([1]))
    with refused("has frozen parameters only"):
        atslib.fit(model, toy(4), TrainConfig(epochs=1), rng=0)


@pytest.mark.parametrize("frozen", [-1, -2])
def test_labels_are_not_read_off_a_frozen_head_but_its_bias_alone_tells_them(frozen):
    model = atslib.build_model("lenet-4", 10, rng=0)
    weight, bias = list(model.parameters())[-2:]

    def seen():
        labels = torch.tensor([1])
        return observe(model, photographs(1, 32), labels, threat=ThreatModel(labels="inferred"))

    (weight, bias)[frozen].requires_grad_(False)
    with refused("the last layer is frozen"):
        last_features(seen().updates[0])
    if frozen == -2:  # the gradient of the bias is probability minus label
        assert infer_labels(seen()).tolist() == [[1]]
    weight.requires_grad_(False)
    bias.requires_grad_(False)
    with refused("the last layer '1.7' is frozen"):
        infer_labels(seen())


class HeadFirst(nn.Module):
    """Its last layer was registered before its body."""

    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(20, 8), nn.Linear(192, 20)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)).sigmoid())


def test_the_head_is_found_by_running_the_network():
    model, labels = seeded(HeadFirst), torch.arange(8)
    seen = observe(model, photographs(8, 8), labels)
    assert infer_labels(seen).flatten().tolist() == labels.tolist()
    assert restore_labels(seen, rng=0).flatten().tolist() == labels.tolist()
    features = model[1].body(model[0](photographs(8, 8)).flatten(1)).sigmoid()
    torch.testing.assert_close(last_features(seen.updates[0]), features, rtol=1e-3, atol=1e-4)
    by_hand = Observed(
        (Update(copy.deepcopy(model), seen.gradients),),
        None,
        (3, 8, 8),
        ThreatModel(labels="inferred"),
    )
    assert infer_labels(by_hand).flatten().tolist() == labels.tolist()
    optimized = dataclasses.replace(by_hand, threat=ThreatModel(labels="optimized"))
    assert atslib.reconstruct(optimized, SHORT, rng=0).labels.max() < 8


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"gradients": torch.zeros(2, 7)},
            "Update.gradients are float32 of shape (2, 7); they must be floats (N, ",
        ),
        ({"gradients": torch.zeros(2, 3, 4)}, "Update.gradients are"),
        ({"gradients": [1, 2]}, "Update.gradients are list"),
        ({"kept": torch.ones(2, 3)}, "Update.kept is"),
        ({"features": torch.ones(5, 3)}, "Update.features is"),
        (
            {"statistics": {"1.running_mean": torch.ones(5, 3)}},
            "Update.statistics['1.running_mean'] is",
        ),
        ({"statistics": None}, "Update.statistics None must be"),
        ({"model": "lenet"}, "Update.model 'lenet' must be"),
    ],
)
def test_an_update_of_ones_own_must_fit_its_network(changes, said):
    update = observe(
        atslib.build_model("lenet-2", 10, rng=0), photographs(2, 32), torch.tensor([1, 2])
    ).updates[0]
    with refused(said):
        dataclasses.replace(update, **changes)


# --- dropout -------------------------------------------------------------------------------------------------------


class Dropping(nn.Module):
    """Dropout as a layer and as a function."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(192, 40), nn.Dropout(0.5), nn.Linear(40, 5)

    def forward(self, x):
        return self.last(F.dropout(self.drop(self.first(x.flatten(1)).tanh()), 0.3, self.training))


def test_a_client_in_train_mode_draws_its_dropout_and_the_attacker_does_not():
    model, images, labels = seeded(Dropping), photographs(6, 8), torch.arange(6) % 5
    threat, before = ThreatModel(victim="train"), torch.random.get_rng_state()
    with refused(
        "draws at random in train mode, as dropout does: give observe rng=atslib.rng(seed)"
    ):
        observe(model, images, labels, threat=threat)
    one, again, other = (
        observe(model, images, labels, threat=threat, rng=seed) for seed in (0, 0, 1)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one.gradients, again.gradients)
    assert not torch.equal(one.gradients, other.gradients)
    rows = one.gradients[:, : 192 * 40].unflatten(1, (40, 192)).abs().sum(2)
    assert (
        0.5 < float((rows == 0).float().mean()) < 0.8
    )  # 0.65 of the requests are dropped, others for each image
    assert len({tuple((row == 0).tolist()) for row in rows}) == 6
    assert not one.model.training
    assert not torch.equal(one.model(images[:1]), torch.zeros(1, 5))
    assert torch.equal(one.model(images), one.model(images))
    eval_mode = observe(model, images, labels)
    torch.testing.assert_close(eval_mode.gradients[0], flat(plain(model, images[:1], labels[:1])))
    assert atslib.reconstruct(one, SHORT, rng=0).cost.isfinite().all()


def toy(count, side=8, classes=5):
    pixels = torch.randint(256, (count, 3, side, side), generator=rng(0, "toy"), dtype=torch.uint8)
    return Images(
        pixels, torch.arange(count) % classes, tuple("abcdefghij")[:classes], "toy", "train"
    )


def test_training_with_dropout_is_the_same_from_run_to_run_and_when_resumed(tmp_path):
    config = TrainConfig(epochs=3, batch=4, crop_flip=False)

    def trained(noise, **options):
        torch.manual_seed(noise)  # what else a program draws must not matter
        model = seeded(Dropping)
        atslib.fit(model, toy(12), config, rng=0, **options)
        return flat(dict(model.named_parameters()))

    def stop():
        raise KeyboardInterrupt

    whole = trained(1)
    assert torch.equal(whole, trained(2))
    with pytest.raises(KeyboardInterrupt):
        trained(3, checkpoint=tmp_path / "state", on_saved=stop)
    assert torch.equal(whole, trained(4, checkpoint=tmp_path / "state"))


def test_private_training_leaves_frozen_parameters():
    model = frozen()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    data = toy(8, side=32)
    atslib.fit(
        model, data, TrainConfig(epochs=1, batch=4, defense="dp:0.1", crop_flip=False), rng=0
    )
    changed = [name for name, p in model.named_parameters() if not torch.equal(p, before[name])]
    assert changed == list(shared_parameters(model))


def test_a_last_batch_of_one_that_a_layer_cannot_normalize_is_refused_before_training():
    layers = nn.Flatten(), nn.Linear(192, 6), nn.BatchNorm1d(6), nn.Linear(6, 5)
    model = seeded(lambda: nn.Sequential(*layers))
    config = TrainConfig(epochs=1, batch=4, crop_flip=False)
    with refused(
        "9 images in batches of 4 leave one of a single image, which layer '1.2' (BatchNorm1d)"
    ):
        atslib.fit(model, toy(9), config, rng=0)
    assert len(atslib.fit(model, toy(8), config, rng=0).history) == 1
    spatial = atslib.build_model(
        "resnet20-1", 5, rng=0
    )  # these have more than one value per channel
    assert (
        len(
            atslib.fit(
                spatial, toy(3, side=32), dataclasses.replace(config, batch=2), rng=0
            ).history
        )
        == 1
    )


def test_evaluation_leaves_every_layer_in_its_mode():
    model = atslib.build_model("resnet20-1", 5, rng=0).train()
    model[1].bn.eval()
    before = [layer.training for layer in model.modules()]
    atslib.evaluate(model, toy(4, side=32))
    assert [layer.training for layer in model.modules()] == before


# --- networks that tell nothing ---------------------------------------------------------------------------------


def test_a_network_with_one_score_is_refused():
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 1)))
    with refused("gives 1 score per image, of which the cross-entropy is always 0"):
        observe(model, photographs(1, 8), torch.tensor([0]))


def test_a_network_of_nan_chooses_no_policy():
    model, images = (
        atslib.build_model("lenet-2", 10, norm="shapes", rng=0),
        atslib.load("shapes", "test")[:4],
    )
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with refused("nan or infinite"):
        atslib.privacy_score(model, images, "3", rng=0)
    with refused("nan or infinite"):
        accuracy_score(model, images, "3", rng=0)
    small = atslib.SearchConfig(candidates=2, images=2, acc_images=2, points=2, keep=1)
    with refused("nan or infinite"):
        atslib.search(small, model, model, images, seed=0)


def test_constants_in_requests_of_pixels_are_refused():
    with refused(
        "images are in [0, 1], and these constants are not; divide those of 0..255 by 255"
    ):
        Normalize((125.3, 123.0, 113.9), (63.0, 62.1, 66.7))


def test_a_network_that_mixes_its_batch_scores_each_image_alone():
    model, images = seeded(lambda: Mixing("neighbour")), toy(6)
    whole = accuracy_score(model, images, "3", rng=0)
    by_torch = torch.stack([
        torch.autograd.functional.jacobian(lambda x: model(x).sum(), x)[0]
        for x in (atslib.scores.scores.transformed(images, atslib.parse_policy("3"), seed=seed_of()) / 255).split(1)
    ])  # fmt: skip
    assert whole == pytest.approx(
        atslib.scores.scores.jacobian_score(by_torch.flatten(1)), rel=1e-3
    )


def seed_of():
    """The integer that scores take from the stream of seed 0."""
    return int(torch.randint(1 << 62, (1,), generator=rng(0)))
