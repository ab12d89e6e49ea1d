"""Hundreds of independent gradient-matching attacks as one batch.

Members (images × policies × restarts × settings) are independent: each has its own row of the
iterate, its own cost, step size, weights and number of steps. So one gradient of the summed costs
holds that of every member.
"""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from atslib.attacks.attack import FARTHEST, Reconstruction, class_numbers
from atslib.attacks.labels import initial_logits, labelled
from atslib.attacks.matching import GradientMatching
from atslib.attacks.memory import free_memory, members_on_cpu, members_on_gpu
from atslib.attacks.objective import Objective
from atslib.attacks.optimizers import OPTIMIZERS
from atslib.attacks.starts import STARTS
from atslib.checkpoints import fingerprint, load_state, save_state, state_file
from atslib.clients.observe import Observed
from atslib.data.images import describe, is_tensor
from atslib.errors import AtsError, check_kind, check_whole
from atslib.files import discard
from atslib.gradients.chunks import in_chunks
from atslib.gradients.inputs import as_tensor
from atslib.models import normalization_layer

# (step, images (N, k, C, H, W) in [0, 1] units, distance (N,) before the last step) → True to stop
OnFrame = Callable[[int, Tensor, Tensor], bool | None]

# What `match` takes beside what was seen, the attacks and their stream; the options of
# `atslib.reconstruct`.
OPTIONS = (
    "start",
    "frames",
    "on_frame",
    "keep_restarts",
    "chunk",
    "checkpoint",
    "on_saved",
    "progress",
)

LOOK_EVERY = 50  # steps between checks for diverged members; a check waits for the device
SAVE_EVERY = 30  # seconds between stored states
STATE_FORMAT = 2  # raise it when the meaning of a stored state changes


def match(
    seen: Observed,
    attacks: Sequence[GradientMatching],
    *,
    rng: torch.Generator,
    start: Tensor | None = None,
    frames: int = 0,
    on_frame: OnFrame | None = None,
    keep_restarts: bool = False,
    chunk: int | None = None,
    checkpoint: Path | None = None,
    on_saved: Callable[[], None] | None = None,
    progress: bool = False,
) -> Reconstruction:
    """Run N independent attacks at once.

    Args:
        seen: what the server saw of N gradients.
        attacks: one for each gradient, all of the same `structure()`.
        rng: the stream of the random starts; member i's start does not depend on how many follow.
        start: where to begin instead, (B, C, H, W) in [0, 1] units, or (restarts, B, C, H, W).
        frames: how many snapshots to keep: 0, or at least 2, evenly spaced, the first before any
            step and the last after all.
        on_frame: called at each of these snapshots as on_frame(step, images, distance), with images
            (N, k, C, H, W) in [0, 1] and distances (N,) as they were before the last step (nan at
            the first), without waiting for the device. True stops the attack. With frames=0 it is
            not called.
        keep_restarts: also return the images of every restart, in `.restarts`.
        chunk: members in memory at once; estimated by default. Out of memory halves it and goes on.
        checkpoint: a file that makes the run resumable, removed at its end; one of another run is
            set aside.
        on_saved: called after each write of the checkpoint, about twice a minute. An exception that
            it raises ends the run; the next call goes on from the checkpoint.
        progress: show a bar with the remaining time.
    Returns:
        The reconstruction of least cost of each gradient.
    Raises:
        AtsError: gradients that are not finite, attacks that cannot share a batch, or a start of
            the wrong shape.
    """
    restarts = _checked(seen, attacks, frames, chunk)
    checkpoint = state_file(checkpoint)
    check_kind("keep_restarts", keep_restarts, bool, "True or False")
    _check_memory(seen, attacks, frames)
    seen = labelled(seen, rng)
    begin = _starts(seen, attacks, rng, start)
    files = set()
    everyone = torch.arange(len(seen), device=begin.device).repeat(restarts)
    repeated = list(attacks) * restarts
    with tqdm(
        total=sum(a.steps for a in repeated), disable=not progress, unit="step", leave=False
    ) as bar:

        def run(part: slice) -> dict[str, Tensor]:
            file = checkpoint and checkpoint.with_name(
                f"{checkpoint.name}.{part.start}-{part.stop - part.start}"
            )
            files.add(file)
            members = _Run(seen.take(everyone[part]), repeated[part], begin[part], frames, file)
            return members.finish(on_frame, on_saved, bar)

        runs = in_chunks(run, len(begin), chunk or chunk_size(seen, attacks[0]))
    _clear(checkpoint, files)
    return _best(runs, restarts, keep_restarts)


def _clear(checkpoint: Path | None, files: set[Path]) -> None:
    """Remove the `files` of a run that is done; states beside them are of another one, and only set
    aside.
    """
    if checkpoint is None or not checkpoint.parent.is_dir():
        return
    name = re.compile(rf"{re.escape(checkpoint.name)}\.\d+-\d+")
    for state in sorted(checkpoint.parent.iterdir()):
        if state in files:
            discard(state)
        elif name.fullmatch(state.name):
            state.replace(aside := state.with_name(f"{state.name}.aside"))
            why = "it is of another run, or in other chunks"
            warnings.warn(
                f"{state.name} was not used ({why}); it is now {aside.name}", stacklevel=3
            )


def _checked(
    seen: Observed, attacks: Sequence[GradientMatching], frames: int, chunk: int | None
) -> int:
    """How many restarts the attacks have."""
    check_whole("frames", frames, 0)
    if chunk is not None:
        check_whole("chunk", chunk, 1)
    if len(attacks) != len(seen):
        raise AtsError(
            f"{len(attacks)} attacks for {len(seen)} gradients: give one, or one for each gradient"
        )
    if len({(a.structure(), a.restarts) for a in attacks}) > 1:
        raise AtsError(
            "attacks in one batch must share distance, optimizer, its options and restarts"
        )
    finite = torch.stack([update.gradients.isfinite().all(1) for update in seen.updates]).all(0)
    if broken := (~finite).nonzero().flatten().tolist():
        raise AtsError(
            f"gradients {broken} hold nan or infinity: what a client shares must be finite"
        )
    return attacks[0].restarts


def _check_memory(seen: Observed, attacks: Sequence[GradientMatching], frames: int) -> None:
    """Raise `AtsError` where the starts, traces and frames alone take more memory than there is."""
    like = seen.updates[0].gradients
    images = seen.threat.batch * math.prod(seen.shape)
    members = attacks[0].restarts * len(seen)
    steps = max(attack.steps for attack in attacks)
    past = 2 * attacks[0].history if attacks[0].optimizer.startswith("lbfgs") else 0
    kept = 3 + past + min(frames, steps + 1)
    needed = members * like.element_size() * (kept * images + steps)
    there = free_memory(like.device)
    if needed > there:
        raise AtsError(
            f"{attacks[0].restarts} restarts of {len(seen)} attacks with {steps} steps and {frames} frames take "
            f"{needed / 2**30:,.0f} GiB, and {there / 2**30:,.1f} are free; ask for fewer"
        )


def _starts(
    seen: Observed, attacks: Sequence[GradientMatching], rng: torch.Generator, start: Tensor | None
) -> Tensor:
    """Iterates to begin from, (restarts · N, D) in normalized units, restart by restart."""
    restarts = attacks[0].restarts
    shape = (seen.threat.batch, *seen.shape)
    like = seen.updates[0].gradients
    normalize = normalization_layer(seen.updates[0].model)
    wanted = (len(seen) * shape[0], *seen.shape)
    if start is not None:
        if getattr(start, "is_nested", False) or (
            given := tuple(getattr(start, "shape", ()))
        ) not in (wanted, (restarts, *wanted)):
            given = describe(start)
            raise AtsError(
                f"start {given} must be {wanted} in [0, 1], or one such for each restart"
            )
        start = as_tensor(start)
        if not is_tensor(start) or not start.is_floating_point():
            raise AtsError(f"start is {describe(start)}; it must be floats in units of [0, 1]")
        if (start.abs() > FARTHEST).any():  # nan is a restart that diverged, and its cost says so
            raise AtsError(
                f"start goes up to {start.abs().max():.4g}; it must be floats in units of [0, 1]"
            )
        given = (
            normalize(start.to(like))
            .reshape(-1, len(seen), *shape)
            .expand(restarts, -1, -1, -1, -1, -1)
        )
    begin = []  # member by member: the stream of one must not depend on how many follow
    for member, attack in enumerate(attacks):
        for restart in range(restarts):
            z = (
                STARTS[attack.start](shape, rng, normalize)
                if start is None
                else given[restart, member]
            )
            z = z.to(like).flatten()
            if seen.threat.labels == "optimized":
                z = torch.cat([z, initial_logits(seen, rng).to(z)])
            begin.append(z)
    return torch.stack(begin).unflatten(0, (-1, restarts)).transpose(0, 1).flatten(0, 1)


def chunk_size(seen: Observed, attack: GradientMatching) -> int:
    """How many members fit in the free memory, from what one member needs (measured on a GPU)."""
    one = seen.take(torch.zeros(1, dtype=torch.int64, device=seen.updates[0].gradients.device))
    z = _starts(one, [attack], torch.Generator(), None)[:1].requires_grad_()
    if z.is_cuda:
        return members_on_gpu(
            lambda: torch.autograd.grad(sum(Objective(one, [attack])(z)).sum(), z), z.device
        )
    images = z.new_zeros(one.threat.batch, *one.shape)
    update = one.updates[0]
    # How many gradients of a member are held at once: one an update, or local step.
    copies = sum(each.local["steps"] if attack.unroll else 1 for each in one.updates)
    return max(1, members_on_cpu(update.model, images, update.gradients.nbytes) // copies)


class _Run:
    """One chunk of members from their starts to their last steps."""

    def __init__(
        self,
        seen: Observed,
        attacks: list[GradientMatching],
        begin: Tensor,
        frames: int,
        file: Path | None,
    ):
        self.seen = seen
        self.attacks = attacks
        self.file = file
        self.last = max(a.steps for a in attacks)
        self.snapshots = frame_steps(frames, self.last)
        self.objective = self.whole = Objective(seen, attacks)
        normalize = normalization_layer(seen.updates[0].model)
        ones = torch.ones(self.whole.shape).to(begin)
        free = torch.full_like(begin[0, self.whole.pixels :], torch.inf)
        self.low = torch.cat([normalize(0 * ones).flatten(), -free])
        self.high = torch.cat([normalize(ones).flatten(), free])
        self.optimizer = OPTIMIZERS[attacks[0].optimizer](
            attacks, begin, self.whole.pixels, self.low, self.high
        )
        self.step = 0
        self.begin = begin
        self.keep_best = torch.tensor([a.keep_best for a in attacks], device=begin.device)
        self.done = {
            "z": begin.clone(),
            "rows": torch.arange(len(begin), device=begin.device),
            "trace": begin.new_full((self.last, len(begin)), torch.nan),
            "frames": begin.new_zeros((len(self.snapshots), *begin.shape)),
        }
        if self.keep_best.any():
            self.done |= {"best": begin.clone(), "least": begin.new_full((len(begin),), torch.inf)}
        if file:
            self.name = fingerprint(STATE_FORMAT, seen, attacks, begin, self.snapshots)
            self._load()

    def finish(
        self, on_frame: OnFrame | None, on_saved: Callable[[], None] | None, bar: tqdm
    ) -> dict[str, Tensor]:
        """The remaining steps, then the result of each member."""
        looks = {a.steps for a in self.attacks} | set(range(LOOK_EVERY, self.last, LOOK_EVERY))
        saved = time.monotonic()
        stopped = False
        bar.update(self.step * len(self.attacks))
        for step in range(self.step, self.last):
            if step in looks:
                self._compact(step)
            if step in self.snapshots:
                stopped = self._snapshot(step, on_frame)
            if stopped or not len(self.done["rows"]):
                break
            before = self.optimizer.state["z"]
            distance, whole = self.optimizer.step(self.objective, step)
            self.done["trace"][step, self.done["rows"]] = distance
            if "best" in self.done:
                self._remember(self.done["rows"], before, whole)
            bar.update(len(distance))
            if self.file and time.monotonic() - saved > SAVE_EVERY:
                self._save(step + 1)
                saved = time.monotonic()
                if on_saved:
                    on_saved()
        if self.snapshots and not stopped:
            self._snapshot(self.last, on_frame)
        elif stopped:
            self.done["frames"][[at > step for at in self.snapshots]] = self.done["z"]
        return self._result()

    def _store_rows(self) -> None:
        self.done["z"][self.done["rows"]] = self.optimizer.state["z"]

    def _remember(self, rows: Tensor, z: Tensor, cost: Tensor) -> None:
        """Keep each member's iterate if it costs less than all before."""
        better = cost < self.done["least"][rows]
        self.done["least"][rows] = torch.where(better, cost, self.done["least"][rows])
        self.done["best"][rows] = torch.where(better.unsqueeze(1), z, self.done["best"][rows])

    def _compact(self, step: int) -> None:
        """Members that are finished or not finite leave the batch."""
        self._store_rows()
        rows = self.done["rows"]
        unfinished = torch.tensor([a.steps > step for a in self.attacks], device=rows.device)[rows]
        keep = (unfinished & self.optimizer.state["z"].isfinite().all(1)).nonzero().squeeze(1)
        if len(keep) < len(rows):
            self.done["rows"] = rows[keep]
            self.optimizer.keep(keep)
            if len(keep):
                self._objective_of(self.done["rows"])

    def _objective_of(self, rows: Tensor) -> None:
        self.objective = Objective(self.seen.take(rows), [self.attacks[i] for i in rows.tolist()])

    def _snapshot(self, step: int, on_frame: OnFrame | None) -> bool:
        self._store_rows()
        self.done["frames"][self.snapshots.index(step)] = self.done["z"]
        if on_frame is None:
            return False
        images = self.whole.normalize.inverse(self.whole.images(self.done["z"]))
        return bool(on_frame(step, images, self.done["trace"][max(step - 1, 0)].clone()))

    def _save(self, step: int) -> None:
        mine = {f"optimizer.{name}": value for name, value in self.optimizer.state.items()}
        save_state(self.file, self.name, self.done | mine, step=step)

    def _load(self) -> None:
        if (state := load_state(self.file, self.name)) is None:
            return
        tensors = {name: value.to(self.begin.device) for name, value in state[0].items()}
        self.step = state[1]["step"]
        self.done = {name: tensors[name] for name in self.done}
        self.optimizer.state = {name: tensors[f"optimizer.{name}"] for name in self.optimizer.state}
        if len(self.done["rows"]) < len(self.attacks):
            self._objective_of(self.done["rows"])

    def _result(self) -> dict[str, Tensor]:
        self._store_rows()
        z = self.done["z"]
        pixels = self.whole.pixels
        # A signed or boxed attack may only have clamped its start.
        stuck = ((z == self.begin) | (z == self.begin.clamp(self.low, self.high)))[:, :pixels].all(
            1
        )
        with torch.no_grad():
            cost, penalty = self.whole(z)
            if "best" in self.done:
                self._remember(torch.arange(len(z), device=z.device), z, cost + penalty)
                z = torch.where(self.keep_best.unsqueeze(1), self.done["best"], z)
                cost, _ = self.whole(z)
        labels = self.whole.targets(z)
        frames = self.done["frames"]
        frame_images = frames[..., : self.whole.pixels].unflatten(-1, self.whole.shape)
        return {
            "images": self.whole.normalize.inverse(self.whole.images(z)),
            "cost": cost,
            "stuck": stuck,
            "labels": class_numbers(labels),
            "trace": self.done["trace"].T,
            "frames": self.whole.normalize.inverse(frame_images).transpose(0, 1),
            "steps": torch.tensor(self.snapshots),
        }


def frame_steps(frames: int, last: int) -> list[int]:
    """After which steps to take so many snapshots: evenly spaced from 0 to `last`, none twice."""
    if frames == 1:
        raise AtsError("frames=1: ask for none, or at least the first and the last")
    frames = min(frames, last + 1)  # more would be the same steps again
    return sorted({round(i * last / (frames - 1)) for i in range(frames)}) if frames else []


def _best(runs: list[dict[str, Tensor]], restarts: int, keep: bool) -> Reconstruction:
    """The results of each member's restart of least finite cost."""
    longest = max(run["trace"].shape[1] for run in runs)
    for run in runs:
        missing = longest - run["trace"].shape[1]
        run["trace"] = torch.nn.functional.pad(run["trace"], (0, missing), value=torch.nan)
    names = ("images", "cost", "labels", "trace", "frames", "stuck")
    whole = {
        name: torch.cat([run[name] for run in runs]).unflatten(0, (restarts, -1)) for name in names
    }
    best = whole["cost"].nan_to_num(torch.inf, torch.inf, torch.inf).argmin(0)
    picked = {name: value[best, range(len(best))] for name, value in whole.items()}
    return Reconstruction(
        images=picked["images"].flatten(0, 1),
        cost=picked["cost"],
        trace=picked["trace"].T,
        frames=picked["frames"].transpose(0, 1).flatten(1, 2),
        frame_steps=tuple(runs[0]["steps"].tolist()),
        labels=picked["labels"],
        stuck=picked["stuck"],
        restart=best,
        costs=whole["cost"],
        restarts=whole["images"]
        .flatten(1, 2)[: restarts if keep else 0]
        .clone(),  # not a view of all
    )
