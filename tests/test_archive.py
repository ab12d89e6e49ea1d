"""The archive of evidence: exact numbers, pictures, damage that is named, a limit, and pages made
from it.
"""

import dataclasses
import hashlib
import json
import random
import shutil

import pandas as pd
import pytest
import torch
from checks import TINY as TWO_IMAGES
from checks import attack_request, model_request, refused, search_request
from made_pages import asked_by
from safetensors.torch import load_file

from atsbook import packing
from atsbook.evidence import archive as module
from atsbook.evidence.archive import Archive, request_of
from atsbook.evidence.reading import WithEvidence
from atsbook.networks import trained
from atsbook.requests.scoring import ScoreRequest
from atsbook.runs.tables import image_rows
from atsbook.store import Store
from atslib.clients.observe import observe
from atslib.errors import AtsError, NotKept

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
TINY = dataclasses.replace(TWO_IMAGES, images=18)
ATTACK = attack_request(TINY, "3-1-7+43-18-18", defense="gaussian:0.01", first=1, frames=3)
SCORES = ScoreRequest(model=model_request(TINY), policies=("", "28"), images=3, points=3)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A store with one network, attack, table of scores and search."""
    store = Store(tmp_path_factory.mktemp("kept"))
    for request in (ATTACK, SCORES, search_request(TINY)):
        request.make(store, CPU)
    return store


@pytest.fixture(scope="module")
def written(kept, tmp_path_factory):
    """The folder of an archive with all of that store; the scores are those of a page that shows
    their curves.
    """
    archive = Archive(tmp_path_factory.mktemp("archive") / "results")
    pages = {key(kept, SCORES): ["claim7_correlation"]}
    assert archive.write(kept, embedded=True, pages=pages) == len(list(kept.entries()))
    return archive.root


@pytest.fixture
def archive(written, tmp_path):
    """A copy of that archive, which a test may change."""
    return Archive(shutil.copytree(written, tmp_path / "results"))


def restored(archive, tmp_path):
    store = Store(tmp_path / "restored")
    archive.restore(store)
    return store


def key(store, request):
    return store.path(request.kind, request).stem


def test_numbers_of_an_attack_come_back_exactly_and_pictures_in_8_bits(kept, archive):
    whole, view = ATTACK.make(kept, CPU), archive.read(key(kept, ATTACK))
    assert view.facts["left_out"] == ["frames", "reconstruction"]
    assert view.tensors.keys() == whole.tensors.keys() - {"frames"}
    for name in view.tensors.keys() - {"reconstruction"}:
        assert torch.equal(view[name], whole[name]), name
        assert view[name].dtype == whole[name].dtype, name
    assert view["reconstruction"].shape == (16, 3, 32, 32)
    assert view.facts["level"] == 1
    rounded = whole["reconstruction"][:16].clamp(0, 1)
    torch.testing.assert_close(view["reconstruction"], rounded, atol=0.501 / 255, rtol=0)


def test_where_images_are_looked_for_every_reconstruction_is_kept(kept, tmp_path):
    archive = Archive(tmp_path / "results")
    archive.write(
        kept, embedded=True, pages={key(kept, ATTACK): ["ext4_hidden_details", "regimes"]}
    )
    whole, view = ATTACK.make(kept, CPU), archive.read(key(kept, ATTACK))
    assert view.facts["left_out"] == ["frames"]
    assert len(view["reconstruction"]) == len(whole["reconstruction"]) == 17
    rounded = whole["reconstruction"].clamp(0, 1)
    torch.testing.assert_close(view["reconstruction"], rounded, atol=0.501 / 255, rtol=0)


def test_pictures_that_were_left_out_come_in_when_a_page_looks_at_each(kept, tmp_path):
    archive, own = Archive(tmp_path / "results"), key(kept, ATTACK)
    archive.write(kept, embedded=True, pages={own: ["ext4_hidden_details"]})
    assert len(archive.read(own)["reconstruction"]) == 16
    pages = {own: ["ext4_hidden_details", "regimes"]}
    assert archive.write(kept, embedded=True, pages=pages) == 1
    assert len(archive.read(own)["reconstruction"]) == 17
    assert archive.write(kept, embedded=True, pages=pages) == 0
    assert archive.verify() == []


def test_a_page_has_a_table_with_a_row_per_request_that_pandas_reads(kept, tmp_path):
    archive = Archive(tmp_path / "results")
    archive.write(kept, embedded=True, pages={key(kept, ATTACK): ["steps", "regimes"]})
    whole = ATTACK.make(kept, CPU)
    table = pd.read_parquet(tmp_path / "results/steps/evidence.parquet")
    assert list(table["key"]) == [key(kept, ATTACK)]
    (row,) = table.to_dict("records")
    assert json.loads(row["config"])["policy"] == "3-1-7+43-18-18"
    assert list(row["pages"]) == ["steps", "regimes"]
    assert list(row["image"]) == list(range(1, 18))
    assert torch.equal(torch.tensor(row["psnr"]), whole["psnr"])
    assert {"made", "seconds", "device", "torch", "sha256"} <= row.keys()
    long = table[["key", "image", "psnr", "rank_target"]].explode(["image", "psnr", "rank_target"])
    assert len(long) == 17
    others = pd.read_parquet(tmp_path / "results/other/evidence.parquet")
    assert len(table) + len(others) == len(archive.entries())


def test_the_weights_of_networks_are_in_a_file_for_each_data_set_and_model(kept, archive):
    (file,) = (archive.root / "networks").iterdir()
    assert file.name == "shapes-lenet.safetensors"
    expected = {}
    for request in (ATTACK.model, SCORES.model):
        whole = kept.get("model", request, pytest.fail).tensors
        weights = {name: value for name, value in whole.items() if name.startswith("model.")}
        expected |= {f"{key(kept, request)}.{name}": value for name, value in weights.items()}
    weights = load_file(file)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)


def test_a_network_that_comes_later_leaves_those_in_its_file_as_they_are(kept, archive, tmp_path):
    (file,) = (archive.root / "networks").iterdir()
    before = load_file(file)
    store = Store(tmp_path / "more")
    later = dataclasses.replace(ATTACK, model=dataclasses.replace(ATTACK.model, seed=9), policy="3")
    later.make(store, CPU)
    assert archive.write(store, embedded=True) == 2
    weights = load_file(file)
    own = key(store, later.model)
    assert {name.partition(".")[0] for name in weights.keys() - before.keys()} == {own}
    assert all(torch.equal(weights[name], before[name]) for name in before)
    assert archive.verify() == []
    whole = store.get("model", later.model, pytest.fail).tensors
    read = archive.read(own).tensors
    assert all(torch.equal(read[name], whole[name]) for name in whole)


def test_what_is_derived_from_a_request_lies_with_it(tmp_path):
    store, archive = Store(tmp_path / "store"), Archive(tmp_path / "results")
    store.get("attack", {"a": 1}, lambda state: {"cost": torch.ones(2)})
    store.get("ranks", {"a": 1}, lambda state: {"rank_knowing": torch.arange(2)})
    store.get("ranks", {"a": 2}, lambda state: {"rank_knowing": torch.arange(2)})
    archive.write(store, pages={store.path("attack", {"a": 1}).stem: ["steps"]})
    pages = {
        (line["kind"], line["config"]["a"]): line["pages"] for line in archive.entries().values()
    }
    assert pages == {("attack", 1): ["steps"], ("ranks", 1): ["steps"], ("ranks", 2): []}
    assert len(pd.read_parquet(archive.root / "other/evidence.parquet")) == 1


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), 1e-38, 16777217.0, 0.1]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_every_kind_of_number_survives_the_table(tmp_path, value, dtype):
    if not dtype.is_floating_point and not (value == value and abs(value) < 1e9):
        value = 3
    made = {
        "cost": torch.tensor([1 / 3, 2.0], dtype=dtype),
        "psnr": torch.tensor([value, 1e9], dtype=dtype),
    }
    store, archive = Store(tmp_path / "store"), Archive(tmp_path / "results")
    store.get("other", {"a": 1}, lambda state: made)
    archive.write(store)
    view = archive.read(store.path("other", {"a": 1}).stem)
    for name, expected in made.items():
        assert view[name].dtype == expected.dtype
        assert torch.equal(view[name].view(torch.uint8), expected.view(torch.uint8))


def test_the_bits_of_every_float_survive(tmp_path):
    bits = torch.tensor([0x7FC00001, 0x7F800001, -1, 1, -0x80000000, 0x7F800000], dtype=torch.int32)
    numbers = bits.view(torch.float32)  # NaNs of several kinds, the least denormal, -0 and infinity
    store, archive = Store(tmp_path / "store"), Archive(tmp_path / "results")
    store.get("other", {"a": 1}, lambda state: {"cost": numbers, "psnr": torch.ones(6)})
    archive.write(store)
    assert "cost" in pd.read_parquet(archive.root / "other/evidence.parquet").dropna(
        axis="columns", how="all"
    )
    again = Archive(archive.root).read(store.path("other", {"a": 1}).stem)
    assert torch.equal(again["cost"].view(torch.int32), bits)


@pytest.mark.parametrize("across", [1, 3, 4])
@pytest.mark.parametrize("shape", [(1, 1, 28, 28), (5, 3, 4, 6), (16, 3, 8, 8)])
def test_a_sheet_gives_back_each_picture(shape, across):
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    again = packing.from_picture(packing.picture(images, across), list(shape), across)
    assert torch.equal(again, packing.as_kept(images) / 255)
    torch.testing.assert_close(again, images, atol=0.501 / 255, rtol=0)


@pytest.mark.parametrize(
    ("where", "count"),
    [({}, 16), ({"seed": 0, "first": 199}, 16), ({"first": 200}, 0), ({"seed": 1}, 0)],
)
def test_pictures_are_kept_of_the_first_draw_and_not_of_trials(tmp_path, where, count):
    store, archive = Store(tmp_path / "store"), Archive(tmp_path / "results")
    store.get(
        "attack",
        where,
        lambda state: {"reconstruction": torch.rand(20, 3, 4, 4), "psnr": torch.rand(20)},
    )
    archive.write(store)
    (line,) = archive.entries().values()
    assert line.get("pictures_shape", [0])[0] == count
    assert "reconstruction" in line["left_out"]


def test_a_restored_store_holds_networks_scores_and_searches_exactly(kept, archive, tmp_path):
    store = restored(archive, tmp_path)
    assert store.verify() == []
    assert len(list(store.entries())) == len(list(kept.entries()))
    for request in (model_request(TINY), SCORES, search_request(TINY)):
        here, there = (s.get(request.kind, request, pytest.fail) for s in (kept, store))
        assert here.tensors.keys() == there.tensors.keys()
        assert all(torch.equal(here[name], there[name]) for name in here.tensors)
        for fact in ("seconds", "device", "made", "torch", "config"):
            assert there.facts[fact] == here.facts[fact]
    mine, theirs = (trained(model_request(TINY), s, CPU)[0].state_dict() for s in (kept, store))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert archive.restore(store) == 0


@pytest.mark.parametrize(
    ("page", "variant", "left"),
    [
        ("claim7_correlation", "fixed", []),
        ("claim7_correlation", "code", ["curves"]),
        ("ext2_transformations_tinyimagenet", "fixed", ["curves"]),
    ],
)
def test_the_curves_behind_scores_are_kept_where_a_page_shows_them(tmp_path, page, variant, left):
    store, archive = Store(tmp_path / "store"), Archive(tmp_path / "results")
    request = dataclasses.replace(SCORES, variant=variant)
    request.make(store, CPU)
    own = key(store, request)
    archive.write(store, embedded=True, pages={own: [page]})
    assert archive.entries()[own]["left_out"] == left
    assert torch.equal(
        archive.read(own)["scores"], store.get("privacy", request, pytest.fail)["scores"]
    )


def test_what_was_restored_is_not_archived_again(archive, tmp_path):
    assert Archive(tmp_path / "second").write(restored(archive, tmp_path), embedded=True) == 0


def test_a_page_has_the_same_tables_from_the_archive(tmp_path):
    store = Store(tmp_path / "whole")
    archive = Archive(tmp_path / "results")
    whole = [image_rows(request.make(store, CPU), request) for request in asked_by()]
    archive.write(store, embedded=True)
    there = restored(archive, tmp_path)
    again = [image_rows(request.make(there, CPU), request) for request in asked_by()]
    assert [table.to_csv(float_format="%.6g") for table in again] == [
        table.to_csv(float_format="%.6g") for table in whole
    ]


def test_a_network_that_a_page_hands_out_keeps_its_weights(tmp_path):
    """As one that is trained in seconds and larger than a few pictures does not otherwise."""
    store, archive = Store(tmp_path / "store"), Archive(tmp_path / "results")
    request = model_request(TINY)
    weights = {"model.weight": torch.ones(100_000), "accuracy": torch.tensor(1.0)}
    store.get("model", request, lambda state: weights)
    attack = dataclasses.replace(ATTACK, model=request)
    store.get(attack.kind, attack, lambda state: {"psnr": torch.ones(2)})
    own = key(store, request)
    archive.write(store, embedded=True, pages={own: ["ext6_defenses"]})
    assert archive.entries()[own]["left_out"] == ["model"]
    archive.write(store, embedded=True, pages={own: ["ext6_defenses", "explorer"]})
    assert archive.entries()[own]["left_out"] == []
    assert archive.verify() == []
    assert torch.equal(archive.read(own)["model.weight"], weights["model.weight"])


def test_what_is_not_kept_says_so_when_it_is_asked_for(kept, archive, tmp_path, monkeypatch):
    view = ATTACK.make(restored(archive, tmp_path), CPU)
    with pytest.raises(
        NotKept, match=r"of this attack the archive keeps no 'frames'; `python -m atsbook archive"
    ):
        view["frames"]
    with pytest.raises(KeyError):
        view["nonsense"]
    monkeypatch.setattr(packing, "NETWORK_LIMIT", 1000)
    small, store = Archive(tmp_path / "small"), Store(tmp_path / "no weights")
    small.write(kept, embedded=True)
    small.restore(store)
    model, artifact = trained(model_request(TINY), store, CPU)
    assert artifact.facts["left_out"] == ["model"]
    assert artifact["accuracy"] == trained(model_request(TINY), kept, CPU)[1]["accuracy"]
    with pytest.raises(
        NotKept, match="the archive keeps no weights of lenet on shapes, policy none; "
    ):
        model(torch.zeros(1, 3, 32, 32))
    with pytest.raises(
        NotKept, match="the archive keeps no weights of lenet on shapes, policy none; "
    ):
        observe(
            model, torch.zeros(1, 3, 32, 32), torch.zeros(1, dtype=torch.long)
        )  # which looks at its parameters


def test_a_network_that_nothing_uses_keeps_its_accuracy_and_no_weights(kept, archive, tmp_path):
    alone = model_request(TINY, "28")
    store = Store(tmp_path / "alone")
    trained(alone, store, CPU)
    assert archive.write(store, embedded=True) == 1
    assert archive.entries()[key(store, alone)]["left_out"] == ["model"]
    again = trained(alone, restored(archive, tmp_path), CPU)[1]
    assert again["accuracy"] == trained(alone, store, CPU)[1]["accuracy"]
    assert archive.write(store, embedded=True) == 0


def test_a_network_of_a_long_training_keeps_its_weights_before_anything_uses_it(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "COSTLY", 0)
    store, archive = Store(tmp_path / "store"), Archive(tmp_path / "results")
    request = model_request(TINY, "28")
    weights = {"model.weight": torch.ones(3), "accuracy": torch.tensor(1.0)}
    store.get("model", request, lambda state: weights)
    archive.write(store, embedded=True)
    own = key(store, request)
    assert archive.entries()[own]["left_out"] == []
    assert torch.equal(archive.read(own)["model.weight"], weights["model.weight"])


@pytest.mark.parametrize(("step", "left"), [(3_000, ["model"]), (0, [])])
def test_a_network_on_its_way_keeps_no_weights(tmp_path, step, left):
    store, archive = Store(tmp_path / "store"), Archive(tmp_path / "results")
    request = dataclasses.replace(ATTACK, model=dataclasses.replace(ATTACK.model, step=step))
    store.get(
        "model",
        request.model,
        lambda state: {"model.weight": torch.ones(3), "accuracy": torch.tensor(1.0)},
    )
    store.get("attack", request, lambda state: {"cost": torch.ones(2)})
    archive.write(store, embedded=True)
    assert archive.entries()[key(store, request.model)]["left_out"] == left


@pytest.mark.parametrize(
    ("heavy", "quick", "weights"), [(100, 60, False), (10_000, 60, True), (100, -1, True)]
)
def test_a_large_network_soon_made_again_keeps_no_weights_and_its_attacks_keep_pictures(
    tmp_path, monkeypatch, heavy, quick, weights
):
    monkeypatch.setattr(module, "HEAVY", heavy)
    monkeypatch.setattr(module, "QUICK", quick)
    store, archive = Store(tmp_path / "store"), Archive(tmp_path / "results")
    made = {"reconstruction": torch.rand(2, 3, 4, 4), "psnr": torch.rand(2)}
    store.get(
        "model",
        ATTACK.model,
        lambda state: {"model.weight": torch.ones(99), "accuracy": torch.tensor(1.0)},
    )
    store.get("attack", ATTACK, lambda state: made)
    archive.write(store, embedded=True)
    lines = {line["kind"]: line for line in archive.entries().values()}
    assert lines["model"]["left_out"] == ([] if weights else ["model"])
    assert "pictures_shape" in lines["attack"]
    again = restored(archive, tmp_path)
    assert torch.equal(again.get("attack", ATTACK, None)["psnr"], made["psnr"])
    assert archive.write(again, embedded=True) == 0


def test_weights_that_an_older_archive_has_for_nothing_are_shed(
    kept, archive, tmp_path, monkeypatch
):
    alone = model_request(TINY, "28")
    store = Store(tmp_path / "alone")
    trained(alone, store, CPU)
    with monkeypatch.context() as older:
        older.setattr(
            module, "_networks", lambda facts: {module._text(entry["config"]) for entry in [facts]}
        )
        assert archive.write(store, embedded=True) == 1
    size, facts = archive.size(), archive.entries()[key(store, alone)]
    assert facts["left_out"] == []
    assert archive.write(restored(archive, tmp_path), embedded=True) == 1
    assert archive.size() < size
    assert archive.verify() == []
    line = archive.entries()[key(store, alone)]
    assert {name for name in facts if facts[name] != line.get(name)} == {"network", "left_out"}
    assert archive.read(key(kept, ATTACK.model)).facts["left_out"] == []


def test_every_request_is_made_again_from_its_line(kept, archive):
    made = {request_of(line) for line in archive.entries().values()} - {None}
    assert made == {
        ATTACK,
        ATTACK.model,
        SCORES,
        SCORES.model,
        search_request(TINY),
        search_request(TINY).model,
    }


@pytest.mark.parametrize(
    "change", [{"steps": 3}, {"kind": "score"}, {"config": {"new": 1}}, {"version": 2}]
)
def test_a_line_that_this_version_does_not_know_makes_no_request(kept, archive, change):
    line = archive.entries()[key(kept, SCORES)]
    changed = line | ({"config": line["config"] | change} if "steps" in change else change)
    assert request_of(line) == SCORES
    assert request_of(changed) is None or change == {"version": 2}


def test_a_damaged_a_missing_and_a_strange_file_are_named(kept, archive, tmp_path):
    assert archive.verify() == []
    network = min((archive.root / "networks").iterdir())
    network.unlink()
    (archive.root / "networks/notes.txt").touch()
    table = archive.root / "other/evidence.parquet"
    table.write_bytes(table.read_bytes() + b"x")
    assert sorted(archive.verify()) == [
        "networks/notes.txt: not in evidence.sha256",
        f"networks/{network.name} is missing",
        "other/evidence.parquet: its bytes do not match their hash",
    ]
    with refused(
        "the archive is damaged: other/evidence.parquet: its bytes do not match", "git checkout"
    ):
        archive.restore(Store(tmp_path / "x"))
    archive.manifest.write_text("{}\n")
    with refused("evidence.sha256 is damaged: `git checkout "):
        archive.verify()


def test_every_flipped_bit_is_found(archive):
    draw = random.Random(0)
    files = [file for file in archive.root.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} == {".parquet", ".safetensors", ".sha256"}
    for file in files:
        whole = file.read_bytes()
        places = draw.sample(range(8 * len(whole)), 200 if file == archive.manifest else 40)
        for place in places:
            damaged = bytearray(whole)
            damaged[place // 8] ^= 1 << place % 8
            file.write_bytes(damaged)
            try:
                found = archive.verify()
            except AtsError as error:
                found = [str(error)]
            assert found, (file.name, place)
        file.write_bytes(whole)
    assert archive.verify() == []


def test_the_manifest_is_one_that_sha256sum_reads(archive):
    lines = [line.split("  ") for line in archive.manifest.read_text().splitlines()]
    assert {name for _, name in lines} == {
        file.relative_to(archive.root).as_posix()
        for file in archive.root.rglob("*.*")
        if file != archive.manifest
    }
    for digest, name in lines:
        assert hashlib.sha256((archive.root / name).read_bytes()).hexdigest() == digest


def test_a_page_is_restored_and_what_is_not_whole_is_taken_out_again(kept, tmp_path):
    archive, store = Archive(tmp_path / "results"), Store(tmp_path / "restored")
    pages = {key(kept, ATTACK): ["steps"], key(kept, SCORES): ["claim7_correlation"]}
    archive.write(kept, embedded=True, pages=pages)
    assert archive.restore(store, pages=["steps"]) == 1
    assert store.has("attack", ATTACK)
    assert archive.forget(store, pages=["claim7_correlation"]) == 0
    assert archive.forget(store) == 1
    assert not store.has("attack", ATTACK)
    assert archive.restore(store, pages=["claim7_correlation"]) == 1
    assert archive.forget(store) == 0  # scores are whole


def test_a_store_with_evidence_reads_there_what_it_lacks(kept, archive, tmp_path):
    store = WithEvidence(tmp_path / "backed", archive.root)
    assert not store.has("attack", dataclasses.replace(ATTACK, seed=9))
    assert store.shipped("attack", ATTACK)
    assert list(store.entries()) == []
    view = ATTACK.make(store, CPU)
    assert torch.equal(view["psnr"], ATTACK.make(kept, CPU)["psnr"])
    search = store.get("search", search_request(TINY), pytest.fail)
    assert search.facts == archive.read(key(kept, search_request(TINY))).facts
    assert list(store.entries()) == []  # nothing is copied by reading
    store.get("other", {"new": 1}, lambda state: {"cost": torch.ones(2)})
    assert [path.parent.name for path, _ in store.entries()] == ["other"]


def test_beyond_the_limit_nothing_is_written(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 10_000)
    with pytest.raises(
        AtsError, match=r"^the archive would have 0\.\d MB; at most 0 MB are allowed$"
    ):
        Archive(tmp_path / "results").write(kept, embedded=True)
    assert not list((tmp_path / "results").iterdir())


def test_writing_twice_changes_nothing_and_embedded_images_stay_out(kept, archive, tmp_path):
    before = {file: file.read_bytes() for file in archive.root.rglob("*.*")}
    assert archive.write(kept, embedded=True) == 0
    assert {file: file.read_bytes() for file in archive.root.rglob("*.*")} == before
    assert sum(map(len, before.values())) == archive.size()
    other = Archive(tmp_path / "other")
    pages = {key(kept, SCORES): ["claim7_correlation"]}
    assert other.write(kept, embedded=True, pages=pages) == len(archive.entries())
    for file, data in before.items():
        assert (other.root / file.relative_to(archive.root)).read_bytes() == data
    real = Archive(tmp_path / "real")
    real.write(kept)
    assert {line["kind"] for line in real.entries().values()} <= {
        "score"
    }  # whose key names no data set


def test_of_a_damaged_store_nothing_is_archived(tmp_path):
    store = Store(tmp_path / "store")
    store.get("other", {"a": 1}, lambda state: {"x": torch.ones(2)})
    store.path("other", {"a": 1}).write_bytes(b"x")
    with refused("the store is damaged, nothing was archived: other/"):
        Archive(tmp_path / "results").write(store)


def test_an_empty_archive_is_no_error(store, tmp_path):
    archive = Archive(tmp_path / "none")
    assert (archive.entries(), archive.verify(), archive.size(), archive.restore(store)) == (
        {},
        [],
        0,
        0,
    )


def test_two_requests_never_share_a_file_of_state(tmp_path):
    """A resumable state lies beside its artifact, under the hash of all that decides it: no other
    request's.
    """

    def others(config, **changes):
        return [dataclasses.replace(config, **{field: value}) for field, value in changes.items()]

    store, attack, model = Store(tmp_path), attack_request(TINY), model_request(TINY)
    trains = others(model.train, epochs=2, batch=64, lr=0.5, loss_factor=0.5, defense="prune:0.5")
    models = others(model, fraction=0.5, seed=1, model="convnet-4", dataset="cifar10")
    models += [
        model_request(TINY, "28"),
        *(dataclasses.replace(model, train=train) for train in trains),
    ]
    requests = [
        model,
        attack,
        *models,
        *(dataclasses.replace(attack, model=other) for other in models),
    ]
    requests += others(attack, policy="28", first=1, last=9, crop_flip=False, seed=1, frames=2)
    attacks = others(attack.attack, steps=3, lr=0.2, tv=0.1, restarts=2, start="uniform")
    requests += [dataclasses.replace(attack, attack=other) for other in attacks]
    states, seen = [], set()
    for request in requests:
        store.get(request.kind, request, lambda state: states.append(state) or {"x": torch.ones(1)})
        seen.add(
            json.dumps(
                json.loads(store.path(request.kind, request).with_suffix(".json").read_text())[
                    "config"
                ]
            )
        )
    assert len(set(states)) == len(states) == len(set(requests)) == len(seen)
