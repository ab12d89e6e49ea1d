"""Found and bits: against loops over candidates, forms, shifts and pixels, and against chance and
certainty.
"""

import importlib.util
import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from checks import refused

import atslib
from atslib.data.load import load
from atslib.measures import found as module
from atslib.measures.found import (
    OVER,
    PIXELS,
    SCALES,
    Matcher,
    bits,
    fit_temperature,
    found,
    match,
    match_each,
    match_sets,
    own_class,
    rank,
)
from atslib.measures.frame import shown
from atslib.policies.differentiable import forms
from atslib.policies.draws import Draw, draw
from atslib.policies.policy import Policy
from atslib.rng import rng

HYBRID = "3-1-7+43-18-18"
MATCHERS = [Matcher(*each) for each in itertools.product(PIXELS, SCALES, OVER)]


@pytest.fixture(scope="module")
def shapes():
    return load("shapes", "test")


def made(shapes, policy, rows, noise=0.0):
    """What clients make of some of the photographs, in [0, 1], and what was drawn."""
    drawn = draw(len(rows), policy, rng=rng(0, "drawn"))
    images = drawn.apply(shapes.pixels[rows]) / 255
    return images + noise * torch.randn(images.shape, generator=rng(0, "noise")), drawn


def of_form(policy, form, like):
    """A form as a draw of one image."""
    ids, signs = form
    return Draw(
        Policy(ids),
        None,
        None,
        torch.zeros(1, dtype=torch.int64),
        torch.tensor([signs]).view(1, len(ids)),
    )


def by_hand(image, candidate, inside, matcher, shift):
    """The similarity of one image to one form, pixel by pixel in numpy."""
    x, y, inside = (np.asarray(each, dtype=float) for each in (image, candidate, inside))
    if matcher.pixels != "colors":
        x = 0.5 + 0.25 * (x - x.mean()) / x.std(ddof=1)
    inside = np.ones_like(inside) if matcher.pixels == "overlap" else inside
    height, width = inside.shape
    best = -np.inf
    for dy, dx in itertools.product(range(-shift, shift + 1), repeat=2):
        pairs = []
        for row, column in itertools.product(range(height), range(width)):
            there = (row + dy, column + dx)
            if not inside[row, column]:
                if matcher.pixels in ("whole", "colors"):
                    pairs.append((x[:, row, column], y[:, row, column]))
            elif 0 <= there[0] < height and 0 <= there[1] < width and inside[there]:
                pairs.append((x[:, row, column], y[:, there[0], there[1]]))
        ours, theirs = (np.concatenate(side) for side in zip(*pairs, strict=True))
        share = len(ours) / x.size
        if matcher.pixels == "colors":
            error = np.mean((ours - theirs) ** 2)
            score = -error if matcher.scale == "plain" else -0.5 * np.log(error + module.FLOOR)
        else:
            r = np.corrcoef(ours, theirs)[0, 1]
            score = share * r
            if matcher.scale == "likelihood":
                score = -0.5 * share * np.log(1 - max(r, 0) ** 2 + module.FLOOR)
        best = max(best, score)
    return best


@pytest.mark.parametrize("matcher", [m for m in MATCHERS if m.over == "marginal"], ids=str)
def test_similarities_are_those_of_a_loop_over_forms_mirror_images_shifts_and_pixels(
    matcher, monkeypatch
):
    monkeypatch.setattr(module, "SHIFT", 2)
    small = torch.randint(0, 256, (5, 3, 3, 3), generator=rng(1)).float()
    small = F.interpolate(small, (9, 10), mode="bilinear").round().byte()
    candidates = torch.tensor([[0, 1, 2], [2, 3, 4]])
    images = torch.rand(2, 3, 9, 10, generator=rng(2))
    scores = match(images, small, candidates, "3-1", matcher=matcher)
    possible = forms("3-1")
    assert scores.shape == (2, 3, 2 * len(possible)) == (2, 3, 8)
    for image, place in itertools.product(range(2), range(3)):
        pixels = small[candidates[image, place]][None]
        wanted = []
        for form in possible:
            drawn = of_form("3-1", form, small)
            inside = shown(drawn, small)[0]
            for known in (pixels, pixels.flip(-1)):
                wanted.append(
                    by_hand(images[image], drawn.apply(known)[0] / 255, inside, matcher, 2)
                )
        np.testing.assert_allclose(scores[image, place], wanted, atol=2e-4)


def test_the_best_form_is_the_best_of_all_and_several_matchers_give_what_each_gives(shapes):
    images, _ = made(shapes, HYBRID, range(6), noise=0.3)
    candidates, _ = own_class(shapes.labels, range(6), most=8)
    together = match_each(images, shapes.pixels, candidates, HYBRID, matchers=MATCHERS)
    for best, every in zip(MATCHERS[::2], MATCHERS[1::2], strict=True):
        assert (best.over, every.over) == OVER
        torch.testing.assert_close(
            together[MATCHERS.index(best)][..., 0],
            together[MATCHERS.index(every)].amax(2),
            atol=1e-5,
            rtol=0,
        )
        alone = match(images, shapes.pixels, candidates, HYBRID, matcher=every)
        torch.testing.assert_close(alone, together[MATCHERS.index(every)], atol=1e-5, rtol=0)


@pytest.mark.parametrize("policy", ["", "3-1-7", HYBRID])
def test_sets_of_reconstructions_are_as_alike_together_as_each_alone(shapes, policy):
    """They share what the policy makes of the candidates, to the last bit."""
    rows = [0, 1, 2, 10]  # two of them of one class
    assert shapes.labels[0] == shapes.labels[10]
    candidates, _ = own_class(shapes.labels, rows, most=8)
    sets = [made(shapes, policy, rows, noise=noise)[0] for noise in (0.1, 0.3, 0.8)]
    sets[1][2] = torch.nan
    together = match_sets(sets, shapes.pixels, candidates, policy, matchers=MATCHERS)
    for images, found_together in zip(sets, together, strict=True):
        alone = match_each(images, shapes.pixels, candidates, policy, matchers=MATCHERS)
        assert all(map(torch.equal, found_together, alone))


@pytest.mark.parametrize(
    "matcher", [m for m in MATCHERS if m.over == "best" and m.pixels != "overlap"], ids=str
)
@pytest.mark.parametrize("policy", ["", "43-18-18", HYBRID, "6-4", "2"])
def test_the_exact_image_finds_its_photograph_with_and_without_the_draw(shapes, policy, matcher):
    rows = range(0, 40, 3)
    images, drawn = made(shapes, policy, rows)
    candidates, truth = own_class(shapes.labels, rows, most=20)
    told = found(match(images, shapes.pixels, candidates, drawn, matcher=matcher), truth)
    assert told.all()
    # Rotation after a crop is no crop after a rotation; and of forms that keep more or less in the
    # frame, the share of the image prefers the one that keeps more, whichever it was.
    if policy != "2" and (matcher.pixels, matcher.scale) != ("frame", "plain"):
        assert (
            found(match(images, shapes.pixels, candidates, policy, matcher=matcher), truth)
            .float()
            .mean()
            > 0.8
        )


def test_who_knows_the_policy_finds_more_than_who_undoes_nothing(shapes):
    rows = range(40)
    candidates, truth = own_class(shapes.labels, rows, most=40)
    for policy in ("3-1-7", "43-18-18"):
        images, _ = made(shapes, policy, rows, noise=0.5)
        known, plain = (
            bits(match(images, shapes.pixels, candidates, p), truth).mean() for p in (policy, "")
        )
        assert known > plain


def test_candidates_are_the_first_of_the_class_and_hold_the_photograph():
    labels = torch.tensor([0, 1, 0, 1, 0, 0, 1])
    candidates, truth = own_class(labels, [5, 1, 0], most=3)
    assert candidates.tolist() == [[0, 2, 5], [1, 3, 6], [0, 2, 4]]
    assert truth.tolist() == [2, 0, 0]
    candidates, truth = own_class(labels, torch.tensor([4, 6]))
    assert candidates.tolist() == [[0, 2, 4], [1, 3, 6]]  # as many as the smaller class has
    assert truth.tolist() == [2, 2]


def test_no_draw_no_crop_no_shift(shapes):
    """Without crop and flip a photograph moved by a pixel is another one."""
    pixels = torch.stack(
        [shapes.pixels[0], shapes.pixels[0].roll(1, -1), shapes.pixels[0].flip(-1)]
    )
    candidates = torch.tensor([[0, 1, 2]])
    scores = match(pixels[:1] / 255, pixels, candidates, crop_flip=False)[..., 0]
    assert rank(scores, torch.tensor([0])).item() == 1
    assert scores[0, 0] > scores[0, 1:].max() + 0.01
    either = match(pixels[:1] / 255, pixels, candidates)[..., 0]
    # Both are exact, where a likelihood is at its ceiling and shows single precision in the second
    # decimal.
    assert (either[0, 0] - either[0, 2]).abs() < 0.02 < either[0, 0] - scores[0, 1:].max()


def test_bits_of_a_certain_server_are_log2_of_the_candidates_and_of_an_ignorant_one_nothing():
    truth = torch.arange(40) % 16
    certain = F.one_hot(truth, 16).float()
    assert (bits(certain, truth, temperature=0.01) == math.log2(16)).all()
    assert found(certain, truth).all()
    told = bits(certain, truth)  # fitted on twenty others: one image's worth of doubt
    assert (told > 3.5).all()
    assert (told < 4).all()
    flat = torch.zeros(40, 16)
    assert bits(flat, truth).abs().max() < 1e-6
    assert not found(flat, truth).any()
    assert (rank(flat, truth) == 16).all()
    assert fit_temperature(flat, truth) == math.inf


@pytest.mark.parametrize("forms_tried", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_bits_under_chance_are_none_in_the_mean(forms_tried):
    """200 cells of 40 images whose similarities are noise: the mean is 0 or a little below, never
    above.
    """
    draws = rng(0, "chance")
    means, hits = [], []
    for _ in range(200):
        noise = torch.randn(40, 20, forms_tried, generator=draws)
        truth = torch.randint(20, (40,), generator=draws)
        means.append(bits(noise, truth).mean().item())
        hits.append(found(noise, truth).float().mean().item())
    error = np.std(means, ddof=1) / math.sqrt(200)
    assert -0.1 < np.mean(means) < 3 * error
    assert abs(np.mean(hits) - 1 / 20) < 4 * math.sqrt(0.05 * 0.95 / 8000)


def test_bits_are_those_of_a_channel_whose_information_is_known():
    """Similarity 1 for the true candidate in nine of ten cases, else for another: log2 K less the
    doubt left.
    """
    count, candidates = 20_000, 8
    draws = rng(0, "channel")
    truth = torch.randint(candidates, (count,), generator=draws)
    wrong = torch.rand(count, generator=draws) < 0.1
    said = torch.where(
        wrong, (truth + torch.randint(1, candidates, (count,), generator=draws)) % candidates, truth
    )
    told = bits(F.one_hot(said, candidates).float(), truth)
    capacity = 3 + 0.9 * math.log2(0.9) + 0.1 * math.log2(0.1 / 7)
    assert told.mean().item() == pytest.approx(capacity, abs=0.03)


def test_a_temperature_is_the_best_of_a_fine_grid_with_one_image_of_doubt():
    scores = torch.randn(30, 10, generator=rng(3)).double()
    truth = torch.randint(10, (30,), generator=rng(4))
    scores[torch.arange(30), truth] += 2

    def loss(temperature):
        guess = torch.log_softmax(scores / temperature, 1)
        return float(-guess[torch.arange(30), truth].sum() - guess.mean())

    fitted = fit_temperature(scores, truth)
    assert loss(fitted) <= min(loss(t) for t in np.geomspace(0.01, 100, 400)) * 1.002


def test_a_marginal_guess_weighs_every_form():
    scores = torch.tensor([[[0.0, 2.0], [1.0, 1.5]]])
    truth = torch.tensor([1])
    weights = torch.tensor([1 + math.exp(2), math.exp(1) + math.exp(1.5)]) / 2
    wanted = 1 + math.log2(float(weights[1] / weights.sum()))
    assert bits(scores, truth, temperature=1.0).item() == pytest.approx(wanted, abs=1e-6)
    assert not found(scores, truth, temperature=0.1).item()  # the best form alone
    assert found(scores, truth, temperature=math.inf).item()  # the mean of the forms


def test_halves_are_fitted_on_each_other():
    scores = torch.randn(12, 5, generator=rng(5))
    truth = torch.arange(12) % 5
    even = bits(scores[::2], truth[::2], temperature=fit_temperature(scores[1::2], truth[1::2]))
    torch.testing.assert_close(bits(scores, truth)[::2], even)


def test_a_flat_or_diverged_reconstruction_tells_nothing(shapes):
    images, _ = made(shapes, "", range(4))
    images[1] = 0.3
    images[2, 0, 0, 0] = math.nan
    candidates, truth = own_class(shapes.labels, range(4), most=10)
    for matcher in MATCHERS[::2]:
        scores = match(images, shapes.pixels, candidates, matcher=matcher)
        assert found(scores, truth).tolist() == [True, False, False, True]
        assert bits(scores, truth, temperature=0.1)[1:3].abs().max() < 1e-6


def test_what_cannot_be_asked_is_refused(shapes):
    images, drawn = made(shapes, "", range(3))
    candidates, truth = own_class(shapes.labels, range(3), most=5)
    with refused("Matcher.pixels='edges'", "overlap"):
        Matcher(pixels="edges")
    with refused("own_class", "[1000]"):
        own_class(shapes.labels, [1000])
    with refused("own_class", "two are needed"):
        own_class(shapes.labels, [0], most=1)
    with refused("match", "(B, K) with B = 2"):
        match(images[:2], shapes.pixels, candidates)
    with refused("match", "rows of 10 photographs"):
        match(images, shapes.pixels[:10], candidates)
    with refused("3 draws for 2"):
        match(images[:2], shapes.pixels, candidates[:2], drawn)
    with refused("uint8"):
        match(images, shapes.pixels / 255, candidates)
    scores = match(images, shapes.pixels, candidates)
    with refused("temperature=0"):
        bits(scores, truth, temperature=0)
    with refused("at least two images"):
        bits(scores[:1], truth[:1])
    with refused("truth", "one of 5 candidates"):
        found(scores, truth + 5)
    with refused("rank", "best form"):
        rank(torch.zeros(3, 5, 2), truth)
    with refused("finite"):
        bits(scores * math.nan, truth)


def test_the_default_matcher_is_the_one_that_its_rule_chooses_from_the_stored_trial():
    top = Path(__file__).parents[1]
    spec = importlib.util.spec_from_file_location("matchers", top / "benchmarks" / "matchers.py")
    trial = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(trial)
    rows = pd.read_csv(top / "results" / "matchers.csv")
    assert len(rows) == len(trial.CELLS) * len(trial.POLICIES) * len(MATCHERS) * 2
    table = trial.ranked(rows)
    (chosen,) = table.index[table["chosen"]]
    assert Matcher(*chosen) == module.MATCHER
    assert table.loc[chosen, "bits, policy known"] > table.loc[chosen, "bits, undoing nothing"]


def test_users_find_them_in_the_package():
    assert (atslib.found, bits, atslib.match, atslib.own_class) == (
        found,
        bits,
        match,
        own_class,
    )
