"""An own data set: a folder with one subfolder of image files per class."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from atslib.data.copies import copies
from atslib.data.images import Images, explain
from atslib.errors import AtsError, as_path, check_whole, choose

T = TypeVar("T")
FITS = ("resize", "crop")
TEST_SHARE = 0.2
LARGEST = 1024  # pixels: `build_model` makes no network for larger images
# By content, whatever a file is called. Others need more than a reader of pictures: Pillow hands
# EPS to Ghostscript.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
DEPTHS = (8, 10, 12, 14, 16)  # bits that cameras and scanners have
GREY = (
    "1",
    "L",
    "LA",
    "I;16",
    "I;16L",
    "I;16B",
    "I;16N",
)  # Pillow's modes without colour and of known range
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # what each orientation of EXIF asks for


def load_folder(
    folder: str | Path, *, size: int = 32, fit: str = "resize", seed: int = 0
) -> tuple[Images, Images]:
    """The training and test images of a folder with one subfolder per class, 80 % and 20 % of each
    class.

    Which image is in which part depends on `seed`, the names of its class's files and which of them
    are copies of one photograph (see `atslib.data.copies`): these are in one part. Classes and
    files are in the order of their names; hidden files and files without an image's suffix are
    passed over. Read are PNG, JPEG, WebP, BMP, GIF and TIFF, by their content. Files of 16 bits
    hold what a device of 8, 10, 12, 14 or 16 bits has seen, and none says which: it is taken to be
    the least of these that the brightest pixel of all such files needs. Of 16 bits per colour
    Pillow keeps the upper 8, so such files are read only if the device has 16.

    Args:
        size: side of the square images returned, in pixels.
        fit: "resize" squeezes the whole image into the square; "crop" scales the short side, then
            cuts the centre.
    Returns:
        (train, test); grey if all files are, RGB otherwise.
    Raises:
        AtsError: no such folder, fewer than two classes, a class with fewer than two images, or a
            file that is no whole image, has 32 bits per pixel or a device's fewer than 16 in 16
            bits per colour; the message names the class or file.
    """
    choose("fit", fit, FITS)
    check_whole("image size", size, 1, LARGEST)
    folder = as_path("folder", folder)
    classes = class_files(folder)
    files = [file for members in classes.values() for file in members]
    pixels = square_pixels(files, size, fit)
    labels = torch.tensor(
        [label for label, members in enumerate(classes.values()) for _ in members]
    )
    parts = pixels.split([len(members) for members in classes.values()])
    test = torch.cat(
        [_in_test(*part, folder, seed) for part in zip(classes.values(), parts, strict=True)]
    )
    name = folder.resolve().name
    names = tuple(classes)
    note = (
        f"{len(files):,} images of a folder, {100 * (1 - TEST_SHARE):g} % for training, fit: {fit}"
    )
    return tuple(
        Images(pixels[rows], labels[rows], names, name, split, note)
        for split, rows in (("train", ~test), ("test", test))
    )


def class_files(folder: Path) -> dict[str, list[Path]]:
    """The image files of each class, both in the order of their names.

    Raises:
        AtsError: no such folder, fewer than two classes, or a class with fewer than two files.
    """
    if not folder.is_dir():
        raise AtsError(
            f"{folder} is not a folder; give one that has a subfolder of images per class"
        )
    inside = sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    if len(inside) < 2:
        raise AtsError(
            f"{folder} has {len(inside)} subfolders; there must be at least two, one per class"
        )
    suffixes = set(Image.registered_extensions())
    files_of = {}
    for path in inside:
        files = (
            f
            for f in path.rglob("*")
            if f.suffix.lower() in suffixes
            and not any(part.startswith(".") for part in f.relative_to(path).parts)
        )
        files_of[path.name] = sorted(filter(Path.is_file, files), key=Path.as_posix)
        if len(files_of[path.name]) < 2:
            how = f"class {path.name!r} in {folder} has {len(files_of[path.name])} image files"
            raise AtsError(
                f"{how}; each class needs at least two, one for training and one for testing"
            )
    return files_of


def square_pixels(files: list[Path], size: int, fit: str) -> Tensor:
    """The images of files, (N, C, size, size) uint8; grey if all are, RGB otherwise.

    Args:
        files: of one device, where they have 16 bits.
        size, fit: as in `load_folder`.
    Raises:
        AtsError: a file that is no whole image, or has 32 bits per pixel.
    """
    check_whole("image size", size, 1, LARGEST)
    kinds = [opened(file, lambda image: (image.mode, upper_bytes(image))) for file in files]
    grey = all(mode in GREY or raw.startswith("L") for mode, raw in kinds)
    fine = [file for file, (mode, _) in zip(files, kinds, strict=True) if mode.startswith("I;16")]
    halved = [file for file, (_, raw) in zip(files, kinds, strict=True) if raw]
    tops = {file: int(opened(file, np.asarray).max()) for file in fine}
    tops |= {file: 256 * opened(file, brightest_byte) for file in halved}
    white = white_of(max(tops.values(), default=0))
    if halved and white < 2**16 - 1:
        raise AtsError(f"{max(halved, key=tops.get)} {few_bits(max(tops.values()))}")
    mode = "L" if grey else "RGB"
    return torch.stack([_pixels(file, mode, size, fit, white) for file in files])


def _in_test(members: list[Path], pixels: Tensor, folder: Path, seed: int) -> Tensor:
    """Mask of the fifth of a class's different photographs (at least one, never all) whose hashes
    are lowest, and of their copies.
    """
    first = copies(pixels)
    if len(first.unique()) < 2:  # as of two files that are equal
        first = torch.arange(len(members))
    each = first.unique().tolist()
    names = [members[row].relative_to(folder).as_posix() for row in each]
    keys = [os.fsencode(f"{seed}/{name}") for name in names]
    order = np.argsort([hashlib.sha256(key).hexdigest() for key in keys])
    mask = torch.zeros(len(members), dtype=torch.bool)
    mask[[each[place] for place in order[: max(1, round(TEST_SHARE * len(each)))]]] = True
    return mask[first]


def white_of(brightest: int) -> int:
    """The brightest value that a device can give whose images of 16 bits go up to this one."""
    return next(2**depth - 1 for depth in DEPTHS if brightest < 2**depth)


def upper_bytes(image: Image.Image) -> str:
    """How a file has 16 bits per colour, such as "RGB;16B" or, grey with alpha, "LA;16B"; "" of all
    others.

    Pillow keeps the upper 8 bits of these. Whether it did is not to be seen any more once the
    pixels have been read.
    """
    if image.mode.startswith("I;16"):
        return ""
    raws = (
        tile.args if isinstance(tile.args, str) else next(iter(tile.args or ()), "")
        for tile in getattr(image, "tile", ())
    )
    return next((str(raw) for raw in raws if ";16" in str(raw) and "BGR" not in str(raw)), "")


def brightest_byte(image: Image.Image) -> int:
    """The highest upper byte of an image's colours, transparency apart."""
    return max(band.getextrema()[1] for band in image.convert("RGB").split())


def few_bits(brightest: int) -> str:
    """What is wrong with 16 bits per colour that go up to this value, for an error."""
    depth = max(8, brightest.bit_length())
    return (
        f"has 16 bits per colour and uses no more than {depth} of them, of which few would be left; save it with 8 "
        "bits per colour"
    )


def _pixels(file: Path, mode: str, size: int, fit: str, white: int) -> Tensor:
    """(C, size, size) uint8, upright as the file's orientation tag says; transparency is dropped."""

    def decode(image: Image.Image) -> np.ndarray:
        if image.mode.startswith("I;16") and getattr(image, "tag_v2", {}).get(262) == 0:
            raise ValueError("16 bits of grey of which 0 is white; save it with 0 as black")
        image = upright(image)
        if image.mode.startswith("I;16"):  # Pillow's own conversion clips at 255
            image = Image.fromarray(of_depth(np.asarray(image), white))
        elif image.mode in ("I", "F"):
            raise ValueError(
                f"32 bits per pixel (mode {image.mode}) have no common range; save it with 8 or 16 bits"
            )
        image = (image.convert("RGBA") if image.mode == "P" else image).convert(mode)
        if fit == "crop":
            return np.array(ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC))
        return np.array(image.resize((size, size), Image.Resampling.BICUBIC))

    array = opened(file, decode)
    return (
        torch.from_numpy(array if mode == "RGB" else array[:, :, None])
        .permute(2, 0, 1)
        .contiguous()
    )


def of_depth(values: np.ndarray, white: int) -> np.ndarray:
    """uint8 of values 0..`white`, rounded."""
    return (values * (255 / white)).round().astype(np.uint8)


def upright(image: Image.Image) -> Image.Image:
    """An image as the orientation tag of its file says; one that cannot be read turns nothing.

    `ImageOps.exif_transpose` writes all tags anew, and fails on any of them that is odd.
    """
    image.load()  # by which a TIFF is turned already
    try:
        turn = TURNS.get(image.getexif().get(ExifTags.Base.Orientation))
    except Exception:  # damaged tags, of which each kind raises its own error
        turn = None
    return image if turn is None else image.transpose(turn)


def opened(file: Path, read: Callable[[Image.Image], T]) -> T:
    """What `read` makes of the image in a file.

    Raises:
        AtsError: it is none of the `FORMATS`, or damaged.
    """
    try:
        with Image.open(file, formats=FORMATS) as image:
            return read(image)
    except UnidentifiedImageError:
        known = ", ".join(FORMATS)
        raise AtsError(
            f"{file} cannot be read as an image: what is in it is none of {known}"
        ) from None
    except Exception as error:  # Pillow's own, and those of struct, zlib and others below it
        raise AtsError(f"{file} cannot be read as an image: {explain(error)}") from None
