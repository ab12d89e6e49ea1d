"""Extension 9: the collaborative system itself, ten clients and a curious server."""

import dataclasses
import itertools

import pandas as pd
import torch
from torch import nn

from atsbook.bench import seconds
from atsbook.findings import compare
from atsbook.findings.result import NO_POLICY, Result, Verdict
from atsbook.findings.statistics import interval, paired, share_interval
from atsbook.findings.verdicts import cannot_tell, guards
from atsbook.runs.collaborative import FederationUnit, federated
from atsbook.runs.settings import Settings
from atsbook.runs.store import Artifact, Store
from atsbook.runs.table1 import HYBRID, SEARCHED
from atsbook.runs.tables import label, provenance
from atsfed import Federation, answer
from atsfed.federation import taken
from atslib.attacks import ATTACKS
from atslib.clients.updates import LocalTraining
from atslib.models import device_of
from atslib.policies.policy import parse_policy
from atslib.rng import rng

PAGE = "ext9_collaborative"
CELL = ["network", "protocol", "shards", "policy", "seed", "view"]
OTHERS = ("sum", "neighbour")  # who else looks, beside a server that gets every answer
FEDSGD, FEDAVG = "FedSGD", "FedAvg"
SHARDS = {"equal": 0.0, "Dirichlet 1.0": 1.0, "Dirichlet 0.1": 0.1}
TRIED = ("", *SEARCHED, HYBRID)
SEEDS = (0, 1, 2)
REPEATS = 20  # of what is timed
JUDGED, ATTACKED = "convnet-16", "lenet"
MARGIN = 2.0  # points of accuracy: a policy that costs less is no worse, as for claim 4
OUTCOMES = {
    "rank_target": "the used image",
    "rank_knowing": "the photograph, policy known",
    "rank_original": "the photograph, undoing nothing",
}
# Images of one answer, its training, rounds, and after how many of these the accuracy is measured.
# Attacks need answers of few images, from which the ConvNet does not learn.
SIZES: dict[tuple[str, str], tuple[int, LocalTraining | None, int, tuple[int, ...]]] = {
    (JUDGED, FEDSGD): (8, None, 100, (0, 25, 50, 100)),
    (JUDGED, FEDAVG): (32, LocalTraining(batch=8, lr=0.25), 25, (0, 6, 12, 25)),
    (ATTACKED, FEDSGD): (1, None, 300, (0, 1, 5, 20, 100, 200, 300)),
    (ATTACKED, FEDAVG): (2, LocalTraining(batch=1, lr=0.1, epochs=2), 60, (0, 1, 5, 20, 60)),
}
STAGES = (0, 1, 5, 20)  # rounds before the attacked ones; the last round comes after them


def units(settings: Settings) -> dict[tuple, FederationUnit]:
    """Every federation by the parts of `CELL`; those of the small network are attacked."""
    if settings.profile == "smoke":
        places = [(ATTACKED, FEDSGD)]
        shards = ["equal"]
        tried = ("", HYBRID)
        seeds = SEEDS[:2]
    else:
        places = list(SIZES)
        shards = list(SHARDS)
        tried = TRIED
        seeds = SEEDS
    grid = itertools.product(places, shards, tried, seeds)
    found = {(*place, dealt, label(policy), seed): _unit(settings, *place, dealt, policy, seed)
             for place, dealt, policy, seed in grid}  # fmt: skip
    whole = [(ATTACKED, FEDSGD, "equal", label(policy)) for policy in ("", HYBRID)]
    seen = {key: unit for key, unit in found.items() if key[:4] in whole}
    others = {
        (*key, view): dataclasses.replace(unit, view=view)
        for view in OTHERS
        for key, unit in seen.items()
    }
    return {(*key, "server"): unit for key, unit in found.items()} | others


def _unit(
    settings: Settings, network: str, protocol: str, shards: str, policy: str, seed: int
) -> FederationUnit:
    batch, local, rounds, measured = SIZES[network, protocol]
    attack = ATTACKS["annealed-lenet"]
    stages = (*STAGES, rounds - 1)
    changes: dict[str, object] = {"dataset": "cifar10", "split": "test", "fraction": 0.8}
    if settings.profile == "smoke":
        changes = {"dataset": settings.dataset, "fraction": 0.1, "clients": 2}
        rounds = 2
        measured = (0, 2)
        stages = (0, 1)
        attack = dataclasses.replace(attack, steps=settings.steps)
    seed = settings.seed + seed
    federation = Federation(
        model=network, alpha=SHARDS[shards], rounds=rounds, batch=batch, local=local, defense=policy, seed=seed,
        **changes,
    )  # fmt: skip
    if network == JUDGED:
        return FederationUnit(federation=federation, measured=measured)
    return FederationUnit(federation=federation, measured=measured, attacked=stages, attack=attack)


COLLABORATIVE_RULE = (
    "The claim: clients that use a searched policy keep the accuracy of the network that they train together (paper, "
    f"Section 5). Judged on the last round of the {JUDGED} federations. A policy keeps the accuracy if the 95 % "
    f"interval of its change, over federations that differ in nothing else, lies above -{MARGIN:g} points, and costs "
    f"accuracy if it lies below. Reproduced: every policy keeps it. Partly: some do. Not reproduced: none does, and at "
    "least one costs accuracy. Cannot tell: none keeps it and none costs it, or undefended federations are within "
    "twice chance."
)


def collaborative_verdict(table: pd.DataFrame, classes: int) -> Verdict:
    """The claim by `COLLABORATIVE_RULE`, from the rows of `run`'s table `accuracy`."""
    own = table[(table["network"] == JUDGED) & (table["view"] == "server")]
    if own.empty:
        return Verdict("not measured", f"no federation trained a {JUDGED}", COLLABORATIVE_RULE)
    change = changes(own, ["network"]).droplevel("network")
    bare = _last(own).query("policy == @NO_POLICY")["accuracy"].mean()
    here = "; ".join(
        f"{policy}: {compare.interval(row, ' points')}" for policy, row in change.iterrows()
    )
    kept = change["low"] > -MARGIN
    lost = change["high"] < -MARGIN
    status = "reproduced" if kept.all() else "partly" if kept.any() else "not reproduced"
    reason = (
        f"{kept.sum()} of {len(kept)} policies keep the accuracy, {lost.sum()} cost it ({here})"
    )
    reasons = guards(accuracies={"without a policy": bare}, classes=classes)
    reasons += [] if kept.any() or lost.any() else [f"{here}: too wide to tell"]
    return cannot_tell(Verdict(status, reason, COLLABORATIVE_RULE, here), reasons)


def run(settings: Settings, store: Store) -> Result:
    """Collect all federations.

    Tables: `accuracy`, one row per federation and number of rounds, in percent; `attacks`, one row
    per federation, number of rounds before the attacked one (`past`) and image, with its client,
    that client's number of images (`shard`) and the share of them that have its commonest label
    (`skew`); `costs`, see `_costs`.
    """
    device = device_of(settings.device)
    wanted = units(settings)
    made = {key: federated(unit, store, device) for key, unit in wanted.items()}
    accuracy = pd.concat(
        [_accuracies(key, unit, made[key]) for key, unit in wanted.items()], ignore_index=True
    )
    attacks = pd.concat(
        [_attacks(key, unit, made[key]) for key, unit in wanted.items() if unit.attack]
    )
    tables = {
        "accuracy": accuracy,
        "attacks": attacks.round(4),
        "costs": _costs(timed(settings, store)),
    }
    classes = next(iter(wanted.values())).federation.held_out().num_classes
    return Result(
        PAGE,
        tables,
        _facts(settings, wanted, made, attacks),
        collaborative_verdict(accuracy, classes),
    )


def _facts(
    settings: Settings,
    wanted: dict[tuple, FederationUnit],
    made: dict[tuple, Artifact],
    attacks: pd.DataFrame,
) -> dict[str, object]:
    """What the banner says; `images` are the attacked ones of a cell, over its seeds."""
    unit = next(unit for unit in wanted.values() if unit.attack)
    f = unit.federation
    images = attacks.query("view == 'server'").groupby(["protocol", "shards", "policy"])["image"]
    facts = provenance(settings, next(iter(made.values()))) | {
        "dataset": f.dataset,
        "note": f.held_out().note,
    }
    facts |= {
        "model": ", ".join(dict.fromkeys(key[0] for key in wanted)),
        "steps": unit.attack.steps,
    }
    facts |= {
        "training": f"{len(made)} federations of {f.clients} clients",
        "images": int(images.nunique().min()),
    }
    return facts | {"seed": f"{settings.seed} to {settings.seed + max(key[4] for key in wanted)}"}


def timed(settings: Settings, store: Store) -> Artifact:
    """Seconds of a client's work on one answer: `answer` () in all without a policy, `policy` (P,)
    each policy alone.

    Medians of runs in turn, in one process: their ratios do not depend on what else ran meanwhile.
    """
    own = next(iter(units(settings).values())).federation
    config = {
        "federation": dataclasses.replace(own, rounds=1),
        "policies": TRIED,
        "repeats": REPEATS,
    }

    def compute(state: object) -> dict[str, torch.Tensor]:
        model = own.network()
        pixels = taken(own, 0, 1)[0]
        policies = [parse_policy(policy) for policy in TRIED]
        calls = [lambda p=p: p(pixels, rng=rng(0, "timing")) for p in policies]
        whole, *each = seconds(
            lambda: answer(own, model, 0, 1), *calls, device=torch.device("cpu"), repeats=REPEATS
        )
        return {
            "answer": torch.tensor(whole),
            "policy": torch.tensor(each),
            "weights": torch.tensor(_weights(model)),
        }

    return store.get("timing", config, compute, label=f"time of the transformations, {own.model}")


def _weights(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _costs(made: Artifact) -> pd.DataFrame:
    """One row per policy: milliseconds of an answer, the policy's share, and megabytes to and from
    a client a round.
    """
    own = 1000 * made["policy"].double().numpy()
    whole = 1000 * float(made["answer"])
    rows = pd.DataFrame(
        {"policy": list(map(label, TRIED)), "answer, ms": own + whole, "of it policy, ms": own}
    )
    each = 4 * int(made["weights"]) / 1e6  # float32, whatever the policy
    return rows.assign(**{"share": own / (own + whole), "received, MB": each, "sent, MB": each})


def _accuracies(key: tuple, unit: FederationUnit, made: Artifact) -> pd.DataFrame:
    rows = pd.DataFrame({"rounds": unit.measured, "accuracy": made["accuracy"].double().numpy()})
    return rows.assign(**dict(zip(CELL, key, strict=True)))


def _attacks(key: tuple, unit: FederationUnit, made: Artifact) -> pd.DataFrame:
    """One row per attacked round and image; `image` is the same in federations that differ in the
    policy alone.
    """
    f = unit.federation
    (stages, images) = made["psnr"].shape
    client = [image // f.batch for image in range(images)] * stages
    shards = [f.shard(number).labels for number in range(f.clients)]
    skew = [float(labels.bincount().max()) / len(labels) for labels in shards]
    names = ("psnr", "floor", "rank_target", "rank_original", "rank_knowing", "label", "named")
    rows = pd.DataFrame({name: made[name].flatten().double().numpy() for name in names})
    rows = rows.rename(columns={"floor": "floor_policy"}).assign(
        gain=lambda r: r["psnr"] - r["floor_policy"]
    )
    rows = rows.assign(past=[past for past in unit.attacked for _ in range(images)], client=client)
    rows = rows.assign(shard=[len(shards[c]) for c in client], skew=[skew[c] for c in client])
    own = dict(zip(CELL, key, strict=True))
    return rows.assign(**own, image=[f"{own['seed']}-{image}" for image in range(images)] * stages)


def _last(table: pd.DataFrame) -> pd.DataFrame:
    """The rows after each federation's last round."""
    return table[table["rounds"] == table.groupby(CELL)["rounds"].transform("max")]


def changes(table: pd.DataFrame, within: list[str], *, by_seed: bool = False) -> pd.DataFrame:
    """What each policy changes the last accuracy by, in points: `n` federations, mean and 95 %
    interval over them.

    `undefended` is the mean accuracy without a policy, in percent.

    Args:
        by_seed: the strict count: federations of one seed, which begin with the same weights, are
            one.
    """
    last = _last(table)
    each = last["network"] + last["protocol"] + last["shards"] + last["view"]
    if by_seed:
        last = last.assign(draw=each)
        unit = "seed"
    else:
        last = last.assign(one=each + last["seed"].astype(str))
        unit = "one"
    parts = {}
    for key, rows in last.groupby(within, sort=False):
        bare = rows[rows["policy"] == NO_POLICY]["accuracy"].mean()
        parts[key] = paired(rows, NO_POLICY, "accuracy", unit=unit).assign(undefended=bare)
    return pd.concat(parts, names=[*within, "policy"])


def learning(result: Result, network: str, protocol: str) -> pd.DataFrame:
    """Accuracy in percent over rounds, by shards and policy: the mean of the seeds, its 95 %
    interval low to high.
    """
    own = result.tables["accuracy"].query(
        "network == @network and protocol == @protocol and view == 'server'"
    )
    rows = []
    for (shards, policy, rounds), seeds in own.groupby(["shards", "policy", "rounds"], sort=False)[
        "accuracy"
    ]:
        low, high = interval(seeds)
        rows.append(
            {
                "shards": shards,
                "policy": policy,
                "rounds": rounds,
                "mean": seeds.mean(),
                "low": low,
                "high": high,
            }
        )
    return pd.DataFrame(rows)


def leakage(result: Result, network: str, protocol: str, view: str = "server") -> pd.DataFrame:
    """What attacks find along the rounds, by policy and outcome: gain in dB, percent singled out;
    with intervals.
    """
    chosen = "network == @network and protocol == @protocol and view == @view and shards == 'equal'"
    own = result.tables["attacks"].query(chosen)
    rows = []
    for (past, policy), table in own.groupby(["past", "policy"], sort=False):
        values = {
            "gain over the floor (dB)": (
                table["gain"].mean(),
                *interval(table["gain"], table["image"]),
            )
        }
        for column, words in OUTCOMES.items():
            hits = int((table[column] == 1).sum())
            share = (hits / len(table), *share_interval(hits, len(table)))
            values[f"{words} (% singled out)"] = tuple(100 * part for part in share)
        rows += [{"past": past, "policy": policy, "outcome": name, "mean": mean, "low": low, "high": high}
                 for name, (mean, low, high) in values.items()]  # fmt: skip
    return pd.DataFrame(rows)


def who(result: Result) -> pd.DataFrame:
    """One row per protocol and way of dealing: how the clients differ, and what attacks find of the
    less even ones.

    `skew` is the share of a client's commonest label; `even` and `uneven` are gains in dB, over all
    rounds and policies, of the half of each federation's clients with the least and with the
    largest; `change`, `low` and `high` are the difference, with its 95 % interval over federations.
    """
    own = result.tables["attacks"].query("network == @ATTACKED and view == 'server'")
    return own.groupby(["protocol", "shards"], sort=False)[
        ["seed", "client", "skew", "shard", "gain"]
    ].apply(_halves)


def _halves(table: pd.DataFrame) -> pd.Series:
    each = table.groupby(["seed", "client"])[["skew", "shard", "gain"]].mean()
    upper = each["skew"].groupby("seed").rank(method="first", pct=True) > 0.5
    apart = (
        each["gain"].where(upper).groupby("seed").mean()
        - each["gain"].where(~upper).groupby("seed").mean()
    )
    low, high = interval(apart)
    found = {"least skew": each["skew"].min(), "largest skew": each["skew"].max()}
    found |= {"smallest shard": each["shard"].min(), "largest shard": each["shard"].max()}
    found |= {"even": each["gain"][~upper].mean(), "uneven": each["gain"][upper].mean()}
    return pd.Series(found | {"change": apart.mean(), "low": low, "high": high})


def views(result: Result) -> pd.DataFrame:
    """Who sees what of the same answers: one row per viewer and policy, for the first and the last
    attacked round.

    Gain in dB with its interval, and the share of photographs singled out by who knows the policy.
    """
    own = result.tables["attacks"].query(
        "network == @ATTACKED and protocol == @FEDSGD and shards == 'equal'"
    )
    rows = {}
    for (view, policy, past), table in own.groupby(["view", "policy", "past"], sort=False):
        if past in (own["past"].min(), own["past"].max()):
            words = {f"gain in round {past + 1}": compare.interval(compare.gained(table), "")}
            words[f"photograph found in round {past + 1}"] = compare.found(table["rank_knowing"])
            rows.setdefault((view, policy), {}).update(words)
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["seen by", "policy"])
