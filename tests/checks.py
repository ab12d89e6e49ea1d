"""What tests of several files need: refusals, kills, damage, and the gradient of a plain backward pass."""

from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F

from atslib.errors import AtsError


class Killed(BaseException):
    """What a kill looks like from inside."""


@contextmanager
def refused(*parts):
    """What is done within ends in an `AtsError`: one line that holds all of these parts."""
    with pytest.raises(AtsError) as error:
        yield error
    said = str(error.value)
    assert all(part in said for part in parts), said
    assert "\n" not in said, said


def flip_a_bit(path, at=-5):
    """Damage a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def plain_gradient(model, images, labels):
    """The gradient of the mean loss of these images by one plain backward pass, flattened; differentiable once more."""
    loss = F.cross_entropy(model(images), labels)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()), create_graph=True)])
