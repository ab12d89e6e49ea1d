"""The last column of Deviations: words from tables where the answer is known, and the committed
page is up to date.
"""

import json

import pandas as pd
import pytest

from atsbook.findings.result import FILE
from atsbook.texts import effects
from atslib.errors import AtsError
from atslib.files import project_root

BOOK = project_root() / "book" / "deviations.md"


def stored(results, page, **tables):
    """A page's tables on real data at profile laptop, as `Result.write` leaves them."""
    folder = results / page / "cifar100-laptop"
    folder.mkdir(parents=True)
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv.gz", index=False)
    facts = {"dataset": "cifar100", "model": "resnet20-1", "images": 4, "profile": "laptop"}
    (folder / FILE).write_text(json.dumps({"facts": facts}))
    return results


def attacked(column, **shift):
    """Four images in each group, `shift` dB above images of 7 to 10 dB."""
    rows = [
        {column: name, "image": i, "psnr": 7.0 + i + up}
        for name, up in shift.items()
        for i in range(4)
    ]
    return pd.DataFrame(rows).assign(policy="none")


def test_a_change_is_that_of_the_second_on_the_same_images_and_says_where(tmp_path):
    table = attacked("attack", **{"sgd-cosine": 0.0, "sgd-cosine-fixed": -1.25, "adam-cosine": 9.0})
    hidden = table.assign(policy="3-1-7", psnr=0.0)
    results = stored(tmp_path, "claim2_generality", attacks=pd.concat([table, hidden]))
    assert effects.effect("sgd", results) == (
        "sgd-cosine → sgd-cosine-fixed: -1.2 dB [-1.2, -1.2] "
        "([cifar100, resnet20-1, n = 4, laptop](results/claim2_generality.ipynb))"
    )


def test_tables_of_an_earlier_version_have_not_measured_it(tmp_path):
    accuracy = pd.DataFrame(
        {"training": ["with", "without"], "accuracy": [8.0, 9.0], "model": "resnet20-1"}
    )
    results = stored(
        tmp_path, "ext4_hidden_details", accuracy=accuracy, attacks=attacked("setting", other=0.0)
    )
    assert effects.effect("crop-target", results) == effects.UNKNOWN
    assert effects.effect("crop-training", results).startswith("resnet20-1: 9.0 → 8.0 % accuracy")


def test_seeds_and_trainings_are_told_apart(tmp_path):
    parts = [
        attacked("setting", **{"resnet20-1": 0.0, "other training seed": 0.5}).assign(
            over="networks"
        )
    ]
    parts += [attacked("setting", **{"seed 0": 0.0, "seed 1": 2.0}).assign(over="seeds, no policy")]
    results = stored(tmp_path, "ext3_which_images_leak", others=pd.concat(parts))
    assert "weights and training: +0.5 dB [0.5, 0.5] (" in effects.effect("weights", results)
    assert "same network and images, 2 seeds: no policy 8.5 to 10.5 dB (" in effects.effect(
        "seeds", results
    )


def test_a_switch_names_its_data_and_network_where_they_are_not_the_pages_own(tmp_path):
    parts = [
        attacked("setting", base=0.0, **{"4 restarts": 1.0}).assign(
            dataset="cifar100", model="lenet"
        )
    ]
    for name, sizes, up in (("28 pixels", "fmnist", 0.0), ("32 pixels", "fmnist-32", 2.0)):
        parts.append(
            attacked("setting", **{name: up}).assign(dataset=sizes, model="lenet", gain=up)
        )
    results = stored(tmp_path, "switches", attacks=pd.concat(parts))
    assert effects.effect("restarts", results).startswith("+1.0 dB [1.0, 1.0] ([cifar100")
    size = effects.effect("size", results)
    assert size.startswith(
        "fmnist → fmnist-32: gain +2.0 dB [2.0, 2.0] on fmnist-32, lenet, n = 4 ("
    )


def test_on_untrained_networks_a_defense_is_compared_with_none(tmp_path):
    shifts = dict.fromkeys(effects.DEFENSES, -3.0) | {"none": 0.0}
    table = attacked("defense", **shifts).assign(applied="fixed")
    words = effects.effect("where", stored(tmp_path, "claim1_defenses", attacks=table))
    assert words.startswith(
        "on the shared gradient, against none: prune:0.7 -3.0 dB [-3.0, -3.0]; prune:0.95 -3.0"
    )


def test_where_a_defense_acts_is_compared_defense_by_defense(tmp_path):
    two = [
        attacked("applied", fixed=up, code=0.0).assign(defense=name)
        for name, up in (("a", -2.0), ("b", 3.0))
    ]
    two.append(attacked("applied", fixed=50.0).assign(defense="none"))  # has no such pair
    words = effects.effect("where", stored(tmp_path, "claim1_defenses", attacks=pd.concat(two)))
    assert "a -2.0 dB [-2.0, -2.0]; b +3.0 dB [3.0, 3.0] (" in words


def test_correlations_are_of_means_over_images_by_network(tmp_path):
    table = pd.DataFrame({"policy": list("aabbcc"), "psnr": [1, 3, 3, 5, 5, 7.0]})
    table = table.assign(
        **{"s_pri early": [2, 2, 4, 4, 6, 6.0], "s_pri late": [3, 3, 2, 2, 1, 1.0]}
    )
    words = effects.effect("correlation", stored(tmp_path, "claim7_correlation", policies=table))
    assert "over 3 policies" in words
    assert "1.00 (early), -1.00 (late)" in words


def test_scores_are_compared_by_order_and_threshold(tmp_path):
    scores = pd.DataFrame({"s_acc fixed": [-1.0, -2, -3, -4], "s_acc paper": [1.0, 2, 3, 4]})
    scores = scores.assign(
        **{"s_acc code": [-60.0, -85, -86, -100], "s_pri fixed": [0.1, 0.2, 0.3, 0.4]}
    )
    scores = scores.assign(**{"s_pri fixed variance": 0.0, "s_pri code": [0.4, 0.3, 0.1, 0.2]})
    results = stored(tmp_path, "switches", scores=scores)
    assert "−85 rejects 50% of 4 policies, which score -100 to -60" in effects.effect(
        "threshold", results
    )
    assert (
        "rank correlation of both orders -1.00 over 4 policies, 0 of the first 1"
        in effects.effect("sign", results)
    )
    assert "rank correlation of both orders 1.00" in effects.effect("ranking", results)
    assert "rank correlation of both orders -0.80" in effects.effect("gradsim", results)


def test_marks_are_filled_again_and_again_and_what_is_not_measured_says_so(tmp_path):
    page = tmp_path / "deviations.md"
    page.write_text(
        "".join(
            f"| x | <!-- effect: {name} -->before<!-- /effect --> |\n" for name in effects.EFFECTS
        )
    )
    effects.insert_effects(page, tmp_path)
    once = page.read_text()
    assert once.count(effects.UNKNOWN) == len(effects.EFFECTS)
    assert "before" not in once
    effects.insert_effects(page, tmp_path)
    assert page.read_text() == once


@pytest.mark.parametrize(
    ("text", "message"),
    [("no mark", "has no <!-- effect: … --> for"), ("unknown", "effect 'unknown'")],
)
def test_a_page_without_a_mark_or_with_an_unknown_one_is_an_error(tmp_path, text, message):
    page = tmp_path / "deviations.md"
    names = () if text == "no mark" else (*effects.EFFECTS, "unknown")
    page.write_text("".join(f"<!-- effect: {name} -->before<!-- /effect -->" for name in names))
    with pytest.raises(AtsError, match=message):
        effects.insert_effects(page, tmp_path)


def test_the_committed_page_says_what_the_stored_tables_say(tmp_path):
    page = tmp_path / "deviations.md"
    page.write_text(BOOK.read_text())
    effects.insert_effects(page, project_root() / "results")
    assert page.read_text() == BOOK.read_text()


@pytest.mark.parametrize(
    "name", ["sgd", "diverged", "original", "where", "crop-training", "threshold"]
)
def test_a_column_that_is_missing_is_an_error_and_not_unmeasured(tmp_path, name):
    page = effects.EFFECTS[name][0]
    names = ("attacks", "first", "accuracy", "scores")
    table = pd.DataFrame({"image": [0], "policy": "none", "regime": "initial", "other": 1.0})
    results = stored(tmp_path, page, **dict.fromkeys(names, table))
    with pytest.raises(KeyError):
        effects.effect(name, results)
