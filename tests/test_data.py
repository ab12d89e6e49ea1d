"""Laws of the data module: what a packed file holds is what one gets, and what is wrong is said."""

import functools
import gzip
import hashlib
import importlib
import io
import os
import socket
import struct
import sys
import time
import urllib.request
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock
from urllib.error import URLError

import numpy as np
import pytest
import torch
from checks import flip_a_bit, refused, written
from PIL import Image, ImageOps

from atslib.data import official as _official
from atslib.data import packed as _packed
from atslib.data.folder import load_folder, opened, upright
from atslib.data.load import Images, load
from atslib.data.packed import pack
from atslib.rng import rng

data = importlib.import_module("atslib.data.load")  # `atslib.data.load` is the function

shapes = functools.cache(load)  # for the tests that only look at them
ROOT = Path(os.environ.get("ATS_DATA", "/nowhere"))
CLOTHES = tuple(f"garment {i}" for i in range(10))


def needs(file):
    """A test that reads a real packed file; skipped, with the reason, where there is none."""
    skip = pytest.mark.skipif(not (ROOT / file).exists(), reason=f"$ATS_DATA has no {file}")
    return lambda test: pytest.mark.data(skip(test))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Each test has a cache of its own, and no root unless it names one."""
    monkeypatch.setenv("ATS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ATS_DATA", str(tmp_path / "no-data"))
    return tmp_path / "cache"


@pytest.fixture
def offline(monkeypatch):
    """A machine without a network; the list holds the addresses that were asked for."""
    asked = []

    def refuse(request, *args, **kwargs):
        asked.append(getattr(request, "full_url", request))
        raise URLError("no network here")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(_official, "urlopen", refuse)
    return asked


def random_pixels(*shape, seed=0):
    return torch.randint(256, shape, generator=rng(seed, "pixels"), dtype=torch.uint8)


@pytest.fixture
def undecoded(monkeypatch):
    """Black pixels instead of decoded ones, where a test looks at everything else."""
    monkeypatch.setattr(
        _packed,
        "_decode",
        lambda _, kind, offsets: np.zeros((len(offsets) - 1, 3, kind.size, kind.size), np.uint8),
    )


@pytest.fixture
def grey(tmp_path):
    """A packed file of twenty made-up 28×28 images, and their pixels."""
    pixels = random_pixels(20, 1, 28, 28)
    return pack(pixels, torch.arange(20) % 10, CLOTHES, tmp_path / "fmnist_test.npz"), pixels


def made_up(counts):
    """Images with `counts[k]` of class k, shuffled; pixel (0, 0) is the image's number."""
    labels = torch.cat([torch.full((n,), k) for k, n in enumerate(counts)])
    labels = labels[torch.randperm(len(labels), generator=rng(0, "shuffle"))]
    pixels = (
        torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 4).clone()
    )
    return Images(pixels, labels, tuple("abcdefgh"[: len(counts)]), "made-up", "train")


# --- Real files --------------------------------------------------------------------------------------


@pytest.mark.slow  # to decode 50,000 images
@needs("cifar100_train.npz")
def test_cifar100_train_has_its_known_labels_and_moments_and_loads_from_cache_within_a_second(
    monkeypatch,
):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # threads that take turns would count as work
    start = time.process_time()  # not the clock: other processes may be busy
    images = load("cifar100", "train", ROOT)
    assert time.process_time() - start < 40  # 8 on a quiet machine
    assert images.pixels.shape == (50_000, 3, 32, 32)
    assert images.labels[:5].tolist() == [19, 29, 0, 11, 1]
    assert images.labels.bincount().tolist() == [500] * 100
    mean = images.pixels.numpy().mean(axis=(0, 2, 3)) / 255
    np.testing.assert_allclose(mean, [0.5071, 0.4866, 0.4409], rtol=0, atol=6e-5)
    start = time.process_time()
    again = load("cifar100", "train", ROOT)
    assert time.process_time() - start < 1
    assert torch.equal(again.pixels, images.pixels)


@needs("cifar100_test.npz")
def test_cifar100_test_has_its_known_labels_and_names(undecoded):
    images = load("cifar100", "test", ROOT)
    assert len(images) == 10_000
    assert images.labels[:5].tolist() == [49, 33, 72, 51, 71]
    assert (images.num_classes, images.class_names[0], images.note) == (100, "apple", "")


@needs("cifar10_test.npz")
def test_cifar10_leaves_out_the_inexact_images_and_says_so(undecoded):
    images = load("cifar10", "test", ROOT)
    assert len(images) == 9_975
    assert images.note.startswith("25 of 10,000")


@needs("fmnist_test.npz")
def test_fmnist_is_grey_and_decodes_like_pillow_one_by_one():
    images = load("fmnist", "test", ROOT)
    assert images.pixels.shape == (10_000, 1, 28, 28)
    assert images.labels[:5].tolist() == [9, 2, 1, 1, 6]
    with np.load(ROOT / "fmnist_test.npz") as packed:
        raw, offsets = packed["data"], packed["offsets"]
    for i in (0, 499, 500, 9_999):  # both sides of a border between chunks
        alone = Image.open(io.BytesIO(raw[offsets[i] : offsets[i + 1]].tobytes())).convert("L")
        assert np.array_equal(images.pixels[i, 0], np.asarray(alone))


@needs("tinyimagenet_train_10pct.npz")
def test_tinyimagenet_train_falls_back_on_the_tenth_and_says_so(undecoded):
    if (ROOT / "tinyimagenet_train.npz").exists():
        pytest.skip("the whole training set is here")
    images = load("tinyimagenet", "train", ROOT)
    assert images.pixels.shape == (10_000, 3, 64, 64)
    assert images.labels.bincount().tolist() == [50] * 200
    assert (images.name, images.note) == ("tinyimagenet", "10 % of the training set (n=10,000)")


# --- Images ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pixels": torch.zeros(4, 3, 2, 2)}, "float32 of shape (4, 3, 2, 2)"),
        ({"pixels": torch.zeros(4, 2, 2, dtype=torch.uint8)}, "(N, C, H, W)"),
        ({"pixels": torch.zeros(4, 2, 2, 2, dtype=torch.uint8)}, "2 channels"),
        ({"labels": torch.zeros(4)}, "labels are float32"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "one label per image"),
        ({"labels": torch.tensor([0, 1, 2, 1])}, "label 2 is outside 0..1"),
        ({"labels": torch.tensor([0, -1, 1, 1])}, "label -1 is outside 0..1"),
    ],
)
def test_images_that_contradict_themselves_cannot_be_made(change, message):
    good = {
        "pixels": torch.zeros(4, 3, 2, 2, dtype=torch.uint8),
        "labels": torch.tensor([0, 1, 0, 1]),
    }
    with refused(message):
        Images(**(good | change), class_names=("a", "b"), name="x", split="test")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: load("mnist", "train"),
            "data set 'mnist' is unknown; choose one of cifar100, fmnist",
        ),
        (
            lambda: load("cifar100", "val"),
            "cifar100 split 'val' is unknown; choose one of train, test",
        ),
        (lambda: load("shapes", "all"), "shapes split 'all'"),
        (lambda: data.available("mnist", "train"), "'mnist'"),
        (lambda: data.normalization("mnist"), "choose one of cifar10, cifar100"),
        (lambda: made_up([3, 4])[[7]], "index 7 is outside"),
        (lambda: made_up([3, 4])[[-8]], "index -8"),
        (lambda: made_up([3, 4])[[0.5]], "integers"),
        (lambda: made_up([3, 4])[[True, False]], "mask of shape (7,)"),
        (lambda: made_up([1]).to("nonsense"), "device 'nonsense'"),
        *[
            (lambda part=part: made_up([4]).subset(part, rng=rng(0)), f"subset fraction {part!r}")
            for part in (0, -0.1, 1.01, float("nan"), "0.5")
        ],
    ],
)
def test_a_wrong_name_split_selection_share_or_device_is_told_the_rule(call, message):
    with refused(message):
        call()


def test_selections_by_number_slice_list_and_mask_agree():
    images = made_up([3, 4])
    every_other = [0, 2, 4, 6]
    mask = torch.arange(7) % 2 == 0
    for selection in (slice(None, None, 2), every_other, torch.tensor(every_other), mask):
        chosen = images[selection]
        assert chosen.pixels[:, 0, 0, 0].tolist() == every_other
        assert torch.equal(chosen.labels, images.labels[every_other])
    assert images[[5, 1, 1]].pixels[:, 0, 0, 0].tolist() == [5, 1, 1]
    assert [one.pixels[0, 0, 0, 0].item() for one in images] == list(range(7))
    assert images[-1].pixels.shape == (1, 3, 2, 4)
    assert len(images[[]]) == 0
    assert torch.equal(images.to("cpu").labels, images.labels)


# --- Subsets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fraction", "counts"), [(0.1, [4, 1, 1]), (0.5, [20, 4, 1]), (1, [40, 8, 1])]
)
def test_a_stratified_subset_takes_the_rounded_share_of_each_class_and_at_least_one(
    fraction, counts
):
    part = made_up([40, 8, 1]).subset(fraction, rng=rng(0))
    assert part.labels.bincount(minlength=3).tolist() == counts


def test_a_subset_has_no_image_twice_and_keeps_the_order_and_the_labels():
    images = made_up([40, 8, 1])
    part = images.subset(0.4, rng=rng(1))
    numbers = part.pixels[:, 0, 0, 0].long()
    assert (numbers.diff() > 0).all()
    assert torch.equal(part.labels, images.labels[numbers])
    assert f"(n={len(part)})" in part.note
    torch.rand(3)  # the global generator plays no part
    again, other = (images.subset(0.4, rng=rng(seed)).pixels[:, 0, 0, 0].long() for seed in (1, 2))
    assert torch.equal(again, numbers)
    assert not torch.equal(other, numbers)


def test_a_subset_reaches_every_image():
    images = made_up([40, 8, 1])
    parts = [images.subset(0.3, rng=rng(seed)) for seed in range(40)]
    assert {len(part) for part in parts} == {15}  # 12, 2 and 1
    assert (
        len(torch.cat([part.pixels[:, 0, 0, 0] for part in parts]).unique()) == 49
    )  # a miss: 1e-4


# --- Shapes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "digest"),
    [
        ("shapes", (3, 32, 32), "64e61062b6ceda35e874d4f5812e4ea7714ed3ff73094c8011301c2195fc18b1"),
        (
            "shapes-grey",
            (1, 28, 28),
            "9ecc9101a5deb6e8c74f03df4208075d6b084d2d02d887cd2ad86b266469ed9b",
        ),
    ],
)
def test_shapes_are_the_same_pixels_everywhere_and_balanced(name, shape, digest):
    train, test = shapes(name, "train"), shapes(name, "test")
    assert train.pixels.shape == (5000, *shape)
    assert train.labels.bincount().tolist() == [500] * 10
    assert test.labels.bincount().tolist() == [100] * 10
    assert hashlib.sha256(train.pixels[:100].numpy().tobytes()).hexdigest() == digest
    assert torch.equal(load(name, "train").pixels, train.pixels)


def test_no_test_shape_is_a_training_shape():
    train, test = shapes("shapes", "train"), shapes("shapes", "test")
    assert (
        len({image.numpy().tobytes() for image in torch.cat([train.pixels, test.pixels])}) == 6000
    )


@pytest.mark.parametrize("name", ["shapes", "shapes-grey"])
def test_the_constants_of_shapes_are_their_moments(name):
    pixels = shapes(name, "train").pixels.float() / 255
    mean, std = (torch.tensor(values) for values in data.normalization(name))
    torch.testing.assert_close(pixels.mean(dim=(0, 2, 3)), mean, rtol=0, atol=6e-4)
    torch.testing.assert_close(pixels.std(dim=(0, 2, 3)), std, rtol=0, atol=6e-4)


def test_shapes_are_not_told_apart_by_their_mean_images():
    """So that a network has something to learn; chance is 0.1."""
    train, test = shapes("shapes-grey", "train"), shapes("shapes-grey", "test")
    x, y = train.pixels.flatten(1).double(), test.pixels.flatten(1).double()
    means = torch.stack([x[train.labels == k].mean(0) for k in range(10)])
    accuracy = (torch.cdist(y, means).argmin(1) == test.labels).double().mean()
    assert accuracy < 0.3


@pytest.mark.parametrize("name", data.SCALED)
def test_a_scaled_set_is_the_whole_one_as_pillow_scales_it(name):
    whole, size = data.SCALED[name]
    if not data.available(whole, "test", ROOT):
        pytest.skip(f"$ATS_DATA has no {whole}_test.npz")
    small, large = (load(one, "test", ROOT) for one in (whole, name))
    assert large.pixels.shape == (len(small), 1, size, size)
    assert torch.equal(large.labels, small.labels)
    assert (large.name, large.note) == (name, f"scaled to {size}×{size} from {whole}")
    for i in range(0, len(small), len(small) // 50):
        image = Image.fromarray(small.pixels[i, 0].numpy()).resize(
            (size, size), Image.Resampling.BILINEAR
        )
        assert (large.pixels[i, 0].numpy() == np.asarray(image)).all()


@pytest.mark.parametrize("name", data.DATASETS)
def test_every_data_set_has_constants_for_each_of_its_channels(name):
    mean, std = data.normalization(name)
    assert len(mean) == len(std) == (1 if name.startswith(("fmnist", "shapes-grey")) else 3)
    assert all(0 < value < 1 for value in mean + std)


def test_drawn_sets_are_told_apart_from_photographed_ones():
    drawn = [name for name in data.DATASETS if data.is_drawn(name)]
    assert drawn == ["shapes", "shapes-grey", "shapes-grey-32"]
    assert not data.is_drawn("shapes-of-my-own")


# --- Own folders -------------------------------------------------------------------------------------

DEEP = np.array([[0, 128, 257], [32768, 65407, 65535], [1000, 2000, 3000]], dtype=np.uint16)


def two_classes(folder, array, suffix):
    """Two classes of two images each, all of this array."""
    for name in ("a/0", "a/1", "b/0", "b/1"):
        (folder / name).parent.mkdir(exist_ok=True)
        Image.fromarray(array).save(folder / f"{name}.{suffix}")
    return folder


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_scaled_to_eight(tmp_path, suffix):
    train, test = load_folder(two_classes(tmp_path, DEEP, suffix), size=3)
    for pixels in torch.cat([train.pixels, test.pixels]):
        assert pixels.tolist() == [np.rint(DEEP / 257).astype(np.uint8).tolist()]


@pytest.mark.parametrize(("depth", "suffix"), [(10, "png"), (12, "png"), (12, "tif"), (14, "png")])
def test_a_picture_of_fewer_bits_in_a_file_of_sixteen_is_as_bright_as_it_was(
    tmp_path, depth, suffix
):
    seen = np.array(
        [[0, 2**depth - 1, 2 ** (depth - 1)], [17, 300, 900], [1, 2, 3]], dtype=np.uint16
    )
    train, test = load_folder(two_classes(tmp_path, seen, suffix), size=3)
    for pixels in torch.cat([train.pixels, test.pixels]):
        assert pixels.tolist() == [np.rint(seen * (255 / (2**depth - 1))).astype(np.uint8).tolist()]


def test_all_files_of_sixteen_bits_have_one_range_that_of_the_brightest(tmp_path):
    folder = two_classes(tmp_path, np.full((3, 3), 1000, np.uint16), "png")
    Image.fromarray(np.full((3, 3), 4095, np.uint16)).save(folder / "a" / "0.png")
    train, test = load_folder(folder, size=3)
    assert sorted(torch.cat([train.pixels, test.pixels])[:, 0, 0, 0].tolist()) == [62, 62, 62, 255]


def png16(colours, kind):
    """The bytes of a PNG with 16 bits a colour, (H, W, channels); `kind` is the standard's number of
    the colours: 2 RGB, 4 grey with alpha, 6 RGB with alpha.
    """
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in colours)
    head = struct.pack(">IIBBBBB", colours.shape[1], colours.shape[0], 16, kind, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def tiff16(colours):
    """The bytes of a TIFF with 16 bits a colour, (H, W, 3), as little-endian writers make it."""
    pixels = colours.astype("<u2").tobytes()
    tags = [
        (256, 4, colours.shape[1]),
        (257, 4, colours.shape[0]),
        (258, 3, 3, 8),
        (259, 3, 1),
        (262, 3, 2),
        (273, 4, 14),
        (277, 3, 3),
        (278, 4, colours.shape[0]),
        (279, 4, len(pixels)),
    ]
    body = b"II*\0" + struct.pack("<I", 14 + len(pixels)) + struct.pack("<3H", 16, 16, 16) + pixels
    entries = [
        struct.pack("<HHII", tag[0], tag[1], tag[2] if len(tag) == 4 else 1, tag[-1])
        for tag in tags
    ]
    return body + struct.pack("<H", len(tags)) + b"".join(entries) + bytes(4)


def four(folder, content, name="0.png"):
    """Two classes of two files each, all of these bytes."""
    for place in ("a", "b"):
        (folder / place).mkdir(exist_ok=True)
        (folder / place / name).write_bytes(content)
        (folder / place / f"1{name}").write_bytes(content)
    return folder


COLOURS = np.array([[0, 40_000, 65_535], [257, 32_896, 12_850]], dtype=np.uint16)[:, :, None]
SIXTEEN = {
    "colour": (lambda values: png16(values.repeat(3, 2), 2), 3),
    "colour, TIFF": (lambda values: tiff16(values.repeat(3, 2)), 3),
    "grey with alpha": (
        lambda values: png16(np.concatenate([values, values * 0 + 65_535], 2), 4),
        1,
    ),
    "colour with alpha": (
        lambda values: png16(np.concatenate([values.repeat(3, 2), values * 0 + 65_535], 2), 6),
        3,
    ),
}


@pytest.mark.parametrize("kind", SIXTEEN)
def test_sixteen_bits_a_colour_are_read_where_the_device_has_them(tmp_path, kind):
    made, channels = SIXTEEN[kind]
    name = "0.tif" if "TIFF" in kind else "0.png"
    square = np.tile(COLOURS[:, :2], (1, 1, 1))
    square[1, 1] = 65_535
    train, _ = load_folder(four(tmp_path, made(square), name), size=2)
    assert train.pixels.shape[1:] == (channels, 2, 2)
    for channel in train.pixels[0]:
        assert (channel - torch.tensor([[0, 155], [1, 255]])).abs().max() <= 1


@pytest.mark.parametrize("kind", SIXTEEN)
@pytest.mark.parametrize("depth", [8, 10, 12, 14])
def test_fewer_bits_in_sixteen_a_colour_are_one_sentence_and_not_dark(tmp_path, kind, depth):
    made, _ = SIXTEEN[kind]
    name = "0.tif" if "TIFF" in kind else "0.png"
    with refused(f"{name} has 16 bits per colour and uses no more than {depth} of them"):
        load_folder(four(tmp_path, made(COLOURS >> (16 - depth)), name))


def test_a_dark_photograph_beside_bright_ones_of_sixteen_bits_a_colour_is_read(tmp_path):
    made, _ = SIXTEEN["colour"]
    folder = four(tmp_path, made(np.full((2, 2, 1), 65_535, np.uint16)))
    (folder / "a" / "0.png").write_bytes(made(np.full((2, 2, 1), 2570, np.uint16)))
    train, test = load_folder(folder, size=2)
    assert sorted(torch.cat([train.pixels, test.pixels])[:, 0, 0, 0].tolist()) == [
        10,
        255,
        255,
        255,
    ]


def test_grey_of_sixteen_bits_whose_zero_is_white_is_no_negative(tmp_path):
    folder = two_classes(tmp_path, np.zeros((3, 3), np.uint8), "tif")
    Image.fromarray(DEEP).save(folder / "a" / "0.tif", tiffinfo={262: 0})
    with refused("a/0.tif cannot be read as an image: 16 bits of grey of which 0 is white"):
        load_folder(folder)


# What cameras and programs have put beside the orientation (tag, type, value as bytes of 4 or more).
ODD = {
    "rational with a negative numerator over 0": (0x11A, 5, struct.pack("<iI", -1, 0)),
    "signed rational over 0": (0x11A, 10, struct.pack("<ii", -1, 0)),
    "negative SLONG": (0x1001, 9, struct.pack("<i", -5)),
    "negative SSHORT": (0x1001, 8, struct.pack("<hh", -5, 0)),
    "bytes where a number belongs": (0x128, 7, b"abcd"),
    "text in a rational": (0x11A, 2, b"72/1"),
    "a double that is no number": (0x1003, 12, struct.pack("<d", float("nan"))),
    "a float that is infinite": (0x1004, 11, struct.pack("<f", float("inf"))),
    "an empty text": (0x10F, 2, b"\0\0\0\0"),
    "a tag of no known type": (0x10F, 99, b"\1\2\3\4"),
    "a pointer that points nowhere": (0x8769, 4, struct.pack("<I", 10**9)),
    "a thumbnail that is not there": (0x201, 4, struct.pack("<I", 10**6)),
}


def exif(odd, orientation=6):
    """EXIF of a camera with an orientation and one more tag."""
    tag, kind, value = odd
    size = {5: 8, 10: 8, 12: 8, 8: 2}.get(kind, 4 if kind in (4, 9, 11) else 1)
    count = 1 if kind in (5, 10, 12, 8, 4, 9, 11) else len(value)
    where = struct.pack("<I", 38) if count * size > 4 else value
    both = [
        struct.pack("<HHIHH", 0x112, 3, 1, orientation, 0),
        struct.pack("<HHI", tag, kind, count) + where,
    ]
    both = both if tag > 0x112 else both[::-1]
    return b"Exif\0\0II*\0\x08\0\0\0\x02\0" + b"".join(both) + bytes(4) + value


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # of tags that are damaged
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_tag_beside_the_orientation_stops_nothing(tmp_path, odd):
    stream = io.BytesIO()
    upright = np.zeros((16, 16, 3), np.uint8)
    upright[:8] = 255  # bright above
    on_its_side = Image.fromarray(upright).rotate(90)  # which 6 turns back, by 270
    on_its_side.save(stream, "JPEG", exif=exif(ODD[odd]), quality=100)
    train, _ = load_folder(four(tmp_path, stream.getvalue(), "0.jpg"), size=16)
    assert train.pixels[0, :, :6].min() > 240
    assert train.pixels[0, :, 10:].max() < 15


@pytest.mark.parametrize("orientation", range(1, 9))
def test_each_orientation_turns_as_pillow_does(orientation):
    image = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    stream = io.BytesIO()
    tags = Image.Exif()
    tags[0x112] = orientation
    image.save(stream, "PNG", exif=tags)
    with Image.open(stream) as stored, Image.open(stream) as other:
        assert np.array_equal(upright(stored), ImageOps.exif_transpose(other))


def test_whatever_a_reader_raises_is_one_sentence_with_the_file(tmp_path):
    Image.new("L", (2, 2)).save(tmp_path / "a.png")

    def read(image):
        raise struct.error("argument out of range")

    with refused("a.png cannot be read as an image: argument out of range"):
        opened(tmp_path / "a.png", read)


@pytest.mark.parametrize("kind", ["EPS", "PPM", "TGA", "ICO", "PDF", "PCX"])
def test_a_file_of_another_kind_is_refused_by_its_content_and_starts_no_program(
    tmp_path, monkeypatch, kind
):
    folder = two_classes(tmp_path, np.zeros((8, 8, 3), np.uint8), "png")
    Image.new("RGB", (8, 8)).save(folder / "b" / "1.png", format=kind)
    monkeypatch.setattr("subprocess.Popen", None)  # Pillow draws EPS with Ghostscript
    with refused(
        "b/1.png cannot be read as an image: what is in it is none of PNG, JPEG, WEBP, BMP, GIF, TIFF"
    ):
        load_folder(folder)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"])
def test_files_are_read_by_their_content_whatever_their_suffix(tmp_path, kind):
    for name in ("a/0", "a/1", "b/0", "b/1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (90, 90, 90)).save(tmp_path / f"{name}.png", format=kind)
    train, test = load_folder(tmp_path, size=4)
    assert torch.cat([train.pixels, test.pixels]).unique().tolist() == [90]


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_images_without_a_known_range_are_refused_by_name(tmp_path, kind):
    with refused("a/0.tif cannot be read as an image: 32 bits per pixel"):
        load_folder(two_classes(tmp_path, DEEP.astype(kind), "tif"))


# --- Roots and the order of sources -----------------------------------------------------------


def test_root_argument_comes_before_the_environment(tmp_path, monkeypatch):
    for folder, level in (("argument", 10), ("environment", 20)):
        pixels = torch.full((10, 1, 28, 28), level, dtype=torch.uint8)
        pack(pixels, range(10), CLOTHES, tmp_path / folder / "fmnist_test.npz")
    monkeypatch.setenv("ATS_DATA", str(tmp_path / "environment"))
    assert (load("fmnist", "test", tmp_path / "argument").pixels == 10).all()
    assert (load("fmnist", "test").pixels == 20).all()


def test_a_packed_file_is_available_and_used_without_asking_the_network(grey, offline):
    path, pixels = grey
    images = load("fmnist", "test", path.parent)
    assert torch.equal(images.pixels, pixels)
    assert images.labels.tolist() == [*range(10), *range(10)]
    assert (images.class_names, images.name, images.split) == (CLOTHES, "fmnist", "test")
    there = [
        data.available(*which, path.parent)
        for which in (("fmnist", "test"), ("fmnist", "train"), ("shapes", "train"))
    ]
    assert there == [True, False, True]
    assert offline == []


def test_the_whole_tinyimagenet_is_preferred_to_its_tenth_and_val_is_test(tmp_path):
    names = [str(i) for i in range(200)]
    for file, count in (("train_10pct", 1), ("train", 3), ("val", 2)):
        pack(
            random_pixels(count, 3, 64, 64),
            range(count),
            names,
            tmp_path / f"tinyimagenet_{file}.npz",
        )
    whole = load("tinyimagenet", "train", tmp_path)
    assert (len(whole), whole.note) == (3, "")
    (tmp_path / "tinyimagenet_train.npz").unlink()
    assert load("tinyimagenet", "train", tmp_path).note == "10 % of the training set (n=1)"
    val, test = load("tinyimagenet", "val", tmp_path), load("tinyimagenet", "test", tmp_path)
    assert torch.equal(val.pixels, test.pixels)
    assert val.split == test.split == "test"


# --- Packing and damaged files -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pixels": np.zeros((2, 1, 4, 4))}, "float64 of shape"),
        ({"pixels": [np.zeros(3), np.zeros(3)]}, "the bytes of encoded files"),
        ({"labels": [0]}, "one label per image"),
        ({"labels": [0, 2]}, "label 2 is outside 0..1"),
        ({"labels": [0.0, 1.0]}, "labels are float64"),
        ({"path": "x.zip"}, ".npz"),
    ],
)
def test_pack_refuses_what_load_would_refuse_and_writes_nothing(tmp_path, change, message):
    good = {"pixels": random_pixels(2, 1, 4, 4), "labels": [0, 1], "path": "x.npz"} | change
    with refused(message):
        pack(good["pixels"], good["labels"], ("a", "b"), tmp_path / good["path"])
    assert list(tmp_path.iterdir()) == []


def test_pack_never_replaces_a_file(grey):
    path, pixels = grey
    before = path.read_bytes()
    with refused("does not exist yet"):
        pack(pixels, [0] * 20, CLOTHES, path)
    assert path.read_bytes() == before


def test_a_full_disk_leaves_no_file_behind(tmp_path, monkeypatch):
    def fill(file, **arrays):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", fill)
    with refused("cannot be written"):
        pack(random_pixels(1, 1, 4, 4), [0], ("a",), tmp_path / "x.npz")
    assert list(tmp_path.iterdir()) == []


def encoded(size):
    content = written(Image.fromarray(random_pixels(size, size).numpy()).save, "PNG")
    return np.frombuffer(content, dtype=np.uint8)


def alter(**change):
    """Rewrite a packed file with some arrays replaced by a function of them, or left out (None)."""

    def apply(path):
        with np.load(path) as packed:
            arrays = dict(packed)
        for key, new in change.items():
            old = arrays.pop(key, None)
            if new is not None:
                arrays[key] = new(old)
        np.savez(path, **arrays)

    return apply


def put(array, index, value):
    array = array.copy()
    array[index] = value
    return array


FAULTS = {
    "empty": (lambda path: path.write_bytes(b""), "not a whole packed file"),
    "text": (lambda path: path.write_text("hello"), "not a whole packed file"),
    "truncated": (
        lambda path: path.write_bytes(path.read_bytes()[:-500]),
        "not a whole packed file",
    ),
    "bit rot": (
        lambda path: flip_a_bit(path, path.stat().st_size // 2),
        "not a whole packed file",
    ),  # in `data`
    "one array": (
        lambda path: path.write_bytes(written(np.save, np.zeros(3))),
        "not a whole packed file",
    ),
    "no labels": (alter(labels=None), "an array is missing"),
    "no data": (alter(data=None), "an array is missing"),
    "pickled": (alter(labels=lambda x: x.astype(object)), "not a whole packed file"),
    "label too large": (alter(labels=lambda x: put(x, 3, 10)), "label 10 is outside 0..9"),
    "label negative": (alter(labels=lambda x: put(x, 3, -1)), "label -1 is outside 0..9"),
    "label missing": (alter(labels=lambda x: x[:-1]), "one label per image"),
    "float labels": (alter(labels=lambda x: x / 1), "labels are float64"),
    "other classes": (alter(class_names=lambda x: x[:9]), "fmnist has 10 classes"),
    "offsets fall": (alter(offsets=lambda x: put(x, 4, x[6])), "offsets are not a rising row"),
    "offsets start late": (alter(offsets=lambda x: put(x, 0, 1)), "offsets run 1.."),
    "offsets stop early": (alter(data=lambda x: np.append(x, x)), "but data is uint8 of shape"),
    "image damaged": (alter(data=lambda x: put(x, slice(0, 12), 0)), "image 0 cannot be decoded"),
    "image size": (
        alter(
            data=lambda x: encoded(27),
            offsets=lambda x: [0, len(encoded(27))],
            labels=lambda x: x[:1],
        ),
        "image 0 is 27×27, not 28×28 pixels",
    ),
    "image cut": (
        alter(data=lambda x: encoded(28)[:400], offsets=lambda x: [0, 400], labels=lambda x: x[:1]),
        "image 0 cannot be decoded",
    ),
    "exact": (alter(exact=lambda x: np.ones(3, dtype=bool)), "exact is bool of shape (3,)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_file_is_named_with_its_fault_and_left_alone(grey, offline, cache, fault):
    path, _ = grey
    damage, message = FAULTS[fault]
    damage(path)
    before = path.read_bytes()
    with refused(str(path), message):
        load("fmnist", "test", path.parent)
    assert path.read_bytes() == before
    assert offline == []


def test_images_that_are_not_exact_are_left_out(grey):
    path, pixels = grey
    alter(exact=lambda _: np.arange(20) != 4)(path)
    images = load("fmnist", "test", path.parent)
    assert torch.equal(images.pixels, torch.cat([pixels[:4], pixels[5:]]))
    assert images.note.startswith("1 of 20 images")


# --- The cache of decoded pixels ---------------------------------------------------------------------


@pytest.fixture
def decoded(monkeypatch):
    """A list with one entry for each time a file is decoded."""
    calls, decode = [], _packed._decode
    monkeypatch.setattr(
        _packed, "_decode", lambda path, *rest: calls.append(path) or decode(path, *rest)
    )
    return calls


def test_a_file_is_decoded_once_and_again_when_it_changes(grey, decoded, cache):
    path, pixels = grey
    for _ in range(2):
        assert torch.equal(load("fmnist", "test", path.parent).pixels, pixels)
    assert len(decoded) == len(list(cache.iterdir())) == 1
    path.unlink()
    pack(255 - pixels, [0] * 20, CLOTHES, path)
    assert torch.equal(load("fmnist", "test", path.parent).pixels, 255 - pixels)
    os.utime(path, ns=(1, 1))  # as large as before, but written at another time
    load("fmnist", "test", path.parent)
    assert len(decoded) == 3


@pytest.mark.parametrize(
    "damaged",
    [
        lambda good: good[:-1],
        lambda good: b"",
        lambda good: written(np.save, np.zeros((20, 1, 28, 28))),
        lambda good: written(np.save, np.zeros((20, 1, 27, 28), dtype=np.uint8)),
        lambda good: written(np.savez, x=np.zeros(3)),
    ],
    ids=["truncated", "empty", "dtype", "shape", "archive"],
)
def test_a_damaged_cache_file_is_rebuilt(grey, decoded, cache, damaged):
    path, pixels = grey
    load("fmnist", "test", path.parent)
    (file,) = cache.iterdir()
    good = file.read_bytes()
    file.write_bytes(damaged(good))
    assert torch.equal(load("fmnist", "test", path.parent).pixels, pixels)
    assert len(decoded) == 2
    assert file.read_bytes() == good


def test_a_cache_that_cannot_be_written_costs_only_time(grey, decoded, cache):
    path, pixels = grey
    cache.write_text("a file where the folder should be")
    for _ in range(2):
        assert torch.equal(load("fmnist", "test", path.parent).pixels, pixels)
    assert len(decoded) == 2


# --- Downloads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cifar100", "fmnist", "tinyimagenet"])
def test_without_file_and_network_one_error_says_what_was_tried_and_what_to_do(
    tmp_path, offline, name
):
    todo = ("root=", "$ATS_DATA", "atslib.data.load.pack_official", '"shapes"')
    with refused(str(tmp_path / f"{name}_train.npz"), *todo) as error:
        load(name, "train", tmp_path)
    assert offline, "the network was not tried"
    assert any(reason in str(error.value) for reason in ("no network here", "Error downloading"))
    assert list(tmp_path.iterdir()) == []  # nothing half-made is left


def test_a_silent_server_is_given_up_on_only_during_a_download(tmp_path, monkeypatch):
    seen, before = [], socket.getdefaulttimeout()
    monkeypatch.setattr(
        _official, "_fetch_torchvision", lambda *_: seen.append(socket.getdefaulttimeout()) or {}
    )
    socket.setdefaulttimeout(77)
    try:
        with refused("cifar100_train"):  # nothing came
            load("cifar100", "train", tmp_path)
        assert (seen, socket.getdefaulttimeout()) == ([_official.DOWNLOAD_TIMEOUT], 77)
    finally:
        socket.setdefaulttimeout(before)


def test_without_a_download_and_in_a_root_that_cannot_be_written_there_is_one_error(
    tmp_path, offline
):
    with refused("download=False"):
        load("cifar100", "train", tmp_path, download=False)
    assert offline == []
    with refused("there is no file"):
        load("cifar100", "train", tmp_path / "mistyped")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with refused("there is no file"):
        load("cifar100", "train", tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "official", "size"), [("cifar100", "CIFAR100", 32), ("fmnist", "FashionMNIST", 28)]
)
def test_a_download_is_packed_once_for_both_splits(
    tmp_path, monkeypatch, offline, name, official, size
):
    channels = 1 if name == "fmnist" else 3
    pixels = random_pixels(6, size, size, channels)
    made, other = [], tmp_path / "other"
    mine = pack(
        random_pixels(1, channels, size, size), [0], ("a",), other / f"{name}_test.npz"
    ).read_bytes()

    def source(folder, train, download):
        made.append(train)
        part = pixels[:4] if train else pixels[4:]
        raw = part[..., 0] if name == "fmnist" else part.numpy()  # as torchvision stores them
        classes = [str(i) for i in range(10 if name == "fmnist" else 100)]
        return SimpleNamespace(data=raw, targets=[3, 1, 4, 1][: len(part)], classes=classes)

    fake = SimpleNamespace(datasets=SimpleNamespace(**{official: source}))
    monkeypatch.setitem(sys.modules, "torchvision", fake)
    train, test = load(name, "train", tmp_path), load(name, "test", tmp_path)
    assert torch.equal(torch.cat([train.pixels, test.pixels]), pixels.permute(0, 3, 1, 2))
    assert (train.labels.tolist(), test.labels.tolist()) == ([3, 1, 4, 1], [3, 1])
    assert made == [True, False]  # one visit
    assert data.available(name, "test", tmp_path)
    load(name, "train", other)
    assert (
        other / f"{name}_test.npz"
    ).read_bytes() == mine  # a file that is there is never replaced


def tiny_archive(*more):
    """Stanford's archive in small: 200 classes, 2 training images of two of them, 2 validation
    images.
    """
    ids = [f"n{i:08d}" for i in range(200)]
    top, buffer = "tiny-imagenet-200/", io.BytesIO()

    def jpeg(level):
        return written(Image.new("L", (64, 64), level).save, "JPEG")

    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(top + "wnids.txt", "\n".join(reversed(ids)))
        archive.writestr(
            top + "words.txt", "\n".join(f"{wnid}\tword {wnid}" for wnid in [*ids, "n9"])
        )
        rows = [f"val_10.JPEG\t{ids[7]}\t0\t0\t9\t9", f"val_9.JPEG\t{ids[5]}\t0\t0\t9\t9"]
        archive.writestr(top + "val/val_annotations.txt", "\n".join(rows))
        for number, level in ((10, 100), (9, 90)):
            archive.writestr(f"{top}val/images/val_{number}.JPEG", jpeg(level))
            for wnid, more_level in ((ids[1], 1), (ids[0], 2)):
                archive.writestr(
                    f"{top}train/{wnid}/images/{wnid}_{number}.JPEG", jpeg(level + more_level)
                )
        for member in more:
            archive.writestr(member, "")
    return buffer.getvalue()


@pytest.fixture
def serve(monkeypatch):
    """Let Stanford's address answer with these bytes, and the md5 be theirs unless told otherwise."""

    def answer(content, md5=None):
        reply = io.BytesIO(content)
        reply.headers = {"Content-Length": str(len(content))}
        monkeypatch.setattr(_official, "urlopen", lambda url, timeout: reply)
        expected = md5 or hashlib.md5(content, usedforsecurity=False).hexdigest()
        monkeypatch.setattr(_official, "TINYIMAGENET_MD5", expected)

    return answer


def test_tinyimagenet_is_packed_by_class_and_number_with_its_jpegs_as_they_are(tmp_path, serve):
    serve(tiny_archive())
    train, val = load("tinyimagenet", "train", tmp_path), load("tinyimagenet", "val", tmp_path)
    assert train.labels.tolist() == [0, 0, 1, 1]
    assert train.pixels[:, 0, 5, 5].tolist() == [92, 102, 91, 101]  # 9 before 10
    assert (val.labels.tolist(), val.pixels[:, 0, 5, 5].tolist()) == ([5, 7], [90, 100])
    assert train.class_names[1] == "word n00000001"
    with np.load(tmp_path / "tinyimagenet_val.npz") as packed:
        assert packed["names"].tolist() == ["val_9.JPEG", "val_10.JPEG"]
        assert packed["data"][:2].tobytes() == b"\xff\xd8"  # a JPEG file


OUTSIDE = ("../evil", "tiny-imagenet-200/../../evil", "/evil", "C:/evil", "..\\evil")


@pytest.mark.parametrize(
    ("members", "md5", "message"),
    [
        ((), "0" * 32, "the archive has md5"),
        *[((member,), None, "points outside it") for member in OUTSIDE],
    ],
)
def test_an_archive_with_another_md5_or_a_member_outside_its_folder_is_refused(
    tmp_path, serve, members, md5, message
):
    serve(tiny_archive(*members), md5)
    with refused(message):
        load("tinyimagenet", "train", tmp_path / "root")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_broken_line_half_way_leaves_nothing_behind(tmp_path, serve, monkeypatch):
    serve(tiny_archive())
    reply = _official.urlopen("", timeout=1)
    read = MagicMock(side_effect=[reply.read(100), TimeoutError("timed out")])
    monkeypatch.setattr(reply, "read", read, raising=False)
    with refused("timed out"):
        load("tinyimagenet", "train", tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- copies on disk ------------------------------------------------------------------------------------


def fashion(counts=(3, 2)):
    """The four files of a small Fashion-MNIST, as they are unpacked."""
    files = {}
    for part, count in zip(("train", "t10k"), counts, strict=True):
        pixels = random_pixels(count, 28, 28)
        head = struct.pack(">4I", 2051, count, 28, 28)
        files[f"{part}-images-idx3-ubyte"] = head + pixels.numpy().tobytes()
        files[f"{part}-labels-idx1-ubyte"] = struct.pack(">2I", 2049, count) + bytes(range(count))
    return files


def lay_out(folder, files, packed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.fixture
def small_fashion(monkeypatch):
    files = fashion()
    md5 = {k: hashlib.md5(v, usedforsecurity=False).hexdigest() for k, v in files.items()}
    monkeypatch.setattr(_official, "FASHION_MD5", md5)
    return files


@pytest.mark.parametrize("place", ["FashionMNIST/raw", "raw", ""])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_a_copy_of_fashion_mnist_is_taken_wherever_its_files_are(
    tmp_path, small_fashion, place, packed
):
    lay_out(tmp_path / "copy" / place, small_fashion, packed)
    data.pack_official("fmnist", tmp_path / "copy", tmp_path / "root")
    train = load("fmnist", "train", tmp_path / "root")
    pixels = np.frombuffer(small_fashion["train-images-idx3-ubyte"][16:], np.uint8)
    assert np.array_equal(train.pixels.numpy().ravel(), pixels)
    assert train.labels.tolist() == [0, 1, 2]
    assert train.class_names[9] == "Ankle boot"
    assert len(load("fmnist", "test", tmp_path / "root")) == 2


DAMAGES = {
    "pixels of zero": ("t10k-images-idx3-ubyte", lambda b: b[:-400] + bytes(400)),
    "labels rolled": ("train-labels-idx1-ubyte", lambda b: b[:8] + b[9:] + b[8:9]),
    "one byte more": ("train-images-idx3-ubyte", lambda b: b + b"0"),
    "an empty file": ("t10k-labels-idx1-ubyte", lambda b: b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_a_damaged_copy_of_fashion_mnist_is_refused_by_its_file(
    tmp_path, small_fashion, damage, packed
):
    name, change = DAMAGES[damage]
    files = small_fashion | {name: change(small_fashion[name])}
    lay_out(tmp_path / "raw", files, packed)
    with refused(f"{name}{'.gz' if packed else ''} is damaged: its md5 is"):
        data.pack_official("fmnist", tmp_path, tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_a_cut_gz_or_a_file_that_is_missing_is_one_sentence(tmp_path, small_fashion):
    lay_out(tmp_path / "raw", small_fashion, packed=True)
    file = tmp_path / "raw" / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:100])
    with refused("fmnist:", "cannot be packed: "):
        data.pack_official("fmnist", tmp_path, tmp_path / "root")
    file.unlink()
    with refused("there is no t10k-images-idx3-ubyte (or t10k-images-idx3-ubyte.gz) in it"):
        data.pack_official("fmnist", tmp_path, tmp_path / "root")


@needs("fmnist_test.npz")
def test_the_checksums_are_those_of_the_official_files():
    images = load("fmnist", "test", ROOT)
    head = struct.pack(">4I", 2051, len(images), 28, 28)
    files = {"images-idx3": head + images.pixels.numpy().tobytes()}
    labels = images.labels.numpy().astype(np.uint8).tobytes()
    files["labels-idx1"] = struct.pack(">2I", 2049, len(images)) + labels
    for name, content in files.items():
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        assert found == _official.FASHION_MD5[f"t10k-{name}-ubyte"]


@pytest.mark.parametrize("inside", ["cifar-100-python", "", "renamed"])
def test_a_copy_of_cifar_is_found_by_its_files(tmp_path, monkeypatch, inside):
    seen = []

    def fetch(name, folder, *, download):
        seen.append(sorted(path.name for path in (folder / "cifar-100-python").iterdir()))
        return {}

    monkeypatch.setattr(_official, "_fetch_torchvision", fetch)
    copy = tmp_path / "copy" / "cifar-100-python" if inside != "renamed" else tmp_path / "renamed"
    lay_out(copy, dict.fromkeys(("train", "test", "meta"), b""))
    data.pack_official("cifar100", copy.parent if inside == "cifar-100-python" else copy, tmp_path)
    assert seen == [["meta", "test", "train"]]
    (copy / "meta").unlink()
    empty = tmp_path / "empty"
    empty.mkdir()
    with refused(f"{copy.name} has no meta; it must hold train, test, meta"):
        data.pack_official("cifar100", copy, tmp_path)
    with refused("there is no cifar-100-python in it with train, test, meta"):
        data.pack_official("cifar100", empty, tmp_path)


@pytest.mark.parametrize("inside", ["cifar-100-python", ""])
def test_a_damaged_copy_of_cifar_is_refused_by_its_file(tmp_path, inside):
    copy = tmp_path / "cifar-100-python"
    lay_out(copy, dict.fromkeys(("train", "test", "meta"), b"damaged"))
    with refused("cannot be packed: train is damaged: its md5 is", "of the official file"):
        data.pack_official("cifar100", copy.parent / inside, tmp_path / "root")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("kind", ["zip", "folder", "the folder around it"])
def test_a_copy_of_tinyimagenet_is_a_zip_or_the_folder_and_whole(tmp_path, monkeypatch, kind):
    archive = tmp_path / "tiny.zip"
    archive.write_bytes(tiny_archive())
    source = archive
    if kind != "zip":
        with zipfile.ZipFile(archive) as members:
            members.extractall(tmp_path / "copy")
        source = tmp_path / "copy" / ("tiny-imagenet-200" if kind == "folder" else "")
    with refused("it has 4 images in train, and the official set 100,000: it is not whole"):
        data.pack_official("tinyimagenet", source, tmp_path / "root")
    monkeypatch.setattr(_official, "TINYIMAGENET_COUNTS", {"train": 4, "test": 3})
    with refused("it has 2 images in val, and the official set 3"):
        data.pack_official("tinyimagenet", source, tmp_path / "root")
    monkeypatch.setattr(_official, "TINYIMAGENET_COUNTS", {"train": 4, "test": 2})
    data.pack_official("tinyimagenet", source, tmp_path / "root")
    train = load("tinyimagenet", "train", tmp_path / "root")
    assert train.labels.tolist() == [0, 0, 1, 1]
    assert train.pixels[:, 0, 5, 5].tolist() == [92, 102, 91, 101]
    assert load("tinyimagenet", "val", tmp_path / "root").labels.tolist() == [5, 7]


def test_a_folder_that_is_no_tinyimagenet_is_one_sentence(tmp_path):
    with refused("there is no tiny-imagenet-200 in it with wnids.txt"):
        data.pack_official("tinyimagenet", tmp_path, tmp_path / "root")
