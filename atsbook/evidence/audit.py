"""A random sample of the archived evidence, computed again on this machine, and how far it is off."""

import dataclasses
import datetime
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor

from atsbook.evidence.archive import Archive, request_of
from atsbook.experiment import AttackRequest
from atsbook.kept import Kept
from atsbook.networks import ModelRequest, dataset, trained
from atsbook.packing import is_attack
from atsbook.pool.schedule import compute, duration
from atsbook.pool.workers import at_once
from atsbook.requests.scoring import ScoreRequest
from atsbook.requests.sweep import SweepRequest, SweepScores
from atsbook.store import Store
from atslib.attacks import Learned
from atslib.clients.training import evaluate
from atslib.files import write_atomically
from atslib.models import device_of

# The difference up to which attacks count as equal on the same kind of device; see `verdict`
EQUAL_DB = 0.05
TRIMMED = 0.1  # of the requests, at either end
FEWEST = 6  # requests; of fewer the median has no interval at 95 %
PART = 4  # images of an attack or of a score, and policies of a score, that are computed again
DRAWN = (
    "gaussian",
    "laplace",
    "dp",
    "precode",
    "mixup",
)  # defenses that draw for all images together
REQUESTS = {
    "attack": "dB",
    "sweep": "dB",
    "privacy": "of the score",
    "sweep-scores": "of the score",
    "tested": "points",
}
WORDS = {
    "attack": "attacks",
    "sweep": "short attacks on every policy",
    "privacy": "privacy scores",
    "sweep-scores": "scores of every policy",
    "tested": "accuracies of stored networks",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tested(Kept):
    """The test accuracy of a stored network, in percent, measured once more."""

    kind: ClassVar[str] = "tested"

    model: ModelRequest

    @property
    def title(self) -> str:
        """The network."""
        return f"accuracy of {self.model.title}"

    @property
    def passes(self) -> float:
        """Forward through each test image."""
        return len(dataset(self.model.dataset, "test"))

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Evaluate the network, which the store must hold."""
        model, _ = trained(self.model, store, device)
        return {"accuracy": torch.tensor(evaluate(model, dataset(self.model.dataset, "test")))}


def part_of(request: Kept, draw: random.Random) -> Kept | None:
    """A small part of a request whose numbers must be those of the whole; None where no part has the
    same numbers.

    An image's crop, policy, start and attack do not depend on the others. The noise of a defense
    does, and so does what an attacker draws to learn on, who learns as long for a few images as for
    all.
    """
    if isinstance(request, ModelRequest):
        return Tested(model=request)
    if isinstance(request, ScoreRequest):
        policies = draw.sample(request.policies, min(PART, len(request.policies)))
        return dataclasses.replace(
            request, policies=tuple(policies), images=min(PART, request.images)
        )
    if isinstance(request, SweepScores) or (
        isinstance(request, SweepRequest) and request.rung == 0
    ):
        low = draw.randrange(request.low, max(request.low, request.high - PART) + 1)
        return dataclasses.replace(request, low=low, high=min(request.high, low + PART))
    if not isinstance(request, AttackRequest) or isinstance(request.attack, Learned):
        return None
    if any(name in request.defense for name in DRAWN):
        return None
    batch = request.threat.batch
    count = (request.last - request.first) // batch
    size = -(-PART // batch)
    skipped = draw.randrange(max(1, count - size + 1)) if request.threat.labels == "known" else 0
    first = request.first + skipped * batch
    return dataclasses.replace(
        request, first=first, last=min(request.last, first + size * batch), frames=2
    )


def sample(
    archive: Archive, draw: random.Random, seconds: float
) -> Iterator[tuple[str, dict, Kept]]:
    """Entries with a part of each, until they took about so many seconds where they were made.

    First one of each kind, so that no kind waits for its luck: each may take an equal share of the
    time that is left. Then any that still fit, in random order.
    """
    entries = archive.entries()
    kinds: dict[str, list[str]] = {}
    for key in draw.sample(sorted(entries), len(entries)):
        kinds.setdefault(entries[key]["kind"], []).append(key)
    networks = {key for key in kinds.get("model", ()) if "model" not in entries[key]["left_out"]}

    def drawn(key: str, most: float) -> tuple[float, Kept] | None:
        """What a part of an entry costs, and the part, where it costs less than `most`."""
        request = request_of(entries[key])
        part = part_of(request, draw) if request else None
        if part is None or any(
            Store("").path(need.kind, need).stem not in networks for need in part.needs
        ):
            return None
        cost = entries[key]["seconds"] * part.passes / request.passes
        return (cost, part) if cost < most else None

    seen = set()
    for place, kind in enumerate(draw.sample(sorted(kinds), len(kinds))):
        share = max(seconds, 0) / (len(kinds) - place)
        for key in kinds[kind]:
            if found := drawn(key, share):
                seconds -= found[0]
                seen.add(key)
                yield key, entries[key], found[1]
                break
    for key in draw.sample(sorted(entries.keys() - seen), len(entries) - len(seen)):
        if found := drawn(key, max(seconds, 0)):
            seconds -= found[0]
            yield key, entries[key], found[1]


def differences(
    request: Kept, part: Kept, before: dict[str, Tensor], now: dict[str, Tensor]
) -> list[float]:
    """Now minus before, one number per image (attacks: PSNR in dB), per policy and image, or one
    accuracy.
    """
    if isinstance(part, SweepRequest | SweepScores):
        name = "gain" if isinstance(part, SweepRequest) else "scores"
        rows = slice(part.low - request.low, part.high - request.low)
        old = before[name][..., rows, :]
        new = now[name]
    elif isinstance(part, AttackRequest):
        old = before["psnr"][part.first - request.first : part.last - request.first]
        new = now["psnr"]
    elif isinstance(part, ScoreRequest):
        rows = [request.policies.index(policy) for policy in part.policies]
        old = before["scores"][rows][:, : part.images]
        new = now["scores"]
    else:
        old = before["accuracy"]
        new = now["accuracy"]
    same = (old == new) | (
        old.isnan() & new.isnan()
    )  # two attacks that diverged, or found the image exactly
    return torch.where(same, 0.0, new.double() - old.double()).flatten().tolist()


def audit(
    archive: Archive, *, seed: int, minutes: float, device: str, jobs: int | None, store: Store
) -> dict:
    """Compute a random sample again for about so many minutes, with the stored networks.

    Args:
        seed: draws which requests, and which part of each.
        store: what it says and shows; the sample goes into a folder of its own, which is deleted.
    Returns:
        What `audit_page` puts into words: the machine, the archive's size, and the differences of
        each part.
    """
    draw = random.Random(seed)
    place = device_of(device)
    started = time.monotonic()
    workers = at_once(place, jobs)
    chosen = list(sample(archive, draw, 60 * minutes * workers))
    store.say(
        f"audit: seed {seed}; parts of {len(chosen)} requests are computed again, for about {minutes:g} minutes"
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Store(folder, say=store.say, progress=store.progress)
        archive.restore(scratch, kinds=("model",))
        compute([part for *_, part in chosen], scratch, device, jobs, ends=started + 60 * minutes)
        for key, line, part in chosen:
            if scratch.has(part.kind, part):
                made = scratch.get(part.kind, part, lambda state: {})
                off = differences(request_of(line), part, archive.read(key).tensors, made.tensors)
                kind = "attack" if is_attack(part.kind) else part.kind
                row = {
                    "key": key,
                    "kind": kind,
                    "title": part.title,
                    "off": off,
                    "seconds": made.facts["seconds"],
                }
                rows.append(row | {"device": line["device"], "torch": line["torch"]})
    cpu = f"CPU, {os.cpu_count()} cores, {processor()}"
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else cpu
    machine = {"device": name, "torch": torch.__version__, "python": platform.python_version()}
    facts = {
        "seed": seed,
        "made": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine,
    }
    return facts | {
        "requests": len(archive.entries()),
        "megabytes": round(archive.size() / 1e6, 1),
        "rows": rows,
    }


def processor() -> str:
    """The name of this machine's processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else ()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def summaries(outcome: dict) -> list[str]:
    """Words for each kind: how many numbers, how far off in the mean, in the median and at most, and
    for attacks `verdict`.
    """
    lines = []
    for kind, request in REQUESTS.items():
        rows = {row["key"]: row["off"] for row in outcome["rows"] if row["kind"] == kind}
        if not rows:
            continue
        off, requests = finite(rows)
        count = sum(map(len, rows.values()))
        digits = 2 if request == "dB" else 4
        of = f"{len(rows)} result{'s' * (len(rows) > 1)}, {count} number{'s' * (count > 1)}"
        mean, median = (round(end, digits) + 0.0 for end in (off.mean(), np.median(off)))
        text = f"{WORDS[kind]}: {of}; new minus old {mean:+.{digits}f} {request} in the mean, "
        text += f"{median:+.{digits}f} in the median, the largest difference {np.abs(off).max():.{digits}f}"
        if len(off) < count:
            text += f", and {count - len(off)} that diverged on one side only"
        lines.append(text + (f". {verdict(off, requests)}" if kind == "attack" else ""))
    return lines


def in_short(outcome: dict) -> str:
    """How many results came out the same, to `EQUAL_DB` or to the fourth digit of a score, how far
    off the others are, and what that says of attacks in general.
    """
    furthest = {row["key"]: np.abs(row["off"]).max() for row in outcome["rows"]}
    in_decibels = {row["key"]: REQUESTS[row["kind"]] == "dB" for row in outcome["rows"]}
    other = {
        key: most
        for key, most in furthest.items()
        if not most <= (EQUAL_DB if in_decibels[key] else 5e-5)
    }
    words = f"**Of {len(furthest)} results that were computed again, {len(furthest) - len(other)} came out the same.**"
    sizes = [most for most in other.values() if np.isfinite(most)]
    if sizes and all(in_decibels[key] for key in other):
        attacks = sum(in_decibels.values())
        words += (
            f" All that are no attacks did; of the {attacks} attacks {attacks - len(other)} did. In half of the others no "
            f"picture is off by more than {np.median(sizes):.1f} dB, and the largest difference is {max(sizes):.1f} dB."
        )
    elif other:
        words += f" The other {len(other)} did not."
    off, requests = finite(
        {row["key"]: row["off"] for row in outcome["rows"] if row["kind"] == "attack"}
    )
    if len(off):
        words += f" {IN_GENERAL[equal(off, requests)[0]]}"
    return words


def finite(rows: dict[str, list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """What each number is off by where neither side diverged, and the result that each is of."""
    off = np.array([number for each in rows.values() for number in each])
    requests = np.repeat(list(rows), [len(each) for each in rows.values()])
    return off[np.isfinite(off)], requests[np.isfinite(off)]


IN_GENERAL = {
    "equal": f"In general attacks come out equal, within ±{EQUAL_DB} dB.",
    "not equal": f"**In general attacks do not come out equal within ±{EQUAL_DB} dB.**",
    "cannot tell": f"Whether attacks come out equal in general, within ±{EQUAL_DB} dB, cannot be told from so few.",
}


def equal(off: np.ndarray, requests: np.ndarray) -> tuple[str, dict[str, tuple[float, float]]]:
    """Whether attacks are equal to the archive's, and by which intervals; none of too few results.

    An attack that rounds otherwise can end in another minimum, many decibels off, without being
    better or worse in general. So two figures are judged that such images do not move: the median
    over requests, and the mean over requests without the tenth at either end. Equal: the 95 % intervals
    of both lie inside the bound; not equal: one of them lies outside; else it cannot be told.

    Args:
        off: now minus before, in dB, one number per image.
        requests: the request that each belongs to.
    Source: order statistics for the median; Yuen (1974) for the trimmed mean.
    """
    by_unit = pd.Series(off).groupby(list(requests))
    if len(by_unit) < FEWEST:
        return "cannot tell", {}
    median = stats.quantile_test(by_unit.median(), p=0.5).confidence_interval(0.95)
    trimmed = stats.mstats.trimmed_mean_ci(by_unit.mean(), limits=(TRIMMED, TRIMMED), alpha=0.05)
    intervals = {
        "median over results": (median.low, median.high),
        "mean without the highest and the lowest tenth": tuple(trimmed),
    }
    status = "cannot tell"
    if all(max(-low, high) <= EQUAL_DB for low, high in intervals.values()):
        status = "equal"
    elif any(max(low, -high) > EQUAL_DB for low, high in intervals.values()):
        status = "not equal"
    return status, intervals


def verdict(off: np.ndarray, requests: np.ndarray) -> str:
    """`equal` in words."""
    status, intervals = equal(off, requests)
    bound = f"within ±{EQUAL_DB} dB, the bound for two devices of one kind"
    if not intervals:
        return f"Whether they are equal {bound}: *cannot tell*, as that takes {FEWEST} results"
    words = {"equal": "equal", "not equal": "**not equal**", "cannot tell": "*cannot tell*"}[status]
    between = " and of the ".join(
        f"{name} is {low:+.3f} to {high:+.3f} dB" for name, (low, high) in intervals.items()
    )
    return f"Whether they are equal {bound}: {words}. The 95 % interval of the {between}"


def write_audit(outcome: dict, results: Path) -> None:
    """`audit.json`, which the page is made from."""
    text = json.dumps(outcome, indent=1) + "\n"
    write_atomically(Path(results) / "audit.json", lambda partial: partial.write_text(text))


def audit_page(results: Path) -> str:
    """The page *Audit* in Markdown, from `results/audit.json`."""
    head = (
        "The evidence behind the pages lies in `results/`. `make report` checks all its hashes, and computes a\n"
        "random sample again, another one at every run, from the stored networks on the machine at hand. Another\n"
        "processor rounds otherwise, and in a single picture an attack can make decibels of that. So single\n"
        "pictures are not compared. Attacks count as equal where the typical difference is surely tiny: where the 95 %\n"
        "intervals of its median over results, and of its mean without the highest and the lowest tenth, both lie within\n"
        f"±{EQUAL_DB} dB. They are *not equal* where one lies wholly outside; else it cannot be told.\n\n"
    )
    file = Path(results) / "audit.json"
    if not file.exists():
        return f"# Audit\n\n{head}No audit has been run yet.\n"
    outcome = json.loads(file.read_text())
    machine = outcome["machine"]
    lines = [
        f"The last one, of {outcome['made']} with seed {outcome['seed']}, was made on {machine['device']} (torch "
        f"{machine['torch']}, Python {machine['python']});\nthe archive had {outcome['requests']:,} results then, "
        f"{outcome['megabytes']} MB, all whole. `make report SEED={outcome['seed']}` draws the same sample.\n",
        *(f"- {line[:1].upper()}{line[1:]}." for line in summaries(outcome)),
        "\n<details><summary>Every result that was computed again</summary>\n",
        "| Kept | Computed again | Numbers | Off in the mean | Largest | Time | Archived on |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in outcome["rows"]:
        off = np.array(row["off"])
        lines.append(
            f"| `{row['key'][:8]}` | {row['title']} | {len(off)} | {off.mean():+.4f} {REQUESTS[row['kind']]} | "
            f"{np.abs(off).max():.4f} | {duration(row['seconds'])} | {row['device']}, torch {row['torch']} |"
        )
    lines.append("\n</details>")
    return f"# Audit\n\n{in_short(outcome)}\n\n{head}" + "\n".join(lines) + "\n"
