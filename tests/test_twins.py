"""Differentiable twins of the operations, against the exact kernels and against finite differences."""

import pytest
import torch

from atslib.clients.prepare import to_images
from atslib.errors import AtsError
from atslib.policies.differentiable import in_frame, twin
from atslib.policies.operations import OPS, apply
from atslib.policies.policy import Policy
from atslib.rng import rng

EXACT = {"translateX", "translateY", "rotate", "posterize", "solarize", "equalize", "invert"}
DISTINCT = {
    (op.name, op.level if op.name not in ("equalize", "autocontrast", "invert") else 0): i
    for i, op in enumerate(OPS)
}


def pixels(channels=3, count=4, size=12):
    """Smooth images with an edge, a flat area and both ends of the range, uint8."""
    ramp = torch.linspace(0, 1, size)
    waves = torch.rand(count, channels, 1, 1, generator=rng(0)) * 6
    image = (torch.sin(waves * ramp) * torch.cos(waves * ramp.view(-1, 1))).abs()
    image[..., : size // 3, :4] = 0
    image[..., -2:, -2:] = 1
    return (image * 255).round().byte()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("index", DISTINCT.values(), ids=lambda index: f"{index}-{OPS[index].name}")
def test_a_twin_gives_what_the_exact_operation_gives(index, channels, sign):
    given = pixels(channels)
    exact = to_images(apply(index, given, sign)).double()
    found = twin((index,), to_images(given).double(), torch.full((len(given), 1), sign))
    limit = 1e-6 if OPS[index].name in EXACT else 1 / 255 + 1e-6
    assert (found - exact).abs().max() <= limit


def test_each_image_has_its_own_signs_and_operations_follow_one_another():
    given, policy = pixels(), Policy.parse("3-1-7")
    signs = torch.tensor([[1, 1, 1], [1, -1, 1], [-1, 1, -1], [-1, -1, -1]])
    found = twin(policy.ids, to_images(given), signs)
    exact = to_images(policy.apply_signs(given, signs))
    assert (found - exact).abs().max() <= 1.5 / 255
    alone = torch.cat(
        [twin(policy.ids, to_images(given)[i : i + 1], signs[i : i + 1]) for i in range(4)]
    )
    torch.testing.assert_close(found, alone)


SMOOTH = (
    "shearY",
    "translateX",
    "translateY",
    "rotate",
    "color",
    "contrast",
    "brightness",
    "sharpness",
    "invert",
)


@pytest.mark.parametrize("name", [*SMOOTH, "autocontrast", "solarize"])
def test_its_gradient_is_that_of_finite_differences(name):
    index = next(i for i, op in enumerate(OPS) if op.name == name and op.level > 0)
    images = 0.25 + 0.5 * torch.rand(2, 3, 5, 5, dtype=torch.float64, generator=rng(1))
    images = images + (images - 128 / 255).sign() * 0.02  # away from the jump of solarize
    signs = torch.tensor([[1], [-1]])
    assert torch.autograd.gradcheck(lambda x: twin((index,), x, signs), images.requires_grad_())


def test_steps_have_the_gradient_of_their_stand_in():
    images = to_images(pixels()).double().requires_grad_()
    for name, low, high in (("posterize", 1.0, 1.0), ("equalize", 0.0, 1e9)):
        index = next(i for i, op in enumerate(OPS) if op.name == name)
        (slope,) = torch.autograd.grad(
            twin((index,), images, torch.ones(4, 1, dtype=torch.int64)).sum(), images
        )
        assert slope.isfinite().all()
        assert low <= slope.min() <= slope.max() <= high
        assert slope.abs().sum() > 0


@pytest.mark.parametrize(
    ("ids", "images", "signs", "message"),
    [
        ((50,), torch.zeros(1, 3, 4, 4), torch.ones(1, 1).long(), "operation 50 is unknown"),
        ((3,), torch.zeros(1, 3, 4, 4).byte(), torch.ones(1, 1).long(), "images are torch.uint8"),
        ((3,), torch.zeros(1, 2, 4, 4), torch.ones(1, 1).long(), "with C = 1 or 3"),
        ((3,), torch.zeros(1, 3, 4, 4), torch.ones(1, 2).long(), r"signs are torch.int64 \(1, 2\)"),
        ((3,), torch.zeros(1, 3, 4, 4), torch.ones(1, 1), "signs are torch.float32"),
    ],
)
def test_wrong_input_is_refused(ids, images, signs, message):
    with pytest.raises(AtsError, match=message):
        twin(ids, images, signs)


def test_the_part_in_the_frame_is_what_moves_leave_of_it():
    images = torch.rand(3, 3, 12, 12, generator=rng(4))
    right = next(i for i, op in enumerate(OPS) if op.name == "translateX")
    dark = next(i for i, op in enumerate(OPS) if op.name == "brightness")
    every = torch.full((3, 3, 12, 12), 255, dtype=torch.uint8)
    left = [int((apply(right, every, sign)[0, 0, 0] == 255).sum()) for sign in (1, -1)]
    found = in_frame([((right,), (1,)), ((dark, right), (1, -1)), ((dark,), (-1,))], images)
    assert found.shape == (3, 12, 12)
    columns = found.any(1)
    assert torch.equal(found, columns[:, None].expand(3, 12, 12))  # whole columns leave the frame
    assert columns.sum(1).tolist() == [*left, 12]
    # To and fro: what left is not back.
    both = in_frame([((right, right), (1, -1))], images[:1])
    assert int(both.any(1).sum()) == left[0]
    grey = in_frame([((), ())], images[:1, :1])
    assert grey.all()
