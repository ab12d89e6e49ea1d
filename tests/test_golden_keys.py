"""Every kept result has the key that its description has today: field names, values and kinds count.

Nothing is computed. A field that is renamed, added or dropped, a default that is written otherwise
and a kind with another name each change keys, and the results under the old ones would be lost;
`benchmarks/rekey.py` is the way back.
"""

import dataclasses
import json

import pytest

from atsbook.evidence.archive import Archive, _rebuilt, key_of, request_of
from atsbook.experiment import OutcomeRequest
from atsbook.requests.gradients import ShiftsRequest
from atsbook.requests.layers import LayersRequest
from atsbook.requests.outcomes import FoundRequest
from atsbook.requests.scoring import AccuracyRequest
from atsbook.store import Store
from atslib.files import project_root

OF_AN_ATTACK = (FoundRequest, LayersRequest, ShiftsRequest)  # described as the attack is
# What no class describes any more or ever did: descriptions are dicts (the steps of a search and
# calls of a notebook's functions), or their class has gone from the package into a page.
WITHOUT_CLASS = {"score", "call", "spectrum", "timing"}


@pytest.fixture(scope="module")
def facts():
    """What is kept of the making of every result, by its key."""
    return Archive(project_root() / "results").entries()


def made_again(line, attacks):
    """The request of a result, an instance of its class; None where there is no class."""
    kind = line["kind"]
    if (request := request_of(line)) is not None:
        return request
    if kind == OutcomeRequest.kind:  # of an attack whose fields do not tell its class
        return OutcomeRequest(attack=attacks[as_text(line["config"]["attack"])])
    for derived in OF_AN_ATTACK:
        if kind == derived.kind:
            return derived.of(attacks[as_text(line["config"])])
    return _rebuilt(AccuracyRequest, line["config"]) if kind == AccuracyRequest.kind else None


def as_text(config):
    return json.dumps(config, sort_keys=True)


def test_there_are_results(facts):
    assert facts


def test_every_result_has_the_key_of_its_description(facts):
    wrong = {key: line["kind"] for key, line in facts.items() if key_of(line) != key}
    assert wrong == {}


def test_the_request_made_again_from_its_description_has_the_key_of_its_result(facts):
    store = Store("")
    attacks = {
        as_text(line["config"]): request_of(line)
        for line in facts.values()
        if line["kind"].partition("-")[0] == "attack"
    }
    wrong = {}
    for key, line in facts.items():
        if line["kind"] in WITHOUT_CLASS:
            continue
        request = made_again(line, attacks)
        if request is None:
            wrong[key] = line["kind"]
            continue
        again = store.path(request.kind, request, version=line["version"])
        if (again.parent.name, again.stem) != (line["kind"], key):
            wrong[key] = line["kind"]
    assert wrong == {}


def test_a_renamed_field_another_value_and_another_kind_each_change_the_key(facts):
    request = next(request for line in facts.values() if (request := request_of(line)) is not None)
    store = Store("")
    key = store.path(request.kind, request).stem
    first, *_ = dataclasses.fields(request)
    values = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
    values[f"new_{first.name}"] = values.pop(first.name)
    renamed = dataclasses.make_dataclass("Renamed", list(values))(**values)
    assert store.path(request.kind, renamed).stem != key
    assert store.path(f"{request.kind}-other", request).stem != key
    assert store.path(request.kind, request, version=2).stem != key
