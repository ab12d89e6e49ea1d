"""Gradient defenses: exact small arrays, moments of the noise, notation and errors."""

import pytest
import torch
from checks import refused

from atslib.clients.defenses.defense import Defense, share
from atslib.clients.defenses.perturbations import DEFENSES, Perturbation
from atslib.clients.defenses.published import PUBLISHED
from atslib.policies.policy import Hybrid, Policy
from atslib.rng import rng

# Two gradients (rows) of two tensors: 4 numbers and 2 numbers a row.
GRADIENTS = (
    torch.tensor([[[1.0, -2.0], [3.0, -4.0]], [[-8.0, 7.0], [6.0, 5.0]]]),
    torch.tensor([[0.5, 10.0], [-9.0, 0.1]]),
)


def after(defense, gradients=GRADIENTS, **options):
    """What the defense makes of tensors (N, ...), in their order."""
    return tuple(defense.after({str(i): g for i, g in enumerate(gradients)}, **options).values())


def defend(text, gradients=GRADIENTS):
    return [g.tolist() for g in after(Defense.parse(text), gradients)]


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("prune:0.5", [[[0, 0], [3, -4]], [[-8, 7], [0, 0]]], [[0, 10], [-9, 0]]),
        (
            "prune:0.74",
            [[[0, 0], [3, -4]], [[-8, 7], [0, 0]]],
            [[0, 10], [-9, 0]],
        ),  # 2.96 of 4 and 1.48 of 2: down
        ("prune:0.49", [[[0, -2], [3, -4]], [[-8, 7], [6, 0]]], GRADIENTS[1].tolist()),
        ("prune:0.84", [[[0, 0], [0, -4]], [[-8, 0], [0, 0]]], [[0, 10], [-9, 0]]),
        # Over both tensors: of the first gradient 0.5, 1 and 2 go; of the second 0.1, 5 and 6.
        ("prune-global:0.5", [[[0, 0], [3, -4]], [[-8, 7], [0, 0]]], [[0, 10], [-9, 0]]),
        ("prune-global:0.84", [[[0, 0], [0, 0]], [[0, 0], [0, 0]]], [[0, 10], [-9, 0]]),
        ("prune:0", GRADIENTS[0].tolist(), GRADIENTS[1].tolist()),
        ("prune-global:0", GRADIENTS[0].tolist(), GRADIENTS[1].tolist()),
    ],
)
def test_pruning_zeroes_the_smallest_of_each_tensor_or_of_the_whole_of_each_gradient(
    text, first, second
):
    assert defend(text) == [first, second]


@pytest.mark.parametrize(
    ("size", "percent"), [(90, 70), (100, 29), (20, 95), (100, 99), (1728, 70), (36864, 95)]
)
def test_prune_counts_in_decimals_not_in_binary_fractions(size, percent):
    """The authors compute floor(numel · p / 100) with an integer p; in floats 90 · 0.7 is below 63."""
    (pruned,) = after(Perturbation("prune", percent / 100), (torch.arange(1.0, size + 1)[None],))
    assert (pruned == 0).sum() == size * percent // 100


def test_clip_scales_long_gradients_to_the_bound_and_leaves_short_ones():
    gradients = (
        torch.tensor([[3.0, 0.0], [0.3, 0.0]]),
        torch.tensor([[[4.0]], [[0.4]]]),
    )  # norms 5 and 0.5
    first, second = after(Perturbation("clip", 1.0), gradients)
    torch.testing.assert_close(first, torch.tensor([[0.6, 0.0], [0.3, 0.0]]))
    torch.testing.assert_close(second, torch.tensor([[[0.8]], [[0.4]]]))
    assert defend("clip:1", (torch.zeros(1, 3),)) == [[[0, 0, 0]]]


@pytest.mark.parametrize("scale", [1e-3, 2.0])
def test_moments_of_the_noise(scale):
    """N(0, s²): mean 0, std s.

    Laplace of scale s: mean 0, mean |x| = s, std √2·s, median |x| = s·ln 2.
    """
    zero = (torch.zeros(4, 50_000, dtype=torch.float64),)
    (normal,) = after(Perturbation("gaussian", scale), zero, rng=rng(0))
    (laplace,) = after(Perturbation("laplace", scale), zero, rng=rng(0))
    for noise, std in ((normal / scale, 1.0), (laplace / scale, 2**0.5)):
        assert noise.isfinite().all()
        assert noise.mean(1).abs().max() < 4 * std / 50_000**0.5
        torch.testing.assert_close(noise.std(1), torch.full((4,), std).double(), rtol=0.03, atol=0)
    spread = (2 / torch.pi) ** 0.5
    torch.testing.assert_close(
        (normal / scale).abs().mean(1), torch.full((4,), spread).double(), rtol=0.02, atol=0
    )
    torch.testing.assert_close(
        (laplace / scale).abs().mean(1), torch.ones(4).double(), rtol=0.02, atol=0
    )
    median = (laplace / scale).abs().median(1).values
    torch.testing.assert_close(median, torch.full((4,), 0.6931).double(), rtol=0.03, atol=0)


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_rows_and_tensors_get_noise_of_their_own(name):
    zero = (torch.zeros(2, 40_000), torch.zeros(2, 40_000))
    noise = torch.cat(after(Perturbation(name, 1.0), zero, rng=rng(0)))
    correlation = torch.corrcoef(noise)
    assert (correlation - torch.eye(4)).abs().max() < 4 / 40_000**0.5


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_noise_is_added_and_follows_its_stream_which_it_needs(name):
    defense = Perturbation(name, 0.1)
    with refused(f"{name}:0.1 draws at random: give it rng="):
        after(defense)
    first, again, other = (after(defense, rng=rng(*path)) for path in ((0,), (0,), (1,)))
    for g, a, b, c in zip(GRADIENTS, first, again, other, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
        assert (a != g).all()
        assert (a - g).abs().max() < 2


@pytest.mark.parametrize("name", DEFENSES)
def test_the_given_gradients_are_not_changed_and_shapes_and_types_stay(name):
    given = tuple(g.double() for g in GRADIENTS)
    kept = after(Perturbation(name, 0.5), given, rng=rng(0))
    for before, g, new in zip(GRADIENTS, given, kept, strict=True):
        assert torch.equal(g, before.double())
        assert (new.shape, new.dtype) == (g.shape, g.dtype)


@pytest.mark.parametrize("name", ["prune", "prune-global", "clip"])
def test_each_row_is_defended_on_its_own(name):
    together = after(Perturbation(name, 0.5))
    for row in range(2):
        alone = after(Perturbation(name, 0.5), tuple(g[row : row + 1] for g in GRADIENTS))
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        *("prune:0.7", "prune:0.95", "prune-global:0", "gaussian:0.001", "laplace:1e-05", "clip:4"),
        *("", "3-1-7", "3-1-7+43-18-18", "3-1-7+43-18-18 | clip:1 | gaussian:0.01", "clip:1 | 0"),
    ],
)
def test_notation_round_trips(text):
    assert str(Defense.parse(text)) == text


@pytest.mark.parametrize("strength", [0.7, 1e-3, 1 / 3, 0.99999999, 1e-12])
def test_no_digit_of_a_strength_is_lost(strength):
    assert Defense.parse(str(Perturbation("prune", strength))) == Perturbation("prune", strength)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("blur:1", "'blur' is unknown; choose one of " + ", ".join((*DEFENSES, *PUBLISHED))),
        (
            "prune",
            "after the colon comes a number, the fraction of each tensor set to zero, in [0, 1)",
        ),
        (
            "prune:x",
            "after the colon comes a number, the fraction of each tensor set to zero, in [0, 1)",
        ),
        ("prune:1", "strength 1.0 must be the fraction of each tensor set to zero, in [0, 1)"),
        ("prune:-0.1", "strength -0.1 must be"),
        ("prune:nan", "strength nan must be"),
        ("prune-global:1.5", "must be the fraction of the whole gradient set to zero, in [0, 1)"),
        ("gaussian:0", "must be the standard deviation of the noise, above 0"),
        ("gaussian:inf", "must be the standard deviation of the noise, above 0"),
        ("laplace:-1", "must be the scale of the noise, above 0"),
        ("clip:0", "must be the largest l2 norm of a gradient, above 0"),
        (
            "3-1-7 | 0",
            "defense '3-1-7 | 0' has two policies; join them: '+' draws one per image, '-' takes all",
        ),
        ("3-50", "no operation [50]; ids run 0..49"),
        (
            "clip:1 |",
            "'' is unknown; choose one of "
            + ", ".join((*DEFENSES, *PUBLISHED))
            + ", a policy such as 3-1-7",
        ),
    ],
)
def test_a_wrong_defense_is_told_the_right_ones(text, message):
    with refused(message):
        Defense.parse(text)


# --- several in a row, policies, and a user's own -----------------------------------------------------------

PIXELS = torch.randint(0, 256, (6, 3, 8, 8), generator=rng(0, "pixels"), dtype=torch.uint8)


def test_parts_act_in_their_order_and_each_in_its_place():
    first, other = (
        after(Defense.parse(text)) for text in ("prune:0.5 | clip:1", "clip:1 | prune:0.5")
    )
    expected = after(Perturbation("clip", 1.0), after(Perturbation("prune", 0.5)))
    assert all(torch.equal(a, b) for a, b in zip(first, expected, strict=True))
    assert not torch.equal(first[0], other[0])
    both = Defense.parse("3-1-7 | clip:1")
    assert torch.equal(both.before(PIXELS, rng=rng(1)), Policy.parse("3-1-7")(PIXELS, rng=rng(1)))
    assert all(
        torch.equal(a, b)
        for a, b in zip(after(both), after(Perturbation("clip", 1.0)), strict=True)
    )
    assert torch.equal(Defense.parse("clip:1").before(PIXELS), PIXELS)


def test_no_defense_changes_nothing():
    nothing = Defense.parse("")
    assert nothing.parts == ()
    assert nothing.before(PIXELS) is PIXELS
    assert all(a is b for a, b in zip(after(nothing), GRADIENTS, strict=True))


def test_a_hybrid_is_a_defense_of_images():
    hybrid = Hybrid.parse("3-1-7+43-18-18")
    for defense in (
        Defense.of(hybrid),
        Defense.of("3-1-7+43-18-18"),
        Defense.of([None, "", hybrid]),
    ):
        assert torch.equal(defense.before(PIXELS, rng=rng(2)), hybrid(PIXELS, rng=rng(2)))
        assert str(defense) == "3-1-7+43-18-18"
    with refused("3-1-7 draws at random: give it rng="):
        Defense.of("3-1-7").before(PIXELS)


def halved(gradients):
    return {name: g / 2 for name, g in gradients.items()}


def noisy(gradients, rng, model):
    assert isinstance(model, torch.nn.Linear)
    return {name: g + torch.rand(g.shape, generator=rng) for name, g in gradients.items()}


def test_a_function_is_a_defense_and_gets_what_it_asks_for():
    assert all(
        torch.equal(a, g / 2) for a, g in zip(after(Defense.of(halved)), GRADIENTS, strict=True)
    )
    model = torch.nn.Linear(2, 2)
    first, again = (after(Defense.of(noisy), model=model, rng=rng(1)) for _ in range(2))
    assert all(
        torch.equal(a, b) and not torch.equal(a, g)
        for a, b, g in zip(first, again, GRADIENTS, strict=True)
    )
    everything = Defense.of(lambda gradients, **more: noisy(gradients, **more))
    assert torch.equal(after(everything, model=model, rng=rng(1))[0], first[0])
    assert str(Defense.of(["3-1-7", halved, "clip:1"])) == "3-1-7 | halved | clip:1"
    with refused("defense 5 is none; give text, a policy, a Defense, a function or a list"):
        Defense.of(5)


def test_a_class_of_ones_own_composes_with_the_others():
    class Darker(Defense):
        def before(self, pixels, *, rng=None):
            return pixels // 2

    defense = Defense.of([Darker(), "0"])
    assert str(defense) == "Darker | 0"
    assert torch.equal(defense.before(PIXELS, rng=rng(0)), 255 - PIXELS // 2)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda gradients: None,
        lambda gradients: {**gradients, "more": torch.zeros(1)},
        lambda gradients: {name: g[:1] for name, g in gradients.items()},
        lambda gradients: {name: g.tolist() for name, g in gradients.items()},
    ],
)
def test_a_function_that_gives_back_something_else_is_told(wrong):
    gradients = dict(zip("ab", GRADIENTS, strict=True))
    with refused("must give back a dict of the 2 gradients ", "'a' of shape (2, 2, 2)"):
        share(Defense.of(wrong), gradients, model=None, rng=None)
