"""Fidelity switches, one at a time: what each point where paper and codes differ changes at this profile.

Pages of their own measure the others: attack presets (claim 2), where a defense acts (claim 1), GradSim (claim
6), crop, flip and the loss factor (extension 4). `atslib.report.book.effects` puts all of them on the Deviations page.
"""

import dataclasses
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from atslib.clients.threat import ThreatModel
from atslib.data.load import DATASETS
from atslib.measures import statistics as agreement
from atslib.policies.policy import parse_policy
from atslib.report import compare
from atslib.report.pages import claim7_correlation
from atslib.report.result import Result, Verdict
from atslib.report.units.networks import ModelUnit, OnModel, Unit, dataset, device_of, model_unit, network
from atslib.report.units.scoring import ScoreUnit, unseen
from atslib.report.units.settings import Settings
from atslib.report.units.table1 import HYBRID, relocated
from atslib.report.units.tables import accuracy_rows, attack_rows, provenance
from atslib.report.units.units import AttackUnit, attack_unit
from atslib.rng import rng
from atslib.scores.scores import VARIANTS, accuracy_score
from atslib.scores.search import RANKINGS, T_ACC
from atslib.store import Artifact, Store

PAGE = "switches"
WIDTHS = {"smoke": 4, "quick": 16, "laptop": 16, "full": 64}  # of both ConvNets
OTHER_DATA = "cifar10"  # whose constants the authors' code takes for CIFAR-100
RESTARTS = 4
PRUNED = 0.7
ACC_IMAGES = 100  # behind an accuracy score: one batch
# setting → what it is compared with: the same but for one switch
PAIRS = {
    "other normalization": "base",
    f"{RESTARTS} restarts": "base",
    "optimized label": "base",
    "train-mode victim": "base",
    "unknown statistics": "base",
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
            model, images = network(self.model).to(device).eval(), unseen(self.model.dataset)[: self.images]
            policies = [parse_policy(policy) for policy in self.policies]
            streams = [rng(self.seed, "accuracy scores") for _ in policies]
            scores = [
                accuracy_score(model, images, policy, variant=self.variant, rng=stream)
                for policy, stream in zip(policies, streams, strict=True)
            ]
            return {"scores": torch.tensor(scores, dtype=torch.float64)}

        return store.get("accuracy", self, compute, label=self.title)


def attacks(settings: Settings) -> dict[str, AttackUnit]:
    """The page's attacks by setting; "base" and "hybrid" are units of claim 1, "28 pixels" of claim 3."""
    base, hybrid = attack_unit(settings), attack_unit(settings, HYBRID)
    restarted = dataclasses.replace(base.attack, restarts=RESTARTS)
    convnet = {n: f"convnet{n if n > 8 else ''}-{WIDTHS[settings.profile]}" for n in (8, 9)}
    members = HYBRID.split("+")
    by_setting = {
        "base": base,
        "other normalization": dataclasses.replace(base, model=dataclasses.replace(base.model, norm=OTHER_DATA)),
        f"{RESTARTS} restarts": dataclasses.replace(base, attack=restarted),
        "optimized label": dataclasses.replace(base, threat=ThreatModel(labels="optimized")),
        "train-mode victim": dataclasses.replace(base, threat=ThreatModel(victim="train")),
        "unknown statistics": dataclasses.replace(base, threat=ThreatModel(batch_norm="unknown")),
        "pruned by tensor": dataclasses.replace(base, defense=f"prune:{PRUNED}"),
        "pruned globally": dataclasses.replace(base, defense=f"prune-global:{PRUNED}"),
        **{
            f"{n} convolutions": dataclasses.replace(base, model=model_unit(settings, model=name))
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
        by_setting["32 pixels"] = attack_unit(dataclasses.replace(grey, dataset=f"{grey.dataset}-32"))
    return by_setting


def scores(settings: Settings) -> dict[str, ScoreUnit | AccuracyUnit]:
    """Scores of the random policies of claim 7 by score and variant; the first is a unit of that page."""
    privacy = claim7_correlation.scores(settings)[claim7_correlation.main(settings)]
    untrained = dataclasses.replace(privacy.model, train=None)
    images = min(ACC_IMAGES, len(unseen(settings.dataset)))
    return {
        "s_pri fixed": privacy,
        "s_pri code": dataclasses.replace(privacy, variant="code"),
        **{
            f"s_acc {variant}": AccuracyUnit(
                model=untrained, policies=privacy.policies, images=images, variant=variant, seed=settings.seed
            )
            for variant in VARIANTS
        },
    }


def units(settings: Settings) -> dict[str, Unit]:
    """All that the page needs."""
    return attacks(settings) | scores(settings)


SWITCHES_RULE = (
    "The claim, implied by both papers: what they leave out does not matter. Reproduced: with each switch turned, the "
    "95 % interval of the mean paired change in PSNR holds 0, and both orders of the policies by a score have a rank "
    "correlation of 0.8 or more. Partly: this holds for at least half of the switches. Not reproduced: for fewer. "
    "Not measured: fewer than two images or ten policies."
)


def switches_verdict(changes: pd.DataFrame, orders: pd.Series, policies: int) -> Verdict:
    """The fidelity switches by `SWITCHES_RULE`.

    Args:
        changes: one row per switch of the attack: n, mean, low, high of the change in PSNR.
        orders: rank correlation of the policies' two orders, by switch of a score.
        policies: behind each correlation.
    """
    if changes["n"].min() < 2 or policies < 10:
        return Verdict("not measured", "fewer than two images or ten policies", SWITCHES_RULE)
    matter = [
        f"{name} ({compare.interval(row)})" for name, row in changes.iterrows() if not row["low"] <= 0 <= row["high"]
    ]
    matter += [f"{name} (rank correlation {value:.2f})" for name, value in orders.items() if not value >= 0.8]
    count = len(changes) + len(orders)
    here = f"{len(matter)} of {count} switches matter"
    status = "partly" if matter else "reproduced"
    if len(matter) > count / 2:
        status = "not reproduced"
    return Verdict(status, here + (": " + ", ".join(matter) if matter else ""), SWITCHES_RULE, here)


def run(settings: Settings, store: Store) -> Result:
    """Turn each switch.

    Tables: `attacks`, one row per setting and image; `accuracy`, one row per setting; `scores`, one row per policy.
    """
    by_setting = attacks(settings)
    rows, sheets = attack_rows(by_setting, ["setting"], settings, store)
    networks = {(name, unit.model.model, unit.model.dataset): unit.model for name, unit in by_setting.items()}
    accuracy = accuracy_rows(networks, ("setting", "model", "dataset"), settings, store).drop(columns="train")
    table = pd.DataFrame({"policy": scores(settings)["s_pri fixed"].policies})
    for name, unit in scores(settings).items():
        values = unit.make(store, device_of(settings.device))["scores"].double().numpy()
        if isinstance(unit, ScoreUnit):
            table[name], table[f"{name} variance"] = values.mean(1), values.var(1)
        else:
            table[name] = values
    verdict = switches_verdict(compare.changes(rows, PAIRS), orders(table)["rank correlation"], len(table))
    tables = {"attacks": rows, "accuracy": accuracy, "scores": table}
    return Result(PAGE, tables, provenance(settings, sheets["base"]), verdict, sheets)


def changes(result: Result) -> pd.DataFrame:
    """One row per switch: what it is compared with, n, mean and 95 % interval of the change in PSNR (dB)."""
    table = compare.changes(result.tables["attacks"], PAIRS)
    table.insert(0, "compared with", pd.Series(PAIRS))
    return table


def orders(scores: pd.DataFrame) -> pd.DataFrame:
    """One row per switch of a score: rank correlation of the policies' two orders, and how many of the best ten agree.

    Orders are from the policy that the rule would keep first; the ten are a quarter of them where there are
    fewer than 40 policies.
    """
    spread = scores.rename(columns={"s_pri fixed": "mean", "s_pri fixed variance": "variance"})
    both = RANKINGS["mean+variance"](spread["mean"].to_numpy(), spread["variance"].to_numpy())
    kept = {  # low is kept
        "GradSim by tensor": (scores["s_pri fixed"], scores["s_pri code"]),
        "variance in the ranking": (scores["s_pri fixed"], pd.Series(both)),
        "sign of S_acc": (-scores["s_acc fixed"], -scores["s_acc paper"]),
        "first image of each label": (-scores["s_acc fixed"], -scores["s_acc code"]),
    }
    few, rows = min(10, max(1, len(scores) // 4)), {}
    for name, (one, other) in kept.items():
        best = [set(values.nsmallest(few).index) for values in (one, other)]
        rank = float(agreement.spearman(one.to_numpy(), other.to_numpy()))
        rows[name] = {"policies": len(scores), "rank correlation": rank, "best": few, "shared": len(best[0] & best[1])}
    return pd.DataFrame(rows).T.astype({"policies": int, "best": int, "shared": int}).rename_axis("switch")


def rejected(scores: pd.DataFrame) -> float:
    """Share of the policies that the released threshold of -85 rejects, in variant "code"."""
    return float(np.mean(scores["s_acc code"] < T_ACC))


def comparison(result: Result) -> pd.DataFrame:
    """One row per setting: our summary, the gain and the accuracy of the network attacked."""
    return compare.comparison(result, "setting")
