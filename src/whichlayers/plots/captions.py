"""Captions: what a figure shows, how to read it, and how many trials it is based on."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from whichlayers.catalog import CAUSAL_FAMILIES
from whichlayers.experiments import display_of
from whichlayers.experiments.display import PRETRAINED_BASELINES
from whichlayers.plots.artists import GUESS_LABEL
from whichlayers.plots.curves import main_figure_rows
from whichlayers.plots.display_names import size_name
from whichlayers.plots.facets import INTERVAL, PanelFigure, has_clipped_bars
from whichlayers.plots.permutations import MIN_FOR_DENSITY
from whichlayers.plots.style import MAX_SINGLE_TRIALS
from whichlayers.plots.word_figures import MAX_CURVES_WITH_BARS, model_labels
from whichlayers.results.frames import CURVE
from whichlayers.text import BEYOND_NOTE, count_range, is_beyond, short_names
from whichlayers.trial import ALL_PRETRAINED, BASELINES, NONE_PRETRAINED

CLIPPED_NOTE = "An arrowhead marks an interval that extends beyond the panel."


def caption(points: pd.DataFrame, experiment: str) -> str:
    """Caption of the main figure of an experiment, from finished points of the whole study."""
    chosen = points[points["experiment"] == experiment]
    display = display_of(experiment)
    drawn = main_figure_rows(chosen) if display.plot == "curves" else chosen
    other_variants = chosen["variant"].nunique() - drawn["variant"].nunique()
    counts = drawn[~drawn["condition"].isin(BASELINES)].groupby([*CURVE, "condition", "x"]).size()
    sentences = [display.description]
    if display.word_level:
        sentences.append(context_of_words(drawn))
    if display.plot == "permutations":
        sentences += _permutations(drawn[~drawn["condition"].isin(BASELINES)])
    elif counts.max() > 1:
        sentences.append(f"Means with 95% t intervals over {count_range(counts)} trials per point.")
    else:
        sentences.append("One trial per point, so there are no intervals.")
    if display.plot == "by_layer" and _crowded(drawn):
        sentences.append(
            "Only the first curve has error bars, to avoid clutter; hover over another curve to see its intervals."
        )
    elif display.plot != "permutations" and counts.between(2, MAX_SINGLE_TRIALS).any():
        sentences.append("Faint points are single trials.")
    sentences += _baselines(drawn)
    if drawn["train_size"].nunique() == 1 and drawn["train_size"].iloc[0]:
        sentences.append(f"{size_name(drawn['train_size'].iloc[0])} training examples.")
    elif display.plot == "curves":
        sentences.append("Stronger colors mean more training examples.")
    if other_variants:
        sentences.append(f"Shown for {drawn['variant'].iloc[0]}; the figures below compare other settings.")
    if display.plot == "curves" and _has_probes(points, experiment):
        sentences.append("The dashed line is a linear probe on layer k of the frozen model.")
    return " ".join(text for text in sentences if text)


def context_of_words(rows: pd.DataFrame) -> str:
    """A sentence on decoders, whose words have less context than those of encoders; empty if there are none."""
    decoders = rows["family"].isin(CAUSAL_FAMILIES)
    if not decoders.any():
        return ""
    text = "In a decoder, a word sees only the words to the left of it"
    if decoders.all():
        return f"{text}."
    names = ", ".join(dict.fromkeys(rows.loc[decoders, "model"].map(short_names(rows["model"]))))
    return f"{text} ({names}); in an encoder it sees the whole sentence."


def clipped_caption(figure: Figure) -> str:
    """A sentence on intervals that extend beyond their panel; empty if there are none."""
    return CLIPPED_NOTE if has_clipped_bars(figure) else ""


def beyond_caption(figure: Figure) -> str:
    """A sentence on intervals that extend beyond the range of the metric; empty if there are none."""
    for panel in figure.panels if isinstance(figure, PanelFigure) else ():
        for mark in panel.marks:
            if (
                mark.bounds == INTERVAL
                and {"low", "high"} <= set(mark.table)
                and any(
                    is_beyond(low, high, panel.metric)
                    for low, high in zip(mark.table["low"], mark.table["high"], strict=True)
                )
            ):
                return BEYOND_NOTE
    return ""


def guess_caption(figure: Figure) -> str:
    """A sentence on the line of guessing in a figure; empty if no panel has it."""
    panels = figure.panels if isinstance(figure, PanelFigure) else ()
    drawn = [any(mark.name == GUESS_LABEL for mark in panel.marks) for panel in panels]
    if not any(drawn):
        return ""
    missing = "" if all(drawn) else "; in the other panels it is far below the curves, or not known"
    return f"The dotted line is guessing: always predicting the most frequent class of the training data{missing}."


def _permutations(rows: pd.DataFrame) -> list[str]:
    sentences = ["Mean over the permutations with its 95% t interval."]
    each = rows.groupby([*CURVE, "x"])["value"].mean()
    if (each.groupby(CURVE).size() >= MIN_FOR_DENSITY).any():
        sentences.append("The shape next to the circles is a kernel density estimate.")
    if each.groupby(CURVE).apply(lambda values: values.duplicated().any()).any():
        sentences.append("Circles at the same height are permutations with the same score.")
    return sentences


def _crowded(rows: pd.DataFrame) -> bool:
    """Whether a panel of a by_layer figure has too many curves for all of them to have error bars."""
    return bool(
        model_labels(rows).groupby([rows["model"], rows["task"]]).nunique().max() > MAX_CURVES_WITH_BARS
    )


def _baselines(rows: pd.DataFrame) -> list[str]:
    """A sentence on the baselines that are drawn, if any."""
    names = {ALL_PRETRAINED: "all", NONE_PRETRAINED: "none"}
    drawn = [c for c in BASELINES if (rows["condition"] == c).any()]
    if not drawn:
        return []
    lines = "Dashed lines show" if len(drawn) > 1 else "The dashed line shows"
    which = " or ".join(names[c] for c in drawn)
    several = rows[rows["condition"].isin(drawn)].groupby([*CURVE, "condition"]).size().max() > 1
    intervals = "95% t intervals as bands" if len(drawn) > 1 else "its 95% t interval as a band"
    band = f", with {intervals}" if several else ""
    own = display_of(rows["experiment"].iloc[0]).baselines
    if own is not PRETRAINED_BASELINES:
        return [f"{lines} the model with {' and '.join(own[c] for c in drawn)}{band}."]
    return [f"{lines} the model with {which} of its layers pretrained{band}."]


def _has_probes(points: pd.DataFrame, experiment: str) -> bool:
    """Whether some task has both a curve of the experiment and linear probes."""
    tasks = [set(points.loc[points["experiment"] == e, "task"]) for e in (experiment, "probing")]
    return bool(tasks[0] & tasks[1])
