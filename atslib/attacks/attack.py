"""The protocol of attacks: from what a server saw to a reconstruction."""

import dataclasses
from typing import Protocol

import torch
from torch import Tensor

from atslib.clients.observe import Observed
from atslib.errors import AtsError, check_kind

FARTHEST = 10  # from 0, in units of [0, 1]: a value beyond 1 may be meant, one of 255 is a mistake


@dataclasses.dataclass(frozen=True)
class Reconstruction:
    """What an attack made of N gradients of k images each, B = N · k images in all.

    Attributes:
        images: (B, C, H, W) in [0, 1] units; outside them only where the attack is not boxed. Where
            several images share a gradient, those of a batch come in no particular order:
            `atslib.measures.align` pairs them with the true images.
        cost: (N,) final distance between gradients, without the penalties; lower is a better match.
            Not finite where a member diverged.
        trace: (T, N) that distance before each step; nan after a member's last step.
        frames: (F, B, C, H, W) in [0, 1] units, the iterate at `frame_steps`.
        labels: (N, k) the labels known, inferred or optimized; -1 where the attack found none.
        stuck: (N,) bool: whether the attack never left its start, as happens where the image
            gradient is 0 there.
        restart: (N,) which restart was kept: the one of least cost.
        costs: (R, N) the cost of every restart.
        restarts: (R, B, C, H, W) in [0, 1] units, the images of all, where asked for, else (0,
            ...). Choosing among them by the truth is an oracle that no attacker has: label it so.
        doubts: for each of the N, why it is not what its client is said to have sent, a sentence
            each; () where nothing was declared (`Observed.declared`).
    """

    images: Tensor
    cost: Tensor
    trace: Tensor
    frames: Tensor
    frame_steps: tuple[int, ...]
    labels: Tensor
    stuck: Tensor
    restart: Tensor
    costs: Tensor
    restarts: Tensor
    doubts: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, images: Tensor, seen: Observed) -> "Reconstruction":
        """A result of which only the images (B, C, H, W) are known: the cost is nan, trace and
        frames are empty.

        Raises:
            AtsError: the images are not as many or not of the shape that `seen` says, or not in
                units of [0, 1].
        """
        check_returned(images, seen)
        wanted = tuple(images.shape)
        members = len(seen)
        unknown_cost = images.new_full((1, members), torch.nan)
        if not (images.abs() <= FARTHEST).all():
            raise AtsError(
                f"an attack returned values up to {images.abs().max():.4g}; images are in units of [0, 1]"
            )
        none = images.new_zeros((0, *wanted))
        device = images.device
        unknown = torch.full((members, seen.threat.batch), -1, device=device)
        return cls(
            images=images,
            cost=unknown_cost[0],
            trace=images.new_zeros((0, members)),
            frames=none,
            frame_steps=(),
            labels=unknown if seen.labels is None else class_numbers(seen.labels),
            stuck=torch.zeros(members, dtype=torch.bool, device=device),
            restart=torch.zeros(members, dtype=torch.int64, device=device),
            costs=unknown_cost,
            restarts=none,
        )


def check_returned(images: Tensor, seen: Observed) -> None:
    """Raise `AtsError` unless these are as many float images, and of the shape, as an attack on
    `seen` makes.
    """
    check_kind("an attack returned images", images, Tensor, "a torch.Tensor")
    wanted = (len(seen) * seen.threat.batch, *seen.shape)
    if tuple(images.shape) != wanted or not images.is_floating_point():
        raise AtsError(
            f"an attack returned {tuple(images.shape)} {images.dtype}; it must be {wanted} floats"
        )


class Attack(Protocol):
    """Anything with this method is an attack; `atslib.reconstruct` also takes a plain function of the
    same arguments, and a `GradientMatching`, which only describes an attack.

    To stand in the report's tables an attack is a frozen dataclass, whose fields then name its
    results on disk.
    """

    def run(self, seen: Observed, *, rng: torch.Generator) -> Reconstruction | Tensor:
        """Reconstruct all images of `seen`, as a `Reconstruction` or as images (B, C, H, W) in [0,
        1].

        Random numbers come from `rng`. The method may take further options of `reconstruct` by
        name, such as `start` or `progress`; those that it does not name are not given.
        """
        ...


def class_numbers(labels: Tensor) -> Tensor:
    """Class numbers (N, k), also of class probabilities (N, k, K), which a defense that mixes images
    leaves.
    """
    return labels.argmax(-1) if labels.ndim == 3 else labels
