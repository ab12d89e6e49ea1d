"""The rules of claims 2 (the search) and 6 on made-up numbers whose verdict is known, and at their
boundaries.
"""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from atsbook.pages.claim2_search import search_verdict
from atsbook.pages.claim6_transformations import FUNCTIONS, NOTHING, transformations_verdict

# --- claim 6 ------------------------------------------------------------------------------------------------

NAMED = [3, 15, 18, 26, 1]
OTHERS = [40, 38, 37, 27, 20]
NOISE = np.array([0.2, -0.2, 0.1, -0.1])


def scores(best, below, images=4):
    """28 scores: `best` are the five lowest functions, of the named ones `below` lie surely below
    doing nothing.

    Doing nothing scores 0.5. The other named ones score lower or higher than that, image by image.
    """
    table = pd.DataFrame(np.full((len(FUNCTIONS), images), 0.6), index=FUNCTIONS)
    table.loc[NOTHING] = 0.5
    for op in {*best, *NAMED}:
        level = 0.4 if op in best else 0.45
        sure = op in below or op not in NAMED
        table.loc[op] = level if sure else level + 0.05 + NOISE[:images] * 2 - 0.051 * (op in best)
    return table


@pytest.mark.parametrize(
    ("best", "below", "status"),
    [
        (NAMED, NAMED, "reproduced"),
        ([3, 15, 18, 26, 40], NAMED, "reproduced"),  # four are enough
        ([3, 15, 18, 40, 38], NAMED, "partly"),  # three are not
        (NAMED, NAMED[:4], "partly"),  # one of the five does not surely hide anything
        ([3, 15, 40, 38, 37], [], "partly"),  # two shared
        ([3, 40, 38, 37, 27], NAMED[:3], "partly"),  # one shared, three below doing nothing
        (OTHERS, NAMED[:3], "partly"),
        ([3, 40, 38, 37, 27], NAMED[:2], "not reproduced"),
        (OTHERS, [], "not reproduced"),
    ],
)
def test_the_rule_of_claim_6(best, below, status):
    table = scores(best, below)
    five = {*table.mean(axis=1).nsmallest(5).index}
    assert five == {*best}, "the table is not what the case needs"
    verdict = transformations_verdict(table, NAMED)
    shared = len({*best} & {*NAMED})
    assert verdict.status == status
    assert verdict.here == f"{shared} of the paper's five among ours"
    assert f"{len(below)} of the five score below doing nothing" in verdict.reason
    assert f"({', '.join(map(str, sorted(best)))})" in verdict.reason
    assert f"probability {stats.hypergeom.sf(shared - 1, 28, 5, 5):.2g};" in verdict.reason


@pytest.mark.parametrize(
    ("images", "status"), [(1, "cannot tell"), (3, "cannot tell"), (4, "reproduced")]
)
def test_fewer_than_four_images_rank_nothing(images, status):
    verdict = transformations_verdict(scores(NAMED, NAMED, images), NAMED, "replication")
    assert verdict.status == status
    assert verdict.here == (
        "" if status == "cannot tell" else "5 of the replication's five among ours"
    )


def test_an_effect_that_is_the_images_is_no_effect():
    """The differences to doing nothing are paired: what an image adds to every score does not hide
    them.
    """
    table = scores(NAMED, NAMED) + 10 * NOISE
    assert transformations_verdict(table, NAMED).status == "reproduced"


# --- claim 2, the search ------------------------------------------------------------------------------------


def attacked(hybrid, random, gain=5.0, images=30):
    """Attacks' rows: changes of the gain to no policy, in dB, of the found hybrid and of two random
    ones' mean.
    """
    noise = np.resize([-0.3, 0.2, 0.1, -0.1, 0.0, 0.1], images)
    changes = {
        "none": 0 * noise,
        "h": hybrid + noise,
        "r1": random + 1 - noise,
        "r2": random - 1 - noise,
    }
    rows = [
        pd.DataFrame(
            {
                "policy": name,
                "image": range(images),
                "gain": gain + change,
                "psnr": 9 + gain + change,
            }
        )
        for name, change in changes.items()
    ]
    return pd.concat(rows).assign(floor_policy=9.0)


def judged_search(*changes, accuracy=(60.0, 59.0), **options):
    return search_verdict(
        attacked(*changes, **options),
        pd.Series(dict(zip(("none", "h"), accuracy, strict=True))),
        "h",
        ["r1", "r2"],
        10,
    )


@pytest.mark.parametrize(
    ("hybrid", "random", "cost", "status", "fault"),
    [
        (-3, -1, 1, "reproduced", ""),
        (-3, -1, 2, "reproduced", ""),
        (-3, -1, -4, "reproduced", ""),  # it even helps
        (-3, -1, 9.5, "reproduced", ""),
        (-3, -1, 10.5, "partly", "it keeps 79% of what is learned"),
        (-3, -3, 1, "partly", "it is not lower than that of random hybrids"),
        (-1, -4, 1, "partly", "it is not lower than that of random hybrids"),
        (1, 3, 0, "partly", "it is not lower than that of no policy"),
        (0, 0, 1, "not reproduced", ""),
        (1, 0, 0, "not reproduced", ""),
    ],
)
def test_the_rule_of_the_search(hybrid, random, cost, status, fault):
    verdict = judged_search(hybrid, random, accuracy=(60.0, 60.0 - cost))
    assert verdict.status == status
    assert fault in verdict.reason
    assert verdict.here.startswith(f"against no policy {hybrid:+.1f} dB [")


def test_how_many_random_hybrids_leave_less_is_said():
    assert "1 of 2 random hybrids have a lower gain" in judged_search(-3, -2.5).reason


def test_an_accuracy_that_was_not_measured_or_is_chance_does_not_pass():
    assert judged_search(-3, -1, accuracy=(60.0, np.nan)).status == "partly"
    assert "within twice chance" in judged_search(-3, -1, accuracy=(19.0, 19.0)).reason


@pytest.mark.parametrize(("gain", "images"), [(5.0, 29), (0.0, 30), (-2.0, 30)])
def test_the_search_is_not_judged_on_few_images_or_where_nothing_leaks(gain, images):
    assert judged_search(-3, -1, gain=gain, images=images).status == "cannot tell"
