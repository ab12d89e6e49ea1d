"""Results under new keys, when a configuration has got a field."""

import dataclasses
import importlib.util
import json
import sys
from collections import Counter

import pytest
import torch
from checks import TINY, attack_request
from safetensors.torch import load_file

from atsbook.evidence.archive import Archive, request_of
from atsbook.store import Store
from atslib.checkpoints import plain
from atslib.clients.training import TrainConfig
from atslib.clients.view import ThreatModel
from atslib.files import project_root

pytestmark = pytest.mark.usefixtures("one_thread")
LATER = {"rounds", "schedule", "defense"}


@pytest.fixture(scope="module")
def rekey():
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("rekey", project_root() / "benchmarks/rekey.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without(config, *names):
    """A description as it was before these fields."""
    return {name: value for name, value in plain(config).items() if name not in names}


def test_a_description_gets_the_fields_that_are_named_and_no_others(rekey):
    train = TrainConfig(policy="3-1-7", epochs=2)
    old = {
        "train": without(train, "schedule", "batch"),
        "threat": [without(ThreatModel(), "defense")],
        "else": {"policy": "3-1-7"},
    }
    kinds = rekey.configurations()
    first = rekey.filled(old, kinds, {"schedule", "defense"}, Counter())
    assert first["train"] == old["train"]  # it lacks another field, too
    whole = rekey.filled(old, kinds, LATER | {"batch"}, Counter())
    assert whole == {
        "train": plain(TrainConfig(policy="3-1-7", epochs=2)),
        "threat": [plain(ThreatModel())],
        "else": {"policy": "3-1-7"},
    }


def test_results_and_what_names_them_get_the_keys_of_this_version(rekey, tmp_path, monkeypatch):
    request = attack_request(TINY, "3-1-7")
    store = Store(tmp_path / "store")
    request.make(store, torch.device("cpu"))
    archive = Archive(tmp_path / "results")
    archive.write(store, embedded=True, pages={})
    (rows,) = archive._pages().values()
    before = {}
    for key, row in rows.items():
        facts = row.facts | {
            "config": {n: v for n, v in row.facts["config"].items() if n != "rounds"}
        }
        before[key] = dataclasses.replace(row, key=rekey.key_of(facts), facts=facts)
    old = {row.key: row for row in before.values()}
    weights = {before[key].key: archive._weights(f"networks/{row.facts['network']}")[key]
               for key, row in rows.items() if "network" in row.facts}  # fmt: skip
    (page,) = archive._pages()
    archive.replace({page: old}, weights)
    assert [request_of(row.facts) for row in old.values() if row.facts["kind"] == "attack"] == [
        None
    ]

    named = tmp_path / "results" / page / "shapes-smoke" / "result.json"
    named.parent.mkdir(parents=True)
    named.write_text(json.dumps({"evidence": sorted(old)}))
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rekey.py", *LATER])
    rekey.main()
    again = Archive(tmp_path / "results")
    assert again.verify() == []
    assert again.entries().keys() == rows.keys()
    assert set(json.loads(named.read_text())["evidence"]) == set(rows)
    key = store.path(request.kind, request).stem
    assert request_of(again.entries()[key]) == request
    assert torch.equal(
        again.read(key)["psnr"], load_file(store.path(request.kind, request))["psnr"]
    )
