"""Figures of word-level probing: layers before and after finetuning, and sets of neurons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator

from whichlayers.analysis.published import published_neuron_fraction, published_word_probing
from whichlayers.experiments import display_of
from whichlayers.plots.artists import (
    DrawnValues,
    add_trial_legend,
    category_style,
    draw_line,
    line_style,
)
from whichlayers.plots.display_names import size_name
from whichlayers.plots.facets import (
    Panel,
    PanelFigure,
    add_legend_below,
    label_x_axis,
    make_panels,
    set_layer_ticks,
    set_y_limits,
)
from whichlayers.plots.published_overlay import COLOR_NOTE, DURRANI, draw_published_points
from whichlayers.plots.style import MARKERS, Theme
from whichlayers.results.frame_utils import each_group
from whichlayers.text import format_percent, short_names
from whichlayers.trial import PRETRAINED

PUBLISHED = f"published: {DURRANI}"
SET_ORDER = ("all neurons", "top", "random", "bottom")
# (experiment, set of neurons) -> key of `published_word_probing`
PUBLISHED_KEYS = {
    ("neurons", "top"): "top",
    ("neurons", "bottom"): "bottom",
    ("neurons", "all neurons"): "accuracy all neurons",
    ("selectivity", "top"): "selectivity selected",
    ("selectivity", "all neurons"): "selectivity all",
}
LCA = "LCA"  # display name of the default ranking (by the weights of a probe) if there are several
MAX_HORIZONTAL_NAMES = 3  # names on an x axis before they are rotated
MAX_CURVES_WITH_BARS = 3  # with more curves in a panel, only the first has error bars


def model_labels(points: pd.DataFrame) -> pd.Series:
    """Label of the probed model of each row: "pretrained", or the task it was finetuned on.

    The training size is added if there are several.
    """
    short = short_names(name for name in points["finetuned_on"] if name)
    named = points["finetuned_on"].map(lambda name: short[name] if name else PRETRAINED)
    sizes = points.groupby(["finetuned_on"])["train_size"].transform("nunique")
    return named.where(sizes == 1, named + ", " + points["train_size"].map(size_name))


def condition_detail(points: pd.DataFrame) -> pd.Series:
    """The part of each condition after the name of the model, which specifies the neurons."""
    return points["condition"].str.partition(": ")[2]


def draw_by_layer(points: pd.DataFrame, experiment: str, theme: Theme, overlay: bool = False) -> PanelFigure:
    """Draw one curve per model over the layers: dashed before finetuning, one color per task after it.

    Corresponds to Figures 1 to 4 of Durrani et al. 2021.
    """
    points = points[points["experiment"] == experiment]
    # "top 5%", and the ranking unless it is the default
    detail = condition_detail(points).str.partition(", ")
    ranking = detail[2].where(detail[2] != "", LCA) if (detail[2] != "").any() else detail[2]
    points = points.assign(selected=detail[0], variant=ranking, condition=model_labels(points))
    groups, always = ["model", "selected", "variant"], ["selected"] if (detail[0] != "").any() else []
    figure, panels = make_panels(points.drop(columns="train_size"), groups, always=always)
    names = _in_order(points["condition"])
    styles = {name: _model_style(name, names, theme) for name in names}
    drawn_values: DrawnValues = {panel.task: [] for panel in panels}
    uncluttered = all(panel.points["condition"].nunique() <= MAX_CURVES_WITH_BARS for panel in panels)
    figure.show_trials = None if uncluttered else False
    has_trials = False
    for panel in panels:
        present = [name for name in names if (panel.points["condition"] == name).any()]
        for index, name in enumerate(present):
            rows, place = panel.points[panel.points["condition"] == name], (index, len(present))
            bars = index == 0 or len(present) <= MAX_CURVES_WITH_BARS
            has_trials |= draw_line(
                panel, rows, place, styles[name], drawn_values, single_trials=uncluttered, bars=bars
            )
        set_layer_ticks(panel.axes, 0, panel.depth)
    set_y_limits(panels, drawn_values)
    label_x_axis(panels, display_of(experiment).x_label)
    handles: list[Any] = [Line2D([], [], **styles[name]) for name in names]
    labels = [name if name == PRETRAINED else f"finetuned on {name}" for name in names]
    add_trial_legend(handles, labels, has_trials, theme)
    add_legend_below(figure, handles, labels)
    return figure


def draw_by_model(points: pd.DataFrame, experiment: str, theme: Theme, overlay: bool = False) -> PanelFigure:
    """Draw one marker per set of neurons over the models, the pretrained one first.

    Corresponds to Tables 1, 4, 5 and 7 of Durrani et al. 2021.
    """
    points = points[points["experiment"] == experiment]
    display, sizes = display_of(experiment), points["share"].map(_percent)
    same_size = points[sizes != ""].groupby("task")["share"].nunique().max() == 1  # one set size per corpus
    points = points.assign(
        model_name=model_labels(points),
        set_name=_set_names(points, display.sets, with_size=not same_size),
        set_kind=_set_kind(points),
        size=points["task"].map(sizes[sizes != ""].groupby(points["task"]).first()).fillna(""),
    )
    models, sets = _in_order(points["model_name"]), _sets_in_order(points)
    points["x"] = points["model_name"].map({name: float(i) for i, name in enumerate(models)})
    points["condition"] = points["set_name"]
    points["size"] = points["size"].map(
        lambda size: f"sets of {size} of the neurons" if same_size and size else ""
    )
    drawn = points.drop(columns=["set_kind", "set_name", "train_size"])
    figure, panels = make_panels(drawn, ["model"], subtitle_column="size")
    figure.shared_y = display.shared_y
    styles = {
        name: _set_style(points[points["set_name"] == name], points, display.sets, theme) for name in sets
    }
    drawn_values: DrawnValues = {panel.task: [] for panel in panels}
    has_trials, has_published = False, False
    for panel in panels:
        present = [name for name in sets if (panel.points["condition"] == name).any()]
        for index, name in enumerate(present):
            rows, place = panel.points[panel.points["condition"] == name], (index, len(present))
            has_trials |= draw_line(
                panel, rows, place, styles[name], drawn_values, single_trials=len(present) <= 2
            )
            neuron_set = str(points.loc[rows.index, "set_kind"].iloc[0])
            has_published |= _draw_published(
                panel, rows, neuron_set, styles[name], experiment, drawn_values, overlay, place
            )
        set_model_ticks(panel, models)
    set_y_limits(panels, drawn_values, figure.shared_y)
    label_x_axis(panels, "model" if models == [PRETRAINED] else display.x_label)
    handles: list[Any] = [Line2D([], [], **styles[name]) for name in sets]
    labels = list(sets)
    add_trial_legend(handles, labels, has_trials, theme)
    if has_published and overlay:
        handles.append(Line2D([], [], color=theme.muted, **_published_style()))
        labels.append(f"{PUBLISHED}\n({COLOR_NOTE.replace('curve', 'set')})")
    add_legend_below(figure, handles, labels)
    return figure


def _draw_published(
    panel: Panel,
    rows: pd.DataFrame,
    neuron_set: str,
    style: dict[str, Any],
    experiment: str,
    drawn_values: DrawnValues,
    overlay: bool,
    place: tuple[int, int],
) -> bool:
    """Draw crosses where Durrani et al. have a value for the model family, corpus and task of `rows`.

    Returns:
        Whether there is any such value.
    """
    if rows["ranking"].iloc[0] == "probeless":  # the published rankings are by the weights of a probe
        return False
    key = PUBLISHED_KEYS.get((experiment, neuron_set))
    found = []
    for (x, family, task, name, share), _ in each_group(
        rows, ["x", "family", "task", "finetuned_on", "share"]
    ):
        value = published_word_probing(str(family), str(task), str(name)).get(key or "")
        if value is not None and (pd.isna(share) or share == published_neuron_fraction(str(task))):
            found.append((x, value))
    if not found:
        return False
    table = pd.DataFrame(found, columns=["x", "mean"])
    published = {"color": style["color"], **_published_style()}
    draw_published_points(panel, rows, table, DURRANI, published, drawn_values, overlay, place)
    return True


def _published_style() -> dict[str, Any]:
    return {"marker": "x", "linestyle": "", "markersize": 5.5, "markeredgewidth": 1.3}


def _model_style(name: str, names: Sequence[str], theme: Theme) -> dict[str, Any]:
    if name == PRETRAINED:
        return line_style(theme, theme.ink, 1, "D")
    index = [n for n in names if n != PRETRAINED].index(name)
    return category_style(theme, index)


def _set_style(rows: pd.DataFrame, points: pd.DataFrame, sets: str, theme: Theme) -> dict[str, Any]:
    """Style of a set of neurons, without a line, since models have no order.

    There is one color per kind of set. Markers are filled for the smallest set of the default ranking, and open for
    larger sets and other rankings.
    """
    first = rows.iloc[0]
    if sets == "ranking":
        index = sorted(set(points["ranking"])).index(first["ranking"])
        return category_style(theme, index) | {"linestyle": ""}
    kind = SET_ORDER.index(first["set_kind"]) if first["set_kind"] in SET_ORDER else 0
    same_kind = points.loc[
        points["set_kind"] == first["set_kind"], ["ranking", "set_name", "share"]
    ].drop_duplicates("set_name")
    same_kind = same_kind.sort_values(
        ["ranking", "share"], key=lambda c: c if c.name == "share" else c != "lca"
    )
    variant = list(same_kind["set_name"]).index(first["set_name"])
    marker = MARKERS[(kind + max(0, variant - 1)) % len(MARKERS)]
    style = line_style(theme, theme.ink if kind == 0 else theme.conditions[kind - 1], variant, marker)
    return style | {"linestyle": ""}


def set_model_ticks(panel: Panel, names: Sequence[str]) -> None:
    """Label the x axis with names of models, rotated if there are many."""
    axes = panel.axes
    axes.xaxis.set_major_locator(FixedLocator(list(range(len(names)))))
    axes.xaxis.set_major_formatter(FixedFormatter(list(names)))
    axes.set_xlim(-0.5, len(names) - 0.5)
    if len(names) > MAX_HORIZONTAL_NAMES:
        axes.tick_params(axis="x", labelrotation=35)
        for text in axes.get_xticklabels():
            text.set_horizontalalignment("right")
            text.set_rotation_mode("anchor")


def _in_order(names: pd.Series) -> list[str]:
    """Distinct names in order of appearance, but "pretrained" first."""
    found = list(dict.fromkeys(names))
    return sorted(found, key=lambda name: name != PRETRAINED)


def _set_kind(points: pd.DataFrame) -> pd.Series:
    """Kind of the set of neurons of each row, one of `SET_ORDER`."""
    return condition_detail(points).str.partition(",")[0]


def _set_names(points: pd.DataFrame, sets: str, with_size: bool) -> pd.Series:
    """Label of the set of each row, e.g. "top 5%" or "top 5%, probeless"; the ranking if `sets` is "ranking"."""
    detail = condition_detail(points)
    if sets == "ranking":
        return detail.where(detail != "", LCA)
    if not with_size:
        return detail
    sizes = points["share"].map(_percent)
    parts = detail.str.partition(", ")
    return parts[0] + sizes.where(sizes == "", " " + sizes) + parts[1] + parts[2]


def _percent(share: float) -> str:
    return "" if pd.isna(share) else format_percent(share)


def _sets_in_order(points: pd.DataFrame) -> list[str]:
    """Names of the sets of neurons in the order of the legend."""
    found = points.drop_duplicates("set_name")
    order = {name: i for i, name in enumerate(SET_ORDER)}
    rows = zip(
        found["set_name"], found["set_kind"], found["share"].fillna(1.0), found["ranking"], strict=True
    )
    return [
        name for name, *_ in sorted(rows, key=lambda row: (row[3] != "lca", order.get(row[1], 9), -row[2]))
    ]
