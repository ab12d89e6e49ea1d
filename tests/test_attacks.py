"""The attacks against plain loops written the authors' way, and the laws of the batched engine."""

import inspect
import math
import warnings
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from checks import Killed, refused

from atslib.attacks import (
    ATTACKS,
    GradientMatching,
    engine,
    objective,
    optimizers,
    priors,
    reconstruct,
)
from atslib.attacks.labels import infer_labels
from atslib.attacks.starts import STARTS
from atslib.clients.observe import ThreatModel, Update, observe
from atslib.gradients.problems import DISTANCES, problem_gradients, unflatten
from atslib.measures import metrics
from atslib.models import build_model, running_statistics
from atslib.rng import rng

SIDES = {"resnet20-1": 8, "convnet-4": 9, "lenet": 8}
UNSIGNED = replace(ATTACKS["adam-cosine-tv"], steps=5)
LABELS = torch.tensor([2, 0, 4, 1])


pytestmark = pytest.mark.usefixtures("one_thread")


def network(name, side=None, dtype=torch.float64, seed=0):
    """A float64 network with running statistics of other images; constants differ by channel."""
    side = side or SIDES[name]
    norm = ((0.5, 0.4, 0.3), (0.25, 0.2, 0.3))
    model = build_model(name, 5, image_size=side, norm=norm, rng=rng(seed)).to(dtype).train()
    with torch.no_grad():
        model(torch.rand(8, 3, side, side, generator=rng(seed, "seen")).to(dtype))
    return model.eval()


def victims(name="lenet", count=4, side=None, dtype=torch.float64, **threat):
    """What `count` clients share, and their images."""
    side = side or SIDES[name]
    pixels = torch.rand(count, 3, side, side, generator=rng(0, "pixels")).to(dtype)
    return observe(
        network(name, side, dtype), pixels, LABELS[:count], threat=ThreatModel(**threat)
    ), pixels


def starts(seen, *, restarts=None):
    """Images in [0, 1] to start from, the same for engine and oracle."""
    shape = (len(seen) * seen.threat.batch, *seen.shape)
    shape = shape if restarts is None else (restarts, *shape)
    return torch.rand(shape, generator=rng(0, "start")).to(seen.gradients)


def untrained(name, side):
    """What two clients share of a network as it is drawn."""
    model = build_model(name, 5, image_size=side, norm=((0.5,), (0.25,)), rng=rng(0))
    return observe(model, torch.rand(2, 3, side, side, generator=rng(0, "pixels")), LABELS[:2])


# --- the engine against the authors' loop, one image at a time -----------------------------------------


def plain_distance(name, gradients, target):
    """The costs as the authors compute them, over the list of parameter gradients."""
    pairs = list(zip(gradients, target, strict=True))
    if name in ("l1", "l2"):
        return sum(((g - t).abs() ** int(name[1])).sum() for g, t in pairs)
    assert name == "cosine"
    dot = sum((g * t).sum() for g, t in pairs)
    return (
        1
        - dot
        / sum((g**2).sum() for g in gradients) ** 0.5
        / sum((t**2).sum() for t in target) ** 0.5
    )


def plain_attack(model, label, target, start, attack):
    """One image: double backward, torch.optim, MultiStepLR; `start` and result in [0, 1]."""
    normalize, net = model[0], model[1]
    weights = list(net.parameters())
    x = normalize(start).clone().requires_grad_()
    low, high = normalize(torch.zeros_like(start)), normalize(torch.ones_like(start))
    optimizer = {
        "adam": lambda: torch.optim.Adam([x], lr=attack.lr),
        "sgd": lambda: torch.optim.SGD([x], lr=attack.lr, momentum=0.9, nesterov=True),
        "lbfgs": lambda: torch.optim.LBFGS(
            [x], lr=attack.lr, max_iter=attack.inner, history_size=attack.history
        ),
    }[attack.optimizer]()
    milestones = [int(attack.steps // by) for by in (2.667, 1.6, 1.142)]
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), label)
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        cost = plain_distance(attack.distance, gradients, target)
        dx = (x[..., :, 1:] - x[..., :, :-1]).abs().mean()
        dy = (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
        cost = cost + attack.tv * (dx + dy)
        (x.grad,) = torch.autograd.grad(cost, x)
        if attack.signed:
            x.grad.sign_()
        return cost.detach()

    for _ in range(attack.steps):
        optimizer.step(closure)
        if attack.schedule == "steps":
            scheduler.step()
        if attack.boxed:
            with torch.no_grad():
                x.copy_(torch.maximum(torch.minimum(x, high), low))
    return normalize.inverse(x.detach())


OURS = ("annealed", "fast", "strong")  # presets that no paper has
AUTHORS = [name for name, a in ATTACKS.items() if not a.line_search and not name.startswith(OURS)]


@pytest.mark.parametrize("model_name", SIDES)
@pytest.mark.parametrize("name", AUTHORS)
def test_every_preset_is_the_authors_loop(name, model_name):
    attack = replace(ATTACKS[name], steps=5, restarts=1, inner=4)
    seen, pixels = victims(model_name, 1)
    start, model = starts(seen), network(model_name)
    loss = F.cross_entropy(model(pixels), LABELS[:1])
    target = torch.autograd.grad(loss, list(model.parameters()))
    expected = plain_attack(model, LABELS[:1], target, start, attack)
    images = reconstruct(seen, attack, rng=rng(0), start=start, chunk=1).images
    theirs, ours = expected - start, images - start
    largest = theirs.abs().max()
    assert (
        largest > 1e-9
    )  # the L-BFGS presets hardly leave the start: compare the changes, not the images
    if attack.signed:
        assert (theirs.sign() == ours.sign()).double().mean() >= 0.999
        assert ((theirs - ours).abs() <= 1e-6 * largest).double().mean() >= 0.99
    else:
        assert (images - expected).abs().max() < 1e-4
        assert (theirs - ours).abs().max() <= 1e-5 * largest


def test_the_presets_are_those_of_the_papers():
    """Table of the dossier: cost, optimizer, step size, steps, restarts, TV, signed, boxed,
    schedule.
    """
    rows = {
        "lbfgs-l2": ("l2", "lbfgs", 1e-4, 50, 2, 1e-3, False, False, "constant"),
        "adam-cosine": ("cosine", "adam", 0.1, 4800, 1, 1e-4, True, True, "steps"),
        "lbfgs-cosine": ("cosine", "lbfgs", 1e-4, 300, 16, 1e-4, True, True, "constant"),
        "adam-l1": ("l1", "adam", 0.1, 4800, 1, 1e-4, True, True, "steps"),
        "adam-l2": ("l2", "adam", 0.1, 4800, 1, 1e-4, True, True, "steps"),
        "sgd-cosine": ("cosine", "sgd", 0.01, 4800, 1, 1e-4, True, True, "steps"),
        "adam-cosine-tv": ("cosine", "adam", 0.1, 4800, 1, 1e-1, False, True, "steps"),
    }
    for name, row in rows.items():
        a = ATTACKS[name]
        assert (
            a.distance,
            a.optimizer,
            a.lr,
            a.steps,
            a.restarts,
            a.tv,
            a.signed,
            a.boxed,
            a.schedule,
        ) == row
        assert (a.start, a.inner, a.history, a.line_search) == ("normal", 20, 100, False)


# --- L-BFGS ----------------------------------------------------------------------------------------------

CURVATURE = torch.tensor(
    [[1.0, 0.5, 1.5, 0.7, 1.2, 0.9], [1.0] * 6, [1e-3, 0.5, 1.9, 0.1, 1.0, 1.3]]
).double()
CENTRE = torch.randn(3, 6, generator=rng(0, "centre"), dtype=torch.float64)


def bowl(z, curvature=CURVATURE, centre=CENTRE):
    """Almost quadratic: a steep and a flat member, and a round one that stops soon."""
    away = z - centre
    rough = (curvature - 1).abs().amax(1)
    distance = (curvature * away.square()).sum(1) / 2 + 0.01 * rough * (away**4).sum(1)
    return distance, torch.zeros_like(distance)


def lbfgs(z, **options):
    """The batched optimizer on these starts, without a box."""
    attack = GradientMatching(optimizer="lbfgs", schedule="constant", signed=False, **options)
    free = torch.full((z.shape[1],), torch.inf, dtype=z.dtype)
    return optimizers.Lbfgs([attack] * len(z), z, 0, -free, free)


@pytest.mark.parametrize("history", [2, 3, 100])
@pytest.mark.parametrize("lr", [1e-4, 1.0])
def test_lbfgs_is_torchs_for_each_member(history, lr):
    """Members stop at different iterations, and there are more pairs than a small history holds."""
    begin = torch.randn(3, 6, generator=rng(0, "begin"), dtype=torch.float64)
    begin[1] = CENTRE[1] + 1e-3  # close to the centre of a sphere: done at once
    ours = lbfgs(begin, lr=lr, history=history, inner=8)
    alone = [begin[i].clone().requires_grad_() for i in range(3)]
    theirs = [torch.optim.LBFGS([z], lr=lr, max_iter=8, history_size=history) for z in alone]
    for step in range(4):
        distance, _ = ours.step(bowl, step)
        for i, (z, optimizer) in enumerate(zip(alone, theirs, strict=True)):

            def closure(i=i, z=z, optimizer=optimizer):
                optimizer.zero_grad()
                loss = bowl(z[None], CURVATURE[i : i + 1], CENTRE[i : i + 1])[0].sum()
                loss.backward()
                return loss

            before = optimizer.step(closure)
            assert distance[i].item() == pytest.approx(before.item(), rel=1e-8, abs=1e-12)
            change = (z - begin[i]).detach()
            torch.testing.assert_close(ours.state["z"][i] - begin[i], change, rtol=1e-6, atol=1e-9)
            assert ours.state["iterations"][i] == next(iter(optimizer.state.values()))["n_iter"]
    counts = ours.state["iterations"]
    if lr == 1:
        assert counts.min() < counts.max()
        assert counts.max() > history or history == 100
        assert bowl(ours.state["z"])[0].max() < 1e-3  # it converges


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.line_search])
def test_the_line_search_never_raises_the_cost(name):
    seen, _ = victims("lenet", 2)
    attack = replace(ATTACKS[name], steps=6, restarts=1, inner=4, boxed=False, tv=0)
    run = reconstruct(seen, attack, rng=rng(0), start=starts(seen))
    costs = torch.cat([run.trace, run.cost[None]])
    assert (costs.diff(dim=0) <= 1e-12).all()
    assert (costs[-1] < 0.9 * costs[0]).all()


def test_the_line_search_shortens_a_step_that_overshoots():
    """cost = 50 z², from z = 1 with lr = 3: the full step goes to -2, half of it to -0.5."""
    for line_search, reached in ((True, -0.5), (False, -2)):
        ours = lbfgs(
            torch.ones(1, 1, dtype=torch.float64), lr=3.0, line_search=line_search, inner=1
        )
        ours.step(lambda z: (50 * z.square().sum(1), torch.zeros(len(z)).double()), 0)
        assert ours.state["z"].item() == reached


@pytest.mark.parametrize("factor", [1e-9, 1e6])
def test_with_the_line_search_the_size_of_the_cost_does_not_matter(factor):
    begin = CENTRE + torch.randn(3, 6, generator=rng(0, "begin"), dtype=torch.float64)
    ours, times = (lbfgs(begin, lr=1.0, line_search=True, inner=6) for _ in range(2))
    for step in range(2):
        ours.step(bowl, step)
        times.step(lambda z: tuple(factor * part for part in bowl(z)), step)
        torch.testing.assert_close(times.state["z"], ours.state["z"], rtol=1e-4, atol=1e-6)
    assert (bowl(ours.state["z"])[0] < 0.01 * bowl(begin)[0]).all()


def test_the_fixed_preset_leaves_its_start_on_an_untrained_convnet():
    """Its gradient is so small there that torch's absolute tolerances take the start for the
    optimum.
    """
    attack = replace(ATTACKS["lbfgs-cosine-fixed"], steps=2, restarts=1, inner=4)
    seen = untrained("convnet-4", 32)
    fixed, torchs = (
        reconstruct(seen, a, rng=rng(0)) for a in (attack, replace(attack, line_search=False))
    )
    assert not fixed.stuck.any()
    assert (fixed.cost < 0.8 * fixed.trace[0]).all()
    assert torchs.stuck.all()


def test_the_line_search_stays_where_no_step_helps_and_stops_at_the_optimum():
    begin = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    calls = []

    def trap(z):  # member 0: any move is punished; member 1: already at its minimum
        calls.append(len(z))
        wall = (z[:, 0] - begin[:, 0]).abs().detach().clamp(max=1).ceil() * torch.tensor(
            [100.0, 0.0]
        ).double()
        return z.square().sum(1) + wall, torch.zeros(len(z)).double()

    ours = lbfgs(begin, lr=1.0, line_search=True, inner=20)
    ours.step(trap, 0)
    assert torch.equal(ours.state["z"], begin)
    assert len(calls) <= 1 + 12 + 1  # one search, not twenty
    assert ours.state["iterations"].tolist() == [1, 0]


# --- members of a batch are independent ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adam-cosine-tv", "sgd-cosine", "lbfgs-l2", "lbfgs-cosine-fixed"])
def test_a_member_that_diverges_leaves_the_others_alone(name, monkeypatch):
    monkeypatch.setattr(engine, "LOOK_EVERY", 2)  # also when it leaves the batch
    seen, _ = victims(count=3)
    attack, start = replace(ATTACKS[name], steps=5, restarts=1, inner=3), starts(seen)
    clean = reconstruct(seen, attack, rng=rng(0), start=start)
    start[1, 0, 2, 2] = torch.nan
    sick = reconstruct(seen, attack, rng=rng(0), start=start)
    assert not sick.cost[1].isfinite()
    assert not sick.trace[:, 1].isfinite().any()
    torch.testing.assert_close(sick.images[[0, 2]], clean.images[[0, 2]], rtol=0, atol=1e-6)
    torch.testing.assert_close(sick.cost[[0, 2]], clean.cost[[0, 2]], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "lbfgs"])
@pytest.mark.parametrize("model_name", ["convnet-4", "lenet"])
def test_members_may_differ_in_all_but_structure(model_name, optimizer):
    seen, _ = victims(model_name)
    base, start = replace(UNSIGNED, optimizer=optimizer, inner=3), starts(seen)
    attacks = [
        replace(base, steps=2, tv=0),
        replace(base, steps=4, lr=0.01, schedule="cosine"),
        replace(
            base, steps=7, tv=1e-3, penalties=(("tv-isotropic", 0.1),), boxed=False, keep_best=True
        ),
        replace(base, steps=4, penalties=(("tv-isotropic", 0.3),), schedule="linear", signed=True),
    ]
    together = reconstruct(seen, attacks, rng=rng(0), start=start, chunk=4)
    for i, attack in enumerate(attacks):
        one = slice(i, i + 1)
        alone = reconstruct(seen.take(one), attack, rng=rng(0), start=start[one])
        torch.testing.assert_close(together.images[one], alone.images, rtol=0, atol=1e-6)
        torch.testing.assert_close(together.cost[one], alone.cost, rtol=1e-6, atol=1e-9)
        assert together.trace[:, i].isfinite().tolist() == [
            step < attack.steps for step in range(7)
        ]
        torch.testing.assert_close(
            together.trace[: attack.steps, one], alone.trace, rtol=1e-6, atol=1e-9
        )


def test_the_restart_of_least_finite_cost_is_kept():
    seen, pixels = victims(count=3)
    start = starts(seen, restarts=2)
    start[1, 0], start[0, 1] = (
        pixels[0],
        pixels[1],
    )  # the second start of one and the first of another are perfect
    start[0, 2] = torch.nan
    run = reconstruct(seen, replace(UNSIGNED, restarts=2, lr=1e-3, tv=0), rng=rng(0), start=start)
    assert run.restart.tolist() == [1, 0, 1]


@pytest.mark.parametrize("batch", [1, 2])
def test_every_restart_can_be_kept_for_an_oracle(batch):
    """The choice by cost stays; chosen with the truth, no image is further from it."""
    seen, pixels = victims(batch=batch)
    attack, start = replace(UNSIGNED, restarts=3), starts(seen, restarts=3)
    run = reconstruct(seen, attack, rng=rng(0), start=start, keep_restarts=True, chunk=5)
    kept = run.restart.repeat_interleave(batch)
    assert torch.equal(run.restarts[kept, torch.arange(4)], run.images)
    alone = [
        reconstruct(seen, replace(attack, restarts=1), rng=rng(0), start=begin) for begin in start
    ]
    torch.testing.assert_close(
        run.restarts, torch.stack([one.images for one in alone]), rtol=0, atol=1e-6
    )
    torch.testing.assert_close(
        run.costs, torch.stack([one.cost for one in alone]), rtol=1e-6, atol=1e-12
    )
    assert torch.equal(run.cost, run.costs.amin(0))
    oracle = metrics.psnr(run.restarts.flatten(0, 1), pixels.repeat(3, 1, 1, 1)).view(3, 4).amax(0)
    assert (oracle >= metrics.psnr(run.images, pixels)).all()
    assert reconstruct(seen, attack, rng=rng(0), start=start).restarts.shape == (0, *pixels.shape)


@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_do_not_change_the_result(chunk):
    seen, _ = victims()
    attacks = [replace(UNSIGNED, steps=steps, restarts=2) for steps in (3, 5, 4, 2)]
    whole, parts = (reconstruct(seen, attacks, rng=rng(0), chunk=c, frames=3) for c in (8, chunk))
    for field in ("images", "cost", "trace"):
        ours, theirs = getattr(parts, field), getattr(whole, field)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6, equal_nan=True)
    assert torch.equal(parts.restart, whole.restart)
    assert whole.trace.shape == (5, 4)


@pytest.mark.parametrize(
    ("error", "fits", "tried"),
    [
        (torch.OutOfMemoryError, 2, [4]),
        (torch.OutOfMemoryError, 0, [4, 2, 1]),
        (RuntimeError, 0, [4]),
    ],
)
def test_running_out_of_memory_takes_smaller_chunks_and_any_other_error_ends_the_run(
    error, fits, tried, monkeypatch
):
    seen, _ = victims()
    expected = reconstruct(seen, UNSIGNED, rng=rng(0), chunk=4)
    plain, sizes = objective.Objective.__call__, []

    def small(self, z):
        sizes.append(len(z))
        if len(z) > fits:
            raise error("no more")
        return plain(self, z)

    monkeypatch.setattr(objective.Objective, "__call__", small)
    with nullcontext() if fits else pytest.raises(error, match="no more"):
        halved = reconstruct(seen, UNSIGNED, rng=rng(0), chunk=4)
        torch.testing.assert_close(halved.images, expected.images, rtol=0, atol=1e-6)
        torch.testing.assert_close(halved.cost, expected.cost, rtol=1e-6, atol=1e-9)
    assert sizes[: len(tried)] == tried
    assert set(sizes[len(tried) :]) == ({fits} if fits else set())


# --- starts, frames, checkpoints ------------------------------------------------------------------------


def first_frames(seen, attack):
    """The (restarts · N) iterates before any step, in [0, 1] units."""
    shown = {}
    reconstruct(
        seen,
        attack,
        rng=rng(7),
        frames=2,
        chunk=99,
        on_frame=lambda step, x, _: shown.update({step: x}),
    )
    return shown[0].unflatten(0, (attack.restarts, -1))


@pytest.mark.parametrize("start", ["normal", "uniform", "zeros"])
@pytest.mark.parametrize("labels", ["known", "optimized"])
def test_a_members_start_does_not_depend_on_how_many_follow(start, labels):
    seen, _ = victims(count=3, labels=labels)
    attack = replace(UNSIGNED, start=start, restarts=2, steps=1)
    three, one = first_frames(seen, attack), first_frames(seen.take(slice(0, 1)), attack)
    assert torch.equal(three[:, :1], one)
    if start != "zeros":
        assert not torch.equal(three[0], three[1])
        assert not torch.equal(three[:, 0], three[:, 1])


def test_starts_have_the_distribution_they_are_named_after():
    seen, _ = victims()
    named = ("normal", "uniform", "zeros")
    normal, uniform, zeros = (
        first_frames(seen, replace(UNSIGNED, start=s, steps=1))[0, :, 0] for s in named
    )
    torch.testing.assert_close(zeros, seen.model[0].mean.expand_as(zeros))
    assert uniform.min() >= -1e-12
    assert uniform.max() <= 1 + 1e-12
    assert (uniform.mean().item(), uniform.std().item()) == pytest.approx((0.5, 12**-0.5), abs=0.03)
    normal = seen.model[0](normal)
    assert normal.mean().item() == pytest.approx(0, abs=0.15)
    assert normal.std().item() == pytest.approx(1, abs=0.1)


def test_frames_go_from_the_start_to_the_result():
    seen, _ = victims()
    start, shown = starts(seen), []
    run = reconstruct(
        seen, UNSIGNED, rng=rng(0), start=start, frames=3, on_frame=lambda *args: shown.append(args)
    )
    assert run.frame_steps == (0, 2, 5)
    assert run.frames.shape == (3, *run.images.shape)
    torch.testing.assert_close(run.frames[0], start, rtol=0, atol=1e-12)
    assert torch.equal(run.frames[-1], run.images)
    assert not torch.equal(run.frames[1], run.frames[0])
    assert [step for step, _, _ in shown] == [0, 2, 5]
    for (_, images, _), frame in zip(shown, run.frames, strict=True):
        assert torch.equal(images[:, 0], frame)
    assert shown[0][2].isnan().all()  # no distance yet
    assert torch.equal(shown[2][2], run.trace[4])
    without = reconstruct(seen, UNSIGNED, rng=rng(0), start=start)
    assert (len(without.frames), without.frame_steps) == (0, ())


def test_a_frame_can_stop_the_attack():
    seen, _ = victims()
    run = reconstruct(seen, UNSIGNED, rng=rng(0), frames=6, on_frame=lambda step, *_: step == 2)
    assert run.trace.isfinite().all(1).tolist() == [True, True, False, False, False]
    short = reconstruct(seen, replace(UNSIGNED, steps=5), rng=rng(0), frames=6)
    assert torch.equal(run.images, short.frames[2])
    assert torch.equal(run.frames[:3], short.frames[:3])
    assert torch.equal(run.frames[-1], run.images)
    assert run.cost.isfinite().all()


def lbfgs_once(z, steps, box=math.inf, **options):
    """The batched optimizer that evaluates once a step, on these starts."""
    attack = GradientMatching(
        optimizer="lbfgs-once", signed=False, steps=steps, schedule="constant", lr=1.0, **options
    )
    high = torch.full((z.shape[1],), box, dtype=z.dtype)
    return optimizers.LbfgsOnce([attack] * len(z), z, z.shape[1], -high, high)


def counted(cost):
    """A cost, and the list of what it was asked."""
    asked = []

    def count(z):
        asked.append(z.detach().clone())
        return cost(z)

    return count, asked


@pytest.mark.parametrize("history", [3, 10])
def test_lbfgs_once_reaches_the_minimum_with_one_evaluation_a_step(history):
    begin = CENTRE + torch.randn(3, 6, generator=rng(0, "begin"), dtype=torch.float64)
    ours = lbfgs_once(begin, 60, history=history)
    cost, asked = counted(bowl)
    told = [ours.step(cost, step)[0] for step in range(60)]
    assert [z.shape for z in asked] == [begin.shape] * 60
    torch.testing.assert_close(ours.state["z"], CENTRE, rtol=0, atol=1e-4)
    best = torch.stack(told).amin(0)
    torch.testing.assert_close(bowl(ours.state["z"])[0], best)  # the best point, evaluated


def test_a_member_of_lbfgs_once_takes_the_path_that_it_takes_alone():
    """Rejected trials of one member, at other steps than those of the others, included."""
    begin = CENTRE + 3 * torch.randn(3, 6, generator=rng(0, "begin"), dtype=torch.float64)
    steep = torch.tensor([1.0, 1.0, 1e4], dtype=torch.float64)

    def cost(rows):
        def of(z):
            distance, penalty = bowl(z, CURVATURE[rows], CENTRE[rows])
            return steep[rows] * distance, penalty

        return of

    together, asked = counted(cost(slice(None)))
    ours = lbfgs_once(begin, 25, history=4)
    for step in range(25):
        ours.step(together, step)
    for i in range(3):
        own = slice(i, i + 1)
        alone, seen = counted(cost(own))
        one = lbfgs_once(begin[own], 25, history=4)
        for step in range(25):
            one.step(alone, step)
        torch.testing.assert_close(
            torch.cat([z[own] for z in asked]), torch.cat(seen), rtol=1e-7, atol=1e-9
        )
    moved = torch.stack(asked).diff(dim=0).abs().amax(2)
    assert (moved > 0).any(0).all()


def test_lbfgs_once_halves_a_step_that_overshoots_and_then_forgets():
    """cost = |z|, from 1: the trial at 1 - 4 costs more, half of it is accepted; one step away from
    the minimum no trial helps, and after six the direction is the gradient's again.
    """
    ours = lbfgs_once(torch.ones(1, 1, dtype=torch.float64), 30)
    ours.state["lr"] *= 4
    cost, asked = counted(lambda z: (z.abs().sum(1), torch.zeros(len(z)).double()))
    for step in range(3):
        ours.step(cost, step)
    assert [z.item() for z in asked] == [1, -3, -1]
    wall, asked = counted(
        lambda z: (z[:, 0] + 100 * (z[:, 0] != 0).detach(), torch.zeros(len(z)).double())
    )
    ours = lbfgs_once(torch.zeros(1, 1, dtype=torch.float64), 30)
    for step in range(9):
        ours.step(wall, step)
    expected = [0] + [-(0.5**i) for i in range(6)] + [-0.1, -0.05]
    assert [z.item() for z in asked] == pytest.approx(expected)


def test_lbfgs_once_leaves_trials_that_are_not_finite_and_stays_in_its_box():
    """Beyond 1.5 the cost is nan, so the minimum at 2 is out of reach, and in a box as well."""

    def edge(z):
        distance = (z - 2).square().sum(1)
        return torch.where((z > 1.5).any(1), torch.nan, distance), torch.zeros_like(distance)

    begin = torch.tensor([[0.0, 1.0], [1.2, -3.0]], dtype=torch.float64)
    ours = lbfgs_once(begin, 60)
    for step in range(60):
        ours.step(edge, step)
    assert ours.state["z"].isfinite().all()
    assert (edge(ours.state["z"])[0] < edge(begin)[0]).all()
    boxed = lbfgs_once(begin, 60, box=1.0)
    cost, asked = counted(edge)
    for step in range(60):
        boxed.step(cost, step)
    assert torch.stack(asked).abs().max() <= 1
    torch.testing.assert_close(boxed.state["z"], torch.ones_like(begin))
    lost = lbfgs_once(begin, 3)
    for step in range(3):
        distance, _ = lost.step(lambda z: (torch.nan * z.sum(1), torch.zeros(2).double()), step)
    assert distance.isnan().all()
    assert torch.equal(lost.state["z"], begin)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "lbfgs", "lbfgs-once"])
@pytest.mark.parametrize("chunk", [2, 4])
def test_a_killed_run_resumes_to_the_same_bits(optimizer, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "SAVE_EVERY", 0)
    seen, _ = victims(dtype=torch.float32)
    signed = optimizer != "lbfgs-once"
    base = replace(ATTACKS["adam-cosine"], optimizer=optimizer, inner=3, signed=signed)
    attacks = [
        replace(base, steps=steps) for steps in (2, 6, 6, 5)
    ]  # one member is done before the kill
    options = {"frames": 4, "chunk": chunk, "checkpoint": tmp_path / "run"}
    expected = reconstruct(seen, attacks, rng=rng(3), **options | {"checkpoint": None})
    kind, taken = optimizers.OPTIMIZERS[optimizer], []
    plain = kind.step

    def step(self, cost, step):
        taken.append(step)
        if len(taken) == 5:
            raise Killed
        return plain(self, cost, step)

    monkeypatch.setattr(kind, "step", step)
    with pytest.raises(Killed):
        reconstruct(seen, attacks, rng=rng(3), **options)
    assert taken == [0, 1, 2, 3, 4]
    assert list(tmp_path.iterdir())
    resumed = reconstruct(seen, attacks, rng=rng(3), **options)
    assert taken[5] > 0  # not from the beginning
    for field in ("images", "cost", "trace", "frames", "restart", "labels"):
        ours, theirs = getattr(resumed, field), getattr(expected, field)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("other", ["gradients", "network", "attack", "start", "none"])
def test_only_the_same_run_is_resumed(other, tmp_path, monkeypatch):
    """The state of other images, of another network or attack, or of other starts is set aside."""
    monkeypatch.setattr(engine, "SAVE_EVERY", -1)
    seen, _ = victims()
    state, attack, start = tmp_path / "state", UNSIGNED, starts(seen)

    def die():
        raise Killed

    with pytest.raises(Killed):
        reconstruct(seen, attack, rng=rng(0), start=start, checkpoint=state, chunk=4, on_saved=die)
    (kept,), (update,) = tmp_path.iterdir(), seen.updates
    seen = {
        "gradients": lambda: replace(
            seen, updates=(replace(update, gradients=2 * update.gradients),)
        ),
        "network": lambda: replace(
            seen, updates=(replace(update, model=network("lenet", seed=1)),)
        ),
    }.get(other, lambda: seen)()
    attack = replace(attack, tv=0.2) if other == "attack" else attack
    start = start.flip(0) if other == "start" else start
    whole = reconstruct(seen, attack, rng=rng(0), start=start, chunk=4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = reconstruct(seen, attack, rng=rng(0), start=start, checkpoint=state, chunk=4)
    assert torch.equal(run.images, whole.images)
    assert torch.equal(run.trace, whole.trace)
    files = [file.name for file in tmp_path.iterdir()]
    if other == "none":
        assert (said, files) == ([], [])
    else:
        (line,) = (str(warning.message) for warning in said)
        assert line.startswith("state.0-4 is not resumed (it is the state of another run")
        assert files == [kept.name + ".aside"]


def test_the_state_of_a_run_of_another_size_is_set_aside_and_not_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "SAVE_EVERY", -1)
    seen, _ = victims()

    def die():
        raise Killed

    with pytest.raises(Killed):
        reconstruct(seen, UNSIGNED, rng=rng(0), checkpoint=tmp_path / "state", on_saved=die)
    (kept,) = tmp_path.iterdir()
    content = kept.read_bytes()
    with pytest.warns(UserWarning, match=r"state\.0-4 was not used .* it is now state\.0-4\.aside"):
        reconstruct(seen.take(slice(0, 1)), UNSIGNED, rng=rng(0), checkpoint=tmp_path / "state")
    (left,) = tmp_path.iterdir()
    assert (left.name, left.read_bytes()) == (f"{kept.name}.aside", content)


# --- schedules, the best iterate, and attacks that never leave their start --------------------------------


def test_step_sizes_follow_the_schedule():
    rates = {}
    for name in optimizers.SCHEDULES:
        attack, free = (
            GradientMatching(steps=16, lr=2.0, schedule=name),
            torch.full((3,), torch.inf),
        )
        adam = optimizers.Adam([attack], torch.zeros(1, 3), 3, -free, free)
        rates[name] = [adam.rate(step).item() for step in range(16)]
    assert rates["constant"] == [2] * 16
    assert rates["steps"] == pytest.approx(
        [2] * 5 + [0.2] * 4 + [0.02] * 5 + [0.002] * 2
    )  # 16 // 2.667 is 5
    assert rates["linear"] == pytest.approx([2 * (1 - step / 16) for step in range(16)])
    weights = [torch.nn.Parameter(torch.zeros(1))]
    theirs = torch.optim.SGD(weights, lr=2.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=16)
    for ours in rates["cosine"]:
        assert ours == pytest.approx(schedule.get_last_lr()[0], abs=1e-6)
        theirs.step()
        schedule.step()


def test_the_best_iterate_is_that_of_least_cost_with_the_penalties():
    """Far too long steps never return to the cost of the start, others pass their best iterate."""
    seen, _ = victims()
    attack, start = replace(UNSIGNED, schedule="constant", steps=9), starts(seen)
    attacks = [replace(attack, lr=lr, boxed=lr < 5) for lr in (5.0, 5.0, 1.0, 2.0)]
    last = reconstruct(seen, attacks, rng=rng(0), start=start, frames=10)
    keep = [replace(a, keep_best=True) for a in attacks]
    best = reconstruct(seen, keep, rng=rng(0), start=start, chunk=3)
    torch.testing.assert_close(best.trace, last.trace)
    z = seen.model[0](last.frames).flatten(2)
    costs = torch.stack([sum(objective.Objective(seen, [attack] * 4)(row)) for row in z])
    picked = costs.argmin(0)
    assert picked.tolist()[:3] == [0, 0, 9]
    assert 0 < picked[3] < 9
    torch.testing.assert_close(best.images, last.frames[picked, torch.arange(4)], rtol=0, atol=1e-9)
    assert (best.cost[picked < 9] != last.cost[picked < 9]).all()


def test_zeros_are_a_dead_point_of_an_untrained_resnet_and_the_result_says_so():
    seen = untrained("resnet20-1", 8)
    for name in ("adam-cosine", "adam-cosine-tv", "lbfgs-cosine", "sgd-cosine"):
        attack = replace(ATTACKS[name], steps=3, restarts=1, start="zeros")
        run = reconstruct(seen, attack, rng=rng(0))
        assert run.stuck.tolist() == [True, True]
        assert (run.cost == run.trace[0]).all()
        assert reconstruct(seen, replace(attack, start="normal"), rng=rng(0)).stuck.tolist() == [
            False,
            False,
        ]


# --- labels and problems of several images -------------------------------------------------------------


@pytest.mark.parametrize("model_name", SIDES)
def test_inferred_labels_are_exact_for_every_class(model_name):
    pixels = torch.rand(
        5, 3, SIDES[model_name], SIDES[model_name], generator=rng(0, "pixels")
    ).double()
    seen = observe(
        network(model_name), pixels, torch.arange(5), threat=ThreatModel(labels="inferred")
    )
    assert infer_labels(seen).tolist() == [[0], [1], [2], [3], [4]]


def test_inferred_labels_attack_like_known_ones():
    known, inferred = (victims(labels=labels)[0] for labels in ("known", "inferred"))
    expected, run = (reconstruct(seen, UNSIGNED, rng=rng(0)) for seen in (known, inferred))
    assert torch.equal(run.images, expected.images)
    assert run.labels.tolist() == LABELS[:, None].tolist()


def test_labels_cannot_be_inferred_without_a_linear_layer_at_the_end():
    seen, _ = victims(labels="inferred")
    layers = torch.nn.Conv2d(3, 5, 8), torch.nn.Flatten(), torch.nn.BatchNorm1d(5)
    normalized = torch.nn.Sequential(seen.model[0], *layers).double().eval()
    size = sum(p.numel() for p in normalized.parameters())
    with refused("the last layer '3' is no linear layer"):
        infer_labels(replace(seen, updates=(Update(normalized, torch.zeros(4, size)),)))


@pytest.mark.parametrize(
    ("optimizer", "signed"), [("adam", True), ("adam", False), ("lbfgs", False)]
)
def test_optimized_labels_lower_the_cost(optimizer, signed):
    seen, pixels = victims(labels="optimized")
    attack = replace(UNSIGNED, optimizer=optimizer, signed=signed, steps=12, inner=2, tv=0)
    run = reconstruct(seen, attack, rng=rng(0), start=pixels, frames=2)
    assert run.images.shape == pixels.shape
    assert run.labels.shape == (4, 1)
    assert ((run.labels >= 0) & (run.labels < 5)).all()
    assert run.images.min() >= -1e-12
    assert (run.cost < run.trace[0]).all()
    torch.testing.assert_close(run.frames[0], pixels)


@pytest.mark.parametrize("labels", ["known", "optimized"])
def test_a_gradient_of_two_images_is_attacked_as_one_problem(labels):
    seen, pixels = victims(batch=2, labels=labels)
    run = reconstruct(seen, replace(UNSIGNED, tv=0), rng=rng(0), start=pixels, frames=2)
    assert (run.images.shape, run.cost.shape, run.labels.shape) == (pixels.shape, (2,), (2, 2))
    torch.testing.assert_close(run.frames[0], pixels)
    if labels == "known":
        assert run.trace[0].abs().max() < 1e-12  # the truth has the client's gradient
        assert run.labels.tolist() == LABELS.view(2, 2).tolist()
    else:
        assert (run.trace[0] > 1e-3).all()


# --- batch-norm statistics as a prior --------------------------------------------------------------------


def prior_of(seen, pixels):
    """The weighted prior at these images, (N,), every other penalty being off."""
    z = seen.model[0](pixels).view(len(seen), -1)
    return objective.Objective(
        seen, [GradientMatching(tv=0, penalties=(("batch-norm", 0.5),))] * len(seen)
    )(z)[1]


def plain_prior(model, images, known):
    """‖mean - known‖ + ‖variance - known‖ of every layer's input, with ordinary hooks, one problem."""
    total = []

    def hook(name, layer, inputs):
        x = inputs[0].transpose(0, 1).flatten(1)
        for kind, value in (("running_mean", x.mean(1)), ("running_var", x.var(1, correction=0))):
            total.append((value - known[f"{name}.{kind}"]).square().sum().sqrt())

    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, torch.nn.BatchNorm2d)]
    handles = [m.register_forward_pre_hook(lambda m, x, n=n: hook(n, m, x)) for n, m in layers]
    model(images)
    for handle in handles:
        handle.remove()
    return sum(total)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("victim", ["eval", "train"])
@pytest.mark.parametrize("model_name", ["resnet20-1", "convnet-4"])
def test_the_prior_is_the_distance_of_every_layers_statistics(model_name, victim, batch):
    """It vanishes at the true batch of a client in train mode; running statistics are of other
    images.
    """
    seen, pixels = victims(model_name, victim=victim, batch=batch)
    guess = pixels.flip(-1) * 0.9
    prior = prior_of(seen, guess)
    for i, images in enumerate(guess.unflatten(0, (-1, batch))):
        known = {n: v[i] for n, v in seen.statistics.items()} or running_statistics(seen.model)
        torch.testing.assert_close(
            prior[i], 0.5 * plain_prior(seen.model, images, known), rtol=1e-9, atol=1e-12
        )
    assert (prior > 1e-2).all()
    at_truth = prior_of(seen, pixels)
    assert ((at_truth < 1e-9) if victim == "train" else (at_truth > 1e-2)).all()


@pytest.mark.parametrize("victim", ["eval", "train"])
def test_derivatives_of_the_prior_are_right(victim):
    seen, pixels = victims("convnet-4", 2, victim=victim)
    guess = (0.9 * pixels.flip(-1)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: prior_of(seen, x), guess, fast_mode=True)
    (slope,) = torch.autograd.grad(prior_of(seen, guess)[0], guess)
    assert slope[0].abs().max() > 0
    assert slope[1].abs().max() == 0  # no problem sees another


def test_an_attack_with_the_prior_comes_closer_to_the_statistics():
    seen, _ = victims("convnet-4", victim="train")
    start = starts(seen)
    without, with_it = (
        replace(UNSIGNED, steps=15, lr=0.02, penalties=(("batch-norm", w),)) for w in (0, 1)
    )
    near = prior_of(seen, reconstruct(seen, with_it, rng=rng(0), start=start).images)
    assert (near < prior_of(seen, start)).all()
    assert (near < prior_of(seen, reconstruct(seen, without, rng=rng(0), start=start).images)).all()


# --- penalties -----------------------------------------------------------------------


IMAGE_PENALTIES = [name for name in priors.PENALTIES if name != "batch-norm"]


@pytest.mark.parametrize("name", IMAGE_PENALTIES)
def test_derivatives_of_a_penalty_are_right_and_a_flat_grey_image_has_none_or_its_length(name):
    def penalty(z):
        return priors.PENALTIES[name](z, 0.25 * z + 0.5, None)

    generic = torch.randn(
        2, 3, 4, 5, generator=rng(0, "generic"), dtype=torch.float64
    ).requires_grad_()
    assert (0.25 * generic + 0.5 > 1).any()  # some pixels are outside the box
    assert torch.autograd.gradcheck(penalty, generic)
    value = penalty(generic)
    assert value.shape == (2,)
    (slope,) = torch.autograd.grad(value[0], generic)
    assert slope[0].abs().max() > 0
    assert slope[1].abs().max() == 0  # no image sees another
    grey = torch.zeros(1, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(penalty(grey).sum(), grey)
    assert slope.isfinite().all()
    length = (
        0.5 * 48**0.5 if name in ("l2", "scale") else 0
    )  # nothing to scale: as far as from black
    assert penalty(grey).item() == pytest.approx(length, abs=2e-6)


def test_penalties_of_small_arrays():
    def image(rows):
        return torch.tensor(rows, dtype=torch.float64)[None, None]

    # |dx| = 1, 1 and |dy| = 2, 2: mean 1 + mean 2
    assert priors.total_variation(image([[0, 1], [2, 3]])).tolist() == [3]
    # dx = 3, dy = 4 at the one place that has both neighbours
    assert priors.total_variation_isotropic(image([[0, 3], [4, 9]])).item() == pytest.approx(5)


def test_what_is_beyond_the_box_and_what_does_not_fill_it_is_counted_in_requests_of_pixels():
    image = torch.tensor([-3.0, 0.0, 1.0, 5.0], dtype=torch.float64).view(1, 1, 2, 2)
    assert priors.beyond(image).item() == pytest.approx(5)  # 3 and 4
    scaled = torch.tensor([0, 3 / 8, 0.5, 1], dtype=torch.float64).view(1, 1, 2, 2)
    assert priors.unscaled(image).item() == pytest.approx(float((image - scaled).norm()))
    assert priors.unscaled(scaled).item() == pytest.approx(0, abs=1e-11)
    assert priors.beyond(scaled).item() == pytest.approx(0, abs=1e-11)


@pytest.mark.parametrize(
    ("name", "mean", "low", "high"),
    [("uniform", 0.5, 0, 1), ("pixels-normal", 0.5, -9, 9), ("pixels-normal-zero", 0, -9, 9),
     ("pixels-uniform-zero", 0, -0.5, 0.5)],
)  # fmt: skip
def test_a_start_in_pixels_has_its_mean_and_range(name, mean, low, high):
    normalize = network("lenet")[0]
    pixels = normalize.inverse(STARTS[name]((3, 40, 40), rng(0), normalize))
    assert pixels.mean().item() == pytest.approx(mean, abs=0.05)
    assert low - 1e-6 <= pixels.min() < pixels.max() <= high + 1e-6
    assert pixels.std().item() == pytest.approx(1 if "normal" in name else 12**-0.5, rel=0.05)


@pytest.mark.parametrize("distance", DISTANCES)
def test_the_objective_is_the_distance_plus_the_weighted_penalties(distance):
    seen, _ = victims(count=2)
    further = (("tv-isotropic", 0.2),)
    attack = GradientMatching(distance=distance, tv=0.1, penalties=further)
    z = torch.randn(2, 192, generator=rng(0, "z"), dtype=torch.float64)
    measured, penalty = objective.Objective(seen, [attack, replace(attack, tv=0)])(z)
    images = z.view(2, 1, *seen.shape)
    pixels = seen.model[0].inverse(images)
    gradients, target = (
        problem_gradients(seen.model, pixels, seen.labels),
        unflatten(seen.gradients, seen.model),
    )
    torch.testing.assert_close(
        measured, DISTANCES[distance](gradients, target), rtol=1e-9, atol=1e-12
    )
    parts = {
        name: priors.PENALTIES[name](images[:, 0], pixels[:, 0], seen) for name in IMAGE_PENALTIES
    }
    expected = sum(weight * parts[name] for name, weight in further)
    expected = expected + torch.tensor([0.1, 0.0], dtype=torch.float64) * parts["tv"]
    torch.testing.assert_close(penalty, expected, rtol=1e-9, atol=1e-12)


# --- the door --------------------------------------------------------------------------------------------


class Guess:
    """An attack of one's own: every image is grey, or what it is told."""

    def __init__(self, value=0.5):
        self.value = value

    def run(self, seen, *, rng):
        return torch.full((len(seen) * seen.threat.batch, *seen.shape), self.value)


def test_a_preset_is_called_by_its_name_and_a_start_may_be_an_array(tmp_path, monkeypatch):
    seen, _ = victims()
    monkeypatch.setitem(ATTACKS, "short", UNSIGNED)
    itself = reconstruct(seen, UNSIGNED, rng=rng(0), frames=2)
    assert torch.equal(reconstruct(seen, "short", rng=0).images, itself.images)
    given = starts(seen)
    named = reconstruct(
        seen, ["short"] * 4, rng=0, start=given.numpy(), checkpoint=str(tmp_path / "state")
    )
    assert torch.equal(named.images, reconstruct(seen, UNSIGNED, rng=0, start=given).images)


@pytest.mark.parametrize("batch", [1, 2])
def test_an_attack_of_ones_own_runs_where_a_preset_does(batch, monkeypatch):
    seen, _ = victims(batch=batch)
    monkeypatch.setitem(ATTACKS, "guess", Guess())
    run = reconstruct(seen, "guess", rng=rng(0), frames=3, progress=True)
    assert (run.images == 0.5).all()
    assert run.images.shape == (4, *seen.shape)
    assert (run.trace.shape, run.stuck.tolist()) == ((0, 4 // batch), [False] * (4 // batch))
    assert run.cost.isnan().all()
    assert torch.equal(run.labels, seen.labels)
    assert torch.equal(reconstruct(seen, Guess(0.25), rng=rng(0)).images, run.images / 2)


def test_a_function_is_an_attack_and_gets_the_options_that_it_names():
    seen, _ = victims()
    start = starts(seen)

    def noise(seen, *, rng, start):
        return start + torch.rand(start.shape, generator=rng)

    run = reconstruct(seen, noise, rng=rng(0), start=start, frames=2)
    assert torch.equal(run.images, start + torch.rand(start.shape, generator=rng(0)))

    def longer(seen, **options):  # its own use of a preset
        return reconstruct(seen, replace(UNSIGNED, steps=7), **options)

    assert reconstruct(seen, longer, rng=rng(0), frames=2).frame_steps == (0, 7)


def test_the_options_of_an_attack_are_those_of_the_engine():
    named = inspect.signature(engine.match).parameters
    assert list(named) == ["seen", "attacks", "rng", *engine.OPTIONS]


# --- does it find images? ------------------------------------------------------------------------------


def attack_waves(name, attack):
    """An attack on two smooth images: the run, its PSNR, and that of a flat grey guess."""
    y, x = torch.meshgrid(torch.linspace(0, 1, 16), torch.linspace(0, 1, 16), indexing="ij")
    waves = [
        torch.stack([torch.sin(a * x + b * y + c) / 2.5 + 0.5 for c in range(3)])
        for a, b in ((5, 2), (2, 6))
    ]
    images = torch.stack(waves)
    model = build_model(name, 5, image_size=16, norm=((0.5,), (0.25,)), rng=rng(1))
    run = reconstruct(observe(model, images, torch.tensor([1, 3])), attack, rng=rng(0))
    return run, metrics.psnr(run.images, images), metrics.psnr(torch.full_like(images, 0.5), images)


def test_smooth_images_are_found_better_than_by_a_flat_grey_guess():
    run, psnr, grey = attack_waves("lenet", replace(ATTACKS["adam-cosine-tv"], steps=150, tv=1e-2))
    assert (psnr > grey + 2).all()
    assert (run.cost < 0.1 * run.trace[0]).all()


@pytest.mark.parametrize("name", ["lenet", pytest.param("convnet-16", marks=pytest.mark.slow)])
def test_the_annealed_preset_finds_more_in_the_same_steps(name):
    ours, plain = ATTACKS[f"annealed-{name.split('-')[0]}"], ATTACKS["adam-cosine"]
    annealed, usual = (
        attack_waves(name, replace(attack, steps=40))[1].mean() for attack in (ours, plain)
    )
    assert annealed > usual + 1


# --- errors --------------------------------------------------------------------------------------------

NOT_POSITIVE = {"steps": 0, "restarts": 0, "inner": -1, "lr": 0.0}
OTHER_TYPES = {"steps": 2.5, "restarts": True, "lr": "1", "signed": 1}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("distance", "far", ".distance 'far' is unknown; choose one of " + ", ".join(DISTANCES)),
        ("optimizer", "lion", ".optimizer 'lion' is unknown; choose one of adam, sgd, lbfgs"),
        ("optimizer", "lbfgs-once", ".signed=True: optimizer 'lbfgs-once' learns from the"),
        ("start", "ones", ".start 'ones' is unknown; choose one of normal, uniform, zeros"),
        (
            "schedule",
            "odd",
            ".schedule 'odd' is unknown; choose one of steps, constant, cosine, linear",
        ),
        ("penalties", (("odd", 0.1),), "choose one of tv, tv-isotropic, batch-norm"),
        ("penalties", (("batch-norm", 0.1), ("batch-norm", 0.2)), "name one twice"),
        ("penalties", (("tv", 0.1),), "'tv' is the field tv"),
        *[
            (field, value, f".{field}={value} must be above 0")
            for field, value in NOT_POSITIVE.items()
        ],
        ("tv", -1.0, ": the weight -1.0 of the penalty 'tv' must not be negative"),
        (
            "penalties",
            (("tv-isotropic", -0.1),),
            ": the weight -0.1 of the penalty 'tv-isotropic' must not be",
        ),
        *[(field, value, f".{field}={value!r} must be ") for field, value in OTHER_TYPES.items()],
    ],
)
def test_a_wrong_setting_is_told_the_rule(field, value, message):
    with refused("GradientMatching", message):
        GradientMatching(**{field: value})


def broken():
    """Two of four gradients are not finite."""
    seen, _ = victims()
    seen.gradients[[1, 3], 0] = torch.tensor([torch.nan, torch.inf]).double()
    return seen


PRIOR = replace(UNSIGNED, penalties=(("batch-norm", 0.1),))
UNLIKE = {"distance": "l2", "optimizer": "sgd", "restarts": 2, "history": 7}
SHAPES = ((2, 3, 8, 8), (4, 3, 8, 9), (3, 4, 3, 8, 8), (4, 3 * 64))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"attack": 7},
            "attack 7 must be a preset's name, an object with a method run, or a function",
        ),
        ({"attack": "adam"}, "attack 'adam' is unknown; choose one of adam-cosine, lbfgs-l2"),
        (
            {"attack": ["adam-cosine", "adam-cosin"]},
            "attack 'adam-cosin' is unknown; choose one of adam-cosine",
        ),
        (
            {"attack": lambda seen, rng: torch.zeros(4, 1, 8, 8)},
            "returned (4, 1, 8, 8) torch.float32; it must be (4, 3",
        ),
        (
            {"attack": lambda seen, rng: torch.zeros(4, 3, 8, 8).byte()},
            "torch.uint8; it must be (4, 3, 8, 8) floats",
        ),
        (
            {"attack": lambda seen, rng: "done"},
            "returned a str; it must be a Reconstruction or images",
        ),
        ({"attack": [UNSIGNED] * 3}, "3 attacks for 4 gradients"),
        *[
            ({"attack": [UNSIGNED] * 3 + [replace(UNSIGNED, **{f: v})]}, "must share")
            for f, v in UNLIKE.items()
        ],
        ({"frame": 3}, "frame is no option of an attack"),
        ({"frames": 1}, "frames=1: ask for none, or at least the first and the last"),
        ({"frames": -1}, "frames=-1 must be a whole number, at least 0"),
        ({"chunk": 0}, "chunk=0 must be a whole number, at least 1"),
        ({"rng": None}, "rng None must be a stream"),
        *[
            (
                {"start": torch.zeros(shape)},
                f"start float32 of shape {shape} must be (4, 3, 8, 8) in [0, 1]",
            )
            for shape in SHAPES
        ],
        (
            {"start": torch.full((4, 3, 8, 8), 128.0)},
            "start goes up to 128; it must be floats in units of",
        ),
        (
            {"start": torch.zeros(4, 3, 8, 8).byte()},
            "start is uint8 of shape (4, 3, 8, 8); it must be floats",
        ),
        ({"seen": lambda: torch.zeros(1)}, "seen is a Tensor; give what atslib.observe returned"),
        ({"seen": broken}, "gradients [1, 3] hold nan or infinity"),
        ({"attack": PRIOR}, "the attacked one has none"),
        *[
            (
                {
                    "seen": lambda v=v: victims("convnet-4", 1, batch_norm="unknown", victim=v)[0],
                    "attack": PRIOR,
                },
                "needs ThreatModel.batch_norm='known'; here it is 'unknown'",
            )
            for v in ("eval", "train")
        ],
    ],
)
def test_what_cannot_be_attacked_is_refused_in_one_sentence(given, message):
    given = {"seen": lambda: victims()[0], "attack": UNSIGNED, "rng": 0} | given
    with refused(message):
        reconstruct(given.pop("seen")(), given.pop("attack"), **given)


def test_labels_are_class_numbers_where_a_defense_mixes_images():
    network = build_model("lenet-2", 10, norm="shapes", rng=rng(0))
    images = torch.rand(4, 3, 32, 32, generator=rng(0))
    seen = observe(network, images, torch.arange(4), defense="mixup:0.3", rng=rng(1))
    assert seen.labels.shape == (4, 1, 10)
    short = replace(ATTACKS["adam-cosine"], steps=1)
    for attack in (lambda seen, **options: images, short):
        made = reconstruct(seen, attack, rng=0)
        assert torch.equal(made.labels, seen.labels.argmax(-1))
