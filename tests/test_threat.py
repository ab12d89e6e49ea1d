"""What leaves the client: its gradient, as its mode and defense make it, and no image."""

import copy
import dataclasses

import pytest
import torch
from checks import plain_gradient, refused

from atslib.attacks import GradientMatching, reconstruct
from atslib.attacks.objective import Objective
from atslib.clients.defenses.defense import Defense
from atslib.clients.defenses.perturbations import Perturbation
from atslib.clients.observe import Knowledge, Observed, ThreatModel, Update, observe
from atslib.errors import AtsError
from atslib.gradients.problems import DISTANCES, example_gradients, problem_gradients, unflatten
from atslib.models import BatchNorm, Normalize, build_model
from atslib.policies.policy import Hybrid
from atslib.rng import rng

LABELS = torch.tensor([2, 0, 4, 1])
PIXELS = torch.rand(4, 3, 9, 9, generator=rng(0, "pixels"), dtype=torch.float64)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def model():
    """A small network whose running statistics come from other images."""
    network = build_model("convnet-4", 5, image_size=9, rng=rng(0)).double().train()
    for i in range(2):
        network(torch.rand(8, 3, 9, 9, generator=rng(0, "seen", i), dtype=torch.float64))
    return network.eval()


def tensors(value):
    """Every tensor reachable from an `Observed`."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        for module in value.modules():
            yield from (v for v in vars(module).values() if isinstance(v, torch.Tensor))
        yield from value.state_dict().values()
    elif isinstance(value, dict | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name))


@pytest.mark.parametrize("victim", ["eval", "train"])
@pytest.mark.parametrize("batch", [1, 2])
def test_no_image_leaves_the_client(model, victim, batch):
    seen = observe(model, PIXELS, LABELS, threat=ThreatModel(victim=victim, batch=batch))
    held = list(tensors(seen))
    assert any(t is seen.gradients for t in held)
    rows = torch.cat([PIXELS.flatten(1), model[0](PIXELS).flatten(1)])
    for tensor in held:
        if tensor.numel() and tensor.numel() % rows.shape[1] == 0:
            assert torch.cdist(tensor.double().reshape(-1, rows.shape[1]), rows).min() > 1e-3
    assert seen.shape == (3, 9, 9)


def test_the_gradient_is_the_clients(model):
    seen = observe(model, PIXELS, LABELS)
    torch.testing.assert_close(
        seen.gradients, example_gradients(model, PIXELS, LABELS), rtol=0, atol=1e-12
    )
    assert len(seen) == 4
    assert not seen.gradients.requires_grad
    assert seen.statistics == {}
    assert [update.kind for update in seen.updates] == ["gradient"]
    assert not seen.model.training


def test_a_long_list_of_clients_is_the_same_as_each_alone(model):
    pixels, labels = (
        PIXELS.repeat(5, 1, 1, 1)[:18],
        LABELS.repeat(5)[:18],
    )  # observe works in runs of 16
    together = observe(model, pixels, labels).gradients
    torch.testing.assert_close(together, observe(model, PIXELS, LABELS).gradients.repeat(5, 1)[:18])


def test_a_gradient_of_several_images_is_their_mean(model):
    seen = observe(model, PIXELS, LABELS, threat=ThreatModel(batch=2))
    mean = example_gradients(model, PIXELS, LABELS).unflatten(0, (2, 2)).mean(1)
    torch.testing.assert_close(seen.gradients, mean, rtol=1e-9, atol=1e-12)
    assert seen.labels.tolist() == [[2, 0], [4, 1]]


@pytest.mark.parametrize(
    ("labels", "left"), [("known", LABELS[:, None]), ("inferred", None), ("optimized", None)]
)
def test_labels_leave_only_where_they_are_known(model, labels, left):
    seen = observe(model, PIXELS, LABELS, threat=ThreatModel(labels=labels)).labels
    assert (seen is left is None) or torch.equal(seen, left)


def test_a_defense_acts_on_the_shared_gradient(model):
    clean = observe(model, PIXELS, LABELS).gradients
    pruned = observe(model, PIXELS, LABELS, defense="prune:0.5").gradients
    names = [name for name, _ in model.named_parameters()]
    expected = Perturbation("prune", 0.5).after(
        dict(zip(names, unflatten(clean, model), strict=True))
    )
    for ours, kept in zip(unflatten(pruned, model), expected.values(), strict=True):
        torch.testing.assert_close(ours, kept, rtol=0, atol=0)
    noisy = [
        observe(model, PIXELS, LABELS, defense="gaussian:0.1", rng=r).gradients
        for r in (rng(1), 1, rng(2))
    ]
    assert torch.equal(noisy[0], noisy[1])  # a seed is a stream
    assert not torch.equal(noisy[0], noisy[2])
    assert (noisy[0] - clean).std().item() == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_client_in_train_mode_uses_the_statistics_of_its_own_images(model, batch):
    seen = observe(model, PIXELS, LABELS, threat=ThreatModel(victim="train", batch=batch))
    for i, gradient in enumerate(seen.gradients):
        part = slice(i * batch, (i + 1) * batch)
        expected = plain_gradient(copy.deepcopy(model).train(), PIXELS[part], LABELS[part])
        torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=1e-11)
    evaluated = observe(model, PIXELS, LABELS, threat=ThreatModel(batch=batch)).gradients
    assert (seen.gradients - evaluated).abs().max() > 1e-3


@pytest.mark.parametrize("victim", ["eval", "train"])
@pytest.mark.parametrize("batch_norm", ["known", "unknown"])
@pytest.mark.parametrize("training", [True, False])
def test_the_callers_model_stays_as_it_is(model, victim, batch_norm, training):
    model.train(training)
    before = copy.deepcopy(model.state_dict())
    seen = observe(model, PIXELS, LABELS, threat=ThreatModel(victim=victim, batch_norm=batch_norm))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(layer.training == training for layer in model.modules())
    assert all(
        layer.track_running_stats for layer in model.modules() if isinstance(layer, BatchNorm)
    )
    assert not any(layer._forward_pre_hooks for layer in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert not {id(p) for p in model.parameters()} & {id(p) for p in seen.model.parameters()}


def distance_at_the_truth(seen, batch):
    problems, labels = (part.unflatten(0, (-1, batch)) for part in (PIXELS, LABELS))
    gradients = problem_gradients(seen.model, problems, labels, buffers=seen.statistics)
    target = unflatten(seen.gradients, seen.model)
    return DISTANCES["cosine"](gradients, target)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("victim", "batch_norm", "least", "most"),
    [
        ("eval", "known", -1, 1e-12),
        ("train", "unknown", -1, 1e-12),
        ("train", "known", -1, 1e-6),
        ("eval", "unknown", 0.1, 2),
    ],
)
def test_an_attacker_that_runs_the_clients_batch_norm_finds_its_gradient(
    model, victim, batch_norm, batch, least, most
):
    """At the truth; unknown statistics hide a client in eval mode."""
    seen = observe(
        model, PIXELS, LABELS, threat=ThreatModel(victim=victim, batch_norm=batch_norm, batch=batch)
    )
    distance = distance_at_the_truth(seen, batch).abs()
    assert least < distance.min() <= distance.max() < most


@pytest.mark.parametrize("batch", [1, 2])
def test_known_batch_statistics_are_those_of_the_clients_forward_pass(model, batch):
    """With them the attacker's eval mode gives the client's logits."""
    seen = observe(model, PIXELS, LABELS, threat=ThreatModel(victim="train", batch=batch))
    layers = [name for name, layer in model.named_modules() if isinstance(layer, BatchNorm)]
    assert set(seen.statistics) == {
        f"{name}.{kind}" for name in layers for kind in ("running_mean", "running_var")
    }
    for i, images in enumerate(PIXELS.unflatten(0, (-1, batch))):
        attacker = copy.deepcopy(seen.model)
        attacker.load_state_dict(
            {name: value[i] for name, value in seen.statistics.items()}, strict=False
        )
        torch.testing.assert_close(
            attacker(images), copy.deepcopy(model).train()(images), rtol=1e-9, atol=1e-11
        )


def test_take_is_the_view_of_some_gradients(model):
    seen = observe(model, PIXELS, LABELS, threat=ThreatModel(victim="train"))
    draws = (torch.arange(4)[:, None], torch.arange(8).view(4, 1, 2))
    seen = dataclasses.replace(seen, knows=Knowledge("3-1", (draws,)))
    part = seen.take(torch.tensor([2, 0]))
    assert isinstance(part, Observed)
    assert len(part) == 2
    assert torch.equal(part.gradients, seen.gradients[[2, 0]])
    assert part.labels.tolist() == [[4], [2]]
    assert [draw.tolist() for draw in part.knows.draws[0]] == [[[2], [0]], [[[4, 5]], [[0, 1]]]]
    assert all(
        torch.equal(value, seen.statistics[name][[2, 0]]) for name, value in part.statistics.items()
    )
    assert part.statistics
    assert seen.take(slice(1, 3)).labels.tolist() == [[0], [4]]
    assert dataclasses.replace(seen, labels=None).take(slice(1, 3)).labels is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"labels": "secret"},
            "ThreatModel.labels 'secret' is unknown; choose one of known, inferred, restored,",
        ),
        (
            {"batch_norm": "secret"},
            "ThreatModel.batch_norm 'secret' is unknown; choose one of known, unknown",
        ),
        ({"victim": "secret"}, "ThreatModel.victim 'secret' is unknown; choose one of eval, train"),
        ({"batch": 0}, "at least one image"),
        ({"batch": 1.5}, "ThreatModel.batch=1.5 must be a whole number"),
        ({"labels": "inferred", "batch": 2}, "needs batch=1"),
    ],
)
def test_a_wrong_or_impossible_threat_is_told_the_rule(options, message):
    with refused(message):
        ThreatModel(**options)


WRONG = {
    "one image": (
        {"images": PIXELS[0]},
        r"images are float64 of shape \(3, 9, 9\); they must be floats \(B, C",
    ),
    "pixels": ({"images": PIXELS.mul(255).byte()}, "images are uint8 .*; they must be floats"),
    "0..255": ({"images": PIXELS * 255}, r"images go from .* to 25\d.*; they must be in \[0, 1\]"),
    "-1..1": ({"images": PIXELS * 2 - 1}, r"images go from -0.9.* to .*; they must be in \[0, 1\]"),
    "not a number": ({"images": PIXELS * torch.nan}, "images go from nan to nan"),
    "a list": ({"images": [[0.5]]}, "images are list; they must be floats"),
    "none": ({"images": PIXELS[:0], "labels": LABELS[:0]}, "are none; give at least one"),
    "batch": (
        {"threat": ThreatModel(batch=3)},
        r"4 images do not make gradients of 3 \(ThreatModel.batch\)",
    ),
    "grey": (
        {"images": PIXELS[:, :1]},
        "it takes 3 channels and the images have 1; convert the images",
    ),
    "size": (
        {"images": PIXELS[..., :8, :8]},
        r"Sequential does not take images of shape \(3, 8, 8\): ",
    ),
    "few labels": ({"labels": LABELS[:3]}, r"labels of shape \(3,\) for 4 images"),
    "high label": ({"labels": LABELS + 1}, r"label 5 is outside 0\.\.4"),
    "ignored label": ({"labels": LABELS - 102}, r"label -100 is outside 0\.\.4"),
    "float labels": (
        {"labels": LABELS.float()},
        r"labels are float32 of shape \(4,\); they must be whole numbers",
    ),
    "one-hot": (
        {"labels": torch.eye(5)[LABELS]},
        r"labels are float32 of shape \(4, 5\); they must be whole numbers",
    ),
    "noise without a stream": ({"defense": "gaussian:1e-3"}, "give it rng="),
    "no threat": ({"threat": "known"}, "threat 'known' must be an atslib.ThreatModel"),
    "no network": ({"model": len}, "model <built-in function len> must be a torch.nn.Module"),
    "no parameters": (
        {"model": torch.nn.Sequential(Normalize((0.5,), (0.2,)))},
        "Sequential has no parameters",
    ),
    "text for a stream": (
        {"rng": "0"},
        r"rng '0' must be a stream, atslib.rng\(seed\), or the seed itself",
    ),
    "half a seed": ({"rng": 1.5}, "rng 1.5 must be a stream"),
    "one-hot, whole": (
        {"labels": torch.eye(5).long()[LABELS]},
        r"labels of shape \(4, 5\) for 4 images",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_makes_no_gradients_is_refused_in_one_sentence(what):
    given, message = WRONG[what]
    model = build_model(
        "convnet-4", 5, image_size=9, norm=((0.5, 0.4, 0.3), (0.25, 0.2, 0.3)), rng=rng(0)
    ).double()
    with pytest.raises(AtsError, match=message) as error:
        observe(**({"model": model, "images": PIXELS, "labels": LABELS} | given))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64])
def test_labels_may_be_any_whole_numbers_and_arrays_are_taken(model, dtype):
    plain = observe(model, PIXELS, LABELS)
    seen = observe(model, PIXELS.numpy(), LABELS.to(dtype).numpy())
    assert torch.equal(seen.gradients, plain.gradients)
    assert seen.labels.dtype == torch.int64


def test_images_take_the_precision_of_the_network(model):
    assert observe(model.float(), PIXELS, LABELS).gradients.dtype == torch.float32


class Forgetful(torch.nn.Module):
    """A network that declares its normalization and forgets it, or gives it something else than its
    input.
    """

    def __init__(self, factor=None):
        super().__init__()
        self.normalize, self.head, self.factor = (
            Normalize((0.5,), (0.25,)),
            torch.nn.Linear(243, 5),
            factor,
        )

    def forward(self, x):
        return self.head((x if self.factor is None else self.normalize(self.factor * x)).flatten(1))


def test_a_network_must_normalize_the_images_that_it_gets():
    for network in (Forgetful(), Forgetful(2.0)):
        with refused("Forgetful has a Normalize layer and does not use it on its input"):
            observe(network.double(), PIXELS, LABELS)
    with refused("Linear does not start with a Normalize layer; wrap it"):
        observe(torch.nn.Linear(2, 2), PIXELS, LABELS)
    assert observe(Forgetful(1.0).double(), PIXELS, LABELS).gradients.shape == (4, 243 * 5 + 5)


def test_gradients_that_are_not_finite_are_refused(model):
    def broken(gradients):
        return {name: g.index_fill(0, LABELS[:1], torch.nan) for name, g in gradients.items()}

    with refused("gradients [2] are not finite; check the network's weights and the defense"):
        observe(model, PIXELS, LABELS, defense=broken)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.inf)
    with refused("gives scores that are nan or infinite"):
        observe(model, PIXELS, LABELS)


def test_a_policy_as_defense_acts_on_the_images_and_the_attacker_knows_what_the_threat_says(model):
    pixels = (255 * PIXELS).round().byte()
    hybrid = Hybrid.parse("3-1-7+43-18-18")
    expected = observe(
        model, hybrid(pixels, rng=rng(1)).double() / 255, LABELS, threat=ThreatModel(batch=2)
    ).gradients
    for knows in ("unknown", "policy", "draws"):
        threat = ThreatModel(batch=2, defense=knows)
        seen = observe(
            model,
            pixels.double() / 255,
            LABELS,
            threat=threat,
            defense=[hybrid, "clip:1e9"],
            rng=rng(1),
        )
        torch.testing.assert_close(seen.gradients, expected, rtol=0, atol=0)
        assert seen.knows.policy == (None if knows == "unknown" else str(hybrid))
        assert len(seen.knows.draws) == (knows == "draws")
    ((member, signs),) = seen.knows.draws
    assert (member.shape, signs.shape) == ((2, 2), (2, 2, 3))
    redrawn = hybrid.apply_draw(pixels, member.flatten(), signs.flatten(0, 1))
    assert torch.equal(redrawn, hybrid(pixels, rng=rng(1)))
    twice = Observed.join([seen, seen])
    assert len(twice.knows.draws) == 2
    undefended = observe(model, PIXELS, LABELS, threat=ThreatModel(defense="draws"))
    assert undefended.knows == Knowledge("")


def test_a_defense_inside_wraps_the_network_and_the_attacker_runs_the_plain_one(model):
    class Squeezed(Defense):
        def inside(self, model):
            return torch.nn.Sequential(model, torch.nn.Tanh())

    seen = observe(model, PIXELS, LABELS, defense=Squeezed())
    expected = example_gradients(torch.nn.Sequential(model, torch.nn.Tanh()), PIXELS, LABELS)
    torch.testing.assert_close(seen.gradients, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(seen.model(PIXELS), model(PIXELS), rtol=0, atol=0)

    class Copied(Defense):
        def inside(self, model):
            return copy.deepcopy(model)

    with refused("Copied: inside() must wrap the network and keep its parameters"):
        observe(model, PIXELS, LABELS, defense=Copied())


# --- several rounds of the same images ---------------------------------------------------------------------


def other(seed=1, **options):
    """A network of the fixture's architecture with its own weights and running statistics."""
    network = build_model("convnet-4", 5, image_size=9, rng=rng(seed), **options).double().train()
    network(torch.rand(8, 3, 9, 9, generator=rng(seed, "seen"), dtype=torch.float64))
    return network.eval()


def test_rounds_are_updates_of_the_same_images_in_order(model):
    rounds = [
        observe(m, PIXELS, LABELS, threat=ThreatModel(victim="train"))
        for m in (model, other(), other(2))
    ]
    seen = Observed.join(rounds)
    assert len(seen) == 4
    assert [update.gradients.data_ptr() for update in seen.updates] == [
        r.gradients.data_ptr() for r in rounds
    ]
    assert seen.labels.tolist() == [[2], [0], [4], [1]]
    part = seen.take(slice(1, 3))
    for update, whole in zip(part.updates, seen.updates, strict=True):
        assert torch.equal(update.gradients, whole.gradients[1:3])
        assert all(
            torch.equal(value, whole.statistics[name][1:3])
            for name, value in update.statistics.items()
        )
    assert len(Observed.join([Observed.join(rounds[:2]), rounds[2]]).updates) == 3


@pytest.mark.parametrize("name", ["gradients", "model", "statistics"])
def test_the_single_update_is_not_asked_of_several(model, name):
    single = observe(model, PIXELS, LABELS)
    assert getattr(single, name) is getattr(single.updates[0], name)
    with refused(f"Observed.{name}: there are 2 updates; take it of each in .updates"):
        getattr(Observed.join([single, single]), name)


DIFFERENT = {
    "labels": lambda: observe(other(), PIXELS, LABELS.flip(0)),
    "gradients and parameters": lambda: observe(
        build_model("lenet", 5, image_size=9).double(), PIXELS, LABELS
    ),
    "threat": lambda: observe(other(), PIXELS, LABELS, threat=ThreatModel(batch_norm="unknown")),
    "image shape": lambda: observe(other(), torch.rand(4, 3, 10, 10).double(), LABELS),
    "normalization": lambda: observe(other(norm=((0.5,), (0.2,))), PIXELS, LABELS),
    "policy": lambda: dataclasses.replace(observe(other(), PIXELS, LABELS), knows=Knowledge("3-1")),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_rounds_of_different_images_are_told_the_first_difference(model, what):
    with refused(f"Observed.join: rounds 0 and 1 differ in {what}: "):
        Observed.join([observe(model, PIXELS, LABELS), DIFFERENT[what]()])


def test_no_round_and_draws_of_an_unknown_policy_are_refused():
    with refused("no round is given"):
        Observed.join([])
    with refused("draws of a policy that it does not know"):
        Knowledge(draws=((LABELS, LABELS),))


@pytest.mark.parametrize("threat", [{}, {"victim": "train"}, {"victim": "train", "batch": 2}])
def test_an_attack_on_rounds_descends_the_mean_of_their_distances(model, threat):
    """Each round's own cost, prior and gradient, averaged: nothing else is in the cost of several."""
    rounds = [
        observe(m, PIXELS, LABELS, threat=ThreatModel(**threat)) for m in (model, other(), other(2))
    ]
    attack = GradientMatching(penalties=(("batch-norm", 0.1),))

    def cost(seen):
        z = (PIXELS * 2 - 1).reshape(len(seen), -1).flip(1).requires_grad_()
        distance, penalty = Objective(seen, [attack] * len(seen))(z)
        return (
            distance.detach(),
            penalty.detach(),
            torch.autograd.grad((distance + penalty).sum(), z)[0],
        )

    singles = zip(*map(cost, rounds), strict=True)
    for together, apart in zip(cost(Observed.join(rounds)), singles, strict=True):
        torch.testing.assert_close(together, torch.stack(apart).mean(0), rtol=1e-9, atol=1e-12)
    assert (cost(rounds[0])[0] - cost(rounds[1])[0]).abs().max() > 1e-4


def test_several_rounds_are_attacked_like_one(model):
    seen = Observed.join([observe(m, PIXELS, LABELS) for m in (model, other())])
    attack = GradientMatching(steps=4, signed=False)
    result = reconstruct(seen, attack, rng=rng(0))
    assert result.images.shape == PIXELS.shape
    assert (result.cost < result.trace[:, 0]).all()
    chunked = reconstruct(seen, attack, rng=rng(0), chunk=3)
    torch.testing.assert_close(chunked.images, result.images, rtol=0, atol=1e-9)
    twice = Observed.join(
        [observe(model, PIXELS, LABELS)] * 2
    )  # the same update twice adds nothing
    once = reconstruct(observe(model, PIXELS, LABELS), attack, rng=rng(0))
    torch.testing.assert_close(
        reconstruct(twice, attack, rng=rng(0)).images, once.images, rtol=0, atol=1e-9
    )


def test_gradient_matching_refuses_a_difference_of_weights_by_unknown_steps(model):
    seen = observe(model, PIXELS, LABELS)
    sent = dataclasses.replace(seen.updates[0], kind="difference")
    with refused(
        "an update is a difference of weights, and Update.local does not say by which steps"
    ):
        reconstruct(
            dataclasses.replace(seen, updates=(sent,)), GradientMatching(steps=1), rng=rng(0)
        )
    with refused("Update.kind 'weights' is unknown; choose one of gradient, difference"):
        Update(model, seen.gradients, kind="weights")
