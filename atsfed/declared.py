"""What clients are said to send, by whoever runs their federation: without it no number of theirs
means anything.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atslib.clients.view import Update
from atslib.errors import AtsError, check_types, check_whole, choose

SENT = ("weights", "difference", "gradient")
OPTIMIZERS = ("sgd", "adam", "adamw")
ALIKE = 0.9  # cosine from which on two vectors of a network's size are taken for the same
FLAT = 0.02  # changes whose sizes differ by less, as a share of the largest, are of one size
ONE_SIZE = 0.3  # share of the changes that are of one size from which on they are not those of SGD


@dataclasses.dataclass(frozen=True, kw_only=True)
class Declared:
    """What a client's answer is made of.

    A server knows it, because it is in the app that it hands to its clients.

    Attributes:
        sent: "weights" after training, the "difference" of these to the weights that were sent to
            the client, or a "gradient", the mean over a client's images.
        optimizer: of a client's training: "sgd", "adam" or "adamw", as torch has them.
        lr: its step size.
        steps: how many steps a client takes.
        momentum: of SGD.
        weight_decay: of any of them; torch's AdamW has 0.01 if nothing else is said.
        eps: of Adam and AdamW.
    Raises:
        AtsError: a field is of another type or out of its range, or is of another optimizer.
    """

    sent: str = "weights"
    optimizer: str = "sgd"
    lr: float = 0.1
    steps: int = 1
    momentum: float = 0.0
    weight_decay: float = 0.0
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_types(self)
        choose("Declared.sent", self.sent, SENT)
        choose("Declared.optimizer", self.optimizer, OPTIMIZERS)
        check_whole("Declared.steps", self.steps, 1)
        for name in ("lr", "eps"):
            if not getattr(self, name) > 0:
                raise AtsError(f"Declared.{name}={getattr(self, name)} must be above 0")
        if not 0 <= self.momentum < 1:
            raise AtsError(f"Declared.momentum={self.momentum} must be at least 0 and below 1")
        if self.weight_decay < 0:
            raise AtsError(f"Declared.weight_decay={self.weight_decay} must be at least 0")
        if self.momentum and self.optimizer != "sgd":
            raise AtsError(
                f"Declared.momentum={self.momentum} is of SGD; {self.optimizer} has betas of its own"
            )

    @property
    def title(self) -> str:
        """It in words, for sentences."""
        if self.sent == "gradient":
            return "a gradient"
        steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
        return f"{'the ' if self.sent == 'difference' else ''}{self.sent} after {steps} of {self.optimizer}, lr={self.lr:g}"

    def update(
        self, model: nn.Module, before: Tensor, value: Tensor
    ) -> tuple[Update, tuple[str, ...]]:
        """What one client sent as attacks take it, and what about it cannot be, a sentence each.

        The first step of Adam is lr · g / (|g| + eps). It tells the size of an entry g of the
        gradient as long as that is small: up to about eps · lr over the spacing of floats at the
        weight. Beyond it tells the sign alone, and the update says so (`Update.limit`). Of several
        steps of Adam only their mean is known, which is mostly signs.

        Args:
            model: as the attacker may run it.
            before: (P,) the weights that were sent to the client.
            value: (P,) what came back.
        """
        before = before.double()
        value = value.double()
        change = value - before if self.sent == "weights" else value
        doubts = self.doubts(before, value)
        if self.sent == "gradient":
            return Update(model, _row(value)), doubts
        if self.optimizer == "sgd":
            # The weights of the later steps are not known; over a few steps they are all but the
            # first.
            change = change + self.lr * self.steps * self.weight_decay * before
            local = {"lr": self.lr, "steps": self.steps}
            if self.momentum:
                local["momentum"] = self.momentum
            return Update(model, _row(change), kind="difference", local=local), doubts
        if self.optimizer == "adamw":
            change = change + self.lr * self.steps * self.weight_decay * before
        share = -change / (self.lr * self.steps)
        if self.steps > 1:
            return Update(model, _row(share)), doubts
        gradient, limit = self._before_adam(
            share, torch.maximum(before.abs(), (before + change).abs())
        )
        if self.optimizer == "adam":
            gradient = gradient - self.weight_decay * before
        return Update(model, _row(gradient), limit=_row(limit)), doubts

    def _before_adam(self, share: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient (P,) behind one step of Adam, and up to which size (P,) each entry is known."""
        rounded = weights.float()
        spacing = (
            torch.nextafter(rounded, torch.full_like(rounded, math.inf)).double() - rounded.double()
        )
        noise = (2 * spacing / self.lr).clamp(1e-12, 0.5)
        limit = self.eps * (1 - noise) / noise
        size = share.abs().clamp(max=1)
        known = self.eps * size / (1 - size).clamp_min(noise)
        return share.sign() * torch.minimum(known, limit), limit

    def doubts(self, before: Tensor, value: Tensor) -> tuple[str, ...]:
        """What about the size and direction of what came cannot be of this declaration, a sentence
        each.

        Args:
            before: (P,) the weights that were sent to the client.
            value: (P,) what came back.
        """
        before = before.double()
        value = value.double()
        change = value - before if self.sent == "weights" else value
        if not change.any():
            return (f"nothing changed, which {self.title} does not leave behind",)
        found = []
        like = float(F.cosine_similarity(change, before, dim=0))
        size = float(change.norm() / before.norm().clamp_min(1e-300))
        if self.sent == "weights" and like < -ALIKE and 0.5 < size < 2:
            found.append(
                "what came is much smaller than the weights that were sent: it is a gradient or a difference"
            )
        if self.sent != "weights" and like > ALIKE:
            found.append("what came is all but the weights that were sent: it is weights")
        if self.sent == "gradient":
            return tuple(found)
        largest = float(change.abs().max())
        if self.optimizer == "sgd":
            moved = change[change != 0].abs()
            share = float((moved > (1 - FLAT) * largest).double().mean())
            if share > ONE_SIZE and len(moved) > 100:
                found.append(
                    f"{share:.0%} of the changes are of one size, {largest:.3g}, as Adam makes them and SGD not"
                )
        else:
            decay = self.weight_decay * float(before.abs().max())
            most = self.lr * self.steps * ((1.01 if self.steps == 1 else 1.5) + decay)
            if largest > most:
                found.append(
                    f"a weight changed by {largest:.3g}, where {self.title} changes none by more than {most:.3g}"
                )
            if self.steps == 1 and largest < 0.1 * self.lr:
                found.append(
                    f"no weight changed by more than {largest:.3g}, where the first step changes most by {self.lr:g}"
                )
        return tuple(found)


def _row(values: Tensor) -> Tensor:
    return values.float()[None]
