"""Datasets and DataLoaders of a user's own: read rightly whatever their depth, or one sentence."""

import io

import numpy as np
import pytest
import torch
from checks import refused
from PIL import Image
from test_data import SIXTEEN
from torch.utils.data import DataLoader, Dataset, TensorDataset

from atsaudit.sources import dataset_images


def pixels(found):
    return dataset_images(found, "mine.py:it").pixels


def pairs(*pictures):
    return [(picture, row % 2) for row, picture in enumerate(pictures)]


def deep(depth):
    """Two pictures of 16 bits from a device of so many, one of them dark."""
    top = 2**depth - 1
    return (
        np.array([[0, top], [top // 2, top // 4]], np.uint16),
        np.full((2, 2), top // 8, np.uint16),
    )


TAKEN_AS = {
    "PIL images": lambda array: Image.fromarray(array),
    "PIL images, high byte first": lambda array: Image.frombytes(
        "I;16B", array.shape[::-1], array.astype(">u2").tobytes()
    ),
    "uint16 tensors": lambda array: torch.from_numpy(array)[None],
    "uint16 arrays": lambda array: array[None],
    "uint16 arrays, high byte first": lambda array: array[None].astype(">u2"),
}


@pytest.mark.parametrize("kind", TAKEN_AS)
@pytest.mark.parametrize("depth", [8, 10, 12, 14, 16])
def test_pictures_of_more_than_eight_bits_keep_their_range(kind, depth):
    seen = deep(depth)
    got = pixels(pairs(*map(TAKEN_AS[kind], seen)))
    assert got.dtype == torch.uint8
    wanted = np.stack(seen)[:, None] * (255 / (2**depth - 1))
    assert np.array_equal(got.numpy(), wanted.round())


def test_a_batch_of_uint16_keeps_its_range_too():
    whole = torch.from_numpy(np.stack(deep(12))[:, None])
    loader = DataLoader(TensorDataset(whole, torch.tensor([0, 1])), batch_size=2)
    assert pixels(loader)[0].flatten().tolist() == [0, 255, 127, 64]


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pictures_of_thirty_two_bits_are_one_sentence(mode):
    with refused(f"a PIL image of mode {mode} has 32 bits per pixel and no common range"):
        pixels(pairs(*[Image.new(mode, (2, 2), 1)] * 2))


@pytest.mark.parametrize("kind", [torch.uint32, torch.uint64, torch.complex64])
def test_tensors_without_a_range_are_one_sentence(kind):
    with refused(f"an image is {str(kind).removeprefix('torch.')} of shape (3, 2, 2)"):
        pixels(pairs(*[torch.zeros(3, 2, 2).to(kind)] * 2))


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float64, torch.bfloat16])
def test_zeros_and_ones_are_black_and_white_in_every_kind(kind):
    one = torch.tensor([[[0, 1], [1, 0]]])
    assert pixels(pairs(one.to(kind), one.to(kind)))[1].tolist() == [[[0, 255], [255, 0]]]


@pytest.mark.parametrize("kind", SIXTEEN)
def test_files_of_sixteen_bits_a_colour_that_a_dataset_opens_are_said(kind):
    made, channels = SIXTEEN[kind]
    few = made(np.full((2, 2, 1), 4095, np.uint16))
    with refused("the brightest image has 16 bits per colour and uses no more than 12 of them"):
        pixels(pairs(*[Image.open(io.BytesIO(few)) for _ in range(2)]))
    full = made(np.full((2, 2, 1), 65_535, np.uint16))
    both = pixels(pairs(Image.open(io.BytesIO(full)), Image.open(io.BytesIO(few))))
    assert both.shape[1] == channels
    assert both[0].unique().tolist() == [255]
    assert both[1].unique().tolist() == [15]


class Failing(Dataset):
    """Two items, of which some fail."""

    classes = None  # as some libraries have it before they read anything

    def __len__(self):
        return 2

    def __getitem__(self, index):
        raise KeyError("no such file")


class Unfinished(Dataset):
    def __len__(self):
        raise NotImplementedError


class Late(Image.Image):
    """A picture whose file turns out to be damaged when its pixels are needed."""

    mode = "RGB"

    def convert(self, *_):
        raise OSError("image file is truncated")


LOADERS = {
    "of PIL images": (pairs(*[Image.new("RGB", (4, 4))] * 2), "the DataLoader failed: TypeError: "),
    "of images of two sizes": (
        pairs(torch.zeros(1, 2, 2), torch.zeros(1, 3, 3)),
        "the DataLoader failed: RuntimeError: ",
    ),
    "whose Dataset fails": (Failing(), "the DataLoader failed: KeyError: 'no such file'"),
    "of dictionaries": (
        [{"image": torch.zeros(1, 2, 2), "label": 0}] * 2,
        "batches must be pairs of images and labels",
    ),
    "of images and two labels each": (
        [(torch.zeros(1, 2, 2), torch.zeros(2))] * 2,
        "must be a whole number from 0 on",
    ),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_a_loader_that_fails_is_one_sentence(kind):
    items, words = LOADERS[kind]
    with refused("--data 'mine.py:it'", words):
        pixels(DataLoader(items, batch_size=2))


def test_a_loader_that_collates_pictures_itself_works():
    items = pairs(*[Image.new("RGB", (4, 4), (9, 9, 9))] * 2)
    loader = DataLoader(
        items, batch_size=2, collate_fn=lambda batch: list(zip(*batch, strict=True))
    )
    assert pixels(loader).unique().tolist() == [9]


def test_datasets_that_fail_elsewhere_are_one_sentence():
    with refused("item 0 failed: KeyError"):
        pixels(Failing())
    with refused("is a Unfinished; give a Dataset or a DataLoader"):
        pixels(Unfinished())
    with refused("an image cannot be read: image file is truncated"):
        pixels(pairs(Late(), Late()))
