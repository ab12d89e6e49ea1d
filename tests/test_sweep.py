"""Attacks and scores of every policy: the numbers of single requests, rungs that keep the least;
and the rule of the page's notebook.
"""

import dataclasses
import random
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch

from atsbook.evidence.archive import Archive
from atsbook.evidence.audit import PART, differences, part_of
from atsbook.experiment import AttackRequest, OutcomeRequest
from atsbook.findings import space, statistics
from atsbook.networks import ModelRequest, network
from atsbook.requests import sweep
from atsbook.requests.scoring import ScoreRequest, unseen
from atsbook.requests.sweep import (
    Halving,
    Rung,
    SweepOutcomes,
    SweepScores,
    adjusted,
    all_policies,
    spaced,
)
from atsbook.runs.tables import image_rows
from atsbook.store import Store
from atslib.attacks import ATTACKS
from atslib.data.load import load
from atslib.measures.found import bits, match, own_class, rank
from atslib.scores.scores import accuracy_score

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
# Untrained, so that nothing has to be trained first.
LENET = ModelRequest(dataset="shapes", model="lenet", fraction=1.0, train=None, seed=0)
SHORT = dataclasses.replace(ATTACKS["annealed-lenet"], steps=10, lr=2.0, tv=0.1)
PLAN = Halving(
    model=LENET,
    rungs=(
        Rung(attack=SHORT, policies=12, first=0, last=3, each=2, size=6),
        Rung(attack=SHORT, policies=3, first=0, last=3, each=3, size=2),
    ),
)


def scores(score, variants, images, points=0):
    """Scores of the twelve policies in one request."""
    return SweepScores(
        model=LENET, score=score, variants=variants, images=images, count=12, low=0, high=12, points=points
    )  # fmt: skip


PRIVACY = scores("privacy", ("code", "fixed"), 2, 3)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("sweep") / "store")


def rungs(store):
    return PLAN, [
        [request.make(store, CPU) for request in PLAN.requests(k)] for k in range(len(PLAN.rungs))
    ]


def test_numbers_are_places_among_all_distinct_functions():
    assert len(all_policies()) == 20_439
    assert spaced(20_439) == list(range(20_439))
    few = spaced(12)
    assert (few[0], few[-1], len(set(few))) == (0, 20_438, 12)


def test_a_gain_is_that_of_the_policys_own_attack(kept):
    plan, (first, _) = rungs(kept)
    for request, made in zip(plan.requests(0), first, strict=True):
        assert (
            made["gain"].shape
            == made["image"].shape
            == (request.high - request.low, plan.rungs[0].each)
        )
        number, image = int(made["number"][1]), int(made["image"][1, 1])
        own = AttackRequest(
            model=plan.model, policy=str(all_policies()[number]), attack=plan.rungs[0].attack, first=image,
            last=image + 1, frames=0, seed=plan.seed,
        )  # fmt: skip
        alone = own.make(kept, CPU)
        both = float(made["gain"][1, 1] + made["floor"][1, 1])
        assert both == pytest.approx(float(alone["psnr"]), abs=0.05)
        assert bool(made["found"][1, 1]) == (int(alone["rank_original"]) == 1)


def test_what_the_attacks_tell_is_what_the_policys_own_attack_tells(kept):
    request = PLAN.requests(1)[0]  # each of its policies meets all three images
    told = SweepOutcomes(attacks=request).make(kept, CPU)
    assert torch.equal(told["number"], request.make(kept, CPU)["number"])
    assert SweepOutcomes(attacks=request).needs == request.needs  # the rung before, too
    own = AttackRequest(
        model=LENET, policy=str(all_policies()[int(told["number"][1])]), attack=SHORT, first=0, last=3, frames=0,
        seed=PLAN.seed,
    )  # fmt: skip
    alone = OutcomeRequest(attack=own).make(kept, CPU)
    assert told["image"][1].tolist() == [0, 1, 2]
    for name in ("psnr", "gain", "frame"):
        torch.testing.assert_close(told[name][1], alone[name], atol=0.05, rtol=0)
    # of the very same images, since a last bit may decide a rank
    model = network(LENET).eval()
    _, _, made = sweep._recovered(request, model, told["number"].tolist(), CPU)
    test = load("shapes", "test")
    candidates, truth = own_class(test.labels, range(3))
    alike = match(made[3:6], test.pixels, candidates, own.policy)
    assert torch.equal(told["rank"][1], rank(alike, truth))
    assert torch.equal(told["bits"][1], bits(alike, truth))


def test_the_floor_is_near_that_of_many_images(kept):
    _, (first, _) = rungs(kept)
    number, image = int(first[0]["number"][0]), int(first[0]["image"][0, 0])
    own = AttackRequest(
        model=LENET, policy=str(all_policies()[number]), attack=SHORT, first=image, last=image + 1, frames=0
    )  # fmt: skip
    row = image_rows(own.make(kept, CPU), own).iloc[0]
    assert float(first[0]["floor"][0, 0]) == pytest.approx(row["floor_policy"], abs=0.5)


def test_each_rung_goes_on_with_those_of_least_gain(kept):
    _, (first, second) = rungs(kept)
    gain, image, number = (
        torch.cat([made[name] for made in first]) for name in ("gain", "image", "number")
    )
    order = adjusted(gain, image).mean(1).sort().indices
    assert (
        torch.cat([made["number"] for made in second]).tolist()
        == number[order][: sum(len(m["number"]) for m in second)].tolist()
    )


def test_scores_are_those_of_the_score_pages(kept):
    made = PRIVACY.make(kept, CPU)["scores"]
    policies = tuple(str(all_policies()[n]) for n in spaced(12))
    for place, variant in enumerate(PRIVACY.variants):
        request = ScoreRequest(model=LENET, policies=policies, images=2, points=3, variant=variant)
        torch.testing.assert_close(
            made[place], request.make(kept, CPU)["scores"].to(made), rtol=1e-4, atol=1e-5
        )
    found = scores("accuracy", ("code",), 8).make(kept, CPU)["scores"][0, 3, 0]
    own = accuracy_score(
        network(LENET).eval(), unseen("shapes")[:8], policies[3], variant="code", rng=0
    )
    assert float(found) == pytest.approx(own, rel=1e-5)


def test_requests_come_back_from_the_archive_and_are_audited_in_parts(kept, tmp_path):
    plan, (first, second) = rungs(kept)
    archive = Archive(tmp_path / "requests")
    archive.write(kept, embedded=True)
    again = Store(tmp_path / "again")
    archive.restore(again)
    request = plan.requests(0)[0]
    assert again.has(request.kind, request)
    assert torch.equal(request.make(again, CPU)["gain"], first[0]["gain"])
    assert torch.equal(plan.requests(1)[0].make(again, CPU)["number"], second[0]["number"])
    for whole in (request, PRIVACY):
        part = part_of(whole, random.Random(0))
        assert part.high - part.low == PART
        now = part.make(Store(tmp_path / "part"), CPU)
        off = differences(whole, part, whole.make(again, CPU).tensors, now.tensors)
        assert np.abs(off).max() < 0.05
    assert (
        part_of(plan.requests(1)[0], random.Random(0)) is None
    )  # what it attacks depends on all of the rung before


# --- the rule -----------------------------------------------------------------------------------------------

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "ext10_all_policies.ipynb"


def cell(words):
    """The source of the one code cell of the notebook that holds these words."""
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    (found,) = [each.source for each in cells if each.cell_type == "code" and words in each.source]
    return found


def status(best, short=(-2.0, -0.6), told=(4.0, 6.0), images=40):
    """What the rule's cell makes of intervals of bits by the best answer and by the short attack."""
    ends = {"best": best, "short": short}
    changes = {
        name: {"bits": {"mean": sum(each) / 2, "low": each[0], "high": each[1]}}
        for name, each in ends.items()
    }
    few = {name: pd.DataFrame({"image": range(images)}) for name in ends}
    bare = pd.DataFrame({"image": range(40), "bits": np.linspace(*told, 40)})
    without = pd.concat([bare.assign(attack="best"), bare.assign(attack="short", bits=5.0)])
    names = {"changes": changes, "judged": few, "without": without, "statistics": statistics}
    exec(cell("by_best, by_short = changes"), names)
    return names["status"]


@pytest.mark.parametrize(
    ("best", "short", "expected"),
    [
        ((-2.0, -0.6), (-2.0, -0.6), "reproduced"),
        ((-2.0, -0.6), (-0.4, 0.3), "reproduced"),  # the best answer decides
        ((-0.4, -0.1), (-2.0, -0.6), "partly"),
        ((-0.4, -0.1), (-0.4, 0.3), "partly"),
        ((-0.4, 0.3), (-2.0, -0.6), "partly"),  # from the short attack alone
        ((-0.4, 0.3), (-0.4, 0.3), "not reproduced"),
        ((0.1, 0.9), (-0.8, 0.2), "not reproduced"),
        ((-0.8, 0.2), (-0.4, 0.3), "cannot tell"),
    ],
)
def test_the_rule_judges_by_the_intervals_of_both_attacks(best, short, expected):
    assert status(best, short) == expected


def test_the_rule_cannot_tell_where_attacks_fail_or_images_are_few():
    assert status((-2.0, -0.6), told=(-1.0, 1.0)) == "cannot tell"
    assert status((-2.0, -0.6), images=29) == "cannot tell"


def test_the_lead_weighs_by_the_chance_to_be_chosen():
    gains, numbers = {7: 1.0, 3: 2.0, 9: 5.0, 1: 3.0}, (7, 3, 9, 1)
    judged = pd.DataFrame(
        [
            {"number": number, "place": place, "image": place, "bits": gain + place}
            for number, gain in gains.items()
            for place in range(3)
        ]
    )
    names = {"numbers": numbers, "half": 2, "np": np, "space": space}
    names["chances"] = pd.Series({1: 0.0, 3: 0.2, 5: 0.0, 7: 0.6, 9: 0.2})
    source = cell("preferred = np.arange")
    lead = source[source.index("preferred = np.arange") : source.index("changes = {")]
    exec(lead, names)
    change = names["beside_random"](judged, "bits")
    rivals = (5.0, 3.0)
    of_choice = (0.6 * 1 + 0.2 * 2) / 0.8
    expected = (of_choice - sum(rivals) / 2, of_choice - max(rivals), of_choice - min(rivals))
    assert (change["mean"], change["low"], change["high"]) == pytest.approx(expected)
