"""What is audited: the settings of an audit, and the cases that follow from them."""

import dataclasses

from atslib.clients.defenses.defense import Defense, Transformation
from atslib.clients.updates import LocalTraining
from atslib.clients.view import ThreatModel
from atslib.errors import AtsError, check_kind, check_types, check_whole, choose

OPTIMIZERS = ("sgd", "adam")
KNOWLEDGE = {
    "nothing": "unknown",
    "policy": "policy",
    "draws": "draws",
}  # ours → `ThreatModel.defense`
LEAST_IMAGES = 12
# Settings that decide nothing but how long it may take, and what it is held against
LEFT_OUT = ("limit", "named_limit", "budget")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """What is shared, who looks at it, and how much time there is.

    Attributes:
        batch: how many images share one gradient or update; each number is a case of its own.
        local: how a client trains before it shares; None: it shares one gradient.
        optimizer: of local training, "sgd" or "adam" (torch's default moments; `local.momentum` is
            not used).
        policy: of the client, such as "3-1-7+43-18-18"; "" for none.
        defense: of the client beside the policy, such as "prune:0.7"; "" for none.
        labels: whether the server knows them: "known", or "restored" from what is shared.
        victim: "eval": clients normalize with running statistics; "train": with those of their
            batch.
        batch_norm: whether the server knows these statistics, "known" or "unknown".
        clients: of how many clients' answers the server sees only the sum, as with secure
            aggregation; 1: it sees each.
        rounds: how often the same images are shared, with weights that move on in between.
        pretrained: whether training starts from the given weights. Then the untrained network is
            only the control.
        limit: share of images that may be found, in (0, 1); None for no limit.
        named_limit: share of images that a server may name that holds the candidates, in (0, 1);
            None for no limit. Such a server can also compare what is rebuilt, so that no more may
            be found either.
        attacked: how many images in each case; None: as many as the budget allows.
        steps: of each attack; None: as many as the budget allows.
        budget: seconds that the audit may take.
        thorough: whether it takes them where a first look at few photographs shows beyond doubt that
            more is found than the limit, too.
        seed: of all draws.
    """

    batch: tuple[int, ...] = (1, 8)
    local: LocalTraining | None = None
    optimizer: str = "sgd"
    policy: str = ""
    defense: str = ""
    labels: str = "known"
    victim: str = "eval"
    batch_norm: str = "known"
    clients: int = 1
    rounds: int = 1
    pretrained: bool = False
    limit: float | None = None
    named_limit: float | None = None
    attacked: int | None = None
    steps: int | None = None
    budget: float = 600.0
    thorough: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        batch = (self.batch,) if isinstance(self.batch, int) else self.batch
        check_kind("audit: batch", batch, tuple | list, "one number of images, or several")
        object.__setattr__(self, "batch", tuple(dict.fromkeys(batch)))
        check_types(self)
        if not self.batch:
            raise AtsError(
                "audit: batch=() is empty; name at least one number of images, such as 1"
            )
        for size in self.batch:
            check_whole("audit: batch", size, 1)
        for name in ("clients", "rounds"):
            check_whole(f"audit: {name}", getattr(self, name), 1)
        for name, least in (("attacked", 2), ("steps", 1)):
            if getattr(self, name) is not None:
                check_whole(f"audit: {name}", getattr(self, name), least)
        choose("audit: optimizer", self.optimizer, OPTIMIZERS)
        choose("audit: labels", self.labels, ("known", "restored"))
        ThreatModel(victim=self.victim, batch_norm=self.batch_norm)
        if self.local is not None:
            check_kind(
                "audit: local", self.local, LocalTraining, "an atslib.clients.updates.LocalTraining"
            )
            for size in self.batch:
                self.local.steps(size)
        if not self.budget > 0:
            raise AtsError(f"audit: budget={self.budget} must be above 0 seconds")
        for name in ("limit", "named_limit"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, float | int) and 0 < value < 1):
                raise AtsError(
                    f"audit: {name}={value!r} must be a share above 0 and below 1, such as 0.05"
                )
        if self.named_limit is not None:
            object.__setattr__(self, "limit", min(self.limit or 1.0, self.named_limit))
        if self.policy and not isinstance(Defense.parse(self.policy), Transformation):
            raise AtsError(
                f"audit: policy {self.policy!r} is none; write it as 3-1-7, and the rest as a defense"
            )
        if any(isinstance(part, Transformation) for part in Defense.parse(self.defense).parts):
            raise AtsError(f"audit: defense {self.defense!r} has a policy; give that as the policy")

    @property
    def defended(self) -> str:
        """Policy and defense as one text, "" for neither."""
        return " | ".join(filter(None, (self.policy, self.defense)))

    def decides(self) -> dict[str, object]:
        """All that decides the results, and not how long they may take or what they are held
        against.
        """
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if name not in LEFT_OUT}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One situation that is attacked.

    Attributes:
        weights: "untrained", or "given" for the weights that the network came with.
        shared: "gradient" or "update", the change of weights that local training makes.
        batch: images behind one gradient or update of one client.
        defense: of the client, policy included.
        knows: what the server knows of the policy: "nothing", the "policy", or its "draws" too.
        labels, clients, rounds: as in `AuditConfig`.
        control: the case on which the attack has to work.
        counts: whether it is held against the limit.
        recorded: whether it is what a federation has kept, and not what is made here.
    """

    weights: str
    shared: str = "gradient"
    batch: int = 1
    defense: str = ""
    knows: str = "nothing"
    labels: str = "known"
    clients: int = 1
    rounds: int = 1
    control: bool = False
    counts: bool = True
    recorded: bool = False

    @property
    def images(self) -> int:
        """Images behind one thing that the server sees."""
        return self.batch * self.clients

    @property
    def group(self) -> tuple[str, str, int, int, int]:
        """Cases of one group are attacked with the same settings: those that were best without a
        defense.
        """
        return self.weights, self.shared, self.batch, self.clients, self.rounds

    @property
    def title(self) -> str:
        """The case in words."""
        of = "1 image" if self.batch == 1 else f"{self.batch} images"
        what = (
            f"one gradient of {of}" if self.shared == "gradient" else f"an update trained on {of}"
        )
        if self.clients > 1:
            what = f"the sum over {self.clients} clients, each {what}"
        if self.rounds > 1:
            what = f"{self.rounds} rounds, in each {what}"
        weights = "untrained network" if self.weights == "untrained" else "given weights"
        if self.recorded:
            what = f"a recorded {what.removeprefix('one ').removeprefix('an ')}"
            weights = "the weights that were sent"
        words = [what, weights]
        if self.labels == "restored":
            words.append("labels restored")
        if self.defense:
            words.append(f"defense {self.defense}")
            told = {
                "nothing": "policy unknown to the server",
                "policy": "policy known",
                "draws": "policy and draws known",
            }
            if self.has_policy:
                words.append(told[self.knows])
        return ", ".join(words)

    @property
    def has_policy(self) -> bool:
        """Whether the defense has a policy in it."""
        return any(isinstance(part, Transformation) for part in Defense.parse(self.defense).parts)


def cases_of(config: AuditConfig, *, untrained: bool = True, given: bool = True) -> list[Case]:
    """The cases of an audit, the control first.

    Args:
        config: what is shared, and by whom it is seen.
        untrained, given: which weights there are.
    """
    found = [Case(weights="untrained" if untrained else "given", control=True, counts=False)]
    weights = ["untrained"] * (untrained and not (config.pretrained and given)) + ["given"] * given
    shared = "gradient" if config.local is None else "update"
    common = {
        "shared": shared,
        "labels": config.labels,
        "clients": config.clients,
        "rounds": config.rounds,
    }
    for name in weights:
        for batch in config.batch:
            plain = Case(weights=name, batch=batch, counts=not config.defended, **common)
            found.append(plain)
            if not config.defended:
                continue
            told = (
                ("nothing", "policy", "draws")
                if config.policy and plain.images == 1
                else ("nothing",)
            )
            found += [
                dataclasses.replace(plain, defense=config.defended, knows=knows, counts=True)
                for knows in told
            ]
    for counts in (True, False):
        same = dataclasses.replace(found[0], control=False, counts=counts)
        if same in found:  # what the client does, or would without a defense: attacked once
            found[0] = dataclasses.replace(found[0], counts=counts)
            found.remove(same)
    return found


def not_tested(config: AuditConfig, cases: list[Case]) -> list[str]:
    """What an audit of these cases says nothing about, one sentence each."""
    sentences = [
        "Servers that send manipulated weights or another network (active attacks) and clients that attack others.",
        "Attackers with a generative model of such photographs; they can do better than the attacks here.",
        "Text, tabular data, segmentation and detection.",
        "Membership inference, and what the finished model itself has memorized.",
        "Servers that do not know whether the photograph is among theirs, or that hold one which is only like it: in "
        "the line-up it is among the candidates, pixel for pixel.",
    ]
    if config.rounds == 1:
        sentences.append("Several updates on the same photographs (--rounds).")
    if config.local is None:
        sentences.append("Updates after several local steps (--local-steps).")
    if config.labels == "known":
        sentences.append(
            "Servers that do not know the labels (--labels restored); here they are told."
        )
    if config.victim == "eval":
        sentences.append(
            "Clients whose batch normalization uses their batch's own statistics (--victim train)."
        )
    if config.policy and any(case.images > 1 for case in cases):
        sentences.append(
            "Reconstructions by servers that know the policy and see several images at once: the attack takes one "
            "image, the line-up any number."
        )
    return sentences
