"""Claim 5: policies hide what shallow layers see and keep what deep layers see (paper, Figure 6)."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from atsbook.findings import compare
from atsbook.findings.reported import policy_label, reported
from atsbook.findings.result import NO_POLICY, Result, Verdict
from atsbook.findings.statistics import holm, interval, paired
from atsbook.findings.verdicts import cannot_tell, guards
from atsbook.runs.attacks import AttackUnit, attack_unit
from atsbook.runs.layers import GROUPS, group_rows, layer_rows, spectrum_rows
from atsbook.runs.settings import Settings
from atsbook.runs.store import Store
from atsbook.runs.table1 import FEW, HYBRID, RANDOM, SEARCHED, on_network, second_network
from atsbook.runs.tables import attack_rows, attacked_facts, label, provenance
from atslib.models import device_of

POLICIES = ("", RANDOM, SEARCHED[0], HYBRID)
JUDGED = (SEARCHED[0], HYBRID)
# Kept of every attack; most of the whole gradient's way is made in the first tenth of the steps
ITERATES = 51
KEYS = ["model", "policy", "image"]
# parameter → the replication's name of the layer in its Figure 5: two shallow layers and two deep
# ones
PUBLISHED = {
    "1.stage1_0.conv1.weight": "layers.3.0.conv1(stage1 block0 conv1)",
    "1.stage1_1.conv1.weight": "layers.3.1.conv1(stage1 block1 conv1)",
    "1.stage3_1.conv2.weight": "layers.5.1.conv2(stage3 block1 conv2)",
    "1.stage3_2.conv2.weight": "layers.5.2.conv2(stage3 block2 conv2)",
}
CHANGES = {"shallow": "shallow third", "deep": "deep third", "contrast": "shallow - deep"}
BANDS = {"coarse, 1 to 4": (1, 4), "fine, 8 and above": (8, np.inf)}  # cycles an image


def units(settings: Settings) -> dict[tuple[str, str], AttackUnit]:
    """The page's attacks by (network, policy): on the settings' network, and untrained also on one
    of other kinds.
    """
    models = [settings.model]
    if settings.regime == "initial":
        models += [second_network(settings), settings.attacked or settings.model]
    few = (
        dataclasses.replace(settings, images=min(FEW, settings.images))
        if len(models) > 1
        else settings
    )
    return {
        (model, label(policy)): attack_unit(on_network(few, model), policy, frames=ITERATES)
        for model in dict.fromkeys(models)
        for policy in POLICIES
    }


SEMANTICS_RULE = (
    "Each network is judged by itself, and can tell if at least 30 images are attacked and the undefended attack beats "
    "the best guess of somebody who knows the policy and sees no gradient. There the gradient's similarity in the "
    "shallow and in the deep third of the convolutions is taken at the point of each attack where the whole gradient "
    "is as similar under every policy: the lowest similarity that the attacks on the image end with. It falls in the "
    "shallow third if it is lower than without a policy on the same images (95 % interval of the mean difference below "
    "0, p at most 0.05 after Holm's correction over networks and policies), and by more than in the deep third if the "
    "interval of the difference of both changes is below 0. Reproduced: in every network that can tell, both hold for "
    "the searched policy and for the hybrid. Partly: the shallow third falls for one of them in some network. Not "
    "reproduced: in none. Cannot tell: no network can. Not measured: fewer than two images."
)


def judged(
    levels: pd.DataFrame, attacks: pd.DataFrame, searched: Sequence[str] = JUDGED
) -> pd.DataFrame:
    """One row per network and searched policy: what the rule looks at.

    Args:
        levels: rows of `at_equal`.
        attacks: with `model`, `policy`, `image`, `psnr` and `floor_policy`.
    Returns:
        `n`; `shallow`, `deep` and `contrast`, the mean changes to no policy, each with `… low` and
        `… high`; `p` after Holm of the first; `falls`, `more` (than in the deep third), and `why`
        the network cannot tell.
    """
    rows = {}
    for model, table in levels.groupby("model", sort=False):
        parts = {name: paired(table, NO_POLICY, name, p_values=True) for name in CHANGES}
        fewest = int(parts["shallow"].loc[list(searched), "n"].min())
        why = "; ".join(guards(attacks[attacks["model"] == model], images=fewest))
        for policy in searched:
            row = {
                "n": int(parts["shallow"].loc[policy, "n"]),
                "p": parts["shallow"].loc[policy, "p"],
                "why": why,
            }
            for name, part in parts.items():
                row |= {name: part.loc[policy, "mean"]}
                row |= {f"{name} {end}": part.loc[policy, end] for end in ("low", "high")}
            rows[model, policy] = row
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis(KEYS[:2])
    table["p"] = holm(table["p"])
    falls = (table["shallow high"] < 0) & (table["p"] <= 0.05)
    return table.assign(falls=falls, more=falls & (table["contrast high"] < 0))


def semantics_verdict(table: pd.DataFrame) -> Verdict:
    """Claim 5 by `SEMANTICS_RULE`, from rows of `judged`."""
    if table["n"].min() < 2:
        return Verdict("not measured", "fewer than two images can be compared", SEMANTICS_RULE)
    telling = table[table["why"] == ""]
    shown = telling if len(telling) else table
    change = {
        name: f"{shown[name].min():+.2f} to {shown[name].max():+.2f}"
        for name in ("shallow", "deep")
    }
    here = f"at equal similarity of the whole: shallow {change['shallow']}, deep {change['deep']}"
    here += f"; the shallow third falls in {shown['falls'].sum()} of {len(shown)} comparisons"
    reason = f"the similarity in shallow layers falls in {shown['falls'].sum()} of {len(shown)} comparisons, each of a "
    reason += "network and a searched policy, where whole gradients are as similar (it changes by "
    reason += f"{change['shallow']} in shallow layers and by {change['deep']} in deep ones)"
    faults = [
        f"not for {policy} on {model}"
        for (model, policy), row in shown.iterrows()
        if not row["falls"]
    ]
    only = shown[shown["falls"] & ~shown["more"]]
    faults += [
        f"it falls no more than in deep layers for {policy} on {model}"
        for model, policy in only.index
    ]
    if telling.empty:
        return cannot_tell(
            compare.judge(SEMANTICS_RULE, reason, here, faults), table["why"].tolist()[:1]
        )
    if not telling["falls"].any():
        return compare.judge(SEMANTICS_RULE, reason, here, refuted=True)
    return compare.judge(SEMANTICS_RULE, reason, here, faults)


def run(settings: Settings, store: Store) -> Result:
    """Attack, and look at the gradient layer by layer and at the error frequency by frequency.

    Tables, all by network and policy: `attacks`, `layers` (final similarity, one row per layer and
    image), `levels`, see `at_equal`, `curve` (one row per group of layers, shown iterate and image)
    and `spectrum`.
    """
    by_key = units(settings)
    device = device_of(settings.device)
    attacks, sheets = attack_rows(by_key, KEYS[:2], settings, store)
    makers = {"layers": layer_rows, "curve": group_rows, "spectrum": spectrum_rows}
    tables = {"attacks": attacks}
    for name, rows in makers.items():
        parts = {key: rows(unit, store, device) for key, unit in by_key.items()}
        tables[name] = pd.concat(parts, names=KEYS[:2]).reset_index(KEYS[:2]).reset_index(drop=True)
    tables["levels"] = at_equal(tables["curve"])
    tables["curve"] = pd.concat(
        [_thinned(own) for _, own in tables["curve"].groupby("model", sort=False)]
    )
    verdict = semantics_verdict(judged(tables["levels"], attacks))
    first = next(iter(by_key))
    facts = provenance(settings, sheets[first]) | attacked_facts(by_key[first])
    steps = {model: str(unit.attack.steps) for (model, _), unit in by_key.items()}
    facts |= {"model": ", ".join(steps), "steps": ", ".join(steps.values())}
    return Result("claim5_semantics", tables, facts, verdict, sheets)


def _thinned(curve: pd.DataFrame) -> pd.DataFrame:
    """A network's curve at every fifth of its iterates, or all where they are few."""
    steps = sorted(curve["iteration"].unique())
    return curve[curve["iteration"].isin(steps[:: max(1, len(steps) // 10)])]


def at_equal(curve: pd.DataFrame) -> pd.DataFrame:
    """Similarities by network, policy and image, where whole gradients are as similar under every
    policy.

    Of each image and network: the lowest of the highest similarities that the attacks under the
    policies reach, and what the groups of layers have where an attack first comes to it, on a
    straight line between iterates; nan where an attack begins above it.

    Args:
        curve: one row per `model`, `policy`, `image`, `iteration` and group of `layers`, with
            `gradsim`.
    Returns:
        Columns `whole`, `first`, `shallow`, `deep` and `contrast`, the last two's difference.
    """
    wide = curve.pivot(index=[*KEYS, "iteration"], columns="layers", values="gradsim").sort_index()
    level = wide["whole"].groupby(KEYS).max().groupby(["model", "image"]).min()
    rows = []
    for (model, policy, image), path in wide.groupby(KEYS, sort=False):
        climbed = path["whole"].cummax()
        path = path[climbed > climbed.shift(fill_value=-np.inf)]
        wanted = level[model, image]
        values = {
            name: np.interp(wanted, path["whole"], path[name], left=np.nan) for name in GROUPS
        }
        rows.append({"model": model, "policy": policy, "image": image} | values)
    return pd.DataFrame(rows).assign(contrast=lambda table: table["shallow"] - table["deep"])


def at_the_end(layers: pd.DataFrame) -> pd.DataFrame:
    """The same at the end of each attack, however similar the whole is there: no column `whole`."""
    table = layers.groupby([*KEYS, "third"], sort=False)["gradsim"].mean().unstack()
    table["first"] = layers[layers["position"] == 0].set_index(KEYS)["gradsim"]
    return table.assign(contrast=table["shallow"] - table["deep"]).reset_index()


def differences(result: Result, *, equal: bool) -> pd.DataFrame:
    """Each policy minus none on the same images, by network, group of layers and policy; below 0:
    less similar.

    Args:
        equal: where whole gradients are as similar, see `at_equal`, or else at the end of the
            attacks.
    """
    table = result.tables["levels"] if equal else at_the_end(result.tables["layers"])
    names = {"first": GROUPS["first"]} | CHANGES
    parts = {
        (model, text): paired(rows, NO_POLICY, name)
        for model, rows in table.groupby("model", sort=False)
        for name, text in names.items()
    }
    return pd.concat(parts, names=["model", "layers"])


def opening(result: Result) -> pd.DataFrame:
    """One row per network and judged policy, as text: what the rule looks at, where whole gradients
    are as similar.
    """
    rows = {}
    for key, row in judged(result.tables["levels"], result.tables["attacks"]).iterrows():
        words = {
            name: f"{row[name]:+.3f} [{row[f'{name} low']:.3f}, {row[f'{name} high']:.3f}]"
            for name in CHANGES
        }
        rows[key] = {"n": row["n"]} | {text: words[name] for name, text in CHANGES.items()}
        rows[key] |= {
            "p, Holm": f"{row['p']:.2g}",
            "falls": "cannot tell" if row["why"] else "yes" if row["falls"] else "no",
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(KEYS[:2])


def changed(result: Result) -> pd.DataFrame:
    """For a figure: `differences` at equal similarity of the whole, with `where`, network and group
    of layers.
    """
    table = differences(result, equal=True).reset_index()
    table = table[table["layers"].isin([GROUPS[name] for name in ("first", "shallow", "deep")])]
    return table.assign(where=table["model"] + "\n" + table["layers"])


def comparison(result: Result) -> pd.DataFrame:
    """One row per layer and policy: mean final similarity with its interval, and the replication's
    single image.

    Of the first network, and the layers that the replication names, where it has them; else the two
    first and two last.
    """
    layers = result.tables["layers"]
    layers = layers[layers["model"] == layers["model"].iloc[0]]
    names = list(dict.fromkeys(layers["layer"]))
    chosen = [name for name in PUBLISHED if name in names] or [*names[:2], *names[-2:]]
    figure = reported(table_or_figure="Figure 5", source="replication")
    rows = []
    for (layer, policy), values in layers.groupby(["layer", "policy"], sort=False)["gradsim"]:
        if layer in chosen:
            low, high = interval(values)
            named = figure["metric"].str.removeprefix("gradsim_final:") == PUBLISHED.get(layer)
            same = figure["policy_or_defense"].map(policy_label) == policy
            ours = {"n": len(values), "mean": values.mean(), "low": low, "high": high}
            ours["replication, image 5"] = figure[named & same]["value"].mean()
            rows.append({"layer": layer.removesuffix(".weight"), "policy": policy} | ours)
    order = {name.removesuffix(".weight"): i for i, name in enumerate(chosen)}
    table = pd.DataFrame(rows).sort_values(
        "layer", key=lambda column: column.map(order), kind="stable"
    )
    return table.set_index(["layer", "policy"])


def frequencies(result: Result) -> pd.DataFrame:
    """Change of the error over the target in dB, each policy minus none, by network and band of
    frequencies.
    """
    table = result.tables["spectrum"]
    rows = {}
    for model, own in table.groupby("model", sort=False):
        for name, (low, high) in BANDS.items():
            chosen = own[own["frequency"].between(low, high)]
            mean = chosen.groupby(["policy", "image"], sort=False)["ratio_db"].mean().reset_index()
            rows[model, name] = paired(mean, NO_POLICY, "ratio_db")
    return pd.concat(rows, names=["model", "frequencies"])


def in_words(result: Result, policy: str = HYBRID) -> str:
    """What the spectrum says of a policy, one sentence a network: does it hide details, as the
    claim has it?
    """
    changes = frequencies(result).xs(policy, level="policy")
    words = []
    coarse, fine = BANDS
    for model in changes.index.unique("model"):
        both = {name: changes.loc[model, name] for name in BANDS}
        moves = {
            name: "rises"
            if row["low"] > 0
            else "falls"
            if row["high"] < 0
            else "does not move beyond chance"
            for name, row in both.items()
        }
        as_claimed = moves[fine] == "rises" and moves[coarse] != "rises"
        words.append(
            f"On {model} the error over the target {moves[fine]} in fine frequencies "
            f"({compare.interval(both[fine])}) and {moves[coarse]} in coarse ones ({compare.interval(both[coarse])}): "
            f"{'details are hidden' if as_claimed else 'not what the claim asks for'}."
        )
    return " ".join(words)


def starts_and_ends(result: Result) -> pd.DataFrame:
    """Mean similarity from noise, before any step, and at the end, one row per network, group of
    layers and policy.
    """
    curve = result.tables["curve"].assign(layers=lambda rows: rows["layers"].map(GROUPS))
    keys = ["model", "layers", "policy"]
    ordered = curve.sort_values("iteration", kind="stable").groupby([*keys, "image"], sort=False)[
        "gradsim"
    ]
    ends = {"from noise": ordered.first(), "at the end": ordered.last()}
    return pd.DataFrame(
        {name: values.groupby(keys, sort=False).mean() for name, values in ends.items()}
    )
