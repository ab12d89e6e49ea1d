"""What each command of `python -m atslib` does, one function each; a number that it returns is the
exit status.
"""

import argparse
import dataclasses
import importlib
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from atslib.attacks import ATTACKS
from atslib.checkpoints import fingerprint, plain, read_tensors, write_tensors
from atslib.clients.training import TrainConfig, fit
from atslib.data.folder import load_folder
from atslib.data.load import (
    DATASETS,
    Images,
    load,
    measured_normalization,
)
from atslib.errors import AtsError
from atslib.files import states_kept
from atslib.models import build_model, copied, device_of
from atslib.policies.policy import Policy
from atslib.rng import rng
from atslib.scores.search import SearchConfig, in_order
from atslib.scores.search import search as search_policies
from atslib.scores.shards import Keep, Scorer
from atslib.shell import check_out, say


def untrained(
    name: str, images: Images, norm: str | tuple[list[float], list[float]], args: argparse.Namespace
) -> nn.Module:
    """The network that experiments with the same seed start from.

    Args:
        images: whose classes, channels and size it is for.
        norm: means and standard deviations of the channels, or the data set whose they are.
    """
    (_, channels, size, _) = images.pixels.shape
    stream = rng(args.seed, "weights", name)
    model = build_model(name, images.num_classes, channels, norm=norm, image_size=size, rng=stream)
    return model.to(device_of(args.device))


def search(args: argparse.Namespace) -> None:
    """Search policies for a data set or a folder; write them to `args.out`, all scores beside it.

    What is finished is kept in a folder beside `args.out`, from which a further search goes on.
    """
    if args.out.suffix.lower() == ".csv":
        wanted = args.out.with_suffix(".json")
        raise AtsError(
            f"--out {args.out} is the name of the table of all scores; give the policies' file, {wanted}"
        )
    check_out(args.out)
    table = args.out.with_suffix(".csv")
    kept = args.out.with_suffix(".kept")
    check_out(table)
    check_out(kept, folder=True)
    config = _search_config(args)
    train, test = _data(args)
    for name in ("images", "acc_images"):
        if (asked := getattr(config, name)) > len(test):
            config = dataclasses.replace(config, **{name: len(test)})
            print(
                f"{test.name}: {len(test)} images are scored instead of {asked} (--{name.replace('_', '-')})"
            )
    keep = kept_in(kept)
    semi_trained, random_init = _models(args, train, test, keep, kept / "training.state")
    finals = (
        dataclasses.replace(ATTACKS["adam-cosine"], steps=args.attack_steps)
        if args.attack_steps
        else None
    )
    result = search_policies(
        config,
        semi_trained,
        random_init,
        test,
        seed=args.seed,
        keep=keep,
        progress=True,
        finals=finals,
    )
    result.save(
        args.out,
        dataset=args.dataset,
        model=args.model,
        epochs=args.epochs,
        image_shape=test.pixels.shape[1:],
    )
    beside = _without_policy(config, semi_trained, random_init, test, args.seed, keep)
    print(f"{result.best()}\n{beside}")
    print(WHAT_SCORES_ARE)
    print(
        f"{args.out}: {len(result.chosen)} policies; all {len(result.table['policy']):,} in {table.name}"
    )
    if args.attack_winner:
        print(_attacked_winner(args, semi_trained, random_init, test, str(result.chosen[0])))


WHAT_SCORES_ARE = (
    "S_pri is the area under the similarity of gradients on the way from noise to the image, in [0, 1]; lower is meant "
    "to be more private. S_acc says how differently an untrained network responds to transformed images; higher is "
    "meant to cost less accuracy. Neither predicts much of what attacks find or of what training costs."
)


def _without_policy(
    config: SearchConfig,
    semi_trained: nn.Module,
    random_init: nn.Module,
    images: Images,
    seed: int,
    keep: Keep,
) -> str:
    """The scores of no policy, by the same images and draws, as a line below those of the best."""
    ordered = in_order(images, config, seed)
    scorer = Scorer(seed, config.shard, keep, progress=True)
    few = ordered[: config.acc_images]
    s_acc = scorer("accuracy", random_init, few, [Policy()], variant=config.acc_variant, batch=100)[
        0
    ]
    options = {"points": config.points, "draws": config.draws, "variant": config.pri_variant}
    each = scorer(
        "privacy", semi_trained, ordered[: config.images], [Policy()], first=0, **options
    )[0]
    half = 1.96 * each.std(ddof=1) / len(each) ** 0.5 if len(each) > 1 else math.nan
    interval = f"{each.mean():.4f} ({each.mean() - half:.4f} to {each.mean() + half:.4f})"
    return f"   –  {interval}  {s_acc:<10.4g}  no policy"


def _attacked_winner(
    args: argparse.Namespace,
    semi_trained: nn.Module,
    random_init: nn.Module,
    images: Images,
    policy: str,
) -> str:
    """How many photographs are found with the winner and without it, by servers that know more and
    more of it.
    """
    if not policy:
        return "the best policy does nothing, so it is not attacked"
    # By their names: they are above the library.
    audit = importlib.import_module("atsaudit").audit
    least = importlib.import_module("atsaudit.config").LEAST_IMAGES
    if len(images) < least + 1:
        return f"the best policy is not attacked: {len(images)} images are too few"
    settings = {
        "batch": (1,),
        "policy": policy,
        "budget": args.attack_winner,
        "seed": args.seed,
        "pretrained": True,
    }
    if args.attack_steps:
        settings["steps"] = args.attack_steps
    report = audit(
        semi_trained, images, untrained=random_init, progress=sys.stderr.isatty(), **settings
    )
    lines = [
        f"the best policy, {policy}, under attack on the semi-trained network ({args.attack_winner:.0f} s):"
    ]
    for row in report.rows:
        name = f"{row.title} (control)" if row.control else row.title
        lines.append(f"  found {row.found} of {row.images} [{row.low:.0%}, {row.high:.0%}]: {name}")
    return "\n".join([*lines, *(f"  {doubt}" for doubt in report.doubts)])


def _search_config(args: argparse.Namespace) -> SearchConfig:
    """`"10:0.25,30:0.5"` is ((10, 0.25), (30, 0.5)); the rest is copied."""
    parts = [
        re.fullmatch(r"\s*([0-9]{1,9}):([0-9]*\.?[0-9]+)\s*", part)
        for part in args.rungs.split(",")
        if args.rungs
    ]
    if not all(parts):
        raise AtsError(
            f"rungs {args.rungs!r}: expected images:share, joined by commas, such as 10:0.25,30:0.5"
        )
    names = ("sampler", "keep", "t_acc", "images", "acc_images", "points")
    options = {name: getattr(args, name) for name in names} | {"candidates": args.policies}
    try:
        return SearchConfig(
            **options, rungs=tuple((int(part[1]), float(part[2])) for part in parts)
        )
    except AtsError as error:
        said = str(error).replace("SearchConfig.candidates", "--policies")
        raise AtsError(said.replace("SearchConfig.", "--")) from None


def kept_in(folder: Path) -> Keep:
    """Keeps results in a folder, one file each, so that a search that is run again goes on.

    A file that is damaged is made again.
    """

    def keep(
        kind: str, description: dict, compute: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        path = folder / f"{kind}-{fingerprint(plain(description))}.safetensors"
        if path.exists():
            try:
                return read_tensors(path)[0]
            except AtsError as error:
                say(f"{error}; made again")
        made = compute()
        write_tensors(path, made, {"kind": kind, "description": plain(description)})
        return made

    return keep


def _data(args: argparse.Namespace) -> tuple[Images, Images]:
    """Training and test images of a data set or a folder."""
    if args.dataset in DATASETS:
        if args.image_size or args.fit:
            raise AtsError(
                f"--image-size and --fit are for a folder of images; {args.dataset} has a size of its own"
            )
        return load(args.dataset, "train"), load(args.dataset, "test")
    if not args.dataset or not Path(args.dataset).is_dir():
        # The path of no name is the working folder: it is not meant.
        known = ", ".join(DATASETS)
        raise AtsError(
            f"data set {args.dataset!r} is unknown; choose {known}, or a folder with a subfolder per class"
        )
    size = args.image_size or 32
    try:
        build_model(args.model, 2, image_size=size)
    except AtsError as error:
        raise AtsError(f"--model {args.model} with --image-size {size}: {error}") from None
    return load_folder(args.dataset, size=size, fit=args.fit or "resize", seed=args.seed)


def _models(
    args: argparse.Namespace, train: Images, test: Images, keep: Keep, state: Path
) -> tuple[nn.Module, nn.Module]:
    """The semi-trained network and the untrained one that it started from.

    Args:
        state: the file with the training's state.
    """
    named = args.dataset in DATASETS
    config = TrainConfig(epochs=args.epochs)
    fraction = args.fraction or (0.1 if named else 1.0)
    part = train.subset(fraction, rng=rng(args.seed, "subset"))
    norm = args.dataset if named else measured_normalization(part)
    fresh = untrained(args.model, test, norm, args)
    model = copied(fresh)
    facts = {
        "model": args.model,
        "train": config,
        "seed": args.seed,
        "norm": norm,
        "images": fingerprint(part.pixels, part.labels),
    }

    def train_it() -> dict[str, Tensor]:
        stream = rng(args.seed, "train", "")
        made = fit(model, part, config, rng=stream, checkpoint=state, progress=True)
        return made.model.state_dict()

    with states_kept():  # until the weights are on disk
        model.load_state_dict(keep("model", facts, train_it))
    return model.eval(), fresh
