"""`python -m atslib federated`: a federation on this machine, and one line on each of its rounds."""

import argparse
from pathlib import Path

from atsfed.federation import Federation
from atslib.audit.sources import is_own
from atslib.clients.updates import LocalTraining
from atslib.errors import AtsError


def absolute(text: str) -> str:
    """A text with the whole path of each folder and file.py:name in it."""
    parts = [part.strip() for part in text.split("|")]
    for place, part in enumerate(parts):
        file, colon, name = part.rpartition(":")
        if part and Path(part).is_dir():
            parts[place] = str(Path(part).resolve())
        elif colon and file.endswith(".py") and is_own(part):
            parts[place] = f"{Path(file).resolve()}:{name}"
    return " | ".join(parts)


def federated(args: argparse.Namespace) -> None:
    """Run a federation, or what is left of it, with its tap in `args.out`; print who answered in
    each round.
    """
    names = (
        "dataset",
        "model",
        "clients",
        "alpha",
        "rounds",
        "batch",
        "lr",
        "defense",
        "fraction",
        "seed",
    )
    if args.image_size and not Path(args.dataset).is_dir():
        raise AtsError(
            f"--image-size is for a folder of images; {args.dataset} has a size of its own"
        )
    local = LocalTraining(epochs=args.local_epochs, lr=args.lr) if args.local_epochs else None
    settings = {name: getattr(args, name) for name in names}
    # Clients are other processes, which may be in another folder.
    for name in ("dataset", "model", "defense"):
        settings[name] = absolute(settings[name])
    if args.image_size:
        settings["image_size"] = args.image_size
    federation = Federation(**settings, local=local)
    from atsfed.simulation import simulate  # an extra, which a wrong option should not need

    tap = simulate(federation, args.out, processes=args.jobs, secure=args.secure)
    for number in range(1, federation.rounds + 1):
        answered = ", ".join(map(str, tap.clients(number)))
        print("; ".join([f"round {number}: answers of clients {answered}", *tap.refused(number)]))
    print(f"what the server saw: {tap.folder}")
