"""What all of the evidence takes on so many workers: units in the order of their needs, and what
handing one out costs.
"""

import dataclasses
import datetime
import heapq
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch

from atsbook.report.runner import BOOK_PROFILE
from atsbook.runs.archive import Archive, unit_of
from atsbook.runs.audit import processor
from atsbook.runs.estimate import Rates, points
from atsbook.runs.networks import ModelUnit, Unit
from atsbook.runs.schedule import compute, needed, seconds
from atsbook.runs.store import Artifact, Store

WORKERS = (1, 8, 64)
TRIVIAL = 300  # units that do nothing, handed out to see what that takes
# One H100 (SXM) by its data sheet: 67 TFLOP/s in single precision, 3.35 TB/s. Of either, what real
# work reaches is an assumption: a tenth to a half.
H100_FLOP = 67e12
H100_BYTES = 3.35e12
EACH = 12  # bytes: a number is read twice and written once
REACHED = (0.1, 0.5)


@dataclasses.dataclass(frozen=True)
class Nothing:
    """A unit that does nothing."""

    number: int
    kind: ClassVar[str] = "nothing"
    needs: ClassVar[tuple] = ()
    passes: ClassVar[float] = 0.0
    title: ClassVar[str] = "nothing"
    model: ClassVar[ModelUnit] = ModelUnit(
        dataset="shapes", model="lenet", fraction=1.0, train=None, seed=0
    )

    def make(self, store: Store, device: torch.device) -> Artifact:
        """Write one number."""
        return store.get(self.kind, self, lambda state: {"x": torch.zeros(1)})


def makespan(
    times: Sequence[float], needs: Sequence[Sequence[int]], workers: int, overhead: float = 0.0
) -> float:
    """Seconds until all units are done by so many workers, each taking the first unit in order
    whose needs are met.

    Args:
        times: seconds of each unit.
        needs: of each unit, the places of the units that come before it, all earlier in order.
        overhead: seconds for which handing out one unit keeps the others waiting.
    """
    waiting = list(range(len(times)))
    done = set()
    running = []
    now = 0.0
    free = 0.0
    while waiting or running:
        ready = next((unit for unit in waiting if done.issuperset(needs[unit])), None)
        if ready is not None and len(running) < workers:
            waiting.remove(ready)
            free = max(now, free) + overhead
            heapq.heappush(running, (free + times[ready], ready))
            continue
        now, unit = heapq.heappop(running)
        done.add(unit)
    return now


def handing_out(scheduler: str | None) -> float:
    """Seconds that a unit costs beside its work, measured with units that do nothing, on two
    workers.
    """
    with tempfile.TemporaryDirectory() as folder:

        def taken(units: range) -> float:
            started = time.perf_counter()
            compute(
                [Nothing(number) for number in units],
                Store(folder),
                "cpu",
                jobs=2,
                scheduler=scheduler,
            )
            return time.perf_counter() - started

        few = taken(range(4))  # what it takes to begin, too
        return max(0.0, (taken(range(4, 8 + TRIVIAL)) - few) / TRIVIAL)


def whole(archive: Archive) -> list[Unit]:
    """Every unit behind the book's pages, each once and after its needs."""
    units = map(unit_of, archive.entries().values())
    return needed(unit for unit in units if unit is not None)


def recorded(units: Sequence[Unit], archive: Archive) -> list[float | None]:
    """Seconds that each unit took where it was made; None for one that the archive does not have."""
    entries = archive.entries()
    store = Store("")
    return [entries.get(store.path(unit.kind, unit).stem, {}).get("seconds") for unit in units]


def profile_rows(rates: Rates, overhead: float, archive: Archive) -> Iterator[dict]:
    """One row per way of knowing the times and number of workers: `low` and `high`, hours that the
    evidence takes.

    The units that the archive has, as recorded and as predicted for a core of this machine; these
    and what they need as predicted for such a core; and on H100s, with `low` and `high` by the
    shares of the data sheet in `REACHED`.
    """
    units = whole(archive)
    known = recorded(units, archive)
    kept = [unit for unit, took in zip(units, known, strict=True) if took is not None]
    here = [seconds(unit, rates) for unit in kept]
    slow, fast = (
        Rates(
            1 / (share * H100_FLOP), EACH / (share * H100_BYTES), EACH / (share * H100_BYTES), 0.0
        )
        for share in REACHED
    )
    took = [each for each in known if each is not None]
    ways = {
        "in the archive, recorded": (kept, (took,)),
        "in the archive, predicted": (kept, (here,)),
        "all, predicted": (units, ([seconds(unit, rates) for unit in units],)),
        "all, predicted for H100": (
            units,
            [[seconds(unit, each) for unit in units] for each in (fast, slow)],
        ),
    }
    for way, (chosen, times) in ways.items():
        place = {unit: number for number, unit in enumerate(chosen)}
        needs = [[place[need] for need in unit.needs if need in place] for unit in chosen]
        for workers in WORKERS:
            hours = [round(makespan(each, needs, workers, overhead) / 3600, 3) for each in times]
            row = {
                "benchmark": "profile",
                "profile": BOOK_PROFILE,
                "times": way,
                "units": len(chosen),
                "workers": workers,
            }
            yield row | {"low": min(hours), "high": max(hours)}


def measure(device: torch.device, archive: Archive) -> Iterator[dict]:
    """All rows behind the page on costs: the rates, cases measured and predicted, overheads, and
    whole profiles.
    """
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    yield {
        "benchmark": "machine",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "made": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
        "load": load,
    }
    for row in points(device):
        if row["benchmark"] == "rates":
            rates = Rates(**{field.name: row[field.name] for field in dataclasses.fields(Rates)})
        yield row
    overheads = {
        name: handing_out(scheduler) for name, scheduler in (("processes", None), ("Dask", "local"))
    }
    yield {
        "benchmark": "overhead",
        **{name: round(1e3 * value, 1) for name, value in overheads.items()},
    }
    yield from profile_rows(rates, max(overheads.values()), archive)
