"""Extension 6: defenses of every kind at equal accuracy, each against the strongest attack on it."""

import pandas as pd

from atsbook.findings import compare
from atsbook.findings.result import NO_POLICY, Result, Verdict
from atsbook.findings.statistics import paired, share_interval
from atsbook.findings.verdicts import KEEPS, cannot_tell, guards, kept
from atsbook.runs.attacks import known_ranks
from atsbook.runs.defended import (
    BATCH,
    EPOCHS,
    LEAST_KIND,
    PLAIN,
    REGIMES,
    THROUGH,
    UNDONE,
    against_before,
    asked,
    attacks,
    kinds,
    networks,
    searched,
    tuned,
)
from atsbook.runs.networks import Unit
from atsbook.runs.settings import Settings
from atsbook.runs.store import Store
from atsbook.runs.table1 import classes
from atsbook.runs.tables import accuracy_rows, attack_rows, attacked_facts, provenance
from atslib.clients.defenses.accountant import epsilon
from atslib.models import device_of
from atslib.scores.search import pareto

KEYS = ("defense", "attacker")
FIRST = "initial"
TUNED = "ATS, tuned against the attack"
DELTA = 1e-5


def units(settings: Settings) -> dict[tuple, Unit]:
    """All that no result decides: attacks, trainings, and the search's attacks."""
    known = kinds(settings)
    found = attacks(settings, known) | {
        ("searched", policy): unit for policy, unit in asked(settings).items()
    }
    return found | {("network", *key): unit for key, unit in networks(settings, known).items()}


def later_units(settings: Settings, store: Store) -> dict[tuple, Unit]:
    """What the search decides: attacks on the policy that it found, and its trainings."""
    found = [tuned(searched(settings, store))]
    return attacks(settings, found) | {
        ("network", *key): unit for key, unit in networks(settings, found).items()
    }


DEFENSES_RULE = (
    "A setting of a defense is usable if its accuracy, the mean of its trainings, keeps at least "
    f"{KEEPS:.0%} of what is learned above chance without a defense. Each setting is judged at its worst: by the "
    "attacker, of those that were asked, who singles out most photographs, or gains most where several single out as "
    "many. The claim that ATS protects better than other defenses of the same cost is reproduced if a usable policy (a "
    "published one, the hybrid, or the one tuned against the attack) leaves fewer photographs to find than the best "
    "usable setting of "
    "every other kind (95 % interval of the mean paired difference below 0); partly if than that of more than half of "
    "the kinds; not reproduced otherwise. Combinations with ATS stand beside it. Cannot tell: undefended attacks gain "
    "nothing or single out less than half of the photographs, fewer than 30 images, or an undefended accuracy within "
    "twice chance. All this is asked twice: of one network before its training, and of the networks at the end of the "
    "same short training with each setting. The verdict is that of every regime that can tell, partly where these "
    "differ, cannot tell where none can."
)
OWN = ("ATS", TUNED)  # kinds that are judged, and those that they are not compared with
BESIDE = ("none", LEAST_KIND, "ATS and pruning", "ATS and noise")
PANELS = {
    "on the gradient": ("pruning", "Gaussian noise", "Laplacian noise", "DP-SGD"),
    "in the network or the batch": ("Soteria", "bottleneck", "MixUp"),
    "policies": (*OWN, *BESIDE[1:]),
}


def worst(attacks: pd.DataFrame) -> pd.DataFrame:
    """The rows of the strongest attacker of each setting: who finds most photographs, then who
    gains most.
    """
    means = attacks.groupby(list(KEYS), sort=False)[["found", "gain_before"]].mean().reset_index()
    order = means.sort_values(["found", "gain_before"], ascending=False, kind="stable")
    return attacks.merge(order.drop_duplicates("defense")[list(KEYS)], on=list(KEYS))


def compared(attacks: pd.DataFrame, accuracy: pd.DataFrame, classes: int) -> pd.DataFrame:
    """One row per setting at its worst: `kind`, `attacker`, `found` and `gain` with intervals,
    accuracy, `usable`.

    Shares and accuracies are in percent, gains in dB; `pareto`: no other setting has as few
    photographs found and as high an accuracy, and one of them better.
    """
    rows = []
    known = accuracy.groupby("defense")["accuracy"].agg(["mean", "min", "max"])
    for name, table in worst(attacks).groupby("defense", sort=False):
        hits = int(table["found"].sum())
        gain = compare.gained(table.assign(gain=table["gain_before"]))
        low, high = share_interval(hits, len(table))
        row = {
            "kind": table["kind"].iloc[0],
            "defense": name,
            "attacker": table["attacker"].iloc[0],
        }
        row |= {"found": 100 * hits / len(table), "found low": 100 * low, "found high": 100 * high}
        row |= {f"gain {end}".removesuffix(" mean"): gain[end] for end in ("mean", "low", "high")}
        rows.append(
            row | {f"accuracy {end}".removesuffix(" mean"): known.loc[name, end] for end in known}
        )
    table = pd.DataFrame(rows)
    return table.assign(
        usable=kept(table["accuracy"], known.loc[NO_POLICY, "mean"], classes) >= KEEPS,
        pareto=pareto(table["found"], table["accuracy"]),
    )


def best(table: pd.DataFrame) -> pd.DataFrame:
    """Of each kind the usable setting under which fewest photographs are found, then of highest
    accuracy.
    """
    order = table[table["usable"]].sort_values(
        ["found", "accuracy"], ascending=[True, False], kind="stable"
    )
    return order.drop_duplicates("kind")


def defenses_verdict(attacks: pd.DataFrame, accuracy: pd.DataFrame, classes: int) -> Verdict:
    """The claim by `DEFENSES_RULE`, from the tables that `run` makes, of networks that tell
    `classes` apart.
    """
    each = {
        name: _in_regime(attacks[attacks["regime"] == name], accuracy, classes) for name in REGIMES
    }
    told = {verdict.status for verdict in each.values()} - {"cannot tell"}
    status = "cannot tell" if not told else "partly" if len(told) > 1 else told.pop()
    reason = "; ".join(
        f"{REGIMES[name]} ({verdict.status}): {verdict.reason}" for name, verdict in each.items()
    )
    return Verdict(status, reason, DEFENSES_RULE, each[FIRST].here, each["trained"].here)


def _in_regime(attacks: pd.DataFrame, accuracy: pd.DataFrame, classes: int) -> Verdict:
    """What the rule says of the attacks of one regime."""
    table = compared(attacks, accuracy, classes)
    rows = worst(attacks)
    chosen = best(table)
    own = chosen[chosen["kind"].isin(OWN)]
    rivals = chosen[~chosen["kind"].isin((*OWN, *BESIDE))]
    bare = table.set_index("defense").loc[NO_POLICY]
    if own.empty:
        most = table[table["kind"].isin(OWN)].sort_values("accuracy", kind="stable").iloc[-1]
        here = f"no policy keeps {KEEPS:.0%} of what is learned"
        beaten = []
        here += f" ({most['defense']} keeps most: {most['accuracy']:.1f} %, {most['found']:.0f} % found)"
    else:
        first = own.sort_values("found", kind="stable").iloc[0]
        change = paired(rows, first["defense"], "found", by="defense")
        beaten = [
            row["kind"] for _, row in rivals.iterrows() if change.loc[row["defense"], "low"] > 0
        ]
        here = f"{first['defense']} leaves {first['found']:.0f} % of the photographs to find at an accuracy of "
        here += f"{first['accuracy']:.1f} %, fewer than {len(beaten)} of {len(rivals)} other kinds at their best"
    words = f"; without a defense {bare['found']:.0f} % are found at an accuracy of {bare['accuracy']:.1f} %"
    unbeaten = [kind for kind in rivals["kind"] if kind not in beaten]
    faults = [f"not fewer than with {', '.join(unbeaten)}"] if unbeaten and len(own) else []
    verdict = compare.judge(
        DEFENSES_RULE, here + words, here, faults, refuted=len(beaten) <= len(rivals) / 2
    )
    undefended = rows[rows["defense"] == NO_POLICY].assign(policy=NO_POLICY)
    why = guards(undefended, accuracies={NO_POLICY: bare["accuracy"]}, classes=classes)
    why += (
        ["undefended attacks single out less than half of the photographs"]
        if bare["found"] < 50
        else []
    )
    return cannot_tell(verdict, why)


def run(settings: Settings, store: Store) -> Result:
    """Attack and train with every setting.

    Tables: `attacks`, one row per regime, setting, attacker and image, with `kind`, `gain_before`
    (dB above the mean image, against the image before the policy) and `found`, whether the
    photograph was singled out, by one who knows the policy; `accuracy`, one row per setting and
    seed; `searched`, one row per policy that was asked.
    """
    rungs = searched(settings, store)
    winner = tuned(rungs)
    named = kinds(settings)
    by_key = attacks(settings, dict.fromkeys([*named, winner]))
    rows, sheets = attack_rows(by_key, ("regime", *KEYS), settings, store)
    groups = dict(list(rows.groupby(["regime", *KEYS], sort=False)))
    tables = []
    for key, unit in by_key.items():
        (_, text, attacker) = key
        table = against_before(groups[key], unit)
        rank = table["rank_original"]
        if unit.policy and attacker not in (THROUGH, UNDONE):
            rank = known_ranks(unit, store, device_of(settings.device))["rank_knowing"].numpy()
        tables.append(table.assign(found=(rank == 1).astype(float), kind=named.get(text, TUNED)))
    accuracy = accuracy_rows(
        networks(settings, [*named, winner]), ["defense", "seed"], settings, store
    )
    everything = pd.concat(tables, ignore_index=True)
    verdict = defenses_verdict(everything, accuracy, classes(settings.dataset))
    first = (FIRST, NO_POLICY, PLAIN)
    facts = provenance(settings, sheets[first]) | attacked_facts(by_key[first])
    facts |= {
        "short_epochs": min(EPOCHS, settings.epochs),
        "training": " and ".join(REGIMES.values()),
    }
    tables = {"attacks": everything, "accuracy": accuracy, "searched": rungs.reset_index()}
    return Result("ext6_defenses", tables, facts, verdict, sheets)


def _told(result: Result, regime: str) -> pd.DataFrame:
    """The attacks of one regime."""
    return result.tables["attacks"][result.tables["attacks"]["regime"] == regime]


def judged(result: Result, regime: str = FIRST) -> pd.DataFrame:
    """Every setting at its worst in one regime, see `compared`."""
    several = classes(result.facts["dataset"])
    return compared(_told(result, regime), result.tables["accuracy"], several)


def figure(result: Result, regime: str = FIRST) -> pd.DataFrame:
    """What `plots.exchange` draws: each setting's share of photographs found against its accuracy,
    at its worst.
    """
    table = judged(result, regime)
    shown = table.rename(columns={"found": "mean", "found low": "low", "found high": "high"})
    shown["strength"] = [
        0 if kind in ("none", LEAST_KIND, *OWN) else at for at, kind in enumerate(shown["kind"])
    ]
    rows = {name: shown[shown["kind"].isin(("none", *kinds))] for name, kinds in PANELS.items()}
    parts = [
        part.assign(outcome=f"found {REGIMES[regime]}, %:\n{name}") for name, part in rows.items()
    ]
    return pd.concat(parts, ignore_index=True)


def summary(result: Result, regime: str = FIRST, *, every: bool = False) -> pd.DataFrame:
    """At most eight settings in words, of each kind the best usable one; or every setting with each
    of its attackers.

    The few are those with fewest photographs found; the undefended one is the first.
    """
    attacks = _told(result, regime)
    table = compared(
        attacks, result.tables["accuracy"], classes(result.facts["dataset"])
    ).set_index("defense", drop=False)
    if not every:
        chosen = best(table[table["kind"] != "none"]).head(7)["defense"]
        rows = {
            name: _words(table.loc[name], table.loc[name, "attacker"])
            for name in (NO_POLICY, *chosen)
        }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("defense")
    rows = {}
    for (name, attacker), part in attacks.groupby(list(KEYS), sort=False):
        gain = compare.gained(part.assign(gain=part["gain_before"]))
        cells = {
            "photograph found": f"{part['found'].mean():.0%}",
            "gain, dB": compare.interval(gain, ""),
        }
        cells["strongest"] = "yes" if attacker == table.loc[name, "attacker"] else ""
        rows[name, attacker] = cells | {"accuracy, %": _accuracy(table.loc[name])}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["defense", "attacker"])


def _words(row: pd.Series, attacker: str) -> dict[str, str]:
    found = f"{row['found']:.0f} % [{row['found low']:.0f}, {row['found high']:.0f}]"
    gain = f"{row['gain']:+.1f} [{row['gain low']:.1f}, {row['gain high']:.1f}]"
    cells = {
        "kind": row["kind"],
        "strongest attacker": attacker,
        "photograph found": found,
        "gain, dB": gain,
    }
    return cells | {"accuracy, %": _accuracy(row)}


def _accuracy(row: pd.Series) -> str:
    return f"{row['accuracy']:.1f} ({row['accuracy min']:.1f} to {row['accuracy max']:.1f})"


def guarantees(result: Result) -> pd.DataFrame:
    """One row per strength of DP-SGD: the noise multiplier and the ε of a whole training, at δ =
    `DELTA`.
    """
    trained = result.tables["accuracy"]
    images = int(result.tables["accuracy"]["train"].iloc[0])
    multipliers = [
        float(name.removeprefix("dp:"))
        for name in trained["defense"].unique()
        if name.startswith("dp:")
    ]
    steps = int(result.facts["short_epochs"]) * -(-images // BATCH)
    rate = min(1.0, BATCH / images)
    spent = [f"{epsilon(noise, rate=rate, steps=steps, delta=DELTA):.3g}" for noise in multipliers]
    return pd.DataFrame({"noise multiplier": multipliers, "ε": spent}).set_index("noise multiplier")


def advice(result: Result, regime: str = FIRST) -> str:
    """Which defense to use, in sentences made of the numbers, for who cannot lose accuracy and who
    can.
    """
    table = judged(result, regime)
    bare = table.set_index("defense").loc[NO_POLICY]
    chosen = best(table[table["kind"] != "none"])
    words = [
        f"Without a defense the strongest attack finds {bare['found']:.0f} % of the photographs; the network reaches "
        f"{bare['accuracy']:.1f} %."
    ]
    if chosen.empty:
        words.append(f"No setting here keeps {KEEPS:.0%} of what is learned.")
    elif chosen.iloc[0]["found low"] > 50:
        words.append(
            f"Nothing that keeps {KEEPS:.0%} of that hides much: at best there is {_at(chosen.iloc[0])}."
        )
    else:
        words.append(f"Who must keep {KEEPS:.0%} of that is best off with {_at(chosen.iloc[0])}.")
    hidden = table[table["found high"] <= 50].sort_values(
        "accuracy", ascending=False, kind="stable"
    )
    words.append(
        f"Who must keep half of them from being found, beyond chance, pays least with {_at(hidden.iloc[0])}."
        if len(hidden)
        else "No setting here keeps half of them from being found, beyond chance."
    )
    policies = table[table["kind"].isin(OWN)]
    survivors = policies[policies["found high"] <= 50]["defense"]
    words.append(
        f"Of the {len(policies)} policies, the one tuned against this very attack among them, "
        f"{', '.join(survivors) if len(survivors) else 'none'} keeps half of them from being found."
    )
    least = table[table["kind"] == LEAST_KIND]
    kept = hidden[hidden["kind"] == LEAST_KIND]
    words.append(
        f"Of the policies that leave least to an attack which knows none, {len(kept)} of {len(least)} keep half from "
        f"being found{f', at best {_at(kept.iloc[0])}' if len(kept) else ''}."
    )
    return " ".join(words)


def _at(row: pd.Series) -> str:
    return f"`{row['defense']}` ({row['kind']}): {row['found']:.0f} % found, {row['accuracy']:.1f} % accuracy"


def sheet(result: Result, count: int = 8) -> dict[str, object]:
    """The first images: what the client used without a defense, and what the strongest attack makes
    of each kind.

    They are those of the attacks before training, whose pictures the archive keeps.
    """
    table = judged(result)
    chosen = best(table).set_index("defense")["attacker"]
    first = result.sheets[FIRST, NO_POLICY, PLAIN]
    rows = {"photograph": first["original"][:count], "after crop and flip": first["target"][:count]}
    return rows | {
        name: result.sheets[FIRST, name, who]["reconstruction"][:count]
        for name, who in chosen.items()
    }
