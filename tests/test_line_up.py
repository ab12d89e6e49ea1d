"""A server that compares gradients of candidates: right always for one image behind an exact gradient."""

import dataclasses

import pytest
import torch
from torch import nn

import atslib
from atslib.attacks.line_up import line_up, line_up_each
from atslib.errors import AtsError
from atslib.models import Normalize
from atslib.policies.differentiable import forms
from atslib.policies.draws import Draw
from atslib.policies.policy import Policy

HYBRID = "3-1-7+43-18-18"
IMAGES = atslib.load("shapes", "test")
ROWS = [3, 14, 27]
CANDIDATES, OWN = atslib.own_class(IMAGES.labels, ROWS, most=6)
LABELS = IMAGES.labels[ROWS]


def network(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Conv2d(3, 6, 5, 2), nn.Sigmoid(), nn.AdaptiveAvgPool2d(6), nn.Flatten()]
        return nn.Sequential(Normalize([0.5] * 3, [0.25] * 3), *layers, nn.Linear(216, 10)).eval()


def sent(policy="", *, crop_flip=True, seed=1):
    drawn = atslib.draw(len(ROWS), policy, rng=atslib.rng(seed), crop_flip=crop_flip)
    return drawn, drawn.apply(IMAGES.pixels[ROWS]) / 255


def seen_of(images, **options):
    return atslib.observe(network(), images, LABELS, **options)


def draws_of(found, policy):
    """What each guess says that was drawn, one `Draw` of a single image each."""
    for down, across, mirror, number in found.draws.tolist():
        ids, signs = forms(policy)[number]
        yield Draw(
            Policy(ids),
            torch.tensor([[down, across]]),
            torch.tensor([bool(mirror)]),
            torch.zeros(1, dtype=torch.int64),
            torch.tensor([signs], dtype=torch.int64).view(1, len(ids)),
        )


@pytest.mark.parametrize(
    ("policy", "by"), [("", "features"), (HYBRID, "features"), ("43-18-18", "gradients")]
)
def test_every_photograph_is_found_with_the_draw_of_its_client(policy, by):
    _, images = sent(policy)
    found = line_up(seen_of(images), IMAGES.pixels, CANDIDATES, policy, by=by)
    assert found.guess.tolist() == OWN.tolist()
    assert (found.distances.gather(1, OWN[:, None]) < 1e-2).all()
    for row, each in enumerate(draws_of(found, policy)):
        assert torch.equal(each.apply(IMAGES.pixels[[ROWS[row]]]) / 255, images[[row]])


def test_the_search_agrees_with_trying_every_image():
    _, images = sent(HYBRID)
    seen = seen_of(images)
    quick = line_up(seen, IMAGES.pixels, CANDIDATES, HYBRID)
    whole = line_up(seen, IMAGES.pixels, CANDIDATES, HYBRID, complete=True)
    assert torch.equal(quick.guess, whole.guess)
    assert torch.equal(quick.draws, whole.draws)
    assert (quick.tried < whole.tried).all()
    assert whole.tried.tolist() == [6 * len(forms(HYBRID)) * 2 * 81] * 3
    assert (quick.distances >= whole.distances - 1e-6).all()


def test_the_complete_search_is_the_plain_loop():
    _, images = sent("3-1")
    found = line_up(seen_of(images), IMAGES.pixels, CANDIDATES, "3-1", complete=True)
    model = network()
    wanted = model[:-1](images)
    (ids,) = {ids for ids, _ in forms("3-1")}
    best = torch.full(CANDIDATES.shape, torch.inf)
    for row in range(len(ROWS)):
        for k, candidate in enumerate(CANDIDATES[row].tolist()):
            made = []
            for _, signs in forms("3-1"):
                for flip in (False, True):
                    offsets = torch.cartesian_prod(torch.arange(9), torch.arange(9))
                    pixels = IMAGES.pixels[[candidate]].expand(81, -1, -1, -1)
                    pixels = atslib.transforms.crop_flip(pixels, offsets, torch.full((81,), flip))
                    signed = torch.tensor(signs).expand(81, len(ids))
                    made.append(atslib.parse_policy("3-1").apply_signs(pixels, signed))
            away = (model[:-1](torch.cat(made) / 255) - wanted[row]).norm(dim=1)
            best[row, k] = away.min() / wanted[row].norm()
    torch.testing.assert_close(found.distances, best.detach(), atol=1e-4, rtol=1e-3)


def test_a_photograph_that_is_not_among_the_candidates_has_no_near_one():
    _, images = sent("")
    others = CANDIDATES.clone()
    others[torch.arange(3), OWN] = CANDIDATES[torch.arange(3), (OWN + 1) % 6]
    found = line_up(seen_of(images), IMAGES.pixels, others)
    assert (found.distances.amin(1) > 0.01).all()


def test_a_batch_of_distinct_labels_is_compared_by_the_row_of_each_label():
    _, images = sent("", crop_flip=False)
    assert len(set(LABELS.tolist())) == 3
    seen = seen_of(images, threat=atslib.ThreatModel(batch=3))
    found = line_up(seen, IMAGES.pixels, CANDIDATES, crop_flip=False)
    assert found.guess.tolist() == OWN.tolist()


def test_in_a_batch_labels_that_repeat_are_compared_by_gradients_and_the_others_by_features():
    rows = [*(IMAGES.labels == IMAGES.labels[3]).nonzero().flatten()[:2].tolist(), 14]
    candidates, own = atslib.own_class(IMAGES.labels, rows, most=6)
    seen = atslib.observe(
        network(),
        IMAGES.pixels[rows] / 255,
        IMAGES.labels[rows],
        threat=atslib.ThreatModel(batch=3),
    )
    found = line_up(seen, IMAGES.pixels, candidates, crop_flip=False)
    alone = line_up(seen, IMAGES.pixels, candidates, crop_flip=False, by="gradients")
    assert torch.equal(found.distances[:2], alone.distances[:2])
    assert found.guess[2] == own[2]
    # Of the two the server names the two that come nearest.
    assert set(found.distances[0].topk(2, largest=False).indices.tolist()) == set(own[:2].tolist())


def test_networks_of_which_no_row_is_a_labels_own_are_compared_by_gradients():
    class Twice(nn.Module):
        """Its last layer gives one of its two scores, as a network of one logit does."""

        def __init__(self):
            super().__init__()
            self.normalize = Normalize([0.5] * 3, [0.25] * 3)
            self.layer = nn.Linear(3 * 32 * 32, 1)

        def forward(self, images):
            scores = self.layer(self.normalize(images).flatten(1))
            return torch.cat([-scores, scores], 1)

    torch.manual_seed(0)
    model = Twice().eval()
    rows = [int((IMAGES.labels == label).nonzero()[2]) for label in (0, 1)]
    images, labels = IMAGES.pixels[rows] / 255, torch.tensor([0, 1])
    threat = atslib.ThreatModel(batch=2)
    seen = atslib.observe(model, images, labels, threat=threat)
    candidates, _ = atslib.own_class(IMAGES.labels, rows, most=6)
    found = line_up(seen, IMAGES.pixels, candidates, crop_flip=False)
    alone = line_up(seen, IMAGES.pixels, candidates, crop_flip=False, by="gradients")
    assert torch.equal(found.distances, alone.distances)
    with pytest.raises(AtsError, match="a row of the last layer for each label, and it has 1"):
        line_up(seen, IMAGES.pixels, candidates, crop_flip=False, by="features")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("by", ["features", "gradients"])
def test_networks_of_other_precisions_are_compared_in_theirs(dtype, by):
    images = sent("", crop_flip=False)[1].to(dtype)
    seen = atslib.observe(network().to(dtype), images, LABELS)
    found = line_up(seen, IMAGES.pixels, CANDIDATES, crop_flip=False, by=by)
    assert found.guess.tolist() == OWN.tolist()


def test_photographs_of_one_class_share_the_work_and_get_their_own_answers():
    rows = (IMAGES.labels == IMAGES.labels[3]).nonzero().flatten()[:2].tolist()
    candidates, own = atslib.own_class(IMAGES.labels, rows, most=6)
    images = atslib.draw(2, "", rng=atslib.rng(5)).apply(IMAGES.pixels[rows]) / 255
    together = atslib.observe(network(), images, IMAGES.labels[rows])
    found = line_up(together, IMAGES.pixels, candidates)
    assert found.guess.tolist() == own.tolist()
    assert found.tried[0] == found.tried[1]


def test_several_gradients_of_the_same_photographs_are_compared_as_each_alone():
    policy = "1+0"  # of three forms
    seen = [
        seen_of(sent(policy, seed=1)[1]),
        seen_of(sent("", seed=2)[1], defense="gaussian:0.01", rng=atslib.rng(3)),
        seen_of(sent("", seed=4)[1], threat=atslib.ThreatModel(batch=3)),
    ]
    together = line_up_each(seen, IMAGES.pixels, CANDIDATES, policy)
    for each, found in zip(seen, together, strict=True):
        alone = line_up(each, IMAGES.pixels, CANDIDATES, policy, complete=True)
        torch.testing.assert_close(found.distances, alone.distances)
        assert torch.equal(found.guess, alone.guess)
        assert torch.equal(found.tried, alone.tried)
    assert together[0].guess.tolist() == OWN.tolist()


def test_gradients_that_cannot_share_the_work_are_refused():
    images = sent("")[1]
    other = atslib.observe(network(seed=1), images, LABELS)
    for seen, says in (
        ([], "at least one"),
        ([seen_of(images), other], "different weights"),
        ([atslib.clients.view.Observed.join([seen_of(images)] * 2)], "2 rounds"),
    ):
        with pytest.raises(AtsError, match=says):
            line_up_each(seen, IMAGES.pixels, CANDIDATES)


def test_several_rounds_add_their_distances():
    rounds = [seen_of(sent("1", seed=seed)[1]) for seed in (1, 2)]
    one, two = (line_up(seen, IMAGES.pixels, CANDIDATES, "1", complete=True) for seen in rounds)
    both = line_up(
        atslib.clients.view.Observed.join(rounds), IMAGES.pixels, CANDIDATES, "1", complete=True
    )
    torch.testing.assert_close(both.distances, one.distances + two.distances)


def test_a_gradient_of_zeros_tells_nothing():
    _, images = sent("")
    seen = seen_of(images)
    update = dataclasses.replace(seen.updates[0], gradients=torch.zeros_like(seen.gradients))
    for by in ("features", "gradients"):
        found = line_up(
            dataclasses.replace(seen, updates=(update,)), IMAGES.pixels, CANDIDATES, by=by, most=20
        )
        assert found.guess.tolist() == [-1] * 3
        assert found.margin.tolist() == [0.0] * 3
        assert (found.draws == -1).all()


def test_no_more_images_are_tried_than_asked_for():
    _, images = sent(HYBRID)
    seen = seen_of(images, defense="gaussian:0.1", rng=3)
    found = line_up(seen, IMAGES.pixels, CANDIDATES, HYBRID, most=250)
    first = 6 * len(forms(HYBRID)) * 2  # all forms at the middle crop
    assert (found.tried <= max(250, first)).all()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"candidates": CANDIDATES[:2]}, "B = 3"),
        ({"candidates": CANDIDATES + len(IMAGES.labels)}, "two rows of"),
        ({"candidates": CANDIDATES[:, :1]}, "two rows of"),
        ({"most": 0}, "most=0"),
        ({"by": "pixels"}, "pixels"),
        ({"photographs": IMAGES.pixels[:, :, :16]}, "behind the gradients"),
    ],
)
def test_wrong_calls_end_in_one_sentence(options, says):
    _, images = sent("")
    call = {"photographs": IMAGES.pixels, "candidates": CANDIDATES} | options
    with pytest.raises(AtsError, match=says):
        line_up(seen_of(images), **call)


def test_labels_must_be_known_and_of_features_distinct():
    _, images = sent("")
    hidden = seen_of(images, threat=atslib.ThreatModel(labels="inferred"))
    with pytest.raises(AtsError, match="known label"):
        line_up(hidden, IMAGES.pixels, CANDIDATES)
    twice = atslib.observe(
        network(), images, LABELS[:1].expand(3), threat=atslib.ThreatModel(batch=3)
    )
    with pytest.raises(AtsError, match="repeat in a batch"):
        line_up(twice, IMAGES.pixels, CANDIDATES, by="features")


def test_batch_statistics_need_gradients():
    layers = [nn.Conv2d(3, 6, 5, 2), nn.BatchNorm2d(6), nn.Sigmoid(), nn.Flatten()]
    torch.manual_seed(0)
    model = nn.Sequential(Normalize([0.5] * 3, [0.25] * 3), *layers, nn.Linear(1176, 10))
    images = sent("", crop_flip=False)[1]
    seen = atslib.observe(model, images, LABELS, threat=atslib.ThreatModel(victim="train"))
    with pytest.raises(AtsError, match="by='gradients'"):
        line_up(seen, IMAGES.pixels, CANDIDATES, crop_flip=False, by="features")
    found = line_up(seen, IMAGES.pixels, CANDIDATES, crop_flip=False)
    assert found.guess.tolist() == OWN.tolist()
    assert (found.distances.gather(1, OWN[:, None]) < 1e-3).all()
