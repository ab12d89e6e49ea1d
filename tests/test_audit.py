"""The audit: parts of requests have the numbers of the whole, what is off is said, and the report made
on the archive.
"""

import dataclasses
import itertools
import json
import random
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from checks import TINY as TWO_IMAGES
from checks import attack_request, model_request, needs, refused, search_request
from made_pages import asked_by

from atsbook.__main__ import main
from atsbook.attackers import FromMean, Learned, Undone
from atsbook.evidence.archive import Archive, request_of
from atsbook.evidence.audit import (
    audit,
    audit_page,
    differences,
    in_short,
    part_of,
    sample,
    summaries,
    write_audit,
)
from atsbook.findings.result import stored_result
from atsbook.report import runner
from atsbook.report.runner import report
from atsbook.requests.scoring import ScoreRequest
from atsbook.store import Store
from atslib.attacks import ATTACKS, KeptEntries, ThroughPolicy
from atslib.clients.observe import ThreatModel
from atslib.errors import AtsError
from atslib.files import project_root

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
TINY = dataclasses.replace(TWO_IMAGES, images=12)
HYBRID = "3-1-7+43-18-18"
# Of the archive's kinds those of which `part_of` makes a part on a network that is kept
KINDS = {"attack", "model", "privacy", "sweep", "sweep-scores"} | {
    f"attack-{name}"
    for name in ("FromMean", "KeptEntries", "LastLayerAlone", "ThroughPolicy", "Undone")
}
THREES = attack_request(
    TINY, threat=ThreatModel(batch=3)
)  # images share gradients by threes: a part has six
SHORT, KNOWING = dataclasses.replace(ATTACKS["adam-cosine"], steps=2), ThreatModel(defense="policy")
TWICE = dataclasses.replace(ATTACKS["adam-cosine"], restarts=2, steps=2)


@pytest.mark.parametrize(
    "asked",
    [
        attack_request(TINY, HYBRID, first=3),
        attack_request(TINY, "28", defense="prune:0.5", attack=TWICE),
        attack_request(TINY, defense="prune:0.5", attack=KeptEntries(inner=SHORT)),
        attack_request(TINY, "28", attack=FromMean(inner=SHORT, images="shapes"), threat=KNOWING),
        attack_request(TINY, "28", attack=Undone(inner=SHORT, images="shapes"), threat=KNOWING),
        attack_request(
            TINY, HYBRID, attack=ThroughPolicy(inner=SHORT, trial=1, keep=2), threat=KNOWING
        ),
        attack_request(TINY, "28", attack=ThroughPolicy(inner=SHORT), threat=KNOWING, rounds=2),
        THREES,
        ScoreRequest(
            model=model_request(TINY), policies=("", "28", HYBRID, "3-1-7", "0"), images=6, points=3
        ),
        model_request(TINY),
    ],
    ids=lambda asked: asked.title,
)
def test_a_part_has_the_numbers_of_the_whole(kept, asked):
    asked.make(kept, CPU)
    whole = kept.get(asked.kind, asked, pytest.fail)
    parts = {part_of(asked, random.Random(seed)) for seed in range(3)}
    for part in parts:
        part.make(kept, CPU)
        off = differences(
            asked, part, whole.tensors, kept.get(part.kind, part, pytest.fail).tensors
        )
        kind = part.kind.partition("-")[0]
        assert len(off) == (
            6 if asked == THREES else {"attack": 4, "privacy": 16, "tested": 1}[kind]
        )
        assert off == pytest.approx([0] * len(off), abs=2e-3)
    assert len(parts) > 1 or asked.kind == "model"


@pytest.mark.parametrize(
    "defense", ["gaussian:0.01", "laplace:0.01", "dp:0.01", "precode:1", "mixup:0.3"]
)
def test_what_is_drawn_for_all_images_together_has_no_part(defense):
    assert part_of(attack_request(TINY, defense=defense), random.Random(0)) is None
    assert part_of(search_request(TINY), random.Random(0)) is None
    learned = attack_request(
        TINY, "28", attack=Learned(inner=SHORT, images="shapes"), threat=KNOWING
    )
    assert part_of(learned, random.Random(0)) is None


@pytest.mark.slow
def test_the_seed_draws_requests_and_parts_within_the_time(kept, tmp_path):
    requests = [attack_request(TINY, policy) for policy in ("", "28", HYBRID)]
    for request in requests:
        request.make(kept, CPU)
    archive = Archive(tmp_path / "requests")
    archive.write(kept, embedded=True)
    drawn = [[part for *_, part in sample(archive, random.Random(seed), 1e9)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert {part.model for part in drawn[0] if part.kind == "attack"} >= {
        request.model for request in requests
    }
    assert list(sample(archive, random.Random(1), 0)) == []


@needs("cifar100")
def test_a_sample_of_a_minute_has_every_kind_of_which_a_part_can_be_made():
    archive = Archive(project_root() / "results")
    for seed in range(3):
        drawn = list(itertools.islice(sample(archive, random.Random(seed), 60), len(KINDS)))
        assert {line["kind"] for _, line, _ in drawn} == KINDS
        seconds = sum(
            line["seconds"] * part.passes / request_of(line).passes for _, line, part in drawn
        )
        assert seconds < 60


def off_by(decibels, tmp_path, **changes):
    """What an audit finds where two archived attacks were better by so many dB than they are here."""
    requests = [attack_request(TINY, HYBRID, seed=seed, **changes) for seed in (0, 1)]
    store, changed = Store(tmp_path / "store"), Store(tmp_path / "changed")
    for request, off in zip(requests, decibels, strict=True):
        made = request.make(store, CPU).tensors
        changed.get(
            request.kind,
            request,
            lambda state, made=made, off=off: made | {"psnr": made["psnr"] + off},
        )
    model = store.get("model", request.model, pytest.fail).tensors
    changed.get("model", request.model, lambda state: model)
    archive = Archive(tmp_path / "requests")
    archive.write(changed, embedded=True)
    said = []
    seen = Store(tmp_path / "unused", say=said.append)
    audited = audit(archive, seed=5, minutes=1, device="cpu", jobs=1, store=seen)
    assert not seen.root.exists()
    assert said[0] == "audit: seed 5; parts of 3 requests are computed again, for about 1 minutes"
    return audited


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"attack": ThroughPolicy(inner=SHORT), "threat": KNOWING}])
def test_an_audit_computes_the_archives_numbers_again(tmp_path, changes):
    audited = off_by((0.0, 0.0), tmp_path, **changes)
    assert {row["kind"] for row in audited["rows"]} == {"attack", "tested"}
    attacks, accuracies = summaries(audited)
    assert attacks.startswith("attacks: 2 results, 8 numbers; new minus old +0.00 dB in the mean, ")
    numbers = "1 result, 1 number; new minus old +0.0000 points in the mean, +0.0000 in the median"
    assert accuracies == (
        f"accuracies of stored networks: {numbers}, the largest difference 0.0000"
    )
    write_audit(audited, tmp_path)
    page = audit_page(tmp_path)
    assert page.startswith(
        "# Audit\n\n**Of 3 results that were computed again, 3 came out the same.** Whether attacks come out equal"
    )
    assert "with seed 5, was made on CPU, " in page
    assert f"the archive had {audited['requests']:,} results" in page
    assert all(row["title"] in page for row in audited["rows"])


@pytest.mark.slow
@pytest.mark.parametrize("decibels", [(0.2, 0.2), (-0.4, 0.0)])
def test_an_audit_says_by_how_much_the_archive_is_off(tmp_path, decibels):
    attacks, _ = summaries(off_by(decibels, tmp_path))
    assert f"{-np.mean(decibels):+.2f}" in attacks


def lines_of(requests):
    """The sentence about attacks of requests that are off by these numbers."""
    rows = [
        {"key": str(number), "kind": "attack", "off": list(off)}
        for number, off in enumerate(requests)
    ]
    (line,) = summaries({"rows": rows})
    general = in_short({"rows": rows})
    assert ("come out equal, within" in general) == (": equal. " in line)
    assert ("do not come out equal" in general) == (": **not equal**. " in line)
    return line


def test_what_differs_is_counted_and_its_size_is_said():
    off = {"attack": [[0.04, -0.05], [0.3, 0.0], [-15.4, 0.1]], "privacy": [[0.0]]}
    rows = [
        {"key": f"{kind} {number}", "kind": kind, "off": each}
        for kind, requests in off.items()
        for number, each in enumerate(requests)
    ]
    words = in_short({"rows": rows})
    assert words.startswith(
        "**Of 4 results that were computed again, 2 came out the same.** All that are no attacks did; of the 3 attacks 1 "
    )
    assert (
        "no picture is off by more than 7.9 dB, and the largest difference is 15.4 dB. Whether"
        in words
    )
    assert words.endswith("within ±0.05 dB, cannot be told from so few.")
    rows.append({"key": "score", "kind": "privacy", "off": [0.01]})
    assert "2 came out the same.** The other 3 did not. Whether" in in_short({"rows": rows})
    rows.append({"key": "lost", "kind": "attack", "off": [float("nan"), 0.0]})
    assert "Of 6 results that were computed again, 2 came out" in in_short({"rows": rows})
    assert in_short({"rows": rows[3:4]}).endswith("1 came out the same.**")  # no attack


SPREAD = np.random.default_rng(0).normal(0, 0.01, (33, 4))
WILD = np.vstack([SPREAD[:-1], [[-15.4, 0.0, 0.0, 0.0]]])


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        (SPREAD, "equal"),
        (WILD, "equal"),  # one image that ended elsewhere
        (SPREAD + 0.2, "**not equal**"),
        (SPREAD - 0.2, "**not equal**"),
        (
            np.where(np.arange(33)[:, None] < 20, SPREAD, SPREAD - 0.3),
            "*cannot tell*",
        ),
        (SPREAD + 0.05, "*cannot tell*"),
        (SPREAD[:5], "*cannot tell*"),
    ],
)
def test_attacks_are_equal_by_the_median_and_the_trimmed_mean(requests, words):
    assert f" the bound for two devices of one kind: {words}" in lines_of(requests)


def test_the_interval_of_the_median_lies_between_two_of_its_values():
    values = np.arange(33) / 1000
    low, high = (f"{values[place]:+.3f}" for place in (10, 22))  # of 33 values, by the binomial
    assert f"the median over results is {low} to {high} dB" in lines_of(values[:, None])


def test_one_sided_divergence_is_counted_apart():
    off = [0.01, float("nan"), -0.01]
    (line,) = summaries({"rows": [{"key": "one", "kind": "attack", "off": off}]})
    assert "1 result, 3 numbers; new minus old +0.00 dB in the mean" in line
    assert "and 1 that diverged on one side only" in line


# --- the report ---------------------------------------------------------------------------------------------


@pytest.fixture
def root(root, page, monkeypatch):
    """A project's top folder with two pages."""
    page("toy")
    page("other", ("28",))
    (root / "book/_toc.yml").write_text("- file: results/toy\n- file: results/other\n")
    monkeypatch.setattr(runner, "BOOK_PROFILE", "smoke")
    monkeypatch.setattr(runner, "build_book", lambda root, store: store.say("built"))
    return root


@pytest.mark.slow
@pytest.mark.jupyter
def test_the_report_is_made_from_the_archive_alone(root, said):
    archive = Archive(root / "results")
    few = Store(root / "few")
    wanted = asked_by()
    for request in wanted:
        request.make(few, torch.device("cpu"))
    archive.write(few, embedded=True)
    report(seed=3, minutes=0.05, jobs=1, root=root, store=Store(root / "unused", say=said.append))
    place = root / "book/_build/report"
    folder = place / "results/toy/shapes-smoke"
    told = stored_result(folder)
    assert len(told["evidence"]) == 2
    assert told["facts"]["images"] == 2
    assert (place / "book/results/toy.ipynb").exists()
    assert not (place / "book/results/other.ipynb").exists()
    assert not (root / "book/results/toy.ipynb").exists()  # it is made beside
    rows = pd.read_csv(folder / "attacks.csv.gz")
    assert len(rows) == 4
    for request in wanted:
        found = request.make(few, torch.device("cpu"))["psnr"]
        own = rows[rows["policy"] == (request.policy or "none")]
        np.testing.assert_allclose(own["psnr"], found, rtol=1e-5)
    assert json.loads((root / "book/_build/audit.json").read_text())["seed"] == 3
    assert not (root / "results/audit.json").exists()
    assert (place / "book/audit.md").read_text() == audit_page(root / "book/_build")
    assert said[1] == f"archive: {len(wanted)} results, {archive.size() / 1e6:.1f} MB, all whole"
    assert said[-2].startswith("as they are committed, for want of evidence in the archive: other")
    assert said[-1] == "built"
    assert not (root / "unused").exists()


def small_archive(root):
    """An archive of one artifact of two numbers: its only file beside the manifest."""
    kept = Store(root / "kept")
    kept.get("other", {"a": 1}, lambda state: {"cost": torch.ones(2)})
    Archive(root / "results").write(kept)
    return root / "results/other/evidence.parquet"


def test_a_report_on_a_damaged_archive_ends_before_any_work(root, store):
    file = small_archive(root)
    file.unlink()
    with refused("the archive is damaged: other/evidence.parquet is missing; `git checkout"):
        report(root=root, store=store)
    assert not (root / "results/audit.json").exists()


def test_a_report_without_evidence_says_so_and_builds_the_book_as_it_is(root, store, said):
    before = (root / "README.md").read_text()
    report(root=root, store=store)
    assert said[-2].endswith(
        "results holds no evidence yet; `make evidence FRESH=1` computes all of it"
    )
    assert said[-1] == "built"
    assert (root / "README.md").read_text() == before


def test_a_report_without_the_images_of_the_evidence_says_so_and_builds_the_book(
    root, store, said, monkeypatch
):
    def missing(name, split):
        raise AtsError(f"{name} is not here")

    small_archive(root)
    monkeypatch.setattr(runner, "BOOK_PROFILE", "laptop")
    monkeypatch.setattr(runner, "load", missing)
    monkeypatch.setattr(runner, "available", lambda name, split: False)
    report(root=root, store=store)
    assert said[0] == "reading cifar100"
    assert said[1].startswith("cifar100 is not here")
    assert said[-2].startswith("without the images of the evidence nothing can be computed again")
    assert said[-1] == "built"
    assert not (root / "results/audit.json").exists()


def test_the_command_line_passes_its_options_on(root, monkeypatch):
    seen = {}
    monkeypatch.setattr(runner, "report", lambda **options: seen.update(options) or [])
    assert main(["report", "--seed", "7", "--minutes", "0.5", "--jobs", "1"]) == 0
    assert {name: seen[name] for name in ("seed", "minutes", "jobs")} == {
        "seed": 7,
        "minutes": 0.5,
        "jobs": 1,
    }
    assert not seen["record"]
    assert not seen["write"]
    assert seen["root"] == root
    main(["report", "--write", "--record"])
    assert (seen["seed"], seen["minutes"]) == (None, 1)
    assert seen["record"]
    assert seen["write"]


def test_archive_write_and_verify_from_the_command_line(root, capsys, monkeypatch):
    file = small_archive(root)
    monkeypatch.setattr(runner, "readers", lambda root: {})
    shutil.rmtree(root / "results")
    (root / "results").mkdir()
    assert main(["archive", "write", "--store", str(root / "kept")]) == 0
    assert capsys.readouterr().out == f"{root / 'results'}: 1 results, 1 of them new, 0.0 MB\n"
    assert main(["archive", "verify"]) == 0
    assert capsys.readouterr().out == f"{root / 'results'}: 1 results, all whole, 0.0 MB\n"
    assert main(["archive", "restore", "--store", str(root / "again")]) == 0
    assert capsys.readouterr().out == f"1 of 1 requests restored to {root / 'again'}\n"
    assert len(list(Store(root / "again").entries())) == 1
    assert main(["archive", "forget", "--store", str(root / "again")]) == 0
    assert capsys.readouterr().out == f"0 restored artifacts taken out of {root / 'again'}\n"
    assert main(["archive", "restore", "nonsense", "--store", str(root / "again")]) == 2
    assert "nonsense" in capsys.readouterr().err
    assert main(["archive", "verify", "steps"]) == 2
    capsys.readouterr()
    file.write_bytes(b"x")
    assert main(["archive", "verify"]) == 1
    assert capsys.readouterr().out == f"other/{file.name}: its bytes do not match their hash\n"
