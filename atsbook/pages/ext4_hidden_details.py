"""Extension 4: what the paper does not say: the victim's loss factor of 0.5, and random crop and
flip.
"""

import dataclasses

import pandas as pd

from atsbook.findings import compare
from atsbook.findings.reported import reported
from atsbook.findings.result import NO_POLICY, Result, Verdict
from atsbook.findings.verdicts import cannot_tell, guards
from atsbook.runs.attacks import AttackUnit, attack_unit, scaled
from atsbook.runs.networks import ModelUnit, model_unit
from atsbook.runs.settings import Settings
from atsbook.runs.store import Store
from atsbook.runs.table1 import short
from atsbook.runs.tables import accuracy_rows, attack_rows, attacked_facts, provenance
from atslib.clients.training import TrainConfig

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
    """Undefended networks by how they are trained, after short trainings."""
    own = short(settings)
    plain = TrainConfig(epochs=own.epochs, crop_flip=False)
    halved = TrainConfig(epochs=own.epochs, loss_factor=0.5)
    return {
        "with": model_unit(own),
        "without": model_unit(own, train=plain),
        HALVED: model_unit(own, train=halved),
    }


def attacks(settings: Settings) -> dict[str, AttackUnit]:
    """The page's attacks by setting: all undefended, each with one detail switched.

    On untrained networks the attack by squared distance is L-BFGS with a line search, the one of
    its kind that works, and nothing is asked of the two details of a training.
    """
    base = attack_unit(settings, crop_flip=True)
    initial = settings.regime == "initial"
    l2 = dataclasses.replace(
        base, attack=scaled("lbfgs-l2-fixed" if initial else "adam-l2", settings)
    )
    plain = dataclasses.replace(base, crop_flip=False)
    by_setting = {
        BASE: base,
        "plain victim": plain,
        "cosine, factor 0.5": dataclasses.replace(base, defense="scale:0.5"),
        "l2": l2,
        "l2, factor 0.5": dataclasses.replace(l2, defense="scale:0.5"),
    }
    if not initial:
        by_setting["plain victim and training"] = dataclasses.replace(
            plain, model=models(settings)["without"]
        )
        by_setting["factor 0.5 in training"] = dataclasses.replace(
            base, model=models(settings)[HALVED]
        )
    return by_setting


def units(settings: Settings) -> dict[str, AttackUnit | ModelUnit]:
    """The page's attacks and networks by name."""
    return attacks(settings) | models(settings)


DETAILS_RULE = (
    "The replication's two remarks are reproduced: without random crop and flip the undefended network loses more than "
    "10 points of accuracy (judged where it reaches 20 % with them), and a factor of 0.5 on the victim's loss alone "
    "lowers the gain of the attack by squared distance on the same images (95 % interval of the mean paired difference "
    "below 0; judged where that attack without the factor has a gain on 30 images or more). Partly: one of the two. "
    "Not reproduced: neither. Cannot tell: neither can be judged."
)


def details_verdict(accuracy: pd.Series, attacks: pd.DataFrame) -> Verdict:
    """Extension 4 by `DETAILS_RULE`.

    Args:
        accuracy: percent, of the networks `with` and `without` crop and flip.
        attacks: rows with `setting`, `image`, `psnr`, `floor_policy` and `gain`.
    """
    change = compare.changes(attacks, PAIRS, "gain").loc["l2, factor 0.5"]
    why = guards(attacks[attacks["setting"] == "l2"].assign(policy=NO_POLICY))
    loss = accuracy["with"] - accuracy["without"]
    here = f"{-loss:+.1f} points; gain {compare.interval(change)}"
    if not (trained := accuracy["with"] >= 20):
        why.append(f"an accuracy of {accuracy['with']:.1f} % is too low to judge the first")
    reason = f"without crop and flip, and with the factor under the squared distance: {here}"
    if why and not trained and len(why) > 1:
        return cannot_tell(Verdict("partly", "", DETAILS_RULE, here), why)
    holds = int(trained and loss > 10) + int(len(why) == int(not trained) and change["high"] < 0)
    status = ("not reproduced", "partly", "reproduced")[holds]
    return Verdict(status, "; ".join([reason, *why]), DETAILS_RULE, here)


def run(settings: Settings, store: Store) -> Result:
    """Switch each detail on and off.

    Tables: `attacks`, one row per setting and image, and `accuracy`, one row per training.
    """
    rows, sheets = attack_rows(attacks(settings), ["setting"], settings, store)
    accuracy = accuracy_rows(models(settings), ["training"], settings, store)
    accuracy["model"] = models(settings)["with"].model
    verdict = details_verdict(accuracy.set_index("training")["accuracy"], rows)
    tables = {"attacks": rows, "accuracy": accuracy}
    facts = provenance(settings, sheets[BASE]) | attacked_facts(attacks(settings)[BASE])
    return Result("ext4_hidden_details", tables, facts, verdict, sheets)


def comparison(result: Result) -> pd.DataFrame:
    """One row per setting: our summary, and the published mean of the attack that it resembles."""
    rows = reported(table_or_figure="Table 2", metric="PSNR_dB", policy_or_defense=NO_POLICY)
    # Both published codebases attack the plain test image of a network trained with crop and flip.
    like = {"plain victim": "Adam+Cosine", "l2, factor 0.5": "Adam+L2"}
    return compare.comparison(
        result, "setting", lambda setting: rows[rows["attack"] == like.get(setting)]
    )


def differences(result: Result) -> pd.DataFrame:
    """What each detail changes on the same images, PSNR and gain in dB, beside the setting it is
    compared with.
    """
    attacks = result.tables["attacks"]
    table = pd.concat(
        {value: compare.changes(attacks, PAIRS, value) for value in compare.VALUES}, axis=1
    )
    table.insert(0, ("", "compared with"), pd.Series(PAIRS))
    return table


def accuracies(result: Result) -> pd.DataFrame:
    """Accuracy of each training in percent, and its difference to the one with crop and flip and
    factor 1.
    """
    table = result.tables["accuracy"].set_index("training")
    return table.assign(difference=table["accuracy"] - table.loc["with", "accuracy"])
