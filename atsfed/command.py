"""`python -m atslib federated`: a federation on this machine, and one line on each of its rounds."""

import argparse

from atsfed.federation import Federation
from atslib.clients.updates import LocalTraining


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
    local = LocalTraining(epochs=args.local_epochs, lr=args.lr) if args.local_epochs else None
    federation = Federation(**{name: getattr(args, name) for name in names}, local=local)
    from atsfed.simulation import simulate  # an extra, which a wrong option should not need

    tap = simulate(federation, args.out, processes=args.jobs, secure=args.secure)
    for number in range(1, federation.rounds + 1):
        answered = ", ".join(map(str, tap.clients(number)))
        print("; ".join([f"round {number}: answers of clients {answered}", *tap.refused(number)]))
    print(f"what the server saw: {tap.folder}")
