"""How many steps an attack takes: the paper's schedule beside one that falls along a cosine, at
every length.
"""

import dataclasses

import pandas as pd

from atsbook.findings import compare
from atsbook.findings.result import Result, Verdict
from atsbook.findings.statistics import paired
from atsbook.findings.verdicts import MARGIN, cannot_tell, guards
from atsbook.runs.attacks import AttackUnit, attack_unit
from atsbook.runs.settings import Settings
from atsbook.runs.store import Store
from atsbook.runs.table1 import FEW, family
from atsbook.runs.tables import attack_rows, attacked_facts, provenance
from atslib.attacks import ATTACKS

LENGTHS = (25, 50, 100, 300, 600, 1_200, 2_400, 4_800)
LONG = 4_800  # of both publications
SHORT = 300  # up to which the larger networks are attacked
KEYS = ("model", "schedule", "steps")
PAPERS, ANNEALED = "the paper's", "annealed"


def units(settings: Settings) -> dict[tuple[str, str, int], AttackUnit]:
    """Undefended attacks on untrained networks by (network, schedule, steps); one network at smoke."""
    if settings.profile == "smoke":
        lengths = {settings.model: (settings.steps, 2 * settings.steps)}
    else:
        short = tuple(steps for steps in LENGTHS if steps <= SHORT)
        lengths = {"lenet": LENGTHS, "convnet-16": short, "resnet20-1": short}
    few = dataclasses.replace(settings, regime="initial", images=min(FEW, settings.images))
    attacks = {}
    for model, allowed in lengths.items():
        kind = "lenet" if model == "lenet" else family(model).removesuffix("20")
        presets = {PAPERS: ATTACKS["adam-cosine"], ANNEALED: ATTACKS[f"annealed-{kind}"]}
        for name, attack in presets.items():
            for steps in allowed:
                own = dataclasses.replace(attack, steps=steps)
                place = dataclasses.replace(few, model=model, attacked=model)
                attacks[model, name, steps] = attack_unit(place, attack=own)
    return attacks


STEPS_RULE = (
    "The claim is this project's own: an attack without signs, whose step size falls along a cosine, needs a tenth of "
    f"the steps. Judged on untrained LeNet, where the paper's attack has its {LONG:,} steps. Reproduced: after a tenth "
    "as many or fewer the annealed attack's mean PSNR on the same images is not lower (95 % interval of the mean "
    f"paired difference above -{MARGIN} dB). Not reproduced: it is lower (below 0). Cannot tell: the interval "
    "allows both, fewer than 30 images, the annealed attack does not beat the best guess without a gradient, or the "
    "lengths were not run."
)


def steps_verdict(attacks: pd.DataFrame) -> Verdict:
    """The claim by `STEPS_RULE`, from rows with the columns of `KEYS` and the metrics of
    `image_rows`.
    """
    rows = attacks[attacks["model"] == "lenet"].assign(policy="none")
    long = rows[(rows["schedule"] == PAPERS) & (rows["steps"] == LONG)]
    short = rows[(rows["schedule"] == ANNEALED) & (rows["steps"] <= LONG // 10)]
    if long.empty or short.empty:
        return Verdict("cannot tell", "the lengths that the rule compares were not run", STEPS_RULE)
    short = short[short["steps"] == short["steps"].max()]
    pair = pd.concat([long.assign(kind=PAPERS), short.assign(kind=ANNEALED)])
    change = paired(pair, PAPERS, by="kind").loc[ANNEALED]
    mean = pair.groupby("kind")["psnr"].mean()
    here = f"{mean[ANNEALED]:.1f} dB after {int(short['steps'].iloc[0])} steps, the paper's {mean[PAPERS]:.1f} dB"
    here += f" after {LONG:,} ({compare.interval(change)})"
    near = bool(change["low"] > -MARGIN)
    lower = bool(change["high"] < 0)
    verdict = compare.judge(STEPS_RULE, here, here, refuted=lower and not near)
    both = [] if near or lower else [f"the interval allows both: {here}"]
    return cannot_tell(verdict, guards(short) + both)


def run(settings: Settings, store: Store) -> Result:
    """Attack at every length.

    Table `attacks`: one row per network, schedule, number of steps and image.
    """
    by_length = units(settings)
    rows, sheets = attack_rows(by_length, KEYS, settings, store)
    first = next(iter(by_length))
    facts = provenance(settings, sheets[first]) | attacked_facts(by_length[first])
    facts |= {
        "steps": ", ".join(map(str, sorted({steps for *_, steps in by_length}))),
        "regime": "initial",
    }
    return Result("steps", {"attacks": rows}, facts, steps_verdict(rows), sheets)


def curve(result: Result) -> pd.DataFrame:
    """One row per network, schedule and number of steps: mean gain in dB with its 95 % interval
    over images.
    """
    groups = result.tables["attacks"].groupby(list(KEYS), sort=False)
    parts = [dict(zip(KEYS, key, strict=True)) | compare.gained(table) for key, table in groups]
    return pd.DataFrame(parts)


def wide(result: Result) -> pd.DataFrame:
    """Two tables under another, as text: one row per outcome, network and schedule, one column per
    number of steps.

    Outcomes: mean PSNR in dB, and the share of reconstructions that single out the used image among
    100.
    """
    groups = result.tables["attacks"].groupby(list(KEYS), sort=False)
    outcomes = {
        "PSNR, dB": groups["psnr"].mean().map("{:.1f}".format),
        "used image found": groups["rank_target"].apply(compare.found),
    }
    table = pd.concat(outcomes, names=["outcome"]).unstack("steps").sort_index(axis=1).fillna("–")
    return table.reindex(list(outcomes), level="outcome")
