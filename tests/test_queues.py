"""The scripts that compute for days: what they begin with is there."""

import importlib
from pathlib import Path

import pytest

from atsbook.runs.networks import ModelUnit
from atsbook.runs.schedule import plan

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


@pytest.fixture
def script(monkeypatch):
    """Imports one of the scripts beside the notebooks."""
    monkeypatch.syspath_prepend(str(NOTEBOOKS))
    return importlib.import_module


def test_the_second_half_trains_no_network_anew(script, tmp_path):
    second_half = script("second_half")
    store = second_half.with_networks(tmp_path / "store")
    wanted = plan(second_half.choices(), store)
    assert len(wanted) == len(second_half.NETWORKS) * 2 * len(second_half.TRIED)
    assert [unit for unit in wanted if isinstance(unit, ModelUnit)] == []


def test_the_papers_cell_is_computed_network_by_network(script):
    units = script("paper_cell").queue()
    assert len(set(units)) == len(units)
    for place, unit in enumerate(units):
        assert set(unit.needs) <= set(units[:place])


def test_blocks_of_any_size_attack_the_same_images(script):
    paper_cell = script("paper_cell")

    def attacked(block):
        units = paper_cell.as_published(block)
        images = [
            (unit.model, unit.policy, unit.crop_flip, image)
            for unit in units
            for image in range(unit.first, unit.last)
        ]
        assert len(set(images)) == len(images)
        return set(images)

    assert len(attacked(8)) == 5 * 32 + 2 * 16
    for block in paper_cell.SIZES:
        assert attacked(block) == attacked(8)


def test_the_judged_photographs_are_attacked_once_with_each_policy(script):
    paper_cell = script("paper_cell")
    for block in (10, 20):
        units = paper_cell.judged(block)
        attacked = [
            (unit.policy, image) for unit in units for image in range(unit.first, unit.last)
        ]
        assert sorted(attacked) == [
            (policy, image) for policy in ("", paper_cell.HYBRID) for image in paper_cell.JUDGED
        ]
        assert all(unit.model.train.policy == unit.policy for unit in units)
