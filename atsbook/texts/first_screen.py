"""The numbers that README, the book's first page and *Should I use this?* share, as the pages export them, and in
print.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from atsbook.findings.newest import exported
from atsbook.findings.reported import reported
from atsbook.findings.result import NO_POLICY
from atsbook.findings.statistics import ENOUGH
from atsbook.findings.table1 import HYBRID

MISSING = "not measured yet"
PRINTED = f"hybrid:{HYBRID}"
SCORE = "pearson_r(S_pri,PSNR)"
WIDE = "ResNet20-4"  # the paper's own network


@dataclasses.dataclass(frozen=True)
class Learned:
    """The test accuracy of a network in percent, without a policy and trained with the paper's."""

    network: str
    epochs: int
    none: float
    hybrid: float

    @property
    def cost(self) -> float:
        """Points that the policy costs."""
        return self.none - self.hybrid


@dataclasses.dataclass(frozen=True)
class Numbers:
    """What the pages export; empty where one is missing. Pairs go from no policy to the paper's.

    Attributes:
        found: share of photographs picked out, by state and network, such as *untrained LeNet*.
        best: by the strongest attack on the policy, on the untrained LeNet and other photographs: how
            many are picked out, and of how many.
        by_rule: the same by the attacks that the rule takes on each side.
        best_narrow: shares by the attacks that are best on each side, on the untrained ResNet20-1.
        best_late: the same on trained LeNets: how many are picked out, and of how many.
        tried: how many attacks the strongest is of; None where that is not kept.
        long: share by the paper's own attack in its 4,800 steps.
        fashion: the same on Fashion-MNIST, by network.
        summed: what the sum of ten clients' first answers gives away, on the untrained LeNet.
        federated: what each client's answer gives away in the last round of that federation.
        chance: whether the change on the paper's own network, trained, may be chance.
        learned: accuracies, those of the shortest training first.
        score: r of the privacy score with `bits` and with `psnr`, each with its interval.
        as_published: mean PSNR in dB of the paper's own attack on its own network in 4,800 steps, and on
            how many photographs.
        gradients: shares picked out by a server that compares gradients, the least of all
            networks, and which networks these are.
        rounds: of that federation.
        batch: the largest batch among whose gradient a photograph was looked for by comparing, and the share
            that was recognized.
        time: share of an epoch that drawing and applying the policy takes.
    """

    found: Mapping[str, tuple[float, float]]
    best: tuple[int, int, int] | None
    by_rule: tuple[int, int, int] | None
    best_narrow: tuple[float, float] | None
    best_late: tuple[int, int, int] | None
    tried: int | None
    long: tuple[float, float] | None
    fashion: Mapping[str, tuple[float, float]]
    summed: tuple[float, float] | None
    federated: tuple[float, float] | None
    chance: bool
    learned: tuple[Learned, ...]
    score: Mapping[str, tuple[float, float, float]]
    as_published: tuple[float, float, int] | None
    gradients: tuple[float, float, str] | None
    rounds: int | None
    batch: tuple[int, float] | None
    time: float | None

    @property
    def wide(self) -> Learned | None:
        """The accuracy of the paper's own network."""
        return next((each for each in self.learned if each.network == WIDE), None)


def percent(share: float) -> str:
    """A share as it is written everywhere in the book."""
    return f"{100 * share:.0f} %"


def numbers(results: Path) -> Numbers:
    """All that the first screen needs.

    Args:
        results: the folder of stored results, whose pages have a `numbers.json` each.
    """
    pages = ("claim1_privacy", "claim1_network", "claim7_correlation", "best_answer", "line_up")
    privacy, network, score, best, line_up = (exported(page, results) for page in pages)
    found = privacy.get("found", {}) | network.get("found", {})
    own = network.get("psnr_as_published")
    best = best.get("networks", {})
    r = {
        outcome: tuple(known[end] for end in ("mean", "low", "high"))
        for outcome in ("bits", "psnr")
        if (known := score.get("correlation", {}).get(outcome))
    }
    long = exported("claim2_generality", results)
    federation = exported("ext9_collaborative", results).get("found", {})
    in_federation = _pairs(federation)
    p = found.get(f"trained {WIDE}", {}).get("p", 0)
    time = exported("claim4_efficiency", results)
    return Numbers(
        found=_pairs(found),
        best=_hits(best.get("LeNet", {}).get("hits")),
        by_rule=_hits(best.get("LeNet", {}).get("by the rule")),
        best_late=_hits(best.get("LeNet", {}).get("trained")),
        best_narrow=as_shares(_hits(best.get("ResNet20-1", {}).get("by the rule"))),
        tried=best.get("LeNet", {}).get("tried"),
        long=_pairs(long.get("found", {})).get("the paper's own attack, 4,800 steps"),
        fashion=_pairs(exported("claim3_transfer", results).get("found", {})),
        summed=in_federation.get("sum, first round"),
        federated=in_federation.get("server, last round"),
        chance=p > 0.05,
        learned=tuple(
            Learned(**each) for page in (privacy, network) for each in page.get("accuracy", ())
        ),
        score=r,
        as_published=(own["none"], own["hybrid"], own["photographs"]) if own else None,
        gradients=_gradients(line_up.get("found", {})),
        rounds=federation.get("server, last round", {}).get("rounds"),
        batch=_largest_batch(line_up.get("named", {}).get("batch of", {})),
        time=time.get("time", {}).get("hybrid"),
    )


def _pairs(shares: Mapping[str, Mapping]) -> dict[str, tuple[float, float]]:
    """Shares without and behind a policy, by name; of too few photographs there is no word."""
    return {
        name: (own["none"], own["hybrid"])
        for name, own in shares.items()
        if own["photographs"] >= ENOUGH
    }


def _largest_batch(named: Mapping[str, float]) -> tuple[int, float] | None:
    """Of the batches that the line-up compared the largest, and the share that was recognized in it."""
    return max((int(size), share) for size, share in named.items()) if named else None


def _hits(counted: Mapping[str, int] | None) -> tuple[int, int, int] | None:
    """How many are picked out without a policy and behind it, and of how many."""
    return (counted["none"], counted["hybrid"], counted["attacks"]) if counted else None


def as_shares(hits: tuple[int, int, int] | None) -> tuple[float, float] | None:
    """The same as shares."""
    return hits and (hits[0] / hits[2], hits[1] / hits[2])


def in_cases(hits: tuple[int, int, int] | None) -> str:
    """The same in words; `MISSING` where there are none."""
    return "{} → {} of {}".format(*hits) if hits else MISSING


def _gradients(measured: Mapping[str, Mapping]) -> tuple[float, float, str] | None:
    """Of the line-up's networks the least share of each, and which networks these are."""
    if not measured:
        return None
    states, networks = zip(*(name.split(" ", 1) for name in measured), strict=True)
    least = (min(each[policy] for each in measured.values()) for policy in ("none", "hybrid"))
    networks, states = dict.fromkeys(networks), " and ".join(dict.fromkeys(states))
    where = " and ".join(networks) if len(networks) < 3 else f"on {len(networks)} networks"
    return *least, f"{where}, {states}"


def printed_ends(source: str, table: str, metric: str) -> tuple[float, float]:
    """What a publication printed without a policy and with its hybrid."""
    rows = reported(source=source, table_or_figure=table, metric=metric)
    means = rows.groupby("policy_or_defense")["value"].mean()
    return float(means[NO_POLICY]), float(means[PRINTED])


def printed_score(source: str) -> float:
    """The correlation of privacy score and PSNR that a publication printed."""
    rows = reported(source=source)
    return float(rows[rows["metric"] == SCORE]["value"].mean())
