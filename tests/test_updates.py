"""Local training before anything is sent: against torch's own SGD, and both ways to attack what it
leaves.
"""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from checks import plain_gradient, refused

from atslib.attacks import GradientMatching, reconstruct, restore_labels
from atslib.attacks.objective import Objective
from atslib.clients.observe import ThreatModel, observe
from atslib.clients.updates import LocalTraining, observe_weights
from atslib.measures.metrics import psnr
from atslib.models import build_model
from atslib.rng import rng

BATCH = ThreatModel(batch=4)
LABELS = torch.tensor([2, 0, 4, 1, 3, 3, 0, 2])
PIXELS = torch.rand(8, 3, 8, 8, generator=rng(0, "pixels"), dtype=torch.float64)
pytestmark = pytest.mark.usefixtures("one_thread")


def network():
    return build_model("lenet-3", 5, image_size=8, rng=rng(0)).double()


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize(
    ("epochs", "batch", "momentum"), [(1, 0, 0.0), (3, 0, 0.9), (2, 2, 0.5), (2, 1, 0.0)]
)
def test_a_clients_training_is_torchs(epochs, batch, momentum):
    local = LocalTraining(epochs=epochs, batch=batch, lr=0.3, momentum=momentum)
    seen, stream = (
        observe_weights(network(), PIXELS, LABELS, local=local, rng=5, threat=BATCH),
        rng(5),
    )
    for client in range(2):
        model, rows = network(), torch.arange(4 * client, 4 * client + 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=momentum)
        before = weights(model)
        for _ in range(epochs):
            for part in rows[torch.randperm(4, generator=stream)].split(batch or 4):
                optimizer.zero_grad()
                F.cross_entropy(model(PIXELS[part]), LABELS[part]).backward()
                optimizer.step()
        change = weights(model) - before
        torch.testing.assert_close(seen.gradients[client], change, rtol=0, atol=1e-10)
    assert seen.updates[0].local["steps"] == local.steps(4) == epochs * (4 // (batch or 4))
    assert seen.updates[0].kind == "difference"


def test_one_step_is_the_gradient():
    seen = observe_weights(network(), PIXELS, LABELS, local=LocalTraining(), rng=0, threat=BATCH)
    gradient = observe(network(), PIXELS, LABELS, threat=BATCH).gradients
    torch.testing.assert_close(seen.updates[0].mean_gradients, gradient, rtol=0, atol=1e-10)
    torch.testing.assert_close(
        gradient[1], plain_gradient(network(), PIXELS[4:], LABELS[4:]), rtol=0, atol=1e-10
    )
    single = replace(seen, updates=(replace(seen.updates[0], kind="gradient", gradients=gradient),))
    z = torch.rand(2, PIXELS[:4].numel(), generator=rng(1), dtype=torch.float64)
    costs = [Objective(view, [GradientMatching()] * 2)(z)[0] for view in (seen, single)]
    unrolled = Objective(seen, [GradientMatching(unroll=True)] * 2)(z)[0]
    torch.testing.assert_close(costs[0], costs[1], rtol=0, atol=1e-10)
    torch.testing.assert_close(unrolled, costs[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "local", [LocalTraining(epochs=4, momentum=0.9), LocalTraining(epochs=2, batch=4)]
)
def test_only_the_unrolled_steps_are_explained_by_the_truth(local):
    seen = observe_weights(network(), PIXELS, LABELS, local=local, rng=0, threat=BATCH)
    truth = seen.updates[0].model[0](PIXELS).reshape(2, -1)
    mean, exact = (
        Objective(seen, [GradientMatching(distance="l2", unroll=u)] * 2)(truth)[0]
        for u in (False, True)
    )
    assert exact.max() < 1e-20 < 1e-6 < mean.min()


def test_the_gradient_of_an_unrolled_cost_is_that_of_differences():
    seen = observe_weights(
        network(),
        PIXELS[:2],
        LABELS[:2],
        local=LocalTraining(epochs=2),
        rng=0,
        threat=ThreatModel(),
    )
    z = torch.rand(2, PIXELS[0].numel(), generator=rng(1), dtype=torch.float64, requires_grad=True)
    objective = Objective(seen, [GradientMatching(unroll=True, tv=0.0)] * 2)
    (slope,) = torch.autograd.grad(objective(z)[0].sum(), z)
    move = 1e-5 * torch.randn(z.shape, generator=rng(2), dtype=torch.float64)
    change = (objective(z + move)[0] - objective(z - move)[0]).sum()
    assert (2 * (slope * move).sum()).item() == pytest.approx(change.item(), rel=1e-5)


def test_an_attack_unrolls_the_steps_of_its_clients_and_gets_nearer_than_by_their_mean():
    local, images = LocalTraining(epochs=3, lr=2.0), PIXELS[:2]
    seen = observe_weights(network(), images, LABELS[:2], local=local, rng=0)
    found = {}
    for unroll in (False, True):
        attack = GradientMatching(
            distance="l2", signed=False, lr=1.0, inner=15, steps=2, optimizer="lbfgs", tv=0.0
        )
        attack = replace(attack, unroll=unroll, line_search=True)
        found[unroll] = psnr(
            reconstruct(seen, attack, rng=rng(0), start=torch.full_like(images, 0.5)).images, images
        )
    assert (found[True] > found[False] + 1).all(), found


def test_labels_are_restored_from_weights():
    threat = ThreatModel(labels="restored", batch=4)
    seen = observe_weights(
        network(), PIXELS, LABELS, local=LocalTraining(epochs=2, lr=0.01), rng=0, threat=threat
    )
    assert seen.labels is None
    assert restore_labels(seen, rng=0).tolist() == [[0, 1, 2, 4], [0, 2, 3, 3]]


def test_the_order_of_the_steps_does_not_leave_the_client():
    local = LocalTraining(epochs=3, batch=2)
    seen = observe_weights(network(), PIXELS, LABELS, local=local, rng=0, threat=BATCH)
    facts = {"epochs": 3, "batch": 2, "lr": 0.1, "momentum": 0.0, "steps": 6}
    assert seen.updates[0].local == facts
    assert (seen.updates[0].statistics, seen.updates[0].forms) == ({}, ())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: LocalTraining(epochs=0), "epochs must be at least 1"),
        (lambda: LocalTraining(lr=0.0), "lr must be above 0"),
        (lambda: LocalTraining(batch=1.5), "LocalTraining.batch=1.5 must be a whole number"),
        (
            lambda: LocalTraining(batch=3).steps(4),
            "LocalTraining.batch=3: 4 images of a client make no whole number",
        ),
        (lambda: LocalTraining(batch=8).steps(4), "make no whole number of steps"),
    ],
)
def test_local_steps_that_do_not_fit_are_refused(call, words):
    with refused(words):
        call()


def test_what_cannot_be_attacked_is_refused():
    local, attack = LocalTraining(), GradientMatching(unroll=True)
    gradient = observe(network(), PIXELS, LABELS, threat=BATCH)
    with refused("an update is a gradient, and has no local steps to repeat"):
        Objective(gradient, [attack] * 2)
    bare = replace(gradient, updates=(replace(gradient.updates[0], kind="difference"),))
    with refused("Update.local does not say by which steps"):
        Objective(bare, [GradientMatching()] * 2)
    with refused("diverged; lower LocalTraining.lr=1e+38"):
        observe_weights(
            network().float(), PIXELS, LABELS, local=replace(local, lr=1e38, epochs=4), rng=0
        )
    with refused("8 images do not make gradients of 3"):
        observe_weights(network(), PIXELS, LABELS, local=local, rng=0, threat=ThreatModel(batch=3))
