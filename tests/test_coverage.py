"""The page *Coverage*: every published number once, the right twin from tables of any age, or why
there is none.
"""

import itertools
import json
import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from atsbook.findings.reported import reported
from atsbook.findings.result import FILE
from atsbook.findings.transformations import FUNCTIONS
from atsbook.texts import coverage as page
from atsbook.texts.coverage import coverage_page
from atsbook.texts.twins import RULES, coverage
from atslib.files import project_root

ROOT = project_root()
TWINS = 450  # published numbers that have a twin in the committed results: may only rise
HYBRID = "3-1-7+43-18-18"


@pytest.fixture
def put(tmp_path):
    """Stores made-up tables of a page, of lists or of one value for all rows."""

    def store(name, where, *, model="resnet20-1", tables, **facts):
        folder = tmp_path / name / where
        folder.mkdir(parents=True)
        data, _, profile = where.rpartition("-")
        about = {"dataset": data, "profile": profile, "model": model} | facts
        (folder / FILE).write_text(json.dumps({"facts": about}))
        for table, columns in tables.items():
            pd.DataFrame(columns).to_csv(folder / f"{table}.csv.gz", index=False)
        return tmp_path

    return store


def one(rows, table, metric, policy, source="ats", **more):
    """The row of a `coverage` for a published number."""
    named = {
        "source": source,
        "table_or_figure": table,
        "metric": metric,
        "policy_or_defense": policy,
    } | more
    for column, value in named.items():
        rows = rows[rows[column] == value]
    (row,) = rows.to_dict("records")
    return row


def values(row):
    return [(twin.value, twin.n) for twin in row["twins"]]


@pytest.fixture(scope="module")
def committed():
    return coverage(ROOT / "results")


def test_every_published_number_has_a_twin_or_a_reason_and_never_both(committed):
    pd.testing.assert_frame_equal(committed[reported().columns], reported())
    assert ((committed["twins"].map(len) > 0) == (committed["reason"] == "")).all()


def test_no_published_number_loses_its_twin(committed):
    assert (committed["twins"].map(len) > 0).sum() >= TWINS


def test_every_rule_is_of_use(committed):
    names = (committed["source"] + " " + committed["table_or_figure"], committed["metric"])
    used = {
        next(
            i
            for i, r in enumerate(RULES)
            if re.search(r.tables, table) and re.search(r.quantity, f"{metric} {policy}")
        )
        for table, metric, policy in zip(*names, committed["policy_or_defense"], strict=True)
    }
    assert used == set(range(len(RULES)))


def test_every_twin_of_the_committed_results_is_a_number_on_a_page_that_is_there(committed):
    for twin in itertools.chain.from_iterable(committed["twins"]):
        assert isinstance(twin.value, str) or np.isfinite(twin.value)
        assert (ROOT / "notebooks" / f"{twin.page}.ipynb").exists() or (
            ROOT / "book" / f"{twin.page}.md"
        ).exists()


@pytest.fixture(scope="module")
def pages(committed):
    """The page of the committed results, and the one of none."""
    found = {"committed": committed, "none": coverage(ROOT / "nowhere")}
    return {name: coverage_page(rows) for name, rows in found.items()}


@pytest.mark.parametrize("results", ["committed", "none"])
def test_the_page_lists_every_published_number_once(results, pages):
    sections = dict(re.findall(r"^## (.+?)\n(.+?)(?=^\(|\Z)", pages[results], re.M | re.S))
    groups = reported().groupby(["source", "table_or_figure"], sort=False)
    assert list(sections) == [page._title(*key) for key, _ in groups]
    for key, rows in groups:
        text, expected = sections[page._title(*key)], Counter()
        for _, row in rows.iterrows():
            expected[row["policy_or_defense"], page._published(row)] += 1
        for (policy, number), count in expected.items():
            there = text.count(f"| {policy or '–'} | {number} |")
            missing = re.findall(
                rf"[:,] {re.escape(f'{policy} ({number})'.strip())}(?=, |\n)", text
            )
            assert there + len(missing) == count, (key, policy, number)


def test_the_book_shows_the_coverage_that_the_results_give(pages):
    assert (ROOT / "book/coverage.md").read_text() == pages["committed"], "python -m atsbook run"


def test_newer_tables_give_a_twin_for_each_regime_and_the_networks_own_kind_before_lenet(put):
    own = {"model": ["lenet"] * 2 + ["resnet20-1"] * 5, "regime": ["initial"] * 6 + ["trained"]}
    own |= {"image": [0, 1, 0, 0, 1, 1, 0], "draw": [0, 0, 0, 1, 0, 1, 0]}
    attacks = {"psnr": [30, 31, 10, 12, 20, np.nan, 9], "policy": "none", "step": 0} | own
    results = put(
        "claim1_privacy", "cifar100-laptop", model="lenet, resnet20-1", tables={"attacks": attacks}
    )
    row = one(coverage(results), "Table 1a", "PSNR_dB", "none")
    assert values(row) == [
        (15.5, 2),
        (9.0, 1),
    ]  # over images, of their draws' mean, without the one that diverged
    assert [twin.made for twin in row["twins"]] == [
        "resnet20-1, untrained, laptop",
        "resnet20-1, trained, laptop",
    ]


def test_lenet_stands_for_a_resnet_where_there_is_no_other_and_says_so(put):
    attacks = {
        "attack": ["adam-cosine", "adam-l1"],
        "policy": HYBRID,
        "image": 0,
        "psnr": [8.0, 7.0],
    }
    facts = {"model": "lenet", "regime": "initial"}
    results = put("claim2_generality", "cifar100-laptop", tables={"attacks": attacks}, **facts)
    attacks = attacks | {"model": ["lenet", "lenet"], "policy": "none"}
    put("claim3_transfer", "fmnist-laptop", tables={"attacks": attacks}, **facts)
    rows = coverage(results)
    row = one(rows, "Table 2", "PSNR_dB", f"hybrid:{HYBRID}", attack="Adam+L1")
    assert values(row) == [(7.0, 1)]
    assert row["twins"][0].made == "lenet for ResNet20, untrained, laptop"
    assert values(one(rows, "Table 4a", "PSNR_dB", "none")) == [(8.0, 1)]
    assert not one(rows, "Table 4b", "PSNR_dB", "none")["twins"]  # a ConvNet is another kind


def test_a_block_of_table_1_is_of_its_data_set_network_and_policy_in_either_order(put):
    keys = itertools.product(
        ("cifar100", "fmnist"), ("resnet20-1", "convnet-16"), ("none", "42-28-42+14-48-48"), (0, 5)
    )
    names = ("dataset", "model", "policy", "image")
    blocks = pd.DataFrame(keys, columns=names).assign(psnr=np.arange(16.0))
    random = pd.DataFrame(
        {"policy": [str(n) for n in range(10) for _ in (0, 1)], "image": [0, 1] * 10}
    )
    random = random.assign(dataset="fmnist", model="convnet-16", psnr=np.arange(20.0))
    results = put("claim1_privacy", "cifar100-laptop", tables={"blocks": blocks, "random": random})
    rows = coverage(results)
    row = one(rows, "Table 1d", "PSNR_dB", "random", source="ats")
    assert values(row) == [(9.5, 2)]
    assert row["twins"][0].made == "convnet-16, trained, ten random policies, laptop"
    ours = {"source": "replication", "model": "convnet-9conv"}
    assert values(one(rows, "Table 1d", "PSNR_dB", "hybrid:14-48-48+42-28-42", **ours)) == [
        (14.5, 2)
    ]
    assert values(one(rows, "Figure 3", "PSNR_dB_image0", "hybrid", dataset="fmnist", **ours)) == [
        (14.0, 1)
    ]
    assert one(rows, "Figure 3", "PSNR_dB_image1", "hybrid", dataset="fmnist", **ours)[
        "reason"
    ].startswith("not run")


def test_a_policy_that_a_table_lacks_is_not_run_and_an_older_run_that_has_it_is_named(put):
    results = put(
        "claim1_privacy",
        "cifar100-full",
        tables={"accuracy": {"policy": ["none"], "accuracy": [50.0]}},
    )
    row = one(coverage(results), "Table 1a", "val_accuracy_pct", "3-1-7")
    assert (row["twins"], row["reason"]) == (
        (),
        "not run: claim1_network trains no such network with this policy",
    )
    older = {"policy": ["none", "3-1-7", "19-1-18"], "accuracy": [8.0, 3.0, 70.0]}
    put("claim1_privacy", "cifar100-laptop", tables={"accuracy": older})
    rows = coverage(results)
    assert values(one(rows, "Table 1a", "val_accuracy_pct", "none")) == [(50.0, 0)]
    row = one(rows, "Table 1a", "val_accuracy_pct", "3-1-7")
    assert values(row) == [(3.0, 0)]
    assert (
        row["twins"][0].made
        == "resnet20-1, trained, a weak network for a strong one, laptop, an older run"
    )
    row = one(rows, "Table 1a", "val_accuracy_pct", "random")
    assert row["twins"][0].made == "resnet20-1, trained, one random policy, laptop, an older run"
    assert not one(rows, "Table 1c", "val_accuracy_pct", "none")["twins"]  # of another data set


def test_nothing_stored_leaves_reasons_and_what_is_counted(tmp_path):
    rows = coverage(tmp_path)
    assert set(rows.loc[rows["twins"].map(len) > 0, "metric"]) == {"parameters", "search_space"}
    by_metric = rows.set_index(["metric", "model"])["twins"]
    assert by_metric["parameters", "resnet20-4"][0].value == "4,350,884"
    assert by_metric["search_space", ""][0].value == "127,550"
    why = one(rows, "Table 2", "PSNR_dB", "none", attack="Adam+L1")["reason"]
    assert why == "not run: claim2_generality has no stored result yet"


def test_a_defense_has_both_ways_of_applying_it(put):
    attacks = {"defense": ["none", "prune:0.7", "prune:0.7"], "applied": ["fixed", "fixed", "code"]}
    attacks |= {"policy": "none", "image": 0, "psnr": [13.0, 12.0, 11.0]}
    accuracy = {"defense": ["none", "prune:0.7"], "accuracy": [60.0, 59.0]}
    results = put(
        "claim1_defenses", "cifar100-laptop", tables={"attacks": attacks, "accuracy": accuracy}
    )
    rows = coverage(results)
    row = one(rows, "Table 3", "PSNR_dB", "pruning-70")
    assert values(row) == [(12.0, 1), (11.0, 1)]
    assert "training only, as their code" in row["twins"][1].made
    assert values(one(rows, "Table 6", "val_accuracy_pct", "pruning-70", "replication")) == [
        (59.0, 0)
    ]


def test_layers_come_from_their_table_by_name_and_by_third(put):
    layers = {
        "layer": ["1.stage1_0.conv1.weight"] * 2 + ["1.stage3_2.conv2.weight"],
        "image": [0, 1, 0],
    }
    layers |= {
        "third": ["shallow", "shallow", "deep"],
        "gradsim": [0.2, 0.6, 0.9],
        "policy": ["none", "19-1-18", "none"],
    }
    rows = coverage(
        put("claim5_semantics", "cifar100-laptop", tables={"layers": layers}, regime="initial")
    )
    assert values(one(rows, "Figure 6", "gradsim_shallow_final", "none/random")) == [(0.4, 2)]
    final = "gradsim_final:layers.5.2.conv2(stage3 block2 conv2)"
    assert values(one(rows, "Figure 5", final, "none", "replication")) == [(0.9, 1)]


def test_scores_and_correlations_come_from_their_tables(put):
    scores = pd.DataFrame(
        itertools.product(("fixed", "code"), FUNCTIONS), columns=["variant", "op"]
    )
    scores["s_pri"] = np.where(scores["variant"] == "fixed", scores["op"], 100 - scores["op"])
    put("claim6_transformations", "cifar100-laptop", tables={"scores": scores.assign(image=0)})
    policies = pd.DataFrame(itertools.product("abc", (0, 1)), columns=["policy", "image"])
    policies = policies.assign(
        **{"s_pri untrained": [1, 1, 2, 2, 3, 3], "psnr": [3, 3, 2, 5, 1, 10]}
    )
    facts = {
        "model": "lenet",
        "regime": "initial",
        "main": "untrained",
        "tables": {
            "policies": policies.assign(psnr=[3, 9, 2, 5, 1, 10]),
            "judged": policies.rename(columns={"s_pri untrained": "score"}),
        },
    }
    put(
        "claim2_search",
        "cifar100-laptop",
        tables={"candidates": {"s_pri": [0.3, 0.1, 0.2], "n": 16}},
    )
    rows = coverage(put("claim7_correlation", "cifar100-laptop", **facts))
    assert values(one(rows, "Figure 6a", "S_pri", "7", "replication")) == [(93.0, 1)]
    assert values(one(rows, "Figure 6a", "S_pri", "43", "replication")) == [
        (76.0, 1)
    ]  # the function of 24
    assert values(one(rows, "Figure 1", "S_pri", "none", "replication")) == [(28.0, 1)]
    assert values(
        one(rows, "Figure 1", "S_pri", "lowest-S_pri policy in their logs", "replication")
    ) == [(0.1, 0)]
    assert values(one(rows, "Section 4.4", "C_max", "")) == [("3", 0)]
    assert values(one(rows, "Figure 5", "top5_indices", "single transforms")) == [
        ("0, 1, 2, 3, 4", 1)
    ]
    metric, policy = "pearson_r(S_pri,PSNR)", "100 random policies"
    # The paper's is that of the judged photographs.
    assert values(one(rows, "Figure 2", metric, policy)) == [(pytest.approx(2.5 / 7**0.5), 2)]
    # The replication attacks its first image alone.
    assert values(one(rows, "Figure 2", metric, policy, "replication")) == [(pytest.approx(-1), 2)]
