"""The two scores: against a plain loop, their closed forms and limits, and what they must not
depend on.
"""

import pytest
import torch
import torch.nn.functional as F
from checks import refused

from atslib.data.load import load
from atslib.models import build_model
from atslib.policies.operations import crop_and_flip
from atslib.policies.policy import Hybrid, Policy, parse_policy
from atslib.rng import rng
from atslib.scores import scores
from atslib.scores.scores import (
    VARIANTS,
    accuracy_score,
    gradsim_curve,
    jacobian_score,
    privacy_score,
    privacy_scores,
)

pytestmark = pytest.mark.usefixtures("one_thread")

MODELS = ["resnet20-1", "convnet-4"]
POLICIES = [parse_policy(text) for text in ("3-1-7", "", "43-18-18", "9", "3-1-7+43-18-18")]


def network(name, seed=0):
    """A network with generic running statistics."""
    model = build_model(name, 10, norm="shapes", rng=rng(seed))
    with torch.no_grad():
        model.train()(torch.rand(16, 3, 32, 32, generator=rng(seed, "seen")))
    return model.eval()


@pytest.fixture(scope="module")
def model():
    return network("convnet-4")


@pytest.fixture(scope="module")
def images():
    return load("shapes", "test")[:4]


def plain_curve(model, pixels, labels, start, points, variant):
    """One image and one point at a time, by `autograd.grad` and torch's own cosine similarity."""

    def gradient(image, label):
        return torch.autograd.grad(
            F.cross_entropy(model(image[None]), label[None]), list(model.parameters())
        )

    def similarity(gradients, target):
        pairs = [
            (g.flatten().double(), t.flatten().double())
            for g, t in zip(gradients, target, strict=True)
        ]
        if variant == "code":
            return sum(F.cosine_similarity(g, t, dim=0) for g, t in pairs) / len(pairs)
        return F.cosine_similarity(*(torch.cat(side) for side in zip(*pairs, strict=True)), dim=0)

    curves = []
    for image, label, noise in zip(pixels, labels, start, strict=True):
        target = gradient(image, label)
        shares = [j / (points - 1) for j in range(points)]
        curves.append(
            torch.stack(
                [similarity(gradient(s * image + (1 - s) * noise, label), target) for s in shares]
            )
        )
    return torch.stack(curves)


def prepared_by_hand(images, stream):
    """The seed that a score draws from its stream, and the pixels after crop, flip and the first
    policy, uint8.
    """
    seed = int(torch.randint(1 << 62, (1,), generator=stream))
    cropped = crop_and_flip(images.pixels, rng=rng(seed, "crop and flip", 0))
    return seed, POLICIES[0](cropped, rng=rng(seed, "policy", "3-1-7", 0))


# --- the curve ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", MODELS)
def test_the_curve_equals_the_plain_loop(name, variant, images):
    side = 16 if name == "resnet20-1" else 32  # the convnet's head fixes its images' size
    network_, pixels = network(name), images.pixels[:2, :, :side, :side].float() / 255
    start = torch.rand(pixels.shape, generator=rng(1))
    curve = gradsim_curve(
        network_, pixels, images.labels[:2], points=5, start=start, variant=variant
    )
    expected = plain_curve(network_, pixels, images.labels[:2], start, 5, variant)
    torch.testing.assert_close(curve.double(), expected, rtol=0, atol=1e-5)
    assert (curve[:, -1] == 1).all()
    assert (curve[:, :-1] < 1).all()


def test_without_a_start_the_noise_is_uniform_and_drawn_from_the_stream(model, images):
    pixels = images.pixels.float() / 255
    drawn = gradsim_curve(model, pixels, images.labels, points=3, rng=rng(2))
    given = torch.rand(pixels.shape, generator=rng(2))
    assert torch.equal(drawn, gradsim_curve(model, pixels, images.labels, points=3, start=given))


@pytest.mark.parametrize("rows", [1, 5, 1000])
def test_the_curve_does_not_depend_on_the_chunks_nor_on_neighbours(images, rows, monkeypatch):
    """In float64: a batch of one is convolved in another order, and in float32 a max-pool may then
    choose otherwise.
    """
    model, pixels = network("convnet-4").double(), images.pixels.double() / 255
    start = torch.rand(images.pixels.shape, generator=rng(3), dtype=torch.float64)
    whole = gradsim_curve(model, pixels, images.labels, points=6, start=start)
    monkeypatch.setattr(scores, "_rows_at_once", lambda model: rows)
    chunked = gradsim_curve(model, pixels, images.labels, points=6, start=start)
    torch.testing.assert_close(chunked, whole, rtol=0, atol=1e-11)
    alone = gradsim_curve(model, pixels[2:3], images.labels[2:3], points=6, start=start[2:3])
    torch.testing.assert_close(alone, whole[2:3], rtol=0, atol=1e-11)


def test_out_of_memory_halves_the_batch_and_goes_on(model, images, monkeypatch):
    pixels, start = images.pixels.float() / 255, torch.rand(images.pixels.shape, generator=rng(3))
    whole = gradsim_curve(model, pixels, images.labels, points=4, start=start)
    real, sizes = scores.problem_gradients, []

    def small(model, inputs, targets):
        sizes.append(len(inputs))
        if len(inputs) > 3:
            raise torch.OutOfMemoryError("no memory")
        return real(model, inputs, targets)

    monkeypatch.setattr(scores, "problem_gradients", small)
    halved = gradsim_curve(model, pixels, images.labels, points=4, start=start)
    torch.testing.assert_close(halved, whole, rtol=0, atol=1e-6)
    assert max(sizes) > 3
    monkeypatch.setattr(
        scores, "problem_gradients", lambda *_: small(model, pixels.expand(4, -1, -1, -1), None)
    )
    with pytest.raises(torch.OutOfMemoryError):
        gradsim_curve(model, pixels, images.labels, points=4, start=start)


# --- the privacy score --------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_score_is_the_area_under_the_plain_curve(model, images, variant):
    score = privacy_score(model, images, POLICIES[0], points=5, variant=variant, rng=rng(4))
    seed, prepared = prepared_by_hand(images, rng(4))
    start = torch.rand(images.pixels.shape, generator=rng(seed, "start", 0))
    curve = plain_curve(model, prepared.float() / 255, images.labels, start, 5, variant)
    inner = curve[:, 1:-1].sum(1)
    area = (
        (curve[:, 0] + inner) / 4
        if variant == "paper"
        else (curve[:, 0] / 2 + inner + curve[:, -1] / 2) / 4
    )
    torch.testing.assert_close(score.double(), area, rtol=0, atol=1e-5)


def test_many_policies_at_once_give_the_scores_of_each_alone_in_any_order(
    model, images, monkeypatch
):
    together = privacy_scores(model, images, POLICIES, points=4, rng=rng(5))
    assert together.shape == (5, 4)
    backwards = privacy_scores(model, images, POLICIES[::-1], points=4, rng=rng(5)).flip(0)
    torch.testing.assert_close(backwards, together, rtol=0, atol=1e-6)
    monkeypatch.setattr(scores, "_rows_at_once", lambda model: 6)
    for policy, expected in zip(POLICIES, together, strict=True):
        alone = privacy_score(model, images, policy, points=4, rng=rng(5))
        torch.testing.assert_close(alone, expected, rtol=0, atol=1e-6)
    assert len({round(float(row.mean()), 5) for row in together}) == 5


def test_scores_can_be_computed_in_parts_and_do_not_depend_on_the_images_behind(model, images):
    whole = privacy_scores(model, images, POLICIES[:2], points=4, draws=2, rng=rng(5))
    parts = [
        privacy_scores(
            model, images[:last], POLICIES[:2], points=4, draws=2, first=first, rng=rng(5)
        )
        for first, last in ((0, 1), (1, 4))
    ]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-6)


def test_no_policy_scores_as_the_operations_that_do_nothing(model, images):
    idle = [Policy(), Policy((28,)), Policy((39,))]
    scored = privacy_scores(model, images, idle, points=4, rng=rng(6))
    torch.testing.assert_close(scored, scored[:1].expand(3, -1), rtol=0, atol=1e-6)


def test_draws_are_averaged_and_given_starts_are_used_in_each(model, images):
    one, two = (
        privacy_score(model, images, POLICIES[0], points=4, draws=d, rng=rng(7)) for d in (1, 2)
    )
    assert not torch.allclose(one, two, atol=1e-4)
    seed = int(torch.randint(1 << 62, (1,), generator=rng(7)))
    starts = torch.rand(images.pixels.shape, generator=rng(seed, "start", 0))
    given = privacy_score(model, images, POLICIES[0], points=4, starts=starts, rng=rng(7))
    torch.testing.assert_close(given, one, rtol=0, atol=1e-6)


def test_a_dead_network_scores_its_last_point_only(images):
    """Weights of zero: every gradient but the last bias's is zero, and that one is the same
    everywhere.
    """
    dead = network("convnet-4")
    for parameter in dead.parameters():
        torch.nn.init.zeros_(parameter)
    assert torch.allclose(
        privacy_score(dead, images, Policy(), points=5, rng=rng(0)), torch.ones(4)
    )
    tensors = sum(1 for _ in dead.parameters())
    code = privacy_score(dead, images, Policy(), points=5, variant="code", rng=rng(0))
    assert torch.allclose(code, torch.full((4,), (1 / tensors * 3.5 + 0.5) / 4))


# --- the accuracy score -------------------------------------------------------------------------------------


def test_uncorrelated_rows_have_the_best_score():
    rows = torch.linalg.qr(torch.randn(30, 6, generator=rng(0), dtype=torch.float64))[0]
    rows = torch.linalg.qr(torch.cat([torch.ones(30, 1).double(), rows[:, 1:]], 1))[0][:, 1:].T
    assert jacobian_score(7 * rows) == pytest.approx(-1, abs=1e-8)
    assert jacobian_score(rows, variant="paper") == pytest.approx(1, abs=1e-8)
    assert jacobian_score(rows, variant="code") == pytest.approx(-5, abs=1e-7)


def test_identical_rows_have_the_worst_score():
    rows = torch.randn(1, 40, generator=rng(1), dtype=torch.float64).repeat(4, 1)
    terms = torch.tensor([4.0, 0, 0, 0], dtype=torch.float64) + 1e-5
    expected = float((terms.log() + 1 / terms).mean())
    assert expected > 7e4
    assert jacobian_score(rows, variant="paper") == pytest.approx(expected, rel=1e-6)
    assert jacobian_score(rows) == pytest.approx(-expected, rel=1e-6)
    assert jacobian_score(rows, variant="code") == pytest.approx(-4 * expected, rel=1e-6)


def test_two_rows_of_correlation_r_have_the_eigenvalues_1_plus_and_minus_r():
    rows = torch.tensor([[1.0, -1, 1, -1], [1, -1, 1 / 2, -1 / 2]])
    r = 3 / (2 * 2.5**0.5)
    terms = torch.tensor([1 + r, 1 - r], dtype=torch.float64) + 1e-5
    assert jacobian_score(rows, variant="paper") == pytest.approx(
        float((terms.log() + 1 / terms).mean()), rel=1e-6
    )


@pytest.mark.parametrize("name", MODELS)
def test_the_accuracy_score_is_that_of_the_jacobian_of_normalized_images(name, images):
    network_ = network(name).double()
    prepared = prepared_by_hand(images, rng(8))[1].double() / 255
    normalize, body = network_
    rows = []
    for z in normalize(prepared):
        z.requires_grad_()
        rows.append(torch.autograd.grad(body(z[None]).sum(), z)[0].flatten())
    score = accuracy_score(network_, images, POLICIES[0], rng=rng(8))
    assert score == pytest.approx(jacobian_score(torch.stack(rows)), rel=1e-8)
    assert accuracy_score(
        network_, images, POLICIES[0], variant="paper", rng=rng(8)
    ) == pytest.approx(-score)


def test_the_code_variant_keeps_the_first_image_of_each_class_and_sums(model):
    images = load("shapes", "test")[:20]
    labels = images.labels.tolist()
    firsts = images[[i for i, label in enumerate(labels) if label not in labels[:i]]]
    assert 2 < len(firsts) < 20
    kept = accuracy_score(model, images, Policy(), one_per_class=True, variant="fixed", rng=rng(9))
    assert accuracy_score(model, images, Policy(), variant="code", rng=rng(9)) == pytest.approx(
        -len(firsts) * -kept
    )
    assert kept != pytest.approx(accuracy_score(model, images, Policy(), rng=rng(9)))


def test_the_accuracy_score_is_the_mean_over_whole_batches(model, images):
    images = load("shapes", "test")[:11]
    scores = {
        n: accuracy_score(model, images[:n], POLICIES[3], batch=4, rng=rng(9))
        for n in (4, 7, 8, 11)
    }
    assert scores[7] == pytest.approx(scores[4])
    assert scores[11] == pytest.approx(scores[8])
    assert scores[11] != pytest.approx(scores[4])


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "best"}, "variant 'best' is unknown; choose one of paper, code, fixed"),
        ({"points": 1}, "points=1 must be a whole number, at least 2"),
        ({"draws": 0}, "draws=0 must be a whole number, at least 1"),
        ({"first": 4}, "images 4 to 4"),
        (
            {"starts": torch.zeros(4, 3, 8, 8)},
            "it must be floats in [0, 1] of the images' shape, (4, 3, 32, 32)",
        ),
    ],
)
def test_a_wrong_privacy_score_says_what_is_allowed(options, message, model, images):
    with refused(message):
        privacy_score(model, images, Hybrid((Policy((3,)),)), rng=rng(0), **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m, x: gradsim_curve(m, x.pixels, x.labels, rng=rng(0)),
            "must be floats (B, C, H, W) in [0, 1]",
        ),
        (lambda m, x: gradsim_curve(m, x.pixels.float() / 255, x.labels), "give `start`"),
        (
            lambda m, x: accuracy_score(m, x[:1], Policy(), rng=rng(0)),
            "shape (1, 3072); expected (N, D), both above 1",
        ),
        (
            lambda m, x: accuracy_score(m, x, Policy(), variant="new", rng=rng(0)),
            "variant 'new' is unknown",
        ),
        (lambda m, x: jacobian_score(torch.tensor([[1.0, 1, 1], [1, 2, 3]])), "a row is constant"),
        (
            lambda m, x: jacobian_score(torch.tensor([[1.0], [2.0]])),
            "shape (2, 1); expected (N, D), both above 1",
        ),
    ],
)
def test_a_wrong_curve_or_accuracy_score_says_what_is_allowed(call, message, model, images):
    with refused(message):
        call(model, images)


@pytest.mark.parametrize("score", [privacy_score, accuracy_score])
def test_a_score_needs_images_with_labels_a_stream_and_a_network_in_eval_mode(score, model, images):
    with refused("images are a Tensor; give atslib.Images"):
        score(model, images.pixels, Policy(), rng=0)
    with refused("rng None must be a stream"):
        score(model, images, Policy(), rng=None)
    with refused("training mode", "eval()"):
        score(network("convnet-4").train(), images, Policy(), rng=rng(0))
