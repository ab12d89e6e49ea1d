"""Restored labels: exact where the rules' assumptions hold, against counting by hand, and what is
refused.
"""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from checks import refused
from torch import nn
from torch.nn.utils import prune

import atslib
from atslib.attacks import ATTACKS, reconstruct, restore_labels
from atslib.attacks.analytic import last_features
from atslib.attacks.labels import RULES, infer_labels, to_counts
from atslib.clients.observe import Observed, ThreatModel, observe
from atslib.measures.batches import label_share
from atslib.models import Normalize, build_model
from atslib.rng import rng

CLASSES = 10
pytestmark = pytest.mark.usefixtures("one_thread")


def same_features(*, bias=True):
    """A network whose features are the same for every image, and positive: what Eq. 16 assumes,
    exactly.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, last = nn.Linear(3, 6), nn.Linear(6, CLASSES, bias=bias)
    nn.init.zeros_(first.weight)
    model = nn.Sequential(
        Normalize((0.5,), (0.25,)), nn.Sequential(nn.Flatten(), first, nn.Sigmoid(), last)
    )
    return model.double().eval()


def seen_of(model, labels, batch, *, dark=False, **more):
    """What clients with these labels, a row of them each, share; images are noise, in a tenth of
    the range if dark.
    """
    side = 1 if isinstance(model[1][0], nn.Flatten) else 8
    pixels = torch.rand(labels.numel(), 3, side, side, generator=rng(0, "pixels")).to(
        next(model.parameters())
    )
    pixels = pixels / 10 if dark else pixels
    threat = ThreatModel(labels="restored", batch=batch)
    return observe(model, pixels, labels.flatten(), threat=threat, **more)


@pytest.mark.parametrize("rule", ["features", "published"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_thousand_random_multisets_are_counted_where_all_features_are_equal(rule, bias):
    model, restored = same_features(bias=bias), 0
    for batch, count in ((1, 300), (2, 300), (5, 200), (16, 150), (64, 45), (256, 5)):
        labels = torch.randint(CLASSES, (count, batch), generator=rng(0, "labels", batch))
        by_hand = [
            [n for n in range(CLASSES) for label in row if label == n] for row in labels.tolist()
        ]
        assert restore_labels(seen_of(model, labels, batch), rng=0, rule=rule).tolist() == by_hand
        restored += count
    assert restored == 1_000


@pytest.mark.parametrize(
    ("batch", "rules"), [(1, tuple(RULES)), (4, ("minima", "features", "published"))]
)
def test_every_rule_tells_different_labels_of_an_untrained_network(batch, rules):
    model = build_model("lenet", CLASSES, image_size=8, rng=rng(0)).double()
    labels = torch.stack([torch.randperm(CLASSES, generator=rng(i))[:batch] for i in range(20)])
    for rule in rules:
        restored = restore_labels(seen_of(model, labels, batch), rng=0, rule=rule)
        assert label_share(restored, labels).mean() > 0.8, rule  # 0.4 and less by chance


def test_a_repeated_label_is_lost_on_the_column_minima_alone():
    model = build_model("lenet", CLASSES, image_size=8, rng=rng(0)).double()
    seen = seen_of(model, torch.tensor([[7, 7, 7, 2]]), 4)
    assert restore_labels(seen, rng=0).tolist() == [[2, 7, 7, 7]]
    once = restore_labels(seen, rng=0, rule="minima")[0]
    assert len(set(once.tolist())) == 4
    assert {2, 7} <= set(once.tolist())


def test_features_of_the_gradient_serve_where_dummy_data_mislead():
    """Dark images, and features that follow the color: probabilities are not those of noise of all
    colors.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = (
            nn.AvgPool2d(8),
            nn.Flatten(),
            nn.Linear(3, 20),
            nn.Sigmoid(),
            nn.Linear(20, CLASSES),
        )
        nn.init.normal_(layers[-1].weight, std=1)
    model = nn.Sequential(Normalize((0.5,), (0.25,)), nn.Sequential(*layers)).double().eval()
    labels = torch.randint(CLASSES, (60, 8), generator=rng(1))
    seen, rules = seen_of(model, labels, 8, dark=True), ("features", "published", "minima")
    right = {
        rule: label_share(restore_labels(seen, rng=0, rule=rule), labels).mean() for rule in rules
    }
    assert right["features"] > max(right["published"], right["minima"]) + 0.03, right


def test_labels_of_several_updates_are_those_of_the_same_images():
    labels = torch.tensor([[3, 3, 9], [0, 1, 1]])
    rounds = [seen_of(same_features(), labels, 3, defense="gaussian:1e-3", rng=i) for i in range(3)]
    assert restore_labels(Observed.join(rounds), rng=0).tolist() == [[3, 3, 9], [0, 1, 1]]


def test_counts_are_the_nearest_whole_numbers_of_that_sum():
    estimates = 4 * torch.rand(30, 3, generator=rng(0)) - 1
    allowed = [c for c in itertools.product(range(6), repeat=3) if sum(c) == 5]
    for estimate, counts in zip(estimates, to_counts(estimates, 5), strict=True):
        error = [float((torch.tensor(c) - estimate).square().sum()) for c in allowed]
        assert (counts - estimate).square().sum() == pytest.approx(min(error), abs=1e-6)
    least = torch.tensor([[0, 0, 2]])
    assert to_counts(torch.tensor([[3.0, 2.4, 0.1]]), 5, least).tolist() == [[2, 1, 2]]
    assert to_counts(torch.tensor([[3.0, 2.4, 0.1]]), 5, 9 * least).tolist() == [
        [3, 2, 0]
    ]  # such a bound is none


def test_an_attack_goes_by_the_restored_labels():
    seen = seen_of(same_features(), labels := torch.tensor([[4, 1], [8, 8]]), 2)
    assert seen.labels is None
    attack = replace(ATTACKS["adam-l2"], steps=2)
    start = torch.rand(4, 3, 1, 1, generator=rng(5))
    found = reconstruct(seen, attack, rng=rng(0), start=start)
    known = replace(seen, labels=labels.sort(1).values, threat=ThreatModel(batch=2))
    assert found.labels.tolist() == [[1, 4], [8, 8]]
    assert torch.equal(found.images, reconstruct(known, attack, rng=rng(0), start=start).images)


@pytest.mark.parametrize(
    ("batch", "rule", "words"),
    [
        (2, "idlg", "the rule 'idlg' tells the label of one image; ThreatModel.batch=2"),
        (12, "minima", "12 images of 10 classes cannot be told"),
        (1, "best", "rule 'best' is unknown"),
    ],
)
def test_a_rule_that_does_not_hold_is_refused(batch, rule, words):
    seen = seen_of(same_features(), torch.zeros(1, batch, dtype=torch.int64), batch)
    with refused(words):
        restore_labels(seen, rng=0, rule=rule)


def test_a_last_layer_that_is_not_linear_is_refused():
    layers = nn.Conv2d(3, 5, 8), nn.Flatten()
    model = nn.Sequential(Normalize((0.5,), (0.25,)), nn.Sequential(*layers)).eval()
    with refused("the last layer is a Conv2d, and must be a Linear"):
        restore_labels(seen_of(model, torch.zeros(1, 2, dtype=torch.int64), 2), rng=0)


def test_what_was_not_observed_has_no_labels():
    with refused("seen is a str"):
        restore_labels("a gradient", rng=0)


def without_a_bias(kind, classes):
    """A network whose last layer has no bias and gets features of both signs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        middle = {
            "layer norm": nn.LayerNorm(32),
            "tanh": nn.Tanh(),
            "gelu": nn.GELU(),
            "linear": nn.Identity(),
        }[kind]
        layers = nn.Flatten(), nn.Linear(192, 32), middle, nn.Linear(32, classes, bias=False)
        return nn.Sequential(Normalize((0.5,), (0.25,)), nn.Sequential(*layers)).double().eval()


def each_label(model, classes):
    pixels = torch.rand(classes, 3, 8, 8, generator=rng(0, "pixels")).double()
    return observe(model, pixels, torch.arange(classes), threat=ThreatModel(labels="inferred"))


@pytest.mark.parametrize("kind", ["layer norm", "tanh", "gelu", "linear"])
@pytest.mark.parametrize("classes", [3, 8])
def test_labels_are_inferred_without_a_bias_whatever_sign_features_have(kind, classes):
    seen = each_label(without_a_bias(kind, classes), classes)
    assert infer_labels(seen).flatten().tolist() == list(range(classes))
    restored = replace(seen, threat=ThreatModel(labels="restored"))
    told = restore_labels(restored, rng=0, rule="idlg")
    assert told.flatten().tolist() == list(range(classes))


class Scores(nn.Module):
    """Makes its scores of what its last layer gives."""

    def __init__(self, made):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.Tanh(), nn.Flatten())
        self.last = nn.Linear(128, 8)
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.made = made

    def forward(self, x):
        return self.made(self.last(self.body(x)), self.weight)


def scores_by(made):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(Normalize((0.5,), (0.25,)), Scores(made)).double().eval()


MADE = {
    "temperature": (lambda out, _: out / 0.1, True, False),
    "log_softmax": (lambda out, _: out.log_softmax(1), True, True),
    "negative": (lambda out, _: -out, False, False),
    "other order": (lambda out, _: out.flip(1), False, False),
    "weight of the network's own": (lambda out, weight: out @ weight, False, False),
    "cosine": (lambda out, weight: F.normalize(out) @ F.normalize(weight, dim=0), False, False),
}


@pytest.mark.filterwarnings("ignore:1.weight takes no part")
@pytest.mark.parametrize("name", MADE)
def test_labels_are_told_only_where_the_last_layer_gives_the_scores(name):
    made, inferred, restored = MADE[name]
    seen = each_label(scores_by(made), 8)
    if inferred:
        assert infer_labels(seen).flatten().tolist() == list(range(8))
    else:
        with refused("labels cannot be inferred: the scores are not what the last layer '1.last'"):
            infer_labels(seen)
    seen = replace(seen, threat=ThreatModel(labels="restored"))
    if restored:
        assert restore_labels(seen, rng=0).flatten().tolist() == list(range(8))
    else:
        with refused("labels cannot be restored: the scores are not what the last layer '1.last'"):
            restore_labels(seen, rng=0)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch's vmap
@pytest.mark.parametrize(
    "computed",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.parametrizations.orthogonal,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    ],
    ids=["weight_norm", "spectral_norm", "orthogonal", "pruned"],
)
def test_of_a_last_layer_whose_weight_is_computed_the_bias_tells(computed):
    """And no layer before it is taken for the last, though it has as many rows."""
    model = scores_by(lambda out, _: out)
    model[1].last = computed(model[1].last)
    with pytest.warns(UserWarning, match="1.weight takes no part"):
        seen = each_label(model, 8)
    assert infer_labels(seen).flatten().tolist() == list(range(8))
    with refused("last linear layer is computed from other parameters"):
        last_features(seen.updates[0])
    with refused("the weight of the last layer '1.last' is computed from other parameters"):
        restore_labels(replace(seen, threat=ThreatModel(labels="restored")), rng=0)


def test_of_two_classes_without_a_bias_features_of_both_signs_tell_no_label():
    seen = each_label(without_a_bias("layer norm", 2), 2)
    with pytest.raises(atslib.AtsError, match="cannot be inferred: the last layer has no bias"):
        infer_labels(seen)
    positive = without_a_bias("tanh", 2)
    positive[1][2] = nn.Sigmoid()
    assert infer_labels(each_label(positive, 2)).flatten().tolist() == [0, 1]
