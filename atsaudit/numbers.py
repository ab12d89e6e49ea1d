"""What an audit found: the numbers, and the verdict against a limit."""

import dataclasses
import io

from PIL import Image
from torch import Tensor

from atsaudit.config import AuditConfig
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

        Above: in some case the lower bound of the share found (95 %, one-sided) is above the limit.
        Within: in every case the upper bound is at most the limit, and there are no `doubts`.
        Cannot tell: neither, or, where no limit was set, some doubt. No limit: none was set, and
        there is no doubt.
        """
        counted = [row for row in self.rows if row.counts]
        limit = self.config.limit
        if limit is not None and any(lower_bound(row.found, row.images) > limit for row in counted):
            return ABOVE
        if self.doubts:
            return CANNOT_TELL
        return NO_LIMIT if limit is None else WITHIN

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
        return list(dict.fromkeys(found))

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
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "found": self.found,
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
