"""The line-up of an audit: a server that holds the photographs and compares their gradients."""

import dataclasses
import json
import math

import pytest
import torch
from safetensors.torch import save_file
from test_own_audit import (
    CLASSES,
    NORM,
    SIDE,
    Silent,
    file_of,
    linear,
    photographs,
    place,
    report_of,
    shell,
    small,
    with_found,
)
from torch import nn

import atsaudit
import atslib
from atsaudit import line_up, work
from atsaudit.config import AuditConfig, cases_of
from atsaudit.line_up import cases_of_line_up, judged
from atsaudit.numbers import ABOVE, CANNOT_TELL, NO_LIMIT, WITHIN
from atsaudit.page import page as html_page
from atslib.attacks.line_up import LineUp
from atslib.clients.updates import LocalTraining
from atslib.data.images import Images
from atslib.measures.intervals import upper_bound

pytestmark = pytest.mark.slow
__all__ = ["place"]  # a fixture


def lined_up(model=None, **settings):
    """The line-ups alone, of a network without given weights."""
    images = settings.pop("images", photographs())
    config = AuditConfig(**({"batch": 1, "attacked": 12} | settings))
    made = work.Work(
        {"untrained": model or small()},
        images.pixels,
        images.labels,
        config,
        cases_of(config, given=False),
        clock=settings.pop("clock", lambda: 0.0),
    )
    return made.line_ups(line_up.SHARE)


def test_every_photograph_is_named_by_an_exact_gradient_whatever_the_policy():
    plain, defended = lined_up(policy="3-1-7+43-18-18")
    assert (plain.case.control, defended.case.knows) == (True, "policy")
    for told in (plain, defended):
        assert all(told.named)
        assert told.by == "features"
        assert max(told.own) < 1e-4 < min(told.other)
        assert set(told.candidates) == {24}
        assert set(told.chance) == {1 / 24}
        assert len(told.images) == told.wanted == 12


def test_what_is_shared_is_lined_up_once_however_much_attacks_know_of_it():
    cases = cases_of(AuditConfig(batch=(1, 2), policy="3-1-7"), given=False)
    found = cases_of_line_up(cases)
    assert [(case.images, case.defense, case.counts) for case in found] == [
        (1, "", False),
        (1, "3-1-7", True),
        (2, "", False),
        (2, "3-1-7", True),
    ]
    assert len(cases) == 6


def test_noise_that_drowns_everything_hides_who_it_was():
    plain, drowned = lined_up(defense="gaussian:1000", attacked=40)
    assert all(plain.named)
    row = line_up.row_of(drowned)
    assert row.low <= row.chance < 0.05
    assert not row.works
    assert row.own > 0.1


def test_the_way_of_comparing_is_chosen_behind_the_defense():
    """Where nearly all entries are cut, no row of the last layer is whole, and the gradient tells."""
    _, pruned = lined_up(defense="prune:0.99", attacked=24)
    assert pruned.by == "gradients"
    assert line_up.row_of(pruned).share > 0.5


def test_networks_whose_last_layer_is_kept_at_home_or_in_train_mode_are_compared_by_gradients():
    headless = small()
    for parameter in headless[-1].parameters():
        parameter.requires_grad_(False)
    normed = nn.Sequential(
        atslib.Normalize([0.5] * 3, [0.25] * 3),
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(6 * (SIDE - 2) ** 2, CLASSES),
    )
    for model, victim in ((headless, "eval"), (normed, "train")):
        (told,) = lined_up(model, victim=victim)
        assert told.by == "gradients"
        assert all(told.named)
        assert max(told.own) < 1e-3


def test_of_local_training_the_mean_gradient_is_compared():
    local = LocalTraining(epochs=3, lr=0.01)
    _, told = lined_up(local=local)
    assert told.case.shared == "update"
    assert line_up.row_of(told).share > 0.9
    _, told = lined_up(local=local, optimizer="adam")
    assert told.fault.startswith("Adam's steps are no gradients")


def test_copies_of_a_photograph_are_one_candidate():
    images = photographs()
    mirrored = images.pixels.flip(3)
    twice = Images(
        torch.cat([images.pixels, mirrored]), images.labels.repeat(2), images.class_names, "", ""
    )
    told = lined_up(images=twice)[0]
    assert all(told.named)
    assert set(told.candidates) == {24}
    assert set(told.chance) == {1 / 24}


def test_where_classes_are_small_the_server_knows_the_label_all_the_same():
    images = photographs()
    rows = torch.cat([torch.arange(24), torch.arange(24, 29), torch.arange(48, 60)])
    few = images[rows]
    told = lined_up(images=few, attacked=20)[0]
    assert all(told.named)
    sizes = {0: 24, 1: 5, 2: 12}
    labels = [int(few.labels[image]) for image in told.images]
    assert list(told.candidates) == [sizes[label] for label in labels]
    assert list(told.chance) == pytest.approx([1 / sizes[label] for label in labels])


def test_of_photographs_that_share_gradient_and_label_the_nearest_are_named():
    distances = torch.tensor([[0.3, 0.1, 0.2, 0.9], [0.3, 0.1, 0.2, 0.9], [0.5, 0.5, 0.6, 0.7]])
    found = LineUp(
        distances.argmin(1), distances, torch.zeros(3, 4, dtype=torch.int64), torch.ones(3)
    )
    candidates = torch.tensor([[10, 11, 12, 13], [10, 11, 12, 13], [20, 21, 22, 23]])
    rows = torch.tensor([11, 12, 20])
    there = torch.ones(3, 4, dtype=torch.bool)
    row = line_up._Row(candidates, there, torch.tensor([1, 2, 0]))
    told = judged(found, row, rows, torch.tensor([1, 1, 2]), 3)
    # Two of one label are the two nearest of four; an equal distance points to nobody.
    assert told["named"].tolist() == [True, True, False]
    assert told["chance"].tolist() == [0.5, 0.5, 0.25]
    assert told["other"].tolist() == pytest.approx([0.3, 0.3, 0.5])
    # The server knows that the second candidate of the third is of another label.
    there[2, 1] = False
    told = judged(found, row, rows, torch.tensor([1, 1, 2]), 3)
    assert told["named"].tolist() == [True, True, True]
    assert told["chance"].tolist() == pytest.approx([0.5, 0.5, 1 / 3])


class Slow:
    """A clock by which each image of a candidate takes so many seconds."""

    def __init__(self, monkeypatch, price):
        self.now = 0.0
        plain = line_up.line_up

        def priced(view, pixels, candidates, policy, **options):
            found = plain(view, pixels, candidates, policy, **options)
            groups = torch.cat([view.labels.flatten()[:, None], candidates], 1).unique(dim=0)
            self.now += price * len(groups) * candidates.shape[1]
            return found

        monkeypatch.setattr(line_up, "line_up", priced)

    def __call__(self):
        return self.now


@pytest.mark.parametrize(("price", "tried"), [(1e-3, True), (0.09, True), (10.0, False)])
def test_it_stays_within_its_time_and_says_what_it_had_no_time_for(monkeypatch, price, tried):
    images = photographs()
    clock = Slow(monkeypatch, price)
    config = AuditConfig(batch=1, attacked=30, budget=60.0)
    made = work.Work(
        {"untrained": small()},
        images.pixels,
        images.labels,
        config,
        cases_of(config, given=False),
        clock=clock,
    )
    (told,) = made.line_ups(line_up.SHARE)
    assert bool(told.images) == tried
    assert told.wanted == 30
    if tried:
        assert clock.now <= 0.1 * 60
        assert all(told.named)
        assert (len(told.images) == 30) == (price < 0.01)
    else:
        assert clock.now == pytest.approx(2 * price)  # two candidates are how that is known
        assert told.fault == "there was no time for it"
        clock.now = 0.0
        (told,) = made.line_ups(100.0)
        assert told.fault == "there was no time for it"
        monkeypatch.undo()
        (told,) = made.line_ups(line_up.SHARE)  # it is quicker now
        assert all(told.named)
        assert len(told.images) == 30


def test_labels_that_are_restored_are_not_lined_up_and_that_is_said():
    control, told = lined_up(labels="restored")
    assert all(control.named)
    assert "a server that knows them" in told.fault
    report = dataclasses.replace(report_of(), line_ups=(control, told))
    assert report.named is None
    assert report.line_up_sentence.endswith(f"was not tried: {told.fault}.")
    assert report.as_json()["line_ups"][1]["not_tried"] == told.fault
    assert f"Not tried: {told.case.title}" in html_page(report)


def test_images_that_have_labels_take_no_others_and_say_what_the_server_knows():
    images = photographs()
    with pytest.raises(atslib.AtsError, match="have their labels"):
        atsaudit.audit(linear(), images, images.labels)
    with pytest.raises(atslib.AtsError, match="labels 'told' is unknown"):
        atsaudit.audit(linear(), images, "told")
    model = linear()
    report = atsaudit.audit(
        model, images, "restored", untrained=model, batch=1, attacked=8, steps=4
    )
    assert report.config.labels == "restored"
    assert report.line_ups[1].fault


def test_where_no_reconstruction_works_the_report_still_says_who_is_recognized(monkeypatch):
    """One step recovers nothing, so that the audit cannot tell what can be rebuilt."""
    report = report_of(small(), attacked=24, steps=1, limit=0.05)
    hopeless = with_found(report, 0)
    hopeless = dataclasses.replace(hopeless, results=hopeless.results[1:])
    assert hopeless.verdict == CANNOT_TELL
    assert hopeless.named == 1
    assert "24 of 24 are named among 24" in hopeless.line_up_sentence
    assert "recognizes them without rebuilding any" in hopeless.line_up_sentence
    page = html_page(hopeless)
    assert hopeless.line_up_sentence in page
    assert "Who holds the photographs recognizes them all the same." in page
    strict = dataclasses.replace(hopeless.config, named_limit=0.05)
    assert dataclasses.replace(hopeless, config=strict).verdict == ABOVE


def test_a_limit_that_is_kept_by_what_is_rebuilt_does_not_hide_who_is_recognized():
    kept = with_found(report_of(limit=0.2, attacked=40), 0)
    assert (kept.verdict, kept.exit_code) == (WITHIN, 0)
    assert kept.named == 1
    assert "NOT by somebody who holds the photographs" in kept.warning
    assert "40 of 40 are named" in kept.warning
    page = html_page(kept)
    assert kept.warning in page.replace("&#39;", "'").replace("&lt;", "<")
    assert 'class="verdict open"' in page
    assert kept.as_json()["warning"] == kept.warning
    held = dataclasses.replace(
        kept, config=dataclasses.replace(kept.config, limit=0.2, named_limit=0.2)
    )
    assert (held.verdict, held.exit_code, held.warning) == (ABOVE, 3, "")
    untried = dataclasses.replace(kept, line_ups=())
    assert untried.verdict == WITHIN
    assert "is open" in untried.warning


def with_named(report, count):
    """The report, had its line-up named so many photographs beside a control that works."""
    first = report.line_ups[0]
    counted = dataclasses.replace(first.case, control=False, counts=True)
    control = dataclasses.replace(first, case=dataclasses.replace(first.case, counts=False))
    named = tuple(number < count for number in range(len(first.images)))
    told = dataclasses.replace(first, case=counted, named=named)
    return dataclasses.replace(report, line_ups=(control, told))


def test_a_limit_on_who_is_named_is_kept_only_beyond_doubt():
    report = with_found(report_of(limit=0.2, named_limit=0.2, attacked=40), 0)
    codes = [with_named(report, count).exit_code for count in range(41)]
    within = [count for count in range(41) if upper_bound(count, 40) <= 0.2]
    assert codes[: len(within)] == [0] * len(within)
    assert set(codes[len(within) :]) == {4, 3}
    assert codes == sorted(codes, key=[0, 4, 3].index)
    kept = with_named(report, 0)
    assert kept.limits == "found at most 20.0%, named at most 20.0%"
    control, told = kept.line_ups
    for line_ups, words in (
        ((told,), "On the positive control the line-up was not tried"),
        ((dataclasses.replace(control, named=told.named), told), "the line-up named 0 of 40"),
        ((control, dataclasses.replace(told, fault="why")), "no line-up was tried, because why"),
        (
            (control, dataclasses.replace(told, case=dataclasses.replace(told.case, batch=2))),
            "compares each candidate alone",
        ),
    ):
        doubtful = dataclasses.replace(kept, line_ups=line_ups)
        assert doubtful.verdict == CANNOT_TELL
        assert words in " ".join(doubtful.doubts)


def test_a_limit_on_who_is_named_is_one_on_what_is_found_as_well():
    assert AuditConfig(named_limit=0.05).limit == 0.05
    assert AuditConfig(named_limit=0.05, limit=0.2).limit == 0.05
    assert AuditConfig(named_limit=0.2, limit=0.05).limit == 0.05
    for wrong in (0, 1, "5%"):
        with pytest.raises(atslib.AtsError, match="named_limit"):
            AuditConfig(named_limit=wrong)


def test_a_network_without_a_gradient_names_nobody():
    report = report_of(Silent())
    assert report.named == 0
    assert report.named_rows[0].own is None
    assert "does not name more of them" in report.line_up_sentence
    json.dumps(report.as_json(), allow_nan=False)


def test_a_line_up_that_is_kept_is_not_made_once_more(tmp_path, monkeypatch):
    first = report_of(folder=tmp_path)
    monkeypatch.setattr(line_up, "line_up", None)
    again = report_of(folder=tmp_path, named_limit=0.5)
    assert again.as_json()["line_ups"] == first.as_json()["line_ups"]
    assert again.verdict == ABOVE
    assert first.verdict == NO_LIMIT
    assert math.isfinite(again.line_ups[0].seconds)


def test_a_recorded_update_is_lined_up_with_crops_and_mirror_images(place, capsys):
    """The client mirrored its photograph, which a server has to reckon with."""
    torch.manual_seed(3)
    layer = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, CLASSES))
    before = {name: value.detach().clone() for name, value in layer.state_dict().items()}
    images = photographs()
    number = sorted(images.class_names).index(images.class_names[int(images.labels[5])])
    mirrored = (images.pixels[[5]].flip(3) / 255 - 0.5) / 0.25
    for _ in range(2):
        layer.zero_grad()
        nn.functional.cross_entropy(layer(mirrored), torch.tensor([number])).backward()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter -= 0.01 * parameter.grad
    folder = place / "seen"
    folder.mkdir()
    save_file(before, folder / "sent.safetensors")
    save_file(layer.state_dict(), folder / "received.safetensors")
    facts = {"lr": 0.01, "steps": 2, "images": [file_of(5)]}
    (folder / "update.json").write_text(json.dumps(facts))
    status = shell(*NORM, "--update", str(folder), "--limit", "named<=50%")
    said = capsys.readouterr().out
    told = json.loads((place / "out" / "report.json").read_text())["line_ups"][1]
    assert told["title"].startswith("a recorded update trained on 1 image")
    assert (told["named"], told["images"]) == (1, 1)
    assert status == 4  # one photograph decides nothing
    assert "1 of 1 are named" in said


def test_the_command_has_a_limit_on_who_is_named(place, capsys):
    assert shell(*NORM, "--batch", "1", "--limit", "found<=99%, named<=5%") == 3
    said = capsys.readouterr().out
    assert "8 of 8 are named among 24" in said
    assert "above the limit (found at most 5.0%, named at most 5.0%)" in said
    for wrong in ("named<=5%,named<=6%", "seen<=5%", "found<=5%,"):
        assert shell(*NORM, "--batch", "1", "--limit", wrong) == 2
        assert "'named<=5%'" in capsys.readouterr().err


def test_the_control_alone_has_its_line_up_too():
    report = atsaudit.audit(linear(1), photographs(), batch=1, attacked=8, steps=4, pretrained=True)
    control, given = report.named_rows
    assert (control.control, control.counts, given.counts) == (True, False, True)
    assert report.worst_line_up == given
