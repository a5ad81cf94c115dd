"""The figures of the experiments on words: layers before and after finetuning, and sets of neurons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator

from whichlayers.analysis.frame_utils import each_group
from whichlayers.analysis.published import published_share, published_words
from whichlayers.plots.artists import Shown, line, look, with_trials
from whichlayers.plots.display_names import BY_LAYER, short_names, size_name, x_axis
from whichlayers.plots.facets import (
    Panel,
    PanelFigure,
    layer_ticks,
    legend_below,
    limit_y,
    make_panels,
    name_x,
)
from whichlayers.plots.published_overlay import DURRANI, IN_COLOUR, draw_beside
from whichlayers.plots.style import MARKERS, Theme

PRETRAINED = "pretrained"
PUBLISHED = f"published: {DURRANI}"
SETS = ("all neurons", "top", "random", "bottom")  # in the order of what they know
THEIRS = {
    ("neurons", "top"): "top",
    ("neurons", "bottom"): "bottom",
    ("neurons", "all neurons"): "accuracy all neurons",
    ("selectivity", "top"): "selectivity selected",
    ("selectivity", "all neurons"): "selectivity all",
}
LCA = "LCA"  # how the usual ranking, by a probe's weights, is called beside another
MOST_NAMES = 3  # on an x axis before they are set aslant
MOST_BARS = 3  # lines of a panel that all have bars: those of more merge into one block
FROM_ZERO = ("smallest_set", "selectivity", "description_length")  # whose panels share one y axis


def draw_words(points: pd.DataFrame, experiment: str, theme: Theme, overlay: bool = False) -> PanelFigure:
    if experiment in BY_LAYER:
        return _by_layer(points, experiment, theme)
    return _by_model(points, experiment, theme, overlay)


def whose(points: pd.DataFrame) -> pd.Series:
    """The model that was asked: "pretrained", or what it was finetuned on; with the size where there are several."""
    short = short_names(name for name in points["finetuned_on"] if name)
    named = points["finetuned_on"].map(lambda name: short[name] if name else PRETRAINED)
    sizes = points.groupby(["finetuned_on"])["train_size"].transform("nunique")
    return named.where(sizes == 1, named + ", " + points["train_size"].map(size_name))


def aspect(points: pd.DataFrame) -> pd.Series:
    """Which neurons: what stands behind the name of the model in a condition."""
    return points["condition"].str.partition(": ")[2]


def _by_layer(points: pd.DataFrame, experiment: str, theme: Theme) -> PanelFigure:
    """A line a model: before finetuning dark and broken, after finetuning a colour a task (Figures 1 to 4)."""
    which = aspect(points).str.partition(", ")  # "top 5%", and the ranking where it is not the usual one
    ranking = which[2].where(which[2] != "", LCA) if (which[2] != "").any() else which[2]
    points = points.assign(selected=which[0], variant=ranking, condition=whose(points))
    groups, always = ["model", "selected", "variant"], ["selected"] if (which[0] != "").any() else []
    figure, panels = make_panels(points.drop(columns="train_size"), groups, always=always)
    names = _in_order(points["condition"])
    looks = {name: _model_look(name, names, theme) for name in names}
    shown: Shown = {panel.task: [] for panel in panels}
    clear = all(panel.points["condition"].nunique() <= MOST_BARS for panel in panels)
    figure.trials_first = None if clear else False
    few = False
    for panel in panels:
        present = [name for name in names if (panel.points["condition"] == name).any()]
        for place, name in enumerate(present):
            rows, spot = panel.points[panel.points["condition"] == name], (place, len(present))
            bars = place == 0 or len(present) <= MOST_BARS
            few |= line(panel, rows, spot, looks[name], shown, single_trials=clear, bars=bars)
        layer_ticks(panel.axes, 0, panel.depth)
    limit_y(panels, shown)
    name_x(panels, x_axis(experiment))
    handles: list[Any] = [Line2D([], [], **looks[name]) for name in names]
    labels = [name if name == PRETRAINED else f"finetuned on {name}" for name in names]
    with_trials(handles, labels, few, theme)
    legend_below(figure, handles, labels)
    return figure


def _by_model(points: pd.DataFrame, experiment: str, theme: Theme, overlay: bool) -> PanelFigure:
    """A mark a set of neurons over the models, before finetuning first (Tables 1, 4, 5 and 7)."""
    sizes = points["share"].map(_percent)
    alone = points[sizes != ""].groupby("task")["share"].nunique().max() == 1  # one size of sets a corpus
    points = points.assign(
        model_name=whose(points),
        kept=_set_names(points, experiment, with_size=not alone),
        setting=_set_of(points),
        size=points["task"].map(sizes[sizes != ""].groupby(points["task"]).first()).fillna(""),
    )
    models, sets = _in_order(points["model_name"]), _sets_in_order(points)
    points["x"] = points["model_name"].map({name: float(i) for i, name in enumerate(models)})
    points["condition"] = points["kept"]
    points["size"] = points["size"].map(
        lambda size: f"sets of {size} of the neurons" if alone and size else ""
    )
    drawn = points.drop(columns=["setting", "kept", "train_size"])
    figure, panels = make_panels(drawn, ["model"], told="size")
    figure.together = experiment in FROM_ZERO
    looks = {name: _set_look(points[points["kept"] == name], points, theme) for name in sets}
    shown: Shown = {panel.task: [] for panel in panels}
    few, beside = False, False
    for panel in panels:
        present = [name for name in sets if (panel.points["condition"] == name).any()]
        for place, name in enumerate(present):
            rows = panel.points[panel.points["condition"] == name]
            few |= line(
                panel, rows, (place, len(present)), looks[name], shown, single_trials=len(present) <= 2
            )
            which = str(points.loc[rows.index, "setting"].iloc[0])
            spot = (place, len(present))
            beside |= _published(panel, rows, which, looks[name], experiment, shown, overlay, spot)
        name_models(panel, models)
    limit_y(panels, shown, figure.together)
    name_x(panels, "model" if models == [PRETRAINED] else x_axis(experiment))
    handles: list[Any] = [Line2D([], [], **looks[name]) for name in sets]
    labels = list(sets)
    with_trials(handles, labels, few, theme)
    if beside and overlay:
        handles.append(Line2D([], [], color=theme.muted, **_published_look()))
        labels.append(f"{PUBLISHED}\n({IN_COLOUR.replace('curve', 'set')})")
    legend_below(figure, handles, labels)
    return figure


def _published(
    panel: Panel,
    rows: pd.DataFrame,
    which: str,
    ours: dict[str, Any],
    experiment: str,
    shown: Shown,
    overlay: bool,
    place: tuple[int, int],
) -> bool:
    """Crosses where the paper has a number for this family, property and task, each at the place of its set."""
    if rows["ranking"].iloc[0] == "probeless":  # theirs are ranked by a probe's weights
        return False
    key = THEIRS.get((experiment, which))
    found = []
    for (x, family, task, name, share), _ in each_group(
        rows, ["x", "family", "task", "finetuned_on", "share"]
    ):
        value = published_words(str(family), str(task), str(name)).get(key or "")
        if value is not None and (pd.isna(share) or share == published_share(str(task))):
            found.append((x, value))
    if not found:
        return False
    table = pd.DataFrame(found, columns=["x", "mean"])
    drawn = {"color": ours["color"], **_published_look()}
    draw_beside(panel, rows, table, DURRANI, drawn, shown, overlay, place)
    return True


def _published_look() -> dict[str, Any]:
    return {"marker": "x", "linestyle": "", "markersize": 5.5, "markeredgewidth": 1.3}


def _model_look(name: str, names: Sequence[str], theme: Theme) -> dict[str, Any]:
    if name == PRETRAINED:
        return look(theme, theme.ink, 1, "D")
    place = [n for n in names if n != PRETRAINED].index(name)
    return look(theme, theme.conditions[place % len(theme.conditions)], 0, MARKERS[place % len(MARKERS)])


def _set_look(rows: pd.DataFrame, points: pd.DataFrame, theme: Theme) -> dict[str, Any]:
    """A colour a kind of set; filled for the smallest share by a probe's weights, open with markers of their own
    for larger ones and other rankings. No line: models have no order."""
    first = rows.iloc[0]
    if first["experiment"] == "smallest_set":
        place = sorted(set(points["ranking"])).index(first["ranking"])
        return look(theme, theme.conditions[place], 0, MARKERS[place]) | {"linestyle": ""}
    kind = SETS.index(first["setting"]) if first["setting"] in SETS else 0
    alike = points.loc[points["setting"] == first["setting"], ["ranking", "kept", "share"]].drop_duplicates(
        "kept"
    )
    alike = alike.sort_values(["ranking", "share"], key=lambda c: c if c.name == "share" else c != "lca")
    variant = list(alike["kept"]).index(first["kept"])
    marker = MARKERS[(kind + max(0, variant - 1)) % len(MARKERS)]
    drawn = look(theme, theme.ink if kind == 0 else theme.conditions[kind - 1], variant, marker)
    return drawn | {"linestyle": ""}


def name_models(panel: Panel, names: Sequence[str]) -> None:
    axes = panel.axes
    axes.xaxis.set_major_locator(FixedLocator(list(range(len(names)))))
    axes.xaxis.set_major_formatter(FixedFormatter(list(names)))
    axes.set_xlim(-0.5, len(names) - 0.5)
    if len(names) > MOST_NAMES:
        axes.tick_params(axis="x", labelrotation=35)
        for text in axes.get_xticklabels():
            text.set_horizontalalignment("right")
            text.set_rotation_mode("anchor")


def _in_order(names: pd.Series) -> list[str]:
    """Before finetuning first, then in the order of the study."""
    found = list(dict.fromkeys(names))
    return sorted(found, key=lambda name: name != PRETRAINED)


def _set_of(points: pd.DataFrame) -> pd.Series:
    return aspect(points).str.partition(",")[0]


def _set_names(points: pd.DataFrame, experiment: str, with_size: bool) -> pd.Series:
    """top 5%, bottom 5%, top 5%, probeless ...; of the smallest sets the ranking"""
    which = aspect(points)
    if experiment == "smallest_set":
        return which.where(which != "", LCA)
    if not with_size:
        return which
    sizes = points["share"].map(_percent)
    parts = which.str.partition(", ")
    return parts[0] + sizes.where(sizes == "", " " + sizes) + parts[1] + parts[2]


def _percent(share: float) -> str:
    return "" if pd.isna(share) else f"{100 * share:.6g}%"


def _sets_in_order(points: pd.DataFrame) -> list[str]:
    found = points.drop_duplicates("kept")
    order = {name: i for i, name in enumerate(SETS)}
    rows = zip(found["kept"], found["setting"], found["share"].fillna(1.0), found["ranking"], strict=True)
    return [
        kept for kept, *_ in sorted(rows, key=lambda row: (row[3] != "lca", order.get(row[1], 9), -row[2]))
    ]
