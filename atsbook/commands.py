"""What each command of `python -m atsbook` does, one function each; a number that it returns is the
exit status.
"""

import argparse
import json
import sys
from collections.abc import Iterator

from atsbook import bench as benchmarks
from atsbook.evidence.archive import Archive
from atsbook.report import runner
from atsbook.store import Store
from atslib.errors import AtsError, choose
from atslib.files import project_root
from atslib.models import device_of
from atslib.shell import check_out


def run(args: argparse.Namespace) -> None:
    """Compute pages, execute their notebooks, build the book."""
    store = Store(args.store, say=runner.say, progress=sys.stderr.isatty())
    names = ("profile", "dataset", "compute_only", "dry_run", "budget", "jobs", "scheduler")
    runner.run(
        args.names,
        **{name: getattr(args, name) for name in names},
        root=project_root(),
        store=store,
    )


def report(args: argparse.Namespace) -> int:
    """Check the archived evidence, compute a random sample of it again, make the book from it.

    With `args.check` only make every page again, and compare: 1 if a committed page is not what the
    code makes.
    """
    store = Store(say=runner.say, progress=sys.stderr.isatty())
    if args.check:
        faults = runner.check(jobs=args.jobs, root=project_root(), store=store)
        print("\n".join(faults) or "every page that was made again shows what is committed")
        return int(bool(faults))
    names = ("seed", "minutes", "jobs", "write", "record")
    options = {name: getattr(args, name) for name in names}
    found = runner.report(**options, root=project_root(), store=store)
    if not args.write:
        print("\n".join(found) or "every page that was made again shows what is committed")
    return 0


def store(args: argparse.Namespace) -> int:
    """List or check the artifacts of a store; 1 if `verify` finds damage."""
    kept = Store(args.store, say=runner.say)
    if not kept.root.is_dir():
        raise AtsError(f"there is no store at {kept.root}; name one with --store or $ATS_STORE")
    if args.action == "list":
        for path, facts in kept.entries():
            made = facts.get("made", "?")
            seconds = facts.get("seconds", "?")
            size = path.stat().st_size / 1e6 if path.exists() else 0
            print(f"{path.parent.name}/{path.stem}  {size:8.2f} MB  {made}  {seconds} s")
    else:
        faults = kept.verify()
        print("\n".join(faults) or f"{sum(1 for _ in kept.entries())} artifacts, all whole")
        return int(bool(faults))
    return 0


def archive(args: argparse.Namespace) -> int:
    """Check the evidence, take in what a store has, or put it into one; 1 if `verify` finds damage."""
    root = project_root()
    given = Store(args.store, say=runner.say)
    evidence = Archive(root / "results")
    if not evidence.root.is_dir():
        raise AtsError(f"there is no archive at {evidence.root}; work in the project's folder")
    if args.page and args.action in ("write", "verify"):
        raise AtsError(f"archive {args.action} takes no page: it is for all evidence")
    if args.action in ("write", "forget") and not given.root.is_dir():
        raise AtsError(f"there is no store at {given.root}; name one with --store or $ATS_STORE")
    if args.action == "verify":
        faults = evidence.verify()
        print("\n".join(faults) or _about(evidence, "all whole"))
        return int(bool(faults))
    if args.action == "write":
        new = evidence.write(given, pages=runner.readers(root))
        print(_about(evidence, f"{new} of them new"))
        return 0
    pages = [args.page] if args.page else None
    if args.page:
        known = {page for line in evidence.entries().values() for page in line["pages"]}
        choose("page", args.page, sorted(known))
    if args.action == "restore":
        new = evidence.restore(given, pages=pages)
        print(f"{new} of {len(evidence.entries())} requests restored to {given.root}")
    else:
        gone = evidence.forget(given, pages=pages)
        print(f"{gone} restored artifacts taken out of {given.root}")
    return 0


def _about(evidence: Archive, state: str) -> str:
    results = f"{len(evidence.entries())} results"
    return f"{evidence.root}: {results}, {state}, {evidence.size() / 1e6:.1f} MB"


def bench(args: argparse.Namespace) -> None:
    """Measure speed, a JSON line for each size."""
    device_of(args.device)  # one that is not there is said before any work
    if args.out:
        check_out(args.out)
    for row in _speeds(args):
        print(line := json.dumps(row), flush=True)
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            with args.out.open("a") as file:
                file.write(f"{line}\n")


def _speeds(args: argparse.Namespace) -> Iterator[dict]:
    reference, against = benchmarks.SIZES[args.what]
    for model, usual in [(args.model, 8)] if args.model else reference:
        runner.say(
            f"measuring {args.what} on {model}, {(members := args.members or usual)} at once, against {against}"
        )
        yield getattr(benchmarks, args.what)(model, members, device=args.device)
