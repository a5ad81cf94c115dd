"""What stands below a figure: how to read it, and how many trials it rests on."""

from __future__ import annotations

import pandas as pd

from whichlayers.analysis.baseline_differences import ALL, BASELINES, NONE
from whichlayers.plots.display_names import BY_LAYER, size_name
from whichlayers.plots.figures import in_one_figure
from whichlayers.plots.permutations import LEAST_FOR_DENSITY
from whichlayers.plots.style import FEW
from whichlayers.plots.word_figures import MOST_BARS, whose
from whichlayers.results.frames import CURVE

WHAT = {
    "incremental": "The first k layers keep their pretrained weights, all above are re-initialised, and the "
    "whole model is finetuned. k = 0 keeps the embeddings alone.",
    "localized": "A block of consecutive layers is re-initialised, or is all that is preserved, and the "
    "whole model is finetuned.",
    "single_layer": "One layer is re-initialised and the whole model is finetuned.",
    "permutation": "The pretrained layers are put in a random order and the whole model is finetuned.",
    "epochs": "The first k layers keep their pretrained weights, all above are re-initialised, and the whole "
    "model is finetuned for longer. Shown is the end of training.",
    "prune": "Layers are dropped and the model that is left is finetuned.",
    "probing": "The model stays as it was pretrained; a linear classifier is trained on the states of one "
    "layer, and stops by examples held out from its training set.",
    "word_probing": "A linear classifier of words' tags is trained on the states of one layer, of the model as it was "
    "pretrained and of the model finetuned on a task.",
    "neurons": "A linear classifier of words' tags is trained on all neurons of all layers, and anew on the top, the "
    "bottom or random ones alone.",
    "neuron_spread": "How many of the neurons that say most of a word's tag lie in each layer.",
    "smallest_set": "How many of all neurons a classifier needs, the best first, to be about as accurate as with all.",
    "selectivity": "Accuracy less that on a control task, in which every word type has one random tag.",
    "description_length": "How many times shorter the tags are by the classifier's online code than by a uniform code.",
}
CUT_OFF = "An interval that leaves the panel is cut off at its edge."


def caption(points: pd.DataFrame, experiment: str) -> str:
    chosen = points[points["experiment"] == experiment]
    shown = in_one_figure(chosen) if experiment == "incremental" else chosen
    others, chosen = chosen["variant"].nunique() - shown["variant"].nunique(), shown
    counts = chosen[~chosen["condition"].isin(BASELINES)].groupby([*CURVE, "condition", "x"]).size()
    told = [WHAT.get(experiment, "")]
    if experiment == "permutation":
        told += _permutations(chosen[~chosen["condition"].isin(BASELINES)])
    elif counts.max() > 1:
        told.append(f"Means with 95% t intervals over {_range(counts)} trials a point.")
    else:
        told.append("One trial a point, hence no intervals.")
    if _crowded(chosen, experiment):
        told.append(
            "Bars stand on the first curve alone, for they would merge; point at another to read its own."
        )
    elif experiment != "permutation" and counts.between(2, FEW).any():
        told.append("Faint points are single trials.")
    told += _baselines(chosen)
    if chosen["train_size"].nunique() == 1 and chosen["train_size"].iloc[0]:
        told.append(f"{size_name(chosen['train_size'].iloc[0])} training examples.")
    elif experiment == "incremental":
        told.append("The more examples, the stronger the colour.")
    if others:
        told.append(f"With {chosen['variant'].iloc[0]}; the figures below compare other ways.")
    if experiment == "incremental" and _probed(points):
        told.append("The broken line is a linear probe on layer k of the frozen model.")
    if counts.between(2, 3).any():
        told.append(CUT_OFF)
    return " ".join(text for text in told if text)


def _permutations(rows: pd.DataFrame) -> list[str]:
    told = ["Mean of the permutations with its 95% t interval."]
    each = rows.groupby([*CURVE, "x"])["value"].mean()
    if (each.groupby(CURVE).size() >= LEAST_FOR_DENSITY).any():
        told.append("The shape beside the circles is a kernel density estimate.")
    if each.groupby(CURVE).apply(lambda values: values.duplicated().any()).any():
        told.append("Circles at exactly one height are orders with the same score.")
    return told


def _crowded(rows: pd.DataFrame, experiment: str) -> bool:
    """Whether a panel has more curves than can all have bars."""
    if experiment not in BY_LAYER:
        return False
    return bool(whose(rows).groupby([rows["model"], rows["task"]]).nunique().max() > MOST_BARS)


def _baselines(rows: pd.DataFrame) -> list[str]:
    """Only of those that are drawn."""
    words = {ALL: "all", NONE: "none"}
    drawn = [c for c in BASELINES if (rows["condition"] == c).any()]
    if not drawn:
        return []
    lines = "Broken lines are" if len(drawn) > 1 else "The broken line is"
    which = " or with ".join(words[c] for c in drawn)
    several = rows[rows["condition"].isin(drawn)].groupby([*CURVE, "condition"]).size().max() > 1
    band = f", with {'their' if len(drawn) > 1 else 'its'} 95% band" if several else ""
    return [f"{lines} the model with {which} of its layers pretrained{band}."]


def _probed(points: pd.DataFrame) -> bool:
    kinds = [set(points.loc[points["experiment"] == e, "task"]) for e in ("incremental", "probing")]
    return bool(kinds[0] & kinds[1])


def _range(counts: pd.Series) -> str:
    least, most = int(counts.min()), int(counts.max())
    return str(most) if least == most else f"{least} to {most}"
