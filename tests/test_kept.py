"""Requests: what comes before them, and that each is computed once."""

import dataclasses
from typing import ClassVar

import pytest
import torch

from atsbook.experiment import drawn
from atsbook.kept import Kept
from atsbook.store import Store

CPU = torch.device("cpu")
HYBRID = "3-1-7+43-18-18"


@dataclasses.dataclass(frozen=True)
class Number(Kept):
    kind: ClassVar[str] = "number"
    value: int

    @property
    def is_kept(self):
        return self.value > 0

    def compute(self, store, device, state):
        return {"value": torch.tensor(self.value)}


@dataclasses.dataclass(frozen=True)
class Sum(Kept):
    kind: ClassVar[str] = "sum"
    first: Number
    others: tuple[Number, ...]
    label: str = ""

    def compute(self, store, device, state):
        parts = [each.make(store, device)["value"] for each in self.needs]
        return {"value": torch.stack(parts).sum()}


def test_what_is_needed_first_are_the_fields_that_are_kept_alone_or_in_a_tuple():
    several = Sum(Number(1), (Number(2), Number(-3), Number(4)), label="some")
    assert several.needs == (Number(1), Number(2), Number(4))
    assert Number(1).needs == ()


def test_a_result_is_computed_once_and_its_key_is_all_fields(tmp_path):
    said = []
    store = Store(tmp_path, say=said.append)
    whole = Sum(Number(1), (Number(2),))
    assert int(whole.make(store, CPU)["value"]) == 3
    assert [line.split()[1] for line in said] == ["number", "number", "sum"]
    assert int(whole.make(store, CPU)["value"]) == 3
    assert len(said) == 3
    other = dataclasses.replace(whole, label="another")
    assert store.path(other.kind, other) != store.path(whole.kind, whole)


def test_who_computes_nothing_is_refused(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Empty(Kept):
        kind: ClassVar[str] = "empty"

    with pytest.raises(NotImplementedError):
        Empty().make(Store(tmp_path), CPU)


def same(one, other):
    return all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in ("offsets", "flips", "member", "signs")
    )


def test_what_is_drawn_for_an_image_is_the_same_in_any_range():
    whole = drawn(range(9), HYBRID, seed=5)
    assert same(drawn(range(3, 7), HYBRID, seed=5), whole[3:7])
    assert not same(drawn(range(9), HYBRID, seed=6), whole)


def test_later_rounds_draw_the_policy_anew_after_the_same_crops_and_flips():
    first, second = (drawn(range(40), HYBRID, seed=5, number=number) for number in range(2))
    assert torch.equal(first.offsets, second.offsets)
    assert torch.equal(first.flips, second.flips)
    assert not torch.equal(first.member, second.member)
    bare = drawn(range(40), "", seed=5)
    assert torch.equal(first.offsets, bare.offsets)
    assert torch.equal(first.flips, bare.flips)
    assert drawn(range(40), HYBRID, seed=5, crop_flip=False).offsets is None
