"""The last column of Deviations: sentences with the numbers that pages export, or that nothing is measured yet; and
the committed page is up to date.
"""

import json
import re

import jinja2
import pandas as pd
import pytest
from checks import exports

from atsbook.findings.newest import exported
from atsbook.findings.result import table_file
from atsbook.texts import start
from atsbook.texts.deviations import deviations
from atsbook.texts.first_screen import MISSING
from atslib.errors import AtsError
from atslib.files import project_root

ROOT = project_root()
RESULTS = ROOT / "results"
TEMPLATE = (start.TEMPLATES / "deviations.md.jinja").read_text(encoding="utf-8")
# Page and names of every effect in the template.
CALLED = [
    (page, re.findall(r'"([^"]+)"', names))
    for page, names in re.findall(r'measured\("(\w+)", ([^)]+)\)', TEMPLATE)
]
BY_HAND = TEMPLATE.count(MISSING)
WHERE = {"dataset": "cifar100", "model": "resnet20-1", "photographs": 4, "profile": "laptop"}
CHANGE = {"mean": -1.25, "low": -1.31, "high": 0.04}


def effects(page, **known):
    """All effects of a page that the template names, not measured but for these."""
    names = [name for of, several in CALLED if of == page for name in several]
    return {"effects": {"where": WHERE, **dict.fromkeys(names), **known}}


def test_without_results_every_effect_is_not_measured_yet(tmp_path):
    page = deviations(tmp_path)
    assert page.count(MISSING) == BY_HAND + len(CALLED)
    assert "{{" not in page
    assert "{%" not in page


def test_a_page_that_exports_no_effects_has_measured_none(tmp_path):
    exports(tmp_path, "switches", {"picked": {"base": 1.0}})
    assert deviations(tmp_path) == deviations(tmp_path / "nothing")


def test_an_effect_has_the_numbers_of_its_page_and_says_where(tmp_path):
    known = effects("claim2_generality", **{"sgd-cosine-fixed": CHANGE})
    exports(tmp_path, "claim2_generality", known)
    page = deviations(tmp_path)
    assert (
        "sgd-cosine → sgd-cosine-fixed: −1.2 [−1.3, 0.0] dB "
        "([cifar100, resnet20-1, n = 4, laptop](results/claim2_generality.ipynb)) |"
    ) in page
    assert page.count(MISSING) == BY_HAND + len(CALLED) - 1


def test_one_of_two_effects_in_a_sentence_is_not_enough(tmp_path):
    exports(
        tmp_path, "claim2_generality", effects("claim2_generality", **{"lbfgs-l2-fixed": CHANGE})
    )
    assert deviations(tmp_path).count(MISSING) == BY_HAND + len(CALLED)


def test_the_effects_of_another_data_set_count_where_there_are_none_of_cifar_100(tmp_path):
    known = effects("claim2_generality", **{"sgd-cosine-fixed": CHANGE})
    known["effects"]["where"] = WHERE | {"dataset": "fmnist"}
    exports(tmp_path, "claim2_generality", known, dataset="fmnist")
    assert "dB ([fmnist, resnet20-1, n = 4, laptop](" in deviations(tmp_path)


def test_a_name_that_its_page_does_not_export_is_an_error(tmp_path):
    known = effects("claim2_generality")
    del known["effects"]["sgd-cosine-fixed"]
    exports(tmp_path, "claim2_generality", known)
    with pytest.raises(AtsError, match="effect of claim2_generality 'sgd-cosine-fixed' is unknown"):
        deviations(tmp_path)


def test_a_number_that_an_effect_does_not_have_is_an_error(tmp_path):
    exports(tmp_path, "switches", effects("switches", **{"4 restarts": {"gain": CHANGE}}))
    with pytest.raises(jinja2.UndefinedError, match="no attribute 'psnr'"):
        deviations(tmp_path)


def test_the_committed_page_says_what_the_pages_export():
    page = (ROOT / "book" / "deviations.md").read_text(encoding="utf-8")
    assert page == deviations(RESULTS), "python -m atsbook run"
    assert page.count(MISSING) == BY_HAND  # each effect was measured: no page is misspelt


@pytest.mark.parametrize("page", sorted({page for page, _ in CALLED}))
def test_every_effect_that_a_page_exports_is_in_the_text(page):
    named = {name for of, several in CALLED if of == page for name in several}
    assert set(exported(page, RESULTS)["effects"]) == named | {"where"}


@pytest.mark.parametrize("page", sorted({page for page, _ in CALLED}))
def test_effects_were_measured_where_their_page_was(page):
    facts = json.loads((RESULTS / page / "cifar100-laptop" / "result.json").read_text())["facts"]
    where = {name: facts[name] for name in ("dataset", "profile")}
    told = dict(exported(page, RESULTS)["effects"]["where"])
    assert told.pop("model") in facts["model"]  # one of its networks, or all of them
    assert told == where | {"photographs": facts["images"]}


# page, its effect and what of it, and in which table it is the mean of which setting minus which
CHANGES = [
    ("switches", ["4 restarts", "psnr"], "attacks", "setting", "4 restarts", "base"),
    ("switches", ["32 pixels", "psnr"], "attacks", "setting", "32 pixels", "28 pixels"),
    (
        "ext4_hidden_details",
        ["crop and flip of the attacked", "psnr"],
        "attacks",
        "setting",
        "crop and flip",
        "plain victim",
    ),
    (
        "ext4_hidden_details",
        ["halved loss in the attack", "squared distance"],
        "attacks",
        "setting",
        "l2, factor 0.5",
        "l2",
    ),
    (
        "claim2_generality",
        ["sgd-cosine-fixed"],
        "attacks",
        "attack",
        "sgd-cosine-fixed",
        "sgd-cosine",
    ),
    (
        "claim1_defenses",
        ["on the shared gradient", "prune:0.7"],
        "attacks",
        "defense",
        "prune:0.7",
        "none",
    ),
    ("ext3_which_images_leak", ["other weights"], "others", "setting", "other weights", "lenet"),
]


@pytest.mark.parametrize(("page", "path", "table", "by", "after", "before"), CHANGES)
def test_a_change_is_that_of_the_second_setting_in_the_stored_tables(
    page, path, table, by, after, before
):
    known = exported(page, RESULTS)["effects"]
    for name in path:
        known = known[name]
    rows = pd.read_csv(table_file(RESULTS / page / "cifar100-laptop", table))
    if by == "attack":  # without a policy
        rows = rows[rows["policy"] == "none"]
    means = rows.groupby(by)["psnr"].mean()
    assert known["mean"] == pytest.approx(means[after] - means[before], abs=1e-3)
    assert known["low"] < known["mean"] < known["high"]
