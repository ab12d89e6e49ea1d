"""The audit itself: a plan inside the budget, attacks tuned on held-out images, cases attacked and
judged.

Killed at any moment it goes on where it was: the plan, each tuning and each case are kept, and so
is a running attack.
"""

import dataclasses
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from atsaudit.candidate_attacks import (
    CLOSED,
    FAMILIES,
    against,
    candidates,
    forms_effort,
    is_faint,
    seeks_before,
)
from atsaudit.config import LEAST_IMAGES, AuditConfig, Case
from atsaudit.line_up import NO_TIME, LinedUp, Server, cases_of_line_up
from atsaudit.outcome import Outcome, Pool, judge, one_photograph
from atsaudit.views import Seen, moved_on, see
from atslib.attacks import GradientMatching, reconstruct
from atslib.attacks.attack import Attack, Reconstruction
from atslib.attacks.memory import MOST_MEMORY
from atslib.checkpoints import fingerprint, load_state, save_state
from atslib.clients.view import Observed
from atslib.errors import AtsError
from atslib.files import write_atomically
from atslib.gradients.inputs import check_network, first_parameter
from atslib.measures.batches import label_share
from atslib.measures.intervals import lower_bound, needed
from atslib.models import copied, shared_parameters
from atslib.rng import rng

VERSION = 3  # raise it when a stored state means something else
TUNED_ON = 16  # held-out images on which attacks are compared
LEAST_TUNED = 8  # of them where the budget allows no more
ALL = 99  # attacks that are compared: each there is
# Images and steps of the attacks, best first, held-out images on which they are compared, and how
# many are: the first that fits the budget is taken. Of one attack nothing is compared: a slow
# network is better attacked with more steps than with the best of many short attacks.
SIZES = (
    (64, 300, TUNED_ON, ALL),
    (64, 200, TUNED_ON, ALL),
    (64, 100, TUNED_ON, ALL),
    (40, 100, TUNED_ON, ALL),
    (32, 100, TUNED_ON, ALL),
    (32, 60, TUNED_ON, ALL),
    (24, 60, TUNED_ON, ALL),
    (16, 60, TUNED_ON, ALL),
    (16, 60, LEAST_TUNED, 2),
    (16, 60, LEAST_TUNED, 1),
    (8, 60, LEAST_TUNED, 1),
    (8, 40, LEAST_TUNED, 1),
)
# A first look: images and steps, by the likeliest attack without a choice. Where that exceeds a limit
# beyond doubt, at a level that leaves the second look its own, the audit ends with it.
LOOK = (16, 60, LEAST_TUNED, 1)
SURE = 0.999
WORTH = 0.4  # of the time of all the rest at most
# Share of the budget that is planned for attacks; the rest is for judging and for slower moments
RESERVE = 0.8
# After a share of the budget, and of what is left for a case, it is asked whether there is time
# for further images.
PORTION = 0.05
PART = 0.25
PAIR = 0.2  # of the budget at most for the first two images, with fewer steps if it has to be
TRIED = 0.01  # of the budget, about, for one measurement of a network's speed
SLOW = 0.05  # of the budget, from which a single step is measured once
MOST_AT_ONCE = 256  # gradients
COPIES = 4  # of a gradient that are held at once
END = 0.9  # of the budget, until which each case and each portion has to be done by what is known
TUNING = 0.4  # of the budget, until which attacks are tried on held-out images


@dataclasses.dataclass(frozen=True)
class Plan:
    """How many images are attacked with how many steps, how many attacks are compared before, and
    in how many seconds.
    """

    images: int
    steps: int
    tuned_on: int
    tuning_steps: int
    compared: int
    seconds: float
    per_step: dict[str, float]
    first_look: bool = False  # then of each case no more images are attacked than it needs

    def fits(self, budget: float) -> bool:
        """Whether it is meant to end within the budget."""
        return self.seconds <= budget


@dataclasses.dataclass(frozen=True)
class Attacked:
    """A case with what came of it.

    Attributes:
        case: the situation.
        attack: the attack that was best on held-out images, by name.
        tried: bits on held-out images of each attack that was tried.
        outcome: of each attacked image.
        silent: share of what was shared that is 0 in every entry.
        labels_told: share of the labels that were restored.
    """

    case: Case
    attack: str
    tried: dict[str, float]
    outcome: Outcome
    silent: float
    labels_told: float


class Work:
    """One audit.

    Args:
        networks: by name of the weights, "untrained" and "given", or one of them.
        pixels, labels: all images, (N, C, H, W) uint8 and (N,).
        config: what is audited.
        cases: in the order in which they are attacked.
        folder: where the state is kept; None: nowhere.
        progress: whether to show a bar with the remaining time.
        recorded: of cases that a federation has kept what the server saw, and which images were
            behind it.
        loss: what tells the networks' loss from others; "" for the cross-entropy.
        clock: seconds, from whenever.
        began: when the audit was asked for, by the clock; None: now. The budget counts from there.
    """

    def __init__(
        self,
        networks: dict[str, nn.Module],
        pixels: Tensor,
        labels: Tensor,
        config: AuditConfig,
        cases: list[Case],
        *,
        folder: Path | None = None,
        progress: bool = False,
        recorded: dict[Case, tuple[Observed, Tensor]] | None = None,
        loss: str = "",
        clock: Callable[[], float] = time.monotonic,
        began: float | None = None,
    ):
        self.recorded = recorded or {}
        self.networks = networks
        self.config = config
        self.cases = cases
        self.folder = folder
        self.progress = progress
        self.clock = clock
        self.began = clock() if began is None else began
        kept = [[view.gradients, rows] for view, rows in self.recorded.values()]
        self.name = fingerprint(
            VERSION, networks, pixels, labels, config.decides(), cases, kept, loss
        )
        device = next(next(iter(networks.values())).parameters()).device
        order = torch.randperm(len(pixels), generator=rng(config.seed, "audit", "order"))
        self.first = first = one_photograph(pixels)
        for _, rows in self.recorded.values():  # what was shared is attacked, and tunes nothing
            order = order[~torch.isin(first[order], first[rows])]
        # A photograph counts once: two attacks on one are no two that are found or not.
        once = {int(first[row]): row for row in order.tolist()}
        order = torch.tensor(list(once.values()), dtype=torch.int64)
        self.largest = largest = max(case.images for case in cases)
        made = max((case.images for case in cases if not case.recorded), default=1)
        held = max(min(TUNED_ON, len(order) // 4), min(2 * largest, len(order) // 3), largest)
        if (different := len(first.unique())) < min(LEAST_IMAGES, len(pixels)):
            raise AtsError(
                f"audit: of {len(pixels)} images only {different} are different photographs; the others are copies, mirror "
                f"images or shifts of them, and at least {LEAST_IMAGES} are needed"
            )
        if len(order) < (least := max(LEAST_IMAGES, 2 * made + held)):
            beside = " that are no copies" if different < len(pixels) else ""
            beside += " beside those in the recorded updates" if self.recorded else ""
            raise AtsError(
                f"audit: {len(order)} images{beside} are too few; with {largest} in one update at least {least} are "
                f"needed, of which {held} are held out to tune the attacks"
            )
        self.held = order[:held]
        self.free = order[held:]
        self.pixels = pixels
        self.labels = labels
        self.device = device
        for model in networks.values():
            like = first_parameter(model)
            with torch.no_grad():
                classes = check_network(copied(model).eval(), (pixels[:2] / 255).to(like))
            if int(labels.max()) >= classes:
                raise AtsError(
                    f"label {int(labels.max())} is outside 0..{classes - 1}, the network's classes"
                )
        self.rounds: dict[str, list[nn.Module]] = {}
        self.lined_up: dict[Case, LinedUp] = {}
        self.tuned: dict[object, tuple[str, dict[str, float]]] = {}
        self.speeds: dict[str, float] | None = None
        self.slower = 1.0  # how many times longer the last portion took than planned
        self.cut: list[str] = []  # sentences on cases in which the time was over before the images

    def run(self) -> tuple[Plan, Pool, list[Attacked], list[Case]]:
        """Plan, tune and attack; what was planned, among what images are found, the results, and
        what was left out.
        """
        if (seen := self._first_look()) is not None:
            return seen
        self.plan = self._planned()
        return self._carried_out()

    def _first_look(self) -> tuple[Plan, Pool, list[Attacked], list[Case]] | None:
        """What `run` gives, of few photographs, where these exceed a limit beyond doubt; None where
        they do not, or would cost the photographs that are needed to keep it.
        """
        config = self.config
        if config.thorough or config.limit is None or config.attacked or config.steps:
            return None
        if self._stored_plan() is not None:  # it has been looked before
            return None
        if self._has_closed_form():  # which would save no time
            return None
        speeds = self._speeds()
        plan = self._fitting(speeds)
        look = self._sized(*LOOK, speeds, first_look=True)
        after = self._fitting(speeds, look.seconds)
        if look.seconds > WORTH * plan.seconds:
            return None
        if after.images < needed(config.limit) <= plan.images:
            return None
        self.plan = look
        seen = self._carried_out()
        if self._is_exceeded(seen[2]):
            return seen
        self.tuned.clear()
        self.cut.clear()
        self.slower = 1.0
        return None

    def _has_closed_form(self) -> bool:
        """Whether some case may be attacked in closed form, which takes no time."""
        for case in self._groups():
            seen = self._seen(case, self.held[: case.images], "speed").view
            if set(CLOSED).intersection(candidates(seen, case, 1)):
                return True
        return False

    def _is_exceeded(self, results: list[Attacked]) -> bool:
        """Whether a limit is exceeded beyond doubt, though there could be a second look at what is
        found; line-ups are looked at once.
        """
        found = (each.outcome.found.tolist() for each in results if each.case.counts)
        named = (each.named for case, each in self.lined_up.items() if case.counts and each.named)
        return any(
            limit is not None and lower_bound(sum(hits), len(hits), level=level) > limit
            for each, limit, level in (
                (found, self.config.limit, SURE),
                (named, self.config.named_limit, 0.95),
            )
            for hits in each
        )

    def _carried_out(self) -> tuple[Plan, Pool, list[Attacked], list[Case]]:
        """All cases by the plan, as far as there is time."""
        chosen = self.free[: self.plan.images]
        attacked = torch.cat([chosen, *(rows for _, rows in self.recorded.values())])
        self.pool = Pool.of(self.pixels, self.labels, attacked, self.first)
        results = []
        left = []
        planned = 0.0
        with tqdm(
            total=max(self.plan.seconds, 1.0),
            disable=not self.progress,
            unit="s",
            desc="audit",
            leave=False,
            bar_format="{desc} {percentage:3.0f}% |{bar:20}| {elapsed} gone, about {remaining} left",
        ) as self.bar:
            for place, case in enumerate(self.cases):
                if results and not self._is_time(case):
                    left.append(case)
                    continue
                self.bar.set_description(case.title[:60])
                if case.group not in self.tuned:
                    self._chosen(case)
                    planned += self._tuning_seconds(case)
                    self._show(planned)
                    if results and not self._is_time(case):
                        left.append(case)
                        continue
                until = self._share_of(case, self.cases[place + 1 :])
                results.append(self._attacked(case, chosen, *self._chosen(case), until))
                planned += self._seconds(case, self.plan)
                self._show(planned)
        return self.plan, self.pool, results, left

    def line_ups(self, share: float) -> tuple[LinedUp, ...]:
        """What a server tells that holds the photographs and compares their gradients, case by
        case. Asked once more, it tries those for which there was no time.

        Args:
            share: of the budget that they may take together.
        """
        cases = cases_of_line_up(self.cases)
        until = min(self._spent() + share, END)
        untried = [
            case
            for case in cases
            if case not in self.lined_up or self.lined_up[case].fault == NO_TIME
        ]
        for place, case in enumerate(untried):
            own = (until - self._spent()) / (len(untried) - place)
            self.lined_up[case] = self._lined_up(case, own * self.config.budget)
        return tuple(self.lined_up[case] for case in cases)

    def _lined_up(self, case: Case, seconds: float) -> LinedUp:
        """The line-up of a case, kept or computed in about so many seconds."""
        file = self.folder and self.folder / f"line-up-{fingerprint(case)}.json"
        if file and file.exists():
            stored = json.loads(file.read_text(encoding="utf-8"))
            if stored.pop("run") == self.name:
                lists = {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}
                return LinedUp(case, **lists)
        if seconds <= 0:
            return LinedUp(case, fault=NO_TIME)
        if case.recorded:
            view, rows = self.recorded[dataclasses.replace(case, knows="nothing")]
        else:
            most = self.config.attacked or min(SIZES[0][0], self._remembered())
            most = max(most, 2 * case.images)
            rows = self.free[: min(most, len(self.free)) // case.images * case.images]

        def shared(part: Tensor) -> Observed:
            if case.recorded:
                return view.take(slice(len(part) // case.images))
            return self._seen(case, part, "attack").view

        def rehearsed(part: Tensor) -> Observed:
            return self._seen(dataclasses.replace(case, recorded=False), part, "tune").view

        server = Server(
            case=case,
            see=shared,
            rehearse=rehearsed,
            pool=Pool.of(self.pixels, self.labels, rows, self.first),
            optimizer=self.config.optimizer,
            seconds=seconds,
            clock=self.clock,
        )
        told = server.lined_up(rows, self.held[: max(TUNED_ON, case.images)])
        if file and not told.fault:
            fields = {field.name for field in dataclasses.fields(told)} - {"case"}
            text = json.dumps({"run": self.name} | {name: getattr(told, name) for name in fields})
            write_atomically(file, lambda path: path.write_text(text, encoding="utf-8"))
        return told

    def _show(self, planned: float) -> None:
        """Move the bar to what is done, in seconds of the plan."""
        self.bar.n = min(planned, self.bar.total)
        self.bar.refresh()

    def _spent(self) -> float:
        """How much of the budget is gone, as a share."""
        return (self.clock() - self.began) / self.config.budget

    def _is_time(self, case: Case) -> bool:
        """Whether two gradients of a case can be attacked before the end; bits of one image are
        told by those of others. What is kept costs nothing.
        """
        if self._spent() > END:
            return False
        name = self.tuned[case.group][0] if case.group in self.tuned else ""
        if name in CLOSED or (self.folder and self._file(case).exists()):
            return True
        if self._fits(case):
            return True
        plain = _plain(case)
        if not self._measure_again(plain, self.plan.per_step):
            return False
        self.slower = 1.0
        return self._fits(case)

    def _fits(self, case: Case) -> bool:
        """Whether two gradients of a case fit in what is left of the budget."""
        few = min(2, len(self.recorded[case][0])) if case.recorded else 2
        seconds = few * self._one(case, self.plan.steps) * max(1.0, self.slower)
        return self._spent() + seconds / self.config.budget <= END

    def _share_of(self, case: Case, later: list[Case]) -> float:
        """Until what share of the budget a case may begin further portions: what is left, divided as
        the plan divides it, so that on a slow network a control does not take the time of what it
        is the control of.
        """
        own = self._seconds(case, self.plan)
        rest = sum(self._seconds(other, self.plan) for other in later)
        untuned = {other.group: other for other in later if other.group not in self.tuned}
        rest += sum(self._tuning_seconds(other) for other in untuned.values())
        share = own / (own + rest) if own else 1 / (1 + len(later))
        spent = self._spent()
        return min(END, spent + (END - spent) * share)

    def faint(self) -> bool:
        """Whether the untrained network is one of which the plain cosine sees little, see `is_faint`."""
        if "untrained" not in self.networks:
            return False
        # Clients in train mode may need several images to normalize over, as the control's have.
        sizes = [each.images for each in self.cases if each.control and self.recorded]
        case = Case(weights="untrained", control=True, batch=max(sizes, default=1))
        return is_faint(self._seen(case, self.held[: 2 * case.batch], "speed").view)

    # --- the plan -------------------------------------------------------------------------------------------

    def _planned(self) -> Plan:
        """The stored plan of this very audit, or a new one."""
        if (stored := self._stored_plan()) is not None:
            return stored
        plan = self._fitting(self._speeds())
        if self.folder:
            text = json.dumps({"run": self.name} | dataclasses.asdict(plan), indent=1)
            file = self.folder / "plan.json"
            write_atomically(file, lambda path: path.write_text(text, encoding="utf-8"))
        return plan

    def _stored_plan(self) -> Plan | None:
        """The plan that was made of this very audit before; None where there is none."""
        file = self.folder and self.folder / "plan.json"
        if not (file and file.exists()):
            return None
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored.pop("run", None) == self.name:
            return Plan(**stored)
        warnings.warn(
            f"{self.folder} holds the state of another audit, which is begun anew", stacklevel=2
        )
        file.unlink()
        return None

    def _speeds(self) -> dict[str, float]:
        """Seconds for one image and step, by group; measured once."""
        if self.speeds is None:
            speeds = {str(case.group): self._measured(case) for case in self._groups()}
            if self._fitting(speeds) != self._at_size(SIZES[0], speeds):
                # Less than all fits: once more, since at one moment or the other the machine is busy.
                for case in self._groups():
                    self._measure_again(case, speeds)
            self.speeds = speeds
        return self.speeds

    def _groups(self) -> list[Case]:
        """One case of each group, without a defense."""
        groups = {case.group: _plain(case) for case in reversed(self.cases)}
        return list(reversed(groups.values()))

    def _measured(self, case: Case) -> float:
        """Seconds for one image and step of gradient matching."""
        seen = self._seen(case, self.held[: case.images], "speed").view
        attack = dataclasses.replace(_matching(candidates(seen, case, 4)), steps=1)
        # Of the first step much is what torch does once; that of a network too slow to do it again
        # has to do.
        first = self._timed(seen, attack)
        if first < SLOW * self.config.budget:
            first = self._timed(seen, attack)
        few = int(TRIED * self.config.budget / first) if first > 0 else 8
        if few == 0:
            return first / case.images
        problems = max(1, min(8, few * case.images, len(self.held)) // case.images)
        seen = self._seen(case, self.held[: problems * case.images], "speed").view
        self._timed(seen, attack)
        return self._timed(seen, dataclasses.replace(attack, steps=2)) / (
            2 * len(seen) * case.images
        )

    def _measure_again(self, case: Case, per_step: dict[str, float]) -> bool:
        """Measure once more, where that takes little, and keep the lower time: a case is not left
        out because the machine was busy for a moment. Whether the time is lower.
        """
        known = per_step[str(case.group)]
        if known * case.images >= SLOW * self.config.budget:
            return False
        per_step[str(case.group)] = min(known, self._measured(case))
        return per_step[str(case.group)] < known

    def _timed(self, seen: Observed, attack: Attack) -> float:
        """Seconds that an attack takes."""
        began = self.clock()
        reconstruct(seen, attack, rng=0)
        return self.clock() - began

    def _fitting(self, per_step: dict[str, float], taken: float = 0.0) -> Plan:
        """The largest plan that fits when so many seconds more are gone."""
        # Measuring has taken time, as has the first run of a network.
        spent = self._spent() + taken / self.config.budget
        left = max(0.0, min(RESERVE, END - spent)) * self.config.budget
        for size in SIZES:
            plan = self._at_size(size, per_step)
            if plan.fits(left):
                return plan
        slowest = self._one(self.cases[0], 1)
        steps = max(1, int(min(PAIR * self.config.budget, left) / (2 * slowest)))
        if self.config.steps or steps >= plan.steps:
            return plan
        return self._sized(plan.images, steps, plan.tuned_on, plan.compared, per_step)

    def _at_size(self, size: tuple[int, int, int, int], per_step: dict[str, float]) -> Plan:
        """The plan at one of `SIZES`, as far as images and memory reach."""
        images, steps, tuned_on, compared = size
        images = self.config.attacked or min(images, self._remembered())
        steps = self.config.steps or steps
        return self._sized(min(images, len(self.free)), steps, tuned_on, compared, per_step)

    def _remembered(self) -> int:
        """How many gradients, and what is made of them, fit in the memory that an attack may take."""
        if self.device.type != "cpu":
            return SIZES[0][0]
        shared = shared_parameters(next(iter(self.networks.values()))).values()
        one = sum(parameter.nbytes for parameter in shared)
        return max(SIZES[-1][0], int(MOST_MEMORY / (COPIES * one)))

    def _sized(
        self,
        images: int,
        steps: int,
        tuned_on: int,
        compared: int,
        per_step: dict[str, float],
        *,
        first_look: bool = False,
    ) -> Plan:
        if tuned_on == TUNED_ON or tuned_on < self.largest:
            tuned_on = len(self.held)  # more than 16 where one gradient is of so many
        least = 2 * max((case.images for case in self.cases if not case.recorded), default=1)
        plan = Plan(
            images=max(images, least),
            steps=steps,
            tuned_on=min(tuned_on, len(self.held)),
            tuning_steps=max(min(20, steps), steps // 2),
            compared=compared,
            seconds=0.0,
            per_step=per_step,
            first_look=first_look,
        )
        self.plan = plan
        seconds = sum(self._tuning_seconds(case) for case in self._groups())
        seconds += sum(self._seconds(case, plan) for case in self.cases)
        return dataclasses.replace(plan, seconds=seconds)

    def _tuning_seconds(self, case: Case) -> float:
        each = (
            len(FAMILIES)
            + (case.images == 1)
            + (2 * self._local_steps() if case.shared == "update" else 0)
        )
        each = 0 if self.plan.compared == 1 else min(each, self.plan.compared)
        return (
            each * self.plan.tuned_on * self.plan.tuning_steps * self.plan.per_step[str(case.group)]
        )

    def _local_steps(self) -> int:
        return self.config.local.steps(max(self.config.batch)) if self.config.local else 1

    def _seconds(self, case: Case, plan: Plan) -> float:
        times = forms_effort(case, self.config.policy if case.defense else "", plan.steps)
        if case.shared == "update" and self._local_steps() <= 10:
            times *= (
                1 + self._local_steps()
            ) / 2  # whether the best attack unrolls them is not known yet
        images = len(self.recorded[case][1]) if case.recorded else self._images(case, plan)
        return times * images * plan.steps * plan.per_step[str(case.group)]

    def _images(self, case: Case, plan: Plan) -> int:
        """How many photographs of a case are attacked: in a first look no more than it needs."""
        return min(plan.images, max(LOOK[0], 2 * case.images)) if plan.first_look else plan.images

    def _one(self, case: Case, steps: int) -> float:
        """Seconds that are planned for one gradient of a case."""
        whole = dataclasses.replace(self.plan, images=case.images, steps=steps)
        return self._seconds(dataclasses.replace(case, recorded=False), whole)

    # --- attacks --------------------------------------------------------------------------------------------

    def _seen(self, case: Case, rows: Tensor, purpose: str) -> Seen:
        models = self._models(case)
        stream = rng(self.config.seed, "audit", purpose, case.defense, case.shared, case.batch)
        return see(models, self.pixels[rows], self.labels[rows], case, self.config, stream)

    def _kept(self, case: Case) -> Seen:
        """What a federation has kept of a case; what its policy drew is not known."""
        view, rows = self.recorded[case]
        return Seen(view, (self.pixels[rows] / 255).to(view.gradients), None)

    def _models(self, case: Case) -> list[nn.Module]:
        """The network in each round of a case."""
        if case.weights not in self.rounds:
            model = self.networks[case.weights]
            held = self.held
            like = next(model.parameters())
            lr = self.config.local.lr if self.config.local else 0.1
            images = (self.pixels[held] / 255).to(like)
            self.rounds[case.weights] = moved_on(
                model, images, self.labels[held], self.config.rounds, lr
            )
        return self.rounds[case.weights][: case.rounds]

    def _chosen(self, case: Case) -> tuple[str, dict[str, float]]:
        """The attack that is best without a defense, and the bits of each that was tried.

        Where that is in closed form, which a defense may spoil, it is the best against the defense.
        """
        if case.group not in self.tuned:
            plain = _plain(case)
            self.tuned[case.group] = self._tuned(plain, case.group)
        if not case.defense or self.tuned[case.group][0] not in CLOSED:
            return self.tuned[case.group]
        defended = dataclasses.replace(case, recorded=False)
        if defended not in self.tuned:
            self.tuned[defended] = self._tuned(defended, defended)
        return self.tuned[defended]

    def _tuned(self, case: Case, name: object) -> tuple[str, dict[str, float]]:
        """The attack that tells most bits of the held-out images, and the bits of each."""
        sizes = self.plan.tuned_on, self.plan.tuning_steps, self.plan.compared
        file = self.folder and self.folder / f"tuned-{fingerprint(name, sizes)}.json"
        if file and file.exists():
            stored = json.loads(file.read_text(encoding="utf-8"))
            if stored["run"] == self.name:
                return stored["best"], stored["tried"]
        count = self.plan.tuned_on // case.images * case.images
        rows = self.held[:count]
        seen = self._seen(case, rows, "tune")
        pool = Pool.of(self.pixels, self.labels, rows, self.first)
        run = fingerprint(self.name, dataclasses.astuple(self.plan)[:5], "tune")
        tried = {}
        closeness = {}
        attacks = candidates(seen.view, case, self.plan.tuning_steps)
        most = self.plan.compared + len(set(attacks).intersection(CLOSED))
        attacks = dict(list(attacks.items())[:most])
        if len(attacks) == 1:
            return next(iter(attacks)), {}
        for name, attack in attacks.items():
            attack = against(attack, seen.view)
            one = 0.0 if name in CLOSED else self._one(case, self.plan.tuning_steps)
            key = fingerprint("tune", name, case)
            images, labels = self._in_portions(seen.view, attack, case, key, run, one, TUNING, 0)
            if len(images) < len(rows):  # on fewer it could not be compared
                break
            before = seeks_before(attack)
            told = judge(images, labels, seen, rows, pool, case, before=before)
            known = told.bits[told.bits.isfinite()]
            # With one gradient there is no other to fit a temperature on: the closeness has to do.
            tried[name] = (
                float(known.mean()) if len(known) else float(told.gain.nan_to_num(-99).mean()) / 100
            )
            closeness[name] = float(
                told.gain.nan_to_num(-99).mean()
            )  # decides where all of them know everything
            # None finds more than all; of few images that may be chance.
            if told.found.all() and (name in CLOSED or len(rows) >= TUNED_ON):
                break
        best = next(iter(attacks))
        if tried:
            best = max(tried, key=lambda name: (round(tried[name], 1), closeness[name]))
        if file:
            self._forget()
            text = json.dumps({"run": self.name, "best": best, "tried": tried})
            write_atomically(file, lambda path: path.write_text(text, encoding="utf-8"))
        return best, tried

    def _file(self, case: Case) -> Path:
        """Where the result of a case is kept."""
        return (
            self.folder / f"case-{fingerprint(case, self.plan.images, self.plan.steps)}.safetensors"
        )

    def _attacked(
        self, case: Case, rows: Tensor, name: str, tried: dict[str, float], until: float
    ) -> Attacked:
        """The result of a case, kept or computed until a share of the budget is gone."""
        if case.recorded:
            rows = self.recorded[case][1]
        else:
            rows = rows[: self._images(case, self.plan) // case.images * case.images]
        key = fingerprint(case)
        file = self.folder and self._file(case)
        run = fingerprint(self.name, dataclasses.astuple(self.plan)[:5], name)
        if file and (stored := load_state(file, run)) is not None:
            outcome = Outcome(**stored[0])
            self._note_cut(case, len(outcome.images), len(rows))
            return Attacked(
                case, name, tried, outcome, stored[1]["silent"], stored[1]["labels_told"]
            )
        seen = self._kept(case) if case.recorded else self._seen(case, rows, "attack")
        attack = against(candidates(seen.view, case, self.plan.steps)[name], seen.view)
        one = 0.0 if name in CLOSED else self._one(case, self.plan.steps)
        images, labels = self._in_portions(seen.view, attack, case, key, run, one, until, 2)
        if len(images) < len(rows):
            self._note_cut(case, len(images), len(rows))
            rows = rows[: len(images)]
            few = slice(len(images) // case.images)
            seen = dataclasses.replace(seen, view=seen.view.take(few), got=seen.got[: len(images)])
        before = seeks_before(attack)
        outcome = judge(images, labels, seen, rows, self.pool, case, before=before)
        silent = float((seen.view.updates[0].gradients == 0).all(1).double().mean())
        told = _labels_told(labels, self.labels[rows], case.images)
        if file:
            tensors = {
                field.name: getattr(outcome, field.name) for field in dataclasses.fields(outcome)
            }
            save_state(file, run, tensors, silent=silent, labels_told=told)
            self._forget()
        return Attacked(case, name, tried, outcome, silent, told)

    def _note_cut(self, case: Case, attacked: int, wanted: int) -> None:
        if attacked < wanted:
            self.cut.append(
                f"The time was over after {attacked} of {wanted} photographs: {case.title}."
            )

    def _forget(self) -> None:
        """Remove the files of portions that are done, and of those that were begun and cut
        otherwise when the audit went on.
        """
        for pattern in ("part-*.safetensors", "*.attack*"):
            for file in self.folder.glob(pattern):
                file.unlink()

    def _in_portions(
        self,
        seen: Observed,
        attack: Attack,
        case: Case,
        key: str,
        run: str,
        one: float,
        until: float,
        least: int,
    ) -> tuple[Tensor, Tensor]:
        """Reconstructions and their labels of as many gradients as there is time for, some at a
        time.

        Args:
            key, run: of the files in which portions are kept.
            one: seconds that are planned for a gradient; 0: the clock is not asked.
            until: share of the budget at which they have to be done.
            least: so many gradients are attacked after that too, as long as there is any time, and
                the first of them in any case; 0 for none.
        """
        slower = max(1.0, self.slower)
        stream = rng(self.config.seed, "audit", "start", case.shared, case.batch)
        made = [(torch.empty(0, *seen.shape), torch.empty(0, case.images, dtype=torch.int64))]
        first = 0
        while first < len(seen):
            file = self.folder and self.folder / f"part-{key}-{first}.safetensors"
            if file and (stored := load_state(file, run)) is not None:
                stream.set_state(stored[0]["stream"])
                made.append((stored[0]["images"], stored[0]["labels"]))
                first += len(made[-1][1])
                continue
            size = self._portion(one * slower, until if first >= least else END)
            if first == 0 and least:
                size = max(1, size)
            if size == 0:
                break
            own = slice(first, min(first + size, len(seen)))
            began = self.clock()
            name = f"attack {key} {own.start} {own.stop}"
            result = self._reconstructed(seen.take(own), attack, case, name, stream)
            if one:
                slower = self.slower = (self.clock() - began) / (one * (own.stop - own.start))
            made.append((result.images.cpu(), result.labels.cpu()))
            if file:
                parts = dict(zip(("images", "labels"), made[-1], strict=True))
                save_state(file, run, parts | {"stream": stream.get_state()})
            first = own.stop
            self.bar.update(min(one * (own.stop - own.start), self.bar.total - self.bar.n))
        images, labels = (torch.cat(part) for part in zip(*made, strict=True))
        return images, labels

    def _portion(self, one: float, until: float) -> int:
        """How many gradients are attacked before it is asked again whether there is time, if each
        takes so many seconds: 0 if there is none for a single one.
        """
        if one == 0:
            return MOST_AT_ONCE
        left = until - self._spent()
        fitting = int(left * self.config.budget / one)
        portion = int(min(PORTION, PART * left) * self.config.budget / one)
        return max(0, min(fitting, max(1, portion), MOST_AT_ONCE))

    def _reconstructed(
        self,
        seen: Observed,
        attack: Attack,
        case: Case,
        purpose: str,
        stream: torch.Generator,
    ) -> Reconstruction:
        state = self.folder and self.folder / f"{fingerprint(purpose, case)}.attack"
        options = {}
        if state:
            options["checkpoint"] = state
        return reconstruct(seen, attack, rng=stream, **options)


def _plain(case: Case) -> Case:
    """The case without a defense, and as the audit itself makes it."""
    return dataclasses.replace(case, defense="", knows="nothing", recorded=False)


def _matching(attacks: dict[str, Attack]) -> GradientMatching:
    """The first attack by gradient matching."""
    return next(attack for attack in attacks.values() if isinstance(attack, GradientMatching))


def _labels_told(restored: Tensor, labels: Tensor, batch: int) -> float:
    """Share of the labels that the attack had right, as multisets."""
    true = labels.unflatten(0, (-1, batch))
    if restored.shape != true.shape or (restored < 0).any():
        return 0.0
    return float(label_share(restored.cpu().long(), true).double().mean())
