"""The rule of claim 2 (the search) on made-up numbers whose verdict is known, and at its boundaries."""

import numpy as np
import pandas as pd
import pytest

from atsbook.pages.claim2_search import search_verdict

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
