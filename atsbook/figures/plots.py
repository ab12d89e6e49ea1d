"""Figures from tables and image batches; no file access, one style."""

import contextlib
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import HTML
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from torch import Tensor

from atsbook.figures.svg import as_svg
from atsbook.findings.defenses import OF_THE_PAPER, called, strength
from atsbook.findings.result import NO_POLICY

# Okabe & Ito's colours: told apart by colour-blind readers and on grey paper.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
# What stands beside policies takes none of their colours: indigo, olive, wine, grey.
OTHERS = ("#332288", "#999933", "#882255", "#777777")
# A policy has one colour in the whole book: no policy vermilion, the paper's hybrid blue, what a
# page only compares with grey.
OF_POLICY = {
    NO_POLICY: COLORS[1],
    "no policy": COLORS[1],
    "no defense": COLORS[1],
    "3-1-7+43-18-18": COLORS[0],
    "hybrid": COLORS[0],
    "the hybrid": COLORS[0],
    "the paper's hybrid": COLORS[0],
    "the paper's policy": COLORS[0],
    "3-1-7": COLORS[2],
    "43-18-18": COLORS[3],
    "19-1-18": COLORS[5],
    "3-19-26+15-42-15": COLORS[4],
    "found by the search": COLORS[4],
    "drawn at random": "0.6",
    "another": "0.6",
}
# What legends call them: the texts of policies say nothing to who has not seen them
IN_WORDS = OF_THE_PAPER | {
    "3-1-7+43-18-18": "the paper's policy",
    NO_POLICY: "no policy",
    "19-1-18": "random policy 19-1-18",
    "3-19-26+15-42-15": "found by the search",
}
STYLE = {"figure.dpi": 110, "figure.facecolor": "white", "grid.alpha": 0.25, "font.size": 10}
STYLE |= {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True}


@contextlib.contextmanager
def _styled() -> Iterator[None]:
    # Load the backend first: a notebook's becomes interactive when loaded, and leaving the context
    # would undo that, so that only the first figure of a page would show.
    plt.draw_if_interactive()
    with plt.rc_context(STYLE):
        yield


def _picture(image: Tensor) -> np.ndarray:
    """(C, H, W), uint8 or float in [0, 1] units → (H, W[, 3]) as matplotlib takes it."""
    array = image.detach().cpu().numpy()
    array = array / 255 if array.dtype == np.uint8 else array.clip(0, 1)
    return array[0] if len(array) == 1 else array.transpose(1, 2, 0)


def colors_of(names: Iterable[object]) -> dict[object, str]:
    """A colour for each: policies have theirs everywhere, and what is no policy never that of none or
    of the paper's.
    """
    names = list(dict.fromkeys(names))
    own = {name: OF_POLICY[name] for name in names if name in OF_POLICY}
    rest = [name for name in names if name not in own]
    free = OTHERS if own else (*OTHERS, *COLORS[2:])
    return own | dict(zip(rest, itertools.cycle(free), strict=False))


def in_words(name: object) -> object:
    """What a legend calls a policy; of all else the name that it has."""
    return IN_WORDS.get(name, name)


def _arms(rows: pd.DataFrame) -> np.ndarray:
    return abs(rows[["low", "high"]].to_numpy() - rows[["mean"]].to_numpy()).T


def sheet(rows: dict[str, Tensor], *, captions: dict[str, Sequence[str]] | None = None) -> Figure:
    """A grid of images: one labelled row per batch (B, C, H, W), one column per image, optional
    captions.
    """
    captions = captions or {}
    columns = max(len(batch) for batch in rows.values())
    side = min(
        0.85, max(0.5, 6 / columns)
    )  # inches; a page is about 7.5 wide, and shrinks what is wider, text and all
    width = side * columns + 1.5
    with _styled():
        figure, axes = plt.subplots(
            len(rows), columns, figsize=(width, (side + 0.15) * len(rows)), squeeze=False
        )
        for line, (name, batch) in zip(axes, rows.items(), strict=True):
            for i, axis in enumerate(line):
                axis.set_axis_off()
                if i < len(batch):
                    axis.imshow(
                        _picture(batch[i]), cmap="gray", vmin=0, vmax=1, interpolation="nearest"
                    )
                if name in captions:  # below the picture that it is about
                    place = {"ha": "center", "va": "top", "transform": axis.transAxes}
                    axis.text(0.5, -0.02, captions[name][i], fontsize=9, **place)
            words = textwrap.fill(name, 18)  # what fits beside the pictures
            line[0].text(
                -0.12, 0.5, words, transform=line[0].transAxes, ha="right", va="center", fontsize=9
            )
        bottom = 0.06 if captions else 0.02
        figure.subplots_adjust(left=1.4 / width, right=0.99, top=0.98, bottom=bottom, wspace=0.06)
    return figure


def side_by_side(rows: Mapping[str, Sequence[Tensor]], columns: Sequence[str]) -> HTML:
    """Images of single photographs, one labelled row an experiment, one column a step of it.

    Args:
        rows: by what to call each, images (C, H, W) or (1, C, H, W), uint8 or floats in [0, 1].
        columns: what each image of a row is.
    """
    side = 0.7  # inches
    width = side * len(columns) + 1.5
    with _styled():
        figure, axes = plt.subplots(
            len(rows), len(columns), figsize=(width, (side + 0.1) * len(rows) + 0.3), squeeze=False
        )
        for line, (name, images) in zip(axes, rows.items(), strict=True):
            for axis, image in zip(line, images, strict=True):
                axis.set_axis_off()
                picture = _picture(image.reshape(image.shape[-3:]))
                axis.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            place = {"ha": "right", "va": "center", "transform": line[0].transAxes}
            line[0].text(-0.12, 0.5, textwrap.fill(name, 18), fontsize=9, **place)
        for axis, name in zip(axes[0], columns, strict=True):
            axis.set_title(name, fontsize=9)
        figure.subplots_adjust(left=1.4 / width, right=0.99, top=0.85, bottom=0.02, wspace=0.08)
    plt.close(figure)  # which the end of the cell would show once more
    return HTML(as_svg(figure))


def recovered(
    attacks: Mapping[str, Mapping[str, Tensor]], found: Mapping[str, Sequence[bool]], count: int = 4
) -> Figure:
    """Photographs; below each, for every attack, what the client used and what the server
    recovered, with a tick where that singles out the photograph.

    Args:
        attacks: by what to call it, such as `no policy`: `original`, `target` and `reconstruction`,
            (B, C, H, W), of the same photographs.
        found: by the same names, for each photograph.
        count: of the photographs, the first.
    """
    few = slice(0, count)
    rows = {"photograph": next(iter(attacks.values()))["original"][few]}
    captions = {}
    for name, values in attacks.items():
        rows[f"used, {name}"] = values["target"][few]
        rows[f"recovered, {name}"] = values["reconstruction"][few]
        captions[f"recovered, {name}"] = ["✓" if each else "–" for each in list(found[name])[few]]
    return sheet(rows, captions=captions)


def curves(
    table: pd.DataFrame, x: str, y: str, group: str, *, ylabel: str, panel: str = ""
) -> Figure:
    """Mean of `y` against `x` by group, with a band of ± one standard deviation over images; panels
    by `panel`.
    """
    parts = dict(list(table.groupby(panel, sort=False))) if panel else {"": table}
    colors = colors_of(table[group])
    with _styled():
        figure, (axes,) = plt.subplots(
            1, len(parts), sharey=True, squeeze=False, layout="constrained"
        )
        figure.set_size_inches(7.2, 3.4)  # what is wider is shrunk in the page, text and all
        for axis, (title, part) in zip(axes, parts.items(), strict=True):
            for name, rows in part.groupby(group, sort=False):
                color = colors[name]
                mean, sd = (rows.groupby(x)[y].agg(how) for how in ("mean", "std"))
                axis.plot(mean, color=color, label=in_words(name))
                axis.fill_between(mean.index, mean - sd, mean + sd, color=color, alpha=0.15, lw=0)
            axis.set(xlabel=x, ylabel="" if axis is not axes[0] else ylabel)
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.set_title(title, fontsize=10)
        # Above the panels, where it covers no line
        above = {"loc": "outside upper left", "ncols": 4, "frameon": False, "fontsize": 9}
        figure.legend(*axis.get_legend_handles_labels(), **above)
    return figure


def leakage(
    table: pd.DataFrame,
    group: str,
    floors: Sequence[str],
    *,
    value: str = "psnr",
    epsilon: float | None = None,
) -> Figure:
    """Every image's value by group, the mean, and beside it those of the floors, best guesses
    without the gradient.
    """
    with _styled():
        figure, axis = plt.subplots(figsize=(7.5, 3.8))
        names = list(dict.fromkeys(table[group]))
        for i, name in enumerate(names):
            rows = table[table[group] == name]
            for j, column in enumerate((value, *floors)):
                at = i + 0.24 * (j - len(floors) / 2)
                spread = at + 0.07 * np.linspace(-1, 1, len(rows))
                label = (
                    {value: "attack"}.get(column, column.replace("floor_", "floor: "))
                    if i == 0
                    else None
                )
                axis.scatter(
                    spread, rows[column], s=9, color=COLORS[j], alpha=0.7, label=label, lw=0
                )
                axis.hlines(rows[column].mean(), at - 0.09, at + 0.09, color=COLORS[j], lw=2)
        if epsilon is not None:
            axis.axhline(epsilon, color="0.3", lw=1, ls="--", label=f"ε = {epsilon:g} dB")
        slanted = (
            {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if len(names) > 10 else {}
        )
        axis.set_xticks(range(len(names)), names, **slanted)
        axis.set(ylabel="PSNR (dB), higher is a closer match", xlabel=group)
        axis.legend(
            frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.14)
        )
        figure.tight_layout()
    return figure


def means(
    table: pd.DataFrame, name: str, group: str, *, ylabel: str, groups: Sequence[str] = ()
) -> Figure:
    """`mean` with its `low` and `high`, one place per value of `name`, colours by `group` in the
    order of `groups`.
    """
    with _styled():
        figure, axis = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
        places = {value: i for i, value in enumerate(dict.fromkeys(table[name]))}
        colors = colors_of(groups or table[group])
        for j, (kind, rows) in enumerate(table.groupby(group, sort=False)):
            aside = j - (table[group].nunique() - 1) / 2 if table[name].duplicated().any() else 0
            at = rows[name].map(places) + 0.14 * aside
            axis.errorbar(
                at,
                rows["mean"],
                _arms(rows),
                fmt="o",
                ms=5,
                lw=1.5,
                color=colors[kind],
                label=in_words(kind),
            )
        axis.axhline(0, color="0.3", lw=0.8, ls="--")
        axis.set(ylabel=ylabel, xticks=range(len(places)))
        room = int(88 / len(places))  # letters below one place
        longest = max(len(word) for place in places for word in str(place).split())
        slanted = {}
        words = [textwrap.fill(str(place), room) for place in places]
        if longest > room:
            slanted = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
            words = list(places)
        axis.set_xticklabels(words, fontsize=9, **slanted)
        axis.legend(
            frameon=False, fontsize=8, ncols=3, loc="lower left", bbox_to_anchor=(0, 1)
        )  # covers no dot
    return figure


def trends(
    table: pd.DataFrame,
    x: str,
    group: str,
    panel: str,
    *,
    xlabel: str,
    ylabel: str = "",
    groups: Sequence[str] = (),
    nothing: float | None = 0.0,
) -> Figure:
    """`mean` with `low` and `high` along `x`, by powers of ten and 0 if it is there; colors in
    order of `groups`. A dashed line is at `nothing`, what is there without any effect.
    """
    with _styled():
        names = table[panel].unique()
        colors = colors_of(groups or table[group])
        across = 3 if len(names) == 3 else min(2, len(names))
        down = -(-len(names) // across)
        wide = 2.8 if across == 3 else 4
        figure, axes = plt.subplots(
            down, across, figsize=(wide * across, 3 * down), squeeze=False, layout="constrained"
        )
        for axis in axes.flat[len(names) :]:
            axis.set_axis_off()
        for axis, name in zip(axes.flat, names, strict=False):
            for kind, rows in table[table[panel] == name].groupby(group, sort=False):
                axis.plot(
                    rows[x],
                    rows["mean"],
                    color=colors[kind],
                    marker="o",
                    ms=4,
                    label=in_words(kind),
                )
                axis.fill_between(
                    rows[x], rows["low"], rows["high"], color=colors[kind], alpha=0.18, lw=0
                )
            if nothing is not None:
                axis.axhline(nothing, color="0.3", lw=0.8, ls="--")
            if (table[x] == 0).any():
                axis.set_xscale("symlog", linthresh=1)
                axis.set_xlim(-0.4, 1.6 * table[x].max())  # the last marker is whole
                if across == 3:  # where the numbers of every power would run into each other
                    ticks = [0, *(10**power for power in (1, 3) if 10**power <= table[x].max())]
                    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
            else:
                axis.set_xscale("log")
                ticks = sorted(table[table[panel] == name][x].unique())
                if across == 3 and len(ticks) > 5:  # every other one, and the last
                    ticks = ticks[::-2][::-1]
                axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8, rotation=45)
                axis.set_xticks([], minor=True)
            axis.set(xlabel=xlabel)
            axis.set_title(name, fontsize=10)
        for line in axes:
            line[0].set_ylabel(ylabel)
        # Above the panels, where it covers no line
        named = {}
        for axis in axes.flat:
            handles, labels = axis.get_legend_handles_labels()
            named |= dict(zip(labels, handles, strict=True))
        above = {"loc": "outside upper left", "ncols": 4, "frameon": False, "fontsize": 9}
        figure.legend(named.values(), named.keys(), **above)
    return figure


def paired_lines(panels: dict[str, pd.DataFrame], *, ylabel: str) -> Figure:
    """One panel per table, one line per row from its first column to its second, and the means as a
    bold line.
    """
    with _styled():
        across = min(3, len(panels))
        down = -(-len(panels) // 3)
        axis = None
        figure = plt.figure(figsize=(3 * across, 3.4 * down), layout="constrained")
        for place, (title, table) in enumerate(panels.items(), 1):
            axis = figure.add_subplot(down, across, place, sharey=axis)
            falls = table.iloc[:, 1] < table.iloc[:, 0]
            for mask, color in ((falls, COLORS[0]), (~falls, COLORS[1])):
                axis.plot([0, 1], table[mask].to_numpy().T, color=color, lw=0.8, alpha=0.35)
            axis.plot([0, 1], table.mean(), color="black", lw=2.5, marker="o")
            axis.axhline(0, color="0.3", lw=1, ls="--")
            names = [str(name).replace("+", "+\n") for name in table.columns]
            axis.set(xticks=(0, 1), xticklabels=names, xlim=(-0.25, 1.25))
            axis.set_title(f"{title}\n{falls.mean():.0%} of {len(table)} images fall", fontsize=9)
        figure.supylabel(ylabel, fontsize=10)
    return figure


def shares(table: pd.DataFrame, panel: str, group: str, outcome: str, *, chance: float) -> Figure:
    """Shares with their intervals, one panel per value of `panel`, one bar per group and outcome,
    and chance a line.

    Args:
        table: with those columns and `share`, `low` and `high`, in 0 to 1.
    """
    with _styled():
        names = list(dict.fromkeys(table[panel]))
        figure, axes = plt.subplots(
            1, len(names), figsize=(3.1 * len(names) + 0.6, 3.4), sharey=True, squeeze=False
        )
        outcomes = list(dict.fromkeys(table[outcome]))
        for axis, name in zip(axes[0], names, strict=True):
            rows = table[table[panel] == name]
            groups = list(dict.fromkeys(rows[group]))
            for j, (kind, color) in enumerate(zip(outcomes, COLORS[2:], strict=False)):
                own = rows[rows[outcome] == kind].set_index(group).reindex(groups)
                at = np.arange(len(groups)) + 0.8 * (j + 0.5) / len(outcomes) - 0.4
                spread = np.clip([own["share"] - own["low"], own["high"] - own["share"]], 0, None)
                axis.bar(
                    at,
                    own["share"],
                    0.8 / len(outcomes),
                    color=color,
                    label=kind,
                    yerr=spread,
                    ecolor="0.3",
                )
            axis.axhline(chance, color="black", lw=1, ls="--", label=f"chance, {chance:.0%}")
            axis.set_xticks(range(len(groups)), [g.replace("+", "+\n") for g in groups], fontsize=9)
            axis.set_title(name, fontsize=9)
            axis.set_ylim(0, 1.05)
        axes[0][0].set_ylabel("share of images identified among 100")
        figure.legend(
            *axes[0][0].get_legend_handles_labels(),
            frameon=False,
            fontsize=8,
            ncols=3,
            loc="upper center",
        )
        figure.tight_layout(rect=(0, 0, 1, 0.93))
    return figure


def ranking(table: pd.DataFrame, *, value: str = "s_pri", reference: float | None = None) -> Figure:
    """Scores as dots with their intervals, lowest on the left; ids of one function share a mark
    below the axis.

    Args:
        table: one row per id in order, with `value`, `low`, `high` and `same as` (text, empty for a
            unique function).
        reference: a line at the score of doing nothing.
    """
    with _styled():
        figure, axis = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
        at = np.arange(len(table))
        repeated = (table["same as"] != "").to_numpy()
        for mask, color, text in (
            (~repeated, COLORS[0], "one id"),
            (repeated, COLORS[1], "one function, several ids"),
        ):
            rows = table[mask]
            spread = (rows[value] - rows["low"], rows["high"] - rows[value])
            axis.errorbar(
                at[mask], rows[value], spread, fmt="o", ms=4, lw=1, color=color, label=text
            )
        if reference is not None:
            axis.axhline(reference, color="0.3", lw=1, ls="--", label="doing nothing")
        axis.set_xticks(at, table.index, fontsize=7, rotation=90)
        axis.set(
            xlabel="transformation, by id",
            ylabel="privacy score, lower is more private",
            xlim=(-1, len(at)),
        )
        axis.legend(frameon=False, fontsize=8)
    return figure


def front(table: pd.DataFrame, *, labels: int = 10) -> Figure:
    """Privacy against accuracy score of the candidates, the chosen ones with their rank, the Pareto
    front a line.
    """
    with _styled():
        figure, axis = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
        rest = table[~table["chosen"]]
        best = table[table["chosen"]].head(labels)
        edge = table[table["pareto"]].sort_values("s_pri")
        axis.scatter(rest["s_pri"], rest["s_acc"], s=12, color="0.6", lw=0, label="candidates")
        axis.plot(
            edge["s_pri"],
            edge["s_acc"],
            color=COLORS[2],
            lw=1,
            drawstyle="steps-post",
            label="Pareto front",
        )
        axis.scatter(
            best["s_pri"], best["s_acc"], s=26, color=COLORS[1], lw=0, label="chosen, by rank"
        )
        axis.set(
            xlabel="privacy score, lower is more private", ylabel="accuracy score, higher is better"
        )
        axis.margins(x=0.12)
        axis.legend(frameon=False, fontsize=8)
        places = enumerate(best[["s_pri", "s_acc"]].to_numpy(), 1)
        figure.draw_without_rendering()  # the names find their places where all else has its own
        figure.set_layout_engine("none")
        _name(axis, [(str(rank), at, "black") for rank, at in places])
    return figure


def scatter(
    x: pd.Series,
    y: pd.Series,
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    color: pd.Series | None = None,
    scale: bool = True,
    axis: Axes | None = None,
) -> Figure:
    """Points with the least-squares line; a `color` Series shades them, and its name labels the
    `scale`, if shown.
    """
    with _styled():
        axis = axis or plt.subplots(figsize=(5, 3.6), layout="constrained")[1]
        shade = {"color": COLORS[0]} if color is None else {"c": color, "cmap": "cividis"}
        points = axis.scatter(x, y, s=18, lw=0, **shade)
        ends = np.array([x.min(), x.max()])
        axis.plot(ends, np.polyval(np.polyfit(x, y, 1), ends), color="0.5", lw=1.2)
        axis.set(xlabel=xlabel, ylabel=ylabel, title=title)
        axis.locator_params(axis="x", nbins=5)  # more numbers would run into each other
        if color is not None and scale:
            axis.figure.colorbar(points, ax=axis, label=color.name)
    return axis.figure


def _name(
    axis: Axes, points: Sequence[tuple[str, np.ndarray, str]], marks: np.ndarray | None = None
) -> None:
    """Write the name of each point near it, where it covers no other name and no point, and as
    little as can be of what else is drawn.

    Args:
        points: name, place in data units, and colour of each.
        marks: places in data units, (n, 2), along lines that names should leave free.
    """
    # In points (1/72 inch), nearest first: at the corners, above, below, right, left, then the same
    # further off.
    around = [
        (dx * near, dy * near, ha, va)
        for near in (6, 14, 24, 36, 50, 66, 84, 104)
        for dx, dy, ha, va in (
            (0.7, 0.7, "left", "bottom"),
            (-0.7, 0.7, "right", "bottom"),
            (0.7, -0.7, "left", "top"),
            (-0.7, -0.7, "right", "top"),
            (0, 1, "center", "bottom"),
            (0, -1, "center", "top"),
            (1, 0, "left", "center"),
            (-1, 0, "right", "center"),
        )
    ]
    before = {"left": 0, "center": 0.5, "right": 1, "bottom": 0, "top": 1}  # of it lies before
    pixels = axis.figure.dpi / 72  # of a point
    dots = axis.transData.transform([at for _, at, _ in points])
    lines = np.empty((0, 2)) if marks is None else axis.transData.transform(marks)
    inside = axis.get_window_extent()
    taken = [legend.get_window_extent() for legend in filter(None, [axis.get_legend()])]
    for (words, at, color), dot in zip(points, dots, strict=True):
        text = axis.annotate(words, at, (0, 0), textcoords="offset points", fontsize=9)
        size = text.get_window_extent().size
        text.remove()
        best = (np.inf, None, None)
        for place in around:
            dx, dy, ha, va = place
            corner = dot + np.array([dx, dy]) * pixels - size * [before[ha], before[va]]
            box = Bbox.from_bounds(*corner, *size)
            out = not (inside.contains(*box.min) and inside.contains(*box.max))
            names = sum(box.overlaps(other) for other in taken)
            covered, crossed = (_within(box, places) for places in (dots, lines))
            cost = 1000 * (out + names) + 100 * covered + crossed + np.hypot(dx, dy) / 12
            best = min(best, (cost, place, box), key=lambda each: each[0])
        _, (dx, dy, ha, va), box = best
        far = max(abs(dx), abs(dy)) > 8
        to_point = {"arrowstyle": "-", "lw": 0.5, "color": color} if far else None
        style = {"ha": ha, "va": va, "fontsize": 9, "color": color, "arrowprops": to_point}
        axis.annotate(words, at, (dx, dy), textcoords="offset points", **style)
        taken.append(box)


def _within(box: Bbox, places: np.ndarray) -> int:
    """How many of these places, (n, 2), a box contains, its edges too."""
    return int(((box.min <= places) & (places <= box.max)).all(1).sum())


def exchange(
    table: pd.DataFrame, x: str, name: str, group: str, panel: str, *, xlabel: str
) -> Figure:
    """`mean` with `low` and `high` against `x`, points with their `name` in words; panels, colours,
    joined by `strength`.

    Policies that the book knows have their own colours, whatever their group. Rows that are
    `pareto`, where the table says so, are joined by a dashed line in each panel.
    """
    with _styled():
        panels = list(table.groupby(panel, sort=False))
        edge = table[table["pareto"]].sort_values(x) if "pareto" in table else table[:0]
        shape = {
            "figsize": (7.5, 4.1 * len(panels)),
            "squeeze": False,
            "sharex": True,
            "layout": "constrained",
        }
        figure, axes = plt.subplots(len(panels), **shape)
        named = []
        for axis, (outcome, part) in zip(axes[:, 0], panels, strict=True):
            words = []
            marks = []
            kinds = part[group].where(~part[name].isin(OF_POLICY), part[name])
            colors = colors_of(kinds)
            for kind, rows in part.groupby(kinds, sort=False):
                joined = rows["strength"].is_unique and len(rows) > 1
                axis.errorbar(
                    rows[x],
                    rows["mean"],
                    _arms(rows),
                    fmt="o-" if joined else "o",
                    color=colors[kind],
                    label="_" if kind in OF_POLICY else kind,  # a policy's name stands beside it
                    ms=5,
                    lw=0.8,
                )
                points = rows[[x, "mean"]].to_numpy()
                # Of what is joined the legend has the kind, so that the strength says all
                said = rows[name].map(strength if joined else called)
                if joined:
                    marks += list(np.linspace(points[:-1], points[1:], 40).reshape(-1, 2))
                words += [(each, at, colors[kind]) for each, at in zip(said, points, strict=True)]
                ends = zip(points[:, 0], rows["low"], rows["high"], strict=True)
                marks += [(at, y) for at, low, high in ends for y in np.linspace(low, high, 12)]
            axis.set(ylabel=outcome, xlabel=xlabel, xmargin=0.1, ymargin=0.25)
            axis.plot(edge[x], edge["mean"], color="0.6", lw=1, ls="--", zorder=0)
            axis.label_outer()
            named.append((axis, words, np.array(marks)))
        for axis in axes[: len(panels) if len(edge) else 1, 0]:
            if kinds := axis.get_legend_handles_labels()[1]:
                columns = 4 if max(map(len, kinds)) < 18 else 2  # as the figure has room for
                above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": columns}
                axis.legend(frameon=False, fontsize=9, **above)
        figure.draw_without_rendering()  # where everything lies is known from here on,
        figure.set_layout_engine("none")  # and stays there, whatever is written into it
        for axis, words, marks in named:
            _name(axis, words, marks)
    return figure


def bars(
    values: pd.Series, *, xlabel: str, ylabel: str, lines: dict[str, float] | None = None
) -> Figure:
    """One bar per value, with labelled horizontal lines."""
    with _styled():
        figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
        axis.bar([str(name) for name in values.index], values, color=COLORS[0], width=0.6)
        axis.axhline(0, color="0.3", lw=0.8)
        for color, (name, at) in zip(COLORS[1:], (lines or {}).items(), strict=False):
            axis.axhline(at, color=color, lw=1.4, ls="--", label=f"{name}: {at:.3f}")
        axis.set(xlabel=xlabel, ylabel=ylabel, xticks=range(0, len(values), 1 + len(values) // 20))
        if lines:
            axis.legend(
                frameon=False,
                fontsize=8,
                ncols=len(lines),
                loc="upper center",
                bbox_to_anchor=(0.5, 1.15),
            )
    return figure


def ladder(table: pd.DataFrame, *, xlabel: str) -> Figure:
    """One line per row, the first at the top: `mean` with `low` and `high`, named by `policy`,
    colored by `kind`.
    """
    with _styled():
        figure, axis = plt.subplots(figsize=(7, 0.22 * len(table) + 0.9), layout="constrained")
        order = {name: len(table) - 1 - i for i, name in enumerate(table["policy"])}
        colors = colors_of(table["kind"])
        for kind, rows in table.groupby("kind", sort=False):
            color = colors[kind]
            at = rows["policy"].map(order)
            axis.errorbar(
                rows["mean"],
                at,
                xerr=_arms(rows),
                fmt="o",
                ms=4,
                color=color,
                elinewidth=1,
                label=kind,
            )
        axis.set_yticks(list(order.values()), [in_words(name) for name in order], fontsize=8)
        axis.axvline(0, color="0.3", lw=0.8, ls="--")
        axis.set(xlabel=xlabel)
        if len(table) > 12:  # the numbers stand on the first screen of a page
            axis.xaxis.set_ticks_position("top")
            axis.xaxis.set_label_position("top")
            axis.spines["top"].set_visible(True)
            axis.spines["bottom"].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    return figure
