"""What `python -m atslib train` and `attack` do: the library's calls in a row, then files."""

import argparse
import dataclasses
import json
import re
from contextlib import suppress
from pathlib import Path

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from atslib import plots
from atslib.attacks import ATTACKS, Reconstruction, reconstruct
from atslib.data import Images, load
from atslib.defenses import Defense
from atslib.errors import AtsError, choose
from atslib.experiments.units import ModelUnit, device_of, network
from atslib.metrics import mse, psnr, ssim
from atslib.policies import parse_policy
from atslib.rng import rng
from atslib.store import write_atomically
from atslib.threat import observe
from atslib.training import TrainConfig, evaluate, fit, load_checkpoint, save_checkpoint
from atslib.transforms import crop_and_flip


def indices(text: str, count: int) -> list[int]:
    """`"0-3,8"` → [0, 1, 2, 3, 8]; each below `count`."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match:
            raise AtsError(f"index {text!r}: {part!r} must be a number or a range such as 0-15")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= count:
            raise AtsError(f"index {text!r}: {part!r} must rise and end below {count}, the number of images")
        found += range(first, last + 1)
    return found


def _named(args: argparse.Namespace) -> str:
    """The network's name: as asked for, else as the checkpoint says, else the paper's."""
    if args.model or not args.checkpoint or not args.checkpoint.exists():
        return args.model or "resnet20-4"
    with suppress(SafetensorError), safe_open(args.checkpoint, "pt") as stored:
        return json.loads((stored.metadata() or {}).get("facts", "{}")).get("model", "resnet20-4")
    return "resnet20-4"


def _untrained(name: str, args: argparse.Namespace) -> nn.Module:
    """The network that the experiments start from with the same data set and seed."""
    unit = ModelUnit(dataset=args.dataset, model=name, fraction=1.0, train=None, seed=args.seed)
    return network(unit).to(device_of(args.device))


def train(args: argparse.Namespace, *, progress: bool) -> None:
    """Train a network and write its weights, with what made them, to `args.out`; resumable."""
    config = TrainConfig(policy=args.policy, epochs=args.epochs, defense=args.defense)
    images = load(args.dataset, "train").subset(args.fraction, rng=rng(args.seed, "subset"))
    model = _untrained(args.model, args)
    state = args.out.with_name(f"{args.out.name}.state")
    fit(model, images, config, rng=rng(args.seed, "train", args.policy), checkpoint=state, progress=progress)
    accuracy = evaluate(model, load(args.dataset, "test"))
    facts = dataclasses.asdict(config) | {"model": args.model, "dataset": args.dataset, "seed": args.seed}
    save_checkpoint(args.out, model, **facts, images=len(images), accuracy=accuracy)
    state.unlink(missing_ok=True)
    print(f"{args.out}: {args.model} on {len(images):,} images of {args.dataset}, test accuracy {accuracy:.2f} %")


def attack(args: argparse.Namespace, *, progress: bool) -> None:
    """Attack the chosen images and write `table.csv`, `sheet.png` and `arrays.safetensors` to `args.out`."""
    choose("attack", args.attack, ATTACKS)
    preset = ATTACKS[args.attack]
    preset = dataclasses.replace(preset, steps=args.steps) if args.steps is not None else preset
    policy, defense = parse_policy(args.policy), Defense.parse(args.defense) if args.defense else None
    everything = load(args.dataset, args.split)
    rows = indices(args.index, len(everything))
    images, device = everything[rows], device_of(args.device)
    pixels = images.pixels
    if args.crop_flip:
        pixels = crop_and_flip(pixels, rng=rng(args.seed, "crop and flip"))
    target = policy(pixels, rng=rng(args.seed, "policy", args.policy)).float() / 255
    model = _untrained(_named(args), args)
    if args.checkpoint:
        load_checkpoint(args.checkpoint, model)
    stream = rng(args.seed, "defense", args.defense)
    seen = observe(model, target.to(device), images.labels.to(device), defense=defense, rng=stream)
    found = reconstruct(seen, preset, rng=rng(args.seed, "start"), progress=progress)
    _write(args.out, rows, images, target, found)


def _write(out: Path, rows: list[int], images: Images, target: torch.Tensor, found: Reconstruction) -> None:
    original, image = images.pixels.float() / 255, found.images.cpu()
    columns = {"psnr": psnr(image, target), "psnr_original": psnr(image, original), "mse": mse(image, target)}
    columns |= {"ssim": ssim(image, target), "cost": found.cost.cpu()}
    table = pd.DataFrame({"image": rows, "label": [images.class_names[i] for i in images.labels.tolist()]})
    table = table.assign(**{name: value.double().numpy() for name, value in columns.items()})
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "table.csv", lambda path: table.to_csv(path, index=False, float_format="%.6g"))
    shown = {"original": original[:16], "target": target[:16], "found": image[:16]}
    figure = plots.sheet(shown, captions={"found": [f"{value:.1f}" for value in table["psnr"][:16]]})
    write_atomically(out / "sheet.png", lambda path: figure.savefig(path, format="png"))
    arrays = {"target": target, "found": image, "trace": found.trace.cpu(), "cost": found.cost.cpu()}
    arrays = {name: value.contiguous() for name, value in arrays.items()}
    write_atomically(out / "arrays.safetensors", lambda path: save_file(arrays, path))
