"""Where attacks work, does a searched policy protect? Asked by regime, above a floor that knows the policy."""

from collections.abc import Sequence

import pandas as pd

from atslib.measures.statistics import ENOUGH, holm, interval, paired, share_interval
from atslib.report import compare
from atslib.report.reported import reported
from atslib.report.result import NO_POLICY, Result, Verdict
from atslib.report.units.regimes import Cell, measure
from atslib.report.units.settings import Settings
from atslib.report.units.table1 import HYBRID, POLICIES
from atslib.report.units.tables import provenance
from atslib.report.units.units import AttackUnit
from atslib.report.verdicts import guards
from atslib.store import Store

CELL = ["regime", "model"]
FEW = 32  # images of the larger networks, where an attack takes ten times as long
OUTCOMES = {"rank_target": "the used image", "rank_original": "the photograph"}


def cells(settings: Settings) -> tuple[Cell, ...]:
    """Where the question is asked: untrained networks of three kinds; at smoke one, on few images."""
    if settings.profile == "smoke":
        own = {"model": settings.model, "dataset": settings.dataset, "images": settings.images}
        return (Cell(regime="initial", attack="annealed-convnet", steps=settings.steps, **own),)
    full = settings.profile == "full"
    shared = {"regime": "initial", "dataset": settings.dataset}
    few = shared | {"steps": 100, "draws": 2, "images": settings.images if full else min(FEW, settings.images)}
    return (
        Cell(model="lenet", attack="annealed-lenet", steps=300, draws=2, images=settings.images, **shared),
        Cell(model="convnet-64" if full else "convnet-16", attack="annealed-convnet", **few),
        Cell(model="resnet20-4" if full else "resnet20-1", attack="annealed-resnet", **few),
    )


def units(settings: Settings) -> dict[tuple, AttackUnit]:
    """All attacks of the page by regime, network, policy and draw."""
    chosen = ("", HYBRID) if settings.profile == "smoke" else POLICIES
    return {key: unit for cell in cells(settings) for key, unit in cell.units(chosen).items()}


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
    """The smaller of the changes of PSNR in dB that both publications print for the hybrid in Table 1a."""
    rows = reported(table_or_figure="Table 1a", metric="PSNR_dB").set_index(["source", "policy_or_defense"])["value"]
    bare = rows.xs(NO_POLICY, level="policy_or_defense")
    changes = rows[rows.index.get_level_values(1).str.startswith("hybrid:")].droplevel(1) - bare
    return float(changes.loc[changes.abs().idxmin()])


def judged(attacks: pd.DataFrame, hybrid: str = HYBRID) -> pd.DataFrame:
    """One row per regime and network: what the rule looks at.

    Columns: `images`, `bare`, `bare_low` and `bare_high` (mean gain undefended in dB, with its interval), `change`,
    `low` and `high` (what the hybrid makes of it), `p` after Holm, `why` (what keeps the cell from telling, in words)
    and `protects`.
    """
    rows = {}
    for key, table in attacks.groupby(CELL, sort=False):
        bare = table[table["policy"] == NO_POLICY]
        low, high = interval(bare["gain"], bare["image"])
        change = paired(table, NO_POLICY, "gain", p_values=True).loc[hybrid]
        reasons = guards(table, effect=(change["low"], change["high"]), published=published_change())
        rows[key] = {"images": int(change["n"]), "bare": bare["gain"].mean(), "bare_low": low, "bare_high": high}
        rows[key] |= {"change": change["mean"], "low": change["low"], "high": change["high"], "p": change["p"]}
        rows[key] |= {"why": "; ".join(reasons)}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis(CELL)
    table["p"] = holm(table["p"])
    return table.assign(protects=(table["why"] == "") & (table["high"] < 0) & (table["p"] <= 0.05))


def verdict_of(table: pd.DataFrame) -> Verdict:
    """The verdict by `RULE`, from the rows of `judged`."""
    telling, protected = table[table["why"] == ""], table[table["protects"]]
    here = "; ".join(f"{model}, {regime}: {compare.interval(row.rename({'change': 'mean'}))}"
                     for (regime, model), row in table.iterrows())  # fmt: skip
    reason = f"the hybrid lowers the gain in {len(protected)} of {len(telling)} cells that can tell ({here})"
    if telling.empty:
        return Verdict("cannot tell", f"no cell can tell ({table['why'].iloc[0]})", RULE, here)
    if protected.empty:
        return Verdict("not reproduced", reason, RULE, here)
    return Verdict("reproduced" if len(protected) == len(telling) else "partly", reason, RULE, here)


def run(settings: Settings, store: Store) -> Result:
    """Attack with and without policies where attacks work, and judge.

    Tables: `attacks` (one row per regime, network, policy, draw and image) and `judged` (one row per regime and
    network). Sheets: the images behind the attacks, by the same keys.
    """
    attacks, sheets = measure(units(settings), store, settings.device)
    table = judged(attacks)
    facts = provenance(settings, next(iter(sheets.values()))) | _each(cells(settings))
    return Result("regimes", {"attacks": attacks, "judged": table.reset_index()}, facts, verdict_of(table), sheets)


def _each(asked: Sequence[Cell]) -> dict[str, object]:
    """Networks, images and steps of all cells in words, for the banner; none of the networks is trained."""
    words = {
        "model": [cell.model for cell in asked],
        "images": [f"{cell.images} × {cell.draws} draws" for cell in asked],
        "steps": [str(cell.steps) for cell in asked],
    }
    return {name: ", ".join(each) for name, each in words.items()} | {"epochs": 0}


def summary(result: Result, policies: Sequence[str] = (NO_POLICY, HYBRID)) -> pd.DataFrame:
    """One row per regime, network and policy: PSNR, floor, gain with its interval, and identification, as text."""
    rows, attacks = {}, result.tables["attacks"]
    for key, table in attacks[attacks["policy"].isin(policies)].groupby([*CELL, "policy"], sort=False):
        low, high = interval(table["gain"], table["image"])
        row = {"n × draws": f"{table['image'].nunique()} × {table['draw'].nunique()}"}
        row |= {"PSNR, dB": f"{table['psnr'].mean():.1f}", "floor, dB": f"{table['floor_policy'].mean():.1f}"}
        row["gain, dB"] = f"{table['gain'].mean():+.1f} [{low:.1f}, {high:.1f}]"
        row |= {f"finds {name}": f"{(table[column] == 1).mean():.0%}" for column, name in OUTCOMES.items()}
        rows[key] = row | {"SSIM": f"{table['ssim'].mean():.2f}"}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis([*CELL, "policy"])
    return table.droplevel("regime") if len(table.index.unique("regime")) == 1 else table


def identified(result: Result) -> pd.DataFrame:
    """One row per regime, network, policy and outcome: share of identified images with its 95 % interval.

    The interval is of the first draw alone: draws of one image are not independent trials.
    """
    rows, attacks = [], result.tables["attacks"]
    for key, table in attacks.groupby([*CELL, "policy"], sort=False):
        for column, name in OUTCOMES.items():
            first = table[table["draw"] == 0][column] == 1
            low, high = share_interval(int(first.sum()), len(first))
            share = {"share": (table[column] == 1).mean(), "low": low, "high": high}
            rows.append(dict(zip([*CELL, "policy"], key, strict=True)) | {"outcome": name} | share)
    return pd.DataFrame(rows)


def changes(result: Result) -> pd.DataFrame:
    """Each policy minus none on the same images and draws: gain in dB, PSNR in dB, one row per network and policy."""
    attacks = result.tables["attacks"]
    parts = {
        value: pd.concat(
            {key: paired(table, NO_POLICY, value, p_values=value == "gain") for key, table in attacks.groupby(CELL)},
            names=CELL,
        )
        for value in ("gain", "psnr")
    }
    return pd.concat(parts, axis=1)


def per_image(result: Result, policy: str = HYBRID) -> pd.DataFrame:
    """Mean gain over draws, one row per regime, network and image, with columns `none` and the policy's name."""
    attacks = result.tables["attacks"]
    chosen = attacks[attacks["policy"].isin((NO_POLICY, policy))]
    return chosen.groupby([*CELL, "image", "policy"], sort=False)["gain"].mean().unstack("policy")[[NO_POLICY, policy]]
