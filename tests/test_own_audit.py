"""`atsaudit.audit`: one's own network, photographs and updates."""

import dataclasses
import functools
import json
import math
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from browser import Browser, needs_chromium
from checks import flip_a_bit, refused
from federations import Nodes, sent_by
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

import atsaudit
import atslib
from atsaudit import named_photographs, outcome, update_files, work
from atsaudit.__main__ import main
from atsaudit.candidate_attacks import FirstLayer, candidates
from atsaudit.config import AuditConfig, cases_of
from atsaudit.named_photographs import named_wrongly
from atsaudit.numbers import ABOVE, CANNOT_TELL, NO_LIMIT, WITHIN
from atsaudit.outcome import Pool, bits
from atsaudit.page import page as html_page
from atslib.attacks import GradientMatching
from atslib.clients.records import client_mode, mode_contradiction, network_of, observed
from atslib.clients.updates import LocalTraining, observe_weights
from atslib.data.images import Images, scaled
from atslib.gradients.problems import flatten, problem_gradients
from atslib.gradients.routes import Route
from atslib.measures.intervals import lower_bound, needed, upper_bound
from atslib.models import with_loss

pytestmark = pytest.mark.slow

SIDE, CLASSES = 12, 3
LR = 0.01  # of recorded training
QUICK = {"attacked": 8, "steps": 4}  # far within the budget


@functools.cache
def photographs(each: int = 24) -> Images:
    """So many drawn images of each class, small."""
    images = atslib.load("shapes", "test")
    rows = torch.cat(
        [(images.labels == label).nonzero().flatten()[:each] for label in range(CLASSES)]
    )
    small = scaled(images[rows], SIDE, "photographs")
    return Images(small.pixels, small.labels, ("cat", "dog", "bird"), "photographs", "all")


def linear(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        layers = nn.Flatten(), nn.Linear(3 * SIDE * SIDE, CLASSES)
    return nn.Sequential(atslib.Normalize([0.5] * 3, [0.25] * 3), *layers).eval()


def small(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        layers = (
            nn.Conv2d(3, 6, 3),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(6 * (SIDE - 2) ** 2, CLASSES),
        )
    return nn.Sequential(atslib.Normalize([0.5] * 3, [0.25] * 3), *layers).eval()


class Silent(nn.Module):
    """Its scores do not depend on its weights, so that its gradient is 0."""

    def __init__(self):
        super().__init__()
        self.normalize = atslib.Normalize([0.5] * 3, [0.25] * 3)
        self.layer = nn.Linear(3 * SIDE * SIDE, CLASSES)

    def forward(self, images):
        return 0 * self.layer(self.normalize(images).flatten(1))


def report_of(model=None, **settings):
    model = model or linear()
    return atsaudit.audit(
        model, photographs(), untrained=model, **(QUICK | {"batch": 1} | settings)
    )


def test_the_name_is_the_function_whatever_is_imported_first_and_needs_no_plots():
    code = (
        "import atsaudit.config, atsaudit.page, atslib; from atsaudit.report import AuditReport; "
        "import atsaudit.run_audit, atsaudit.sources; "
        "from atsaudit import audit; assert callable(atsaudit.audit) and atsaudit.audit is audit; "
        "assert not {'pandas', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", f"import sys; {code}"], check=True)


def test_the_name_in_the_library_goes_on_working_and_says_where_it_went():
    from atslib.audit import audit

    settings = QUICK | {"batch": 1}
    model = linear()
    for old in (atslib.audit, audit):
        with pytest.warns(FutureWarning, match="atslib.audit is atsaudit.audit now"):
            report = old(model, photographs(), untrained=model, **settings)
    assert report.as_json() == report_of(model).as_json()
    with (
        pytest.warns(FutureWarning, match="atsaudit.audit"),
        pytest.raises(atslib.AtsError, match="there is no setting 'btach'"),
    ):
        atslib.audit(model, photographs(), untrained=model, btach=1)


def test_of_a_linear_network_every_photograph_is_found():
    report = report_of(limit=0.05)
    assert report.found == 1
    assert report.worst.attack == "first-layer"
    assert report.verdict == ABOVE
    assert report.exit_code == 3
    assert report.worst.gain > 40  # exact but for rounding
    assert "8 of 8 photographs are recognized (100% [63, 100]" in report.sentence


def test_a_network_without_a_gradient_gives_nothing_away_and_proves_nothing():
    report = report_of(Silent(), limit=0.5)
    assert report.found == 0
    assert report.verdict == CANNOT_TELL
    assert report.exit_code == 4
    assert report.worst.silent == 1
    assert "zero in every entry" in report.silence
    assert "does not work on the positive control" in report.doubts[0]


def test_noise_that_drowns_everything_is_within_the_limit_if_the_attack_works_without_it():
    report = report_of(defense="gaussian:1000", limit=0.3, attacked=40)
    control, defended = report.rows
    assert control.share == 1
    assert control.works
    assert defended.counts
    assert not control.counts
    assert upper_bound(defended.found, 40) <= 0.3
    assert report.verdict == WITHIN
    assert report.exit_code == 0


def test_few_images_do_not_rule_out_a_small_share():
    report = report_of(defense="gaussian:1000", limit=0.06, attacked=8, seed=2)
    assert report.found == 0
    assert report.verdict == CANNOT_TELL
    assert any(f"at least {needed(0.06)} images" in doubt for doubt in report.doubts)


def with_found(report, count):
    """The same report, had the attack found so many photographs of the case that counts."""
    first = report.results[0]
    found = torch.arange(len(first.outcome.found)) < count
    outcome = dataclasses.replace(first.outcome, found=found)
    control = dataclasses.replace(first.case, counts=False)
    counted = dataclasses.replace(first.case, weights="given", control=False, counts=True)
    results = (
        dataclasses.replace(first, case=control),
        dataclasses.replace(first, case=counted, outcome=outcome),
    )
    return dataclasses.replace(report, results=results)


def test_a_limit_is_broken_or_kept_only_beyond_doubt():
    report = report_of(limit=0.2, attacked=40)
    assert report.found == 1
    codes = [with_found(report, count).exit_code for count in range(41)]
    within = [count for count in range(41) if upper_bound(count, 40) <= 0.2]
    above = [count for count in range(41) if lower_bound(count, 40) > 0.2]
    assert within == list(range(len(within)))
    assert within[-1] < 8 < above[0]
    assert codes == [0 if n in within else 3 if n in above else 4 for n in range(41)]
    few = with_found(report, above[0] - 1)
    assert "is more than 20.0%, but of so few photographs that this may be chance" in few.doubts[0]
    page = html_page(few)
    assert "Cannot tell." in page
    assert "a share above the limit is ruled out at 95 %" in page


def test_a_control_unlike_any_trained_network_does_not_show_that_little_leaks():
    report = with_found(report_of(limit=0.2, attacked=40), 0)
    assert report.verdict == WITHIN
    faint = dataclasses.replace(report, faint=True)
    assert faint.verdict == CANNOT_TELL
    assert "0 of 40 found says little" in faint.doubts[0]
    found = dataclasses.replace(with_found(report, 40), faint=True)
    assert found.verdict == ABOVE
    assert not found.doubts


def control_of(report, found, images):
    """The report, had so many of so many photographs been found in its control alone."""
    first = report.results[0]
    told = {
        field.name: getattr(first.outcome, field.name)[:images]
        for field in dataclasses.fields(first.outcome)
    }
    told |= {"found": torch.arange(images) < found, "chance": torch.full((images,), 0.05)}
    results = (dataclasses.replace(first, outcome=outcome.Outcome(**told)),)
    return dataclasses.replace(report, results=results)


def test_a_control_of_too_few_photographs_has_not_failed():
    report = report_of()
    for found, images, few in (
        (1, 1, True),  # from 2.5 % on
        (0, 1, True),
        (1, 3, True),
        (1, 8, True),
        (0, 8, False),
        (0, 2, False),  # two of two would be beyond doubt
    ):
        made = control_of(report, found, images)
        assert not made.control.works
        assert made.verdict == CANNOT_TELL
        words = "Too few photographs" if few else "The attack does not work"
        assert made.doubts[0].startswith(words), (found, images)
        assert f"{found} of {images} found" in made.doubts[0]
    assert control_of(report, 2, 2).control.works
    assert not control_of(report, 2, 2).doubts


def test_without_a_limit_the_status_is_0():
    report = report_of()
    assert (report.verdict, report.exit_code) == (NO_LIMIT, 0)


def test_a_policy_is_attacked_by_servers_that_know_more_and_more_of_it():
    report = report_of(small(), policy="3-1-7", steps=6)
    told = [each.case.knows for each in report.results if each.case.defense]
    assert told == ["nothing", "policy", "draws"]
    assert all(
        row.counts == bool(each.case.defense)
        for row, each in zip(report.rows, report.results, strict=True)
    )
    assert "policy and draws known" in report.rows[-1].title


def test_batches_updates_sums_rounds_and_restored_labels():
    local = LocalTraining(epochs=2, lr=0.05)
    report = report_of(small(), batch=2, local=local, labels="restored", clients=2, rounds=2)
    assert len(report.results) == 2
    shared = report.results[1]
    assert shared.case.images == 4
    assert len(shared.outcome.found) == 8
    assert (
        "2 rounds, in each the sum over 2 clients, each an update trained on 2 images"
        in shared.case.title
    )
    assert any("unrolled" in name for name in shared.tried)
    assert 0 <= shared.labels_told <= 1


def test_adam_moves_the_weights_as_torch_does():
    images, model = photographs(), small()
    first = torch.tensor([0, 30])
    config = AuditConfig(batch=2, local=LocalTraining(epochs=3, lr=0.01), optimizer="adam")
    case = cases_of(config, given=False)[-1]
    pixels, labels = images.pixels[first], images.labels[first]
    view = work.see([model], pixels, labels, case, config, atslib.rng(0)).view
    trained = small()
    before = torch.cat([p.detach().flatten() for p in trained.parameters()])
    optimizer = torch.optim.Adam(trained.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained(pixels / 255), labels).backward()
        optimizer.step()
    after = torch.cat([p.detach().flatten() for p in trained.parameters()])
    torch.testing.assert_close(view.gradients[0], after - before, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_dropout_is_drawn_in_train_mode_alone(optimizer):
    images, (normalize, *rest) = photographs(), linear().children()
    model = nn.Sequential(normalize, nn.Dropout(0.5), *rest)
    two = images.pixels[:2], images.labels[:2]
    for victim in ("eval", "train"):
        config = AuditConfig(
            batch=2, local=LocalTraining(lr=0.01), optimizer=optimizer, victim=victim
        )
        case = cases_of(config, given=False)[-1]
        one, other = (
            work.see([model], *two, case, config, atslib.rng(seed)).view.gradients
            for seed in (0, 1)
        )
        assert ((one - other).abs().max() < 1e-3 * one.abs().max()) == (victim == "eval")


def test_one_logit_is_two_classes():
    images = photographs()
    two = images[images.labels < 2]
    model = nn.Sequential(
        atslib.Normalize([0.5] * 3, [0.25] * 3), nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 1)
    )
    report = atsaudit.audit(model, two, untrained=model, batch=1, **QUICK)
    assert report.found == 1


def test_pixels_between_0_and_1_and_numpy_arrays_are_taken():
    images = photographs()
    model = linear()
    bare = nn.Sequential(*list(model.children())[1:])
    arrays = (images.pixels / 255).numpy(), images.labels.numpy()
    report = atsaudit.audit(
        bare, *arrays, untrained=bare, normalize=([0] * 3, [1] * 3), batch=1, **QUICK
    )
    assert report.found == 1


def test_a_network_of_given_weights_is_beside_an_untrained_one():
    report = atsaudit.audit(linear(1), photographs(), batch=1, pretrained=False, **QUICK)
    assert [each.case.weights for each in report.results] == ["untrained", "given"]
    assert all(row.counts for row in report.rows)
    report = atsaudit.audit(linear(1), photographs(), batch=1, pretrained=True, **QUICK)
    assert [row.counts for row in report.rows] == [False, True]


def test_bits_of_a_server_that_is_certain_and_of_one_that_knows_nothing():
    place, problems = torch.arange(40) % 4, torch.arange(40)
    certain = nn.functional.one_hot(place, 4).double()[..., None]
    assert (bits(certain, place, problems) > 1.7).all()
    assert bits(torch.zeros(40, 4, 1), place, problems).tolist() == pytest.approx([0.0] * 40)
    assert bits(certain[:2], place[:2], torch.zeros(2)).isnan().all()  # there is no other gradient


def test_candidates_are_of_the_own_class_where_it_has_enough_images():
    images = photographs()
    rows = torch.tensor([0, 40])
    pool = Pool.of(images.pixels, images.labels, rows)
    assert pool.own_class
    candidates, place = pool.candidates(rows)
    assert (images.labels[candidates] == images.labels[rows][:, None]).all()
    assert candidates.gather(1, place[:, None]).flatten().tolist() == [0, 40]
    assert pool.chance(rows).tolist() == pytest.approx([1 / 24] * 2)
    some = images[::2]
    pool = Pool.of(some.pixels, some.labels, rows[:1])
    assert not pool.own_class
    candidates, place = pool.candidates(rows[:1])
    assert sorted(candidates[0].tolist()) == list(range(len(some)))
    assert int(candidates[0, place]) == 0
    assert float(pool.chance(rows[:1])) == pytest.approx(1 / 12)  # the label alone


def test_a_resumed_audit_is_the_uninterrupted_one(tmp_path, monkeypatch):
    settings = {"batch": (1, 2), "policy": "3-1-7"}
    whole = report_of(small(), folder=tmp_path / "whole", **settings)
    judged = []

    def interrupted(*args, **options):
        judged.append(1)
        if len(judged) == 7:
            raise KeyboardInterrupt
        return outcome.judge(*args, **options)

    monkeypatch.setattr(work, "judge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        report_of(small(), folder=tmp_path / "killed", **settings)
    monkeypatch.undo()
    kept = len(list((tmp_path / "killed").glob("*.json")))
    assert kept >= 2  # the plan, and what was tuned
    resumed = report_of(small(), folder=tmp_path / "killed", **settings)
    assert resumed.as_json() == whole.as_json()
    monkeypatch.setattr(work, "judge", None)  # nothing is computed once more
    again = report_of(small(), folder=tmp_path / "killed", **settings)
    assert again.as_json() == whole.as_json()


def test_a_plan_fits_the_budget_where_it_can():
    config = AuditConfig(batch=1, budget=60.0)
    made = work.Work({"untrained": small()}, *_data(), config, cases_of(config, given=False))
    quick, slow, slowest = (
        {str(case.group): seconds for case in made.cases} for seconds in (1e-4, 0.14, 3.0)
    )
    assert made._fitting(quick).steps == 300
    plan = made._fitting(slow)
    assert (plan.images, plan.steps, plan.tuned_on, plan.compared) == work.SIZES[-1]
    assert made._fitting(slowest).steps == 2  # the first two images in a fifth of the minute


@pytest.mark.parametrize(
    ("model", "attack", "tried"), [(small, "annealed-convnet", 0), (linear, "first-layer", 1)]
)
def test_a_slow_network_is_attacked_and_nothing_compared(
    tmp_path, monkeypatch, model, attack, tried
):
    monkeypatch.setattr(work, "SIZES", ((8, 4, 8, 1),))
    report = report_of(model(), attacked=None)
    assert report.worst.attack == attack
    assert len(report.worst_case.tried) == tried  # what is in closed form costs nothing
    page = report.save(tmp_path).read_text(encoding="utf-8")
    assert ("There was no time to compare attacks" in page) == (tried == 0)


class Priced:
    """A clock that an attack moves on by what it would take on a slower machine, or one that is
    slower for a while. The attack itself is the real one.
    """

    def __init__(self, monkeypatch, price, busy=(0.0, 1), until=math.inf):
        self.now = 0.0
        self.price = price  # seconds for an image and step
        self.busy = busy  # from when on it takes so many times longer
        self.until = until  # when it is as fast again
        monkeypatch.setattr(work, "reconstruct", self.reconstruct)

    def __call__(self):
        return self.now

    def reconstruct(self, seen, attack, **options):
        inner = attack if isinstance(attack, GradientMatching) else attack.inner
        images = len(seen) * seen.threat.batch
        since, times = self.busy
        is_busy = since <= self.now < self.until
        self.now += self.price * images * inner.steps * (times if is_busy else 1)
        return atslib.reconstruct(seen, attack, **options)


BUDGET = 60.0


def priced_work(clock, folder=None, **settings):
    config = AuditConfig(**({"batch": (1, 4), "budget": BUDGET} | settings))
    cases = cases_of(config, given=False)
    return work.Work({"untrained": small()}, *_data(), config, cases, folder=folder, clock=clock)


@pytest.mark.parametrize("busy", [(0.0, 1), (20.0, 4), (40.0, 3)], ids=["quiet", "busy", "late"])
@pytest.mark.parametrize("price", [0.01, 0.03, 0.1, 0.4, 2.0])
def test_a_report_comes_within_the_budget_however_slow_the_network_is(monkeypatch, price, busy):
    clock = Priced(monkeypatch, price, busy)
    made = priced_work(clock)
    _, _, results, left = made.run()
    assert clock.now <= 1.1 * BUDGET
    assert results[0].case.control
    assert len(results[0].outcome.found) >= 2
    assert len(results) + len(left) == len(made.cases)


@pytest.mark.parametrize("before", [20.0, 40.0])
@pytest.mark.parametrize("price", [0.1, 0.4])
def test_what_comes_before_the_plan_is_taken_from_the_budget(monkeypatch, before, price):
    clock = Priced(monkeypatch, price)
    made = priced_work(clock)
    made.began = clock.now - before  # the call came so long ago
    _, _, results, _ = made.run()
    assert clock.now + before <= 1.1 * BUDGET
    assert results[0].case.control


def test_a_long_search_for_the_route_is_taken_from_the_budget(monkeypatch):
    clock = Priced(monkeypatch, 0.02)
    made = priced_work(clock)
    measured = made._measured

    def searched(case):
        clock.now += 15.0  # once for each of two cases, and again
        return measured(case)

    made._measured = searched
    monkeypatch.setattr(made, "_measure_again", lambda case, per_step: False)
    plan, *_ = made.run()
    assert plan.seconds <= 0.4 * BUDGET
    assert clock.now <= 1.1 * BUDGET


def test_the_time_is_used(monkeypatch):
    clock = Priced(monkeypatch, 0.03)
    *_, left = priced_work(clock).run()
    assert clock.now > 0.5 * BUDGET
    assert not left


def test_a_first_look_ends_an_audit_whose_limit_is_exceeded_beyond_doubt(tmp_path, monkeypatch):
    clock = Priced(monkeypatch, 0.01)
    made = priced_work(clock, tmp_path, batch=1, limit=0.05)
    plan, _, (first,), left = made.run()
    assert plan.first_look
    assert not left
    assert len(first.outcome.found) == plan.images == work.LOOK[0]
    found = first.outcome.found
    assert lower_bound(int(found.sum()), len(found), level=work.SURE) > 0.05
    assert not (tmp_path / "plan.json").exists()
    took = clock.now
    thorough = priced_work(clock, batch=1, limit=0.05, thorough=True)
    plan, _, (other,), _ = thorough.run()
    more = other.outcome
    assert not plan.first_look
    assert len(more.found) > work.LOOK[0]
    assert lower_bound(int(more.found.sum()), len(more.found)) > 0.05
    assert took < clock.now - took
    again = priced_work(clock, tmp_path, batch=1, limit=0.05)
    monkeypatch.setattr(work, "judge", None)  # nothing is computed once more
    assert torch.equal(again.run()[2][0].outcome.found, first.outcome.found)


@pytest.mark.parametrize(
    ("price", "settings"),
    [
        (0.01, {"limit": 0.95}),  # which sixteen of sixteen do not exceed
        (0.01, {}),  # no limit
        (0.1, {"limit": 0.05}),  # a look would take the time of the photographs that are needed
    ],
)
def test_where_a_first_look_does_not_decide_the_budget_is_used(monkeypatch, price, settings):
    clock = Priced(monkeypatch, price)
    made = priced_work(clock, batch=1, **settings)
    plan, _, (only,), _ = made.run()
    assert not plan.first_look
    assert len(only.outcome.found) == plan.images
    assert plan.images >= work.LOOK[0] or price > 0.01
    assert 0.3 * BUDGET < clock.now <= 1.1 * BUDGET


def test_a_first_look_is_said_in_the_report(tmp_path):
    model = small()
    report = atsaudit.audit(model, photographs(), untrained=model, batch=1, limit=0.05)
    assert report.verdict == ABOVE
    assert any("--thorough" in note for note in report.notes)
    assert "--thorough" in report.save(tmp_path).read_text(encoding="utf-8")


@pytest.mark.parametrize("until", [1.0, 4.0])
def test_nothing_is_left_out_because_the_machine_was_busy_when_it_was_measured(monkeypatch, until):
    clock = Priced(monkeypatch, 0.01, (0.0, 20), until)
    *_, left = priced_work(clock).run()
    assert clock.now > until
    assert not left


def test_as_many_photographs_are_attacked_as_there_is_time_for(tmp_path, monkeypatch):
    # Three times slower than when it was measured
    clock = Priced(monkeypatch, 0.02, (2.0, 3))
    cut = priced_work(clock, tmp_path, attacked=32, batch=1)
    first = cut.run()[2][0].outcome
    count = len(first.found)
    assert 2 <= count < 32
    assert torch.equal(first.images, cut.free[:count])
    assert f"The time was over after {count} of 32" in cut.cut[0]
    assert not list(tmp_path.glob("part-*"))
    again = priced_work(clock, tmp_path, attacked=32, batch=1)
    monkeypatch.setattr(work, "reconstruct", None)  # nothing is computed once more
    assert torch.equal(again.run()[2][0].outcome.found, first.found)
    assert again.cut == cut.cut


def test_portions_have_the_results_of_the_whole(monkeypatch):
    whole = report_of(small())
    monkeypatch.setattr(work, "MOST_AT_ONCE", 3)
    parted = report_of(small())
    assert torch.equal(parted.worst_case.outcome.found, whole.worst_case.outcome.found)
    assert torch.allclose(parted.worst_case.outcome.psnr, whole.worst_case.outcome.psnr, atol=0.1)


def test_a_control_does_not_take_the_time_of_what_it_is_the_control_of():
    config = AuditConfig(batch=(1, 4), budget=60.0)
    made = work.Work({"untrained": small()}, *_data(), config, cases_of(config, given=False))
    made.plan = made._fitting({str(case.group): 1e-2 for case in made._groups()})
    made._spent = lambda: 0.3
    control, last = made.cases
    made.tuned = {control.group: None, last.group: None}
    assert made._share_of(control, [last]) == pytest.approx(0.6)
    assert made._share_of(last, []) == pytest.approx(work.END)
    del made.tuned[last.group]
    assert 0.3 < made._share_of(control, [last]) < 0.6
    made._spent = lambda: 2.0
    assert made._share_of(last, []) == pytest.approx(work.END)


def test_no_attack_is_compared_when_the_time_for_that_is_over(monkeypatch):
    monkeypatch.setattr(work.Work, "_spent", lambda self: 0.5)
    worst = report_of(small()).worst_case
    assert worst.tried == {}
    assert worst.attack == "annealed-convnet"  # the likeliest
    assert set(report_of(linear()).worst_case.tried) == {"first-layer"}  # in closed form
    monkeypatch.setattr(work.Work, "_spent", lambda self: 1.5)
    report = report_of(small(), defense="prune:0.5", limit=0.5)
    assert len(report.results) == 1
    assert report.verdict == CANNOT_TELL
    assert (
        "There was no time for one gradient of 1 image, untrained network, defense prune:0.5"
        in " ".join(report.doubts)
    )


def _data():
    images = photographs()
    return images.pixels, images.labels


def test_the_first_layer_is_read_only_where_it_is_linear_on_the_pixels():
    images = photographs()
    case = cases_of(AuditConfig(batch=1), given=False)[0]
    for model, there in ((linear(), True), (small(), False)):
        seen = atslib.observe(model, images.pixels[:2] / 255, images.labels[:2])
        assert ("first-layer" in candidates(seen, case, 3)) == there
    with pytest.raises(atslib.AtsError, match="first layer is linear"):
        atslib.reconstruct(seen, FirstLayer(), rng=0)


# --- the report --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("found", "tried"), [(16, 1), (15, 6)])
def test_attacks_are_compared_until_one_finds_all(monkeypatch, found, tried):
    def judged(*args, **options):
        told = outcome.judge(*args, **options)
        return dataclasses.replace(told, found=torch.arange(len(told.found)) < found)

    monkeypatch.setattr(work, "judge", judged)
    report = report_of(small(), attacked=2)
    assert len(report.worst_case.tried) == tried


def test_what_is_saved_can_be_read_again(tmp_path):
    report = report_of(limit=0.05)
    file = report.save(tmp_path / "audit")
    page = file.read_text(encoding="utf-8")
    assert report.sentence in page
    assert "No: above the limit." in page
    assert page.count("data:image/png") == 2 * 8
    stored = json.loads((tmp_path / "audit" / "report.json").read_text())
    assert stored["exit_code"] == 3
    assert stored["found"] == 1
    rows = (tmp_path / "audit" / "table.csv").read_text().splitlines()
    assert len(rows) == 2
    with Image.open(tmp_path / "audit" / "case-0.png") as sheet:
        assert sheet.size == (8 * SIDE, 2 * SIDE)


def test_without_pictures_none_is_written(tmp_path):
    report = report_of()
    report.save(tmp_path)
    page = report.save(tmp_path, pictures=False).read_text(encoding="utf-8")
    assert "data:image" not in page
    assert not list(tmp_path.glob("*.png"))


@needs_chromium
def test_the_page_asks_nobody_and_runs_nothing(tmp_path):
    images = photographs()
    names = (
        "<script>window.ran = 1</script>",
        "<img src=http://example.org/x.png onerror='ran = 1'>",
        "a & b",
    )
    model = linear()
    report = atsaudit.audit(
        model, images, untrained=model, class_names=names, batch=1, limit=0.05, **QUICK
    )
    page = report.save(tmp_path / "audit")
    browser = Browser(tmp_path / "profile")
    try:
        browser.size(900, 1200)
        browser.open(page.as_uri(), ready="document.querySelector('.answer')")
        assert browser.faults() == []
        assert browser.js("typeof window.ran") == "undefined"
        assert browser.js("document.scripts.length") == 0
        assert browser.js("document.images.length") == 16
        assert browser.js("[...document.images].every((image) => image.naturalWidth > 0)")
        assert "<script>" in browser.js("document.querySelector('.pairs').textContent")
        low = browser.contrast("body *")[0]
        assert low[0] >= 4.5, low
        for width in (360, 800):
            browser.size(width, 900)
            assert browser.js("document.documentElement.scrollWidth") <= width
    finally:
        browser.close()


# --- the shell ---------------------------------------------------------------------------------------------

NETWORK = f"""
import torch
from torch import nn


def build(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear({3 * SIDE * SIDE}, num_classes))


def broken():
    raise RuntimeError("no such layer")


number = 3
"""
NORM = ["--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"]


def file_of(row):
    """The name of a photograph's file, below the folder of all."""
    images = photographs()
    return f"{images.class_names[int(images.labels[row])]}/{row:03}.png"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a network and photographs of one's own."""
    images = photographs()
    for row, (pixels, label) in enumerate(zip(images.pixels, images.labels.tolist(), strict=True)):
        folder = tmp_path / "photos" / images.class_names[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / "photos" / file_of(row))
    (tmp_path / "mine.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shell(*options, quick=True):
    few = ["--images", "8", "--steps", "4"] if quick else []
    return main(["--model", "mine.py:build", "--data", "photos", "--out", "out", *few, *options])


def test_one_command_on_a_folder_of_photographs(place, capsys):
    assert shell(*NORM, "--batch", "1", "--limit", "found<=5%") == 3
    said = capsys.readouterr().out
    assert "8 of 8 photographs are recognized" in said
    assert "above the limit (found at most 5.0%)" in said
    page = (place / "out" / "report.html").read_text(encoding="utf-8")
    assert "python -m atsaudit --model mine.py:build" in page
    assert (place / "out" / "report.json").exists()


def test_no_picture_is_left_where_none_is_wanted(place):
    assert shell(*NORM, "--batch", "1", "--no-pictures") == 0
    left = {path.name for path in (place / "out").rglob("*") if path.is_file()}
    assert {"report.html", "report.json", "table.csv", "plan.json"} <= left
    assert not [name for name in left if name.endswith((".png", ".safetensors"))]
    assert "Written without pictures" in (place / "out" / "report.html").read_text(encoding="utf-8")


def test_weights_are_read_from_safetensors_and_from_what_torch_saved(place):
    layer = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, CLASSES))
    save_file(layer.state_dict(), "w.safetensors")
    torch.save(
        {"state_dict": {f"module.{name}": value for name, value in layer.state_dict().items()}},
        "w.pt",
    )
    found = []
    for file in ("w.safetensors", "w.pt"):
        assert shell(*NORM, "--batch", "1", "--weights", file) == 0
        found.append(json.loads((place / "out" / "report.json").read_text())["cases"])
    assert found[0] == found[1]
    assert len(found[0]) == 2


def test_an_update_gives_one_report_as_weights_and_as_a_difference(place):
    torch.manual_seed(3)
    layer = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, CLASSES))
    before = {name: value.detach().clone() for name, value in layer.state_dict().items()}
    after = _trained(layer, [5, 30])
    facts = {"lr": LR, "steps": 2, "images": [file_of(5), file_of(30)]}
    found = []
    for kind in ("weights", "difference"):
        folder = place / kind
        folder.mkdir()
        sent = after if kind == "weights" else {name: after[name] - before[name] for name in after}
        save_file(before, folder / "sent.safetensors")
        np.savez(folder / "received.npz", **{name: value.numpy() for name, value in sent.items()})
        (folder / "update.json").write_text(json.dumps(facts))
        assert shell(*NORM, "--update", str(folder)) in (0, 4)
        report = json.loads((place / "out" / "report.json").read_text())
        found.append(report["cases"][1])
    numbers = [
        {name: case[name] for name in ("title", "images", "found", "attack")} for case in found
    ]
    assert numbers[0] == numbers[1]
    assert numbers[0]["title"].startswith("a recorded update trained on 2 images")
    assert found[0]["each"]["image"] == found[1]["each"]["image"]
    assert found[0]["gain"] == pytest.approx(found[1]["gain"], abs=0.1)


def _trained(layer, rows):
    """The weights after two steps on some photographs, whose classes are numbered as in a folder."""
    images = photographs()
    order = sorted(images.class_names)
    number = torch.tensor([order.index(name) for name in images.class_names])
    inputs = (images.pixels[rows] / 255 - 0.5) / 0.25
    for _ in range(2):
        layer.zero_grad()
        nn.functional.cross_entropy(layer(inputs), number[images.labels[rows]]).backward()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter -= LR * parameter.grad
    return {name: value.detach().clone() for name, value in layer.state_dict().items()}


def _watched(folder, layer, before, rows):
    """Round 2 of clients with a photograph each, as `Watched` keeps it."""
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAvg

    from atsfed.watch_flower import Watched

    strategy = Watched(FedAvg(fraction_evaluate=0.0), folder)
    replies = []
    for message in strategy.configure_train(
        2, ArrayRecord(before), ConfigRecord(), Nodes(7000, len(rows))
    ):
        client = message.metadata.dst_node_id - 7000
        layer.load_state_dict(before)
        content = RecordDict({
            "arrays": ArrayRecord(_trained(layer, [rows[client]])),
            "metrics": MetricRecord({"num-examples": 1, "client": client}),
        })  # fmt: skip
        reply = Message(content, reply_to=message)
        replies.append(sent_by(7000 + client, reply))
    strategy.aggregate_train(2, replies)


def test_a_folder_of_watched_is_read_round_by_round(place, flower_task):
    layer = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, CLASSES))
    before = {name: value.detach().clone() for name, value in layer.state_dict().items()}
    _watched(place / "seen", layer, before, (5, 30))
    images = {str(client): [file_of(row)] for client, row in enumerate((5, 30))}
    (place / "seen" / "update.json").write_text(json.dumps({"images": images}))
    given = ["--lr", str(LR), "--local-steps", "2", "--update", "seen"]
    assert shell(*NORM, *given, "--round", "2") in (0, 4)
    report = json.loads((place / "out" / "report.json").read_text())
    case = report["cases"][1]
    assert case["images"] == 2
    assert case["found"] == 2  # a linear network
    assert "Are they the right ones" not in " ".join(report["doubts"])
    (place / "seen" / "update.json").write_text(
        json.dumps({"images": {"0": [file_of(6)], "1": [file_of(31)]}})
    )
    # Others than those who trained are not found, and the report asks whether they did.
    assert shell(*NORM, *given, "--round", "2", "--out", "others") == 4
    report = json.loads((place / "others" / "report.json").read_text())
    assert report["cases"][1]["found"] == 0
    assert report["doubts"][0].startswith("Of 2 recorded updates 0 are more like")
    assert "Are they the right ones" in report["doubts"][0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shell(*NORM, *given, "--round", "1") == 2
    flip_a_bit(place / "seen" / "round-00002" / "node-7001.safetensors")
    assert shell(*NORM, *given, "--round", "2", "--out", "third") == 2


def named(view, rows, *, seconds=60.0, images=None):
    """What is said of photographs that are named behind updates."""
    images = images or photographs()
    stream = torch.Generator().manual_seed(0)
    return named_wrongly(view, torch.tensor(rows), images.pixels, images.labels, stream, seconds)


def updates_of(rows, *, model=None, batch=1, kind="difference", steps=2, images=None):
    """What clients with so many photographs each send."""
    images = images or photographs()
    given = model or linear(), images.pixels[rows] / 255, images.labels[rows]
    threat = atslib.ThreatModel(batch=batch)
    if kind == "gradient":
        return atslib.observe(*given, threat=threat)
    local = LocalTraining(epochs=steps, lr=LR)
    return observe_weights(*given, local=local, rng=0, threat=threat)


def changed(view, change):
    """The view with what was received changed."""
    (update,) = view.updates
    update = dataclasses.replace(update, gradients=change(update.gradients))
    return dataclasses.replace(view, updates=(update,))


@pytest.mark.parametrize(("lr", "seconds"), [(1e39, 60.0), (LR, 0.0)], ids=["diverges", "no time"])
def test_updates_that_cannot_be_made_again_are_not_compared_and_that_is_said(lr, seconds):
    view = updates_of([0])
    (update,) = view.updates
    said = dataclasses.replace(update, local=update.local | {"lr": lr})
    view = dataclasses.replace(view, updates=(said,))
    words = named(view, [30], seconds=seconds)  # of another class
    assert "could not be checked" in words
    assert ("diverged" in words) == (lr > 1)
    assert ("larger budget" in words) == (lr < 1)


@pytest.mark.parametrize("kind", ["difference", "gradient"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("model", [linear, small])
def test_the_photographs_behind_an_update_are_told_from_others_of_their_classes(kind, batch, model):
    rows = [0, 30, 50, 5, 35, 55][: 2 * batch]
    view = updates_of(rows, model=model(), batch=batch, kind=kind)
    assert named(view, rows) == ""
    words = named(view, [row + 1 for row in rows])
    count = len(rows) // batch
    assert words.startswith(f"Of {count} recorded updates ")
    words = named(changed(view, lambda sent: -sent), rows)
    assert "its sign is reversed" in words
    assert named(changed(view, lambda sent: 0 * sent), rows).startswith("Nothing shows")


def test_after_many_local_steps_the_first_ones_gradient_tells_them_where_time_is_short(monkeypatch):
    seconds = iter(range(0, 100_000, 2))  # a step or a question takes two
    monkeypatch.setattr(named_photographs.time, "monotonic", lambda: next(seconds))
    rows = [0, 30]
    view = updates_of(rows, model=small(), steps=10)
    made = []
    again = named_photographs._again
    monkeypatch.setattr(
        named_photographs, "_again", lambda *args: made.append(args[-1]) or again(*args)
    )
    assert named(view, rows, seconds=60.0) == ""
    assert set(made) == {1}
    assert 2 * len(made) < 60  # in the time there is
    assert "are more like" in named(view, [1, 31], seconds=60.0)
    assert "could not be checked" in named(view, rows, seconds=10.0)
    made.clear()
    assert named(view, rows, seconds=2000.0) == ""
    assert max(made) == 10


class OfTokens(nn.Module):
    """A network whose maps become tokens behind a normalization."""

    def __init__(self, norm):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), norm, nn.Flatten(2))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(self.norm(self.body(x).transpose(1, 2)).square().mean(1))


@pytest.mark.parametrize("kind", ["difference", "gradient"])
@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.InstanceNorm2d, nn.GroupNorm])
def test_a_client_whose_torch_shares_a_wrong_gradient_is_told(norm, kind):
    layer = norm(2, 8) if norm is nn.GroupNorm else norm(8)
    torch.manual_seed(0)
    model = nn.Sequential(atslib.Normalize([0.5] * 3, [0.25] * 3), OfTokens(layer)).eval()
    images = photographs()
    rows = [5, 30]
    sent = []
    for row in rows:  # as torch makes it
        loss = nn.functional.cross_entropy(
            model(images.pixels[row : row + 1] / 255), images.labels[row : row + 1]
        )
        parts = torch.autograd.grad(loss, list(model.parameters()))
        sent.append(torch.cat([part.flatten() for part in parts]))
    right = updates_of(rows, model=model, kind=kind, steps=1)
    scale = -LR if kind == "difference" else 1.0
    view = changed(right, lambda _: scale * torch.stack(sent))
    off = float(torch.cosine_similarity(view.gradients, right.gradients, dim=1).min())
    assert named(right, rows) == ""  # a client on another device
    words = named(view, rows)
    if norm is nn.GroupNorm:  # which torch differentiates rightly
        assert off > 0.999
        assert words == ""
    elif off < 0.99:  # a torch of which that is mended has nothing to tell
        assert "fits the gradient that torch makes of this network on a CPU" in words
    else:
        assert words == ""


def test_copies_of_the_photographs_named_are_no_others():
    images = photographs()
    few = torch.arange(30)
    pixels = torch.cat([images.pixels[few], images.pixels[few].flip(-1)])
    again = Images(pixels, images.labels[few].repeat(2), images.class_names, "twice", "all")
    view = updates_of([0, 25], images=again)
    assert named(view, [0, 25], images=again) == ""


def test_where_a_class_has_no_others_those_of_other_classes_are_compared():
    images = photographs()
    rows = torch.cat([torch.arange(24), torch.tensor([24])])  # a single dog
    alone = Images(images.pixels[rows], images.labels[rows], images.class_names, "few", "all")
    view = updates_of([24], images=alone)
    assert named(view, [24], images=alone) == ""
    pixels = alone.pixels.clone()
    pixels[24] = images.pixels[30]
    wrong = dataclasses.replace(alone, pixels=pixels)
    assert named(view, [24], images=wrong).startswith("Of 1 recorded updates 0 are more like")


def test_other_photographs_are_never_within_a_limit(place, capsys):
    torch.manual_seed(3)
    layer = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, CLASSES))
    before = {name: value.detach().clone() for name, value in layer.state_dict().items()}
    folder = place / "seen"
    folder.mkdir()
    save_file(before, folder / "sent.safetensors")
    rows = list(range(2, 14))
    for row in rows:
        layer.load_state_dict(before)
        save_file(_trained(layer, [row]), folder / f"received-{row:02}.safetensors")
    facts = {"lr": LR, "steps": 2, "images": {f"{row:02}": [file_of(row + 12)] for row in rows}}
    (folder / "update.json").write_text(json.dumps(facts))
    asked = [*NORM, "--update", str(folder), "--limit", "found<=50%"]
    assert shell(*asked) == 4
    said = capsys.readouterr().out
    assert "cannot tell" in said
    assert "Are they the right ones" in said


def with_statistics(momentum=0.1):
    """A network with batch normalization, without its first layer."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=momentum), nn.Sigmoid()
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * (SIDE - 2) ** 2, CLASSES))


def kept_of(folder, model, rows, *, mode="train", kind="weights", steps=1, facts=None, sent=None):
    """A folder of what a client of torch sent that trained in a mode, as it is read."""
    folder.mkdir()
    before = {name: value.clone() for name, value in (sent or model.state_dict()).items()}
    model.load_state_dict(before)
    model.train(mode == "train")
    start = {name: value.clone() for name, value in model.state_dict().items()}
    images = photographs()
    for _ in range(steps):
        model.zero_grad()
        scores = model((images.pixels[rows] / 255 - 0.5) / 0.25)
        nn.functional.cross_entropy(scores, images.labels[rows]).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= LR * parameter.grad
    after = model.state_dict()
    if kind == "difference":
        after = {name: after[name] - start[name] for name in after}
    save_file(before, folder / "sent.safetensors")
    save_file(
        {name: value.clone() for name, value in after.items()}, folder / "received.safetensors"
    )
    (folder / "update.json").write_text(json.dumps({"lr": LR, "images": rows} | (facts or {})))
    return update_files.read(folder, number=None, kind=None, lr=None, steps=None)


@pytest.mark.parametrize("kind", ["weights", "difference"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_buffers_say_train_mode_and_how_many_steps(tmp_path, kind, steps, momentum):
    model = with_statistics(momentum)
    kept = kept_of(tmp_path / "a", model, [5, 30], kind=kind, steps=steps)
    assert (kept.kind, kept.steps, kept.contradiction) == (kind, steps, "")
    assert client_mode(kept) == "train"
    assert mode_contradiction(kept, "train") == ""
    assert "have moved, as in train mode" in mode_contradiction(kept, "eval")
    said = {"steps": steps + 4}
    kept = kept_of(tmp_path / "b", model, [5, 30], kind=kind, steps=steps, facts=said)
    assert kept.steps == steps + 4
    assert f"made {steps + 4} local steps" in kept.contradiction
    assert f"went up by {steps}" in kept.contradiction
    assert "accumulates" not in kept.contradiction


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_is_named_by_its_array(tmp_path, value):
    kept_of(tmp_path / "a", with_statistics(), [5, 30])
    arrays = load_file(tmp_path / "a" / "received.safetensors")
    arrays["4.bias"][0] = value
    save_file(arrays, tmp_path / "a" / "received.safetensors")
    with refused("'4.bias', which the client sent, has numbers that are not finite"):
        update_files.read(tmp_path / "a", number=None, kind=None, lr=None, steps=None)


def test_counters_count_batches_and_that_is_said(tmp_path):
    """Of a client that accumulates the gradients of two batches for each of two steps."""
    model = with_statistics()
    kept = kept_of(tmp_path / "a", model, [5, 30], steps=4)
    assert (kept.steps, kept.counted) == (4, True)
    kept = kept_of(tmp_path / "b", model, [5, 30], steps=4, facts={"steps": 2})
    assert (kept.steps, kept.counted) == (2, False)
    assert "accumulates the gradients of 2 batches for a step" in kept.contradiction


def test_a_servers_mean_over_counters_is_no_whole_number_and_a_client_goes_on_from_it(tmp_path):
    model = with_statistics()
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    sent["1.num_batches_tracked"] = torch.tensor(107.75)
    kept = kept_of(tmp_path / "a", model, [5, 30], steps=2, sent=sent)
    assert (kept.kind, kept.steps, client_mode(kept)) == ("weights", 2, "train")
    kept = kept_of(tmp_path / "b", model, [5, 30], mode="eval", sent=sent, facts={"steps": 2})
    assert (kept.contradiction, client_mode(kept)) == ("", "eval")


def test_buffers_that_have_not_moved_say_eval_mode_and_none_say_nothing(tmp_path):
    kept = kept_of(tmp_path / "a", with_statistics(), [5], mode="eval", facts={"steps": 1})
    assert client_mode(kept) == "eval"
    assert "have not moved" in mode_contradiction(kept, "train")
    plain = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, CLASSES))
    kept = kept_of(tmp_path / "b", plain, [5], facts={"steps": 1})
    assert client_mode(kept) is None
    assert mode_contradiction(kept, "train") == ""


def test_an_update_of_a_client_in_train_mode_is_held_beside_that_mode(tmp_path):
    images = photographs()
    kept = kept_of(tmp_path / "a", with_statistics(), [5, 30])
    network = nn.Sequential(atslib.Normalize([0.5] * 3, [0.25] * 3), with_statistics())
    for mode, least, most in (("train", 0.999, 1.01), ("eval", -1, 0.99)):
        threat = atslib.ThreatModel(batch=2, victim=mode)
        rows = torch.tensor([5, 30])
        view = observed(kept, network, [rows], images.labels, threat, (3, SIDE, SIDE))
        stream = torch.Generator().manual_seed(0)
        made, _ = named_photographs._again(
            view, rows, images.pixels, images.labels[rows], stream, 1
        )
        assert least < float(torch.cosine_similarity(view.gradients[0], made, dim=0)) < most


NORMALIZED_ALONE = f"""
from torch import nn


def build(num_classes):
    layers = nn.Linear({3 * SIDE * SIDE}, 8), nn.BatchNorm1d(8), nn.Linear(8, num_classes)
    return nn.Sequential(nn.Flatten(), *layers)
"""


def test_the_command_attacks_a_client_in_the_mode_that_its_buffers_say(place, capsys):
    (place / "mine.py").write_text(NORMALIZED_ALONE)  # takes no single image in train mode
    layers = nn.Linear(3 * SIDE * SIDE, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES)
    kept_of(place / "seen", nn.Sequential(nn.Flatten(), *layers), [5, 30, 50])
    asked = [*NORM, "--update", "seen"]
    assert shell(*asked) in (0, 4)
    report = json.loads((place / "out" / "report.json").read_text())
    assert report["settings"]["victim"] == "train"
    assert report["cases"][0]["title"].startswith("one gradient of 3 images")
    assert any("Clients ran batch normalization in train mode" in note for note in report["notes"])
    assert any(
        "number of local steps, 1, is read off the counters" in note and "count batches" in note
        for note in report["notes"]
    )
    assert shell(*asked, "--victim", "eval", "--local-steps", "2", "--out", "b") == 4
    said = capsys.readouterr().out
    assert "Clients are said to run batch normalization in eval mode" in said
    assert "is said to have made 2 local steps" in said


DATA = f"""
import torch
from torch.utils.data import DataLoader, TensorDataset

pixels = torch.rand(30, 3, {SIDE}, {SIDE}, generator=torch.Generator().manual_seed(0))
pairs = TensorDataset(pixels, torch.arange(30) % 3)


def loader():
    return DataLoader(pairs, batch_size=8)


normalized = TensorDataset(3 * pixels - 1, torch.arange(30) % 3)
words = ["no", "pairs"]
"""


def test_data_are_a_dataset_or_a_loader_of_ones_own(place, capsys):
    (place / "data.py").write_text(DATA)
    found = []
    for name in ("pairs", "loader"):
        assert shell(*NORM, "--batch", "1", "--data", f"data.py:{name}") == 0
        found.append(json.loads((place / "out" / "report.json").read_text())["cases"])
    assert found[0] == found[1]
    assert found[0][0]["share"] == 1
    capsys.readouterr()
    for name, words in (
        ("normalized", "give images in [0, 1]"),
        ("words", "no pair of an image and a label"),
    ):
        assert shell(*NORM, "--data", f"data.py:{name}") == 2
        assert words in capsys.readouterr().err


def test_what_no_layer_draws_stays_and_is_named():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 3 * SIDE * SIDE))
            self.layer = nn.Linear(3 * SIDE * SIDE, CLASSES)

        def forward(self, images):
            return self.layer(images.flatten(1) * self.scale)

    report = atsaudit.audit(
        Scaled(), photographs(), normalize=([0.5] * 3, [0.25] * 3), batch=1, **QUICK
    )
    assert "keeps the given values of scale" in report.notes[0]


WRONG = [
    (["--limit", "5%"], "'5%' must be a share"),
    (["--batch", "1,x"], "must be numbers of images"),
    (["--lr", "0.1"], "give --local-steps too"),
    (["--local-steps", "5"], "give --lr too"),
    (["--mean", "0.5"], "belong together"),
    (["--mean", "0.5,0.5,0.5", "--std", "a"], "give numbers"),
    ([], "does not start with atslib.Normalize"),
    ([*NORM, "--model", "mine.py"], "model 'mine.py' is unknown"),
    ([*NORM, "--model", "none.py:build"], "none.py is no file"),
    ([*NORM, "--model", "mine.py:other"], "there is no 'other'"),
    ([*NORM, "--model", "mine.py:number"], "is a int"),
    ([*NORM, "--model", "mine.py:broken"], "no such layer"),
    ([*NORM, "--model", "no_such_package.nets:build"], "No module named"),
    ([*NORM, "--data", "nowhere"], "no folder and no data set"),
    ([*NORM, "--weights", "none.safetensors"], "is no file"),
    ([*NORM, "--weights", "mine.py"], "cannot be read"),
    ([*NORM, "--update", "photos"], "no weights that were sent and received"),
    ([*NORM, "--update", "nowhere"], "is no folder"),
    ([*NORM, "--policy", "prune:0.5"], "policy 'prune:0.5' is none"),
    ([*NORM, "--defense", "3-1-7"], "give that as the policy"),
    ([*NORM, "--defense", "nothing:1"], "nothing"),
    ([*NORM, "--batch", "64"], "too few"),
    ([*NORM, "--device", "cuda:77"], "cannot be used"),
    ([*NORM, "--image-size", "16"], "does not take images of shape"),
]


@pytest.mark.parametrize(("options", "words"), WRONG, ids=[words for _, words in WRONG])
def test_wrong_input_is_one_sentence(place, capsys, options, words):
    assert shell(*options) == 2
    said = capsys.readouterr()
    assert re.fullmatch(r"error: [^\n]+\n", said.err), said.err
    assert words in said.err
    assert said.out == ""


def test_a_kind_that_contradicts_the_sizes_is_refused(place, capsys):
    layer = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, CLASSES))
    save_file(layer.state_dict(), "sent.safetensors")
    save_file(
        {name: 0.01 * value for name, value in layer.state_dict().items()}, "received.safetensors"
    )
    facts = {"kind": "weights", "lr": 0.1, "steps": 1, "images": [0]}
    (place / "update.json").write_text(json.dumps(facts))
    assert shell(*NORM, "--update", ".") == 2
    assert "looks like a difference of weights" in capsys.readouterr().err
    (place / "update.json").write_text(json.dumps(facts | {"kind": "difference", "images": [999]}))
    assert shell(*NORM, "--update", ".") == 2
    assert "is not among the 72" in capsys.readouterr().err
    (place / "update.json").write_text(json.dumps(facts | {"kind": "difference", "images": []}))
    assert shell(*NORM, "--update", ".") == 2
    assert "nothing says which images" in capsys.readouterr().err


# --- a loss of one's own -----------------------------------------------------------------------------------


def smoothed(scores, labels):
    """Cross-entropy with smoothed labels."""
    return nn.functional.cross_entropy(scores, labels, label_smoothing=0.3)


def margins(scores, labels):
    """One number for each image."""
    own = scores.gather(1, labels[:, None])
    return (1 + scores - own).relu().square().mean(1)


@pytest.mark.parametrize(
    "loss", [smoothed, margins, nn.CrossEntropyLoss(torch.tensor([1.0, 5, 2]))]
)
@pytest.mark.parametrize("form", ["per_example", "vmapped", "alone"])
def test_gradients_are_of_the_loss_of_ones_own(loss, form):
    images = photographs()[torch.tensor([0, 30, 50, 5])]
    model = with_loss(small(), loss)
    pixels = images.pixels / 255
    inputs, labels = (part.unflatten(0, (2, 2)) for part in (pixels, images.labels))
    rows = flatten(problem_gradients(model, inputs, labels, route=Route(form)))
    for row, problem, own in zip(rows, inputs, labels, strict=True):
        value = loss(model(problem), own).mean()
        wanted = torch.autograd.grad(value, list(model.parameters()))
        torch.testing.assert_close(row, torch.cat([g.flatten() for g in wanted]))


def test_local_training_and_the_attack_are_of_the_loss_of_ones_own():
    images = photographs()[torch.tensor([0, 30])]
    pixels, labels = images.pixels / 255, images.labels
    model = with_loss(small(), smoothed)
    local = LocalTraining(epochs=3, lr=0.05)
    threat = atslib.ThreatModel(batch=2)
    seen = observe_weights(model, pixels, labels, local=local, rng=0, threat=threat)
    trained = small()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        smoothed(trained(pixels), labels).backward()
        optimizer.step()
    pairs = zip(trained.parameters(), small().parameters(), strict=True)
    moved = torch.cat([(after - before).detach().flatten() for after, before in pairs])
    torch.testing.assert_close(seen.gradients[0], moved, rtol=1e-3, atol=1e-6)
    # At the image itself the attack's distance is 0 for the loss that was trained with alone.
    single = atslib.observe(model, pixels, labels)
    plain = dataclasses.replace(
        single, updates=(dataclasses.replace(single.updates[0], model=small()),)
    )
    attack = dataclasses.replace(atslib.ATTACKS["adam-cosine"], steps=1, lr=1e-9)
    cost, other = (
        atslib.reconstruct(view, attack, rng=0, start=pixels).cost for view in (single, plain)
    )
    assert (cost < 1e-5).all()
    assert (other > 1e-4).all()


def test_a_network_of_one_score_has_a_loss_of_its_own_scores():
    shapes = []

    def logistic(score, labels):
        shapes.append(tuple(score.shape))
        return nn.functional.binary_cross_entropy_with_logits(score[:, 0], labels.to(score))

    images = photographs()
    two = images[images.labels < 2]
    layers = nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 1)
    model = nn.Sequential(atslib.Normalize([0.5] * 3, [0.25] * 3), *layers)
    settings = {"untrained": model, "batch": 1, **QUICK}
    report = atsaudit.audit(model, two, loss=logistic, **settings)
    assert {shape[1:] for shape in shapes} == {(1,)}
    assert report.found == 1
    assert "trained with the loss logistic" in report.network
    assert report.repeat.endswith("loss=logistic)")
    known = atsaudit.audit(model, two, **settings)  # two classes: the same loss
    assert known.worst.gain == pytest.approx(report.worst.gain, abs=1)


def test_a_loss_is_named_in_the_shell(place, capsys):
    (place / "losses.py").write_text(
        "import torch.nn.functional as F\n\n\n"
        "def loss(scores, labels):\n    return F.cross_entropy(scores, labels, label_smoothing=0.2)\n\n\n"
        "def constant(scores, labels):\n    return scores.detach().sum()\n\n\n"
        "def broken(scores, labels):\n    return scores[:, 99].mean()\n\n\n"
        "number = 3\n"
    )
    assert shell(*NORM, "--batch", "1", "--loss", "losses.py:loss") == 0
    report = json.loads((place / "out" / "report.json").read_text())
    assert report["cases"][0]["share"] == 1
    assert "trained with the loss loss" in report["network"]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert shell(*NORM, "--batch", "1") == 0
    assert any("of another audit" in str(each.message) for each in told)  # another loss is one
    capsys.readouterr()
    for name, words in (
        ("constant", "depends on the scores"),
        ("broken", "the loss failed on scores"),
        ("number", "must be a function"),
        ("other", "there is no 'other'"),
    ):
        assert shell(*NORM, "--loss", f"losses.py:{name}") == 2
        assert words in capsys.readouterr().err
    assert shell(*NORM, "--loss", "losses.py:loss", "--labels", "restored") == 2
    assert "cross-entropy alone" in capsys.readouterr().err


# --- frozen layers -----------------------------------------------------------------------------------------


def headed(seed: int = 0) -> nn.Module:
    """`small`, of which the last layer alone is trained."""
    model = small(seed).requires_grad_(False)
    model[-1].requires_grad_(True)
    return model


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_frozen_layers_are_neither_shared_nor_trained(optimizer):
    local = LocalTraining(epochs=2, lr=0.05)
    report = report_of(
        headed(), batch=2, local=local, optimizer=optimizer, defense="prune:0.5", rounds=2
    )
    count = sum(p.numel() for p in headed()[-1].parameters())
    assert f"of which {count:,} are trained and shared" in report.network
    assert "last-layer-alone" not in report.results[0].tried
    assert len(report.results) == 3


WRAPS = {
    "as it is": lambda state: state,
    "compiled": lambda state: {f"_orig_mod.{name}": value for name, value in state.items()},
    "Opacus": lambda state: {f"_module.{name}": value for name, value in state.items()},
    "in parallel": lambda state: {f"module.{name}": value for name, value in state.items()},
    "Lightning": lambda state: {f"model.{name}": value for name, value in state.items()},
    "a list": lambda state: {f"arr_{row}": value for row, value in enumerate(state.values())},
}
HEADED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(432, 48), nn.BatchNorm1d(48), nn.Sigmoid())
        self.head = nn.Linear(48, 3)

    def forward(self, images):
        return self.head(self.body(images))

def build():
    return Net()
"""


@pytest.fixture
def kept_head(place):
    """The same photographs, and a network of which clients keep the head: (body's name, whole
    state before, whole state after a step on photograph 5)."""
    (place / "headed.py").write_text(HEADED)
    scope = {}
    exec(HEADED, scope)
    torch.manual_seed(2)
    model = scope["Net"]().eval()
    before = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return before, _trained(model, [5])


def _sent(place, before, after, **facts):
    folder = place / "seen"
    folder.mkdir(exist_ok=True)
    torch.save(before, folder / "sent.pt")
    np.savez(folder / "received.npz", **{name: value.numpy() for name, value in after.items()})
    facts = {"lr": LR, "steps": 2, "images": [file_of(5)]} | facts
    (folder / "update.json").write_text(json.dumps(facts))
    return [*NORM, "--model", "headed.py:build", "--update", str(folder)]


def _report(place):
    return json.loads((place / "out" / "report.json").read_text())


@pytest.mark.parametrize("received", WRAPS)
@pytest.mark.parametrize("sent", ["as it is", "in parallel", "compiled"])
def test_names_of_wrappers_on_either_side_of_an_update_are_the_networks(
    place, kept_head, sent, received
):
    from atslib.named import named

    before, after = kept_head
    _sent(place, WRAPS[sent](before), WRAPS[received](after))
    model = named("headed.py:build", "--model")()
    seen = update_files.read(
        place / "seen", number=None, kind=None, lr=None, steps=None, network=model
    )
    assert seen.kind == "weights"
    for name, value in before.items():
        assert torch.equal(seen.sent[name], value)
        assert torch.equal(seen.records[0].arrays[name], after[name])
    filled = network_of(seen, model).state_dict()
    assert all(torch.equal(filled[name], value) for name, value in before.items())


def test_an_update_of_another_network_shows_a_name_of_each_side(place, kept_head, capsys):
    before, after = kept_head
    odd = {f"trunk.{name}": value for name, value in after.items() if "head" not in name}
    assert shell(*_sent(place, before, {"stem.1.weights": odd["trunk.body.1.weight"]})) == 2
    said = capsys.readouterr().err
    assert "it has 'stem.1.weights', and the network 'body.1.weight'" in said


def test_whole_numbers_in_an_update_are_refused(place, kept_head, capsys):
    before, after = kept_head
    rounded = {
        n: (100 * v).to(torch.int8) if v.is_floating_point() else v for n, v in after.items()
    }
    assert shell(*_sent(place, before, rounded)) == 2
    said = capsys.readouterr().err
    assert "'body.1.weight' is int8, and the network's is float32" in said


def test_a_head_that_stays_with_the_client_is_inferred_or_named(place, kept_head, capsys):
    before, after = kept_head
    body = {name: value for name, value in after.items() if name.startswith("body")}
    options = _sent(place, {name: before[name] for name in body}, body)
    assert shell(*options) == 2
    assert "clients sent no array for head.weight, head.bias" in capsys.readouterr().err
    torch.save(before, "own.pt")
    found = []
    for shared in ([], ["--shared", "body"], ["--shared", "body.1,body.2"]):
        assert shell(*options, "--weights", "own.pt", *shared) in (0, 4)
        report = _report(place)
        assert "2 arrays stay with the clients, such as head.weight" in " ".join(report["notes"])
        found.append([(case["found"], case["each"]["image"]) for case in report["cases"]])
    assert found[0] == found[1] == found[2]
    assert found[0][1][0] == 1  # of one photograph behind the recorded update


def test_layers_that_are_not_shared_are_said_without_an_update_too(place, kept_head):
    options = [*NORM, "--model", "headed.py:build", "--batch", "1"]
    assert shell(*options, "--shared", "body") in (0, 4)
    report = _report(place)
    assert "are trained and shared" in report["network"]
    assert "2 arrays stay with the clients" in " ".join(report["notes"])


def test_shared_layers_that_are_not_there_or_were_sent_are_refused(place, kept_head, capsys):
    before, after = kept_head
    assert shell(*NORM, "--model", "headed.py:build", "--shared", "neck") == 2
    assert "the network has no trained layer 'neck'; it has body.1, body.2, head" in (
        capsys.readouterr().err
    )
    torch.save(before, "own.pt")
    options = _sent(place, before, after)
    assert shell(*options, "--shared", "body", "--weights", "own.pt") == 2
    assert "--shared 'body' leaves out 'head.bias', which clients sent" in capsys.readouterr().err


def test_which_of_two_networks_in_a_file_was_taken_is_in_the_report(place, kept_head):
    before, after = kept_head
    torch.save({"state_dict": before, "state_dict_ema": after}, "both.pt")
    options = [*NORM, "--model", "headed.py:build", "--batch", "1", "--weights", "both.pt"]
    assert shell(*options) in (0, 4)
    assert "'state_dict_ema' was not taken" in " ".join(_report(place)["notes"])


def convolutions() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(8 * SIDE * SIDE, 3),
        )


class Holding(nn.Module):
    """A network that holds a compiled part under a name."""

    def __init__(self):
        super().__init__()
        layers = convolutions()
        self.body = torch.compile(layers[:3], backend="eager")
        self.head = layers[3]

    def forward(self, images):
        return self.head(self.body(images))


class CompiledMethod(nn.Module):
    """A network of which a method is compiled."""

    def __init__(self):
        super().__init__()
        self.layers = convolutions()

    @functools.partial(torch.compile, backend="eager")
    def scores(self, images):
        return self.layers(images)

    def forward(self, images):
        return self.scores(images)


class Autocast(nn.Module):
    """A network that runs in mixed precision by itself."""

    def __init__(self):
        super().__init__()
        self.layers = convolutions()

    def forward(self, images):
        with torch.autocast("cpu", torch.bfloat16):
            return self.layers(images)


OF_ONES_OWN = {
    "a compiled method": CompiledMethod,
    "autocast": Autocast,
    "compiled": lambda: torch.compile(convolutions(), backend="eager"),
    "a compiled part": Holding,
    "bfloat16": lambda: convolutions().bfloat16(),
    "half": lambda: convolutions().half(),
    "double": lambda: convolutions().double(),
}


@pytest.mark.parametrize("kind", OF_ONES_OWN)
@pytest.mark.parametrize("norm", [([0.5] * 3, [0.25] * 3), ([0.0] * 3, [1.0] * 3)])
def test_compiled_networks_and_other_precisions_are_attacked(kind, norm):
    images = photographs()
    report = atsaudit.audit(
        OF_ONES_OWN[kind](), images.pixels, images.labels, normalize=norm, batch=1, **QUICK
    )
    assert report.control.found == 8


class Casts(nn.Module):
    """A network in half precision, all but its head, that casts its images itself."""

    def __init__(self):
        super().__init__()
        *body, self.head = convolutions()
        self.body = nn.Sequential(*body).bfloat16()

    def forward(self, images):
        return self.head(self.body(images.bfloat16()).float())


def test_a_network_that_casts_within_is_one_sentence():
    images = photographs()
    given = {"normalize": ([0.5] * 3, [0.25] * 3), "batch": 1, **QUICK}
    with pytest.raises(
        atslib.AtsError, match=r"cannot be attacked in float32 .*leave out the casts"
    ):
        atsaudit.audit(Casts(), images.pixels, images.labels, **given)


LAZY = {
    "0.weight": lambda: [nn.LazyConv2d(4, 3), nn.Flatten(), nn.Linear(400, 3)],
    "2.weight": lambda: [nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(3)],
    "1.running_mean": lambda: [
        nn.Conv2d(3, 4, 3),
        nn.LazyBatchNorm2d(affine=False),
        nn.Flatten(),
        nn.Linear(400, 3),
    ],
}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("name", LAZY)
def test_lazy_layers_are_named_until_they_have_seen_an_image(name):
    images = photographs()
    model = nn.Sequential(*LAZY[name]())
    given = {"normalize": ([0.5] * 3, [0.25] * 3), "batch": 1, **QUICK}
    for networks in ((model, None), (convolutions(), model)):
        with pytest.raises(atslib.AtsError, match=f"{name} has no shape yet, as in lazy layers"):
            atsaudit.audit(
                networks[0], images.pixels, images.labels, untrained=networks[1], **given
            )
    model(torch.zeros(2, 3, SIDE, SIDE))
    assert atsaudit.audit(model, images.pixels, images.labels, **given).control.images == 8


@pytest.mark.parametrize(
    "error", [AssertionError("the side is wrong"), ZeroDivisionError("division by zero")]
)
def test_whatever_a_network_raises_of_images_is_one_sentence(error):
    class Strict(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = convolutions()

        def forward(self, images):
            raise error

    model = nn.Sequential(atslib.Normalize([0.5] * 3, [0.25] * 3), Strict())
    with pytest.raises(atslib.AtsError, match=f"does not take images of shape .*: {error}"):
        atslib.observe(model, torch.full((1, 3, SIDE, SIDE), 0.5), torch.tensor([0]))
