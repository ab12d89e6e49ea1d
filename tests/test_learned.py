"""The attacker who trained on auxiliary images: what it learns, and what it refuses."""

import dataclasses

import pytest
import torch
from checks import refused

from atslib.attacks import ATTACKS, Learned, reconstruct
from atslib.attacks.learned_correction import Correction, _learned
from atslib.clients.observe import Observed, ThreatModel, observe
from atslib.clients.prepare import to_images
from atslib.data.load import load
from atslib.errors import AtsError
from atslib.measures.metrics import psnr
from atslib.models import build_model
from atslib.rng import rng

pytestmark = pytest.mark.usefixtures("one_thread", "few_images")
SHORT = Learned(
    inner=dataclasses.replace(ATTACKS["annealed-lenet"], steps=2),
    images=load("shapes", "train"),
    pairs=6,
    epochs=1,
    width=4,
)


@pytest.fixture(scope="module")
def images():
    return load("shapes", "test")[:4]


@pytest.fixture(scope="module")
def seen(images):
    model = build_model("lenet", num_classes=10, rng=0).eval()
    threat = ThreatModel(defense="policy")
    return observe(
        model, to_images(images.pixels), images.labels, defense="3-1-7", rng=1, threat=threat
    )


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (3, 30), (2, 9)])
def test_a_correction_begins_as_the_identity_at_every_size(channels, size):
    images = torch.rand(2, channels, size, size, generator=rng(0))
    assert torch.equal(Correction(channels, 4)(images), images)


@pytest.mark.slow
def test_it_learns_what_brings_its_inputs_back():
    targets = to_images(load("shapes", "train").pixels[:60])
    inputs = 0.3 + 0.4 * targets.roll(2, -2)  # paler, and moved down
    config = dataclasses.replace(SHORT, epochs=50, width=8)
    network = _learned(inputs, targets, config, rng(0))
    with torch.no_grad():
        assert psnr(network(inputs), targets).mean() > psnr(inputs, targets).mean() + 4


def test_it_knows_the_policy_and_never_the_private_images(seen):
    made = SHORT.run(seen, rng=rng(3))
    assert made.images.shape == (4, 3, 32, 32)
    assert 0 <= made.images.min() <= made.images.max() <= 1
    own = reconstruct(seen, SHORT.inner, rng=rng(3))
    assert torch.equal(made.cost, own.cost)
    assert not torch.equal(made.images, own.images)
    again = SHORT.run(seen, rng=rng(3))
    assert torch.equal(made.images, again.images)
    assert torch.equal(reconstruct(seen, SHORT, rng=rng(3)).images, made.images)


def test_what_it_refuses(seen):
    with refused("Learned needs a server that knows the policy: ThreatModel(defense='policy')"):
        SHORT.run(dataclasses.replace(seen, knows=type(seen.knows)()), rng=rng(0))
    with refused("Learned.images 'shapes-grey' has (1, 28, 28) images, seen are (3, 32, 32)"):
        dataclasses.replace(SHORT, images=load("shapes-grey", "train")).run(seen, rng=rng(0))
    with refused("Learned.images 'shapes' must be an atslib.Images"):
        dataclasses.replace(SHORT, images="shapes").run(seen, rng=rng(0))
    with refused("there are 2 updates; take it of each"):
        SHORT.run(Observed.join([seen, seen]), rng=rng(0))
    for field in ("pairs", "epochs", "width"):
        with pytest.raises(AtsError, match=rf"Learned\.{field}=0 must be at least 1"):
            dataclasses.replace(SHORT, **{field: 0})
