"""What a policy changes of what attacks tell of the photographs, and the rule that all pages share."""

import numpy as np
import pandas as pd
import pytest

from atsbook.findings import photographs
from atsbook.findings.statistics import interval


def attacks(bits, gain=-1.0, draws=2, images=40):
    """Rows without a policy, at six bits, and with one that tells `bits` and changes the gain."""
    stream = np.random.default_rng(0)
    rows = []
    for policy, told, lead in (("none", 6.0, 3.0), ("3-1-7", bits, 3.0 + gain)):
        for draw in range(draws):
            for image in range(images):
                noise = stream.normal(scale=0.2, size=3)
                rows.append(
                    {
                        "policy": policy,
                        "draw": draw,
                        "image": image,
                        "bits": told + noise[0],
                        "found": told > 4,
                        "gain_told": lead + noise[1],
                        "psnr": 12 + lead + noise[2],
                        "frame": 15 + lead,
                    }
                )
    return pd.DataFrame(rows).sample(frac=1, random_state=1)  # the order is not to matter


def test_changes_are_paired_by_photograph_and_draws_of_one_are_averaged():
    changed = photographs.changes(attacks(2.0), "3-1-7")
    assert changed["bits"].n == 40
    assert changed["bits"].mean == pytest.approx(-4, abs=0.1)
    assert (changed["found"].before, changed["found"].after) == (1, 0)
    assert changed["gain_told"].mean == pytest.approx(-1, abs=0.1)


def test_a_policy_protects_where_bits_fall_and_the_gain_does_not_rise():
    cases = {
        "falls": attacks(2.0),
        "gain rises": attacks(2.0, gain=2.0),
        "the same": attacks(6.0),
        "nothing to take": attacks(2.0).assign(bits=0.0),
    }
    judged = photographs.judge(cases, dict.fromkeys(cases, "3-1-7"))
    assert judged["protects"].to_dict() == {
        "falls": True,
        "gain rises": False,
        "the same": False,
        "nothing to take": False,
    }
    assert judged["tells"].to_dict()["nothing to take"] is False
    assert photographs.status(judged) == "partly"
    assert photographs.status(judged.loc[["falls"]]) == "reproduced"
    assert photographs.status(judged.loc[["the same", "gain rises"]]) == "not reproduced"
    assert photographs.status(judged.loc[["nothing to take"]]) == "cannot tell"


def test_a_larger_family_never_lowers_a_p():
    some = attacks(5.95, images=60)
    alone = photographs.judge({"one": some}, {"one": "3-1-7"})["p"]["one"]
    among = photographs.judge({"one": some}, {"one": "3-1-7"}, family=8)["p"]["one"]
    assert among == pytest.approx(min(1, 8 * alone))


def test_a_row_says_each_outcome_in_words():
    row = photographs.row(photographs.changes(attacks(2.0), "3-1-7"), draws=2)
    assert row["photographs × draws"] == "40 × 2"
    assert row["found, %"] == "100\u00a0→\u00a00"
    assert row["change of bits"].startswith("−4.0 [−4")


def test_a_level_is_a_mean_with_its_interval_in_words():
    values = pd.Series(np.random.default_rng(0).normal(-2.0, 1.0, 40))
    low, high = interval(values)
    wanted = f"{values.mean():.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")
    assert photographs.level(values, "{:.2f}") == wanted


def test_found_photographs_are_paired_draw_by_draw():
    rows = attacks(2.0, images=10)
    at = rows["image"]
    bare = rows["policy"] == "none"
    # Draw 0: six lost and one won. Draw 1: nothing changes.
    rows["found"] = at.between(0, 6).where(bare, at.isin([6, 9]))
    rows.loc[rows["draw"] == 1, "found"] = at < 3
    found = photographs.found_changes(rows, "3-1-7")
    assert found.loc[0, ["photographs", "before", "after", "lost", "won"]].tolist() == [
        10,
        7,
        2,
        6,
        1,
    ]
    # Seven photographs changed; one or none of them in one direction: 2 (1 + 7) / 2^7.
    assert found.loc[0, "p"] == pytest.approx(2 * 8 / 2**7)
    assert found.loc[1, ["lost", "won", "p"]].tolist() == [0, 0, 1]


def test_without_draws_found_photographs_are_of_one():
    rows = attacks(2.0, draws=1).drop(columns="draw")
    found = photographs.found_changes(rows, "3-1-7")
    assert found["lost"].tolist() == [40]
    assert found["p"].iloc[0] == pytest.approx(2 / 2**40)
