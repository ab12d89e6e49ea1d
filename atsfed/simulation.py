"""A federation on Flower, all clients on this machine."""

import importlib.util
import logging
import os
import secrets
import sys
import traceback
from pathlib import Path

from atsfed import flower
from atsfed import secure as summing
from atsfed.federation import Federation
from atsfed.tap import Tap
from atslib.errors import AtsError

# Ray reads these when it is loaded, and its processes inherit them. By itself it listens on all
# addresses, and runs what anyone hands it who reaches one: on the loopback address only, and for
# nobody without this token.
CLOSED = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}
if "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:
    os.environ.update(CLOSED)
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

MOST = 1_000  # clients on one machine: Flower looks at each of them ten times a second
# Without these a worker that is killed, for want of memory say, stays dead, and with it every
# client that is given to it. Until Ray has noticed, it sends the client to the dead worker again, and
# each time that counts as a retry: on a busy machine one is used up at once.
LASTING = {"max_restarts": -1, "max_task_retries": 10}
STARTS = 5  # how often Ray is started where its processes do not come up in time


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

    Rounds that the folder has already are not run again, but for the last ones if nobody answered
    in them. With `secure` aggregation what it saw is the sum of all answers. A client whose process
    is killed is begun again in another.

    Raises:
        AtsError: a round was not run, or got no answer that could be taken; more clients than one
            machine holds; Ray is not installed, or its processes would be open to the network.
    """
    if federation.clients > MOST:
        raise AtsError(
            f"Federation.clients={federation.clients}: one machine simulates at most {MOST}"
        )
    federation.shard(0)  # more clients than images are said here, and not within Flower
    if importlib.util.find_spec("ray") is None:
        raise AtsError(flower.MISSING)
    if "RAY_AUTH_MODE" not in os.environ:
        raise AtsError(
            "Ray was loaded before atsfed.simulation, and would listen to the whole network: import it "
            "after this module, or set RAY_AUTH_MODE=token and RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 before"
        )
    # Flower calls this function deprecated (in 1.41 and 1.42, where it is the same) and names `flwr
    # run` in its place, which is no API: it starts a SuperLink that goes on after the run, and whose
    # Ray has not the settings above; and the apps have to be an archive of files, which cannot hold
    # a federation made here. So it stays, and the extra says up to which release it is there.
    from flwr.simulation import run_simulation

    apps = summing if secure else flower
    server = apps.server_app(federation, folder, patience=patience)
    client = apps.client_app(federation)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0, **LASTING}}
    tap = Tap(folder, federation)
    if tap.next() == 1:  # a folder that cannot be written is said here, and not within Flower
        tap.begin(1, dict(tap.network.named_parameters()))
    tap.again()
    if tap.next() <= federation.rounds:
        _start_ray(processes)
        run_simulation(server, client, num_supernodes=federation.clients, backend_config=backend)
    if empty := [number for number in range(1, federation.rounds + 1) if not tap.clients(number)]:
        said = "; ".join(tap.refused(empty[0])) or "see the messages above"
        raise AtsError(f"round {empty[0]} of {federation.rounds} has no answer: {said}")
    return tap


def _start_ray(processes: int) -> None:
    """Start Ray, which gives its own processes half a minute to come up: little on a busy machine,
    where it is tried again. Flower takes it as it is, and ends it.
    """
    import ray

    path = os.pathsep.join(sys.path)  # its processes import what this one can
    if ray.is_initialized():
        return
    for start in range(1, STARTS + 1):
        try:
            ray.init(
                num_cpus=processes,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
                runtime_env={"env_vars": {"PYTHONPATH": path}},
            )
            return
        except Exception as error:  # Ray has no class of its own for it
            _end_what_started(error)
            if start == STARTS or "timed out during startup" not in str(error):
                raise


def _end_what_started(error: Exception) -> None:
    """End the processes of a Ray that did not come up. Ray leaves them to run until this process ends,
    seven for each start, and they are in the way of the next one; nothing but the error knows them.
    """
    from ray._private.node import Node

    for frame, _ in traceback.walk_tb(error.__traceback__):
        if isinstance(node := frame.f_locals.get("self"), Node):
            node.kill_all_processes(check_alive=False, allow_graceful=False)
            return
