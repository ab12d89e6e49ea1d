"""What an audit found: the numbers, and the verdict against a limit."""

import dataclasses
import io

from PIL import Image
from torch import Tensor

from atsaudit import line_up
from atsaudit.config import AuditConfig
from atsaudit.line_up import LinedUp, LinedUpRow
from atsaudit.work import Attacked, Plan
from atslib.measures.intervals import lower_bound, needed, share_interval, upper_bound

WITHIN = "within the limit"
ABOVE = "above the limit"
CANNOT_TELL = "cannot tell"
NO_LIMIT = "no limit was set"
EXIT = {WITHIN: 0, NO_LIMIT: 0, ABOVE: 3, CANNOT_TELL: 4}
FORMAT = "atslib-audit-1"
MOST_SAID = 4  # cases in the sentence


@dataclasses.dataclass(frozen=True)
class Row:
    """One case in numbers.

    Attributes:
        title: the case in words.
        attack: the attack that was best on held-out images.
        images: how many were attacked.
        found: how many of them were found.
        share, low, high: that as a share, with its 95 % interval (Clopper and Pearson).
        chance: share found by the label alone.
        candidates: among how many each was to be found, on average.
        bits: mean bits on which photograph it is, a bound from below; None where there are too few
            photographs to fit the server's guess on.
        gain: mean dB over the mean of other photographs of the same label after the same policy and
            draw (of all photographs where fewer than 4 share the label).
        gain_found: mean of the same over the images that were found; None where there are none.
        silent: share of what was shared that is 0 in every entry.
        labels_told: share of the labels that the server had right.
        control, counts: see `Case`.
    """

    title: str
    attack: str
    images: int
    found: int
    share: float
    low: float
    high: float
    chance: float
    candidates: float
    bits: float | None
    gain: float
    gain_found: float | None
    silent: float
    labels_told: float
    control: bool
    counts: bool

    @property
    def works(self) -> bool:
        """Whether it is beyond doubt that more is found than by the label alone."""
        return self.low > self.chance

    @property
    def too_few(self) -> bool:
        """Whether so few were attacked that the share found is above that by the label alone, or
        may not be told from it even where all are found.
        """
        most, _ = share_interval(self.images, self.images)
        return self.share > self.chance >= self.low or most <= self.chance


def row_of(attacked: Attacked) -> Row:
    """A case in numbers."""
    told = attacked.outcome
    count = len(told.found)
    found = int(told.found.sum())
    low, high = share_interval(found, count)
    bits = told.bits[told.bits.isfinite()]
    return Row(
        title=attacked.case.title,
        attack=attacked.attack,
        images=count,
        found=found,
        share=found / count,
        low=low,
        high=high,
        chance=float(told.chance.mean()),
        candidates=float(told.candidates.double().mean()),
        bits=float(bits.mean()) if len(bits) else None,
        gain=float(told.gain.mean()),
        gain_found=float(told.gain[told.found].mean()) if found else None,
        silent=attacked.silent,
        labels_told=attacked.labels_told,
        control=attacked.case.control,
        counts=attacked.case.counts,
    )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Numbers:
    """What an audit found, as far as it is not about files.

    Attributes:
        config: what was audited.
        plan: how many images and steps the budget allowed.
        results: each case with what came of it.
        left_out: titles of the cases for which there was no time.
        own_class: whether images were to be found among their own class, or among all.
        originals: (N, C, H, W) uint8, the audited images; `Outcome.images` points into them.
        labels: (N,) their classes.
        class_names: of these.
        network: what the network is, in words.
        untested: what the audit says nothing about.
        notes: what a reader should know beside the numbers.
        repeat: the command or call that makes it again.
        faint: whether the untrained network is so unlike a trained one that it is a poor control:
            nearly all of its gradient is in its last layers.
        mistaken: sentences on recorded updates that do not look like those of the photographs that
            are named behind them.
        line_ups: what a server tells that holds the photographs, also of what could not be tried.
    """

    config: AuditConfig
    plan: Plan
    results: tuple[Attacked, ...]
    left_out: tuple[str, ...]
    own_class: bool
    originals: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    network: str
    untested: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    repeat: str = ""
    faint: bool = False
    mistaken: tuple[str, ...] = ()
    line_ups: tuple[LinedUp, ...] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sentence})"

    @property
    def rows(self) -> list[Row]:
        """Each case in numbers, in the order in which they were attacked."""
        return [row_of(each) for each in self.results]

    @property
    def control(self) -> Row | None:
        """The case on which the attack has to work; None where there is none."""
        return next((row for row in self.rows if row.control), None)

    @property
    def worst(self) -> Row:
        """Of the cases that are held against the limit the one in which most images are found."""
        return row_of(self.worst_case)

    @property
    def worst_case(self) -> Attacked:
        """The same with its pictures."""
        counted = [each for each in self.results if each.case.counts] or list(self.results)
        return max(counted, key=lambda each: (row_of(each).share, row_of(each).bits or 0.0))

    @property
    def found(self) -> float:
        """Share of images found in the worst case, in [0, 1]."""
        return self.worst.share

    @property
    def verdict(self) -> str:
        """One of `ABOVE`, `WITHIN`, `CANNOT_TELL` and `NO_LIMIT`.

        Above: in some case the lower bound of the share found (95 %, one-sided) is above the limit,
        or that of the share named in a line-up above the limit for that.
        Within: in every case the upper bound is at most the limit, and there are no `doubts`.
        Cannot tell: neither, or, where no limit was set, some doubt. No limit: none was set, and
        there is no doubt.
        """
        counted = [row for row in self.rows if row.counts]
        limit = self.config.limit
        if limit is not None and any(lower_bound(row.found, row.images) > limit for row in counted):
            return ABOVE
        limit = self.config.named_limit
        if limit is not None and any(_is_above(row, limit) for row in self._counted_line_ups):
            return ABOVE
        if self.doubts:
            return CANNOT_TELL
        return NO_LIMIT if self.config.limit is None else WITHIN

    @property
    def named_rows(self) -> list[LinedUpRow]:
        """Each line-up that was tried in numbers."""
        return [line_up.row_of(each) for each in self.line_ups if not each.fault]

    @property
    def _counted_line_ups(self) -> list[LinedUpRow]:
        return [row for row in self.named_rows if row.counts]

    @property
    def worst_line_up(self) -> LinedUpRow | None:
        """Of the line-ups of cases that are held against the limit the one in which most
        photographs are named; None where none of them was tried.
        """
        return max(self._counted_line_ups, key=lambda row: row.share, default=None)

    @property
    def named(self) -> float | None:
        """Share of images that a server names which holds them, in the worst case, in [0, 1]; None
        where that was not tried.
        """
        return self.worst_line_up and self.worst_line_up.share

    @property
    def line_up_sentence(self) -> str:
        """What a server tells that holds the photographs, in one sentence."""
        row = self.worst_line_up
        if row is None:
            faults = {each.fault: None for each in self.line_ups if each.fault and each.case.counts}
            why = "; ".join(faults) or "none of the cases that the limit is for was lined up"
            return (
                f"Whether somebody recognizes them who holds the photographs was not tried: {why}."
            )
        if not row.works:
            return (
                "Somebody who holds the photographs and compares their gradients does not name more of them, beyond "
                f"doubt, than by the label alone: {_named(row)}."
            )
        return (
            "Somebody who holds the photographs recognizes them without rebuilding any, by comparing their gradients: "
            f"{_named(row)}."
        )

    @property
    def line_up_seconds(self) -> str:
        """How long the line-ups took, in words behind that sentence; "" where none was tried."""
        seconds = sum(each.seconds for each in self.line_ups)
        return f" All line-ups took {seconds:.0f} s." if self.named_rows else ""

    @property
    def warning(self) -> str:
        """What is to be said beside a limit that is kept; "" where nothing is.

        The limit is on what attacks rebuild. A server that holds the photographs needs none.
        """
        row = self.worst_line_up
        limit = self.config.limit
        if self.verdict != WITHIN or self.config.named_limit is not None:
            return ""
        if row is None:
            return "The limit is on what can be rebuilt; whether more can be named by comparing gradients is open."
        if row.share <= limit:
            return ""
        sure = "" if _is_above(row, limit) else ", though of so few that this may be chance"
        return (
            f"The limit of {limit:.1%} is kept by what can be rebuilt, and NOT by somebody who holds the photographs: by "
            f"comparing gradients {row.named} of {row.images} are named{sure}. 'named<=…' in the limit holds the audit to "
            "that too."
        )

    @property
    def limits(self) -> str:
        """What may be found and named, in words; "" for no limit."""
        each = (("found", self.config.limit), ("named", self.config.named_limit))
        return ", ".join(f"{name} at most {value:.1%}" for name, value in each if value is not None)

    @property
    def named_doubts(self) -> list[str]:
        """Why it cannot be relied on that few are named, where there is a limit for that."""
        limit = self.config.named_limit
        if limit is None:
            return []
        control = next((row for row in self.named_rows if row.control), None)
        found = []
        if control is None or not control.works or control.low <= limit:
            said = (
                "was not tried" if control is None else f"named {control.named} of {control.images}"
            )
            found.append(
                f"On the positive control the line-up {said}; it has to name more than the limit there, beyond doubt, "
                "before it shows anything that it names few elsewhere."
            )
        for each in self.line_ups:
            if each.fault and each.case.counts:
                found.append(f"{each.case.title}: no line-up was tried, because {each.fault}.")
        if any(
            each.case.counts and each.case.images > 1 and not each.fault for each in self.line_ups
        ):
            found.append(
                "Where several photographs share a gradient, the line-up compares each candidate alone with all of it; who "
                "looks for all of them at once may name more, so that it names few says little."
            )
        for row in self._counted_line_ups:
            if row.share <= limit < upper_bound(row.named, row.images):
                found.append(
                    f"{row.title}: {row.named} of {row.images} named does not rule out more than {limit:.1%}; "
                    f"at least {needed(limit)} photographs are needed for that, of which none is named."
                )
            if lower_bound(row.named, row.images) <= limit < row.share:
                found.append(
                    f"{row.title}: {row.named} of {row.images} named is more than {limit:.1%}, but of so few "
                    "photographs that this may be chance; more photographs would decide it."
                )
            if row.chance >= limit:
                found.append(
                    f"By the label alone {row.chance:.1%} are named, which is no less than the limit."
                )
        return found

    @property
    def doubts(self) -> list[str]:
        """Why a low number cannot be relied on; none if it can."""
        found = []
        limit = self.config.limit
        control = self.control
        counted = [row for row in self.rows if row.counts]
        if control is None:
            found.append(
                "There was no positive control, so nothing shows that the attack works here."
            )
        elif not control.works and control.too_few:
            found.append(
                f"Too few photographs were attacked in the positive control ({control.title}: {control.found} of "
                f"{control.images} found, {control.chance:.1%} by the label alone) to show that the attack works; give "
                "more photographs, or a larger budget."
            )
        elif not control.works:
            found.append(
                f"The attack does not work on the positive control ({control.title}: {control.found} of "
                f"{control.images} found), so that it finds little elsewhere says nothing about what leaks."
            )
        elif limit is not None and control.low <= limit:
            found.append(
                f"In the positive control {control.found} of {control.images} are found, which is not beyond doubt "
                f"above the limit of {limit:.1%}; an attack that weak cannot show that less than that leaks."
            )
        for each in self.results:
            row = row_of(each)
            if self.faint and row.counts and each.case.weights == "given" and not row.works:
                found.append(
                    f"{row.title}: {row.found} of {row.images} found says little. In the positive control nearly all of "
                    "the gradient is in the last layers, as in no trained network; that the attack works there does not "
                    "show that it works on these weights."
                )
        found += self.mistaken
        if not counted:
            found.append("None of the cases that the limit is for was attacked.")
        if self.left_out:
            found.append(f"There was no time for {'; '.join(self.left_out)}; give a larger budget.")
        if limit is not None:
            for row in counted:
                if row.share <= limit < upper_bound(row.found, row.images):
                    found.append(
                        f"{row.title}: {row.found} of {row.images} found does not rule out more than {limit:.1%}; "
                        f"at least {needed(limit)} images are needed for that, of which none is found."
                    )
                if lower_bound(row.found, row.images) <= limit < row.share:
                    found.append(
                        f"{row.title}: {row.found} of {row.images} found is more than {limit:.1%}, but of so few "
                        "photographs that this may be chance; more photographs would decide it."
                    )
                if row.chance >= limit:
                    found.append(
                        f"By the label alone {row.chance:.1%} are found, which is no less than the limit."
                    )
        return list(dict.fromkeys([*found, *self.named_doubts]))

    @property
    def exit_code(self) -> int:
        """0 within the limit or where none was set, 3 above it, 4 if the audit cannot tell."""
        return EXIT[self.verdict]

    @property
    def sentence(self) -> str:
        """What was found, in one sentence: in the control, and of each kind of sharing in the worst
        case.
        """
        worst: dict[tuple, Row] = {}
        for each in sorted(self.results, key=lambda each: row_of(each).share, reverse=True):
            if each.case.counts:
                worst.setdefault(
                    (each.case.shared, each.case.images, each.case.recorded), row_of(each)
                )
        control = [self.control] if self.control else []
        rows = control + [row for row in worst.values() if row not in control]
        return f"From {'; from '.join(map(_said, rows[:MOST_SAID]))}."

    @property
    def silence(self) -> str:
        """A sentence on gradients that are 0, "" where there are none."""
        zero = [row for row in self.rows if row.silent > 0]
        if not zero:
            return ""
        each = "; ".join(f"{row.title}: {row.silent:.0%}" for row in zero)
        return f"Some of what was shared is zero in every entry and tells nothing ({each})."

    def table(self) -> list[dict[str, object]]:
        """The rows as dicts, for a table."""
        return [dataclasses.asdict(row) for row in self.rows]

    def as_json(self) -> dict[str, object]:
        """All numbers as JSON can hold them, without pictures."""
        cases = []
        for each, row in zip(self.results, self.rows, strict=True):
            told = each.outcome
            single = {
                "image": told.images.tolist(),
                "found": told.found.tolist(),
                "rank": told.rank.tolist(),
                "candidates": told.candidates.tolist(),
                "bits": [_finite(value) for value in told.bits.tolist()],
                "gain": [_finite(value) for value in told.gain.tolist()],
                "psnr": [_finite(value) for value in told.psnr.tolist()],
            }
            numbers = {
                name: _finite(v) if isinstance(v, float) else v
                for name, v in dataclasses.asdict(row).items()
            }
            cases.append(
                {"case": dataclasses.asdict(each.case), "bits_when_tuned": each.tried}
                | numbers
                | {"each": single}
            )
        settings = dataclasses.asdict(self.config)
        return {
            "format": FORMAT,
            "sentence": self.sentence,
            "line_up_sentence": self.line_up_sentence,
            "warning": self.warning,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "found": self.found,
            "named": self.named,
            "doubts": self.doubts,
            "among": "own class" if self.own_class else "all classes",
            "network": self.network,
            "settings": settings,
            "plan": {
                "images": self.plan.images,
                "steps": self.plan.steps,
                "tuned_on": self.plan.tuned_on,
            },
            "cases": cases,
            "line_ups": [_line_up_as_json(each) for each in self.line_ups],
            "left_out": list(self.left_out),
            "not_tested": list(self.untested),
            "notes": [*filter(None, (self.silence,)), *self.notes],
            "repeat": self.repeat,
        }


def _said(row: Row) -> str:
    return (
        f"{row.title}: {row.found} of {row.images} photographs are recognized "
        f"({row.share:.0%} [{100 * row.low:.0f}, {100 * row.high:.0f}], chance {row.chance:.1%})"
    )


def _named(row: LinedUpRow) -> str:
    distances = ""
    if row.own is not None and row.other is not None:
        distances = (
            f"; their own gradients are {row.own:.2g} away from what was shared, the nearest of the others "
            f"{row.other:.2g} (medians, relative)"
        )
    return (
        f"{row.named} of {row.images} are named among {row.candidates:.0f} of their label "
        f"({row.share:.0%} [{100 * row.low:.0f}, {100 * row.high:.0f}], chance {row.chance:.1%}) in {row.title}"
        f"{distances}"
    )


def _is_above(row: LinedUpRow, limit: float) -> bool:
    return lower_bound(row.named, row.images) > limit


def _line_up_as_json(told: LinedUp) -> dict[str, object]:
    """A line-up without the time that it took, which differs from run to run."""
    case = {"case": dataclasses.asdict(told.case)}
    if told.fault:
        return case | {"title": told.case.title, "not_tried": told.fault}
    single = {
        "image": told.images,
        "named": told.named,
        "own": [_finite(value) for value in told.own],
        "other": [_finite(value) for value in told.other],
        "candidates": told.candidates,
    }
    each = {name: list(values) for name, values in single.items()}
    return case | dataclasses.asdict(line_up.row_of(told)) | {"each": each}


def _finite(value: float) -> float | None:
    return value if value == value and abs(value) != float("inf") else None


def png(pixels: Tensor) -> bytes:
    """A picture (C, H, W) uint8 as a PNG file."""
    array = pixels.permute(1, 2, 0).contiguous().numpy()
    buffer = io.BytesIO()
    Image.fromarray(array if array.shape[2] == 3 else array[:, :, 0]).save(
        buffer, "PNG", optimize=True
    )
    return buffer.getvalue()
