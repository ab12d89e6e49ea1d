"""The distance that compares each layer by itself, however short its gradient is."""

import pytest
import torch

import atslib
from atslib.gradients.problems import DISTANCES, cosine_layers


def gradients(seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((3, 4, 2), (3, 5), (3, 2, 2, 2))
    return tuple(torch.randn(*shape, generator=generator).to(dtype) for shape in shapes)


def scaled(tensors, *factors):
    return tuple(factor * part for factor, part in zip(factors, tensors, strict=True))


def test_it_is_a_distance_of_the_table():
    assert atslib.GradientMatching(distance="cosine-layers").distance == "cosine-layers"
    assert DISTANCES["cosine-layers"] is cosine_layers


def test_of_layers_of_ordinary_length_it_is_the_mean_cosine_of_the_tensors():
    own, sent = gradients(0), gradients(1)
    torch.testing.assert_close(
        cosine_layers(own, sent), DISTANCES["cosine-tensors"](own, sent), rtol=1e-12, atol=0
    )
    assert torch.autograd.gradcheck(
        lambda *parts: cosine_layers(parts, sent), [part.requires_grad_() for part in own]
    )


@pytest.mark.parametrize("factor", [1e-30, 1e-20, 1e-10, 1e10, 1e30])
def test_no_layer_is_too_short_or_too_long_to_count(factor):
    own, sent = gradients(0, torch.float32), gradients(1, torch.float32)
    expected = cosine_layers(own, sent)
    for places in ((factor, 1, 1), (factor, factor, factor)):
        found = cosine_layers(scaled(own, *places), scaled(sent, *places))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    longer = scaled(own, 1e3 * factor, 1, 1)  # of the attack's own image, far from the one sought
    torch.testing.assert_close(
        cosine_layers(longer, scaled(sent, factor, 1, 1)), expected, rtol=1e-5, atol=1e-6
    )


def test_the_plain_cosine_sees_no_such_layer():
    own, sent = gradients(0, torch.float32), gradients(1, torch.float32)
    last = own[2]
    faint = (1e-10 * own[0], 1e-10 * own[1], last)
    other = (1e-10 * sent[0], 1e-10 * sent[1], last)
    assert DISTANCES["cosine"](faint, other).abs().max() < 1e-6
    assert (cosine_layers(faint, other) > 0.2).all()


def test_a_layer_that_is_zero_in_the_target_is_left_out_and_one_of_the_attacks_own_is_not():
    own, sent = gradients(0), gradients(1)
    without = cosine_layers(own[:2], sent[:2])
    torch.testing.assert_close(cosine_layers(own, (*sent[:2], 0 * sent[2])), without)
    zero = (own[0], own[1], torch.zeros_like(own[2]).requires_grad_())
    found = cosine_layers(zero, sent)
    torch.testing.assert_close(found, (2 * without + 1) / 3)
    (slope,) = torch.autograd.grad(found.sum(), zero[2])
    assert slope.isfinite().all()
    nothing = tuple(0 * part for part in sent)
    assert cosine_layers(own, nothing).tolist() == [1, 1, 1]
