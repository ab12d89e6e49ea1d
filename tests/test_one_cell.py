"""The table of all attacks on one cell: the numbers are those of the pages, and what is no pair is left out."""

import dataclasses

import pandas as pd
import pytest
from checks import refused

from atsbook.experiment import AttackRequest
from atsbook.findings.photographs import arrow
from atsbook.findings.table1 import HYBRID
from atsbook.networks import ModelRequest
from atsbook.texts.one_cell import HEAD, MARK, called, in_the_cell, insert_one_cell, one_cell
from atslib import ATTACKS, TrainConfig
from atslib.attacks import ThroughPolicy
from atslib.files import project_root

RESULTS = project_root() / "results"
LENET = ModelRequest(dataset="cifar100", model="lenet", fraction=1.0, train=None, seed=0)
PLAIN = AttackRequest(model=LENET, policy=HYBRID, attack=ATTACKS["adam-cosine"], first=0, last=2)


def test_the_row_of_claim_1_has_the_numbers_of_its_table():
    attacks = pd.read_csv(
        RESULTS / "claim1_privacy" / "cifar100-laptop" / "attacks.csv.gz", dtype={"policy": str}
    )
    own = attacks[(attacks["model"] == "lenet") & (attacks["regime"] == "initial")]
    means = own.groupby("policy")[["found", "bits"]].mean()
    found, bits = (means.loc[["none", HYBRID], name] for name in ("found", "bits"))
    (row,) = [
        line for line in one_cell(RESULTS).splitlines() if "(results/claim1_privacy.ipynb)" in line
    ]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    draws = own["draw"].nunique()
    assert cells[3:6] == [str(draws), arrow(*(100 * found), "{:.0f}"), arrow(*bits)]


def test_rows_are_in_the_order_of_what_is_found_under_the_hybrid():
    rows = one_cell(RESULTS).removeprefix(HEAD).strip().splitlines()
    shares = [int(row.split("|")[5].split("→")[1]) for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert len(shares) > 10


@pytest.mark.parametrize(
    "other",
    [
        {"policy": "3-1-7"},
        {"defense": "prune:0.5"},
        {"attack": ThroughPolicy(inner=ATTACKS["adam-cosine"])},
        {"model": dataclasses.replace(LENET, train=TrainConfig())},
        {"model": dataclasses.replace(LENET, model="lenet-4")},
    ],
    ids=["policy", "defense", "attack", "trained", "network"],
)
def test_what_is_attacked_otherwise_is_not_in_the_cell(other):
    assert in_the_cell(PLAIN)
    assert in_the_cell(dataclasses.replace(PLAIN, policy=""))
    assert not in_the_cell(dataclasses.replace(PLAIN, **other))


def test_a_preset_is_named_whatever_its_steps():
    attack = ATTACKS["annealed-lenet"]
    assert called(dataclasses.replace(attack, steps=7)) == "`annealed-lenet`"
    assert called(dataclasses.replace(attack, lr=7.0, steps=7)) == "7 steps of adam on cosine"


def test_the_table_goes_between_its_marks(tmp_path):
    page = tmp_path / "method.md"
    page.write_text(f"before\n{MARK}\nold\n{MARK}\nafter\n")
    insert_one_cell(page, RESULTS)
    text = page.read_text()
    assert text.startswith(f"before\n{MARK}\n\n{HEAD}\n|")
    assert text.endswith(f"{MARK}\nafter\n")
    page.write_text("no marks")
    with refused("must hold two lines"):
        insert_one_cell(page, RESULTS)
    insert_one_cell(tmp_path / "none.md", RESULTS)  # is left
