"""Requests: what is missing, how long it may take, and computing it in as many processes as
there are cores.
"""

import dataclasses
import functools
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from pathlib import Path

import cloudpickle
from tqdm.auto import tqdm

from atsbook.kept import Kept
from atsbook.networks import ModelRequest, dataset, network
from atsbook.pool.estimate import PASSES, USUAL, Rates, Work
from atsbook.pool.workers import LOST, InThisProcess, at_once, count, workers
from atsbook.store import Store, read_files
from atslib.clients.prepare import to_images
from atslib.errors import AtsError, OutOfTime
from atslib.gradients.cpu import keep_to_one_core
from atslib.models import device_of
from atslib.shell import say

# of workers, one after another and without a request in between, after which a run gives up
LOSSES = 3
LITTLE = 20.0  # seconds of work that are over before workers have started


def needed(requests: Iterable[Kept]) -> list[Kept]:
    """These requests and their needs, each once and before what needs it."""
    wanted: dict[Kept, None] = {}
    for request in requests:
        wanted |= dict.fromkeys((*request.needs, request))
    return list(wanted)


def plan(requests: Iterable[Kept], store: Store) -> list[Kept]:
    """What is not in the store yet of these requests and their needs, each before what needs it."""
    return [request for request in needed(requests) if not store.has(request.kind, request)]


@functools.lru_cache
def _forward(request: ModelRequest) -> Work:
    return Work.of(network(request).eval(), to_images(dataset(request.dataset, "test").pixels[:1]))


def seconds(request: Kept, rates: Rates) -> float:
    """Estimated time of a request at these rates."""
    network_of = request if isinstance(request, ModelRequest) else request.model
    gradients = (
        0 if network_of is request else request.passes / PASSES
    )  # a training has no gradient of its own for an image
    bare = dataclasses.replace(network_of, train=None, fraction=1.0, seed=0, step=0, norm="")
    return rates.seconds(_forward(bare), request.passes, gradients)


def _at_once(device: str, jobs: int | None, scheduler: str | None) -> tuple[int, str]:
    """How many requests are computed at once, and that in words.

    Workers are taken to be as fast as this machine.
    """
    slots = count(device_of(device), jobs, scheduler)
    return (
        slots,
        f"with {slots} at once on {scheduler or 'this machine'}",
    )


def shared(times: Sequence[float], slots: int) -> float:
    """How long requests of these times take, so many at once: no less than the longest, which is not
    divided.
    """
    return max(sum(times) / slots, *times, 0.0)


def describe(
    requests: Sequence[Kept],
    device: str,
    jobs: int | None = None,
    scheduler: str | None = None,
) -> str:
    """What is to be computed, a line for each request, and how long that may take, in one."""
    slots, words = _at_once(device, jobs, scheduler)
    time = duration(shared([seconds(request, USUAL) for request in requests], slots))
    titles = [f"    {request.title}" for request in requests]
    about = f"about {time} {words}, by what such work took on one core of a CPU"
    return "\n".join([f"{len(requests)} requests to compute:", *titles, about])


def duration(seconds: float) -> str:
    """A time in words: `40 s`, `12 min` or `7,353 hours`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return (
        f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:,.{0 if seconds > 36_000 else 1}f} hours"
    )


def compute(
    requests: Iterable[Kept],
    store: Store,
    device: str,
    jobs: int | None = None,
    ends: float | None = None,
    scheduler: str | None = None,
) -> None:
    """Fill the store with these requests and all that they need; a request starts when its needs are
    there.

    Two processes of one thread do more than one of two, and a request's numbers then do not depend on
    the number of cores. On a GPU the requests run in this process, and so does what takes seconds
    alone, on one thread. A request whose worker was lost is begun again, on this machine from the state
    that it kept.

    Args:
        jobs: requests at once on this machine, each in a process of its own.
        ends: a time of `time.monotonic`; no request is begun that would end after it, judged by those
            of this call, and one that is still running then pauses when it has kept its state.
        scheduler: the address of a Dask scheduler. Its workers get what a request needs, and their
            results come back; they need no folder that they share.
    Raises:
        AtsError: workers were lost again and again.
    """
    if not (missing := plan(requests, store)):
        return
    place = device_of(device)
    losses = 0
    schedule = _Schedule(missing, store, ends, elsewhere=bool(scheduler))
    kinds = ", ".join(
        f"{number} {kind}" for kind, number in Counter(request.kind for request in missing).items()
    )
    if jobs is None and scheduler is None and sum(schedule.guess.values()) < LITTLE:
        store.say(f"requests to compute: {kinds}; in this process")
        schedule.run(InThisProcess(), device, lambda: 1)
        return
    store.say(f"requests to compute: {kinds}; {scheduler or at_once(place, jobs)} at once")
    while missing:
        try:
            with workers(place, jobs, scheduler, store.say) as (pool, slots):
                schedule.run(pool, device, slots)
            return
        except LOST:
            before = len(missing)
            missing = plan(missing, store)
            losses = losses + 1 if len(missing) == before else 1
            if losses > LOSSES:
                raise AtsError(
                    f"workers were killed again and again, perhaps for want of memory, the last time at "
                    f"{' or '.join(schedule.lost) or 'no request'}: what is finished is kept; try --jobs 1"
                ) from None
            store.say(
                f"a worker was lost, perhaps killed for want of memory: {len(missing)} requests go on"
            )
            schedule = _Schedule(missing, store, ends, elsewhere=bool(scheduler))


class _Schedule:
    """Requests in the order of their needs, what they took so far, and what that says about the rest."""

    def __init__(
        self,
        missing: Sequence[Kept],
        store: Store,
        ends: float | None,
        *,
        elsewhere: bool = False,
    ):
        self.elsewhere = elsewhere  # workers do not see the store's folder
        self.waiting = dict.fromkeys(missing)
        self.store = store
        self.ends = math.inf if ends is None else ends
        self.count = len(missing)
        self.done = 0
        self.running = {}
        self.lost = []
        self.guess = {request: seconds(request, USUAL) for request in missing}
        # by kind, of what is done
        self.taken = Counter()
        self.guessed = Counter()
        for request in missing[:1]:  # before any work
            folder = store.path(request.kind, request).parent
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise AtsError(f"{folder} cannot be written: {error.strerror}") from None

    def run(self, pool: Executor, device: str, slots: Callable[[], int]) -> None:
        """Submit, as many at a time as there are `slots`, what needs nothing, then requests as the
        last need comes.
        """
        layout = "{desc}: {percentage:3.0f}% |{bar}|"
        with tqdm(
            total=1.0, disable=not self.store.progress, bar_format=layout, leave=False
        ) as bar:
            while True:
                jobs = slots()
                for request in list(self.waiting):
                    if len(self.running) < jobs and self._ready(request) and self._in_time(request):
                        del self.waiting[request]
                        # Seconds, since another machine's monotonic clock says nothing here, and a
                        # wall clock may be set. A request is handed in when there is a place for it,
                        # so that it begins at once.
                        left = self.ends - time.monotonic()
                        # A notebook's own functions reach other processes by cloudpickle alone.
                        call = pool.submit(_work, *self._handed_over(request), device, left)
                        self.running[call] = request, time.monotonic()
                if not self.running:
                    return
                self._show(bar, jobs)
                finished = wait(self.running, timeout=1, return_when=FIRST_COMPLETED).done
                if finished:
                    bar.clear()
                for future in finished:
                    self._note(future, jobs)

    def _ready(self, request: Kept) -> bool:
        running = [other for other, _ in self.running.values()]
        return not any(need in self.waiting or need in running for need in request.needs)

    def _expected(self, request: Kept) -> float:
        """Seconds, by what requests of its kind took, else all requests; 0 as long as none is done."""
        kind = request.kind if self.guessed[request.kind] else "all"
        return (
            self.guess[request] * self.taken[kind] / self.guessed[kind]
            if self.guessed[kind]
            else 0.0
        )

    def _in_time(self, request: Kept) -> bool:
        """Whether it would end in time; of a kind that has not been seen yet, whether there is time
        at all.
        """
        return (
            time.monotonic() + (self._expected(request) if self.guessed[request.kind] else 0.0)
            < self.ends
        )

    def _note(self, future: Future, jobs: int) -> None:
        together = [request.title for future, (request, _) in self.running.items() if future.done()]
        request, _ = self.running.pop(future)
        try:
            done, took, files = future.result()
        except Exception:
            # A pool of processes ends with any of them, and one cannot tell whose fault it was
            self.lost = together
            raise
        self.store.take_in(files)
        if not done:  # nothing is begun any more, least of all what needs it
            self.waiting[request] = None
            self.store.say(f"time is over: {request.title} goes on where it is with the next run")
            return
        if self.elsewhere:  # the state that a worker began with is over
            for state in self.store.files(request.kind, request):
                if ".state" in state:
                    (self.store.root / state).unlink(missing_ok=True)
        self.done += 1
        for kind in (request.kind, "all"):
            self.taken[kind] += took
            self.guessed[kind] += self.guess[request]
        self.store.say(
            f"{self.done} of {self.count} done{self._left(jobs)}: {request.kind} {request.title}, {duration(took)}"
        )

    def _handed_over(self, request: Kept) -> tuple[bytes, str | None, dict[str, bytes]]:
        """What a worker gets: the request, the folder to work in where it can, else the files it needs."""
        # A notebook's own functions reach other processes by cloudpickle alone.
        pickled = cloudpickle.dumps(request)
        if not self.elsewhere:
            return pickled, str(self.store.root), {}
        files: dict[str, bytes] = {}
        for each in (*needed(request.needs), request):
            files |= self.store.files(each.kind, each)
        return pickled, None, files

    def _remaining(self) -> tuple[float, float]:
        """Expected seconds of work that is left, and of that what running requests have done."""
        now = time.monotonic()
        ahead = sum(map(self._expected, self.waiting))
        parts = [(self._expected(request), now - begun) for request, begun in self.running.values()]
        return ahead + sum(total for total, _ in parts), sum(
            min(total, spent) for total, spent in parts
        )

    def _left(self, jobs: int) -> str:
        now = time.monotonic()
        running = [
            max(0.0, self._expected(request) - (now - begun))
            for request, begun in self.running.values()
        ]
        left = shared([*running, *map(self._expected, self.waiting)], jobs)
        now = max(0.0, self.ends - now)
        until = f", {duration(now)} of it now" if now < left else ""
        return f", about {duration(left)} left{until}" if self.done < self.count else ""

    def _show(self, bar: tqdm, jobs: int) -> None:
        ahead, spent = self._remaining()
        bar.n = (
            (self.taken["all"] + spent) / max(self.taken["all"] + ahead, 1e-9) if self.done else 0.0
        )
        titles = "; ".join(request.title for request, _ in self.running.values())
        bar.set_description_str(
            f"{self.done} of {self.count} done{self._left(jobs) if self.done else ''}; now {titles}"
        )


def _work(
    pickled: bytes, root: str | None, files: Mapping[str, bytes], device: str, left: float
) -> tuple[bool, float, dict[str, bytes]]:
    """Make a request in this process.

    Args:
        root: the folder to work in; None on another machine, which works in one of its own.
        files: what to put there first: what the request needs, and its state.
        left: seconds to go: then it pauses when it has kept its state.
    Returns:
        Whether it is done, the seconds that it took, and from a folder of its own the files that
        came of it.
    """
    request: Kept = cloudpickle.loads(pickled)
    keep_to_one_core()  # of the thread, which on a cluster may be a new one
    started = time.monotonic()

    def make(folder: str) -> bool:
        # The schedule says what is made, with the time that is left.
        said = lambda line: line.startswith("made ") or say(line)  # noqa: E731
        store = Store(folder, say=said, ends=started + left)
        store.take_in(files)
        try:
            request.make(store, device_of(device))
        except OutOfTime:
            return False
        return True

    if root is not None:
        return make(root), time.monotonic() - started, {}
    with tempfile.TemporaryDirectory() as own:
        done = make(own)
        made = read_files(Path(own), Path(own).glob("*/*"))
    new = {name: content for name, content in made.items() if files.get(name) != content}
    return done, time.monotonic() - started, new
