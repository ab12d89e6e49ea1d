"""What `python -m atslib train`, `attack` and `search` do: the library's calls in a row, then files."""

import argparse
import copy
import dataclasses
import json
import re
from contextlib import suppress
from pathlib import Path

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from atslib.attacks import ATTACKS, Reconstruction, reconstruct
from atslib.clients.defenses import Defense
from atslib.clients.prepare import prepare, streams, to_images
from atslib.clients.threat import observe
from atslib.clients.training import TrainConfig, evaluate, fit, load_checkpoint, save_checkpoint
from atslib.data.load import DATASETS, Images, load, load_folder, measured_normalization
from atslib.errors import AtsError, choose
from atslib.measures.metrics import mse, psnr, ssim
from atslib.models import build_model
from atslib.policies.policy import parse_policy
from atslib.report import plots
from atslib.report.units.units import ModelUnit, dataset, device_of, network, trained
from atslib.rng import rng
from atslib.scores.search import Found, SearchConfig
from atslib.scores.search import search as search_policies
from atslib.store import Store, fingerprint, write_atomically


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
    target = prepare(images.pixels, policy, rng=streams(args.seed, args.policy), crop_flip=args.crop_flip)
    model = _untrained(_named(args), args)
    if args.checkpoint:
        load_checkpoint(args.checkpoint, model)
    stream = rng(args.seed, "defense", args.defense)
    seen = observe(model, target.to(device), images.labels.to(device), defense=defense, rng=stream)
    found = reconstruct(seen, preset, rng=rng(args.seed, "start"), progress=progress)
    _write(args.out, rows, images, target, found)


def _write(out: Path, rows: list[int], images: Images, target: torch.Tensor, found: Reconstruction) -> None:
    original, image = to_images(images.pixels), found.images.cpu()
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


def search(args: argparse.Namespace, *, progress: bool) -> None:
    """Search policies for a data set or a folder; write them to `args.out`, all scores beside it; resumable."""
    train, test = _data(args)
    if args.images > len(test):
        print(f"{test!r}: {len(test)} images are scored instead of {args.images}")
    config = SearchConfig(
        candidates=args.policies,
        sampler=args.sampler,
        keep=args.keep,
        t_acc=args.t_acc,
        images=min(args.images, len(test)),
        acc_images=min(args.acc_images, len(test)),
        points=args.points,
        rungs=_rungs(args.rungs),
    )
    store = Store(args.store, progress=progress)
    semi_trained, random_init = _models(args, train, test, store)
    finals = dataclasses.replace(ATTACKS["adam-cosine"], steps=args.attack_steps) if args.attack_steps else None
    kept = {"store": store, "progress": progress, "finals": finals}
    found = search_policies(config, semi_trained, random_init, test, seed=args.seed, **kept)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    found.save(args.out, dataset=args.dataset, model=args.model, epochs=args.epochs, image_shape=test.pixels.shape[1:])
    print(_best(found))
    print(f"{args.out}: {len(found.chosen)} policies; all {len(found.table):,} in {args.out.with_suffix('.csv').name}")


def _rungs(text: str) -> tuple[tuple[int, float], ...]:
    """`"10:0.25,30:0.5"` → ((10, 0.25), (30, 0.5))."""
    parts = [re.fullmatch(r"\s*(\d+):(\d*\.?\d+)\s*", part) for part in text.split(",") if text]
    if not all(parts):
        raise AtsError(f"rungs {text!r}: expected images:share, joined by commas, such as 10:0.25,30:0.5")
    return tuple((int(part[1]), float(part[2])) for part in parts)


def _data(args: argparse.Namespace) -> tuple[Images | None, Images]:
    """Training images, None for a named data set (its unit loads them), and test images."""
    if args.dataset in DATASETS:
        return None, dataset(args.dataset, "test")
    if not Path(args.dataset).is_dir():
        known = ", ".join(DATASETS)
        raise AtsError(f"data set {args.dataset!r} is unknown; choose {known}, or a folder with a subfolder per class")
    return load_folder(args.dataset, size=args.image_size, fit=args.fit, seed=args.seed)


def _models(args: argparse.Namespace, train: Images | None, test: Images, store: Store) -> tuple[nn.Module, nn.Module]:
    """The semi-trained network and the untrained one that it started from, both from the store or made."""
    config, device = TrainConfig(epochs=args.epochs), device_of(args.device)
    fraction = args.fraction if args.fraction is not None else 0.1 if train is None else 1.0
    if train is None:
        unit = ModelUnit(dataset=args.dataset, model=args.model, fraction=fraction, train=config, seed=args.seed)
        return trained(unit, store, device)[0], network(unit).to(device)
    part = train.subset(fraction, rng=rng(args.seed, "subset"))
    norm, size = measured_normalization(part), test.pixels.shape[2]
    facts = {"model": args.model, "train": config, "seed": args.seed, "norm": norm}
    facts["images"] = fingerprint(part.pixels, part.labels)
    stream = rng(args.seed, "weights", args.model)
    fresh = build_model(args.model, test.num_classes, test.pixels.shape[1], norm=norm, image_size=size, rng=stream).to(
        device
    )
    model = copy.deepcopy(fresh)

    def compute(state: Path) -> dict[str, Tensor]:
        stream = rng(args.seed, "train", "")
        return fit(model, part, config, rng=stream, checkpoint=state, progress=store.progress).model.state_dict()

    model.load_state_dict(store.get("model", facts, compute).tensors)
    return model.eval(), fresh


def _best(found: Found) -> str:
    """The best policies with their scores, a line each, and their hybrid."""
    lines = ["rank  S_pri (95 % of the mean)   S_acc       policy"]
    for rank, row in enumerate(found.table[found.table["chosen"]].head(10).itertuples(), 1):
        interval = f"{row.s_pri:.4f} ({row.ci_low:.4f} to {row.ci_high:.4f})"
        lines.append(f"{rank:>4}  {interval}  {row.s_acc:<10.4g}  {row.policy}: {parse_policy(row.policy).names()}")
    return "\n".join([*lines, f"hybrid without a common function: {found.hybrid or 'none'}"])
