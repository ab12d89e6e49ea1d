"""A federation on Flower, all clients on this machine."""

import logging
from pathlib import Path

from atsfed import flower
from atsfed import secure as summing
from atsfed.federation import Federation
from atsfed.local_grid import LocalGrid, run_server
from atsfed.tap import Tap
from atslib.errors import AtsError, check_whole

MOST = 1_000  # clients on one machine: all answers of a round are in memory at once


def simulate(
    federation: Federation,
    folder: Path | str,
    *,
    processes: int = 2,
    patience: float = 600.0,
    secure: bool = False,
) -> Tap:
    """Run a federation on this machine, its clients in so many processes, and return what the
    server saw.

    Rounds that the folder has already are not run again, but for the last ones if nobody answered
    in them. With `secure` aggregation what it saw is the sum of all answers. A client whose process
    is killed is begun again in another; one that has not answered after `patience` seconds is
    ended, and the round is without it. Messages go through pipes: nothing listens, to the network
    or on this machine.

    Raises:
        AtsError: a round was not run, or got no answer that could be taken; more clients than one
            machine holds; fewer than one process, or processes that cannot be begun.
    """
    check_whole("processes", processes, 1)
    if federation.clients > MOST:
        raise AtsError(
            f"Federation.clients={federation.clients}: one machine simulates at most {MOST}"
        )
    federation.shard(0)  # more clients than images are said here, and not within Flower
    apps = summing if secure else flower
    server = apps.server_app(federation, folder, patience=patience)
    client = apps.client_app(federation)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    tap = Tap(folder, federation)
    if tap.next() == 1:  # a folder that cannot be written is said here, and not within Flower
        tap.begin(1, dict(tap.network.named_parameters()))
    tap.again()
    if tap.next() <= federation.rounds:
        with LocalGrid(client, federation.clients, processes) as grid:
            run_server(server, grid)
    if empty := [number for number in range(1, federation.rounds + 1) if not tap.clients(number)]:
        said = "; ".join(tap.refused(empty[0])) or "see the messages above"
        raise AtsError(f"round {empty[0]} of {federation.rounds} has no answer: {said}")
    return tap
