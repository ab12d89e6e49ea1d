"""The line-up: a server that holds the photographs compares their gradients with what it saw.

It rebuilds no picture, so no attack has to work. Who is named is told by `atslib.line_up`; here is
which candidates are lined up, how they are compared, and for how many photographs there is time.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from atsaudit.config import Case
from atsaudit.outcome import MOST, Pool, policy_of
from atslib.attacks.line_up import LineUp, has_features, line_up
from atslib.clients.view import Observed
from atslib.errors import AtsError
from atslib.measures.intervals import share_interval
from atslib.policies.differentiable import forms
from atslib.policies.policy import parse_policy

SHARE = 0.1  # of the budget, into which all line-ups are planned
CHOOSING = 0.4  # of a line-up's time at most, to choose how gradients are compared
# Candidates by which the time for one is measured, and gradients by which that for seeing one is: the
# next number where that is quick, since of few much is what is done once.
MEASURED = (2, 16, MOST)
SEEN = (1, 8)
QUICK = 0.05  # of a line-up's time
NO_TIME = "there was no time for it"
FEATURES, GRADIENTS = "features", "gradients"


@dataclasses.dataclass(frozen=True, eq=False)
class LinedUp:
    """What a server that holds the candidates tells of a case.

    Attributes:
        case: the situation; the server knows the policy, if there is one.
        images: which photographs were behind what it saw, B of them.
        named: of each whether its own gradient comes nearest; where k photographs of one label
            share a gradient, whether it is among the k nearest.
        own: of each how far its own gradient is from what was seen, relative to its length, ≥ 0.
        other: of each the same of the nearest candidate that was not behind the gradient.
        candidates: of each how many of its label were lined up.
        chance: of each how likely it is named by its label alone.
        wanted: how many photographs there were to be named.
        by: what was compared, "features" (what the last layer got; whole gradients where a label
            repeats in a batch) or "gradients".
        seconds: that it took.
        fault: why it was not tried, a clause; "" where it was.
    """

    case: Case
    images: tuple[int, ...] = ()
    named: tuple[bool, ...] = ()
    own: tuple[float, ...] = ()
    other: tuple[float, ...] = ()
    candidates: tuple[int, ...] = ()
    chance: tuple[float, ...] = ()
    wanted: int = 0
    by: str = FEATURES
    seconds: float = 0.0
    fault: str = ""


@dataclasses.dataclass(frozen=True)
class LinedUpRow:
    """A line-up in numbers.

    Attributes:
        title: the case in words.
        by: what was compared.
        images, named: how many photographs were to be named, and how many of them were.
        share, low, high: that as a share, with its 95 % interval (Clopper and Pearson).
        chance: share named by the label alone.
        candidates: among how many each was to be named, on average.
        own, other: medians of the distances of the own gradient and of the nearest other; None for
            what tells nothing, such as a gradient of zeros.
        control, counts: see `Case`.
    """

    title: str
    by: str
    images: int
    named: int
    share: float
    low: float
    high: float
    chance: float
    candidates: float
    own: float | None
    other: float | None
    control: bool
    counts: bool

    @property
    def works(self) -> bool:
        """Whether it is beyond doubt that more are named than by the label alone."""
        return self.low > self.chance


def row_of(told: LinedUp) -> LinedUpRow:
    """A line-up that was tried in numbers."""
    count = len(told.images)
    named = sum(told.named)
    low, high = share_interval(named, count)
    return LinedUpRow(
        title=told.case.title,
        by=told.by,
        images=count,
        named=named,
        share=named / count,
        low=low,
        high=high,
        chance=statistics.fmean(told.chance),
        candidates=statistics.fmean(told.candidates),
        own=_median(told.own),
        other=_median(told.other),
        control=told.case.control,
        counts=told.case.counts,
    )


def _median(values: tuple[float, ...]) -> float | None:
    middle = statistics.median(values)
    return middle if math.isfinite(middle) else None


def cases_of_line_up(cases: list[Case]) -> list[Case]:
    """What a server can compare with: each thing that is shared once, however much the attacks on
    it know of the policy.
    """
    each = [
        dataclasses.replace(case, knows="policy" if case.has_policy else "nothing")
        for case in cases
    ]
    return list(dict.fromkeys(each))


@dataclasses.dataclass(frozen=True)
class _Row:
    """Candidates of B photographs, (B, K): rows of all, which of them stand for one and are no
    padding, and at which place the photograph itself is, (B,).
    """

    candidates: Tensor
    there: Tensor
    place: Tensor


def _row(pool: Pool, rows: Tensor) -> _Row:
    """Photographs of the same label, a copy being none of its own; where the audit compares with
    all classes, the server knows the label all the same.
    """
    if pool.own_class:
        candidates, place = pool.candidates(rows)
        return _Row(candidates, torch.ones_like(candidates, dtype=torch.bool), place)
    number = torch.arange(len(pool.first))
    each = []
    for row in rows.tolist():
        own = (pool.labels == pool.labels[row]) & (pool.first == number)
        others = (own & (pool.first != pool.first[row])).nonzero().flatten()[: MOST - 1]
        each.append(torch.cat([others, torch.tensor([row])]).sort().values)
    most = max(2, *(len(one) for one in each))
    padded = [torch.cat([one, one[:1].expand(most - len(one))]) for one in each]
    candidates = torch.stack(padded)
    sizes = torch.tensor([len(one) for one in each])
    there = torch.arange(most) < sizes[:, None]
    return _Row(candidates, there, ((candidates == rows[:, None]) & there).int().argmax(1))


def judged(
    found: LineUp, row: _Row, rows: Tensor, labels: Tensor, together: int
) -> dict[str, Tensor]:
    """What distances say of photographs of which so many are behind each gradient: `LinedUp.named`,
    `own`, `other`, `candidates` and `chance`.

    Args:
        found: distances to the candidates.
        row: who these are.
        rows: (B,) which photographs were behind the gradients.
        labels: (B,) of these.
        together: photographs behind each gradient.
    """
    away = found.distances.double().masked_fill(~row.there, torch.inf)
    own = away.gather(1, row.place[:, None])
    beside = rows.unflatten(0, (-1, together)).repeat_interleave(together, 0)
    same = labels.unflatten(0, (-1, together)).repeat_interleave(together, 0) == labels[:, None]
    alike = same.sum(1)  # photographs of the label behind the gradient
    nearer = (away <= own).sum(1) - 1  # an equal distance points to nobody
    behind = (row.candidates[:, :, None] == beside[:, None]).any(2)
    count = row.there.sum(1)
    return {
        "named": own.squeeze(1).isfinite() & (nearer < alike),
        "own": own.squeeze(1),
        "other": away.masked_fill(behind, torch.inf).amin(1),
        "candidates": count,
        "chance": (alike.double() / count).clamp(max=1),
    }


def _fault(case: Case, optimizer: str) -> str:
    """Why candidates' gradients cannot be held beside what is shared, a clause; "" where they can."""
    if case.labels != "known":
        return "labels are restored here, and the line-up is of a server that knows them"
    if case.shared == "update" and optimizer == "adam":
        return "Adam's steps are no gradients, with which those of candidates could be compared"
    return ""


@dataclasses.dataclass(frozen=True)
class Server:
    """Who compares gradients in a case, and for how long.

    Attributes:
        case: what is shared.
        see: what clients with these photographs have shared, (B,) rows → view.
        rehearse: the same of photographs that are held out.
        pool: all photographs.
        optimizer: of local training, see `AuditConfig`.
        seconds: into which the line-up is planned.
        clock: seconds, from whenever.
    """

    case: Case
    see: Callable[[Tensor], Observed]
    rehearse: Callable[[Tensor], Observed]
    pool: Pool
    optimizer: str
    seconds: float
    clock: Callable[[], float]

    def lined_up(self, rows: Tensor, held: Tensor) -> LinedUp:
        """Who is named of the photographs behind what is shared, as many as there is time for.

        Args:
            rows: (B,) the photographs, gradient by gradient.
            held: others, on which it is chosen how gradients are compared.
        """
        began = self.clock()
        try:
            return self._lined_up(rows, held, began)
        except AtsError as error:
            return LinedUp(self.case, wanted=len(rows), fault=str(error))

    def _lined_up(self, rows: Tensor, held: Tensor, began: float) -> LinedUp:
        case = self.case
        if fault := _fault(case, self.optimizer):
            return LinedUp(case, wanted=len(rows), fault=fault)
        first = self.see(rows[: case.images])
        seeing = self._seconds_seen(rows)
        ways = [GRADIENTS]
        if has_features(first.updates[0], first):
            ways = [FEATURES] if self._is_exact() else [FEATURES, GRADIENTS]
        each = {way: self._seconds_each(first, rows[: case.images], way) for way in ways}
        way = ways[0]
        if len(ways) > 1:
            left = CHOOSING * self.seconds - (self.clock() - began)
            few = self._fitting(held, seeing, sum(each.values()), left)
            if few:
                rows_held = held[:few]
                named = {
                    way: sum(self._told(self.rehearse(rows_held), rows_held, way).named)
                    for way in ways
                }
                way = max(ways, key=named.__getitem__)
        left = self.seconds - (self.clock() - began)
        count = self._fitting(rows, seeing, each[way], left)
        if not count:
            return LinedUp(case, wanted=len(rows), fault=NO_TIME)
        told = self._told(self.see(rows[:count]), rows[:count], way, each[way], left)
        return dataclasses.replace(told, wanted=len(rows), seconds=self.clock() - began)

    def _is_exact(self) -> bool:
        """Whether features tell all: those of one image behind a gradient that nothing changed."""
        case = self.case
        return (
            case.images == 1
            and case.shared == "gradient"
            and case.defense in ("", policy_of(case))
            and not case.recorded
        )

    def _forms(self) -> int:
        return len(forms(parse_policy(policy_of(self.case))))

    def _run(self, view: Observed, candidates: Tensor, way: str, **options: object) -> LineUp:
        # By features where the label occurs once in the batch, which None stands for.
        by = None if way == FEATURES else way
        return line_up(view, self.pool.pixels, candidates, policy_of(self.case), by=by, **options)

    def _seconds_seen(self, rows: Tensor) -> float:
        """Seconds for clients to share one gradient."""
        took = 0.0
        for count in SEEN:
            few = rows[: count * self.case.images]
            if took * len(few) / self.case.images > QUICK * self.seconds:
                break
            at = self.clock()
            self.see(few)
            took = (self.clock() - at) * self.case.images / len(few)
        return took

    def _seconds_each(self, view: Observed, rows: Tensor, way: str) -> float:
        """Seconds for an image of a candidate."""
        candidates = _row(self.pool, rows).candidates
        took = 0.0
        for count in MEASURED:
            few = candidates[:, :count]
            images = self._groups(rows, few) * few.shape[1] * self._forms()
            if took * images > QUICK * self.seconds:
                break
            at = self.clock()
            self._run(view, few, way, crop_flip=False)
            took = (self.clock() - at) / images
        return took

    def _groups(self, rows: Tensor, candidates: Tensor) -> int:
        """How many sets of candidates are computed for these photographs: one for each label, most
        often.
        """
        known = torch.cat([self.pool.labels[rows][:, None], candidates], 1)
        return len(known.unique(dim=0))

    def _images(self, rows: Tensor) -> int:
        """Images of candidates that are compared for so many photographs."""
        candidates = _row(self.pool, rows).candidates
        return self._groups(rows, candidates) * candidates.shape[1] * self._forms()

    def _fitting(self, rows: Tensor, seeing: float, each: float, seconds: float) -> int:
        """How many of the photographs, whole gradients, can be compared in so many seconds."""
        together = self.case.images
        for count in range(len(rows) // together, 0, -1):
            if count * seeing + self._images(rows[: count * together]) * each <= seconds:
                return count * together
        return 0

    def _told(
        self, view: Observed, rows: Tensor, way: str, each: float = 0.0, seconds: float = 0.0
    ) -> LinedUp:
        """Who is named of these photographs. Where clients recorded what they sent, they may have
        cropped and mirrored them, which is tried as far as there is time.
        """
        row = _row(self.pool, rows)
        options: dict[str, object] = {"crop_flip": False}
        if self.case.recorded and each and 2 * self._images(rows) * each <= seconds:
            groups = self._groups(rows, row.candidates)
            options = {"crop_flip": True, "most": int(seconds / (each * groups))}
        found = self._run(view, row.candidates, way, **options)
        told = judged(found, row, rows, self.pool.labels[rows], self.case.images)
        lists = {name: tuple(value.tolist()) for name, value in told.items()}
        return LinedUp(self.case, images=tuple(rows.tolist()), by=way, **lists)
