"""What a server knows and sees: the threat model, and the view that every attack is given.

It holds no image.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from atslib.checkpoints import fingerprint
from atslib.data.images import describe, is_tensor
from atslib.errors import AtsError, check_kind, check_types, choose
from atslib.models import normalization_layer, shared_parameters
from atslib.policies.differentiable import Form, twins
from atslib.policies.policy import parse_policy

KINDS = ("gradient", "difference")
ROWS = (
    "gradients",
    "kept",
    "features",
    "limit",
)  # of an `Update`, what has a row for each of the N


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreatModel:
    """What an honest-but-curious server knows beside the model it sent and the gradient it
    received.

    Attributes:
        labels: "known" (the paper), "inferred" from the last layer's gradient (iDLG; one image per
            gradient), "restored" from it (`restore_labels`; any batch), or "optimized" together
            with the image (DLG).
        batch_norm: "known" or "unknown". If known, the attacker has the running statistics of a
            victim in eval mode, and gets those of the private batch of a victim in train mode
            (`Update.statistics`). If not, it has only the statistics of its own reconstruction.
        victim: "eval" (the paper): the client uses the running statistics; "train": those of its
            batch, and the attacker then runs its reconstruction in the same way.
        batch: images that share one gradient; 1 in the paper.
        defense: what the attacker knows of the policy that the client's defense applies: "unknown",
            "policy" (its text) or "draws" (also what it drew for each image).
    """

    labels: str = "known"
    batch_norm: str = "known"
    victim: str = "eval"
    batch: int = 1
    defense: str = "unknown"

    def __post_init__(self) -> None:
        check_types(self)
        choose("ThreatModel.labels", self.labels, ("known", "inferred", "restored", "optimized"))
        choose("ThreatModel.batch_norm", self.batch_norm, ("known", "unknown"))
        choose("ThreatModel.victim", self.victim, ("eval", "train"))
        choose("ThreatModel.defense", self.defense, ("unknown", "policy", "draws"))
        if self.batch < 1:
            raise AtsError(f"ThreatModel.batch={self.batch}: a gradient is of at least one image")
        if self.labels == "inferred" and self.batch > 1:
            raise AtsError(
                "ThreatModel.labels='inferred' is the iDLG rule, which needs batch=1; 'restored' takes any"
            )


@dataclasses.dataclass(frozen=True)
class Knowledge:
    """What the attacker knows of the transformation that its victims applied.

    Attributes:
        policy: as text, "" for none; None where the attacker does not know it.
        draws: for each update what the policy drew, where the attacker knows that too: which member
            each image got, (N, batch), and its signs, (N, batch, k), as `Policy.draw` gives them.
            Empty where it does not.
    """

    policy: str | None = None
    draws: tuple[tuple[Tensor, Tensor], ...] = ()

    def __post_init__(self) -> None:
        if self.draws and self.policy is None:
            raise AtsError(
                "Knowledge.draws: an attacker cannot know the draws of a policy that it does not know"
            )
        if self.policy is not None:
            parse_policy(self.policy)


@dataclasses.dataclass(frozen=True)
class Update:
    """What N clients sent in one round.

    Attributes:
        model: as the attacker may run it (batch normalization per `ThreatModel`).
        gradients: (N, P), flattened, after the client's defense; of `kind` "difference" the weights
            after local training minus those before.
        kind: "gradient" or "difference".
        statistics: (N, width) by buffer name: what a victim in train mode normalized with, where it
            is known.
        local: what is known of local training, such as {"steps": 5, "lr": 0.1}; None for a single
            gradient.
        forms: for each of the N, what the attacker takes the policy to have made of its images;
            none by default.
        kept: (N, P) bool, the entries of the gradient that the attacker compares; all by default.
        features: (N, D) what the attacker takes the last layer to have got, in place of what its
            own images give; the layers before it are told as if they had made it. None by default.
        limit: (N, P) up to which size each entry of the gradient is known; beyond it, `gradients`
            has the limit with the right sign, and the attacker compares its own gradient cut off in
            the same way. None by default.
        share: of a second image that the attacker takes to be mixed into each; 0 by default. The
            attacked images then come in pairs, of which the network gets the mixture.
    """

    model: nn.Module
    gradients: Tensor
    kind: str = "gradient"
    statistics: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    local: dict[str, float] | None = None
    forms: tuple[Form, ...] = ()
    kept: Tensor | None = None
    features: Tensor | None = None
    share: float = 0.0
    limit: Tensor | None = None

    def __post_init__(self) -> None:
        choose("Update.kind", self.kind, KINDS)
        check_kind("Update.model", self.model, nn.Module, "a torch.nn.Module")
        sizes = [p.numel() for p in shared_parameters(self.model).values()]
        rows = self.gradients
        if (
            not is_tensor(rows)
            or not rows.is_floating_point()
            or rows.ndim != 2
            or rows.shape[1] != sum(sizes)
        ):
            raise AtsError(
                f"Update.gradients are {describe(rows)}; they must be floats (N, {sum(sizes)}), one column for each "
                f"entry of the {len(sizes)} trained parameters of the network"
            )
        for name, columns in (("kept", sum(sizes)), ("features", None)):
            value = getattr(self, name)
            if value is not None and (
                not is_tensor(value)
                or value.ndim != 2
                or value.shape != (len(rows), columns or value.shape[1])
            ):
                raise AtsError(
                    f"Update.{name} is {describe(value)}; it must have a row for each of {len(rows)} gradients"
                )
        check_kind(
            "Update.statistics", self.statistics, dict, "a dict of tensors by the name of a buffer"
        )
        for name, value in self.statistics.items():
            if not is_tensor(value) or value.ndim != 2 or len(value) != len(rows):
                raise AtsError(
                    f"Update.statistics[{name!r}] is {describe(value)}; it must be ({len(rows)}, width)"
                )
        if len(self.forms) not in (0, len(rows)):
            raise AtsError(
                f"Update.forms are {len(self.forms)}; there must be none, or one for each of {len(rows)}"
            )

    @property
    def mean_gradients(self) -> Tensor:
        """`gradients` as the clients' gradients, (N, P): of weights trained locally the mean over
        the steps.
        """
        if self.kind == "gradient":
            return self.gradients
        if not self.local:
            raise AtsError(
                "an update is a difference of weights, and Update.local does not say by which steps"
            )
        return self.gradients / (-self.local["lr"] * self.local["steps"])

    def told(self, features: Tensor) -> Tensor:
        """The values of `features` that the attacker knows, with the slopes of those (N, D) that
        its images give.
        """
        return self.features + (features - features.detach())

    def transformed(self, images: Tensor) -> Tensor:
        """What the network gets of images (N, k, C, H, W) in [0, 1]: they, or the differentiable
        twin of `forms`.
        """
        if self.share:
            images = torch.lerp(images[:, ::2], images[:, 1::2], self.share)
        if not self.forms:
            return images
        each = [form for form in self.forms for _ in range(images.shape[1])]
        return twins(each, images.flatten(0, 1)).view_as(images)


@dataclasses.dataclass(frozen=True)
class Observed:
    """All that the server sees of N times `threat.batch` private images, in one round or several.

    `gradients`, `model` and `statistics` are those of the single update, the usual case.

    Attributes:
        updates: one per round, of the same private images.
        labels: (N, batch) int64, or None where the threat model hides them; where a defense mixed
            them, class probabilities (N, batch, K).
        shape: (C, H, W) of one image.
        knows: what the attacker knows of the client's policy.
        declared: what the clients are said to have sent, in words; "" where nobody has to be
            believed.
        doubts: for each of the N, what about it cannot be of that declaration, a sentence each; ()
            where none was looked for. `Reconstruction.doubts` has also what an attack finds.
    """

    updates: tuple[Update, ...]
    labels: Tensor | None
    shape: tuple[int, int, int]
    threat: ThreatModel
    knows: Knowledge = Knowledge()
    declared: str = ""
    doubts: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        check_kind("Observed.updates", self.updates, tuple, "a tuple of at least one Update")
        if not self.updates:
            raise AtsError("Observed.updates () must be a tuple of at least one Update")
        for update in self.updates:
            check_kind("Observed.updates: one", update, Update, "an Update")
        check_kind("Observed.threat", self.threat, ThreatModel, "an atslib.ThreatModel")
        check_kind("Observed.knows", self.knows, Knowledge, "an atslib.clients.view.Knowledge")
        counts = {len(update.gradients) for update in self.updates}
        if len(counts) > 1:
            raise AtsError(
                f"Observed.updates hold {sorted(counts)} gradients; each round must have as many"
            )
        sides = self.shape if isinstance(self.shape, tuple | list) else ()
        if len(sides) != 3 or not all(isinstance(side, int) and side > 0 for side in sides):
            raise AtsError(
                f"Observed.shape {self.shape!r} must be (C, H, W) of an image, whole numbers above 0"
            )
        mixed = (
            2 if any(update.share for update in self.updates) else 1
        )  # two attacked images for each one sent
        wanted = (len(self), self.threat.batch // mixed)
        labels = self.labels
        if labels is not None and not (
            is_tensor(labels)
            and tuple(labels.shape[:2]) == wanted
            and labels.ndim == (3 if labels.is_floating_point() else 2)
        ):
            raise AtsError(
                f"Observed.labels are {describe(labels)}; they must be whole numbers {wanted}, "
                "or where images were mixed class probabilities, with a further column for each class"
            )

    def __len__(self) -> int:
        return len(self.updates[0].gradients)

    @property
    def gradients(self) -> Tensor:
        """`Update.gradients`, (N, P), of the single update."""
        return self._single("gradients")

    @property
    def model(self) -> nn.Module:
        """`Update.model` of the single update."""
        return self._single("model")

    @property
    def statistics(self) -> dict[str, Tensor]:
        """`Update.statistics` of the single update."""
        return self._single("statistics")

    def _single(self, name: str) -> object:
        if len(self.updates) > 1:
            raise AtsError(
                f"Observed.{name}: there are {len(self.updates)} updates; take it of each in .updates"
            )
        return getattr(self.updates[0], name)

    def take(self, members: slice | Tensor) -> "Observed":
        """The same view of some of the N gradients."""
        rows = torch.arange(len(self))[
            members if isinstance(members, slice) else members.cpu()
        ].tolist()

        def of(value: Tensor) -> Tensor:  # what was drawn may lie elsewhere than the gradients
            return value[members if isinstance(members, slice) else members.to(value.device)]

        def part(update: Update) -> Update:
            statistics = {name: of(value) for name, value in update.statistics.items()}
            forms = tuple(update.forms[row] for row in rows) if update.forms else ()
            whole = {name: getattr(update, name) for name in ROWS}
            own = {name: of(value) for name, value in whole.items() if value is not None}
            return dataclasses.replace(update, statistics=statistics, forms=forms, **own)

        draws = tuple((of(member), of(signs)) for member, signs in self.knows.draws)
        return dataclasses.replace(
            self,
            updates=tuple(map(part, self.updates)),
            labels=None if self.labels is None else of(self.labels),
            doubts=tuple(self.doubts[row] for row in rows) if self.doubts else (),
            knows=dataclasses.replace(self.knows, draws=draws),
        )

    @classmethod
    def join(cls, rounds: Sequence["Observed"]) -> "Observed":
        """Several views of the same private images as one, its updates in the order given.

        Raises:
            AtsError: there is none, or two differ in what the same images must share.
        """
        _agree("join: rounds", [_shared(seen) for seen in rounds])
        first = rounds[0]
        draws = tuple(draw for seen in rounds for draw in seen.knows.draws)
        updates = tuple(update for seen in rounds for update in seen.updates)
        return dataclasses.replace(
            first, updates=updates, knows=dataclasses.replace(first.knows, draws=draws)
        )

    @classmethod
    def beside(cls, views: Sequence["Observed"]) -> "Observed":
        """Views of different clients in the same rounds as one, their gradients in the order given.

        An attack on it takes all of them at once, and finds of each what it finds of it alone.

        Raises:
            AtsError: there is none, or two differ in what one attack must share.
        """
        _agree("beside: views", [_alike(seen) for seen in views])
        first = views[0]
        rounds = list(zip(*(seen.updates for seen in views), strict=True))
        draws = zip(*(seen.knows.draws for seen in views), strict=True)
        drawn = tuple(tuple(torch.cat(part) for part in zip(*each, strict=True)) for each in draws)
        return dataclasses.replace(
            first,
            updates=tuple(map(_side_by_side, rounds)),
            labels=_cat([seen.labels for seen in views]),
            doubts=tuple(own for seen in views for own in seen.doubts or ((),) * len(seen)),
            knows=dataclasses.replace(first.knows, draws=drawn),
        )


def _cat(parts: Sequence[Tensor | None]) -> Tensor | None:
    return None if parts[0] is None else torch.cat(list(parts))


def _side_by_side(updates: Sequence[Update]) -> Update:
    """Updates of the same round, of different clients, as one."""
    whole = {name: _cat([getattr(each, name) for each in updates]) for name in ROWS}
    statistics = {
        name: torch.cat([each.statistics[name] for each in updates])
        for name in updates[0].statistics
    }
    forms = tuple(form for each in updates for form in each.forms)
    return dataclasses.replace(updates[0], statistics=statistics, forms=forms, **whole)


def _agree(who: str, facts: Sequence[dict[str, object]]) -> None:
    """Refuse views that differ in a fact, by name."""
    if not facts:
        raise AtsError(
            f"Observed.{who.split(':')[0]}: no {who.split()[1][:-1]} is given; at least one is needed"
        )
    for i, there in enumerate(facts[1:], 1):
        for name, here in facts[0].items():
            if here != there[name]:
                raise AtsError(
                    f"Observed.{who} 0 and {i} differ in {name}: {here} and {there[name]}"
                )


def _alike(seen: Observed) -> dict[str, object]:
    """What views of different clients have in common if one attack can take them all."""
    updates = seen.updates
    return {
        "rounds": len(updates),
        "image shape": seen.shape,
        "threat": seen.threat,
        "shape of known labels": None if seen.labels is None else tuple(seen.labels.shape[1:]),
        "policy": seen.knows.policy,
        "declaration": seen.declared,
        "known draws": len(seen.knows.draws),
        "kind of update": [update.kind for update in updates],
        "local training": [update.local for update in updates],
        "share of a second image": [update.share for update in updates],
        "what is known of each update": [
            [name for name in ("forms", "statistics", *ROWS[1:]) if _known(getattr(update, name))]
            for update in updates
        ],
        "network": [fingerprint(update.model) for update in updates],
    }


def _known(value: Tensor | dict | tuple | None) -> bool:
    return value is not None and len(value) > 0


def _shared(seen: Observed) -> dict[str, object]:
    """What all rounds of the same images have in common."""
    normalize = normalization_layer(seen.updates[0].model)
    return {
        "labels": None if seen.labels is None else seen.labels.tolist(),
        "image shape": seen.shape,
        "threat": seen.threat,
        "policy": seen.knows.policy,
        "known draws": len(seen.knows.draws) == len(seen.updates),
        "gradients and parameters": tuple(seen.updates[0].gradients.shape),
        "normalization": (normalize.mean.flatten().tolist(), normalize.std.flatten().tolist()),
    }
