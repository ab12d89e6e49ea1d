"""The public names, called wrongly: one sentence, neither torch's words nor a wrong result."""

import dataclasses

import pytest
import torch
from checks import refused

import atsaudit
import atslib
from atsbook.store import Store
from atsfed import Federation
from atslib import ATTACKS, Normalize, Policy, SearchConfig, TrainConfig, load, rng
from atslib.attacks import Reconstruction, ThroughPolicy, restore_labels
from atslib.clients.observe import Knowledge
from atslib.clients.training import load_checkpoint, save_checkpoint
from atslib.clients.updates import LocalTraining
from atslib.gradients.problems import example_gradients
from atslib.measures.metrics import feature_mse, lpips, mse, ssim
from atslib.policies.policy import Hybrid, load_policies, save_policies
from atslib.scores.scores import accuracy_score, gradsim_curve, privacy_scores
from atslib.scores.search import pareto

IMAGES, GREY = load("shapes", "test")[4:6], load("shapes-grey", "test")[4:6]
PIXELS, LABELS = IMAGES.pixels / 255, IMAGES.labels
MODEL = atslib.build_model("lenet-2", 10, norm="shapes", rng=0)
NARROW = atslib.build_model(
    "lenet-2", 2, norm="shapes", rng=0
)  # classes 0 and 1, which the images are not of
SEEN = atslib.observe(MODEL, PIXELS, LABELS)
SMALL = SearchConfig(candidates=2, images=2, acc_images=2, points=2, keep=1)


NAN = float("nan")


def own(returned):
    """Run an attack of one's own that returns this."""
    return atslib.reconstruct(SEEN, lambda seen, *, rng: returned, rng=0)


def attack(**changes):
    return dataclasses.replace(ATTACKS["adam-cosine"], **{"steps": 2, **changes})


# Wrong images and labels, and what is said of them, whoever is asked for a gradient.
INPUTS = {
    "uint8": (
        IMAGES.pixels,
        LABELS,
        "images are uint8 of shape (2, 3, 32, 32); they must be floats",
    ),
    "0-255": (
        IMAGES.pixels.float(),
        LABELS,
        "they must be in [0, 1] (8-bit pixels divided by 255)",
    ),
    "grey": (PIXELS[:, :1], LABELS, "takes 3 channels and the images have 1"),
    "size": (PIXELS[..., :20, :20], LABELS, "does not take images of shape (3, 20, 20)"),
    "label": (PIXELS, LABELS + 10, "label"),
    "floats": (
        PIXELS,
        LABELS.float(),
        "labels are float32 of shape (2,); they must be whole numbers",
    ),
    "one label": (PIXELS, LABELS[:1], "labels of shape (1,) for 2 images"),
}


@pytest.mark.parametrize("wrong", INPUTS)
@pytest.mark.parametrize("door", [atslib.observe, example_gradients, gradsim_curve])
def test_whoever_takes_a_gradient_says_what_is_wrong_with_its_images_and_labels(door, wrong):
    pixels, labels, said = INPUTS[wrong]
    with refused(said):
        door(MODEL, pixels, labels, **({"rng": 0} if door is gradsim_curve else {}))


CALLS = {
    "rng of text": (lambda: rng("a"), "rng: seed 'a' must be a whole number"),
    "rng of None": (lambda: rng(None), "rng: seed None must be a whole number"),
    "policy of a number": (lambda: Policy.parse(5), "policy 5 must be text"),
    "policy of None": (lambda: Policy.parse(None), "policy None must be text"),
    "hybrid of text": (lambda: Hybrid("3-1-7"), "its members are policies"),
    "defense of a number": (lambda: atslib.Defense.parse(5), "defense 5 must be text"),
    "unknown policy known": (lambda: Knowledge("99"), "ids run 0..49"),
    "index of text": (lambda: IMAGES["a"], "indices 'a': give (M,) integers"),
    "subset of text": (lambda: IMAGES.subset(0.5, rng="x"), "rng 'x' must be a stream"),
    "no deviation": (lambda: Normalize((0.5,), (0.0,)), "one deviation above 0"),
    "negative deviation": (lambda: Normalize((0.5,), (-1.0,)), "one deviation above 0"),
    "one more deviation": (lambda: Normalize((0.5,), (0.2, 0.2)), "one mean and one deviation"),
    "statistics of text": (
        lambda: Normalize("a", "b"),
        "give the mean and deviation of each channel",
    ),
    "model of a number": (lambda: atslib.build_model(5, 10), "model 5 is unknown"),
    "huge width": (
        lambda: atslib.build_model("lenet-99999999", 10),
        "neither number may be above 1024",
    ),
    "huge image": (
        lambda: atslib.build_model("lenet", 10, image_size=9999),
        "neither number may be above 1024",
    ),
    "more weights than memory": (
        lambda: atslib.build_model("resnet20-1024", 10),
        "would have 282,933,673,994 weights; at most 1,000,000,000",
    ),
    "infinite step": (lambda: TrainConfig(lr=float("inf")), "TrainConfig.lr=inf must be finite"),
    "step of nan": (lambda: attack(lr=float("nan")), "GradientMatching.lr=nan must be finite"),
    "weight of nan": (lambda: attack(tv=float("nan")), "GradientMatching.tv=nan must be finite"),
    "dict for config": (
        lambda: atslib.fit(MODEL, IMAGES, {}, rng=0),
        "config {} must be an atslib.TrainConfig",
    ),
    "accuracy of too few classes": (lambda: atslib.evaluate(NARROW, IMAGES), "label"),
    "accuracy of grey images": (
        lambda: atslib.evaluate(MODEL, GREY),
        "does not take images of shape (1, 28, 28)",
    ),
    "accuracy in no chunks": (
        lambda: atslib.evaluate(MODEL, IMAGES, chunk=0),
        "chunk=0 must be a whole number",
    ),
    "accuracy of nothing": (
        lambda: atslib.evaluate(None, IMAGES),
        "model None must be a torch.nn.Module",
    ),
    "start of text": (
        lambda: atslib.reconstruct(SEEN, attack(), rng=0, start="zeros"),
        "start str must be",
    ),
    "attack that returns 0-255": (
        lambda: atslib.reconstruct(SEEN, lambda seen, *, rng: PIXELS * 255, rng=0),
        "images are in units of [0, 1]",
    ),
    "psnr of 0-255": (lambda: atslib.psnr(PIXELS, PIXELS * 255), "psnr: the truth goes up to"),
    "ssim of 0-255": (
        lambda: ssim(PIXELS * 255, PIXELS * 255),
        "ssim: the truth goes up to",
    ),
    "noise of 0-255": (
        lambda: gradsim_curve(MODEL, PIXELS, LABELS, start=IMAGES.pixels),
        "start is uint8 of shape (2, 3, 32, 32); it must be floats in [0, 1]",
    ),
    "half a point": (
        lambda: gradsim_curve(MODEL, PIXELS, LABELS, rng=0, points=2.5),
        "points=2.5 must be a whole number, at least 2",
    ),
    "score of a number": (
        lambda: atslib.privacy_score(MODEL, IMAGES, 5, rng=0),
        "policy 5 must be text",
    ),
    "score of grey images": (
        lambda: atslib.privacy_score(MODEL, GREY, "3", rng=0),
        "does not take images of shape",
    ),
    "score of too few classes": (lambda: atslib.privacy_score(NARROW, IMAGES, "3", rng=0), "label"),
    "score of nothing": (
        lambda: atslib.privacy_score(None, IMAGES, "3", rng=0),
        "model None must be",
    ),
    "accuracy score of a number": (
        lambda: accuracy_score(MODEL, IMAGES, 5, rng=0),
        "policy 5 must be text",
    ),
    "accuracy score of grey": (
        lambda: accuracy_score(MODEL, GREY, "3", rng=0),
        "does not take images of shape",
    ),
    "half a candidate": (
        lambda: SearchConfig(candidates=2.5),
        "SearchConfig.candidates=2.5 must be a whole number",
    ),
    "one point": (lambda: SearchConfig(points=1), "SearchConfig.points=1 must be at least 2"),
    "no draws": (lambda: SearchConfig(draws=0), "SearchConfig.draws=0 must be at least 1"),
    "rungs of a number": (
        lambda: SearchConfig(rungs=5),
        "SearchConfig.rungs=5 must be (images, share) pairs",
    ),
    "threshold of nan": (
        lambda: SearchConfig(t_acc=float("nan")),
        "SearchConfig.t_acc=nan must be a finite number",
    ),
    "search with a dict": (
        lambda: atslib.search({}, MODEL, MODEL, IMAGES, seed=0),
        "must be an atslib.SearchConfig",
    ),
    "search of a tensor": (
        lambda: atslib.search(SMALL, MODEL, MODEL, PIXELS, seed=0),
        "give atslib.Images",
    ),
    "search of grey images": (
        lambda: atslib.search(SMALL, MODEL, MODEL, GREY, seed=0),
        "does not take images of",
    ),
    "dict for policy ids": (lambda: Policy(5), "Policy of ids 5 must be numbers of operations"),
    "hybrid of None": (
        lambda: Hybrid(None),
        "Hybrid of members None must be several atslib.Policy",
    ),
    "data set of a list": (
        lambda: load(["shapes"], "test"),
        "data set ['shapes'] is unknown; choose one of",
    ),
    "device of text": (lambda: rng(0, device="nope"), "rng: device 'nope' cannot be had"),
    "side of half a pixel": (
        lambda: atslib.load_folder("/", size=2.5),
        "image size=2.5 must be a whole number",
    ),
    "PIL of None": (lambda: Policy((3,)).as_torchvision()(None), "image None must be a PIL image"),
    # numbers that no run could mean
    "momentum of one": (lambda: TrainConfig(momentum=1), "TrainConfig.momentum=1 must be below 1"),
    "huge momentum": (
        lambda: TrainConfig(momentum=1e9),
        "TrainConfig.momentum=1000000000.0 must be below 1",
    ),
    "decay of nan": (
        lambda: TrainConfig(weight_decay=NAN),
        "TrainConfig.weight_decay=nan must be finite",
    ),
    "penalty of nan": (
        lambda: attack(penalties=(("tv-isotropic", NAN),)),
        "must not be negative, nan or infinite",
    ),
    "penalty alone": (
        lambda: attack(penalties=("tv-isotropic", 0.1)),
        "must be pairs of a name and a weight",
    ),
    "penalties of a number": (
        lambda: attack(penalties=5),
        "penalties=5 must be pairs of a name and a weight",
    ),
    "share of nan": (lambda: SearchConfig(rungs=((5, NAN),)), "shares be in (0, 1]"),
    "rung of infinitely many": (
        lambda: SearchConfig(rungs=((float("inf"), 0.5),)),
        "must be (images, share) pairs",
    ),
    "rung of half an image": (
        lambda: SearchConfig(rungs=((2.5, 0.5),)),
        "must be (images, share) pairs",
    ),
    "nothing through a policy": (
        lambda: ThroughPolicy(inner=None),
        "ThroughPolicy.inner None must be",
    ),
    "trial of nan": (
        lambda: ThroughPolicy(inner=attack(), trial=NAN),
        "ThroughPolicy.trial=nan must be a whole number",
    ),
    # attacks of one's own
    "attack that returns nan": (lambda: own(PIXELS * NAN), "an attack returned values up to nan"),
    "attack that returns another shape": (
        lambda: own(PIXELS[:1]),
        "returned (1, 3, 32, 32) torch.float32; it must be",
    ),
    "attack that returns uint8": (
        lambda: own(IMAGES.pixels),
        "torch.uint8; it must be (2, 3, 32, 32) floats",
    ),
    "attack that returns numpy": (
        lambda: own(PIXELS.numpy()),
        "an attack returned a ndarray; it must be",
    ),
    "attack that returns nothing": (
        lambda: own(None),
        "an attack returned a NoneType; it must be a Reconstruction",
    ),
    "attack that returns a wrong result": (
        lambda: own(dataclasses.replace(Reconstruction.of(PIXELS, SEEN), images=PIXELS[:1])),
        "returned (1, 3, 32, 32) torch.float32; it must be (2, 3, 32, 32) floats",
    ),
    "attack that returns a result of None": (
        lambda: own(dataclasses.replace(Reconstruction.of(PIXELS, SEEN), images=None)),
        "an attack returned images None must be a torch.Tensor",
    ),
    "attack that takes no stream": (
        lambda: atslib.reconstruct(SEEN, lambda seen: PIXELS, rng=0),
        "takes (seen); it must take what was seen, and rng by name",
    ),
    "defense that takes nothing": (
        lambda: atslib.observe(MODEL, PIXELS, LABELS, defense=lambda: 1),
        "takes no argument; it must take the gradients, a dict",
    ),
    "class for attack": (
        lambda: atslib.reconstruct(SEEN, atslib.GradientMatching, rng=0),
        "an object with a method run",
    ),
    # metrics
    "mse of 0-255": (lambda: mse(PIXELS * 255, PIXELS * 255), "mse: the truth goes up to"),
    "feature_mse of 0-255": (
        lambda: feature_mse(MODEL, PIXELS, PIXELS * 255),
        "feature_mse: the truth goes up",
    ),
    "mse of grey and color": (lambda: mse(PIXELS[:, :1], PIXELS), "nothing is broadcast"),
    "feature_mse of grey images": (
        lambda: feature_mse(MODEL, PIXELS[:, :1], PIXELS[:, :1]),
        "does not take images of shape (1, 32, 32): it takes 3 channels and the images have 1",
    ),
    "feature_mse of small images": (
        lambda: feature_mse(MODEL, PIXELS[..., :20, :20], PIXELS[..., :20, :20]),
        "feature_mse: the model does not take (2, 3, 20, 20)",
    ),
    # tables and the store
    "front of a dict": (lambda: pareto({}, [1.0]), "pareto: s_pri {} must be numbers"),
    "front of other lengths": (
        lambda: pareto([1.0], [1.0, 2.0]),
        "pareto: there are 1 s_pri and 2 s_acc",
    ),
    "search with a store": (
        lambda: atslib.search(SMALL, MODEL, MODEL, IMAGES, seed=0, keep=Store("x")),
        "search: keep <atsbook.store.Store",
    ),
    "kind that leaves the store": (
        lambda: Store("x").path("../x", {}),
        "kind '../x' must be the name of one folder",
    ),
    "kind of two folders": (
        lambda: Store("x").path("a/b", {}),
        "kind 'a/b' must be the name of one folder",
    ),
    "kind of None": (lambda: Store("x").has(None, {}), "kind None must be the name of one folder"),
    # kinds of tensors that hold no values of their own, and numbers that no run could mean
    "sparse images": (
        lambda: atslib.observe(MODEL, PIXELS.to_sparse(), LABELS),
        "images are sparse float32; they must be floats",
    ),
    "images on meta": (
        lambda: atslib.observe(MODEL, PIXELS.to("meta"), LABELS),
        "images are float32 on the device meta",
    ),
    "sparse labels": (
        lambda: atslib.observe(MODEL, PIXELS, LABELS.to_sparse()),
        "labels are sparse int64",
    ),
    "pixels on meta": (
        lambda: Policy((3,))(IMAGES.pixels.to("meta"), rng=0),
        "pixels are uint8 on the device meta",
    ),
    "sparse estimate": (
        lambda: atslib.psnr(PIXELS.to_sparse(), PIXELS),
        "psnr: images of sparse float32",
    ),
    "sparse indices": (
        lambda: IMAGES[torch.tensor([0, 1]).to_sparse()],
        "indices sparse int64",
    ),
    "draws without end": (
        lambda: atslib.privacy_score(MODEL, IMAGES, "3", rng=0, draws=10**9),
        "draws=1000000000 must be at most 10000",
    ),
    "search with points without end": (
        lambda: SearchConfig(points=10**9),
        "SearchConfig.points=1000000000 must be at most 10000",
    ),
    "epochs without end": (
        lambda: TrainConfig(epochs=10**12),
        "TrainConfig.epochs=1000000000000 must be at most 1000000",
    ),
    "local epochs without end": (
        lambda: LocalTraining(epochs=10**9),
        "LocalTraining.epochs=1000000000 must be at most 10000",
    ),
    "steps without end": (
        lambda: attack(steps=10**9),
        "GradientMatching.steps=1000000000 must be at most 10000000",
    ),
    "rounds without end": (
        lambda: Federation(rounds=10**9),
        "Federation.rounds=1000000000 must be at most 1000000",
    ),
    "images larger than memory": (
        lambda: atslib.load_folder("/", size=10**6),
        "image size=1000000 must be at most 1024",
    ),
    "a number of ten thousand digits": (
        lambda: atslib.parse_policy("9" * 10_000),
        "expected ids joined by '-'",
    ),
    "width of ten thousand digits": (
        lambda: atslib.build_model("lenet-" + "9" * 10_000, 10),
        "model 'lenet-99",
    ),
    "truth for an operation": (lambda: Policy((True,)), "no operation [True]; ids run 0..49"),
    "stream of an object": (
        lambda: rng(0, object()),
        "must be text or whole numbers",
    ),
    "audit normalized by a number": (
        lambda: atsaudit.audit(torch.nn.Linear(3, 10), PIXELS, LABELS, normalize=3),
        "normalize=3 must be a pair (mean, std)",
    ),
    # paths and policies' files
    "checkpoint of no name": (
        lambda: atslib.reconstruct(SEEN, attack(), rng=0, checkpoint=""),
        "checkpoint '' cannot be a path: empty",
    ),
    "checkpoint at the top": (
        lambda: atslib.reconstruct(SEEN, attack(), rng=0, checkpoint="/"),
        "checkpoint / is a folder",
    ),
    "checkpoint of a long name": (
        lambda: atslib.reconstruct(SEEN, attack(), rng=0, checkpoint="a" * 5000),
        "cannot be a path: too long",
    ),
    "checkpoint with a zero byte": (
        lambda: save_checkpoint("a\0b", MODEL),
        "cannot be a path: embedded null byte",
    ),
    "policies of None": (
        lambda: save_policies("x.json", None),
        "policies None must be a list of policies",
    ),
    "policies of numbers": (
        lambda: save_policies("x.json", [3]),
        "policy 3 must be an atslib.Policy or Hybrid",
    ),
    "policies with a fact that is none": (
        lambda: save_policies("x.json", [Policy((3,))], made=object()),
        "a fact is no JSON value",
    ),
    "policies where nothing can be": (
        lambda: save_policies(f"{__file__}/x.json", [Policy((3,))]),
        "x.json cannot be written: ",
    ),
    "store in a file": (
        lambda: Store(__file__).get("k", {}, dict),
        "cannot be written: Not a directory",
    ),
}

NOT_PATHS = {
    "load_checkpoint": lambda path: load_checkpoint(path, MODEL),
    "save_checkpoint": lambda path: save_checkpoint(path, MODEL),
    "load_policies": load_policies,
    "load_folder": atslib.load_folder,
    "SearchResult.save": lambda path: atslib.scores.search.SearchResult(
        {}, (), None, SMALL, 0
    ).save(path),
}
OPTIONAL_PATHS = {
    "Store": Store,
    "load": lambda path: load("cifar10", "test", root=path, download=False),
    "fit": lambda path: atslib.fit(MODEL, IMAGES, TrainConfig(epochs=1), rng=0, checkpoint=path),
    "reconstruct": lambda path: atslib.reconstruct(SEEN, attack(), rng=0, checkpoint=path),
}


@pytest.mark.parametrize("wrong", [0, 5, 2.5, ["a"]], ids=str)
@pytest.mark.parametrize("door", [*NOT_PATHS, *OPTIONAL_PATHS])
def test_what_is_no_path_is_refused_by_name(door, wrong):
    with refused(f" {wrong!r} must be a path, as text or a pathlib.Path"):
        (NOT_PATHS | OPTIONAL_PATHS)[door](wrong)


@pytest.mark.parametrize("door", NOT_PATHS)
def test_a_path_that_is_needed_may_not_be_none(door):
    with refused(" None must be a path, as text or a pathlib.Path"):
        NOT_PATHS[door](None)


# A required argument of a public name → the call with None in its place, and how the sentence names
# it.
NONE = {
    "observe model": (lambda: atslib.observe(None, PIXELS, LABELS), "model None"),
    "observe images": (lambda: atslib.observe(MODEL, None, LABELS), "images are NoneType"),
    "observe labels": (lambda: atslib.observe(MODEL, PIXELS, None), "labels are NoneType"),
    "example_gradients model": (
        lambda: example_gradients(None, PIXELS, LABELS),
        "model None",
    ),
    "example_gradients images": (
        lambda: example_gradients(MODEL, None, LABELS),
        "images are NoneType",
    ),
    "gradsim_curve model": (
        lambda: gradsim_curve(None, PIXELS, LABELS, rng=0),
        "model None",
    ),
    "gradsim_curve labels": (
        lambda: gradsim_curve(MODEL, PIXELS, None, rng=0),
        "labels are NoneType",
    ),
    "privacy_score images": (
        lambda: atslib.privacy_score(MODEL, None, "3", rng=0),
        "images are a NoneType",
    ),
    "privacy_score policy": (
        lambda: atslib.privacy_score(MODEL, IMAGES, None, rng=0),
        "policy None",
    ),
    "privacy_scores policies": (
        lambda: privacy_scores(MODEL, IMAGES, None, rng=0),
        "policies None",
    ),
    "privacy_scores rng": (
        lambda: privacy_scores(MODEL, IMAGES, ["3"], rng=None),
        "rng None",
    ),
    "accuracy_score model": (lambda: accuracy_score(None, IMAGES, "3", rng=0), "model None"),
    "accuracy_score images": (
        lambda: accuracy_score(MODEL, None, "3", rng=0),
        "images are a NoneType",
    ),
    "accuracy_score policy": (
        lambda: accuracy_score(MODEL, IMAGES, None, rng=0),
        "policy None",
    ),
    "search config": (
        lambda: atslib.search(None, MODEL, MODEL, IMAGES, seed=0),
        "search: config None",
    ),
    "search semi-trained": (
        lambda: atslib.search(SMALL, None, MODEL, IMAGES, seed=0),
        "search: semi_trained None",
    ),
    "search untrained": (
        lambda: atslib.search(SMALL, MODEL, None, IMAGES, seed=0),
        "search: random_init None",
    ),
    "search images": (
        lambda: atslib.search(SMALL, MODEL, MODEL, None, seed=0),
        "images are a NoneType",
    ),
    "search seed": (lambda: atslib.search(SMALL, MODEL, MODEL, IMAGES, seed=None), "seed None"),
    "pareto": (lambda: pareto(None, [1.0]), "pareto: s_pri None"),
    "fit model": (lambda: atslib.fit(None, IMAGES, TrainConfig(), rng=0), "model None"),
    "fit images": (lambda: atslib.fit(MODEL, None, TrainConfig(), rng=0), "images are a NoneType"),
    "fit config": (lambda: atslib.fit(MODEL, IMAGES, None, rng=0), "fit: config None"),
    "fit rng": (lambda: atslib.fit(MODEL, IMAGES, TrainConfig(), rng=None), "rng None"),
    "evaluate images": (lambda: atslib.evaluate(MODEL, None), "images are a NoneType"),
    "load_checkpoint model": (
        lambda: load_checkpoint("m", None),
        "load_checkpoint: model None",
    ),
    "save_checkpoint model": (
        lambda: save_checkpoint("m", None),
        "save_checkpoint: model None",
    ),
    "reconstruct seen": (
        lambda: atslib.reconstruct(None, "adam-cosine", rng=0),
        "seen is a NoneType",
    ),
    "reconstruct attack": (lambda: atslib.reconstruct(SEEN, None, rng=0), "attack None"),
    "reconstruct rng": (lambda: atslib.reconstruct(SEEN, "adam-cosine", rng=None), "rng None"),
    "restore_labels seen": (lambda: restore_labels(None, rng=0), "seen is a NoneType"),
    "restore_labels rng": (lambda: restore_labels(SEEN, rng=None), "rng None"),
    "psnr": (lambda: atslib.psnr(None, PIXELS), "psnr: images of NoneType"),
    "feature_mse model": (
        lambda: feature_mse(None, PIXELS, PIXELS),
        "feature_mse: model None",
    ),
    "lpips": (lambda: lpips(PIXELS, None), "lpips: images of NoneType"),
    "load": (lambda: load(None, "test"), "data set None"),
    "load split": (lambda: load("shapes", None), "split None"),
    "parse_policy": (lambda: atslib.parse_policy(None), "policy None"),
    "policy pixels": (lambda: Policy((3,))(None, rng=0), "None"),
    "build_model": (lambda: atslib.build_model(None, 10), "model None"),
    "build_model classes": (lambda: atslib.build_model("lenet", None), "num_classes=None"),
    "Normalize": (lambda: Normalize(None, None), "Normalize(None, None)"),
}


@pytest.mark.parametrize("name", NONE)
def test_none_in_the_place_of_what_is_needed_is_named(name):
    call, said = NONE[name]
    with refused(said):
        call()


def test_a_fact_that_json_cannot_hold_is_refused(tmp_path):
    with refused("checkpoint", "a fact is no JSON value"):
        save_checkpoint(tmp_path / "m.safetensors", MODEL, made_by=object())
    assert not list(tmp_path.iterdir())


def test_what_is_computed_for_a_store_is_a_dict_of_tensors(tmp_path):
    with refused("Store: scores is computed as [tensor(1)] must be a dict of tensors"):
        Store(tmp_path).get("scores", {}, lambda state: [torch.tensor(1)])


def test_a_grey_network_still_takes_what_it_took():
    grey = Normalize((0.5,), (0.25,))
    assert grey(PIXELS).shape == PIXELS.shape
    assert grey(PIXELS[:, :1]).shape == PIXELS[:, :1].shape


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_ends_in_one_sentence(name):
    call, said = CALLS[name]
    with refused(said):
        call()
