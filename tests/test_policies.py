"""The table of the 50, the notation, canonical forms, draws, samplers, files and the torchvision
adaptor.
"""

import json
import pickle
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
import torch
from checks import refused
from PIL import Image

from atslib.policies import operations as transforms
from atslib.policies import policy as policies
from atslib.policies.policy import Hybrid, Policy, forms, parse_policy
from atslib.rng import rng

# The published list as text: index, operation, level, value (a fraction, a factor's distance from
# 1, ...).
TABLE = """
0 invert 7 -            1 contrast 6 .3333      2 rotate 2 6.667        3 translateX 9 .4532
4 sharpness 1 .0556     5 sharpness 3 .1667     6 shearY 2 .0667        7 translateY 2 .1007
8 autocontrast 5 -      9 equalize 2 -          10 shearY 5 .1667       11 posterize 5 6
12 color 3 .1667        13 brightness 5 .2778   14 sharpness 9 .5       15 brightness 9 .5
16 equalize 5 -         17 equalize 1 -         18 contrast 7 .3889     19 sharpness 5 .2778
20 color 5 .2778        21 translateX 5 .2518   22 equalize 7 -         23 autocontrast 8 -
24 translateY 3 .1511   25 sharpness 6 .3333    26 brightness 6 .3333   27 color 8 .4444
28 solarize 0 256       29 invert 0 -           30 equalize 0 -         31 autocontrast 0 -
32 equalize 8 -         33 equalize 4 -         34 color 5 .2778        35 equalize 5 -
36 autocontrast 4 -     37 solarize 4 142.22    38 brightness 3 .1667   39 color 0 0
40 solarize 1 227.56    41 autocontrast 0 -     42 translateY 3 .1511   43 translateY 3 .1511
44 autocontrast 1 -     45 solarize 1 227.56    46 equalize 5 -         47 invert 0 -
48 translateY 3 .1511   49 autocontrast 1 -
"""
SAME = [{0, 29, 47}, {8, 23, 31, 36, 41, 44, 49}, {9, 16, 17, 22, 30, 32, 33, 35, 46}]
SAME += [{20, 34}, {24, 42, 43, 48}, {40, 45}]


@pytest.fixture(scope="module")
def images():
    """24 noisy colour gradients, 32 x 20: on 16 rows, two vertical shifts would move as many
    pixels.
    """
    noise = torch.randint(0, 60, (24, 3, 32, 20), generator=rng(0), dtype=torch.uint8)
    ramp = torch.linspace(10, 190, 20).to(torch.uint8)
    return noise + ramp


def test_the_fifty_operations_are_the_published_ones():
    words = TABLE.split()
    rows = [words[i : i + 4] for i in range(0, len(words), 4)]
    assert [int(index) for index, *_ in rows] == list(range(50))
    assert [(name, int(level)) for _, name, level, _ in rows] == list(policies.OPS)
    for (*_, value), op in zip(rows, policies.OPS, strict=True):
        magnitude = policies.magnitude(op)
        assert (
            magnitude is None
            if value == "-"
            else magnitude == pytest.approx(float(value), abs=5e-3, rel=1e-3)
        )


def test_magnitudes_start_and_end_where_the_paper_says():
    ends = {name: (table[0], table[9]) for name, table in transforms.MAGNITUDES.items()}
    shifts = dict.fromkeys(("translateX", "translateY"), (0, 150 / 331))
    enhancers = dict.fromkeys(("color", "contrast", "brightness", "sharpness"), (0, 0.5))
    others = {"shearY": (0, 0.3), "rotate": (0, 30), "posterize": (8, 4), "solarize": (256, 0)}
    assert ends == shifts | enhancers | others
    assert transforms.MAGNITUDES["posterize"] == (8, 8, 7, 7, 6, 6, 5, 5, 4, 4)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", Policy),
        ("0", Policy),
        ("3-1-7", Policy),
        ("49-49-49-49", Policy),
        ("3-1-7+43-18", Hybrid),
        ("0+0", Hybrid),
    ],
)
def test_the_notation_round_trips(text, kind):
    assert str(kind.parse(text)) == text
    assert parse_policy(text) == kind.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("50", "policy '50': no operation [50]; ids run 0..49"),
        ("3-77-7-99", "no operation [77, 99]"),
        ("3-x", "policy '3-x': expected ids joined by '-'"),
        ("3--1", "expected ids joined by '-'"),
        ("-1", "expected ids joined by '-'"),
        ("3, 1", "expected ids joined by '-'"),
        ("²", "expected ids joined by '-'"),
        ("3-1-7+", "hybrid '3-1-7+': a member is empty; write the identity as 28"),
        ("3+50", "no operation [50]"),
    ],
)
def test_parsing_says_what_is_wrong(text, message):
    with refused(message):
        parse_policy(text)


PIXELS = torch.zeros(24, 3, 8, 8, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *[
            (lambda given=given: parse_policy(given), f"policy {given!r} must be text")
            for given in (None, 3, (3, 1, 7))
        ],
        (lambda: Policy((-1,)), "no operation"),
        (lambda: Hybrid(()), "a member is empty"),
        (
            lambda: Policy((3, 1, 7)).apply_signs(PIXELS, torch.ones(24, 2).long()),
            "signs are (24, 2); expected (B, k) = ",
        ),
        (
            lambda: Hybrid.parse("3+1").apply_draw(
                PIXELS, *Hybrid.parse("3+1").draw(5, rng=rng(0))
            ),
            "5 members and 5 rows of signs for 24 images",
        ),
        (
            lambda: Policy((3,)).as_torchvision()(Image.new("RGBA", (4, 4))),
            "image mode 'RGBA' is not supported",
        ),
        (
            lambda: policies.save_policies("p.json", [], format="mine"),
            "fact 'format' is a name of the format",
        ),
        (lambda: policies.load_policies("absent.json"), "absent.json: cannot be read"),
    ],
)
def test_what_a_policy_cannot_be_made_of_or_do_is_refused(call, message):
    with refused(message):
        call()


def test_policies_are_values():
    assert Policy([3, 1]) == Policy((3, 1))
    assert len({Policy.parse("3-1"), Policy.parse("3-1"), Hybrid.parse("3-1")}) == 2


def test_names_are_readable():
    assert Policy.parse("3-1-7").names() == "translateX 9 → contrast 6 → translateY 2"
    assert Policy().names() == "identity"
    assert Hybrid.parse("3+0").names() == "translateX 9 or invert 7"


def test_canonical_indices_are_the_duplicates_of_the_table():
    expected = {i: min(group) for group in SAME for i in group} | {28: None, 39: None}
    assert list(policies.CANONICAL) == [expected.get(i, i) for i in range(50)]
    assert len({i for i in policies.CANONICAL if i is not None}) == 27


def test_operations_agree_exactly_where_their_canonical_index_does(images):
    for sign in (1, -1):
        results = [
            transforms.apply(i, images, sign).contiguous().numpy().tobytes() for i in range(50)
        ]
        for a, b in combinations(range(50), 2):
            same = policies.CANONICAL[a] == policies.CANONICAL[b]
            assert (results[a] == results[b]) == same, (a, b, sign)
        assert results[28] == images.numpy().tobytes()


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("48-28-49-47", "24-8-0"),
        ("28-39", ""),
        ("", ""),
        ("3-1-7", "3-1-7"),
        ("18-46-18", "18-9-18"),
    ],
)
def test_the_canonical_policy_is_the_same_function(text, canonical, images):
    policy, short = Policy.parse(text), Policy.parse(text).canonical()
    assert str(short) == canonical
    assert short.canonical() == short
    kept = [k for k, i in enumerate(policy.ids) if policies.CANONICAL[i] is not None]
    _, signs = policy.draw(len(images), rng=rng(1))
    assert torch.equal(policy.apply_signs(images, signs), short.apply_signs(images, signs[:, kept]))


def test_operations_are_applied_left_to_right(images):
    expected = transforms.apply(7, transforms.apply(1, transforms.apply(3, images, 1), -1), 1)
    signs = torch.tensor([1, -1, 1]).expand(len(images), 3)
    assert torch.equal(Policy.parse("3-1-7").apply_signs(images, signs), expected)


def test_the_empty_policy_returns_its_images(images):
    assert Policy()(images, rng=rng(0)) is images


def test_signs_are_fair_and_independent_of_the_batch_size():
    policy = Policy.parse("3-1-7")
    _, signs = policy.draw(4000, rng=rng(0))
    assert set(signs.unique().tolist()) == {-1, 1}
    assert (signs.double().mean(0).abs() < 0.05).all()
    assert signs.double().T.corrcoef().triu(1).abs().max() < 0.05
    assert torch.equal(policy.draw(3, rng=rng(0))[1], signs[:3])


@pytest.mark.parametrize("text", ["3-1-7", "3-1-7+43+18-18"])
def test_an_image_is_transformed_alike_in_a_batch_of_any_size(text, images):
    policy = parse_policy(text)
    assert torch.equal(policy(images[:3], rng=rng(2)), policy(images[:10], rng=rng(2))[:3])
    member, signs = policy.draw(len(images), rng=rng(2))
    assert torch.equal(policy(images, rng=rng(2)), policy.apply_draw(images, member, signs))
    assert policy(images[:0], rng=rng(2)).shape == (0, 3, 32, 20)


def test_a_hybrid_gives_each_image_one_member(images):
    hybrid = Hybrid.parse("3-1-7+43+18-18")
    member, signs = hybrid.draw(len(images), rng=rng(3))
    assert set(member.tolist()) == {0, 1, 2}
    assert signs.shape == (len(images), 3)
    out = hybrid.apply_draw(images, member, signs)
    for i, number in enumerate(member.tolist()):
        policy = hybrid.members[number]
        alone = policy.apply_signs(images[i : i + 1], signs[i : i + 1, : len(policy.ids)])
        assert torch.equal(out[i : i + 1], alone)


def test_a_hybrid_draws_its_members_equally_often():
    member, _ = Hybrid.parse("3+1+7").draw(9000, rng=rng(0))
    assert (torch.bincount(member) / 9000 - 1 / 3).abs().max() < 0.02


def test_sampling_is_uniform_over_the_search_space():
    sample = policies.sample_uniform(20_000, rng=rng(0))
    lengths = Counter(len(policy.ids) for policy in sample)
    assert lengths[3] / 20_000 == pytest.approx(50**3 / 127_550, abs=0.005)
    assert lengths[2] / 20_000 == pytest.approx(50**2 / 127_550, abs=0.005)
    assert lengths[1] == 20_000 - lengths[3] - lengths[2]
    slots = Counter(
        (k, i) for policy in sample if len(policy.ids) == 3 for k, i in enumerate(policy.ids)
    )
    assert len(slots) == 150
    assert all(abs(count * 50 / lengths[3] - 1) < 0.25 for count in slots.values())
    assert policies.sample_uniform(5, rng=rng(0)) == sample[:5]


def test_sampled_functions_are_distinct_and_do_something():
    found = policies.sample_functions(300, rng=rng(0))
    assert len({policy.canonical() for policy in found}) == len(found) == 300
    assert all(policy.canonical().ids for policy in found)
    drawn = policies.sample_authors(1200, rng=rng(0))
    assert {*found} <= {*drawn}


def test_the_authors_sampler_is_nearly_always_of_length_three():
    sample = policies.sample_authors(20_000, rng=rng(0))
    lengths = Counter(len(policy.ids) for policy in sample)
    assert lengths[3] / 20_000 == pytest.approx((50 / 51) ** 3, abs=0.006)
    assert lengths[2] / 20_000 == pytest.approx(3 * 50**2 / 51**3, abs=0.006)
    assert {i for policy in sample for i in policy.ids} == set(range(50))


def test_the_search_space_has_its_published_size():
    everything = [Policy(ids) for k in (1, 2, 3) for ids in product(range(50), repeat=k)]
    assert len(everything) == len(set(everything)) == 50 + 50**2 + 50**3 == 127_550
    distinct = set(policies.enumerate_distinct())
    assert len(distinct) == 27 + 27**2 + 27**3 == 20_439
    assert {policy.canonical() for policy in everything} == distinct | {Policy()}


def test_policies_round_trip_through_a_file(tmp_path):
    wanted = [Policy.parse("3-1-7"), Policy(), Hybrid.parse("3-1-7+43-18-18")]
    path = tmp_path / "policies.json"
    policies.save_policies(path, wanted, dataset="cifar100", seed=0)
    assert policies.load_policies(path) == wanted
    content = json.loads(path.read_text())
    assert (content["format"], content["dataset"]) == ("atslib-policies-1", "cifar100")
    assert content["operations"]["43"] == "translateY 3"
    assert list(content["operations"]) == ["1", "3", "7", "18", "43"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "is not JSON"),
        ("[]", "is not a policy file"),
        (
            '{"format": "other", "policies": []}',
            "is not a policy file; expected an object with 'format'",
        ),
        ('{"format": "atslib-policies-1"}', "'policies' must be a list of strings"),
        (
            '{"format": "atslib-policies-1", "policies": [3]}',
            "'policies' must be a list of strings",
        ),
        (
            '{"format": "atslib-policies-1", "policies": ["3-50"]}',
            "policy '3-50': no operation [50]",
        ),
    ],
)
def test_loading_says_what_is_wrong(text, message, tmp_path):
    path = tmp_path / "policies.json"
    path.write_text(text)
    with refused(message, str(path)):
        policies.load_policies(path)


def as_pil(image):
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(np.ascontiguousarray(array if len(image) == 3 else array[:, :, 0]))


@pytest.mark.parametrize("text", ["", "3-1-7", "6-2-12", "3-1-7+43+18-18"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_torchvision_form_gives_our_pixels(text, channels, images):
    policy, pixels = parse_policy(text), images[:, :channels]
    transform = policy.as_torchvision(seed=4)
    copy = pickle.loads(pickle.dumps(transform))
    assert copy == transform
    for expected, image in zip(policy(pixels, rng=rng(4)), pixels, strict=True):
        for apply in (transform, copy):
            result = apply(as_pil(image))
            assert result.mode == ("RGB" if channels == 3 else "L")
            assert np.array_equal(np.asarray(result), np.asarray(as_pil(expected)))


class Pictures(torch.utils.data.Dataset):
    """One white picture many times, so that results differ only by their draws."""

    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.from_numpy(np.array(self.transform(Image.new("RGB", (8, 8), "white"))))


def load(transform, workers, seed):
    generator = torch.Generator().manual_seed(seed)
    return list(
        torch.utils.data.DataLoader(
            Pictures(transform), 8, num_workers=workers, generator=generator
        )
    )


def test_workers_draw_differently_and_repeatably():
    transform = Policy.parse("3-7-3-7").as_torchvision()
    (first, second), (here, _) = (load(transform, workers=workers, seed=0) for workers in (2, 0))
    assert first.shape == here.shape == (8, 8, 8, 3)
    assert not torch.equal(first, second)
    assert torch.equal(first, load(transform, workers=2, seed=0)[0])


def test_a_seed_is_refused_in_workers(monkeypatch):
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: "a worker")
    with refused("seed 0 would repeat in every worker"):
        Policy((3,)).as_torchvision(seed=0)(Image.new("RGB", (8, 8)))


LABELLED = {
    "image and label": lambda image: (image, 7),
    "image, label, name": lambda image: (image, torch.tensor([7]), "a.png"),
    "dict": lambda image: {"label": 7, "image": image},
    "nested": lambda image: ([image], {"label": 7, "boxes": None}),
    "one tuple": lambda image: ((image, 7),),
}


def flat(sample):
    if isinstance(sample, dict):
        sample = list(sample.values())
    if not isinstance(sample, tuple | list):
        return [sample]
    return [part for each in sample for part in flat(each)]


@pytest.mark.parametrize("kind", LABELLED)
def test_a_sample_keeps_everything_but_its_image(kind, images):
    image = as_pil(images[0])
    given = LABELLED[kind](image)
    transform = Policy.parse("3-1-7").as_torchvision(seed=4)
    got = transform(*given) if isinstance(given, tuple) else transform(given)
    assert type(got) is (type(given[0]) if kind == "one tuple" else type(given))
    wanted = as_pil(Policy.parse("3-1-7")(images[:1], rng=rng(4))[0])
    for old, new in zip(flat(given), flat(got), strict=True):
        if old is image:
            assert np.array_equal(np.asarray(new), np.asarray(wanted))
        else:
            assert new is old


def test_samples_without_one_image_are_refused(images):
    transform, image = Policy((3,)).as_torchvision(), as_pil(images[0])
    with refused("2 images", "must have one"):
        transform(image, image)
    for sample in ((), (3, "a"), ({"label": 3},), (images[0],)):
        with refused("must be a PIL image"):
            transform(*sample)


def test_joint_pipelines_of_torchvision_take_a_policy(images):
    v2 = pytest.importorskip("torchvision.transforms.v2", exc_type=ImportError)
    tv = pytest.importorskip("torchvision.tv_tensors", exc_type=ImportError)
    wanted = Policy.parse("3-1-7")(images[:1], rng=rng(4))[0]
    size = tuple(wanted.shape[1:])

    def pipeline(first=()):
        return v2.Compose([*first, Policy.parse("3-1-7").as_torchvision(seed=4)])

    image, label = pipeline()(as_pil(images[0]), 7)
    assert (label, np.asarray(image).tolist()) == (7, np.asarray(as_pil(wanted)).tolist())
    sample = pipeline([v2.ToImage()])({"image": as_pil(images[0]), "label": 7})
    assert sample["label"] == 7
    assert type(sample["image"]) is tv.Image
    assert torch.equal(sample["image"].as_subclass(torch.Tensor), wanted)
    with refused("torch.float32", "before any conversion to floats"):
        pipeline([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])(as_pil(images[0]), 7)
    boxes = tv.BoundingBoxes(torch.tensor([[0, 0, 2, 2]]), format="XYXY", canvas_size=size)
    for name, part in (("BoundingBoxes", boxes), ("Mask", tv.Mask(torch.zeros(1, *size)))):
        with refused(name, "have to move with the image"):
            pipeline()(as_pil(images[0]), {"objects": part, "label": 7})


def test_a_list_of_modules_of_torchvision_takes_a_policy(images):
    transforms = pytest.importorskip("torchvision.transforms", exc_type=ImportError)
    wanted = as_pil(Policy.parse("3-1-7")(images[:1], rng=rng(4))[0])
    transform = Policy.parse("3-1-7").as_torchvision(seed=4)
    got = transforms.RandomApply(torch.nn.ModuleList([transform]), p=1.0)(as_pil(images[0]))
    assert np.array_equal(np.asarray(got), np.asarray(wanted))
    assert repr(transform) == "PilTransform(Policy(ids=(3, 1, 7)), seed=4)"


# --- all that a policy can make of an image -----------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "3-1-7", "28", "43-18-18", "3-1-7+43-18-18"])
def test_every_draw_is_among_the_forms(text):
    policy = parse_policy(text)
    pixels = torch.randint(0, 256, (3, 3, 12, 12), generator=rng(0), dtype=torch.uint8)
    known = forms(policy, pixels)
    for seed in range(12):
        made = policy(pixels, rng=seed)
        for i in range(len(pixels)):
            assert (known[:, i] == made[i]).flatten(1).all(1).any()


def test_a_form_that_repeats_is_given_once():
    pixels = torch.randint(0, 256, (2, 3, 12, 12), generator=rng(1), dtype=torch.uint8)
    assert len(forms(Policy(), pixels)) == 1
    assert (
        len(forms(Policy((28,)), pixels)) == 1
    )  # an identity takes a sign and does nothing with it
    assert len(forms(Policy((3,)), pixels)) == 2
    assert len(forms(parse_policy("3+3"), pixels)) == 2
