"""The attacker who knows the policy: the attack through it, and the page that compares attackers."""

import builtins
import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from test_pilots import cell, cells
from test_rules import functions

from atsbook.evidence.archive import Archive, request_of
from atsbook.experiment import observed
from atsbook.findings import compare
from atsbook.findings.statistics import holm, paired, student_interval
from atsbook.findings.table1 import HYBRID, POLICIES, SEARCHED
from atsbook.findings.verdicts import guards
from atsbook.networks import trained
from atsbook.runs.tables import policy_image
from atsbook.store import Store
from atslib.attacks import ATTACKS, FromMean, GradientMatching, Undone, by_knowledge, reconstruct
from atslib.attacks.objective import Objective
from atslib.attacks.through_policy import ThroughPolicy, drawn, forms, least, through
from atslib.attacks.undo_policy import bands
from atslib.clients.observe import Knowledge, Observed, ThreatModel, observe
from atslib.clients.prepare import to_images, transform
from atslib.data.load import load
from atslib.errors import AtsError
from atslib.gradients.problems import flatten, problem_gradients, vmapped
from atslib.measures.metrics import psnr
from atslib.models import build_model
from atslib.policies.differentiable import in_frame, twin
from atslib.policies.policy import parse_policy
from atslib.rng import rng

# The attackers by the names that the page gives them
NAMED = {}
exec(cell("ext5_adaptive", "def watching("), NAMED)
DRAWS, FOUND, LABEL, LEARNED, MEAN, PATIENT = (
    NAMED[name] for name in ("DRAWS", "FOUND", "LABEL", "LEARNED", "MEAN", "PATIENT")
)
POLICY, PUBLISHED, SINGLE, STRONGEST, UNDONE, watching = (
    NAMED[name] for name in ("POLICY", "PUBLISHED", "SINGLE", "STRONGEST", "UNDONE", "watching")
)
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread", "few_images")]
OWN = load("shapes", "train")
ANNEALED = ATTACKS["annealed-lenet"]


@pytest.fixture(scope="module")
def lenet():
    return build_model("lenet", num_classes=10, rng=0).eval()


@pytest.fixture(scope="module")
def victims():
    images = load("shapes", "test")[:4]
    return to_images(images.pixels), images.labels


def seen_by(lenet, victims, policy, knows, **options):
    threat = ThreatModel(defense=knows, **options)
    return observe(lenet, *victims, defense=policy, rng=1, threat=threat)


@pytest.mark.parametrize(
    ("policy", "count"),
    [
        ("3-1-7", 8),
        ("43-18-18", 8),
        (HYBRID, 16),
        ("19-15-45", 4),
        ("28", 1),
        ("0-9-11", 1),
        ("3+3", 2),
    ],
)
def test_every_form_that_can_be_drawn_is_there_once(policy, count):
    found = forms(policy)
    assert len(found) == len(set(found)) == count
    pixels = load("shapes", "test")[:3].pixels
    parsed = parse_policy(policy)
    drawn = parsed.apply_draw(pixels, *parsed.draw(3, rng=rng(5)))
    made = [torch.cat([_exact(pixels[i : i + 1], form) for i in range(3)]) for form in found]
    for i in range(3):  # what was drawn is one of them
        assert any(torch.equal(drawn[i], images[i]) for images in made)


def _exact(pixels, form):
    ids, signs = form
    return parse_policy("-".join(map(str, ids))).apply_signs(
        pixels, torch.tensor([signs] * len(pixels))
    )


def test_behind_the_drawn_form_the_photograph_has_the_gradient_that_was_seen(lenet, victims):
    policy = "3-0-11"  # shift, inversion and posterization lose no precision
    seen = seen_by(lenet, victims, policy, "draws")
    _, signs = seen.knows.draws[0]
    each = [next(f for f in forms(policy) if f[1][0] == sign) for sign in signs[:, 0, 0].tolist()]
    assert len(set(each)) == 2
    assert drawn(seen.knows) == [each]
    (behind,) = through(seen, [each]).updates
    images, labels = victims[0].unsqueeze(1), victims[1].unsqueeze(1)
    found = flatten(problem_gradients(behind.model, behind.transformed(images), labels))
    torch.testing.assert_close(found, seen.gradients, rtol=1e-4, atol=1e-6)
    taken = through(seen, [each]).take(torch.tensor([2, 0])).updates[0]
    assert taken.forms == (each[2], each[0])


@pytest.mark.parametrize(
    "ids", [(3, 1, 7), (19, 1, 18), (10, 12, 15), (2, 21, 8), (0, 11, 40)], ids=str
)
def test_the_slope_of_the_cost_is_that_of_vmap_also_behind_a_policy(lenet, victims, ids):
    signs = [(1, -1, 1), (1, 1, 1), (-1, -1, 1), (1, -1, -1)]
    seen = through(seen_by(lenet, victims, "", "policy"), [[(ids, each) for each in signs]])
    begin = torch.rand(victims[0].shape, generator=rng(4)).flatten(1)
    attack = dataclasses.replace(ANNEALED, tv=0.0)

    def plain(z):  # the image, its twin, and the gradient of the whole by vmap
        made = twin(
            ids, objective.normalize.inverse(objective.images(z))[:, 0], torch.tensor(signs)
        )
        gradient = vmapped(seen.model, made.unsqueeze(1), victims[1].unsqueeze(1), {})
        return 1 - torch.cosine_similarity(flatten(gradient), seen.gradients)

    objective = Objective(seen, [attack] * 4)
    z = begin.clone().requires_grad_()
    torch.testing.assert_close(objective(z)[0], plain(z), rtol=1e-4, atol=1e-6)
    fast, slow = (torch.autograd.grad(cost.sum(), z)[0] for cost in (objective(z)[0], plain(z)))
    torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-3 * slow.abs().max().item())


def test_knowing_the_draw_it_recovers_the_visible_part_as_an_attack_does_without_a_policy(lenet):
    images = load("shapes", "test")[:16]
    victims = to_images(images.pixels), images.labels
    shift = "43"  # up or down by a fixed number of rows
    bare = reconstruct(observe(lenet, *victims), ANNEALED, rng=0)
    seen = seen_by(lenet, victims, shift, "draws")
    known = reconstruct(seen, ThroughPolicy(inner=ANNEALED), rng=0)
    visible = to_images(
        parse_policy(shift).apply_signs(
            torch.full_like(images.pixels, 255), seen.knows.draws[0][1][:, 0]
        )
    )
    back = to_images(
        parse_policy(shift).apply_signs(visible.mul(255).byte(), -seen.knows.draws[0][1][:, 0])
    )
    assert torch.equal(in_frame(drawn(seen.knows)[0], victims[0]), back[:, 0] > 0)

    def decibels(found):  # of the pixels that stayed in the frame
        error = ((found - victims[0]).square() * back).flatten(1).sum(1) / back.flatten(1).sum(1)
        return -10 * error.log10()

    assert decibels(known.images).mean() > decibels(bare.images).mean() - 0.5
    without = reconstruct(seen, ANNEALED, rng=0)
    assert decibels(known.images).mean() > decibels(without.images).mean() + 3


def test_not_knowing_the_draw_it_finds_the_one_of_least_cost(lenet, victims):
    inner = dataclasses.replace(ANNEALED, steps=60)
    start = torch.rand(victims[0].shape, generator=rng(3))
    known = reconstruct(
        seen_by(lenet, victims, "43", "draws"), ThroughPolicy(inner=inner), rng=0, start=start
    )
    seen = seen_by(lenet, victims, "43", "policy")
    assert not seen.knows.draws
    found = reconstruct(seen, ThroughPolicy(inner=inner), rng=0, start=start)
    assert (found.cost <= 1.1 * known.cost + 1e-3).all()
    each = [
        reconstruct(through(seen, [[form] * 4]), inner, rng=0, start=start).cost
        for form in forms("43")
    ]
    torch.testing.assert_close(found.cost, torch.stack(each).amin(0), rtol=0.2, atol=1e-3)
    assert found.images.shape == victims[0].shape
    assert found.labels.flatten().tolist() == victims[1].tolist()


def test_a_trial_leaves_the_cheapest_forms(lenet, victims):
    inner, seen = (
        dataclasses.replace(ANNEALED, steps=30),
        seen_by(lenet, victims, "3-1-7", "policy"),
    )
    start, possible = torch.rand(victims[0].shape, generator=rng(3)), forms("3-1-7")
    options = {"rng": rng(0), "start": start, "progress": False}
    few = ThroughPolicy(inner=inner, trial=10, keep=3)._likely(seen, possible, **options)
    short = dataclasses.replace(inner, steps=10)
    each = [reconstruct(through(seen, [[f] * 4]), short, rng=0, start=start).cost for f in possible]
    for i, order in enumerate(torch.stack(each, 1).argsort(1)[:, :3].tolist()):
        assert [guess[0][i] for guess in few] == [possible[v] for v in order]
    every = ThroughPolicy(inner=inner)._likely(seen, possible, **options)
    assert [guess[0][0] for guess in every] == possible


def test_the_combinations_of_least_sum_are_those_of_all():
    costs = torch.rand(3, 5, 4, generator=rng(0))
    found = least(costs, 6)
    for i in range(5):
        every = sorted(
            itertools.product(range(4), repeat=3),
            key=lambda c, i=i: sum(costs[r, i, c[r]] for r in range(3)),
        )
        assert [tuple(each) for each in found[:, :, i].tolist()] == every[:6]


def rounds_of(lenet, victims, policy, knows, count):
    threat = ThreatModel(defense=knows)
    return Observed.join(
        [observe(lenet, *victims, defense=policy, rng=r + 1, threat=threat) for r in range(count)]
    )


@pytest.mark.parametrize("knows", ["policy", "draws"])
def test_one_round_of_several_is_the_attack_on_one(lenet, victims, knows):
    attack = ThroughPolicy(inner=dataclasses.replace(ANNEALED, steps=20), trial=5)
    one = reconstruct(seen_by(lenet, victims, "3-1-7", knows), attack, rng=0)
    joined = reconstruct(rounds_of(lenet, victims, "3-1-7", knows, 1), attack, rng=0)
    torch.testing.assert_close(one.images, joined.images)
    same = rounds_of(lenet, victims, "3-1-7", "draws", 1)
    twice = dataclasses.replace(
        same, updates=same.updates * 2, knows=Knowledge("3-1-7", same.knows.draws * 2)
    )
    torch.testing.assert_close(
        reconstruct(twice, attack, rng=0).images,
        reconstruct(same, attack, rng=0).images,
        rtol=1e-3,
        atol=1e-3,
    )


@pytest.mark.parametrize("knows", ["policy", "draws"])
def test_frames_are_those_of_the_form_that_was_kept(lenet, victims, knows):
    attack = ThroughPolicy(inner=dataclasses.replace(ANNEALED, steps=20), trial=5)
    seen = seen_by(lenet, victims, "3-1-7", knows)
    begin = torch.rand(len(seen), 3, 32, 32, generator=torch.Generator().manual_seed(0))
    made = reconstruct(seen, attack, rng=0, start=begin, frames=3)
    assert made.frame_steps == (0, 10, 20)
    torch.testing.assert_close(made.frames[0], begin, rtol=0, atol=1e-5)
    torch.testing.assert_close(made.frames[-1], made.images)
    torch.testing.assert_close(made.images, reconstruct(seen, attack, rng=0, start=begin).images)
    assert not torch.equal(made.frames[1], made.images)


def test_two_rounds_show_more_than_one(lenet, victims):
    attack = ThroughPolicy(inner=dataclasses.replace(ANNEALED, steps=80), trial=10)
    seen = {count: rounds_of(lenet, victims, "43", "draws", count) for count in (1, 4)}
    assert any(
        len(set(each)) > 1 for each in zip(*drawn(seen[4].knows), strict=True)
    )  # other draws in other rounds
    found = {
        count: psnr(reconstruct(each, attack, rng=0).images, victims[0]).mean()
        for count, each in seen.items()
    }
    assert found[4] > found[1] + 1
    unknown = reconstruct(rounds_of(lenet, victims, "43", "policy", 4), attack, rng=0)
    assert psnr(unknown.images, victims[0]).mean() > found[1]


def test_a_guess_of_several_rounds_needs_a_trial(lenet, victims):
    with pytest.raises(AtsError, match=r"trial=0: .* of 2 rounds"):
        reconstruct(
            rounds_of(lenet, victims, "43", "policy", 2), ThroughPolicy(inner=ANNEALED), rng=0
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [({"trial": -1}, "trial=-1 must be at least 0"), ({"keep": 0}, "keep=0 must be at least 1")],
)
def test_a_wrong_attack_is_refused(change, message):
    with pytest.raises(AtsError, match=message):
        ThroughPolicy(inner=ANNEALED, **change)


def test_a_server_that_does_not_know_the_policy_or_sees_batches_is_refused(lenet, victims):
    with pytest.raises(AtsError, match="needs a server that knows the policy"):
        reconstruct(seen_by(lenet, victims, "3", "unknown"), ThroughPolicy(inner=ANNEALED), rng=0)
    with pytest.raises(AtsError, match=r"needs one image per gradient; ThreatModel\.batch=2"):
        reconstruct(
            seen_by(lenet, victims, "3", "policy", batch=2), ThroughPolicy(inner=ANNEALED), rng=0
        )


# --- the policy used before or after ----------------------------------------------------------------------


def test_it_starts_from_the_mean_image_after_the_policy(lenet, victims):
    inner = dataclasses.replace(ANNEALED, steps=1, lr=1e-6)
    for policy in ("3-0", "3-1-7"):  # an inverted shift leaves nothing black, the other some pixels
        made = reconstruct(
            seen_by(lenet, victims, policy, "policy"), FromMean(inner=inner, images=OWN), rng=0
        )
        mean = policy_image("shapes", policy, True).expand_as(made.images)
        torch.testing.assert_close(made.images, torch.where(made.images == 0, 0, mean))
        assert (made.images == 0).any() == (policy == "3-1-7")


@pytest.mark.parametrize(
    "policy", ["3-1-7", "43-18-18", "3-42", "7-15-3", "3-12", "26-3", "3-0", "3-17"]
)
def test_bands_are_black_in_every_image_of_their_form_and_nothing_else_is_touched(policy):
    images, count = load("shapes", "test").pixels[:20].clamp_min(1), 0
    for form in forms(policy):
        kept = _kept(bands(form), images.shape)
        assert set(kept.unique().tolist()) <= {0.0, 1.0}
        assert (_exact(images, form)[kept == 0] == 0).all()
        black = (kept == 0)[0, 0]
        assert (black == (black.all(0, keepdim=True) | black.all(1, keepdim=True))).all()
        count += int(black.sum())
    assert (count > 0) == (
        policy not in ("3-0", "3-17")
    )  # an inverted or equalized band is not black


def _kept(form, shape):
    """1 where a form leaves white images white."""
    ids, signs = form
    return twin(
        ids, torch.ones(shape), torch.tensor(signs, dtype=torch.int64).expand(shape[0], len(ids))
    )


def test_which_columns_are_black_is_told_by_cost(lenet, victims):
    attack = FromMean(inner=dataclasses.replace(ANNEALED, steps=100), trial=30, keep=1, images=OWN)
    seen = {knows: seen_by(lenet, victims, "3", knows) for knows in ("policy", "draws")}
    told = [bands(form) for form in drawn(seen["draws"].knows)[0]]
    assert len(set(told)) == 2  # left and right
    for each in seen.values():
        made = reconstruct(each, attack, rng=0).images
        columns = torch.stack([_kept(form, (1, *made.shape[1:]))[0, 0, 0] for form in told])
        assert torch.equal(made.abs().amax((1, 2)) > 0, columns > 0)
    with pytest.raises(AtsError, match="FromMean needs one round"):
        reconstruct(rounds_of(lenet, victims, "3", "policy", 2), attack, rng=0)


@pytest.fixture(scope="module")
def own():
    return transform(load("shapes", "train").pixels[:1000], rng=rng(7))


UNDO = Undone(inner=ANNEALED, images=OWN)


def test_what_was_drawn_is_read_off_an_image_by_what_is_likely(own):
    images = transform(load("shapes", "test").pixels[:24], rng=rng(8))
    parsed = parse_policy(HYBRID)
    draw = parsed.draw(24, rng=rng(9))
    ((*true,),) = drawn(Knowledge(HYBRID, (tuple(part.unsqueeze(1) for part in draw),)))
    found = UNDO.likeliest(to_images(parsed.apply_draw(images, *draw)), own, HYBRID)
    assert sum(a == b for a, b in zip(found, true, strict=True)) > 18  # of sixteen forms each
    assert all(a[0] == b[0] for a, b in zip(found, true, strict=True))


@pytest.mark.parametrize(
    ("form", "more"), [(((0,), (1,)), 20), (((18,), (-1,)), 5), (((43,), (1,)), 10)], ids=str
)
def test_a_policy_is_undone_by_gradient_steps(own, form, more):
    images = load("shapes", "test").pixels[:8]
    made = to_images(_exact(images, form))
    found = dataclasses.replace(UNDO, noise=0.1).undo(made, [form] * 8, to_images(own))
    assert psnr(found, to_images(images)).mean() > psnr(made, to_images(images)).mean() + more


def test_the_undone_image_is_that_of_the_standard_attack(lenet, victims):
    attack = dataclasses.replace(UNDO, inner=dataclasses.replace(ANNEALED, steps=60))
    seen = seen_by(lenet, victims, "0", "draws")
    bare = reconstruct(seen, attack.inner, rng=0)
    undone = reconstruct(seen, attack, rng=0)
    torch.testing.assert_close(undone.cost, bare.cost)
    assert psnr(undone.images, 1 - bare.images.clamp(0, 1)).mean() > 15
    assert psnr(undone.images, victims[0]).mean() > psnr(bare.images, victims[0]).mean() + 3


@pytest.mark.parametrize(
    "attack", [FromMean(inner=ANNEALED, images=OWN), UNDO], ids=["from mean", "undone"]
)
def test_who_does_not_know_the_policy_can_use_it_neither_before_nor_after(lenet, victims, attack):
    with pytest.raises(
        AtsError, match=f"{type(attack).__name__} needs a server that knows the policy"
    ):
        reconstruct(seen_by(lenet, victims, "3", "unknown"), attack, rng=0)


def test_undoing_needs_one_round_and_sensible_numbers(lenet, victims):
    with pytest.raises(
        AtsError, match="Undone needs one round, in which the policy drew once; there are 2"
    ):
        reconstruct(rounds_of(lenet, victims, "3", "policy", 2), UNDO, rng=0)
    with pytest.raises(AtsError, match=r"Undone\.noise=0\.0 must be above 0"):
        dataclasses.replace(UNDO, noise=0.0)


def test_one_call_attacks_with_more_and_more_knowledge(lenet, victims):
    short = dataclasses.replace(ANNEALED, steps=40)
    seen = seen_by(lenet, victims, "0-43", "draws")
    made = by_knowledge(seen, short, rng=0)
    assert list(made) == ["does not know the policy", "knows the policy", "knows its draws"]
    for name, attack in zip(
        made, (short, *[ThroughPolicy(inner=short, trial=30)] * 2), strict=True
    ):
        view = seen_by(lenet, victims, "0-43", "policy" if name == "knows the policy" else "draws")
        torch.testing.assert_close(
            reconstruct(view, attack, rng=0).cost, made[name].cost, rtol=1e-3, atol=1e-5
        )
    with pytest.raises(AtsError, match="needs a server that knows the policy"):
        by_knowledge(seen_by(lenet, victims, "3", "unknown"), short, rng=0)
    with pytest.raises(AtsError, match=r"by_knowledge: attack .* must be a GradientMatching"):
        by_knowledge(seen, UNDO, rng=0)


# --- the page -----------------------------------------------------------------------------------------------


def notebook(words, **parameters):
    """Execute the notebook's code cells up to the one with these words; what they define."""
    space = {"__builtins__": builtins, "display": lambda *shown: None}
    for each in cells("ext5_adaptive"):
        if each.cell_type == "code":
            exec(each.source, space)
            if "parameters" in each.metadata.get("tags", ()):
                space |= parameters
            if words in each.source:
                return space
    raise AssertionError(f"no cell has {words}")


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """What the notebook asks for at laptop, by table and key; nothing is computed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATS_STORE", str(tmp_path_factory.mktemp("asked")))
        space = notebook("untouched_runs[", profile="laptop", dataset="shapes", images=40)
    tables = ("runs", "others", "withstand", "untouched_runs")
    found = {name: {key: run.request for key, run in space[name].items()} for name in tables}
    drawn = found["runs"]
    found["first"] = {key[:2]: request for key, request in drawn.items() if key[2] == 0}
    found["again"] = {key[:2]: request for key, request in drawn.items() if key[2] == 1}
    return found


KNOWN = (*SEARCHED, HYBRID, FOUND)
ROUNDS = (2, 4, 8)


def test_all_attackers_meet_the_same_images_crops_and_starts(asked):
    requests = asked["first"]
    every = {"none", *POLICIES[1:], FOUND}
    without = {PUBLISHED: set(), STRONGEST: set()}
    assert {policy for attacker, policy in requests if attacker == LEARNED} == {
        "none",
        *SEARCHED,
        HYBRID,
        FOUND,
    }
    assert {policy for attacker, policy in requests if attacker == PATIENT} == {*SEARCHED, HYBRID}
    for name in (name for name in SINGLE if name not in (LEARNED, PATIENT)):
        assert {policy for attacker, policy in requests if attacker == name} == every - without.get(
            name, {"none"}
        )
    watched = set()
    for policy in KNOWN:
        own = {watching(POLICY, n) for n in ROUNDS} | {watching(DRAWS, n) for n in ROUNDS[1:]}
        assert {name for name, other in requests if other == policy and "rounds" in name} == own
        watched |= own
    assert {name for name, _ in requests} == {*SINGLE, LABEL, *watched}
    for (attacker, policy), request in requests.items():
        bare, several = requests[STRONGEST, policy], attacker in watched
        matching = (
            request.attack if isinstance(request.attack, GradientMatching) else request.attack.inner
        )
        assert (matching == bare.attack) == (attacker != PUBLISHED)
        same = {
            name: getattr(bare, name) for name in ("attack", "threat", "frames", "last", "rounds")
        }
        assert dataclasses.replace(request, **same) == bare
        assert (request.last, request.rounds) == (40, int(attacker.split()[-2]) if several else 1)
        knows = (
            "draws"
            if DRAWS in attacker
            else "unknown"
            if attacker in (PUBLISHED, STRONGEST)
            else "policy"
        )
        assert request.threat.defense == (
            knows if policy != "none" or attacker == LEARNED else "unknown"
        )
        assert request.threat.labels == ("inferred" if attacker == LABEL else "known")


def test_the_policies_of_least_gain_are_attacked_on_other_images_than_chose_them(asked):
    requests = asked["withstand"]
    least = {policy for _, policy in requests}
    assert len({tuple(sorted(policy.split("-"))) for policy in least}) == len(least) == 9
    # extension 10 looks at images from 100 on
    assert max(request.last for request in requests.values()) <= 100
    for (attacker, _), request in requests.items():
        same = {name: getattr(request, name) for name in ("policy", "last", "frames")}
        assert dataclasses.replace(asked["first"][attacker, HYBRID], **same) == request


def test_all_is_drawn_anew_for_the_same_images_and_network(asked):
    first, again = asked["first"], asked["again"]
    assert set(again) == {(attacker, policy) for attacker, policy in first if attacker != PATIENT}
    assert all(
        dataclasses.replace(request, seed=first[key].seed) == first[key]
        for key, request in again.items()
    )
    assert {request.seed for request in again.values()} == {1}


def test_without_crop_and_flip_all_else_is_the_same(asked):
    every = {("lenet, untrained", *key): request for key, request in asked["runs"].items()}
    every |= {(*key, 0): request for key, request in asked["others"].items()}
    assert len(asked["untouched_runs"]) == 3 * (2 + 2)
    for (place, attacker, draw), request in asked["untouched_runs"].items():
        cropped = every[place, attacker, "none", draw]
        assert dataclasses.replace(request, crop_flip=True) == cropped


@pytest.fixture(scope="module")
def toy(kept):
    """What the notebook computes of two images."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATS_STORE", str(kept.root))
        return notebook("withstanding(least_attacks)", profile="smoke")


def test_a_request_of_several_rounds_draws_anew_for_the_same_images(toy, kept):
    request = toy["runs"][watching(DRAWS, 2), HYBRID, 0].request
    model = trained(request.model, kept, torch.device("cpu"))[0]
    clients = request.clients()
    seen = observed(request, model, clients, torch.device("cpu"))
    assert len(seen.updates) == len(seen.knows.draws) == 2
    assert not torch.equal(seen.knows.draws[0][1], seen.knows.draws[1][1])
    for update, (member, signs) in zip(seen.updates, seen.knows.draws, strict=True):
        made = parse_policy(HYBRID).apply_draw(clients.cropped, member[:, 0], signs[:, 0])
        alone = observe(model, to_images(made), clients.labels)
        torch.testing.assert_close(alone.gradients, update.gradients)
    torch.testing.assert_close(
        seen.updates[0].gradients,
        observe(model, to_images(clients.used()), clients.labels).gradients,
    )


def rows(gains, *, bare=5.0, images=40, place="lenet, untrained", spread=0.5):
    """Attacks with these mean gains before the policy, and what the strongest gains without a
    policy.
    """
    noise = spread * np.resize([-1.0, 1.0, 0.4, -0.4], images)
    parts = [
        pd.DataFrame(
            {
                "attacker": STRONGEST,
                "policy": "none",
                "image": range(images),
                "gain_before": bare + noise,
            }
        )
    ]
    for policy, gain in gains.items():
        parts.append(
            pd.DataFrame(
                {
                    "attacker": POLICY,
                    "policy": policy,
                    "image": range(images),
                    "gain_before": gain + noise,
                }
            )
        )
    table = pd.concat([each.assign(draw=draw) for draw in (0, 1) for each in parts])
    table = table.assign(floor_policy=9.0, place=place)
    return table.assign(psnr=9 + table["gain_before"], gain=table["gain_before"])


@pytest.fixture(scope="module")
def rule():
    """What the notebook's rule defines."""
    known = {"paired": paired, "holm": holm, "student_interval": student_interval}
    names = {"POLICY": POLICY, "STRONGEST": STRONGEST}
    space = functions("ext5_adaptive", "def judge(", guards=guards, **known, **names)

    def status(table):
        judged = space["judge"](table, (*SEARCHED, HYBRID))
        return space["claim"](judged, space["cannot_tell"](table))[0]

    return space | {"status": status}


@pytest.mark.parametrize(
    ("gains", "options", "status"),
    [
        ((2.0, 3.0, 1.0), {}, "not reproduced"),
        ((2.0, 0.0, 1.0), {}, "partly"),
        ((-2.0, 0.0, -1.0), {}, "reproduced"),
        ((2.0, 3.0, 1.0), {"bare": 0.0}, "cannot tell"),
        ((2.0, 3.0, 1.0), {"images": 29}, "cannot tell"),
    ],
)
def test_the_rule(rule, gains, options, status):
    table = rows(dict(zip((*SEARCHED, HYBRID), gains, strict=True)), **options)
    assert rule["status"](table) == status


@pytest.mark.parametrize(
    ("gains", "options", "status"),
    [
        ((2.0, 3.0, 1.0), {}, "not reproduced"),
        ((-2.0, 0.0, -1.0), {}, "partly"),
        ((-2.0, 0.0, -1.0), {"bare": 0.0}, "not reproduced"),  # what cannot tell does not count
        ((0.1, 0.1, 0.1), {"spread": 9.0}, "cannot tell"),  # imprecision is no protection
        ((2.0, 0.1, 0.1), {"spread": 3.0}, "not reproduced"),
    ],
)
def test_the_rule_asks_every_network(rule, gains, options, status):
    policies = (*SEARCHED, HYBRID)
    first = rows(dict(zip(policies, (2.0, 3.0, 1.0), strict=True)))
    second = rows(
        dict(zip(policies, gains, strict=True)),
        **{"bare": 20.0, **options},
        place="convnet-16, untrained",
    )
    both = pd.concat([first, second])
    assert rule["status"](both) == status
    assert bool(rule["cannot_tell"](both)) == (options.get("bare") == 0.0)


def table_of(words, rule, **known):
    """What a cell with a table defines, beside the rule and the cell of verdicts."""
    verdicts = cell("ext5_adaptive", "def in_a_word(")
    space = {
        "pd": pd,
        "compare": compare,
        "STRONGEST": STRONGEST,
        "UNDONE": UNDONE,
        **rule,
        **known,
    }
    exec(verdicts[: verdicts.index("verdicts = {}")], space)
    source = cell("ext5_adaptive", words)
    exec(source[: source.rindex("\n\n\n")], space)
    return space


def test_a_policy_withstands_only_if_that_was_measured(rule):
    parts = [rows({"3-3-3": -2.0, "3-1-7": 2.0, "9-9-9": 0.3}), rows({"0": 0.1}, spread=9.0)]
    table = pd.concat([part[part["attacker"] == POLICY] for part in parts]).assign(
        rank_original=2, rank_knowing=1
    )
    table = pd.concat([table, table.assign(attacker=DRAWS, rank_original=1)])
    words = table_of("def withstanding(", rule)["withstanding"](table)
    assert list(words["the rule says"]) == ["withstands", "broken", "broken", "cannot tell"]
    assert set(words[f"{DRAWS}: photograph found"]) == {"100%"}


def test_a_network_that_tells_nothing_is_said_to(rule):
    gains = {"3-1-7": 2.0, HYBRID: -2.0}
    tables = [rows(gains), rows(gains, bare=0.0, place="resnet20-1, semi-trained")]
    both = pd.concat([table.assign(attacker=name) if name else table
                      for table in tables for name in (None, UNDONE)])  # fmt: skip
    judged = rule["judge"](both, (*SEARCHED, HYBRID))
    space = {"pd": pd, "compare": compare, "STRONGEST": STRONGEST, "UNDONE": UNDONE}
    space |= {"everywhere": both, "judged": judged, "silent": rule["cannot_tell"](both)}
    exec(cell("ext5_adaptive", "def in_a_word("), space)
    shown = [line["the rule says"] for line in space["verdicts"].values()]
    assert shown == ["broken", "withstands", "cannot tell", "cannot tell"]


def test_other_networks_are_attacked_as_the_first(asked):
    requests = asked["others"]
    assert {place for place, _, _ in requests} == {
        "convnet-16, untrained",
        "resnet20-1, semi-trained",
    }
    one_round = {PUBLISHED, STRONGEST, MEAN, UNDONE, POLICY, DRAWS}
    several = {watching(POLICY, n): n for n in (2, 4, 8)} | {watching(DRAWS, n): n for n in (4, 8)}
    blindly = {PUBLISHED, STRONGEST}
    for (place, attacker, policy), request in requests.items():
        bare = requests[place, STRONGEST, policy]
        assert (request.policy or "none") == policy
        knows = "draws" if DRAWS in attacker else "policy"
        blind = attacker in blindly or (policy == "none" and attacker != LEARNED)
        assert (request.threat.defense, request.rounds) == (
            "unknown" if blind else knows,
            several.get(attacker, 1),
        )
        same = {name: getattr(bare, name) for name in ("attack", "threat", "frames", "rounds")}
        assert dataclasses.replace(request, **same) == bare
        asked = {a for p, a, other in requests if (p, other) == (place, policy)}
        patient = (
            {PATIENT} if place.startswith("convnet") and policy in (*SEARCHED, HYBRID) else set()
        )
        assert asked == (blindly if policy == "none" else one_round | several.keys() | patient) | {
            LABEL,
            LEARNED,
        }


def test_a_toy_run_is_the_same_from_the_archive(toy, kept, tmp_path, monkeypatch):
    table = toy["attacks"]
    assert set(table["attacker"]) == {*SINGLE, LABEL, watching(POLICY, 2), watching(DRAWS, 2)}
    assert toy["status"] == "cannot tell"
    bare = table[table["policy"] == "none"]
    np.testing.assert_allclose(bare["gain_before"], bare["gain"], rtol=1e-4)
    for name in (UNDONE, POLICY, PATIENT, LEARNED):
        assert table[table["attacker"] == name]["rank_knowing"].isna().all()
    assert table[table["attacker"] == MEAN]["rank_knowing"].notna().all()
    assert table[table["policy"] != "none"]["ceiling"].notna().all()
    others = toy["other_attacks"]
    assert set(others["attacker"]) == set(table["attacker"])
    assert set(others["place"]) == {"convnet-4, untrained"}
    np.testing.assert_allclose(
        others[others["policy"] == "none"]["gain_before"],
        others[others["policy"] == "none"]["gain"],
        rtol=1e-4,
    )
    places = [f"{name}, untrained" for name in ("lenet", "convnet-4")]
    assert list(toy["verdicts"]) == [(place, HYBRID) for place in places]
    view = toy["in_view"](toy["visible"])
    assert list(view.index) == [(place, policy) for place in places for policy in ("none", HYBRID)]
    assert (view.loc[(slice(None), "none"), "in the frame"] == "100%").all()
    whole = toy["visible"].query("attacker == @DRAWS")["whole"].iloc[:2]  # as pictures are kept
    exact = table[(table["attacker"] == DRAWS) & (table["draw"] == 0)]["psnr_before"]
    np.testing.assert_allclose(whole, exact, atol=0.02)
    alone = toy["crop_and_flip"](toy["untouched"], toy["everywhere"])
    assert set(alone.index.get_level_values("attacker")) == {PUBLISHED, STRONGEST, LABEL}
    untouched = toy["untouched"].query("attacker == @STRONGEST")
    np.testing.assert_allclose(
        untouched["psnr"], untouched["psnr_original"]
    )  # the photograph is what was used
    assert len(toy["summary"](table)) == 15
    assert set(toy["by_knowledge"](table)["attacker"]) == {*SINGLE}
    for attacks in (table, others):
        rounds = toy["by_rounds"](attacks)
        assert list(rounds["rounds"]) == ["1", "2", "1, told", "2, told"]
        assert set(rounds["policy"]) == {HYBRID}
    archive, again = Archive(tmp_path / "requests"), Store(tmp_path / "again")
    archive.write(kept, embedded=True)
    archive.restore(again)
    kinds = {
        request_of(line).kind
        for line in archive.entries().values()
        if line["kind"].startswith("attack-")
    }
    assert kinds == {"attack-ThroughPolicy", "attack-FromMean", "attack-Undone", "attack-Learned"}
    monkeypatch.setenv("ATS_STORE", str(again.root))
    monkeypatch.setenv("ATS_DRY_RUN", "1")  # nothing may be computed
    read = notebook("everywhere = pd.concat(", profile="smoke")
    for name in ("attacks", "other_attacks", "least_attacks", "untouched"):
        assert read[name].equals(toy[name]), name
    assert toy["runs"][DRAWS, HYBRID, 0].title.endswith("through the policy")
