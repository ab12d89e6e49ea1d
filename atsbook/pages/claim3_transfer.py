"""Claim 3: policies searched on CIFAR-100 work on Fashion-MNIST (paper, Table 4)."""

from collections.abc import Mapping

import pandas as pd

from atsbook.findings import compare
from atsbook.findings.result import NO_POLICY, Result, Verdict
from atsbook.findings.statistics import paired
from atsbook.findings.verdicts import cannot_tell, guards
from atsbook.runs.attacks import AttackUnit, attack_unit
from atsbook.runs.networks import ModelUnit, Unit, dataset, model_unit, victim
from atsbook.runs.scoring import search_result, search_unit
from atsbook.runs.settings import Settings
from atsbook.runs.store import Artifact, Store
from atsbook.runs.table1 import (
    BLOCKS,
    block,
    family,
    hybrid,
    on_network,
    published_rows,
    relocated,
    second_network,
    trained_second,
)
from atsbook.runs.tables import accuracy_rows, attack_rows, attacked_facts, label, provenance

TABLES = {"resnet20": "Table 4a", "convnet": "Table 4b"}
POINTS, PUBLISHED = 4.0, 3.5  # the paper's own hybrid loses 95.03 - 91.49 points


def policies(model: str) -> tuple[str, ...]:
    """None and the network's transferred policies, the hybrid last."""
    searched = BLOCKS["cifar100", family(model)][1]
    return ("", *searched, hybrid(searched))


def place(settings: Settings) -> Settings:
    """The settings on Fashion-MNIST; at laptop networks are trained on a tenth of it."""
    less = {"fraction": 0.1} if settings.profile == "laptop" else {}
    return relocated(settings, "fmnist", "shapes-grey", **less)


def attacks(settings: Settings) -> dict[tuple[str, str], AttackUnit]:
    """Attacks that need no search, by (network, policy): transferred ones, and the paper's hybrid
    searched there.

    At smoke the second network has no policy and the two hybrids alone.
    """
    own = place(settings)
    by_network = {}
    first = victim(own).model
    for model in dict.fromkeys((first, second_network(settings))):
        there = on_network(own, model) if model != first else own
        chosen = policies(model)
        if model != first and settings.profile == "smoke":
            chosen = (chosen[0], chosen[-1])
        for policy in (*chosen, hybrid(block(own.dataset, model)[1])):
            by_network[model, label(policy)] = attack_unit(there, policy)
    return by_network


def networks(settings: Settings) -> dict[tuple[str, str], ModelUnit]:
    """The trained networks, by (network, policy); the first one's accuracy, without and with the
    hybrid, is judged.

    At smoke they are these two alone.
    """
    own = place(settings)
    if settings.profile == "smoke":
        return {
            (own.model, label(policy)): model_unit(own, policy)
            for policy in policies(own.model)[::3]
        }
    models = (own.model, trained_second(settings))
    return {
        (name, label(p)): model_unit(own, p, model=name) for name in models for p in policies(name)
    }


def units(settings: Settings) -> dict[object, Unit]:
    """All attacks that need no search, the networks, and, but for laptop, the search on the other
    data set itself.
    """
    search = {} if settings.profile == "laptop" else {"search": search_unit(place(settings))}
    return (
        attacks(settings)
        | {("trained", *key): unit for key, unit in networks(settings).items()}
        | search
    )


def later_units(settings: Settings, store: Store) -> dict[tuple[str, str], AttackUnit]:
    """The attack on the hybrid that the search found."""
    if settings.profile == "laptop":
        return {}
    policy = str(search_result(place(settings), store)[0].hybrid)
    unit = attack_unit(place(settings), policy)
    return {(unit.model.model, policy): unit}


def measure(
    by_network: Mapping[tuple, AttackUnit],
    trained: Mapping[tuple[str, str], ModelUnit],
    settings: Settings,
    store: Store,
) -> tuple[dict[str, pd.DataFrame], dict[object, Artifact]]:
    """Tables `attacks` and `accuracy`, and the artifacts, of attacks and trained networks by
    (network, policy).

    A third part of an attack's key is its draw.
    """
    names = ("model", "policy", "draw")[: len(next(iter(by_network)))]
    rows, artifacts = attack_rows(by_network, names, settings, store)
    return {
        "attacks": rows,
        "accuracy": accuracy_rows(trained, ("model", "policy"), settings, store),
    }, artifacts


def judged(
    tables: dict[str, pd.DataFrame], name: str, hybrid: str, points: float, published: float
) -> Verdict:
    """The verdict on the first network of each table; a second one stands in them."""
    attacks, trained = (
        rows[rows["model"] == rows["model"].iloc[0]]
        for rows in (tables["attacks"], tables["accuracy"])
    )
    accuracy = trained.set_index("policy")["accuracy"]
    chance = 100 / dataset(name, "test").num_classes
    return transfer_verdict(
        attacks, accuracy, hybrid, points=points, published=published, chance=chance
    )


TRANSFER_RULE = (
    "The outcome is the attack's gain over the best guess of somebody who knows the policy and sees no gradient. "
    "Reproduced: on the same images the gain is lower with the hybrid than without (95 % interval of the mean paired "
    "difference below 0), the hybrid costs at most {points} points of accuracy (published: {published}), and the "
    "undefended trained network is at 5 times chance or better, so that a loss could show. Partly: the gain is lower "
    "but another condition fails. Not reproduced: the gain is not lower. Cannot tell: undefended attacks have no gain, "
    "or fewer than 30 images."
)


def transfer_verdict(
    attacks: pd.DataFrame,
    accuracy: pd.Series,
    hybrid: str,
    *,
    points: float,
    published: float,
    chance: float,
) -> Verdict:
    """Claim 3, and Tiny ImageNet, by `TRANSFER_RULE`.

    Args:
        attacks: one network's rows, with `policy`, `image`, `psnr`, `floor_policy` and `gain`.
        accuracy: percent, by policy; `chance` is that of guessing.
        points, published: the loss of accuracy that is allowed, and the one that was published.
    """
    rule = TRANSFER_RULE.format(points=points, published=published)
    change = paired(attacks, NO_POLICY, "gain").loc[hybrid]
    loss = accuracy[NO_POLICY] - accuracy[hybrid]
    words = f"gain {compare.interval(change)}, {-loss:+.1f} points"
    here = f"{compare.levels(attacks, accuracy, hybrid)}; gain {compare.interval(change)}"
    if reasons := guards(attacks):
        return cannot_tell(Verdict("partly", "", rule, here), reasons)
    if not change["high"] < 0:
        return compare.judge(
            rule, f"the hybrid does not lower the gain ({words})", here, refuted=True
        )
    faults = [f"the hybrid costs {loss:.1f} points of accuracy"] if not loss <= points else []
    if not accuracy[NO_POLICY] >= 5 * chance:
        faults.append(
            f"the undefended network's {accuracy[NO_POLICY]:.1f} % is too low to show a loss"
        )
    return compare.judge(rule, f"the hybrid lowers the gain ({words})", here, faults)


def run(settings: Settings, store: Store) -> Result:
    """Train on the other data set with policies searched on CIFAR-100 and on itself, and attack.

    Tables: `attacks` (one row per network, policy and image), `accuracy`, and where there was a
    search its `candidates`, with what it found in the fact `hybrid`.
    """
    by_network = attacks(settings) | later_units(settings, store)
    own = place(settings)
    tables, sheets = measure(by_network, networks(settings), own, store)
    verdict = judged(tables, own.dataset, policies(own.model)[-1], POINTS, PUBLISHED)
    first = next(iter(sheets))
    facts = provenance(own, sheets[first]) | attacked_facts(by_network[first])
    if settings.profile != "laptop":
        search = search_result(own, store)[0]
        tables = tables | {"candidates": pd.DataFrame(search.table)}
        facts = facts | {"hybrid": str(search.hybrid)}
    return Result("claim3_transfer", tables, facts, verdict, sheets)


def comparison(result: Result) -> pd.DataFrame:
    """Our summary beside Table 4 of both papers; beside Table 1 for what was searched on the other
    data set.
    """

    def printed(key: tuple[str, str]) -> pd.DataFrame:
        there, searched = block(result.facts["dataset"], key[0])
        return published_rows(
            there if key[1] == hybrid(searched) else TABLES[family(key[0])], key[1]
        )

    return compare.comparison(result, ["model", "policy"], printed)


def per_image(result: Result) -> dict[str, pd.DataFrame]:
    """Gain in dB by network: one row per image, columns `none` and the transferred hybrid."""
    attacks = result.tables["attacks"]
    panels = {}
    for model, table in attacks.groupby("model", sort=False):
        pair = [NO_POLICY, policies(model)[-1]]
        panels[model] = table[table["policy"].isin(pair)].pivot(
            index="image", columns="policy", values="gain"
        )[pair]
    return panels


def summary(result: Result) -> pd.DataFrame:
    """One row per network and policy, as text: PSNR, floor, gain with its interval, identification,
    published PSNR.
    """
    rows = {}
    printed = comparison(result)
    for key, table in result.tables["attacks"].groupby(["model", "policy"], sort=False):
        row = {"n": table["image"].nunique(), "PSNR": f"{table['psnr'].mean():.1f}"}
        row |= {"floor": f"{table['floor_policy'].mean():.1f}"}
        row["gain"] = compare.interval(compare.gained(table), "")
        row["used image found"] = compare.found(table["rank_target"])
        row["photograph found"] = compare.found(table["rank_original"])
        theirs = {
            name: printed.loc[key].get(f"{name} PSNR", float("nan"))
            for name in compare.SOURCES.values()
        }
        rows[key] = row | {
            f"{name}'s PSNR": "–" if pd.isna(v) else f"{v:.1f}" for name, v in theirs.items()
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["model", "policy"])


def accuracies(result: Result) -> pd.DataFrame:
    """One row per trained network and policy: accuracy in percent, here and in Table 4 of both
    publications.
    """
    rows = {}
    for _, row in result.tables["accuracy"].iterrows():
        printed = published_rows(TABLES[family(row["model"])], row["policy"]).query(
            "metric == 'val_accuracy_pct'"
        )
        theirs = dict(zip(printed["source"].map(compare.SOURCES), printed["value"], strict=True))
        rows[row["model"], row["policy"]] = {
            "accuracy": row["accuracy"],
            "training images": row["train"],
        } | {f"{name}'s": theirs.get(name, float("nan")) for name in compare.SOURCES.values()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["model", "policy"])


def differences(result: Result) -> pd.DataFrame:
    """Each policy minus none on the same images, PSNR and gain, one row per network and policy;
    below 0: harder.
    """
    return compare.differences(result.tables["attacks"], within=["model"])
