"""What README and the book begin with: the answer in three sentences, and what was asked, published and measured.

All numbers come from stored results; a question whose result is not there says so.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from atsbook.findings.compare import matrices
from atsbook.findings.reported import reported
from atsbook.findings.result import NO_POLICY, table_file
from atsbook.findings.statistics import ENOUGH, correlation_interval, pearson
from atsbook.runs.settings import PROFILES
from atsbook.runs.table1 import HYBRID
from atsbook.texts.answers import newest

NAMES = {
    "lenet": "LeNet",
    "convnet-16": "ConvNet-16",
    "resnet20-1": "ResNet20-1",
    "convnet-64": "ConvNet-64",
    "resnet20-4": "ResNet20-4",
}
MISSING = "not measured yet"
# Between sentences and table; the book shows a picture and an attack there
TABLE = "<!-- table -->"
PICTURE = (
    "![Four photographs, and below each what the client used and what the server recovered from one gradient of an "
    "untrained LeNet, without a policy and with the paper's hybrid; a tick: the photograph is found]"
    "(book/assets/picture.png)"
)
PRINTED = f"hybrid:{HYBRID}"
SCORE = "pearson_r(S_pri,PSNR)"
HARDLY = 0.1  # so small a share of the photographs is hardly any
FEW = 2  # policies that hide most, without which the correlation is told as well


@dataclasses.dataclass(frozen=True)
class Watched:
    """What servers find in four rounds, on one network.

    Attributes:
        bare: share of photographs found in one round without a policy, on the same network.
        knowing: share found under the hybrid by a server that knows the policy.
        told: share found under the hybrid by one that is told what was drawn.
        photographs: how many these are shares of.
    """

    bare: float
    knowing: float
    told: float
    photographs: int


@dataclasses.dataclass(frozen=True)
class Numbers:
    """What the first screen says, in words, made from the stored results; empty where one is missing.

    Attributes:
        untrained, trained: share of photographs found by who knows the policy, by network, without a
            policy and with the hybrid.
        another: share found on the untrained LeNet by another attack, in the same way.
        long: the same by the paper's own attack in its 4,800 steps, and of how many photographs.
        told: share found on an untrained LeNet in one round without a policy (`none`), and under
            the hybrid in four rounds by who knows the policy (`policy`) or is told what it drew
            (`draws`).
        watched: what four rounds give to who is told what was drawn, by network.
        accuracy: percent without a policy and with the hybrid.
        learned: the network that has it, and its epochs.
        score: r of the privacy score with `bits` and with `psnr`, each with its interval.
        without: r of score and bits without the two policies that hide most.
        fashion: mean bits told of a photograph of Fashion-MNIST without a policy and with the
            hybrid, by network.
        search: bits told under the hybrid that the search found minus those under random ones, with
            the interval.
        share: what the hybrid takes of an epoch's time.
        paper_accuracy: percent of the paper's own network without a policy and with the hybrid,
            and its epochs.
        paper: share of photographs found on the paper's own network, by state: without a policy,
            and with the hybrid where that was attacked.
        as_published: mean PSNR in dB of the paper's own attack on it in 4,800 steps, without a
            policy and with the hybrid, and on how many photographs.
        longer: mean percent of the network in `learned` after more epochs, without a policy and
            with the hybrid, and how many these are.
    """

    untrained: Mapping[str, tuple[float, float]]
    trained: Mapping[str, tuple[float, float]]
    another: tuple[float, float] | None
    long: tuple[float, float, int] | None
    told: Mapping[str, float]
    watched: Mapping[str, Watched]
    accuracy: tuple[float, float] | None
    learned: tuple[str, int]
    score: Mapping[str, tuple[float, float, float]]
    without: float | None
    fashion: Mapping[str, tuple[float, float]]
    search: tuple[float, float, float] | None
    share: float | None
    paper_accuracy: tuple[float, float, float] | None = None
    paper: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    as_published: tuple[float, float, int] | None = None
    longer: tuple[float, float, int] | None = None


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
    if attacks.empty:
        return {}
    shares = {}
    own = attacks[attacks["regime"] == regime]
    images = own.groupby("model")["image"].nunique()
    for model in [name for name in NAMES if images.get(name, 0) >= ENOUGH]:
        ends = (own[(own["model"] == model) & (own["policy"] == p)] for p in (NO_POLICY, HYBRID))
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


def _both(known: Numbers, state: str) -> tuple[float, ...]:
    """What is found on the paper's own network without a policy and with the hybrid; empty until both are."""
    shares = known.paper.get(state, ())
    return shares if len(shares) == 2 else ()


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


def _another(servers: pd.DataFrame) -> tuple[float, float] | None:
    if servers.empty:
        return None
    shares = servers.set_index(["server", "policy"])["found"]["annealed-lenet"]
    return float(shares[NO_POLICY]), float(shares[HYBRID])


def _long(attacks: pd.DataFrame) -> tuple[float, float, int] | None:
    if attacks.empty:
        return None
    own = attacks[attacks["attack"] == "adam-cosine"]
    shares = own.groupby("policy")["found"].apply(lambda found: found.astype(bool).mean())
    return float(shares[NO_POLICY]), float(shares[HYBRID]), int(own["image"].nunique())


def _told(judged: pd.DataFrame) -> dict[str, float]:
    if judged.empty:
        return {}
    own = judged[judged["model"] == "lenet"]
    servers = {"none": ("no policy", 1), "policy": ("policy", 4), "draws": ("draws", 4)}
    shares = own.groupby(["knows", "rounds"])["found"].mean()
    return {name: float(shares[server]) for name, server in servers.items() if server in shares}


def watched_for_long(judged: pd.DataFrame) -> dict[str, Watched]:
    """What four rounds give to a server that is told what was drawn, beside one without a policy.

    Both are of the same photographs and weights: of claim 1's five draws these are the first.

    Args:
        judged: the table `judged` of extension 5, one row per photograph, network and server.
    """
    watched = {}
    for model in dict.fromkeys(judged["model"]) if len(judged) else ():
        own = judged[judged["model"] == model]
        servers = dict(iter(own.groupby(["knows", "rounds"])))
        none, told = servers.get(("no policy", 1)), servers.get(("draws", 4))
        knowing = servers.get(("policy", 4))
        if none is None or told is None or knowing is None:
            continue
        watched[model] = Watched(
            bare=float(none["found"].mean()),
            knowing=float(knowing["found"].mean()),
            told=float(told["found"].mean()),
            photographs=len(told),
        )
    return watched


def _score(policies: pd.DataFrame) -> dict[str, tuple[float, float, float]]:
    if policies.empty:
        return {}
    found = {}
    for outcome in ("bits", "psnr"):
        score, told = matrices(policies, "score", outcome)
        ends = correlation_interval(pearson, score, told)
        found[outcome] = (float(pearson(score.mean(1), told.mean(1))), *ends)
    return found


def _without(policies: pd.DataFrame) -> float | None:
    """r of the privacy score with the bits, without the policies that hide most."""
    if policies.empty:
        return None
    score, told = (matrix.mean(1) for matrix in matrices(policies, "score", "bits"))
    rest = np.argsort(told)[FEW:]
    return float(pearson(score[rest], told[rest])) if len(rest) > FEW else None


def _bits(attacks: pd.DataFrame) -> dict[str, tuple[float, float]]:
    if "bits" not in attacks:
        return {}
    means = attacks.groupby(["model", "policy"], sort=False)["bits"].mean()
    models = dict.fromkeys(attacks["model"])
    return {name: (means[name, NO_POLICY], means[name, HYBRID]) for name in models}


def _against(table: pd.DataFrame) -> tuple[float, float, float] | None:
    if table.empty:
        return None
    row = table.set_index("against").loc["random hybrids"]
    return (row["mean"], row["low"], row["high"])


def numbers(results: Path) -> Numbers:
    """All that the first screen needs."""
    attacks = _rows(results, "claim1_privacy", "attacks")
    accuracy = _rows(results, "claim1_privacy", "accuracy")
    ends = None
    if len(accuracy):
        known = accuracy.set_index("policy")["accuracy"]
        ends = (float(known[NO_POLICY]), float(known[HYBRID]))
    result = newest("claim1_privacy", results)
    profile = PROFILES[result[1]["profile"] if result else "laptop"]
    cost = _rows(results, "claim4_efficiency", "cost")
    servers = _rows(results, "ext5_adaptive", "judged")
    policies = _rows(results, "claim7_correlation", "judged")
    return Numbers(
        untrained=_found(attacks, "initial"),
        trained=_found(attacks, "trained"),
        another=_another(_rows(results, "claim1_privacy", "servers")),
        long=_long(_rows(results, "claim2_generality", "long")),
        told=_told(servers),
        watched=watched_for_long(servers),
        accuracy=ends,
        learned=(NAMES[profile["model"]], profile["epochs"]),
        score=_score(policies),
        without=_without(policies),
        fashion=_bits(_rows(results, "claim3_transfer", "attacks")),
        search=_against(_rows(results, "claim2_search", "against")),
        share=float(cost.set_index("policy").loc[HYBRID, "share"]) if len(cost) else None,
        paper_accuracy=_learned(_rows(results, "claim1_privacy", "paper_accuracy")),
        paper=_paper(
            _rows(results, "claim1_privacy", "paper"),
            _rows(results, "claim1_privacy", "paper_judged"),
        ),
        as_published=_as_published(_rows(results, "claim1_privacy", "paper_own")),
        longer=_longer(_rows(results, "claim1_privacy", "accuracy_longer")),
    )


def _hides(watched: Mapping[str, Watched]) -> str:
    """What the hybrid hides from a server that is told the draws of four rounds."""
    return (
        "hardly any"
        if all(each.bare - each.told < HARDLY for each in watched.values())
        else "fewer"
    )


def _four_rounds(watched: Mapping[str, Watched]) -> str:
    """What four rounds give to a server that is told the draws and to one that is not, network by network."""
    found = watched.values()
    knowing = " and ".join(
        f"{percent(one.knowing)} on the {NAMES[model].removesuffix('-16')}"
        for model, one in watched.items()
    )
    told, bare, count = (
        " and ".join(each)
        for each in (
            [percent(one.told) for one in found],
            [percent(one.bare) for one in found],
            [str(one.photographs) for one in found],
        )
    )
    return (
        f"In four rounds, with the first draw of the weights and the same crops, one attack finds {knowing}, and {told} if "
        f"it is told what was drawn, which clients do not send. One round without a policy gives {bare} there ({count} "
        "photographs)."
    )


def sentences(known: Numbers) -> str:
    """The answer: does it hide images, what does it cost, and which correlation is right."""
    words = []
    if {"lenet", "convnet-16"} <= known.untrained.keys() and known.watched:
        one = known.untrained["lenet"]
        other = known.untrained["convnet-16"]
        another = long = hardly = ""
        blind = 0  # attacks from which hardly anything is hidden
        if known.another:
            bare, hidden = known.another
            another = f", and by another attack {percent(hidden)} ({percent(bare)})"
            blind += bare - hidden < HARDLY
        if known.long:
            bare, hidden, count = known.long
            long = f"; the paper's own attack, in its 4,800 steps, {percent(hidden)} of {count} ({percent(bare)})"
            blind += bare - hidden < HARDLY
        if blind:
            hardly = f" from one attack and hardly any from {['', 'another', 'two others'][blind]}"
        wide = ""
        if paper := _both(known, "untrained"):
            bare, hidden = paper
            wide = f", on an untrained {NAMES['resnet20-4']} {percent(hidden)} ({percent(bare)})"
        words.append(
            f"**On an untrained LeNet the paper's policy hides, in one round, some of the photographs{hardly}; in four "
            f"rounds it hides {_hides(known.watched)} from a server that is told what was drawn.** "
            "From the gradient of one image a server that knows the policy finds "
            f"{percent(one[1])} of them ({percent(one[0])} without it){another}{long}; on an untrained ConvNet "
            f"{percent(other[1])} ({percent(other[0])}){wide}. {_four_rounds(known.watched)}"
        )
    if known.accuracy:
        words.append(
            f"**It costs accuracy:** {what_it_costs(known)}{_wide(known)}. "
            f"Published are {_printed_change('ats')} points for the paper's own network, and by its replication "
            f"{_printed_change('replication')}."
        )
    if known.score:
        rest = ""
        if known.without is not None:
            rest = f" ({known.without:.2f} without the two that hide most)".replace("-", "−")
        words.append(
            f"**On one untrained network {_goes_with(known.score)}:** over a hundred random policies r = "
            f"{_interval(known.score['bits'])} with the bits{rest} and {_interval(known.score['psnr'])} with PSNR, for "
            f"which {printed_score(' (network not named) and ')} (ResNet20-4) are published."
        )
    return "\n\n".join(words) + ("\n" if words else "")


def _printed_ends(source: str, table: str, metric: str) -> tuple[float, float]:
    """What a publication printed without a policy and with its hybrid."""
    rows = reported(source=source, table_or_figure=table, metric=metric)
    means = rows.groupby("policy_or_defense")["value"].mean()
    return float(means[NO_POLICY]), float(means[PRINTED])


def printed(table: str, metric: str, digits: int = 1) -> str:
    """What the paper printed without a policy and with its hybrid, and after a semicolon its replication."""
    return "; ".join(
        " → ".join(f"{value:.{digits}f}" for value in _printed_ends(source, table, metric))
        for source in ("ats", "replication")
    )


def what_it_costs(known: Numbers) -> str:
    """The accuracy without a policy and with the hybrid, and that after longer trainings, in words."""
    bare, hidden = known.accuracy
    model, epochs = known.learned
    words = f"{bare:.1f} → {hidden:.1f} % on a {model} after {epochs} epochs"
    if known.longer:
        words += ", {:.1f} → {:.1f} % after {}".format(*known.longer)
    return words


def _wide(known: Numbers) -> str:
    """What the hybrid costs on the paper's own network."""
    if known.paper_accuracy is None:
        return ""
    bare, hidden, epochs = known.paper_accuracy
    return f", {bare:.1f} → {hidden:.1f} % on the paper's own ResNet20-4 after {epochs:.0f}"


def _printed_change(source: str) -> str:
    """By how many points the hybrid changes the accuracy in a publication's Table 1."""
    bare, hidden = _printed_ends(source, "Table 1a", "val_accuracy_pct")
    return f"{hidden - bare:+.1f}".replace("-", "−")


def _scores() -> list[float]:
    """The published correlations, the paper's first."""
    each = (reported(source=source) for source in ("ats", "replication"))
    return [float(rows[rows["metric"] == SCORE]["value"].mean()) for rows in each]


def printed_score(between: str = "; ") -> str:
    """The published correlations as text."""
    return between.join(f"{value:.3f}" for value in _scores())


def _goes_with(score: Mapping[str, tuple[float, float, float]]) -> str:
    """What the privacy score correlates with, by intervals above 0."""
    bits, psnr = (score[outcome][1] > 0 for outcome in ("bits", "psnr"))
    if bits and psnr:
        return "the privacy score goes with what attacks tell of the photograph, and with PSNR"
    if bits:
        return "the privacy score goes with what attacks tell of the photograph, and not with PSNR"
    if psnr:
        return "the privacy score goes with PSNR, and not with what attacks tell of the photograph"
    return "the privacy score goes neither with what attacks tell of the photograph nor with PSNR"


def _interval(each: tuple[float, float, float], form: str = "{:.2f} [{:.2f}, {:.2f}]") -> str:
    """A number with its interval."""
    return form.format(*each).replace("-", "−")


def _shares(found: Mapping[str, tuple[float, float]]) -> str:
    each = (f"{NAMES[name]} {100 * a:.0f} → {100 * b:.0f}" for name, (a, b) in found.items())
    return f"{', '.join(each)} %" if found else ""


def questions(known: Numbers, *, link: str = "book/results/{}.ipynb") -> str:
    """What was asked, published, measured and not tested, in Markdown; no entry has more than 80 characters."""
    told = ""
    if known.told:
        each = {name: percent(share) for name, share in known.told.items()}
        told = (
            f"told {each['draws']}, not told {each['policy']}; no policy, one round {each['none']}"
        )
    learned = ""
    if known.accuracy:
        longer = ""
        if known.longer:
            longer = ", {2} epochs {0:.1f} → {1:.1f} %".format(*known.longer)
        learned = "{:.1f} → {:.1f} %".format(*known.accuracy) + f"{longer} ({known.learned[0]})"
    if learned and known.paper_accuracy:
        learned += "; {:.1f} → {:.1f} % (ResNet20-4)".format(*known.paper_accuracy[:2])
    score = {outcome: _interval(each) for outcome, each in known.score.items()}
    search = known.search and _interval(known.search, "{:+.1f} [{:.1f}, {:.1f}] bits")
    fashion = ", ".join(f"{NAMES[n]} {a:.1f} → {b:.1f}" for n, (a, b) in known.fashion.items())
    time = "" if known.share is None else f"{100 * known.share:.1f} % of an epoch"
    psnr = f"PSNR {printed('Table 1a', 'PSNR_dB', 2)} dB"
    untrained = dict(known.untrained)
    if wide := _both(known, "untrained"):
        untrained["resnet20-4"] = wide
    lines = ["| Question | Published | Measured here | Not tested |", "|---|---|---|---|"]

    def row(page: str, question: str, published: str, measured: str | None, left: str) -> None:
        named = f"[{question}]({link.format(page)})" if page else question
        lines.append(f"| {named} | {published} | {measured or MISSING} | {left} |")

    row(
        "claim1_privacy",
        "Photographs found, untrained networks",
        psnr.replace("PSNR", "trained ResNet20-4: PSNR"),
        _shares(untrained),
        "other wide networks" if wide else "the hybrid on wide networks",
    )
    row(
        "claim1_privacy",
        f"The same after {known.learned[1]} epochs of training with the same policy",
        psnr.replace("PSNR", "ResNet20-4: PSNR"),
        _shares(known.trained),
        "trainings to the end",
    )
    of_paper = "; ".join(
        f"{state}{', no policy,' if len(shares) == 1 else ''} "
        f"{' → '.join(f'{100 * share:.0f}' for share in shares)} %"
        for state, shares in known.paper.items()
    )
    measured = of_paper and f"found in 300 steps: {of_paper}"
    if known.as_published and _both(known, "trained"):
        bare, hidden, count = known.as_published
        found = " → ".join(f"{100 * share:.0f}" for share in known.paper["trained"])
        measured = f"PSNR {bare:.1f} → {hidden:.1f} dB (n = {count}); found in 300 steps {found} %"
    row(
        "claim1_privacy",
        "The paper's own network: ResNet20-4",
        f"trained, 4,800 steps: {psnr}",
        measured,
        "more photographs in 4,800 steps" if wide else "untrained with a policy",
    )
    row(
        "ext5_adaptive",
        "Found on LeNet in four rounds, the server told the draws or not",
        "–",
        told,
        "more rounds on new images",
    )
    row(
        "claim1_privacy",
        "Accuracy, without → with the hybrid",
        f"{printed('Table 1a', 'val_accuracy_pct')} %",
        learned,
        "a wide network for as long" if known.longer else "longer trainings",
    )
    row(
        "claim2_search",
        "Bits told under the hybrid that our search picks, minus under random ones",
        "–",
        search,
        "1,500 candidates, as the paper",
    )
    row(
        "claim3_transfer",
        "Bits told of a photograph of Fashion-MNIST",
        f"PSNR {printed('Table 4a', 'PSNR_dB', 2)} dB",
        fashion and f"untrained: {fashion} bits",
        "trained networks",
    )
    row(
        "claim7_correlation", "r of privacy score and bits", "–", score.get("bits"), "wide networks"
    )
    row(
        "claim7_correlation",
        "r of privacy score and PSNR",
        printed_score(),
        score.get("psnr"),
        "wide networks",
    )
    row("claim4_efficiency", "Time of the transformations", "–", time, "GPUs, large images")
    return "\n".join(lines) + "\n"


def first_screen(
    results: Path, *, link: str = "book/results/{}.ipynb", picture: bool = False
) -> str:
    """Sentences and table, in Markdown, for README with claim 1's picture between them."""
    known = numbers(results)
    shown = f"{PICTURE}\n\n" if picture else ""
    return f"\n{sentences(known)}\n{shown}{TABLE}\n\n{questions(known, link=link)}"
