"""Claim 6 and extension 2: which ids are one function, how scores rank them, and the rule in both
notebooks on made-up numbers.
"""

from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from atsbook.figures import plots
from atsbook.findings import transformations
from atsbook.findings.reported import reported
from atsbook.findings.statistics import interval
from atsbook.findings.transformations import FUNCTIONS, NOTHING, first_id, twins
from atsbook.runs.study import Study
from atslib.policies.policy import Policy

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
PAGES = ("claim6_transformations", "ext2_transformations_tinyimagenet")
# Of the authors' table: levels do not matter to equalize, and four shifts are by as much.
EQUALIZE = [9, 16, 17, 22, 30, 32, 33, 35, 46]
SHIFTS = [24, 42, 43, 48]
ORDER = sorted(FUNCTIONS)
RISING = 0.3 + 0.001 * np.arange(28)


def scores_of(values, images=6):
    """Scores of the functions in the order of their first ids, (28,) or (28, images)."""
    matrix = np.broadcast_to(np.asarray(values, float).reshape(28, -1), (28, images))
    return pd.DataFrame(matrix, ORDER).rename_axis(index="op", columns="image")


def rule(page):
    """The source of the one cell that states a page's rule."""
    cells = nbformat.read(NOTEBOOKS / f"{page}.ipynb", as_version=4).cells
    (found,) = [cell.source for cell in cells if "rule" in cell.metadata.get("tags", ())]
    return found


def test_ids_of_one_function():
    assert twins(9) == twins(46) == EQUALIZE
    assert twins(43) == SHIFTS
    assert twins(28) == twins(39) == [28, 39]
    assert twins(3) == [3]
    assert len(FUNCTIONS) == len({tuple(twins(op)) for op in range(50)}) == 28


def test_scores_that_do_not_vary_over_images_have_sure_ranks():
    order = np.random.default_rng(0).permutation(28)  # of places, lowest score first
    table = transformations.ranking(scores_of(RISING[order.argsort()]))
    assert list(table.index) == [ORDER[place] for place in order]
    for column in ("rank", "rank low", "rank high"):
        assert table[column].tolist() == list(range(1, 29))
    for column in ("s_pri", "low", "high"):
        assert table[column].to_numpy() == pytest.approx(RISING)
    assert table["in top five"].tolist() == [1] * 5 + [0] * 23
    assert (table["n"] == 6).all()
    assert table.loc[24, "same as"] == "42, 43, 48"
    assert table.loc[3, "same as"] == ""
    assert table.loc[3, "function"] == Policy((3,)).names()


def test_two_that_change_places_between_images_share_their_ranks():
    matrix = np.tile(RISING[:, None], 6)
    matrix[[4, 5]] = [[0.304, 0.3045] * 3, [0.3046, 0.304] * 3]
    table = transformations.ranking(scores_of(matrix))
    assert table.loc[[4, 5], "rank"].tolist() == [5, 6]
    assert table.loc[[4, 5], ["rank low", "rank high"]].to_numpy().tolist() == [[5, 6]] * 2
    assert table.loc[[4, 5], "in top five"].sum() == pytest.approx(1)
    assert table.loc[4, "in top five"] > table.loc[5, "in top five"] > 0.1
    assert table.loc[4, "low"] < table.loc[4, "s_pri"] < table.loc[4, "high"]


def test_a_study_s_scores_are_put_by_function_and_a_variant_is_taken_alone(tmp_path):
    study = Study("smoke", store=tmp_path)
    every = list(map(str, FUNCTIONS))
    requests = {
        variant: study.scores(study.network("lenet"), every, images=2, points=3, variant=variant)
        for variant in ("fixed", "code")
    }
    for request in requests.values():
        request.request.make(study.store, study.device)
    table = transformations.by_function(study.table(requests, ["variant"]))
    assert list(table) == ["op", "image", "s_pri", "variant", "function"]
    assert len(table) == 2 * 28 * 2
    for variant, request in requests.items():
        wide = transformations.wide(table, variant)
        by_hand = request.value["scores"].double().numpy()
        np.testing.assert_allclose(wide.loc[list(FUNCTIONS)], by_hand)
    names = table.set_index("op")["function"].to_dict()
    assert names == {op: Policy((op,)).names() for op in FUNCTIONS}


def test_what_an_image_adds_to_every_score_is_no_part_of_the_difference_to_doing_nothing():
    offsets = np.linspace(-0.2, 0.2, 6)
    table = transformations.beside_nothing(scores_of(RISING[:, None] + offsets))
    expected = RISING - RISING[ORDER.index(NOTHING)]
    for column in ("mean", "low", "high"):
        assert table[column].to_numpy() == pytest.approx(expected)
    assert table.index.tolist() == ORDER


def test_the_published_five():
    assert transformations.named_five("ats", "Figure 5") == [3, 15, 18, 26, 1]
    assert transformations.named_five("replication", "Figure 6a") == [1, 3, 15, 18, 21]
    assert transformations.named_five("replication", "Figure 6c") == [0, 1, 13, 15, 18]


def test_overlap_with_chance():
    published = {
        "paper": [3, 15, 18, 26, 1],
        "replication": [1, 3, 15, 18, 21],
        "nobody": [40, 37, 42, 20, 0],
    }
    table = transformations.overlap([1, 3, 15, 18, 26], published)
    assert table["shared with ours"].tolist() == ["1, 3, 15, 18, 26", "1, 3, 15, 18", "none"]
    assert table["count"].tolist() == [5, 4, 0]
    assert table["by chance"].astype(float).tolist() == pytest.approx(
        [stats.hypergeom.sf(count - 1, 28, 5, 5) for count in (5, 4, 0)]
    )


def test_another_id_of_a_function_is_shared_too():
    table = transformations.overlap(
        [SHIFTS[0], 0, 1, 2, 3], {"somebody": [SHIFTS[-1], 40, 37, 20, 38]}
    )
    assert table["shared with ours"].tolist() == [str(SHIFTS[0])]


def test_the_replications_scores_are_beside_ours():
    both = transformations.beside_replication(scores_of(RISING), "Figure 6a")
    assert both["ours"].to_numpy() == pytest.approx(RISING)
    assert both.loc[3, "replication"] == 0.274
    inversions = (0.352, 0.364, 0.362)  # ids 0, 29 and 47
    assert both.loc[0, "replication"] == pytest.approx(np.mean(inversions))
    printed = reported(source="replication", table_or_figure="Figure 6a", metric="S_pri").set_index(
        "policy_or_defense"
    )
    of_equalize = [float(printed.loc[str(op), "value"]) for op in EQUALIZE]
    assert both.loc[9, "replication"] == pytest.approx(np.mean(of_equalize))
    assert both.index.tolist() == ORDER
    assert both["replication"].notna().all()


# --- the rule ---------------------------------------------------------------------------------------------------------

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


def judged(table, named=NAMED, page=PAGES[0]):
    """What a page's rule makes of scores: all the names of its cell."""
    space = {"judged": table, "NAMED": named, "NOTHING": NOTHING}
    space |= {"first_id": first_id, "interval": interval}
    exec(rule(page), space)
    return space


def test_both_pages_state_one_rule():
    assert rule(PAGES[0]) == rule(PAGES[1])


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
def test_the_rule_of_claim_6(best, below, status, capsys):
    table = scores(best, below)
    found = judged(table)
    assert {*found["best"]} == {*best}, "the table is not what the case needs"
    assert found["status"] == status
    assert {*found["shared"]} == {*best} & {*NAMED}
    assert {*found["below"]} == {*below}
    assert capsys.readouterr().out.startswith(f"{status}: ")


@pytest.mark.parametrize(
    ("images", "status"), [(1, "cannot tell"), (3, "cannot tell"), (4, "reproduced")]
)
def test_fewer_than_four_images_rank_nothing(images, status):
    assert judged(scores(NAMED, NAMED, images))["status"] == status


def test_an_effect_that_is_the_images_is_no_effect():
    """The differences to doing nothing are paired: what an image adds to every score does not hide
    them.
    """
    assert judged(scores(NAMED, NAMED) + 10 * NOISE)["status"] == "reproduced"


def test_a_named_id_counts_for_its_function():
    named = [SHIFTS[-1], 15, 18, 26, 1]
    table = scores([SHIFTS[0], 15, 18, 26, 1], [15, 18, 26, 1])
    assert {*judged(table, named)["shared"]} == {SHIFTS[0], 15, 18, 26, 1}


# --- the figure -------------------------------------------------------------------------------------------------------


def test_the_ranking_is_drawn_lowest_on_the_left_with_doing_nothing_as_a_line():
    table = transformations.ranking(scores_of(np.random.default_rng(1).random((28, 6))))
    figure = plots.ranking(table, reference=0.4)
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_xticklabels()] == [str(op) for op in table.index]
    assert axis.get_ylabel() == "privacy score, lower is more private"
    legend = {text.get_text() for text in axis.get_legend().get_texts()}
    assert legend == {"one id", "one function, several ids", "doing nothing"}
    (line,) = [line for line in axis.lines if line.get_label() == "doing nothing"]
    assert set(line.get_ydata()) == {0.4}
    dots = [container.lines[0] for container in axis.containers]
    assert sum(len(dot.get_xdata()) for dot in dots) == 28
    drawn = dict(
        pair for dot in dots for pair in zip(dot.get_xdata(), dot.get_ydata(), strict=True)
    )
    assert [drawn[i] for i in range(28)] == table["s_pri"].tolist()
    plots.plt.close(figure)
