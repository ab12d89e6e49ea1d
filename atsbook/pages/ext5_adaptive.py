"""Extension 5: what a policy is worth against a server that knows it, where attacks work."""

from collections.abc import Mapping, Sequence

import pandas as pd
import torch

from atsbook.findings import compare
from atsbook.findings.result import NO_POLICY, Result, Verdict
from atsbook.findings.statistics import ENOUGH, holm, interval, paired, student_interval
from atsbook.findings.verdicts import MARGIN, guards
from atsbook.runs import adaptive
from atsbook.runs.adaptive import (
    DRAWS,
    JUDGED,
    LEARNED,
    POLICY,
    ROUNDS,
    SINGLE,
    STRONGEST,
    UNDONE,
    watching,
)
from atsbook.runs.attacks import AttackUnit, before, known_ranks, targets
from atsbook.runs.defended import against_before, visible_rows
from atsbook.runs.settings import Settings
from atsbook.runs.store import Artifact, Store
from atsbook.runs.table1 import HYBRID
from atsbook.runs.tables import attack_rows, attacked_facts, provenance
from atslib.attacks import Learned, ThroughPolicy, Undone
from atslib.clients.prepare import to_images
from atslib.measures.metrics import psnr
from atslib.models import device_of

KEYS = ("attacker", "policy")
FIRST, ELSEWHERE, LEAST, UNTOUCHED = "attacks", "elsewhere", "least", "untouched"  # tables
BEFORE = (UNDONE, LEARNED, POLICY, DRAWS)  # who search the image before the policy, in one round
# That name a unit in each.
COLUMNS = {
    FIRST: (*KEYS, "draw"),
    ELSEWHERE: ("place", *KEYS),
    LEAST: KEYS,
    UNTOUCHED: ("place", "attacker", "draw"),
}


def units(settings: Settings) -> dict[tuple, AttackUnit]:
    """All attacks, by their table and its `COLUMNS`."""
    return {
        (table, *key): unit
        for table, part in _tables(settings).items()
        for key, unit in part.items()
    }


def _tables(settings: Settings) -> dict[str, dict[tuple, AttackUnit]]:
    draws = range(1 if settings.profile == "smoke" else adaptive.TIMES)
    drawn = {
        (*key, n): unit for n in draws for key, unit in adaptive.by_knowledge(settings, n).items()
    }
    others = {ELSEWHERE: adaptive.elsewhere(settings), LEAST: adaptive.on_least(settings)}
    return {FIRST: drawn} | others | {UNTOUCHED: adaptive.untouched(settings)}


ADAPTIVE_RULE = (
    "The outcome is what an attack gains of the image as it is after crop and flip and before the policy: its PSNR "
    "above that of the mean training image after crop and flip. It is asked of three networks: an untrained LeNet, an "
    "untrained ConvNet-16 and a ResNet20-1 that was trained on a tenth of the data. A searched policy, or the hybrid, "
    "is broken by a server that knows it, but not what was drawn, if the attack through the policy gains something "
    "(95 % interval of the mean gain above 0, p at most 0.05 after Holm's correction over the network's policies); it "
    f"withstands if it is not broken and the interval lies below {MARGIN:g} dB, that of Student's t as well: that "
    "nothing is gained may not turn on the kind of interval. A network can tell if the strongest "
    f"attack gains something of it without a policy, and at least {ENOUGH} images are attacked. The claim that images "
    "are protected is reproduced if all three policies withstand on every network that can tell; partly if some "
    "withstand on some; not reproduced if none withstands on any, and on each at least one is broken. Cannot tell: "
    "otherwise."
)


def judged(attacks: pd.DataFrame, policies: tuple[str, ...] = JUDGED) -> pd.DataFrame:
    """One row per place and one of these policies: mean, low, high and p of the gain, in dB, of who
    knows the policy.

    `broken` and `withstands` are those of `ADAPTIVE_RULE`; if neither, the interval is too wide to
    tell.
    """
    rows = {}
    own = attacks[(attacks["attacker"] == POLICY) & attacks["policy"].isin(policies)]
    for key, table in own.groupby(["place", "policy"], sort=False):
        zero = table.assign(attacker=NO_POLICY, gain_before=0.0)
        rows[key] = paired(
            pd.concat([table, zero]), NO_POLICY, "gain_before", by="attacker", p_values=True
        ).loc[POLICY]
        means = table.groupby("image")["gain_before"].mean()
        rows[key]["high t"] = student_interval(means)[1]
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis(["place", "policy"])
    table["p"] = table.groupby("place")["p"].transform(holm)
    broken = (table["low"] > 0) & (table["p"] <= 0.05)
    highest = table[["high", "high t"]].max(axis=1)
    return table.assign(broken=broken, withstands=~broken & (highest < MARGIN))


def adaptive_verdict(attacks: pd.DataFrame) -> Verdict:
    """The claim by `ADAPTIVE_RULE`, from rows with `place`, `attacker`, `policy`, `draw`, `image`
    and gains.
    """
    table = judged(attacks)
    words = []
    silent = _silent(attacks)
    for where, policies in table.groupby("place", sort=False):
        bare = attacks[(attacks["place"] == where) & _is(attacks, STRONGEST, NO_POLICY)]
        gains = f"{policies['mean'].min():+.1f} to {policies['mean'].max():+.1f} dB"
        words.append(f"{where}: {gains}, {bare['gain_before'].mean():+.1f} dB without a policy")
        if where in silent:
            words[-1] += f", cannot tell: {', '.join(silent[where])}"
    telling = table[~table.index.get_level_values("place").isin(silent)]
    count = int(telling["withstands"].sum())
    broken = telling.groupby("place")["broken"].any()
    here = f"{count} of {len(telling)} withstand a server that attacks through them, {telling['broken'].sum()} are broken"
    reason = f"{here}; gains on {'; on '.join(words)}"
    if telling.empty or (not count and not broken.all()):
        return Verdict("cannot tell", reason, ADAPTIVE_RULE, here)
    status = "not reproduced" if not count else "partly" if count < len(telling) else "reproduced"
    return Verdict(status, reason, ADAPTIVE_RULE, here)


def _silent(attacks: pd.DataFrame) -> dict[str, list[str]]:
    """The places that tell nothing of any policy by `ADAPTIVE_RULE`, and why."""
    bare = attacks[_is(attacks, STRONGEST, NO_POLICY)]
    return {
        where: why for where, rows in bare.groupby("place", sort=False) if (why := guards(rows))
    }


def verdicts(result: Result) -> pd.DataFrame:
    """One row per network and judged policy, as text: gains in dB with intervals, and what the rule
    says.

    Beside the attacker whom the rule asks stand another who knows as much, and the strongest
    without a policy.
    """
    attacks = _everywhere(result.tables)
    rows = {}
    silent = _silent(attacks)
    known = judged(attacks).assign(word=lambda table: _word(table))
    for (where, policy), row in known.iterrows():
        own = attacks[attacks["place"] == where]
        undone = own[_is(own, UNDONE, policy)]
        bare = own[_is(own, STRONGEST, NO_POLICY)]
        rows[where, policy] = {
            "through the policy": compare.interval(row, ""),
            "undoing it afterwards": compare.interval(_gain(undone), ""),
            "without a policy": compare.interval(_gain(bare), ""),
            "the rule says": "cannot tell" if where in silent else row["word"],
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["network", "policy"])


def _gain(rows: pd.DataFrame) -> dict[str, float]:
    return compare.gained(rows.assign(gain=rows["gain_before"]))


def _word(known: pd.DataFrame) -> pd.Series:
    """Broken, withstands or cannot tell, from the columns of `judged`."""
    return (
        known["broken"]
        .map({True: "broken", False: "cannot tell"})
        .mask(known["withstands"], "withstands")
    )


def _everywhere(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([tables[FIRST], tables[ELSEWHERE].assign(draw=0)])


def _is(attacks: pd.DataFrame, attacker: str, policy: str) -> pd.Series:
    return (attacks["attacker"] == attacker) & (attacks["policy"] == policy)


def run(settings: Settings, store: Store) -> Result:
    """Attack with more and more knowledge.

    Table `attacks`: one row per attacker, policy, draw and image.

    Beside the columns of `image_rows` stand `psnr_before` and `gain_before`, against the image
    before the policy, `ceiling`, the PSNR of a perfect reconstruction of the transformed image
    against it, and for the attackers who reconstruct the image after the policy `rank_knowing`, see
    `known_ranks`. `psnr_original` is against the photograph. Table `elsewhere`: the same of other
    networks, by their `place`; `least`: of the policies that might withstand; `untouched`: of
    photographs without crop and flip; and `visible`, see `_visible`.
    """
    tables = {}
    sheets = {}
    parts = _tables(settings)
    for name, part in parts.items():
        rows, sheets[name] = attack_rows(part, COLUMNS[name], settings, store)
        tables[name] = _against_before(part, rows, COLUMNS[name], store, device_of(settings.device))
    first = parts[FIRST][STRONGEST, NO_POLICY, 0]
    tables[FIRST] = tables[FIRST].assign(place=adaptive.place(first))
    tables["visible"] = pd.concat(
        [_visible(parts[n], sheets[n], COLUMNS[n]) for n in (FIRST, ELSEWHERE)]
    )
    facts = provenance(settings, sheets[FIRST][STRONGEST, NO_POLICY, 0]) | attacked_facts(first)
    return Result(
        "ext5_adaptive", tables, facts, adaptive_verdict(_everywhere(tables)), sheets[FIRST]
    )


def _against_before(
    units: Mapping[tuple, AttackUnit],
    rows: pd.DataFrame,
    keys: tuple[str, ...],
    store: Store,
    device: torch.device,
) -> pd.DataFrame:
    """The rows of all units, with what their attacks find of the image before the policy."""
    own = dict(list(rows.groupby(list(keys), sort=False)))
    return pd.concat(
        [_before(own[key], unit, store, device) for key, unit in units.items()], ignore_index=True
    )


def _before(
    rows: pd.DataFrame, unit: AttackUnit, store: Store, device: torch.device
) -> pd.DataFrame:
    table = against_before(rows, unit)
    if unit.policy:
        table["ceiling"] = (
            psnr(to_images(targets(unit)[1]), to_images(before(unit))).double().numpy()
        )
    if not isinstance(unit.attack, ThroughPolicy | Undone | Learned):
        known = known_ranks(unit, store, device)["rank_knowing"].numpy() if unit.policy else None
        table["rank_knowing"] = table["rank_original"] if known is None else known
    return table


def _visible(
    units: Mapping[tuple, AttackUnit], found: Mapping[tuple, Artifact], keys: Sequence[str]
) -> pd.DataFrame:
    """Rows of `visible_rows` by place, policy and attacker: of the first draw; without a policy the
    strongest.
    """
    parts = []
    for key, unit in units.items():
        named = dict(zip(keys, key, strict=True)) | {"place": adaptive.place(unit)}
        if not named.get("draw") and named["attacker"] in (BEFORE if unit.policy else (STRONGEST,)):
            parts.append(visible_rows(unit, found[key]).assign(**named))
    return pd.concat(parts, ignore_index=True)


def in_view(result: Result) -> pd.DataFrame:
    """One row per network and policy, as text: PSNR in dB on the part that the policy left in the
    frame, by attacker.

    With 95 % intervals over images; before them the share that was left, and the PSNR on the whole
    image that a perfect picture of what the client used would have. Of no policy the strongest
    attack, beside those who know the draws.
    """
    rows = {}
    for key, table in result.tables["visible"].groupby(["place", "policy"], sort=False):
        ceiling = "–" if NO_POLICY in key else f"{table['ceiling'].mean():.1f}"
        rows[key] = {
            "images": table["image"].nunique(),
            "in the frame": f"{table['share'].mean():.0%}",
            "ceiling": ceiling,
        }
        for name in (STRONGEST, *BEFORE):
            own = table[table["attacker"] == name]
            low, high = interval(own["psnr"]) if len(own) else (0, 0)
            rows[key][name] = (
                f"{own['psnr'].mean():.1f} [{low:.1f}, {high:.1f}]" if len(own) else "–"
            )
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["network", "policy"])


def crop_and_flip(result: Result) -> pd.DataFrame:
    """One row per network and attacker, as text, without a policy: photographs as they are, beside
    cropped and flipped.

    The gain in dB has its 95 % interval over images, each over the mean training image as the
    client prepares it.
    """
    bare = result.tables[UNTOUCHED]
    rows = {}
    every = _everywhere(result.tables).query("policy == @NO_POLICY")
    for key, own in bare.groupby(["place", "attacker"], sort=False):
        both = {
            "as they are": own,
            "crop and flip": every[(every[["place", "attacker"]] == list(key)).all(axis=1)],
        }
        rows[key] = {
            f"gain, dB: {name}": compare.interval(_gain(table), "") for name, table in both.items()
        }
        rows[key] |= {
            f"found: {name}": compare.found(table["rank_original"]) for name, table in both.items()
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["network", "attacker"])


def withstanding(result: Result) -> pd.DataFrame:
    """One row per policy that leaves a blind attack least: what who knows it finds, and if it
    withstands by the rule.

    By the words of `ADAPTIVE_RULE`, with Holm's correction over all of them. The strongest attack
    knows no policy; its reconstructions are compared with all forms of a hundred photographs.
    """
    rows = result.tables[LEAST]
    known = judged(rows.assign(place=""), tuple(rows["policy"].unique())).droplevel("place")
    table = pd.DataFrame({"the rule says": _word(known)})
    for (attacker, policy), own in rows.groupby(list(KEYS), sort=False):
        if attacker != STRONGEST:
            table.loc[policy, f"{attacker}: gain, dB"] = compare.interval(_gain(own), "")
        ranks = own["rank_knowing" if attacker == STRONGEST else "rank_original"]
        table.loc[policy, f"{attacker}: photograph found"] = compare.found(ranks)
    return table


def summary(attacks: pd.DataFrame) -> pd.DataFrame:
    """One row per policy and attacker, as text: PSNR and gain against the image before the policy,
    identification.
    """
    rows = {}
    for (policy, attacker), table in attacks.groupby(["policy", "attacker"], sort=False):
        gain = _gain(table)
        rows[policy, attacker] = {
            "PSNR before the policy, dB": f"{table['psnr_before'].mean():.1f}",
            "gain, dB": compare.interval(gain, ""),
            "PSNR photograph, dB": f"{table['psnr_original'].mean():.1f}",
            "photograph found": compare.found(table["rank_original"]),
            "photograph found, policy known": compare.found(table["rank_knowing"]),
        }
    order = {policy: i for i, policy in enumerate(dict.fromkeys(attacks["policy"]))}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis(["policy", "attacker"])
    return table.sort_index(
        level="policy", key=lambda index: index.map(order), kind="stable", sort_remaining=False
    )


def gains(attacks: pd.DataFrame) -> pd.DataFrame:
    """One row per attacker of a single round and policy: `mean`, `low` and `high` of the gain
    before it in dB.

    Attackers stand in the order of `SINGLE`.
    """
    groups = dict(list(attacks.groupby("attacker", sort=False)))
    return _gained(pd.concat([groups[name] for name in SINGLE if name in groups]), KEYS)


def by_rounds(attacks: pd.DataFrame) -> pd.DataFrame:
    """One row per policy and number of rounds watched, on the images that all have; columns as in
    `gains`.

    Args:
        attacks: on one network. `rounds`, in the result, also says who was told what was drawn.
    """
    parts = []
    images = attacks[attacks["attacker"].isin([watching(POLICY, n) for n in ROUNDS])][
        "image"
    ].unique()
    for name in (POLICY, DRAWS):
        for rounds in (1, *ROUNDS):
            rows = attacks[
                (attacks["attacker"] == watching(name, rounds)) & attacks["image"].isin(images)
            ]
            parts.append(
                rows.assign(
                    count=rounds, rounds=f"{rounds}, told" if name == DRAWS else str(rounds)
                )
            )
    table = pd.concat(parts)
    watched = table[table["count"] > 1]["policy"].unique()
    return _gained(table[table["policy"].isin(watched)], ("rounds", "policy"))


def _gained(attacks: pd.DataFrame, keys: tuple[str, ...]) -> pd.DataFrame:
    groups = attacks.groupby(list(keys), sort=False)
    parts = [dict(zip(keys, key, strict=True)) | _gain(t) for key, t in groups]
    return pd.DataFrame(parts)


def sheet(result: Result, policy: str = HYBRID, count: int = 10) -> dict[str, object]:
    """The first images under a policy: the photograph, what the client used, and what attackers
    recover.

    They are those of one round, and the one who watched most without being told what was drawn.
    """
    found: dict[str, Artifact] = {
        key[0]: art for key, art in result.sheets.items() if key[1:] == (policy, 0)
    }
    first = found[STRONGEST]
    most = [name for name in found if name.startswith(POLICY) and name.endswith("rounds")][-1:]
    rows = {"photograph": first["original"][:count], "client used": first["target"][:count]}
    return rows | {
        name: found[name]["reconstruction"][:count] for name in (*SINGLE, *most) if name in found
    }
