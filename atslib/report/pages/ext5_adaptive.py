"""Extension 5: what a policy is worth against a server that knows it, where attacks work."""

import dataclasses
from collections.abc import Mapping, Sequence

import pandas as pd
import torch

from atslib.attacks import ATTACKS, FromMean, Learned, ThroughPolicy, Undone
from atslib.clients.prepare import to_images
from atslib.clients.threat import ThreatModel
from atslib.measures.metrics import psnr
from atslib.measures.statistics import ENOUGH, holm, paired
from atslib.report import compare
from atslib.report.result import NO_POLICY, Result, Verdict
from atslib.report.units.networks import device_of
from atslib.report.units.regimes import Cell
from atslib.report.units.settings import Settings
from atslib.report.units.table1 import FEW, HYBRID, POLICIES, SEARCHED
from atslib.report.units.tables import attack_rows, attacked_facts, label, policy_image, provenance
from atslib.report.units.units import AttackUnit, attack_unit, before, known_ranks, targets
from atslib.report.verdicts import MARGIN, guards
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
FOUND = "3-19-26+15-42-15"  # the hybrid of this book's own search, see claim2_search
KEYS = ("attacker", "policy")
JUDGED = (*SEARCHED, HYBRID)
NETWORKS = {("initial", "convnet-16"): "annealed-convnet", ("semi", "resnet20-1"): "annealed-resnet"}  # beside LeNet


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


def elsewhere(settings: Settings) -> dict[tuple[str, str, str], AttackUnit]:
    """The attackers of one round on other networks, by (place, attacker, policy): fewer images, a hundred steps."""
    few, smoke = min(FEW, settings.images), settings.profile == "smoke"
    wanted = {("initial", settings.model): "annealed-convnet"} if smoke else NETWORKS
    found = {}
    for (regime, model), name in wanted.items():
        cell = Cell(regime=regime, model=model, attack=name, steps=min(100, settings.steps), images=few,
                    dataset=settings.dataset, seed=settings.seed)  # fmt: skip
        for policy in ("", HYBRID) if smoke else ("", *JUDGED):
            strongest = dataclasses.replace(cell.unit(policy), frames=2)
            published = dataclasses.replace(ATTACKS["adam-cosine"], steps=cell.steps)
            own = {PUBLISHED: dataclasses.replace(strongest, attack=published), STRONGEST: strongest}
            own |= _knowing(strongest) if policy else {}
            found |= {(place(strongest), attacker, label(policy)): unit for attacker, unit in own.items()}
    return found


def place(unit: AttackUnit) -> str:
    """The network and what it has been through, in words."""
    return f"{unit.model.model}, {'semi-trained' if unit.model.train else 'untrained'}"


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
    "above that of the mean training image after crop and flip. It is asked of three networks: an untrained LeNet, an "
    "untrained ConvNet-16 and a ResNet20-1 that was trained on a tenth of the data. A searched policy, or the hybrid, "
    "is broken by a server that knows it, but not what was drawn, if the attack through the policy gains something "
    "(95 % interval of the mean gain above 0, p at most 0.05 after Holm's correction over the network's policies); it "
    f"withstands if it is not broken and the interval lies below {MARGIN:g} dB. A network can tell if the strongest "
    f"attack gains something of it without a policy, and at least {ENOUGH} images are attacked. The claim that images "
    "are protected is reproduced if all three policies withstand on every network that can tell; partly if some "
    "withstand on some; not reproduced if none withstands on any, and on each at least one is broken. Cannot tell: "
    "otherwise."
)


def judged(attacks: pd.DataFrame) -> pd.DataFrame:
    """One row per place and judged policy: mean, low, high and p of the gain, in dB, of the attacker who knows it.

    `broken` and `withstands` are those of `ADAPTIVE_RULE`; if neither, the interval is too wide to tell.
    """
    rows = {}
    own = attacks[(attacks["attacker"] == POLICY) & attacks["policy"].isin(JUDGED)]
    for key, table in own.groupby(["place", "policy"], sort=False):
        zero = table.assign(attacker=NO_POLICY, gain_before=0.0)
        rows[key] = paired(pd.concat([table, zero]), NO_POLICY, "gain_before", by="attacker", p_values=True).loc[POLICY]
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis(["place", "policy"])
    table["p"] = table.groupby("place")["p"].transform(holm)
    broken = (table["low"] > 0) & (table["p"] <= 0.05)
    return table.assign(broken=broken, withstands=~broken & (table["high"] < MARGIN))


def adaptive_verdict(attacks: pd.DataFrame) -> Verdict:
    """The claim by `ADAPTIVE_RULE`, from rows with `place`, the columns of `KEYS`, `image`, `psnr` and both gains."""
    table, words, reasons = judged(attacks), [], {}
    for where, policies in table.groupby("place", sort=False):
        bare = attacks[(attacks["place"] == where) & _is(attacks, STRONGEST, NO_POLICY)]
        gains = "; ".join(f"{policy} {compare.interval(row)}" for (_, policy), row in policies.iterrows())
        words.append(f"{where}: {gains}; without a policy {bare['gain_before'].mean():+.1f} dB")
        if why := guards(bare):
            reasons[where] = why
    here = "an attacker who knows the policy gains, on " + " | ".join(words)
    telling = table[~table.index.get_level_values("place").isin(list(reasons))]
    count, broken = int(telling["withstands"].sum()), telling.groupby("place")["broken"].any()
    told = f"{count} of {len(telling)} withstand a server that knows them"
    reason = f"{told}, {int(telling['broken'].sum())} are broken: {here}"
    reason += "".join(f"; {where} cannot tell: {', '.join(why)}" for where, why in reasons.items())
    if telling.empty or (not count and not broken.all()):
        return Verdict("cannot tell", reason, ADAPTIVE_RULE, here)
    status = "not reproduced" if not count else "partly" if count < len(telling) else "reproduced"
    return Verdict(status, reason, ADAPTIVE_RULE, here)


def _is(attacks: pd.DataFrame, attacker: str, policy: str) -> pd.Series:
    return (attacks["attacker"] == attacker) & (attacks["policy"] == policy)


def run(settings: Settings, store: Store) -> Result:
    """Attack with more and more knowledge. Table `attacks`: one row per attacker, policy and image.

    Beside the columns of `image_rows` stand `psnr_before` and `gain_before`, against the image before the policy,
    `ceiling`, the PSNR of a perfect reconstruction of the transformed image against it, and for the attackers who
    reconstruct the image after the policy `rank_knowing`, see `known_ranks`. `psnr_original` is against the photograph.
    Table `elsewhere`: the same of other networks, by their `place`.
    """
    by_attacker, others = units(settings), elsewhere(settings)
    rows, sheets = attack_rows(by_attacker, KEYS, settings, store)
    table = _against_before(by_attacker, KEYS, rows, store, settings)
    more, _ = attack_rows(others, ("place", *KEYS), settings, store)
    more = _against_before(others, ("place", *KEYS), more, store, settings)
    first = by_attacker[STRONGEST, NO_POLICY]
    facts = provenance(settings, sheets[STRONGEST, NO_POLICY]) | attacked_facts(first)
    verdict = adaptive_verdict(pd.concat([table.assign(place=place(first)), more]))
    return Result("ext5_adaptive", {"attacks": table, "elsewhere": more}, facts, verdict, sheets)


def _against_before(
    units: Mapping[tuple, AttackUnit], names: Sequence[str], rows: pd.DataFrame, store: Store, settings: Settings
) -> pd.DataFrame:
    """The rows of all units, with what their attacks find of the image before the policy."""
    device, own = device_of(settings.device), dict(list(rows.groupby(list(names), sort=False)))
    return pd.concat([_before(own[key], unit, store, device) for key, unit in units.items()], ignore_index=True)


def _before(rows: pd.DataFrame, unit: AttackUnit, store: Store, device: torch.device) -> pd.DataFrame:
    table, images = rows.copy(), to_images(before(unit))
    floor = policy_image(unit.model.dataset, "", unit.crop_flip).expand_as(images).contiguous()
    table["gain_before"] = table["psnr_before"] - psnr(floor, images).double().numpy()
    if unit.policy:
        table["ceiling"] = psnr(to_images(targets(unit)[1]), images).double().numpy()
    if not isinstance(unit.attack, ThroughPolicy | Undone | Learned):
        known = known_ranks(unit, store, device)["rank_knowing"].numpy() if unit.policy else None
        table["rank_knowing"] = table["rank_original"] if known is None else known
    return table


def summary(attacks: pd.DataFrame) -> pd.DataFrame:
    """One row per policy and attacker, as text: PSNR and gain against the image before the policy, identification."""
    rows = {}
    for (policy, attacker), table in attacks.groupby(["policy", "attacker"], sort=False):
        gain = compare.gained(table.assign(gain=table["gain_before"]))
        rows[policy, attacker] = {
            "PSNR before the policy, dB": f"{table['psnr_before'].mean():.1f}",
            "gain, dB": compare.interval(gain, ""),
            "PSNR photograph, dB": f"{table['psnr_original'].mean():.1f}",
            "photograph found": compare.found(table["rank_original"]),
            "photograph found, policy known": compare.found(table["rank_knowing"]),
        }
    order = {policy: i for i, policy in enumerate(dict.fromkeys(attacks["policy"]))}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis(["policy", "attacker"])
    return table.sort_index(level="policy", key=lambda index: index.map(order), kind="stable", sort_remaining=False)


def gains(attacks: pd.DataFrame) -> pd.DataFrame:
    """One row per attacker of a single round and policy: `mean`, `low` and `high` of the gain before it in dB.

    Attackers stand in the order of `SINGLE`.
    """
    groups = dict(list(attacks.groupby("attacker", sort=False)))
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
