"""The files of an attack that was made from the shell: a table, a sheet of pictures and the arrays
behind them.
"""

import csv
from collections.abc import Mapping
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from safetensors.torch import save_file
from torch import Tensor

from atslib.attacks import Reconstruction
from atslib.clients.prepare import to_images
from atslib.data.load import Images
from atslib.files import write_atomically
from atslib.measures.guesses import psnr_of_guess
from atslib.measures.metrics import mse, psnr, ssim

SHOWN = 16  # images on the sheet
ACROSS = 8  # of them side by side
SIDE = 96  # pixels of a picture on the sheet, at least
GAP = 6  # pixels between pictures
LINE = 16  # pixels of a line of text

Table = dict[str, list]  # column → values, one per image


def write_attack(
    out: Path,
    rows: list[int],
    images: Images,
    target: Tensor,
    made: Reconstruction,
    *,
    floor: Tensor,
    ranks: tuple[Tensor, Tensor],
) -> None:
    """`table.csv`, `sheet.png` and `arrays.safetensors` in `out`, and the lines that say where they
    are.

    Args:
        rows: which images of their set were attacked.
        target: (B, C, H, W) in [0, 1], the images as attacked.
        floor: (1, C, H, W) in [0, 1], the mean training image after crop, flip and policy, a guess
            that needs no gradient.
        ranks: of each image among its candidates, and how many these are, see
            `atslib.audit.outcome.ranks`.
    """
    table = _table(rows, images, target, made, floor, ranks)
    arrays = {
        "target": target,
        "reconstruction": made.images.cpu(),
        "trace": made.trace.cpu(),
        "cost": made.cost.cpu(),
    }
    shown = {
        "original": to_images(images.pixels),
        "target": target,
        "reconstruction": arrays["reconstruction"],
    }
    _write(out, table, shown, {"reconstruction": table["psnr"]}, arrays)
    print(found_in_words(table))
    print(
        f"mean PSNR {_mean(table['psnr']):.1f} dB; "
        f"of the mean image after the policy, which needs no gradient, {_mean(table['floor_policy']):.1f} dB (the floor)"
    )


def write_attackers(
    out: Path,
    rows: list[int],
    images: Images,
    target: Tensor,
    before: Tensor,
    made: Mapping[str, Reconstruction],
    *,
    floor: Tensor,
    floor_before: Tensor,
    ranks: Mapping[str, tuple[Tensor, Tensor]],
) -> None:
    """The same of several attackers by name, with what each reaches of `before`, the images before
    the policy.

    The table has one row per attacker and image, with the columns `attacker`, `psnr_before` and
    `floor_before` too: the PSNR of a second guess, made without the gradient for the images before
    the policy.
    """
    low = psnr_of_guess(floor_before, before).tolist()
    parts = []
    shown = {"original": to_images(images.pixels), "client used": target}
    captions = {}
    arrays = {"target": target, "before": before}
    for name, each in made.items():
        image = each.images.cpu()
        reached = psnr(image, before).tolist()
        part = {"attacker": [name] * len(rows)}
        part |= _table(rows, images, target, each, floor, ranks[name])
        part |= {"psnr_before": reached, "floor_before": low}
        parts.append(part)
        shown[name] = image
        captions[name] = reached
        arrays[f"reconstruction, {name}"] = image
    whole = {name: [value for part in parts for value in part[name]] for name in parts[0]}
    _write(out, whole, shown, captions, arrays)
    print(
        "mean PSNR to the image before the policy; "
        f"of the mean image, which needs no gradient, {_mean(low):.1f} dB (the floor)"
    )
    for part in parts:
        name = part["attacker"][0]
        print(f"{name:26}{_mean(part['psnr_before']):5.1f} dB, {found_in_words(part)}")


def found_in_words(table: Table) -> str:
    """How many are found, among how many."""
    return (
        f"found {sum(table['found'])} of {len(table['found'])}, "
        f"each among {_mean(table['candidates']):.0f} photographs"
    )


def _mean(values: list) -> float:
    return sum(values) / len(values)


def _table(
    rows: list[int],
    images: Images,
    target: Tensor,
    made: Reconstruction,
    floor: Tensor,
    ranks: tuple[Tensor, Tensor],
) -> Table:
    original = to_images(images.pixels)
    image = made.images.cpu()
    low = psnr_of_guess(floor, target)
    reached = psnr(image, target)
    rank, candidates = ranks
    columns = {
        "psnr": reached,
        "floor_policy": low,
        "gain": reached - low,
        "psnr_original": psnr(image, original),
        "mse": mse(image, target),
        "ssim": ssim(image, target),
        "cost": made.cost.cpu(),
        "found": rank == 1,
        "rank": rank,
        "candidates": candidates,
    }
    named = {"image": rows, "label": [images.class_names[i] for i in images.labels.tolist()]}
    return named | {name: value.tolist() for name, value in columns.items()}


def _write(
    out: Path,
    table: Table,
    shown: dict[str, Tensor],
    decibels: Mapping[str, list[float]],
    arrays: dict[str, Tensor],
) -> None:
    def write_table(path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(table)
            for row in zip(*table.values(), strict=True):
                writer.writerow(
                    [f"{value:.6g}" if isinstance(value, float) else value for value in row]
                )

    picture = sheet({name: each[:SHOWN] for name, each in shown.items()}, decibels)
    whole = {name: value.contiguous() for name, value in arrays.items()}
    write_atomically(out / "table.csv", write_table)
    write_atomically(out / "sheet.png", lambda path: picture.save(path, format="png"))
    write_atomically(out / "arrays.safetensors", lambda path: save_file(whole, path))
    print(f"table: {out / 'table.csv'}\nsheet: {out / 'sheet.png'}")


def sheet(shown: Mapping[str, Tensor], decibels: Mapping[str, list[float]]) -> Image.Image:
    """A sheet of pictures: images side by side, below each what an attack made of it.

    Args:
        shown: by name, each (B, C, H, W) in [0, 1]; a name stands above its row.
        decibels: by name, of each image; they stand below its pictures.
    """
    names = list(shown)
    total, _, height, width = shown[names[0]].shape
    scale = -(-SIDE // max(height, width))  # rounded up
    cell = (width * scale, height * scale)
    blocks = [range(first, min(first + ACROSS, total)) for first in range(0, total, ACROSS)]
    row = LINE + cell[1] + LINE + GAP
    font = ImageFont.load_default(size=12)
    # A name may be wider than the few pictures below it.
    wide = max(int(font.getlength(name)) for name in names)
    across = max(len(blocks[0]) * (cell[0] + GAP), wide) + GAP
    canvas = Image.new("RGB", (across, len(blocks) * len(names) * row + GAP), "white")
    draw = ImageDraw.Draw(canvas)
    y = GAP
    for block in blocks:
        for name in names:
            draw.text((GAP, y), name, fill="black", font=font)
            for place, number in enumerate(block):
                x = GAP + place * (cell[0] + GAP)
                pixels = shown[name][number].mul(255).round().clamp(0, 255).byte()
                pixels = pixels.expand(3, -1, -1) if len(pixels) == 1 else pixels
                picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
                picture = picture.resize(cell, Image.Resampling.NEAREST)
                canvas.paste(picture, (x, y + LINE))
                if name in decibels:
                    below = (x, y + LINE + cell[1])
                    draw.text(below, f"{decibels[name][number]:.1f} dB", fill="black", font=font)
            y += row
    return canvas
