"""Settings, the paired design of the attacks' targets and starts, and claim 1 from a kill to its tables."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from atslib.attacks import engine, reconstruct
from atslib.clients.threat import observe
from atslib.data.load import load
from atslib.errors import AtsError
from atslib.policies.operations import crop_and_flip
from atslib.policies.policy import parse_policy
from atslib.report.book.answers import CLAIMS
from atslib.report.pages import PAGES, claim1_privacy, load_page
from atslib.report.pages.claim1_privacy import control_unit
from atslib.report.units import table1, units
from atslib.report.units.settings import PROFILES, Settings, settings
from atslib.report.units.table1 import HYBRID, POLICIES, SEARCHED
from atslib.report.units.tables import floors
from atslib.report.units.units import ModelUnit, attack_unit, dataset, device_of, model_unit, network, starts, targets
from atslib.rng import rng
from atslib.store import Store


class Killed(BaseException):
    """What a kill looks like from inside."""


TINY = {"images": 3, "steps": 3, "control_steps": 4, "fraction": 0.002}


@pytest.fixture(scope="module", autouse=True)
def few_test_images():
    """Forty test images instead of a thousand: accuracies are computed for each policy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "load", lambda name, split: load(name, split)[: 40 if split == "test" else None])
        dataset.cache_clear()
        yield
    dataset.cache_clear()


# --- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_fills_what_is_not_given(profile):
    found = dataclasses.asdict(settings(profile=profile))
    assert found.items() >= ({"profile": profile} | PROFILES[profile]).items()
    assert (found["epsilon"], found["crop_flip"], found["seed"], found["device"]) == (15, "fixed", 0, "auto")


def test_the_full_profile_is_the_papers():
    found = settings(profile="full")
    assert (found.dataset, found.model, found.fraction) == ("cifar100", "resnet20-4", 1)
    assert (found.epochs, found.images, found.steps) == (60, 100, 4800)


def test_none_means_the_profiles_value_and_smoke_is_the_default():
    names = [field.name for field in dataclasses.fields(Settings)]
    assert settings(dict.fromkeys(names)) == settings() == settings(profile="smoke")
    assert settings(profile="full", images=None) == settings(profile="full")


def test_what_is_given_overrides_the_profile():
    found = settings({"profile": "quick", "images": 3, "epsilon": 20}, steps=7)
    assert (found.images, found.steps, found.epsilon) == (3, 7, 20)
    assert isinstance(found.epsilon, float)
    assert dataclasses.replace(found, images=8, steps=300, epsilon=15.0) == settings(profile="quick")


@pytest.mark.parametrize("profile", ["quick", "laptop"])
def test_smaller_sizes_take_less_of_the_embedded_images_but_what_is_given_stays(profile):
    shapes, real = settings(profile=profile, dataset="shapes"), settings(profile=profile)
    assert shapes.model == real.model
    assert shapes.epochs < real.epochs
    assert shapes.steps < real.steps
    assert settings(profile=profile, dataset="shapes", steps=300, epochs=15).steps == 300
    assert settings(profile="full", dataset="shapes").steps == 4800


@pytest.mark.parametrize("name", ["profle", "image", "policies", "lr"])
def test_an_unknown_parameter_is_refused_with_the_valid_ones(name):
    with pytest.raises(AtsError) as error:
        settings({name: 3})
    names = ", ".join(field.name for field in dataclasses.fields(Settings))
    assert str(error.value) == f"unknown parameter {name}; the parameters are {names}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"images": "8"}, "parameter images='8' must be of type int"),
        ({"images": True}, "parameter images=True must be of type int"),
        ({"images": 8.0}, "parameter images=8.0 must be of type int"),
        ({"fraction": "0.1"}, "parameter fraction='0.1' must be of type float"),
        ({"epsilon": False}, "parameter epsilon=False must be of type float"),
        ({"model": 4}, "parameter model=4 must be of type str"),
        ({"seed": [0]}, "parameter seed=[0] must be of type int"),
        ({"images": 0}, "parameter images=0 must be at least 1"),
        ({"steps": -3}, "parameter steps=-3 must be at least 1"),
        ({"fraction": 0}, "parameter fraction=0.0 must be in (0, 1]"),
        ({"fraction": 1.5}, "parameter fraction=1.5 must be in (0, 1]"),
        ({"fraction": math.nan}, "parameter fraction=nan must be in (0, 1]"),
        ({"profile": "huge"}, "profile 'huge' is unknown; choose one of smoke, quick, laptop, full"),
        ({"profile": 3}, "profile 3 is unknown; choose one of smoke, quick, laptop, full"),
        ({"dataset": "cifar"}, "dataset 'cifar' is unknown; choose one of cifar100, "),
        ({"dataset": 100}, "dataset 100 is unknown; choose one of cifar100, "),
        ({"crop_flip": "none"}, "crop_flip 'none' is unknown; choose one of fixed, code"),
    ],
    ids=str,
)
def test_a_wrong_parameter_is_refused_with_the_rule(given, message):
    with pytest.raises(AtsError) as error:
        settings(given)
    assert message in str(error.value)


def test_the_names_of_ipython_are_no_parameters():
    notebook = {"In": [""], "Out": {}, "_": 3, "_i1": "x", "_dh": [], "__name__": "__main__", "exit": print}
    assert settings(notebook | {"pytest": pytest, "images": 3}) == settings(images=3)


def test_more_images_than_there_are_is_refused_before_anything_is_computed(store, said):
    with pytest.raises(AtsError, match="parameter images=41: shapes has 40 test images"):
        claim1_privacy.run(settings(images=41), store)
    assert said == []
    assert not list(store.entries())


def test_a_device_that_is_not_there_is_one_error():
    assert device_of("cpu") == torch.device("cpu")
    with pytest.raises(AtsError, match="device 'gpu9' cannot be used") as error:
        device_of("gpu9")
    assert "\n" not in str(error.value)


# --- the paired design --------------------------------------------------------------------------------------

EIGHT = settings(images=8)


def target(policy="", **changes):
    config = dataclasses.replace(EIGHT, **{k: changes.pop(k) for k in ("crop_flip", "seed") if k in changes})
    return targets(dataclasses.replace(attack_unit(config, policy), **changes))


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
    unit = attack_unit(EIGHT, "")
    unit = dataclasses.replace(unit, attack=dataclasses.replace(unit.attack, start=start, restarts=2))
    model = network(unit.model)
    whole = starts(unit, model)
    assert whole.shape == (2, 8, 3, 32, 32)
    for first, last in ((0, 3), (2, 4), (7, 8)):
        part = starts(dataclasses.replace(unit, first=first, last=last), model)
        assert torch.equal(part, whole[:, first:last])
    one = dataclasses.replace(unit, policy=HYBRID, attack=dataclasses.replace(unit.attack, restarts=1, steps=9))
    assert torch.equal(starts(one, model), whole[:1])
    if start != "zeros":
        assert not torch.equal(whole[0], whole[1])
        assert not torch.equal(whole[0, 0], whole[0, 1])
        assert not torch.equal(starts(dataclasses.replace(unit, seed=1), model), whole)


def test_crop_flip_code_leaves_undefended_images_alone_and_moves_defended_ones():
    original, moved, _ = target("", crop_flip="code")
    assert torch.equal(moved, original)
    assert torch.equal(target("28", crop_flip="code")[1], target("28")[1])


def test_all_policies_of_one_seed_begin_from_the_same_weights():
    first, again, other = (
        network(model_unit(dataclasses.replace(EIGHT, seed=seed), policy))
        for seed, policy in ((0, ""), (0, HYBRID), (1, ""))
    )
    pairs = list(zip(first.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)


def test_every_field_of_a_unit_changes_its_key(store):
    unit = attack_unit(EIGHT, "")
    other = {
        "model": dataclasses.replace(unit.model, seed=1),
        "policy": "28",
        "attack": dataclasses.replace(unit.attack, tv=0.5),
        "first": 1,
        "last": 7,
        "crop_flip": False,
        "threat": dataclasses.replace(unit.threat, labels="inferred"),
        "defense": "prune:0.9",
        "frames": 3,
        "seed": 1,
    }
    keys = {store.path("attack", dataclasses.replace(unit, **{name: value})) for name, value in other.items()}
    assert set(other) == {field.name for field in dataclasses.fields(unit)}
    assert len(keys | {store.path("attack", unit)}) == 1 + len(other)
    models = {"dataset": "shapes-grey", "model": "lenet", "fraction": 0.5, "train": None, "seed": 3, "norm": "fmnist"}
    assert set(models) == {field.name for field in dataclasses.fields(ModelUnit)}
    keys = {store.path("model", dataclasses.replace(unit.model, **{n: v})) for n, v in models.items()}
    assert len(keys | {store.path("model", unit.model)}) == 1 + len(models)


def test_the_control_is_the_same_attack_on_untouched_images_and_an_untrained_network():
    control, unit = control_unit(dataclasses.replace(EIGHT, images=20)), attack_unit(EIGHT, "")
    assert control.model.train is None
    assert (control.policy, control.crop_flip, control.last) == ("", False, claim1_privacy.CONTROL_IMAGES)
    assert dataclasses.replace(control.attack, steps=unit.attack.steps) == unit.attack
    original, moved, _ = targets(control)
    assert torch.equal(moved, original)


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


def test_a_unit_takes_an_attack_of_ones_own(tmp_path):
    store = Store(tmp_path)
    unit = attack_unit(settings(images=2), attack=Flat())
    unit = dataclasses.replace(unit, model=dataclasses.replace(unit.model, train=None))
    artifact = units.attacked(unit, store, torch.device("cpu"))
    assert (artifact["reconstruction"] == 0.5).all()
    assert "Flat" in unit.title
    assert unit.passes == 14
    for other in (Flat(0.25), Flatter()):
        others = dataclasses.replace(unit, attack=other)
        assert store.path(others.kind, others) != store.path(unit.kind, unit)
    with pytest.raises(AtsError, match="must be a frozen dataclass with a method run"):
        dataclasses.replace(unit, attack="adam-cosine")


# --- a damaged state of an attack ---------------------------------------------------------------------------


def interrupted(seen, attack, start, state):
    """An attack that dies at its second snapshot and has saved its state before."""

    def die(step, images, distance):
        if step > 0:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "SAVE_EVERY", -1)
        with pytest.raises(Killed):
            reconstruct(seen, attack, rng=rng(0), start=start, frames=3, on_frame=die, chunk=2, checkpoint=state)


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
    unit = attack_unit(settings(images=2, steps=4))
    model = network(dataclasses.replace(unit.model, model="lenet"))
    _, pixels, labels = targets(unit)
    seen, start = observe(model, pixels.float() / 255, labels, rng=rng(0)), starts(unit, model)
    whole = reconstruct(seen, unit.attack, rng=rng(0), start=start, frames=3, chunk=2)
    interrupted(seen, unit.attack, start, tmp_path / "state")
    (file,) = tmp_path.iterdir()
    again = reconstruct(seen, unit.attack, rng=rng(0), start=start, frames=3, chunk=2, checkpoint=tmp_path / "state")
    assert torch.equal(again.images, whole.images)

    interrupted(seen, unit.attack, start, tmp_path / "state")
    STATES[how](file)
    with pytest.warns(UserWarning, match=r"state\.0-2 is not resumed .*the run starts anew"):
        anew = reconstruct(seen, unit.attack, rng=rng(0), start=start, frames=3, chunk=2, checkpoint=tmp_path / "state")
    assert torch.equal(anew.images, whole.images)
    assert torch.equal(anew.trace, whole.trace)
    assert [kept.name for kept in tmp_path.iterdir()] == ["state.0-2.aside"]


# --- floors -------------------------------------------------------------------------------------------------


def test_floors_are_the_psnr_of_grey_and_of_the_mean_training_image():
    pixels = torch.stack([torch.zeros(3, 32, 32), torch.full((3, 32, 32), 255)]).byte()
    found = floors(pixels, "shapes")
    # Grey is 0.5 from black and from white: MSE 1/4, 10 log10(4) dB.
    assert found["floor_grey"].tolist() == pytest.approx([10 * math.log10(4)] * 2)
    mean = load("shapes", "train").pixels.double().numpy().mean(0) / 255
    errors = [np.mean((mean - value) ** 2) for value in (0, 1)]
    assert found["floor_mean"].tolist() == pytest.approx([-10 * math.log10(e) for e in errors], rel=1e-4)


# --- claim 1, whole -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A small run and its store."""
    store = Store(tmp_path_factory.mktemp("undisturbed"))
    return claim1_privacy.run(settings(**TINY), store), store


def test_every_claim_has_its_page_and_every_page_its_notebook_and_its_functions():
    root = Path(__file__).parents[1]
    assert {claim.page for claim in CLAIMS} <= set(PAGES)
    assert sorted(PAGES) == sorted(path.stem for path in (root / "notebooks").glob("*.ipynb"))
    for name in PAGES:
        module = load_page(name)
        assert module.__name__.endswith(f".{name}")
        assert callable(module.run)
        assert callable(module.units)


COLUMNS = [
    "policy",
    "image",
    "psnr",
    "psnr_original",
    "mse",
    "ssim",
    "cost",
    "floor_grey",
    "floor_mean",
    "gain",
    "stuck",
]


def test_claim_1_has_one_row_per_policy_and_image(undisturbed):
    tables, names = undisturbed[0].tables, [p or "none" for p in POLICIES]
    assert list(tables) == ["attacks", "accuracy", "curve", "control", "blocks", "blocks_accuracy"]
    assert list(tables["attacks"]) == COLUMNS
    assert list(tables["attacks"]["policy"]) == [name for name in names for _ in range(3)]
    assert list(tables["attacks"]["image"]) == [0, 1, 2] * len(names)
    assert np.isfinite(tables["attacks"][COLUMNS[2:-1]].to_numpy()).all()
    assert list(tables["control"]) == COLUMNS
    assert len(tables["control"]) == 3
    assert list(tables["accuracy"]) == ["policy", "accuracy", "train"]
    assert list(tables["accuracy"]["policy"]) == names
    assert set(tables["accuracy"]["train"]) == {10}  # 0.002 of 5,000
    assert tables["accuracy"]["accuracy"].between(0, 100).all()
    assert list(tables["curve"]) == ["policy", "iteration", "image", "gradsim"]
    assert len(tables["curve"]) == len(names) * TINY["steps"] * 3
    assert tables["curve"]["gradsim"].between(-1.001, 1.001).all()


def test_the_numbers_of_a_row_are_those_of_its_images(undisturbed):
    result = undisturbed[0]
    for name, sheet in result.sheets.items():
        table = result.tables["control"] if name == "control" else result.tables["attacks"]
        rows = table[table["policy"] == ("none" if name == "control" else name.removeprefix("grid "))]
        error = (sheet["reconstruction"] - sheet["target"].float() / 255).square().mean((1, 2, 3))
        assert rows["mse"].tolist() == pytest.approx(error.tolist(), rel=1e-4)
        assert rows["psnr"].tolist() == pytest.approx((-10 * error.log10()).tolist(), rel=1e-4)
        away = (sheet["reconstruction"] - sheet["original"].float() / 255).square().mean((1, 2, 3))
        assert rows["psnr_original"].tolist() == pytest.approx((-10 * away.log10()).tolist(), rel=1e-4)
    assert set(result.sheets) == {"none", *(p for p in POLICIES if p), "control", "grid none", f"grid {HYBRID}"}


def test_facts_say_what_the_banner_needs(undisturbed):
    facts = undisturbed[0].facts
    assert facts.items() >= TINY.items()
    assert (facts["dataset"], facts["profile"], facts["train"]) == ("shapes", "smoke", 5000)
    assert facts["device"].startswith(("CPU, ", "NVIDIA"))
    assert undisturbed[0].digest in undisturbed[0].banner


def test_a_second_run_computes_nothing(undisturbed):
    result, store = undisturbed
    made = []
    assert claim1_privacy.run(settings(**TINY), Store(store.root, say=made.append)).digest == result.digest
    assert made == []


def test_a_killed_run_resumes_to_the_same_tables(undisturbed, store, said):
    def die(line):
        said.append(line)
        if len(said) == 4:  # two models and two attacks
            raise Killed

    with pytest.raises(Killed):
        claim1_privacy.run(settings(**TINY), Store(store.root, say=die))
    resumed = claim1_privacy.run(settings(**TINY), store)
    wanted = {one for unit in claim1_privacy.units(settings(**TINY)).values() for one in (unit, *unit.needs)}
    assert len(said) == len(wanted)
    assert resumed.digest == undisturbed[0].digest
    assert resumed.verdict == undisturbed[0].verdict


def test_the_comparison_sets_the_papers_numbers_beside_ours(undisturbed):
    result = undisturbed[0]
    table = claim1_privacy.comparison(result)
    assert list(table.index) == [p or "none" for p in POLICIES]
    assert (table["n"] == 3).all()
    assert table.loc["none", ["paper PSNR", "replication PSNR"]].tolist() == [13.88, 12.15]
    assert table.loc[HYBRID, ["paper PSNR", "paper accuracy", "replication PSNR"]].tolist() == [7.64, 77.92, 8.25]
    assert table.loc[table1.RANDOM, "paper PSNR"] == 11.41
    assert table[["paper PSNR", "replication accuracy"]].notna().all(axis=None)
    attacks = result.tables["attacks"].set_index("policy").loc[HYBRID]
    assert table.loc[HYBRID, "gain over mean image"] == pytest.approx((attacks["psnr"] - attacks["floor_mean"]).mean())


def test_the_differences_are_to_no_policy(undisturbed):
    result = undisturbed[0]
    rows = claim1_privacy.differences(result)
    assert set(rows.index) == {p for p in POLICIES if p}
    wide = result.tables["attacks"].pivot(index="image", columns="policy", values="psnr")
    for policy in SEARCHED:
        assert rows.loc[policy, ("psnr", "mean")] == pytest.approx((wide[policy] - wide["none"]).mean())
