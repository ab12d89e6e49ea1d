"""Algorithm 1: who is rejected, ranked, chosen; resumption; halving; the command, on named data and
on a folder.
"""

import dataclasses
import importlib
import json
import math
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from checks import Killed, refused, written
from PIL import Image

from atsbook.store import Store
from atslib.__main__ import main
from atslib.attacks import ATTACKS
from atslib.data.copies import copies
from atslib.data.folder import load_folder
from atslib.data.load import load, measured_normalization
from atslib.models import build_model
from atslib.policies.policy import CANONICAL, Policy, enumerate_distinct, load_policies
from atslib.rng import rng
from atslib.scores import shards
from atslib.scores.scores import accuracy_score, privacy_score
from atslib.scores.search import SearchConfig, pareto, search
from atslib.scores.shards import attack_gains

module = importlib.import_module("atslib.scores.search")  # `atslib.search` is the function
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

SMALL = SearchConfig(candidates=12, keep=3, images=4, acc_images=6, points=3, shard=5)
COLUMNS = [
    "policy",
    "canonical",
    "s_acc",
    "s_pri",
    "sd",
    "ci_low",
    "ci_high",
    "n",
    "rung",
    "chosen",
]


@pytest.fixture(scope="module")
def parties():
    """A network, another one, and the images they score."""
    models = [build_model("lenet", 10, norm="shapes", rng=rng(seed)) for seed in (0, 1)]
    return *models, load("shapes", "test")[:12]


@pytest.fixture(scope="module")
def result(parties):
    return search(SMALL, *parties, seed=0)


def table_of(result):
    return pd.DataFrame(result.table)


# --- the search ---------------------------------------------------------------------------------------------


def test_the_table_holds_the_scores_of_every_candidate(result, parties):
    semi_trained, random_init, images = parties
    assert all(isinstance(column, np.ndarray) for column in result.table.values())
    table = table_of(result)
    assert table.columns.tolist() == COLUMNS
    assert len(table) == len(set(table["canonical"])) <= 12
    assert (table["n"] == 4).all()
    order = torch.randperm(12, generator=rng(0, "images"))
    for row in table.iloc[[0, 5]].itertuples():
        policy = Policy.parse(row.policy)
        assert row.canonical == str(policy.canonical())
        scores = privacy_score(
            semi_trained, images[order[:4]], policy, points=3, rng=rng(0, "scores")
        ).double()
        assert row.s_pri == pytest.approx(scores.mean().item(), abs=1e-6)
        assert row.sd == pytest.approx(scores.std().item(), abs=1e-6)
        assert (row.ci_high - row.s_pri, row.s_pri - row.ci_low) == pytest.approx(
            (0.98 * row.sd, 0.98 * row.sd)
        )
        accuracy = accuracy_score(random_init, images[order[:6]], policy, rng=rng(0, "scores"))
        assert row.s_acc == pytest.approx(accuracy, rel=1e-6)


def test_the_lowest_privacy_scores_are_chosen_best_first(result):
    table = table_of(result)
    assert table["s_pri"].is_monotonic_increasing
    assert table["chosen"].tolist() == [True] * 3 + [False] * (len(table) - 3)
    assert [str(policy) for policy in result.chosen] == table["policy"][:3].tolist()


def test_the_hybrid_is_of_the_best_policies_without_a_common_function(result):
    first, *rest = (
        Policy.parse(text) for text in result.table["policy"] if Policy.parse(text).canonical().ids
    )
    second = next(
        p
        for p in rest
        if not {CANONICAL[i] for i in p.ids} & {CANONICAL[i] for i in first.ids} - {None}
    )
    assert result.hybrid.members == (first, second)


def test_the_hybrid_compares_functions_and_not_ids_and_leaves_the_identity_out():
    ranked = [Policy.parse(text) for text in ("28", "42-28-42", "14-48", "43", "7-39")]
    assert (
        str(module._hybrid(ranked)) == "42-28-42+7-39"
    )  # 42, 43 and 48 are one function; 28 and 39 none
    assert str(module._hybrid(ranked[1:4])) == "42-28-42"
    assert module._hybrid(ranked[:1]) is None


def test_the_shards_do_not_change_the_table(result, parties):
    other = search(dataclasses.replace(SMALL, shard=12), *parties, seed=0)
    pd.testing.assert_frame_equal(table_of(other), table_of(result), rtol=0, atol=1e-6)


def test_a_killed_search_goes_on_and_ends_with_the_same_table(result, parties, store, monkeypatch):
    real, calls = shards.privacy_scores, []

    def dies(model, images, policies, **options):
        calls.append(len(policies))
        if len(calls) == 2:
            raise Killed
        return real(model, images, policies, **options)

    monkeypatch.setattr(shards, "privacy_scores", dies)
    with pytest.raises(Killed):
        search(SMALL, *parties, seed=0, keep=store.keep)
    again = search(SMALL, *parties, seed=0, keep=store.keep)
    pd.testing.assert_frame_equal(table_of(again), table_of(result), check_exact=True)
    assert again.hybrid == result.hybrid
    count = math.ceil(len(result.table["policy"]) / 5)
    assert len(calls) == 1 + count  # the first shard was not computed again
    search(SMALL, *parties, seed=0, keep=store.keep)
    assert len(calls) == 1 + count


def test_another_network_seed_or_variant_is_another_artifact(parties, store):
    semi_trained, random_init, images = parties
    search(SMALL, semi_trained, random_init, images, seed=0, keep=store.keep)
    count = len(list(store.entries()))
    search(SMALL, random_init, random_init, images, seed=0, keep=store.keep)
    half = count // 2
    assert len(list(store.entries())) == count + half
    search(dataclasses.replace(SMALL, pri_variant="code"), *parties, seed=0, keep=store.keep)
    assert len(list(store.entries())) == count + 2 * half


def test_halving_scores_few_images_for_all_and_more_for_the_best(result, parties):
    halving = search(dataclasses.replace(SMALL, rungs=((2, 0.5),)), *parties, seed=0)
    table, total = table_of(halving), len(result.table["policy"])
    survivors = table[table["rung"] == 2]
    assert len(survivors) == math.ceil(total / 2)
    assert (survivors["n"] == 4).all()
    assert (table[table["rung"] == 1]["n"] == 2).all()
    assert table["rung"].is_monotonic_decreasing
    assert survivors["s_pri"].is_monotonic_increasing
    full = table_of(result).set_index("policy")["s_pri"]
    np.testing.assert_allclose(survivors["s_pri"], full[survivors["policy"]], rtol=0, atol=1e-6)
    first_rung = search(dataclasses.replace(SMALL, images=2), *parties, seed=0).table
    assert set(survivors["policy"]) == set(first_rung["policy"][: len(survivors)])


def test_a_threshold_rejects_before_the_privacy_score_and_says_so_if_it_rejects_all(
    result, parties
):
    scores = table_of(result)["s_acc"]
    result = search(dataclasses.replace(SMALL, t_acc=scores.median()), *parties, seed=0)
    admitted = table_of(result)
    rejected = admitted[admitted["rung"] == 0]
    assert (rejected["s_acc"] < scores.median()).all()
    assert len(rejected) == (scores < scores.median()).sum() > 0
    assert rejected["s_pri"].isna().all()
    assert not rejected["chosen"].any()
    assert admitted["s_acc"][: len(scores) - len(rejected)].min() >= scores.median()
    spread = f"they score {scores.min():.6g} to {scores.max():.6g}"
    with refused(
        "t_acc 0, the threshold on the accuracy score",
        f"rejects all {len(scores)} candidates; {spread}",
    ):
        search(dataclasses.replace(SMALL, t_acc=0.0), *parties, seed=0)


def test_only_the_codes_accuracy_score_has_a_threshold_by_default():
    assert SearchConfig().threshold is None
    assert SearchConfig(acc_variant="code").threshold == -85
    assert SearchConfig(acc_variant="code", t_acc=-90).threshold == -90


def test_ranking_with_variance_is_that_of_the_later_release(parties):
    table = table_of(search(dataclasses.replace(SMALL, ranking="mean+variance"), *parties, seed=0))

    def scaled(values):
        return (values - values.min()) / (values.max() - values.min())

    rank = 0.7 * scaled(table["s_pri"]) + 0.3 * scaled(table["sd"] ** 2)
    assert (rank.diff()[1:] > -1e-5).all()
    assert not table["s_pri"].is_monotonic_increasing


@pytest.mark.parametrize("sampler", ["uniform", "authors"])
def test_candidates_are_distinct_functions_in_the_order_drawn(sampler):
    policies = module._candidates(SearchConfig(candidates=2000, sampler=sampler), 0)
    canonical = [policy.canonical() for policy in policies]
    assert len(set(canonical)) == len(canonical) < 2000
    assert policies[:5] == module._candidates(SearchConfig(candidates=5, sampler=sampler), 0)


def test_exhaustive_candidates_are_all_distinct_functions():
    policies = module._candidates(SearchConfig(sampler="exhaustive"), 0)
    assert policies == list(enumerate_distinct())
    assert len(policies) == 20_439


def test_pareto_rows_are_those_that_no_other_beats():
    privacy, accuracy = (
        [0.1, 0.2, 0.3, 0.3, 0.2, 0.4, np.nan, 0.1],
        [-3.0, -2.0, -1.0, -1.5, -2.0, -1.0, 0, -4],
    )
    on_the_front = [True, True, True, False, True, False, False, False]
    assert pareto(privacy, accuracy).tolist() == on_the_front
    assert pareto(pd.Series(privacy), pd.Series(accuracy)).tolist() == on_the_front
    assert pareto([], []).tolist() == []


def test_the_front_is_that_of_comparing_each_policy_with_each():
    draws = np.random.default_rng(0).integers(0, 12, (2, 200)).astype(float)
    draws[:, ::17] = np.nan
    s_pri, s_acc = draws
    no_worse = (s_pri[:, None] <= s_pri) & (s_acc[:, None] >= s_acc)
    better = (s_pri[:, None] < s_pri) | (s_acc[:, None] > s_acc)
    beaten = (no_worse & better).any(0)
    expected = ~beaten & ~np.isnan(s_pri) & ~np.isnan(s_acc)
    assert 1 < expected.sum() < 100
    assert (pareto(s_pri, s_acc) == expected).all()


def test_a_saved_search_loads_back_and_says_what_made_it(result, tmp_path):
    result.save(tmp_path / "policies.json", dataset="shapes", model="convnet-2")
    assert load_policies(tmp_path / "policies.json") == list(result.chosen)
    facts = json.loads((tmp_path / "policies.json").read_text())
    assert (facts["dataset"], facts["model"], facts["seed"]) == ("shapes", "convnet-2", 0)
    assert facts["hybrid"] == str(result.hybrid)
    assert facts["search"]["candidates"] == 12
    assert [row["s_pri"] for row in facts["scores"]] == result.table["s_pri"][:3].tolist()
    table = pd.read_csv(tmp_path / "policies.csv", keep_default_na=False)
    assert table["policy"].astype(str).tolist() == result.table["policy"].tolist()


def test_the_table_is_written_as_pandas_writes_it(parties, tmp_path):
    middle = np.median(search(SMALL, *parties, seed=0).table["s_acc"])  # scores of half are empty
    result = search(dataclasses.replace(SMALL, t_acc=middle), *parties, seed=0)
    result.save(tmp_path / "policies.json")
    expected = table_of(result).to_csv(index=False, float_format="%.6g")
    assert (tmp_path / "policies.csv").read_text() == expected


def test_scores_are_kept_by_any_function_and_described_by_all_that_decides_them(result, parties):
    kept, computed = {}, []

    def keep(kind, description, compute):
        key = kind, json.dumps(description, sort_keys=True, default=str)
        if key not in kept:
            computed.append(description)
            kept[key] = compute()
        return kept[key]

    for _ in range(2):
        again = search(SMALL, *parties, seed=0, keep=keep)
        pd.testing.assert_frame_equal(table_of(again), table_of(result), check_exact=True)
    count = math.ceil(len(result.table["policy"]) / 5)
    assert [d["score"] for d in computed] == ["accuracy"] * count + ["privacy"] * count
    needed = {"score", "seed", "network", "variant", "images", "model", "policies"}
    assert all(needed <= description.keys() for description in computed)
    assert {kind for kind, _ in kept} == {"score"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sampler": "random"},
            "SearchConfig.sampler 'random' is unknown; choose one of uniform, authors, exhaustive",
        ),
        ({"ranking": "max"}, "SearchConfig.ranking 'max' is unknown"),
        ({"acc_variant": "x"}, "SearchConfig.acc_variant 'x' is unknown"),
        ({"candidates": 0}, "SearchConfig.candidates=0 must be at least 1"),
        ({"candidates": 10**14}, "SearchConfig.candidates=100000000000000 must be at most 1000000"),
        ({"acc_images": 1}, "SearchConfig.acc_images=1 must be at least 2"),
        ({"rungs": ((100, 0.5),)}, "images must rise and stay below 100"),
        ({"rungs": ((20, 0.5), (10, 0.5))}, "images must rise"),
        ({"rungs": ((20, 1.5),)}, "shares be in (0, 1]"),
    ],
)
def test_a_wrong_config_says_what_is_allowed(options, message):
    with refused(message):
        SearchConfig(**options)


def test_too_few_images_are_named(parties):
    with refused("asks for 100 images and shapes test has 12"):
        search(dataclasses.replace(SMALL, images=100), *parties, seed=0)


# --- an own folder ------------------------------------------------------------------------------------------


def write(path, value=100, mode="RGB", size=(20, 10)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255 - value)).save(path)


@pytest.fixture
def folder(tmp_path):
    """Three classes of 5, 10 and 3 images of one colour each, with files that are no images
    between.
    """
    for label, count in {"cat": 5, "dog": 10, "emu": 3}.items():
        for i in range(count):
            write(tmp_path / "own" / label / f"{i:02}.{'png' if i % 2 else 'bmp'}", 10 * i)
    for name in ("notes.txt", ".hidden.png"):
        (tmp_path / "own" / "cat" / name).write_text("no image")
    (tmp_path / "own" / ".cache").mkdir()
    return tmp_path / "own"


def test_a_folder_is_split_80_to_20_in_every_class_and_always_alike(folder):
    train, test = load_folder(folder, size=8)
    assert train.class_names == test.class_names == ("cat", "dog", "emu")
    assert torch.bincount(test.labels).tolist() == [1, 2, 1]
    assert torch.bincount(train.labels).tolist() == [4, 8, 2]
    assert train.pixels.shape[1:] == (3, 8, 8)
    for part, again in zip((train, test), load_folder(folder, size=8), strict=True):
        assert torch.equal(part.pixels, again.pixels)
    red = torch.cat([train.pixels, test.pixels])[:, 0, 0, 0]
    assert sorted(red.tolist()) == sorted(10 * i for count in (5, 10, 3) for i in range(count))
    others = [
        load_folder(folder, size=8, seed=seed)[1].pixels[:, 0, 0, 0].tolist() for seed in range(8)
    ]
    assert len(set(map(tuple, others))) > 3


@pytest.mark.parametrize(
    "name",
    [".ipynb_checkpoints/00-checkpoint.png", ".git/objects/0.png", ".thumbnails/0.png", "._00.png"],
)
def test_what_programs_leave_hidden_in_a_class_is_passed_over(folder, name):
    before = load_folder(folder, size=8)
    write(folder / "cat" / name, 250)
    for part, again in zip(before, load_folder(folder, size=8), strict=True):
        assert torch.equal(part.pixels, again.pixels)


@pytest.mark.parametrize("again", [lambda x: x, lambda x: x[:, ::-1]], ids=["equal", "mirrored"])
def test_copies_of_a_photograph_are_in_one_part(tmp_path, again):
    draws = np.random.default_rng(0)
    for label in "ab":
        (tmp_path / label).mkdir()
        for i in range(10):
            photo = draws.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            for name, pixels in ((f"{i}.png", photo), (f"{i} copy.png", again(photo))):
                Image.fromarray(np.ascontiguousarray(pixels)).save(tmp_path / label / name)
    train, test = load_folder(tmp_path, size=8)
    assert torch.bincount(test.labels).tolist() == [4, 4]  # two photographs of ten, each twice
    first = copies(torch.cat([train.pixels, test.pixels]))
    assert not set(first[: len(train)].tolist()) & set(first[len(train) :].tolist())


def test_adding_a_class_does_not_move_the_images_of_the_others(folder):
    before = load_folder(folder, size=4)[1].pixels[:3]
    for i in range(2):
        write(folder / "fox" / f"{i}.png", 200)
    assert torch.equal(load_folder(folder, size=4)[1].pixels[:3], before)


def test_resize_keeps_the_borders_and_crop_cuts_them(tmp_path):
    wide = Image.new("L", (30, 10))
    wide.paste(255, (10, 0, 20, 10))
    for file in ("a/0", "a/1", "b/0", "b/1"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        wide.save(tmp_path / f"{file}.png")
    resized, cropped = (
        load_folder(tmp_path, size=10, fit=fit)[0].pixels[0] for fit in ("resize", "crop")
    )
    assert resized.shape == (1, 10, 10)
    assert (cropped == 255).all()
    assert resized[0, :, 0].max() == 0
    assert resized[0, :, 5].min() == 255


def test_one_coloured_file_makes_the_set_rgb_and_palettes_and_orientation_are_heeded(tmp_path):
    for label in "ab":
        write(tmp_path / label / "0.png", 90, "L")
    photo = Image.new("RGB", (4, 8), (255, 0, 0))
    photo.paste((0, 0, 255), (0, 4, 4, 8))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    photo.save(tmp_path / "a" / "1.png", exif=exif)
    photo.convert("P").save(tmp_path / "b" / "1.gif", transparency=0)
    parts = load_folder(tmp_path, size=8)
    pixels = torch.cat([part.pixels for part in parts])
    assert pixels.shape == (4, 3, 8, 8)
    top = {tuple(image[:, 0, 0].tolist()) for image in pixels}
    assert top == {(90, 90, 90), (0, 0, 255), (255, 0, 0)}


def truncate(path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    path.write_bytes(written(Image.fromarray(noise).save, "PNG")[:2000])


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            lambda root: (root / "dog" / "00.bmp").write_bytes(b"broken"),
            {},
            "00.bmp cannot be read as an image",
        ),
        (lambda root: truncate(root / "dog" / "09.png"), {}, "09.png cannot be read as an image"),
        (lambda root: write(root / "fox" / "0.png"), {}, "class 'fox' in"),
        (
            lambda root: (root / "fox").mkdir(),
            {},
            "has 0 image files; each class needs at least two",
        ),
        (lambda root: root.rename(root.parent / "other"), {}, "is not a folder"),
        (
            lambda root: [*map(shutil.rmtree, (root / "cat", root / "dog"))],
            {},
            "has 1 subfolders; there must be at least",
        ),
        (lambda root: None, {"fit": "pad"}, "fit 'pad' is unknown; choose one of resize, crop"),
    ],
)
def test_a_folder_that_is_none_or_damaged_is_named(folder, change, options, message):
    change(folder)
    with refused(message):
        load_folder(folder, **options)


def test_measured_normalization_is_that_of_the_pixels(folder):
    train, _ = load_folder(folder, size=4)
    mean, deviation = measured_normalization(train)
    pixels = train.pixels.double() / 255
    assert mean == pytest.approx(pixels.mean((0, 2, 3)).tolist())
    assert deviation[0] == pytest.approx(pixels[:, 0].std(correction=0).item())
    assert deviation[1] == 1 / 255  # no green anywhere: nothing is divided by zero


# --- the command --------------------------------------------------------------------------------------------

QUICK = "--model convnet-2 --policies 6 --images 3 --acc-images 4 --points 3 --epochs 1 --keep 2 --attack-winner 0"


def test_search_from_the_shell_leaves_policies_a_table_and_the_best_on_the_screen(tmp_path, capsys):
    out = tmp_path / "made" / "policies.json"
    command = f"search --dataset shapes --fraction 0.005 {QUICK} --rungs 2:0.5 --out {out}"
    assert main(command.split()) == 0
    shown = capsys.readouterr().out
    chosen = load_policies(out)
    table = pd.read_csv(out.with_suffix(".csv"), keep_default_na=False, dtype={"policy": str})
    assert table[table["chosen"].astype(str) == "True"]["policy"].tolist() == [
        str(p) for p in chosen
    ]
    assert all(f"{policy}: {policy.names()}" in shown for policy in chosen)
    assert f"{out}: 2 policies; all {len(table)} in policies.csv" in shown
    facts = json.loads(out.read_text())
    assert (facts["dataset"], facts["model"], facts["image_shape"]) == (
        "shapes",
        "convnet-2",
        [3, 32, 32],
    )
    made = sorted(path.name for path in out.with_suffix(".kept").iterdir())
    assert made
    first = out.read_bytes()
    assert main(command.split()) == 0
    assert out.read_bytes() == first
    assert sorted(path.name for path in out.with_suffix(".kept").iterdir()) == made


def test_the_winner_is_attacked_and_no_policy_has_a_row(tmp_path, capsys):
    quick = QUICK.replace("--attack-winner 0", "--attack-winner 60s --attack-steps 3")
    command = f"search --dataset shapes --fraction 0.005 {quick} --out {tmp_path / 'p.json'}"
    assert main(command.split()) == 0
    said = capsys.readouterr().out
    assert re.search(r"–  \d\.\d+ \(.*no policy\n", said)
    assert "Neither predicts much" in said
    best = json.loads((tmp_path / "p.json").read_text())["policies"][0]
    assert f"the best policy, {best}, under attack" in said
    assert re.search(
        r"found \d+ of \d+ \[.*\]: one gradient of 1 image, given weights, defense", said
    )


def test_search_on_an_own_folder(folder, tmp_path, capsys):
    out = tmp_path / "policies.json"
    command = f"search --dataset {folder} --image-size 18 --fit crop {QUICK} --images 50"
    assert main([*command.split(), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "4 images are scored instead of 50 (--images)" in shown
    assert len(load_policies(out)) == 2
    assert json.loads(out.read_text())["image_shape"] == [3, 18, 18]
    kinds = [path.name.split("-")[0] for path in out.with_suffix(".kept").iterdir()]
    assert kinds.count("model") == 1
    assert kinds.count("score") == 4  # two of the candidates, two of no policy


# --- real attacks as the last rung --------------------------------------------------------------------------


def test_the_finals_rank_the_best_by_what_an_attack_gains(result, parties, tmp_path):
    attack = dataclasses.replace(ATTACKS["adam-cosine"], steps=4)
    semi_trained, _, images = parties
    after = search(SMALL, *parties, seed=0, finals=attack, keep=Store(tmp_path).keep)
    finalists = result.table["policy"][:6].tolist()
    best = table_of(after).head(6)
    assert sorted(best["policy"]) == sorted(finalists)
    assert (best["rung"] == 2).all()
    assert (after.table["rung"][6:] == 1).all()
    assert np.isnan(after.table["gain"][6:]).all()
    assert best["gain"].is_monotonic_increasing
    assert [str(policy) for policy in after.chosen] == best["policy"][:3].tolist()
    attacked = images[torch.randperm(12, generator=rng(0, "images"))[:6]]
    one = attack_gains(semi_trained, attacked, Policy.parse(best["policy"][0]), attack, seed=0)
    assert best["gain"][0] == pytest.approx(one.double().mean().item(), abs=1e-5)
    again = search(SMALL, *parties, seed=0, finals=attack, keep=Store(tmp_path).keep)
    pd.testing.assert_frame_equal(table_of(again), table_of(after))


def test_an_attack_that_recovers_the_image_gains_and_one_that_does_not_start_gains_nothing(parties):
    model = build_model("lenet", 10, norm="shapes", rng=rng(0))
    images, policy = parties[2][:3], Policy.parse("")
    idle, longer = (dataclasses.replace(ATTACKS["adam-cosine"], steps=steps) for steps in (1, 200))
    little, much = (
        attack_gains(model, images, policy, attack, seed=0).mean() for attack in (idle, longer)
    )
    assert much > little + 1
