"""Search for policies that hide much and cost little: the paper's Algorithm 1, over samples or the
whole space.

`search` draws candidates, rejects by accuracy score, ranks by privacy score. Every shard of scores
is an artifact of a store, so that a search killed at any moment goes on where it was and ends with
the same table.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from operator import index
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from atsbook.runs.store import Store
from atslib.attacks import Attack
from atslib.data.images import check_data
from atslib.data.load import Images
from atslib.errors import AtsError, as_path, check_kind, check_types, choose
from atslib.files import write_atomically
from atslib.policies.policy import (
    Hybrid,
    Policy,
    enumerate_distinct,
    parse_policy,
    sample_authors,
    sample_uniform,
    save_policies,
)
from atslib.rng import rng
from atslib.scores.scores import VARIANTS
from atslib.scores.shards import Scorer, check_parties

T_ACC = -85.0  # the released threshold on the accuracy score; the paper gives none
FINAL_IMAGES = 8  # of the attack that is a search's last rung
SAMPLERS: dict[str, Callable[..., list[Policy]]] = {
    "uniform": sample_uniform,
    "authors": sample_authors,
    "exhaustive": lambda count, rng: list(enumerate_distinct()),
}


def _scaled(values: np.ndarray) -> np.ndarray:
    return (values - values.min()) / (np.ptp(values) or 1)


# Name → what candidates are ranked by, lowest first, from mean and variance of their privacy
# scores. Rounded far below any difference that matters: the ranking shall not hang on the last bit
# of a device.
RANKINGS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "mean": lambda mean, variance: np.round(mean, 6),
    "mean+variance": lambda mean, variance: np.round(
        0.7 * _scaled(mean) + 0.3 * _scaled(variance), 6
    ),
}


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """One search. Defaults: the paper's numbers, with the scores of variant "fixed".

    Attributes:
        candidates: policies drawn, C_max. Functions drawn twice, under whatever ids, are scored
            once.
        sampler: "uniform" over the 127,550 policies, "authors" as their released code draws, or
            "exhaustive": all 20,439 distinct functions (`candidates` is ignored).
        keep: n, how many policies are chosen at most, best first.
        t_acc: accuracy scores below it are rejected. None rejects nothing, except in `acc_variant`
            "code", where it is -85 as in the released search_best.py (for about 63 images).
        ranking: "mean" of the privacy score; "mean+variance": 0.7 · mean + 0.3 · variance, each
            scaled to [0, 1] over the candidates, as in the later release (there the variance is
            over classes).
        images, acc_images: for each score, the first of one random order of the images given.
        pri_variant, acc_variant, points, draws: of the scores, see `atslib.scores`.
        rungs: successive halving: (images, share) pairs; after that many images only the best share
            of the candidates, at least `keep`, goes on to more. None by default: all candidates see
            all images.
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
        check_types(self)
        try:
            object.__setattr__(
                self, "rungs", tuple((index(images), float(share)) for images, share in self.rungs)
            )
        except (TypeError, ValueError, OverflowError):
            raise AtsError(
                f"SearchConfig.rungs={self.rungs!r} must be (images, share) pairs"
            ) from None
        if self.t_acc is not None and not (
            isinstance(self.t_acc, int | float) and math.isfinite(self.t_acc)
        ):
            raise AtsError(f"SearchConfig.t_acc={self.t_acc!r} must be a finite number, or None")
        choose("SearchConfig.sampler", self.sampler, SAMPLERS)
        choose("SearchConfig.ranking", self.ranking, RANKINGS)
        choose("SearchConfig.pri_variant", self.pri_variant, VARIANTS)
        choose("SearchConfig.acc_variant", self.acc_variant, VARIANTS)
        for field in ("candidates", "keep", "images", "acc_images", "points", "draws", "shard"):
            least = 2 if field in ("acc_images", "points") else 1
            if getattr(self, field) < least:
                raise AtsError(
                    f"SearchConfig.{field}={getattr(self, field)} must be at least {least}"
                )
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
class SearchResult:
    """The outcome of a search.

    Attributes:
        table: one row per distinct function, best first: policy, canonical, s_pri (mean over
            images; lower is more private), sd, ci_low and ci_high (95 %, normal, of the mean over
            images), n images, s_acc, rung (the last that scored it; 0: rejected by the threshold),
            chosen; after `finals` also gain.
        chosen: the best `keep` policies.
        hybrid: of the best policies that share no function, two as in the paper's tables; one if no
            second fits.
        config, seed: what made it.
    """

    table: pd.DataFrame
    chosen: tuple[Policy, ...]
    hybrid: Hybrid | None
    config: SearchConfig
    seed: int

    def save(self, path: Path, **facts: object) -> None:
        """Write the chosen policies as JSON (`load_policies` reads it) and the whole table as CSV
        beside it.

        Facts are what the policies were found on, such as `dataset` and `model`.
        """
        path = as_path("policies' file", path)
        best = self.table[self.table["chosen"]]
        columns = best[["policy", "s_pri", "ci_low", "ci_high", "s_acc", "n"]].astype(object)
        scores = columns.where(columns.notna(), None).to_dict("records")  # JSON has no NaN
        known = {
            "hybrid": str(self.hybrid or ""),
            "seed": self.seed,
            "search": asdict(self.config),
            "scores": scores,
        }
        write_atomically(
            path, lambda partial: save_policies(partial, self.chosen, **facts, **known)
        )
        table = path.with_suffix(".csv")
        write_atomically(
            table, lambda partial: self.table.to_csv(partial, index=False, float_format="%.6g")
        )

    def best(self) -> str:
        """The best policies with their scores, at most ten, one line each, and the hybrid."""
        lines = ["rank  S_pri (95 % of the mean)   S_acc       policy"]
        for rank, row in enumerate(self.table[self.table["chosen"]].head(10).itertuples(), 1):
            interval = f"{row.s_pri:.4f} ({row.ci_low:.4f} to {row.ci_high:.4f})"
            names = parse_policy(row.policy).names()
            lines.append(f"{rank:>4}  {interval}  {row.s_acc:<10.4g}  {row.policy}: {names}")
        return "\n".join([*lines, f"hybrid without a common function: {self.hybrid or 'none'}"])


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
) -> SearchResult:
    """The paper's Algorithm 1, but every candidate is scored, and where fewer than n are admitted,
    those are returned.

    (As printed it takes the first n without a privacy score, and may sample without end.)

    Args:
        semi_trained, random_init: M^s for the privacy score and M^r for the accuracy score, both in
            eval mode.
        images: validation images, at least as many as `config` asks for.
        seed: of the candidates, the order of the images, and the scores' draws.
        finals: a short attack as the last rung: the best 2n candidates are attacked, on the
            semi-trained network and `FINAL_IMAGES` images, and ranked anew by `attack_gains`;
            column `gain` (dB).
        store: where shards of scores are kept; None keeps nothing.
    Raises:
        AtsError: too few images, or a threshold that rejects every candidate.
    """
    check_parties(store, semi_trained=semi_trained, random_init=random_init)
    images = _in_order(images, config, seed)
    policies = _candidates(config, seed)
    scorer = Scorer(seed, config.shard, store, progress)
    names = {
        "policy": map(str, policies),
        "canonical": [str(policy.canonical()) for policy in policies],
    }
    few = images[: config.acc_images]
    how = {"variant": config.acc_variant, "batch": 100}
    table = pd.DataFrame(names).assign(s_acc=scorer("accuracy", random_init, few, policies, **how))
    ranked = _ranked(table, policies, images, config, partial(scorer, "privacy", semi_trained))
    if finals is not None:
        ranked = ranked[: 2 * config.keep]
        gains = scorer(
            "attack",
            semi_trained,
            images[:FINAL_IMAGES],
            [policies[i] for i in ranked],
            attack=finals,
        )
        ranked = _record_finals(table, ranked, gains.mean(1))
    table["chosen"] = table.index.isin(ranked[: config.keep])
    best = [policies[i] for i in ranked]
    table = (
        table.iloc[np.lexsort([table["rank"], -table["rung"]])]
        .drop(columns="rank")
        .reset_index(drop=True)
    )
    return SearchResult(table, tuple(best[: config.keep]), _hybrid(best), config, seed)


def _in_order(images: Images, config: SearchConfig, seed: int) -> Images:
    """As many images as the scores need, in the order in which they take them."""
    check_kind("search: config", config, SearchConfig, "an atslib.SearchConfig")
    check_data(images)
    if (most := max(config.images, config.acc_images)) > len(images):
        given = f"{images.name} {images.split} has {len(images)}"
        raise AtsError(f"search: SearchConfig asks for {most} images and {given}")
    return images[torch.randperm(len(images), generator=rng(seed, "images"))[:most]]


def pareto(table: pd.DataFrame) -> pd.Series:
    """Mask of the rows that no other beats: none has `s_pri` as low and `s_acc` as high and one of
    them better.

    Rows without a privacy score are never in it. With `acc_variant="paper"`, whose sign is
    reversed, negate `s_acc` first.
    """
    check_kind(
        "pareto: table", table, pd.DataFrame, "a pandas.DataFrame, such as SearchResult.table"
    )
    if missing := [name for name in ("s_pri", "s_acc") if name not in table]:
        raise AtsError(
            f"pareto: the table has no column {' or '.join(missing)}, but {', '.join(map(str, table))}"
        )
    best = (
        table.dropna(subset=["s_pri", "s_acc"]).groupby("s_pri")["s_acc"].max()
    )  # in rising s_pri
    front = best[best > best.cummax().shift(fill_value=-np.inf)]
    return table["s_acc"].eq(table["s_pri"].map(front)) & table["s_pri"].notna()


def _candidates(config: SearchConfig, seed: int) -> list[Policy]:
    """One policy per distinct function, in the order drawn."""
    distinct: dict[Policy, Policy] = {}
    for policy in SAMPLERS[config.sampler](config.candidates, rng=rng(seed, "policies")):
        distinct.setdefault(policy.canonical(), policy)
    return list(distinct.values())


def _ranked(
    table: pd.DataFrame,
    policies: Sequence[Policy],
    images: Images,
    config: SearchConfig,
    score: Callable,
) -> np.ndarray:
    """Score the admitted candidates rung by rung into the table; the rows that reach the end, best
    first.
    """
    options = {"points": config.points, "draws": config.draws, "variant": config.pri_variant}
    scores = np.empty((len(table), 0))
    table[["s_pri", "sd", "ci_low", "ci_high"]] = np.nan
    table[["n", "rung", "rank"]] = 0, 0, np.inf
    alive = _admitted(table, config.threshold)
    for rung, (count, share) in enumerate([*config.rungs, (config.images, 1.0)], 1):
        kept = [policies[i] for i in alive]
        new = score(images[:count], kept, first=scores.shape[1], **options)
        scores = np.concatenate([scores, np.full((len(table), new.shape[1]), np.nan)], 1)
        scores[alive, -new.shape[1] :] = new
        ranks = _record(table, alive, scores[alive], config.ranking, rung)
        alive = alive[np.argsort(ranks, kind="stable")][
            : max(config.keep, math.ceil(share * len(alive)))
        ]
    return alive


def _admitted(table: pd.DataFrame, threshold: float | None) -> np.ndarray:
    alive = (
        np.arange(len(table)) if threshold is None else np.flatnonzero(table["s_acc"] >= threshold)
    )
    if not len(alive):
        low = table["s_acc"].min()
        high = table["s_acc"].max()
        raise AtsError(
            f"t_acc {threshold:g}, the threshold on the accuracy score, rejects all {len(table)} candidates; "
            f"they score {low:.6g} to {high:.6g}"
        )
    return alive


def _record(
    table: pd.DataFrame, alive: np.ndarray, scores: np.ndarray, ranking: str, rung: int
) -> np.ndarray:
    """Write the scores (A, n) of the candidates `alive` into the table; the numbers they are ranked
    by.
    """
    n = scores.shape[1]
    mean = scores.mean(1)
    sd = scores.std(1, ddof=1) if n > 1 else np.full(len(scores), np.nan)
    half = 1.96 * sd / math.sqrt(n)
    ranks = RANKINGS[ranking](mean, scores.var(1))
    values = {
        "s_pri": mean,
        "sd": sd,
        "ci_low": mean - half,
        "ci_high": mean + half,
        "n": n,
        "rung": rung,
    }
    for column, value in {**values, "rank": ranks}.items():
        table.loc[alive, column] = value
    return ranks


def _record_finals(table: pd.DataFrame, alive: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """Write what the attacks gained into the table as one more rung; the candidates, least gain
    first.
    """
    best = np.argsort(np.round(gains, 6), kind="stable")  # an attack that diverged, nan, comes last
    alive = alive[best]
    table.loc[alive, "gain"] = gains[best]
    table.loc[alive, "rank"] = np.arange(len(alive))
    table.loc[alive, "rung"] += 1
    return alive


def _hybrid(ranked: Sequence[Policy]) -> Hybrid | None:
    """The best policies, at most two, that have no function in common, whatever its id; the
    identity is left out.
    """
    chosen = []
    used = set()
    for policy in ranked:
        functions = set(policy.canonical().ids)
        if len(chosen) < 2 and functions and not functions & used:
            chosen.append(policy)
            used |= functions
    return Hybrid(tuple(chosen)) if chosen else None
