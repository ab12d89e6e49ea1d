"""Units of work: what is missing, how long it may take, and computing it in as many processes as there are cores."""

import functools
import math
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch

from atslib.bench import convolution_rate, forward_flop
from atslib.errors import AtsError, OutOfTime
from atslib.gradients.cpu import keep_memory, keep_to_one_core
from atslib.report.units.units import ModelUnit, Unit, dataset, device_of, network
from atslib.store import Store

# Of the machine's convolution rate, what a whole step of training, attack or score reaches: the engine's own
# measured share (results/speed.jsonl) lies between 0.2 for narrow and 0.8 for wide networks.
SHARE = 0.4
_PAUSED = "time is over: {} goes on where it is with the next run"


def plan(units: Iterable[Unit], store: Store) -> list[Unit]:
    """What is not in the store yet of these units and their needs, each before what needs it."""
    wanted: dict[Unit, None] = {}
    for unit in units:
        wanted |= dict.fromkeys((*unit.needs, unit))
    return [unit for unit in wanted if not store.has(unit.kind, unit)]


@functools.lru_cache
def _image_flop(name: str, model: str) -> int:
    unit = ModelUnit(dataset=name, model=model, fraction=1.0, train=None, seed=0)
    return forward_flop(network(unit).eval(), dataset(name, "test").pixels[:1].float() / 255)


def seconds(unit: Unit, rate: float) -> float:
    """Estimated time of a unit at a convolution rate in FLOP/s; good to a factor of two or three."""
    network_of = unit if isinstance(unit, ModelUnit) else unit.model
    return unit.passes * _image_flop(network_of.dataset, network_of.model) / (SHARE * rate)


def describe(pages: Mapping[str, Iterable[Unit]], store: Store, device: str) -> str:
    """The plan in words: a line a page and one a unit, with estimated times; shared units under the first page."""
    place, lines, seen, total = device_of(device), [], set(), 0.0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a unit runs
    rate = convolution_rate(place)
    torch.set_num_threads(threads)
    for name, units in pages.items():
        new = [unit for unit in plan(units, store) if unit not in seen]
        seen |= set(new)
        times = [seconds(unit, rate) for unit in new]
        total += sum(times)
        lines.append(f"{name}: {len(new)} units to make, about {_minutes(sum(times))}")
        lines += [f"    {_minutes(time)}  {unit.title}" for unit, time in zip(new, times, strict=True)]
    at_once = 1 if place.type == "cuda" else os.cpu_count() or 1
    lines.append(f"in all {len(seen)} units, about {_minutes(total / at_once)} with {at_once} at once on this machine")
    return "\n".join(lines)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def compute(
    units: Iterable[Unit], store: Store, device: str, jobs: int | None = None, ends: float | None = None
) -> None:
    """Fill the store with these units and all that they need, `jobs` at once; a unit starts when its needs are there.

    Two processes of one thread do more than one of two, and a unit's numbers then do not depend on the
    number of cores.

    Args:
        ends: a time of `time.monotonic`; no unit is begun that would end after it, judged by those of this call, and
            one that is still running then pauses when it has kept its state.
    """
    missing = plan(units, store)
    if not missing:
        return
    gpu = device_of(device).type == "cuda"
    jobs = jobs or (1 if gpu else os.cpu_count() or 1)
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(unit.kind for unit in missing).items())
    store.say(f"units to make: {kinds}; {jobs} at once")
    pace = _Pace(ends)
    if gpu:
        limited = Store(store.root, say=store.say, progress=store.progress, ends=ends)
        for unit in missing:
            if all(store.has(need.kind, need) for need in unit.needs) and pace.allows(unit):
                started = time.monotonic()
                try:
                    unit.make(limited, device_of(device))
                except OutOfTime:
                    store.say(_PAUSED.format(unit.title))
                else:
                    pace.note(unit, time.monotonic() - started)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_end_with_parent) as pool:
        try:
            _in_order(pool, missing, (store, device, jobs), pace)
        except BrokenProcessPool:
            raise AtsError(
                "a worker was killed, perhaps for want of memory: what is finished is kept; try --jobs 1"
            ) from None


class _Pace:
    """How fast units of a kind go, and whether one more would end in time."""

    def __init__(self, ends: float | None):
        self.ends, self.work = math.inf if ends is None else ends, Counter()

    def note(self, unit: Unit, seconds: float) -> None:
        self.work[unit.kind, "seconds"] += seconds
        self.work[unit.kind, "passes"] += unit.passes

    def allows(self, unit: Unit) -> bool:
        """A kind that has not been seen yet is begun as long as there is time at all."""
        seen = self.work[unit.kind, "passes"]
        needed = unit.passes * self.work[unit.kind, "seconds"] / seen if seen else 0.0
        return time.monotonic() + needed < self.ends


def _in_order(pool: Executor, missing: Sequence[Unit], where: tuple[Store, str, int], pace: _Pace) -> None:
    """Submit, `jobs` at a time, what needs nothing, then every unit as the last of its needs comes."""
    store, device, jobs = where
    waiting, running, done = dict.fromkeys(missing), {}, 0
    while True:
        for unit in list(waiting):
            ready = not any(need in waiting or need in running.values() for need in unit.needs)
            # In time order: a unit that comes too late is left in `waiting`, and so is all that needs it.
            if len(running) < jobs and ready and pace.allows(unit):
                running[pool.submit(_work, unit, store.root, device, pace.ends)] = unit
                del waiting[unit]
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            unit = running.pop(future)
            try:
                pace.note(unit, future.result())
            except OutOfTime:  # nothing is begun any more, least of all what needs it
                waiting[unit] = None
                store.say(_PAUSED.format(unit.title))
            else:
                done += 1
                store.say(f"{done} of {len(missing)} done")


def _end_with_parent() -> None:
    """A worker whose runner is killed ends at once; left alone it would wait for work for ever, with all its memory."""

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _work(unit: Unit, root: Path, device: str, ends: float) -> float:
    """Make the unit in this process; the seconds it took."""
    started = time.monotonic()
    keep_memory()
    keep_to_one_core()
    unit.make(Store(root, say=say, ends=ends), device_of(device))
    return time.monotonic() - started


def say(line: str) -> None:
    """One line for a person, on stderr: stdout is for results."""
    print(line, file=sys.stderr, flush=True)
