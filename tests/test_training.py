"""Training: the schedule, the step, resuming bit for bit, policies and defenses, checkpoints and
errors.
"""

import copy
import dataclasses
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from checks import Killed, flip_a_bit, refused
from safetensors.torch import save_file
from torch import nn

from atslib.clients import training
from atslib.clients.defenses.defense import Defense
from atslib.clients.training import (
    TrainConfig,
    evaluate,
    fit,
    learning_rate,
    load_checkpoint,
    save_checkpoint,
)
from atslib.data.load import load
from atslib.errors import AtsError
from atslib.models import Normalize, build_model
from atslib.policies.operations import crop_and_flip
from atslib.policies.policy import parse_policy
from atslib.rng import rng

PLAIN = TrainConfig(epochs=3, batch=8, lr=0.05, crop_flip=False)


@pytest.fixture(scope="module")
def images():
    return load("shapes", "train")[:24]


def network(name="convnet-4", seed=0):
    return build_model(name, 10, norm="shapes", rng=rng(seed))


def trained(images, config=PLAIN, seed=0, model=None, **options):
    return fit(model or network(), images, config, rng=rng(seed, "train"), **options)


def equal(one, other):
    """Whether two models hold the same bits."""
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(name == twin and torch.equal(a, b) for (name, a), (twin, b) in pairs)


def facts(done, *names):
    return [[epoch[name] for name in names] for epoch in done.history]


# --- the schedule and the step ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "milestones"),
    [(200, (74, 124, 175)), (60, (22, 37, 52)), (50, (18, 31, 43)), (40, (14, 24, 35))],
)
def test_the_step_size_falls_at_the_authors_milestones(epochs, milestones):
    """E // 2.667, E // 1.6 and E // 1.142: not 3/8, 5/8 and 7/8 of E, which give 75, 125 and 175
    for 200.
    """
    config = TrainConfig(epochs=epochs, lr=0.1)
    rates = [learning_rate(config, epoch) for epoch in range(epochs)]
    assert tuple(e for e in range(1, epochs) if rates[e] != rates[e - 1]) == milestones
    assert [rates[0], *(rates[m] for m in milestones)] == pytest.approx([0.1, 0.01, 1e-3, 1e-4])


def test_the_step_size_of_one_epoch_falls_within_it():
    config = TrainConfig(epochs=1, lr=0.1)
    rates = [learning_rate(config, step / 8) for step in range(8)]
    assert rates == pytest.approx([0.1] * 3 + [0.01] * 2 + [1e-3] * 3)
    assert learning_rate(config, 0.88) == pytest.approx(1e-4)


def test_one_cycle_is_torchs_linear_rise_and_cosine_fall():
    steps, rise = 100, 20
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.25)
    up = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / 25, 1.0, rise)
    down = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - rise)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [up, down], [rise])
    expected = []
    for _ in range(steps):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    config = TrainConfig(epochs=10, lr=0.25, schedule="onecycle")
    rates = [learning_rate(config, step / 10) for step in range(steps)]
    assert rates == pytest.approx(expected, rel=1e-6)


def test_bfloat16_trains_float32_weights_to_nearly_the_same(images):
    exact, rounded = (
        trained(images, dataclasses.replace(PLAIN, mixed_precision=mixed), model=network("lenet"))
        for mixed in (False, True)
    )
    weights = [
        torch.cat([p.flatten() for p in done.model.parameters()]) for done in (exact, rounded)
    ]
    moved = torch.cat([p.flatten() for p in network("lenet").parameters()])
    assert weights[1].dtype == torch.float32
    cosine = F.cosine_similarity(*(w - moved for w in weights), dim=0)
    assert 0.9 < cosine < 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_network_of_another_precision_trains_in_it(images, dtype):
    done = trained(images, PLAIN, model=network("lenet").to(dtype))
    plain = trained(images, PLAIN, model=network("lenet"))
    assert {p.dtype for p in done.model.parameters()} == {dtype}
    assert done.history[0]["loss"] == pytest.approx(plain.history[0]["loss"], rel=0.05)


def test_an_unknown_schedule_is_refused_with_the_known_ones():
    with pytest.raises(AtsError, match=r"cyclic.*steps, onecycle"):
        TrainConfig(schedule="cyclic")


def test_the_optimizer_gets_the_schedules_step_size(images):
    config = dataclasses.replace(PLAIN, epochs=4)  # milestones 1, 2 and 3
    told = facts(trained(images[:8], config, model=network("lenet")), "epoch", "lr")
    assert told == [[epoch, pytest.approx(0.05 * 0.1**epoch)] for epoch in range(4)]


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_step_is_torchs_with_the_loss_times_its_factor(images, factor):
    config = TrainConfig(
        epochs=1,
        batch=24,
        lr=0.07,
        momentum=0.8,
        weight_decay=0.01,
        loss_factor=factor,
        crop_flip=False,
    )
    done = trained(images, config, model=network("lenet"))
    model, order = network("lenet").train(), torch.randperm(24, generator=rng(0, "train"))
    sgd = torch.optim.SGD(
        model.parameters(), lr=0.07, momentum=0.8, nesterov=True, weight_decay=0.01
    )
    loss = F.cross_entropy(model(images.pixels[order].float() / 255), images.labels[order])
    (factor * loss).backward()
    sgd.step()
    before = network("lenet")
    for name, expected in model.named_parameters():
        start = before.get_parameter(name)
        change = done.model.get_parameter(name) - start
        assert change.abs().max() > 1e-4, name
        torch.testing.assert_close(change, expected - start, rtol=1e-3, atol=1e-6)
    assert done.history[0]["loss"] == pytest.approx(loss.item())


def test_a_short_last_batch_is_a_step_and_the_loss_is_the_mean_over_images(images):
    config, seen = dataclasses.replace(PLAIN, epochs=2, batch=5, lr=1e-12), []  # nothing moves
    done = trained(images[:7], config, model=network("lenet"), on_step=seen.append)
    expected = F.cross_entropy(network("lenet")(images.pixels[:7].float() / 255), images.labels[:7])
    assert done.history[0]["loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert seen == [1, 2, 3, 4]


def test_training_learns_32_images_by_heart():
    few = load("shapes", "train")[:32]
    config = TrainConfig(epochs=24, batch=8, lr=0.01, crop_flip=False)
    model = network("lenet")
    assert evaluate(model, few) < 50
    done = fit(model, few, config, rng=rng(0), test=few)
    assert done.history[-1]["accuracy"] == 100
    assert done.history[-1]["loss"] < done.history[0]["loss"] / 4
    assert not done.model.training


def test_accuracy_counts_hits_in_percent_in_any_chunks(images):
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(10)[images.labels[0]])

        def forward(self, x):
            assert not self.training
            assert x.min() >= 0
            assert x.max() <= 1
            return self.weight.expand(len(x), -1)

    expected = 100 * (images.labels == images.labels[0]).double().mean().item()
    assert 0 < expected < 100
    for chunk in (1, 7, 500):
        assert evaluate(Constant(), images, chunk=chunk) == pytest.approx(expected)


# --- the same again, and after a kill -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "acts",
    [{}, {"policy": "3-1-7+43-18-18"}, {"defense": "prune:0.99"}, {"defense": "gaussian:1e-3"}],
)
def test_one_stream_gives_one_set_of_weights(images, acts):
    bare = dataclasses.replace(PLAIN, crop_flip=True, epochs=2)
    config = dataclasses.replace(bare, **acts)
    first, again, seeded, other = (
        fit(network(), images, config, rng=r) for r in (rng(3), rng(3), 3, rng(4))
    )
    assert equal(first.model, again.model)
    assert equal(first.model, seeded.model)  # a seed is a stream
    assert facts(first, "loss") == facts(again, "loss")
    assert not equal(first.model, other.model)
    assert equal(first.model, fit(network(), images, bare, rng=3).model) == (not acts)


def killed(images, monkeypatch, state):
    """A run of RICH (3 steps an epoch) that dies in its fifth step, in the middle of its second
    epoch.
    """
    original, calls = torch.optim.SGD.step, []

    def step_or_die(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 5:
            raise Killed
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", step_or_die)
        with pytest.raises(Killed):
            trained(images, RICH, checkpoint=state, test=images)


RICH = dataclasses.replace(PLAIN, crop_flip=True, policy="3-1-7+43-18-18", defense="gaussian:1e-3")


def test_a_killed_run_resumes_to_the_same_bits_and_goes_on_counting(images, tmp_path, monkeypatch):
    undisturbed = trained(images, RICH, test=images)
    state, seen = tmp_path / "state", []
    killed(images, monkeypatch, state)
    assert state.exists()
    resumed = trained(images, RICH, checkpoint=state, test=images, on_step=seen.append)
    assert seen == [4, 5, 6, 7, 8, 9]  # the first epoch was kept
    assert equal(resumed.model, undisturbed.model)
    names = ("epoch", "loss", "lr", "accuracy")
    assert facts(resumed, *names) == facts(undisturbed, *names)


def test_a_run_that_is_resumed_after_its_end_trains_no_further(images, tmp_path, monkeypatch):
    first = trained(images, checkpoint=tmp_path / "state")
    monkeypatch.setattr(training._Run, "epoch", None)
    again = trained(images, checkpoint=tmp_path / "state")
    assert equal(first.model, again.model)
    assert again.history == first.history


# --- looking on ---------------------------------------------------------------------------------------------


def test_each_step_is_told_in_order_after_it_was_taken_in_train_mode(images):
    model, seen, weights = network(), [], []

    def look(step):
        seen.append(step)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        assert model.training

    looked = trained(images, model=model, test=images, on_step=look)
    assert seen == list(range(1, 10))  # three batches an epoch
    assert not any(torch.equal(one, other) for one, other in itertools.pairwise(weights))
    last = torch.cat([p.detach().flatten() for p in looked.model.parameters()])
    assert torch.equal(weights[-1], last)
    assert equal(looked.model, trained(images).model)


def test_what_the_one_who_looks_raises_ends_the_training(images):
    class Enough(Exception):
        pass

    def look(step):
        if step == 5:
            raise Enough

    model, whole, states = network(), network(), {}
    with pytest.raises(Enough):
        trained(images, model=model, on_step=look)
    trained(images, model=whole, on_step=lambda step: states.update({step: copy.deepcopy(whole)}))
    assert equal(model, states[5])
    assert not equal(model, states[6])


OTHERS = {
    "data": lambda images: {"images": images[:20]},
    "labels": lambda images: {"images": dataclasses.replace(images, labels=images.labels.flip(0))},
    "test images": lambda images: {"test": images[:5]},
    "network": lambda images: {"model": network("lenet")},
    "weights": lambda images: {"model": network(seed=1)},
    "config": lambda images: {"config": dataclasses.replace(RICH, policy="")},
    "fewer epochs": lambda images: {"config": dataclasses.replace(RICH, epochs=1)},
    "stream": lambda images: {"seed": 1},
}


@pytest.mark.parametrize("what", OTHERS)
def test_the_state_of_another_run_is_set_aside_and_training_starts_anew(
    images, tmp_path, monkeypatch, what
):
    state = tmp_path / "state"
    killed(images, monkeypatch, state)
    other = {"images": images, "config": RICH, "test": images} | OTHERS[what](images)
    with pytest.warns(
        UserWarning,
        match=r"^state is not resumed \(it is the state of another run.*now state.aside",
    ):
        anew = trained(checkpoint=state, **other)
    if "model" in other:
        other["model"] = network("lenet") if what == "network" else network(seed=1)
    assert equal(anew.model, trained(**other).model)
    assert (tmp_path / "state.aside").exists()


# --- policies and defenses ----------------------------------------------------------------------------------


class Recorder(nn.Module):
    """A network that keeps what it sees."""

    def __init__(self):
        super().__init__()
        self.normalize, self.head, self.seen = Normalize((0.0,), (1.0,)), nn.Linear(3, 10), []

    def forward(self, x):
        self.seen.append(x.detach())
        return self.head(x.mean((2, 3)))


def pixels_seen(images, **changes):
    """What the network saw in one epoch as one batch, uint8, and the order of the images."""
    model = Recorder()
    config = TrainConfig(epochs=1, batch=len(images), **changes)
    fit(model, images, config, rng=rng(4))
    (seen,) = model.seen
    return (255 * seen).round().byte()


@pytest.mark.parametrize("crop_flip", [False, True])
@pytest.mark.parametrize("policy", ["", "0", "3-1-7", "3-1-7+43-18-18"])
def test_the_network_sees_each_image_after_crop_flip_and_policy(images, policy, crop_flip):
    g = rng(4)
    expected = images.pixels[torch.randperm(len(images), generator=g)]
    if crop_flip:
        expected = crop_and_flip(expected, rng=g)
    expected = parse_policy(policy)(expected, rng=g)
    assert torch.equal(pixels_seen(images, policy=policy, crop_flip=crop_flip), expected)


def test_each_epoch_has_its_own_order_and_draws(images):
    model = Recorder()
    fit(model, images, TrainConfig(epochs=2, batch=len(images), policy="3-1-7"), rng=rng(4))
    first, second = (x.flatten(1).sum(1).sort().values for x in model.seen)
    assert not torch.equal(first, second)  # not a reordering only


def test_pruning_leaves_most_weights_where_they_were(images):
    config = TrainConfig(
        epochs=1, batch=len(images), lr=100, weight_decay=0, crop_flip=False, defense="prune:0.99"
    )
    before, after = network("lenet"), trained(images, config, model=network("lenet")).model
    for name, start in before.named_parameters():
        changed = (after.get_parameter(name) != start).sum().item()
        assert changed <= start.numel() - start.numel() * 99 // 100, name
    assert not equal(before, after)


def halved(gradients):
    return {name: gradient / 2 for name, gradient in gradients.items()}


def test_a_function_is_a_defense_in_training_too(images):
    config = TrainConfig(
        epochs=1, batch=len(images), lr=70, weight_decay=0, momentum=0, crop_flip=False
    )
    start = network("lenet").state_dict()
    whole = trained(images, config, model=network("lenet")).model.state_dict()
    half = trained(images, config, model=network("lenet"), defense=halved).model.state_dict()
    for name, value in start.items():
        torch.testing.assert_close(
            2 * (half[name] - value), whole[name] - value, rtol=1e-3, atol=1e-6
        )


def test_a_defense_of_images_and_one_inside_act_in_training(images):
    class Rising(Defense):
        def inside(self, model):
            return nn.Sequential(model, nn.Tanh())

    by_defense, by_policy = (
        pixels_seen(images, crop_flip=False, **{door: "0"}) for door in ("defense", "policy")
    )
    assert torch.equal(by_defense, by_policy)
    plain, inside = (
        trained(images, model=network("lenet"), defense=defense) for defense in (None, Rising())
    )
    assert not equal(plain.model, inside.model)


# --- what goes wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call", [lambda *given: fit(*given, PLAIN, rng=0), evaluate], ids=["fit", "evaluate"]
)
@pytest.mark.parametrize(
    ("channels", "chosen", "message"),
    [
        (1, lambda images: images, "Sequential does not take images of shape (3, 32, 32)"),
        (
            3,
            lambda images: images.pixels,
            "images are a Tensor; give atslib.Images with pixels and labels",
        ),
        (3, lambda images: images[:0], "hold no image"),
    ],
)
def test_images_that_do_not_fit_the_network_are_refused(images, call, channels, chosen, message):
    with refused(message):
        call(build_model("lenet", 10, channels, rng=rng(0)), chosen(images))


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)),
            {},
            "Sequential does not start with a Normalize layer; wrap it",
        ),
        (build_model("lenet", 2, rng=rng(0)), {}, "is outside 0..1"),
        (network(), {"checkpoint": "."}, "is a folder; a state needs a file of its own"),
    ],
)
def test_what_cannot_be_trained_is_refused(images, tmp_path, monkeypatch, model, options, message):
    monkeypatch.chdir(tmp_path)
    with refused(message):
        fit(model, images, PLAIN, rng=0, **options)
    assert tmp_path.is_dir()


def test_divergence_is_one_error_that_names_the_step_size(images):
    with pytest.raises(
        AtsError, match=r"training diverged in epoch \d: loss (nan|inf); lower .*lr=1e"
    ):
        trained(images, dataclasses.replace(PLAIN, lr=1e30), model=network("lenet"))


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("epochs", 2.5, " must be a whole number"),
        ("epochs", True, " must be a whole number"),
        ("batch", "8", " must be a whole number"),
        ("lr", "0.1", " must be a number"),
        ("lr", True, " must be a number"),
        ("crop_flip", 1, " must be True or False"),
        ("policy", 3, " must be text"),
        ("defense", None, " must be text"),
        ("epochs", 0, " must be above 0"),
        ("batch", -1, " must be above 0"),
        ("lr", 0.0, " must be above 0"),
        ("lr", math.nan, " must be finite"),
        ("loss_factor", -0.5, " must be above 0"),
        ("momentum", -0.1, " must not be negative"),
        ("momentum", 1.0, " must be below 1"),
        ("momentum", float("nan"), " must be finite"),
        ("weight_decay", -1e-4, " must not be negative"),
        ("weight_decay", math.nan, " must be finite"),
        ("policy", "50", "[50]"),
        ("policy", "3_1", "3_1"),
        ("defense", "blur:3", "blur"),
        ("defense", "prune:1.5", "1.5"),
    ],
)
def test_a_wrong_setting_is_refused_when_the_config_is_made(field, value, rule):
    with refused(f"TrainConfig.{field}={value!r}{rule}" if rule.startswith(" ") else rule):
        TrainConfig(**{field: value})


def test_a_checkpoint_round_trips_with_its_facts(tmp_path):
    model = network()
    save_checkpoint(tmp_path / "new" / "a.safetensors", model, policy="3-1-7", accuracy=71.5)
    other = network(seed=1)
    assert not equal(model, other)
    assert load_checkpoint(tmp_path / "new" / "a.safetensors", other) == {
        "policy": "3-1-7",
        "accuracy": 71.5,
    }
    assert equal(model, other)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.safetensors"]


def test_a_checkpoint_without_a_hash_is_taken_with_a_warning(tmp_path):
    save_file(network(seed=1).state_dict(), tmp_path / "a", metadata={"facts": '{"policy": "0"}'})
    model = network()
    with pytest.warns(
        UserWarning, match=r"^checkpoint .*a carries no hash, so damage to it would not be noticed$"
    ):
        assert load_checkpoint(tmp_path / "a", model) == {"policy": "0"}
    assert equal(model, network(seed=1))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_bytes(b""), "cannot be read as safetensors"),
        (lambda path: path.write_text("PK not a checkpoint" * 9), "cannot be read as safetensors"),
        (lambda path: torch.save({"weight": torch.ones(2)}, path), "cannot be read as safetensors"),
        (lambda path: path.mkdir(), "is a folder, not a file"),
        (lambda path: save_checkpoint(path, network("lenet")), "is of another network"),
        (
            lambda path: save_checkpoint(path, network()) or flip_a_bit(path),
            "is damaged: its bytes do not match",
        ),
    ],
    ids=["missing", "empty", "text", "pickle", "folder", "another network", "damaged"],
)
def test_a_file_that_is_no_checkpoint_of_this_network_is_refused(tmp_path, write, message):
    path = tmp_path / "a.pt"
    write(path)
    with refused(f"checkpoint {path} {message}"):
        load_checkpoint(path, network())
