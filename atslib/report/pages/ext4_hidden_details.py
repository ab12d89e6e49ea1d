"""Extension 4: what the paper does not say: the victim's loss factor of 0.5, and random crop and flip."""

import dataclasses

import pandas as pd

from atslib.clients.training import TrainConfig
from atslib.report import compare
from atslib.report.reported import reported
from atslib.report.result import NO_POLICY, Result, Verdict
from atslib.report.units.networks import ModelUnit, model_unit
from atslib.report.units.settings import Settings
from atslib.report.units.tables import accuracy_rows, attack_rows, provenance
from atslib.report.units.units import AttackUnit, attack_unit, scaled
from atslib.store import Store

BASE = "crop and flip"
HALVED = "with, loss factor 0.5"
# setting → what it is compared with: the same but for one detail
PAIRS = {
    "plain victim": BASE,
    "plain victim and training": "plain victim",
    "cosine, factor 0.5": BASE,
    "l2, factor 0.5": "l2",
    "factor 0.5 in training": BASE,
}


def models(settings: Settings) -> dict[str, ModelUnit]:
    """Undefended networks by how they are trained."""
    plain = TrainConfig(epochs=settings.epochs, crop_flip=False)
    halved = TrainConfig(epochs=settings.epochs, loss_factor=0.5)
    return {
        "with": model_unit(settings),
        "without": model_unit(settings, train=plain),
        HALVED: model_unit(settings, train=halved),
    }


def attacks(settings: Settings) -> dict[str, AttackUnit]:
    """The page's attacks by setting: all undefended, each with one detail switched.

    `BASE` and "l2" are units of claims 1 and 2 (the victim crops and flips; its loss has factor 1).
    """
    base = attack_unit(settings, crop_flip=True)
    l2 = dataclasses.replace(base, attack=scaled("adam-l2", settings))
    plain = dataclasses.replace(base, crop_flip=False)
    return {
        BASE: base,
        "plain victim": plain,
        "plain victim and training": dataclasses.replace(plain, model=models(settings)["without"]),
        "cosine, factor 0.5": dataclasses.replace(base, defense="scale:0.5"),
        "l2": l2,
        "l2, factor 0.5": dataclasses.replace(l2, defense="scale:0.5"),
        "factor 0.5 in training": dataclasses.replace(base, model=models(settings)[HALVED]),
    }


def units(settings: Settings) -> dict[str, AttackUnit | ModelUnit]:
    """The page's attacks and networks by name."""
    return attacks(settings) | models(settings)


DETAILS_RULE = (
    "The replication's two remarks are reproduced: without random crop and flip the undefended network loses more than "
    "10 points of accuracy (judged where it reaches 20 % with them), and a factor of 0.5 on the victim's loss alone "
    "lowers the PSNR of the attack by squared distance on the same images (95 % interval of the mean paired difference "
    "below 0). "
    "Partly: one of the two. Not reproduced: neither. Not measured: fewer than two images."
)


def details_verdict(accuracy: pd.Series, change: pd.Series) -> Verdict:
    """Extension 4 by `DETAILS_RULE`.

    Args:
        accuracy: percent, of the networks `with` and `without` crop and flip.
        change: mean, low, high and n of the PSNR with the factor minus that without, for the squared distance.
    """
    if change["n"] < 2:
        return Verdict("not measured", "fewer than two images can be compared", DETAILS_RULE)
    loss = accuracy["with"] - accuracy["without"]
    here = f"{-loss:+.1f} points; {compare.interval(change)}"
    judged = accuracy["with"] >= 20
    holds = int(judged and loss > 10) + int(change["high"] < 0)
    status = ("not reproduced", "partly", "reproduced")[holds]
    reason = f"without crop and flip, and with the factor under the squared distance: {here}"
    if not judged:
        reason += f"; an accuracy of {accuracy['with']:.1f} % is too low to judge the first"
    return Verdict(status, reason, DETAILS_RULE, here)


def run(settings: Settings, store: Store) -> Result:
    """Switch each detail on and off.

    Tables: `attacks`, one row per setting and image, and `accuracy`, one row per training.
    """
    rows, sheets = attack_rows(attacks(settings), ["setting"], settings, store)
    accuracy = accuracy_rows(models(settings), ["training"], settings, store)
    change = compare.changes(rows, PAIRS).loc["l2, factor 0.5"]
    verdict = details_verdict(accuracy.set_index("training")["accuracy"], change)
    tables = {"attacks": rows, "accuracy": accuracy}
    return Result("ext4_hidden_details", tables, provenance(settings, sheets[BASE]), verdict, sheets)


def comparison(result: Result) -> pd.DataFrame:
    """One row per setting: our summary, and the published mean of the attack that it resembles."""
    rows = reported(table_or_figure="Table 2", metric="PSNR_dB", policy_or_defense=NO_POLICY)
    # Both published codebases attack the plain test image of a network trained with crop and flip.
    like = {"plain victim": "Adam+Cosine", "l2, factor 0.5": "Adam+L2"}
    return compare.comparison(result, "setting", lambda setting: rows[rows["attack"] == like.get(setting)])


def differences(result: Result) -> pd.DataFrame:
    """What each detail changes on the same images, PSNR and gain in dB, beside the setting it is compared with."""
    attacks = result.tables["attacks"]
    table = pd.concat({value: compare.changes(attacks, PAIRS, value) for value in compare.VALUES}, axis=1)
    table.insert(0, ("", "compared with"), pd.Series(PAIRS))
    return table


def accuracies(result: Result) -> pd.DataFrame:
    """Accuracy of each training in percent, and its difference to the one with crop and flip and factor 1."""
    table = result.tables["accuracy"].set_index("training")
    return table.assign(difference=table["accuracy"] - table.loc["with", "accuracy"])
