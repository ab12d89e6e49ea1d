"""Search for policies that hide much and cost little: the paper's Algorithm 1, over samples or the whole space.

`search` draws candidates, rejects by accuracy score, ranks by privacy score. Every shard of scores is an
artifact of a store, so that a search killed at any moment goes on where it was and ends with the same table.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm import tqdm

from atslib.attacks import Attack, reconstruct
from atslib.clients.prepare import to_images
from atslib.clients.threat import observe
from atslib.data.load import Images
from atslib.errors import AtsError, choose
from atslib.measures.metrics import psnr
from atslib.policies.policy import Hybrid, Policy, enumerate_distinct, sample_authors, sample_uniform, save_policies
from atslib.rng import rng
from atslib.scores.scores import VARIANTS, accuracy_score, privacy_scores, transformed
from atslib.store import Store, fingerprint, write_atomically

SAMPLERS = ("uniform", "authors", "exhaustive")
T_ACC = -85.0  # the released threshold on the accuracy score; the paper gives none


def _scaled(values: np.ndarray) -> np.ndarray:
    span = np.ptp(values)
    return (values - values.min()) / (span or 1)


# Name → what candidates are ranked by, lowest first, from mean and variance of their privacy scores. Rounded far
# below any difference that matters: the ranking shall not hang on the last bit of a device.
RANKINGS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "mean": lambda mean, variance: np.round(mean, 6),
    "mean+variance": lambda mean, variance: np.round(0.7 * _scaled(mean) + 0.3 * _scaled(variance), 6),
}
FINAL_IMAGES = 8


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """One search. Defaults: the paper's numbers, with the scores of variant "fixed".

    Attributes:
        candidates: policies drawn, C_max. Functions drawn twice, under whatever ids, are scored once.
        sampler: "uniform" over the 127,550 policies, "authors" as their released code draws, or
            "exhaustive": all 20,439 distinct functions (`candidates` is then not looked at).
        keep: n, how many policies are chosen at most, best first.
        t_acc: accuracy scores below it are rejected. None rejects nothing, except in `acc_variant` "code",
            where it is -85 as in the released search_best.py (for about 63 images; the paper gives no value).
        ranking: "mean" of the privacy score; "mean+variance": 0.7 · mean + 0.3 · variance, each scaled to
            [0, 1] over the candidates, as in the later release (there the variance is over classes).
        images, acc_images: for each score, the first of one random order of the images given.
        pri_variant, acc_variant: see `atslib.scores`.
        points, draws: see `privacy_scores`.
        rungs: successive halving: (images, share) pairs; after that many images only the best share of the
            candidates, at least `keep`, goes on to more. None by default: all candidates see all images.
        shard: policies in one artifact; the table does not depend on it.
    """

    candidates: int = 1500
    sampler: str = "uniform"
    keep: int = 10
    t_acc: float | None = None
    ranking: str = "mean"
    images: int = 100
    acc_images: int = 1000
    pri_variant: str = "fixed"
    acc_variant: str = "fixed"
    points: int = 21
    draws: int = 1
    rungs: tuple[tuple[int, float], ...] = ()
    shard: int = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "rungs", tuple((int(images), float(share)) for images, share in self.rungs))
        choose("SearchConfig.sampler", self.sampler, SAMPLERS)
        choose("SearchConfig.ranking", self.ranking, RANKINGS)
        choose("SearchConfig.pri_variant", self.pri_variant, VARIANTS)
        choose("SearchConfig.acc_variant", self.acc_variant, VARIANTS)
        for field, least in (("candidates", 1), ("keep", 1), ("images", 1), ("acc_images", 2), ("shard", 1)):
            if getattr(self, field) < least:
                raise AtsError(f"SearchConfig.{field}={getattr(self, field)} must be at least {least}")
        steps = [0, *(images for images, _ in self.rungs), self.images]
        if sorted(set(steps)) != steps or not all(0 < share <= 1 for _, share in self.rungs):
            raise AtsError(
                f"SearchConfig.rungs={self.rungs}: images must rise and stay below {self.images}, shares be in (0, 1]"
            )

    @property
    def threshold(self) -> float | None:
        """The accuracy score from which a policy is admitted; None admits all."""
        return T_ACC if self.t_acc is None and self.acc_variant == "code" else self.t_acc


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        table: a row a distinct function, best first: policy, canonical, s_pri (mean over images; lower is more
            private), sd, ci_low and ci_high (95 %, normal, of the mean over images), n images, s_acc, rung
            (the last that scored it; 0: rejected by the threshold), chosen; after `finals` also gain.
        chosen: the best `keep` policies.
        hybrid: of the best policies that share no function, two as in the paper's tables; one if no second fits.
        config, seed: what made it.
    """

    table: pd.DataFrame
    chosen: tuple[Policy, ...]
    hybrid: Hybrid | None
    config: SearchConfig
    seed: int

    def save(self, path: Path, **facts: object) -> None:
        """Write the chosen policies as JSON (`load_policies` reads it) and the whole table as CSV beside it.

        Facts are what the policies were found on, such as `dataset` and `model`.
        """
        path, best = Path(path), self.table[self.table["chosen"]]
        columns = best[["policy", "s_pri", "ci_low", "ci_high", "s_acc", "n"]].astype(object)
        scores = columns.where(columns.notna(), None).to_dict("records")  # JSON has no NaN
        known = {"hybrid": str(self.hybrid or ""), "seed": self.seed, "search": asdict(self.config), "scores": scores}
        write_atomically(path, lambda partial: save_policies(partial, self.chosen, **facts, **known))
        table = path.with_suffix(".csv")
        write_atomically(table, lambda partial: self.table.to_csv(partial, index=False, float_format="%.6g"))


def search(
    config: SearchConfig,
    semi_trained: nn.Module,
    random_init: nn.Module,
    images: Images,
    *,
    seed: int,
    finals: Attack | None = None,
    store: Store | None = None,
    progress: bool = False,
) -> Found:
    """Algorithm 1 of the paper.

    Two departures: every candidate is scored, where the printed algorithm inserts the first n without a
    privacy score and compares with it later; and too few admitted policies are returned as they are, where
    it would sample on without end.

    Args:
        semi_trained: M^s, for the privacy score, in eval mode.
        random_init: M^r, for the accuracy score, in eval mode.
        images: validation images, at least as many as `config` asks for.
        seed: of the candidates, the order of the images, and the scores' draws.
        finals: a short attack as the last rung: the best 2n candidates are attacked, on the semi-trained network
            and `FINAL_IMAGES` images, and ranked anew by `attack_gains`; column `gain` (dB).
        store: where shards of scores are kept; None keeps nothing.
        progress: show bars with the remaining time.
    Raises:
        AtsError: too few images, or a threshold that rejects every candidate.
    """
    most = max(config.images, config.acc_images)
    if most > len(images):
        raise AtsError(
            f"search: SearchConfig asks for {most} images and {images.name} {images.split} has {len(images)}"
        )
    images = images.take(torch.randperm(len(images), generator=rng(seed, "images"))[:most])
    policies = _candidates(config, seed)
    table = pd.DataFrame({"policy": map(str, policies), "canonical": [str(p.canonical()) for p in policies]})
    scorer = _Scorer(config, seed, store, progress)
    table["s_acc"] = scorer.accuracy(random_init, images[: config.acc_images], policies)
    table = table.assign(**dict.fromkeys(("s_pri", "sd", "ci_low", "ci_high"), np.nan), n=0, rung=0, rank=np.inf)
    alive = _admitted(table, config.threshold)
    scores = np.empty((len(table), 0))
    for rung, (count, share) in enumerate([*config.rungs, (config.images, 1.0)], 1):
        kept = [policies[i] for i in alive]
        new = scorer.privacy(semi_trained, images[:count], kept, first=scores.shape[1])
        scores = np.concatenate([scores, np.full((len(table), new.shape[1]), np.nan)], 1)
        scores[alive, -new.shape[1] :] = new
        ranks = _record(table, alive, scores[alive], config.ranking, rung)
        alive = alive[np.argsort(ranks, kind="stable")][: max(config.keep, math.ceil(share * len(alive)))]
    if finals is not None:
        alive = alive[: 2 * config.keep]
        gains = scorer.gains(semi_trained, images[:FINAL_IMAGES], [policies[i] for i in alive], finals).mean(1)
        alive = _record_finals(table, alive, gains, rung + 1)
    table["chosen"] = table.index.isin(alive[: config.keep])
    order = np.lexsort([table["rank"], -table["rung"]])
    chosen = tuple(policies[i] for i in alive[: config.keep])
    hybrid = _hybrid([policies[i] for i in alive])
    table = table.iloc[order].drop(columns="rank").reset_index(drop=True)
    return Found(table, chosen, hybrid, config, seed)


def pareto(table: pd.DataFrame) -> pd.Series:
    """Mask of the rows that no other beats: none has `s_pri` as low and `s_acc` as high and one of them better.

    Rows without a privacy score are never in it. With `acc_variant="paper"`, whose sign is reversed, negate
    `s_acc` first.
    """
    best = table.dropna(subset=["s_pri", "s_acc"]).groupby("s_pri")["s_acc"].max()  # in rising s_pri
    front = best[best > best.cummax().shift(fill_value=-np.inf)]
    return table["s_acc"].eq(table["s_pri"].map(front)) & table["s_pri"].notna()


class _Scorer:
    """Scores in shards, each through the store where there is one."""

    def __init__(self, config: SearchConfig, seed: int, store: Store | None, progress: bool):
        self.config, self.seed, self.store, self.progress = config, seed, store, progress

    def accuracy(self, model: nn.Module, images: Images, policies: Sequence[Policy]) -> np.ndarray:
        """(P,)"""
        variant = self.config.acc_variant

        def compute(shard: Sequence[Policy]) -> Tensor:
            scores = [accuracy_score(model, images, p, variant=variant, rng=rng(self.seed, "scores")) for p in shard]
            return torch.tensor(scores, dtype=torch.float64)

        return self._sharded(model, images, policies, compute, score="accuracy", variant=variant)

    def privacy(self, model: nn.Module, images: Images, policies: Sequence[Policy], *, first: int) -> np.ndarray:
        """(P, len(images) - first)"""
        config = self.config
        options = {"points": config.points, "draws": config.draws, "variant": config.pri_variant, "first": first}

        def compute(shard: Sequence[Policy]) -> Tensor:
            return privacy_scores(model, images, shard, rng=rng(self.seed, "scores"), **options)

        return self._sharded(model, images, policies, compute, score="privacy", **options)

    def gains(self, model: nn.Module, images: Images, policies: Sequence[Policy], attack: Attack) -> np.ndarray:
        """(P, len(images))"""

        def compute(shard: Sequence[Policy]) -> Tensor:
            return torch.stack([attack_gains(model, images, p, attack, seed=self.seed) for p in shard])

        return self._sharded(model, images, policies, compute, score="attack", attack=attack)

    def _sharded(
        self,
        model: nn.Module,
        images: Images,
        policies: Sequence[Policy],
        compute: Callable[[Sequence[Policy]], Tensor],
        **known: object,
    ) -> np.ndarray:
        """Scores of all policies, shard by shard; `known` names them in the keys of the artifacts."""
        known |= {"seed": self.seed, "images": fingerprint(images.pixels, images.labels), "network": str(model)}
        known["model"] = fingerprint(*model.state_dict().values())

        def scores(shard: Sequence[Policy]) -> Tensor:
            if self.store is None:
                return compute(shard)
            config = known | {"policies": [str(policy) for policy in shard]}
            found = self.store.get("score", config, lambda _: {"scores": compute(shard)})["scores"]
            self.store.check_time()
            return found

        found = []
        with tqdm(
            total=len(policies), disable=not self.progress, unit="policy", desc=f"{known['score']} scores"
        ) as bar:
            for first in range(0, len(policies), self.config.shard):
                shard = policies[first : first + self.config.shard]
                found.append(scores(shard).double().cpu())
                bar.update(len(shard))
        return torch.cat(found).numpy()


def _candidates(config: SearchConfig, seed: int) -> list[Policy]:
    """One policy a function, in the order drawn."""
    if config.sampler == "exhaustive":
        return list(enumerate_distinct())
    sample = sample_uniform if config.sampler == "uniform" else sample_authors
    drawn = sample(config.candidates, rng=rng(seed, "policies"))
    distinct: dict[Policy, Policy] = {}
    for policy in drawn:
        distinct.setdefault(policy.canonical(), policy)
    return list(distinct.values())


def _admitted(table: pd.DataFrame, threshold: float | None) -> np.ndarray:
    alive = np.arange(len(table)) if threshold is None else np.flatnonzero(table["s_acc"] >= threshold)
    if not len(alive):
        low, high = table["s_acc"].min(), table["s_acc"].max()
        raise AtsError(
            f"threshold {threshold:g} on the accuracy score rejects all {len(table)} candidates; "
            f"they score {low:.6g} to {high:.6g}"
        )
    return alive


def _record(table: pd.DataFrame, alive: np.ndarray, scores: np.ndarray, ranking: str, rung: int) -> np.ndarray:
    """Write the scores (A, n) of the candidates `alive` into the table; the numbers they are ranked by."""
    n = scores.shape[1]
    mean, sd = scores.mean(1), scores.std(1, ddof=1) if n > 1 else np.full(len(scores), np.nan)
    half = 1.96 * sd / math.sqrt(n)
    ranks = RANKINGS[ranking](mean, scores.var(1))
    values = {"s_pri": mean, "sd": sd, "ci_low": mean - half, "ci_high": mean + half, "n": n, "rung": rung}
    for column, value in {**values, "rank": ranks}.items():
        table.loc[alive, column] = value
    return ranks


def _record_finals(table: pd.DataFrame, alive: np.ndarray, gains: np.ndarray, rung: int) -> np.ndarray:
    """Write what the attacks gained into the table; the candidates, least gain first."""
    best = np.argsort(np.round(gains, 6), kind="stable")  # an attack that diverged, nan, comes last
    alive = alive[best]
    table.loc[alive, "gain"] = gains[best]
    table.loc[alive, "rank"] = np.arange(len(alive))
    table.loc[alive, "rung"] = rung
    return alive


def _hybrid(ranked: Sequence[Policy], members: int = 2) -> Hybrid | None:
    """The best policies of which no two have a function in common, whatever its id; the identity is left out."""
    chosen, used = [], set()
    for policy in ranked:
        functions = set(policy.canonical().ids)
        if len(chosen) < members and functions and not functions & used:
            chosen.append(policy)
            used |= functions
    return Hybrid(tuple(chosen)) if chosen else None


def attack_gains(model: nn.Module, images: Images, policy: Policy | Hybrid, attack: Attack, *, seed: int) -> Tensor:
    """What an attack finds of each image beyond the mean image, in dB, (B,); lower is more private, 0 is nothing.

    PSNR of the reconstruction minus that of the mean of `images`, both against the transformed image: a policy
    that only makes its images darker, so that every guess scores less, gains nothing by it. Crops, flips and
    starts are the same for every policy.

    Args:
        model: in eval mode, as client and attacker run it.
        images: B of them, uint8.
    """
    device = next(model.parameters()).device
    target = to_images(transformed(images.to(device), policy, seed=seed))
    seen = observe(model, target, images.labels.to(device))
    found = reconstruct(seen, attack, rng=rng(seed, "finals"))
    mean = (images.pixels.to(device).float().mean(0) / 255).expand_as(target).contiguous()
    return psnr(found.images, target) - psnr(mean, target)
