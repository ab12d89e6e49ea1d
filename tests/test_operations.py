"""Every operation against Pillow, pixel for pixel; the laws of the batched form; the crop and the
flip.
"""

import io
import itertools
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from checks import refused
from PIL import Image, ImageEnhance, ImageOps

from atslib.policies import operations as transforms

# Written from the description of the authors' code, on purpose without atslib's tables: index ->
# (operation, value), the value as the authors' numpy tables give it.
SHIFT = np.linspace(0, 150 / 331, 10)
ENHANCE = np.linspace(0, 0.5, 10)
ENHANCERS = ("color", "contrast", "brightness", "sharpness")
PILLOW = {
    **dict.fromkeys((0, 29, 47), ("invert", None)),
    **dict.fromkeys((8, 23, 31, 36, 41, 44, 49), ("autocontrast", None)),
    **dict.fromkeys((9, 16, 17, 22, 30, 32, 33, 35, 46), ("equalize", None)),
    **{i: ("color", ENHANCE[k]) for i, k in {12: 3, 20: 5, 34: 5, 27: 8, 39: 0}.items()},
    **{i: ("contrast", ENHANCE[k]) for i, k in {1: 6, 18: 7}.items()},
    **{i: ("brightness", ENHANCE[k]) for i, k in {13: 5, 15: 9, 26: 6, 38: 3}.items()},
    **{i: ("sharpness", ENHANCE[k]) for i, k in {4: 1, 5: 3, 14: 9, 19: 5, 25: 6}.items()},
    **{i: ("translateX", SHIFT[k]) for i, k in {3: 9, 21: 5}.items()},
    **{i: ("translateY", SHIFT[k]) for i, k in {7: 2, 24: 3, 42: 3, 43: 3, 48: 3}.items()},
    **{i: ("shearY", np.linspace(0, 0.3, 10)[k]) for i, k in {6: 2, 10: 5}.items()},
    **{
        i: ("solarize", np.linspace(256, 0, 10)[k]) for i, k in {28: 0, 37: 4, 40: 1, 45: 1}.items()
    },
    2: ("rotate", np.linspace(0, 30, 10)[2]),
    11: ("posterize", 6),
}
SIGNED = {*ENHANCERS, "translateX", "translateY", "shearY"}
DISTINCT = sorted(
    {(name, value): index for index, (name, value) in reversed(PILLOW.items())}.values()
)


def pillow(index, image, sign):
    """What the authors' code does to one PIL image."""
    name, value = PILLOW[index]
    width, height = image.size
    black = (0, 0, 0) if image.mode == "RGB" else 0
    if name in ENHANCERS:
        return getattr(ImageEnhance, name.title())(image).enhance(1 + value * sign)
    if name == "shearY":
        matrix = (1, 0, 0, value * sign, 1, 0)
        return image.transform(image.size, Image.AFFINE, matrix, Image.BICUBIC, fillcolor=black)
    if name == "translateX":
        return image.transform(
            image.size, Image.AFFINE, (1, 0, value * width * sign, 0, 1, 0), fillcolor=black
        )
    if name == "translateY":
        return image.transform(
            image.size, Image.AFFINE, (1, 0, 0, 0, 1, value * height * sign), fillcolor=black
        )
    if name == "rotate":
        turned = image.convert("RGBA").rotate(value)
        grey = Image.new("RGBA", turned.size, (128,) * 4)
        return Image.composite(turned, grey, turned).convert(image.mode)
    return getattr(ImageOps, name)(image, *([value] if name in ("posterize", "solarize") else []))


def to_pil(image):
    return Image.fromarray(image.permute(1, 2, 0).numpy() if len(image) == 3 else image[0].numpy())


def from_pil(images):
    array = torch.from_numpy(np.stack([np.asarray(image) for image in images]))
    return array.permute(0, 3, 1, 2).contiguous() if array.ndim == 4 else array[:, None]


def compare(index, pixels, images):
    """Each operation on `pixels` against Pillow on `images`, the same pixels as PIL images."""
    for sign in (1, -1) if PILLOW[index][0] in SIGNED else (1,):
        expected = from_pil([pillow(index, image, sign) for image in images])
        ours = transforms.apply(index, pixels, sign)
        assert ours.dtype == torch.uint8
        differs = (ours != expected).sum().item()
        assert differs == 0, (
            f"operation {index} {PILLOW[index]}, sign {sign}: {differs} pixels differ"
        )


@cache
def synthetic(channels, height, width):
    """Noise, dark noise, two-valued, ramps both ways, constants: (B, C, H, W), never square by
    accident.
    """
    rng = torch.Generator().manual_seed(height * 100 + width + channels)
    noise = torch.randint(0, 256, (12, channels, height, width), generator=rng, dtype=torch.uint8)
    ramp = (
        torch.linspace(0, 255, height * width).view(1, 1, height, width).expand(1, channels, -1, -1)
    )
    ramp = ramp.to(torch.uint8)
    narrow = noise[:3] // 40 + 100
    constant = torch.stack([torch.full_like(noise[0], v) for v in (0, 1, 128, 255)])
    return torch.cat([noise, noise[:3] // 8, noise[:3] & 0x80, ramp, 255 - ramp, narrow, constant])


@cache
def real(name, count=1000):
    """The first images of a packed split: (count, C, H, W) uint8."""
    path = Path(os.environ.get("ATS_DATA", "")) / f"{name}.npz"
    if "ATS_DATA" not in os.environ or not path.exists():
        pytest.skip(f"ATS_DATA has no {name}.npz")
    with np.load(path, allow_pickle=False) as packed:
        data, offsets = packed["data"], packed["offsets"]
    mode = "L" if name.startswith("fmnist") else "RGB"
    encoded = (data[offsets[i] : offsets[i + 1]].tobytes() for i in range(count))
    return from_pil([Image.open(io.BytesIO(code)).convert(mode) for code in encoded])


@cache
def pil_images_of(channels, height, width):
    return [to_pil(image) for image in synthetic(channels, height, width)]


@cache
def pil_images(name):
    return [to_pil(image) for image in real(name)]


# Every operation with the indices of its magnitudes: a test is of one operation at all of them
OPERATIONS = {
    operation: [index for index, (name, _) in sorted(PILLOW.items()) if name == operation]
    for operation in sorted({name for name, _ in PILLOW.values()})
}
REAL = ["cifar100_test", pytest.param("tinyimagenet_val", marks=pytest.mark.slow), "fmnist_test"]
SIZES = [(8, 12), (17, 9), (28, 28), (32, 32), (64, 48), (1, 5), (5, 1), (2, 2)]


def test_every_index_is_of_one_operation():
    assert sorted(itertools.chain(*OPERATIONS.values())) == list(range(50))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation_equals_pillow(operation):
    for (height, width), channels in itertools.product(SIZES, (1, 3)):
        pixels = synthetic(channels, height, width)
        images = pil_images_of(channels, height, width)
        for index in OPERATIONS[operation]:
            compare(index, pixels, images)


@pytest.mark.data
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", REAL)
def test_operation_equals_pillow_on_real_images(name, operation):
    for index in sorted({*OPERATIONS[operation]} & {*DISTINCT}):
        compare(index, real(name), pil_images(name))


@pytest.mark.data
@pytest.mark.parametrize("name", REAL)
def test_repeated_operations_equal_their_first_on_real_images(name):
    """With the test above, this makes all 50 operations exact on the real images."""
    pixels = real(name)[:100]
    first = {PILLOW[index]: index for index in DISTINCT}
    for index in sorted(set(range(50)) - set(DISTINCT)):
        for sign in (1, -1):
            expected = transforms.apply(first[PILLOW[index]], pixels, sign)
            assert torch.equal(transforms.apply(index, pixels, sign), expected), index


@pytest.fixture
def images():
    return synthetic(3, 8, 12)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_image_has_its_own_sign_and_does_not_see_the_others(operation):
    indices = {*OPERATIONS[operation]} & {*DISTINCT}
    for channels, index in itertools.product((1, 3), sorted(indices)):
        images = synthetic(channels, 8, 12)
        signs = torch.where(torch.arange(len(images)) % 3 == 0, -1, 1)
        singles = [
            transforms.apply(index, image[None], int(sign))
            for image, sign in zip(images, signs, strict=True)
        ]
        assert torch.equal(transforms.apply(index, images, signs), torch.cat(singles)), index


@pytest.mark.parametrize("operation", OPERATIONS)
def test_pixels_are_neither_changed_nor_required_contiguous(operation, images):
    before = images.clone()
    for index in sorted({*OPERATIONS[operation]} & {*DISTINCT}):
        expected = transforms.apply(index, images)
        channels_last = images.contiguous(memory_format=torch.channels_last)
        assert torch.equal(transforms.apply(index, channels_last), expected), index
        assert torch.equal(images, before), index


def test_an_empty_batch_stays_empty():
    empty = torch.empty(0, 3, 8, 12, dtype=torch.uint8)
    signs = torch.empty(0, dtype=torch.int64)
    for index in range(50):
        assert (
            transforms.apply(index, empty).shape
            == transforms.apply(index, empty, signs).shape
            == empty.shape
        ), index


def test_translation_moves_whole_pixels():
    """The black columns and rows counted with Pillow: index 3 on 32, 28 and 64 pixels, the others
    on 32.
    """
    for index, size, black in [
        (3, 32, 15),
        (3, 28, 13),
        (3, 64, 29),
        (21, 32, 8),
        (7, 32, 3),
        (24, 32, 5),
    ]:
        white = torch.full((1, 3, size, size), 255, dtype=torch.uint8)
        for sign in (1, -1):
            assert (transforms.apply(index, white, sign) == 0).sum() == 3 * black * size
    turned = transforms.apply(2, torch.full((1, 1, 32, 32), 255, dtype=torch.uint8))
    assert (turned == 128).sum() == 52


BLACK = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((50, BLACK), "operation 50 is unknown; ids run 0..49"),
        ((-1, BLACK), "operation -1 is unknown"),
        (("invert", BLACK), "operation 'invert' is unknown"),
        ((0, BLACK.float()), "pixels are float32 of shape (2, 3, 4, 4); expected a uint8 tensor"),
        (
            (0, BLACK.numpy()),
            "pixels are a NumPy array, uint8 of shape (2, 3, 4, 4); expected a uint8 tensor",
        ),
        ((0, BLACK[0]), "shape (3, 4, 4); expected (B, C, H, W)"),
        ((0, BLACK.transpose(1, 3)), "shape (2, 4, 4, 3); expected (B, C, H, W) with C = 1 or 3"),
        ((0, BLACK, 2), "sign 2 is neither +1 nor -1"),
        ((0, BLACK, 1.0), "sign 1.0 is neither +1 nor -1"),
        ((0, BLACK, torch.ones(3).long()), "expected integers (2,)"),
        ((0, BLACK, torch.ones(2)), "sign is torch.float32 (2,)"),
    ],
)
def test_apply_says_what_is_wrong(arguments, message):
    with refused(message):
        transforms.apply(*arguments)


def test_crop_and_flip_equal_slices_of_each_padded_image(images):
    b, c, h, w = images.shape
    offsets = torch.stack([torch.arange(b) % 9, torch.arange(b) * 2 % 9], dim=1)
    flips = torch.arange(b) % 2 == 0
    padded = torch.zeros(b, c, h + 8, w + 8, dtype=torch.uint8)
    padded[:, :, 4 : 4 + h, 4 : 4 + w] = images
    ours = transforms.crop_flip(images, offsets, flips)
    for i, (row, column) in enumerate(offsets.tolist()):
        expected = padded[i, :, row : row + h, column : column + w]
        assert torch.equal(ours[i], expected.flip(2) if flips[i] else expected)


def test_bytes_are_shifted_as_numbers_of_any_kind_are(images):
    offsets, flips = transforms.draw_crop(len(images), rng=torch.Generator().manual_seed(3))
    ours = transforms.shift_flip(images, offsets, flips)
    assert torch.equal(ours, transforms.shift_flip(images.int(), offsets, flips).byte())


@pytest.mark.parametrize("operation", range(len(transforms.OPS)))
def test_one_sign_for_all_is_the_same_as_that_sign_for_each(operation, images):
    for sign in (1, -1):
        together = transforms.apply(operation, images, torch.full((len(images),), sign))
        mixed = torch.full((2 * len(images),), sign)
        mixed[len(images) :] *= -1
        both = transforms.apply(operation, torch.cat([images, images]), mixed)
        assert torch.equal(together, both[: len(images)])
        assert torch.equal(together, transforms.apply(operation, images, sign))


def test_the_middle_crop_without_a_flip_is_the_identity(images):
    middle, never = torch.full((len(images), 2), 4), torch.zeros(len(images), dtype=torch.bool)
    assert torch.equal(transforms.crop_flip(images, middle, never), images)
    assert torch.equal(transforms.crop_flip(images, middle - 4, never, padding=0), images)


def test_an_image_is_cropped_alike_in_a_batch_of_any_size(images):
    def cropped(count):
        return transforms.crop_and_flip(images[:count], rng=torch.Generator().manual_seed(7))

    assert torch.equal(cropped(3), cropped(10)[:3])


def test_every_offset_and_both_flips_are_drawn_equally_often():
    """A single bright pixel tells the offset; its column also tells the flip (the image is not
    symmetric).
    """
    n, size = 16_200, 12  # 100 draws for each of 81 offsets and 2 flips
    images = torch.zeros(n, 1, size, size, dtype=torch.uint8)
    images[:, 0, 5, 4] = 255
    out = transforms.crop_and_flip(images, rng=torch.Generator().manual_seed(0)).flatten(1)
    assert (out.amax(1) == 255).all()
    place = out.argmax(1)
    assert set((place // size).tolist()) == set(range(1, 10))
    assert set((place % size).tolist()) == set(range(12))  # 0..8 as it is, 3..11 mirrored
    rows = torch.bincount(place // size, minlength=size)[1:10] / n
    assert (rows - 1 / 9).abs().max() < 0.01
    mirrored = (
        (place % size >= 9).sum() / n * 3
    )  # columns 9, 10 and 11 come from flips alone: 1/2 * 3/9
    assert abs(mirrored.item() - 0.5) < 0.03
