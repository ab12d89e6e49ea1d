"""Extension 5: what a policy is worth against a server that knows it, where attacks work."""

import dataclasses
from collections.abc import Sequence

import pandas as pd

from atslib.attacks import ATTACKS, FromMean, Learned, ThroughPolicy, Undone
from atslib.clients.prepare import to_images
from atslib.clients.threat import ThreatModel
from atslib.measures.metrics import psnr
from atslib.measures.statistics import holm, paired
from atslib.report import compare
from atslib.report.result import NO_POLICY, Result, Verdict
from atslib.report.units.networks import device_of
from atslib.report.units.settings import Settings
from atslib.report.units.table1 import HYBRID, POLICIES, SEARCHED
from atslib.report.units.tables import attack_rows, attacked_facts, label, policy_image, provenance
from atslib.report.units.units import AttackUnit, attack_unit, before, known_ranks, targets
from atslib.report.verdicts import cannot_tell, guards
from atslib.store import Artifact, Store

IMAGES = 50  # at most
TRIAL, KEEP = 30, 2  # steps in every form of the policy, and how many forms of an image are attacked in full
PUBLISHED, STRONGEST, POLICY, DRAWS = "as published", "strongest", "knows the policy", "knows its draws"
MEAN, UNDONE, LABEL = "starts at the policy's mean image", "undoes the policy afterwards", "infers the label"
LEARNED = "has learned on other images"
SINGLE = (PUBLISHED, STRONGEST, MEAN, UNDONE, LEARNED, POLICY, DRAWS)  # by what they use; one round, a known label
ROUNDS = {
    SEARCHED[0]: (2, 4, 8),
    HYBRID: (2, 4),
}  # rounds that a server watches, by policy
FEW = 32  # images whose rounds are watched
FOUND = "3-19-26+15-42-15"  # the hybrid of this book's own search, see claim2_search
KEYS = ("attacker", "policy")
JUDGED = (*SEARCHED, HYBRID)


def units(settings: Settings) -> dict[tuple[str, str], AttackUnit]:
    """All attacks by (attacker, policy), on the same images, crops, flips and starts."""
    own, smoke = dataclasses.replace(settings, images=min(IMAGES, settings.images)), settings.profile == "smoke"
    published = dataclasses.replace(ATTACKS["adam-cosine"], steps=settings.steps)
    found = {}
    for policy in ("", HYBRID) if smoke else (*POLICIES, FOUND):
        # Two frames make units of their own: other pages' are older than `psnr_before`.
        strongest = attack_unit(own, policy, frames=2)
        if policy != FOUND:
            found[PUBLISHED, label(policy)] = dataclasses.replace(strongest, attack=published)
        found[STRONGEST, label(policy)] = strongest
        if policy:
            found |= {(name, policy): unit for name, unit in _knowing(strongest).items()}
        if policy in ROUNDS:
            counts = ROUNDS[policy][: 1 if smoke else None]
            found |= {(name, policy): unit for name, unit in _watching(found[POLICY, policy], counts).items()}
    for policy in (NO_POLICY, HYBRID):
        strongest = found[STRONGEST, policy]
        pairs = {"pairs": 8, "epochs": 1} if smoke else {}
        attack = Learned(inner=strongest.attack, images=own.dataset, **pairs)
        threat = ThreatModel(defense="policy")
        found[LEARNED, policy] = dataclasses.replace(strongest, attack=attack, threat=threat, frames=0)
    inferred = ThreatModel(labels="inferred")
    found[LABEL, NO_POLICY] = dataclasses.replace(found[STRONGEST, NO_POLICY], threat=inferred, frames=0)
    known = dataclasses.replace(inferred, defense="policy")
    found[LABEL, HYBRID] = dataclasses.replace(found[POLICY, HYBRID], threat=known)
    return found


def _knowing(strongest: AttackUnit) -> dict[str, AttackUnit]:
    """The attackers of one round who know the policy, beside the strongest that does not."""
    inner, own = strongest.attack, {"images": strongest.model.dataset, "crop_flip": strongest.crop_flip}
    attacks = {
        MEAN: FromMean(inner=inner, **own),
        UNDONE: Undone(inner=inner, **own),
        POLICY: ThroughPolicy(inner=inner, trial=min(TRIAL, inner.steps), keep=KEEP),
        DRAWS: ThroughPolicy(inner=inner),
    }
    return {
        name: dataclasses.replace(
            strongest, attack=attack, threat=ThreatModel(defense="draws" if name == DRAWS else "policy"), frames=0
        )
        for name, attack in attacks.items()
    }


def _watching(single: AttackUnit, counts: Sequence[int]) -> dict[str, AttackUnit]:
    """The attacker who knows the policy, in so many rounds; in the most of them also told what was drawn."""
    few = dataclasses.replace(single, last=min(FEW, single.last))
    rounds = {watching(POLICY, n): dataclasses.replace(few, rounds=n) for n in counts}
    most = list(rounds.values())[-1]
    attack, threat = ThroughPolicy(inner=most.attack.inner), ThreatModel(defense="draws")
    told = dataclasses.replace(most, attack=attack, threat=threat)
    return rounds | {watching(DRAWS, told.rounds): told}


def watching(attacker: str, rounds: int) -> str:
    """The name of an attacker who watches so many rounds."""
    return f"{attacker}, {rounds} rounds" if rounds > 1 else attacker


ADAPTIVE_RULE = (
    "The outcome is what an attack gains of the image as it is after crop and flip and before the policy: its PSNR "
    "above that of the mean training image after crop and flip. A searched policy, or the hybrid, withstands a server "
    "that knows it, but not what was drawn, if the attack through the policy gains nothing (95 % interval of the mean "
    "gain not above 0). The claim that images are protected is reproduced if all three withstand; partly if some do; "
    "not reproduced if none does (each gain above 0, p at most 0.05 after Holm's correction). Cannot tell: the "
    "strongest attack gains nothing without a policy, or fewer than 30 images."
)


def judged(attacks: pd.DataFrame) -> pd.DataFrame:
    """One row per judged policy: mean, low, high and p of what the attacker who knows it gains, in dB."""
    rows = {}
    for policy in (p for p in JUDGED if p in set(attacks["policy"])):
        table = attacks[(attacks["attacker"] == POLICY) & (attacks["policy"] == policy)]
        zero = table.assign(attacker=NO_POLICY, gain_before=0.0)
        change = paired(pd.concat([table, zero]), NO_POLICY, "gain_before", by="attacker", p_values=True).loc[POLICY]
        rows[policy] = change
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("policy")
    table["p"] = holm(table["p"])
    return table.assign(withstands=~((table["low"] > 0) & (table["p"] <= 0.05)))


def adaptive_verdict(attacks: pd.DataFrame) -> Verdict:
    """The claim by `ADAPTIVE_RULE`, from rows with the columns of `KEYS`, `image`, `psnr`, `gain` and `gain_before`."""
    table = judged(attacks)
    bare = attacks[(attacks["attacker"] == STRONGEST) & (attacks["policy"] == NO_POLICY)]
    undefended = bare["gain_before"].mean()
    words = "; ".join(f"{policy} {compare.interval(row)}" for policy, row in table.iterrows())
    here = f"an attacker who knows the policy gains {words}; without a policy {undefended:+.1f} dB"
    count = int(table["withstands"].sum())
    status = "not reproduced" if not count else "partly" if count < len(table) else "reproduced"
    reason = f"{count} of {len(table)} policies withstand a server that knows them: {here}"
    return cannot_tell(Verdict(status, reason, ADAPTIVE_RULE, here), guards(bare))


def run(settings: Settings, store: Store) -> Result:
    """Attack with more and more knowledge. Table `attacks`: one row per attacker, policy and image.

    Beside the columns of `image_rows` stand `psnr_before` and `gain_before`, against the image before the policy,
    `ceiling`, the PSNR of a perfect reconstruction of the transformed image against it, and for the attackers who
    reconstruct the image after the policy `rank_knowing`, see `known_ranks`. `psnr_original` is against the photograph.
    """
    by_attacker = units(settings)
    rows, sheets = attack_rows(by_attacker, KEYS, settings, store)
    parts = [_against_before(by_attacker[key], key, rows, store, settings) for key in sheets]
    table = pd.concat(parts, ignore_index=True)
    first = by_attacker[STRONGEST, NO_POLICY]
    facts = provenance(settings, sheets[STRONGEST, NO_POLICY]) | attacked_facts(first)
    return Result("ext5_adaptive", {"attacks": table}, facts, adaptive_verdict(table), sheets)


def _against_before(
    unit: AttackUnit, key: tuple[str, str], rows: pd.DataFrame, store: Store, settings: Settings
) -> pd.DataFrame:
    table = rows[(rows[list(KEYS)] == list(key)).all(axis=1)].copy()
    images = to_images(before(unit))
    floor = policy_image(unit.model.dataset, "", unit.crop_flip).expand_as(images).contiguous()
    table["gain_before"] = table["psnr_before"] - psnr(floor, images).double().numpy()
    if unit.policy:
        table["ceiling"] = psnr(to_images(targets(unit)[1]), images).double().numpy()
    if not isinstance(unit.attack, ThroughPolicy | Undone | Learned):
        known = known_ranks(unit, store, device_of(settings.device))["rank_knowing"].numpy() if unit.policy else None
        table["rank_knowing"] = table["rank_original"] if known is None else known
    return table


def summary(result: Result) -> pd.DataFrame:
    """One row per policy and attacker, as text: PSNR and gain against the image before the policy, identification."""
    rows = {}
    for (policy, attacker), table in result.tables["attacks"].groupby(["policy", "attacker"], sort=False):
        gain = compare.gained(table.assign(gain=table["gain_before"]))
        rows[policy, attacker] = {
            "PSNR before the policy, dB": f"{table['psnr_before'].mean():.1f}",
            "gain, dB": compare.interval(gain, ""),
            "PSNR photograph, dB": f"{table['psnr_original'].mean():.1f}",
            "photograph found": compare.found(table["rank_original"]),
            "photograph found, policy known": compare.found(table["rank_knowing"]),
        }
    order = {policy: i for i, policy in enumerate(dict.fromkeys(result.tables["attacks"]["policy"]))}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis(["policy", "attacker"])
    return table.sort_index(level="policy", key=lambda index: index.map(order), kind="stable", sort_remaining=False)


def gains(result: Result) -> pd.DataFrame:
    """One row per attacker of a single round and policy: `mean`, `low` and `high` of the gain before it in dB.

    Attackers stand in the order of `SINGLE`.
    """
    groups = dict(list(result.tables["attacks"].groupby("attacker", sort=False)))
    return _gained(pd.concat([groups[name] for name in SINGLE if name in groups]), KEYS)


def by_rounds(result: Result) -> pd.DataFrame:
    """One row per policy, attacker and number of rounds watched, on the images that all have; columns as in `gains`.

    `who` is policy and attacker in one.
    """
    attacks, parts = result.tables["attacks"], []
    every = sorted({rounds for counts in ROUNDS.values() for rounds in counts})
    images = attacks[attacks["attacker"] == watching(POLICY, every[0])]["image"].unique()
    for name in (POLICY, DRAWS):
        for rounds in (1, *every):
            rows = attacks[(attacks["attacker"] == watching(name, rounds)) & attacks["image"].isin(images)]
            parts.append(rows.assign(who=rows["policy"] + f", {name}", rounds=str(rounds)))
    table = pd.concat(parts)
    watched = table[table["rounds"] != "1"]["policy"].unique()
    return _gained(table[table["policy"].isin(watched)], ("who", "rounds"))


def _gained(attacks: pd.DataFrame, keys: tuple[str, ...]) -> pd.DataFrame:
    groups = attacks.groupby(list(keys), sort=False)
    parts = [dict(zip(keys, key, strict=True)) | compare.gained(t.assign(gain=t["gain_before"])) for key, t in groups]
    return pd.DataFrame(parts)


def sheet(result: Result, policy: str = HYBRID, count: int = 10) -> dict[str, object]:
    """The first images under a policy: the photograph, what the client used, and what attackers recover.

    They are those of one round, and the one who watched most without being told what was drawn.
    """
    found: dict[str, Artifact] = {key[0]: art for key, art in result.sheets.items() if key[1] == policy}
    first, most = found[STRONGEST], [name for name in found if name.startswith(f"{POLICY},")][-1:]
    rows = {"photograph": first["original"][:count], "client used": first["target"][:count]}
    return rows | {name: found[name]["reconstruction"][:count] for name in (*SINGLE, *most) if name in found}
