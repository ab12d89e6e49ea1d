"""What else is looked for in the images that attacks recovered: beside `atsbook.experiment`."""

import dataclasses
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from atsbook.experiment import CANDIDATES, AttackRequest
from atsbook.kept import Kept
from atsbook.networks import ModelRequest, dataset
from atsbook.packing import as_kept
from atsbook.store import Store
from atslib.clients.prepare import to_images
from atslib.errors import AtsError
from atslib.measures.found import CANDIDATES as OF_A_CLASS
from atslib.measures.found import bits, own_class, rank
from atslib.measures.identification import identification
from atslib.measures.perceptual import recognize
from atslib.policies.policy import forms, parse_policy


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfAttack(AttackRequest):
    """Something that is looked for in an attack's images: described as the attack is, and kept under
    a kind of its own.
    """

    def __post_init__(self) -> None:
        """An attack's kind goes with its class, this one's does not."""

    @classmethod
    def of(cls, request: AttackRequest) -> "OfAttack":
        """What is looked for in this attack's images."""
        return cls(
            **{field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
        )

    @property
    def attack_request(self) -> AttackRequest:
        """The attack whose images are looked at."""
        return AttackRequest(
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        )

    @property
    def needs(self) -> tuple[Kept, ...]:
        """The network and the attack."""
        return (*super().needs, self.attack_request)

    @property
    def passes(self) -> float:
        """No network is needed."""
        return 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoundRequest(OfAttack):
    """`rank_knowing` (B,): rank of each photograph for a server that knows the policy, but not what
    was drawn.

    It compares a reconstruction with all `forms` that the policy can give to each of 100 untouched
    test images; shifts of a crop and mirror images it tolerates as `ranks` does.
    """

    kind: ClassVar[str] = "ranks"

    @property
    def title(self) -> str:
        """Those of the attack, and what is looked for."""
        return f"photographs found, {super().title}"

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Compare each reconstruction with every form of the hundred."""
        test = dataset(self.model.dataset, "test").pixels
        policy = parse_policy(self.policy)
        estimates = self.attack_request.make(store, device)["reconstruction"].cpu()
        parts = []
        for low in range(self.first - self.first % CANDIDATES, self.last, CANDIDATES):
            begin, end = max(low, self.first), min(low + CANDIDATES, self.last)
            known = to_images(forms(policy, test[low : low + CANDIDATES]))
            rows = estimates[begin - self.first : end - self.first]
            parts.append(identification(rows, known, torch.arange(begin, end) - low))
        return {"rank_knowing": torch.cat(parts)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfAttacks(Kept):
    """A request that makes the attacks of another, its field `attacks`, itself, and looks for their
    photographs.
    """

    attacks: Kept

    @property
    def model(self) -> ModelRequest:
        """The attacked network."""
        return self.attacks.model

    @property
    def needs(self) -> tuple[Kept, ...]:
        """What the attacks need, and not their own result."""
        return self.attacks.needs

    @property
    def title(self) -> str:
        """That of the attacks, and what is looked for."""
        return f"photographs found, {self.attacks.title}"

    @property
    def passes(self) -> float:
        """Those of the attacks."""
        return self.attacks.passes


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecognizedRequest(Kept):
    """Where a network that knows pictures ranks the photographs behind several attacks.

    Its tensors (A, B), a row for each attack:

    - `seen_rank`: place of the photograph among those of its class by features of an ImageNet
      network, 1: recognized.
    - `seen_bits`: what that tells of it.
    - `used_rank`, `used_bits`: the same of the images that the client used, which a perfect attack
      would bring back.

    Attributes:
        attacks: on the same photographs, whose candidates are looked at once.
        most: candidates of each photograph's own class.
    """

    kind: ClassVar[str] = "recognized"

    attacks: tuple[AttackRequest, ...]
    most: int = OF_A_CLASS

    def __post_init__(self) -> None:
        same = {(a.model.dataset, a.first, a.last) for a in self.attacks}
        if len(same) != 1:
            raise AtsError(
                f"recognized: {len(same)} sets of photographs; the attacks must share one"
            )

    @property
    def model(self) -> ModelRequest:
        """The network of the first attack."""
        return self.attacks[0].model

    @property
    def title(self) -> str:
        """How many attacks, and of which photographs."""
        first = self.attacks[0]
        rows = f"{first.first}-{first.last - 1}"
        return f"photographs {rows} recognized by a network, {len(self.attacks)} attacks"

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Look at what was recovered, and at what was used."""
        first = self.attacks[0]
        test = dataset(first.model.dataset, "test")
        candidates, truth = own_class(test.labels, first.images, most=self.most)
        kept = [attack.make(store, device) for attack in self.attacks]
        made = [as_kept(one["reconstruction"].cpu()) for one in kept]
        # What the client used is the same for all attacks on one policy, draw, and crop or none.
        draws = [(attack.policy, attack.seed, attack.crop_flip) for attack in self.attacks]
        used = dict(zip(draws, (one["target"].cpu() for one in kept), strict=True))
        images = to_images(torch.cat([*made, *used.values()]))
        times = len(images) // len(truth)
        alike = recognize(images, test.pixels, candidates.repeat(times, 1)).split(len(truth))
        of_used = dict(zip(used, alike[len(made) :], strict=True))
        found = {}
        for name, each in {
            "seen": alike[: len(made)],
            "used": [of_used[key] for key in draws],
        }.items():
            found[f"{name}_rank"] = torch.stack([rank(one, truth) for one in each])
            found[f"{name}_bits"] = torch.stack([bits(one, truth) for one in each])
        return found
