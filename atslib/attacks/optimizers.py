"""Optimizers whose every member is independent: state and settings have one row per member.

`torch.optim` has no step size per member, and its L-BFGS would mix them in its inner products. The
tests compare each of these with `torch.optim`, run on one member at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

# iterates (n, D) → distance (n,), penalty (n,)
Cost = Callable[[Tensor], tuple[Tensor, Tensor]]


def in_steps(step: Tensor, steps: int) -> Tensor:
    """Times 0.1 after 3/8, 5/8 and 7/8 of the steps, as Inverting Gradients and ATS do."""
    passed = sum((step >= int(steps // by)).to(step.dtype) for by in (2.667, 1.6, 1.142))
    return 0.1**passed


# (steps taken (T,), steps in all) → factor of the step size (T,)
SCHEDULES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "steps": in_steps,
    "constant": lambda step, steps: torch.ones_like(step),
    "cosine": lambda step, steps: (1 + torch.cos(math.pi * step / steps)) / 2,
    "linear": lambda step, steps: 1 - step / steps,
}


class Settings(Protocol):
    """What an optimizer must know of one member; `GradientMatching` says it, and what each field
    means.
    """

    lr: float
    steps: int
    schedule: str
    signed: bool
    boxed: bool
    inner: int
    history: int
    line_search: bool


class Optimizer:
    """Iterates and all else that a step needs, in `state`: tensors with one row per member.

    A subclass has its own state in `moments`, zeros like the iterates at first, and says how to
    `move`.

    Args:
        attacks: the settings of each member, of one structure.
        z: (n, D) starts; the first `pixels` columns are the images.
        low, high: (D,) the box of the images, infinite for other columns.
    """

    moments: tuple[str, ...] = ()

    def __init__(
        self, attacks: Sequence[Settings], z: Tensor, pixels: int, low: Tensor, high: Tensor
    ):
        def column(values: list) -> Tensor:
            return torch.tensor(values, device=z.device).view(len(attacks), -1)

        boxed = column([a.boxed for a in attacks])
        taken = torch.arange(max(a.steps for a in attacks), device=z.device, dtype=z.dtype)
        self.state: dict[str, Tensor] = {
            "z": z.clone(),
            "lr": column([a.lr for a in attacks]).to(z.dtype),
            "factor": torch.stack([SCHEDULES[a.schedule](taken, a.steps) for a in attacks]),
            "signed": column([a.signed for a in attacks])
            & (torch.arange(z.shape[1], device=z.device) < pixels),
            "low": torch.where(boxed, low, -torch.inf),
            "high": torch.where(boxed, high, torch.inf),
        } | {name: torch.zeros_like(z) for name in self.moments}

    def keep(self, rows: Tensor) -> None:
        """Drop all members but these."""
        self.state = {name: value[rows] for name, value in self.state.items()}

    def rate(self, step: int) -> Tensor:
        """Step size of each member at this step, (n, 1)."""
        return self.state["lr"] * self.state["factor"][:, step : step + 1]

    def gradient(self, cost: Cost, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Distance (n,), whole cost (n,) and its gradient (n, D), its sign for signed members."""
        z = z.detach().requires_grad_()
        distance, penalty = cost(z)
        (gradient,) = torch.autograd.grad((distance + penalty).sum(), z)
        gradient = torch.where(self.state["signed"], gradient.sign(), gradient)
        return distance.detach(), (distance + penalty).detach(), gradient

    def boxed(self, z: Tensor) -> Tensor:
        return torch.clamp(z, self.state["low"], self.state["high"])

    def step(self, cost: Cost, step: int) -> tuple[Tensor, Tensor]:
        """Move every member once; its distance and its whole cost before the move, (n,) each."""
        distance, whole, gradient = self.gradient(cost, self.state["z"])
        self.state["z"] = self.boxed(self.state["z"] - self.move(gradient, step))
        return distance, whole

    def move(self, gradient: Tensor, step: int) -> Tensor:
        """What this step subtracts from the iterates, (n, D)."""
        raise NotImplementedError


class Adam(Optimizer):
    """Adam with torch's defaults (0.9, 0.999, 1e-8)."""

    moments = ("mean", "square")

    def move(self, gradient: Tensor, step: int) -> Tensor:
        s = self.state
        s["mean"].lerp_(gradient, 0.1)
        s["square"].mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        root = (s["square"] / (1 - 0.999 ** (step + 1))).sqrt_().add_(1e-8)
        return self.rate(step) / (1 - 0.9 ** (step + 1)) * s["mean"] / root


class Sgd(Optimizer):
    """Stochastic gradient descent with Nesterov momentum 0.9."""

    moments = ("momentum",)

    def move(self, gradient: Tensor, step: int) -> Tensor:
        momentum = self.state["momentum"].mul_(0.9).add_(gradient)
        return self.rate(step) * (gradient + 0.9 * momentum)


class Lbfgs(Optimizer):
    """L-BFGS as `torch.optim.LBFGS` without line search, or with a backtracking one; a step is
    `inner` iterations.

    A member that meets one of torch's stopping rules rests until the next step; the others go on.
    Those rules are absolute, and on an untrained ConvNet, whose costs are about 1e-3, they stop an
    attack at its start. With the line search they are relative to the cost instead, and so is the
    first step: a cost times any factor is descended in the same way.
    """

    TOLERANCE_GRADIENT = 1e-7
    TOLERANCE_CHANGE = 1e-9
    moments = ("direction", "previous")

    def __init__(self, attacks: Sequence[Settings], z: Tensor, *args: object):
        super().__init__(attacks, z, *args)
        self.inner = attacks[0].inner
        self.line_search = attacks[0].line_search
        n, size = z.shape
        history = attacks[0].history
        self.state |= {
            "iterations": torch.zeros(n, dtype=torch.int64, device=z.device),
            "length": torch.zeros(n, 1, dtype=z.dtype, device=z.device),
            "diagonal": torch.ones(n, 1, dtype=z.dtype, device=z.device),
            "changes": z.new_zeros(n, history, size),
            "moves": z.new_zeros(n, history, size),
            "rho": z.new_zeros(n, history, 1),
        }

    def step(self, cost: Cost, step: int) -> tuple[Tensor, Tensor]:
        """One outer step of every member; its distance and its whole cost before, (n,) each."""
        s = self.state
        before, value, gradient = self.gradient(cost, s["z"])
        whole = value
        scale = value.abs() if self.line_search else torch.ones_like(value)
        active = gradient.abs().amax(1) > self.TOLERANCE_GRADIENT * scale
        for iteration in range(self.inner):
            self._update(gradient, active)
            first = (s["iterations"] == 0).unsqueeze(1)
            warm = 1 / gradient.abs().sum(1, keepdim=True)
            warm = warm if self.line_search else warm.clamp_max(1)
            length = self.rate(step) * torch.where(first, warm, torch.ones_like(warm))
            s["iterations"] = s["iterations"] + active
            s["previous"] = torch.where(active.unsqueeze(1), gradient, s["previous"])
            slope = (gradient * s["direction"]).sum(1, keepdim=True)
            s["length"] = torch.where(active.unsqueeze(1), length, s["length"])
            active = active & (slope.squeeze(1) <= -self.TOLERANCE_CHANGE * scale)
            if self.line_search:
                length = self._backtrack(cost, value, slope, length, active)
                s["length"] = torch.where(active.unsqueeze(1), length, s["length"])
            s["z"] = torch.where(active.unsqueeze(1), s["z"] + length * s["direction"], s["z"])
            # torch evaluates no more after the last iteration, nor beyond 1.25 evaluations an
            # iteration.
            if iteration == self.inner - 1 or not active.any():
                break
            _, new_value, gradient = self.gradient(cost, s["z"])
            change = (length * s["direction"]).abs().amax(1)
            active = active & (gradient.abs().amax(1) > self.TOLERANCE_GRADIENT * scale)
            gain = (new_value - value).abs()
            active = (
                active & (change > self.TOLERANCE_CHANGE) & (gain >= self.TOLERANCE_CHANGE * scale)
            )
            value = new_value
        s["z"] = self.boxed(s["z"])
        return before, whole

    def _update(self, gradient: Tensor, active: Tensor) -> None:
        """New curvature pair and direction for active members: steepest descent at first, then two
        loops.
        """
        s = self.state
        later = active & (s["iterations"] > 0)
        change = gradient - s["previous"]
        move = s["direction"] * s["length"]
        curvature = (change * move).sum(1, keepdim=True)
        least = 1e-10 * (
            change.norm(dim=1) * move.norm(dim=1) if self.line_search else torch.ones_like(later)
        )
        push = (later & (curvature.squeeze(1) > least)).view(-1, 1, 1)
        for name, new in (("changes", change), ("moves", move), ("rho", 1 / curvature)):
            shifted = torch.cat([s[name][:, 1:], new.unsqueeze(1)], 1)
            s[name] = torch.where(push, shifted, s[name])
        scaled = curvature / (change * change).sum(1, keepdim=True)
        s["diagonal"] = torch.where(push[:, 0], scaled, s["diagonal"])
        direction = torch.where(later.unsqueeze(1), self._two_loops(-gradient), -gradient)
        s["direction"] = torch.where(active.unsqueeze(1), direction, s["direction"])

    def _two_loops(self, q: Tensor) -> Tensor:
        """Inverse Hessian times `q` (Nocedal & Wright, Algorithm 7.4).

        Empty history rows have rho = 0.
        """
        s = self.state
        weights = {}
        used = [
            i
            for i in range(s["rho"].shape[1])
            if i >= s["rho"].shape[1] - int(s["iterations"].max())
        ]
        for i in reversed(used):
            weights[i] = s["rho"][:, i] * (s["moves"][:, i] * q).sum(1, keepdim=True)
            q = q - weights[i] * s["changes"][:, i]
        q = q * s["diagonal"]
        for i in used:
            q = q + s["moves"][:, i] * (
                weights[i] - s["rho"][:, i] * (s["changes"][:, i] * q).sum(1, keepdim=True)
            )
        return q

    def _backtrack(
        self, cost: Cost, value: Tensor, slope: Tensor, length: Tensor, active: Tensor
    ) -> Tensor:
        """Halve each member's step until its cost falls enough (Armijo, 1e-4), at most 12 times; 0
        if it never does.
        """
        z = self.state["z"]
        direction = self.state["direction"]
        good = ~active
        for _ in range(12):
            if good.all():
                break
            with torch.no_grad():
                distance, penalty = cost(z + length * direction)
            good = good | (distance + penalty <= value + 1e-4 * (length * slope).squeeze(1))
            length = torch.where(good.unsqueeze(1), length, length / 2)
        return torch.where(good.unsqueeze(1), length, torch.zeros_like(length))


class LbfgsOnce(Optimizer):
    """L-BFGS that evaluates the cost once a step, for all members together.

    A step evaluates each member's trial point. Where the cost has fallen enough (Armijo, 1e-4) the
    point is accepted, and the next trial is the full L-BFGS step from there; elsewhere the next
    trial is half as far from the last accepted point. After six trials in vain a member forgets its
    curvature and begins anew along its gradient. A cost or gradient that is not finite counts as no
    success. A trial is clamped to the box before it is evaluated. After its last step a member is
    at the last point accepted, its best. `lr` is the length of the first trial in normalized units,
    and `schedule` scales all trials.
    """

    SUFFICIENT = 1e-4
    TRIALS = 6
    moments = ("accepted", "slope", "direction")

    def __init__(self, attacks: Sequence[Settings], z: Tensor, *args: object):
        super().__init__(attacks, z, *args)
        self.history = attacks[0].history
        n, size = z.shape
        self.state["z"] = self.boxed(self.state["z"])
        self.state |= {
            "accepted": self.state["z"].clone(),
            "value": z.new_full((n,), torch.inf),
            "length": z.new_zeros(n, 1),
            "diagonal": z.new_ones(n, 1),
            "trials": torch.zeros(n, dtype=torch.int64, device=z.device),
            "last": torch.tensor([a.steps - 1 for a in attacks], device=z.device),
            "changes": z.new_zeros(n, self.history, size),
            "moves": z.new_zeros(n, self.history, size),
            "rho": z.new_zeros(n, self.history, 1),
        }

    def step(self, cost: Cost, step: int) -> tuple[Tensor, Tensor]:
        """Evaluate each member's trial and choose the next; distance and cost there, (n,) each."""
        s = self.state
        distance, value, gradient = self.gradient(cost, s["z"])
        finite = (value.isfinite() & gradient.isfinite().all(1)).unsqueeze(1)
        gradient = torch.where(finite, gradient, 0)
        move = s["z"] - s["accepted"]
        predicted = (s["slope"] * move).sum(1)
        good = finite & (value <= s["value"] + self.SUFFICIENT * predicted).unsqueeze(1)
        if step:
            self._remember(move, gradient - s["slope"], good, (step - 1) % self.history)
        s["accepted"] = torch.where(good, s["z"], s["accepted"])
        s["slope"] = torch.where(good, gradient, s["slope"])
        s["value"] = torch.where(good.squeeze(1), value, s["value"])
        s["trials"] = torch.where(good.squeeze(1), 0, s["trials"] + 1)
        anew = (s["trials"] == self.TRIALS).unsqueeze(1)
        s["trials"] = torch.where(anew.squeeze(1), 0, s["trials"])
        s["rho"] = torch.where(anew.unsqueeze(2), 0, s["rho"])
        self._aim(step, good, anew)
        trial = self.boxed(s["accepted"] + s["length"] * s["direction"])
        s["z"] = torch.where((s["last"] == step).unsqueeze(1), s["accepted"], trial)
        return distance, value

    def _remember(self, move: Tensor, change: Tensor, good: Tensor, place: int) -> None:
        """Put a curvature pair in its place in the history; an empty one has rho = 0.

        All members share the place, so that nothing is moved in memory.
        """
        s = self.state
        curvature = (change * move).sum(1, keepdim=True)
        least = 1e-8 * change.norm(dim=1, keepdim=True) * move.norm(dim=1, keepdim=True)
        kept = good & (curvature > least)
        s["changes"][:, place] = torch.where(kept, change, 0)
        s["moves"][:, place] = torch.where(kept, move, 0)
        s["rho"][:, place] = torch.where(kept, 1 / curvature, 0)
        square = change.square().sum(1, keepdim=True)
        s["diagonal"] = torch.where(kept, curvature / square, s["diagonal"])

    def _aim(self, step: int, good: Tensor, anew: Tensor) -> None:
        """The next direction and length: new ones after a success or a new beginning, else half as
        far.
        """
        s = self.state
        steepest = -s["slope"]
        newton = self._two_loops(steepest, step)
        downhill = ((newton * s["slope"]).sum(1, keepdim=True) < 0) & newton.isfinite().all(
            1, keepdim=True
        )
        curved = (s["rho"] != 0).any(1) & downhill
        norm = s["slope"].norm(dim=1, keepdim=True).clamp_min(torch.finfo(steepest.dtype).tiny)
        first = s["lr"] / norm * torch.where(anew, 0.1, 1.0)
        full = torch.where(curved, torch.ones_like(first), first)
        changed = good | anew
        direction = torch.where(curved, newton, steepest)
        s["direction"] = torch.where(changed, direction, s["direction"])
        scale = s["factor"][:, step : step + 1]
        s["length"] = torch.where(changed, scale * full, s["length"] / 2)

    def _two_loops(self, q: Tensor, step: int) -> Tensor:
        """Inverse Hessian times `q` (Nocedal & Wright, Algorithm 7.4)."""
        s = self.state
        places = [back % self.history for back in range(step - 1, step - 1 - self.history, -1)]
        places = places[: min(step, self.history)]  # the latest first
        weights = {}
        for i in places:
            weights[i] = s["rho"][:, i] * (s["moves"][:, i] * q).sum(1, keepdim=True)
            q = q - weights[i] * s["changes"][:, i]
        q = q * s["diagonal"]
        for i in reversed(places):
            back = s["rho"][:, i] * (s["changes"][:, i] * q).sum(1, keepdim=True)
            q = q + (weights[i] - back) * s["moves"][:, i]
        return q


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adam": Adam,
    "sgd": Sgd,
    "lbfgs": Lbfgs,
    "lbfgs-once": LbfgsOnce,
}
