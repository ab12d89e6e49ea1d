"""Settings, networks on their way, the paired design of targets and starts, and floors."""

import dataclasses
import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from checks import Sizes, attack_request, model_request
from safetensors.torch import load_file, save_file

from atsbook import networks
from atsbook.experiment import starts
from atsbook.findings.table1 import HYBRID, POLICIES
from atsbook.networks import STAGES, ModelRequest, dataset, network, train, trained
from atsbook.report.notebooks import names
from atsbook.runs.settings import settings
from atsbook.runs.tables import floors, mean_image
from atsbook.store import Store
from atsbook.texts.answers import CLAIMS
from atslib.attacks import engine, reconstruct
from atslib.clients.observe import observe
from atslib.clients.training import TrainConfig
from atslib.data.images import Images
from atslib.data.load import DATASETS, load
from atslib.errors import AtsError, OutOfTime
from atslib.models import device_of
from atslib.policies.operations import crop_and_flip
from atslib.policies.policy import parse_policy
from atslib.rng import rng

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


class Killed(BaseException):
    """What a kill looks like from inside."""


@pytest.fixture(scope="module", autouse=True)
def few_test_images():
    """Forty test images instead of a thousand: accuracies are computed for each policy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            networks,
            "load",
            lambda name, split: load(name, split)[: 40 if split == "test" else None],
        )
        dataset.cache_clear()
        yield
    dataset.cache_clear()


# --- profiles -----------------------------------------------------------------------------------------------


def test_a_profile_fills_what_is_not_given():
    full = settings(profile="full")
    assert (full.dataset, full.model, full.seed) == ("cifar100", "resnet20-4", 0)  # the paper's
    assert settings(profile="full", dataset="shapes").dataset == "shapes"
    assert settings() == settings(profile="smoke") == settings(dataset="shapes")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"profile": "huge"}, "profile 'huge' is unknown; choose one of smoke, laptop, full"),
        ({"profile": 3}, "profile 3 is unknown; choose one of smoke, laptop, full"),
        ({"dataset": "cifar"}, "dataset 'cifar' is unknown; choose one of cifar100, "),
        ({"dataset": 100}, "dataset 100 is unknown; choose one of cifar100, "),
        ({"dataset": ""}, "dataset '' is unknown; choose one of cifar100, "),
    ],
    ids=str,
)
def test_an_unknown_profile_or_data_set_is_refused_with_the_valid_ones(given, message):
    with pytest.raises(AtsError) as error:
        settings(**given)
    assert message in str(error.value)


def test_a_device_that_is_not_there_is_one_error():
    assert device_of("cpu") == torch.device("cpu")
    with pytest.raises(AtsError, match="device 'gpu9' cannot be used; torch has cpu") as error:
        device_of("gpu9")
    assert "\n" not in str(error.value)


# --- networks on their way ----------------------------------------------------------------------------------

# Twenty images in batches of four are five steps an epoch, fifteen in all: stages 1, 3 and 10.
WAY = ModelRequest(
    dataset="shapes",
    model="convnet-4",
    fraction=0.004,
    train=TrainConfig(policy=HYBRID, epochs=3, batch=4, lr=0.01),
    seed=0,
)


def same(one, other):
    """Whether two artifacts hold the same bits, but for the seconds that each epoch took."""
    for name, value in one.tensors.items():
        pair = [value.clone(), other[name].clone()]
        if name == "history":
            for table in pair:
                table[:, 2] = 0
        if not torch.equal(*pair):
            return False
    return one.tensors.keys() == other.tensors.keys()


def stage(store, step):
    """The stored network at that step; none is trained."""
    return store.get("model", dataclasses.replace(WAY, step=step), pytest.fail)


def stages_in(store):
    return [step for step in STAGES if store.has("model", dataclasses.replace(WAY, step=step))]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The training to its end, with the networks after 3 and 10 steps."""
    store = Store(tmp_path_factory.mktemp("whole"))
    return train(WAY, store, CPU, stages=(3, 10)), store


def test_looking_at_a_network_on_its_way_does_not_change_where_it_ends(whole, store):
    assert same(trained(WAY, store, CPU)[1], whole[0])
    assert stages_in(store) == []
    assert stages_in(whole[1]) == [3, 10]


@pytest.mark.parametrize(("step", "before"), [(3, [1]), (7, [1, 3]), (10, [1, 3])])
def test_a_network_on_its_way_is_that_of_the_whole_training_and_leaves_those_before_it(
    whole, store, step, before
):
    request = dataclasses.replace(WAY, step=step)
    model, made = trained(request, store, CPU)
    assert stages_in(store) == sorted({*before, step} & {*STAGES})
    assert not store.has("model", WAY)
    for earlier in {*before, step} & {3, 10}:
        assert same(stage(store, earlier), stage(whole[1], earlier))
    assert not model.training
    weights = {
        name.removeprefix("model."): value
        for name, value in made.tensors.items()
        if name != "accuracy"
    }
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not all(torch.equal(value, whole[0][f"model.{name}"]) for name, value in weights.items())
    assert float(made["accuracy"]) == networks.evaluate(model, dataset("shapes", "test"))


def test_a_large_network_is_attacked_with_the_16_bits_in_which_it_is_kept(
    whole, store, monkeypatch
):
    monkeypatch.setattr(networks, "LARGE", 1_000)
    train(WAY, store, CPU, stages=(3,))
    model, made = trained(WAY, store, CPU)
    assert same(stage(store, 3), stage(whole[1], 3))  # it goes on from what was not rounded
    for name, value in model.state_dict().items():
        kept = made[f"model.{name}"]
        if value.is_floating_point():
            assert kept.dtype == torch.float16
            assert torch.equal(kept, whole[0][f"model.{name}"].half())
        assert torch.equal(kept.to(value.dtype), value)
    assert float(made["accuracy"]) == networks.evaluate(model, dataset("shapes", "test"))


def test_stages_that_are_there_are_not_made_again(store, said):
    trained(dataclasses.replace(WAY, step=3), store, CPU)
    assert len(said) == 2  # 1 and 3
    trained(dataclasses.replace(WAY, step=7), store, CPU)
    assert len(said) == 3
    assert "step 7 in " in said[-1]


def test_a_training_to_a_step_that_runs_out_of_time_goes_on_to_the_same_network(whole, store):
    request = dataclasses.replace(WAY, step=10)
    with pytest.raises(OutOfTime):
        trained(request, Store(store.root, ends=time.monotonic()), CPU)
    assert stages_in(store) == [1, 3]
    assert same(
        trained(request, Store(store.root, ends=time.monotonic()), CPU)[1], stage(whole[1], 10)
    )


def test_each_step_of_a_training_has_a_key_of_its_own(store):
    steps = (0, 1, 3)
    keys = {store.path("model", dataclasses.replace(WAY, step=step)) for step in steps}
    assert len(keys) == len(steps)


def test_a_step_costs_its_batches_and_is_said():
    early = dataclasses.replace(WAY, step=7)
    assert early.passes == 3 * 7 * 4 + 40
    assert WAY.passes == pytest.approx(3 * 3 * 20 + 40)
    assert early.title == f"{WAY.title}, step 7"


# --- the paired design --------------------------------------------------------------------------------------

EIGHT = Sizes(images=8)


def target(policy="", **changes):
    config = dataclasses.replace(
        EIGHT, **{k: changes.pop(k) for k in ("crop_flip", "seed") if k in changes}
    )
    clients = dataclasses.replace(attack_request(config, policy), **changes).clients()
    return clients.photographs, clients.used(), clients.labels


def test_policy_28_is_the_identity_and_shares_the_undefended_targets():
    for one, other in zip(target(""), target("28"), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("policy", [p for p in POLICIES if p])
def test_every_policy_acts_on_the_same_crops_and_flips(policy):
    undefended, defended = target("")[1], target(policy)[1]
    draws = rng(EIGHT.seed, "policy", policy)
    assert torch.equal(defended, parse_policy(policy)(undefended, rng=draws))
    assert not torch.equal(defended, undefended)


def test_targets_are_cropped_and_flipped_test_images_in_their_order():
    original, moved, labels = target("")
    images = dataset("shapes", "test")[:8]
    assert torch.equal(original, images.pixels)
    assert torch.equal(labels, images.labels)
    assert torch.equal(moved, crop_and_flip(images.pixels, rng=rng(0, "crop and flip")))
    assert not torch.equal(moved, original)
    assert not torch.equal(target("", seed=1)[1], moved)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("first", "last"), [(0, 3), (2, 4), (7, 8)])
def test_an_images_target_does_not_depend_on_the_range_it_is_attacked_in(policy, first, last):
    whole, part = target(policy), target(policy, first=first, last=last)
    for all_eight, some in zip(whole, part, strict=True):
        assert torch.equal(some, all_eight[first:last])


@pytest.mark.parametrize("start", ["normal", "uniform", "zeros"])
def test_an_images_start_does_not_depend_on_range_policy_model_or_later_restarts(start):
    request = attack_request(EIGHT, "")
    request = dataclasses.replace(
        request, attack=dataclasses.replace(request.attack, start=start, restarts=2)
    )
    model = network(request.model)
    whole = starts(request, model)
    assert whole.shape == (2, 8, 3, 32, 32)
    for first, last in ((0, 3), (2, 4), (7, 8)):
        part = starts(dataclasses.replace(request, first=first, last=last), model)
        assert torch.equal(part, whole[:, first:last])
    one = dataclasses.replace(
        request, policy=HYBRID, attack=dataclasses.replace(request.attack, restarts=1, steps=9)
    )
    assert torch.equal(starts(one, model), whole[:1])
    if start != "zeros":
        assert not torch.equal(whole[0], whole[1])
        assert not torch.equal(whole[0, 0], whole[0, 1])
        assert not torch.equal(starts(dataclasses.replace(request, seed=1), model), whole)


def test_without_crop_and_flip_an_image_without_a_policy_is_used_as_it_is():
    original, moved, _ = target("", crop_flip=False)
    assert torch.equal(moved, original)


def test_all_policies_of_one_seed_begin_from_the_same_weights():
    first, again, other = (
        network(model_request(dataclasses.replace(EIGHT, seed=seed), policy))
        for seed, policy in ((0, ""), (0, HYBRID), (1, ""))
    )
    pairs = list(zip(first.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)


def test_every_field_of_a_request_changes_its_key(store):
    request = attack_request(EIGHT, "")
    other = {
        "model": dataclasses.replace(request.model, seed=1),
        "policy": "28",
        "attack": dataclasses.replace(request.attack, tv=0.5),
        "first": 1,
        "last": 7,
        "crop_flip": False,
        "threat": dataclasses.replace(request.threat, labels="inferred"),
        "defense": "prune:0.9",
        "frames": 3,
        "seed": 1,
        "rounds": 2,
        "every": True,
    }
    keys = {
        store.path("attack", dataclasses.replace(request, **{name: value}))
        for name, value in other.items()
    }
    assert set(other) == {field.name for field in dataclasses.fields(request)}
    assert len(keys | {store.path("attack", request)}) == 1 + len(other)
    models = {
        "dataset": "shapes-grey",
        "model": "lenet",
        "fraction": 0.5,
        "train": None,
        "seed": 3,
        "norm": "fmnist",
    }
    models["step"] = 30
    assert set(models) == {field.name for field in dataclasses.fields(ModelRequest)}
    keys = {
        store.path("model", dataclasses.replace(request.model, **{n: v})) for n, v in models.items()
    }
    assert len(keys | {store.path("model", request.model)}) == 1 + len(models)


# --- an attack of one's own ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Flat:
    """Every image is of one brightness."""

    value: float = 0.5

    def run(self, seen, *, rng):
        return torch.full((len(seen), *seen.shape), self.value)


@dataclasses.dataclass(frozen=True)
class Flatter(Flat):
    """The same fields in another class."""


def test_a_request_takes_an_attack_of_ones_own(tmp_path):
    store = Store(tmp_path)
    request = attack_request(Sizes(images=2), attack=Flat())
    request = dataclasses.replace(request, model=dataclasses.replace(request.model, train=None))
    artifact = request.make(store, torch.device("cpu"))
    assert (artifact["reconstruction"] == 0.5).all()
    assert "Flat" in request.title
    assert request.passes == 14
    for other in (Flat(0.25), Flatter()):
        others = dataclasses.replace(request, attack=other)
        assert store.path(others.kind, others) != store.path(request.kind, request)
    with pytest.raises(AtsError, match="or a frozen dataclass with a method run"):
        dataclasses.replace(request, attack="adam-cosine")


# --- a damaged state of an attack ---------------------------------------------------------------------------


def interrupted(seen, attack, start, state):
    """An attack that dies at its second snapshot and has saved its state before."""

    def die(step, images, distance):
        if step > 0:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "SAVE_EVERY", -1)
        with pytest.raises(Killed):
            reconstruct(
                seen,
                attack,
                rng=rng(0),
                start=start,
                frames=3,
                on_frame=die,
                chunk=2,
                checkpoint=state,
            )


STATES = {
    "garbage": lambda file: file.write_bytes(b"\x00garbage" * 50),
    "empty": lambda file: file.write_bytes(b""),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-100]),
    "without its step": lambda file: save_file({"z": torch.ones(2)}, file),
    "of fewer members": lambda file: save_file(
        {k: v[:1].contiguous() for k, v in load_file(file).items()}, file, {"step": "1"}
    ),
}


@pytest.mark.parametrize("how", STATES)
def test_a_damaged_state_of_an_attack_is_warned_of_and_it_starts_anew(tmp_path, how):
    request = attack_request(Sizes(images=2, steps=4))
    model = network(dataclasses.replace(request.model, model="lenet"))
    clients = request.clients()
    seen = observe(model, clients.used().float() / 255, clients.labels, rng=rng(0))
    start = starts(request, model)
    how_often = {"frames": 3, "chunk": 2}
    whole = reconstruct(seen, request.attack, rng=rng(0), start=start, **how_often)

    def resumed():
        state = tmp_path / "state"
        return reconstruct(
            seen, request.attack, rng=rng(0), start=start, checkpoint=state, **how_often
        )

    interrupted(seen, request.attack, start, tmp_path / "state")
    (file,) = tmp_path.iterdir()
    assert torch.equal(resumed().images, whole.images)

    interrupted(seen, request.attack, start, tmp_path / "state")
    STATES[how](file)
    with pytest.warns(UserWarning, match=r"state\.0-2 is not resumed .*the run starts anew"):
        anew = resumed()
    assert torch.equal(anew.images, whole.images)
    assert torch.equal(anew.trace, whole.trace)
    assert [kept.name for kept in tmp_path.iterdir()] == ["state.0-2.aside"]


# --- floors -------------------------------------------------------------------------------------------------


def two_shades(split):
    """Flat images of 8×8 pixels, one of a fifth and one of three fifths of white; in the mean, two
    fifths.
    """
    pixels = torch.tensor([51, 153]).byte().reshape(2, 1, 1, 1).expand(2, 3, 8, 8).contiguous()
    return Images(pixels, torch.tensor([0, 1]), ("a", "b"), "two shades", split)


def test_floors_are_the_psnr_of_grey_of_the_mean_training_image_and_of_that_under_the_policy(
    monkeypatch,
):
    monkeypatch.setitem(DATASETS, "two shades", two_shades)
    plain = attack_request(Sizes(images=2, dataset="two shades"), crop_flip=False)
    black_and_white = torch.stack([torch.zeros(3, 8, 8), torch.full((3, 8, 8), 255)]).byte()

    def decibels(*errors):
        return pytest.approx([-20 * math.log10(error) for error in errors], rel=1e-5)

    found = floors(black_and_white, plain)
    assert list(found) == ["floor_grey", "floor_mean", "floor_policy"]
    assert found["floor_grey"].tolist() == decibels(0.5, 0.5)
    assert found["floor_mean"].tolist() == decibels(0.4, 0.6)
    assert found["floor_policy"].tolist() == decibels(
        0.4, 0.6
    )  # nobody does anything to the images
    inverted = floors(black_and_white, dataclasses.replace(plain, policy="0"))
    assert inverted["floor_mean"].tolist() == decibels(0.4, 0.6)
    assert inverted["floor_policy"].tolist() == decibels(0.6, 0.4)
    cropped = floors(
        black_and_white, dataclasses.replace(plain, crop_flip=True)
    )  # black comes in at the edges
    assert cropped["floor_policy"][0] > found["floor_policy"][0]
    assert cropped["floor_policy"][1] < found["floor_policy"][1]


def test_the_mean_image_is_that_of_the_whole_training_set():
    mean = load("shapes", "train").pixels.double().numpy().mean(0) / 255
    np.testing.assert_allclose(mean_image("shapes")[0], mean, rtol=1e-5)


# --- a page, whole --------------------------------------------------------------------------------------------


def test_every_claim_has_its_page():
    root = Path(__file__).parents[1]
    assert {claim.page for claim in CLAIMS} <= set(names(root))


COLUMNS = [
    "psnr",
    "psnr_original",
    "mse",
    "ssim",
    "cost",
    "floor_grey",
    "floor_mean",
    "floor_policy",
    "gain",
]
COLUMNS += ["rank_target", "rank_original", "stuck"]
