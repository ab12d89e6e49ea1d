"""The public names, called wrongly: one sentence, neither torch's words nor a wrong result."""

import dataclasses

import pytest
from checks import refused

import atslib
from atslib import ATTACKS, Hybrid, Knowledge, Normalize, Policy, SearchConfig, TrainConfig, load, rng

IMAGES, GREY = load("shapes", "test")[4:6], load("shapes-grey", "test")[4:6]
PIXELS, LABELS = IMAGES.pixels / 255, IMAGES.labels
MODEL = atslib.build_model("lenet-2", 10, norm="shapes", rng=0)
NARROW = atslib.build_model("lenet-2", 2, norm="shapes", rng=0)  # classes 0 and 1, which the images are not of
SEEN = atslib.observe(MODEL, PIXELS, LABELS)
SMALL = SearchConfig(candidates=2, images=2, acc_images=2, points=2, keep=1)


def attack(**changes):
    return dataclasses.replace(ATTACKS["adam-cosine"], **{"steps": 2, **changes})


# Wrong images and labels, and what is said of them, whoever is asked for a gradient.
INPUTS = {
    "uint8": (IMAGES.pixels, LABELS, "images are uint8 of shape (2, 3, 32, 32); they must be floats"),
    "0-255": (IMAGES.pixels.float(), LABELS, "they must be in [0, 1] (8-bit pixels divided by 255)"),
    "grey": (PIXELS[:, :1], LABELS, "takes 3 channels and the images have 1"),
    "size": (PIXELS[..., :20, :20], LABELS, "does not take images of shape (3, 20, 20)"),
    "label": (PIXELS, LABELS + 10, "label"),
    "floats": (PIXELS, LABELS.float(), "labels are float32 of shape (2,); they must be whole numbers"),
    "one label": (PIXELS, LABELS[:1], "labels of shape (1,) for 2 images"),
}


@pytest.mark.parametrize("wrong", INPUTS)
@pytest.mark.parametrize("door", ["observe", "example_gradients", "gradsim_curve"])
def test_whoever_takes_a_gradient_says_what_is_wrong_with_its_images_and_labels(door, wrong):
    pixels, labels, said = INPUTS[wrong]
    with refused(said):
        getattr(atslib, door)(MODEL, pixels, labels, **({"rng": 0} if door == "gradsim_curve" else {}))


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
    "statistics of text": (lambda: Normalize("a", "b"), "give the mean and deviation of each channel"),
    "model of a number": (lambda: atslib.build_model(5, 10), "model 5 is unknown"),
    "huge width": (lambda: atslib.build_model("lenet-99999999", 10), "neither number may be above 1024"),
    "huge image": (lambda: atslib.build_model("lenet", 10, image_size=9999), "neither number may be above 1024"),
    "infinite step": (lambda: TrainConfig(lr=float("inf")), "TrainConfig.lr=inf must be finite"),
    "step of nan": (lambda: attack(lr=float("nan")), "GradientMatching.lr=nan must be finite"),
    "weight of nan": (lambda: attack(tv=float("nan")), "GradientMatching.tv=nan must be finite"),
    "dict for config": (lambda: atslib.fit(MODEL, IMAGES, {}, rng=0), "config {} must be an atslib.TrainConfig"),
    "accuracy of too few classes": (lambda: atslib.evaluate(NARROW, IMAGES), "label"),
    "accuracy of grey images": (lambda: atslib.evaluate(MODEL, GREY), "does not take images of shape (1, 28, 28)"),
    "accuracy in no chunks": (lambda: atslib.evaluate(MODEL, IMAGES, chunk=0), "chunk=0 must be a whole number"),
    "accuracy of nothing": (lambda: atslib.evaluate(None, IMAGES), "model None must be a torch.nn.Module"),
    "start of text": (lambda: atslib.reconstruct(SEEN, attack(), rng=0, start="zeros"), "start str must be"),
    "attack that returns 0-255": (
        lambda: atslib.reconstruct(SEEN, lambda seen, *, rng: PIXELS * 255, rng=0),
        "images are in units of [0, 1]",
    ),
    "psnr of 0-255": (lambda: atslib.psnr(PIXELS, PIXELS * 255), "psnr: the truth goes up to"),
    "ssim of 0-255": (lambda: atslib.ssim(PIXELS * 255, PIXELS * 255), "ssim: the truth goes up to"),
    "noise of 0-255": (
        lambda: atslib.gradsim_curve(MODEL, PIXELS, LABELS, start=IMAGES.pixels),
        "start is uint8 of shape (2, 3, 32, 32); it must be floats in [0, 1]",
    ),
    "half a point": (
        lambda: atslib.gradsim_curve(MODEL, PIXELS, LABELS, rng=0, points=2.5),
        "points=2.5 must be a whole number, at least 2",
    ),
    "score of a number": (lambda: atslib.privacy_score(MODEL, IMAGES, 5, rng=0), "policy 5 must be text"),
    "score of grey images": (lambda: atslib.privacy_score(MODEL, GREY, "3", rng=0), "does not take images of shape"),
    "score of too few classes": (lambda: atslib.privacy_score(NARROW, IMAGES, "3", rng=0), "label"),
    "score of nothing": (lambda: atslib.privacy_score(None, IMAGES, "3", rng=0), "model None must be"),
    "accuracy score of a number": (lambda: atslib.accuracy_score(MODEL, IMAGES, 5, rng=0), "policy 5 must be text"),
    "accuracy score of grey": (lambda: atslib.accuracy_score(MODEL, GREY, "3", rng=0), "does not take images of shape"),
    "half a candidate": (lambda: SearchConfig(candidates=2.5), "SearchConfig.candidates=2.5 must be a whole number"),
    "one point": (lambda: SearchConfig(points=1), "SearchConfig.points=1 must be at least 2"),
    "no draws": (lambda: SearchConfig(draws=0), "SearchConfig.draws=0 must be at least 1"),
    "rungs of a number": (lambda: SearchConfig(rungs=5), "SearchConfig.rungs=5 must be (images, share) pairs"),
    "threshold of nan": (lambda: SearchConfig(t_acc=float("nan")), "SearchConfig.t_acc=nan must be a finite number"),
    "search with a dict": (lambda: atslib.search({}, MODEL, MODEL, IMAGES, seed=0), "must be an atslib.SearchConfig"),
    "search of a tensor": (lambda: atslib.search(SMALL, MODEL, MODEL, PIXELS, seed=0), "give atslib.Images"),
    "search of grey images": (lambda: atslib.search(SMALL, MODEL, MODEL, GREY, seed=0), "does not take images of"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_ends_in_one_sentence(name):
    call, said = CALLS[name]
    with refused(said):
        call()
