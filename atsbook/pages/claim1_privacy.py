"""Claim 1: searched policies lower the quality of reconstructions and keep the accuracy (paper,
Table 1).
"""

import dataclasses

import pandas as pd

from atsbook.findings import compare
from atsbook.findings.result import NO_POLICY, Result, Verdict
from atsbook.findings.verdicts import cannot_tell, guards
from atsbook.pages import regimes
from atsbook.runs import table1
from atsbook.runs.attacks import AttackUnit
from atsbook.runs.networks import ModelUnit, Unit, model_unit
from atsbook.runs.regimes import Cell, accuracies, measure, sizes
from atsbook.runs.settings import Settings
from atsbook.runs.store import Store
from atsbook.runs.table1 import HYBRID, OF_TEN, POLICIES, block, family, published_rows
from atsbook.runs.tables import accuracy_rows, attack_rows, curve_rows, label, provenance

POINTS = 2.0  # of accuracy that the hybrid may cost; the paper's own costs 1.04


def cells(settings: Settings) -> dict[Cell, tuple[str, ...]]:
    """Where privacy is judged, and which policies: all of the page on regimes but the stages of a
    training.
    """
    return {c: chosen for c, chosen in regimes.cells(settings).items() if c.regime != "early"}


def attacks_of(settings: Settings) -> dict[tuple, AttackUnit]:
    """The attacks that are judged, by regime, step of training, network, policy and draw."""
    return {
        key: unit
        for cell, chosen in cells(settings).items()
        for key, unit in cell.units(chosen).items()
    }


def networks(settings: Settings) -> dict[str, ModelUnit]:
    """The trained networks, by the policy's label; at smoke the two whose accuracy is judged."""
    chosen = ("", HYBRID) if settings.profile == "smoke" else POLICIES
    return {label(policy): model_unit(settings, policy) for policy in chosen}


def units(settings: Settings) -> dict[object, Unit]:
    """All that the page needs: its attacks, the trained networks, and the four blocks of Table 1
    with theirs.
    """
    trained = {("trained", name): unit for name, unit in networks(settings).items()}
    trained |= {("trained", *key): unit for key, unit in table1.networks(settings).items()}
    trained |= {("random", *key): unit for key, unit in table1.random_units(settings).items()}
    return attacks_of(settings) | trained | table1.units(settings)


PRIVACY_RULE = (
    "Privacy is judged in cells, each a network in a regime, by the rule of the page on regimes: the outcome is the "
    "attack's gain over the best guess of somebody who knows the policy and sees no gradient; a cell can tell if at "
    "least 30 images are attacked, the undefended attack has a gain, and the interval of the hybrid's change does not "
    "hold both 0 and the smaller published change of PSNR; there the hybrid protects if it lowers the gain. "
    f"Reproduced: it protects in every cell that can tell, and costs at most {POINTS:.0f} points of accuracy. Partly: "
    "it protects in some of them, or in all at a higher cost, or the accuracy cannot be judged (a network within twice "
    "chance). Not reproduced: it protects in none. Cannot tell: no cell can."
)


def privacy_verdict(judged: pd.DataFrame, accuracy: pd.Series, classes: int) -> Verdict:
    """Claim 1 by `PRIVACY_RULE`.

    Args:
        judged: rows of `regimes.judged`.
        accuracy: percent, by policy, of the trained networks; `classes` is how many they tell
            apart.
    """
    telling = judged[judged["why"] == ""]
    protected = judged[judged["protects"]]
    cost = accuracy[NO_POLICY] - accuracy[HYBRID]
    accurate = f"accuracy {accuracy[NO_POLICY]:.1f} → {accuracy[HYBRID]:.1f} %"
    untrained = telling[telling.index.get_level_values("regime") == "initial"]
    here = f"the hybrid changes the gain by {compare.spread(untrained['change'])}; it protects in "
    here += f"{untrained['protects'].sum()} of {len(untrained)} cells"
    reason = f"the hybrid lowers what attacks gain in {len(protected)} of {len(telling)} cells that can tell"
    if 0 < len(protected) < len(telling):
        reason += f", {' and '.join(f'{model}, {regime}' for regime, _, model in protected.index)}"
    reason += f" (it changes the gain by {compare.spread(telling['change'])}; {accurate})"
    if telling.empty:
        return cannot_tell(
            Verdict("partly", "", PRIVACY_RULE, accurate), judged["why"].tolist()[:1]
        )
    faults = [] if len(protected) == len(telling) else ["it does not in the others"]
    faults += [f"it costs {cost:.1f} points of accuracy"] if not cost <= POINTS else []
    faults += guards(accuracies=accuracy.to_dict(), classes=classes)
    if protected.empty:
        return compare.judge(PRIVACY_RULE, reason, here, refuted=True)
    return compare.judge(PRIVACY_RULE, reason, here, faults)


def _trained(judged: pd.DataFrame, networks: pd.DataFrame) -> str:
    """What the answer table says of networks at the end of their training; `networks` has their
    accuracies.
    """
    known = networks.set_index(["regime", "model", "policy"])["accuracy"]
    words = []
    for (regime, _, model), row in judged[
        judged.index.get_level_values("regime") == "trained"
    ].iterrows():
        undefended = (
            f"undefended gain {row['bare']:+.1f} dB [{row['bare_low']:.1f}, {row['bare_high']:.1f}]"
        )
        change = f"{row['change']:+.1f} [{row['low']:.1f}, {row['high']:.1f}]"
        both = (f"{known[regime, model, policy]:.1f}" for policy in (NO_POLICY, HYBRID))
        words.append(
            f"{model}: {undefended}, which the hybrid changes by {change}; accuracy {' → '.join(both)} %"
        )
    return "; ".join(words)


def run(settings: Settings, store: Store) -> Result:
    """Attack and train with and without policies, and judge.

    Tables: `attacks` (one row per regime, step, network, policy, draw and image), `judged` (one row
    per cell), `networks` (the accuracy of each trained one that is attacked), `accuracy` (of the
    long trainings, one row per policy), `curve` (GradSim along the attack on the first network, one
    row per policy, step and image), and of the four blocks of Table 1 `blocks` and, of ten random
    policies, `random` (one row per data set, network, policy and image) and, but for smoke,
    `blocks_accuracy` (one row per data set, network and policy). Sheets: the images behind the
    first table, by its keys.
    """
    attacks, sheets = measure(
        asked := attacks_of(settings), store, settings.device, regimes.TRAINED
    )
    judged = regimes.judged(attacks)
    blocks = table1.units(settings)
    first = next(iter(sheets))[:3]
    curves = [curve_rows(sheets[key], key[3]) for key in sheets if key[:3] == first and key[4] == 0]
    tables = {
        "attacks": attacks,
        "judged": judged.reset_index(),
        "networks": accuracies(asked, store, settings.device),
        "accuracy": accuracy_rows(networks(settings), ["policy"], settings, store),
        "curve": pd.concat(curves, ignore_index=True),
        "blocks": attack_rows(blocks, table1.KEYS, settings, store)[0],
        "random": attack_rows(table1.random_units(settings), table1.KEYS, settings, store)[0],
    }
    if trained := table1.networks(settings):
        tables["blocks_accuracy"] = accuracy_rows(trained, table1.KEYS, settings, store)
    accuracy = tables["accuracy"].set_index("policy")["accuracy"]
    verdict = privacy_verdict(judged, accuracy, table1.classes(settings.dataset))
    verdict = dataclasses.replace(verdict, trained=_trained(judged, tables["networks"]))
    facts = provenance(settings, next(iter(sheets.values()))) | sizes(list(cells(settings)))
    return Result("claim1_privacy", tables, facts, verdict, sheets)


def differences(result: Result) -> pd.DataFrame:
    """Each policy minus none on the same images and draws, PSNR and gain in dB; below 0: harder to
    attack.
    """
    return compare.differences(result.tables["attacks"], within=regimes.CELL)


def blocks(result: Result) -> pd.DataFrame:
    """One row per data set, network and policy: our summary beside both publications' block of
    Table 1.

    The mean of ten random policies stands beside the paper's; its success and deviation are over
    all attacks. The accuracy is that of the short training of a network of this family, where there
    is one.
    """

    attacks = _by_block(result, result.tables["random"])
    accuracy = result.tables.get("blocks_accuracy", pd.DataFrame())
    if len(accuracy):
        attacked = {family(model): model for model in attacks["model"]}
        accuracy = accuracy.assign(model=accuracy["model"].map(family).map(attacked))
    return compare.comparison(
        result, list(table1.KEYS), _published, attacks=attacks, accuracy=accuracy
    )


def block_differences(result: Result) -> pd.DataFrame:
    """Each policy minus none on the same images, PSNR and gain, one row per block and policy; below
    0: harder.

    Of the ten random policies it is the mean over them for each image.
    """
    return compare.differences(_by_block(result, _mean_of_ten(result)), within=table1.KEYS[:2])


def searched_minus_random(result: Result) -> pd.DataFrame:
    """Each block's searched policies minus the mean of ten random ones on the same images, as text;
    below 0: harder.

    Gain and PSNR in dB with 95 % intervals over images, for these ten; how many of the ten have a
    lower mean gain; last the difference that the paper prints.
    """
    attacks = _by_block(result, _mean_of_ten(result))
    attacks = attacks[~attacks["policy"].isin([NO_POLICY, table1.RANDOM])]
    table = compare.differences(attacks, OF_TEN, within=table1.KEYS[:2])

    def printed(key: tuple[str, str, str]) -> float:
        return compare.published(_published(key))["paper PSNR"]

    words = {
        value: [compare.interval(row, "") for _, row in table[value].iterrows()]
        for value in ("gain", "psnr")
    }
    means = attacks.groupby(list(table1.KEYS))["gain"].mean()
    ten = result.tables["random"].groupby(list(table1.KEYS))["gain"].mean()
    words["lower"] = [
        f"{(ten.loc[key[:2]] < means[key]).sum()} of {len(ten.loc[key[:2]])}" for key in table.index
    ]
    words["paper"] = [f"{printed(key) - printed((*key[:2], OF_TEN)):+.1f}" for key in table.index]
    names = {"lower": "random ones below it", "psnr": "PSNR, dB", "paper": "paper's PSNR, dB"}
    return pd.DataFrame(words, index=table.index).rename(columns=names)


def _published(key: tuple[str, str, str]) -> pd.DataFrame:
    """What both publications print of a data set, network and policy in Table 1."""
    return published_rows(block(*key[:2])[0], key[2], random=OF_TEN)


def _mean_of_ten(result: Result) -> pd.DataFrame:
    """One row per block and image: the mean over the ten random policies."""
    return (
        result.tables["random"]
        .groupby([*table1.KEYS[:2], "image"])[list(compare.VALUES)]
        .mean()
        .reset_index()
    )


def _by_block(result: Result, random: pd.DataFrame) -> pd.DataFrame:
    """The attacks of each block, and after them those under random policies as one policy."""
    attacks = pd.concat([result.tables["blocks"], random.assign(policy=OF_TEN)])
    return pd.concat([rows for _, rows in attacks.groupby(list(table1.KEYS[:2]), sort=False)])


def sheet(result: Result, policy: str, count: int = 12) -> dict:
    """The artifact's first images on the first network, as used and as recovered, under a policy's
    label.
    """
    first = next(iter(result.sheets))[:3]
    artifact = result.sheets[(*first, policy, 0)]
    return {
        name: artifact[name][:count] for name in ("original", "target", "reconstruction", "psnr")
    }
