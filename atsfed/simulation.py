"""A federation on Flower, all clients on this machine."""

import importlib.util
import logging
import os
from pathlib import Path

from atsfed import flower
from atsfed import secure as summing
from atsfed.federation import Federation
from atsfed.tap import Tap
from atslib.errors import AtsError

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


def simulate(
    federation: Federation,
    folder: Path | str,
    *,
    processes: int = 2,
    patience: float = 600.0,
    secure: bool = False,
) -> Tap:
    """Run a federation on this machine, its clients in so many processes (Ray), and return what the
    server saw.

    Rounds that the folder has already are not run again. With `secure` aggregation that is the sum
    of all answers.

    Raises:
        AtsError: a round was not run, or got no answer that could be taken; Ray is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise AtsError(flower.MISSING)
    from flwr.simulation import run_simulation

    apps = summing if secure else flower
    server = apps.server_app(federation, folder, patience=patience)
    client = apps.client_app(federation)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    backend = {
        "init_args": {"num_cpus": processes, "include_dashboard": False, "log_to_driver": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    tap = Tap(folder, federation)
    if tap.next() == 1:  # a folder that cannot be written is said here, and not within Flower
        tap.begin(1, dict(tap.network.named_parameters()))
    if tap.next() <= federation.rounds:
        run_simulation(server, client, num_supernodes=federation.clients, backend_config=backend)
    if empty := [number for number in range(1, federation.rounds + 1) if not tap.clients(number)]:
        said = "; ".join(tap.refused(empty[0])) or "see the messages above"
        raise AtsError(f"round {empty[0]} of {federation.rounds} has no answer: {said}")
    return tap
