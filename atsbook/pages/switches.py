"""Fidelity switches, one at a time: what each point where paper and codes differ changes at this
profile.

Pages of their own measure the others: attack presets (claim 2), where a defense acts (claim 1),
GradSim (claim 6), crop, flip and the loss factor (extension 4). `atsbook.texts.effects` puts all of
them on the Deviations page.
"""

import dataclasses
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from atsbook.findings import compare
from atsbook.findings import statistics as agreement
from atsbook.findings.result import NO_POLICY, Result, Verdict
from atsbook.findings.statistics import ENOUGH
from atsbook.findings.verdicts import MARGIN, does_not_matter, guards
from atsbook.runs.attacks import AttackUnit, attack_unit
from atsbook.runs.networks import (
    ModelUnit,
    OnModel,
    Unit,
    dataset,
    device_of,
    model_unit,
    network,
    semi_trained,
    victim,
)
from atsbook.runs.scoring import ScoreUnit, unseen
from atsbook.runs.settings import Settings
from atsbook.runs.store import Artifact, Store
from atsbook.runs.table1 import HYBRID, on_network, relocated
from atsbook.runs.tables import accuracy_rows, attack_rows, attacked_facts, provenance
from atslib.clients.observe import ThreatModel
from atslib.data.load import DATASETS
from atslib.policies.policy import parse_policy, sample_functions
from atslib.rng import rng
from atslib.scores.scores import VARIANTS, accuracy_score
from atslib.scores.search import RANKINGS, T_ACC

PAGE = "switches"
WIDTHS = {"smoke": 4, "laptop": 16, "full": 64}  # of both ConvNets
NORMALIZED = (
    "resnet20-1"  # attacked untrained, where the first network has no batch normalization to switch
)
OTHER_DATA = "cifar10"  # whose constants the authors' code takes for CIFAR-100
RESTARTS = 4
PRUNED = 0.7
CORRELATED = 64  # images of claim 7's page at laptop
ACC_IMAGES = 100  # behind an accuracy score: one batch
# setting → what it is compared with: the same but for one switch
PAIRS = {
    "other normalization": "base",
    f"{RESTARTS} restarts": "base",
    "optimized label": "base",
    "train-mode victim": "batch norm",
    "unknown statistics": "batch norm",
    "pruned globally": "pruned by tensor",
    "9 convolutions": "8 convolutions",
    "32 pixels": "28 pixels",
    "first member": "hybrid",
    "second member": "hybrid",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccuracyUnit(OnModel):
    """Accuracy scores of policies on an untrained network and on test images that no page attacks."""

    kind: ClassVar[str] = "accuracy"

    model: ModelUnit
    policies: tuple[str, ...]
    images: int
    variant: str
    seed: int = 0

    @property
    def title(self) -> str:
        """How many policies, and which variant."""
        return f"accuracy scores, variant {self.variant}, of {len(self.policies)} policies on {self.model.dataset}"

    @property
    def passes(self) -> float:
        """Forward and backward for each image."""
        return 3 * self.images * len(self.policies)

    def make(self, store: Store, device: torch.device) -> Artifact:
        """`scores` (P,), if they are not in the store."""

        def compute(state: object) -> dict[str, Tensor]:
            model = network(self.model).to(device).eval()
            images = unseen(self.model.dataset)[: self.images]
            policies = [parse_policy(policy) for policy in self.policies]
            streams = [rng(self.seed, "accuracy scores") for _ in policies]
            scores = [
                accuracy_score(model, images, policy, variant=self.variant, rng=stream)
                for policy, stream in zip(policies, streams, strict=True)
            ]
            return {"scores": torch.tensor(scores, dtype=torch.float64)}

        return store.get("accuracy", self, compute, label=self.title)


def attacks(settings: Settings) -> dict[str, AttackUnit]:
    """The page's attacks by setting; most that are compared with are units of claims 1 and 3.

    Of untrained networks, those with batch normalization and the ConvNets have attacks of their own
    kind.
    """
    base = attack_unit(settings)
    hybrid = attack_unit(settings, HYBRID)
    initial = settings.regime == "initial"
    normalized = attack_unit(on_network(settings, NORMALIZED)) if initial else base
    restarted = dataclasses.replace(base.attack, restarts=RESTARTS)
    convnet = {n: f"convnet{n if n > 8 else ''}-{WIDTHS[settings.profile]}" for n in (8, 9)}
    members = HYBRID.split("+")
    by_setting = {
        "base": base,
        "other normalization": dataclasses.replace(
            base, model=dataclasses.replace(base.model, norm=OTHER_DATA)
        ),
        f"{RESTARTS} restarts": dataclasses.replace(base, attack=restarted),
        "optimized label": dataclasses.replace(base, threat=ThreatModel(labels="optimized")),
        "batch norm": normalized,
        "train-mode victim": dataclasses.replace(normalized, threat=ThreatModel(victim="train")),
        "unknown statistics": dataclasses.replace(
            normalized, threat=ThreatModel(batch_norm="unknown")
        ),
        "pruned by tensor": dataclasses.replace(base, defense=f"prune:{PRUNED}"),
        "pruned globally": dataclasses.replace(base, defense=f"prune-global:{PRUNED}"),
        **{
            f"{n} convolutions": attack_unit(on_network(settings, name))
            if initial
            else dataclasses.replace(base, model=model_unit(settings, model=name))
            for n, name in convnet.items()
        },
        "hybrid": hybrid,
        "first member": dataclasses.replace(hybrid, policy=members[0]),
        "second member": dataclasses.replace(hybrid, policy=members[1]),
    }
    if dataset(settings.dataset, "test").pixels.shape[1] == 1 or settings.dataset == OTHER_DATA:
        del by_setting["other normalization"]  # its constants do not fit, or are its own
    grey = relocated(settings, "fmnist", "shapes-grey")
    if f"{grey.dataset}-32" in DATASETS:
        by_setting["28 pixels"] = attack_unit(grey)
        by_setting["32 pixels"] = attack_unit(
            dataclasses.replace(grey, dataset=f"{grey.dataset}-32")
        )
    return by_setting


def _privacy(settings: Settings) -> ScoreUnit:
    """The privacy scores of the page on claim 7: of its random policies and images, on the network
    it attacks.
    """
    return ScoreUnit(
        model=victim(settings) if settings.regime == "initial" else semi_trained(settings),
        policies=tuple(
            map(str, sample_functions(settings.sampled, rng=rng(settings.seed, "correlation")))
        ),
        images=min(CORRELATED, settings.images)
        if settings.profile == "laptop"
        else settings.images,
        points=settings.score_points,
        seed=settings.seed,
    )


def scores(settings: Settings) -> dict[str, ScoreUnit | AccuracyUnit]:
    """Scores of the random policies of claim 7 by score and variant; the first is a unit of that
    page.
    """
    privacy = _privacy(settings)
    untrained = dataclasses.replace(privacy.model, train=None)
    images = min(ACC_IMAGES, len(unseen(settings.dataset)))
    return {
        "s_pri fixed": privacy,
        "s_pri code": dataclasses.replace(privacy, variant="code"),
        **{
            f"s_acc {variant}": AccuracyUnit(
                model=untrained,
                policies=privacy.policies,
                images=images,
                variant=variant,
                seed=settings.seed,
            )
            for variant in VARIANTS
        },
    }


def units(settings: Settings) -> dict[str, Unit]:
    """All that the page needs."""
    return attacks(settings) | scores(settings)


SWITCHES_RULE = (
    "The claim, implied by both papers: what they leave out does not matter. A switch of the attack is judged by the "
    "gain over the best guess of somebody who knows the policy and sees no gradient, where what it is compared with "
    "has a gain on 30 images or more. It does not matter if the 95 % interval of the mean paired change lies inside "
    f"±{MARGIN} dB, and it matters if that interval neither lies inside nor holds 0; else it is undecided. A switch of "
    "a score does not matter if both orders of at least 30 policies have a rank correlation of 0.8 or more. "
    "Reproduced: no switch matters, and fewer than half are undecided. Partly: some matter, but not more than half of "
    "those decided. Not reproduced: more than half. Cannot tell: half or more are undecided or cannot be judged."
)


def decided(attacks: pd.DataFrame) -> pd.DataFrame:
    """One row per switch of the attack: `compare.changes` of the gain, and `matters`: yes, no,
    undecided or why not.

    Args:
        attacks: one row per setting and image, with `psnr`, `floor_policy` and `gain`.
    """
    table = compare.changes(attacks, PAIRS, "gain")
    words = []
    for name, row in table.iterrows():
        why = guards(attacks[attacks["setting"] == PAIRS[name]].assign(policy=NO_POLICY))
        inside = does_not_matter(row["low"], row["high"])
        beyond = not row["low"] <= 0 <= row["high"]
        words.append("; ".join(why) or ("no" if inside else "yes" if beyond else "undecided"))
    return table.assign(matters=words)


def switches_verdict(changes: pd.DataFrame, orders: pd.Series, policies: int) -> Verdict:
    """The fidelity switches by `SWITCHES_RULE`.

    Args:
        changes: rows of `decided`.
        orders: rank correlation of the policies' two orders, by switch of a score.
        policies: behind each correlation.
    """
    matter = [
        f"{name} ({compare.interval(row)})"
        for name, row in changes[changes["matters"] == "yes"].iterrows()
    ]
    known = int(changes["matters"].isin(("yes", "no")).sum())
    if policies >= ENOUGH:
        known += len(orders)
        matter += [
            f"{name} (rank correlation {value:.2f})"
            for name, value in orders.items()
            if not value >= 0.8
        ]
    count = len(changes) + len(orders)
    here = f"{len(matter)} of {known} decided switches matter"
    reason = here + (": " + ", ".join(matter) if matter else "")
    if known <= count / 2:
        return Verdict(
            "cannot tell", f"{known} of {count} switches are decided; {reason}", SWITCHES_RULE, here
        )
    status = "not reproduced" if len(matter) > known / 2 else "partly" if matter else "reproduced"
    return Verdict(status, reason, SWITCHES_RULE, here)


def run(settings: Settings, store: Store) -> Result:
    """Turn each switch.

    Tables: `attacks`, one row per setting and image; `scores`, one row per policy; and of trained
    networks `accuracy`, one row per setting.
    """
    by_setting = attacks(settings)
    rows, sheets = attack_rows(by_setting, ["setting"], settings, store)
    for column in ("dataset", "model"):
        rows[column] = rows["setting"].map(
            {name: getattr(unit.model, column) for name, unit in by_setting.items()}
        )
    trained = {name: unit.model for name, unit in by_setting.items() if unit.model.train}
    networks = {(name, unit.model, unit.dataset): unit for name, unit in trained.items()}
    table = pd.DataFrame({"policy": scores(settings)["s_pri fixed"].policies})
    for name, unit in scores(settings).items():
        values = unit.make(store, device_of(settings.device))["scores"].double().numpy()
        if isinstance(unit, ScoreUnit):
            table[name] = values.mean(1)
            table[f"{name} variance"] = values.var(1)
        else:
            table[name] = values
    verdict = switches_verdict(decided(rows), orders(table)["rank correlation"], len(table))
    tables = {"attacks": rows, "scores": table}
    if networks:
        accuracy = accuracy_rows(networks, ("setting", "model", "dataset"), settings, store)
        tables["accuracy"] = accuracy.drop(columns="train")
    facts = provenance(settings, sheets["base"]) | attacked_facts(by_setting["base"])
    return Result(PAGE, tables, facts, verdict, sheets)


def changes(result: Result) -> pd.DataFrame:
    """One row per switch: what it is compared with, n, the change in PSNR and in gain (dB) with 95
    % intervals.
    """
    table = decided(result.tables["attacks"])
    table.insert(0, "compared with", pd.Series(PAIRS))
    table.insert(2, "PSNR", compare.changes(result.tables["attacks"], PAIRS)["mean"])
    return table.rename(columns={"mean": "gain"})


def orders(scores: pd.DataFrame) -> pd.DataFrame:
    """One row per switch of a score: rank correlation of the policies' two orders, and how many of
    the best ten agree.

    Orders are from the policy that the rule would keep first; the ten are a quarter of them where
    there are fewer than 40 policies.
    """
    spread = scores.rename(columns={"s_pri fixed": "mean", "s_pri fixed variance": "variance"})
    both = RANKINGS["mean+variance"](spread["mean"].to_numpy(), spread["variance"].to_numpy())
    kept = {  # low is kept
        "GradSim by tensor": (scores["s_pri fixed"], scores["s_pri code"]),
        "variance in the ranking": (scores["s_pri fixed"], pd.Series(both)),
        "sign of S_acc": (-scores["s_acc fixed"], -scores["s_acc paper"]),
        "first image of each label": (-scores["s_acc fixed"], -scores["s_acc code"]),
    }
    few = min(10, max(1, len(scores) // 4))
    rows = {}
    for name, (one, other) in kept.items():
        best = [set(values.nsmallest(few).index) for values in (one, other)]
        rank = float(agreement.spearman(one.to_numpy(), other.to_numpy()))
        rows[name] = {
            "policies": len(scores),
            "rank correlation": rank,
            "best": few,
            "shared": len(best[0] & best[1]),
        }
    return (
        pd.DataFrame(rows)
        .T.astype({"policies": int, "best": int, "shared": int})
        .rename_axis("switch")
    )


def rejected(scores: pd.DataFrame) -> float:
    """Share of the policies that the released threshold of -85 rejects, in variant "code"."""
    return float(np.mean(scores["s_acc code"] < T_ACC))


def comparison(result: Result) -> pd.DataFrame:
    """One row per setting: our summary, the gain and the accuracy of the network attacked."""
    return compare.comparison(result, "setting")
