"""Where each published number has its measured twin, and why the others have none.

A twin is the same question at this project's scale: the same quantity, policy, data set and kind of
network. `RULES` say where each is looked for; to add one, name the published tables, the metric,
and the stored table.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from atsbook.findings.compare import matrices
from atsbook.findings.newest import stored
from atsbook.findings.reported import ATTACKS, DEFENSES, LAYERS, policy_label, reported
from atsbook.findings.result import NO_POLICY, table_file
from atsbook.findings.statistics import pearson
from atsbook.findings.table1 import RANDOM, TEN, block, family, hybrid
from atsbook.findings.transformations import NOTHING, first_id, wide
from atsbook.runs.settings import PROFILES
from atslib.models import build_model
from atslib.policies.operations import OPS


@dataclasses.dataclass(frozen=True)
class Place:
    """A stored table in which twins are looked for, and how its rows become a number.

    Attributes:
        page, table: of `results/<page>/<data set>-<profile>/<table>.csv.gz`.
        take: from the chosen rows and the published row; by default the mean of `value` over
            images.
        model, state: the network and its training, where neither the table nor its facts say them.
        note: what else tells the twin from the published number.
    """

    page: str
    table: str = "attacks"
    value: str = "psnr"
    take: Callable[[pd.DataFrame, pd.Series], float | str] | None = None
    model: str = ""
    state: str = ""
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Twin:
    """A measured number, the page where it stands, its images (0: not of images), and what made it,
    in words.
    """

    value: float | str
    page: str
    n: int
    made: str


@dataclasses.dataclass(frozen=True)
class Rule:
    """Published rows, by patterns of "source table" and "metric policy", and what stands beside
    them.

    `twins`: places, the first before the others; a function where no stored table is needed; or why
    there are none.
    """

    tables: str
    quantity: str
    twins: tuple[Place, ...] | Callable[[pd.Series], Twin] | str


def _five(rows: pd.DataFrame, row: pd.Series) -> str:
    scores = wide(rows, rows["variant"].iloc[0])  # the variant that the page ranks by
    return ", ".join(map(str, sorted(scores.mean(axis=1).nsmallest(5).index)))


def _correlation(rows: pd.DataFrame, row: pd.Series) -> float:
    score, success = matrices(rows, f"s_pri {rows['state'].iloc[0]}", "psnr")
    return float(
        pearson(score.mean(1), success[:, 0] if row["source"] == "replication" else success.mean(1))
    )


def _correlation_judged(rows: pd.DataFrame, row: pd.Series) -> float:
    score, success = matrices(rows, "score", "psnr")
    return float(pearson(score.mean(1), success.mean(1)))


def _counted(row: pd.Series) -> Twin:
    """Facts that need no run: weights of the network itself, and policies of one to three
    operations.
    """
    if row["metric"] == "search_space":
        return Twin(f"{sum(len(OPS) ** k for k in (1, 2, 3)):,}", "deviations", 0, "counted")
    name = row["model"].replace("convnet-9conv", "convnet9")
    weights = build_model(name, num_classes=100, rng=0).parameters()
    return Twin(f"{sum(p.numel() for p in weights):,}", "deviations", 0, f"counted, {name}")


def _as_published(rows: pd.DataFrame, row: pd.Series) -> float:
    """The mean PSNR on a trained network as it was published, of photographs as they are without a policy, and
    after crop, flip and policy with it; on an untrained one after crop and flip on both sides.
    """
    without = row["policy_or_defense"] == NO_POLICY
    cases = {True: ("N0, P", "untrained, C"), False: ("NH, H", "untrained, H")}[without]
    return float(rows[rows["case"].isin(cases)]["psnr"].mean())


AS_PUBLISHED = Place("claim1_network", "own", take=_as_published, note="4,800 steps")
WEAK = 0.5  # of the published accuracy: what is measured of such a network says little of theirs
ACCURACY = {"value": "accuracy", "state": "trained"}
SCORES = {"table": "scores", "state": "semi-trained"}
SEARCH = {"page": "claim2_search", "table": "candidates", "state": "semi-trained"}
NETWORKS = (
    Place("claim1_network", "accuracy", model="resnet20-4", **ACCURACY),
    Place("claim1_privacy", "accuracy", **ACCURACY),
    Place("claim1_privacy", "blocks_accuracy", **ACCURACY),
    Place("claim3_transfer", "accuracy", **ACCURACY),
    Place("claim4_efficiency", "accuracy", **ACCURACY),
)
BLOCKS = Place("claim1_privacy", "blocks")
LOWEST = Place(
    take=lambda rows, row: rows["s_pri"].min(), note="of our search, variant fixed", **SEARCH
)
SEEN = Place("explorer", "images", model="lenet", state="untrained", note="total variation 0.02")
LEAKAGE = {"page": "ext7_general_leakage"}
MEASURES = {"PSNR": "psnr", "MSE": "mse", "SSIM": "ssim"}
RULES = (
    Rule(
        "leakage",
        "LPIPS",
        "the weights of its network were not at hand where the evidence was made",
    ),
    Rule(
        "leakage",
        "label_accuracy",
        (Place(table="labels", take=lambda rows, row: 100 * rows["share"].mean(), **LEAKAGE),),
    ),
    *(
        Rule("leakage", metric, (Place(value=column, **LEAKAGE),))
        for metric, column in MEASURES.items()
    ),
    Rule("ats Table 1", "PSNR.* random", (Place("claim1_privacy", "random"),)),
    Rule(
        "Table 1a",
        "PSNR",
        (AS_PUBLISHED, Place("claim1_privacy"), Place("claim1_privacy", "first"), BLOCKS),
    ),
    Rule("Table 1|Figure 3", "PSNR", (BLOCKS, Place("claim3_transfer"))),
    Rule("Table 1", "accuracy", NETWORKS),
    Rule("Table 2", "PSNR", (Place("claim2_generality"),)),
    Rule("ats Table 3|Table 6", "PSNR", (Place("claim1_defenses", state="trained"),)),
    Rule("ats Table 3|Table 6", "accuracy", (Place("claim1_defenses", "accuracy", **ACCURACY),)),
    Rule("Table 3", "PSNR", (Place("claim2_generality"), SEEN)),
    Rule("Table 4", "PSNR", (Place("claim3_transfer"),)),
    Rule("Table 4", "accuracy", (Place("claim3_transfer", "accuracy", **ACCURACY),)),
    Rule("Table 5", "PSNR", (Place("ext1_tinyimagenet"),)),
    Rule("Table 5", "accuracy", (Place("ext1_tinyimagenet", "accuracy", **ACCURACY),)),
    Rule(
        "ats Figure 2",
        "pearson",
        (
            Place(
                "claim7_correlation", "judged", take=_correlation_judged, note="judged photographs"
            ),
        ),
    ),
    Rule(
        "Figure 2",
        "pearson",
        (Place("claim7_correlation", "policies", take=_correlation, state="semi-trained"),),
    ),
    Rule("Figure 6c", "top5", (Place("ext2_transformations_tinyimagenet", take=_five, **SCORES),)),
    Rule("Figure", "top5", (Place("claim6_transformations", take=_five, **SCORES),)),
    Rule(
        "Figure 6c", "S_pri", (Place("ext2_transformations_tinyimagenet", value="s_pri", **SCORES),)
    ),
    Rule("Figure 6a", "S_pri", (Place("claim6_transformations", value="s_pri", **SCORES),)),
    Rule("Figure 5", "PSNR", (Place("claim5_semantics"),)),
    Rule("Figure [56]", "gradsim", (Place("claim5_semantics", "layers", "gradsim"),)),
    Rule(
        "Figure 1",
        "S_pri none",
        (Place("claim6_transformations", value="s_pri", note="variant fixed", **SCORES),),
    ),
    Rule("Figure 1", "S_pri lowest", (LOWEST,)),
    Rule("Figure 1", "GradSim", (Place("claim7_correlation", "interpolation", "gradsim"),)),
    Rule(
        "Section 4.4",
        "C_max",
        (Place(take=lambda rows, row: f"{len(rows):,}", note="distinct policies", **SEARCH),),
    ),
    Rule("Section", "search_space|parameters", _counted),
    Rule(
        "",
        "hours|minutes|seconds",
        "the authors' wall time: another machine; ours is in {doc}`reproduce`",
    ),
    Rule(
        "code tour",
        "",
        "a demonstration of the replication's code on the policy 1-2-3, which is not repeated",
    ),
)
PRESETS = {printed: preset for preset, printed in ATTACKS.items()}


def _ordered(policy: str) -> str:
    """A hybrid's members in one order: the replication writes them in the other."""
    return "+".join(sorted(policy.split("+")))


def leakage_twin(table: str, dataset: str, setting: str, method: str) -> dict[str, list]:
    """What the rows of the page on general leakage have that stand beside a printed number, by column."""
    setting, _, batch = setting.partition(" batch ")
    keys = {"table": [table], "setting": [setting], "batch": [int(batch or 16)]}
    if table in ("Table 3", "Table 4"):
        keys["rule"] = ["published" if method == "ours" else "minima"]
    if table == "Table 1" and method != "ours":
        keys["setting"] = [method]
    if table == "Table 2":
        keys["batch"] = [1]
    if table == "Table 5":
        whose = "our" if method == "ours" else f"{method}'s"
        keys["setting"] = [f"{setting}, {whose} labels"]
    where = "tinyimagenet" if dataset == "imagenet" else dataset
    return keys | {"dataset": ["cifar100" if table == "Table 5" else where]}


def wanted(row: pd.Series) -> dict[str, list]:
    """What the rows of a twin have, by column of the tables that `_rows` reads."""
    name = row["policy_or_defense"]
    metric = row["metric"]
    keys = {}
    if row["source"] == "leakage":
        return leakage_twin(row["table_or_figure"], row["dataset"], name, row["attack"])
    if row["dataset"]:
        keys["dataset"] = [row["dataset"].replace("tiny-imagenet200", "tinyimagenet")]
    if metric.startswith(("PSNR", "val_accuracy", "gradsim")):
        known = {"random": RANDOM, "hybrid": hybrid(block(row["dataset"], row["model"])[1])}
        known |= {printed: defense for defense, printed in DEFENSES.items()}
        every = metric.startswith("PSNR") and name == "random"  # the paper's mean over ten
        keys |= (
            {}
            if every
            else {
                "policy": [
                    _ordered(known.get(each, policy_label(each))) for each in name.split("/")
                ]
            }
        )
    if metric.startswith("PSNR"):
        keys["attack"] = [PRESETS.get(row["attack"], "adam-cosine-tv")]
    if metric == "S_pri" and (name.isdigit() or name == NO_POLICY):
        # Of each function the first id; without a transformation the variant of the score that the
        # search goes by.
        keys["op"] = [first_id(int(name)) if name.isdigit() else NOTHING]
        keys["variant"] = ["code" if name.isdigit() else "fixed"]
    if image := re.search(r"_image(\d+)", metric):
        keys["image"] = [int(image[1])]
    if metric.startswith("gradsim_final:"):
        keys["layer"] = [
            ours
            for ours, theirs in LAYERS.items()
            if theirs == metric.removeprefix("gradsim_final:")
        ]
    if metric == "GradSim_mean":
        keys |= {
            "point": [int(row["attack"][2:].split("/")[0])],
            "kind": [NO_POLICY if name == NO_POLICY else "lowest"],
        }
    if metric.startswith("gradsim_shallow"):
        keys["third"] = ["shallow"]
    return keys | ({"model": [family(row["model"])]} if row["model"] else {})


def _pick(rows: pd.DataFrame, keys: Mapping[str, list]) -> pd.DataFrame:
    """The rows that have what is wanted; LeNet stands for a ResNet20 where there is none."""
    if keys.keys() - set(rows):
        return rows[:0]
    chosen = np.ones(len(rows), bool)
    for key, allowed in keys.items():
        if key == "model":  # of the tables' many rows only the names are looked at
            allowed = [name for name in rows["model"].unique() if family(name) in allowed]
        chosen &= rows[key].isin(allowed).to_numpy()
    own = chosen & (rows["model"] != "lenet").to_numpy()
    return rows[own if own.any() else chosen]


def _rows(place: Place, folder: Path, facts: Mapping) -> pd.DataFrame:
    """A stored table with columns for all that `wanted` asks, of older and newer pages; empty if
    there is none.
    """
    if not (path := table_file(folder, place.table)).exists():
        return pd.DataFrame()
    rows = pd.read_csv(path, dtype={"policy": str})
    trained = PROFILES.get(facts["profile"], facts)["model"]  # the facts may name the attacked one
    regime = facts.get("main") or place.state or facts.get("regime", "trained")
    model = place.model or (trained if place.value == "accuracy" else facts["model"])
    known = {"dataset": facts["dataset"], "model": model, "regime": regime, "attack": "adam-cosine"}
    known |= {"variant": "code", "applied": ""}
    rows = rows.assign(**{name: value for name, value in known.items() if name not in rows})
    rows["state"] = rows["regime"].replace("initial", "untrained")
    names = "defense" if "defense" in rows else "policy"
    return rows.assign(policy=rows[names].map(_ordered)) if names in rows else rows


def _twins(
    rows: pd.DataFrame, place: Place, facts: Mapping, age: int, row: pd.Series
) -> tuple[Twin, ...]:
    """One for each network, regime and way of applying a defense among the rows."""
    results = []
    ways = {"": "", "fixed": "shared gradient perturbed", "code": "training only, as their code"}
    groups = rows.groupby(["model", "state", "applied"], sort=False)
    for (model, state, applied), part in groups:
        notes = [f"{model} for ResNet20" if model == "lenet" and row["model"] else model, state]
        notes += [ways[applied] if len(groups) > 1 else "", place.note]
        random = (
            "ten random policies"
            if "policy" in part and part["policy"].nunique() == TEN
            else "one random policy"
        )
        notes += [random if row["policy_or_defense"] == "random" else ""]
        value = place.take(part, row) if place.take else _mean(part, place.value)
        if row["metric"].startswith("val_accuracy") and value < WEAK * row["value"]:
            notes.append("a weak network for a strong one")
        notes += [facts["profile"], "an older run" if age else ""]
        n = part["image"].nunique() if "image" in part else 0
        results.append(Twin(value, place.page, n, ", ".join(filter(None, notes))))
    return tuple(results)


def _mean(rows: pd.DataFrame, column: str) -> float:
    """Over images, of their draws' mean; as on the pages without attacks that diverged."""
    finite = rows[np.isfinite(rows[column])]
    if "mse" in finite:  # farther from the truth than black from white
        finite = finite[finite["mse"] <= 1]
    return float(
        (finite.groupby("image")[column].mean() if "image" in finite else finite[column]).mean()
    )


Table = tuple[
    int, Place, Mapping, pd.DataFrame
]  # age (0: of the page's newest result), place, facts, rows


def _tables(place: Place, results: Path) -> list[Table]:
    """The table of all stored results that have it."""
    every = enumerate(stored(place.page, results))
    tables = [(age, place, facts, _rows(place, folder, facts)) for age, (folder, facts) in every]
    return [table for table in tables if len(table[-1])]


def _look(row: pd.Series, tables: Iterable[Table]) -> tuple[Twin, ...]:
    """What the newest table that has it says of a published row; of equally new ones the first."""
    keys = wanted(row)
    for age, place, facts, rows in sorted(tables, key=lambda table: table[0]):
        if len(chosen := _pick(rows, keys)):
            return _twins(chosen, place, facts, age, row)
    return ()


def coverage(results: Path) -> pd.DataFrame:
    """All rows of `reported` with `twins`, a tuple of `Twin`, and `reason`, why it is empty ("" if
    it is not).
    """
    published = reported()
    rows = []
    read = functools.cache(lambda place: _tables(place, results))
    for _, row in published.iterrows():
        table = f"{row['source']} {row['table_or_figure']}"
        quantity = f"{row['metric']} {row['policy_or_defense']}"
        rule = next(
            r for r in RULES if re.search(r.tables, table) and re.search(r.quantity, quantity)
        )
        if isinstance(rule.twins, str):
            rows.append(((), rule.twins))
        elif callable(rule.twins):
            rows.append(((rule.twins(row),), ""))
        else:
            tables = [table for place in rule.twins for table in read(place)]
            twins = _look(row, tables)
            rows.append((twins, "" if twins else _why(rule, len(tables))))
    return published.join(pd.DataFrame(rows, columns=["twins", "reason"]))


def _why(rule: Rule, tables: int) -> str:
    what = {
        "accuracy": "trains no such network with this policy",
        "PSNR": "makes no such attack with this policy",
    }
    why = what.get(rule.quantity, "has no such number") if tables else "has no stored result yet"
    return f"not run: {rule.twins[0].page} {why}"
