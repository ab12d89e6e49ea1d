"""Search for policies that hide much and cost little: the paper's Algorithm 1, over samples or the
whole space.

`search` draws candidates, rejects by accuracy score, ranks by privacy score. Scores are computed
shard by shard and can be kept, so that a search killed at any moment goes on where it was and ends
with the same table.
"""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from operator import index
from pathlib import Path
from textwrap import shorten

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from atslib.attacks import Attack, GradientMatching
from atslib.data.images import check_data
from atslib.data.load import Images
from atslib.errors import AtsError, as_path, check_kind, check_most, check_types, choose
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
from atslib.scores.scores import MOST, VARIANTS
from atslib.scores.shards import Keep, Scorer, check_parties

Table = dict[str, np.ndarray]

T_ACC = -85.0  # the released threshold on the accuracy score; the paper gives none
FINAL_IMAGES = 8  # of the attack that is a search's last rung
MOST_CANDIDATES = 1_000_000

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
        t_acc: accuracy scores below it are rejected; with acc_variant "paper", where lower is
            better, that rejects the better ones, as the paper's text has it. None rejects nothing,
            except in `acc_variant` "code", where it is -85 as in the released search_best.py (for
            about 63 images).
        ranking: "mean" of the privacy score; "mean+variance": 0.7 · mean + 0.3 · variance, each
            scaled to [0, 1] over the candidates, as in the later release (there the variance is
            over classes).
        images, acc_images: for each score, the first of one random order of the images given.
        pri_variant, acc_variant, points, draws: of the scores, see `atslib.scores`.
        rungs: successive halving: (images, share) pairs; after that many images only the best share
            of the candidates, at least `keep`, goes on to more. By default there are none: all
            candidates see all images.
        shard: policies whose scores are computed and kept together; the table does not depend on
            it.
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
        check_most(self, points=MOST, draws=MOST)
        if self.candidates > MOST_CANDIDATES:
            raise AtsError(
                f"SearchConfig.candidates={self.candidates} must be at most {MOST_CANDIDATES}; "
                "there are 20,439 distinct functions"
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
        table: columns by name, each an array (P,) with one entry per distinct function, best first:
            policy, canonical, s_pri (mean over images; lower is more private), sd, ci_low and
            ci_high (95 %, normal, of the mean over images), n images, s_acc, rung (the last that
            scored it; 0: rejected by the threshold), chosen; after `finals` also gain. Scores that
            were not computed are nan. `pandas.DataFrame(table)` makes a table of it.
        chosen: the best `keep` policies.
        hybrid: of the best policies that share no function, two as in the paper's tables; one if no
            second fits.
        config, seed: what made it.
    """

    table: Table
    chosen: tuple[Policy, ...]
    hybrid: Hybrid | None
    config: SearchConfig
    seed: int

    @property
    def two(self) -> Hybrid | None:
        """The hybrid, if it is one: None where it has a single member."""
        return self.hybrid if self.hybrid is not None and len(self.hybrid.members) > 1 else None

    def save(self, path: Path, **facts: object) -> None:
        """Write the chosen policies as JSON (`load_policies` reads it) and the whole table as CSV
        beside it.

        Facts are what the policies were found on, such as `dataset` and `model`.
        """
        path = as_path("policies' file", path)
        written = ("policy", "s_pri", "ci_low", "ci_high", "s_acc", "n")
        scores = [
            # JSON has no nan
            {name: None if row[name] != row[name] else row[name] for name in written}
            for row in self._best_rows()
        ]
        known = {
            "hybrid": str(self.two or ""),
            "seed": self.seed,
            "search": asdict(self.config),
            "scores": scores,
        }
        save_policies(path, self.chosen, **facts, **known)
        write_atomically(path.with_suffix(".csv"), self._write_table)

    def _write_table(self, path: Path) -> None:
        """The whole table as CSV, numbers to six digits; what was not computed is empty."""

        def text(value: object) -> str:
            if isinstance(value, float):
                return "" if math.isnan(value) else f"{value:.6g}"
            return str(value)

        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.table)
            for row in zip(*(column.tolist() for column in self.table.values()), strict=True):
                writer.writerow([text(value) for value in row])

    def _best_rows(self) -> list[dict]:
        """The chosen policies' rows, best first."""
        columns = [column[self.table["chosen"]].tolist() for column in self.table.values()]
        return [dict(zip(self.table, row, strict=True)) for row in zip(*columns, strict=True)]

    def best(self) -> str:
        """The best policies with their scores, at most ten, one line each, and a hybrid where there
        is one.
        """
        lines = ["rank  S_pri (95 % of the mean)   S_acc       policy"]
        for rank, row in enumerate(self._best_rows()[:10], 1):
            interval = f"{row['s_pri']:.4f} ({row['ci_low']:.4f} to {row['ci_high']:.4f})"
            policy = row["policy"]
            names = parse_policy(policy).names()
            lines.append(f"{rank:>4}  {interval}  {row['s_acc']:<10.4g}  {policy}: {names}")
        if self.two:
            lines.append(f"hybrid of the best two without a common function: {self.two}")
        else:
            lines.append(
                "there is no hybrid: no two of the best policies are without a common function"
            )
        return "\n".join(lines)


def search(
    config: SearchConfig,
    semi_trained: nn.Module,
    random_init: nn.Module,
    images: Images,
    *,
    seed: int,
    finals: GradientMatching | Attack | None = None,
    keep: Keep | None = None,
    progress: bool = False,
) -> SearchResult:
    """The paper's Algorithm 1, with two changes: every admitted policy is scored, also the first n,
    and where fewer than n are admitted the search ends with those.

    (As printed it takes the first n without a privacy score, and may sample without end.)

    Args:
        semi_trained, random_init: M^s for the privacy score and M^r for the accuracy score, both in
            eval mode.
        images: validation images, at least as many as `config` asks for.
        config: what is searched, and how.
        seed: of the candidates, the order of the images, and the scores' draws.
        finals: a short attack as the last rung: the best 2n candidates are attacked, on the
            semi-trained network and `FINAL_IMAGES` images, and ranked anew by `attack_gains`;
            column `gain` (dB).
        keep: keeps the scores of each shard, see `Keep`; None keeps nothing, and a killed search
            starts anew.
        progress: show a bar with the remaining time.
    Returns:
        The table of all policies with their scores, the best n, and a hybrid of the best two.
    Raises:
        AtsError: too few images, or a threshold that rejects every candidate.
    """
    check_parties(keep, semi_trained=semi_trained, random_init=random_init)
    images = in_order(images, config, seed)
    policies = _candidates(config, seed)
    scorer = Scorer(seed, config.shard, keep, progress)
    table = {
        "policy": np.array([str(policy) for policy in policies]),
        "canonical": np.array([str(policy.canonical()) for policy in policies]),
        "s_acc": scorer(
            "accuracy",
            random_init,
            images[: config.acc_images],
            policies,
            variant=config.acc_variant,
            batch=100,
        ),
    }
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
    table["chosen"] = np.isin(np.arange(len(policies)), ranked[: config.keep])
    order = np.lexsort([table.pop("rank"), -table["rung"]])
    table = {name: column[order] for name, column in table.items()}
    best = [policies[i] for i in ranked]
    return SearchResult(table, tuple(best[: config.keep]), _hybrid(best), config, seed)


def in_order(images: Images, config: SearchConfig, seed: int) -> Images:
    """As many images as the scores need, in the order in which they take them."""
    check_kind("search: config", config, SearchConfig, "an atslib.SearchConfig")
    check_data(images)
    if (most := max(config.images, config.acc_images)) > len(images):
        given = f"{images.name} {images.split} has {len(images)}"
        raise AtsError(f"search: SearchConfig asks for {most} images and {given}")
    return images[torch.randperm(len(images), generator=rng(seed, "images"))[:most]]


def pareto(s_pri: ArrayLike, s_acc: ArrayLike) -> np.ndarray:
    """Which policies no other beats: none has `s_pri` as low and `s_acc` as high and one of them
    better.

    Args:
        s_pri: (P,) privacy scores; lower is more private.
        s_acc: (P,) accuracy scores; higher is better. Those of `acc_variant="paper"` have the
            opposite sign: negate them first.
    Returns:
        (P,) bool. A policy without both scores (nan) is never among them.
    Raises:
        AtsError: the two are not numbers, one of each for every policy.
    """
    s_pri = _numbers("s_pri", s_pri)
    s_acc = _numbers("s_acc", s_acc)
    if len(s_pri) != len(s_acc):
        raise AtsError(
            f"pareto: there are {len(s_pri)} s_pri and {len(s_acc)} s_acc; each policy must have one of both"
        )
    front = np.zeros(len(s_pri), dtype=bool)
    known = np.flatnonzero(~np.isnan(s_pri) & ~np.isnan(s_acc))
    levels, level = np.unique(s_pri[known], return_inverse=True)
    best = np.full(len(levels), -np.inf)  # accuracy score at each privacy score
    np.maximum.at(best, level, s_acc[known])
    best_so_far = np.maximum.accumulate(best)
    better_than_all_lower = best > np.concatenate([[-np.inf], best_so_far])[:-1]
    front[known] = better_than_all_lower[level] & (s_acc[known] == best[level])
    return front


def _numbers(name: str, values: ArrayLike) -> np.ndarray:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        array = None
    if array is None or array.ndim != 1:
        shown = shorten(repr(values), 80, placeholder=" …")
        raise AtsError(f"pareto: {name} {shown} must be numbers, one for each policy")
    return array


def _candidates(config: SearchConfig, seed: int) -> list[Policy]:
    """One policy per distinct function, in the order drawn."""
    distinct: dict[Policy, Policy] = {}
    for policy in SAMPLERS[config.sampler](config.candidates, rng=rng(seed, "policies")):
        distinct.setdefault(policy.canonical(), policy)
    return list(distinct.values())


def _ranked(
    table: Table,
    policies: Sequence[Policy],
    images: Images,
    config: SearchConfig,
    score: Callable,
) -> np.ndarray:
    """Score the admitted candidates rung by rung into the table; the rows that reach the end, best
    first.
    """
    options = {"points": config.points, "draws": config.draws, "variant": config.pri_variant}
    count = len(policies)
    scores = np.empty((count, 0))
    for column in ("s_pri", "sd", "ci_low", "ci_high"):
        table[column] = np.full(count, np.nan)
    table["n"] = np.zeros(count, dtype=np.int64)
    table["rung"] = np.zeros(count, dtype=np.int64)
    table["rank"] = np.full(count, np.inf)
    alive = _admitted(table, config.threshold)
    for rung, (seen, share) in enumerate([*config.rungs, (config.images, 1.0)], 1):
        kept = [policies[i] for i in alive]
        new = score(images[:seen], kept, first=scores.shape[1], **options)
        scores = np.concatenate([scores, np.full((count, new.shape[1]), np.nan)], 1)
        scores[alive, -new.shape[1] :] = new
        ranks = _record(table, alive, scores[alive], config.ranking, rung)
        alive = alive[np.argsort(ranks, kind="stable")][
            : max(config.keep, math.ceil(share * len(alive)))
        ]
    return alive


def _admitted(table: Table, threshold: float | None) -> np.ndarray:
    """The rows whose accuracy score is not below the threshold."""
    s_acc = table["s_acc"]
    if threshold is None:
        return np.arange(len(s_acc))
    alive = np.flatnonzero(s_acc >= threshold)
    if not len(alive):
        raise AtsError(
            f"t_acc {threshold:g}, the threshold on the accuracy score, rejects all {len(s_acc)} candidates; "
            f"they score {np.nanmin(s_acc):.6g} to {np.nanmax(s_acc):.6g}"
        )
    return alive


def _record(
    table: Table, alive: np.ndarray, scores: np.ndarray, ranking: str, rung: int
) -> np.ndarray:
    """Write the scores (A, n) of the candidates `alive` into the table; the numbers they are ranked
    by.
    """
    n = scores.shape[1]
    mean = scores.mean(1)
    sd = scores.std(1, ddof=1) if n > 1 else np.full(len(scores), np.nan)
    half = 1.96 * sd / math.sqrt(n)
    ranks = RANKINGS[ranking](mean, scores.var(1))
    table["s_pri"][alive] = mean
    table["sd"][alive] = sd
    table["ci_low"][alive] = mean - half
    table["ci_high"][alive] = mean + half
    table["n"][alive] = n
    table["rung"][alive] = rung
    table["rank"][alive] = ranks
    return ranks


def _record_finals(table: Table, alive: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """Write what the attacks gained into the table as one more rung; the candidates, least gain
    first.
    """
    best = np.argsort(np.round(gains, 6), kind="stable")  # an attack that diverged, nan, comes last
    alive = alive[best]
    table["gain"] = np.full(len(table["policy"]), np.nan)
    table["gain"][alive] = gains[best]
    table["rank"][alive] = np.arange(len(alive))
    table["rung"][alive] += 1
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
