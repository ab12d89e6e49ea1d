"""The numbers that README, the book's first page and *Should I use this?* share, from stored results and in print."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from atsbook.findings.compare import matrices
from atsbook.findings.reported import reported
from atsbook.findings.result import NO_POLICY, table_file
from atsbook.findings.statistics import ENOUGH, correlation_interval, pearson
from atsbook.runs.settings import PROFILES
from atsbook.runs.table1 import HYBRID
from atsbook.texts.newest import newest

NAMES = {
    "lenet": "LeNet",
    "convnet-16": "ConvNet-16",
    "resnet20-1": "ResNet20-1",
    "convnet-64": "ConvNet-64",
    "resnet20-4": "ResNet20-4",
}
MISSING = "not measured yet"
PRINTED = f"hybrid:{HYBRID}"
SCORE = "pearson_r(S_pri,PSNR)"
LINE_UP = "line_up"  # the page whose numbers say what comparing gradients picks out
BEST = "best_answer"  # the page whose attacks are chosen behind the policy that they judge


@dataclasses.dataclass(frozen=True)
class Numbers:
    """What the stored results say; empty where one is missing. Pairs go from no policy to the paper's.

    Attributes:
        untrained, trained: share of photographs picked out, by network.
        best: by the strongest attack on the policy, on the untrained LeNet and other photographs: how
            many are picked out, and of how many.
        tried: how many attacks the strongest is of; None where that is not kept.
        long: the same by the paper's own attack in its 4,800 steps.
        fashion: the same on Fashion-MNIST, by network.
        summed: what the sum of ten clients' first answers gives away, on the untrained LeNet.
        accuracy: percent.
        learned: the network that has it, and its epochs.
        longer: mean percent of that network after more epochs, and how many these are.
        score: r of the privacy score with `bits` and with `psnr`, each with its interval.
        paper_accuracy: percent of the paper's own network, and its epochs.
        paper: share of photographs picked out on the paper's own network, by state; only the first
            where the policy was not attacked there.
        as_published: mean PSNR in dB of the paper's own attack on it in 4,800 steps, and on how
            many photographs.
        gradients: shares picked out by a server that compares gradients, the least of all
            networks, and which networks these are.
    """

    untrained: Mapping[str, tuple[float, float]]
    trained: Mapping[str, tuple[float, float]]
    best: tuple[int, int, int] | None
    tried: int | None
    long: tuple[float, float] | None
    fashion: Mapping[str, tuple[float, float]]
    summed: tuple[float, float] | None
    accuracy: tuple[float, float] | None
    learned: tuple[str, int]
    longer: tuple[float, float, int] | None
    score: Mapping[str, tuple[float, float, float]]
    paper_accuracy: tuple[float, float, float] | None
    paper: Mapping[str, tuple[float, ...]]
    as_published: tuple[float, float, int] | None
    gradients: tuple[float, float, str] | None

    def on_papers(self, state: str) -> tuple[float, ...]:
        """Shares on the paper's own network, `untrained` or `trained`; empty until both are measured."""
        shares = self.paper.get(state, ())
        return shares if len(shares) == 2 else ()


def percent(share: float) -> str:
    """A share as it is written everywhere in the book."""
    return f"{100 * share:.0f} %"


def _rows(results: Path, page: str, name: str) -> pd.DataFrame:
    """A table of a page's newest result; empty where there is none."""
    result = newest(page, results)
    file = result and table_file(result[0], name)
    if not file or not file.exists():
        return pd.DataFrame()
    return pd.read_csv(file, dtype={"policy": str}, keep_default_na=False, low_memory=False)


def _found(attacks: pd.DataFrame, regime: str) -> dict[str, tuple[float, float]]:
    if "found" not in attacks or "regime" not in attacks:
        return {}
    shares = {}
    own = attacks[attacks["regime"] == regime]
    images = own.groupby("model")["image"].nunique()
    for model in [name for name in NAMES if images.get(name, 0) >= ENOUGH]:
        ends = [own[(own["model"] == model) & (own["policy"] == p)] for p in (NO_POLICY, HYBRID)]
        if any(rows.empty for rows in ends):
            continue
        bare, hidden = (float(rows["found"].astype(bool).mean()) for rows in ends)
        shares[model] = (bare, hidden)
    return shares


def _paper(looks: pd.DataFrame, judged: pd.DataFrame) -> dict[str, tuple[float, ...]]:
    """The better of the attacks that were tried without a policy, unless photographs are judged."""
    shares = {}
    if len(looks):
        each = looks.groupby(["state", "attack"])["found"].mean().groupby("state").max()
        shares = {state: (float(share),) for state, share in each.items()}
    for state, rows in judged.groupby("state") if len(judged) else ():
        found = rows.groupby("policy")["found"].mean()
        shares[state] = (float(found[NO_POLICY]), float(found[HYBRID]))
    return {state: shares[state] for state in ("untrained", "trained") if state in shares}


def _as_published(attacks: pd.DataFrame) -> tuple[float, float, int] | None:
    if attacks.empty:
        return None
    psnr = attacks.groupby("case")["psnr"].mean()
    return float(psnr["N0, P"]), float(psnr["NH, H"]), attacks["image"].nunique()


def _learned(accuracy: pd.DataFrame) -> tuple[float, float, float] | None:
    """Accuracy without a policy and with the hybrid, and after how many epochs."""
    if accuracy.empty:
        return None
    # Tables have six digits of what pages round from single precision: 72.05 is 72.1 there, too.
    percents = accuracy.set_index("policy")["accuracy"].astype("float32")
    return float(percents[NO_POLICY]), float(percents[HYBRID]), float(accuracy["epochs"].iloc[0])


def _longer(by_seed: pd.DataFrame) -> tuple[float, float, int] | None:
    if by_seed.empty:
        return None
    means = by_seed[[NO_POLICY, HYBRID]].mean()
    return float(means[NO_POLICY]), float(means[HYBRID]), int(by_seed["epochs"].iloc[0])


def _long(attacks: pd.DataFrame) -> tuple[float, float] | None:
    if attacks.empty:
        return None
    return _by_network(attacks[attacks["attack"] == "adam-cosine"].assign(model="")).get("")


def _by_network(attacks: pd.DataFrame) -> dict[str, tuple[float, float]]:
    if "found" not in attacks:
        return {}
    shares = attacks["found"].astype(bool).groupby([attacks["model"], attacks["policy"]]).mean()
    models = dict.fromkeys(attacks["model"])
    return {name: (float(shares[name, NO_POLICY]), float(shares[name, HYBRID])) for name in models}


def _score(policies: pd.DataFrame) -> dict[str, tuple[float, float, float]]:
    if policies.empty:
        return {}
    found = {}
    for outcome in ("bits", "psnr"):
        score, told = matrices(policies, "score", outcome)
        ends = correlation_interval(pearson, score, told)
        found[outcome] = (float(pearson(score.mean(1), told.mean(1))), *ends)
    return found


def numbers(results: Path) -> Numbers:
    """All that the first screen needs."""
    attacks = _rows(results, "claim1_privacy", "attacks")
    accuracy = _rows(results, "claim1_privacy", "accuracy")
    ends = None
    if len(accuracy):
        known = accuracy.set_index("policy")["accuracy"]
        if {NO_POLICY, HYBRID} <= set(known.index):
            ends = (float(known[NO_POLICY]), float(known[HYBRID]))
    result = newest("claim1_privacy", results)
    profile = PROFILES[result[1]["profile"] if result else "laptop"]
    return Numbers(
        untrained=_found(attacks, "initial"),
        trained=_found(attacks, "trained"),
        best=_best(results),
        tried=_exported(results, BEST).get(NAMES["lenet"], {}).get("tried"),
        long=_long(_rows(results, "claim2_generality", "long")),
        fashion=_by_network(_rows(results, "claim3_transfer", "attacks")),
        summed=_summed(_rows(results, "ext9_collaborative", "told")),
        accuracy=ends,
        learned=(NAMES[profile["model"]], profile["epochs"]),
        longer=_longer(_rows(results, "claim1_privacy", "accuracy_longer")),
        score=_score(_rows(results, "claim7_correlation", "judged")),
        paper_accuracy=_learned(_rows(results, "claim1_privacy", "paper_accuracy")),
        paper=_paper(
            _rows(results, "claim1_privacy", "paper"),
            _rows(results, "claim1_privacy", "paper_judged"),
        ),
        as_published=_as_published(_rows(results, "claim1_privacy", "paper_own")),
        gradients=_gradients(results),
    )


def _summed(told: pd.DataFrame) -> tuple[float, float] | None:
    if told.empty:
        return None
    own = told.query("view == 'sum' and past == 0")
    shares = [own[own["policy"] == name]["found"] for name in (NO_POLICY, HYBRID)]
    return tuple(float(share.mean()) for share in shares) if len(own) else None


def _exported(results: Path, page: str) -> dict[str, dict[str, float]]:
    """A page's `numbers.json`, such as {"LeNet": {"none": share, "hybrid": share, "photographs": n}}; empty
    until it is there.
    """
    for profile in ("full", "laptop"):
        file = results / page / f"cifar100-{profile}" / "numbers.json"
        if file.exists():
            return json.loads(file.read_text(encoding="utf-8"))
    return {}


def _best(results: Path) -> tuple[int, int, int] | None:
    hits = _exported(results, BEST).get(NAMES["lenet"], {}).get("hits")
    return (hits["none"], hits["hybrid"], hits["attacks"]) if hits else None


def _gradients(results: Path) -> tuple[float, float, str] | None:
    """Of the line-up's networks the least share of each, and which networks these are."""
    measured = _exported(results, LINE_UP)
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
