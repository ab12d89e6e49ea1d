"""The last column of the Deviations page: what each switch changes, in words made from the stored
tables.

A row of that page holds `<!-- effect: name -->…<!-- /effect -->`; what is between is written anew
by each run.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from atsbook.findings import switches
from atsbook.findings.compare import interval
from atsbook.findings.newest import stored
from atsbook.findings.reported import DEFENSES
from atsbook.findings.result import NO_POLICY, TABLE
from atsbook.findings.statistics import paired
from atslib.errors import AtsError, choose
from atslib.files import write_atomically

Tables = Mapping[str, pd.DataFrame]
UNKNOWN = "not measured yet"
_MARK = re.compile(r"(<!-- effect: (?P<name>[\w-]+) -->).*?(<!-- /effect -->)")


class _NotMeasured(Exception):
    """Stored tables do not have what an effect is of, as those of a smaller profile may not."""


class _Stored(dict):
    """Tables by name, of which one that is not there was not measured."""

    def __missing__(self, name: str) -> pd.DataFrame:
        raise _NotMeasured(name)


def _there(values: Iterable[object], *names: object) -> None:
    """Raise `_NotMeasured` unless all names are among these values of a table."""
    known = set(values)
    if missing := [name for name in names if name not in known]:
        raise _NotMeasured(missing)


def _change(
    attacks: pd.DataFrame, name: str, base: str, by: str = "setting", value: str = "psnr"
) -> str:
    _there(attacks[by], name, base)
    return interval(paired(attacks[attacks[by].isin((name, base))], base, value, by=by).loc[name])


def _accuracy(table: pd.DataFrame, base: str, name: str, by: str) -> str:
    _there(table[by], base, name)
    known = table.set_index(by)["accuracy"]
    return f"{known[base]:.1f} → {known[name]:.1f} % accuracy"


def _trained(table: pd.DataFrame, base: str, name: str) -> str:
    """Of networks that are trained on a page whose attacks are on another."""
    return f"{table['model'].iloc[0]}: {_accuracy(table, base, name, 'training')}"


def _switch(name: str, column: str = "", value: str = "psnr") -> Callable[[Tables], str]:
    """What a switch of the attack changes.

    Args:
        column: of the attacked networks; its two values are named first.
        value: "gain" where the two attacks have targets of their own.
    """
    base = switches.PAIRS[name]

    def words(tables: Tables) -> str:
        attacks = tables["attacks"]
        _there(attacks["setting"], base, name)
        first, turned = (attacks[attacks["setting"] == setting].iloc[0] for setting in (base, name))
        text = f"{first[column]} → {turned[column]}: " if column else ""
        text += ("gain " if value == "gain" else "") + _change(attacks, name, base, value=value)
        usual = attacks.iloc[0]
        here = [turned["dataset"], turned["model"]]
        if here == [usual["dataset"], usual["model"]]:
            return text
        return f"{text} on {', '.join(here)}, n = {attacks[attacks['setting'] == name]['image'].nunique()}"

    return words


def _order(name: str) -> Callable[[Tables], str]:
    def words(tables: Tables) -> str:
        orders = switches.orders(tables["scores"])
        _there(orders.index, name)
        row = orders.loc[name]
        return (
            f"rank correlation of both orders {row['rank correlation']:.2f} over {row['policies']:.0f} policies, "
            f"{row['shared']:.0f} of the first {row['best']:.0f} shared"
        )

    return words


def _presets(*pairs: tuple[str, str]) -> Callable[[Tables], str]:
    """Undefended PSNR with the second preset of each pair minus that with the first."""

    def words(tables: Tables) -> str:
        bare = tables["attacks"][tables["attacks"]["policy"] == NO_POLICY]
        return "; ".join(f"{a} → {b}: {_change(bare, b, a, 'attack')}" for a, b in pairs)

    return words


def _members(tables: Tables) -> str:
    names = ("first member", "second member")
    return "; ".join(f"{name} only: {_switch(name, value='gain')(tables)}" for name in names)


def _where_it_acts(tables: Tables) -> str:
    attacks = tables["attacks"]
    names = attacks[attacks["applied"] == "code"]["defense"].unique()
    if not len(names):  # untrained networks: a defense of the training alone does nothing
        changes = (f"{name} {_change(attacks, name, NO_POLICY, 'defense')}" for name in DEFENSES)
        return f"on the shared gradient, against none: {'; '.join(changes)}"
    rows = attacks[attacks["defense"].isin(names)].groupby("defense", sort=False)
    return "on the shared gradient, against in training only: " + "; ".join(
        f"{name} {_change(part, 'fixed', 'code', 'applied')}" for name, part in rows
    )


def _correlations(tables: Tables) -> str:
    means = tables["policies"].groupby("policy").mean(numeric_only=True)
    r = {
        c.removeprefix("s_pri "): means[c].corr(means["psnr"])
        for c in means
        if c.startswith("s_pri")
    }
    words = ", ".join(f"{value:.2f} ({name})" for name, value in r.items())
    return f"r over {len(means)} policies by the network that the score is computed on: {words}"


def _threshold(tables: Tables) -> str:
    code = tables["scores"]["s_acc code"]
    share = switches.rejected(tables["scores"])
    return f"−85 rejects {share:.0%} of {len(code)} policies, which score {code.min():.0f} to {code.max():.0f}"


def _first_network(attacks: pd.DataFrame) -> pd.DataFrame:
    """Rows of the first network and draw, where a table has several."""
    first = attacks.iloc[0]
    for column in ("regime", "model", "draw"):
        attacks = attacks[attacks[column] == first[column]] if column in attacks else attacks
    return attacks


def _against_the_original(tables: Tables) -> str:
    attacks = _first_network(tables["first"])
    change = attacks.assign(change=attacks["psnr_original"] - attacks["psnr"]).groupby(
        "policy", sort=False
    )["change"]
    return "mean change: " + ", ".join(
        f"{policy} {mean:+.1f} dB" for policy, mean in change.mean().items()
    )


def _first_six(tables: Tables) -> str:
    attacks = _first_network(tables["first"])
    few = attacks[attacks["image"] < 6].groupby("policy")["psnr"].mean()
    every = attacks.groupby("policy", sort=False)["psnr"].mean()
    return "images 0 to 5 against all: " + ", ".join(
        f"{p} {few[p] - mean:+.1f} dB" for p, mean in every.items()
    )


def _another_training(tables: Tables) -> str:
    table = tables["others"][tables["others"]["over"] == "networks"]
    first, other, *_ = table["setting"].unique()  # the second has other weights, trained or not
    return f"another seed of weights and training: {_change(table, other, first)}"


def _seeds(tables: Tables) -> str:
    table = tables["others"][tables["others"]["over"].str.startswith("seeds")]
    means = (
        table.groupby(["over", "setting"], sort=False)["psnr"].mean().groupby("over", sort=False)
    )
    said = ", ".join(
        f"{over.removeprefix('seeds, ')} {m.min():.1f} to {m.max():.1f} dB" for over, m in means
    )
    return f"mean PSNR of the same network and images, {table['setting'].nunique()} seeds: {said}"


def _diverged(tables: Tables) -> str:
    psnr = tables["attacks"]["psnr"]
    return f"{int((~np.isfinite(psnr)).sum())} of {len(psnr)} attacks diverged"


# Name in the page → the page that measured it, and how its tables are put into words.
EFFECTS: dict[str, tuple[str, Callable[[Tables], str]]] = {
    "normalization": ("switches", _switch("other normalization")),
    "convnet": ("switches", _switch("9 convolutions", "model")),
    "size": ("switches", _switch("32 pixels", "dataset", "gain")),
    "label": ("switches", _switch("optimized label")),
    "mode": (
        "switches",
        lambda t: (
            f"client and attacker in train mode {_switch('train-mode victim')(t)}; attacker without "
            f"the client's statistics {_switch('unknown statistics')(t)}"
        ),
    ),
    "pruning": ("switches", _switch("pruned globally")),
    "restarts": ("switches", _switch("4 restarts")),
    "hybrid-draw": ("switches", _members),
    "gradsim": ("switches", _order("GradSim by tensor")),
    "ranking": ("switches", _order("variance in the ranking")),
    "sign": ("switches", _order("sign of S_acc")),
    "one-per-label": ("switches", _order("first image of each label")),
    "threshold": ("switches", _threshold),
    "crop-training": ("ext4_hidden_details", lambda t: _trained(t["accuracy"], "without", "with")),
    "factor-training": (
        "ext4_hidden_details",
        lambda t: _trained(t["accuracy"], "with", "with, loss factor 0.5"),
    ),
    "crop-target": (
        "ext4_hidden_details",
        lambda t: (
            f"{_change(t['attacks'], 'crop and flip', 'plain victim')}, "
            f"gain {_change(t['attacks'], 'crop and flip', 'plain victim', value='gain')}"
        ),
    ),
    "factor-attack": (
        "ext4_hidden_details",
        lambda t: (
            f"cosine {_change(t['attacks'], 'cosine, factor 0.5', 'crop and flip')}; "
            f"squared distance {_change(t['attacks'], 'l2, factor 0.5', 'l2')}"
        ),
    ),
    "lbfgs": (
        "claim2_generality",
        _presets(("lbfgs-l2", "lbfgs-l2-fixed"), ("lbfgs-cosine", "lbfgs-cosine-fixed")),
    ),
    "sgd": ("claim2_generality", _presets(("sgd-cosine", "sgd-cosine-fixed"))),
    "signed": ("claim2_generality", _presets(("adam-cosine", "adam-cosine-tv"))),
    "diverged": ("claim2_generality", _diverged),
    "original": ("claim1_privacy", _against_the_original),
    "images": ("claim1_privacy", _first_six),
    "weights": ("ext3_which_images_leak", _another_training),
    "seeds": ("ext3_which_images_leak", _seeds),
    "where": ("claim1_defenses", _where_it_acts),
    "correlation": ("claim7_correlation", _correlations),
}


def effect(name: str, results: Path) -> str:
    """One effect in words, with data set, network, profile and a link; `UNKNOWN` where no stored
    table has it.
    """
    choose("effect", name, EFFECTS)
    page, words = EFFECTS[name]
    for folder, facts in stored(page, results):
        files = {file.name.removesuffix(TABLE): file for file in folder.glob(f"*{TABLE}")}
        tables = _Stored({name: pd.read_csv(file) for name, file in files.items()})
        where = f"{facts['dataset']}, {facts['model']}, n = {facts['images']}, {facts['profile']}"
        try:
            return f"{words(tables)} ([{where}](results/{page}.ipynb))"
        except _NotMeasured:  # by this profile; another may have
            continue
    return UNKNOWN


def insert_effects(path: Path, results: Path) -> None:
    """Write every effect between its marks in a Markdown file.

    Raises:
        AtsError: an unknown name, or an effect that the file does not mention.
    """
    text = path.read_text()
    named = {match["name"] for match in _MARK.finditer(text)}
    if missing := sorted(set(EFFECTS) - named):
        raise AtsError(f"{path} has no <!-- effect: … --> for {', '.join(missing)}")
    new = _MARK.sub(lambda m: f"{m[1]}{effect(m['name'], results)}{m[3]}", text)
    write_atomically(path, lambda partial: partial.write_text(new))
