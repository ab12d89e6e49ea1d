"""Where attacks work, does a searched policy protect? Asked by regime, above a floor that knows the
policy.
"""

import dataclasses
from collections.abc import Sequence

import pandas as pd

from atsbook.findings import compare
from atsbook.findings.reported import reported
from atsbook.findings.result import NO_POLICY, Result, Verdict
from atsbook.findings.statistics import ENOUGH, holm, interval, paired, share_interval
from atsbook.findings.verdicts import guards
from atsbook.runs.attacks import AttackUnit
from atsbook.runs.networks import STAGES
from atsbook.runs.regimes import REGIMES, Cell, accuracies, measure, sizes
from atsbook.runs.settings import Settings
from atsbook.runs.store import Store
from atsbook.runs.table1 import FEW, HYBRID, POLICIES, SEARCHED
from atsbook.runs.tables import attack_rows, label, provenance

CELL = ["regime", "step", "model"]
TRAINED = (
    "",
    HYBRID,
)  # the paper's proposal beside nothing, where an attack with every policy takes too long
STAGED = ("", *SEARCHED, HYBRID)  # those whose trainings are followed
PAPERS = "adam-cosine"  # the paper's own attack, beside the strongest
BROAD = (
    16  # images of the published ResNet20, four times as wide: a check that width changes nothing
)
CROSSED = (
    30,
    300,
)  # steps at which network and target are crossed, as at the end; at the last, the paper's attack
OUTCOMES = {
    "rank_target": "the used image",
    "rank_knowing": "the photograph, policy known",
    "rank_original": "the photograph, undoing nothing",
}


def cells(settings: Settings) -> dict[Cell, tuple[str, ...]]:
    """Where the question is asked, and of which policies: untrained networks, and three along their
    training.
    """
    shared = {"dataset": settings.dataset, "seed": settings.seed}
    if settings.profile == "smoke":
        own = shared | {"model": settings.model, "images": settings.images}
        return {
            Cell(regime="initial", attack="annealed-convnet", steps=settings.steps, **own): (
                "",
                HYBRID,
            )
        }
    full = settings.profile == "full"
    shared |= {"images": settings.images, "steps": 100, "draws": 2}
    deep = shared | {"model": "resnet20-4" if full else "resnet20-1", "attack": "annealed-resnet"}
    wide = shared | {"model": "convnet-64" if full else "convnet-16", "attack": "annealed-convnet"}
    small = shared | {
        "model": "lenet",
        "attack": "annealed-lenet",
        "steps": 300,
        "draws": 3,
    }  # the cheapest
    untrained = [Cell(regime="initial", **net) for net in (small, wide, deep)]
    once = {"steps": 300, "draws": 1}
    asked = ((small, POLICIES), (deep, POLICIES), (wide, TRAINED))
    later = {
        Cell(regime=regime, **net | once): policies
        for regime in ("semi", "trained")
        for net, policies in asked
    }
    few = {"images": settings.images if full else min(FEW, settings.images)}
    end = Cell(regime="trained", **wide).steps_trained
    stages = [*(step for step in STAGES if step < end), end]
    nets = [net | few for net in (deep, small | {"draws": 2}, wide)]
    early = {Cell(regime="early", step=step, **net): STAGED for net in nets for step in stages}
    check = {"model": "resnet20-4", "images": BROAD, "draws": 1}
    broad = {} if full else {Cell(regime="initial", **deep | check): TRAINED}
    return dict.fromkeys(untrained, POLICIES) | broad | early | later


def by_the_paper(settings: Settings) -> dict[tuple, AttackUnit]:
    """The paper's own attack on one draw of each regime's cells, early at step 300, without and
    with the hybrid.

    As many steps as the strongest, fewer images of trained networks. Keys: regime, step of
    training, network, policy.
    """
    asked = cells(settings) if settings.profile != "smoke" else ()
    places = [cell for cell in asked if cell.step in (0, CROSSED[-1]) and cell.images != BROAD]
    many = [cell.images if cell.regime == "initial" else min(FEW, cell.images) for cell in places]
    theirs = [
        dataclasses.replace(c, attack=PAPERS, draws=1, images=n)
        for c, n in zip(places, many, strict=True)
    ]
    return {key[:-1]: unit for cell in theirs for key, unit in cell.units(TRAINED).items()}


def crossed(settings: Settings) -> dict[tuple, AttackUnit]:
    """Each network trained with or without the hybrid, attacked on images with or without it.

    Keys: network, step of the training, its policy, and the policy on the images, the target; where
    `cells` has them.
    """
    early = [cell for cell in cells(settings) if cell.regime == "early"]
    end = max((cell.step for cell in early), default=0)
    return {
        (cell.model, cell.step, label(own), label(policy)): cell.unit(policy, trained_with=own)
        for cell in early
        if cell.step in (*CROSSED, end)
        for own in TRAINED
        for policy in TRAINED
    }


def units(settings: Settings) -> dict[tuple, AttackUnit]:
    """All attacks of the page: by regime, step, network, policy and draw, those of `crossed`, and
    `by_the_paper`.
    """
    more = {"crossed": crossed(settings), "paper": by_the_paper(settings)}
    return _by_cell(settings) | {
        (name, *key): unit for name, units in more.items() for key, unit in units.items()
    }


def _by_cell(settings: Settings) -> dict[tuple, AttackUnit]:
    return {
        key: unit
        for cell, policies in cells(settings).items()
        for key, unit in cell.units(policies).items()
    }


RULE = (
    "In each cell, a network in a regime, the outcome is the attack's gain: its PSNR above that of the best guess of "
    "an attacker who knows the policy and sees no gradient, on the same images and draws. A cell can tell if at least "
    f"{ENOUGH} images are attacked, the undefended attack has a gain (95 % interval of its mean above 0), and the "
    "interval of the change that the hybrid makes does not hold both 0 and the smaller of the two published changes of "
    "PSNR. There the hybrid protects if it lowers the gain (interval below 0, and p at most 0.05 after Holm's "
    "correction over the cells). Reproduced: it protects in every cell that can tell. Partly: in some of them. Not "
    "reproduced: in none. Cannot tell: no cell can."
)


def published_change() -> float:
    """The smaller of the changes of PSNR in dB that both publications print for the hybrid in Table
    1a.
    """
    rows = reported(table_or_figure="Table 1a", metric="PSNR_dB").set_index(
        ["source", "policy_or_defense"]
    )["value"]
    bare = rows.xs(NO_POLICY, level="policy_or_defense")
    changes = rows[rows.index.get_level_values(1).str.startswith("hybrid:")].droplevel(1) - bare
    return float(changes.loc[changes.abs().idxmin()])


def judged(attacks: pd.DataFrame, hybrid: str = HYBRID) -> pd.DataFrame:
    """One row per regime and network: what the rule looks at.

    Columns: `images`, `bare`, `bare_low` and `bare_high` (mean gain undefended in dB, with its
    interval), `change`, `low` and `high` (what the hybrid makes of it), `p` after Holm, `why` (what
    keeps the cell from telling, in words) and `protects`.
    """
    rows = {}
    for key, table in attacks.groupby(CELL, sort=False):
        bare = table[table["policy"] == NO_POLICY]
        low, high = interval(bare["gain"], bare["image"])
        change = paired(table, NO_POLICY, "gain", p_values=True).loc[hybrid]
        reasons = guards(
            table, effect=(change["low"], change["high"]), published=published_change()
        )
        rows[key] = {
            "images": int(change["n"]),
            "bare": bare["gain"].mean(),
            "bare_low": low,
            "bare_high": high,
        }
        rows[key] |= {
            "change": change["mean"],
            "low": change["low"],
            "high": change["high"],
            "p": change["p"],
        }
        rows[key] |= {"why": "; ".join(reasons)}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis(CELL)
    table["p"] = holm(table["p"])
    return table.assign(protects=(table["why"] == "") & (table["high"] < 0) & (table["p"] <= 0.05))


def verdict_of(table: pd.DataFrame) -> Verdict:
    """The verdict by `RULE`, from the rows of `judged`."""
    telling = table[table["why"] == ""]
    protected = table[table["protects"]]
    if telling.empty:
        return Verdict("cannot tell", f"no cell can tell ({table['why'].iloc[0]})", RULE)
    reason = f"the hybrid lowers the gain in {len(protected)} of {len(telling)} cells that can tell"
    each = [f"{model}, {words(regime, step)}: {compare.interval(row.rename({'change': 'mean'}))}"
            for (regime, step, model), row in protected.iterrows()]  # fmt: skip
    reason += f" ({'; '.join(each)})" if each else ""
    others = telling[~telling["protects"]]["change"]
    if len(others):
        reason += f"; it changes that of the others by {compare.spread(others)}"
    status = "reproduced" if others.empty else "partly" if len(protected) else "not reproduced"
    return Verdict(status, reason, RULE, reason)


def words(regime: str, step: int) -> str:
    """A regime in words, with the step of training where it is early."""
    return f"step {step}" if regime == "early" else regime


def run(settings: Settings, store: Store) -> Result:
    """Attack with and without policies, where attacks work and as training goes on, and judge.

    Tables: `attacks` (one row per regime, step of training, network, policy, draw and image),
    `judged` (one row per regime, step and network), `networks` (the accuracy of each trained one),
    `crossed` (one row per network, step, policy of its training, of the target, and image), and
    `paper`, of the paper's attack, as `attacks` but of one draw. Sheets: the images behind the
    attacks, by the same keys.
    """
    attacks, sheets = measure(asked := _by_cell(settings), store, settings.device, TRAINED)
    table = judged(attacks)
    pairs = crossed(settings)
    theirs = by_the_paper(settings)
    accuracy = accuracies(asked, store, settings.device)
    tables = {"attacks": attacks, "judged": table.reset_index(), "networks": accuracy}
    if theirs:
        tables["paper"], _ = attack_rows(theirs, (*CELL, "policy"), settings, store)
    if pairs:
        tables["crossed"], _ = attack_rows(
            pairs, ("model", "step", "network", "target"), settings, store
        )
    facts = provenance(settings, next(iter(sheets.values()))) | sizes(list(cells(settings)))
    return Result("regimes", tables, facts, verdict_of(table), sheets)


def followed(result: Result) -> list[str]:
    """The networks that were looked at on the way of their training."""
    attacks = result.tables["attacks"]
    return list(attacks[attacks["regime"] == "early"]["model"].unique())


def along(result: Result, model: str) -> pd.DataFrame:
    """The attacks before, during and after a network's training, on the images that all steps have."""
    attacks = result.tables["attacks"]
    attacks = attacks[(attacks["model"] == model) & attacks["regime"].isin(("initial", "early"))]
    policies = attacks[attacks["regime"] == "early"]["policy"]
    return compare.same_images(attacks[attacks["policy"].isin(policies)], "step")


def stages(result: Result, model: str) -> pd.DataFrame:
    """Gain in dB and images singled out in percent along a training, with 95 % intervals; see
    `along`.

    The interval of a share is of the first draw alone: draws of one image are not independent
    trials.
    """
    attacks = along(result, model)
    parts = []
    for (step, policy), table in attacks.groupby(["step", "policy"], sort=False):
        values = {"gain over the floor (dB)": tuple(compare.gained(table).values())}
        for column, name in OUTCOMES.items():
            if table[column].notna().any():  # where nobody looked there is no share
                first = table[table["draw"] == 0][column] == 1
                share = ((table[column] == 1).mean(), *share_interval(int(first.sum()), len(first)))
                values[f"{name} (% singled out)"] = tuple(100 * value for value in share)
        key = {"step": step, "policy": policy}
        parts += [
            key | {"outcome": n} | dict(zip(("mean", "low", "high"), v, strict=True))
            for n, v in values.items()
        ]
    return pd.DataFrame(parts).sort_values("step", kind="stable")


def two_attacks(result: Result) -> pd.DataFrame:
    """The strongest attack beside the paper's own, as text: one row per regime, network and policy,
    gain in dB.

    Of the strongest the first draw of the same images is taken, which has the same crops, flips and
    starts.
    """
    rows = {}
    (theirs, ours) = (result.tables[name] for name in ("paper", "attacks"))
    for key, table in theirs.groupby([*CELL, "policy"], sort=False):
        same = ours[(ours[[*CELL, "policy"]] == list(key)).all(axis=1) & (ours["draw"] == 0)]
        same = same[same["image"].isin(table["image"])]
        both = {"strongest": same, "the paper's": table}
        gains = {
            f"{name}: gain, dB": compare.interval(compare.gained(part), "")
            for name, part in both.items()
        }
        rows[words(*key[:2]), *key[2:]] = gains | {
            f"{name}: used image found": compare.found(part["rank_target"])
            for name, part in both.items()
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["regime", "model", "policy"])


def summary(
    result: Result, policies: Sequence[str] = (NO_POLICY, HYBRID), where: Sequence[str] = REGIMES
) -> pd.DataFrame:
    """One row per regime, network and policy: PSNR, floor, gain with its interval, and
    identification, as text.

    Args:
        policies, where: the labels of policies, and the regimes, that are shown.
    """
    rows = {}
    attacks = result.tables["attacks"]
    attacks = attacks[attacks["regime"].isin(where)]
    for key, table in attacks[attacks["policy"].isin(policies)].groupby(
        [*CELL, "policy"], sort=False
    ):
        row = {"n × draws": f"{table['image'].nunique()} × {table['draw'].nunique()}"}
        row |= {
            "PSNR, dB": f"{table['psnr'].mean():.1f}",
            "floor, dB": f"{table['floor_policy'].mean():.1f}",
        }
        row["gain, dB"] = compare.interval(compare.gained(table), "")
        row |= {f"{name} found": compare.found(table[column]) for column, name in OUTCOMES.items()}
        rows[key] = row | {"SSIM": f"{table['ssim'].mean():.2f}"}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis([*CELL, "policy"])
    return table.droplevel(
        [name for name in ("regime", "step") if len(table.index.unique(name)) == 1]
    )


def identified(result: Result) -> pd.DataFrame:
    """One row per regime, network, policy and outcome: share of identified images, with its
    interval as in `stages`.
    """
    rows = []
    attacks = result.tables["attacks"]
    for key, table in attacks.groupby([*CELL, "policy"], sort=False):
        for column, name in OUTCOMES.items():
            if table[column].isna().all():
                continue
            first = table[table["draw"] == 0][column] == 1
            low, high = share_interval(int(first.sum()), len(first))
            share = {"share": (table[column] == 1).mean(), "low": low, "high": high}
            rows.append(dict(zip([*CELL, "policy"], key, strict=True)) | {"outcome": name} | share)
    return pd.DataFrame(rows)


def changes(result: Result) -> pd.DataFrame:
    """Each policy minus none on the same images and draws: gain in dB, PSNR in dB, one row per
    network and policy.
    """
    attacks = result.tables["attacks"]
    parts = {
        value: pd.concat(
            {
                key: paired(table, NO_POLICY, value, p_values=value == "gain")
                for key, table in attacks.groupby(CELL)
            },
            names=CELL,
        )
        for value in ("gain", "psnr")
    }
    return pd.concat(parts, axis=1)


def per_image(result: Result, policy: str = HYBRID) -> pd.DataFrame:
    """Mean gain over draws, one row per regime, network and image, with columns `none` and the
    policy's name.
    """
    attacks = result.tables["attacks"]
    chosen = attacks[attacks["policy"].isin((NO_POLICY, policy))]
    return (
        chosen.groupby([*CELL, "image", "policy"], sort=False)["gain"]
        .mean()
        .unstack("policy")[[NO_POLICY, policy]]
    )
