"""Published numbers, summaries, verdicts by their rule, stored results and the answer table."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pandas as pd
import pytest
from checks import refused

from atslib.errors import AtsError
from atslib.report import result as report
from atslib.report.book.answers import CLAIMS, answers, insert_answers
from atslib.report.pages.claim1_defenses import defenses_verdict
from atslib.report.pages.claim1_privacy import PRIVACY_RULE, privacy_verdict
from atslib.report.pages.claim2_generality import generality_verdict
from atslib.report.reported import policy_label, reported
from atslib.report.result import NO_POLICY, Result, Verdict, stored_digest
from atslib.report.verdicts import cannot_tell, does_not_matter, guards

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


def test_every_published_number_says_where_it_is_printed_and_in_what_unit():
    rows = reported()
    assert set(rows["source"]) >= {"ats", "replication"}
    assert set(rows["claim"]) >= {str(claim.number) for claim in CLAIMS if claim.figures}
    for column in ("source", "table_or_figure", "metric"):
        assert (rows[column] != "").all()
    assert np.isfinite(rows["value"].dropna()).all()


def test_reported_names_the_columns_and_the_values_there_are():
    with pytest.raises(AtsError, match="no column 'tabel'; there are source, table_or_figure, claim"):
        reported(tabel="Table 1a")
    with pytest.raises(AtsError, match=r"table_or_figure='Table 9'; there are .*Table 1a"):
        reported(table_or_figure="Table 9")
    with pytest.raises(AtsError, match="policy_or_defense='0-0-0'"):
        reported(table_or_figure="Table 1a", policy_or_defense="0-0-0")


@pytest.mark.parametrize(
    ("published", "label"),
    [
        ("hybrid:3-1-7+43-18-18", "3-1-7+43-18-18"),
        ("random:19-1-18", "19-1-18"),
        ("3-1-7", "3-1-7"),
        ("none", "none"),
    ],
)
def test_policy_label_is_the_policy_alone(published, label):
    assert policy_label(published) == label


BASE = [12.0, 18.0, 15.0, 9.0, 14.0, 16.0]


def attacks(floor=10.0, **shifts):
    """One row per policy and image: `none` has BASE, another BASE plus its shift, or its list."""
    parts = []
    for policy, shift in ({NO_POLICY: 0.0} | shifts).items():
        values = shift if isinstance(shift, list) else [value + shift for value in BASE]
        rows = {"policy": policy, "image": range(len(values)), "psnr": values, "floor_mean": floor}
        parts.append(pd.DataFrame(rows))
    return pd.concat(parts, ignore_index=True)


# --- the verdict on claim 1 ---------------------------------------------------------------------------------

GOOD = {"p": -4.0, "q": -5.0, "h": -6.0}
CONTROL = pd.DataFrame({"psnr": [20.0, 16.0], "floor_mean": [10.0, 12.0]})  # a lead of 7 dB
ACCURACY = {NO_POLICY: 70.0, "p": 60.0, "q": 50.0, "h": 68.0}  # percent


def judged(shifts=GOOD, floor=10.0, accuracy=ACCURACY, control=CONTROL, table=None):
    table = attacks(floor, **shifts) if table is None else table
    return privacy_verdict(table, pd.Series(accuracy), control, ("p", "q"), "h")


def test_claim_1_is_reproduced_when_every_condition_holds():
    verdict = judged()  # two points of accuracy are allowed
    assert verdict == Verdict(
        "reproduced",
        "the hybrid lowers the PSNR (-6.0 dB [-6.0, -6.0], -2.0 points)",
        PRIVACY_RULE,
        "14.00 → 8.00 dB (-6.0 [-6.0, -6.0]), 70.0 → 68.0 %",  # absolute, like the published numbers beside it
    )


UNSURE = [value + d for value, d in zip(BASE, (9, -9, 8, -8, 7, -9), strict=True)]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"shifts": GOOD | {"q": 1.0}}, "q does not lower the PSNR (+1.0 dB)"),
        ({"shifts": GOOD | {"p": UNSURE}}, "p does not lower the PSNR (-0.3 dB)"),
        ({"floor": 14.0}, "without a policy attacks do not beat the mean image (+0.0 dB ["),
        ({"floor": 13.0}, "without a policy attacks do not beat the mean image (+1.0 dB ["),
        ({"accuracy": ACCURACY | {"h": 67.9}}, "the hybrid costs 2.1 points of accuracy"),
        ({"accuracy": ACCURACY | {"h": NAN}}, "the hybrid costs nan points of accuracy"),
    ],
)
def test_claim_1_is_partly_reproduced_when_one_other_condition_fails(case, reason):
    verdict = judged(**case)
    assert verdict.status == "partly"
    assert verdict.reason.startswith("the hybrid lowers the PSNR (-6.0 dB")
    assert verdict.reason.count("; but ") == 1
    assert reason in verdict.reason


def test_claim_1_lists_every_condition_that_fails():
    verdict = judged(GOOD | {"p": 0.5, "q": 1.0}, floor=20.0, accuracy=ACCURACY | {"h": 30.0})
    assert verdict.status == "partly"
    assert len(verdict.reason.split("; but ")[1].split("; ")) == 4


@pytest.mark.parametrize("hybrid", [0.0, 2.0, UNSURE])
def test_claim_1_is_not_reproduced_when_the_hybrid_is_not_lower(hybrid):
    verdict = judged(GOOD | {"h": hybrid})
    assert verdict.status == "not reproduced"
    assert verdict.here.endswith("]), 70.0 → 68.0 %")


@pytest.mark.parametrize(("psnr", "lead"), [([13.0, 12.9], "2.0"), ([5.0, 5.0], "-6.0"), ([NAN, NAN], "nan")])
def test_claim_1_cannot_be_told_when_the_control_fails(psnr, lead):
    verdict = judged(control=pd.DataFrame({"psnr": psnr, "floor_mean": [11.0, 11.0]}))
    assert verdict.status == "cannot tell"
    assert f"leads its floor by {lead} dB" in verdict.reason
    assert verdict.here == ""


def test_claim_1_needs_a_lead_of_exactly_two_decibels():
    assert judged(control=pd.DataFrame({"psnr": [13.0], "floor_mean": [11.0]})).status == "reproduced"


def test_claim_1_cannot_be_told_where_one_image_allows_no_interval():
    table = attacks(**GOOD)
    assert judged(table=table[table["image"] == 0]).status == "cannot tell"
    assert judged(GOOD | {"h": [NAN] * 5 + [1.0]}).status == "cannot tell"


def test_a_diverged_undefended_attack_does_not_pass_for_a_leak():
    """One nan must neither switch the condition off nor count as a success."""
    table = attacks(20.0, **GOOD)  # far below the mean image
    table.loc[0, "psnr"] = NAN
    verdict = judged(table=table)
    assert verdict.status == "partly"
    assert "do not beat the mean image" in verdict.reason
    table = attacks(5.0, **GOOD)
    table.loc[0, "psnr"] = NAN
    assert judged(table=table).status == "reproduced"


def test_the_rule_names_each_condition_and_a_verdict_one_of_the_words():
    for word in ("Reproduced", "Partly", "Not reproduced", "Cannot tell", "2 points", "2 dB", "95 %"):
        assert word in PRIVACY_RULE
    with pytest.raises(AtsError, match="verdict 'proved' must be one of reproduced, partly"):
        Verdict("proved", "", "")


# --- what every verdict needs ---------------------------------------------------------------------------------


def undefended(lead=3.0, images=40, draws=1, floor="floor_policy"):
    """Undefended attacks that lead the floor by `lead` dB on average, and defended ones that must not count."""
    rows = [
        {"policy": policy, "image": image, "draw": draw, "psnr": 10 + shift + 2 * (image % 2) - 1, floor: 10.0}
        for policy, shift in ((NO_POLICY, lead), ("a", -50.0))
        for image in range(images)
        for draw in range(draws)
    ]
    return pd.DataFrame(rows)


def test_nothing_guards_a_precise_measurement_of_a_working_attack():
    accuracies = {"none": 70.0, "a": 2.1}
    assert guards(undefended(), effect=(-3, -1), published=-6.2, accuracies=accuracies, classes=100) == []
    assert guards() == []


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"attacks": undefended(lead=0.1)}, "undefended attacks do not beat the policy's mean image (+0.1 dB ["),
        ({"attacks": undefended(lead=-4.0)}, "undefended attacks do not beat the policy's mean image (-4.0 dB ["),
        ({"attacks": undefended(lead=0.1, floor="floor_mean")}, "undefended attacks do not beat the mean image"),
        ({"attacks": undefended(images=29)}, "29 images are fewer than 30"),
        ({"attacks": undefended(images=15, draws=2)}, "15 images are fewer than 30"),
        ({"images": 29}, "29 images are fewer than 30"),
        ({"effect": (-7.0, 0.5), "published": -6.2}, "holds both 0 and the published -6.20"),
        ({"effect": (-0.1, 0.7), "published": 0.7}, "holds both 0 and the published 0.70"),
        ({"effect": (NAN, NAN), "published": 1.0}, "the effect has no interval"),
        ({"accuracies": {"none": 2.0}, "classes": 100}, "the network none is at 2.0 %, within twice chance (2.0 %)"),
        ({"accuracies": {"x": NAN}, "classes": 10}, "the network x is at nan %, within twice chance (20.0 %)"),
    ],
)
def test_each_guard_alone_says_why_nothing_can_be_told(case, reason):
    (found,) = guards(**case)
    assert reason in found


def test_an_interval_that_excludes_0_or_the_published_effect_tells():
    assert guards(images=30, effect=(-7.0, -0.1), published=-6.2) == []
    assert guards(images=30, effect=(-6.0, 1.0), published=-6.2) == []
    assert guards(images=30, effect=(-6.0, 1.0)) == []


def test_the_floor_that_knows_the_policy_goes_before_the_mean_image():
    table = undefended().assign(floor_mean=0.0, floor_policy=20.0)
    assert len(guards(table)) == 1


def test_diverged_undefended_attacks_lead_by_nothing():
    table = undefended(lead=3.0)
    table.loc[table["image"] < 38, "psnr"] = NAN
    assert "do not beat" in guards(table)[0]


def test_a_guarded_verdict_says_why_it_cannot_tell_and_keeps_what_was_measured():
    verdict = Verdict("reproduced", "because", "the rule", "-6.0 dB")
    assert cannot_tell(verdict, []) is verdict
    assert cannot_tell(verdict, ["a", "b"]) == Verdict("cannot tell", "a; b", "the rule", "-6.0 dB")
    unmeasured = Verdict("not measured", "because", "the rule")
    assert cannot_tell(unmeasured, ["a"]) is unmeasured


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [(-0.4, 0.4, True), (0.1, 0.3, True), (-0.6, 0.1, False), (-3, 3, False), (NAN, NAN, False)],
)
def test_what_does_not_matter_has_a_narrow_interval(low, high, told):
    assert does_not_matter(low, high) is told


# --- results ------------------------------------------------------------------------------------------------

FACTS = {
    "profile": "quick",
    "dataset": "cifar100",
    "model": "resnet20-1",
    "fraction": 0.1,
    "train": 50000,
    "epochs": 15,
    "images": 17,
    "steps": 313,
    "seed": 5,
    "device": "CPU, 2 cores",
    "made": "2026-01-02",
    "torch": "2.13.0",
    "python": "3.11.7",
    "note": "packed tenth",
}


def result(page="claim1_privacy", verdict=None, tables=None, **facts):
    tables = tables or {
        "attacks": attacks(a=-3.0),
        "accuracy": pd.DataFrame({"policy": ["none"], "accuracy": [70.25]}),
    }
    return Result(page, tables, FACTS | facts, verdict or judged())


def test_a_result_is_written_as_tables_verdict_and_facts(tmp_path):
    made = result()
    folder = made.write(tmp_path)
    assert folder == tmp_path / "claim1_privacy" / "cifar100-quick"
    assert sorted(p.name for p in folder.iterdir()) == [
        "accuracy.csv",
        "attacks.csv",
        "facts.json",
        "verdict.json",
    ]
    pd.testing.assert_frame_equal(pd.read_csv(folder / "attacks.csv"), made.tables["attacks"], check_dtype=False)
    assert json.loads((folder / "facts.json").read_text()) == made.facts
    assert Verdict(**json.loads((folder / "verdict.json").read_text())) == made.verdict


def test_the_digest_is_that_of_the_stored_tables_and_of_nothing_else(tmp_path):
    made = result()
    assert stored_digest(made.write(tmp_path)) == made.digest
    assert len(made.digest) == 12
    assert result(made="2030-01-01", verdict=Verdict("partly", "", "")).digest == made.digest
    changed = {name: table.copy() for name, table in made.tables.items()}
    changed["attacks"].loc[3, "psnr"] += 0.01
    assert result(tables=changed).digest != made.digest


def test_writing_again_leaves_no_table_of_an_older_run(tmp_path):
    older = result()
    older.write(tmp_path)
    newer = result(tables={"attacks": attacks(a=-3.0)})
    folder = newer.write(tmp_path)
    assert stored_digest(folder) == newer.digest != older.digest
    assert not (folder / "accuracy.csv").exists()


def test_the_banner_names_what_made_the_page():
    made = result()
    shown = [str(value) for name, value in FACTS.items() if name not in ("fraction", "train")]
    for text in (*shown, "10%", "50,000", made.digest, "n = 17 images", "seed 5"):
        assert text in made.banner, text
    assert "stand-in" not in made.banner
    for dataset in ("shapes", "shapes-grey"):
        assert "Embedded stand-in images" in result(dataset=dataset).banner
    assert result(note="").banner.endswith(f"tables {made.digest}.</div>")
    assert "convnet-16, untrained; n = " in result(model="convnet-16", epochs=0).banner


@pytest.mark.parametrize("status", report.STATUSES)
def test_the_headline_holds_the_verdict_its_reason_and_its_rule(status):
    verdict = Verdict(status, "because of this", "if that, then this")
    for profile, scale in (("smoke", " at this scale"), ("quick", " at this scale"), ("full", "")):
        headline = result(verdict=verdict, profile=profile).headline
        assert f">{status}{scale}</span> because of this." in headline
        assert f'data-status="{status}"' in headline
        assert "if that, then this" in headline


# --- the answer table ---------------------------------------------------------------------------------------


def rows(text):
    """The cells of each claim's row."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def test_without_results_the_answers_are_the_published_numbers_and_not_measured_yet(tmp_path):
    table = rows(answers(tmp_path))
    assert [row[0][:2] for row in table] == [f"{i}." for i in range(1, 8)]
    assert all(row[3:] == ["–", "not measured yet"] for row in table)
    assert table[0][1] == "13.88 → 7.64 dB, 76.9 → 77.9 %"
    assert table[0][2] == "12.15 → 8.25 dB, 78.1 → 77.5 %"
    assert table[6][1:3] == ["r = 0.697", "r = 0.123"]


def test_a_measured_claim_is_linked_with_its_numbers_and_scale(tmp_path):
    result().write(tmp_path)
    first, second, *_ = rows(answers(tmp_path, link="x/{}.html"))
    assert first[0] == "[1. Searched policies lower the attack's PSNR and keep the accuracy](x/claim1_privacy.html)"
    assert first[3] == "14.00 → 8.00 dB (-6.0 [-6.0, -6.0]), 70.0 → 68.0 % (n=17, resnet20-1, quick)"
    assert first[4] == '<span class="verdict" data-status="reproduced">reproduced at this scale</span>'
    assert second[4] == "not measured yet"


def test_the_full_profile_goes_before_quick_and_its_verdict_has_no_scale(tmp_path):
    result(dataset="aaa").write(tmp_path)
    result(profile="full", verdict=Verdict("not reproduced", "", ""), model="resnet20-4").write(tmp_path)
    row = rows(answers(tmp_path))[0]
    badge = '<span class="verdict" data-status="not reproduced">not reproduced</span>'
    assert row[3:] == ["– (n=17, resnet20-4, full)", badge]


@pytest.mark.parametrize(("dataset", "profile"), [("shapes", "full"), ("shapes-grey", "quick"), ("cifar100", "smoke")])
def test_embedded_images_and_smoke_never_count(tmp_path, dataset, profile):
    result(dataset=dataset, profile=profile).write(tmp_path)
    assert rows(answers(tmp_path)) == rows(answers(tmp_path / "none"))


def test_a_result_whose_writing_was_killed_does_not_count(tmp_path):
    folder = result().write(tmp_path)
    whole = answers(tmp_path)
    for last in ("facts.json", "verdict.json"):
        (folder / last).unlink()
        assert rows(answers(tmp_path))[0][4] == "not measured yet"
    shutil.rmtree(folder)
    result().write(tmp_path)
    assert answers(tmp_path) == whole


def test_inserting_answers_changes_only_what_is_between_the_marks(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("# Title\n\n<!-- answers -->\nold\n<!-- answers -->\n\nrest\n")
    for table in ("| new |\n", answers(tmp_path)):
        insert_answers(path, table)
        assert path.read_text() == f"# Title\n\n<!-- answers -->\n{table}<!-- answers -->\n\nrest\n"


@pytest.mark.parametrize("text", ["# Title\n", "<!-- answers -->\n", "<!-- answers -->\n" * 3, None])
def test_answers_need_two_marks(tmp_path, text):
    path = tmp_path / "README.md"
    if text is not None:
        path.write_text(text)
    with refused("must hold two lines <!-- answers -->", str(path)):
        insert_answers(path, "| new |\n")
    assert (path.read_text() if path.exists() else None) == text


def test_claims_are_the_papers_seven_and_each_has_its_own_page():
    assert [claim.number for claim in CLAIMS] == [1, 2, 3, 4, 5, 6, 7]
    assert all(claim.page.startswith(f"claim{claim.number}_") for claim in CLAIMS)
    assert dataclasses.is_dataclass(CLAIMS[0])


# --- claims 1 (defenses) and 2 -----------------------------------------------------------------------------


def rows_of(names, column, gains, *, drop=3.0, images=8):
    """Made-up rows: undefended attacks at 15 dB with these gains, the hybrid `drop` dB lower."""
    rows = []
    for name in names:
        for image in range(images):
            wobble = 0.1 * image
            bare = {column: name, "policy": "none", "image": image, "psnr": 15 + wobble, "gain": gains + wobble}
            rows += [bare, bare | {"policy": "a+b", "psnr": 15 - drop + 1.1 * wobble}]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("drop", "gain", "status"),
    [(3.0, 1.0, "reproduced"), (3.0, -2.0, "partly"), (-1.0, 1.0, "not reproduced")],
)
def test_claim_2_follows_its_rule_on_made_up_tables(drop, gain, status):
    table = rows_of(["x", "y"], "attack", gain, drop=drop)
    assert generality_verdict(table, ["x", "y"], "a+b").status == status


def test_claim_2_is_partly_reproduced_when_one_of_three_attacks_is_not_lowered():
    table = pd.concat([rows_of(["x", "y"], "attack", 1.0), rows_of(["z"], "attack", 1.0, drop=-1.0)])
    verdict = generality_verdict(table, ["x", "y", "z"], "a+b")
    assert (verdict.status, verdict.here[:23]) == ("partly", "lower for 2 of 3 attack")


def test_one_image_decides_neither_attacks_nor_defenses():
    table = rows_of(["x", "y"], "attack", 1.0)
    assert generality_verdict(table[table["image"] == 0], ["x", "y"], "a+b").status == "not measured"
    table = defended(10.0)
    assert defenses_verdict(table[table["image"] == 0], DEFENSE_ACCURACY, "a+b").status == "not measured"


def defended(hybrid, gain=1.0):
    means = {"none": 15.0, "prune:0.7": 12.0, "gaussian:0.01": 9.0, "a+b": hybrid}
    rows = [
        {"defense": name, "applied": "fixed", "image": i, "psnr": mean + 0.1 * i, "gain": gain + 0.1 * i}
        for name, mean in means.items()
        for i in range(8)
    ]
    # The gradient that is not perturbed must not count.
    return pd.DataFrame([*rows, {"defense": "prune:0.7", "applied": "code", "image": 0, "psnr": 0.0, "gain": 0.0}])


DEFENSE_ACCURACY = pd.Series({"none": 77.0, "prune:0.7": 75.0, "gaussian:0.01": 40.0, "a+b": 77.5})


@pytest.mark.parametrize(
    ("hybrid", "gain", "cost", "status"),
    [
        (10.0, 1.0, 0, "reproduced"),  # 9 dB of noise does not count: it costs 37 points
        (10.0, -3.0, 0, "partly"),
        (10.0, 1.0, 4, "partly"),
        (13.0, 1.0, 0, "not reproduced"),
    ],
)
def test_the_hybrid_is_compared_with_usable_defenses_only(hybrid, gain, cost, status):
    accuracy = DEFENSE_ACCURACY - pd.Series({"a+b": cost}).reindex(DEFENSE_ACCURACY.index, fill_value=0)
    verdict = defenses_verdict(defended(hybrid, gain), accuracy, "a+b")
    assert verdict.status == status
    assert "of 1 usable defenses" in verdict.here
