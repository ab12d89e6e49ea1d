"""The files of an attack that was made by a command: a table, a sheet of pictures and the arrays
behind them.
"""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from safetensors.torch import save_file
from torch import Tensor

from atsbook.figures import plots
from atsbook.runs.tables import of_guess
from atslib.attacks import Reconstruction
from atslib.clients.prepare import to_images
from atslib.data.load import Images
from atslib.files import write_atomically
from atslib.measures.metrics import mse, psnr, ssim

SHOWN = 16  # images on the sheet


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
        floor: (1, C, H, W) in [0, 1], the best guess of somebody who knows the policy and sees no
            gradient.
        ranks: of each image among its candidates, and how many these are, see
            `atslib.audit.outcome.ranks`.
    """
    table = _with_ranks(_table(rows, images, target, made, floor), ranks)
    captions = {"reconstruction": [f"{value:.1f}" for value in table["psnr"][:SHOWN]]}
    arrays = {
        "reconstruction": made.images.cpu(),
        "trace": made.trace.cpu(),
        "cost": made.cost.cpu(),
    }
    shown = {
        "original": to_images(images.pixels),
        "target": target,
        "reconstruction": arrays["reconstruction"],
    }
    _write(out, table, shown, captions, {"target": target} | arrays)
    print(found_in_words(table))
    mean = table["psnr"].mean()
    low = table["floor_policy"].mean()
    print(
        f"mean PSNR {mean:.1f} dB; of the best guess without the gradient {low:.1f} dB (the floor)"
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
    low = of_guess(floor_before, before).double().numpy()
    parts = []
    shown = {"original": to_images(images.pixels), "client used": target}
    captions = {}
    arrays = {"target": target, "before": before}
    for name, each in made.items():
        shown[name] = arrays[f"reconstruction, {name}"] = each.images.cpu()
        reached = psnr(shown[name], before).double().numpy()
        part = _with_ranks(_table(rows, images, target, each, floor), ranks[name]).assign(
            psnr_before=reached, floor_before=low
        )
        part.insert(0, "attacker", name)
        parts.append(part)
        captions[name] = [f"{value:.1f}" for value in reached[:SHOWN]]
    table = pd.concat(parts, ignore_index=True)
    _write(out, table, shown, captions, arrays)
    best = f"of the best guess without the gradient {low.mean():.1f} dB (the floor)"
    print(f"mean PSNR to the image before the policy; {best}")
    for name, part in table.groupby("attacker", sort=False):
        print(f"{name:26}{part['psnr_before'].mean():5.1f} dB, {found_in_words(part)}")


def _with_ranks(table: pd.DataFrame, ranks: tuple[Tensor, Tensor]) -> pd.DataFrame:
    """The table with the columns `found`, `rank` and `candidates`."""
    rank, candidates = (each.numpy() for each in ranks)
    return table.assign(found=rank == 1, rank=rank, candidates=candidates)


def found_in_words(table: pd.DataFrame) -> str:
    """How many are found, among how many."""
    return f"found {table['found'].sum()} of {len(table)}, each among {table['candidates'].mean():.0f} photographs"


def _table(
    rows: list[int], images: Images, target: Tensor, made: Reconstruction, floor: Tensor
) -> pd.DataFrame:
    original = to_images(images.pixels)
    image = made.images.cpu()
    low = of_guess(floor, target)
    reached = psnr(image, target)
    columns = {
        "psnr": reached,
        "floor_policy": low,
        "gain": reached - low,
        "psnr_original": psnr(image, original),
    }
    columns |= {"mse": mse(image, target), "ssim": ssim(image, target), "cost": made.cost.cpu()}
    table = pd.DataFrame(
        {"image": rows, "label": [images.class_names[i] for i in images.labels.tolist()]}
    )
    return table.assign(**{name: value.double().numpy() for name, value in columns.items()})


def _write(
    out: Path,
    table: pd.DataFrame,
    shown: dict[str, Tensor],
    captions: dict[str, list[str]],
    arrays: dict[str, Tensor],
) -> None:
    write_atomically(
        out / "table.csv", lambda path: table.to_csv(path, index=False, float_format="%.6g")
    )
    figure = plots.sheet({name: each[:SHOWN] for name, each in shown.items()}, captions=captions)
    write_atomically(out / "sheet.png", lambda path: figure.savefig(path, format="png", dpi=150))
    whole = {name: value.contiguous() for name, value in arrays.items()}
    write_atomically(out / "arrays.safetensors", lambda path: save_file(whole, path))
    print(f"table: {out / 'table.csv'}\nsheet: {out / 'sheet.png'}")
