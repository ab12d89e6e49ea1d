"""Minimal filtering against PyTorch's own convolution."""

import gc

import pytest
import torch
import torch.nn.functional as F

from atslib import _winograd
from atslib._winograd import convolve, filters, transformed
from atslib.rng import rng


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=rng(seed), dtype=dtype)


@pytest.mark.parametrize("size", [(4, 4), (8, 12), (11, 7), (3, 5)])
@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (2, 1)])
def test_it_equals_a_convolution_of_any_size(size, padding):
    x, weight = drawn(2, 5, *size), drawn(3, 5, 3, 3, seed=1)
    found = convolve(x, transformed(weight), padding)
    torch.testing.assert_close(found, F.conv2d(x, weight, padding=padding), rtol=0, atol=1e-12)


def test_the_second_filter_is_that_of_the_transposed_convolution():
    weight, out = drawn(6, 4, 3, 3), drawn(2, 6, 9, 8, seed=1)
    found = convolve(out, filters(weight)[1], (1, 1))
    torch.testing.assert_close(found, F.conv_transpose2d(out, weight, padding=1), rtol=0, atol=1e-12)


def test_single_precision_loses_little():
    x, weight = drawn(2, 128, 16, 16), drawn(128, 128, 3, 3, seed=1) / 34
    exact = F.conv2d(x, weight, padding=1)
    found = convolve(x.float(), transformed(weight.float()), (1, 1)).double()
    assert (found - exact).norm() < 5e-6 * exact.norm()


def test_filters_are_kept_follow_their_weight_and_go_with_it():
    weight = torch.nn.Parameter(drawn(4, 4, 3, 3))
    first = filters(weight)
    assert filters(weight)[0] is first[0]
    weight.data.mul_(2)  # which leaves no trace in the tensor's version
    torch.testing.assert_close(filters(weight)[0], 2 * first[0])
    before = len(_winograd._known)
    del weight
    gc.collect()
    assert len(_winograd._known) == before - 1
