"""An attacker who knows the policy: gradient matching of the image *before* the policy."""

import dataclasses
import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from atslib.attacks.attack import Reconstruction
from atslib.attacks.engine import match
from atslib.attacks.matching import GradientMatching
from atslib.attacks.starts import STARTS
from atslib.clients.threat import Observed, Update
from atslib.errors import AtsError, check_kind, check_types
from atslib.models import normalization_layer
from atslib.policies.operations import OPS, magnitude
from atslib.policies.policy import Hybrid, parse_policy
from atslib.policies.twins import SIGNED, twin

Form = tuple[tuple[int, ...], tuple[int, ...]]  # operations, and the sign that was drawn for each


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThroughPolicy:
    """Searches the image whose gradient, *after the policy*, is the one that was seen.

    The policy's operations are modelled by their differentiable `twin`. What was drawn for an image, member and signs,
    is tried in every form, and the one of least cost is kept: the attacker's own cost, never the truth. Where
    the draws are known (`ThreatModel.defense` "draws") there is one form for each image. Crop and flip are not
    modelled: what comes out is the image before the policy and after them. Pixels that the policy moved out of
    the frame leave no trace in the gradient; the prior of `inner` fills them.

    Attributes:
        inner: the attack that is made in each form.
        trial: steps after which only the `keep` cheapest forms of each image are attacked in full; 0: all are.
        keep: how many.
    """

    inner: GradientMatching
    trial: int = 0
    keep: int = 2

    def __post_init__(self) -> None:
        check_types(self)
        check_kind("ThroughPolicy.inner", self.inner, GradientMatching, "an atslib.GradientMatching")
        for field, least in (("trial", 0), ("keep", 1)):
            if getattr(self, field) < least:
                raise AtsError(f"ThroughPolicy.{field}={getattr(self, field)} must be at least {least}")

    @property
    def title(self) -> str:
        """The inner attack's, in words."""
        return f"{self.inner.title} through the policy"

    @property
    def evaluations(self) -> int:
        """How often the gradient of the cost is computed for each image, of a policy with eight forms."""
        return 8 * self.trial + (self.keep if self.trial else 8) * self.inner.evaluations

    def run(
        self, seen: Observed, *, rng: torch.Generator, start: Tensor | None = None, progress: bool = False
    ) -> Reconstruction:
        """Run it on every gradient of `seen`.

        Args:
            seen: of one image per gradient, by a server that knows the policy (`ThreatModel.defense`).
            start: (N, C, H, W) in [0, 1] units, or (restarts, N, C, H, W), where every form begins.
        Raises:
            AtsError: the policy is not known, or a gradient is of several images.
        """
        if seen.knows.policy is None:
            raise AtsError("ThroughPolicy needs a server that knows the policy: ThreatModel(defense='policy')")
        if seen.threat.batch > 1:
            raise AtsError(f"ThroughPolicy needs one image per gradient; ThreatModel.batch={seen.threat.batch}")
        possible = forms(seen.knows.policy)
        begin = self._starts(seen, rng) if start is None else start.reshape(-1, len(seen), *seen.shape)

        def made(form: Form, rows: Tensor, attack: GradientMatching) -> Reconstruction:
            part = through(seen.take(rows), form)
            return match(part, [attack] * len(rows), rng=rng, start=begin[:, rows], progress=progress)

        tried = self._tried(seen, possible, made)
        best: Reconstruction | None = None
        for form, rows in zip(possible, tried.T, strict=True):
            if len(chosen := rows.nonzero().squeeze(1)):
                best = _cheaper(best, made(form, chosen, self.inner), chosen, seen)
        return best

    def _starts(self, seen: Observed, rng: torch.Generator) -> Tensor:
        """Where every form begins, (restarts, N, C, H, W) in [0, 1] units."""
        draw, normalize = STARTS[self.inner.start], normalization_layer(seen.updates[0].model)
        drawn = [draw(seen.shape, rng, normalize) for _ in range(self.inner.restarts * len(seen))]
        return normalize.inverse(torch.stack(drawn).to(normalize.mean)).unflatten(0, (-1, len(seen)))

    def _tried(
        self, seen: Observed, possible: list[Form], made: Callable[[Form, Tensor, GradientMatching], Reconstruction]
    ) -> Tensor:
        """Which forms are attacked in full, (N, V) bool."""
        if seen.knows.draws:
            return _drawn(seen, possible)
        everyone = torch.arange(len(seen))
        whole = torch.ones(len(seen), len(possible), dtype=torch.bool)
        if not self.trial or len(possible) <= self.keep:
            return whole
        short = dataclasses.replace(self.inner, steps=self.trial)
        costs = torch.stack([made(form, everyone, short).cost for form in possible], 1).cpu()
        order = costs.nan_to_num(torch.inf, torch.inf, torch.inf).argsort(1)
        return torch.zeros_like(whole).scatter_(1, order[:, : self.keep], True)


def forms(policy: str) -> list[Form]:
    """All that a policy can draw, one entry per member and combination of the signs that matter."""
    parsed, found = parse_policy(policy), []
    for member in parsed.members if isinstance(parsed, Hybrid) else (parsed,):
        turns = [(1, -1) if OPS[i].name in SIGNED and magnitude(OPS[i]) else (1,) for i in member.ids]
        found += [(member.ids, signs) for signs in itertools.product(*turns)]
    return list(dict.fromkeys(found))


def _drawn(seen: Observed, possible: list[Form]) -> Tensor:
    """The one form of each image that was drawn, (N, V) bool."""
    (member, signs), parsed = seen.knows.draws[0], parse_policy(seen.knows.policy)
    members = parsed.members if isinstance(parsed, Hybrid) else (parsed,)
    found = torch.zeros(len(seen), len(possible), dtype=torch.bool)
    for row, (which, drawn) in enumerate(zip(member.flatten().tolist(), signs.flatten(0, 1).tolist(), strict=True)):
        ids = members[which].ids
        matter = [OPS[i].name in SIGNED and bool(magnitude(OPS[i])) for i in ids]
        known = tuple(sign if counts else 1 for sign, counts in zip(drawn, matter, strict=False))
        found[row, possible.index((ids, known))] = True
    return found


class Through(nn.Module):
    """A network behind a policy: [0, 1] images → one form of the policy → the network."""

    def __init__(self, model: nn.Module, form: Form):
        super().__init__()
        self.normalize, self.model = normalization_layer(model), model
        self.ids, self.signs = form

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) in [0, 1] → logits."""
        signs = torch.tensor([self.signs] * len(images)).view(len(images), len(self.ids))
        return self.model(twin(self.ids, images, signs))


def through(seen: Observed, form: Form) -> Observed:
    """What was seen, by an attacker who puts one form of the policy in front of the network."""

    def behind(update: Update) -> Update:
        statistics = {f"model.{name}": value for name, value in update.statistics.items()}
        return dataclasses.replace(update, model=Through(update.model, form), statistics=statistics)

    return dataclasses.replace(seen, updates=tuple(map(behind, seen.updates)))


def _cheaper(best: Reconstruction | None, new: Reconstruction, rows: Tensor, seen: Observed) -> Reconstruction:
    """The best so far of all N images, with what is cheaper in `new`, which is of some of them."""
    if best is None:
        images = new.images.new_zeros(len(seen), *seen.shape)
        best = dataclasses.replace(
            Reconstruction.of(images, seen),
            cost=new.cost.new_full((len(seen),), torch.inf),
            trace=new.trace.new_full((len(new.trace), len(seen)), torch.nan),
            labels=new.labels.new_full((len(seen), 1), -1),
        )
    rows = rows.to(new.cost.device)
    better = new.cost < best.cost[rows]
    into, taken = rows[better], better.nonzero().squeeze(1)
    values = {name: getattr(best, name).clone() for name in ("images", "cost", "labels", "stuck", "restart", "trace")}
    for name, value in values.items():
        if name == "trace":
            value[:, into] = new.trace[:, taken]
        else:
            value[into] = getattr(new, name)[taken]
    return dataclasses.replace(best, **values)
