"""Published numbers, summaries, verdicts by their rule, stored results and the answer table."""

import math
import shutil

import numpy as np
import pandas as pd
import pytest
from checks import refused

from atsbook.findings.reported import policy_label, reported
from atsbook.findings.result import NO_POLICY, Result, Verdict, stored_digest, stored_result
from atsbook.findings.table1 import HYBRID
from atsbook.findings.verdicts import cannot_tell, does_not_matter, guards
from atsbook.texts.answers import CLAIMS, claims

NAN, INF = math.nan, math.inf


# --- published numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "policy", "psnr", "accuracy"),
    [
        ("ats", "none", 13.88, 76.88),
        ("ats", "hybrid:3-1-7+43-18-18", 7.64, 77.92),
        ("replication", "none", 12.15, 78.11),
        ("replication", "hybrid:3-1-7+43-18-18", 8.25, 77.47),
    ],
)
def test_reported_holds_table_1a_of_both_papers(source, policy, psnr, accuracy):
    rows = reported(table_or_figure="Table 1a", source=source, policy_or_defense=policy)
    values = dict(zip(rows["metric"], rows["value"], strict=True))
    assert values == {"PSNR_dB": psnr, "val_accuracy_pct": accuracy}


def test_every_published_number_says_where_it_is_printed_and_in_what_request():
    rows = reported()
    assert set(rows["source"]) >= {"ats", "replication"}
    assert set(rows["claim"]) >= {str(claim.number) for claim in CLAIMS if claim.figures}
    for column in ("source", "table_or_figure", "metric"):
        assert (rows[column] != "").all()
    assert np.isfinite(rows["value"].dropna()).all()


def test_reported_names_the_columns_and_the_values_there_are():
    with refused("no column 'tabel'; there are source, table_or_figure, claim"):
        reported(tabel="Table 1a")
    with refused("table_or_figure='Table 9'; there are ", "Table 1a"):
        reported(table_or_figure="Table 9")
    with refused("policy_or_defense='0-0-0'"):
        reported(table_or_figure="Table 1a", policy_or_defense="0-0-0")


def test_policy_label_is_the_policy_alone():
    published = ("hybrid:3-1-7+43-18-18", "random:19-1-18", "3-1-7", "none")
    assert [policy_label(name) for name in published] == [
        "3-1-7+43-18-18",
        "19-1-18",
        "3-1-7",
        "none",
    ]


# --- the verdict on claim 1 ---------------------------------------------------------------------------------

CELLS = [("initial", 0, "lenet"), ("initial", 0, "convnet-16"), ("trained", 7820, "resnet20-1")]
ACCURACY = {NO_POLICY: 70.0, HYBRID: 68.0}  # percent


# --- what every verdict needs ---------------------------------------------------------------------------------


def undefended(lead=3.0, images=40, draws=1):
    """Undefended attacks that lead the floor by `lead` dB on average, and defended ones that must
    not count.
    """
    rows = [
        {
            "policy": policy,
            "image": image,
            "draw": draw,
            "psnr": 10 + shift + 2 * (image % 2) - 1,
            "floor_policy": 10.0,
        }
        for policy, shift in ((NO_POLICY, lead), ("a", -50.0))
        for image in range(images)
        for draw in range(draws)
    ]
    return pd.DataFrame(rows)


def test_nothing_guards_a_precise_measurement_of_a_working_attack():
    accuracies = {"none": 70.0, "a": 2.1}
    assert (
        guards(undefended(), effect=(-3, -1), published=-6.2, accuracies=accuracies, classes=100)
        == []
    )
    assert guards() == []


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (
            {"attacks": undefended(lead=0.1)},
            "undefended attacks do not beat the policy's mean image (+0.1 dB [",
        ),
        (
            {"attacks": undefended(lead=-4.0)},
            "undefended attacks do not beat the policy's mean image (-4.0 dB [",
        ),
        ({"attacks": undefended(images=29)}, "29 images are fewer than 30"),
        ({"attacks": undefended(images=15, draws=2)}, "15 images are fewer than 30"),
        ({"images": 29}, "29 images are fewer than 30"),
        ({"effect": (-7.0, 0.5), "published": -6.2}, "holds both 0 and the published -6.20"),
        ({"effect": (-0.1, 0.7), "published": 0.7}, "holds both 0 and the published 0.70"),
        ({"effect": (NAN, NAN), "published": 1.0}, "the effect has no interval"),
        (
            {"accuracies": {"none": 2.0}, "classes": 100},
            "the network none is at 2.0 %, within twice chance (2.0 %)",
        ),
        (
            {"accuracies": {"x": NAN}, "classes": 10},
            "the network x is at nan %, within twice chance (20.0 %)",
        ),
    ],
)
def test_each_guard_alone_says_why_nothing_can_be_told(case, reason):
    (found,) = guards(**case)
    assert reason in found


def test_an_interval_that_excludes_0_or_the_published_effect_tells():
    assert guards(images=30, effect=(-7.0, -0.1), published=-6.2) == []
    assert guards(images=30, effect=(-6.0, 1.0), published=-6.2) == []
    assert guards(images=30, effect=(-6.0, 1.0)) == []


def test_diverged_undefended_attacks_lead_by_nothing():
    table = undefended(lead=3.0)
    table.loc[table["image"] < 38, "psnr"] = NAN
    assert "do not beat" in guards(table)[0]


def test_a_guarded_verdict_says_why_it_cannot_tell_and_keeps_what_was_measured():
    verdict = Verdict("reproduced", "because", "-6.0 dB")
    assert cannot_tell(verdict, []) is verdict
    assert cannot_tell(verdict, ["a", "b"]) == Verdict("cannot tell", "a; b", "-6.0 dB")
    unmeasured = Verdict("not measured", "because")
    assert cannot_tell(unmeasured, ["a"]) is unmeasured


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [(-0.4, 0.4, True), (0.1, 0.3, True), (-0.6, 0.1, False), (-3, 3, False), (NAN, NAN, False)],
)
def test_what_does_not_matter_has_a_narrow_interval(low, high, told):
    assert does_not_matter(low, high) is told


# --- results ------------------------------------------------------------------------------------------------

FACTS = (
    {
        "profile": "laptop",
        "dataset": "cifar100",
        "model": "resnet20-1",
        "fraction": 0.1,
        "train": 50000,
        "epochs": 15,
    }
    | {"images": 17, "steps": 313, "seed": 5, "device": "CPU, 2 cores", "made": "2026-01-02"}
    | {"torch": "2.13.0", "python": "3.11.7", "note": "packed tenth"}
)
ATTACKS = pd.DataFrame(
    {"policy": ["none"] * 3 + ["a"] * 3, "image": [0, 1, 2] * 2, "psnr": [12.0, 18, 15, 9, 15, 12]}
)
FOUND = Verdict("reproduced", "it holds", "-6.0 dB [-6.0, -6.0]")


def result(page="claim1_privacy", verdict=None, tables=None, **facts):
    tables = tables or {
        "attacks": ATTACKS,
        "accuracy": pd.DataFrame({"policy": ["none"], "accuracy": [70.25]}),
    }
    return Result(page, tables, FACTS | facts, verdict or FOUND)


def test_a_result_is_written_as_tables_verdict_and_facts(tmp_path):
    made = result()
    folder = made.write(tmp_path)
    assert folder == tmp_path / "claim1_privacy" / "cifar100-laptop"
    assert {path.name for path in folder.iterdir()} == {
        "accuracy.csv.gz",
        "attacks.csv.gz",
        "result.json",
    }
    pd.testing.assert_frame_equal(
        pd.read_csv(folder / "attacks.csv.gz"), made.tables["attacks"], check_dtype=False
    )
    whole = stored_result(folder)
    assert whole["facts"] == made.facts
    assert Verdict(**whole["verdict"]) == made.verdict
    (folder / "result.json").write_text('{"facts"')
    with refused("result.json cannot be read"):
        stored_result(folder)


def test_the_digest_is_that_of_the_stored_tables_and_of_nothing_else(tmp_path):
    made = result()
    assert stored_digest(made.write(tmp_path)) == made.digest
    assert len(made.digest) == 12
    assert result(made="2030-01-01", verdict=Verdict("partly", "")).digest == made.digest
    changed = {name: table.copy() for name, table in made.tables.items()}
    changed["attacks"].loc[3, "psnr"] += 0.01
    assert result(tables=changed).digest != made.digest


def test_writing_again_leaves_no_table_of_an_older_run(tmp_path):
    older = result()
    older.write(tmp_path)
    newer = result(tables={"attacks": ATTACKS})
    folder = newer.write(tmp_path)
    assert stored_digest(folder) == newer.digest != older.digest
    assert not (folder / "accuracy.csv.gz").exists()


# --- the answer table ---------------------------------------------------------------------------------------


def rows(text):
    """The cells of each claim's row."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def test_without_results_the_claims_have_their_published_numbers_and_are_not_measured_yet(tmp_path):
    table = rows(claims(tmp_path))
    assert [row[0][:2] for row in table] == [f"{i}." for i in range(1, 8)]
    assert all(row[3:] == ["not measured yet"] for row in table)
    assert table[0][1] == "13.88 → 7.64 dB, 76.9 → 77.9 %"
    assert table[0][2] == "12.15 → 8.25 dB, 78.1 → 77.5 %"
    assert table[6][1:3] == ["r = 0.697", "r = 0.123"]


def test_a_measured_claim_is_linked_with_its_scale(tmp_path):
    result().write(tmp_path)
    first, second, *_ = rows(claims(tmp_path, link="x/{}.html"))
    assert (
        first[0]
        == "[1. Searched policies lower the attack's PSNR and keep the accuracy](x/claim1_privacy.html)"
    )
    badge = '<span class="verdict" data-status="reproduced">reproduced at this scale</span>'
    assert first[3].startswith(badge)
    assert first[3].removeprefix(badge).strip() == result().verdict.here.replace("-", "−")
    assert second[3] == "not measured yet"


def test_the_full_profile_goes_before_laptop_and_its_verdict_has_no_scale(tmp_path):
    result(dataset="aaa").write(tmp_path)
    result(profile="full", verdict=Verdict("not reproduced", ""), model="resnet20-4").write(
        tmp_path
    )
    row = rows(claims(tmp_path))[0]
    badge = '<span class="verdict" data-status="not reproduced">not reproduced</span>'
    assert row[3:] == [badge]


@pytest.mark.parametrize(
    ("dataset", "profile"), [("shapes", "full"), ("shapes-grey", "laptop"), ("cifar100", "smoke")]
)
def test_embedded_images_and_smoke_never_count(tmp_path, dataset, profile):
    result(dataset=dataset, profile=profile).write(tmp_path)
    assert rows(claims(tmp_path)) == rows(claims(tmp_path / "none"))


def test_a_result_whose_writing_was_killed_does_not_count(tmp_path):
    folder = result().write(tmp_path)
    whole = claims(tmp_path)
    (folder / "result.json").unlink()
    assert rows(claims(tmp_path))[0][3] == "not measured yet"
    shutil.rmtree(folder)
    result().write(tmp_path)
    assert claims(tmp_path) == whole


def test_claims_are_the_papers_seven_and_each_has_its_own_page():
    assert [claim.number for claim in CLAIMS] == [1, 2, 3, 4, 5, 6, 7]
    assert all(claim.page.startswith(f"claim{claim.number}_") for claim in CLAIMS)


# --- claims 1 (defenses) and 2 -----------------------------------------------------------------------------


def noisy(mean, seed, images):
    """Images' values around a mean, whose own mean is exact."""
    noise = np.random.default_rng(seed).normal(size=images)
    return mean + 0.3 * (noise - noise.mean())


def rows_of(images=40, **changes):
    """Attacks' rows: each named attack's gain undefended, and what the hybrid changes of it, in dB."""
    parts = []
    for i, (name, (gain, change)) in enumerate(changes.items()):
        bare = noisy(gain, 2 * i, images)
        for policy, values in (
            (NO_POLICY, bare),
            (HYBRID, bare + noisy(change, 2 * i + 1, images)),
        ):
            parts.append(
                pd.DataFrame(
                    {"attack": name, "policy": policy, "image": range(images), "gain": values}
                )
            )
    return pd.concat(parts, ignore_index=True)


HOLDS, FAILS, IDLE = (5.0, -2.0), (5.0, 0.0), (-1.0, -2.0)  # (gain undefended, change)
