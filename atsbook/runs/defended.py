"""Defenses of every kind by their strength: who attacks each, the trainings with each, and a search
for a policy.
"""

import dataclasses
import itertools
from collections.abc import Iterable

import pandas as pd
import torch
from torch import Tensor

from atsbook.findings.result import NO_POLICY
from atsbook.runs.attackers import Undone
from atsbook.runs.attacks import AttackUnit, attack_unit, attacked, before, drawn, targets, told
from atsbook.runs.networks import ModelUnit, dataset, model_unit
from atsbook.runs.packing import PICTURES, as_kept
from atsbook.runs.settings import Settings
from atsbook.runs.store import Artifact, Store
from atsbook.runs.table1 import HYBRID, SEARCHED
from atsbook.runs.tables import image_rows, of_guess, policy_image
from atslib.attacks import (
    ATTACKS,
    Attack,
    BothImages,
    KeptEntries,
    KnownFeatures,
    ThroughPolicy,
)
from atslib.attacks.through_policy import drawn as forms_of
from atslib.clients.observe import ThreatModel
from atslib.clients.prepare import to_images
from atslib.clients.training import TrainConfig
from atslib.measures.metrics import psnr
from atslib.models import device_of
from atslib.policies.differentiable import in_frame
from atslib.policies.policy import sample_authors
from atslib.rng import rng

# Trains in seconds and is attacked with success; without batch normalization, as DP-SGD needs
NETWORK = "relunet"
IMAGES, STEPS, TV = 32, 100, 0.02  # at most; the prior's weight was fitted on other images
SMOOTHER = 5  # times TV, the prior against noise
TRIAL, KEEP = (
    20,
    2,
)  # steps in every form of a policy, and how many forms of an image are attacked in full
SEEDS = 3  # trainings of each setting
FRACTION, EPOCHS, BATCH, LR = 0.1, 6, 32, 0.02
ASKED, OTHERS, SHORT = (
    12,
    8,
    50,
)  # policies that the search asks, images (others) that it attacks, steps
BARE = "no crop, no flip"
# Of all policies three that leave a blind attack least (extension 10): shifts, and two that fold
# bright onto dark.
LEAST_KIND = "ATS, least found of all"
LEAST_POLICIES = ("3-3-3", "2-37-0", "9-37-2")
# kind → its settings by rising strength; they come after crop and flip, and "" is these two alone
DEFENSES: dict[str, tuple[str, ...]] = {
    "none": ("",),
    "ATS": (*SEARCHED, HYBRID),
    "pruning": ("prune:0.7", "prune:0.9", "prune:0.99"),
    "Gaussian noise": (
        "gaussian:0.0001",
        "gaussian:0.001",
        "gaussian:0.01",
        "gaussian:0.03",
        "gaussian:0.1",
    ),
    "Laplacian noise": (
        "laplace:0.0001",
        "laplace:0.001",
        "laplace:0.01",
        "laplace:0.03",
        "laplace:0.1",
    ),
    "DP-SGD": ("dp:0.001", "dp:0.01", "dp:0.03", "dp:0.1"),
    "Soteria": ("soteria:0.3", "soteria:0.6", "soteria:0.9"),
    "bottleneck": ("precode:0.3", "precode:1", "precode:3"),
    "MixUp": ("mixup:0.1", "mixup:0.3", "mixup:0.5"),
    LEAST_KIND: LEAST_POLICIES,
    "ATS and pruning": tuple(f"{HYBRID} | prune:{share}" for share in (0.7, 0.9, 0.99)),
    "ATS and noise": tuple(f"{HYBRID} | gaussian:{scale}" for scale in ("0.0001", "0.001", "0.01")),
}
REGIMES = {
    "initial": "before training",
    "trained": "after a short training",
}  # of the attacked network, in words
PLAIN, SMOOTH, KEPT = "plain", "stronger prior", "kept entries only"
FEATURES, BOTH = "reads the latent off", "both images"
THROUGH, UNDONE = "through the policy", "undoes the policy"


def place(settings: Settings) -> Settings:
    """The settings on the page's own untrained network, on fewer images and with fewer steps."""
    few = {"images": min(IMAGES, settings.images), "steps": min(STEPS, settings.steps)}
    return dataclasses.replace(
        settings, model=NETWORK, attacked=NETWORK, regime="initial", crop_flip="fixed", **few
    )


def kinds(settings: Settings) -> dict[str, str]:
    """Setting → its kind, all that do not depend on a result; at smoke one of each kind."""
    count = 1 if settings.profile == "smoke" else None
    named = {text or NO_POLICY: kind for kind, texts in DEFENSES.items() for text in texts[:count]}
    return {BARE: "none"} | named


def parts(text: str) -> tuple[str, str]:
    """The policy and the rest of a setting, "" where it has none."""
    pieces = [] if text in (BARE, NO_POLICY) else text.split(" | ")
    policy = pieces.pop(0) if pieces and ":" not in pieces[0] else ""
    return policy, " | ".join(pieces)


def inner(settings: Settings, *, smoother: bool = False) -> Attack:
    """The attack that all attackers are made of."""
    return dataclasses.replace(
        ATTACKS["annealed-lenet"], steps=settings.steps, tv=TV * (SMOOTHER if smoother else 1)
    )


def attackers(text: str, settings: Settings) -> dict[str, Attack]:
    """Who attacks a setting: the plain attack, and those that know it."""
    (policy, rest) = parts(text)
    plain = inner(settings)
    own = {"images": settings.dataset, "crop_flip": True}
    name, _, strength = rest.partition(":")
    noisy = name in ("gaussian", "laplace", "dp")
    base = inner(settings, smoother=True) if noisy else plain
    found: dict[str, Attack] = {PLAIN: plain} | ({SMOOTH: base} if noisy else {})
    if name in ("prune", "soteria"):
        found[KEPT] = KeptEntries(inner=plain)
    if name == "precode":
        found[FEATURES] = KnownFeatures(inner=plain)
    if name == "mixup":
        found[BOTH] = BothImages(inner=plain, share=float(strength))
    if policy:
        through = ThroughPolicy(inner=base, trial=min(TRIAL, settings.steps), keep=KEEP)
        found[THROUGH] = KeptEntries(inner=through) if KEPT in found else through
        found |= {} if rest else {UNDONE: Undone(inner=plain, **own)}
    return found


def attacks(settings: Settings, texts: Iterable[str]) -> dict[tuple[str, str, str], AttackUnit]:
    """All attacks by (regime, setting, attacker), on the same images and starts, after the same
    crops and flips.

    Before training all meet one network; after it each meets the first that was trained with its
    own setting.
    """
    own = place(settings)
    units = {}
    texts = list(texts)
    ends = networks(settings, texts)
    for regime, text in itertools.product(REGIMES, texts):
        policy, rest = parts(text)
        where = {"model": ends[text, own.seed]} if regime == "trained" else {}
        for name, attack in attackers(text, own).items():
            knows = ThreatModel(defense="policy" if name in (THROUGH, UNDONE) else "unknown")
            changes = {
                "attack": attack,
                "defense": rest,
                "threat": knows,
                "crop_flip": text != BARE,
            }
            units[regime, text, name] = attack_unit(own, policy, **changes, **where)
    return units


def networks(settings: Settings, texts: Iterable[str]) -> dict[tuple[str, int], ModelUnit]:
    """Short trainings with each setting by (setting, seed)."""
    own = place(settings)
    trained = {}
    size = {"fraction": min(FRACTION, own.fraction)}
    for text in texts:
        policy, rest = parts(text)
        for seed in range(own.seed, own.seed + (1 if own.profile == "smoke" else SEEDS)):
            how = {
                "epochs": min(EPOCHS, own.epochs),
                "batch": BATCH,
                "lr": LR,
                "crop_flip": text != BARE,
            }
            train = TrainConfig(policy=policy, defense=rest, **how)
            trained[text, seed] = model_unit(own, train=train, seed=seed, **size)
    return trained


def asked(settings: Settings) -> dict[str, AttackUnit]:
    """The search's last rung: the attack through random policies, told what they drew, on other
    images.
    """
    own = dataclasses.replace(place(settings), steps=min(SHORT, settings.steps))
    count = 2 if settings.profile == "smoke" else ASKED
    first = own.images
    drawn = dict.fromkeys(
        map(str, sample_authors(count, rng=rng(settings.seed, "policies against the attack")))
    )
    attack = ThroughPolicy(inner=inner(own))
    knows = ThreatModel(defense="draws")
    return {
        policy: attack_unit(
            own, policy, attack=attack, threat=knows, first=first, last=first + OTHERS
        )
        for policy in drawn
        if policy
    }


def searched(settings: Settings, store: Store) -> pd.DataFrame:
    """One row per policy that was asked: `found`, the share of photographs, and `gain`, of the
    image before it.
    """
    rows = {}
    for policy, unit in asked(settings).items():
        table = against_before(
            image_rows(attacked(unit, store, device_of(settings.device)), unit), unit
        )
        rows[policy] = {
            "found": (table["rank_original"] == 1).mean(),
            "gain": table["gain_before"].mean(),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("policy")


def tuned(asked: pd.DataFrame) -> str:
    """The policy under which the attack finds fewest photographs, and gains least where several do."""
    return str(asked.sort_values(["found", "gain"], kind="stable").index[0])


def against_before(table: pd.DataFrame, unit: AttackUnit) -> pd.DataFrame:
    """The rows of one unit with `gain_before`: dB above the mean image, against the image before
    the policy.
    """
    whole = dataset(unit.model.dataset, "test").pixels[unit.first : unit.last]
    images = to_images(before(unit) if unit.crop_flip else whole)
    floor = of_guess(policy_image(unit.model.dataset, "", unit.crop_flip), images)
    own = table["psnr_before" if unit.crop_flip else "psnr"]
    return table.assign(gain_before=own - floor.double().numpy())


def visible(unit: AttackUnit) -> Tensor:
    """Which pixels of the unit's images before the policy are left in the frame of the first round,
    (B, H, W) bool.
    """
    return in_frame(forms_of(told(unit, drawn(unit)))[0], to_images(before(unit)))


def visible_rows(unit: AttackUnit, artifact: Artifact) -> pd.DataFrame:
    """Of the pictures that the archive keeps, one row per image: what the attack finds before the
    policy, in dB.

    `share` of the image before the policy that is left in the frame, `psnr` on that part, and
    `whole` on all; `ceiling` is that of a perfect picture of what the client used, on all.
    """
    made = to_images(as_kept(artifact["reconstruction"][:PICTURES]))
    images, target = (to_images(pixels[: len(made)]) for pixels in (before(unit), targets(unit)[1]))
    part = visible(unit)[: len(made)]
    share = part.double().mean((1, 2))
    # With the rest as it should be, the error of the whole is that of the part times its share.
    on_it = psnr(torch.where(part[:, None], made, images), images).double() + 10 * share.log10()
    values = {
        "psnr": on_it,
        "whole": psnr(made, images),
        "ceiling": psnr(target, images),
        "share": share,
    }
    return pd.DataFrame(
        {"image": range(len(made))} | {name: v.double().numpy() for name, v in values.items()}
    )
