"""Where requests are done: processes of this machine, this process beside a GPU, or the
workers of a Dask scheduler.

Each is a `concurrent.futures.Executor` with the number of requests that it takes at once.
"""

import contextlib
import gc
import ipaddress
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor

import torch

from atslib.errors import AtsError
from atslib.gradients.cpu import keep_memory, keep_to_one_core

LOST = (BrokenExecutor, CancelledError)  # what a call ends with whose worker or scheduler went away
PATIENCE = 60.0  # seconds that a scheduler may be away
WITHOUT_WORKERS = 300.0  # seconds that a scheduler may have none
# Of `distributed.security`
TLS = "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, …__CLIENT__CERT and …__CLIENT__KEY"

Workers = tuple[Executor, Callable[[], int]]


def at_once(device: torch.device, jobs: int | None) -> int:
    """How many requests are computed at once: as asked, else one per core, or one on a GPU."""
    return jobs or (1 if device.type == "cuda" else os.cpu_count() or 1)


def count(device: torch.device, jobs: int | None, scheduler: str | None) -> int:
    """How many requests are computed at once there: by a cluster as many as it takes now, started or
    not.
    """
    if not scheduler:
        return at_once(device, jobs)
    with workers(device, jobs, scheduler, lambda line: None) as (_, slots):
        return slots()


@contextlib.contextmanager
def workers(
    device: torch.device, jobs: int | None, scheduler: str | None, say: Callable[[str], None]
) -> Iterator[Workers]:
    """An executor, and a function that says how many requests it takes at once now.

    Args:
        scheduler: None, or the address of a Dask scheduler, such as `tls://10.0.0.5:8786`; for
            `tls://` the certificates are those of Dask's own configuration.
        say: receives a warning where the line to the scheduler is open.
    Raises:
        AtsError: Dask is not installed, there is no scheduler at that address, or no certificate
            for it.
        BrokenExecutor: a worker was lost, and Dask has given up on the request that it was at.
    """
    if scheduler:
        with _cluster(scheduler, say) as found:
            yield found
        return
    with InThisProcess() if device.type == "cuda" else _processes(at_once(device, jobs)) as pool:
        yield pool, lambda: at_once(device, jobs)


class InThisProcess(Executor):
    """Does what is submitted at once and in this process: a GPU has one user at a time, and little
    work is over before a process has started.

    Its number of threads is afterwards what it was.
    """

    def submit(self, call: Callable, /, *args: object) -> Future:
        future: Future = Future()
        threads = torch.get_num_threads()
        try:
            future.set_result(call(*args))
        except Exception as error:
            future.set_exception(error)
        finally:
            torch.set_num_threads(threads)
        return future


def _processes(jobs: int) -> Executor:
    return ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_worker
    )


def _begin_worker() -> None:
    """One thread and kept memory; and a worker whose runner is killed ends at once, instead of
    waiting for ever.
    """
    keep_memory()
    keep_to_one_core()

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _cluster(scheduler: str, say: Callable[[str], None]) -> Iterator[Workers]:
    try:
        from distributed import Client, KilledWorker  # an extra
    except ImportError:
        raise AtsError(
            f"--scheduler {scheduler} needs Dask: pip install 'atslib[cluster]'"
        ) from None
    # A client of before that found no scheduler is closed when it is collected; if that comes while
    # the next one begins, both wait for one lock for ever (distributed 2026.8.0)
    gc.collect()
    try:
        client = Client(scheduler, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, MemoryError) as error:
        # The last: the bytes of another service, as a length
        raise AtsError(
            f"--scheduler {scheduler}: no Dask scheduler answers there ({error}); give its address, such as "
            "tls://10.0.0.5:8786"
        ) from None
    except (TypeError, RuntimeError) as error:
        # What Dask raises where TLS is asked for, or needed, without keys
        reason = " ".join(str(error).split())
        raise AtsError(
            f"--scheduler {scheduler}: Dask has no certificates for it ({reason}); set {TLS}, or the same in "
            "Dask's configuration file"
        ) from None
    with client:
        if is_open(scheduler):
            say(
                f"warning: the line to {scheduler} is neither encrypted nor authenticated, so that whoever reaches it "
                "or its workers can run any code there; use tls://, with certificates in Dask's configuration"
            )

        with contextlib.suppress(TimeoutError):
            client.wait_for_workers(1, timeout=min(PATIENCE, WITHOUT_WORKERS))
        try:
            yield client.get_executor(pure=False), _slots(client.nthreads, scheduler, say)
        except KilledWorker as error:
            raise BrokenExecutor(str(error)) from None


def _slots(
    threads: Callable[[], dict[str, int]],
    scheduler: str,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[], int]:
    """How many requests a cluster takes at once now, asked again and again: one a thread; at least
    one, which then waits for a worker, but not for ever, since Dask itself says nothing.

    Args:
        threads: of each worker, by its address.
        say: receives a line when the last worker has gone.
        clock: seconds.
    """
    gone = None  # since when there is no worker

    def slots() -> int:
        nonlocal gone
        try:
            there = sum(threads().values())
        except (OSError, RuntimeError) as error:  # the scheduler went away
            raise BrokenExecutor(str(error)) from None
        if there:
            gone = None
            return there
        if gone is None:
            gone = clock()
            say(f"{scheduler} has no worker now; waiting for one")
        if (seconds := clock() - gone) > WITHOUT_WORKERS:
            raise AtsError(
                f"--scheduler {scheduler}: there was no worker for {seconds:.0f} s; start some (dask worker {scheduler}) "
                "and run this again: what is finished is kept"
            )
        return 1

    return slots


def is_open(scheduler: str) -> bool:
    """Whether a scheduler's address leads to another machine without TLS."""
    from distributed.comm import get_address_host

    if scheduler.startswith(("tls://", "wss://", "inproc://")):
        return False
    host = get_address_host(scheduler)
    if host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, of which nobody knows where it leads
        return True
