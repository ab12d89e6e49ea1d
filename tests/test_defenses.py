"""Gradient defenses: exact small arrays, moments of the noise, notation and errors."""

import pytest
import torch

from atslib.clients.defenses import DEFENSES, Defense
from atslib.errors import AtsError
from atslib.rng import rng

# Two gradients (rows) of two tensors: 4 numbers and 2 numbers a row.
GRADIENTS = (
    torch.tensor([[[1.0, -2.0], [3.0, -4.0]], [[-8.0, 7.0], [6.0, 5.0]]]),
    torch.tensor([[0.5, 10.0], [-9.0, 0.1]]),
)


def defend(text, gradients=GRADIENTS, **options):
    return [g.tolist() for g in Defense.parse(text)(gradients, **options)]


def test_prune_zeroes_the_smallest_of_each_tensor_of_each_gradient():
    assert defend("prune:0.5") == [
        [[[0, 0], [3, -4]], [[-8, 7], [0, 0]]],
        [[0, 10], [-9, 0]],
    ]


def test_prune_rounds_the_number_of_zeros_down():
    assert defend("prune:0.74")[0] == [[[0, 0], [3, -4]], [[-8, 7], [0, 0]]]  # floor(4 · 0.74) = 2
    assert defend("prune:0.49")[1] == [[0.5, 10.0], pytest.approx([-9, 0.1])]  # floor(2 · 0.49) = 0


@pytest.mark.parametrize(("size", "percent"), [(90, 70), (100, 29), (20, 95), (100, 99), (1728, 70), (36864, 95)])
def test_prune_counts_in_decimals_not_in_binary_fractions(size, percent):
    """The authors compute floor(numel · p / 100) with an integer p; in floats 90 · 0.7 is below 63."""
    (pruned,) = Defense("prune", percent / 100)((torch.arange(1.0, size + 1)[None],))
    assert (pruned == 0).sum() == size * percent // 100


def test_prune_global_ranks_the_whole_gradient():
    assert defend("prune-global:0.5") == [
        [[[0, 0], [3, -4]], [[-8, 7], [0, 0]]],  # first row: 0.5, 1 and 2 go; second: 0.1, 5 and 6
        [[0, 10], [-9, 0]],
    ]
    assert defend("prune-global:0.84") == [
        [[[0, 0], [0, 0]], [[0, 0], [0, 0]]],  # floor(6 · 0.84) = 5
        [[0, 10], [-9, 0]],
    ]
    assert defend("prune:0.84")[0] == [[[0, 0], [0, -4]], [[-8, 0], [0, 0]]]  # the other pruning keeps some


@pytest.mark.parametrize("name", ["prune", "prune-global"])
def test_no_pruning_is_the_identity(name):
    assert defend(f"{name}:0") == [g.tolist() for g in GRADIENTS]


def test_clip_scales_long_gradients_to_the_bound_and_leaves_short_ones():
    gradients = (torch.tensor([[3.0, 0.0], [0.3, 0.0]]), torch.tensor([[[4.0]], [[0.4]]]))  # norms 5 and 0.5
    first, second = Defense("clip", 1.0)(gradients)
    torch.testing.assert_close(first, torch.tensor([[0.6, 0.0], [0.3, 0.0]]))
    torch.testing.assert_close(second, torch.tensor([[[0.8]], [[0.4]]]))


def test_clip_leaves_a_zero_gradient_zero():
    assert defend("clip:1", (torch.zeros(1, 3),)) == [[[0, 0, 0]]]


@pytest.mark.parametrize("scale", [1e-3, 2.0])
def test_moments_of_the_noise(scale):
    """N(0, s²): mean 0, std s. Laplace of scale s: mean 0, mean |x| = s, std √2·s, median |x| = s·ln 2."""
    zero = (torch.zeros(4, 50_000, dtype=torch.float64),)
    (normal,) = Defense("gaussian", scale)(zero, rng=rng(0))
    (laplace,) = Defense("laplace", scale)(zero, rng=rng(0))
    for noise, std in ((normal / scale, 1.0), (laplace / scale, 2**0.5)):
        assert noise.isfinite().all()
        assert noise.mean(1).abs().max() < 4 * std / 50_000**0.5
        torch.testing.assert_close(noise.std(1), torch.full((4,), std).double(), rtol=0.03, atol=0)
    spread = (2 / torch.pi) ** 0.5
    torch.testing.assert_close((normal / scale).abs().mean(1), torch.full((4,), spread).double(), rtol=0.02, atol=0)
    torch.testing.assert_close((laplace / scale).abs().mean(1), torch.ones(4).double(), rtol=0.02, atol=0)
    median = (laplace / scale).abs().median(1).values
    torch.testing.assert_close(median, torch.full((4,), 0.6931).double(), rtol=0.03, atol=0)


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_rows_and_tensors_get_noise_of_their_own(name):
    zero = (torch.zeros(2, 40_000), torch.zeros(2, 40_000))
    noise = torch.cat(Defense(name, 1.0)(zero, rng=rng(0)))
    correlation = torch.corrcoef(noise)
    assert (correlation - torch.eye(4)).abs().max() < 4 / 40_000**0.5


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_noise_is_added_and_follows_its_stream(name):
    defense = Defense(name, 0.1)
    first, again, other = (defense(GRADIENTS, rng=rng(*path)) for path in ((0,), (0,), (1,)))
    for g, a, b, c in zip(GRADIENTS, first, again, other, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
        assert (a != g).all()
        assert (a - g).abs().max() < 2


@pytest.mark.parametrize("name", DEFENSES)
def test_the_given_gradients_are_not_changed_and_shapes_and_types_stay(name):
    given = tuple(g.double() for g in GRADIENTS)
    kept = Defense(name, 0.5)(given, rng=rng(0))
    for before, g, after in zip(GRADIENTS, given, kept, strict=True):
        assert torch.equal(g, before.double())
        assert (after.shape, after.dtype) == (g.shape, g.dtype)


@pytest.mark.parametrize("name", ["prune", "prune-global", "clip"])
def test_each_row_is_defended_on_its_own(name):
    together = Defense(name, 0.5)(GRADIENTS)
    for row in range(2):
        alone = Defense(name, 0.5)(tuple(g[row : row + 1] for g in GRADIENTS))
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize(
    "text", ["prune:0.7", "prune:0.95", "prune-global:0", "gaussian:0.001", "laplace:1e-05", "clip:4"]
)
def test_notation_round_trips(text):
    assert str(Defense.parse(text)) == text


@pytest.mark.parametrize("strength", [0.7, 1e-3, 1 / 3, 0.99999999, 1e-12])
def test_no_digit_of_a_strength_is_lost(strength):
    defense = Defense("prune", strength)
    assert Defense.parse(str(defense)) == defense


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("blur:1", "'blur' is unknown; choose one of " + ", ".join(DEFENSES)),
        ("", "choose one of " + ", ".join(DEFENSES)),
        ("prune", "after the colon comes a number, the fraction of each tensor set to zero, in [0, 1)"),
        ("prune:x", "after the colon comes a number, the fraction of each tensor set to zero, in [0, 1)"),
        ("prune:1", "strength 1.0 must be the fraction of each tensor set to zero, in [0, 1)"),
        ("prune:-0.1", "strength -0.1 must be"),
        ("prune:nan", "strength nan must be"),
        ("prune-global:1.5", "must be the fraction of the whole gradient set to zero, in [0, 1)"),
        ("gaussian:0", "must be the standard deviation of the noise, above 0"),
        ("gaussian:inf", "must be the standard deviation of the noise, above 0"),
        ("laplace:-1", "must be the scale of the noise, above 0"),
        ("clip:0", "must be the largest l2 norm of a gradient, above 0"),
    ],
)
def test_a_wrong_defense_is_told_the_right_ones(text, message):
    with pytest.raises(AtsError) as error:
        Defense.parse(text)
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_noise_needs_a_stream(name):
    with pytest.raises(AtsError, match=f"{name}:1 draws noise: give it rng="):
        Defense(name, 1.0)(GRADIENTS)
