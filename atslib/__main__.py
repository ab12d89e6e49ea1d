"""`python -m atslib`: make the report, attack and search from the shell, measure speed, look after data and store."""

import argparse
import re
import sys
from pathlib import Path

from atslib.errors import AtsError
from atslib.gradients.cpu import keep_memory
from atslib.store import Store, project_root


def _duration(text: str) -> float:
    """`90s`, `8m`, `2h` or plain seconds → seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 8m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _run(args: argparse.Namespace) -> None:
    from atslib.report.run.runner import run, say

    store = Store(args.store, say=say, progress=sys.stderr.isatty())
    run(
        args.names,
        profile=args.profile,
        dataset=args.dataset,
        compute_only=args.compute_only,
        dry_run=args.dry_run,
        budget=args.budget,
        jobs=args.jobs,
        root=project_root(),
        store=store,
    )


def _archive(args: argparse.Namespace) -> None:
    from atslib.report.run.runner import say
    from atslib.report.units.archive import Archive

    archive = Archive(project_root() / "results" / "units")
    if args.action == "write":
        new = archive.write(Store(args.store, say=say))
        print(
            f"{new} units taken into {archive.root}, which has {len(archive.entries())}: {archive.size() / 1e6:.1f} MB"
        )
        return
    faults = archive.verify()
    print("\n".join(faults) or f"{len(archive.entries())} units, all whole: {archive.size() / 1e6:.1f} MB")
    if faults:
        raise SystemExit(1)


def _store(args: argparse.Namespace) -> None:
    from atslib.report.run.runner import say

    store = Store(args.store, say=say)
    if args.action == "list":
        for path, facts in store.entries():
            made, seconds = facts.get("made", "?"), facts.get("seconds", "?")
            size = path.stat().st_size / 1e6 if path.exists() else 0
            print(f"{path.parent.name}/{path.stem}  {size:8.2f} MB  {made}  {seconds} s")
    elif args.action == "verify":
        faults = store.verify()
        print("\n".join(faults) or f"{sum(1 for _ in store.entries())} artifacts, all whole")
        sys.exit(1 if faults else 0)
    elif args.file is None:
        raise AtsError(f"store {args.action} needs a file: python -m atslib store {args.action} FILE.tar")
    elif args.action == "export":
        print(f"{store.export(args.file)} artifacts written to {args.file}")
    else:
        print(f"{store.import_(args.file)} files taken from {args.file}")


def _pack(args: argparse.Namespace) -> None:
    from atslib.data.load import pack_official

    made = pack_official(args.dataset, args.source, args.root)
    print("\n".join(map(str, made)) or "nothing to do: the packed files are there")


def _attack(args: argparse.Namespace) -> None:
    from atslib import commands as shell

    shell.attack(args, progress=True)


def _train(args: argparse.Namespace) -> None:
    from atslib import commands as shell

    shell.train(args, progress=True)


def _search(args: argparse.Namespace) -> None:
    from atslib import commands as shell

    shell.search(args, progress=True)


def _bench(args: argparse.Namespace) -> None:
    import json

    from atslib import bench

    measure, reference = {
        "attack": (bench.attack, bench.ATTACK_SIZES),
        "scores": (bench.scores, bench.SCORE_SIZES),
    }[args.what]
    sizes = [(args.model, args.members or 8)] if args.model else reference
    for model, members in sizes:
        line = json.dumps(measure(model, members, device=args.device))
        print(line, flush=True)
        if args.out:
            with args.out.open("a") as file:
                file.write(f"{line}\n")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m atslib", description=__doc__)
    commands = top.add_subparsers(required=True, metavar="command")

    run = commands.add_parser("run", help="compute pages, execute their notebooks, build the book")
    run.add_argument("names", nargs="*", help="pages, such as claim1_privacy; by default those of the book")
    run.add_argument("--profile", default="quick", help="smoke, quick (default) or full")
    run.add_argument("--dataset", help="instead of the profile's; `shapes` needs no file")
    run.add_argument("--compute-only", action="store_true", help="write tables, execute and build nothing")
    run.add_argument("--dry-run", action="store_true", help="only show what would be computed, with estimated times")
    run.add_argument("--budget", type=_duration, help="stop cleanly within 90s, 8m or 2h; run again to go on")
    run.add_argument("--jobs", type=int, help="units at once, a thread each, and pages at once; default: one a core")
    run.add_argument("--store", type=Path, help="folder of artifacts; default $ATS_STORE or .store")
    run.set_defaults(call=_run)

    store = commands.add_parser("store", help="list, check and move artifacts")
    store.add_argument("action", choices=("list", "verify", "export", "import"))
    store.add_argument("file", nargs="?", type=Path, help="archive of export and import")
    store.add_argument("--store", type=Path, help="folder of artifacts; default $ATS_STORE or .store")
    store.set_defaults(call=_store)

    archive = commands.add_parser("archive", help="the evidence in results/units: take in a store's units, or check it")
    archive.add_argument("action", choices=("write", "verify"))
    archive.add_argument("--store", type=Path, help="folder of artifacts; default $ATS_STORE or .store")
    archive.set_defaults(call=_archive)

    pack = commands.add_parser("pack", help="pack an official copy of a data set that is already on disk")
    pack.add_argument("dataset", help="cifar100, cifar10, fmnist or tinyimagenet")
    pack.add_argument("source", type=Path, help="torchvision's folder, or Stanford's zip of Tiny ImageNet")
    pack.add_argument("--root", type=Path, help="where to; default $ATS_DATA or ~/.cache/atslib")
    pack.set_defaults(call=_pack)
    _train_parser(commands)
    _attack_parser(commands)
    _search_parser(commands)

    bench = commands.add_parser("bench", help="speed against the plain loop; one JSON line each")
    bench.add_argument("what", choices=("attack", "scores"))
    bench.add_argument("--model", help="such as resnet20-4; default: the reference sizes")
    bench.add_argument("--members", type=int, help="attacks in the batch, or images scored")
    bench.add_argument("--device", default="cpu")
    bench.add_argument("--out", type=Path, help="append the lines to this file, such as results/speed.jsonl")
    bench.set_defaults(call=_bench)
    return top


def _train_parser(commands: argparse._SubParsersAction) -> None:
    train = commands.add_parser("train", help="train a network, with a policy or a defense, for `attack`")
    train.add_argument("--dataset", default="cifar100")
    train.add_argument("--model", default="resnet20-4")
    train.add_argument("--policy", default="", help="such as 3-1-7+43-18-18; none by default")
    train.add_argument("--defense", default="", help="on every batch's gradient, such as prune:0.7")
    train.add_argument("--fraction", type=float, default=1.0, help="share of the training set, stratified")
    train.add_argument("--epochs", type=int, default=60)
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--device", default="auto")
    train.add_argument("--out", type=Path, required=True, help="checkpoint, such as model.safetensors")
    train.set_defaults(call=_train)


def _attack_parser(commands: argparse._SubParsersAction) -> None:
    attack = commands.add_parser("attack", help="reconstruct images from their gradients")
    attack.add_argument("--dataset", default="cifar100")
    attack.add_argument("--split", default="test")
    attack.add_argument("--index", default="0-7", help="images: 5, 0-15 or 3,8,20-22")
    attack.add_argument("--policy", default="", help="such as 3-1-7 or 3-1-7+43-18-18; none by default")
    attack.add_argument("--defense", default="", help="on the shared gradient, such as prune:0.7 or gaussian:1e-3")
    attack.add_argument("--attack", default="adam-cosine", help="a preset's name")
    attack.add_argument("--steps", type=int, help="instead of the preset's")
    attack.add_argument("--model", help="such as resnet20-1; default: the checkpoint's, else resnet20-4")
    attack.add_argument("--checkpoint", type=Path, help="safetensors weights; untrained without it")
    attack.add_argument("--crop-flip", action="store_true", help="random crop and flip before the policy")
    attack.add_argument("--seed", type=int, default=0)
    attack.add_argument("--device", default="auto")
    attack.add_argument("--out", type=Path, required=True, help="folder for table.csv, sheet.png, arrays.safetensors")
    attack.set_defaults(call=_attack)


def _search_parser(commands: argparse._SubParsersAction) -> None:
    search = commands.add_parser("search", help="search policies for a data set, or for an own folder of images")
    search.add_argument("--dataset", default="cifar100", help="a name, or a folder with a subfolder per class")
    search.add_argument("--model", default="resnet20-4")
    search.add_argument("--policies", type=int, default=1500, help="candidates drawn")
    search.add_argument("--images", type=int, default=100, help="test images for the privacy score")
    search.add_argument("--acc-images", type=int, default=100, help="for the accuracy score; the paper: 1,000")
    search.add_argument("--sampler", default="uniform", help="uniform, authors or exhaustive")
    search.add_argument("--rungs", default="", help="halving, such as 10:0.25: after 10 images a quarter goes on")
    search.add_argument("--attack-steps", type=int, help="last rung: attack the best 2n candidates for so many steps")
    search.add_argument("--points", type=int, default=21, help="of the similarity curve")
    search.add_argument("--keep", type=int, default=10, help="policies chosen")
    search.add_argument("--t-acc", type=float, help="reject policies below this accuracy score; none by default")
    search.add_argument("--fraction", type=float, help="training share; default 0.1 of a named data set, 1 of a folder")
    search.add_argument("--epochs", type=int, default=50, help="of the semi-trained network")
    search.add_argument("--image-size", type=int, default=32, help="side of a folder's images, in pixels")
    search.add_argument("--fit", default="resize", help="how a folder's images become square: resize or crop")
    search.add_argument("--seed", type=int, default=0)
    search.add_argument("--device", default="auto")
    search.add_argument("--store", type=Path, help="folder of artifacts; default $ATS_STORE or .store")
    search.add_argument("--out", type=Path, required=True, help="such as policies.json; a .csv of all goes beside it")
    search.set_defaults(call=_search)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status. A wrong input is one line on stderr, never a traceback."""
    args = parser().parse_args(arguments)
    try:
        args.call(args)
    except AtsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept, run the same command to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    keep_memory()  # here, not in `main`, which tests and notebooks may call
    sys.exit(main())
